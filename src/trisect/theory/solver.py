"""Solve for matrices Q, K and V that map given words to given outputs, or prove that there are none."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def certificate(words: Float[np.ndarray, "N D"], targets: Float[np.ndarray, "N M"]) -> tuple[str, float] | None:
    """A proof in words with the largest lower bound found on the worst output's error, or None.

    Rows of NaN in `targets` ask for nothing. Equal words have equal outputs: any difference of their targets, however small, is
    a proof. A zero word scores 0 with all, so that its output is V times the mean word whatever Q and K are. All outputs lie in
    the span of V x_1 … V x_N, whose dimension is at most that of the words' span, which is counted up to rounding.
    """
    rows, proofs = np.flatnonzero(np.isfinite(targets).all(1)), list[tuple[str, float]]()
    for n, i in enumerate(rows):
        for j in rows[n + 1 :]:
            if np.array_equal(words[i], words[j]) and not np.array_equal(targets[i], targets[j]):
                proof = (
                    f"Words {i + 1} and {j + 1} are equal, so that their queries are, and with them their weights and their "
                    "outputs, whatever Q, K and V are. Different outputs are wanted: one of them is missed by at least half "
                    "their distance."
                )
                proofs.append((proof, float(np.linalg.norm(targets[i] - targets[j])) / 2))
        if not words[i].any() and targets[i].any() and not any(map(math.fsum, words.T)):
            proof = (
                f"Word {i + 1} is zero, so that its query is, all its weights are 1/n, and its output is V x̄, x̄ the mean of "
                "all words, whatever Q and K are. Here x̄ = 0, and so is that output."
            )
            proofs.append((proof, float(np.linalg.norm(targets[i]))))
    rank = _rank(words)
    proof = (
        f"The words span, up to rounding, a space of dimension {rank}, and every output is a mean of the values V x_i, "
        "which span no more. The wanted outputs do."
    )
    bound = _out_of_rank(targets[rows], rank)
    if bound > BOUND_TOLERANCE * np.abs(targets[rows]).max(initial=0.0):
        proofs.append((proof, bound))
    return max(proofs, key=lambda pair: pair[1], default=None)


def _rank(words: Float[np.ndarray, "N D"]) -> int:
    """The words' rank up to rounding, each scaled to length 1."""
    lengths = np.linalg.norm(words, axis=1, keepdims=True)
    return int(np.linalg.matrix_rank(words / np.where(lengths > 0, lengths, 1.0)))


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
    draws. Raises TheoryError for other shapes and for what is not numbers.
    """
    beta = helpers.check_beta(beta)
    words, targets, active = _check_tables(inputs, outputs)
    proved = certificate(words, targets)
    if proved is not None:
        return Solution(IMPOSSIBLE, "proof", None, None, None, None, None, *proved)
    unique, which = np.unique(words, axis=0, return_inverse=True)
    solutions: list[Solution] = []
    if _rank(unique) == len(unique):
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

    None where float64 has no inverse of the weights.
    """
    count, dim = unique.shape
    copies = np.bincount(which, minlength=count)
    weights = attention_weights(beta * np.eye(count) + np.log(copies))
    table = np.zeros((count, targets.shape[1]))
    table[which[active]] = targets[active]
    try:
        values = np.linalg.solve(weights, table)
    except np.linalg.LinAlgError:
        return None
    right = np.linalg.pinv(unique, rcond=0.0)  # [D U]: x_i ↦ e_i
    key = np.zeros((dim, dim))
    key[:count] = right.T
    return beta * key, key, (right @ values).T


def _search(words: Array, targets: Array, active: Array, draw: Generator) -> tuple[Array, Array, Array]:
    """The best Q, K, V of several descents over M = QᵀK; V is the least-squares solution at every step (variable projection).

    Words and targets are searched for at size 1, and the matrices scaled back.
    """
    dim = words.shape[1]
    size, reach = (float(np.abs(table).max(initial=0.0)) or 1.0 for table in (words, targets[active]))
    words, targets = words / size, targets[active] / reach

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
    return np.eye(dim) / size, best / size, value.T * reach / size


def _finish(how: str, words: Array, targets: Array, active: Array, query: Array, key: Array, value: Array) -> Solution:
    """The self-attention of the matrices."""
    outputs = self_attention(words, query, key, value).outputs
    residual = float(np.linalg.norm((outputs - targets)[active], axis=1).max(initial=0.0))
    close = OUTPUT_TOLERANCE * (float(np.abs(targets[active]).max(initial=0.0)) or 1.0)
    status = SOLVED if residual <= close else NOT_FOUND
    return Solution(status, how, query, key, value, outputs, residual)
