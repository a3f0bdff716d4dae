"""Edited passes of a pretrained model that share what lies below the layer they edit, compared with whole passes at first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.subject import Batch, RowScores, Writer
from trisect.core.trace import Address
from trisect.hf.calls import Edits, edits_at
from trisect.hf.forward import ProvedModel, run_forward
from trisect.hf.interface_hook import record_interface
from trisect.hf.losses import first_tensor, output_at, row_scores
from trisect.hf.restart import Prefix, RestartPoint, Restarts, mark_of_bits

WHOLE = "Every edited pass was a whole one: begun at the layer that it edits, this model gives other numbers."
HeldWeights = Mapping[Address, Float[Tensor, "B H T S"]]


@dataclass(eq=False)
class SharedPasses:
    """Edited passes over batches of one model; what the layers below an edit gave is that of the unedited pass.

    Each place to begin from is compared with a whole pass once, bit for bit; where it differs, all passes are whole from then
    on. Models whose attention is followed by its products are always run as a whole.
    """

    proved: ProvedModel
    objective: str
    restarts: Restarts
    _batch: Batch | None = None
    _hold: HeldWeights | None = None
    _prefix: Prefix | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """That passes were whole ones, where beginning later failed."""
        return () if self.restarts.works else (WHOLE,)

    def begin(self, batch: Batch, hold: HeldWeights | None = None) -> None:
        """One unedited pass, whose blocks' outputs are kept."""
        self._begun(batch, hold)

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

    def outputs(
        self, batch: Batch, write: Mapping[Address, Writer] | None = None, places: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B T V"]:
        """Logits, or last hidden states."""
        made = self._begun(batch, None) if not write else self._edited(batch, write, None)
        return output_at(made, places)

    def _begun(self, batch: Batch, hold: HeldWeights | None) -> Any:
        """An unedited pass."""
        self._batch, self._hold, self._prefix = batch, hold, None
        edits = edits_at(self.proved.proof.addresses, None, hold)
        if not self.restarts.works or self.proved.proof.hook is not record_interface:
            return run_forward(self.proved, batch.inputs, edits)[1]
        prefix = Prefix(self.proved.model, self.proved.modules)
        made = run_forward(self.proved, batch.inputs, edits, prefix=prefix)[1]
        self._prefix = prefix
        return made

    def _edited(self, batch: Batch, write: Mapping[Address, Writer], hold: HeldWeights | None) -> Any:
        edits = edits_at(self.proved.proof.addresses, write, hold)
        start = self._start(batch, edits, hold)
        if start is None:
            return run_forward(self.proved, batch.inputs, edits)[1]
        if start.last in self.restarts.checked:
            return run_forward(self.proved, batch.inputs, edits, start=start)[1]
        marked = self._marked(batch, edits, start)
        whole = run_forward(self.proved, batch.inputs, edits)[1]
        if marked != mark_of_bits(first_tensor(whole)):
            self.restarts.works, self._prefix = False, None
        self.restarts.checked.add(start.last)
        return whole

    def _marked(self, batch: Batch, edits: Edits, start: RestartPoint) -> str | None:
        """The mark of what a pass that begins there gives, so that it need not be kept; null where the model does not run so."""
        try:
            return mark_of_bits(first_tensor(run_forward(self.proved, batch.inputs, edits, start=start)[1]))
        except Exception:
            return None

    def _start(self, batch: Batch, edits: Edits, hold: HeldWeights | None) -> RestartPoint | None:
        """Where the pass may begin: below it nothing is written, and what is held is what was."""
        if self._prefix is None or batch is not self._batch:
            return None
        order = {address: i for i, address in enumerate(self.proved.proof.addresses)}
        before, now = self._hold or {}, hold or {}
        changed = [order[a] for a in {*before, *now} if before.get(a) is not now.get(a)]
        return self._prefix.before(min([*edits.write, *changed]))
