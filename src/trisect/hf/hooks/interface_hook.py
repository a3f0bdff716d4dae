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

from trisect.core.subject import QKV
from trisect.hf.hooks.calls import (
    NO_EDITS,
    RECORDING,
    Arguments,
    Call,
    Calls,
    Edits,
    NamedArguments,
    check_not_nested,
    product_of,
    traceable_forward,
    weights_to_hold,
)

EAGER = "eager"
PRODUCT_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
MAIN_ARGUMENTS = 4  # the first arguments of every attention function: module, query, key, value
OTHER_WEIGHTS = "the weights that it returns are not those that it multiplies the values by"


@contextlib.contextmanager
def record_interface(
    model: nn.Module, edits: Edits = NO_EDITS, /, *, calls: Calls | None = None, as_loaded: bool = False
) -> Iterator[list[Call]]:
    """Record every attention call of one forward pass inside, in the list that is yielded.

    The model uses eager attention inside, since only that returns weights, unless `as_loaded`. A second forward pass inside
    continues the count of calls.
    """
    names = {id(module): name for name, module in model.named_modules()}
    calls = Calls() if calls is None else calls
    edits = calls.guard(edits)
    with RECORDING:
        original = AttentionInterface.get_interface

        def get_interface(self: AttentionInterface, implementation: str, default: Callable[..., Any]) -> Any:
            function = original(self, implementation, default)

            def record(*positional: Any, **by_name: Any) -> Any:
                # module, q, k and v, each positional or by keyword, then the rest
                named = dict(by_name)
                lacks = len(positional) < MAIN_ARGUMENTS
                places = list(inspect.signature(function).parameters)[len(positional) : MAIN_ARGUMENTS] if lacks else ()
                module, q, k, v = (*positional[:MAIN_ARGUMENTS], *(named.pop(place) for place in places))
                rest = positional[MAIN_ARGUMENTS:]
                if id(module) not in names:
                    return function(*positional, **by_name)
                check_not_nested(calls.is_writing)
                order = calls.order(names[id(module)])
                if order in edits.write:
                    q, k, v = edits.write[order](QKV(q, k, v))
                looks = calls.looks and not (edits.write or edits.hold)
                multiplied = _Multiplied(q.shape[2], k.shape[2]) if looks else None
                with multiplied or contextlib.nullcontext():
                    output, weights = function(module, q, k, v, *rest, **named)
                is_exact = multiplied is None or multiplied.has(weights, output)
                if order in edits.hold:
                    heads = q.shape[1], q.shape[2], k.shape[2]
                    weights = weights_to_hold(edits.hold[order], v, (q.shape[0], *heads))
                    output = (weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)).transpose(1, 2)
                # the factor of q·k as a number: what was passed, else the module's own
                scale, mixed = named.get("scaling"), output.transpose(1, 2)
                output = mixed.transpose(1, 2)  # so that the recorded tensor is in the graph of the model's output
                scale = getattr(module, "scaling", None) if scale is None else scale
                factor = float(scale) if isinstance(scale, (int, float)) else None
                seen = _with_sink(module, weights, v, mixed)
                attend = lambda other: function(module, q, k, other, *rest, **named)[0]  # noqa: E731
                fault = "" if is_exact or _mixes(attend, seen, v) else OTHER_WEIGHTS
                parts = (q, k, v, seen, mixed, factor, output)
                calls.append(Call(names[id(module)], order, *parts, fault=fault))
                return output, weights

            return record

        with contextlib.nullcontext() if as_loaded else eager(model), traceable_forward():
            AttentionInterface.get_interface = get_interface  # pyright: ignore[reportAttributeAccessIssue]
            try:
                yield calls
            finally:
                AttentionInterface.get_interface = original


class _Multiplied(TorchFunctionMode):
    """Records products of the weights' shape, to see whether the returned weights are those that multiply v."""

    def __init__(self, asks: int, sees: int) -> None:
        super().__init__()
        self.shape = (asks, sees)
        self.products: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Arguments = (), kwargs: NamedArguments | None = None
    ) -> Any:
        """Run one of torch's functions."""
        out = func(*args, **(kwargs or {}))
        product = product_of(func, args, kwargs or {})
        for operand in () if product is None else (product.left, product.right):
            if tuple(operand.shape[-2:]) == self.shape:
                self.products.append((operand.detach().clone(), out.detach().clone()))  # either may be overwritten
        return out

    def has(self, weights: Tensor | None, output: Tensor) -> bool:
        """Whether the output is a product with exactly these weights."""
        out = output.transpose(1, 2).detach()
        return weights is None or any(_alike(a, weights.detach()) and _alike(b, out) for a, b in self.products)


def _alike(copy: Tensor, t: Tensor) -> bool:
    """Whether a copy, which is used up, and a tensor hold the same numbers in order, with batch and heads in one axis or two."""
    if copy.numel() != t.numel():
        return False
    a = copy.reshape(t.shape)
    if a.dtype == t.dtype and a.is_contiguous() and t.stride(-1) == 1:
        # bits, compared in the copy's own memory: a quarter of the time of torch.equal
        bits, bits_of_t = a.view(torch.uint8), t.view(torch.uint8)
        if not bool(bits.bitwise_xor_(bits_of_t).any()):
            return True
        bits.bitwise_xor_(bits_of_t)
    b = t.to(a.dtype)
    return torch.equal(a, b) or torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0))


@torch.no_grad()
def _mixes(attend: Callable[[Tensor], Tensor], weights: Tensor | None, v: Tensor) -> bool:
    """Whether attention to random values equals these weights times those values."""
    if weights is None:
        return True
    other = torch.randn(v.shape, generator=torch.Generator().manual_seed(v.shape[2])).to(v)
    expected = weights.to(v.dtype) @ other.repeat_interleave(weights.shape[1] // v.shape[1], 1)
    off = (expected - attend(other).transpose(1, 2)).abs()
    off = off[off.isfinite()]  # NaN and infinity are reported elsewhere
    return bool((off <= 10 * PRODUCT_TOLERANCES[v.dtype] * expected.nan_to_num(0.0, 0.0, 0.0).abs().amax()).all())


@contextlib.contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Set every module of the model to eager attention inside; restore it afterwards."""
    # most modules have no config, and a getattr that fails is slow on a Module
    having = (m for m in model.modules() if "config" in m.__dict__ or hasattr(type(m), "config"))
    configs = {id(c): c for m in having if (c := getattr(m, "config", None)) is not None}
    implementations = ((c, getattr(c, "_attn_implementation_internal", None)) for c in configs.values())
    before = [(config, implementation) for config, implementation in implementations if implementation is not None]
    try:
        for config, _ in before:
            config._attn_implementation_internal = EAGER
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation


def _with_sink(module: nn.Module, weights: Tensor | None, v: Tensor, output: Tensor) -> Tensor | None:
    """The effective weights of modules that rescale the output per query after attention, as some sinks do."""
    if weights is None or not any(p.numel() == weights.shape[1] for p in module.parameters(recurse=False)):
        return weights
    product = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
    near = PRODUCT_TOLERANCES[output.dtype] * output.detach().abs().amax()
    if bool(((product - output).detach().abs() <= near).all()):
        return weights
    size = product.square().sum(-1, keepdim=True)
    factor = (product * output).sum(-1, keepdim=True) / size.clamp_min(torch.finfo(size.dtype).tiny)
    return weights * factor if bool(((factor * product - output).detach().abs() <= near).all()) else weights
