"""The loss of one forward pass, row by row, by the model's own objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.subject import Batch, RowScores
from trisect.hf.batches import IGNORED
from trisect.hf.operands import tensors_in
from trisect.measure.ablation import relative_change

TOGETHER = 1 << 21  # logits whose losses are computed at once


def first_tensor(made: Any) -> Tensor:
    """Logits, else the last hidden state, else whatever comes first in a model's answer."""
    if isinstance(made, Tensor):
        return made
    if isinstance(made, Mapping):
        for name in ("logits", "last_hidden_state"):
            if isinstance(made.get(name), Tensor):
                return made[name]
        made = tuple(made.values())
    found = next((t for t in tensors_in((made,)) if t.is_floating_point()), None)
    if found is None:
        known = f"It gives {type(made).__name__}."
        raise ModelError("The model answers with no tensor of floats.", known, "Choose a model that gives one.")
    return found


def output_at(made: Any, places: Int[Tensor, " B"] | None) -> Float[Tensor, "B T V"]:
    """Logits, else last hidden states, on the CPU; of each row's place alone where `places` are given."""
    found = first_tensor(made).detach()
    if places is None:
        return found.cpu()
    return found[torch.arange(len(found), device=found.device), places.to(found.device)][:, None].cpu()


def row_scores(made: Any, batch: Batch, objective: str, clean: RowScores | None) -> RowScores:
    """Sums over predicted tokens and their number, per row; see `core.subject.RowScores` for the units."""
    answer = first_tensor(made)
    if objective == "output":
        return _changes(answer, batch, clean)
    labels = batch.inputs.get("labels")
    if objective == "causal":
        return _next_tokens(answer, batch)
    if labels is None:
        known = "The batch says of no token that it is to be predicted."
        raise ModelError(
            "The model's loss cannot be computed.", known, "Make the batch with batches(texts, scored=True)."
        )
    if labels.shape != answer.shape[:2]:
        known = f"Its answer is of shape {tuple(answer.shape)}."
        raise ModelError("The model's loss cannot be computed.", known, "Load it with its language-model head.")
    return _sums(answer, labels)


def _next_tokens(answer: Tensor, batch: Batch) -> RowScores:
    """The loss of the next token, wherever both it and the position before it are real: a row may be padded on its left.

    Labels say which tokens are predicted, where the inputs have some.
    """
    ids = batch.inputs.get("input_ids")
    if ids is None or ids.shape != answer.shape[:2] or batch.source.real.shape != ids.shape:
        given = f"Its answer is of shape {tuple(answer.shape)}."
        shape = "none" if ids is None else str(tuple(ids.shape))
        known = f"{given} Its token ids, of shape {shape}, would have to be as many."
        raise ModelError("The model's loss cannot be computed.", known, "Give input_ids, a token for every position.")
    real, labels = batch.source.real.to(answer.device), batch.inputs.get("labels")
    if labels is not None and labels.shape != ids.shape:
        known = f"The token ids are of shape {tuple(ids.shape)}, and a label is of one of them."
        raise ModelError(
            f"Labels of shape {tuple(labels.shape)} were given.", known, "Give a label for every token id."
        )
    said = ids if labels is None else labels
    return _sums(answer[:, :-1], torch.where(real[:, :-1] & real[:, 1:], said.to(answer.device)[:, 1:], IGNORED))


def _sums(logits: Float[Tensor, "B T V"], labels: Int[Tensor, "B T"]) -> RowScores:
    losses = torch.cat([_row_losses(row[None], own[None]) for row, own in zip(logits, labels, strict=True)])
    return RowScores(losses.double().sum(1).cpu(), (labels != IGNORED).sum(1).double().cpu())


def _row_losses(logits: Float[Tensor, "1 T V"], labels: Int[Tensor, "1 T"]) -> Float[Tensor, "1 T"]:
    """The loss of every position of one row, some positions at once: no row's logits are held a second time.

    Over the last axis, as the logits lie in memory: of 50,257 numbers nine times faster than over transposed ones, and nearer to float64.
    """
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    some = max(1, TOGETHER // logits.shape[2])
    pairs = zip(logits[0].split(some), labels[0].split(some), strict=True)
    each = (F.cross_entropy(y.to(kind), own, ignore_index=IGNORED, reduction="none") for y, own in pairs)
    return torch.cat([*each, logits.new_zeros(0, dtype=kind)])[None]


def _changes(answer: Tensor, batch: Batch, clean: RowScores | None) -> RowScores:
    """Relative squared change of the answer at real positions; an answer without positions counts as one."""
    output = answer.detach().cpu()
    output = output.flatten(2) if output.dim() > 2 else output[:, None]
    real = batch.queries("dec").real if batch.target is not None else batch.source.real
    if real.shape != output.shape[:2]:
        real = torch.ones(output.shape[:2], dtype=torch.bool)
    if clean is None or clean.output is None:
        kept = output.clone()  # a model may write its next answer into the same memory
        return RowScores(torch.zeros(len(output), dtype=torch.float64), real.sum(1).double(), kept)
    total = torch.where(real, relative_change(output, clean.output), 0.0).sum(1)
    return RowScores(total, real.sum(1).double())
