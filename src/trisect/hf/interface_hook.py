"""Record q, k, v and weights of every attention call through a model's attention interface (`AttentionInterface`).

What `AttentionInterface.get_interface` returns is wrapped, never replaced: mask, softcap, sinks and position bias stay
the model's own.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from trisect.core.subject import Parts
from trisect.hf.calls import NOTHING, Call, Calls, Edits
from trisect.hf.opened import opened

EAGER = "eager"
NEAR = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
OWN = 4  # what every attention function takes first: module, query, key, value
_LOCK = threading.RLock()  # the wrapped method belongs to a class that all models share


@contextlib.contextmanager
def record_interface(
    model: nn.Module, edits: Edits = NOTHING, /, *, calls: Calls | None = None
) -> Iterator[list[Call]]:
    """Record every call of one forward pass inside the block; the list grows as the pass goes on.

    Inside, the model computes eagerly, since only then are there weights; afterwards everything is as it was before.
    A second forward pass inside the block counts its calls on.
    """
    names = {id(module): name for name, module in model.named_modules()}
    calls = Calls() if calls is None else calls
    with _LOCK:
        original = AttentionInterface.get_interface

        def get_interface(self: AttentionInterface, implementation: str, default: Callable[..., Any]) -> Any:
            function = original(self, implementation, default)

            def recorded(*given: Any, **by_name: Any) -> Any:
                (module, q, k, v), rest, named = _arguments(function, given, by_name)
                if id(module) not in names:
                    return function(*given, **by_name)
                order = len(calls)
                if order in edits.write:
                    q, k, v = edits.write[order](Parts(q, k, v))
                output, weights = function(module, q, k, v, *rest, **named)
                if order in edits.hold:
                    weights = edits.hold[order].to(v)
                    output = (weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)).transpose(1, 2)
                scale = named.get("scaling")
                mixed, factor = output.transpose(1, 2), _number(scale, module)
                seen = _with_sink(module, weights, v, mixed)
                calls.append(Call(names[id(module)], order, q, k, v, seen, mixed, factor, output))
                return output, weights

            return recorded

        with eager(model), opened():
            AttentionInterface.get_interface = get_interface  # pyright: ignore[reportAttributeAccessIssue]
            try:
                yield calls
            finally:
                AttentionInterface.get_interface = original


@contextlib.contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """The model with every part of it set to its eager attention, and set back afterwards."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(c, c._attn_implementation_internal) for c in configs.values() if _settable(c)]
    try:
        for config, _ in before:
            config._attn_implementation_internal = EAGER
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation


def _with_sink(module: nn.Module, weights: Tensor | None, v: Tensor, output: Tensor) -> Tensor | None:
    """The weights that make the output, of modules with a number per head that scale it after them, as some sinks do.

    Where the output is one factor of weights v, query by query, that factor is part of the weights.
    """
    if weights is None or not any(p.numel() == weights.shape[1] for p in module.parameters(recurse=False)):
        return weights
    made = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
    near = NEAR[output.dtype] * output.detach().abs().amax()
    if bool(((made - output).detach().abs() <= near).all()):
        return weights
    size = made.square().sum(-1, keepdim=True)
    factor = (made * output).sum(-1, keepdim=True) / size.clamp_min(torch.finfo(size.dtype).tiny)
    return weights * factor if bool(((factor * made - output).detach().abs() <= near).all()) else weights


def _arguments(
    function: Callable[..., Any], given: tuple[Any, ...], by_name: dict[str, Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]:
    """Module, q, k and v of a call, then the rest by place and by name; each of the four may be given either way."""
    named = dict(by_name)
    places = list(inspect.signature(function).parameters)[len(given) : OWN]
    return (*given[:OWN], *(named.pop(place) for place in places)), given[OWN:], named


def _settable(config: Any) -> bool:
    return getattr(config, "_attn_implementation_internal", None) is not None


def _number(scale: Any, module: nn.Module) -> float | None:
    """The factor of q·k as a number: what was passed, else the module's own; null where it is neither."""
    found = getattr(module, "scaling", None) if scale is None else scale
    return float(found) if isinstance(found, (int, float)) else None
