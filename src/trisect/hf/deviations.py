"""By how much the laws of attention are off in one read, where in the batch, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import ModelError


class Places(NamedTuple):
    """Positions of a batch: row and position of each, and how many positions a row has (0: not known)."""

    row: Int[Tensor, " N"]
    position: Int[Tensor, " N"]
    length: int = 0

    def of(self, x: Tensor, rows: int, length: int, time_first: bool) -> Tensor:
        """x at those positions, [N units]; x is batch first or time first, and may hold more positions than are asked."""
        if x.dim() == 3 and rows != length:
            time_first = tuple(x.shape[:2]) == (length, rows)
        flat = x.reshape(-1, x.shape[-1])
        index = self.position * rows + self.row if time_first else self.row * (len(flat) // rows) + self.position
        return flat[index.to(flat.device)]


class _Finding(NamedTuple):
    """By how much a law is off at each position of a sample, what is allowed, and the law in words."""

    off: Float[Tensor, " N"]
    allowed: float
    sample: Places
    order: int
    words: str
    finite: bool = True


class Deviations(list[_Finding]):
    """What was found of the laws of one forward pass; `masks` [B T] of its inputs say which positions are padding."""

    def __init__(self, masks: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.masks = masks

    def note(self, off: Tensor, size: Tensor, allowed: float, sample: Places, order: int, words: str) -> None:
        """By how much a law is off at some positions, beside the size of what it is about."""
        share = off / size.clamp_min(torch.finfo(torch.float32).tiny)
        finite = torch.isfinite(size)
        if bool(finite.all()):
            self.append(_Finding(share.nan_to_num(torch.inf), allowed, sample, order, words))
            return
        lost = ~finite & ~self._padding(sample).to(finite.device)
        share = torch.where(finite, share.nan_to_num(torch.inf), torch.where(lost, torch.inf, 0.0))
        self.append(_Finding(share, allowed, sample, order, words, not bool(lost.any())))

    def _padding(self, sample: Places) -> Tensor:
        """Which of a sample are padding, where there may be no numbers; without lengths to compare none has to have them."""
        if not sample.length:
            return torch.ones_like(sample.row, dtype=torch.bool)
        found = torch.zeros_like(sample.row, dtype=torch.bool)
        for mask in self.masks:
            if mask.shape[1] == sample.length and mask.shape[0] > int(sample.row.max()):
                found = found | ~mask.to(found.device)[sample.row, sample.position]
        return found

    def fail(self, order: int, words: str) -> None:
        """A law that cannot hold at all."""
        none = torch.zeros(1, dtype=torch.long)
        self.append(_Finding(torch.full((1,), torch.inf), 0.0, Places(none, none), order, words))

    def judge(self, name: str, addresses: Sequence[object]) -> None:
        """Raise ModelError for the first law that does not hold, with its layer and where in the batch."""
        for one in sorted(self, key=lambda f: f.order):
            if one.off.numel() and not float(one.off.max()) <= one.allowed:
                worst = int(one.off.argmax())
                raise _refusal(name, str(addresses[one.order]), one, worst)


def _refusal(name: str, layer: str, one: _Finding, worst: int) -> ModelError:
    off = float(one.off[worst])
    where = (
        f", by {off:.1e} of its size at position {int(one.sample.position[worst])} of row {int(one.sample.row[worst])}"
    )
    known = f"In this read {one.words}{where if off < torch.inf else ''}; {one.allowed:.0e} would be rounding."
    known = known if off < torch.inf else f"In this read {one.words}."
    if not one.finite:
        place = f"position {int(one.sample.position[worst])} of row {int(one.sample.row[worst])}"
        known = f"In this read there is NaN or infinity at {place}, which is no padding."
        todo = "Read it in a wider precision, as with dtype='float32', or look at its weights and at what it was given."
        return ModelError(f"{layer[0].upper()}{layer[1:]} of {name} gives no numbers.", known, todo)
    todo = "Load the model again as it is now, with an example of such inputs: load(model, inputs=...)."
    return ModelError(
        f"{layer[0].upper()}{layer[1:]} of {name} does not compute what was found on loading.", known, todo
    )
