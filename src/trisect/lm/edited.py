"""Edited: what edits share or hold still among the parameters of a fleet: ties, identities, narrow heads, freezing.

Every member keeps its whole row of parameters. What a tie shares is one parameter all the same: its gradient is the sum
over the places where it stands, the optimiser and the norm see it once, and all places get its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trisect.core.edits import Edit
from trisect.core.site import Site
from trisect.core.spec import Model
from trisect.lm.fleet import Place, beyond, mark, runs_of, spans, views, weights_of

SLICES = 64  # more stretches than this are written by index


class Held(NamedTuple):
    """Parameters of one member that keep a value."""

    slot: int
    where: slice | Tensor
    value: Tensor


class Tied(NamedTuple):
    """Places of one member's row that hold one and the same parameter."""

    slot: int
    first: slice
    others: tuple[slice, ...]


class Edited:
    """The ties and held values of a fleet; making one gives the edited members their initial values."""

    def __init__(
        self, edits: Mapping[int, Edit], model: Model, places: Mapping[str, Place], flat: Float[Tensor, "F P"]
    ) -> None:
        self.flat = flat
        self.held: list[Held] = []
        self.tied: list[Tied] = []
        for slot, edit in edits.items():
            if edit.kind == "tie":
                self.tied += ties(slot, edit.site, model, places)
            elif edit.kind != "attack":
                self._hold(slot, _still(edit, model, places, flat[slot]))
        self._share()

    def _hold(self, slot: int, marks: Bool[Tensor, " P"]) -> None:
        found = runs_of(marks)
        several = [marks.nonzero()[:, 0].to(self.flat.device)] if len(found) > SLICES else found
        self.held += [Held(slot, where, self.flat[slot, where].clone()) for where in several]

    def bury(self, slot: int) -> None:
        """Hold a whole member at what it is now."""
        self.held.append(Held(slot, slice(0, self.flat.shape[1]), self.flat[slot].clone()))

    def gather(self, gradient: Float[Tensor, "F P"]) -> None:
        """Make a gradient one of distinct, trainable parameters, in place: sums at the first place, 0 elsewhere."""
        for slot, first, others in self.tied:
            for other in others:
                gradient[slot, first] += gradient[slot, other]
                gradient[slot, other] = 0.0
        for slot, where, _ in self.held:
            gradient[slot, where] = 0.0

    def restore(self) -> None:
        """After an update, give ties one value and held parameters theirs: decay and momentum would move them."""
        self._share()
        for slot, where, value in self.held:
            self.flat[slot, where] = value

    def _share(self) -> None:
        for slot, first, others in self.tied:
            for other in others:
                self.flat[slot, other] = self.flat[slot, first]


def ties(slot: int, site: Site, model: Model, places: Mapping[str, Place]) -> list[Tied]:
    """What each layer of a resolved site shares among its components; the first of q, k, v gives the values."""
    found = []
    for n in site.layers or ():
        each = [spans(Site((c,), (n,), site.heads), model, places) for c in site.components]
        found += [Tied(slot, first, tuple(others)) for first, *others in zip(*each, strict=True)]
    return found


def _still(edit: Edit, model: Model, places: Mapping[str, Place], row: Float[Tensor, " P"]) -> Bool[Tensor, " P"]:
    """Which parameters an edit holds, after writing into a member's row what they are held at."""
    if edit.kind == "narrow":
        marks = beyond(edit.site, edit.width or 0, model, places)
        row[marks.to(row.device)] = 0.0
        return marks
    marks = mark(edit.site, model, places)
    if edit.kind == "identity":
        row[marks.to(row.device)] = 0.0
        own, same = views(row[None], places), torch.eye(model.width, dtype=row.dtype, device=row.device)
        for n in edit.site.layers or ():
            for rows in (part[0] for name, part in weights_of(edit.site, model, n) if name == "in.weight"):
                dims = slice(rows.start % model.width, (rows.stop - 1) % model.width + 1)
                own[f"layers.{n}.in.weight"][0, rows] = same[dims]
    return marks
