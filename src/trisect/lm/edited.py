"""What edits share or hold still among the parameters of a fleet's members, and how many parameters that leaves.

Every member keeps its whole row of parameters. What a tie shares is one parameter all the same: its gradient is the sum
over the places where it stands, the optimiser and the norm see it once, and all places get its value.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.core.edits import Edit
from trisect.core.site import Site
from trisect.core.spec import Model
from trisect.lm.edits.base import TrainingEdit, check_trainable
from trisect.lm.fleet import Place, count_parameters, find_runs, layout, mark, spans, views

SLICES = 64  # more stretches than this are written by index


HeldSlice = tuple[int, slice | Tensor, Tensor]  # a member's slot, which of its parameters keep a value, and that
Tied = tuple[int, slice, tuple[slice, ...]]  # a slot, the first place of a shared parameter in the row, and its others


class _FreshMember:
    """One member before its first step, as its edit sees and sets it; collects what is held and shared."""

    def __init__(self, slot: int, model: Model, places: Mapping[str, Place], row: Float[Tensor, " P"]) -> None:
        self.slot, self.model, self.places, self.row = slot, model, places, row
        self.held: list[HeldSlice] = []
        self.tied: list[Tied] = []

    def blank(self) -> Bool[Tensor, " P"]:
        """Marks of no parameter, on the CPU."""
        return torch.zeros(len(self.row), dtype=torch.bool)

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """Views of a row by the parameters' names."""
        return {name: view[0] for name, view in views(row[None], self.places).items()}

    def mark(self, site: Site) -> Bool[Tensor, " P"]:
        """Marks of the weights and biases of a resolved site, on the CPU."""
        return mark(site, self.model, self.places)

    def hold(self, marks: Bool[Tensor, " P"]) -> None:
        """Keep what is marked at the value that it has now."""
        found = find_runs(marks)
        several = [marks.nonzero()[:, 0].to(self.row.device)] if len(found) > SLICES else found
        self.held += [(self.slot, where, self.row[where].clone()) for where in several]

    def share(self, site: Site) -> None:
        """Make the components of a resolved site one parameter in each layer; the first of q, k, v gives its values."""
        for n in site.layers or ():
            each = [spans(Site((c,), (n,), site.heads), self.model, self.places) for c in site.components]
            self.tied += [(self.slot, first, tuple(others)) for first, *others in zip(*each, strict=True)]

    def fixed(self) -> int:
        """How many of the parameters are not its own to train: what is held, and what is shared but for the first place."""
        marks = self.blank()
        for _, where, _ in self.held:
            marks[where.cpu() if isinstance(where, Tensor) else where] = True
        for _, _, others in self.tied:
            for other in others:
                marks[other] = True
        return int(marks.sum())


class Edited:
    """The ties and held values of a fleet; making one gives the edited members their initial values.

    Stretch by stretch on a CPU, where a stretch is a copy in memory; `together` elsewhere, where each would be a launch.
    """

    def __init__(
        self,
        edits: Mapping[int, TrainingEdit],
        model: Model,
        places: Mapping[str, Place],
        flat: Float[Tensor, "F P"],
        together: bool | None = None,
    ) -> None:
        self.flat = flat
        self.held: list[HeldSlice] = []
        self.tied: list[Tied] = []
        for slot, edit in edits.items():
            member = _FreshMember(slot, model, places, flat[slot])
            edit.prepare(member)
            self.held += member.held
            self.tied += member.tied
        self._share()
        apart = flat.device.type == "cpu" if together is None else not together
        self.together = None if apart else self._gathered()

    def _gathered(
        self,
    ) -> tuple[Int[Tensor, " K"], Float[Tensor, " K"], list[tuple[Int[Tensor, " R"], Int[Tensor, " R"]]]]:
        """What is held, its values and what is shared over all members at once, by places in the flattened parameters: a few
        operations, however many stretches. Each round of places adds others to first ones, none of them twice; so sums are
        made in the order of single stretches.
        """
        wide, device = self.flat.shape[1], self.flat.device

        def places(slot: int, where: slice | Tensor) -> Tensor:
            own = torch.arange(where.start, where.stop) if isinstance(where, slice) else where.cpu()
            return own + slot * wide

        held = [places(slot, where) for slot, where, _ in self.held]
        values = [value for _, _, value in self.held]
        rounds = []
        for n in range(max((len(others) for _, _, others in self.tied), default=0)):
            pairs = [(slot, first, others[n]) for slot, first, others in self.tied if len(others) > n]
            ends = [torch.cat([places(slot, own[k]) for slot, *own in pairs]).to(device) for k in (0, 1)]
            rounds.append((ends[0], ends[1]))
        self.held, self.tied = [], []
        nothing = torch.zeros(0, dtype=torch.long)
        return torch.cat([nothing, *held]).to(device), torch.cat([self.flat.new_empty(0), *values]), rounds

    def hold_diverged(self, slot: int) -> None:
        """Hold a whole member at what it is now."""
        self.held.append((slot, slice(0, self.flat.shape[1]), self.flat[slot].clone()))

    def gather(self, gradient: Float[Tensor, "F P"]) -> None:
        """Make a gradient one of distinct, trainable parameters, in place: sums at the first place, 0 elsewhere."""
        for slot, first, others in self.tied:
            for other in others:
                gradient[slot, first] += gradient[slot, other]
                gradient[slot, other] = 0.0
        if self.together is not None:
            all_of, (held, _, rounds) = gradient.view(-1), self.together
            for first, other in rounds:
                all_of.index_copy_(0, first, all_of[first] + all_of[other])
                all_of.index_fill_(0, other, 0.0)
            all_of.index_fill_(0, held, 0.0)
        for slot, where, _ in self.held:
            gradient[slot, where] = 0.0

    def restore(self) -> None:
        """After an update, give ties one value and held parameters theirs: decay and momentum would move them."""
        self._share()
        if self.together is not None:
            all_of, (held, values, rounds) = self.flat.view(-1), self.together
            for first, other in rounds:
                all_of.index_copy_(0, other, all_of[first])
            all_of.index_copy_(0, held, values)
        for slot, where, value in self.held:
            self.flat[slot, where] = value

    def _share(self) -> None:
        for slot, first, others in self.tied:
            for other in others:
                self.flat[slot, other] = self.flat[slot, first]


def parameters_of(model: Model, vocabulary: int, edit: Edit | None = None) -> int:
    """Number of distinct parameters that a member with that edit trains: what is tied counts once, what is held never."""
    whole = count_parameters(model, vocabulary)
    if edit is None:
        return whole
    member = _FreshMember(0, model, layout(model, vocabulary), torch.zeros(whole))
    check_trainable(edit).prepare(member)
    return whole - member.fixed()
