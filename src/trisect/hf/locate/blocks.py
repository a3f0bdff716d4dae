"""What lies around an attention layer, found by value: residual connection, norms and feed-forward block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trisect.core.errors import ModelError, reraise_out_of_memory
from trisect.core.trace import Address, FeedForward, NormedMap, Origin, Rescaling, ResidualBlock
from trisect.hf.hooks.calls import Call, gradients_of
from trisect.hf.locate.affine import (
    Affine,
    ForwardLaw,
    Normed,
    PartLaw,
    Passed,
    PassRecord,
    map_law,
    watch_uses,
)
from trisect.measure.norms import NAMES, activation

EPSILONS = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
UNNAMED = (1e-6, 1e-5, 1e-8, 1e-12)  # ε of a norm that does not say it
# what a module says that has a norm's name, and was made for inputs of another shape
UNFIT = (RuntimeError, ValueError, TypeError, IndexError)


def near(a: Tensor, b: Tensor, allowed: float) -> bool:
    """Whether two tensors differ by no more than a share of the first one's largest value."""
    a, b = a.detach(), b.detach().to(a.device)
    return float((a - b).abs().max()) <= allowed * float(a.abs().max())


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, be they of layers on several devices."""
    return a.shape == b.shape and torch.equal(a.detach(), b.detach().to(a.device))


def enters_sum(given: Tensor, leaf: Tensor) -> bool:
    """Whether a leaf is added to a sum as it is. Values alone do not say so: beside a large residual anything is rounding."""
    factor = factor_of(given, leaf)
    return factor is not None and bool(((factor - 1).abs() <= 1e-3).all())


def factor_of(given: Tensor, leaf: Tensor) -> Tensor | None:
    """The number that each dimension of a leaf is multiplied by in a sum, alike at every position; None where it is not."""
    mixed = (1 + torch.rand(given.shape, generator=torch.Generator().manual_seed(0))).to(given)
    (gradient,) = gradients_of(given, [leaf], positive=True)
    if gradient is None or gradient.shape != mixed.shape:
        return None
    each = (gradient / mixed.to(gradient)).flatten(0, -2)
    factor = each.mean(0)
    alike = bool(((each - factor).abs().max() <= 1e-3 * factor.abs().max()).item())
    return factor.detach() if alike and bool(factor.any()) else None


@torch.no_grad()
def measure_norm(used: Normed) -> Rescaling | None:
    """A norm's numbers by feeding it zeros and alternating ones; None where they do not give back what it gave."""
    width, like = used.x.shape[-1], used.x
    zeros, ones = like.new_zeros(1, 1, width), like.new_ones(1, 1, width)
    ones[..., 1::2] = -1
    names = [float(e) for n in EPSILONS if isinstance(e := getattr(used.module, n, None), float)]
    try:
        shift, plain = used.module(zeros)[0, 0], used.module(ones)[0, 0]
    except UNFIT as error:
        reraise_out_of_memory(error)
        return None
    beta = shift.detach() if shift.any() else None
    for centred in (True, False):
        fits = list[tuple[float, Rescaling]]()
        for epsilon in names[:1] or UNNAMED:
            gamma = (plain - shift) / standard(ones, epsilon, centred)[0, 0]
            made = standard(like, epsilon, centred) * gamma + shift
            # ε counts where a row is small; where it is none of these this comparison fails
            if near(made, used.y, loose(like.dtype)):
                off = float((made - used.y).abs().max())
                fits.append((off, Rescaling(gamma.detach(), beta, epsilon, centred)))
        if fits:
            return min(fits, key=lambda fit: fit[0])[1]
    return None


def standard(x: Tensor, epsilon: float | None, centred: bool) -> Tensor:
    """x over the root of its mean square, without its mean where it is centred."""
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x / (x.square().mean(-1, keepdim=True) + (epsilon or 0.0)).sqrt()


def loose(kind: torch.dtype) -> float:
    """What share of a norm's result is rounding."""
    return 1e-3 if kind in (torch.float32, torch.float64) else 5e-2


ROUNDED = 16  # units in the last place, for sums in another order


class Behind(NamedTuple):
    """What lies between W_O and the residual sum: the nth use of a norm, or a factor for each dimension without a module."""

    rescaling: Rescaling
    source: str = ""
    nth: int = 0


class Sum(NamedTuple):
    """Where the residual and what W_O makes are met again, added up: what enters the nth use of a module.

    `out` is the use of W_O's map, `beside` that of a map which runs in parallel and is added too; `swapped` says that the
    residual has rows and positions the other way round.
    """

    name: str
    nth: int
    out: tuple[str, int]
    beside: tuple[str, int] | None = None
    swapped: bool = False


class Around(NamedTuple):
    """The norm and the residual around attention, and where they are met: the nth use of a module, from 0.

    The residual is what enters `source`: the norm itself in a 'pre' block, a projection in the others; `turned` where
    it is [T B D] there; what a 'pre' block's norm makes `enters` that use of a map, there with rows and positions the other way
    round where `crossed`. `norm` is None in a 'bare' block, `behind` where W_O's result is added as it is.
    """

    kind: str
    source: str
    nth: int
    norm: Rescaling | None
    turned: bool = False
    behind: Behind | None = None
    forward: FeedForward | None = None
    sum: Sum | None = None
    enters: tuple[str, int] | None = None
    crossed: bool = False


def find_around(
    call: Call, record: PassRecord, sources: Sequence[Passed], out: Passed, allowed: float
) -> Around | None:
    """The block around a call, None where no sum of a residual and of attention's result is met later.

    `sources` are the maps that q, k and v come from. 'post': the first norm after the output's map is given the query's
    input plus what that map made. 'pre': the norm that made the query's input, where its own input plus what the map made
    is met later (plus what runs in parallel). 'bare': the query's input itself is added.
    """
    found = (_around(call, record, source, out, allowed) for source in sources)
    return next((one for one in found if one is not None), None)


def _around(call: Call, record: PassRecord, source: Passed, out: Passed, allowed: float) -> Around | None:
    y, x = out.leaf.detach(), source.x.detach()
    if x.dim() != 3 or y.dim() != 3 or call.q.shape[0] not in y.shape[:2]:
        return None
    turned = [t.shape[0] != call.q.shape[0] for t in (x, y)]
    swapped = turned[0] != turned[1]
    x = x.transpose(0, 1) if swapped else x
    if x.shape != y.shape:
        return None
    near_by = [p for p in record.passed if call.order <= p.calls <= call.order + 1 and p is not out]
    # the next layer may lie on another device
    beside = [((p.name, p.nth), p.leaf.detach().to(y.device)) for p in near_by if p.leaf.shape == y.shape]
    later = [n for n in record.normed if n.calls > call.order and n.x.shape == y.shape]
    if later and near(later[0].x, x + y, allowed) and enters_sum(later[0].given, out.leaf):
        first, rest = later[0].x, later[1:2]
        # where the sum itself, not its norm, is the next residual, the norm belongs to the layer after
        if not any(near(n.x, first + extra.to(first), allowed) for n in rest for _, extra in beside):
            norm = measure_norm(later[0])
            where = Sum(later[0].name, later[0].nth, (out.name, out.nth), None, swapped)
            return None if norm is None else Around("post", source.name, source.nth, norm, turned[0], sum=where)
    before = [n for n in record.normed if n.calls <= call.order and same(n.y, x)]
    # the norm behind W_O is met before the sum is
    later = [n for n in record.normed if n.calls > call.order and n.x.numel() == y.numel()]
    met = [(n.name, n.nth, n.given.reshape(y.shape)) for n in later[:3]]
    next_maps = [p for p in record.passed if p.calls == call.order + 1 and p.x.numel() == y.numel()]
    met += [(p.name, p.nth, p.x.reshape(y.shape)) for p in next_maps]
    behind = [n for n in later if same(n.x, out.leaf.detach())]
    if before and (found := _find_sum(met, before[-1].x, out, behind, beside, allowed)) is not None:
        norm = measure_norm(before[-1])
        own = before[-1].name, before[-1].nth, norm, turned[1], found[0]
        return (
            None
            if norm is None
            else Around("pre", *own, sum=found[1], enters=(source.name, source.nth), crossed=swapped)
        )
    if (found := _find_sum(met, x, out, behind, beside, allowed)) is None:
        return None
    where = found[1]._replace(swapped=swapped)
    return Around("bare", source.name, source.nth, None, turned[0], found[0], sum=where)


def _find_sum(
    met: Sequence[tuple[str, int, Tensor]],
    residual: Tensor,
    out: Passed,
    norms: Sequence[Normed],
    beside: Sequence[tuple[tuple[str, int], Tensor]],
    allowed: float,
) -> tuple[Behind | None, Sum] | None:
    """What the map's result goes through before a sum with the residual that is `met` later, and that sum; None where none is.

    `met` is what entered the nth uses of modules, `norms` are those of the map's result, `beside` what other maps made.
    """
    y, use = out.leaf.detach(), (out.name, out.nth)
    extras: list[tuple[tuple[str, int] | None, Tensor | float]] = [(None, 0.0), *beside]
    for name, nth, given in met:
        if not enters_sum(given, out.leaf):
            continue
        for other, extra in extras:
            if near(given, residual + y + extra, allowed):
                return None, Sum(name, nth, use, other)
    for n in norms:
        for name, nth, given in met:
            if near(given, residual + n.y, allowed) and (norm := measure_norm(n)) is not None:
                return Behind(norm, n.name, n.nth), Sum(name, nth, use)
    for name, nth, given in met:
        if (factor := factor_of(given, out.leaf)) is None:
            continue
        for other, extra in extras:
            if near(given, residual + factor * y + extra, allowed):
                return Behind(Rescaling(factor)), Sum(name, nth, use, other)
    return None


@contextlib.contextmanager
def watch(
    model: nn.Module, name: str, around: Mapping[Address, Around], looks: bool = True
) -> Iterator[dict[Address, ResidualBlock]]:
    """Catch the residuals of one forward pass inside: a ResidualBlock for every address in `around`.

    If it `looks`, norms are compared with what was found in them, and sums with what they were on loading; raises ModelError at
    the end where one is something else.
    """
    blocks: dict[Address, ResidualBlock] = {}
    watched = _BlockWatcher(around, blocks, looks)
    # an edited pass may be rehearsed: what counts is the last
    ending = model.register_forward_hook(lambda _m, _a, _o: watched.end(), always_call=True)
    try:
        with watch_uses(model, {of for of, _ in watched.wanted}, watched.use):
            yield blocks
    finally:
        ending.remove()
    if watched.wrong:
        address, words = watched.wrong[0]
        given = f"{str(address).capitalize()} of {name} does not compute what was found on loading."
        raise ModelError(given, f"In this read {words}.", "Load the model again as it is now.")


class _BlockWatcher:
    """The uses of modules that a block is made of, in one forward pass, and what of them is not as it was on loading."""

    def __init__(self, around: Mapping[Address, Around], blocks: dict[Address, ResidualBlock], looks: bool) -> None:
        self.blocks, self.looks = blocks, looks
        self.wrong: list[tuple[Address, str]] = []
        self.uses: dict[str, int] = {}
        self.wanted: dict[tuple[str, int], list[tuple[Address, Around]]] = {}
        self._made: dict[Address, dict[tuple[str, int], Tensor]] = {}
        for address, one in around.items():
            keys = {(one.source, one.nth)}
            if looks and one.enters is not None:
                keys.add(one.enters)
            if looks and one.behind is not None and one.behind.source:
                keys.add((one.behind.source, one.behind.nth))
            if looks and one.sum is not None:
                keys |= {(one.sum.name, one.sum.nth), one.sum.out, *filter(None, [one.sum.beside])}
            for key in keys:
                self.wanted.setdefault(key, []).append((address, one))

    def end(self) -> None:
        """Count uses from none in the next pass."""
        self.uses.clear()
        self._made.clear()

    def use(self, name: str, x: Tensor, y: Tensor) -> None:
        """What entered a module, and what it made."""
        x, y = x.detach(), y.detach()
        key = name, self.uses.get(name, 0)
        self.uses[name] = key[1] + 1
        for address, one in self.wanted.get(key, ()):
            made = self._made.setdefault(address, {})
            if self.looks and one.sum is not None and key == (one.sum.name, one.sum.nth):
                self._meet(address, one, one.sum, x)
                if one.kind == "post":
                    self._compare(address, one.norm, f"{name} makes", x, y)
            if key == (one.source, one.nth):
                residual = x.clone()  # which the model may write to
                made["residual", 0] = residual
                residual = residual.transpose(0, 1) if one.turned else residual
                norm = one.norm or Rescaling(x.new_ones(x.shape[-1]))
                numbers = norm.gamma, norm.beta, norm.epsilon or 0.0, norm.centred
                after = None if one.behind is None else one.behind.rescaling
                self.blocks[address] = ResidualBlock(one.kind, residual, *numbers, after, one.forward)
                if self.looks and one.kind == "pre":
                    self._compare(address, one.norm, f"{name} makes", x, y)
                    made["normed", 0] = y.clone()
            elif key == one.enters:
                normed, entered = made.pop(("normed", 0), None), x.transpose(0, 1) if one.crossed else x
                if normed is None or not _near(normed, entered, loose(x.dtype)):
                    self.wrong.append(
                        (address, f"what enters {name} is not what {one.source} makes, as it was on loading")
                    )
            elif one.behind is not None and key == (one.behind.source, one.behind.nth):
                norm = None if one.behind.rescaling.epsilon is None else one.behind.rescaling
                self._compare(address, norm, f"{name} makes of the output of W_O", x, y)
                made["behind", 0] = y.clone()
            elif one.sum is not None and key in (one.sum.out, one.sum.beside):
                made[key] = y.clone()  # which the model may write to

    def _compare(self, address: Address, norm: Rescaling | None, what: str, x: Tensor, y: Tensor) -> None:
        """Note where a norm does not make what was found in it; where the values are no numbers others say so."""
        if norm is not None and (x.shape != y.shape or not _near(y, apply(norm, x.float()), loose(x.dtype))):
            self.wrong.append((address, f"what {what} is not what was found in it on loading"))

    def _meet(self, address: Address, one: Around, where: Sum, given: Tensor) -> None:
        made = self._made.pop(address, {})
        residual, y = made.get(("residual", 0)), made.get(("behind", 0), made.get(where.out))
        words = f"what enters {where.name} is not the sum of the residual and of what {where.out[0]} makes, as it was on loading"
        if residual is None or y is None or given.numel() != y.numel():
            self.wrong.append((address, words))
            return
        residual = residual.transpose(0, 1) if where.swapped else residual
        if one.behind is not None and not one.behind.source:
            y = y * one.behind.rescaling.gamma.to(y)
        parts = [residual.to(y.device), y]
        if where.beside is not None:
            parts.append(made.get(where.beside, torch.zeros_like(y)).to(y.device))
        kind = torch.promote_types(y.dtype, torch.float32)
        wide = torch.stack([p.to(kind) for p in parts])
        total, size = wide.sum(0), wide.abs().sum(0)
        off = (given.reshape(y.shape).to(total) - total).abs()
        kinds = [torch.finfo(p.dtype).eps for p in (*parts, given)]
        most = ROUNDED * max(kinds) * size.amax(-1, keepdim=True)
        if bool(((off > most) & off.isfinite()).any()):
            self.wrong.append((address, words))


def _near(one: Tensor, other: Tensor, allowed: float) -> bool:
    """Whether two tensors are the same to rounding, wherever both are numbers."""
    if one.numel() != other.numel():
        return False
    other = other.to(one.device)
    finite = one.flatten().isfinite() & other.flatten().isfinite()
    a, b = (torch.where(finite, t.flatten().float(), 0.0) for t in (one, other))
    return near(a, b, allowed)


NORMED = 0.02  # share of a derivative along the input that a norm's ε may leave


def find_norm_map(
    name: str, t: Tensor, use: Passed, gradient: Tensor, norms: Sequence[Normed], allowed: float
) -> tuple[Origin, NormedMap | None, PartLaw | None]:
    """What q, k or v [B H T E] is where it is no selection of a map (normed per head or as a whole, or something else), its rows and law.

    `gradient` is that of the part's first position by what the map made; `norms` are those that came before the call.
    """
    flat = gradient.reshape(-1, gradient.shape[-1])
    rows = flat.any(1).nonzero().flatten()
    _, heads, _, width = t.shape
    if len(rows) != 1:
        return Origin("mixed", f"{name} is put together from {len(rows)} positions of {use.name}"), None, None
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
    found = _the_norm(t, use, units, across, norms, allowed)
    if found is None and across:
        return Origin("normed", words, affine.parameter, affine.bias_parameter, None, affine.transposed), None, None
    origin = Origin("normed", words, affine.parameter, affine.bias_parameter, units, affine.transposed)
    if found is None:
        return origin, None, None
    norm, factors, turned, time_first = found
    normed = lambda x: apply(norm, x.flatten(1)).view_as(x) if across else apply(norm, x)  # noqa: E731
    law = PartLaw(map_law(use.name, use.nth, affine), units, factors, None, turned, time_first, normed)
    return origin, _rows_under_norm(affine, units, across, norm), law


def _blocks(t: Tensor, use: Passed, shape: torch.Size, row: int) -> list[Int[Tensor, " N"]] | None:
    """The units of a map that each head's first position depends on; None where it depends on them as no norm does."""
    first, value = t[0, :, 0, :], use.leaf.detach().reshape(shape)[row]
    weights, blocks = torch.linspace(1, 2, t.shape[3], device=t.device, dtype=t.dtype), []
    for head in first:
        (own,) = torch.autograd.grad((head * weights).sum(), use.leaf, retain_graph=True)
        own = own.reshape(shape)[row]
        # a norm does not see how long its input is: along the input itself its derivative is 0 (Euler), but for its ε
        if float((value * own).sum().abs()) > NORMED * float((value * own).abs().sum()):
            return None
        blocks.append(own.nonzero().flatten().cpu())
    return blocks


def _the_norm(
    t: Tensor, use: Passed, units: Int[Tensor, "H E"], across: bool, norms: Sequence[Normed], allowed: float
) -> tuple[Rescaling, Float[Tensor, "H E"], bool, bool] | None:
    """The norm that makes t of those units: at position 0 to the number, elsewhere as long (positions turn it), times one factor.

    Beside it that factor, whether positions turn it, and whether they come before texts in the map.
    """
    rows, heads, length, width = t.shape
    y, size = use.leaf.detach(), heads * width if across else width
    if y.reshape(-1, y.shape[-1]).shape[0] != rows * length:
        return None
    for used in reversed(norms):
        norm = measure_norm(used) if used.x.shape[-1] == size and used.x.numel() == t.numel() else None
        if norm is None:
            continue
        for time_first in (False, True):
            shape = (length, rows) if time_first else (rows, length)
            own = y.reshape(*shape, -1)[..., units.flatten().to(y.device)]
            made = apply(norm, own if across else own.unflatten(-1, (heads, width)))
            made = made.reshape(*shape, heads, width).permute((1, 2, 0, 3) if time_first else (0, 2, 1, 3))
            first, given = made[:, :, 0].double(), t.detach()[:, :, 0].double()
            factor = (first * given).sum() / first.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
            off = (first * factor - given).abs().max() / given.abs().max()
            lengths = [torch.linalg.vector_norm(x.double(), dim=-1) for x in (made, t.detach())]
            apart = (lengths[0] * factor.abs() - lengths[1]).abs().max() / lengths[1].max()
            if float(torch.maximum(off, apart)) <= max(allowed, 1e-3):
                turned = not near(t, made * factor.to(made), max(allowed, 1e-3))
                return norm, torch.full(units.shape, float(factor)), turned, time_first
    return None


def apply(norm: Rescaling, x: Tensor) -> Tensor:
    """What a norm makes of x."""
    made = standard(x, norm.epsilon, norm.centred) * norm.gamma.to(x)
    return made if norm.beta is None else made + norm.beta.to(x)


def _rows_under_norm(affine: Affine, units: Int[Tensor, "H E"], across: bool, norm: Rescaling) -> NormedMap:
    """The rows under a norm: without their mean where it subtracts it, and without those that it multiplies by 0."""
    heads, width = units.shape
    flat = units.flatten().to(affine.weight.device)
    whole = (
        affine.weight.detach()[flat]
        if affine.bias is None
        else torch.cat([affine.weight.detach()[flat], affine.bias.detach()[flat, None]], 1)
    )
    rows = whole.unflatten(0, (1, heads * width) if across else (heads, width))
    rows = rows - rows.mean(1, keepdim=True) if norm.centred else rows
    kept = (norm.gamma != 0).to(rows)
    rows = (rows * kept[:, None]).reshape(heads, width, -1).mT.cpu()
    if affine.bias is None:
        return NormedMap(rows.contiguous(), None)
    return NormedMap(rows[:, :-1].contiguous(), rows[:, -1].contiguous())


def find_forward(
    order: int, kind: str, record: PassRecord, out: Passed, allowed: float
) -> tuple[FeedForward, ForwardLaw] | None:
    """The feed-forward block behind the call of that order, and its law; None where there is none of the kind.

    Its first maps are given what the sum with attention's result became (`kind` 'post': its norm), or a norm of that;
    what the last one makes, perhaps through a norm, is added to it. All is recomputed within `allowed`.
    """
    start = next(i for i, p in enumerate(record.passed) if p is out) + 1
    later = [p for p in record.passed[start:] if p.calls == order + 1 and p.x.dim() == 3]
    norms = [n for n in record.normed if n.calls == order + 1 and n.x.dim() == 3]
    for first in later:
        maps = [p for p in later if same(p.x, first.x)]
        rest = [p for p in later if all(p is not m for m in maps)]
        if not rest or rest[0].leaf.shape != first.x.shape:
            return None
        last, inner = rest[0], _inner(maps, rest[0], allowed)
        if inner is None:
            return None
        entered = next((n for n in norms if same(n.y, first.x)), None)
        own = entered if kind != "post" else None  # behind a post-norm the norm is attention's own
        z = first.x.detach() if own is None else own.x
        return _whole(inner, last, z, own, kind, (norms, later), allowed)
    return None


_MapRows = tuple[Passed, slice]


def _inner(maps: Sequence[Passed], last: Passed, allowed: float) -> tuple[str, _MapRows, _MapRows | None] | None:
    """What makes the hidden units: the activation's name, its operand and what that is multiplied by, as rows of maps."""
    hidden = last.x.detach()
    width, cut = hidden.shape[-1], list[tuple[Passed, slice]]()
    for p in maps:
        if p.leaf.shape[-1] == width:
            cut.append((p, slice(0, width)))
        elif p.leaf.shape[-1] == 2 * width:
            cut += [(p, slice(0, width)), (p, slice(width, 2 * width))]
    if len(cut) not in (1, 2):
        return None
    values = [p.leaf.detach()[..., rows] for p, rows in cut]
    found: list[tuple[float, tuple[str, _MapRows, _MapRows | None]]] = []
    for name in NAMES:
        phi = activation(name)
        if len(cut) == 1:
            found.append((_off(phi(values[0]), hidden), (name, cut[0], None)))
        for one, other in ((0, 1), (1, 0)) if len(cut) == 2 else ():
            found.append((_off(phi(values[one]) * values[other], hidden), (name, cut[one], cut[other])))
    # GELU and its approximation are nearer to each other than rounding
    off, best = min(found, key=lambda pair: pair[0])
    return best if off <= allowed else None


def _off(made: Tensor, given: Tensor) -> float:
    return float((made - given).abs().max() / given.abs().max().clamp_min(1e-30))


def _whole(
    inner: tuple[str, _MapRows, _MapRows | None],
    last: Passed,
    z: Tensor,
    own: Normed | None,
    kind: str,
    later: tuple[Sequence[Normed], Sequence[Passed]],
    allowed: float,
) -> tuple[FeedForward, ForwardLaw] | None:
    """The block with what follows its last map; None where the sum with z is not met, or a norm is none by its numbers."""
    (name, operand, gate), (norms, maps) = inner, later
    met = [n.given for n in norms] + [p.x for p in maps]
    behind, y = None, last.leaf.detach()
    if not any(near(z + y, g, allowed) and enters_sum(g, last.leaf) for g in met if g.shape == z.shape):
        behind = next((n for n in norms if same(n.x, y)), None)
        if behind is None or not any(near(z + behind.y, g, allowed) for g in met if g.shape == z.shape):
            return None
        y = behind.y
    after = None
    if kind == "post":
        after = next((n for n in norms if n.x.shape == z.shape and near(z + y, n.x, allowed)), None)
        if after is None:
            return None
    norms = [None if n is None else measure_norm(n) for n in (own, behind, after)]
    if any(n is not None and found is None for n, found in zip((own, behind, after), norms, strict=True)):
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
    maps = tuple(map_law(p.name, p.nth, p.map()) for p in uses.values())
    (one, first_rows), other = operand, None if gate is None else ((gate[0].name, gate[0].nth), gate[1])
    block = FeedForward(name, first, bias, gate_rows, gate_bias, outer, outer_bias, *norms)
    return block, ForwardLaw(maps, name, ((one.name, one.nth), first_rows), other, (last.name, last.nth))
