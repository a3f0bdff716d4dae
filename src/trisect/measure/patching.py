"""Activation patching at q, k and v: record what a text has there, and put it in place of another's at chosen positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.subject import AnsweringSubject, Batch, Parts, SiteTarget, Writer
from trisect.core.trace import Address


class Recorded(NamedTuple):
    """What a model gives for a batch, and q, k and v at some addresses as they enter the dot product."""

    outputs: Float[Tensor, "B T V"]
    parts: Mapping[Address, Parts]


def record(
    subject: AnsweringSubject,
    batch: Batch,
    addresses: Iterable[Address],
    places: Int[Tensor, " B"] | None = None,
    room: int | None = None,
) -> Recorded:
    """Read one batch in a pass that changes nothing; with `places` its outputs are those at a row's place alone.

    Of the addresses, in the order of the model's calls, the first is recorded, and further ones as long as they fit in `room` bytes.
    """
    found: dict[Address, Parts] = {}
    sizes: list[int] = []

    def listener(address: Address) -> Writer:
        def write(parts: Parts) -> Parts:
            sizes.append(sum(part.numel() * part.element_size() for part in parts))
            if room is None or len(sizes) == 1 or sum(sizes) <= room:
                found[address] = Parts(*(part.detach().clone() for part in parts))
            return parts

        return write

    outputs = subject.outputs(batch, {address: listener(address) for address in addresses}, places=places)
    return Recorded(outputs, found)


def put_at(
    targets: Sequence[SiteTarget], source: Parts, queries: Bool[Tensor, "B T"], keys: Bool[Tensor, "B S"]
) -> Writer:
    """A writer that puts `source` in place of the components and heads that the targets name, where a position is true.

    `queries` are positions of q, `keys` those of k and v; every other number stays bit for bit. The targets are of one
    address; a `source` with more padding than the call that is written to is cut, one with less is filled up. Raises
    ModelError in a pass whose call has another number of positions than the tokens that were named.
    """

    def write(parts: Parts) -> Parts:
        new = parts._asdict()
        for target in targets:
            there: Tensor = new[target.component]
            chosen = (queries if target.component == "q" else keys)[:, None, :, None].to(there.device)
            if chosen.shape[2] != there.shape[2]:
                given = f"{target.component} at {target.address} has {there.shape[2]} positions."
                known = f"The texts have {chosen.shape[2]} tokens: which of them stands where is not known."
                raise ModelError(given, known, "Patch where layers see the tokens of the texts, one a position.")
            if target.heads is not None:
                heads = torch.zeros(there.shape[1], dtype=torch.bool, device=there.device)
                heads[[head - 1 for head in target.heads]] = True
                chosen = chosen & heads[None, :, None, None]
            made = _as_long(getattr(source, target.component).to(there), there.shape[2])
            new[target.component] = torch.where(chosen, made, there)
        return Parts(**new)

    return write


def put_all(source: Parts) -> Writer:
    """A writer that puts all of `source`, recorded from the same batch, in place of what the call has."""
    return lambda parts: Parts(*(made.to(there) for made, there in zip(source, parts, strict=True)))


def hold_later(kept: Mapping[Address, Parts], order: Sequence[Address], address: Address) -> dict[Address, Writer]:
    """Writers that leave q, k and v of every layer after `address` as they were recorded; `order` is that of the calls."""
    later = order[order.index(address) + 1 :]
    return {one: put_all(kept[one]) for one in later}


def _as_long(given: Shaped[Tensor, "B H T E"], length: int) -> Shaped[Tensor, "B H S E"]:
    """Cut or filled up at the end, where padding stands."""
    missing = length - given.shape[2]
    return given[:, :, :length] if missing <= 0 else torch.nn.functional.pad(given, (0, 0, 0, missing))
