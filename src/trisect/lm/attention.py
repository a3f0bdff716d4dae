"""Scaled dot-product attention of a fleet, forwards and backwards, a few members at a time so that they stay in cache.

Written out rather than `scaled_dot_product_attention`, which on a CPU is several times slower for heads this small and
windows this short, and which could not share a dropout mask between members. Autograd's own chain of products would
hold five [F B H T T] tensors a layer; this keeps one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

# scores worked on at once: on a CPU 1 MB in float32, about what stays in a core's own cache; on a GPU few launches
TOGETHER = {"cpu": 250_000, "cuda": 100_000_000}


def attend(
    qkv: Float[Tensor, "F B T W"],
    heads: int,
    mask: Float[Tensor, "T T"],
    factor: Float[Tensor, "BH T T"] | None = None,
) -> Float[Tensor, "F B T D"]:
    """softmax(q kᵀ / sqrt(E) + mask) v over all heads (Vaswani et al. 2017, equation 1).

    `factor` multiplies the weights (dropout); it is shared by all members. q, k, v lie side by side in `qkv`.
    """
    if torch.is_grad_enabled() and qkv.requires_grad:
        with torch.autocast(qkv.device.type, enabled=False):
            return cast(Tensor, _Attention.apply(qkv, heads, mask, factor))
    mixed = qkv.new_empty(*qkv.shape[:3], qkv.shape[3] // 3)
    for few in _chunks(qkv, heads):
        _forward(_split(qkv[few], heads), mask, factor, mixed[few])
    return mixed


def _chunks(qkv: Float[Tensor, "F B T W"], heads: int) -> Iterator[slice]:
    members, batch, length, _ = qkv.shape
    size = max(1, TOGETHER[qkv.device.type] // (batch * heads * length * length))
    for start in range(0, members, size):
        yield slice(start, start + size)


def _split(few: Float[Tensor, "F B T W"], heads: int) -> Float[Tensor, "3 FBH T E"]:
    members, batch, length, wide = few.shape
    parts = few.view(members * batch, length, 3, heads, wide // 3 // heads).permute(2, 0, 3, 1, 4)
    return parts.reshape(3, members * batch * heads, length, -1)


def _merge(parts: Float[Tensor, "P FBH T E"], into: Float[Tensor, "F B T PD"]) -> None:
    count, each = parts.shape[0], parts.shape[-1]
    members, batch, length, _ = into.shape
    place = into.view(members * batch, length, count, -1, each)
    place.copy_(parts.view(count, members * batch, -1, length, each).permute(1, 3, 0, 2, 4))


def _times(
    weights: Float[Tensor, "FBH T T"], factor: Float[Tensor, "BH T T"] | None, out: Tensor | None = None
) -> Tensor:
    if factor is None:
        return weights
    shape = (-1, *factor.shape)
    return torch.mul(weights.view(shape), factor, out=None if out is None else out.view(shape)).view_as(weights)


def _forward(
    parts: Float[Tensor, "3 FBH T E"],
    mask: Float[Tensor, "T T"],
    factor: Tensor | None,
    into: Float[Tensor, "F B T D"],
) -> Float[Tensor, "FBH T T"]:
    q, k, v = parts
    scores = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).add_(mask)
    weights = torch.softmax(scores, -1)
    _merge(torch.bmm(_times(weights, factor, scores), v)[None], into)
    return weights


def _backward(
    parts: Float[Tensor, "3 FBH T E"],
    weights: Float[Tensor, "FBH T T"],
    gradient: Float[Tensor, "F B T D"],
    heads: int,
    factor: Tensor | None,
    into: Float[Tensor, "F B T W"],
) -> None:
    q, k, v = parts
    members, batch, length, wide = gradient.shape
    g = (
        gradient.reshape(members * batch, length, heads, wide // heads)
        .transpose(1, 2)
        .reshape(-1, length, wide // heads)
    )
    dw = torch.bmm(g, v.transpose(1, 2))
    dw = _times(dw, factor, dw)
    ds = torch.ops.aten._softmax_backward_data(dw, weights, -1, weights.dtype).mul_(q.shape[-1] ** -0.5)
    found = torch.empty_like(parts)
    torch.bmm(ds, k, out=found[0])
    torch.bmm(ds.transpose(1, 2), q, out=found[1])
    torch.bmm(_times(weights, factor, dw).transpose(1, 2), g, out=found[2])
    _merge(found, into)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, mask: Tensor, factor: Tensor | None) -> Tensor:
        mixed = qkv.new_empty(*qkv.shape[:3], qkv.shape[3] // 3)
        kept: list[Tensor] = []
        for few in _chunks(qkv, heads):
            parts = _split(qkv[few], heads)
            kept += [parts, _forward(parts, mask, factor, mixed[few])]
        ctx.save_for_backward(factor, *kept)
        ctx.heads, ctx.shape = heads, qkv.shape
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        factor, *kept = ctx.saved_tensors
        found = gradients[0].new_empty(ctx.shape)
        for few, parts, weights in zip(_chunks(found, ctx.heads), kept[::2], kept[1::2], strict=True):
            _backward(parts, weights, gradients[0][few], ctx.heads, factor, found[few])
        return found, None, None, None
