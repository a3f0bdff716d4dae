"""One forward pass of a proved model, with its calls of attention noted and edited; whole, or begun at a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import ModelInputs
from trisect.hf.arguments import ModelOutput
from trisect.hf.batches import takes_any
from trisect.hf.calls import NOTHING, Call, Calls, Edits, outline, sparing
from trisect.hf.laws import checking
from trisect.hf.opened import evaluating
from trisect.hf.proof import Proof
from trisect.hf.refusal import check_ids
from trisect.hf.restart import Prefix, RestartPoint, left_out, restarted
from trisect.hf.room import room
from trisect.hf.state import State, check_state


class OtherCallsError(ModelError):
    """A pass that attends elsewhere than the one on loading: the inputs are of another kind."""


class ProvedModel(NamedTuple):
    """A model with its tokenizer, the names that its forward takes, its proof, and what its weights were when it was made."""

    name: str
    model: nn.Module
    tokenizer: Any
    accepts: frozenset[str]
    proof: Proof
    state: State | None = None

    @property
    def modules(self) -> list[str]:
        """The modules that make its calls of attention, in their order."""
        return [found.module for found in self.proof.found]


def run_forward(
    proved: ProvedModel,
    inputs: ModelInputs,
    edits: Edits,
    take: Callable[[Call], Call] = outline,
    prefix: Prefix | None = None,
    start: RestartPoint | None = None,
) -> tuple[Sequence[Call], ModelOutput]:
    """One forward pass, and the model's answer; of each call no more is kept than what `take` leaves of it.

    What blocks give is noted in `prefix`; with a `start` the pass begins there. Raises ModelError where the calls are not
    those of loading.
    """
    own = own_inputs(proved, inputs)
    check_ids(proved.name, proved.model, proved.tokenizer, own)
    proved.proof.agreement.check_autocast(proved.name, proved.model)
    calls = Calls(take)
    if start is not None:
        calls.extend(left_out(start, proved.modules))
    hook = proved.proof.hook(proved.model, edits, calls=calls)
    with ExitStack() as around:
        for one in (torch.no_grad(), evaluating(proved.model), sparing(proved.model), hook):
            around.enter_context(one)
        if prefix is not None:
            around.enter_context(prefix.recording(calls))
        if start is not None:
            around.enter_context(restarted(start))
        around.enter_context(room(proved.name, "Running", own))
        made = proved.model(**own)
    _same_calls(proved.name, [call.module for call in calls], proved.modules)
    return list(calls), made


def run_unedited(
    proved: ProvedModel, inputs: ModelInputs, prefix: Prefix | None = None
) -> tuple[Sequence[Call], ModelOutput]:
    """One forward pass without edits, looked at as a read is; raises ModelError where a law fails in it or weights are others.

    Edits of calls that do not make what the model goes on with would change nothing, without a word.
    """
    proof = proved.proof

    def meet(call: Call) -> Call:
        if proof.read_at(call) is not None:
            checker.call(call)
        return outline(call)

    with torch.no_grad(), checking(proved.model, proved.name, proof.call_laws(), proof.addresses, inputs) as checker:
        calls, made = run_forward(proved, inputs, NOTHING, meet, prefix)
    check_state(proved.name, proved.state, proved.model)
    confirm(proved, inputs, calls, made)
    return calls, made


def confirm(proved: ProvedModel, inputs: ModelInputs, calls: Sequence[Call], made: ModelOutput) -> None:
    """Compare what a pass without edits gave with the model's own answer, where its texts are longer than any before."""
    proved.proof.agreement.confirm(proved.name, proved.model, own_inputs(proved, inputs), calls, made)


def own_inputs(proved: ProvedModel, inputs: ModelInputs) -> ModelInputs:
    """What of a batch's inputs the model is given: all but labels; raises ModelError for a name that its forward does not take."""
    own = {name: value for name, value in inputs.items() if name != "labels"}
    if (strange := sorted(own.keys() - proved.accepts)) and not takes_any(proved.model):
        given = f"{', '.join(map(repr, strange))} was given to {proved.name}."
        known = f"Its forward takes {', '.join(sorted(proved.accepts - {'labels'})[:8]) or 'nothing by name'}."
        raise ModelError(given, known, "Leave it out, or give it by the name that the model has for it.")
    for name, value in own.items():
        if isinstance(value, Tensor) and 0 in value.shape[:2]:
            given = f"The input {name!r} of {proved.name} is empty: its shape is {tuple(value.shape)}."
            raise ModelError(given, "A pass has at least one row and one position.", "Leave empty texts out.")
    spared = "use_cache" in proved.accepts and not _packed(own)
    return own | ({"use_cache": False} if spared else {})


def _packed(own: ModelInputs) -> bool:
    """Whether positions start again within a row: without a mask and a cache transformers reads such rows as several texts."""
    places = own.get("position_ids")
    if not isinstance(places, Tensor) or own.get("attention_mask") is not None:
        return False
    return bool((places.diff(dim=-1) != 1).any())


def _same_calls(name: str, modules: Sequence[str], wanted: Sequence[str]) -> None:
    """Whether the calls of a pass are those of loading, by their modules.

    Raises OtherCallsError where there are more or fewer, ModelError for another order.
    """
    todo = (
        "Give inputs of the kind that it was loaded with, or load it with these as an example: load(model, inputs=...)."
    )
    if len(modules) != len(wanted):
        raise OtherCallsError(
            f"{name} made {len(modules)} attention calls.", f"On loading it made {len(wanted)}.", todo
        )
    for number, (made, found) in enumerate(zip(modules, wanted, strict=True)):
        if made != found:
            given = f"Attention call {number} of {name}, counted from 0, was made by {made!r}."
            raise ModelError(given, f"On loading it was made by {found!r}.", todo)
