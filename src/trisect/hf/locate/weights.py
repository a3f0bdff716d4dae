"""Find W_Q, W_K, W_V and W_O of every attention call of a Hugging Face model by gradient tracing, checked by a residual.

Gradient tracing: the output of every affine map is detached and becomes a leaf; the gradient of q (or k, v) at position 0,
where rotary positions rotate nothing, then says which output of which map each of its dimensions is, and times which
factor.
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
from trisect.hf.hooks.calls import Call, CallHook, Calls, Edits, copy_call, gradients_of
from trisect.hf.locate.affine import (
    TOLERANCE,
    Affine,
    CallLaws,
    ForwardRecord,
    MapUse,
    NormUse,
    PartLaw,
    checksums_of,
    detach_after_maps,
    rows_of,
    share_of,
)
from trisect.hf.locate.blocks import Around, find_around, find_forward, find_norm_map
from trisect.hf.locate.output_projection import (
    DISPLACED,
    NO_GRADIENTS,
    OTHER_AMOUNT,
    OTHER_AXIS,
    Left,
    Output,
    Selected,
    compare_with_gradients,
    find_consumers,
    find_output,
    find_placement,
    find_shares,
    leaving,
    row_order_fault,
    text_order_fault,
)

# codes are read from a ratio of two gradients, which limits their number in half precision
DIGITS = {torch.float64: 1 << 14, torch.float32: 1 << 12, torch.bfloat16: 16, torch.float16: 64}


@dataclass(frozen=True, eq=False)
class CallWeights:
    """The projections of one attention call, the norm and residual around it, and whether it satisfies its laws.

    `order` says why its rows are not in the order of positions, empty if they are. `share` is the share of its module's
    mixing of positions that it makes.
    """

    module: str
    projections: Projections
    around: Around | None = None
    valid: bool = True
    laws: CallLaws | None = None
    order: str = ""
    share: float = 1.0


class _TracedPart(NamedTuple):
    """q, k or v of one call: its origin, its weights per head, and a fault in the order of its rows, if any."""

    origin: Origin
    weight: Float[Tensor, "H D E"] | None = None
    bias: Float[Tensor, "H E"] | None = None
    passed: tuple[MapUse, ...] = ()
    law: PartLaw | None = None
    normed: NormedMap | None = None
    order: str = ""


def find_weights(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, addresses: Sequence[Address]
) -> tuple[CallWeights, ...]:
    """Find the projections of every attention call of a forward pass of `inputs`, in the order of calls.

    A part that is not a selection of one affine map's outputs has no weights, and its origin says why.
    """
    left: list[Left] = []
    with (
        torch.enable_grad(),
        hook(model, Edits(), calls=Calls(copy_call)) as calls,
        detach_after_maps(model, calls) as record,
        leaving(model, lambda name, outputs: left.append((name, outputs, len(record.passed)))),
    ):
        model(**inputs)
    consumers = find_consumers(calls, record)
    outputs: list[Output] = []
    weights = [
        _find_call(model, call, record, address, maps, left, outputs)
        for call, address, maps in zip(calls, addresses, consumers, strict=True)
    ]
    shares = find_shares(model, inputs, hook, calls, outputs)
    weights = [replace(call, share=shares.get(order, 1.0)) for order, call in enumerate(weights)]
    outs = [None if call.laws is None else call.laws.out for call in weights]
    for order, off in compare_with_gradients(model, inputs, record, outs).items():
        call = weights[order]
        assert call.laws is not None
        assert call.laws.out is not None
        # no W_O, and no residual sum that contains it
        words = f"the result of {call.laws.out.map.name} {OTHER_AMOUNT} (relative error {off:.1e})"
        origins = {**call.projections.origins, "o": Origin("mixed", words)}
        projections = replace(call.projections, origins=origins, w_o=None, b_o=None)
        laws = call.laws._replace(out=None, forward=None)
        weights[order] = replace(call, projections=projections, around=None, laws=laws)
    return tuple(weights)


def _find_call(
    model: nn.Module,
    call: Call,
    record: ForwardRecord,
    address: Address,
    consumers: Sequence[MapUse],
    left: Sequence[Left],
    outputs: list[Output],
) -> CallWeights:
    before = [p for p in record.passed if p.calls <= call.order]
    norms = [n for n in record.normed if n.calls <= call.order]
    tensors, allowed = {"q": call.q, "k": call.k, "v": call.v}, tolerance(call.v)
    parts = {n: _trace(model, call.module, n, t, before, norms) for n, t in tensors.items()}
    sources = [p for part in parts.values() for p in part.passed]
    out = find_output(call, record, sources, consumers, left, allowed)
    outputs.append(out)
    origins = {n: part.origin for n, part in parts.items()} | {"o": out.origin}
    weights: dict[str, Tensor | None] = {f"w_{n}": part.weight for n, part in parts.items()}
    weights |= {f"b_{n}": part.bias for n, part in parts.items()} | {"w_o": out.weight, "b_o": out.bias}
    detached = {n: None if t is None else t.detach() for n, t in weights.items()}
    if any(t is not None and t.device.type != "cpu" for t in detached.values()):
        # views of the model's parameters stay, since they take no memory; copies are moved to the CPU
        stored = {p.untyped_storage().data_ptr() for p in model.parameters()}
        tensors_of = {n: t for n, t in detached.items() if t is not None}
        detached |= {n: t.cpu() for n, t in tensors_of.items() if t.untyped_storage().data_ptr() not in stored}
    around = None if out.passed is None else find_around(call, record, sources, out.passed, allowed)
    forward = None
    if out.passed is not None and around is not None:
        forward = find_forward(call.order, around.kind, record, out.passed, allowed)
        around = around._replace(forward=None if forward is None else forward[0])
    part_laws = {n: part.law for n, part in parts.items() if part.law is not None}
    behind = None if forward is None else forward[1]
    used = [law.map.name for law in part_laws.values()]
    used += [] if behind is None else [law.name for law in behind.maps]
    used += [] if out.law is None else [out.law.map.name]
    laws = CallLaws(part_laws, out.law, checksums_of(model, used), behind)
    normed = {n: part.normed for n, part in parts.items() if part.normed is not None}
    order = text_order_fault(tensors, sources) or ("" if out.origin.how == "rows" else row_order_fault(call, consumers))
    order = order or next((part.order for part in parts.values() if part.order), "")
    return CallWeights(call.module, Projections(address, origins, **detached, normed=normed), around, True, laws, order)


def tolerance(t: Tensor, use: MapUse | None = None) -> float:
    """Relative tolerance for sums in that tensor's dtype, or in the precision of the map use `use` that made it."""
    return max(TOLERANCE[t.dtype], 0.0 if use is None else use.allowed)


def _trace(
    model: nn.Module, module: str, name: str, t: Tensor, passed: Sequence[MapUse], norms: Sequence[NormUse]
) -> _TracedPart:
    """Trace one of q, k, v [B H T E] back to the affine maps that make it."""
    reached = gradients_of(t[0, :, 0, :], [p.leaf for p in passed], positive=True)
    sources = [(p, g) for p, g in zip(passed, reached, strict=True) if g is not None and bool(g.any())]
    if not sources:
        words = "is not made by an affine map of this model"
        words = words if not passed or passed[-1].followed else f"is made where the model switches {NO_GRADIENTS}"
        return _TracedPart(Origin("unknown", f"{name} {words}"))
    if len(sources) > 1:
        names = " and ".join(dict.fromkeys(p.name for p, _ in sources))
        words = f"{name} is computed from {names}"
        return _TracedPart(Origin("mixed", words), passed=tuple(p for p, _ in sources))
    use, gradient = sources[0]
    # all heads at once; heads that share units one by one
    selection, first = _codes(t[0, :, 0, :], use.leaf), t[0, :, 0, :]
    if selection is None:
        heads = [codes for row in first if (codes := _codes(row[None], use.leaf)) is not None]
        if len(heads) == len(first):
            selection = torch.cat([units for units, _ in heads]), torch.cat([factors for _, factors in heads])
    if selection is not None:
        in_graph = [p for p, g in zip(passed, reached, strict=True) if g is not None]
        return _trace_selection(model, module, name, t, use, *selection, in_graph)
    seen = gradient.reshape(-1, gradient.shape[-1]).ne(0)
    # over units, a row of a head is one unit of all positions
    if int(seen.any(1).sum()) > 1 and int(seen.any(0).sum()) <= t.shape[1] < t[0, :, 0].numel():
        words = f"{name} mixes positions of {use.name}: each of its rows is one unit at all positions"
        return _TracedPart(Origin("mixed", words), passed=(use,), order=OTHER_AXIS.format("units"))
    origin, normed, law = find_norm_map(name, t, use, gradient, norms, tolerance(t))
    return _TracedPart(origin, passed=(use,), normed=normed, law=law)


def _codes(first: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor] | None:
    """The unit of a leaf that each number of first [H, E] is, and its factor; None if one depends on several units."""
    count, base = first.numel(), DIGITS[first.dtype]
    number = torch.arange(count, device=first.device).view(first.shape)
    digits, rest = [], count - 1
    while rest or not digits:
        digits.append(number // base ** len(digits) % base)
        rest //= base

    def gradient(code: Tensor) -> Tensor:
        (by_leaf,) = torch.autograd.grad((first * code.to(first.dtype)).sum(), leaf, retain_graph=True)
        return by_leaf.reshape(-1, by_leaf.shape[-1]).double()

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


def _trace_selection(
    model: nn.Module,
    module: str,
    name: str,
    t: Tensor,
    passed: MapUse,
    units: Int[Tensor, "H E"],
    factors: Float[Tensor, "H E"],
    before: Sequence[MapUse],
) -> _TracedPart:
    affine = passed.map()
    scale = float(factors.mean())
    even = bool(((factors - scale).abs() <= 1e-3 * abs(scale)).all())
    # v is recomputed at all positions; q and k only at position 0, since later ones may be rotated
    residual, extra = _recompute(t, passed, affine, units, factors, everywhere=name == "v")
    chosen = Selected(passed, units, factors, extra)
    limit = max(tolerance(t), tolerance(passed.leaf))
    misplaced, turned, time_first = find_placement(name, t, chosen, before, limit)
    allowed, rounding = tolerance(t, passed), None
    order = misplaced if DISPLACED in misplaced else ""
    if misplaced and (residual <= allowed or order or misplaced.startswith("at position 0 ")):
        return _TracedPart(Origin("mixed", misplaced, residual=residual), passed=(passed,), order=order)
    weight, bias = rows_of(affine.weight, units), None if affine.bias is None else affine.bias[units]
    weight, factor = weight.transpose(1, 2), factors.to(weight)
    if not even:
        weight, bias, scale = weight * factor[:, None], None if bias is None else bias * factor, 1.0
    bias_name = affine.bias_parameter
    if extra is not None:
        extra = extra.to(weight) / (scale if even else 1.0)
        bias = extra if bias is None else bias + extra
        flat = extra.flatten()  # the parameter of the attention module that holds just these values
        parameters = [(n, p.detach().flatten()) for n, p in model.named_parameters() if n.startswith(module)]
        parameters = [(n, p.to(flat)) for n, p in parameters if p.numel() == flat.numel()]
        bias_name = next((n for n, p in parameters if torch.allclose(p, flat, rtol=1e-3, atol=1e-5)), None)
    fused = "rows of" if affine.weight.shape[0] == units.unique().numel() else "some rows of"
    kind = f"{fused} {passed.name}" + ("" if extra is None else ", with a bias of its own")
    kind += "" if even else ", each dimension times a factor of its own"
    if passed.quantised is not None:
        kind += f", of {passed.quantised.words}"
        rounding = share_of(passed.rounding_loss()[..., units.flatten()], passed.leaf[..., units.flatten()])
    origin = Origin("rows", kind, affine.parameter, bias_name, units, affine.transposed, scale, residual, rounding)
    if residual > allowed:
        words = f"{name} looks like rows of {passed.name}, but recomputed from them it is off by {residual:.1e}"
        return _TracedPart(replace(origin, how="unknown", words=words), passed=(passed,))
    added = None if chosen.extra is None else chosen.extra.detach()
    law = PartLaw(passed.law, units, factors, added, turned, time_first)
    return _TracedPart(origin, weight, bias, (passed,), law)


def _recompute(
    t: Tensor, passed: MapUse, affine: Affine, units: Tensor, factors: Tensor, everywhere: bool
) -> tuple[float, Tensor | None]:
    """Recompute t from x and the located rows; returns the relative error, and a bias that only t has."""
    allowed, (rows, heads, length, width) = tolerance(t, passed), t.shape
    x = passed.multiplied_input.detach()
    if x.dim() == 3 and x.shape[0] == rows and x.shape[1] > length:
        x = x[:, :length]  # the first of several streams
    y = x.to(affine.weight) @ rows_of(affine.weight.detach(), units).flatten(0, 1).T
    y = (y if affine.bias is None else y + affine.bias[units.flatten()].detach()).to(t.dtype)
    best: tuple[float, Tensor | None] = float("inf"), None
    for shape, dims in (((rows, length), (0, 2, 1, 3)), ((length, rows), (1, 2, 0, 3))):
        if y.numel() != t.numel():
            continue
        remade = y.reshape(*shape, heads, width).permute(dims) * factors.to(t)[None, :, None]
        expected, actual = (remade, t.detach()) if everywhere else (remade[:, :, :1], t.detach()[:, :, :1])
        size = float(actual.abs().max().clamp_min(torch.finfo(t.dtype).tiny))
        off, extra = float((expected - actual).abs().max()) / size, None
        if off > allowed:
            mean = (actual - expected).mean((0, 2))
            shifted = float((expected + mean[None, :, None] - actual).abs().max()) / size
            off, extra = (shifted, mean) if shifted <= allowed else (off, None)
        best = min(best, (off, extra), key=lambda pair: pair[0])
    return best
