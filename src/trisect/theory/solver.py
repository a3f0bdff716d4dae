"""Solve for matrices Q, K and V that map given words to given outputs, or prove that there are none."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import optimize

import trisect.theory.helpers as helpers
from trisect.core.errors import TheoryError
from trisect.theory.constructions import self_attention
from trisect.theory.helpers import Array, attention_weights

BOUND_TOLERANCE = 1e-9  # of the largest target: what a bound that is itself rounded has to exceed
WORK = 1e8  # steps of elimination times bits of its numbers, up to which a rank is counted exactly
MAX_FLOAT = sys.float_info.max


def certificate(words: Float[np.ndarray, "N D"], targets: Float[np.ndarray, "N M"]) -> tuple[str, float] | None:
    """A proof in words with the largest lower bound on the worst output's error, or None.

    Rows of NaN in `targets` ask for nothing. Equal words have equal outputs: any difference of their targets, however small, is
    a proof. A zero word scores 0 with all, so that its output is V times the mean word whatever Q and K are. All outputs lie in
    the span of V x_1 … V x_N, whose dimension is at most that of the words' span. The words are taken as the exact numbers that
    they are: words that are dependent but for rounding are not dependent.
    """
    active = np.asarray(np.isfinite(targets).all(1))
    power = helpers.power_of(targets[active])
    scaled = np.ldexp(targets, -power)  # of size 1, so that no square is too small or too large
    size = float(np.abs(scaled[active]).max(initial=0.0))
    rank = _max_rank(words)
    spanned = (
        f"The words span a space of dimension {rank}, and every output is a mean of the values V x_i, which span no more. "
        "The wanted outputs do.",
        _out_of_rank(scaled[active], rank),
    )
    proofs = []
    rows = np.flatnonzero(active)
    equal = [
        (min(helpers.length(targets[i] / 2 - targets[j] / 2), MAX_FLOAT), i + 1, j + 1)
        for n, i in enumerate(rows)
        for j in rows[n + 1 :]
        if np.array_equal(words[i], words[j]) and not np.array_equal(targets[i], targets[j])
    ]
    if equal:
        bound, first, second = max(equal, key=lambda pair: pair[0])
        proof = (
            f"Words {first} and {second} are equal, so that their queries are, and with them their weights and their outputs, "
            "whatever Q, K and V are. Different outputs are wanted: one of them is missed by at least half their distance."
        )
        proofs.append((proof, bound))
    for proof, bound in (_zero(words, scaled, active, rank), spanned):
        if bound > BOUND_TOLERANCE * size:
            fits = math.frexp(bound)[1] + power <= sys.float_info.max_exp
            proofs.append((proof, math.ldexp(bound, power) if fits else MAX_FLOAT))
    return max(proofs, key=lambda pair: pair[1], default=None)


def _max_rank(words: Float[np.ndarray, "N D"]) -> int:
    """The words' rank: exact, or an upper bound if computing it would take too long.

    Counted in float64 where that finds it full, else in whole numbers, up to a bounded amount of work.
    """
    table = np.unique(words[words.any(1)][:, words.any(0)], axis=0)
    if not table.size:
        return 0
    full = min(table.shape)
    scaled, down, across = helpers.balance(table)
    faithful = np.array_equal(np.ldexp(np.ldexp(scaled, across), down[:, None]), table)
    if faithful and np.linalg.matrix_rank(scaled) == full:
        return full
    rows = []  # each times a number that makes it whole, as small as possible
    for row in table.tolist():
        ratios = [value.as_integer_ratio() for value in row]
        common = max(below for _, below in ratios)  # all are powers of two
        integers = [above * (common // below) for above, below in ratios]
        shared = math.gcd(*integers) or 1
        rows.append([value // shared for value in integers])
    bits = sum(max(abs(value).bit_length() for value in row) for row in rows)
    if bits * table.size * full > WORK:
        return full
    rank, last = 0, 1  # by elimination in whole numbers (Bareiss 1968)
    for column in range(len(rows[0])):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        head = rows[rank]
        for i in range(rank + 1, len(rows)):
            first = rows[i][column]
            rows[i] = [(head[column] * x - first * y) // last for x, y in zip(rows[i], head, strict=True)]
        last, rank = head[column], rank + 1
    return rank


def _zero(words: Array, targets: Array, active: Array, rank: int) -> tuple[str, float]:
    """The bound from c_0 = V x̄ for a zero word, x̄ being the mean word; 0 if there is none."""
    zeros = np.flatnonzero(~words.any(1) & active)
    if not len(zeros):
        return "", 0.0
    first, target = zeros[0], targets[zeros[0]]
    proof = (
        f"Word {first + 1} is zero, so that its query is, all its weights are 1/n, and its output is V x̄, x̄ the mean of all "
        "words, whatever Q and K are. "
    )
    sums = [sum(map(Fraction, column)) for column in words.T.tolist()]  # exact, since little may be left of large words
    if not any(sums):
        return proof + "Here x̄ = 0, and so is that output.", helpers.length(target)
    most, power = max(map(abs, sums)), helpers.power_of(words)
    along = np.array([float(Fraction(part) / most) for part in sums])
    mean = float(Fraction(most) / len(words) / Fraction(2) ** power)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # what overflows proves nothing
        # s_i with s_i x̄ the part of x_i along x̄
        shares = np.nan_to_num(np.ldexp(words, -power) @ along / (along @ along) / mean, nan=0.0)
    farthest = 1 + float(np.abs(shares).max())
    if rank == 1:
        # with x_i = s_i x̄, c_i = t_i V x̄ and t_i between the ends of s: |t_i y_0 − y_i| ≤ r (1 + |t_i|) for a worst miss r
        square, bound = float(target @ target), 0.0
        for row in targets[active]:
            nearest = float(np.clip(row @ target / square, shares.min(), shares.max())) if square else 0.0
            bound = max(bound, helpers.length(nearest * target - row) / farthest)
        line = "All words lie on one line, so that every output is V x̄ times a number between the least and the largest x_i / x̄."
        return proof + line, bound
    if not target.any():
        # V x̄ = 0 costs V a dimension. With c_0 missed by e, V x_j = s_j e + V (x_j less its part s_j x̄): the outputs are
        # t eᵀ, |t| ≤ max |s_j|, and a table of rank one less: a worst miss r has r (1 + max |s_j|) ≥ the distance from such
        less = "That output is wanted to be 0, so that V takes one dimension less than the words span, and so do all outputs."
        return proof + less, _out_of_rank(targets[active], rank - 1) / farthest
    return "", 0.0


def _out_of_rank(targets: Array, rank: int) -> float:
    """The least error of the worst row for any table of that rank (Eckart & Young 1936, spread over the rows)."""
    if not len(targets):
        return 0.0
    values = np.linalg.svd(targets, compute_uv=False)
    return float(np.sqrt((values[rank:] ** 2).sum() / len(targets)))


SOLVED, IMPOSSIBLE, NOT_FOUND = "solved", "impossible", "not found"
OUTPUT_TOLERANCE = 1e-6  # of the largest wanted number: how near outputs have to be to count as the wanted ones
STARTS = 4  # of the search
FINE = {"maxiter": 200, "ftol": 1e-18, "gtol": 1e-12}  # the loss is a square: its usual ends leave residuals of 1e-5


@dataclass(frozen=True, eq=False)
class Solution:
    """The solver's result. `residual` is the largest |c_i − y_i| over the words with a given output.

    `status` is "solved", "impossible" (then `proof` says why, `bound` is what no residual can be below, and there are no
    matrices), or "not found" (the matrices are the best that came out, and nothing is proved: outputs may be out of reach, or
    in reach of exact numbers only and not of float64). Arrays are read-only.
    """

    status: str
    how: str
    query: Array | None
    key: Array | None
    value: Array | None
    outputs: Array | None
    residual: float | None
    proof: str = ""
    bound: float = 0.0

    def __post_init__(self) -> None:
        for array in (self.query, self.key, self.value, self.outputs):
            if array is not None:
                array.setflags(write=False)


def solve(inputs: ArrayLike, outputs: ArrayLike, *, beta: float = 10.0, generator: Generator | None = None) -> Solution:
    """Matrices with c_i = y_i in one head of self-attention over words x_i; `inputs` [N D], `outputs` [N M].

    A row of NaN in `outputs` is a word whose output does not matter. Where the words are linearly independent (equal
    words with equal wants count as one) the solution is in closed form, with scores β on a word itself and 0 elsewhere:
    the values are A⁻¹Y, so that the outputs are exact at every β, down to rounding. Where wants are certified impossible,
    see `certificate`. Else, and where float64 has no such inverse, the best of a search, started from the generator's
    draws. Raises TheoryError for other shapes, for what is not numbers, and where matrices would be beyond float64.
    """
    beta = helpers.check_beta(beta)
    words, targets, active = _check_tables(inputs, outputs)
    proved = certificate(words, targets)
    if proved is not None:
        return Solution(IMPOSSIBLE, "proof", None, None, None, None, None, *proved)
    unique, which = np.unique(words, axis=0, return_inverse=True)
    solutions: list[Solution] = []
    if _max_rank(unique) == len(unique):
        matrices = _exact_matrices(unique, which.ravel(), targets, active, beta)
        if matrices is not None:
            solutions.append(_finish("closed form", words, targets, active, *matrices))
    if not solutions or solutions[0].status != SOLVED:
        matrices = _search(words, targets, active, generator or np.random.default_rng(0))
        solutions.append(_finish("search", words, targets, active, *matrices))
    return min(solutions, key=lambda each: each.residual if each.residual is not None else np.inf)


def _check_tables(inputs: ArrayLike, outputs: ArrayLike) -> tuple[Array, Array, Array]:
    """Words and targets as new float64 tables, and which words have a target."""
    tables = []
    for name, values in (("inputs", inputs), ("outputs", outputs)):
        try:
            table = np.asarray(values)
        except ValueError:  # rows of different lengths
            table = np.array(None)
        if table.dtype.kind not in "biuf":
            shown = f"{name} that are no table of numbers were given: {str(values)[:60]!r}."
            real = "Words and wanted outputs are real numbers, in rows of one length."
            raise TheoryError(shown, real, "Give lists of floats, or float arrays.")
        tables.append(table.astype(np.float64))
    words, targets = tables[0] + 0.0, tables[1]  # −0 is 0
    if not (words.ndim == targets.ndim == 2 and len(words) == len(targets) and words.size and targets.size):
        shapes = f"Words of shape {words.shape} and wanted outputs of shape {targets.shape} were given."
        raise TheoryError(
            shapes, "Both are tables with a row for each word.", "Give shapes [N, D] and [N, M] with the same N."
        )
    free = np.asarray(np.isnan(targets).all(1))
    if not (np.isfinite(words).all() and np.isfinite(targets[~free]).all()):
        numbers = "Words or wanted outputs with numbers that are not finite were given."
        rows = "A word whose output does not matter has a whole row of NaN; all else is finite."
        raise TheoryError(numbers, rows, "Replace the other NaN and infinities.")
    return words, targets, ~free


def _exact_matrices(
    unique: Array, which: Array, targets: Array, active: Array, beta: float
) -> tuple[Array, Array, Array] | None:
    """Q, K, V with K x_i = e_i, Q x_i = βe_i, and values A⁻¹Y, A being the resulting weights among distinct words.

    None where float64 has no inverse of the words or of the weights.
    """
    count, dim = unique.shape
    scaled, down, across = helpers.balance(unique)
    copies = np.bincount(which, minlength=count)
    weights = attention_weights(beta * np.eye(count) + np.log(copies))
    power = helpers.power_of(targets[active])
    table = np.zeros((count, targets.shape[1]))
    table[which[active]] = np.ldexp(targets[active], -power)
    try:
        right = np.linalg.inv(scaled) if count == dim else np.linalg.pinv(scaled, rcond=0.0)
        values = np.linalg.solve(weights, table)
    except np.linalg.LinAlgError:
        return None
    right = np.ldexp(right, -across[:, None])  # [D U]: x_i ↦ e_i, but for the words' own sizes
    key = np.zeros((dim, dim))
    with np.errstate(over="ignore", invalid="ignore"):  # looked at when all is done
        key[:count] = np.ldexp(right, -down).T
        return beta * key, key, (right @ np.ldexp(values, power - down[:, None])).T


def _search(words: Array, targets: Array, active: Array, draw: Generator) -> tuple[Array, Array, Array]:
    """The best Q, K, V of several descents over M = QᵀK; V is the least-squares solution at every step (variable projection).

    Words and targets are searched for at size 1, and the matrices scaled back.
    """
    dim = words.shape[1]
    down, power = helpers.power_of(words), helpers.power_of(targets[active])
    words, targets = np.ldexp(words, -down), np.ldexp(targets[active], -power)

    def loss(flat: Array) -> tuple[float, Array]:
        scores = words @ flat.reshape(dim, dim) @ words.T
        weights = attention_weights(np.clip(scores, -helpers.MAX_LOGIT, helpers.MAX_LOGIT))
        mixed = (weights @ words)[active]
        value = np.linalg.lstsq(mixed, targets, rcond=1e-10)[0]
        off = mixed @ value - targets
        slope = np.zeros_like(weights)
        slope[active] = off @ (words @ value).T
        slope = weights * (slope - (weights * slope).sum(1, keepdims=True))
        return float((off**2).sum() / 2), (words.T @ slope @ words).ravel()

    starts = [np.zeros(dim * dim), *(4.0 * draw.standard_normal((STARTS, dim * dim)))]
    ends = [optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=FINE) for start in starts]
    best = min(ends, key=lambda end: float(end.fun)).x.reshape(dim, dim)
    weights = attention_weights(words @ best @ words.T)
    value = np.linalg.lstsq((weights @ words)[active], targets, rcond=1e-10)[0]
    with np.errstate(over="ignore"):
        return np.ldexp(np.eye(dim), -down), np.ldexp(best, -down), np.ldexp(value.T, power - down)


def _finish(how: str, words: Array, targets: Array, active: Array, query: Array, key: Array, value: Array) -> Solution:
    """The self-attention of the matrices."""
    if not all(np.isfinite(matrix).all() for matrix in (query, key, value)):
        sizes = f"{np.abs(words).max():.3g} and wanted outputs up to {np.abs(targets[active]).max():.3g}"
        beyond = "The matrices between them would have numbers beyond float64."
        todo = "Give words and wanted outputs in units that make them nearer to 1."
        raise TheoryError(f"Words up to {sizes} in size were given.", beyond, todo)
    with np.errstate(over="ignore", invalid="ignore"):
        outputs = self_attention(words, query, key, value).outputs
        off = (outputs - targets)[active]
    residual = max((helpers.length(row) for row in off), default=0.0)
    close = OUTPUT_TOLERANCE * (float(np.abs(targets[active]).max(initial=0.0)) or 1.0)
    status = SOLVED if residual <= close else NOT_FOUND
    return Solution(status, how, query, key, value, outputs, residual)
