"""Edited passes of a pretrained model that share what lies below the layer they edit, compared with whole passes at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.memory import pass_memory
from trisect.core.subject import Batch, Parts, RowScores, Writer
from trisect.core.trace import Address
from trisect.hf.calls import Edits, edits_at
from trisect.hf.forward import ProvedModel, run_forward, run_unedited
from trisect.hf.interface_hook import record_interface
from trisect.hf.losses import first_tensor, output_at, row_scores
from trisect.hf.one_thread import alone
from trisect.hf.restart import Prefix, RestartPoint, Restarts, mark_of_bits
from trisect.hf.room import NoRoomError
from trisect.hf.state import check_state

WHOLE = "Every edited pass was a whole one: begun at the layer that it edits, this model gives other numbers."
APART = "Edits were made one at a time: several in one pass gave this model other numbers, since rows of its batch are not independent."
NO_ROWS = (
    "Edits were made one at a time: what this model is given or answers has no row for each text of a batch, so that a batch cannot "
    "be there several times in one pass."
)
FAILED = "Edits were made one at a time: in this model a pass with several of them ended in an error ({})."
# by how much of its size an answer may differ, for sums in another order
ROUNDED = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
K = TypeVar("K")
TOGETHER = 8  # edits of one call that share a pass on a GPU
HeldWeights = Mapping[Address, Float[Tensor, "B H T S"]]


@dataclass(eq=False)
class SharedPasses:
    """Edited passes over batches of one model; what the layers below an edit gave is that of the unedited pass.

    Each place to begin from is compared with a whole pass once, bit for bit; where it differs, all passes are whole from then
    on. Models whose attention is followed by its products are always run as a whole.

    Up to `together` edits of one call share a pass, in which the batch is there once for each: equal to one at a time to
    rounding, which is looked at once for every call. That helps a GPU. Where memory does not do for so many, half as many do.
    """

    proved: ProvedModel
    objective: str
    restarts: Restarts
    together: int = 1
    _batch: Batch | None = None
    _hold: HeldWeights | None = None
    _prefix: Prefix | None = None
    _lowest: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """That passes were whole ones, where beginning later failed."""
        return (*(() if self.restarts.works else (WHOLE,)), *filter(None, (self.restarts.apart,)))

    @alone
    def begin(self, batch: Batch, hold: HeldWeights | None = None) -> None:
        """One unedited pass, whose blocks' outputs are kept."""
        self._begun(batch, hold)

    @alone
    def score(
        self,
        batch: Batch,
        write: Mapping[Address, Writer] | None = None,
        hold: HeldWeights | None = None,
        clean: RowScores | None = None,
    ) -> RowScores:
        """The model's own loss of one batch, row by row."""
        made = self._begun(batch, hold) if not write else self._edited(batch, write, hold)
        return row_scores(made, batch, self.objective, clean)

    @alone
    def several(
        self,
        batch: Batch,
        writers: Sequence[Writer],
        address: Address,
        hold: HeldWeights | None = None,
        clean: RowScores | None = None,
    ) -> list[RowScores]:
        """The score under each of several edits of one call."""
        found: list[RowScores] = []
        while len(found) < len(writers):
            own = writers[len(found) : len(found) + max(1, self.together)]
            try:
                made = self._together(batch, own, address, hold, clean) if len(own) > 1 else None
            except (torch.OutOfMemoryError, NoRoomError):
                self.together = len(own) // 2
                continue
            found += made or [self.score(batch, {address: writer}, hold, clean) for writer in own]
        return found

    def _together(
        self,
        batch: Batch,
        writers: Sequence[Writer],
        address: Address,
        hold: HeldWeights | None,
        clean: RowScores | None,
    ) -> list[RowScores] | None:
        """The scores from one pass over as many copies of the batch; null where it has to be one at a time."""
        if self.restarts.apart or self.proved.proof.hook is not record_interface:
            return None
        count, rows = len(writers), len(batch.source.tokens)
        edits = edits_at(self.proved.proof.addresses, {address: _each(writers)}, _copies(hold or {}, rows, count))
        start = self._start(batch, edits_at(self.proved.proof.addresses, {address: writers[0]}, hold), hold)
        if start is not None and self._place(start) not in self.restarts.checked:
            return None  # which a single one compares with a whole pass first
        given = None if start is None else start._replace(given=_copies(start.given, rows, count))
        try:
            made = first_tensor(run_forward(self.proved, _copies(batch.inputs, rows, count), edits, start=given)[1])
            self._note_lowest(edits)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            pass_memory(error)
            fits = all(_has_rows(value, rows) for value in batch.inputs.values())
            self.restarts.apart = FAILED.format(type(error).__name__) if fits else NO_ROWS
            return None
        if made.shape[0] != rows * count:
            self.restarts.apart = NO_ROWS
            return None
        order = self.proved.proof.addresses.index(address)
        if order not in self.restarts.compared:
            alone = first_tensor(self._edited(batch, {address: writers[-1]}, hold))
            self.restarts.compared.add(order)
            if not _near(made[-rows:], alone):
                self.restarts.apart = APART
                return None
        return [row_scores(part, batch, self.objective, clean) for part in made.split(rows)]

    @alone
    def outputs(
        self, batch: Batch, write: Mapping[Address, Writer] | None = None, places: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B T V"]:
        """Logits, or last hidden states."""
        made = self._begun(batch, None) if not write else self._edited(batch, write, None)
        return output_at(made, places)

    def _begun(self, batch: Batch, hold: HeldWeights | None) -> Any:
        """An unedited pass."""
        self._batch, self._hold, self._prefix, self._lowest = batch, hold, None, None
        shares = self.restarts.works and self.proved.proof.hook is record_interface
        prefix = Prefix(self.proved.model, self.proved.modules) if shares else None
        if hold:
            check_state(self.proved.name, self.proved.state, self.proved.model)
            edits = edits_at(self.proved.proof.addresses, None, hold)
            made = run_forward(self.proved, batch.inputs, edits, prefix=prefix)[1]
        else:
            made = run_unedited(self.proved, batch.inputs, prefix)[1]
        self._prefix = prefix
        return made

    def _edited(self, batch: Batch, write: Mapping[Address, Writer], hold: HeldWeights | None) -> Any:
        edits = edits_at(self.proved.proof.addresses, write, hold)
        start = self._start(batch, edits, hold)
        place = None if start is None else self._place(start)
        self._note_lowest(edits)
        if start is None:
            return run_forward(self.proved, batch.inputs, edits)[1]
        if place in self.restarts.checked:
            return run_forward(self.proved, batch.inputs, edits, start=start)[1]
        marked = self._marked(batch, edits, start)
        whole = run_forward(self.proved, batch.inputs, edits)[1]
        if marked != mark_of_bits(first_tensor(whole)):
            self.restarts.works, self._prefix = False, None
        assert place is not None
        self.restarts.checked.add(place)
        return whole

    def _note_lowest(self, edits: Edits) -> None:
        """That a pass since the unedited one was edited from there on."""
        self._lowest = min(n for n in (self._lowest, *edits.write, *edits.hold) if n is not None)

    def _place(self, start: RestartPoint) -> tuple[int, bool]:
        """Where a pass begins, and whether one since the unedited pass was edited below."""
        return start.last, self._lowest is not None and self._lowest < start.calls

    def _marked(self, batch: Batch, edits: Edits, start: RestartPoint) -> str | None:
        """The mark of what a pass that begins there gives, so that it need not be kept; null where the model does not run so."""
        try:
            return mark_of_bits(first_tensor(run_forward(self.proved, batch.inputs, edits, start=start)[1]))
        except NoRoomError:
            raise
        except Exception as error:
            pass_memory(error)
            return None

    def _start(self, batch: Batch, edits: Edits, hold: HeldWeights | None) -> RestartPoint | None:
        """Where the pass may begin: below it nothing is written, and what is held is what was."""
        if self._prefix is None or batch is not self._batch:
            return None
        order = {address: i for i, address in enumerate(self.proved.proof.addresses)}
        before, now = self._hold or {}, hold or {}
        changed = [order[a] for a in {*before, *now} if before.get(a) is not now.get(a)]
        return self._prefix.before(min([*edits.write, *changed]))


def _each(writers: Sequence[Writer]) -> Writer:
    """A writer for copies of a batch, the first to the first of them and so on."""

    def write(parts: Parts) -> Parts:
        split = zip(*(part.chunk(len(writers)) for part in parts), strict=True)
        made = [writer(Parts(*own)) for writer, own in zip(writers, split, strict=True)]
        return Parts(*(torch.cat(one) for one in zip(*made, strict=True)))

    return write


def _copies(given: Mapping[K, Any], rows: int, count: int) -> dict[K, Any]:
    """Whatever holds a batch's rows in its first axis, so many times one after the other."""
    same: dict[int, Any] = {}  # one object stays one
    for value in given.values():
        if id(value) not in same:
            same[id(value)] = _copied(value, rows, count)
    return {name: same[id(value)] for name, value in given.items()}


def _has_rows(value: Any, rows: int) -> bool:
    """Whether all tensors of an input hold a batch's rows in their first axis."""
    if isinstance(value, Tensor):
        return bool(value.dim()) and value.shape[0] == rows
    return all(_has_rows(one, rows) for one in value) if isinstance(value, (tuple, list)) else True


def _copied(value: Any, rows: int, count: int) -> Any:
    if isinstance(value, Tensor):
        return torch.cat([value] * count) if value.dim() and value.shape[0] == rows else value
    return type(value)(_copied(one, rows, count) for one in value) if isinstance(value, (tuple, list)) else value


def _near(made: Tensor, alone: Tensor) -> bool:
    """Whether two answers are the same to rounding."""
    if made.shape != alone.shape:
        return False
    kept = alone.isfinite() & made.isfinite()
    size = float(alone[kept].abs().max()) if bool(kept.any()) else 0.0
    same = bool((alone.isfinite() == made.isfinite()).all())
    return same and bool(((made - alone)[kept].abs() <= ROUNDED[alone.dtype] * size).all())
