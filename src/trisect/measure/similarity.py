"""Similarity of W_Q, W_K and W_V per head: angles of their row spaces, CKA, and the symmetric share of W_Q W_Kᵀ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.measure.nulls import effective_ranks

NOTHING = 1e-6  # share of the largest singular value below which rounding of stored weights could have made one


class MapSpan(NamedTuple):
    """What a head's map W [D, E] reads of its input: an orthonormal basis, W's singular values, and how many count.

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
    counts = values > NOTHING * values[:, :1]
    return MapSpan((q @ u) * counts[:, None], values, counts.sum(1))


def angles(left: MapSpan, right: MapSpan) -> Angles:
    """Principal angles between what two maps read (Björck & Golub 1973): unchanged when either becomes W G."""
    cosines = torch.linalg.svdvals(left.basis.mT @ right.basis).clamp(max=1.0)
    size = torch.minimum(left.rank, right.rank)
    overlap = torch.where(size > 0, (cosines**2).sum(1) / size.clamp(min=1), torch.nan)
    least = torch.where(size > 0, torch.arccos(cosines[:, 0]), torch.nan)
    return Angles(cosines**2, overlap, least)


def overlaps(left: MapSpan, right: MapSpan) -> Float[Tensor, "H K"]:
    """The overlap (Angles) of what every head's left map reads with what every head's right map reads; NaN where a rank is 0."""
    (heads, dim, wide), (others, _, broad) = left.basis.shape, right.basis.shape
    one = left.basis.transpose(0, 1).reshape(dim, heads * wide)
    other = right.basis.transpose(0, 1).reshape(dim, others * broad)
    squares = (one.mT @ other).square().reshape(heads, wide, others, broad).sum((1, 3))
    size = torch.minimum(left.rank[:, None], right.rank[None])
    return torch.where(size > 0, squares / size.clamp(min=1), torch.nan)


def cosine(left: Float[Tensor, "H D E"], right: Float[Tensor, "H D E"]) -> Float[Tensor, " H"]:
    """Cosine of the flattened matrices per head: changes with G, so that it describes the weights and not the head."""
    a, b = left.detach().double().flatten(1), right.detach().double().flatten(1)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def white_cka(left: Float[Tensor, "H D E"], right: Float[Tensor, "H D F"]) -> Float[Tensor, " H"]:
    """Linear CKA of the representations x W that inputs of unit covariance would have; changes with G.

    ‖LᵀR‖² / (‖LᵀL‖ ‖RᵀR‖), Kornblith et al. 2019, equation 5 with the covariance in place of the sample.
    """
    a, b = left.detach().double(), right.detach().double()
    return _squares(a.mT @ b) / (_squares(a.mT @ a) * _squares(b.mT @ b)).sqrt()


def symmetric_share(w_q: Float[Tensor, "H D E"], w_k: Float[Tensor, "H D E"]) -> Float[Tensor, " H"]:
    """‖S‖² / (‖S‖² + ‖A‖²) of W_Q W_Kᵀ = S + A, symmetric and antisymmetric: 1 where the score is a bilinear similarity.

    Unchanged by (W_Q G, W_K G⁻ᵀ). Computed from E × E matrices: ‖S‖² − ‖A‖² = tr((W_KᵀW_Q)²).
    """
    q, k = w_q.detach().double(), w_k.detach().double()
    cross = k.mT @ q
    whole = ((q.mT @ q) * (k.mT @ k)).sum((1, 2))
    return (1 + (cross * cross.mT).sum((1, 2)) / whole) / 2


def effective_rank(w: Float[Tensor, "H D E"]) -> Float[np.ndarray, " H"]:
    """Effective rank of every head's map: exp of the entropy of its singular values' shares; changes with G."""
    return effective_ranks((span(w).values ** 2).cpu().numpy())


def product_rank(left: Float[Tensor, "H D E"], right: Float[Tensor, "H D E"]) -> Float[np.ndarray, " H"]:
    """Effective rank of L Rᵀ per head, as W_Q W_Kᵀ; unchanged by (L G, R G⁻ᵀ)."""
    a, b = torch.linalg.qr(left.detach().double()), torch.linalg.qr(right.detach().double())
    return effective_ranks((torch.linalg.svdvals(a.R @ b.R.mT) ** 2).cpu().numpy())


def affine(w: Float[Tensor, "H D E"], b: Float[Tensor, "H E"] | None) -> Float[Tensor, "H D1 E"]:
    """The map with its bias as one more row: [x, 1] @ affine(w, b) is x @ w + b; a row of zeros where there is none."""
    row = w.new_zeros(len(w), 1, w.shape[2]) if b is None else b[:, None].to(w)
    return torch.cat([w, row], 1)


def _squares(matrices: Float[Tensor, "H M N"]) -> Float[Tensor, " H"]:
    return matrices.square().sum((1, 2))
