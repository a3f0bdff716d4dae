"""The network of an attacker: linear layers with leaky ReLU and then batch normalisation in between, attackers side by side.

Where some tokens have no label there are two ways, equal to rounding. On a CPU they are left out. On a GPU they stay in, with a
weight of 0 in every statistic and every mean, so that no shape depends on the text and a pass can be recorded.

Axes: A attacker, I width of its input, N token, C class, W the model's width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from trisect.lm.fleet import Place

DEPTH = 5  # fully connected layers (science A4)
SLOPE = 0.01  # of the leaky ReLU
MOMENTUM, EPSILON = 0.1, 1e-5  # of batch normalisation, PyTorch's defaults
# 'learn' uses batch statistics and updates the running ones, 'judge' uses them and updates nothing, 'eval' uses the running ones
Mode = Literal["learn", "judge", "eval"]


class Running(NamedTuple):
    """Running statistics of every normalisation."""

    mean: Float[Tensor, "L A W"]
    variance: Float[Tensor, "L A W"]


class Weighted(NamedTuple):
    """Inputs and labels of a window, and each token's weight in its means; null where they count alike."""

    x: Float[Tensor, "A I N"]
    y: Int[Tensor, " N"]
    weight: Float[Tensor, " N"] | None

    def mean(self, values: Shaped[Tensor, "A N"]) -> Float[Tensor, " A"]:
        """Of each attacker, over labelled tokens."""
        values = values.to(self.x.dtype)
        return values.mean(1) if self.weight is None else torch.mv(values, self.weight)

    def total(self, values: Shaped[Tensor, "A N"]) -> Float[Tensor, " A"]:
        """The same in double precision, for truth values as well."""
        values = values.double()
        return values.mean(1) if self.weight is None else torch.mv(values, self.weight.double())


def asked(x: Float[Tensor, "A I N"], y: Int[Tensor, " N"], known: Int[Tensor, " K"], masked: bool) -> Weighted:
    """Labelled tokens alone; or, `masked`, all of them, those without a label (below 0) with a weight of 0."""
    if not masked:
        return Weighted(x[..., known], y[known], None)
    labelled = (y >= 0).to(x.dtype)
    return Weighted(x, y, labelled / labelled.sum())


def layout_of(into: int, width: int, classes: int) -> dict[str, Place]:
    """Name -> place of every parameter of one attacker."""
    places, start = {}, 0
    for n in range(1, DEPTH + 1):
        sizes = (width if n > 1 else into, classes if n == DEPTH else width)
        shapes = {f"{n}.weight": (sizes[1], sizes[0]), f"{n}.bias": (sizes[1],)}
        if n < DEPTH:
            shapes |= {f"{n}.scale": (width,), f"{n}.shift": (width,)}
        for name, shape in shapes.items():
            places[name] = Place(start, start + math.prod(shape), shape)
            start += math.prod(shape)
    return places


def start_values(places: Mapping[str, Place], draw: torch.Generator) -> Float[Tensor, " P"]:
    """One attacker before training: weights as `nn.Linear` draws them, biases 0, scales 1."""
    one = torch.zeros(max(p.stop for p in places.values()))
    for name, place in places.items():
        values = one[place.start : place.stop]
        if name.endswith("scale"):
            values.fill_(1.0)
        elif name.endswith("weight"):
            bound = 1 / math.sqrt(place.shape[1])
            values.uniform_(-bound, bound, generator=draw)
    return one


def logits(
    p: Mapping[str, Tensor],
    x: Float[Tensor, "A I N"],
    running: Running,
    mode: Mode,
    weight: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "A C N"]:
    """What each attacker says of each token."""
    for n in range(1, DEPTH):
        x = F.leaky_relu(torch.bmm(p[f"{n}.weight"], x).add_(p[f"{n}.bias"][..., None]), SLOPE)
        own = Running(running.mean[n - 1], running.variance[n - 1])
        if weight is None or mode == "eval":
            x = _normal(x, p[f"{n}.scale"], p[f"{n}.shift"], own, mode)
        else:
            x = _weighted(x, p[f"{n}.scale"], p[f"{n}.shift"], own, mode, weight)
    return torch.bmm(p[f"{DEPTH}.weight"], x).add_(p[f"{DEPTH}.bias"][..., None])


def _normal(
    x: Float[Tensor, "A W N"], scale: Float[Tensor, "A W"], shift: Float[Tensor, "A W"], running: Running, mode: Mode
) -> Float[Tensor, "A W N"]:
    """Batch normalisation; each attacker's units are channels of their own, so one call normalises all and mixes none."""
    return F.batch_norm(
        x.view(1, -1, x.shape[-1]),
        None if mode == "judge" else running.mean.view(-1),
        None if mode == "judge" else running.variance.view(-1),
        scale.reshape(-1),
        shift.reshape(-1),
        training=mode != "eval",
        momentum=MOMENTUM,
        eps=EPSILON,
    ).view_as(x)


def _weighted(
    x: Float[Tensor, "A W N"],
    scale: Float[Tensor, "A W"],
    shift: Float[Tensor, "A W"],
    running: Running,
    mode: Mode,
    weight: Float[Tensor, " N"],
) -> Float[Tensor, "A W N"]:
    """The same by weighted statistics; with equal weights the unbiased variance is the biased one times n / (n - 1)."""
    mean = x @ weight
    centred = x - mean[..., None]
    variance = centred.square() @ weight
    if mode == "learn":
        unbiased = variance.detach() / (1 - weight.square().sum())
        running.mean.lerp_(mean.detach(), MOMENTUM)
        running.variance.lerp_(unbiased, MOMENTUM)
    return torch.addcmul(shift[..., None], centred, (scale * (variance + EPSILON).rsqrt())[..., None])
