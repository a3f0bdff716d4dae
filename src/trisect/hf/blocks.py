"""The residual connection and the layer norm around an attention layer, found by value and recorded as the model runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.trace import Address, FeedForward, Rescaling, ResidualBlock
from trisect.hf.affine import Normed, Passed, PassRecord, ends_of, following_parameters, is_affine
from trisect.hf.arguments import Arguments, ModelOutput, NamedArguments
from trisect.hf.calls import Call
from trisect.hf.norms import Norm, as_added, factor_of, loose, measure_norm, near, same, standard

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
    it is [T B D] there; what a 'pre' block's norm makes `enters` that use of a map. `norm` is null in a 'bare' block,
    `behind` where W_O's result is added as it is.
    """

    kind: str
    source: str
    nth: int
    norm: Norm | None
    turned: bool = False
    behind: Behind | None = None
    forward: FeedForward | None = None
    sum: Sum | None = None
    enters: tuple[str, int] | None = None


def find_around(
    call: Call, record: PassRecord, sources: Sequence[Passed], out: Passed, allowed: float
) -> Around | None:
    """The block around a call, null where no sum of a residual and of attention's result is met later.

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
    x = x.transpose(0, 1) if turned[0] != turned[1] else x
    if x.shape != y.shape:
        return None
    later = [n for n in record.normed if n.calls > call.order and n.x.shape == y.shape]
    near_by = [
        p for p in record.passed if call.order <= p.calls <= call.order + 1 and p is not out and _like(p.leaf, y)
    ]
    beside = [
        leaf.detach().to(y.device) for leaf in (p.leaf for p in near_by)
    ]  # the next layer may lie on another device
    about, swapped = (call.order, near_by, allowed), turned[0] != turned[1]
    summed = bool(later) and near(later[0].x, x + y, allowed) and as_added(later[0].given, out.leaf)
    if summed and not _goes_on(later, beside, allowed):
        norm = measure_norm(later[0])
        where = Sum(later[0].name, later[0].nth, (out.name, out.nth), None, swapped)
        return None if norm is None else Around("post", source.name, source.nth, norm, turned[0], sum=where)
    before = [n for n in record.normed if n.calls <= call.order and same(n.y, x)]
    # the norm behind W_O is met before the sum is
    later = [n for n in record.normed if n.calls > call.order and n.x.numel() == y.numel()]
    met = [_Met(n.name, n.nth, n.given.reshape(y.shape)) for n in later[:3]]
    next_maps = [p for p in record.passed if p.calls == call.order + 1 and p.x.numel() == y.numel()]
    met += [_Met(p.name, p.nth, p.x.reshape(y.shape)) for p in next_maps]
    if before and (found := _added(met, before[-1].x, out, record, about)) is not None:
        norm = measure_norm(before[-1])
        own = before[-1].name, before[-1].nth, norm, turned[1], found.behind
        return None if norm is None else Around("pre", *own, sum=found.sum, enters=(source.name, source.nth))
    found = _added(met, x, out, record, about)
    if found is None:
        return None
    where = found.sum._replace(swapped=swapped)
    return Around("bare", source.name, source.nth, None, turned[0], found.behind, sum=where)


class _Met(NamedTuple):
    """What entered the nth use of a module, in its graph."""

    name: str
    nth: int
    given: Tensor


class _Added(NamedTuple):
    """What lies between W_O and a sum, and the sum."""

    behind: Behind | None
    sum: Sum


def _added(
    met: Sequence[_Met],
    residual: Tensor,
    out: Passed,
    record: PassRecord,
    about: tuple[int, Sequence[Passed], float],
) -> _Added | None:
    """What the map's result goes through before a tensor that is met later is the residual plus that; null where none is."""
    order, beside, allowed = about
    y, use = out.leaf.detach(), (out.name, out.nth)
    extras = [(None, 0), *(((p.name, p.nth), p.leaf.detach().to(y.device)) for p in beside)]
    for name, nth, given in met:
        if not as_added(given, out.leaf):
            continue
        for other, extra in extras:
            if near(given, residual + y + extra, allowed):
                return _Added(None, Sum(name, nth, use, other))
    for n in (n for n in record.normed if n.calls > order and same(n.x, y)):
        for name, nth, given in met:
            if near(given, residual + n.y, allowed) and (norm := measure_norm(n)) is not None:
                after = Rescaling(norm.gamma, norm.beta, norm.epsilon, norm.centred)
                return _Added(Behind(after, n.name, n.nth), Sum(name, nth, use))
    for name, nth, given in met:
        if (factor := factor_of(given, out.leaf)) is None:
            continue
        for other, extra in extras:
            if near(given, residual + factor * y + extra, allowed):
                return _Added(Behind(Rescaling(factor)), Sum(name, nth, use, other))
    return None


def _like(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape


def _goes_on(later: Sequence[Normed], beside: Sequence[Tensor], allowed: float) -> bool:
    """Whether the sum itself, not its norm, is the next residual: then the norm belongs to the layer after."""
    return len(later) > 1 and any(near(later[1].x, later[0].x + extra.to(later[0].x), allowed) for extra in beside)


@contextlib.contextmanager
def watch(model: nn.Module, name: str, around: Mapping[Address, Around]) -> Iterator[dict[Address, ResidualBlock]]:
    """Catch the residuals of one forward pass inside: a ResidualBlock for every address in `around`.

    Norms are compared with what was found in them, and sums with what they were on loading; raises ModelError at the end
    where one is something else.
    """
    blocks: dict[Address, ResidualBlock] = {}
    watched = _Watched(around, blocks)
    with contextlib.ExitStack() as stack:
        modules, names = dict(model.named_modules()), {name_of for name_of, _ in watched.wanted}
        for name_of in names & modules.keys():
            hook = lambda m, a, k, out, name=name_of: watched.used(name, m, a, k, out)  # noqa: E731
            stack.callback(modules[name_of].register_forward_hook(hook, with_kwargs=True).remove)
        if bare := names - modules.keys():  # XLNet multiplies by parameters
            note = lambda n, x, y: watched.use(n, x, y) if n in bare else None  # noqa: E731
            stack.enter_context(following_parameters(model, note))
        yield blocks
    if watched.wrong:
        address, words = watched.wrong[0]
        given = f"{str(address).capitalize()} of {name} does not compute what was found on loading."
        raise ModelError(given, f"In this read {words}.", "Load the model again as it is now.")


class _Watched:
    """The uses of modules that a block is made of, in one forward pass, and what of them is not as it was on loading."""

    def __init__(self, around: Mapping[Address, Around], blocks: dict[Address, ResidualBlock]) -> None:
        self.blocks = blocks
        self.wrong: list[tuple[Address, str]] = []
        self.uses: dict[str, int] = {}
        self.wanted: dict[tuple[str, int], list[tuple[Address, Around]]] = {}
        self._made: dict[Address, dict[tuple[str, int], Tensor]] = {}
        for address, one in around.items():
            keys = {(one.source, one.nth)}
            if one.enters is not None:
                keys.add(one.enters)
            if one.behind is not None and one.behind.source:
                keys.add((one.behind.source, one.behind.nth))
            if one.sum is not None:
                keys |= {(one.sum.name, one.sum.nth), one.sum.out, *filter(None, [one.sum.beside])}
            for key in keys:
                self.wanted.setdefault(key, []).append((address, one))

    def used(self, name: str, module: nn.Module, args: Arguments, kwargs: NamedArguments, out: ModelOutput) -> None:
        """A module was used."""
        x, y = args[0] if args else next(iter(kwargs.values())), out
        if is_affine(module) and (ends := ends_of(module, args, kwargs, out)) is not None:
            x, y = ends
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            self.use(name, x.detach(), y.detach())

    def use(self, name: str, x: Tensor, y: Tensor) -> None:
        """What entered a module, and what it made."""
        key = name, self.uses.get(name, 0)
        self.uses[name] = key[1] + 1
        for address, one in self.wanted.get(key, ()):
            made = self._made.setdefault(address, {})
            if one.sum is not None and key == (one.sum.name, one.sum.nth):
                self._meet(address, one, one.sum, x)
                if one.kind == "post":
                    self._compare(address, one.norm, f"{name} makes", x, y)
            if key == (one.source, one.nth):
                self.blocks[address] = block = _block(one, x)
                made["residual", 0] = block.residual.transpose(0, 1) if one.turned else block.residual
                if one.kind == "pre":
                    self._compare(address, one.norm, f"{name} makes", x, y)
                    made["normed", 0] = y.clone()
            elif key == one.enters:
                normed = made.pop(("normed", 0), None)
                if normed is None or not _near(normed, x):
                    self.wrong.append(
                        (address, f"what enters {name} is not what {one.source} makes, as it was on loading")
                    )
            elif one.behind is not None and key == (one.behind.source, one.behind.nth):
                after = one.behind.rescaling
                norm = None if after.epsilon is None else Norm(after.gamma, after.beta, after.epsilon, after.centred)
                self._compare(address, norm, f"{name} makes of the output of W_O", x, y)
                made["behind", 0] = y.clone()
            elif one.sum is not None and key in (one.sum.out, one.sum.beside):
                made[key] = y.clone()  # which the model may write to

    def _compare(self, address: Address, norm: Norm | None, what: str, x: Tensor, y: Tensor) -> None:
        if norm is not None and not _made_so(norm, x, y):
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


def _block(around: Around, given: Tensor) -> ResidualBlock:
    x = given.detach().clone()  # which the model may write to
    x = x.transpose(0, 1) if around.turned else x
    after = None if around.behind is None else around.behind.rescaling
    if around.norm is None:
        return ResidualBlock(
            around.kind,
            x,
            torch.ones(x.shape[-1], dtype=x.dtype, device=x.device),
            None,
            0.0,
            False,
            after,
            around.forward,
        )
    gamma, beta, epsilon, centred = around.norm
    return ResidualBlock(around.kind, x, gamma, beta, epsilon, centred, after, around.forward)


def _made_so(norm: Norm, x: Tensor, y: Tensor) -> bool:
    """Whether a norm makes what was found in it; where the values are no numbers others say so."""
    if x.shape != y.shape:
        return False
    made, gamma = y.float(), norm.gamma.to(y.device, torch.float32)
    want = standard(x.float(), norm.epsilon, norm.centred) * gamma + (0.0 if norm.beta is None else norm.beta.to(gamma))
    finite = made.isfinite() & want.isfinite()
    return near(torch.where(finite, made, 0.0), torch.where(finite, want, 0.0), loose(x.dtype))


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to rounding, wherever both are numbers."""
    if one.numel() != other.numel():
        return False
    other = other.to(one.device)
    finite = one.flatten().isfinite() & other.flatten().isfinite()
    a, b = (torch.where(finite, t.flatten().float(), 0.0) for t in (one, other))
    return near(a, b, loose(other.dtype))
