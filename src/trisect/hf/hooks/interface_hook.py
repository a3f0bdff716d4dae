"""Record q, k, v and weights of every attention call through a model's attention interface (`AttentionInterface`).

What `AttentionInterface.get_interface` returns is wrapped, never replaced: mask, softcap, sinks and position bias stay
the model's own.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.modeling_utils import AttentionInterface

from trisect.core.subject import QKV, ModelInputs
from trisect.hf.hooks.calls import (
    NOTHING,
    RECORDING,
    Arguments,
    Call,
    Calls,
    Edits,
    NamedArguments,
    check_not_nested,
    gradients_of,
    product_of,
    traceable_forward,
    weights_to_hold,
)
from trisect.hf.locate.affine import affine_modules

EAGER = "eager"
NEAR = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
OWN = 4  # the first arguments of every attention function: module, query, key, value
FAKED = "the weights that it returns are not those that it multiplies the values by"


@contextlib.contextmanager
def record_interface(
    model: nn.Module, edits: Edits = NOTHING, /, *, calls: Calls | None = None, as_loaded: bool = False
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
                lacks = len(positional) < OWN
                places = list(inspect.signature(function).parameters)[len(positional) : OWN] if lacks else ()
                module, q, k, v = (*positional[:OWN], *(named.pop(place) for place in places))
                rest = positional[OWN:]
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
                fault = "" if is_exact or _mixes(attend, seen, v) else FAKED
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
        return weights is None or any(
            _alike(operand, weights.detach()) and _alike(out, output.transpose(1, 2).detach())
            for operand, out in self.products
        )


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers in the same order, with batch and heads in one axis or two."""
    if a.numel() != b.numel():
        return False
    a, b = a.reshape(b.shape), b.to(a.dtype)
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
    return bool((off <= 10 * NEAR[v.dtype] * expected.nan_to_num(0.0, 0.0, 0.0).abs().amax()).all())


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
    near = NEAR[output.dtype] * output.detach().abs().amax()
    if bool(((product - output).detach().abs() <= near).all()):
        return weights
    size = product.square().sum(-1, keepdim=True)
    factor = (product * output).sum(-1, keepdim=True) / size.clamp_min(torch.finfo(size.dtype).tiny)
    return weights * factor if bool(((factor * product - output).detach().abs() <= near).all()) else weights


class UnreadAttention(NamedTuple):
    """Attention that is not one product over full sequences, so that it has no Call; `words` says why.

    `width` is the length of its dot products; None if there are none.
    """

    module: str
    words: str
    width: int | None = None


@dataclass(frozen=True, eq=False)
class WindowedLayer:
    """How a module with windowed attention is read: the maps of q, k and v, and the map `out` that its output enters.

    `out` is None if the module returns its output directly. Activations are [B T HE], or [T B HE] if not
    `batch_first`.
    """

    module: str
    parts: tuple[str, str, str]
    out: str | None
    width: int
    batch_first: bool

    def take(self, y: Float[Tensor, "one two HE"]) -> Float[Tensor, "B H T E"]:
        """A map's output, split into heads."""
        return (y if self.batch_first else y.transpose(0, 1)).unflatten(-1, (-1, self.width)).transpose(1, 2)

    def give(self, t: Float[Tensor, "B H T E"]) -> Float[Tensor, "one two HE"]:
        """The inverse of `take`."""
        y = t.transpose(1, 2).flatten(2)
        return y if self.batch_first else y.transpose(0, 1)


def weights_of(out: Float[Tensor, "B T HE"], y: Tensor, pieces: WindowedLayer) -> Float[Tensor, "B H T S"]:
    """Attention weights as derivatives of every output position by every value position, per head."""
    width, rows = pieces.width, []
    first = out.unflatten(-1, (-1, width))[..., 0]  # one dimension of each head; the others have the same weights
    for t in range(out.shape[1]):
        (by_value,) = torch.autograd.grad(first[:, t].sum(), y, retain_graph=True)
        rows.append(pieces.take(by_value)[..., 0])
    return torch.stack(rows, 2)


@dataclass(eq=False)
class _Visit:
    """One forward call of a module with windowed attention."""

    was_enabled: bool
    order: int
    outputs: dict[str, Tensor] = field(default_factory=dict)
    replaced: QKV | None = None
    handles: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class PieceReader:
    """Reads and edits one module with windowed attention; `order` returns the index of the next call.

    `note` takes the module, its parts, weights, and the output per head and in the model's layout.

    `pause` stops counting the model's operations while the reader runs its own.
    """

    model: nn.Module
    pieces: WindowedLayer
    order: Callable[[], int | None]
    writer: Callable[[int], Any]
    hold: Callable[[int], Tensor | None]
    note: Callable[[str, QKV, Tensor, Tensor, Tensor], None]
    pause: Callable[[bool], None]
    visit: _Visit | None = None

    def watch(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """Register hooks on the module; those on its parts are registered per call, so that they run last."""
        module = self.model.get_submodule(self.pieces.module)
        yield module.register_forward_pre_hook(lambda _m, _a: self._enter())
        yield module.register_forward_hook(lambda _m, _a, out: self._leave(out), always_call=True)

    def _enter(self) -> None:
        order = self.order()
        if order is None:
            return
        self.visit = visit = _Visit(torch.is_grad_enabled(), order)
        torch.set_grad_enabled(True)
        for name in self.pieces.parts:
            module = self.model.get_submodule(name)
            hook = lambda m, args, out, name=name: self._replace(name, args[0], out)  # noqa: E731
            visit.handles.append(module.register_forward_hook(hook))
        if self.pieces.out is not None:
            module = self.model.get_submodule(self.pieces.out)
            visit.handles.append(module.register_forward_pre_hook(lambda m, args: (self._output(args[0]), *args[1:])))

    def _replace(self, name: str, x: Tensor, out: Tensor) -> Tensor:
        visit, pieces = self.visit, self.pieces
        assert visit is not None
        self.pause(True)
        writer = self.writer(visit.order)
        if writer is not None and visit.replaced is None:
            maps = (self.model.get_submodule(n) for n in pieces.parts)
            visit.replaced = writer(QKV(*(pieces.take(m.forward(x)) for m in maps)))
        if visit.replaced is not None:
            out = pieces.give(visit.replaced[pieces.parts.index(name)])
        out = out if out.requires_grad else out.detach().requires_grad_()
        visit.outputs[name] = out
        out = out.clone()
        self.pause(False)
        return out

    def _output(self, out: Tensor) -> Tensor:
        visit, pieces = self.visit, self.pieces
        assert visit is not None
        self.pause(True)
        hold, parts = self.hold(visit.order), QKV(*(pieces.take(visit.outputs[name]) for name in pieces.parts))
        if hold is not None:
            out = (hold.to(parts.v) @ parts.v).transpose(1, 2).flatten(2)
        weights = weights_of(out, visit.outputs[pieces.parts[2]], pieces) if hold is None else hold
        output = out.unflatten(-1, (-1, pieces.width)).transpose(1, 2)
        if not visit.was_enabled:
            parts, output = QKV(*(t.detach() for t in parts)), output.detach()
        self.note(pieces.module, parts, weights, output, out)
        self.pause(False)
        return out

    def _leave(self, out: Any) -> Any:
        visit, self.visit = self.visit, None
        if visit is None:
            return None
        for handle in visit.handles:
            handle.remove()
        try:
            is_complete = isinstance(out, (tuple, list, Tensor)) and len(visit.outputs) == len(self.pieces.parts)
            if is_complete and self.pieces.out is None:
                self.visit = visit
                plain = self._output(out if isinstance(out, Tensor) else out[0])
                out = plain if isinstance(out, Tensor) else type(out)((plain, *out[1:]))
        finally:
            self.visit = None
            torch.set_grad_enabled(visit.was_enabled)
        return out if visit.was_enabled else _detach(out)


def _detach(out: Any) -> Any:
    if isinstance(out, Tensor):
        return out.detach()
    return type(out)(_detach(x) for x in out) if isinstance(out, (tuple, list)) else out


@torch.enable_grad()
def find_pieces(model: nn.Module, inputs: ModelInputs, unread: Sequence[UnreadAttention]) -> tuple[WindowedLayer, ...]:
    """Find q, k and v of windowed attention among three equally wide maps: the output is linear in v, and q affects one position only.

    A module for which that does not hold is left out.
    """
    widths = {s.module: s.width for s in unread if s.width is not None}
    if not widths:
        return ()
    outputs: dict[str, dict[str, Tensor]] = {name: {} for name in widths}
    inputs_of: dict[str, dict[str, Tensor]] = {name: {} for name in widths}
    ends: dict[str, Tensor] = {}

    def note(owner: str, name: str, x: Tensor, out: Tensor) -> Tensor:
        leaf = out.detach().requires_grad_()
        inputs_of[owner][name], outputs[owner][name] = x, leaf
        return leaf.clone()

    def end(owner: str, out: Any) -> None:
        ends[owner] = out[0] if isinstance(out, (tuple, list)) else out

    with contextlib.ExitStack() as stack:
        for name, module in affine_modules(model):
            owner = next((o for o in widths if name.startswith(f"{o}.")), None)
            if owner is not None:
                hook = lambda m, a, out, o=owner, n=name: note(o, n, a[0], out)  # noqa: E731
                stack.callback(module.register_forward_hook(hook).remove)
        for owner in widths:
            hook = lambda m, a, out, o=owner: end(o, out)  # noqa: E731
            stack.callback(model.get_submodule(owner).register_forward_hook(hook).remove)
        model(**inputs)
    layers = [_recognise(o, widths[o], outputs[o], inputs_of[o], ends.get(o)) for o in widths]
    return tuple(p for p in layers if p is not None)


def _recognise(
    owner: str, width: int | None, outputs: Mapping[str, Tensor], inputs_of: Mapping[str, Tensor], end: Tensor | None
) -> WindowedLayer | None:
    """The parts of one module from their derivatives."""
    names = list(outputs)
    reaches = {n: gradients_of(inputs_of[n], [outputs[m] for m in names if m != n]) for n in names}
    later = [n for n in names if any(g is not None for g in reaches[n])]
    out = later[0] if later else None
    x = end if out is None else inputs_of[out]
    parts = [n for n in names if n not in later]
    if x is None or width is None or x.dim() != 3 or not x.requires_grad or len(parts) != 3:
        return None
    mixed = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    by_part = [g for g in gradients_of(x, [outputs[n] for n in parts]) if g is not None]
    place = torch.autograd.grad(x[0, 0].sum(), [outputs[n] for n in parts], retain_graph=True, allow_unused=True)
    if len(by_part) != len(parts) or any(outputs[n].dim() != 3 for n in parts):
        return None
    terms = x.detach() * mixed
    total, allowed = float(terms.sum()), 1e-3 * float(terms.abs().sum())
    linear = [
        n for n, g in zip(parts, by_part, strict=True) if abs(float((outputs[n].detach() * g).sum()) - total) <= allowed
    ]
    # the query is met at one position only, a key at several
    spread = {n: int(g.ne(0).any(-1).sum()) for n, g in zip(parts, place, strict=True) if g is not None}
    rest = [n for n in parts if n not in linear]
    queries = [n for n in rest if spread[n] == 1]
    if len(linear) != 1 or len(queries) != 1:
        return None
    keys = next(n for n in rest if n not in queries)
    batch_first = outputs[keys].shape[:2] == x.shape[:2]
    if not batch_first and outputs[keys].shape[:2] != (x.shape[1], x.shape[0]):
        return None
    return WindowedLayer(owner, (queries[0], keys, linear[0]), out, width, batch_first)
