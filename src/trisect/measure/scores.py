"""Symmetry of attention scores q·k on real texts, and linear CKA of q, k and v, in constant memory."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trisect.core.trace import Trace

PAIRS = tuple(combinations("qkv", 2))
_TOGETHER = 2**23  # scores of a block of heads
SUMS = ("unequal", "product", "square", "total", "first", "ahead")
ROUNDINGS = 16  # of ‖q‖‖k‖: scores that differ by less are taken as equal


class ScoreSums(NamedTuple):
    """Sums over one text, of the scores before mask, position bias and softmax; a row for each name in SUMS.

    `unequal` pairs {i, j} with s_ij ≠ s_ji; `product` sums s_ij s_ji, `square` (s_ij² + s_ji²) / 2, `total`
    (s_ij + s_ji) / 2 over them. `first` counts queries whose own key scores highest, `ahead` sums the share of other
    keys that score lower than a query's own.
    """

    sums: Float[Tensor, "6 H"]
    pairs: int
    queries: int


def score_row(trace: Trace, row: int) -> ScoreSums | None:
    """The ScoreSums of one row of a batch; null where queries and keys are not of one sequence, or fewer than two are real."""
    real = trace.query_real[row]
    if trace.crosses or trace.key_real.shape[1] != len(real) or int(real.sum()) < 2:
        return None
    q, k = trace.q[row][:, real].detach().double(), trace.keys[row][:, real].detach().double()
    size = max(1, _TOGETHER // q.shape[1] ** 2)
    parts = [_sums(a, b, trace.q.dtype) for a, b in zip(q.split(size), k.split(size), strict=True)]
    n = q.shape[1]
    return ScoreSums(torch.cat(parts, 1), n * (n - 1) // 2, n)


def _sums(q: Float[Tensor, "H T E"], k: Float[Tensor, "H T E"], stored: torch.dtype) -> Float[Tensor, "6 H"]:
    """The sums of some heads; the scale is left out, since nothing here changes with it."""
    scores, n = q @ k.mT, q.shape[1]
    reverse, own = scores.mT, scores.diagonal(dim1=1, dim2=2)
    lengths = q.norm(dim=2)[:, :, None] * k.norm(dim=2)[:, None]
    apart = ROUNDINGS * torch.finfo(stored).eps * (lengths + lengths.mT)
    lower = (scores < own[:, :, None]).sum(2)
    # over the whole square, less its diagonal, every pair is met twice; nothing is gathered
    found = (
        ((scores - reverse).abs() > apart).sum((1, 2)) / 2,
        ((scores * reverse).sum((1, 2)) - own.square().sum(1)) / 2,
        (scores.square().sum((1, 2)) - own.square().sum(1)) / 2,
        (scores.sum((1, 2)) - own.sum(1)) / 2,
        (lower == n - 1).sum(1),
        lower.sum(1).double() / (n - 1),
    )
    return torch.stack([part.double() for part in found])


class PartMoments:
    """Sums and products of q, k and v over the real positions of one layer, per head; memory does not grow.

    Pairs with q are left out where queries and keys are not of one sequence.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[str, Float[Tensor, "H E"]] = {}
        self._products: dict[tuple[str, str], Float[Tensor, "H E F"]] = {}

    def add(self, trace: Trace) -> None:
        """Count in one batch."""
        together = not trace.crosses and trace.query_real.shape == trace.key_real.shape
        parts = {"k": _kept(trace.keys, trace.key_real), "v": _kept(trace.values, trace.key_real)}
        if together:
            parts["q"] = _kept(trace.q, trace.query_real)
        self.count += int(trace.key_real.sum())
        for name, part in parts.items():
            _add(self._sums, name, part.sum(1))
        for one, other in ((a, b) for a in parts for b in parts if a <= b):
            _add(self._products, (one, other), parts[one].mT @ parts[other])

    def cka(self, one: str, other: str) -> Float[Tensor, " H"] | None:
        """Linear CKA per head of two of q, k and v, centred; null where they were not of one sequence.

        Source: Kornblith et al. 2019, Similarity of Neural Network Representations Revisited, equation 5.
        """
        if not {one, other} <= self._sums.keys():
            return None
        squares = [self._covariance(*pair).square().sum((1, 2)) for pair in ((one, other), (one, one), (other, other))]
        return squares[0] / (squares[1] * squares[2]).sqrt()

    def _covariance(self, one: str, other: str) -> Float[Tensor, "H E F"]:
        first, second = sorted((one, other))
        means = self._sums[first][:, :, None] * self._sums[second][:, None] / self.count
        return self._products[first, second] - means


def _kept(part: Float[Tensor, "B H T E"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "H N E"]:
    # chosen, not multiplied: what stands at padding may be infinite
    return part.detach().transpose(1, 2)[real.to(part.device)].double().transpose(0, 1)


def _add(sums: dict, key: object, new: Tensor) -> None:
    sums[key] = sums[key] + new if key in sums else new
