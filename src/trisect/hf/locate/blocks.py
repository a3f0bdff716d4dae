"""Locate by value what surrounds attention layers: residual connections, norms, feed-forward blocks, and the map to logits."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trisect.core.errors import ModelError, reraise_out_of_memory
from trisect.core.subject import Batch, StreamPoint, StreamSubject
from trisect.core.trace import Address, FeedForward, NormedMap, Origin, Rescaling, ResidualBlock, Unembedding
from trisect.hf.hooks.calls import Call, gradients_of
from trisect.hf.locate.affine import (
    TOLERANCE,
    ForwardLaw,
    ForwardRecord,
    MapUse,
    NormUse,
    PartLaw,
    affine_modules,
    affine_of,
    norm_modules,
    watch_uses,
)
from trisect.measure.norms import ACTIVATIONS, activation, rescale_parts

EPSILONS = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
DEFAULT_EPSILONS = (1e-6, 1e-5, 1e-8, 1e-12)  # values of ε to try for a norm without such an attribute
# errors of a module that is called a norm but takes inputs of another shape
SHAPE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError)


def near(a: Tensor, b: Tensor, allowed: float) -> bool:
    """Whether two tensors differ by at most `allowed` times the largest magnitude of the first."""
    a, b = a.detach(), b.detach().to(a.device)
    return float((a - b).abs().max()) <= allowed * float(a.abs().max())


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, also across devices."""
    return a.shape == b.shape and torch.equal(a.detach(), b.detach().to(a.device))


def _enters_sum(total: Tensor, leaf: Tensor) -> bool:
    """Whether a leaf is added unscaled to a sum, by gradients: beside a large residual its values vanish in rounding."""
    factor = _factor_of(total, leaf)
    return factor is not None and bool(((factor - 1).abs() <= 1e-3).all())


def _factor_of(total: Tensor, leaf: Tensor) -> Tensor | None:
    """The factor of each dimension of a leaf in a sum, if it is the same at every position; else None."""
    mixed = (1 + torch.rand(total.shape, generator=torch.Generator().manual_seed(0))).to(total)
    (gradient,) = gradients_of(total, [leaf], positive=True)
    if gradient is None or gradient.shape != mixed.shape:
        return None
    each = (gradient / mixed.to(gradient)).flatten(0, -2)
    factor = each.mean(0)
    alike = bool(((each - factor).abs().max() <= 1e-3 * factor.abs().max()).item())
    return factor.detach() if alike and bool(factor.any()) else None


@torch.no_grad()
def _measure_norm(used: NormUse) -> Rescaling | None:
    """Measure a norm's γ, β, ε by feeding it zeros and alternating ±1; None if they do not reproduce its output."""
    width, like = used.x.shape[-1], used.x
    zeros, ones = like.new_zeros(1, 1, width), like.new_ones(1, 1, width)
    ones[..., 1::2] = -1
    names = [float(e) for n in EPSILONS if isinstance(e := getattr(used.module, n, None), float)]
    try:
        shift, plain = used.module(zeros)[0, 0], used.module(ones)[0, 0]
    except SHAPE_ERRORS as error:
        reraise_out_of_memory(error)
        return None
    beta = shift.detach() if shift.any() else None
    for centred in (True, False):
        fits = list[tuple[float, Rescaling]]()
        for epsilon in names[:1] or DEFAULT_EPSILONS:
            gamma = (plain - shift) / standard(ones, epsilon, centred)[0, 0]
            rescaled = standard(like, epsilon, centred) * gamma + shift
            # ε matters for small rows; the comparison fails if the true ε is none of these
            if near(rescaled, used.y, loose(like.dtype)):
                off = float((rescaled - used.y).abs().max())
                fits.append((off, Rescaling(gamma.detach(), beta, epsilon, centred)))
        if fits:
            return min(fits, key=lambda fit: fit[0])[1]
    return None


def standard(x: Tensor, epsilon: float | None, centred: bool) -> Tensor:
    """x divided by its root mean square; if `centred`, after subtracting its mean."""
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x / (x.square().mean(-1, keepdim=True) + (epsilon or 0.0)).sqrt()


def loose(kind: torch.dtype) -> float:
    """Relative tolerance for the result of a norm in that dtype."""
    return 1e-3 if kind in (torch.float32, torch.float64) else 5e-2


MAX_ULPS = 16  # units in the last place, for sums in another order


class _Behind(NamedTuple):
    """A rescaling between W_O and the residual sum: the nth use of a norm, or a factor per dimension without a module."""

    rescaling: Rescaling
    source: str = ""
    nth: int = 0


class _Sum(NamedTuple):
    """The nth use of a module whose input is residual + output of W_O (`out`), plus that of a parallel map (`beside`) if any."""

    name: str
    nth: int
    out: tuple[str, int]
    beside: tuple[str, int] | None = None
    swapped: bool = False


class Around(NamedTuple):
    """The norm and the residual around attention, located as the nth use (from 0) of modules.

    The residual is the input of `source`: of the norm itself in a 'pre' block, of a projection in the others; `turned` if
    it is [T B D] there. The output of a 'pre' block's norm `enters` that use of a map, with rows and positions swapped if
    `crossed`. `norm` is None in a 'bare' block, `behind` is None if W_O's result is added unchanged.
    """

    kind: str
    source: str
    nth: int
    norm: Rescaling | None
    turned: bool = False
    behind: _Behind | None = None
    forward: FeedForward | None = None
    sum: _Sum | None = None
    enters: tuple[str, int] | None = None
    crossed: bool = False


def find_around(
    call: Call, record: ForwardRecord, sources: Sequence[MapUse], out: MapUse, allowed: float
) -> Around | None:
    """Find the block around a call; None if no later input is the sum of a residual and attention's result.

    `sources` are the maps that q, k and v come from. 'post': the input of the first norm after W_O is the query's
    input plus W_O's output. 'pre': the norm that made the query's input has an input that, plus W_O's output (plus a
    parallel map's), is a later input. 'bare': the query's input itself is added.
    """
    y = out.leaf.detach()
    for source in sources:
        x = source.x.detach()
        if x.dim() != 3 or y.dim() != 3 or call.q.shape[0] not in y.shape[:2]:
            continue
        turned = [t.shape[0] != call.q.shape[0] for t in (x, y)]
        swapped = turned[0] != turned[1]
        x = x.transpose(0, 1) if swapped else x
        if x.shape != y.shape:
            continue
        near_by = [p for p in record.passed if call.order <= p.calls <= call.order + 1 and p is not out]
        # the next layer may lie on another device
        beside = [((p.name, p.nth), p.leaf.detach().to(y.device)) for p in near_by if p.leaf.shape == y.shape]
        later = [n for n in record.normed if n.calls > call.order and n.x.shape == y.shape]
        if later and near(later[0].x, x + y, allowed) and _enters_sum(later[0].traced, out.leaf):
            first, rest = later[0].x, later[1:2]
            # if the sum itself, not its norm, is the next residual, the norm belongs to the next layer
            if not any(near(n.x, first + extra.to(first), allowed) for n in rest for _, extra in beside):
                where = _Sum(later[0].name, later[0].nth, (out.name, out.nth), None, swapped)
                if (norm := _measure_norm(later[0])) is not None:
                    return Around("post", source.name, source.nth, norm, turned[0], sum=where)
                continue
        before = [n for n in record.normed if n.calls <= call.order and same(n.y, x)]
        # the norm behind W_O is met before the sum is
        later = [n for n in record.normed if n.calls > call.order and n.x.numel() == y.numel()]
        met = [(n.name, n.nth, n.traced.reshape(y.shape)) for n in later[:3]]
        next_maps = [p for p in record.passed if p.calls == call.order + 1 and p.x.numel() == y.numel()]
        met += [(p.name, p.nth, p.x.reshape(y.shape)) for p in next_maps]
        norms = [n for n in later if same(n.x, y)]
        if before and (meeting := _find_sum(met, before[-1].x, out, norms, beside, allowed)) is not None:
            behind, where = meeting
            if (norm := _measure_norm(before[-1])) is not None:
                about = before[-1].name, before[-1].nth, norm, turned[1], behind
                return Around("pre", *about, sum=where, enters=(source.name, source.nth), crossed=swapped)
        elif (meeting := _find_sum(met, x, out, norms, beside, allowed)) is not None:
            behind, where = meeting
            about = source.name, source.nth, None, turned[0], behind
            return Around("bare", *about, sum=where._replace(swapped=swapped))
    return None


def _find_sum(
    met: Sequence[tuple[str, int, Tensor]],
    residual: Tensor,
    out: MapUse,
    norms: Sequence[NormUse],
    beside: Sequence[tuple[tuple[str, int], Tensor]],
    allowed: float,
) -> tuple[_Behind | None, _Sum] | None:
    """The rescaling of W_O's result before a later sum with the residual, and that sum; None if there is no such sum."""
    y, use = out.leaf.detach(), (out.name, out.nth)
    extras: list[tuple[tuple[str, int] | None, Tensor | float]] = [(None, 0.0), *beside]
    for name, nth, total in met:
        if not _enters_sum(total, out.leaf):
            continue
        for other, extra in extras:
            if near(total, residual + y + extra, allowed):
                return None, _Sum(name, nth, use, other)
    for n in norms:
        for name, nth, total in met:
            if near(total, residual + n.y, allowed) and (norm := _measure_norm(n)) is not None:
                return _Behind(norm, n.name, n.nth), _Sum(name, nth, use)
    for name, nth, total in met:
        if (factor := _factor_of(total, out.leaf)) is None:
            continue
        for other, extra in extras:
            if near(total, residual + factor * y + extra, allowed):
                return _Behind(Rescaling(factor)), _Sum(name, nth, use, other)
    return None


@contextlib.contextmanager
def watch(
    model: nn.Module, name: str, around: Mapping[Address, Around], looks: bool = True
) -> Iterator[dict[Address, ResidualBlock]]:
    """Record the residuals of one forward pass inside: a ResidualBlock for every address in `around`.

    With `looks`, norms and sums are compared with those found on loading; raises ModelError at the end if one differs.
    """
    blocks: dict[Address, ResidualBlock] = {}
    watcher = _BlockWatcher(around, blocks, looks)
    # an edited pass may be preceded by a rehearsal: the last pass counts
    ending = model.register_forward_hook(lambda _m, _a, _o: watcher.end(), always_call=True)
    try:
        with watch_uses(model, {use for use, _ in watcher.watched}, watcher.use):
            yield blocks
    finally:
        ending.remove()
    if watcher.wrong:
        address, words = watcher.wrong[0]
        problem = f"{str(address).capitalize()} of {name} does not compute what was found on loading."
        raise ModelError(problem, f"In this read {words}.", "Load the model again as it is now.")


class _BlockWatcher:
    """Watches the modules of blocks in one forward pass; `wrong` lists deviations from loading."""

    def __init__(self, around: Mapping[Address, Around], blocks: dict[Address, ResidualBlock], looks: bool) -> None:
        self.blocks, self.looks = blocks, looks
        self.wrong: list[tuple[Address, str]] = []
        self.uses = defaultdict[str, Iterator[int]](itertools.count)
        self.watched: dict[tuple[str, int], list[tuple[Address, Around]]] = {}
        self._outputs: dict[Address, dict[tuple[str, int], Tensor]] = {}
        for address, block in around.items():
            keys = {(block.source, block.nth)}
            if looks and block.enters is not None:
                keys.add(block.enters)
            if looks and block.behind is not None and block.behind.source:
                keys.add((block.behind.source, block.behind.nth))
            if looks and block.sum is not None:
                keys |= {(block.sum.name, block.sum.nth), block.sum.out, *filter(None, [block.sum.beside])}
            for key in keys:
                self.watched.setdefault(key, []).append((address, block))

    def end(self) -> None:
        """Reset the counts of uses for the next pass."""
        self.uses.clear()
        self._outputs.clear()

    def use(self, name: str, x: Tensor, y: Tensor) -> None:
        """Record a module's input and output."""
        x, y = x.detach(), y.detach()
        key = name, next(self.uses[name])
        for address, block in self.watched.get(key, ()):
            outputs = self._outputs.setdefault(address, {})
            if self.looks and block.sum is not None and key == (block.sum.name, block.sum.nth):
                self._meet(address, block, block.sum, x)
                if block.kind == "post":
                    self._compare(address, block.norm, f"{name} makes", x, y)
            if key == (block.source, block.nth):
                residual = x.clone()  # which the model may write to
                outputs["residual", 0] = residual
                residual = residual.transpose(0, 1) if block.turned else residual
                norm = block.norm or Rescaling(x.new_ones(x.shape[-1]))
                numbers = norm.gamma, norm.beta, norm.epsilon or 0.0, norm.centred
                after = None if block.behind is None else block.behind.rescaling
                self.blocks[address] = ResidualBlock(block.kind, residual, *numbers, after, block.forward)
                if self.looks and block.kind == "pre":
                    self._compare(address, block.norm, f"{name} makes", x, y)
                    outputs["normed", 0] = y.clone()
            elif key == block.enters:
                normed, entered = outputs.pop(("normed", 0), None), x.transpose(0, 1) if block.crossed else x
                if normed is None or not _near(normed, entered, loose(x.dtype)):
                    words = f"what enters {name} is not what {block.source} makes, as it was on loading"
                    self.wrong.append((address, words))
            elif block.behind is not None and key == (block.behind.source, block.behind.nth):
                norm = None if block.behind.rescaling.epsilon is None else block.behind.rescaling
                self._compare(address, norm, f"{name} makes of the output of W_O", x, y)
                outputs["behind", 0] = y.clone()
            elif block.sum is not None and key in (block.sum.out, block.sum.beside):
                outputs[key] = y.clone()  # which the model may write to

    def _compare(self, address: Address, norm: Rescaling | None, quantity: str, x: Tensor, y: Tensor) -> None:
        """Record a norm whose output differs from the measured norm's; NaN and infinity are reported elsewhere."""
        if norm is not None and (x.shape != y.shape or not _near(y, apply(norm, x.float()), loose(x.dtype))):
            self.wrong.append((address, f"what {quantity} is not what was found in it on loading"))

    def _meet(self, address: Address, around: Around, where: _Sum, total: Tensor) -> None:
        outputs = self._outputs.pop(address, {})
        residual, y = outputs.get(("residual", 0)), outputs.get(("behind", 0), outputs.get(where.out))
        words = f"what enters {where.name} is not the sum of the residual and of what {where.out[0]} makes, as it was on loading"
        if residual is None or y is None or total.numel() != y.numel():
            self.wrong.append((address, words))
            return
        residual = residual.transpose(0, 1) if where.swapped else residual
        if around.behind is not None and not around.behind.source:
            y = y * around.behind.rescaling.gamma.to(y)
        parts = [residual.to(y.device), y]
        if where.beside is not None:
            parts.append(outputs.get(where.beside, torch.zeros_like(y)).to(y.device))
        kind = torch.promote_types(y.dtype, torch.float32)
        wide = torch.stack([p.to(kind) for p in parts])
        expected, size = wide.sum(0), wide.abs().sum(0)
        off = (total.reshape(y.shape).to(expected) - expected).abs()
        kinds = [torch.finfo(p.dtype).eps for p in (*parts, total)]
        rounding = MAX_ULPS * max(kinds) * size.amax(-1, keepdim=True)
        if bool(((off > rounding) & off.isfinite()).any()):
            self.wrong.append((address, words))


def _near(x: Tensor, y: Tensor, allowed: float) -> bool:
    """Whether two tensors agree to rounding wherever both are finite."""
    if x.numel() != y.numel():
        return False
    y = y.to(x.device)
    if bool(x.abs().amax() < torch.inf) and near(x.reshape(y.shape).float(), y.float(), allowed):
        return True
    finite = x.flatten().isfinite() & y.flatten().isfinite()
    a, b = (torch.where(finite, t.flatten().float(), 0.0) for t in (x, y))
    return near(a, b, allowed)


NORMED = 0.02  # relative derivative along the input that a norm's ε may leave


def find_norm_map(
    name: str, t: Tensor, use: MapUse, gradient: Tensor, norms: Sequence[NormUse], allowed: float
) -> tuple[Origin, NormedMap | None, PartLaw | None]:
    """Origin of q, k or v [B H T E] that is no selection of a map's outputs (normed per head, across heads, or other); its rows and law.

    `gradient` is that of the part's first position by the map's output; `norms` are those used before the call.
    """
    flat = gradient.reshape(-1, gradient.shape[-1])
    rows = flat.any(1).nonzero().flatten()
    _, heads, _, width = t.shape
    if len(rows) != 1:
        return Origin("mixed", f"{name} is computed from {len(rows)} positions of {use.name}"), None, None
    blocks = _blocks(t, use, flat.shape, int(rows[0]))
    if blocks is None:
        return Origin("mixed", f"{name} is made of {use.name}, but no selection and no norm of it"), None, None
    affine = use.map()
    if all(len(b) == width for b in blocks) and len(torch.cat(blocks).unique()) == heads * width:
        units, across = torch.stack(blocks), False
        words = f"rows of {use.name}, normed in each head"
    elif affine.weight.shape[0] == heads * width:
        units, across = torch.arange(heads * width).view(heads, width), True
        words = f"all of {use.name}, normed across the heads"
    else:
        return Origin("mixed", f"{name} is made of {use.name}, but no selection of it"), None, None
    matched = _the_norm(t, use, units, across, norms, allowed)
    if matched is None and across:
        return Origin("normed", words, affine.parameter, affine.bias_parameter, None, affine.transposed), None, None
    origin = Origin("normed", words, affine.parameter, affine.bias_parameter, units, affine.transposed)
    if matched is None:
        return origin, None, None
    norm, factors, turned, time_first = matched
    normed = lambda x: apply(norm, x.flatten(1)).view_as(x) if across else apply(norm, x)  # noqa: E731
    law = PartLaw(use.law, units, factors, None, turned, time_first, normed)
    # rows without their mean where the norm subtracts it, and without those that it multiplies by 0
    flat, biases = units.flatten().to(affine.weight.device), [] if affine.bias is None else [affine.bias.detach()]
    rows = torch.cat([affine.weight.detach()[flat], *(bias[flat, None] for bias in biases)], 1)
    rows = rows.unflatten(0, (1, heads * width) if across else (heads, width))
    rows = rows - rows.mean(1, keepdim=True) if norm.centred else rows
    rows = (rows * (norm.gamma != 0).to(rows)[:, None]).reshape(heads, width, -1).mT.cpu()
    inputs = affine.weight.shape[1]
    bias_rows = rows[:, -1].contiguous() if biases else None
    return origin, NormedMap(rows[:, :inputs].contiguous(), bias_rows), law


def _blocks(t: Tensor, use: MapUse, shape: torch.Size, row: int) -> list[Int[Tensor, " N"]] | None:
    """The units of a map that each head's first position depends on; None if the dependence is not that of a norm."""
    first, value = t[0, :, 0, :], use.leaf.detach().reshape(shape)[row]
    weights, blocks = torch.linspace(1, 2, t.shape[3], device=t.device, dtype=t.dtype), []
    for head in first:
        (dependence,) = torch.autograd.grad((head * weights).sum(), use.leaf, retain_graph=True)
        dependence = dependence.reshape(shape)[row]
        # a norm ignores the length of its input: its derivative along the input is 0 (Euler), except for ε
        if float((value * dependence).sum().abs()) > NORMED * float((value * dependence).abs().sum()):
            return None
        blocks.append(dependence.nonzero().flatten().cpu())
    return blocks


def _the_norm(
    t: Tensor, use: MapUse, units: Int[Tensor, "H E"], across: bool, norms: Sequence[NormUse], allowed: float
) -> tuple[Rescaling, Float[Tensor, "H E"], bool, bool] | None:
    """The norm that maps those units to t, its factor, whether positions rotate t (then only lengths agree), and if time is first."""
    rows, heads, length, width = t.shape
    y, size = use.leaf.detach(), heads * width if across else width
    if y.reshape(-1, y.shape[-1]).shape[0] != rows * length:
        return None
    for used in reversed(norms):
        norm = _measure_norm(used) if used.x.shape[-1] == size and used.x.numel() == t.numel() else None
        if norm is None:
            continue
        for time_first in (False, True):
            shape = (length, rows) if time_first else (rows, length)
            y_units = y.reshape(*shape, -1)[..., units.flatten().to(y.device)]
            normed = apply(norm, y_units if across else y_units.unflatten(-1, (heads, width)))
            normed = normed.reshape(*shape, heads, width).permute((1, 2, 0, 3) if time_first else (0, 2, 1, 3))
            first, actual = normed[:, :, 0].double(), t.detach()[:, :, 0].double()
            factor = (first * actual).sum() / first.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
            off = (first * factor - actual).abs().max() / actual.abs().max()
            lengths = [torch.linalg.vector_norm(x.double(), dim=-1) for x in (normed, t.detach())]
            length_error = (lengths[0] * factor.abs() - lengths[1]).abs().max() / lengths[1].max()
            if float(torch.maximum(off, length_error)) <= max(allowed, 1e-3):
                turned = not near(t, normed * factor.to(normed), max(allowed, 1e-3))
                return norm, torch.full(units.shape, float(factor)), turned, time_first
    return None


def apply(norm: Rescaling, x: Tensor) -> Tensor:
    """Apply a norm to x."""
    rescaled = standard(x, norm.epsilon, norm.centred) * norm.gamma.to(x)
    return rescaled if norm.beta is None else rescaled + norm.beta.to(x)


_MapRows = tuple[MapUse, slice]


def find_forward(
    order: int, kind: str, record: ForwardRecord, out: MapUse, allowed: float
) -> tuple[FeedForward, ForwardLaw] | None:
    """Find the feed-forward block after a call, and its law; None if there is no such block.

    The input of its first maps is the residual sum after attention (`kind` 'post': its norm), or a norm of it; the output
    of its last map, perhaps normed, is added to that sum. Everything is recomputed and compared within `allowed`.
    """
    start = next(i for i, p in enumerate(record.passed) if p is out) + 1
    later = [p for p in record.passed[start:] if p.calls == order + 1 and p.x.dim() == 3]
    norms = [n for n in record.normed if n.calls == order + 1 and n.x.dim() == 3]
    for first in later:
        maps = [p for p in later if same(p.x, first.x)]
        rest = [p for p in later if all(p is not m for m in maps)]
        if not rest or rest[0].leaf.shape != first.x.shape:
            return None
        # hidden units: an activation of one map's output, perhaps times another's
        last, hidden, halves = rest[0], rest[0].x.detach(), list[_MapRows]()
        width = hidden.shape[-1]
        for p in maps:
            if p.leaf.shape[-1] == width:
                halves.append((p, slice(0, width)))
            elif p.leaf.shape[-1] == 2 * width:
                halves += [(p, slice(0, width)), (p, slice(width, 2 * width))]
        if len(halves) not in (1, 2):
            return None
        values, size = [p.leaf.detach()[..., rows] for p, rows in halves], hidden.abs().max().clamp_min(1e-30)
        fits: list[tuple[float, tuple[str, _MapRows, _MapRows | None]]] = []
        for name in ACTIVATIONS:
            phi = activation(name)
            for n, operand in enumerate(halves):
                gate = halves[1 - n] if len(halves) == 2 else None
                product = phi(values[n]) if gate is None else phi(values[n]) * values[1 - n]
                fits.append((float((product - hidden).abs().max() / size), (name, operand, gate)))
        # GELU and its approximation are nearer to each other than rounding
        off, inner = min(fits, key=lambda pair: pair[0])
        if not off <= allowed:
            return None
        entered = next((n for n in norms if same(n.y, first.x)), None)
        before = entered if kind != "post" else None  # behind a post-norm the norm is attention's own
        z = first.x.detach() if before is None else before.x
        return _complete_block(inner, last, z, before, kind, (norms, later), allowed)
    return None


def _complete_block(
    inner: tuple[str, _MapRows, _MapRows | None],
    last: MapUse,
    z: Tensor,
    before: NormUse | None,
    kind: str,
    later: tuple[Sequence[NormUse], Sequence[MapUse]],
    allowed: float,
) -> tuple[FeedForward, ForwardLaw] | None:
    """Complete the block after its last map; None if no later input is the sum with z, or a norm cannot be measured."""
    (name, operand, gate), (norms, maps) = inner, later
    met = [n.traced for n in norms] + [p.x for p in maps]
    behind, y = None, last.leaf.detach()
    if not any(near(z + y, g, allowed) and _enters_sum(g, last.leaf) for g in met if g.shape == z.shape):
        behind = next((n for n in norms if same(n.x, y)), None)
        if behind is None or not any(near(z + behind.y, g, allowed) for g in met if g.shape == z.shape):
            return None
        y = behind.y
    after = None
    if kind == "post":
        after = next((n for n in norms if n.x.shape == z.shape and near(z + y, n.x, allowed)), None)
        if after is None:
            return None
    norms = [None if n is None else _measure_norm(n) for n in (before, behind, after)]
    if any(n is not None and measured is None for n, measured in zip((before, behind, after), norms, strict=True)):
        return None
    rows: list[Tensor | None] = []
    for p, cut in (operand, *([] if gate is None else [gate]), (last, slice(None))):
        affine = p.map()
        rows += [affine.weight.detach()[cut], None if affine.bias is None else affine.bias.detach()[cut]]
    if gate is None:
        rows[2:2] = [None, None]
    first, bias, gate_rows, gate_bias, outer, outer_bias = rows
    assert first is not None
    assert outer is not None
    uses = {(p.name, p.nth): p for p, _ in (operand, *([] if gate is None else [gate]))} | {(last.name, last.nth): last}
    maps = tuple(p.law for p in uses.values())
    (map_, first_rows), other = operand, None if gate is None else ((gate[0].name, gate[0].nth), gate[1])
    block = FeedForward(name, first, bias, gate_rows, gate_bias, outer, outer_bias, *norms)
    return block, ForwardLaw(maps, name, ((map_.name, map_.nth), first_rows), other, (last.name, last.nth))


@torch.no_grad()
def find_unembedding(subject: StreamSubject, model: nn.Module, batch: Batch) -> Unembedding:
    """Find the map from the residual stream after the last attention layer to the logits, by one pass over a batch.

    The last map of the pass makes the logits from the stream or from one norm of it; a common factor of all logits is folded
    into its weight and bias. The logits are recomputed and compared. Raises ModelError for logits that are made in another way.
    """
    maps, norms = dict(affine_modules(model)), dict(norm_modules(model))
    # tied weights are used without a module of their own
    bare = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    stream, normed, last = list[Tensor](), list[NormUse](), list[tuple[str, Tensor, Tensor]]()

    def keep(x: Tensor) -> Tensor:
        stream[:] = [x.clone()]
        return x

    def note(name: str, x: Tensor, y: Tensor) -> None:
        if name not in norms:
            last[:] = [(name, x.clone(), y.clone())]
        elif stream and same(x, stream[0]):
            normed[:] = [NormUse(name, norms[name], x.clone(), y.clone(), 0, 0, x)]

    end = StreamPoint(Address("plain", subject.shape.layers("plain")[-1]), "output")
    with watch_uses(model, {*maps, *norms, *bare}, note):
        logits = subject.stream_outputs(batch, {end: keep})
    problem = f"The logits of {subject.name} cannot be split into contributions of heads and layers."
    todo = (
        "Choose a model whose logits are a linear map of its normed residual stream, such as GPT-2, GPT-NeoX or Llama."
    )
    if subject.objective == "output" or not last:
        raise ModelError(problem, "It returns hidden states.", "Load it with its language-model head.")
    name, x, y = last[0]
    allowed = TOLERANCE[logits.dtype]
    factor = float((logits * y).sum() / y.square().sum()) if logits.shape == y.shape else 0.0
    factor = 1.0 if same(logits, y) else factor
    if not near(logits, factor * y if factor else 0 * logits, allowed):
        reason = f"The output of its last map {name!r} is changed before it is returned as logits."
        raise ModelError(problem, reason, todo)
    norm: Rescaling | None = None
    if same(x, stream[0]):
        norm = Rescaling(x.new_ones(x.shape[-1]))
    elif normed and same(normed[0].y, x):
        norm = _measure_norm(normed[0])
    if norm is None:
        raise ModelError(problem, f"The input of its last map {name!r} is no norm of its last layer's output.", todo)
    affine = affine_of(name, maps[name], x.shape[-1], x) if name in maps else None
    weight = model.get_parameter(name) if affine is None else affine.weight
    bias = None if affine is None else affine.bias
    if factor != 1:
        weight, bias = factor * weight, None if bias is None else factor * bias
    unembedding = Unembedding(norm, weight.detach(), None if bias is None else bias.detach())
    logits_again = rescale_parts(stream[0].flatten(0, 1)[:, None], norm)[:, 0] @ unembedding.weight.T
    logits_again = logits_again if unembedding.bias is None else logits_again + unembedding.bias
    if not near(logits.flatten(0, 1), logits_again, allowed):
        raise ModelError(problem, f"Its final norm and its last map {name!r} do not reproduce its logits.", todo)
    return unembedding
