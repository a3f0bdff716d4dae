"""Ablation of queries, keys or values: zeros, means or other texts' values in their place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trisect.core.subject import Parts, SiteTarget, Writer


def put(targets: Sequence[SiteTarget], source: Parts) -> Writer:
    """A writer that puts `source` in place of the components and heads that the targets name; the rest stays bit for bit.

    The targets are of one address. Each part of `source` is broadcast to [B H T E] of the call that is written to.
    """

    def write(parts: Parts) -> Parts:
        new = parts._asdict()
        for target in targets:
            there: Tensor = new[target.component]
            made = getattr(source, target.component).to(there).expand_as(there)
            if target.heads is None:
                new[target.component] = made.contiguous()
                continue
            which = torch.tensor([head - 1 for head in target.heads], device=there.device)
            new[target.component] = there.index_copy(1, which, made[:, which])
        return Parts(**new)

    return write


def zeros() -> Parts:
    """What takes everything away: q or k of 0 makes every score the same, v of 0 makes a head contribute nothing."""
    nothing = torch.zeros(1, 1, 1, 1)
    return Parts(nothing, nothing, nothing)


class Means:
    """The mean q, k and v of one attention layer over all real tokens of a corpus, in memory that does not grow."""

    def __init__(self) -> None:
        self._sums: dict[str, Float[Tensor, "H E"]] = {}
        self._counts = dict.fromkeys(Parts._fields, 0)

    def add(self, parts: Parts, query_real: Bool[Tensor, "B T"], key_real: Bool[Tensor, "B S"]) -> None:
        """Count in one batch; positions where `query_real` or `key_real` is false do not count."""
        for name, part, real in zip(Parts._fields, parts, (query_real, key_real, key_real), strict=True):
            # chosen, not multiplied: what stands at padding may be infinite
            kept = part.detach().transpose(1, 2)[real.to(part.device)].double().sum(0)
            self._sums[name] = self._sums[name] + kept if name in self._sums else kept
            self._counts[name] += int(real.sum())

    def parts(self) -> Parts:
        """The means, each [1 H 1 E] in float64."""
        return Parts(*(self._sums[name][None, :, None] / self._counts[name] for name in Parts._fields))


def real_parts(
    parts: Parts, row: int, query_real: Bool[Tensor, "B T"], key_real: Bool[Tensor, "B S"]
) -> tuple[Float[Tensor, "H N E"], Float[Tensor, "K M E"], Float[Tensor, "K M V"]]:
    """q, k and v of one row of a batch at its real positions: what another text can borrow."""
    queries, keys = query_real[row].to(parts.q.device), key_real[row].to(parts.q.device)
    return parts.q[row][:, queries].detach(), parts.k[row][:, keys].detach(), parts.v[row][:, keys].detach()


def borrow(donors: Sequence[Float[Tensor, "H _ E"]], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B H T E"]:
    """Rows filled from one donor each: the n-th real position gets the donor's n-th, and a shorter donor begins again.

    Places are kept so that, with positions rotated into q and k, what arrives was made for the place it comes to.
    """
    place = (real.long().cumsum(1) - 1).clamp_min(0)
    return torch.stack([d[:, (p % d.shape[1]).to(d.device)] for d, p in zip(donors, place, strict=True)])


def relative_change(made: Float[Tensor, "B T D"], clean: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
    """|y − clean|² / |clean|² at every position, in float64, row by row: no batch's outputs are held a second time."""
    found = []
    for new, old in zip(made, clean, strict=True):
        kept = old.double()
        size = kept.square().sum(-1).clamp_min(torch.finfo(torch.float64).tiny)
        found.append((new.double() - kept).square().sum(-1) / size)
    return torch.stack(found)
