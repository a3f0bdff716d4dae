"""What becomes of one type of transformers made small: read as it computes, refused by name, wrong, or not built, and why.

What is read is compared with what the model itself gives out as its attentions, which the reader does not ask for.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests import shrunk
from trisect.core.errors import ModelError
from trisect.hf.batches import first_tensor
from trisect.hf.hooks.calls import Call, Calls, Edits, copy_call, evaluating, tensors_in
from trisect.hf.hooks.interface_hook import eager
from trisect.hf.verify.proof import Proof, prove

NAMES = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
NEAR = 1e-4
SCORES = ("squeezebert",)  # what they give out as attentions are scores before the softmax


class Own(NamedTuple):
    """What a model gives out as its attentions, and what each of its modules gives on that looks like them."""

    whole: list[Tensor]
    parts: dict[str, list[Tensor]]

    def of(self, call: Call) -> list[Tensor]:
        """Those that a call's weights may be: its module's own where that gives them on, else any of the model's."""
        assert call.weights is not None
        shape = call.weights.shape
        return [t for t in self.parts[call.module] if t.shape == shape] or [t for t in self.whole if t.shape == shape]


@torch.no_grad()
def own_attentions(model: Any, inputs: dict[str, Tensor]) -> Own:
    """What the model gives out as its attentions, where it gives any, without being recorded."""
    parts: dict[str, list[Tensor]] = defaultdict(list)

    def note(name: str, out: Any) -> None:
        if isinstance(out, tuple):
            parts[name] += [t for t in tensors_in(out) if t.dim() == 4 and t.is_floating_point()]

    with contextlib.ExitStack() as stack, eager(model), evaluating(model):
        for name, module in model.named_modules():
            hook = lambda _m, _a, out, name=name: note(name, out)  # noqa: E731
            stack.callback(module.register_forward_hook(hook).remove)
        try:
            made = model(**inputs, output_attentions=True)
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError):
            return Own([], defaultdict(list))
    found = [getattr(made, name, None) for name in NAMES]
    return Own([t for t in tensors_in(found) if t.dim() == 4 and t.is_floating_point()], parts)


@torch.no_grad()
def eagerly_the_same(model: Any, inputs: dict[str, Tensor]) -> bool:
    """Whether eager attention, which gives weights out, is what the model computes: Grounding DINO's adds a mask of booleans."""
    with evaluating(model):
        answer = first_tensor(model(**inputs))
        with eager(model), contextlib.suppress(RuntimeError):  # some have no eager attention that runs
            return torch.allclose(first_tensor(model(**inputs)), answer, atol=NEAR * float(answer.abs().max()))
    return False


def wrong(model: Any, inputs: dict[str, Tensor], proof: Proof) -> str:
    """What was recorded of a layer and is not what the model itself gives out; empty where all agrees."""
    own = own_attentions(model, inputs) if eagerly_the_same(model, inputs) else Own([], defaultdict(list))
    # copies: a model may add to what it mixed, as Nyströmformer does
    with torch.no_grad(), evaluating(model), proof.hook(model, Edits(), calls=Calls(copy_call)) as recorded:
        model(**inputs)
    kept = zip(recorded, proof.weights, proof.laws, strict=True)
    calls: list[tuple[Call, bool]] = [(c, law.sink) for c, found, law in kept if found.valid]
    for call, sink in calls:
        assert call.weights is not None
        group = call.weights.shape[1] // call.v.shape[1]
        off = (call.weights @ call.v.repeat_interleave(group, 1) - call.output).abs().max()
        if off > NEAR * call.output.abs().max():
            return f"{call.module}: weights times v are not the output"
        alike, weights = own.of(call), call.weights
        if sink:  # some models give out what was before a sink scaled it: rows then agree up to their sums
            alike = [t / t.sum(-1, keepdim=True) for t in alike]
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
        means = weights.mean(1, keepdim=True)  # which is all that some give out, for every head (WavLM)
        if alike and min(float((t - made).abs().max()) for t in alike for made in (weights, means)) > NEAR:
            return f"{call.module}: weights are not the model's own"
    return ""


def outcome(kind: str, tries: int) -> tuple[str, str]:
    """Read, refused, wrong, ended in an error or not built, and what is said of it, in so many ways of making it small."""
    try:
        with warnings.catch_warnings(action="ignore"):
            model, inputs = shrunk.build_and_run(kind, tries)
    except Exception as error:  # whatever a configuration that nobody uses runs into
        return "not built", " | ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    try:
        return judged(kind, model, inputs)
    except Exception as error:  # of the reader: nothing else runs here
        return "ended in an error", f"{type(error).__name__}: {error}"


def judged(kind: str, model: Any, inputs: dict[str, Tensor]) -> tuple[str, str]:
    """Read, refused or wrong, and what is said of it."""
    try:
        proof = prove(kind, model, inputs)
    except ModelError as error:
        return "refused", str(error)
    if proof.refusal is not None:
        return "refused", str(proof.refusal)
    said = "" if kind in SCORES else wrong(model, inputs, proof)
    return ("wrong", said) if said else ("read", " ".join(proof.shape.stacks))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what models say of configurations that nobody uses."""
    logging = shrunk.tf.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"):
        yield
    logging.set_verbosity(level)
