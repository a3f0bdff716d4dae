"""Check the laws of attention on every batch that is read: what was found on loading has to hold at every position.

The output of a map is compared with x Wᵀ + b along a few random directions g: y·g = x·(Wᵀg) + b·g. That costs two products
with thin matrices instead of one with W, and an error in any output unit shows. A sample of positions would miss an error
at a single word.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import Cache

from trisect.core.errors import ModelError
from trisect.core.subject import ModelInputs
from trisect.hf.hooks.calls import Call, tensors_in
from trisect.hf.locate.affine import (
    DIRECTIONS,
    TOLERANCE,
    CallLaws,
    ForwardLaw,
    MapLaw,
    OutLaw,
    PartLaw,
    Quantised,
    checksums_of,
    ends_of,
    quantisation_of,
    watch_uses,
)
from trisect.measure.norms import activation


class _Places(NamedTuple):
    """Positions of a batch: row and position of each, the length of a row (0: unknown), and the slice of flat positions."""

    row: Int[Tensor, " N"]
    position: Int[Tensor, " N"]
    length: int = 0
    span: slice = slice(0)

    def of(self, x: Tensor, rows: int, length: int, time_first: bool) -> Tensor:
        """x at those positions, [N units]; x is batch first or time first, and may have more positions."""
        if x.dim() == 3 and rows != length:
            time_first = tuple(x.shape[:2]) == (length, rows)
        flat = x.reshape(-1, x.shape[-1])
        if (rows == 1 or not time_first) and len(flat) == rows * length == rows * self.length and self.span.stop:
            return flat[self.span]
        index = self.position * rows + self.row if time_first else self.row * (len(flat) // rows) + self.position
        return flat[index.to(flat.device)]


class _Finding(NamedTuple):
    """The relative error of a law at each position of a sample, the tolerance, and the law in words."""

    off: Float[Tensor, " N"]
    allowed: float
    sample: _Places
    order: int
    words: str
    finite: bool = True


NORMED = 1e-3  # relative error of a norm's measured γ, β, ε
AT_ONCE = 1 << 19  # numbers that are checked at once: they fit a processor's cache
WEIGHTS = 1 << 24  # attention weights that are multiplied at once
ROUNDED_PRODUCTS = 5e-3  # tolerance of float32 if products may use TF32


class _Use(NamedTuple):
    """Input x and output y of a map, units last; x as it is multiplied (`rounded`), and the coarsest dtype in between."""

    x: Tensor
    y: Tensor
    rounded: Tensor
    kind: torch.dtype | None = None


@dataclass(eq=False)
class Checker:
    """Checks the calls and maps of one forward pass; `laws` are those of its calls, None for a call that is not read.

    `past` is the number of keys from a cache, `masks` [B T] say which positions of the inputs are real.
    """

    laws: Sequence[CallLaws | None]
    past: int = 0
    masks: Sequence[Tensor] = ()
    watched: set[tuple[str, int]] = field(default_factory=set)
    used: defaultdict[str, Iterator[int]] = field(default_factory=lambda: defaultdict(itertools.count))
    uses: dict[tuple[str, int], _Use] = field(default_factory=dict)
    findings: list[_Finding] = field(default_factory=list)
    # by the use of W_O: random projections of weights times v [B T r], to compare with its input; with order, shape and tolerance
    waiting: dict[tuple[str, int], tuple[int, tuple[int, ...], float, Tensor]] = field(default_factory=dict)
    last: dict[tuple[str, int], int] = field(default_factory=dict)
    leaving: dict[str, tuple[int, str, Tensor]] = field(default_factory=dict)
    checked: set[tuple[str, int]] = field(default_factory=set)
    forward: dict[tuple[str, int], tuple[int, MapLaw, ForwardLaw]] = field(default_factory=dict)
    hidden: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    entered: tuple[Tensor, int, Tensor] | None = None

    def __post_init__(self) -> None:
        for order, laws in enumerate(self.laws):
            if laws is not None:
                keys = {(part.map.name, part.map.nth) for part in laws.parts.values()}
                if laws.forward is not None:
                    self.forward |= {(m.name, m.nth): (order, m, laws.forward) for m in laws.forward.maps}
                self.watched |= keys | self.forward.keys()
                self.last |= dict.fromkeys(keys, order)
                self.watched |= set() if laws.out is None else {(laws.out.map.name, laws.out.map.nth)}

    def note(self, off: Tensor, size: Tensor, allowed: float, sample: _Places, order: int, words: str) -> None:
        """Record by how much a law is off at some positions, relative to `size`."""
        share = off / size.clamp_min(torch.finfo(torch.float32).tiny)
        finite = torch.isfinite(size)
        if bool(finite.all()):
            self.findings.append(_Finding(share.nan_to_num(torch.inf), allowed, sample, order, words))
            return
        # NaN is allowed at padding, and everywhere if padding cannot be determined
        padding = torch.full_like(sample.row, not sample.length, dtype=torch.bool)
        for mask in self.masks if sample.length else ():
            if mask.shape[1] == sample.length and mask.shape[0] > int(sample.row.max()):
                padding = padding | ~mask.to(padding.device)[sample.row, sample.position]
        lost = ~finite & ~padding.to(finite.device)
        share = torch.where(finite, share.nan_to_num(torch.inf), torch.where(lost, torch.inf, 0.0))
        self.findings.append(_Finding(share, allowed, sample, order, words, not bool(lost.any())))

    def fail(self, order: int, words: str) -> None:
        """Record a law that cannot hold at all."""
        none = torch.zeros(1, dtype=torch.long)
        self.findings.append(_Finding(torch.full((1,), torch.inf), 0.0, _Places(none, none), order, words))

    def meet(self, name: str, x: Tensor, y: Tensor, quantised: Quantised | None = None) -> None:
        """Record a use of a map."""
        key = name, next(self.used[name])
        if key in self.last:  # checked when attention is called: a model may overwrite either before
            # one copy for all maps that the same tensor enters unchanged; in inference mode changes are not counted
            if x.is_inference():
                self.entered = x, 0, x.clone()
            elif self.entered is None or self.entered[0] is not x or self.entered[1] != x._version:
                self.entered = x, x._version, x.clone()
            x, y = self.entered[2], y.clone()
        use = _Use(x, y, x) if quantised is None else _Use(x, y, quantised.multiplied_input(x), quantised.kind)
        if key in self.waiting:
            self._output(key, use)
        elif key in self.last:
            self.uses[key] = use
        if key in self.forward:  # maps of the feed-forward block, whatever their input's shape
            order, law, block = self.forward[key]
            self.look(law, use, order, 1, 0)
            self._block(key, use, order, block)

    def _block(self, key: tuple[str, int], use: _Use, order: int, law: ForwardLaw) -> None:
        """Compare the input of a feed-forward block's last map with the activation of its first maps' outputs."""
        if key != law.last:
            self.hidden[key] = use.y.clone()  # it may be overwritten
            return
        x = use.x.reshape(-1, use.x.shape[-1])
        parts_before = [(self.hidden.get(use), rows) for use, rows in filter(None, (law.operand, law.gate))]
        parts = [y.reshape(-1, y.shape[-1])[:, rows] for y, rows in parts_before if y is not None]
        self.hidden.clear()
        words = f"what enters {key[0]} is not what was found before it on loading"
        if len(parts) < len(parts_before) or any(part.shape != x.shape for part in parts):
            self.fail(order, words)
            return
        kind = torch.promote_types(x.dtype, torch.float32)
        for sample in _places(1, *x.shape):
            operand, *gate, entered = (t[sample.span].to(kind) for t in (*parts, x))
            product = activation(law.activation)(operand) * (gate[0] if gate else 1)
            size = product.norm(dim=1) + entered.norm(dim=1)
            size, where = size + size.nan_to_num(0.0, 0.0, 0.0).mean(), sample._replace(length=0)
            self.note((product - entered).norm(dim=1), size, _rounding(x, *parts), where, order, words)

    def left(self, owner: str, out: Any) -> None:
        """Compare a module's output with that of W_O inside it."""
        order, name, y = self.leaving.pop(owner, (0, "", None))
        outputs = [t for t in tensors_in((out,)) if t.is_floating_point()]
        if y is None or not outputs:
            return
        output = next((t for t in outputs if t.shape == y.shape), outputs[0])
        flat, words = [t.reshape(-1, t.shape[-1]) for t in (output, y)], f"{owner} does not give on what {name} makes"
        if flat[0].shape != flat[1].shape:
            self.fail(order, words)
            return
        for sample in _places(1, *flat[0].shape):
            here, before = (t[sample.span].float() for t in flat)
            size = before.norm(dim=1) + here.norm(dim=1)
            # flattened rows have no length by which padding could be looked up
            where = sample._replace(length=0)
            self.note((here - before).norm(dim=1), size, _rounding(output, y), where, order, words)

    def call(self, call: Call) -> None:
        """Check an attention call against the maps used before it."""
        laws = self.laws[call.order] if call.order < len(self.laws) else None
        if laws is None:
            return
        if call.fault:
            self.fail(call.order, call.fault)
            return
        for name, part in laws.parts.items():
            self._part(call, name, part)
        self._check_mixing(call, laws.out)
        self.uses = {key: use for key, use in self.uses.items() if self.last[key] > call.order}
        self.entered = None

    def _part(self, call: Call, name: str, law: PartLaw) -> None:
        t, key = {"q": call.q, "k": call.k, "v": call.v}[name], (law.map.name, law.map.nth)
        use = self.uses.get(key)
        if use is None and self.past and name != "q":
            return  # all of it comes from a cache, as the source's keys and values
        if use is None:
            self.fail(call.order, f"{name} is not made by {law.map.name}, as it was on loading")
            return
        rows, length = t.shape[0], t.shape[2]
        if self.past and name != "q":  # cached keys and values were made in another pass
            expected = len(use.y.reshape(-1, use.y.shape[-1])) // rows
            if expected + self.past != length:
                return
            t, length = t[:, :, self.past :], expected
        if len(use.y.reshape(-1, use.y.shape[-1])) < rows * length or t.shape[1] != len(law.units):
            words = f"{name} is of another shape than what {law.map.name} makes, unlike on loading"
            self.fail(call.order, words)
            return
        if key not in self.checked:
            self.checked.add(key)
            self.look(law.map, use, call.order, rows, length, law.time_first)
        kind, words = law.map.images.dtype, f"{name} is not what {law.map.name} makes, as it was on loading"
        words = f"{name} is more than what {law.map.name} makes, turned by its position" if law.turned else words
        parts, units, first = t.transpose(1, 2).flatten(0, 1), law.units.flatten(), int(law.units[0, 0])
        is_span = torch.equal(units, torch.arange(first, first + len(units), device=units.device))
        for sample in _places(rows, length, len(units)):
            y = sample.of(use.y, rows, length, law.time_first).to(kind)
            span = y[:, first : first + len(units)].unflatten(1, law.units.shape) if is_span else None  # a view
            expected = y[:, law.units.to(y.device)] if span is None else span
            expected = (expected if law.norm is None else law.norm(expected)) * law.factors.to(y.device, kind)
            expected = expected if law.extra is None else expected + law.extra.to(expected)
            actual = parts[sample.span].to(expected)
            a, b = (a.norm(dim=2) if law.turned else a for a in (expected, actual))
            size = expected.norm(dim=(1, 2)) + actual.norm(dim=(1, 2))
            # at padding there may be only a small bias
            size = size + size.nan_to_num(0.0, 0.0, 0.0).mean()
            off = (a - b).flatten(1).norm(dim=1)
            allowed = _rounding(t, use.y)
            allowed = allowed if law.norm is None else max(allowed, NORMED)
            self.note(off, size, allowed, sample, call.order, words)

    def look(self, law: MapLaw, use: _Use, order: int, rows: int, length: int, time_first: bool = False) -> None:
        """Compare a map's output with its law; a length of 0 says that rows are not positions of a text."""
        words = f"what {law.name} makes is not x Wᵀ + b of what was found in it on loading"
        for sample in _places(rows, length or len(use.y.reshape(-1, use.y.shape[-1])), use.y.shape[-1]):
            x = sample.of(use.rounded, rows, sample.length, time_first)
            y, kind = sample.of(use.y, rows, sample.length, time_first), law.images.dtype
            allowed, x, y = _rounding(x, y, kind=use.kind), x.to(kind), y.to(kind)
            expected, actual = _project(x, law.images) + law.shift.to(x.device), _project(y, law.directions)
            size = y.norm(dim=1) + x.norm(dim=1) * law.size + law.shift.norm().to(y.device) / DIRECTIONS
            off = (expected - actual).norm(dim=1) / DIRECTIONS**0.5
            self.note(off, size, allowed, sample if length else sample._replace(length=0), order, words)

    def _check_mixing(self, call: Call, law: OutLaw | None) -> None:
        """Compare weights times v with the output now, and with the input of W_O when that is used."""
        assert call.weights is not None
        rows, heads, length, width = call.output.shape
        kind = torch.float64 if call.v.dtype == torch.float64 else torch.float32
        if law is None or law.heads.shape[:2] != (heads, width):
            draw = torch.Generator().manual_seed(call.order)
            looks = torch.randn(heads, width, DIRECTIONS, generator=draw, dtype=kind).to(call.v.device)
        else:
            looks = law.heads.to(call.v.device, kind)
        group, allowed = heads // call.v.shape[1], _rounding(call.v, call.weights)
        v = (looks.unflatten(0, (-1, group)).mT @ call.v.to(kind).unsqueeze(2).mT).flatten(1, 2)  # [B H r S]
        mixed: list[Tensor] = []
        for part in torch.arange(length).split(max(1, WEIGHTS // max(1, call.weights[:, :, 0].numel()))):
            span = slice(int(part[0]), int(part[-1]) + 1)
            weights, output = (t[:, :, span].to(kind) for t in (call.weights, call.output))
            expected = (v @ weights.mT).sum(1).mT  # a quarter of the time of weights @ v.mT
            actual = _project(output.transpose(1, 2).flatten(2), looks.flatten(0, 1))
            size = torch.einsum("bht,h->bt", output.norm(dim=3), looks.norm(dim=(1, 2)) / width**0.5)
            sample = _Places(torch.arange(rows).repeat_interleave(len(part)), part.repeat(rows), length)
            off, words = (expected - actual).norm(dim=2).flatten(), "weights times v are not the output"
            self.note(off, size.flatten(), allowed, sample, call.order, words)
            mixed.append(expected)
        if law is not None:
            expected = torch.cat(mixed, 1) if mixed else call.output.new_zeros(rows, 0, DIRECTIONS, dtype=kind)
            self.waiting[law.map.name, law.map.nth] = call.order, tuple(call.output.shape), allowed, expected

    def _output(self, key: tuple[str, int], use: _Use) -> None:
        order, (rows, _, length, _), allowed, mixed = self.waiting.pop(key)
        laws = self.laws[order]
        law = None if laws is None else laws.out
        assert law is not None
        length = min(length, len(use.x.reshape(-1, use.x.shape[-1])) // rows)  # attention alone may be padded
        if use.x.shape[-1] != len(law.images):
            self.fail(order, f"what enters {key[0]} is of another width than on loading")
            return
        words = f"weights times v are not what enters {key[0]}"
        for sample in _places(rows, length, use.x.shape[-1]):
            x = sample.of(use.x, rows, length, law.time_first).to(law.images.dtype)
            actual = _project(x, law.images)
            expected = mixed[sample.row.to(x.device), sample.position.to(x.device)].to(actual)
            off = (expected - actual).norm(dim=1) / DIRECTIONS**0.5
            limit = max(allowed, _rounding(use.x))
            self.note(off, x.norm(dim=1) * law.map.size, limit, sample, order, words)
        self.look(law.map, use, order, rows, length, law.time_first)
        if law.owner:
            self.leaving[law.owner] = order, key[0], use.y.clone()  # it may be changed in place before it leaves

    def judge(self, name: str, addresses: Sequence[object]) -> None:
        """Raise ModelError for the first law that does not hold, with its layer and where in the batch."""
        for (map_name, _), (order, *_) in self.waiting.items():
            self.fail(order, f"the output does not enter {map_name}, as it did on loading")
        for finding in sorted(self.findings, key=lambda f: f.order):
            if not finding.off.numel() or float(finding.off.max()) <= finding.allowed:
                continue
            worst, layer = int(finding.off.argmax()), str(addresses[finding.order])
            off, layer = float(finding.off[worst]), f"{layer[0].upper()}{layer[1:]}"
            place = f"position {int(finding.sample.position[worst])} of row {int(finding.sample.row[worst])}"
            if not finding.finite:
                reason = f"In this read there is NaN or infinity at {place}, which is not padding."
                todo = "Read it in a wider precision, as with dtype='float32', or check its weights and inputs."
                raise ModelError(f"{layer} of {name} gives NaN or infinity.", reason, todo)
            size = f" (relative error {off:.1e} at {place}, tolerance {finding.allowed:.0e})"
            size = size if off < torch.inf else ""
            todo = "Load the model again as it is now, with an example of such inputs: load(model, inputs=...)."
            problem = f"{layer} of {name} does not compute what was found on loading."
            raise ModelError(problem, f"In this read {finding.words}{size}.", todo)


def _project(x: Float[Tensor, "... in"], directions: Float[Tensor, "in r"]) -> Float[Tensor, "... r"]:
    """x times a few directions, which are multiplied as rows: a third of the time."""
    return F.linear(x, directions.T.contiguous().to(x.device))


def _places(rows: int, length: int, width: int) -> Iterator[_Places]:
    """Yield all positions of a batch in blocks, each with so many numbers."""
    for index in torch.arange(rows * length).split(max(1, AT_ONCE // width)) if rows * length else ():
        span = slice(int(index[0]), int(index[-1]) + 1)
        yield _Places(index // length, index % length, length, span)


def _rounding(*tensors: Tensor, kind: torch.dtype | None = None) -> float:
    """Relative tolerance for operations on these tensors, with dtype `kind` in between."""
    kinds = [t.dtype for t in tensors] + ([] if kind is None else [kind])
    limit = max(TOLERANCE.get(kind, TOLERANCE[torch.float32]) for kind in kinds)
    coarse = torch.get_float32_matmul_precision() != "highest" and any(t.is_cuda or limit == 1e-4 for t in tensors)
    return max(limit, ROUNDED_PRODUCTS) if coarse else limit


@contextlib.contextmanager
def checking(
    model: nn.Module, name: str, laws: Sequence[CallLaws | None], addresses: Sequence[object], inputs: ModelInputs
) -> Iterator[Checker]:
    """Check the laws in one forward pass over `inputs` inside; raises ModelError at its end if one does not hold."""
    past = max((int(c.get_seq_length()) for c in inputs.values() if isinstance(c, Cache)), default=0)
    masks = (t for name, t in inputs.items() if "mask" in name and isinstance(t, Tensor))
    checker = Checker(laws, past, tuple(t.bool() for t in masks if t.dim() == 2))
    names = {key[0] for key in checker.watched}
    modules = dict(model.named_modules()) if names else {}
    owners = {law.out.owner for law in laws if law is not None and law.out is not None and law.out.owner}
    quantised = {n: quantisation_of(modules[n]) for n in names & modules.keys()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(watch_uses(model, names, lambda n, x, y: checker.meet(n, x, y, quantised.get(n))))
        for owner in owners & modules.keys():
            hook = lambda _m, _a, out, owner=owner: checker.left(owner, out)  # noqa: E731
            stack.callback(modules[owner].register_forward_hook(hook).remove)
        yield checker
    checker.judge(name, addresses)


@torch.no_grad()
def check_maps(model: nn.Module, name: str, laws: Sequence[CallLaws | None], addresses: Sequence[object]) -> None:
    """Check every located map with a few random vectors, and bare parameters by their checksums.

    Raises ModelError if one has changed since loading.
    """
    checker, modules = Checker(laws), dict(model.named_modules())
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    for order, call_laws in enumerate(laws):
        if call_laws is None:
            continue
        for bare, mark in call_laws.bare.items():
            now, expected = checksums_of(model, [bare]).get(bare), mark.to(torch.float64)
            off = torch.inf if now is None else float((now - expected).norm() / expected.norm().clamp_min(1e-30))
            if not off <= TOLERANCE[torch.float64]:
                checker.fail(order, f"{bare} is not what it was on loading")
        maps = [part.map for part in call_laws.parts.values()]
        for law in maps if call_laws.out is None else [*maps, call_laws.out.map]:
            module = modules.get(law.name)
            if module is None or (law.name, law.nth) in checker.checked:
                continue
            checker.checked.add((law.name, law.nth))
            draw = torch.Generator().manual_seed(order)
            x = torch.randn(1, 4, len(law.images), generator=draw).to(law.images.device, kind)
            met: list[tuple[Tensor, Tensor] | None] = []  # the model's own hooks may change the input
            note = lambda m, a, k, out, met=met: met.append(ends_of(m, a, k, out))  # noqa: E731
            with module.register_forward_hook(note, with_kwargs=True):
                module(x.transpose(1, 2) if isinstance(module, nn.Conv1d) else x)
            assert met[0] is not None
            x, y = met[0]
            quantised = quantisation_of(module)
            rounded, kind_between = (x, None) if quantised is None else (quantised.multiplied_input(x), quantised.kind)
            use = _Use(x[0], y[0], rounded[0], kind_between)
            checker.look(law, use, order, 1, 0)
    checker.judge(name, addresses)
