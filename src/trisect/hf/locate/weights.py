"""W_Q, W_K, W_V and W_O of every attention call of a Hugging Face model, found by gradient tracing and checked by a residual.

Gradient tracing ("dye tracing": what goes in is marked, and where it comes out is looked at): every affine map's output
is cut from its graph and becomes a leaf; the gradient of q (or k, v) at position 0, where rotary positions turn nothing,
then says which output of which map each of its dimensions is, and times what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trisect.core.subject import ModelInputs
from trisect.core.trace import Address, NormedMap, Origin, Projections
from trisect.hf.hooks.calls import Call, CallHook, Calls, Edits, copied
from trisect.hf.locate.affine import (
    TOLERANCE,
    Affine,
    CallLaws,
    MapLaw,
    Normed,
    PartLaw,
    Passed,
    PassRecord,
    cut,
    map_law,
    marks_of,
    rows_of,
    share_of,
)
from trisect.hf.locate.blocks import Around, find_around, find_forward, find_normed
from trisect.hf.locate.output_projection import (
    OTHERWISE,
    UNFOLLOWED,
    Left,
    Selected,
    compare_with_gradients,
    find_consumers,
    find_output,
    find_placement,
    leaving,
    misplaced,
    mixed_texts,
)

# codes are read back from a ratio of two gradients, so that they must be few in half precision
DIGITS = {torch.float64: 1 << 14, torch.float32: 1 << 12, torch.bfloat16: 16, torch.float16: 64}


@dataclass(frozen=True, eq=False)
class CallWeights:
    """What is known of one attention call: its projections, the norm and residual around it, and whether it satisfies its laws.

    `order` says what is wrong with the order of its rows; empty where nothing is.
    """

    module: str
    projections: Projections
    around: Around | None = None
    valid: bool = True
    laws: CallLaws | None = None
    order: str = ""


class MapUse(NamedTuple):
    """One use of an affine map that feeds q, k or v, and what of it: a plain selection, or null for anything else."""

    passed: Passed
    units: Int[Tensor, "H E"] | None
    factors: Float[Tensor, "H E"] | None
    gradient: Tensor


class TracedPart(NamedTuple):
    """q, k, v or the output's map of one call: its origin and its weights per head."""

    origin: Origin
    weight: Float[Tensor, "H D E"] | None = None
    bias: Float[Tensor, "H E"] | None = None
    passed: tuple[Passed, ...] = ()
    law: PartLaw | None = None
    normed: NormedMap | None = None
    map: MapLaw | None = None


def find_weights(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, addresses: Sequence[Address]
) -> tuple[CallWeights, ...]:
    """The projections of every attention call of a forward pass of `inputs`, in the order of calls.

    What is not a plain selection of an affine map's outputs has no weights, and its origin says what it is.
    """
    left: list[Left] = []
    with (
        torch.enable_grad(),
        hook(model, Edits(), calls=Calls(copied)) as calls,
        cut(model, calls) as record,
        leaving(model, lambda name, made: left.append(Left(name, made, len(record.passed)))),
    ):
        model(**inputs)
    consumers = find_consumers(calls, record)
    found = [
        _one(model, call, record, address, own, left)
        for call, address, own in zip(calls, addresses, consumers, strict=True)
    ]
    outs = [None if one.laws is None else one.laws.out for one in found]
    for order, off in compare_with_gradients(model, inputs, record, outs).items():
        found[order] = _without_output(found[order], off)
    return tuple(found)


def _without_output(one: CallWeights, off: float) -> CallWeights:
    """The same without W_O, and without the sum that it would be in: values do not follow where gradients say that it goes."""
    assert one.laws is not None
    assert one.laws.out is not None
    words = f"what {one.laws.out.map.name} makes of the output {OTHERWISE} (off by a share of {off:.1e})"
    projections = replace(
        one.projections, origins={**one.projections.origins, "o": Origin("mixed", words)}, w_o=None, b_o=None
    )
    return replace(one, projections=projections, around=None, laws=one.laws._replace(out=None, forward=()))


def _one(
    model: nn.Module,
    call: Call,
    record: PassRecord,
    address: Address,
    consumers: Sequence[Passed],
    left: Sequence[Left],
) -> CallWeights:
    before = [p for p in record.passed if p.calls <= call.order]
    norms = [n for n in record.normed if n.calls <= call.order]
    given = zip("qkv", (call.q, call.k, call.v), strict=True)
    parts = {n: _trace(model, call.module, n, t, before, norms) for n, t in given}
    sources = [p for part in parts.values() for p in part.passed]
    out = find_output(call, record, sources, consumers, left, tolerance(call.v))
    origins = {n: part.origin for n, part in parts.items()} | {"o": out.origin}
    weights: dict[str, Tensor | None] = {f"w_{n}": part.weight for n, part in parts.items()}
    weights |= {f"b_{n}": part.bias for n, part in parts.items()} | {"w_o": out.weight, "b_o": out.bias}
    detached = {n: None if t is None else _kept(model, t.detach()) for n, t in weights.items()}
    around = forward = None
    if out.passed is not None:
        around, forward = find_around(call, record, sources, out.passed, tolerance(call.v)), None
        if around is not None:
            forward = find_forward(call.order, around.kind, record, out.passed, tolerance(call.v))
            around = around._replace(forward=None if forward is None else forward[0])
    maps = {n: part.map for n, part in parts.items() if part.map is not None}
    own = {n: part.law for n, part in parts.items() if part.law is not None}
    used = [*(law.map.name for law in own.values()), *(m.name for m in maps.values())]
    behind = () if forward is None else tuple(map_law(p.name, p.nth, p.map()) for p in forward[1])
    used += [law.name for law in behind] + ([] if out.law is None else [out.law.map.name])
    laws = CallLaws(own, out.law, maps, marks_of(model, used), behind)
    normed = {n: part.normed for n, part in parts.items() if part.normed is not None}
    order = mixed_texts({"q": call.q, "k": call.k, "v": call.v}, sources)
    order = order or ("" if out.origin.how == "rows" else misplaced(call, consumers))
    return CallWeights(call.module, Projections(address, origins, **detached, normed=normed), around, True, laws, order)


def _kept(model: nn.Module, t: Tensor) -> Tensor:
    """Weights as they lie in the model, which takes no memory; those that are no part of its parameters on the CPU."""
    if t.device.type == "cpu":
        return t
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return t if t.untyped_storage().data_ptr() in own else t.cpu()


def tolerance(t: Tensor, by: Passed | None = None) -> float:
    """What share of the largest value is rounding, for sums of that tensor's precision, or of the map's that made it."""
    return max(TOLERANCE[t.dtype], 0.0 if by is None else by.allowed)


def _trace(
    model: nn.Module, module: str, name: str, t: Tensor, passed: Sequence[Passed], norms: Sequence[Normed]
) -> TracedPart:
    """One of q, k, v [B H T E] back to the affine maps that it is made by."""
    sources = _reached_maps(t, passed)
    if not sources:
        found = "is not made by an affine map of this model"
        found = found if not passed or passed[-1].followed else f"is made where the model switches {UNFOLLOWED}"
        return TracedPart(Origin("unknown", f"{name} {found}"))
    uses = tuple(s.passed for s in sources)
    names = " and ".join(dict.fromkeys(p.name for p in uses))
    if len(sources) > 1:
        return TracedPart(Origin("mixed", f"{name} is put together from {names}"), passed=uses)
    source = sources[0]
    if source.units is not None and source.factors is not None:
        return _selected(model, module, name, t, source, passed)
    use = source.passed
    found = find_normed(name, t, use, source.gradient, norms, tolerance(t))
    law = None if found.map is None else map_law(use.name, use.nth, use.map())
    return TracedPart(found.origin, passed=uses, normed=found.map, map=law)


def _reached_maps(t: Tensor, passed: Sequence[Passed]) -> list[MapUse]:
    """The uses of affine maps that feed t[0, :, 0, :]."""
    if not t.requires_grad or not passed:
        return []
    first, leaves = t[0, :, 0, :], [p.leaf for p in passed]
    draw = torch.Generator().manual_seed(0)
    mixed = (1 + torch.rand(first.shape, generator=draw)).to(first)  # no two cancel
    reached = torch.autograd.grad((first * mixed).sum(), leaves, retain_graph=True, allow_unused=True)
    found = []
    for use, gradient in zip(passed, reached, strict=True):
        if gradient is not None and bool(gradient.any()):
            units, factors = _selection(first, use.leaf)
            found.append(MapUse(use, units, factors, gradient))
    return found


def _selection(first: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Which unit of a leaf each of first [H, E] is, and times what; null where one is not one unit alone.

    All heads are traced at once; heads that share units are traced one by one.
    """
    found = _codes(first, leaf)
    if found is None:
        heads = [_codes(row[None], leaf) for row in first]
        good = [h for h in heads if h is not None]
        if len(good) < len(heads):
            return None, None
        found = torch.cat([h[0] for h in good]), torch.cat([h[1] for h in good])
    return found


def _codes(first: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor] | None:
    count, base = first.numel(), DIGITS[first.dtype]
    number = torch.arange(count, device=first.device).view(first.shape)
    digits, rest = [], count - 1
    while rest or not digits:
        digits.append(number // base ** len(digits) % base)
        rest //= base

    def gradient(code: Tensor) -> Tensor:
        (made,) = torch.autograd.grad((first * code.to(first.dtype)).sum(), leaf, retain_graph=True)
        return made.reshape(-1, made.shape[-1]).double()

    plain = gradient(torch.ones_like(number))
    rows = plain.any(1).nonzero().flatten()
    if len(rows) != 1:
        return None
    factor = plain[rows[0]]
    units = factor.nonzero().flatten()
    if len(units) != count:
        return None
    target = torch.zeros(count, dtype=torch.long, device=first.device)
    for place, digit in enumerate(digits):
        ratio = gradient(digit + 1)[rows[0], units] / factor[units] - 1
        if not bool(((ratio - ratio.round()).abs() < 0.2).all()):
            return None
        target += ratio.round().long() * base**place
    if not bool((target.sort().values == number.flatten()).all()):
        return None
    order = torch.empty_like(target)
    order[target] = units
    return order.view(first.shape).cpu(), factor[order].view(first.shape).cpu()


def _selected(
    model: nn.Module, module: str, name: str, t: Tensor, source: MapUse, before: Sequence[Passed]
) -> TracedPart:
    units, factors = source.units, source.factors
    assert units is not None
    assert factors is not None
    passed, affine = source.passed, source.passed.map()
    scale = float(factors.mean())
    even = bool(((factors - scale).abs() <= 1e-3 * abs(scale)).all())
    # keys and values may be recomputed everywhere, unless positions turn them
    residual, extra = _recompute(t, passed, affine, units, factors, everywhere=name == "v")
    chosen = Selected(passed, units, factors, extra)
    placed = find_placement(name, t, chosen, before, max(tolerance(t), tolerance(passed.leaf)))
    allowed, rounding = tolerance(t, passed), None
    if placed.words and (residual <= allowed or placed.words.startswith("at position 0 ")):
        return TracedPart(Origin("mixed", placed.words, residual=residual), passed=(passed,))
    weight, bias = rows_of(affine.weight, units), None if affine.bias is None else affine.bias[units]
    weight, factor = weight.transpose(1, 2), factors.to(weight)
    if not even:
        weight, bias, scale = weight * factor[:, None], None if bias is None else bias * factor, 1.0
    bias_name = affine.bias_parameter
    if extra is not None:
        extra = extra.to(weight) / (scale if even else 1.0)
        bias = extra if bias is None else bias + extra
        bias_name = _named(model, module, extra)
    fused = "rows of" if affine.weight.shape[0] == units.unique().numel() else "some rows of"
    kind = f"{fused} {passed.name}" + ("" if extra is None else ", with a bias of its own")
    kind += "" if even else ", each dimension times a factor of its own"
    if passed.quantised is not None:
        kind += f", of {passed.quantised.words}"
        rounding = share_of(passed.rounded_off()[..., units.flatten()], passed.leaf[..., units.flatten()])
    origin = Origin("rows", kind, affine.parameter, bias_name, units, affine.transposed, scale, residual, rounding)
    if residual > allowed:
        words = f"{name} looks like rows of {passed.name}, but recomputed from them it is off by {residual:.1e}"
        return TracedPart(replace(origin, how="unknown", words=words), passed=(passed,))
    seen = map_law(passed.name, passed.nth, affine)
    law = PartLaw(
        seen, units, factors, None if chosen.extra is None else chosen.extra.detach(), placed.turned, placed.time_first
    )
    return TracedPart(origin, weight, bias, (passed,), law)


def _recompute(
    t: Tensor, passed: Passed, affine: Affine, units: Tensor, factors: Tensor, everywhere: bool
) -> tuple[float, Tensor | None]:
    """t again from x and the rows found: what share it is off by, and a bias that only t has."""
    allowed, (rows, heads, length, width) = tolerance(t, passed), t.shape
    x = passed.entered.detach()
    if x.dim() == 3 and x.shape[0] == rows and x.shape[1] > length:
        x = x[:, :length]  # the first of several streams
    y = x.to(affine.weight) @ affine.weight[units.flatten()].T.detach()
    y = (y if affine.bias is None else y + affine.bias[units.flatten()].detach()).to(t.dtype)
    best: tuple[float, Tensor | None] = float("inf"), None
    for shape, dims in (((rows, length), (0, 2, 1, 3)), ((length, rows), (1, 2, 0, 3))):
        if y.numel() != t.numel():
            continue
        made = y.reshape(*shape, heads, width).permute(dims) * factors.to(t)[None, :, None]
        here, there = (made, t.detach()) if everywhere else (made[:, :, :1], t.detach()[:, :, :1])
        size = float(there.abs().max().clamp_min(torch.finfo(t.dtype).tiny))
        off, extra = float((here - there).abs().max()) / size, None
        if off > allowed:
            mean = (there - here).mean((0, 2))
            shifted = float((here + mean[None, :, None] - there).abs().max()) / size
            off, extra = (shifted, mean) if shifted <= allowed else (off, None)
        best = min(best, (off, extra), key=lambda pair: pair[0])
    return best


def _named(model: nn.Module, module: str, values: Tensor) -> str | None:
    """The parameter of an attention module that holds just these values; null where none does."""
    for name, parameter in model.named_parameters():
        if name.startswith(module) and parameter.numel() == values.numel():
            flat = parameter.detach().flatten().to(values)
            if torch.allclose(flat, values.flatten(), rtol=1e-3, atol=1e-5):
                return name
    return None
