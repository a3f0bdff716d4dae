"""What edits share or hold still among the parameters of a fleet's members, and how many parameters that leaves.

Every member keeps its whole row of parameters. What a tie shares is one parameter all the same: its gradient is the sum
over the places where it stands, the optimiser and the norm see it once, and all places get its value.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.edits import Edit
from trisect.core.spec import Model
from trisect.lm.edits.base import TrainingEdit, check_trainable
from trisect.lm.fleet import Member, Place, count_parameters, layout


class EditedFleet:
    """The ties and held values of a fleet; making it gives the edited members their initial values.

    All members' at once, by places in the flattened parameters: a few operations a step, however many members are edited.
    Each round of ties adds other places to first ones, none of them twice.
    """

    def __init__(
        self,
        edits: Mapping[int, TrainingEdit],
        model: Model,
        places: Mapping[str, Place],
        flat: Float[Tensor, "F P"],
    ) -> None:
        self.flat, wide = flat, flat.shape[1]
        self.diverged: dict[int, Tensor] = {}
        held, values, ties = [torch.zeros(0, dtype=torch.long)], [flat.new_empty(0)], list[list[Tensor]]()
        for slot, edit in edits.items():
            member = Member(model, places, flat[slot])
            edit.prepare(member)
            held += [where + slot * wide for where, _ in member.held]
            values += [value for _, value in member.held]
            ties += [[where + slot * wide for where in tie] for tie in member.ties]
        self.held, self.values = torch.cat(held).to(flat.device), torch.cat(values)
        self.ties: list[tuple[Tensor, Tensor]] = []
        for n in range(1, max(map(len, ties), default=1)):
            pairs = zip(*((tie[0], tie[n]) for tie in ties if len(tie) > n), strict=True)
            first, other = (torch.cat(ends).to(flat.device) for ends in pairs)
            self.ties.append((first, other))
        self._share()

    def hold_member(self, slot: int) -> None:
        """Hold a whole member at what it is now."""
        self.diverged[slot] = self.flat[slot].clone()

    def gather(self, gradient: Float[Tensor, "F P"]) -> None:
        """Make a gradient one of distinct, trainable parameters, in place: sums at the first place, 0 elsewhere."""
        flat = gradient.view(-1)
        for first, other in self.ties:
            flat.index_copy_(0, first, flat[first] + flat[other])
            flat.index_fill_(0, other, 0.0)
        flat.index_fill_(0, self.held, 0.0)
        for slot in self.diverged:
            gradient[slot] = 0.0

    def restore(self) -> None:
        """After an update, give ties one value and held parameters theirs: decay and momentum would move them."""
        self._share()
        self.flat.view(-1).index_copy_(0, self.held, self.values)
        for slot, value in self.diverged.items():
            self.flat[slot] = value

    def _share(self) -> None:
        flat = self.flat.view(-1)
        for first, other in self.ties:
            flat.index_copy_(0, other, flat[first])


def parameters_of(model: Model, vocabulary: int, edit: Edit | None = None) -> int:
    """Number of distinct parameters that a member with that edit trains: what is tied counts once, what is held never."""
    whole = count_parameters(model, vocabulary)
    if edit is None:
        return whole
    member = Member(model, layout(model, vocabulary), torch.zeros(whole))
    check_trainable(edit).prepare(member)
    others = [other for _, *rest in member.ties for other in rest]
    return whole - len(
        torch.cat([*(where for where, _ in member.held), *others, torch.zeros(0, dtype=torch.long)]).unique()
    )
