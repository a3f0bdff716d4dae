"""Helpers of all constructions: orthonormal frames, a bounded softmax, deviations, checked arguments."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Real

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from trisect.core.errors import TheoryError

Array = np.ndarray
MAX_LOGIT = 1e300  # of a logit: differences of such logits are still finite
ROOM = 10**7  # numbers of one table, 80 MB
A, B = 0, 1  # positions of the keys a and b


def fixed_keys(
    beta: float, dim: int, keys: int, values: Float[np.ndarray, "N D"] | None, generator: Generator | None
) -> tuple[float, Float[np.ndarray, "N D"], Float[np.ndarray, "N D"], Generator]:
    """β, orthonormal keys, a float64 copy of the values (orthonormal if None), and the generator (of seed 0 if None).

    Raises TheoryError for fewer than two keys, without room for all of them to be orthogonal, and for values of another shape.
    """
    beta, keys = check_beta(beta), check_whole("keys", keys)
    if keys < 2:
        raise TheoryError(f"keys {keys} was given.", "This construction needs 2 or more.", "Use for example 8.")
    dim, draw = check_dim(keys, dim, "keys"), generator or np.random.default_rng(0)
    vectors = frame(keys, dim, draw)
    if values is None:
        return beta, vectors, frame(keys, dim, draw), draw
    copied = np.array(values, dtype=np.float64)
    if copied.shape != (keys, dim) or not np.isfinite(copied).all():
        problem = f"Values of shape {copied.shape}" + (
            " with numbers that are not finite" * (copied.shape == (keys, dim))
        )
        present = f"There are {keys} keys in dimension {dim}."
        raise TheoryError(f"{problem} were given.", present, f"Give finite numbers [{keys}, {dim}].")
    return beta, vectors, copied, draw


def attention_weights(logits: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "... N"]:
    """Softmax over the last axis: α_i = exp(k_iᵀq) / Σ_j exp(k_jᵀq). There is no 1/√d.

    Raises TheoryError where a logit is beyond ±1e300 or not a number.
    """
    largest = float(max(logits.max(), -logits.min()))  # NaN, if there is one, or the largest size
    if not largest <= MAX_LOGIT:
        raise TheoryError(
            f"A logit of size {largest:.3g} came up.",
            f"Logits up to {MAX_LOGIT:.0e} in size are computed; beyond that differences of two are no numbers.",
            "Use a smaller beta, or smaller inputs.",
        )
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights


def deviations(weights: Float[np.ndarray, "... N"], targets: Sequence[int]) -> Float[np.ndarray, "... N"]:
    """Weights minus those of an even mean over the positions `targets`, accurate to rounding for any size.

    For i in a set T of t positions, α_i − 1/t = (α_i − mean of α over T) − (weight outside T) / t.
    """
    chosen, off = list(targets), weights.copy()
    inside = weights[..., chosen]
    off[..., chosen] = 0.0
    outside = off.sum(-1, keepdims=True)
    off[..., chosen] = inside - inside.mean(-1, keepdims=True) - outside / len(chosen)
    return off


def length(vector: Float[np.ndarray, " D"]) -> float:
    """|vector|, also if its squares overflow or underflow."""
    largest = float(np.abs(vector).max())
    return largest * float(np.linalg.norm(vector / largest)) if largest > 0 else 0.0


def frame(count: int, dim: int, draw: Generator) -> Float[np.ndarray, "N D"]:
    """`count` orthonormal vectors of R^dim in a uniformly random position, as rows."""
    q, r = np.linalg.qr(draw.standard_normal((dim, count)))
    return (q * np.where(np.diag(r) < 0, -1.0, 1.0)).T


def check_beta(beta: float) -> float:
    """Check that β is positive and finite."""
    number = check_number("beta", beta)
    if not (math.isfinite(number) and number > 0):
        reason = "It stretches the query, and is a positive number."
        raise TheoryError(f"beta {beta} was given.", reason, "Use for example 10.")
    return number


def check_number(name: str, value: float) -> float:
    """Check a real number, of any size, and return it as a float."""
    if not isinstance(value, Real):
        raise TheoryError(f"{name} {value!r} was given.", "It is a number.", f"Give {name} as a number, not as text.")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_whole(name: str, value: int) -> int:
    """Check a whole number and return it as an int."""
    try:
        return operator.index(value)
    except TypeError:
        todo = f"Give {name} without a point or quotes."
        raise TheoryError(f"{name} {value!r} was given.", "It is a whole number.", todo) from None


def check_dim(count: int, dim: int, kind: str) -> int:
    """Check that `count` orthogonal vectors, and a table of them, fit in dimensions and memory."""
    dim, fewer = check_whole("dim", dim), ", or fewer keys." if kind == "keys" else "."
    message = f"dim {dim} was given with {count} orthogonal {kind}."
    if dim < count:
        room = f"R^{dim} has no more than {max(dim, 0)} vectors that are orthogonal to each other."
        raise TheoryError(message, room, f"Use a dim of {count} or more{fewer}")
    rows = count if kind == "keys" else dim  # words meet matrices
    if rows * dim > ROOM:
        size = f"That needs tables of {rows} × {dim} numbers; up to {ROOM:,} are computed."
        raise TheoryError(message, size, f"Use a smaller dim{fewer}")
    return dim
