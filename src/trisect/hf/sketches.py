"""What is kept of the maps that were found on loading, to compare every read with: what they make of a few random directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trisect.hf.affine import Affine

DIRECTIONS = 3  # one alone may happen to be blind to what is off


class MapLaw(NamedTuple):
    """One use of an affine map, and what it makes of random directions: g, Wᵀg, b·g, and how long y is for x of length 1."""

    name: str
    nth: int
    directions: Float[Tensor, "out r"]
    images: Float[Tensor, "in r"]
    shift: Float[Tensor, " r"]
    size: float


class PartLaw(NamedTuple):
    """q, k or v as units of what a map makes, times factors, with something added; `turned` by rotary positions."""

    map: MapLaw
    units: Int[Tensor, "H E"]
    factors: Float[Tensor, "H E"]
    extra: Float[Tensor, "H E"] | None
    turned: bool
    time_first: bool


class OutLaw(NamedTuple):
    """W_O's map; the images of the columns that are attention's, [in r] and by head; the module that gives the result on."""

    map: MapLaw
    own: Float[Tensor, "in r"]
    heads: Float[Tensor, "H E r"]
    owner: str | None
    time_first: bool


class CallLaws(NamedTuple):
    """What was found of one attention call, to be looked at again on every read.

    `maps` are those under a norm, `forward` those of the feed-forward block behind; `bare` are marks of the parameters
    that are maps without a module of their own.
    """

    parts: Mapping[str, PartLaw] = {}
    out: OutLaw | None = None
    maps: Mapping[str, MapLaw] = {}
    bare: Mapping[str, Float[Tensor, " r"]] = {}
    forward: tuple[MapLaw, ...] = ()


@torch.no_grad()
def map_law(name: str, nth: int, affine: Affine) -> MapLaw:
    """The law of one use of a map."""
    weight = affine.weight.detach()
    kind = torch.float64 if weight.dtype == torch.float64 else torch.float32
    draw = torch.Generator().manual_seed(nth)
    g = torch.randn(weight.shape[0], DIRECTIONS, generator=draw, dtype=kind).to(weight.device)
    images, shift = g.new_zeros(weight.shape[1], DIRECTIONS), g.new_zeros(DIRECTIONS)
    for rows in torch.arange(len(weight)).split(4096):  # a vocabulary's worth of rows at once is never needed
        images += weight[rows].to(kind).T @ g[rows]
    if affine.bias is not None:
        shift = affine.bias.detach().to(kind) @ g
    size = float(weight.norm()) / weight.shape[1] ** 0.5
    return MapLaw(name, nth, g, images, shift, size)


def out_law(law: MapLaw, columns: Int[Tensor, "H E"], owner: str | None, time_first: bool) -> OutLaw:
    """The law of W_O, whose input units are the given ones."""
    flat = columns.flatten().to(law.images.device)
    own = torch.zeros_like(law.images)
    own[flat] = law.images[flat]
    return OutLaw(law, own, law.images[flat].unflatten(0, tuple(columns.shape)), owner, time_first)


@torch.no_grad()
def marks_of(model: nn.Module, names: Iterable[str]) -> dict[str, Float[Tensor, " r"]]:
    """A few random sums over each of the named parameters, and its size: others where its values are; names of modules are passed over."""
    parameters, found = dict(model.named_parameters()), {}
    for name in dict.fromkeys(names):
        own = parameters.get(name)
        if own is None:
            continue
        flat, draw = own.detach().flatten(), torch.Generator().manual_seed(own.numel())
        sums = [torch.zeros((), dtype=torch.float64)] * DIRECTIONS
        for part in flat.split(1 << 20):
            given = part.double().cpu()
            sums = [s + given @ torch.randn(len(part), generator=draw, dtype=torch.float64) for s in sums]
        found[name] = torch.stack([*sums, flat.double().norm().cpu()])
    return found
