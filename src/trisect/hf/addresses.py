"""Addresses of attention calls: which call of a forward pass is which layer of which stack."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from trisect.core.subject import ModelInputs
from trisect.core.trace import Address
from trisect.hf.calls import Call, CallHook
from trisect.hf.sources import SELF, find_sources, flows
from trisect.hf.stacks import Met, container, name_stacks, number_layers, tower_of


def find_addresses(
    name: str, model: nn.Module, calls: Sequence[Call], inputs: ModelInputs, hook: CallHook
) -> tuple[Address, ...]:
    """The address of every call of one forward pass, in order.

    Whose positions a call's keys are says whether it is cross-attention (see `hf.sources`), its module's name which tower
    and layer it is in (see `hf.stacks`). A tower of text that all others flow into is the main one, without a name.
    """
    found = find_sources(model, inputs, hook, calls)
    met = [Met(s.module, s.nth, s.kind, c.q.shape[2], c.k.shape[2]) for s, c in zip(found, calls, strict=True)]
    towers = _main(met, [_tower(one, inputs) for one in met], model, calls, inputs, hook)
    made = tuple(Address(stack, layer) for stack, layer in number_layers(met, name_stacks(met, towers)))
    assert len(set(made)) == len(made), f"{name}: two calls with one address"
    return made


def _tower(met: Met, inputs: ModelInputs) -> str:
    """The tower by the module's name, else by the input that has as many positions as it asks from."""
    crossing = met.kind != SELF  # which may be called by what it reads
    if said := tower_of(container(met.module) if crossing else met.module):
        return said
    ids = inputs.get("input_ids")
    floats = {n: t for n, t in inputs.items() if isinstance(t, Tensor) and t.is_floating_point() and t.dim() == 3}
    named = {tower: t.shape[1] for n, t in floats.items() if (tower := tower_of(n))}
    if not isinstance(ids, Tensor) or not named:
        return ""
    return next((tower for tower, n in {"text": ids.shape[-1], **named}.items() if n == met.asks), "")


def _main(
    met: Sequence[Met],
    towers: list[str],
    model: nn.Module,
    calls: Sequence[Call],
    inputs: ModelInputs,
    hook: CallHook,
) -> list[str]:
    """The towers, the main one without a name: the only one, or that of text which all others flow into."""
    names = list(dict.fromkeys(towers))
    if len(names) == 1:
        return [""] * len(towers)
    if "" in names and "text" in names and _unfed([m for m, tower in zip(met, towers, strict=True) if not tower]):
        return ["" if tower == "text" else tower for tower in towers]  # the encoder of a decoder without a name
    if "" in names or "text" not in names:
        return towers
    last = max(i for i, tower in enumerate(towers) if tower == "text")
    for other in names:
        source = max((i for i, tower in enumerate(towers) if tower == other and i < last), default=None)
        later = [c for i, c in enumerate(calls) if towers[i] == "text" and source is not None and i > source]
        if other != "text" and (source is None or not flows(model, inputs, hook, source, later[0])):
            return towers
    return ["" if tower == "text" else tower for tower in towers]


def _unfed(met: Sequence[Met]) -> bool:
    """Whether some of those calls read another sequence, and no layers among them make one."""
    crossing = {container(m.module) for m in met if m.kind != SELF}
    return bool(crossing) and all(container(m.module) in crossing for m in met)
