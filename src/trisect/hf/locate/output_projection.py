"""Locate the output projection W_O of an attention call by the values that enter it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.linalg import vector_norm

from trisect.core.errors import reraise_out_of_memory
from trisect.core.subject import ModelInputs
from trisect.core.trace import Origin
from trisect.hf.hooks.calls import (
    Arguments,
    Call,
    CallHook,
    Calls,
    Edits,
    ModelOutput,
    NamedArguments,
    gradients_of,
    outline,
    tensors_in,
    traceable_forward,
)
from trisect.hf.locate.affine import (
    DIRECTIONS,
    ForwardRecord,
    MapUse,
    NormUse,
    OutLaw,
    out_law,
    replace_outputs,
    rows_of,
    share_of,
)
from trisect.hf.verify.agreement import COARSE, DERIVATIVE_TOLERANCES

NO_GRADIENTS = "gradients off, which are needed to find its map"
OTHER_AMOUNT = "changes what follows by another amount than its gradient says, so that it is not simply added"
MAX_BUFFER = 1 << 12  # largest buffer, in numbers, that is restored after a pass
ROUNDING_FACTOR = 8  # factor on the rounding error of independent numbers
STEP = 2**-5  # relative size of a change: small, since it is compared with a derivative
HALVES = 4  # random halves of the positions that are changed
MAX_BATCHED_INPUT = 1 << 17  # largest input of a module, in numbers, of which all halves are changed in one batch
SEQUENCE, LARGE = 3, 1e6  # axes of a sequence of vectors; larger numbers are those of masks
_Use = tuple[str, int]  # the nth use of a module or of a parameter, by its name
# a module's output: its name, its floating-point tensors, and the number of uses of affine maps before
Left = tuple[str, tuple[Tensor, ...], int]


class _Leaving(NamedTuple):
    """The output of `owner`, the innermost module around attention and W_O, in its graph, or the sum that enters its final `norm`."""

    owner: str
    output: Tensor
    norm: _Use | None = None


class Output(NamedTuple):
    """W_O [H E D] and b_O [D] of one call, with their origin, the map's use, its law, and the output of the module around."""

    origin: Origin
    weight: Tensor | None = None
    bias: Tensor | None = None
    passed: MapUse | None = None
    law: OutLaw | None = None
    leaving: _Leaving | None = None


@contextlib.contextmanager
def leaving(model: nn.Module, note: Callable[[str, tuple[Tensor, ...]], object]) -> Iterator[None]:
    """Call `note` with name and floating-point outputs of every module with children, in passes inside, in the order of their ends."""

    def hook(name: str, out: Any) -> None:
        if outputs := tuple(t.clone() for t in tensors_in((out,)) if t.is_floating_point()):
            note(name, outputs)

    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            if list(module.children()):
                stack.callback(module.register_forward_hook(lambda _m, _a, out, name=name: hook(name, out)).remove)
        yield


def find_consumers(calls: Sequence[Call], record: ForwardRecord) -> tuple[tuple[MapUse, ...], ...]:
    """For every call the next affine maps that depend on its output, without another map in between."""
    entered: list[list[MapUse]] = [[] for _ in calls]
    for passed in record.passed:
        before = {i: raw for i, c in enumerate(calls) if (raw := c.raw) is not None and c.order < passed.calls}
        before = {i: raw for i, raw in before.items() if raw.requires_grad}
        # the gradient of an unweighted sum would vanish behind a norm
        for i, gradient in zip(before, gradients_of(passed.x, list(before.values())), strict=True):
            if gradient is not None and bool(gradient.any()):
                entered[i].append(passed)
    return tuple(tuple(maps) for maps in entered)


def find_output(
    call: Call,
    record: ForwardRecord,
    sources: Sequence[MapUse],
    consumers: Sequence[MapUse],
    left: Sequence[Left],
    allowed: float,
) -> Output:
    """Find the one affine map that a call's output enters unchanged; else an origin that says what lies between.

    `sources` are the maps that q, k and v come from, `consumers` those that the output enters. The residual compares
    Σ_h weights v W_O + b_O with the map's output, relative to its largest magnitude.
    """
    names = list(dict.fromkeys(p.name for p in consumers))
    if not names:
        later = next((p for p in record.passed if p.calls > call.order), None)
        words = "enters no affine map of this model"
        words = words if later is None or later.followed else f"goes on where the model switches {NO_GRADIENTS}"
        return Output(Origin("unknown", f"the output {words}"))
    if len(names) > 1:
        shown = f"{', '.join(names[:3])} and {len(names) - 3} more" if len(names) > 4 else " and ".join(names)
        words = f"the output enters {shown}, so that no one map is W_O"
        return Output(Origin("mixed", words), passed=consumers[0])
    if (uses := len({(p.name, p.nth) for p in consumers})) > 1:
        words = f"the output enters {names[0]} {uses} times, so that no one use of it is W_O"
        return Output(Origin("mixed", words), passed=consumers[0])
    passed = consumers[0]
    # the innermost module that holds both
    pairs = zip(call.module.split("."), passed.name.split("."), strict=False)
    owner = ".".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    index = next(i for i, p in enumerate(record.passed) if p is passed)
    outgoing = next((outgoing for name, outgoing, uses in left if name == owner and uses > index), ())
    alike = (t for t in outgoing if t.numel() == passed.leaf.numel() and _reaches(t, passed))
    outgoing = next(alike, outgoing[0] if outgoing else None)
    norm = None if outgoing is None else _norm_after(record, passed, outgoing, allowed)
    leaving = None
    if outgoing is not None:
        leaving = _Leaving(owner, outgoing) if norm is None else _Leaving(owner, norm.traced, (norm.name, norm.nth))
    columns = _columns(call.output.detach(), passed.x.detach())
    if columns is None:
        return Output(_between(call, record, passed, sources), passed=passed, leaving=leaving)
    out = _check_columns(call, passed, columns, allowed)
    if out.weight is None:
        return out
    if outgoing is not None and norm is None and _is_more_than_sum(outgoing, passed, allowed):
        words = f"the result of {passed.name} is changed before {owner or 'the model'} returns it"
        return Output(Origin("mixed", words), passed=passed, leaving=leaving)
    if outgoing is not None and (next_map := _next_map(record, passed, outgoing, owner)) is not None:
        words = f"the result of {passed.name} enters {next_map} before {owner} returns it, so that neither alone is W_O"
        return Output(Origin("mixed", words), passed=passed)
    leaf = passed.leaf.detach()
    same = outgoing is not None and outgoing.shape == leaf.shape and torch.equal(outgoing.detach(), leaf)
    entered = passed.x.detach().reshape(-1, passed.x.shape[-1])[:, columns.flatten()]
    time_first = not torch.equal(_flat(call.output.detach(), False), entered)
    return out._replace(
        law=out_law(passed.law, columns, owner if same and owner else None, time_first), leaving=leaving
    )


@torch.enable_grad()
def compare_with_gradients(
    model: nn.Module, inputs: ModelInputs, record: ForwardRecord, laws: Sequence[OutLaw | None]
) -> dict[int, float]:
    """Calls whose W_O changes the model by another amount than its gradients say, with the relative error; `laws` are the calls'.

    The outputs of all maps and norms are held fixed, so that only sums follow W_O up to the next call's. A small change is
    added to W_O's output, of another size at each position, and to the output of a norm of it. Inputs and outputs of modules
    then have to change by their derivatives; they do not if a gradient was cut off or replaced.
    """
    values = {(p.name, p.nth): p.leaf.detach() for p in record.passed} | {(n.name, n.nth): n.y for n in record.normed}
    uses = {(law.map.name, law.map.nth): order for order, law in enumerate(laws) if law is not None}
    if not uses:
        return {}
    places = {use: [use] for use in uses}
    for use, order in uses.items():
        places[use] += [(n.name, n.nth) for n in record.normed if n.calls > order and _same(n.x, values[use])]
    leaves = {place: values[place].clone().requires_grad_() for uses_behind in places.values() for place in uses_behind}
    before = _run_with_values(model, inputs, values | leaves, uses)
    added: dict[_Use, Tensor] = {}
    for use, segment in before.items():
        for place in places[use]:  # large enough to be seen where it goes, and smaller at some positions
            value, near = values[place], DERIVATIVE_TOLERANCES.get(values[place].dtype, COARSE)
            size = 10 * near * float(value.double().square().mean()) ** 0.5
            size += 4 * torch.finfo(value.dtype).eps / near * segment.size
            draw = torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel())).to(value)
            steps = 2.0 ** -(torch.arange(value.shape[:-1].numel(), device=value.device) % 3)
            added[place] = size * steps.view(*value.shape[:-1], 1).to(value) * draw
    after = _run_with_values(model, inputs, values | {place: values[place] + t for place, t in added.items()}, uses)
    shares: dict[int, float] = {}
    for use, segment in before.items():
        near, rounding = DERIVATIVE_TOLERANCES.get(values[use].dtype, COARSE), ROUNDING_FACTOR * segment.rounding
        change, size = _linear_change(segment.total, leaves, added)
        if float((after[use].total - segment.total - change).detach().norm()) <= near * size + rounding:
            continue
        # again for this use alone, since changes behind an earlier use also arrive here; and half way, for a second derivative
        alone_added = {place: added[place] for place in places[use]}
        half = {place: (values[place] + t / 2).requires_grad_() for place, t in alone_added.items()}
        between = _run_with_values(model, inputs, values | half, uses)
        changed = {place: values[place] + t for place, t in alone_added.items()}
        alone = _run_with_values(model, inputs, values | changed, uses)
        at_first, _ = _linear_change(segment.total, {place: leaves[place] for place in alone_added}, alone_added)
        change, size = _linear_change(between[use].total, half, alone_added)
        off = float((alone[use].total - segment.total - change).detach().norm())
        # if the derivative itself changes as much, values and derivatives do not contradict each other
        if off > near * size + rounding + float((change - at_first).norm()):
            shares[uses[use]] = off / max(size, off * near)
    return shares


def _linear_change(total: Tensor, leaves: Mapping[_Use, Tensor], added: Mapping[_Use, Tensor]) -> tuple[Tensor, float]:
    """The linear change of sums for changes added to leaves, and its size without cancellation."""
    change, size = torch.zeros_like(total.detach()), 0.0
    for i, each in enumerate(total if total.requires_grad else ()):
        grads = torch.autograd.grad(each, list(leaves.values()), retain_graph=True, allow_unused=True)
        for use, gradient in zip(leaves, grads, strict=True):
            if gradient is not None:
                part = gradient.double() * added[use].double()
                change[i] += part.sum().to(change.device)
                size = math.hypot(size, float(part.norm()))
    return change, size


@dataclass(eq=False)
class _Segment:
    """Activations from one use of W_O to the next: random sums of them, their size, and the rounding error of the sums."""

    total: Float[Tensor, " r"]
    size: float = 0.0
    rounding: float = 0.0


def _run_with_values(
    model: nn.Module, inputs: ModelInputs, values: Mapping[_Use, Tensor], uses: Container[_Use]
) -> dict[_Use, _Segment]:
    """Run a pass in which maps and norms return the given values; summarise activations of their width after each of `uses`."""
    segments: dict[_Use, _Segment] = {}
    count = itertools.count()

    def see(t: Tensor) -> None:
        use, segment = next(reversed(segments.items()))
        draw, width = torch.Generator().manual_seed(next(count)), values[use].shape[-1]
        # without gradients there is no derivative to compare with
        if t.shape[-1:] != (width,) or not torch.is_grad_enabled():
            return
        wide = t.reshape(-1, width).double()
        rows, columns = (torch.randn(n, DIRECTIONS, generator=draw).to(wide) for n in wide.shape)
        segment.total = segment.total + (wide @ columns * rows).sum(0).to(segment.total.device)
        length = float(wide.detach().norm())
        segment.size = max(segment.size, length / max(1, wide.numel()) ** 0.5)
        segment.rounding = math.hypot(segment.rounding, torch.finfo(t.dtype).eps * length)

    def met(name: str, nth: int, x: Tensor) -> None:
        if (name, nth) in uses:
            segments[name, nth] = _Segment(x.new_zeros(DIRECTIONS, dtype=torch.float64))
        elif segments:
            see(x)

    def left(_name: str, outputs: Sequence[Tensor]) -> None:
        for t in outputs if segments else ():
            see(t)

    with replace_outputs(model, values, met), leaving(model, left):
        _run_alike(model, inputs)
    return segments


def _run_alike(model: nn.Module, inputs: ModelInputs) -> None:
    """Run a pass with fixed random numbers, and restore small buffers afterwards."""
    # such as those of a quantiser's observer
    noted = [(b, b.clone()) for b in model.buffers() if b.numel() <= MAX_BUFFER]
    try:
        with traceable_forward(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # a model may draw which positions it looks at
            model(**inputs)
    finally:
        with torch.no_grad():
            for buffer, was in noted:
                if not torch.equal(buffer, was):
                    buffer.copy_(was)


def find_shares(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call], outs: Sequence[Output]
) -> dict[int, float]:
    """The share of a module's mixing of positions that its attention makes, by the order of calls; only shares below 1.

    Every module with attention runs twice more: with its inputs changed at a random half of the positions, and with its original
    inputs but the attention weights and values of that changed pass. If unchanged positions differ between the two, something
    other than attention has read the changed ones. Short inputs are repeated along the first axis, once for each half.
    """
    left = {order: out.leaving for order, out in enumerate(outs) if out.leaving is not None and out.leaving.owner}
    modules, base = dict(model.named_modules()), _Given()
    moves = {order: [0.0, 0.0] for order in left}

    def run(record: _Given, edits: Edits) -> _Given:
        with torch.no_grad(), contextlib.ExitStack() as stack:
            for name in {out.owner for out in left.values()}:
                before, after = functools.partial(record.enter, name), functools.partial(record.leave, name)
                stack.callback(modules[name].register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(modules[name].register_forward_hook(after).remove)
            for name in {out.norm[0] for out in left.values() if out.norm is not None}:
                meet = functools.partial(record.norm, name)
                stack.callback(modules[name].register_forward_pre_hook(meet).remove)
            # an edited pass may be rehearsed: what counts is the last
            ending = model.register_forward_hook(lambda *_: record.uses.clear(), always_call=True)
            stack.callback(ending.remove)
            stack.enter_context(hook(model, edits, calls=Calls(record.call)))
            _run_alike(model, _repeat_rows(inputs, record.copies))
        return record

    def measure(halves: Sequence[int]) -> None:
        moved = run(_Given(base, halves), Edits())
        repeat = run(_Given(base, halves, change=False), moved.edits())
        if len(halves) > 1 and not (moved.is_repeated() and repeat.is_repeated()):
            raise ValueError("The first axis is not that of rows.")
        for nth, half in enumerate(halves):
            records = base, moved.copy(nth), repeat.copy(nth)
            for order, size in moves.items():
                through, other = _moves(calls[order], outs[order], left[order], records, half)
                moves[order] = [math.hypot(size[0], through), math.hypot(size[1], other)]

    try:
        run(base, Edits())
        separate = [[half] for half in range(HALVES if left else 0)]
        if left and max((t.numel() for ts in base.entered.values() for t in ts), default=0) <= MAX_BATCHED_INPUT:
            try:
                measure(range(HALVES))
                separate = []
            except Exception as error:  # a model of one batch size
                reraise_out_of_memory(error)
        for halves in separate:
            measure(halves)
    except Exception as error:
        reraise_out_of_memory(error)
        return {}  # the model rejects changed inputs
    return {order: through / (through + other) for order, (through, other) in moves.items() if other}


def _moves(
    call: Call, out: Output, leaving: _Leaving, records: tuple[_Given, _Given, _Given], half: int
) -> tuple[float, float]:
    """How far unchanged positions of one call's module move through its attention, and through anything else.

    Both are 0 up to rounding, if the call is not alone in its module, or if the module's output is not found.
    """
    base, moved, _ = records
    inside = next((use for use in reversed(base.inside.get(call.order, ())) if use[0] == leaving.owner), None)
    is_alone = sum(inside in around for around in base.inside.values()) == 1
    key = inside if leaving.norm is None else leaving.norm
    triples = () if key is None else zip(*(record.left.get(key, ()) for record in records), strict=False)
    first = leaving.output.detach()
    same = (ts for ts in triples if {t.shape for t in ts} == {first.shape} and torch.equal(ts[0], first))
    three = next(same, None)
    # a quantised map's output at one position depends on its inputs at others
    if three is None or not is_alone or call.order not in moved.mixed or out.passed is None or out.passed.quantised:
        return 0.0, 0.0
    still = ~_half_of_positions(first.shape[:-1], half).to(first.device)
    was, now, through = (t.double().flatten(0, -2)[still] for t in three)
    attended, other = float((through - was).norm()), float((now - through).norm())
    rounding = ROUNDING_FACTOR * torch.finfo(first.dtype).eps * float(was.norm())
    return attended, other if other > DERIVATIVE_TOLERANCES.get(first.dtype, COARSE) * (
        attended + other
    ) + rounding else 0.0


def _half_of_positions(shape: torch.Size, half: int) -> Tensor:
    """A random half of the positions of that shape; half 2n + 1 is the complement of half 2n."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(half // 2)).flatten() < 0.5) ^ (half % 2 == 1)


def _repeat_rows(inputs: ModelInputs, copies: int) -> ModelInputs:
    """Inputs with every tensor of as many rows as the first repeated along its first axis."""
    rows = next((len(t) for t in inputs.values() if isinstance(t, Tensor) and t.dim()), 0)
    if copies == 1:
        return inputs
    repeat = lambda t: torch.cat([t] * copies) if isinstance(t, Tensor) and t.dim() and len(t) == rows else t  # noqa: E731
    return {n: repeat(t) for n, t in inputs.items()}


class _Given:
    """Inputs and outputs of modules (inputs of norms) in a pass; with a `base` its inputs again, as many copies of them as `halves`.

    With `change`, each copy is changed at its half of the positions.
    """

    def __init__(self, base: _Given | None = None, halves: Sequence[int] = (0,), change: bool = True) -> None:
        self.base, self.halves, self.change, self.copies = base, halves, change, len(halves)
        self.uses, self.around = defaultdict[str, Iterator[int]](itertools.count), list[_Use]()
        self.entered, self.left = dict[_Use, list[Tensor]](), dict[_Use, list[Tensor]]()
        self.inside, self.mixed = dict[int, tuple[_Use, ...]](), dict[int, tuple[Tensor, Tensor]]()

    def enter(
        self, name: str, _m: nn.Module, args: Arguments, kwargs: NamedArguments
    ) -> tuple[Arguments, NamedArguments]:
        """Enter a module; in a later pass with the first one's inputs, of which halves may be changed."""
        self.around.append((name, next(self.uses[name])))
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point()]
        if self.base is None:
            self.entered[self.around[-1]] = [t.detach().clone() for t in tensors]
            return args, kwargs
        shapes = [t.shape[:-1] for t in self.base.left.get(self.around[-1], ())]
        changed = dict[int, Tensor]()
        for t, before in zip(tensors, self.base.entered.get(self.around[-1], ()), strict=False):
            changed[id(t)] = before.clone()
            if self.copies > 1 and t.shape == before.shape:
                continue  # such as positions, which all rows share
            # an input with the layout of an output, or a sequence of vectors
            is_sequence = before.shape[:-1] in shapes or before.dim() == SEQUENCE
            is_changed = self.change and is_sequence and float(before.abs().max()) < LARGE
            changed[id(t)] = torch.cat([self._changed(before, half) if is_changed else before for half in self.halves])
        return tuple(changed.get(id(t), t) for t in args), {n: changed.get(id(t), t) for n, t in kwargs.items()}

    @staticmethod
    def _changed(before: Tensor, half: int) -> Tensor:
        draw = torch.randn(before.shape, generator=torch.Generator().manual_seed(before.numel())).to(before)
        places = _half_of_positions(before.shape[:-1], half).view(*before.shape[:-1], 1).to(before)
        return before + STEP * before.double().square().mean().sqrt().to(before) * places * draw

    def leave(self, _name: str, _m: nn.Module, _a: Arguments, out: ModelOutput) -> None:
        """Leave a module."""
        self.left[self.around.pop()] = [t.detach().clone() for t in tensors_in((out,)) if t.is_floating_point()]

    def norm(self, name: str, _m: nn.Module, args: Arguments) -> None:
        """Record the input of a norm."""
        self.left[name, next(self.uses[name])] = [args[0].detach().clone()]

    def call(self, call: Call) -> Call:
        """Record an attention call."""
        self.inside[call.order] = tuple(self.around)
        if call.weights is not None:
            self.mixed[call.order] = call.weights.detach().clone(), call.v.detach().clone()
        return outline(call)

    def is_repeated(self) -> bool:
        """Whether all outputs of modules have the rows of the first pass as often as there are copies."""
        if self.base is None or self.base.left.keys() != self.left.keys() or self.base.inside != self.inside:
            return False
        pairs = (zip(ts, self.left[use], strict=False) for use, ts in self.base.left.items())
        return all((self.copies * len(a), *a.shape[1:]) == tuple(b.shape) for pair in pairs for a, b in pair)

    def copy(self, nth: int) -> _Given:
        """The outputs of one copy of the inputs."""
        if self.copies == 1:
            return self
        part = _Given(self.base)
        part.left = {use: [t.chunk(self.copies)[nth] for t in ts] for use, ts in self.left.items()}
        part.mixed = self.mixed
        return part

    def edits(self) -> Edits:
        """Edits that repeat this pass's attention weights and values in another pass."""
        write = {n: lambda parts, v=v: parts._replace(v=v) for n, (_, v) in self.mixed.items()}
        return Edits(write, {n: weights for n, (weights, _) in self.mixed.items()})


def _next_map(record: ForwardRecord, passed: MapUse, output: Tensor, owner: str) -> str | None:
    """The map of the same module whose input is a use's unchanged output, if that reaches the module's output in no other way."""
    if not owner or _reaches(output, passed):
        return None
    later = (p for p in record.passed if p is not passed and p.calls == passed.calls and p.name.startswith(f"{owner}."))
    return next((p.name for p in later if _same(p.x.detach(), passed.leaf)), None)


def _is_more_than_sum(output: Tensor, passed: MapUse, allowed: float) -> bool:
    """Whether a tensor depends on a use's result in another way than by adding it."""
    mixed = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    (gradient,) = gradients_of(output, [passed.leaf])
    if gradient is None or gradient.numel() != mixed.numel():
        return False
    both = [gradient.reshape(mixed.shape)]
    if mixed.dim() == 3:  # time first on one side of it
        rows, length, width = mixed.shape
        both.append(gradient.reshape(length, rows, width).transpose(0, 1))
    off = min(float((g - mixed).abs().max()) for g in both)
    return off > allowed * float(mixed.abs().max())


def _norm_after(record: ForwardRecord, passed: MapUse, output: Tensor, allowed: float) -> NormUse | None:
    """The norm of a sum with the result that is the module's output, as in LN(x + attention(x)); None if there is none."""
    for norm in record.normed:
        if norm.calls != passed.calls or norm.traced.numel() != passed.leaf.numel() or not _same(norm.y, output):
            continue
        is_alone = _same(norm.x, passed.leaf.detach())
        if not is_alone and _reaches(norm.traced, passed) and not _is_more_than_sum(norm.traced, passed, allowed):
            return norm
    return None


def _same(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and torch.equal(a.flatten(), b.detach().flatten().to(a.device))


def _reaches(output: Tensor, passed: MapUse) -> bool:
    return gradients_of(output, [passed.leaf])[0] is not None


def _columns(output: Tensor, x: Tensor) -> Tensor | None:
    """The input unit of x that equals each (head, dimension) of output [B H T E], bit for bit; None if one is missing."""
    rows, heads, length, width = output.shape
    if x.shape[:-1].numel() != rows * length or x.dtype != output.dtype:
        return None
    for time_first in (False, True):
        flat = _flat(output, time_first)
        entered = x.reshape(rows * length, -1)
        if entered.shape == flat.shape and torch.equal(entered, flat):
            return torch.arange(heads * width).view(heads, width)
        place = {column.tobytes(): i for i, column in enumerate(_bytes(entered))}
        units = [place.get(column.tobytes(), -1) for column in _bytes(flat)]
        if min(units) >= 0 and len(set(units)) == len(units):
            return torch.tensor(units).view(heads, width)
    return None


def _flat(output: Tensor, time_first: bool) -> Tensor:
    rows, heads, length, width = output.shape
    return output.permute((2, 0, 1, 3) if time_first else (0, 2, 1, 3)).reshape(rows * length, heads * width)


def _bytes(flat: Tensor):  # noqa: ANN202 - NumPy rows
    return flat.T.contiguous().cpu().view(torch.uint8).numpy()


def _check_columns(call: Call, passed: MapUse, columns: Tensor, allowed: float) -> Output:
    affine, flat = passed.map(), columns.flatten()
    weight = rows_of(affine.weight.detach().T, columns)
    # Σ_h weights_h v_h W_O[h] as [B T D] if the hook has weights, else from the output
    mixed = call.output.detach()
    if call.weights is not None:
        v = call.v.detach()
        mixed = call.weights.detach() @ v.repeat_interleave(call.weights.shape[1] // v.shape[1], 1)
    product = mixed.to(weight).transpose(1, 2).flatten(2) @ weight.flatten(0, 1)
    x, y = passed.x.detach(), passed.leaf.detach().reshape(-1, weight.shape[-1])
    words = f"columns of {passed.name}"
    attention_units = set(flat.tolist())
    if others := [unit for unit in range(affine.weight.shape[1]) if unit not in attention_units]:
        other_part = x.reshape(-1, x.shape[-1])[:, others] @ affine.weight[:, others].detach().T
        order = _orders(call)[0 if x.shape[0] == len(call.output) or x.dim() == 2 else 1]
        product = product + other_part[order].view(product.shape)
        words += f", whose other {len(others)} inputs are not attention's"
    product = product if affine.bias is None else product + affine.bias.detach()
    rounding = None
    if passed.quantised is not None:
        lost, words = passed.rounding_loss(), f"{words}, of {passed.quantised.words}"
        rounding, y = share_of(lost, y), y + lost.reshape(y.shape)  # as it would be made of what enters, unrounded
    size = float(y.abs().max().clamp_min(torch.finfo(y.dtype).tiny))
    off = min(float((product.reshape(-1, y.shape[-1]) - y[order]).abs().max()) for order in _orders(call)) / size
    names = affine.parameter, affine.bias_parameter
    origin = Origin("rows", words, *names, columns, affine.transposed, 1.0, off, rounding)
    if not off <= max(allowed, passed.allowed):
        words = f"the output enters {passed.name}, but recomputed from it that is off by {off:.1e}"
        return Output(Origin("unknown", words, residual=off), passed=passed)
    return Output(origin, weight, affine.bias, passed)


def _orders(call: Call) -> tuple[Tensor, Tensor]:
    """Flat indices of (b, t) in batch-first and in time-first storage."""
    rows, _, length, _ = call.output.shape
    number = torch.arange(rows * length)
    return number, number.view(length, rows).T.flatten()


def _between(call: Call, record: ForwardRecord, passed: MapUse, sources: Sequence[MapUse]) -> Origin:
    """The origin for an output that is changed before it enters a map."""
    for norm in record.normed:
        if norm.calls == call.order + 1 and _columns(call.output.detach(), norm.x) is not None:
            return Origin("normed", f"the output is normed before it enters {passed.name}")
    used = {id(s.leaf) for s in sources}
    near = [p for p in record.passed if p.calls <= call.order + 1 and p.leaf is not passed.leaf]
    grads = gradients_of(passed.x, [p.leaf for p in near])
    reached = {p.name for p, g in zip(near, grads, strict=True) if g is not None and id(p.leaf) not in used}
    query = {p.name for p in sources if p.leaf.shape[-1] > call.q.shape[1] * call.q.shape[3]}
    if names := ", ".join(sorted(reached | query)):
        return Origin("gated", f"the output is multiplied by the result of {names} before it enters {passed.name}")
    return Origin("unknown", f"the output is changed before it enters {passed.name}")


DIGIT = 100  # whole numbers up to it are exact in half precision


def row_order_fault(call: Call, consumers: Sequence[MapUse]) -> str:
    """Why a call's rows are not in the order of positions, in words; empty if they are, or if that cannot be decided.

    The output of row t has to enter the next map at position t; if that map takes more positions, at the same offset
    as every other row's. Attention of queries that are selected by content (as Informer's) puts each row
    where its query came from, so that row t is not position t.
    """
    rows, length = call.output.shape[0], call.output.shape[2]
    number, entered = _numbers(call), list[Tensor]()  # [B T D], where texts and positions show
    for x in (passed.x for passed in consumers if passed.x.requires_grad):
        if x.dim() == 2 and len(x) % rows == 0:
            entered.append(x.unflatten(0, (rows, -1)))
        elif x.dim() == 3 and rows in x.shape[:2]:
            entered.append(x if x.shape[0] == rows else x.transpose(0, 1))
    x = next((x for x in entered if x.shape[1] >= length), None)
    if x is None or number is None or call.raw is None:
        return ""
    offsets: dict[int, tuple[int, int]] = {}
    for position in sorted({0, 1, length // 2, length - 1, x.shape[1] - 1} & set(range(x.shape[1]))):
        (gradient,) = gradients_of(x[0, position], [call.raw], positive=True)
        if gradient is None:
            continue
        places = number[gradient.ne(0)].unique() - 1
        heads = places // length
        if bool(places.lt(0).any()) or len(heads.unique()) < len(heads):
            return ""  # several rows of one head, or another text's
        offsets |= {position - t: (t, position) for t in (places % length).tolist()}
    wrong = [places for shift, places in offsets.items() if shift]
    if wrong and (x.shape[1] == length or len(offsets) > 1):
        t, position = wrong[0]
        return f"its rows are not in the order of positions: the result of row {t} goes to position {position}"
    return ""


def text_order_fault(parts: Mapping[str, Tensor], uses: Sequence[MapUse]) -> str:
    """Which of q, k and v of the first text depends on other texts, in words; empty if none does, or if that cannot be decided.

    With heads and texts in one axis, heads first, a recorded row is not one text's.
    """
    for name, t in parts.items():
        rows = t.shape[0]
        gradients = gradients_of(t[0], [use.leaf for use in uses], positive=True) if rows > 1 else ()
        for use, gradient in zip(uses, gradients, strict=False):
            texts: list[Tensor] = []  # the gradient with texts first, in each way in which they may lie in it
            if gradient is not None and gradient.dim() == 2 and len(gradient) % rows == 0:
                gradient = gradient.unflatten(0, (rows, -1))
                texts = [gradient, gradient.flatten(0, 1).unflatten(0, (-1, rows)).transpose(0, 1)]
            elif gradient is not None and gradient.dim() == 3:
                texts = [gradient.movedim(axis, 0) for axis in (0, 1) if gradient.shape[axis] == rows]
            if texts and all(bool(texts_gradient[1:].any()) for texts_gradient in texts):
                return f"{name} of one text depends on the results of {use.name} for others, as if heads came before texts in one axis"
    return ""


def _numbers(call: Call) -> Tensor | None:
    """For each number of a call's raw output a code of its head and position, from 1, in the first text, and 0 in others."""
    raw, output = call.raw, call.output
    if raw is None or not raw.requires_grad or not output.requires_grad or raw.numel() != output.numel():
        return None
    heads, length = output.shape[1:3]
    codes = torch.arange(1, heads * length + 1, device=output.device).view(heads, length, 1)
    codes_of_raw = torch.zeros(raw.shape, dtype=torch.long, device=raw.device)
    for place in (1, DIGIT, DIGIT**2):
        digits = torch.zeros_like(output)
        digits[0] = (codes // place % DIGIT).to(output)
        (gradient,) = torch.autograd.grad((output * digits).sum(), raw, retain_graph=True, allow_unused=True)
        if gradient is None:
            return None
        codes_of_raw += gradient.round().long() * place
    return codes_of_raw


class Selected(NamedTuple):
    """A plain selection: units of one use of a map, each times a factor, with `extra` added; as [H, E]."""

    source: MapUse
    units: Int[Tensor, "H E"]
    factors: Float[Tensor, "H E"]
    extra: Float[Tensor, "H E"] | None


DISPLACED = "made of other positions in head"
OTHER_AXIS = "it attends over {} instead of positions"


def find_placement(
    name: str, t: Tensor, chosen: Selected, passed: Sequence[MapUse], allowed: float
) -> tuple[str, bool, bool]:
    """Check at several positions that t [B H T E], which is the given selection at position 0, is it elsewhere, up to rotation.

    Returns the fault in words, or empty; whether positions rotate t; and whether the map's output is time first.
    """
    rows, length = t.shape[0], t.shape[2]
    # heads with units of their own: keys may be repeated for a group of queries
    heads = [set(units) for units in chosen.units.tolist()]
    first = [not units & set().union(*heads[:n]) for n, units in enumerate(heads)]
    fresh = torch.tensor(first, device=chosen.units.device)
    turned, layouts = False, {1, rows}  # how far apart two positions lie: batch first, or time first
    for position in sorted({0, min(1, length - 1), length // 2, length - 1}):
        place = f"at position {position} {name} "
        draw = torch.Generator().manual_seed(position)
        mixed = torch.randn(t[0, :, position].shape, generator=draw).to(t) * fresh[:, None].to(t)
        total, leaves = (t[0, :, position] * mixed).sum(), [p.leaf for p in passed]
        gradients = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
        reached = [p for p, g in zip(passed, gradients, strict=True) if g is not None and g.any()]
        if more := [p.name for p in reached if p is not chosen.source]:
            return f"{place}is also made of {' and '.join(dict.fromkeys(more))}", True, False
        gradient = gradients[[p is chosen.source for p in passed].index(True)]
        if gradient is None or not gradient.any():
            return f"{place}is not made of {chosen.source.name}", True, False
        flat = gradient.reshape(-1, gradient.shape[-1])
        hit = flat.any(1).nonzero().flatten().tolist()
        fits = {step for step in layouts if step * position == hit[0]}
        if len(hit) > 1 or not fits:
            step = 1 if gradient.dim() < 3 or gradient.shape[-2] >= length else max(layouts)
            listed = [str(r // step) for r in hit]
            last = f"{len(listed) - 3} more" if len(listed) > 4 else listed[-1]
            shown = f"{', '.join(listed[:3] if len(listed) > 4 else listed[:-1])} and {last}"
            words = f"computed from positions {shown}" if len(hit) > 1 else f"made of position {last}"
            for head in fresh.nonzero().flatten().tolist() if len(hit) > 1 and len(flat) == rows * length else ():
                (of_head,) = gradients_of(t[0, head, position], [chosen.source.leaf], positive=True)
                depends = [of_head is None or bool(of_head.reshape(flat.shape)[n * position].any()) for n in layouts]
                at = [] if of_head is None else of_head.reshape(flat.shape).any(1).nonzero().flatten().tolist()
                there = " and ".join(dict.fromkeys(str(r // step) for r in at))
                words = words if any(depends) else f"{DISPLACED} {head + 1}, namely {there},"
            return f"{place}is {words} of {chosen.source.name}", True, False
        layouts, value = fits, chosen.source.leaf.detach().reshape(flat.shape)[hit[0]]
        row = value.double(), flat[hit[0]].double()
        words, is_turned = _compare(place, t[0, :, position], mixed, row, chosen, fresh, allowed)
        if words and position:  # the first is compared with the map itself
            return words, True, False
        turned = turned or is_turned
    return "", turned, layouts == {rows} and rows > 1


def _compare(
    place: str, t: Tensor, mixed: Tensor, row: tuple[Tensor, Tensor], chosen: Selected, fresh: Tensor, allowed: float
) -> tuple[str, bool]:
    """The fault at one position, in words, and whether t is rotated there."""
    (source, units, factors, extra), (made_by, gradient) = chosen, row
    units = units.to(t.device)
    factors, mixed, t = factors.to(t.device, torch.float64), mixed.double(), t.detach().double()
    per_unit = (gradient[units] / factors)[fresh]
    size = vector_norm(mixed[fresh], dim=1)
    times = vector_norm(per_unit, dim=1) / size
    if bool(((times - 1).abs() > allowed).any()):
        furthest = float(times[(times - 1).abs().argmax()])
        return f"{place}is {furthest:.3g} times the result of {source.name}, though not at every position", True
    total, seen = gradient.square().sum(), gradient[units[fresh].flatten()].square().sum()
    if float(total - seen) > allowed * float(total):
        return f"{place}is also made of other units of {source.name}", True
    value = made_by[units] if extra is None else made_by[units] + extra.to(t) / factors
    expected = (gradient[units] * value)[fresh].sum(1)
    actual = (mixed * t)[fresh].sum(1)
    # rounding of a sum of products grows with its terms
    lengths = vector_norm(t[fresh], dim=1) + vector_norm((value * factors)[fresh], dim=1)
    limit = size * lengths + torch.finfo(torch.float32).tiny
    if bool(((expected - actual).abs() > allowed * limit).any()):
        return f"{place}is more than the result of {source.name}: something that depends on the position is added", True
    return "", bool(((per_unit - mixed[fresh]).abs().amax(1) > allowed * size).any())
