"""The residual connection and the layer norm around an attention layer, found by value and recorded as the model runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.trace import Address, FeedForward, Rescaling, ResidualBlock
from trisect.hf.affine import Normed, Passed, PassRecord, following_parameters
from trisect.hf.calls import Call
from trisect.hf.norms import Norm, as_added, factor_of, loose, measure_norm, near, same, standard


class Behind(NamedTuple):
    """What lies between W_O and the residual sum: the nth use of a norm, or a factor for each dimension without a module."""

    rescaling: Rescaling
    source: str = ""
    nth: int = 0


class Around(NamedTuple):
    """The norm and the residual around attention, and where they are met: the nth use of a module, from 0.

    The residual is what enters `source`: the norm itself in a 'pre' block, a projection in the others; `turned` where
    it is [T B D] there. `norm` is null in a 'bare' block, `behind` where W_O's result is added as it is.
    """

    kind: str
    source: str
    nth: int
    norm: Norm | None
    turned: bool = False
    behind: Behind | None = None
    forward: FeedForward | None = None


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
    beside = [p.leaf.detach() for p in record.passed if call.order <= p.calls <= call.order + 1 and _like(p.leaf, y)]
    beside = [leaf.to(y.device) for leaf in beside]  # the next layer may lie on another device
    summed = bool(later) and near(later[0].x, x + y, allowed) and as_added(later[0].given, out.leaf)
    if summed and not _goes_on(later, beside, allowed):
        norm = measure_norm(later[0])
        return None if norm is None else Around("post", source.name, source.nth, norm, turned[0])
    before = [n for n in record.normed if n.calls <= call.order and same(n.y, x)]
    # the norm behind W_O is met before the sum is
    sums = [n.given for n in record.normed if n.calls > call.order and n.x.numel() == y.numel()][:3]
    sums += [p.x for p in record.passed if p.calls == call.order + 1 and p.x.numel() == y.numel()]
    met = [given.reshape(y.shape) for given in sums]
    about = call.order, beside, allowed
    if before and (found := _added(met, before[-1].x, out, record, about)) is not None:
        norm = measure_norm(before[-1])
        return None if norm is None else Around("pre", before[-1].name, before[-1].nth, norm, turned[1], found[0])
    found = _added(met, x, out, record, about)
    return None if found is None else Around("bare", source.name, source.nth, None, turned[0], found[0])


def _added(
    met: Sequence[Tensor],
    residual: Tensor,
    out: Passed,
    record: PassRecord,
    about: tuple[int, Sequence[Tensor], float],
) -> tuple[Behind | None] | None:
    """What the map's result goes through before a tensor that is met later is the residual plus that; null where none is."""
    order, beside, allowed = about
    y = out.leaf.detach()
    if any(near(g, residual + y + extra, allowed) and as_added(g, out.leaf) for g in met for extra in (0, *beside)):
        return (None,)
    for n in (n for n in record.normed if n.calls > order and same(n.x, y)):
        if any(near(g, residual + n.y, allowed) for g in met) and (norm := measure_norm(n)) is not None:
            return (Behind(Rescaling(norm.gamma, norm.beta, norm.epsilon, norm.centred), n.name, n.nth),)
    for given in met:
        factor = factor_of(given, out.leaf)
        if factor is not None and any(near(given, residual + factor * y + extra, allowed) for extra in (0, *beside)):
            return (Behind(Rescaling(factor)),)
    return None


def _like(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape


def _goes_on(later: Sequence[Normed], beside: Sequence[Tensor], allowed: float) -> bool:
    """Whether the sum itself, not its norm, is the next residual: then the norm belongs to the layer after."""
    return len(later) > 1 and any(near(later[1].x, later[0].x + extra.to(later[0].x), allowed) for extra in beside)


@contextlib.contextmanager
def watch(model: nn.Module, name: str, around: Mapping[Address, Around]) -> Iterator[dict[Address, ResidualBlock]]:
    """Catch the residuals of one forward pass inside: a ResidualBlock for every address in `around`.

    Norms behind W_O are compared with what was found in them; raises ModelError at the end where one makes something else.
    """
    wanted: dict[str, dict[int, tuple[Address, Around]]] = {}
    for address, one in around.items():
        wanted.setdefault(one.source, {})[one.nth] = (address, one)
    behind = {(b.source, b.nth): (a, b) for a, one in around.items() if (b := one.behind) is not None and b.source}
    blocks: dict[Address, ResidualBlock] = {}
    uses, normed, wrong = dict.fromkeys(wanted, 0), dict.fromkeys((key[0] for key in behind), 0), []

    def catch(name: str, given: Tensor) -> None:
        if uses[name] in wanted[name]:
            address, block = wanted[name][uses[name]]
            blocks[address] = _block(block, given)
        uses[name] += 1

    def compare(name: str, given: Tensor, made: Any) -> None:
        known = behind.get((name, normed[name]))
        normed[name] += 1
        if known is not None and not _made_so(known[1].rescaling, given, made):
            wrong.append((known[0], name))

    with contextlib.ExitStack() as stack:
        modules = dict(model.named_modules())
        for name_of in wanted.keys() & modules.keys():
            hook = lambda _m, a, k, name=name_of: catch(name, a[0] if a else next(iter(k.values())))  # noqa: E731
            stack.callback(modules[name_of].register_forward_pre_hook(hook, with_kwargs=True).remove)
        for name_of in normed.keys() & modules.keys():
            after = lambda _m, a, out, name=name_of: compare(name, a[0], out)  # noqa: E731
            stack.callback(modules[name_of].register_forward_hook(after).remove)
        if bare := wanted.keys() - modules.keys():  # XLNet multiplies by parameters
            stack.enter_context(following_parameters(model, lambda n, x, _y: catch(n, x) if n in bare else None))
        yield blocks
    if wrong:
        address, module = wrong[0]
        given = f"{str(address).capitalize()} of {name} does not compute what was found on loading."
        known = f"In this read what {module} makes of the output of W_O is not what was found in it on loading."
        raise ModelError(given, known, "Load the model again as it is now.")


def _block(around: Around, given: Tensor) -> ResidualBlock:
    x = given.detach()
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


def _made_so(rescaling: Rescaling, given: Tensor, made: Any) -> bool:
    """Whether a norm makes what was found in it, at the first and last positions; where the values are no numbers others say so."""
    if not isinstance(made, Tensor) or made.shape != given.shape or rescaling.epsilon is None:
        return False
    x, y = (t.detach().reshape(-1, t.shape[-1])[[0, -1]].float() for t in (given, made))
    gamma, beta = rescaling.gamma.to(x), 0.0 if rescaling.beta is None else rescaling.beta.to(x)
    want = standard(x, rescaling.epsilon, rescaling.centred) * gamma + beta
    return not bool(torch.isfinite(y).all()) or near(want, y, loose(given.dtype))
