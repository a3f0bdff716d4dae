"""A fleet's windows as recorded passes: which can be, and what they say of attackers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from trisect.lm.edits.base import Objective, Recordable
from trisect.lm.feed import Piece, PlacedLabels, known_of
from trisect.lm.loss import Scores
from trisect.lm.replay import Recorder, Replay

SlotNotes = dict[int, Mapping[str, Tensor | float]]  # by slot and name


class RecordedWindows:
    """The pass of a fleet, recorded at the first window that can be, and replayed at others of its shape.

    `backward` is the pass: it fills `gradient` and notes what objectives say.
    """

    def __init__(
        self,
        recorder: Recorder,
        labels: Sequence[str],
        objectives: Sequence[Objective],
        draw: torch.Generator,
        gradient: Tensor,
        backward: Callable[[Piece, SlotNotes], Scores],
    ) -> None:
        self.recorder, self.labels, self.objectives = recorder, tuple(labels), objectives
        self.draw, self.gradient, self.backward = draw, gradient, backward
        self.replay: Replay | None = None
        self._names: list[tuple[int, str]] = []

    def fits(self, piece: Piece) -> bool:
        """Whether no shape of the window's pass depends on what stands in it."""
        return piece.scored is None and all(
            isinstance(o, Recordable) and o.recordable(piece.labels) for o in self.objectives
        )

    def __call__(self, piece: Piece, seed: int) -> tuple[Scores, SlotNotes]:
        """Scores of one window, and what objectives say of it; `seed` is of its dropout."""
        known = {column: known_of(piece.labels, column) for column in self.labels}

        def work(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
            labels = PlacedLabels(dict(zip(self.labels, given[2:], strict=True)), known)
            said: SlotNotes = {}
            scores = self.backward(Piece(given[0], given[1], labels, own=piece.own), said)
            self._names = [(slot, name) for slot, own in said.items() for name in own]
            values = [torch.as_tensor(value).double() for own in said.values() for value in own.values()]
            return *scores, torch.stack(values) if values else scores.loss.new_empty(0, dtype=torch.float64)

        given = piece.inputs, piece.targets, *(piece.labels[column] for column in self.labels)
        if self.replay is None:
            self.replay = Replay(work, given, self.draw, self.gradient, self.objectives, self.recorder)
            self.draw.manual_seed(seed)
        loss, correct, values = (self.replay if self.replay.fits(given) else work)(given)
        said: dict[int, dict[str, Tensor | float]] = {}
        # the next replay writes there
        for (slot, name), value in zip(self._names, values.clone().unbind(), strict=True):
            said.setdefault(slot, {})[name] = value
        return Scores(loss, correct), dict(said)
