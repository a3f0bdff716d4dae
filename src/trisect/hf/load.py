"""Load: a pretrained model as a Subject — proved before it is believed — that can be read, scored and edited."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import Batch, Scores, Shape, Text, Writer
from trisect.core.trace import STACKS, Address, Projections, Reading, Trace
from trisect.hf.calls import Call, Edits
from trisect.hf.fetch import Options, fetch, objective_of
from trisect.hf.losses import first_tensor, row_scores
from trisect.hf.proof import Proof, prove
from trisect.hf.texts import Desk, sides_of

PLAIN_NAMES = ("model", "checkpoint", "final", "best", "latest", "weights")
MOST = 1_000  # windows in one Reading, all of them in memory
Inputs = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A Hugging Face model with what the proof found of its attention. Make one with `load`.

    `model` is never changed: whatever a call sets inside it is set back. `window` is the longest run of tokens that is
    read at once.
    """

    name: str
    model: nn.Module
    tokenizer: Any
    objective: str
    proof: Proof
    desk: Desk

    @property
    def fingerprint(self) -> str:
        """Hex digits of the weights: the same for the same weights."""
        return self._mark

    @functools.cached_property
    def _mark(self) -> str:
        total = hashlib.blake2b(digest_size=8)
        for name, tensor in sorted(self.model.state_dict().items()):
            total.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The address of every attention call, in the order in which the model makes them."""
        return self.proof.addresses

    @property
    def shape(self) -> Shape:
        """Layers that attend, and their heads."""
        return self.proof.shape

    def projections(self) -> tuple[Projections, ...]:
        """Per-head weights of every attention layer, as far as the proof found them."""
        return tuple(found.projections for found in self.proof.found)

    def batches(self, texts: Iterable[Text], size: int = 8, scored: bool = False) -> Iterator[Batch]:
        """Texts as batches of at most `size` windows; `scored` hides tokens from a masked LM, to be predicted."""
        return self.desk.batches(texts, size, scored)

    def batch_of(self, inputs: Inputs) -> Batch:
        """The model's own inputs as a batch, for models without a tokenizer: pixels, samples, ids."""
        if not any(isinstance(t, Tensor) for t in inputs.values()):
            known = f"It holds {', '.join(map(repr, inputs)) or 'nothing'}."
            raise ModelError("The inputs hold no tensor.", known, "Give what the model's forward takes, as tensors.")
        calls, _ = self._run(inputs, Edits())
        longest: dict[str, int] = dict.fromkeys(STACKS, 0)
        for call, address in zip(calls, self.addresses, strict=True):
            longest[address.stack] = max(longest[address.stack], call.q.shape[2])
        encoder = longest["enc"] or longest["plain"]
        if not encoder:  # an encoder without attention: cross-attention still sees its positions
            encoder = max(call.k.shape[2] for call, a in zip(calls, self.addresses, strict=True) if a.stack == "cross")
        source, target = sides_of(inputs, self.tokenizer, encoder, longest["dec"] or None)
        return Batch(inputs, source, target, tuple((i, 0) for i in range(len(source.tokens))))

    def read(self, texts: Text | Iterable[Text] | Inputs) -> Reading:
        """Read a text, several texts (a pair is source and target), or a dict of the model's own inputs.

        All traces are held in memory: for many texts go through `batches` and `trace`. Raises ModelError for an empty
        text, for a text without a tokenizer, and for more than 1,000 windows.
        """
        if isinstance(texts, Mapping):
            return self.trace(self.batch_of(cast(Inputs, texts)))
        several = [cast(Text, texts)] if isinstance(texts, (str, tuple)) else list(texts)
        made = list(self.batches(several, MOST))
        if len(made) != 1:
            known = f"A Reading holds at most {MOST:,} windows, all in memory."
            todo = "Use batches and trace, one batch at a time." if made else "Give at least one text."
            raise ModelError(f"{len(several):,} texts were given.", known, todo)
        return self.trace(made[0])

    @torch.no_grad()
    def trace(self, batch: Batch) -> Reading:
        """Read one batch: a Trace per layer and stack, on the CPU."""
        from trisect.hf.blocks import watch

        with watch(self.model, self.proof.found) as blocks:
            calls, _ = self._run(batch.inputs, Edits())
        traces = []
        for call, found in zip(calls, self.proof.found, strict=True):
            address = found.projections.address
            if not found.lawful:
                continue
            assert call.weights is not None
            traces.append(
                Trace(
                    address,
                    _kept(call.q),
                    _kept(call.k),
                    _kept(call.v),
                    _kept(call.weights),
                    _kept(call.output),
                    _fit(batch.queries(address.stack).real, call.q.shape[2]),
                    _fit(batch.keys(address.stack).real, call.k.shape[2]),
                    found.projections,
                    call.scale,
                    blocks.get(address),
                )
            )
        return Reading(self.name, tuple(traces), batch.source, batch.target, batch.rows, batch.notes, self.objective)

    @torch.no_grad()
    def score(
        self,
        batch: Batch,
        write: Mapping[Address, Writer] | None = None,
        hold: Mapping[Address, Float[Tensor, "B H T S"]] | None = None,
        clean: Scores | None = None,
    ) -> Scores:
        """The model's own loss of one batch, row by row; see Scores for the units."""
        order = {address: i for i, address in enumerate(self.addresses)}
        edits = Edits({order[a]: w for a, w in (write or {}).items()}, {order[a]: w for a, w in (hold or {}).items()})
        _, made = self._run(batch.inputs, edits)
        return row_scores(made, batch, self.objective, clean)

    def _run(self, inputs: Inputs, edits: Edits) -> tuple[list[Call], Any]:
        own = {name: value for name, value in inputs.items() if name in self.desk.accepts and name != "labels"}
        if "use_cache" in self.desk.accepts:
            own["use_cache"] = False
        with torch.no_grad(), self.proof.door(self.model, edits) as calls:
            made = self.model(**own)
        if len(calls) != len(self.addresses):
            known = f"On loading it made {len(self.addresses)}."
            todo = "Give inputs of the kind that it was loaded with."
            raise ModelError(f"{self.name} made {len(calls)} attention calls.", known, todo)
        return list(calls), made


def load(
    model: str | Path | nn.Module,
    tokenizer: Any = None,
    inputs: Inputs | None = None,
    window: int | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    proof: bool = True,
) -> Pretrained:
    """A pretrained model from a folder, from a hub by name, or as a module, proved before it is returned.

    `inputs` is an example of the model's own inputs, needed only where its kind is not known; `window` shortens what is
    read at once. Weights are safetensors unless `pickle`, and no code is run from a repository unless `remote_code`.
    `proof` false keeps what fails: layers that fail are then left out of every reading.
    Raises ModelError where there is no such model, or naming what the proof refuses.
    """
    if isinstance(model, nn.Module):
        name, module, objective = type(model).__name__, model.eval(), objective_of(model)
    else:
        options = Options(revision, dtype, device, device_map, pickle, remote_code)
        module, found, objective = fetch(model, options)
        tokenizer = tokenizer or found
        name = _name(Path(model)) if Path(model).is_dir() else str(model)
        name = name if revision is None else f"{name}@{revision}"
    proved = prove(name, module, inputs)
    if proof and proved.refusal is not None:
        raise proved.refusal
    desk = Desk.of(name, module, tokenizer, objective, window)
    return Pretrained(name, module, tokenizer, objective, proved, desk)


def _name(folder: Path) -> str:
    """A folder's name, with its parent's where the name alone says nothing."""
    place = folder.resolve()
    return f"{place.parent.name}/{place.name}" if place.name in PLAIN_NAMES else place.name


def _kept(t: Tensor) -> Tensor:
    return t.detach().cpu()


def _fit(real: Tensor, length: int) -> Tensor:
    """Which positions are real, for a layer that sees another number of them (pooled, or patched): all of them."""
    return real if real.shape[1] == length else torch.ones(real.shape[0], length, dtype=torch.bool)


__all__ = ["Pretrained", "first_tensor", "load"]
