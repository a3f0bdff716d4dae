"""Readings whose traces keep their graph, so that any function of the output has a gradient at q, k and v."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from trisect.core.errors import ModelError
from trisect.core.subject import Batch, InputSample, Parts, ReadGiven, as_sample
from trisect.core.trace import Address, Reading
from trisect.hf.batches import Seen, computed_at, first_tensor, trace_of
from trisect.hf.forward import run_forward
from trisect.hf.hooks.calls import Call, alone, edits_at, outline, without_recompute
from trisect.hf.load import MOST, Pretrained


@contextmanager
def _without_weights(model: nn.Module) -> Iterator[None]:
    """The model with weights that no gradient is asked for, and with their own flags again afterwards."""
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in own:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in own:
            parameter.requires_grad_()


@alone
def read_graph(subject: Pretrained, batch: Batch) -> Reading:
    """A reading of one batch whose traces lie in the graph of its `output`: [B T V], logits or last hidden states.

    After a backward pass q, k and v of every trace, and its output, have their `grad`. Tensors lie where the model computes. The
    graph begins at the first layer's q, k and v: weights, which stay as they are, get no gradient.
    """
    proof, ends = subject.proof, dict[Address, Parts]()
    seen: list[Seen] = []

    def begin(address: Address, parts: Parts) -> Parts:
        ends[address] = Parts(*(t if t.requires_grad else t.detach().requires_grad_() for t in parts))
        for part in ends[address]:
            part.retain_grad()
        return Parts(*(t.clone() for t in ends[address]))  # a model may write over what it has used

    def meet(call: Call) -> Call:
        own = proof.read_at(call)
        if own is not None and own.projections.address in ends:  # in none of a rehearsal
            if call.output.requires_grad:
                call.output.retain_grad()
            scale = call.scale if proof.laws[call.order].scaled else None
            kept = call._replace(scale=scale, raw=None, **ends[own.projections.address]._asdict())
            seen.append(Seen(own.projections.copied(computed_at(call)), kept, None))
        return outline(call)

    edits = edits_at(proof.addresses, {address: functools.partial(begin, address) for address in proof.shape.heads})
    with torch.inference_mode(False), torch.enable_grad(), _without_weights(subject.model), without_recompute():
        made = run_forward(subject._with_proof, batch.inputs, edits, meet, follow=True)[1]
    about = (batch.source, batch.target, batch.rows, batch.notes, subject.objective)
    traces = tuple(trace_of(batch, one) for one in seen)
    return Reading(subject.name, traces, *about, sides=batch.sides, output=first_tensor(made))


def read_with_gradients(subject: Pretrained, given: ReadGiven | list[ReadGiven]) -> Reading:
    """Read a text, several texts or the model's own inputs with their graph, after a reading that is verified as any is.

    Raises ModelError for what makes more than one batch.
    """
    several = [as_sample(one) for one in (given if isinstance(given, list) else [given])]
    if len(several) == 1 and isinstance(several[0], InputSample):
        subject = subject.for_sample(several[0])
    made = list(subject.batches(several, MOST))
    if len(made) != 1:
        known = f"A reading with gradients is of one batch; they make {len(made)}."
        raise ModelError(f"{len(several)} texts were given.", known, "Read them one by one.")
    notes = subject.trace(made[0]).notes
    return replace(read_graph(subject, made[0]), notes=notes)
