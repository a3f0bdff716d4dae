"""Places: where the representation of a site lies in a forward pass, to be read there and written there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.site import Site
from trisect.core.spec import Model
from trisect.lm.fleet import COMPONENT_ROW, Block


class Cut(NamedTuple):
    """Columns of one block of one layer."""

    block: Block
    columns: slice


def cuts(site: Site, model: Model) -> list[Cut]:
    """What the representation of a resolved site consists of, in its order: component by component, head by head."""
    found, each = [], model.width // model.heads
    for part in site.parts():
        component, layer = part.components[0], part.layers[0] if part.layers else 0
        block = ("qkv" if component in COMPONENT_ROW else component, layer)
        start = COMPONENT_ROW.get(component, 0) * model.width
        if part.heads is None:
            found.append(Cut(block, slice(start, start + model.width)))
        else:
            starts = [start + (head - 1) * each for head in part.heads]
            found += [Cut(block, slice(s, s + each)) for s in starts]
    return found


def width_of(site: Site, model: Model) -> int:
    """Dimensions of the representation of a resolved site."""
    return sum(columns.stop - columns.start for _, columns in cuts(site, model))


def blocks_of(sites: Iterable[Site], model: Model) -> list[Block]:
    """The blocks that a forward pass has to keep for those resolved sites."""
    return sorted({block for site in sites for block, _ in cuts(site, model)})


def representation(kept: Mapping[Block, Tensor], slot: int, site: Site, model: Model) -> Float[Tensor, "I N"]:
    """One member's representation at a resolved site, its parts one below the other, one column a token (batch-major)."""
    return torch.cat([kept[block][slot, ..., columns].flatten(0, 1).T for block, columns in cuts(site, model)])


class Representations:
    """Those of several members, each at a resolved site of its own, equally wide: read and written block by block, in as many
    operations as there are blocks, however many members there are.
    """

    def __init__(self, members: Sequence[tuple[int, Site]], model: Model, device: torch.device | str) -> None:
        self.width = width_of(members[0][1], model)
        found: dict[Block, list[tuple[int, int, int]]] = {}
        for number, (slot, site) in enumerate(members):
            row = number * self.width
            for block, columns in cuts(site, model):
                for column in range(columns.start, columns.stop):
                    found.setdefault(block, []).append((slot, column, row))
                    row += 1
        self.at: dict[Block, tuple[Tensor, Tensor]] = {}
        rows: list[Tensor] = []
        for block, entries in found.items():
            slots, columns, mine = torch.tensor(entries).T
            self.at[block] = slots.to(device), columns.to(device)
            rows.append(mine)
        order = torch.cat(rows)
        in_order = torch.equal(order, torch.arange(len(order)))
        self.rows = None if in_order else order.to(device)  # null where blocks give all rows in their order
        self.back = None if in_order else torch.argsort(order).to(device)

    def read(self, kept: Mapping[Block, Tensor]) -> Float[Tensor, "A I N"]:
        """What `representation` gives of each member."""
        found = torch.cat([_flat(kept[block])[slots, :, columns] for block, (slots, columns) in self.at.items()])
        found = found if self.back is None else found[self.back]
        return found.view(-1, self.width, found.shape[1])

    def add(self, gradient: Float[Tensor, "A I N"], into: Mapping[Block, Tensor]) -> None:
        """Add a gradient with respect to what `read` gives to gradients of the blocks; no place is written twice."""
        rows = gradient.flatten(0, 1)
        rows = rows if self.rows is None else rows[self.rows]
        own = rows.split([len(slots) for slots, _ in self.at.values()])
        for (block, (slots, columns)), mine in zip(self.at.items(), own, strict=True):
            _flat(into[block])[slots, :, columns] += mine


def _flat(block: Float[Tensor, "F B T W"]) -> Float[Tensor, "F N W"]:
    return block.view(block.shape[0], -1, block.shape[3])  # a view: what is written there is written in the block
