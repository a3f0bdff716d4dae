"""Record attention by following matmul, softmax and matmul, for models without an attention interface."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.cache_utils import Cache

from trisect.core.errors import ModelError
from trisect.core.subject import QKV, ModelInputs
from trisect.hf.hooks.calls import (
    NO_EDITS,
    RECORDING,
    SDPA,
    SOFTMAX,
    STOPS,
    Arguments,
    Call,
    Calls,
    Edits,
    NamedArguments,
    Operand,
    Product,
    check_not_nested,
    factor_after,
    gradients_of,
    map_tensors,
    multiply_rows,
    outline,
    parts_of,
    product_of,
    tensors_in,
    traceable_forward,
    use_sdpa,
    weights_to_hold,
)
from trisect.hf.locate.affine import affine_modules


class UnreadAttention(NamedTuple):
    """Attention that is not one product over full sequences, so that it has no Call; `words` says why.

    `width` is the length of its dot products; None if there are none.
    """

    module: str
    words: str
    width: int | None = None


class _ModuleCall(NamedTuple):
    """A running forward call: the nth of its module, the count of operations before it, and the batch size of its caller."""

    name: str
    nth: int
    start: int
    around: int = 0


@dataclass(eq=False)
class _ScoreProduct:
    """A product of two activations that may be scores, with the running modules and the index of the operation."""

    product: Product
    frames: tuple[_ModuleCall, ...]
    at: int


@dataclass(eq=False)
class _MixedScores:
    """Scores that went through another product."""

    score: _ScoreProduct


@dataclass(eq=False)
class _OpenSoftmax:
    """A softmax over scores, a sum of `terms` products, waiting for its product with v; `scale` multiplies q·k in the scores."""

    score: _ScoreProduct
    scale: float | None
    terms: int = 1


class _TensorView(NamedTuple):
    """An operation on a single tensor, and the index of its result."""

    func: Callable[..., Any]
    args: Arguments
    kwargs: NamedArguments
    which: int

    def of(self, tensor: Tensor) -> Tensor:
        """Apply the same operation to another tensor."""
        args = (tensor if isinstance(a, Tensor) else a for a in self.args)
        kwargs = {n: tensor if isinstance(a, Tensor) else a for n, a in self.kwargs.items()}
        return _pick(self.func(*args, **kwargs), self.which)


def _pick(out: Any, index: int) -> Tensor:
    """One of an operation's results."""
    return out[index] if isinstance(out, (tuple, list)) else out


class _CallPlan(NamedTuple):
    """Indices of a call's operations since the start of a module call, from a rehearsal; v is `views` of the result `keep`."""

    order: int
    keep: tuple[int, int]
    score: int
    value: int
    v: Operand
    views: tuple[_TensorView, ...]


@dataclass(eq=False)
class _ForwardPass:
    """State of one forward pass; `rows` is its batch size, `planning` says that it is a rehearsal."""

    rows: int
    planning: bool
    plans: dict[tuple[str, int], list[_CallPlan]] = field(default_factory=dict)
    count: int = 0
    order: int = 0
    paused: bool = False
    frames: list[_ModuleCall] = field(default_factory=list)
    entered: defaultdict[str, Iterator[int]] = field(default_factory=lambda: defaultdict(itertools.count))
    open: dict[int, _OpenSoftmax] = field(default_factory=dict)
    remixed: set[int] = field(default_factory=set)
    late: dict[int, str] = field(default_factory=dict)
    births: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    parents: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    values: dict[int, Tensor] = field(default_factory=dict)
    written: dict[int, Tensor] = field(default_factory=dict)

    def enter(self, name: str, rows: int | None) -> None:
        """Enter a module call, perhaps with its own batch size."""
        self.frames.append(_ModuleCall(name, next(self.entered[name]), self.count, self.rows))
        self.rows = self.rows if rows is None else rows

    def leave(self) -> None:
        """Leave the innermost module call."""
        if self.frames:
            self.rows = self.frames.pop().around

    def born(self, out: Any, func: Callable[..., Any], args: Arguments, kwargs: NamedArguments) -> None:
        """Record which operation made a tensor, and its operand if that is a single tensor."""
        operands = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        for i, t in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
            if isinstance(t, Tensor) and t is not (operands[0] if operands else None):
                self.births[t] = (self.count, i)
                if len(operands) == 1:
                    self.parents[t] = (operands[0], _TensorView(func, args, kwargs, i))

    def plan(self, score: _ScoreProduct, shared: Sequence[_ModuleCall], values: Operand) -> None:
        """Record where a call's v, scores and mixing are computed; in `late` if v is computed only after the scores."""
        tensor, views = values.tensor, []
        while self._birth_of(tensor)[0] >= score.at and (parent := self.parents.get(tensor)) is not None:
            tensor = parent[0]
            views.insert(0, parent[1])
        born, index = self._birth_of(tensor)
        if born >= score.at:
            self.late[self.order] = shared[-1].name
            return
        frame = next((f for f in reversed(shared) if f.start < born), shared[0])
        place = [n - frame.start for n in (born, score.at, self.count)]
        plan = _CallPlan(self.order, (place[0], index), place[1], place[2], values, tuple(views))
        self.plans.setdefault((frame.name, frame.nth), []).append(plan)

    def _birth_of(self, tensor: Tensor) -> tuple[int, int]:
        return self.births.get(tensor) or (self.count, 0)

    def _plans_now(self) -> Iterator[tuple[_CallPlan, int]]:
        for frame in self.frames if self.plans else ():
            for plan in self.plans.get((frame.name, frame.nth), ()):
                yield plan, self.count - frame.start

    def keep(self, out: Any, edits: Edits) -> None:
        """Store a v that will be edited."""
        for plan, now in self._plans_now():
            if now == plan.keep[0] and plan.order in edits.write:
                self.values[plan.order] = _pick(out, plan.keep[1])

    def edit(self, product: Product, edits: Edits, weights: Callable[[Tensor], bool]) -> Product:
        """The product with edited operands; `weights` says whether a tensor is attention weights."""
        for plan, now in self._plans_now():
            writer = edits.write.get(plan.order)
            if writer is not None and now == plan.score:
                v = plan.v.of(reduce(lambda t, view: view.of(t), plan.views, self.values.pop(plan.order)))
                parts = writer(QKV(*product.parts(self.rows), v.take(self.rows)))
                self.written[plan.order] = v.give(parts.v)
                product = product.with_scores_of(parts.q, parts.k)
            elif now == plan.value and plan.order in self.written:
                product = product.replace_operand(1 if weights(product.left) else 0, self.written.pop(plan.order))
        return product


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


IN_PIECES = "it attends within windows of its sequences"
FURTHER_PRODUCT = "its weights go through another product before they multiply the values"
MIXED = "its scores go through another product (which may mix heads) before their softmax"
NO_PRODUCT = "its weights do not multiply values in one product"
NESTED = "its sequences are nested (jagged) tensors: pad them, with a mask"
TRANSFORMED = "it is computed inside a transform of torch.func (vmap), from which no tensor can be recorded"
HEADS_LAST = 4  # axes of scores whose heads come last
ONE_PATTERN = "one pattern of weights is shared by several heads of values"
SOFTMAXES = "its weights combine {} softmaxes, each with its own queries and keys"


class _MatmulTracer(TorchFunctionMode):
    """Traces tensors through torch functions in forward passes: collects `calls`, and `unread` attention without a Call's shapes."""

    def __init__(self, model: nn.Module, edits: Edits, pieces: Sequence[WindowedLayer], calls: Calls) -> None:
        super().__init__()
        self.model, self.edits, self.pieces, self.calls = model, calls.guard(edits), pieces, calls
        self.now = self.edits  # those of the pass under way, by the order of its own calls
        self.unread: list[UnreadAttention] = []
        self.at: _ForwardPass | None = None
        self.attending: set[str] = set()  # modules that make attention calls, and those that contain them
        self._tags = WeakTensorKeyDictionary()

    # -- the passes -----------------------------------------------------------------------------------------

    def watch(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """Register hooks that track the running module; the first and the last delimit a forward pass."""
        yield self.model.register_forward_pre_hook(self._begin, with_kwargs=True)
        for name, module in self.model.named_modules():
            yield module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
            leaving = lambda _m, _a, _o: self.at and not self.calls.is_writing and self.at.leave()  # noqa: E731
            yield module.register_forward_hook(leaving, always_call=True)
        for layer in self.pieces:
            yield from _PieceReader(self, layer).watch()
        yield self.model.register_forward_hook(lambda _m, _a, _o: self._end(), always_call=True)

    def _enter(self, name: str, module: nn.Module, args: Arguments, kwargs: NamedArguments) -> None:
        if self.calls.is_writing:  # a function of an edit may use a part of the model that does not attend
            check_not_nested(name in self.attending)
        elif self.at is not None:
            query = args[0] if args else kwargs.get("query")
            rows = None
            # torch's own attention has rows second, or none, unless it is batch first
            if isinstance(module, nn.MultiheadAttention) and isinstance(query, Tensor):
                rows = query.shape[0 if module.batch_first else 1] if query.dim() == 3 else 1
            self.at.enter(name, rows)

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.at is not None and self.at.frames:
            return  # a recursive call of the model
        rows = next((t.shape[0] for t in tensors_in((args, list(kwargs.values()))) if t.dim()), 1)
        planning = self.at is not None and self.at.planning
        rehearsed = not planning and self.edits.write
        self.at = _ForwardPass(rows, planning, self._rehearse(model, args, kwargs) if rehearsed else {})

    def _rehearse(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[tuple[str, int], list[_CallPlan]]:
        """Run a pass without edits to find the operations of each call's scores and mixing."""
        keep, take = (len(self.calls), len(self.unread)), self.calls.take
        self.calls.take = outline  # calls of the rehearsal are not recorded in full
        # the rehearsal gets its own caches
        kwargs = {n: copy.deepcopy(value) if isinstance(value, Cache) else value for n, value in kwargs.items()}
        self.at = _ForwardPass(0, True)
        try:
            used = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
            # the rehearsal must not advance the random generators
            with torch.no_grad(), torch.random.fork_rng(devices=sorted(used)):
                model(*args, **kwargs)
            dry = self.at
            paths = [call.module.split(".") for call in self.calls[keep[0] :]]
            self.attending = {"", *(".".join(path[:n]) for path in paths for n in range(1, len(path) + 1))}
            # calls that the rehearsal did not make, or whose v comes after their scores, cannot be edited
            self.now = self.edits._replace(write=self.calls.at_orders(self.edits.write, self.calls[keep[0] :]))
            for order in self.now.write:
                if order in dry.late or order >= dry.order:
                    problem = f"q, k and v of call {order} of {type(model).__name__} cannot be replaced."
                    reason = f"Its forward pass has {dry.order} attention calls, counted from 0."
                    late = f"The values of {dry.late.get(order)!r} are made only after its scores."
                    raise ModelError(problem, late if order in dry.late else reason, "Replace them at other layers.")
            return dry.plans
        finally:
            del self.calls[keep[0] :], self.unread[keep[1] :]
            self.calls.take = take
            self.at = None

    def _end(self) -> None:
        at = self.at
        if at is None or at.frames:
            return
        for pattern in at.open.values():
            words = FURTHER_PRODUCT if id(pattern) in at.remixed else NO_PRODUCT
            self.unread.append(UnreadAttention(pattern.score.frames[-1].name, words))
        self._tags = WeakTensorKeyDictionary()
        self.at = at if at.planning else None

    # -- the operations -------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch function and record its role in attention."""
        kwargs = kwargs or {}
        at = self.at
        if at is None or not at.frames or at.paused:
            return func(*args, **kwargs)
        if (parts := parts_of(func)) is not None:
            with self:
                return parts(*args, **kwargs)
        at.count += 1
        if (func is SDPA or func in SOFTMAX) and any(t.is_nested for t in tensors_in((args, list(kwargs.values())))):
            self.unread.append(UnreadAttention(at.frames[-1].name, NESTED))
        elif func is SDPA:
            # `scaled_dot_product_attention`, called by the model itself
            order, name = at.order, at.frames[-1].name
            edits = NO_EDITS if at.planning else self.now
            writer, hold = edits.write.get(order), edits.hold.get(order)
            parts, weights, output, scale, result = use_sdpa(args, kwargs, at.rows, writer, hold)
            at.order += 1
            self.calls.append(Call(name, order, *parts, weights, output, scale, result))
            return result
        product = product_of(func, args, kwargs)
        if product is not None:
            if not at.planning and (self.now.write or self.now.hold):
                product = at.edit(product, self.now, lambda t: bool(self._patterns(t)))
                product = self._hold(at, product, self.now.hold.get(at.order))
            out = self._follow_product(at, product, product.call(product.left, product.right))
        else:
            out = func(*args, **kwargs)
            self._pass_on(at, func, args, kwargs, out)
        if at.planning:
            at.born(out, func, args, kwargs)
        elif at.plans:
            at.keep(out, self.now)
        return out

    def _hold(self, at: _ForwardPass, product: Product, hold: Tensor | None) -> Product:
        """The product with held weights in place of the softmax's, if it is the product of a softmax with v."""
        for side, operand in enumerate((product.left, product.right)):
            patterns = self._patterns(operand)
            roles = product.mixing(side) if patterns and hold is not None else None
            if roles is not None and hold is not None and not _reading_fault(patterns[0], product, side, at.rows):
                shape = tuple(roles[0].take(at.rows).shape)
                weights = roles[0].give(weights_to_hold(hold, roles[0].tensor, shape))
                self._tags[weights] = {patterns[0]: None}
                return product.replace_operand(side, weights)
        return product

    def _on(self, t: Tensor) -> Mapping[object, float | None]:
        return self._tags.get(t) or {}

    def _patterns(self, t: Tensor) -> list[_OpenSoftmax]:
        """The softmaxes still without a product with v that a tensor derives from."""
        return [tag for tag in self._on(t) if isinstance(tag, _OpenSoftmax) and self.at and id(tag) in self.at.open]

    def _pass_on(self, at: _ForwardPass, func: Callable[..., Any], args: Any, kwargs: dict[str, Any], out: Any) -> None:
        operands = tensors_in((args, list(kwargs.values())))
        tags: dict[object, float | None] = {}
        for t in operands:
            for tag, factor in self._on(t).items():
                # a sum of two multiples of one product has an unknown factor
                twice = factor is not None and tags.get(tag) is not None
                tags[tag] = None if twice else tags.get(tag, factor)
        if not tags:
            return
        if func in STOPS:
            at.remixed |= {id(tag) for tag in tags}
            if func in (F.linear, multiply_rows) and operands[0].dim() == HEADS_LAST:
                self._tags[out] = _score_mixtures(self._on(operands[0]), operands[0].movedim(-1, 1), at.rows)
            return
        if func in SOFTMAX:
            scores = [t for t in tags if isinstance(t, _ScoreProduct)]
            mixed = [t.score for t in tags if isinstance(t, _MixedScores)]
            mixed = [score for score in mixed if score.product.makes_scores(operands[0], at.rows)]
            if is_functorch_wrapped_tensor(operands[0]):
                self.unread.append(UnreadAttention(at.frames[-1].name, TRANSFORMED))
            elif mixed:
                self.unread.append(UnreadAttention(mixed[0].frames[-1].name, MIXED))
            elif fitting := [s for s in scores if s.product.makes_scores(operands[0], at.rows)]:
                # scores of a layer below may be added to a layer's own
                first = min(fitting, key=lambda s: (-len(_common_modules(s.frames, at.frames)), s.at))
                pattern = _OpenSoftmax(first, tags[first], sum(s.product.shares_axis for s in scores))
                at.open[id(pattern)] = pattern
                self._tags[out] = {pattern: None}
            elif any(s.product.shares_axis for s in scores):
                first = min(scores, key=lambda s: s.at)
                self.unread.append(UnreadAttention(first.frames[-1].name, IN_PIECES, first.product.width))
            return
        after = {tag: factor_after(func, args, factor) for tag, factor in tags.items()}
        for t in tensors_in((out,)):
            if t.is_floating_point():
                self._tags[t] = after

    def _follow_product(self, at: _ForwardPass, product: Product, out: Tensor) -> Tensor:
        """Record a product's role; returns its result, rebuilt from the recorded tensor if that is in a graph."""
        operands = (product.left, product.right)
        side, patterns = next(((i, p) for i, t in enumerate(operands) if (p := self._patterns(t))), (0, []))
        if not patterns:
            self._tags[out] = {_ScoreProduct(product, tuple(at.frames), at.count): product.factor}
            for operand in () if product.shares_axis else operands:
                self._tags[out] |= _score_mixtures(self._on(operand), operand, at.rows)
            return out
        for pattern in patterns:
            del at.open[id(pattern)]
        pattern, roles = patterns[0], product.mixing(side)
        score = pattern.score
        shared = _common_modules(score.frames, at.frames)
        if (why := _reading_fault(pattern, product, side, at.rows)) or roles is None:
            self.unread.append(UnreadAttention(shared[-1].name, why, score.product.width))
            return out
        weights, values, result = roles
        if at.planning:
            at.plan(score, shared, values)
        q, k = score.product.parts(at.rows)
        mixed = result.of(out).take(at.rows)
        parts = (q, k, values.take(at.rows), weights.take(at.rows), mixed)
        fault = "" if len(patterns) == 1 else SOFTMAXES.format(len(patterns))
        self.calls.append(Call(shared[-1].name, at.order, *parts, pattern.scale, out, pattern.terms, fault))
        at.order += 1
        return result.of(out).give(mixed) if out.requires_grad else out


def _score_mixtures(tags: Mapping[object, float | None], scores: Tensor, rows: int) -> dict[object, float | None]:
    """Tags of a product with scores as operand; `tags` are those of the scores, in the layout of a softmax's input."""
    products = [t for t in tags if isinstance(t, _ScoreProduct) and t.product.shares_axis]
    return {_MixedScores(t): None for t in products[:1] if t.product.makes_scores(scores, rows)}


def _reading_fault(pattern: _OpenSoftmax, product: Product, side: int, rows: int) -> str:
    """Why a product of weights (the operand at `side`) cannot be read as a call; empty if it can."""
    roles = product.mixing(side)
    if not product.shares_axis:
        return FURTHER_PRODUCT
    lengths = tuple(t.shape[2] for t in pattern.score.product.parts(rows))
    is_complete = roles is not None and all(part.fits(rows) for part in roles[:2])
    if roles is None or not is_complete or roles[0].take(rows).shape[2:] != lengths:
        return IN_PIECES
    weights, values, _ = roles
    return ONE_PATTERN if weights.take(rows).shape[1] % values.take(rows).shape[1] else ""


def _common_modules(first: Sequence[_ModuleCall], second: Sequence[_ModuleCall]) -> list[_ModuleCall]:
    """The module calls that enclose both."""
    return [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]


@dataclass(eq=False)
class _Visit:
    """One forward call of a module with windowed attention, the call of that order in the pass `at`."""

    was_enabled: bool
    at: _ForwardPass
    order: int
    outputs: dict[str, Tensor] = field(default_factory=dict)
    replaced: QKV | None = None
    handles: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class _PieceReader:
    """Reads and edits one module with windowed attention for a tracer, which pauses while the reader runs its own operations."""

    tracer: _MatmulTracer
    pieces: WindowedLayer
    visit: _Visit | None = None

    def watch(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """Register hooks on the module; those on its parts are registered per call, so that they run last."""
        module = self.tracer.model.get_submodule(self.pieces.module)
        yield module.register_forward_pre_hook(lambda _m, _a: self._enter())
        yield module.register_forward_hook(lambda _m, _a, out: self._leave(out), always_call=True)

    def _enter(self) -> None:
        at, model = self.tracer.at, self.tracer.model
        if at is None or not at.frames:
            return
        if at.planning:  # a rehearsal counts the call
            at.order += 1
            return
        self.visit = visit = _Visit(torch.is_grad_enabled(), at, at.order)
        torch.set_grad_enabled(True)
        for name in self.pieces.parts:
            hook = lambda m, args, out, name=name: self._replace(visit, name, args[0], out)  # noqa: E731
            visit.handles.append(model.get_submodule(name).register_forward_hook(hook))
        if self.pieces.out is not None:
            hook = lambda m, args: (self._output(visit, args[0]), *args[1:])  # noqa: E731
            visit.handles.append(model.get_submodule(self.pieces.out).register_forward_pre_hook(hook))

    def _replace(self, visit: _Visit, name: str, x: Tensor, out: Tensor) -> Tensor:
        pieces = self.pieces
        visit.at.paused = True
        writer = self.tracer.now.write.get(visit.order)
        if writer is not None and visit.replaced is None:
            maps = (self.tracer.model.get_submodule(n) for n in pieces.parts)
            visit.replaced = writer(QKV(*(pieces.take(m.forward(x)) for m in maps)))
        if visit.replaced is not None:
            out = pieces.give(visit.replaced[pieces.parts.index(name)])
        visit.outputs[name] = out if out.requires_grad else out.detach().requires_grad_()
        out = visit.outputs[name].clone()
        visit.at.paused = False
        return out

    def _output(self, visit: _Visit, out: Tensor) -> Tensor:
        pieces = self.pieces
        visit.at.paused = True
        hold = self.tracer.edits.hold.get(visit.order)
        parts = QKV(*(pieces.take(visit.outputs[name]) for name in pieces.parts))
        if hold is not None:
            out = (hold.to(parts.v) @ parts.v).transpose(1, 2).flatten(2)
        weights = _weights_of(out, visit.outputs[pieces.parts[2]], pieces) if hold is None else hold
        output = out.unflatten(-1, (-1, pieces.width)).transpose(1, 2)
        if not visit.was_enabled:
            parts, output = QKV(*(t.detach() for t in parts)), output.detach()
        self.tracer.calls.append(Call(pieces.module, visit.at.order, *parts, weights, output, None, out))
        visit.at.order += 1
        visit.at.paused = False
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
                plain = self._output(visit, out if isinstance(out, Tensor) else out[0])
                out = plain if isinstance(out, Tensor) else type(out)((plain, *out[1:]))
        finally:
            torch.set_grad_enabled(visit.was_enabled)
        return out if visit.was_enabled else map_tensors(out, Tensor.detach)


def _weights_of(out: Float[Tensor, "B T HE"], y: Tensor, pieces: WindowedLayer) -> Float[Tensor, "B H T S"]:
    """Attention weights as derivatives of every output position by every value position, per head."""
    width, rows = pieces.width, []
    first = out.unflatten(-1, (-1, width))[..., 0]  # one dimension of each head; the others have the same weights
    for t in range(out.shape[1]):
        (by_value,) = torch.autograd.grad(first[:, t].sum(), y, retain_graph=True)
        rows.append(pieces.take(by_value)[..., 0])
    return torch.stack(rows, 2)


@contextmanager
def following(
    model: nn.Module, edits: Edits | None = None, pieces: Sequence[WindowedLayer] = (), calls: Calls | None = None
) -> Iterator[_MatmulTracer]:
    """Forward passes inside are recorded, edited and counted; hooks and mode are removed in the end."""
    follower = _MatmulTracer(model, edits or NO_EDITS, pieces, Calls() if calls is None else calls)
    with RECORDING, ExitStack() as stack:
        stack.enter_context(traceable_forward())
        for handle in follower.watch():
            stack.callback(handle.remove)
        stack.enter_context(follower)
        yield follower


@contextmanager
def record_products(
    model: nn.Module, edits: Edits = NO_EDITS, /, *, pieces: Sequence[WindowedLayer] = (), calls: Calls | None = None
) -> Iterator[list[Call]]:
    """The product hook: q and k are read at the product that makes the scores, v and the weights at the next.

    Yields the calls of all forward passes inside, in their graph. Scores with several terms are read
    and edited at the first, that of content with content. To replace q, k and v each forward pass is run twice.
    Windowed attention in `pieces` is read by its derivatives.
    """
    with following(model, edits, pieces, calls) as follower:
        yield follower.calls


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

    with ExitStack() as stack:
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
    sums = {n: float((outputs[n].detach() * g).sum()) for n, g in zip(parts, by_part, strict=True)}
    linear = [n for n, of_part in sums.items() if abs(of_part - total) <= allowed]
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
