"""Solver: matrices Q, K and V that turn given words into wanted outputs, or a proof that there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import optimize

import trisect.theory.parts as parts
from trisect.core.errors import TheoryError
from trisect.theory.certificates import certificate
from trisect.theory.parts import attention_weights
from trisect.theory.result import Array
from trisect.theory.words import self_attention

SOLVED, IMPOSSIBLE, NOT_FOUND = "solved", "impossible", "not found"
CLOSE = 1e-6  # of the largest wanted number: how near outputs have to be to count as the wanted ones
STARTS = 4  # of the search


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver found. `residual` is the largest |c_i − y_i| over the words with a wanted output.

    `status` is "solved", "impossible" (then `proof` says why, `bound` is what no residual can be below, and there are no
    matrices), or "not found" (the matrices are the best of a search, and nothing is proved).
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


def solve(inputs: ArrayLike, outputs: ArrayLike, *, beta: float = 10.0, generator: Generator | None = None) -> Solution:
    """Matrices with c_i = y_i in one head of self-attention over words x_i; `inputs` [N D], `outputs` [N M].

    A row of NaN in `outputs` is a word whose output does not matter. Where the words are linearly independent (equal
    words with equal wants count as one) the solution is in closed form, with scores β on a word itself and 0 elsewhere:
    the values are A⁻¹Y, so that the outputs are exact at every β. Where wants are certified impossible, see
    `certificate`. Else the best of a search, started from the generator's draws. Raises TheoryError for other shapes.
    """
    beta = parts.check_beta(beta)
    words, wanted, asked = _checked(inputs, outputs)
    proved = certificate(words, wanted)
    if proved is not None:
        return Solution(IMPOSSIBLE, "proof", None, None, None, None, None, proved.proof, proved.bound)
    scale = float(np.abs(wanted[asked]).max(initial=0.0)) or 1.0
    unique, which = np.unique(words, axis=0, return_inverse=True)
    if len(unique) <= unique.shape[1]:
        found = _finish("closed form", words, wanted, asked, _closed(unique, which.ravel(), wanted, asked, beta), scale)
        if found.status == SOLVED:
            return found
    return _finish("search", words, wanted, asked, _search(words, wanted, asked, parts.generator(generator)), scale)


def _checked(inputs: ArrayLike, outputs: ArrayLike) -> tuple[Array, Array, Array]:
    """Words, wanted outputs, and which words have one."""
    words, wanted = np.array(inputs, dtype=np.float64) + 0.0, np.array(outputs, dtype=np.float64)  # −0 is 0
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


class _Matrices(NamedTuple):
    query: Array
    key: Array
    value: Array


def _closed(unique: Array, which: Array, wanted: Array, asked: Array, beta: float) -> _Matrices:
    """K x_i = e_i, Q x_i = βe_i, and values A⁻¹Y, A being the weights that this makes among different words."""
    count, dim = unique.shape
    dual = np.linalg.pinv(unique)  # [D U]: x_i ↦ e_i
    copies = np.bincount(which, minlength=count)
    weights = attention_weights(beta * np.eye(count) + np.log(copies))
    targets = np.zeros((count, wanted.shape[1]))
    targets[which[asked]] = wanted[asked]
    values = np.linalg.solve(weights, targets)
    key = np.zeros((dim, dim))
    key[:count] = dual.T
    return _Matrices(beta * key, key, (dual @ values).T)


def _search(words: Array, wanted: Array, asked: Array, draw: Generator) -> _Matrices:
    """The best of a few descents over M = QᵀK; V is the least-squares solution at every step (variable projection)."""
    dim, size = words.shape[1], float(np.abs(words).max()) or 1.0
    targets = wanted[asked]

    def loss(flat: Array) -> tuple[float, Array]:
        scores = words @ flat.reshape(dim, dim) @ words.T / size**2
        weights = attention_weights(np.clip(scores, -parts.LARGEST, parts.LARGEST))
        mixed = (weights @ words)[asked]
        value = np.linalg.lstsq(mixed, targets, rcond=1e-10)[0]
        off = mixed @ value - targets
        slope = np.zeros_like(weights)
        slope[asked] = off @ (words @ value).T
        slope = weights * (slope - (weights * slope).sum(1, keepdims=True))
        return float((off**2).sum() / 2), (words.T @ slope @ words / size**2).ravel()

    starts = [np.zeros(dim * dim), *(4.0 * draw.standard_normal((STARTS, dim * dim)))]
    ends = [optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}) for start in starts]
    best = min(ends, key=lambda one: float(one.fun)).x.reshape(dim, dim) / size**2
    weights = attention_weights(words @ best @ words.T)
    value = np.linalg.lstsq((weights @ words)[asked], targets, rcond=1e-10)[0]
    return _Matrices(np.eye(dim), best, value.T)


def _finish(how: str, words: Array, wanted: Array, asked: Array, made: _Matrices, scale: float) -> Solution:
    """What self-attention itself makes of the matrices."""
    outputs = self_attention(words, made.query, made.key, made.value).outputs
    residual = float(np.linalg.norm((outputs - wanted)[asked], axis=1).max(initial=0.0))
    status = SOLVED if residual <= CLOSE * scale else NOT_FOUND
    return Solution(status, how, made.query, made.key, made.value, outputs, residual)
