"""Record attention by following matmul, softmax and matmul, for models without an attention interface."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.cache_utils import Cache

from trisect.core.errors import ModelError
from trisect.core.subject import QKV
from trisect.hf.hooks.calls import (
    NOTHING,
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
    outline,
    parts_of,
    product_of,
    rows_of,
    tensors_in,
    traceable_forward,
    use_sdpa,
    weights_to_hold,
)
from trisect.hf.hooks.interface_hook import PieceReader, UnreadAttention, WindowedLayer


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
    entered: dict[str, int] = field(default_factory=dict)
    open: dict[int, _OpenSoftmax] = field(default_factory=dict)
    remixed: set[int] = field(default_factory=set)
    late: dict[int, str] = field(default_factory=dict)
    births: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    parents: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    values: dict[int, Tensor] = field(default_factory=dict)
    written: dict[int, Tensor] = field(default_factory=dict)

    def enter(self, name: str, rows: int | None = None) -> None:
        """Enter a module call, perhaps with its own batch size."""
        nth = self.entered.get(name, 0)
        self.entered[name] = nth + 1
        self.frames.append(_ModuleCall(name, nth, self.count, self.rows))
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


IN_PIECES = "it attends within windows of its sequences"
REMIXED = "its weights go through another product before they multiply the values"
MIXED = "its scores go through another product (which may mix heads) before their softmax"
UNMET = "its weights do not multiply values in one product"
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
        self._at: _ForwardPass | None = None
        self._attending: set[str] = set()  # modules that make attention calls, and those that contain them
        self._tags = WeakTensorKeyDictionary()

    # -- the passes -----------------------------------------------------------------------------------------

    def watch(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """Register hooks that track the running module; the first and the last delimit a forward pass."""
        yield self.model.register_forward_pre_hook(self._begin, with_kwargs=True)
        for name, module in self.model.named_modules():
            yield module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
            leaving = lambda _m, _a, _o: self._at and not self.calls.is_writing and self._at.leave()  # noqa: E731
            yield module.register_forward_hook(leaving, always_call=True)
        for layer in self.pieces:
            doing = lambda n: self.now.write.get(n), self.edits.hold.get, self._note_pieces, self._pause
            yield from PieceReader(self.model, layer, self._order, *doing).watch()
        yield self.model.register_forward_hook(lambda _m, _a, _o: self._end(), always_call=True)

    def _enter(self, name: str, module: nn.Module, args: Arguments, kwargs: NamedArguments) -> None:
        if self.calls.is_writing:  # a function of an edit may use a part of the model that does not attend
            check_not_nested(name in self._attending)
        elif self._at is not None:
            self._at.enter(name, rows_of(module, args, kwargs))

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._at is not None and self._at.frames:
            return  # a recursive call of the model
        rows = next((t.shape[0] for t in tensors_in((args, list(kwargs.values()))) if t.dim()), 1)
        planning = self._at is not None and self._at.planning
        rehearsed = not planning and self.edits.write
        self._at = _ForwardPass(rows, planning, self._rehearse(model, args, kwargs) if rehearsed else {})

    def _rehearse(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[tuple[str, int], list[_CallPlan]]:
        """Run a pass without edits to find the operations of each call's scores and mixing."""
        keep, take = (len(self.calls), len(self.unread)), self.calls.take
        self.calls.take = outline  # calls of the rehearsal are not recorded in full
        # the rehearsal gets its own caches
        kwargs = {n: copy.deepcopy(value) if isinstance(value, Cache) else value for n, value in kwargs.items()}
        self._at = _ForwardPass(0, True)
        try:
            used = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
            # the rehearsal must not advance the random generators
            with torch.no_grad(), torch.random.fork_rng(devices=sorted(used)):
                model(*args, **kwargs)
            dry = self._at
            paths = [call.module.split(".") for call in self.calls[keep[0] :]]
            self._attending = {"", *(".".join(path[:n]) for path in paths for n in range(1, len(path) + 1))}
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
            self._at = None

    def _end(self) -> None:
        at = self._at
        if at is None or at.frames:
            return
        for pattern in at.open.values():
            words = REMIXED if id(pattern) in at.remixed else UNMET
            self.unread.append(UnreadAttention(pattern.score.frames[-1].name, words))
        self._tags = WeakTensorKeyDictionary()
        self._at = at if at.planning else None

    def _order(self) -> int | None:
        """The index of the next call in the running pass; in a rehearsal counts it and returns None."""
        if self._at is None or not self._at.frames:
            return None
        if self._at.planning:
            self._at.order += 1
            return None
        return self._at.order

    def _pause(self, paused: bool) -> None:
        if self._at is not None:
            self._at.paused = paused

    def _note_pieces(self, module: str, parts: QKV, weights: Tensor, output: Tensor, raw: Tensor) -> None:
        if self._at is not None:
            self.calls.append(Call(module, self._at.order, *parts, weights, output, None, raw))
            self._at.order += 1

    # -- the operations -------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch function and record its role in attention."""
        kwargs = kwargs or {}
        at = self._at
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
            edits = NOTHING if at.planning else self.now
            writer, hold = edits.write.get(order), edits.hold.get(order)
            parts, weights, output, scale, result = use_sdpa(args, kwargs, at.rows, writer, hold)
            at.order += 1
            self.calls.append(Call(name, order, *parts, weights, output, scale, result))
            return result
        product = product_of(func, args, kwargs)
        if product is not None:
            if not at.planning and (self.now.write or self.now.hold):
                product = at.edit(product, self.now, lambda t: bool(self._patterns(t)))
                tags = [self._patterns(t) for t in (product.left, product.right)]
                product, replaced, tag = holding(product, self.now.hold.get(at.order), tags, at.rows)
                if replaced is not None:
                    self._tags[replaced] = {tag: None}
            out = self._follow_product(at, product, product.call(product.left, product.right))
        else:
            out = func(*args, **kwargs)
            self._pass_on(at, func, args, kwargs, out)
        if at.planning:
            at.born(out, func, args, kwargs)
        elif at.plans:
            at.keep(out, self.now)
        return out

    def _on(self, t: Tensor) -> Mapping[object, float | None]:
        return self._tags.get(t) or {}

    def _patterns(self, t: Tensor) -> list[_OpenSoftmax]:
        """The softmaxes still without a product with v that a tensor derives from."""
        return [tag for tag in self._on(t) if isinstance(tag, _OpenSoftmax) and self._at and id(tag) in self._at.open]

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
            if func is F.linear and operands[0].dim() == HEADS_LAST:
                self._tags[out] = _score_mixtures(self._on(operands[0]), operands[0].movedim(-1, 1), at.rows)
            return
        if func in SOFTMAX:
            scores = [t for t in tags if isinstance(t, _ScoreProduct)]
            mixed = [
                t for t in tags if isinstance(t, _MixedScores) and t.score.product.makes_scores(operands[0], at.rows)
            ]
            if is_functorch_wrapped_tensor(operands[0]):
                self.unread.append(UnreadAttention(at.frames[-1].name, TRANSFORMED))
            elif mixed:
                self.unread.append(UnreadAttention(mixed[0].score.frames[-1].name, MIXED))
            elif scores:
                self._soften(at, scores, tags, operands[0], out)
            return
        after = {tag: factor_after(func, args, factor) for tag, factor in tags.items()}
        for t in tensors_in((out,)):
            if t.is_floating_point():
                self._tags[t] = after

    def _soften(
        self, at: _ForwardPass, scores: list[_ScoreProduct], tags: Mapping[object, Any], scored: Tensor, out: Tensor
    ) -> None:
        fitting = [s for s in scores if s.product.makes_scores(scored, at.rows)]
        if fitting:
            # scores of a layer below may be added to a layer's own
            first = min(fitting, key=lambda s: (-len(_common_modules(s.frames, at.frames)), s.at))
            pattern = _OpenSoftmax(first, tags[first], sum(s.product.shares_axis for s in scores))
            at.open[id(pattern)] = pattern
            self._tags[out] = {pattern: None}
        elif any(s.product.shares_axis for s in scores):
            first = min(scores, key=lambda s: s.at)
            self.unread.append(UnreadAttention(first.frames[-1].name, IN_PIECES, first.product.width))

    def _follow_product(self, at: _ForwardPass, product: Product, out: Tensor) -> Tensor:
        """Record a product's role; returns its result, rebuilt from the recorded tensor if that is in a graph."""
        for side, operand in enumerate((product.left, product.right)):
            if patterns := self._patterns(operand):
                for pattern in patterns:
                    del at.open[id(pattern)]
                return self._record(at, patterns, product, side, out)
        self._tags[out] = {_ScoreProduct(product, tuple(at.frames), at.count): product.factor}
        for operand in () if product.shares_axis else (product.left, product.right):
            self._tags[out] |= _score_mixtures(self._on(operand), operand, at.rows)
        return out

    def _record(
        self, at: _ForwardPass, patterns: Sequence[_OpenSoftmax], product: Product, side: int, out: Tensor
    ) -> Tensor:
        pattern = patterns[0]
        score, roles = pattern.score, product.mixing(side)
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


def holding(
    product: Product, hold: Tensor | None, tags: Sequence[Sequence[_OpenSoftmax]], rows: int
) -> tuple[Product, Tensor | None, _OpenSoftmax | None]:
    """The product with held weights in place of the softmax's, those weights, and the softmax that they replace."""
    for side, patterns in enumerate(tags):
        roles = product.mixing(side) if patterns and hold is not None else None
        if roles is not None and hold is not None and not _reading_fault(patterns[0], product, side, rows):
            replaced = roles[0].give(weights_to_hold(hold, roles[0].tensor, tuple(roles[0].take(rows).shape)))
            return product.replace_operand(side, replaced), replaced, patterns[0]
    return product, None, None


def _reading_fault(pattern: _OpenSoftmax, product: Product, side: int, rows: int) -> str:
    """Why a product of weights (the operand at `side`) cannot be read as a call; empty if it can."""
    roles = product.mixing(side)
    if not product.shares_axis:
        return REMIXED
    lengths = tuple(t.shape[2] for t in pattern.score.product.parts(rows))
    is_complete = roles is not None and all(part.fits(rows) for part in roles[:2])
    if roles is None or not is_complete or roles[0].take(rows).shape[2:] != lengths:
        return IN_PIECES
    weights, values, _ = roles
    return ONE_PATTERN if weights.take(rows).shape[1] % values.take(rows).shape[1] else ""


def _common_modules(first: Sequence[_ModuleCall], second: Sequence[_ModuleCall]) -> list[_ModuleCall]:
    """The module calls that enclose both."""
    return [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]


@contextmanager
def following(
    model: nn.Module, edits: Edits | None = None, pieces: Sequence[WindowedLayer] = (), calls: Calls | None = None
) -> Iterator[_MatmulTracer]:
    """Forward passes inside are recorded, edited and counted; hooks and mode are removed in the end."""
    follower = _MatmulTracer(model, edits or NOTHING, pieces, Calls() if calls is None else calls)
    with RECORDING, ExitStack() as stack:
        stack.enter_context(traceable_forward())
        for handle in follower.watch():
            stack.callback(handle.remove)
        stack.enter_context(follower)
        yield follower


@contextmanager
def record_products(
    model: nn.Module, edits: Edits = NOTHING, /, *, pieces: Sequence[WindowedLayer] = (), calls: Calls | None = None
) -> Iterator[list[Call]]:
    """The product hook: q and k are read at the product that makes the scores, v and the weights at the next.

    Yields the calls of all forward passes inside, in their graph. Scores with several terms are read
    and edited at the first, that of content with content. To replace q, k and v each forward pass is run twice.
    Windowed attention in `pieces` is read by its derivatives.
    """
    with following(model, edits, pieces, calls) as follower:
        yield follower.calls
