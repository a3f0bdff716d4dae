"""Similarity of W_Q, W_K and W_V per head beside random matrices, and the symmetry of attention scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.random import Generator
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from trisect.core.trace import Trace

_NullDraws = Float[np.ndarray, " R"]

_BLOCK_NUMBERS = 2**21  # numbers in memory at once while drawing
_BISECTIONS = 44  # of [0, 1]: the error of a square root is then below its rounding


class SubspaceNull(NamedTuple):
    """Of two random subspaces: the mean squared cosine of their principal angles, and the least angle in radians."""

    overlap: _NullDraws
    angle: _NullDraws


class _MapPairNull(NamedTuple):
    """Of two random maps: linear CKA on white inputs, and the symmetric share of their product (NaN: widths differ)."""

    cka: _NullDraws
    symmetric: _NullDraws


def random_subspaces(rng: Generator, dim: int, left: int, right: int, draws: int) -> SubspaceNull:
    """Overlap and least angle of two uniformly random subspaces, of dimensions `left` and `right`, of R^dim.

    The squared cosines are the Jacobi ensemble. Its bidiagonal model has independent beta entries, so that a draw costs
    2 min(left, right) numbers instead of a QR of dim × right. Where left + right > dim, so many angles are 0 by
    dimension, and the others are those of the complements. Source: Edelman & Sutton 2008, The Beta-Jacobi Matrix
    Model, the CS Decomposition, and Generalized Singular Value Problems, theorem 1.
    """
    assert min(left, right) >= 1
    assert max(left, right) <= dim
    size, shared = min(left, right), max(0, left + right - dim)
    n = dim - max(left, right) if shared else size
    if n == 0:
        return SubspaceNull(np.ones(draws), np.zeros(draws))

    def block(count: int) -> Float[np.ndarray, "2 R"]:
        # squared cosines c_n² … c_1² [R n] and c'_{n−1}² … c'_1² [R n−1] of the bidiagonal model of real matrices
        i, j, a, b = np.arange(n, 0, -1), np.arange(n - 1, 0, -1), abs(left - right), abs(dim - left - right)
        cosines = rng.beta((a + i) / 2, (b + i) / 2, (count, n))
        others = rng.beta(j / 2, (a + b + 1 + j) / 2, (count, n - 1))
        # diagonal [R n] and squared off-diagonal [R n−1] of B Bᵀ, B having c_k s'_{k+1} and −s_k c'_{k−1} on its diagonals
        main, side = cosines.copy(), (1 - cosines[:, :-1]) * others
        main[:, 1:] *= 1 - others
        diagonal, off_diagonal = main.copy(), side * main[:, 1:]
        diagonal[:, :-1] += side
        angle = np.zeros(count) if shared else np.arccos(np.sqrt(_largest_eigenvalues(diagonal, off_diagonal)))
        return np.stack([(shared + diagonal.sum(1)) / size, angle])

    return SubspaceNull(*_blocks(block, draws, 8 * n))


def random_cosines(rng: Generator, size: int, draws: int) -> _NullDraws:
    """Cosine of two Gaussian vectors of `size` numbers: one coordinate of a uniformly random direction."""
    if size == 1:
        return rng.choice([-1.0, 1.0], draws)
    coordinate = rng.standard_normal(draws)
    return coordinate / np.sqrt(coordinate**2 + rng.chisquare(size - 1, draws))


def random_map_pairs(rng: Generator, dim: int, left: int, right: int, draws: int) -> _MapPairNull:
    """CKA and symmetric share of W_L [dim, left] and W_R [dim, right], both Gaussian.

    After a rotation with W_L = [R; 0], only R, the first rows of W_R and the Gram matrix of its other rows need be drawn.
    """

    def block(count: int) -> Float[np.ndarray, "2 R"]:
        r = _triangular_factors(rng, dim, left, count)
        first = rng.standard_normal((count, r.shape[1], right))
        rest = _triangular_factors(rng, dim - r.shape[1], right, count)
        cross = r.mT @ first
        grams = r.mT @ r, first.mT @ first + rest.mT @ rest
        cka = _squared_norms(cross) / np.sqrt(_squared_norms(grams[0]) * _squared_norms(grams[1]))
        if left != right:
            return np.stack([cka, np.full(count, np.nan)])
        trace = (cross * cross.mT).sum((1, 2))
        return np.stack([cka, (1 + trace / (grams[0] * grams[1]).sum((1, 2))) / 2])

    return _MapPairNull(*_blocks(block, draws, 8 * max(left, right) ** 2))


def random_ranks(rng: Generator, dim: int, width: int, draws: int) -> _NullDraws:
    """Effective rank of a Gaussian matrix [dim, width].

    Its singular values are those of a bidiagonal matrix of independent chi variables. Source: Dumitriu & Edelman
    2002, Matrix Models for Beta Ensembles, theorem 3.1.
    """
    long, n = max(dim, width), min(dim, width)
    if n == 1:
        return np.ones(draws)

    (tridiagonal,) = get_lapack_funcs(("sterf",), dtype=np.float64)

    def block(count: int) -> Float[np.ndarray, "1 R"]:
        main = rng.chisquare(long - np.arange(n), (count, n))
        side = rng.chisquare(np.arange(n - 1, 0, -1), (count, n - 1))
        off_diagonal = np.sqrt(main[:, :-1] * side)
        main[:, 1:] += side
        squares = [tridiagonal(d, e)[0] for d, e in zip(main, off_diagonal, strict=True)]
        return effective_ranks(np.stack(squares))[None]

    return _blocks(block, draws, 4 * n)[0]


def random_product_ranks(rng: Generator, dim: int, width: int, draws: int) -> _NullDraws:
    """Effective rank of the product of Gaussian matrices [dim, width] and [width, dim]."""

    def block(count: int) -> Float[np.ndarray, "1 R"]:
        if width <= dim:
            product = _triangular_factors(rng, dim, width, count) @ _triangular_factors(rng, dim, width, count).mT
        else:
            product = rng.standard_normal((count, dim, width)) @ rng.standard_normal((count, width, dim))
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


def _blocks(block: Callable[[int], Float[np.ndarray, "S R"]], draws: int, numbers: int) -> Float[np.ndarray, "S R"]:
    """Draw a null in blocks; `numbers` is the number of random numbers per draw."""
    size = max(1, _BLOCK_NUMBERS // numbers)
    return np.concatenate([block(min(size, draws - start)) for start in range(0, draws, size)], axis=1)


def _squared_norms(matrices: Float[np.ndarray, "R M N"]) -> _NullDraws:
    return np.square(matrices).sum((1, 2))


def _triangular_factors(rng: Generator, rows: int, width: int, draws: int) -> Float[np.ndarray, "R M N"]:
    """The R of the QR of Gaussian matrices [rows, width]: chi variables on the diagonal, normals above it (Bartlett)."""
    height = min(rows, width)
    upper = np.triu(rng.standard_normal((draws, height, width)), 1)
    place = np.arange(height)
    upper[:, place, place] = np.sqrt(rng.chisquare(rows - place, (draws, height)))
    return upper


def _largest_eigenvalues(diagonal: np.ndarray, off_diagonal: np.ndarray) -> _NullDraws:
    """The largest eigenvalue of tridiagonal matrices with eigenvalues in [0, 1], all at once by bisection.

    No pivot of T − x is positive exactly where x is above every eigenvalue (Sturm).
    """
    low, high = np.zeros(len(diagonal)), np.ones(len(diagonal))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        pivot = diagonal[:, 0] - middle
        clear = pivot < 0
        for k in range(1, diagonal.shape[1]):
            pivot = diagonal[:, k] - middle - off_diagonal[:, k - 1] / np.where(clear, pivot, -1.0)
            clear &= pivot < 0
        low, high = np.where(clear, low, middle), np.where(clear, middle, high)
    return (low + high) / 2


RANK_TOLERANCE = 1e-6  # singular values below this share of the largest may be rounding of stored weights


class MapSpan(NamedTuple):
    """The row space of a head's map W [D, E]: an orthonormal basis, singular values, and rank.

    The basis is zero beyond the rank. W G spans the same for every invertible G.
    """

    basis: Float[Tensor, "H D N"]
    values: Float[Tensor, "H N"]
    rank: Int[Tensor, " H"]


class Angles(NamedTuple):
    """Principal angles between two spans per head: squared cosines, largest first (0 beyond the smaller rank).

    `overlap` is their mean over the smaller rank, 1 where one span lies in the other, NaN where a rank is 0; `least`
    is the least angle in radians.
    """

    squares: Float[Tensor, "H N"]
    overlap: Float[Tensor, " H"]
    least: Float[Tensor, " H"]


def span(w: Float[Tensor, "H D E"]) -> MapSpan:
    """The MapSpan of every head's map, in float64."""
    q, r = torch.linalg.qr(w.detach().double())
    u, values, _ = torch.linalg.svd(r, full_matrices=False)
    counts = values > RANK_TOLERANCE * values[:, :1]
    return MapSpan((q @ u) * counts[:, None], values, counts.sum(1))


def angles(left: MapSpan, right: MapSpan) -> Angles:
    """Principal angles between the row spaces of two maps (Björck & Golub 1973): invariant under W G."""
    cosines = torch.linalg.svdvals(left.basis.mT @ right.basis).clamp(max=1.0)
    size = torch.minimum(left.rank, right.rank)
    overlap = torch.where(size > 0, (cosines**2).sum(1) / size.clamp(min=1), torch.nan)
    least = torch.where(size > 0, torch.arccos(cosines[:, 0]), torch.nan)
    return Angles(cosines**2, overlap, least)


def overlaps(left: MapSpan, right: MapSpan) -> Float[Tensor, "H K"]:
    """The overlap (Angles) of the row spaces of every head's left and right map; NaN for rank 0."""
    (heads, dim, wide), (others, _, broad) = left.basis.shape, right.basis.shape
    first = left.basis.transpose(0, 1).reshape(dim, heads * wide)
    second = right.basis.transpose(0, 1).reshape(dim, others * broad)
    squares = (first.mT @ second).square().reshape(heads, wide, others, broad).sum((1, 3))
    size = torch.minimum(left.rank[:, None], right.rank[None])
    return torch.where(size > 0, squares / size.clamp(min=1), torch.nan)


def cosine(left: Float[Tensor, "H D E"], right: Float[Tensor, "H D E"]) -> Float[Tensor, " H"]:
    """Cosine of the flattened matrices per head; not invariant under G, so it describes weights rather than heads."""
    a, b = left.detach().double().flatten(1), right.detach().double().flatten(1)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def white_cka(left: Float[Tensor, "H D E"], right: Float[Tensor, "H D F"]) -> Float[Tensor, " H"]:
    """Linear CKA of representations x W for inputs with unit covariance; not invariant under G.

    ‖LᵀR‖² / (‖LᵀL‖ ‖RᵀR‖), Kornblith et al. 2019, equation 5 with the covariance in place of the sample.
    """
    a, b = left.detach().double(), right.detach().double()
    cross, first, second = ((x.mT @ y).square().sum((1, 2)) for x, y in ((a, b), (a, a), (b, b)))
    return cross / (first * second).sqrt()


def symmetric_share(w_q: Float[Tensor, "H D E"], w_k: Float[Tensor, "H D E"]) -> Float[Tensor, " H"]:
    """‖S‖² / (‖S‖² + ‖A‖²) of W_Q W_Kᵀ = S + A, symmetric and antisymmetric: 1 where the score is a bilinear similarity.

    Unchanged by (W_Q G, W_K G⁻ᵀ). Computed from E × E matrices: ‖S‖² − ‖A‖² = tr((W_KᵀW_Q)²).
    """
    q, k = w_q.detach().double(), w_k.detach().double()
    cross = k.mT @ q
    size = ((q.mT @ q) * (k.mT @ k)).sum((1, 2))
    return (1 + (cross * cross.mT).sum((1, 2)) / size) / 2


def product_rank(left: Float[Tensor, "H D E"], right: Float[Tensor, "H D E"]) -> Float[np.ndarray, " H"]:
    """Effective rank of L Rᵀ per head, as W_Q W_Kᵀ; invariant under (L G, R G⁻ᵀ)."""
    a, b = torch.linalg.qr(left.detach().double()), torch.linalg.qr(right.detach().double())
    return effective_ranks((torch.linalg.svdvals(a.R @ b.R.mT) ** 2).cpu().numpy())


def append_bias(w: Float[Tensor, "H D E"], b: Float[Tensor, "H E"] | None) -> Float[Tensor, "H D1 E"]:
    """The map with its bias as a further row: [x, 1] @ append_bias(w, b) is x @ w + b; a row of zeros without a bias."""
    row = w.new_zeros(len(w), 1, w.shape[2]) if b is None else b[:, None].to(w)
    return torch.cat([w, row], 1)


_BLOCK_SCORES = 2**23  # scores of a block of heads
SCORE_SUMS = ("unequal", "product", "square", "total", "first", "ahead")
_TOLERANCE_ULPS = 16  # times ε ‖q‖‖k‖: scores that differ by less are taken as equal


class _ScoreSums(NamedTuple):
    """Sums over one text of scores before mask, position bias and softmax; a row for each name in SCORE_SUMS.

    `unequal` pairs {i, j} with s_ij ≠ s_ji; `product` sums s_ij s_ji, `square` (s_ij² + s_ji²) / 2, `total`
    (s_ij + s_ji) / 2 over them. `first` counts queries whose own key scores highest, `ahead` sums the share of other
    keys that score lower than a query's own.
    """

    sums: Float[Tensor, "6 H"]
    pairs: int
    queries: int


def score_row(trace: Trace, row: int) -> _ScoreSums | None:
    """Sums over scores of one row of a batch; None for cross-attention, or fewer than two real positions."""
    real = trace.query_real[row]
    if trace.crosses or trace.key_real.shape[1] != len(real) or int(real.sum()) < 2:
        return None
    q, k = trace.q[row][:, real].detach().double(), trace.keys[row][:, real].detach().double()
    size = max(1, _BLOCK_SCORES // q.shape[1] ** 2)
    parts = [_sums(a, b, trace.q.dtype) for a, b in zip(q.split(size), k.split(size), strict=True)]
    n = q.shape[1]
    return _ScoreSums(torch.cat(parts, 1), n * (n - 1) // 2, n)


def _sums(q: Float[Tensor, "H T E"], k: Float[Tensor, "H T E"], stored: torch.dtype) -> Float[Tensor, "6 H"]:
    """Sums of some heads, without the scale, which changes nothing here."""
    scores, n = q @ k.mT, q.shape[1]
    reverse, diagonal = scores.mT, scores.diagonal(dim1=1, dim2=2)
    lengths = q.norm(dim=2)[:, :, None] * k.norm(dim=2)[:, None]
    limit = _TOLERANCE_ULPS * torch.finfo(stored).eps * (lengths + lengths.mT)
    lower = (scores < diagonal[:, :, None]).sum(2)
    # over the whole square less its diagonal, which has every pair twice: faster than indexing pairs
    sums = (
        ((scores - reverse).abs() > limit).sum((1, 2)) / 2,
        ((scores * reverse).sum((1, 2)) - diagonal.square().sum(1)) / 2,
        (scores.square().sum((1, 2)) - diagonal.square().sum(1)) / 2,
        (scores.sum((1, 2)) - diagonal.sum(1)) / 2,
        (lower == n - 1).sum(1),
        lower.sum(1).double() / (n - 1),
    )
    return torch.stack([part.double() for part in sums])


class PartMoments:
    """Sums and products of q, k and v over real positions of one layer, per head, in constant memory.

    Pairs with q are left out where queries and keys are not of one sequence.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[str, Float[Tensor, "H E"]] = {}
        self._products: dict[tuple[str, str], Float[Tensor, "H E F"]] = {}

    def add(self, trace: Trace) -> None:
        """Add a batch."""
        has_pairs = not trace.crosses and trace.query_real.shape == trace.key_real.shape
        parts = {"k": _select_real(trace.keys, trace.key_real), "v": _select_real(trace.values, trace.key_real)}
        if has_pairs:
            parts["q"] = _select_real(trace.q, trace.query_real)
        self.count += int(trace.key_real.sum())
        for name, part in parts.items():
            _add(self._sums, name, part.sum(1))
        for first, second in ((a, b) for a in parts for b in parts if a <= b):
            _add(self._products, (first, second), parts[first].mT @ parts[second])

    def cka(self, first: str, second: str) -> Float[Tensor, " H"] | None:
        """Linear CKA per head of two of q, k and v, centred; None for components of different sequences.

        Source: Kornblith et al. 2019, Similarity of Neural Network Representations Revisited, equation 5.
        """
        if not {first, second} <= self._sums.keys():
            return None
        squares = [
            self._covariance(*pair).square().sum((1, 2)) for pair in ((first, second), (first, first), (second, second))
        ]
        return squares[0] / (squares[1] * squares[2]).sqrt()

    def _covariance(self, first_name: str, second_name: str) -> Float[Tensor, "H E F"]:
        first, second = sorted((first_name, second_name))
        means = self._sums[first][:, :, None] * self._sums[second][:, None] / self.count
        return self._products[first, second] - means


def _select_real(part: Float[Tensor, "B H T E"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "H N E"]:
    # selected, not multiplied by 0: values at padding may be infinite
    return part.detach().transpose(1, 2)[real.to(part.device)].double().transpose(0, 1)


def _add(sums: dict, key: object, new: Tensor) -> None:
    sums[key] = sums[key] + new if key in sums else new
