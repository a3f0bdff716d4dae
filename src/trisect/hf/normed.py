"""Queries, keys and values with a norm behind their projection: which rows lie under it, and what the norm leaves of them.

A norm scales what it is given and may subtract its mean: what a head reads of its input is what its rows read, less
the direction that the mean takes away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.trace import NormedMap, Origin
from trisect.hf.affine import Affine, Normed, Passed
from trisect.hf.norms import Norm, measure_norm, standard

NORMED = 0.02  # share of a derivative along the input that a norm's ε may leave


class UnderNorm(NamedTuple):
    """Where a part comes from, and the rows under its norm where they are known."""

    origin: Origin
    map: NormedMap | None = None


def find_normed(
    name: str, t: Tensor, use: Passed, gradient: Tensor, norms: Sequence[Normed], allowed: float
) -> UnderNorm:
    """What q, k or v [B H T E] is where it is not a selection of a map: normed per head, as a whole, or something else.

    `gradient` is that of the part's first position by what the map made; `norms` are those that came before the call.
    """
    flat = gradient.reshape(-1, gradient.shape[-1])
    rows = flat.any(1).nonzero().flatten()
    _, heads, _, width = t.shape
    if len(rows) != 1:
        return UnderNorm(Origin("mixed", f"{name} is put together from {len(rows)} positions of {use.name}"))
    blocks = _blocks(t, use, flat.shape, int(rows[0]))
    if blocks is None:
        return UnderNorm(Origin("mixed", f"{name} is made of {use.name}, but no selection and no norm of it"))
    affine = use.map()
    if all(len(b) == width for b in blocks) and len(torch.cat(blocks).unique()) == heads * width:
        units, across = torch.stack(blocks), False
        words = f"rows of {use.name}, normed in each head"
    elif affine.weight.shape[0] == heads * width:
        units, across = torch.arange(heads * width).view(heads, width), True
        words = f"all of {use.name}, normed across the heads"
    else:
        return UnderNorm(Origin("mixed", f"{name} is made of {use.name}, but no selection of it"))
    found = _the_norm(t, use, units, across, norms, allowed)
    if found is None and across:
        return UnderNorm(Origin("normed", words, affine.parameter, affine.bias_parameter, None, affine.transposed))
    origin = Origin("normed", words, affine.parameter, affine.bias_parameter, units, affine.transposed)
    return UnderNorm(origin, None if found is None else _left_of(affine, units, across, found))


def _blocks(t: Tensor, use: Passed, shape: torch.Size, row: int) -> list[Int[Tensor, " N"]] | None:
    """The units of a map that each head's first position depends on; null where it depends on them as no norm does."""
    first, value = t[0, :, 0, :], use.leaf.detach().reshape(shape)[row]
    weights, blocks = torch.linspace(1, 2, t.shape[3], device=t.device, dtype=t.dtype), []
    for head in first:
        (own,) = torch.autograd.grad((head * weights).sum(), use.leaf, retain_graph=True)
        own = own.reshape(shape)[row]
        # a norm does not see how long its input is: along the input itself its derivative is 0 (Euler), but for its ε
        if float((value * own).sum().abs()) > NORMED * float((value * own).abs().sum()):
            return None
        blocks.append(own.nonzero().flatten().cpu())
    return blocks


def _the_norm(
    t: Tensor, use: Passed, units: Int[Tensor, "H E"], across: bool, norms: Sequence[Normed], allowed: float
) -> Norm | None:
    """The norm that makes t of those units: at position 0 to the number, elsewhere as long (positions turn it), times one factor."""
    rows, heads, length, width = t.shape
    y, size = use.leaf.detach(), heads * width if across else width
    if y.reshape(-1, y.shape[-1]).shape[0] != rows * length:
        return None
    for used in reversed(norms):
        norm = measure_norm(used) if used.x.shape[-1] == size and used.x.numel() == t.numel() else None
        if norm is None:
            continue
        for time_first in (False, True):
            shape = (length, rows) if time_first else (rows, length)
            own = y.reshape(*shape, -1)[..., units.flatten().to(y.device)]
            made = apply(norm, own if across else own.unflatten(-1, (heads, width)))
            made = made.reshape(*shape, heads, width).permute((1, 2, 0, 3) if time_first else (0, 2, 1, 3))
            if _agree(made, t.detach(), allowed):
                return norm
    return None


def _agree(made: Float[Tensor, "B H T E"], t: Float[Tensor, "B H T E"], allowed: float) -> bool:
    first, given = made[:, :, 0].double(), t[:, :, 0].double()
    factor = (first * given).sum() / first.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
    off = (first * factor - given).abs().max() / given.abs().max()
    lengths = [torch.linalg.vector_norm(x.double(), dim=-1) for x in (made, t)]
    apart = (lengths[0] * factor.abs() - lengths[1]).abs().max() / lengths[1].max()
    return float(torch.maximum(off, apart)) <= max(allowed, 1e-3)


def apply(norm: Norm, x: Tensor) -> Tensor:
    """What a norm makes of x."""
    made = standard(x, norm.epsilon, norm.centred) * norm.gamma.to(x)
    return made if norm.beta is None else made + norm.beta.to(x)


def _left_of(affine: Affine, units: Int[Tensor, "H E"], across: bool, norm: Norm) -> NormedMap:
    """The rows under a norm: without their mean where it subtracts it, and without those that it multiplies by 0."""
    heads, width = units.shape
    flat = units.flatten().to(affine.weight.device)
    whole = (
        affine.weight.detach()[flat]
        if affine.bias is None
        else torch.cat([affine.weight.detach()[flat], affine.bias.detach()[flat, None]], 1)
    )
    rows = whole.unflatten(0, (1, heads * width) if across else (heads, width))
    rows = rows - rows.mean(1, keepdim=True) if norm.centred else rows
    kept = (norm.gamma != 0).to(rows)
    rows = (rows * kept[:, None]).reshape(heads, width, -1).mT.cpu()
    if affine.bias is None:
        return NormedMap(rows.contiguous(), None)
    return NormedMap(rows[:, :-1].contiguous(), rows[:, -1].contiguous())
