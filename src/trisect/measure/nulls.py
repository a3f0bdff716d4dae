"""Null distributions of the similarity of two random Gaussian matrices, drawn exactly through small matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.random import Generator
from scipy.linalg import get_lapack_funcs

NullDraws = Float[np.ndarray, " R"]

_TOGETHER = 2**21  # numbers of a block of draws, so that memory does not grow with their number
_HALVINGS = 44  # of an interval of length 1: what is left is below the rounding of a root of it


class Between(NamedTuple):
    """Of two random subspaces: the mean squared cosine of their principal angles, and the least angle in radians."""

    overlap: NullDraws
    angle: NullDraws


class Forms(NamedTuple):
    """Of two random maps: linear CKA on white inputs, and the symmetric share of their product (NaN: widths differ)."""

    cka: NullDraws
    symmetric: NullDraws


def random_subspaces(draw: Generator, dim: int, left: int, right: int, draws: int) -> Between:
    """Overlap and least angle of two uniformly random subspaces, of dimensions `left` and `right`, of R^dim.

    The squared cosines are the Jacobi ensemble. Its bidiagonal model has independent beta entries, so that a draw costs
    2 min(left, right) numbers instead of a QR of dim × right. Where left + right > dim, so many angles are 0 by
    dimension, and the others are those of the complements. Source: Edelman & Sutton 2008, The Beta-Jacobi Matrix
    Model, the CS Decomposition, and Generalized Singular Value Problems, theorem 1.
    """
    assert min(left, right) >= 1
    assert max(left, right) <= dim
    size, forced = min(left, right), max(0, left + right - dim)
    n = dim - max(left, right) if forced else size
    if n == 0:
        return Between(np.ones(draws), np.zeros(draws))

    def block(few: int) -> Float[np.ndarray, "2 R"]:
        cosines, others = _jacobi(draw, n, abs(left - right), abs(dim - left - right), few)
        diagonal, beside = _tridiagonal(cosines, others)
        angle = np.zeros(few) if forced else np.arccos(np.sqrt(_largest(diagonal, beside)))
        return np.stack([(forced + diagonal.sum(1)) / size, angle])

    return Between(*_blocks(block, draws, 8 * n))


def random_cosines(draw: Generator, size: int, draws: int) -> NullDraws:
    """Cosine of two Gaussian vectors of `size` numbers: one coordinate of a uniformly random direction."""
    if size == 1:
        return draw.choice([-1.0, 1.0], draws)
    one = draw.standard_normal(draws)
    return one / np.sqrt(one**2 + draw.chisquare(size - 1, draws))


def random_forms(draw: Generator, dim: int, left: int, right: int, draws: int) -> Forms:
    """CKA and symmetric share of W_L [dim, left] and W_R [dim, right], both Gaussian.

    Turned so that W_L = [R; 0], only R, the first rows of W_R and the Gram matrix of its other rows are drawn.
    """

    def block(few: int) -> Float[np.ndarray, "2 R"]:
        r = _triangles(draw, dim, left, few)
        first = draw.standard_normal((few, r.shape[1], right))
        rest = _triangles(draw, dim - r.shape[1], right, few)
        cross = r.mT @ first
        grams = r.mT @ r, first.mT @ first + rest.mT @ rest
        cka = _squares(cross) / np.sqrt(_squares(grams[0]) * _squares(grams[1]))
        if left != right:
            return np.stack([cka, np.full(few, np.nan)])
        trace = (cross * cross.mT).sum((1, 2))
        return np.stack([cka, (1 + trace / (grams[0] * grams[1]).sum((1, 2))) / 2])

    return Forms(*_blocks(block, draws, 8 * max(left, right) ** 2))


def random_ranks(draw: Generator, dim: int, width: int, draws: int) -> NullDraws:
    """Effective rank of a Gaussian matrix [dim, width].

    Its singular values are those of a bidiagonal matrix of independent chi variables. Source: Dumitriu & Edelman
    2002, Matrix Models for Beta Ensembles, theorem 3.1.
    """
    long, n = max(dim, width), min(dim, width)
    if n == 1:
        return np.ones(draws)

    (tridiagonal,) = get_lapack_funcs(("sterf",), dtype=np.float64)

    def block(few: int) -> Float[np.ndarray, "1 R"]:
        main = draw.chisquare(long - np.arange(n), (few, n))
        side = draw.chisquare(np.arange(n - 1, 0, -1), (few, n - 1))
        beside = np.sqrt(main[:, :-1] * side)
        main[:, 1:] += side
        squares = [tridiagonal(d, e)[0] for d, e in zip(main, beside, strict=True)]
        return effective_ranks(np.stack(squares))[None]

    return _blocks(block, draws, 4 * n)[0]


def random_product_ranks(draw: Generator, dim: int, width: int, draws: int) -> NullDraws:
    """Effective rank of the product of Gaussian matrices [dim, width] and [width, dim]."""

    def block(few: int) -> Float[np.ndarray, "1 R"]:
        if width <= dim:
            product = _triangles(draw, dim, width, few) @ _triangles(draw, dim, width, few).mT
        else:
            product = draw.standard_normal((few, dim, width)) @ draw.standard_normal((few, width, dim))
        return effective_ranks(np.linalg.eigvalsh(product @ product.mT))[None]

    return _blocks(block, draws, 4 * width**2)[0]


def effective_ranks(squares: Float[np.ndarray, "H N"]) -> Float[np.ndarray, " H"]:
    """exp of the entropy of the singular values' shares, from their squares; NaN for a matrix of zeros.

    Source: Roy & Vetterli 2007, The Effective Rank: a Measure of Effective Dimensionality, definition 1.
    """
    values = np.sqrt(np.maximum(squares, 0.0))
    total = values.sum(1, keepdims=True)
    shares = np.divide(values, total, out=np.full_like(values, np.nan), where=total > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.exp(-(shares * logs).sum(1))


def overlap_moments(dim: int, left: int, right: int) -> tuple[float, float]:
    """Mean and standard deviation of the overlap in closed form: what the draws are checked against.

    Source: the first two moments of tr(P Q) for uniformly random projections of ranks `left` and `right`.
    """
    size = min(left, right)
    if dim == 1:
        return 1.0, 0.0
    variance = 2 * left * right * (dim - left) * (dim - right) / (dim**2 * (dim - 1) * (dim + 2))
    return left * right / dim / size, float(np.sqrt(variance)) / size


def _blocks(block: Callable[[int], Float[np.ndarray, "S R"]], draws: int, numbers: int) -> Float[np.ndarray, "S R"]:
    """Null draws made block by block; `numbers` is how many a draw needs at once."""
    size = max(1, _TOGETHER // numbers)
    return np.concatenate([block(min(size, draws - start)) for start in range(0, draws, size)], axis=1)


def _squares(matrices: Float[np.ndarray, "R M N"]) -> NullDraws:
    return np.square(matrices).sum((1, 2))


def _triangles(draw: Generator, rows: int, width: int, draws: int) -> Float[np.ndarray, "R M N"]:
    """The R of the QR of Gaussian matrices [rows, width]: chi variables on the diagonal, normals above it (Bartlett)."""
    height = min(rows, width)
    upper = np.triu(draw.standard_normal((draws, height, width)), 1)
    place = np.arange(height)
    upper[:, place, place] = np.sqrt(draw.chisquare(rows - place, (draws, height)))
    return upper


def _jacobi(draw: Generator, n: int, a: int, b: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Squared cosines c_n² … c_1² [R n] and c'_{n−1}² … c'_1² [R n−1] of the bidiagonal model of real matrices."""
    i, j = np.arange(n, 0, -1), np.arange(n - 1, 0, -1)
    cosines = draw.beta((a + i) / 2, (b + i) / 2, (draws, n))
    return cosines, draw.beta(j / 2, (a + b + 1 + j) / 2, (draws, n - 1))


def _tridiagonal(cosines: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Diagonal [R n] and squared off-diagonal [R n−1] of B Bᵀ, B having c_k s'_{k+1} and −s_k c'_{k−1} on its diagonals."""
    main = cosines.copy()
    main[:, 1:] *= 1 - others
    side = (1 - cosines[:, :-1]) * others
    diagonal = main.copy()
    diagonal[:, :-1] += side
    return diagonal, side * main[:, 1:]


def _largest(diagonal: np.ndarray, beside: np.ndarray) -> NullDraws:
    """The largest eigenvalue of tridiagonal matrices with eigenvalues in [0, 1], all at once by bisection.

    No pivot of T − x is positive exactly where x is above every eigenvalue (Sturm).
    """
    low, high = np.zeros(len(diagonal)), np.ones(len(diagonal))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        pivot = diagonal[:, 0] - middle
        clear = pivot < 0
        for k in range(1, diagonal.shape[1]):
            pivot = diagonal[:, k] - middle - beside[:, k - 1] / np.where(clear, pivot, -1.0)
            clear &= pivot < 0
        low, high = np.where(clear, low, middle), np.where(clear, middle, high)
    return (low + high) / 2
