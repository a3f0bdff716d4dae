"""Whether q, k or v is made at every position as at the first: of its own position alone, at most turned, with nothing added.

Rotary positions turn a head's dimensions and leave its length alone. The derivative of q at a position by what its map
made shows all the rest: other positions, a factor, units of other heads; and since q is linear in it, what was added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.hf.affine import Passed


class Placement(NamedTuple):
    """How a part depends on its position: in words, empty where it is at most turned; whether it is turned.

    `time_first` says that positions come before rows in what the map makes.
    """

    words: str
    turned: bool
    time_first: bool = False


class Selected(NamedTuple):
    """A plain selection: units of one use of a map, each times a factor, with `extra` added; as [H, E]."""

    source: Passed
    units: Int[Tensor, "H E"]
    factors: Float[Tensor, "H E"]
    extra: Float[Tensor, "H E"] | None


def find_placement(name: str, t: Tensor, chosen: Selected, passed: Sequence[Passed], allowed: float) -> Placement:
    """Look at several positions of t [B H T E], which at position 0 is the given selection."""
    rows, length = t.shape[0], t.shape[2]
    fresh = _without_repeats(chosen.units)
    turned, layouts = False, {1, rows}  # how far apart two positions lie: batch first, or time first
    for position in sorted({0, min(1, length - 1), length // 2, length - 1}):
        place = f"at position {position} {name} "
        draw = torch.Generator().manual_seed(position)
        mixed = torch.randn(t[0, :, position].shape, generator=draw).to(t) * fresh[:, None].to(t)
        made = torch.autograd.grad(
            (t[0, :, position] * mixed).sum(), [p.leaf for p in passed], retain_graph=True, allow_unused=True
        )
        more = [
            p.name for p, g in zip(passed, made, strict=True) if g is not None and g.any() and p is not chosen.source
        ]
        if more:
            return Placement(f"{place}is also made of {' and '.join(dict.fromkeys(more))}", True)
        gradient = made[[p is chosen.source for p in passed].index(True)]
        found, layouts = _one_row(place, gradient, chosen, position, layouts, length)
        if isinstance(found, str):
            return Placement(found, True)
        words, here = _compare(place, t[0, :, position], mixed, found, chosen, fresh, allowed)
        if words and position:  # the first is compared with the map itself
            return Placement(words, True)
        turned = turned or here
    return Placement("", turned, layouts == {rows} and rows > 1)


def _without_repeats(units: Tensor) -> Tensor:
    """Which heads have units that no head before has: keys may be repeated for a group of queries."""
    seen: set[int] = set()
    fresh = []
    for own in units.tolist():
        fresh.append(not seen & set(own))
        seen |= set(own)
    return torch.tensor(fresh, device=units.device)


class _Row(NamedTuple):
    """What a map made at one position, and the derivative by it."""

    value: Tensor
    gradient: Tensor


def _one_row(
    place: str, gradient: Tensor | None, chosen: Selected, position: int, layouts: set[int], length: int
) -> tuple[_Row | str, set[int]]:
    name = chosen.source.name
    if gradient is None or not gradient.any():
        return f"{place}is not made of {name}", layouts
    flat = gradient.reshape(-1, gradient.shape[-1])
    rows = flat.any(1).nonzero().flatten().tolist()
    fits = {step for step in layouts if step * position == rows[0]}
    if len(rows) == 1 and fits:
        value = chosen.source.leaf.detach().reshape(flat.shape)[rows[0]]
        return _Row(value.double(), flat[rows[0]].double()), fits
    step = 1 if gradient.dim() < 3 or gradient.shape[-2] >= length else next(iter(sorted(layouts, reverse=True)))
    listed = [str(r // step) for r in rows]
    if len(rows) == 1:
        return f"{place}is made of position {listed[0]} of {name}", layouts
    shown = (
        f"{', '.join(listed[:3])} and {len(listed) - 3} more"
        if len(listed) > 4
        else " and ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))
    )
    return f"{place}is put together from positions {shown} of {name}", layouts


def _compare(
    place: str, t: Tensor, mixed: Tensor, row: _Row, chosen: Selected, fresh: Tensor, allowed: float
) -> tuple[str, bool]:
    """What is wrong with one position, in words, and whether it is turned there."""
    source, units, factors, extra = chosen
    units = units.to(t.device)
    factors, mixed, t = factors.to(t.device, torch.float64), mixed.double(), t.detach().double()
    own = (row.gradient[units] / factors)[fresh]
    size = mixed[fresh].norm(dim=1)
    times = own.norm(dim=1) / size
    if bool(((times - 1).abs() > allowed).any()):
        furthest = float(times[(times - 1).abs().argmax()])
        return f"{place}is {furthest:.3g} times what {source.name} makes, though not at every position", True
    whole, seen = row.gradient.square().sum(), row.gradient[units[fresh].flatten()].square().sum()
    if float(whole - seen) > allowed * float(whole):
        return f"{place}is also made of other units of {source.name}", True
    value = row.value[units] if extra is None else row.value[units] + extra.to(t) / factors
    made = (row.gradient[units] * value)[fresh].sum(1)
    given = (mixed * t)[fresh].sum(1)
    # one sum of products beside another: rounding grows with what is summed
    most = size * (t[fresh].norm(dim=1) + (value * factors)[fresh].norm(dim=1)) + torch.finfo(torch.float32).tiny
    if bool(((made - given).abs() > allowed * most).any()):
        return f"{place}is more than what {source.name} makes: something that depends on the position is added", True
    return "", bool(((own - mixed[fresh]).abs().amax(1) > allowed * size).any())
