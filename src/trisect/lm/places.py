"""Places: where the representation of a site lies in a forward pass, to be read there and pushed there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def push(gradient: Float[Tensor, "I N"], into: Mapping[Block, Tensor], slot: int, site: Site, model: Model) -> None:
    """Add a gradient with respect to `representation` to gradients of the blocks."""
    at = 0
    for block, columns in cuts(site, model):
        place, size = into[block][slot], columns.stop - columns.start
        place[..., columns] += gradient[at : at + size].T.reshape(*place.shape[:2], size)
        at += size
