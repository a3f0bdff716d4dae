"""The attackers of a fleet: one small classifier a member, predicting the next word's label at a site.

Axes: A attacker, I width of its input, N token, C class; F, B, T, W as in fleet.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.edits import Edit
from trisect.core.spec import Model
from trisect.lm.controls import control_labels, label_prior
from trisect.lm.fleet import Block, Place, generator, views
from trisect.lm.places import push, representation, width_of
from trisect.text.corpus import Corpus

DEPTH = 5  # fully connected layers (science A4)
SLOPE = 0.01  # of the leaky ReLU
RATE = 1e-3  # of AdamW


class Verdicts(NamedTuple):
    """An attacker's cross-entropy in nats and its correctness on each labelled token."""

    loss: Float[Tensor, "A N"]
    correct: Tensor


@dataclass(frozen=True)
class Target:
    """One fleet member under attack: its slot and its edit (resolved site, label column, strength)."""

    slot: int
    edit: Edit


def _layout(into: int, width: int, classes: int) -> dict[str, Place]:
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


class Attackers:
    """All attackers of one fleet that do the same to equally wide representations for the same label, side by side.

    Each is `DEPTH` linear layers with leaky ReLU and then batch normalisation in between; width = the model's.
    Tokens without a label are left out altogether, of the batch statistics too.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        model: Model,
        corpus: Corpus,
        seed: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        self.targets, self.model = tuple(targets), model
        self.label, self.variant = targets[0].edit.label or "", targets[0].edit.variant
        classes = len(corpus.column(self.label))
        self.prior = torch.from_numpy(label_prior(corpus, self.label)).to(device, dtype)
        self.chance = control_labels(corpus, self.label, seed) if self.variant == "control" else None
        self.drawn = None if self.chance is None else torch.from_numpy(self.chance.of_type).to(device)
        places = _layout(width_of(targets[0].edit.site, model), model.width, classes)
        one = torch.zeros(max(p.stop for p in places.values()))
        draw = generator("adversary", seed)
        for name, place in places.items():
            values = one[place.start : place.stop]
            if name.endswith("scale"):
                values.fill_(1.0)
            elif name.endswith("weight"):
                bound = 1 / math.sqrt(place.shape[1])
                values.uniform_(-bound, bound, generator=draw)
        self.flat = one.to(device, dtype).repeat(len(targets), 1)
        self.places = places
        self.mean = torch.zeros(DEPTH - 1, len(targets), model.width, device=device, dtype=dtype)
        self.variance = torch.ones_like(self.mean)
        self.optimizer = torch.optim.AdamW([self.flat], lr=RATE, fused=True)

    def answers(self, targets: Int[Tensor, " N"], labels: Mapping[str, Int[Tensor, " N"]]) -> Int[Tensor, " N"]:
        """What is to be predicted of those next words: their labels, or the control labels of those that have one."""
        y = labels[self.label]
        return y if self.drawn is None else torch.where(y >= 0, self.drawn[targets], y)

    @property
    def strength(self) -> Float[Tensor, " A"]:
        """The λ of each attack."""
        return torch.tensor([t.edit.strength for t in self.targets], device=self.flat.device, dtype=self.flat.dtype)

    def gather(self, kept: Mapping[Block, Tensor]) -> Float[Tensor, "A I N"]:
        """Each attacker's input, one column a token."""
        return torch.stack([representation(kept, t.slot, t.edit.site, self.model) for t in self.targets])

    def scatter(self, gradient: Float[Tensor, "A I N"], into: Mapping[Block, Tensor]) -> None:
        """Add each attacker's gradient to the gradients of the blocks at its own site and member."""
        for own, target in zip(gradient, self.targets, strict=True):
            push(own, into, target.slot, target.edit.site, self.model)

    def _logits(self, p: Mapping[str, Tensor], x: Float[Tensor, "A I N"], mode: str) -> Float[Tensor, "A C N"]:
        """`mode`: 'learn' uses batch statistics and updates the running ones, 'judge' uses them and updates nothing,
        'eval' uses the running ones.
        """
        for n in range(1, DEPTH):
            x = F.leaky_relu(torch.bmm(p[f"{n}.weight"], x).add_(p[f"{n}.bias"][..., None]), SLOPE)
            # each attacker's units are channels of their own, so one call normalises all attackers and mixes none
            x = F.batch_norm(
                x.view(1, -1, x.shape[-1]),
                None if mode == "judge" else self.mean[n - 1].view(-1),
                None if mode == "judge" else self.variance[n - 1].view(-1),
                p[f"{n}.scale"].reshape(-1),
                p[f"{n}.shift"].reshape(-1),
                training=mode != "eval",
            ).view_as(x)
        return torch.bmm(p[f"{DEPTH}.weight"], x).add_(p[f"{DEPTH}.bias"][..., None])

    def learn(self, x: Float[Tensor, "A I N"], y: Int[Tensor, " N"]) -> Verdicts | None:
        """One step on each attacker's own cross-entropy, representations held still; null without two labelled tokens."""
        known = (y >= 0).nonzero()[:, 0]
        if len(known) < 2:
            return None
        leaves = {n: v.detach().requires_grad_() for n, v in views(self.flat, self.places).items()}
        verdicts = _judge(self._logits(leaves, x[..., known], "learn"), y[known])
        gradients = torch.autograd.grad(verdicts.loss.mean(1).sum(), list(leaves.values()))
        self.flat.grad = torch.cat([g.flatten(1) for g in gradients], 1)
        self.optimizer.step()
        return Verdicts(verdicts.loss.detach(), verdicts.correct)

    def push(self, x: Float[Tensor, "A I N"], y: Int[Tensor, " N"]) -> Float[Tensor, "A I N"]:
        """Gradient of −λ·CE(A(x), y) with respect to x, attackers held still (science A4).

        Where the attack is bounded, that of λ·KL(prior ‖ A(x)).
        """
        known = (y >= 0).nonzero()[:, 0]
        leaf = x.detach().requires_grad_()
        if len(known) < 2:
            return torch.zeros_like(x)
        logits = self._logits(views(self.flat, self.places), leaf[..., known], "judge")
        if self.variant == "bounded":
            return torch.autograd.grad((self.strength * divergence(logits, self.prior).mean(1)).sum(), leaf)[0]
        loss = _judge(logits, y[known]).loss.mean(1)
        return torch.autograd.grad(-(self.strength * loss).sum(), leaf)[0]

    def judge(self, x: Float[Tensor, "A I N"], y: Int[Tensor, " N"]) -> Verdicts:
        """Loss and correctness on labelled tokens in evaluation mode (running batch statistics)."""
        known = (y >= 0).nonzero()[:, 0]
        with torch.no_grad():
            return _judge(self._logits(views(self.flat, self.places), x[..., known], "eval"), y[known])

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, for a snapshot."""
        moments = self.optimizer.state[self.flat]
        return {"flat": self.flat, "mean": self.mean, "variance": self.variance} | {
            f"optimizer.{k}": v for k, v in moments.items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a snapshot."""
        for name, value in (("flat", self.flat), ("mean", self.mean), ("variance", self.variance)):
            value.copy_(state[name])
        restore_optimizer(self.optimizer, self.flat, state)


def divergence(logits: Float[Tensor, "A C N"], prior: Float[Tensor, " C"]) -> Float[Tensor, "A N"]:
    """KL(prior ‖ softmax(logits)) of each token, in nats: 0 where the output is the prior, and nowhere less."""
    return torch.special.xlogy(prior, prior).sum() - torch.einsum("c,acn->an", prior, F.log_softmax(logits, 1))


def _judge(logits: Float[Tensor, "A C N"], y: Int[Tensor, " N"]) -> Verdicts:
    loss = F.cross_entropy(logits, y.expand(logits.shape[0], -1), reduction="none")
    return Verdicts(loss, logits.detach().argmax(1) == y)


def restore_optimizer(optimizer: torch.optim.Optimizer, flat: Tensor, state: Mapping[str, Tensor]) -> None:
    """Put back the moments that a snapshot holds under 'optimizer.'."""
    moments = {k.removeprefix("optimizer."): v.clone() for k, v in state.items() if k.startswith("optimizer.")}
    if moments:
        optimizer.state[flat] = {k: v.to(flat.device) for k, v in moments.items()}


def attackers(
    targets: Sequence[Target],
    model: Model,
    corpus: Corpus,
    seed: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> list[Attackers]:
    """Group a fleet's targets by label, variant and width of representation; one `Attackers` a group, in order of slot."""
    groups: dict[tuple[str, str, int], list[Target]] = {}
    for target in targets:
        edit = target.edit
        groups.setdefault((edit.label or "", edit.variant, width_of(edit.site, model)), []).append(target)
    return [Attackers(group, model, corpus, seed, device, dtype) for group in groups.values()]
