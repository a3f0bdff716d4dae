"""Norms of a model by their numbers, and whether what one tensor holds is added to another as it is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trisect.core.memory import pass_memory
from trisect.hf.affine import Normed

EPSILONS = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
# what a module says that has a norm's name, and was made for inputs of another shape
UNFIT = (RuntimeError, ValueError, TypeError, IndexError)


class Norm(NamedTuple):
    """A layer norm's numbers: γ (x − mean) / sqrt(var + ε) + β, without the mean where it is not centred."""

    gamma: Tensor
    beta: Tensor | None
    epsilon: float
    centred: bool


def near(a: Tensor, b: Tensor, allowed: float) -> bool:
    """Whether two tensors differ by no more than a share of the first one's largest value."""
    a, b = a.detach(), b.detach().to(a.device)
    return float((a - b).abs().max()) <= allowed * float(a.abs().max())


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, be they of layers on several devices."""
    return a.shape == b.shape and torch.equal(a.detach(), b.detach().to(a.device))


def as_added(given: Tensor, leaf: Tensor) -> bool:
    """Whether a leaf is added to a sum as it is. Values alone do not say so: beside a large residual anything is rounding."""
    factor = factor_of(given, leaf)
    return factor is not None and bool(((factor - 1).abs() <= 1e-3).all())


def factor_of(given: Tensor, leaf: Tensor) -> Tensor | None:
    """The number that each dimension of a leaf is multiplied by in a sum, alike at every position; null where it is not."""
    if not given.requires_grad:
        return None
    draw = torch.Generator().manual_seed(0)
    mixed = (1 + torch.rand(given.shape, generator=draw)).to(given)
    (gradient,) = torch.autograd.grad((given * mixed).sum(), leaf, retain_graph=True, allow_unused=True)
    if gradient is None or gradient.shape != mixed.shape:
        return None
    each = (gradient / mixed.to(gradient)).flatten(0, -2)
    factor = each.mean(0)
    alike = bool(((each - factor).abs().max() <= 1e-3 * factor.abs().max()).item())
    return factor.detach() if alike and bool(factor.any()) else None


@torch.no_grad()
def measure_norm(used: Normed) -> Norm | None:
    """A norm's numbers by feeding it zeros and alternating ones; null where they do not give back what it gave."""
    width, like = used.x.shape[-1], used.x
    zeros, ones = like.new_zeros(1, 1, width), like.new_ones(1, 1, width)
    ones[..., 1::2] = -1
    epsilon = next((float(e) for n in EPSILONS if isinstance(e := getattr(used.module, n, None), float)), 1e-6)
    try:
        shift, plain = used.module(zeros)[0, 0], used.module(ones)[0, 0]
    except UNFIT as error:
        pass_memory(error)
        return None
    for centred in (True, False):
        gamma = (plain - shift) / standard(ones, epsilon, centred)[0, 0]
        made = standard(like, epsilon, centred) * gamma + shift
        # ε counts where a row is small; where the module has it under another name this comparison fails
        if near(made, used.y, loose(like.dtype)):
            beta = shift.detach() if shift.any() else None
            return Norm(gamma.detach(), beta, epsilon, centred)
    return None


def standard(x: Tensor, epsilon: float, centred: bool) -> Tensor:
    """x over the root of its mean square, without its mean where it is centred."""
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


def loose(kind: torch.dtype) -> float:
    """What share of a norm's result is rounding."""
    return 1e-3 if kind in (torch.float32, torch.float64) else 5e-2
