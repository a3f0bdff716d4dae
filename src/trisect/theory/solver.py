"""Solve for matrices Q, K and V that turn given words into wanted outputs, or prove that there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import optimize

import trisect.theory.helpers as helpers
from trisect.core.errors import TheoryError
from trisect.theory.certificates import certificate, rank_bound
from trisect.theory.helpers import attention_weights
from trisect.theory.result import Array
from trisect.theory.self_attention import self_attention

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
    words, wanted, asked = _checked(inputs, outputs)
    proved = certificate(words, wanted)
    if proved is not None:
        return Solution(IMPOSSIBLE, "proof", None, None, None, None, None, proved.proof, proved.bound)
    unique, which = np.unique(words, axis=0, return_inverse=True)
    tried: list[Solution] = []
    if rank_bound(unique) == len(unique):
        made = _closed(unique, which.ravel(), wanted, asked, beta)
        if made is not None:
            tried.append(_finish("closed form", words, wanted, asked, made))
    if not tried or tried[0].status != SOLVED:
        tried.append(
            _finish("search", words, wanted, asked, _search(words, wanted, asked, helpers.generator(generator)))
        )
    return min(tried, key=lambda one: one.residual if one.residual is not None else np.inf)


def _checked(inputs: ArrayLike, outputs: ArrayLike) -> tuple[Array, Array, Array]:
    """Words, wanted outputs, and which words have one."""
    words, wanted = _numbers("inputs", inputs) + 0.0, _numbers("outputs", outputs)  # −0 is 0
    if not (words.ndim == wanted.ndim == 2 and len(words) == len(wanted) and words.size and wanted.size):
        raise TheoryError(
            f"Words of shape {words.shape} and wanted outputs of shape {wanted.shape} were given.",
            "Both are tables with a row for each word.",
            "Give shapes [N, D] and [N, M] with the same N.",
        )
    free = np.asarray(np.isnan(wanted).all(1))
    if not (np.isfinite(words).all() and np.isfinite(wanted[~free]).all()):
        raise TheoryError(
            "Words or wanted outputs with numbers that are not finite were given.",
            "A word whose output does not matter has a whole row of NaN; all else is finite.",
            "Replace the other NaN and infinities.",
        )
    return words, wanted, ~free


def _numbers(name: str, given: ArrayLike) -> Array:
    """A table of real numbers as float64, always a new one."""
    try:
        found = np.asarray(given)
    except ValueError:  # rows of different lengths
        found = np.array(None)
    if found.dtype.kind not in "biuf":
        raise TheoryError(
            f"{name} that are no table of numbers were given: {str(given)[:60]!r}.",
            "Words and wanted outputs are real numbers, in rows of one length.",
            "Give lists of floats, or float arrays.",
        )
    return found.astype(np.float64)


class _Matrices(NamedTuple):
    query: Array
    key: Array
    value: Array


def _closed(unique: Array, which: Array, wanted: Array, asked: Array, beta: float) -> _Matrices | None:
    """K x_i = e_i, Q x_i = βe_i, and values A⁻¹Y, A being the weights that this makes among different words.

    Null where float64 has no inverse of the words or of the weights.
    """
    count, dim = unique.shape
    scaled, down, across = helpers.balanced(unique)
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
        raise TheoryError(
            f"Words up to {np.abs(words).max():.3g} and wanted outputs up to {np.abs(wanted[asked]).max():.3g} in size were given.",
            "The matrices between them would have numbers beyond float64.",
            "Give words and wanted outputs in units that make them nearer to 1.",
        )
    with np.errstate(over="ignore", invalid="ignore"):
        outputs = self_attention(words, made.query, made.key, made.value).outputs
        off = (outputs - wanted)[asked]
    residual = max((helpers.length(row) for row in off), default=0.0)
    close = CLOSE * (float(np.abs(wanted[asked]).max(initial=0.0)) or 1.0)
    status = SOLVED if residual <= close else NOT_FOUND
    return Solution(status, how, made.query, made.key, made.value, outputs, residual)
