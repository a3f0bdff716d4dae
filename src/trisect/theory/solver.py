"""Solve for matrices Q, K and V that turn given words into wanted outputs, or prove that there are none."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import optimize

import trisect.theory.helpers as helpers
from trisect.core.errors import TheoryError
from trisect.theory.constructions import self_attention
from trisect.theory.helpers import attention_weights
from trisect.theory.result import Array

SURE = 1e-9  # of the largest wanted number: what a bound that is itself rounded has to exceed
WORK = 1e8  # steps of elimination times bits of its numbers, up to which a rank is counted exactly
MOST = sys.float_info.max


class Certificate(NamedTuple):
    """A proof that wanted outputs are out of reach: in words, and how far the worst output has to stay away."""

    proof: str
    bound: float


def certificate(words: Float[np.ndarray, "N D"], wanted: Float[np.ndarray, "N M"]) -> Certificate | None:
    """The proof with the largest bound, or None where none holds; rows of NaN in `wanted` ask for nothing.

    Equal words have equal outputs: any difference of their wants, however small, is a proof. A zero word scores 0 with all,
    so that its output is V times the mean word whatever Q and K are. All outputs lie in the span of V x_1 … V x_N, whose
    dimension is at most that of the words' span. The words are taken as the exact numbers that they are: words that are
    dependent but for rounding are not dependent.
    """
    asked = np.asarray(np.isfinite(wanted).all(1))
    power = helpers.power_of(wanted[asked])
    scaled = np.ldexp(wanted, -power)  # of size 1, so that no square is too small or too large
    size = float(np.abs(scaled[asked]).max(initial=0.0))
    rank = max_rank(words)
    spanned = Certificate(
        f"The words span a space of dimension {rank}, and every output is a mean of the values V x_i, which span no more. "
        "The wanted outputs do.",
        _out_of_rank(scaled[asked], rank),
    )

    found = []
    for one in (_zero(words, scaled, asked, rank), spanned):
        if one and one.bound > SURE * size:
            fits = math.frexp(one.bound)[1] + power <= sys.float_info.max_exp
            found.append(one._replace(bound=math.ldexp(one.bound, power) if fits else MOST))
    equal = _equal(words, wanted, asked)
    return max(found if equal is None else [equal, *found], key=lambda one: one.bound, default=None)


def max_rank(words: Float[np.ndarray, "N D"]) -> int:
    """The words' rank: exactly, or where counting it would take too long, a number that it does not exceed.

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
        whole = [above * (common // below) for above, below in ratios]
        shared = math.gcd(*whole) or 1
        rows.append([value // shared for value in whole])
    bits = sum(max(abs(value).bit_length() for value in row) for row in rows)
    return _eliminate(rows) if bits * table.size * full <= WORK else full


def _eliminate(rows: list[list[int]]) -> int:
    """The rank, by elimination in whole numbers (Bareiss 1968)."""
    rank, last = 0, 1
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


def _equal(words: Array, wanted: Array, asked: Array) -> Certificate | None:
    """Of all pairs of equal words with unequal wants, the one whose wants are farthest apart."""
    best: Certificate | None = None
    places = np.flatnonzero(asked)
    for n, i in enumerate(places):
        for j in places[n + 1 :]:
            if not np.array_equal(words[i], words[j]) or np.array_equal(wanted[i], wanted[j]):
                continue
            bound = min(helpers.length(wanted[i] / 2 - wanted[j] / 2), MOST)
            if best is None or bound > best.bound:
                best = Certificate(
                    f"Words {i + 1} and {j + 1} are equal, so that their queries are, and with them their weights and their "
                    "outputs, whatever Q, K and V are. Different outputs are wanted: one of them is missed by at least "
                    "half their distance.",
                    bound,
                )
    return best


def _zero(words: Array, wanted: Array, asked: Array, rank: int) -> Certificate | None:
    """What follows from c_0 = V x̄ for a zero word, x̄ being the mean word."""
    zeros = np.flatnonzero(~words.any(1) & asked)
    if not len(zeros):
        return None
    place = zeros[0]
    said = (
        f"Word {place + 1} is zero, so that its query is, all its weights are 1/n, and its output is V x̄, x̄ the mean of all "
        "words, whatever Q and K are. "
    )
    sums = [sum(map(Fraction, column)) for column in words.T.tolist()]
    if not any(sums):
        return Certificate(said + "Here x̄ = 0, and so is that output.", helpers.length(wanted[place]))
    shares, target = _shares(words, sums), wanted[place]
    farthest = 1 + float(np.abs(shares).max())
    if rank == 1:
        # with x_i = s_i x̄, c_i = t_i V x̄ and t_i between the ends of s: |t_i y_0 − y_i| ≤ r (1 + |t_i|) for a worst miss r
        square, bound = float(target @ target), 0.0
        for want in wanted[asked]:
            nearest = float(np.clip(want @ target / square, shares.min(), shares.max())) if square else 0.0
            bound = max(bound, helpers.length(nearest * target - want) / farthest)
        line = "All words lie on one line, so that every output is V x̄ times a number between the least and the largest x_i / x̄."
        return Certificate(said + line, bound)
    if not target.any():
        # V x̄ = 0 costs V a dimension. With c_0 missed by e, V x_j = s_j e + V (x_j less its part s_j x̄): the outputs are
        # t eᵀ, |t| ≤ max |s_j|, and a table of rank one less: a worst miss r has r (1 + max |s_j|) ≥ the distance from such
        less = "That output is wanted to be 0, so that V takes one dimension less than the words span, and so do all outputs."
        return Certificate(said + less, _out_of_rank(wanted[asked], rank - 1) / farthest)
    return None


def _shares(words: Array, sums: list[Fraction | int]) -> Float[np.ndarray, " N"]:
    """s_i with s_i x̄ the part of x_i along x̄; the sums are exact, since little may be left of large words."""
    most = max(map(abs, sums))
    along = np.array([float(Fraction(one) / most) for one in sums])
    power = helpers.power_of(words)
    mean = float(Fraction(most) / len(words) / Fraction(2) ** power)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # what overflows proves nothing
        return np.nan_to_num(np.ldexp(words, -power) @ along / (along @ along) / mean, nan=0.0)


def _out_of_rank(wanted: Array, rank: int) -> float:
    """How far the worst row is at least from every table of that rank (Eckart & Young 1936, spread over the rows)."""
    if not len(wanted):
        return 0.0
    values = np.linalg.svd(wanted, compute_uv=False)
    return float(np.sqrt((values[rank:] ** 2).sum() / len(wanted)))


SOLVED, IMPOSSIBLE, NOT_FOUND = "solved", "impossible", "not found"
CLOSE = 1e-6  # of the largest wanted number: how near outputs have to be to count as the wanted ones
STARTS = 4  # of the search
FINE = {"maxiter": 200, "ftol": 1e-18, "gtol": 1e-12}  # the loss is a square: its usual ends leave residuals of 1e-5


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver found. `residual` is the largest |c_i − y_i| over the words with a wanted output.

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
    words, wanted, asked = _check_tables(inputs, outputs)
    proved = certificate(words, wanted)
    if proved is not None:
        return Solution(IMPOSSIBLE, "proof", None, None, None, None, None, proved.proof, proved.bound)
    unique, which = np.unique(words, axis=0, return_inverse=True)
    tried: list[Solution] = []
    if max_rank(unique) == len(unique):
        made = _exact_matrices(unique, which.ravel(), wanted, asked, beta)
        if made is not None:
            tried.append(_finish("closed form", words, wanted, asked, made))
    if not tried or tried[0].status != SOLVED:
        best = _search(words, wanted, asked, helpers.generator(generator))
        tried.append(_finish("search", words, wanted, asked, best))
    return min(tried, key=lambda one: one.residual if one.residual is not None else np.inf)


def _check_tables(inputs: ArrayLike, outputs: ArrayLike) -> tuple[Array, Array, Array]:
    """Words, wanted outputs, and which words have one."""
    words, wanted = _numbers("inputs", inputs) + 0.0, _numbers("outputs", outputs)  # −0 is 0
    if not (words.ndim == wanted.ndim == 2 and len(words) == len(wanted) and words.size and wanted.size):
        given = f"Words of shape {words.shape} and wanted outputs of shape {wanted.shape} were given."
        known = "Both are tables with a row for each word."
        raise TheoryError(given, known, "Give shapes [N, D] and [N, M] with the same N.")
    free = np.asarray(np.isnan(wanted).all(1))
    if not (np.isfinite(words).all() and np.isfinite(wanted[~free]).all()):
        given = "Words or wanted outputs with numbers that are not finite were given."
        known = "A word whose output does not matter has a whole row of NaN; all else is finite."
        raise TheoryError(given, known, "Replace the other NaN and infinities.")
    return words, wanted, ~free


def _numbers(name: str, given: ArrayLike) -> Array:
    """A table of real numbers as float64, always a new one."""
    try:
        found = np.asarray(given)
    except ValueError:  # rows of different lengths
        found = np.array(None)
    if found.dtype.kind not in "biuf":
        said = f"{name} that are no table of numbers were given: {str(given)[:60]!r}."
        known = "Words and wanted outputs are real numbers, in rows of one length."
        raise TheoryError(said, known, "Give lists of floats, or float arrays.")
    return found.astype(np.float64)


class _Matrices(NamedTuple):
    query: Array
    key: Array
    value: Array


def _exact_matrices(unique: Array, which: Array, wanted: Array, asked: Array, beta: float) -> _Matrices | None:
    """K x_i = e_i, Q x_i = βe_i, and values A⁻¹Y, A being the weights that this makes among different words.

    None where float64 has no inverse of the words or of the weights.
    """
    count, dim = unique.shape
    scaled, down, across = helpers.balance(unique)
    copies = np.bincount(which, minlength=count)
    weights = attention_weights(beta * np.eye(count) + np.log(copies))
    power = helpers.power_of(wanted[asked])
    targets = np.zeros((count, wanted.shape[1]))
    targets[which[asked]] = np.ldexp(wanted[asked], -power)
    try:
        right = np.linalg.inv(scaled) if count == dim else np.linalg.pinv(scaled, rcond=0.0)
        values = np.linalg.solve(weights, targets)
    except np.linalg.LinAlgError:
        return None
    right = np.ldexp(right, -across[:, None])  # [D U]: x_i ↦ e_i, but for the words' own sizes
    key = np.zeros((dim, dim))
    with np.errstate(over="ignore", invalid="ignore"):  # looked at when all is done
        key[:count] = np.ldexp(right, -down).T
        return _Matrices(beta * key, key, (right @ np.ldexp(values, power - down[:, None])).T)


def _search(words: Array, wanted: Array, asked: Array, draw: Generator) -> _Matrices:
    """The best of a few descents over M = QᵀK; V is the least-squares solution at every step (variable projection).

    Words and wants are searched for at size 1, and the matrices scaled back.
    """
    dim = words.shape[1]
    down, power = helpers.power_of(words), helpers.power_of(wanted[asked])
    words, targets = np.ldexp(words, -down), np.ldexp(wanted[asked], -power)

    def loss(flat: Array) -> tuple[float, Array]:
        scores = words @ flat.reshape(dim, dim) @ words.T
        weights = attention_weights(np.clip(scores, -helpers.LARGEST, helpers.LARGEST))
        mixed = (weights @ words)[asked]
        value = np.linalg.lstsq(mixed, targets, rcond=1e-10)[0]
        off = mixed @ value - targets
        slope = np.zeros_like(weights)
        slope[asked] = off @ (words @ value).T
        slope = weights * (slope - (weights * slope).sum(1, keepdims=True))
        return float((off**2).sum() / 2), (words.T @ slope @ words).ravel()

    starts = [np.zeros(dim * dim), *(4.0 * draw.standard_normal((STARTS, dim * dim)))]
    ends = [optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=FINE) for start in starts]
    best = min(ends, key=lambda one: float(one.fun)).x.reshape(dim, dim)
    weights = attention_weights(words @ best @ words.T)
    value = np.linalg.lstsq((weights @ words)[asked], targets, rcond=1e-10)[0]
    with np.errstate(over="ignore"):
        return _Matrices(np.ldexp(np.eye(dim), -down), np.ldexp(best, -down), np.ldexp(value.T, power - down))


def _finish(how: str, words: Array, wanted: Array, asked: Array, made: _Matrices) -> Solution:
    """What self-attention itself makes of the matrices."""
    if not all(np.isfinite(one).all() for one in made):
        sizes = f"{np.abs(words).max():.3g} and wanted outputs up to {np.abs(wanted[asked]).max():.3g}"
        known = "The matrices between them would have numbers beyond float64."
        todo = "Give words and wanted outputs in units that make them nearer to 1."
        raise TheoryError(f"Words up to {sizes} in size were given.", known, todo)
    with np.errstate(over="ignore", invalid="ignore"):
        outputs = self_attention(words, made.query, made.key, made.value).outputs
        off = (outputs - wanted)[asked]
    residual = max((helpers.length(row) for row in off), default=0.0)
    close = CLOSE * (float(np.abs(wanted[asked]).max(initial=0.0)) or 1.0)
    status = SOLVED if residual <= close else NOT_FOUND
    return Solution(status, how, made.query, made.key, made.value, outputs, residual)
