"""Record q, k, v and weights of every attention call through a model's attention interface (`AttentionInterface`).

What `AttentionInterface.get_interface` returns is wrapped, never replaced: mask, softcap, sinks and position bias stay
the model's own.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.modeling_utils import AttentionInterface

from trisect.core.subject import Parts
from trisect.hf.arguments import Arguments, NamedArguments
from trisect.hf.calls import NOTHING, Call, Calls, Edits, held_as
from trisect.hf.one_thread import RECORDING
from trisect.hf.opened import opened
from trisect.hf.operands import product_of

EAGER = "eager"
NEAR = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
OWN = 4  # what every attention function takes first: module, query, key, value
FAKED = "the weights that it gives out are not those that it multiplies the values by"


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
    with RECORDING:
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
                with _Multiplied(q.shape[2], k.shape[2]) as used:
                    output, weights = function(module, q, k, v, *rest, **named)
                own = edits.write or edits.hold or used.has(weights, output)
                if order in edits.hold:
                    heads = q.shape[1], q.shape[2], k.shape[2]
                    weights = held_as(edits.hold[order], v, (q.shape[0], *heads))
                    output = (weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)).transpose(1, 2)
                scale = named.get("scaling")
                mixed, factor = output.transpose(1, 2), _number(scale, module)
                seen = _with_sink(module, weights, v, mixed)
                attend = lambda other: function(module, q, k, other, *rest, **named)[0]  # noqa: E731
                fault = "" if own or _mixes(attend, seen, v) else FAKED
                parts = (q, k, v, seen, mixed, factor, output)
                calls.append(Call(names[id(module)], order, *parts, fault=fault))
                return output, weights

            return recorded

        with eager(model), opened():
            AttentionInterface.get_interface = get_interface  # pyright: ignore[reportAttributeAccessIssue]
            try:
                yield calls
            finally:
                AttentionInterface.get_interface = original


class _Multiplied(TorchFunctionMode):
    """Notes what an attention function multiplies that is of its weights' shape, and what comes of it.

    Weights that are given out, and are others, may still make the output: whatever they have more keys than values have
    dimensions for is free.
    """

    def __init__(self, asks: int, sees: int) -> None:
        super().__init__()
        self.shape = (asks, sees)
        self.found: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Arguments = (), kwargs: NamedArguments | None = None
    ) -> Any:
        """Run one of torch's functions."""
        out = func(*args, **(kwargs or {}))
        product = product_of(func, args, kwargs or {})
        for operand in () if product is None else (product.left, product.right):
            if tuple(operand.shape[-2:]) == self.shape:
                self.found.append((operand.detach().clone(), out.detach().clone()))  # either may be written over
        return out

    def has(self, weights: Tensor | None, output: Tensor) -> bool:
        """Whether the output came of a product with just these weights."""
        return weights is None or any(
            _alike(operand, weights.detach()) and _alike(out, output.transpose(1, 2).detach())
            for operand, out in self.found
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers in the same order, with batch and heads in one axis or two."""
    if one.numel() != other.numel():
        return False
    one, other = one.reshape(other.shape), other.to(one.dtype)
    return torch.equal(one, other) or torch.equal(one.nan_to_num(-1.0), other.nan_to_num(-1.0))


@torch.no_grad()
def _mixes(attend: Callable[[Tensor], Tensor], weights: Tensor | None, v: Tensor) -> bool:
    """Whether other values come out as these weights of them."""
    if weights is None:
        return True
    other = torch.randn(v.shape, generator=torch.Generator().manual_seed(v.shape[2])).to(v)
    made = weights.to(v.dtype) @ other.repeat_interleave(weights.shape[1] // v.shape[1], 1)
    off = (made - attend(other).transpose(1, 2)).abs()
    off = off[off.isfinite()]  # what is no number others say
    return bool((off <= 10 * NEAR[v.dtype] * made.nan_to_num(0.0, 0.0, 0.0).abs().amax()).all())


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
