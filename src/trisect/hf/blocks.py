"""The residual connection and the layer norm around an attention layer, found by value and recorded as the model runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trisect.core.trace import Address, ResidualBlock
from trisect.hf.affine import Normed, Passed, PassRecord, following_parameters
from trisect.hf.calls import Call

EPSILONS = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")


class Norm(NamedTuple):
    """A layer norm's numbers: γ (x − mean) / sqrt(var + ε) + β, without the mean where it is not centred."""

    gamma: Tensor
    beta: Tensor | None
    epsilon: float
    centred: bool


class Around(NamedTuple):
    """The norm and the residual around attention, and where they are met: the nth use of a module, from 0.

    The residual is what enters `source`: the norm itself in a 'pre' block, the query's projection in a 'post' block;
    `turned` where it is [T B D] there.
    """

    kind: str
    source: str
    nth: int
    norm: Norm
    turned: bool = False


def find_around(call: Call, record: PassRecord, query: Passed, out: Passed, allowed: float) -> Around | None:
    """The block around a call, null where it is neither LN(x + attention(x)) nor x + attention(LN(x)).

    'post': the first norm after the output's map is given the query's input plus what that map made. 'pre': the norm
    that made the query's input, where its own input plus what the map made is met later (plus what runs in parallel).
    """
    y, x = out.leaf.detach(), query.x.detach()
    if x.dim() != 3 or y.dim() != 3 or call.q.shape[0] not in y.shape[:2]:
        return None
    turned = [t.shape[0] != call.q.shape[0] for t in (x, y)]
    x = x.transpose(0, 1) if turned[0] != turned[1] else x
    if x.shape != y.shape:
        return None
    later = [n for n in record.normed if n.calls > call.order and n.x.shape == y.shape]
    beside = [p.leaf.detach() for p in record.passed if call.order <= p.calls <= call.order + 1 and _like(p.leaf, y)]
    if later and _near(later[0].x, x + y, allowed) and not _goes_on(later, beside, allowed):
        norm = measure_norm(later[0])
        return None if norm is None else Around("post", query.name, query.nth, norm, turned[0])
    before = [n for n in record.normed if n.calls <= call.order and n.y.shape == x.shape and torch.equal(n.y, x)]
    if not before:
        return None
    residual = before[-1].x
    total = residual + y
    flat = [n.x.reshape(y.shape) for n in record.normed if n.calls > call.order and n.x.numel() == y.numel()]
    met = flat[:2] + [p.x.detach() for p in record.passed if p.calls == call.order + 1]
    for given in met:
        if _like(given, y) and any(_near(given, total + extra, allowed) for extra in (0, *beside)):
            norm = measure_norm(before[-1])
            return None if norm is None else Around("pre", before[-1].name, before[-1].nth, norm, turned[1])
    return None


def _like(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape


def _goes_on(later: Sequence[Normed], beside: Sequence[Tensor], allowed: float) -> bool:
    """Whether the sum itself, not its norm, is the next residual: then the norm belongs to the layer after."""
    return len(later) > 1 and any(_near(later[1].x, later[0].x + extra, allowed) for extra in beside)


def _near(a: Tensor, b: Tensor, allowed: float) -> bool:
    return float((a - b).abs().max()) <= allowed * float(a.abs().max())


@torch.no_grad()
def measure_norm(used: Normed) -> Norm | None:
    """A norm's numbers by feeding it zeros and alternating ones; null where they do not give back what it gave."""
    width, like = used.x.shape[-1], used.x
    zeros, ones = like.new_zeros(1, 1, width), like.new_ones(1, 1, width)
    ones[..., 1::2] = -1
    epsilon = next((float(e) for n in EPSILONS if isinstance(e := getattr(used.module, n, None), float)), 1e-6)
    shift = used.module(zeros)[0, 0]
    for centred in (True, False):
        gamma = (used.module(ones)[0, 0] - shift) / _standard(ones, epsilon, centred)[0, 0]
        made = _standard(like, epsilon, centred) * gamma + shift
        # ε counts where a row is small; where the module has it under another name this comparison fails
        if _near(made, used.y, 1e-3 if like.dtype in (torch.float32, torch.float64) else 5e-2):
            beta = shift.detach().cpu() if shift.any() else None
            return Norm(gamma.detach().cpu(), beta, epsilon, centred)
    return None


def _standard(x: Tensor, epsilon: float, centred: bool) -> Tensor:
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


@contextlib.contextmanager
def watch(model: nn.Module, around: Mapping[Address, Around]) -> Iterator[dict[Address, ResidualBlock]]:
    """Catch the residuals of one forward pass inside: a ResidualBlock for every address in `around`, on the CPU."""
    wanted: dict[str, dict[int, tuple[Address, Around]]] = {}
    for address, one in around.items():
        wanted.setdefault(one.source, {})[one.nth] = (address, one)
    blocks: dict[Address, ResidualBlock] = {}
    uses = dict.fromkeys(wanted, 0)

    def catch(name: str, given: Tensor) -> None:
        if uses[name] in wanted[name]:
            address, block = wanted[name][uses[name]]
            x = given.detach().cpu()
            x = x.transpose(0, 1) if block.turned else x
            gamma, beta, epsilon, centred = block.norm
            blocks[address] = ResidualBlock(block.kind, x, gamma, beta, epsilon, centred)
        uses[name] += 1

    with contextlib.ExitStack() as stack:
        modules = dict(model.named_modules())
        for name in wanted.keys() & modules.keys():
            hook = lambda _m, a, k, name=name: catch(name, a[0] if a else next(iter(k.values())))  # noqa: E731
            stack.callback(modules[name].register_forward_pre_hook(hook, with_kwargs=True).remove)
        if bare := wanted.keys() - modules.keys():  # XLNet multiplies by parameters
            stack.enter_context(following_parameters(model, lambda n, x, _y: catch(n, x) if n in bare else None))
        yield blocks
