"""The attackers of a fleet: one small classifier a member, predicting the next word's label at a site.

Axes: A attacker, I width of its input, N token, C class; F, B, T, W as in fleet.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from trisect.core.errors import CorpusError
from trisect.core.printable import percent
from trisect.core.site import Site
from trisect.lm.feed import label_positions
from trisect.lm.fleet import Block, Place, Representations, derive_seed, generator, views, width_of
from trisect.lm.train import moments, restore_moments
from trisect.lm.training_edit import Aim, Reach, Trained
from trisect.text.corpus import Corpus

DEPTH = 5  # fully connected layers (definitions A4)
SLOPE = 0.01  # of the leaky ReLU
MOMENTUM, EPSILON = 0.1, 1e-5  # of batch normalisation, PyTorch's defaults
# 'learn' uses batch statistics and updates the running ones, 'judge' uses them and updates nothing, 'eval' uses the running ones
Mode = Literal["learn", "judge", "eval"]


class Weighted(NamedTuple):
    """Inputs and labels of a window, and each token's weight in its means; None where they count alike."""

    x: Float[Tensor, "A I N"]
    y: Int[Tensor, " N"]
    weight: Float[Tensor, " N"] | None

    def mean(self, values: Shaped[Tensor, "A N"]) -> Float[Tensor, " A"]:
        """Of each attacker, over labelled tokens."""
        return values.mean(1) if self.weight is None else torch.mv(values, self.weight.to(values))


def _weigh_labels(x: Float[Tensor, "A I N"], y: Int[Tensor, " N"], known: Tensor, masked: bool) -> Weighted:
    """Labelled tokens alone; or, `masked`, all of them, those without a label (below 0) with a weight of 0."""
    if not masked:
        return Weighted(x[..., known], y[known], None)
    labelled = (y >= 0).to(x.dtype)
    return Weighted(x, y, labelled / labelled.sum())


NEAR = 0.05  # total variation distance that control labels stay under (definitions A4)
ROUNDS = 40  # draws of all types
REDRAWS = 5_000  # of single types in each round


def label_prior(corpus: Corpus, column: str, of_type: Int[np.ndarray, " V"] | None = None) -> Float[np.ndarray, " C"]:
    """The share of each class among the labelled tokens of the train split; by `of_type`, of the labels of word types."""
    split = corpus.splits["train"]
    labels = split.labels[column]
    labelled = np.asarray(labels)[labels >= 0] if of_type is None else of_type[_tokens_with_label(corpus, column)]
    return np.bincount(labelled, minlength=len(corpus.column(column))) / len(labelled)


def _tokens_with_label(corpus: Corpus, column: str) -> Int[np.ndarray, " N"]:
    split = corpus.splits["train"]
    return np.asarray(split.tokens)[np.asarray(split.labels[column]) >= 0]


def control_labels(corpus: Corpus, column: str, seed: int) -> tuple[Int[np.ndarray, " V"], float]:
    """A label for each word type, drawn from the label prior (Hewitt and Liang 2019); a function of column and seed.

    Also how far their shares of train tokens are from those of true labels.

    Types are redrawn, one at a time and frequent ones more often, wherever that brings the shares of labels among the
    labelled train tokens closer to the prior, until their total variation distance is under NEAR; where that never
    happens all types are drawn again. Raises CorpusError when it is not reached.
    """
    prior, labelled = label_prior(corpus, column), _tokens_with_label(corpus, column)
    weights = np.bincount(labelled, minlength=len(corpus.vocabulary)) / len(labelled)
    draw = np.random.default_rng(derive_seed("control", column, seed))
    nearest = 1.0
    for _ in range(ROUNDS):
        labels = _pick(prior, draw.random(len(weights)))
        gap = np.bincount(labels, weights, len(prior)) - prior
        distance = float(np.abs(gap).sum() / 2)
        types, fresh = _pick(weights, draw.random(REDRAWS)), _pick(prior, draw.random(REDRAWS))
        for word, label in zip(types.tolist(), fresh.tolist(), strict=True):
            if distance < NEAR:
                break
            changed = gap.copy()
            changed[labels[word]] -= weights[word]
            changed[label] += weights[word]
            closer = float(np.abs(changed).sum() / 2)
            if closer < distance:
                labels[word], gap, distance = label, changed, closer
        # counted again: sums of many small steps round
        distance = float(np.abs(np.bincount(labels, weights, len(prior)) - prior).sum() / 2)
        if distance < NEAR:
            return labels, distance
        nearest = min(nearest, distance)
    top = int(weights.argmax())
    known = (
        f"The nearest to the true labels' shares had a total variation distance of {nearest:.2f}, and under {NEAR} is "
        f"needed; {corpus.vocabulary[top]!r} alone is {percent(weights[top])} of the labelled train tokens."
    )
    todo = "Leave out the variant 'control', or use a longer text with more word types."
    raise CorpusError(f"There are no control labels for the column '{column}' of '{corpus.name}'.", known, todo)


def _pick(shares: Float[np.ndarray, " C"], uniform: Float[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Numbers from 0 on, each as likely as its share, by their cumulative shares."""
    edges = np.cumsum(shares)
    return np.searchsorted(edges / edges[-1], uniform, side="right")


RATE = 1e-3  # of AdamW
NAMES = ("adversary_loss_nats", "adversary_accuracy")


@dataclass(frozen=True)
class Target:
    """One fleet member under attack: its slot, the resolved site, the label column and the strength λ.

    `drawn`: the labels are those that word types drew by chance. `aim`: the model pushes the adversary's output away from
    the right label, or towards the label prior. `reach`: what that trains.
    """

    slot: int
    site: Site
    label: str
    strength: float
    drawn: bool
    aim: Aim
    reach: Reach


class Attackers:
    """All attackers of one fleet that do the same to equally wide representations for the same label, side by side.

    Each is `DEPTH` linear layers with leaky ReLU and then batch normalisation in between; width = the model's.
    Tokens without a label count for nothing, in the batch statistics too: left out, or where `masked` is set weighted by 0, so
    that shapes stay the same and a pass can be recorded (`lm/classifier.py`). It is set off the CPU.
    """

    def __init__(self, targets: Sequence[Target], fleet: Trained) -> None:
        model, corpus, seed, device, dtype = fleet
        self.targets, self.model = tuple(targets), model
        first = targets[0]
        self.label = first.label
        self.aim: Aim = first.aim
        self.reach: Reach = first.reach
        classes = len(corpus.column(self.label))
        of_type, self.control_distance = control_labels(corpus, self.label, seed) if first.drawn else (None, 0.0)
        self.control = None if of_type is None else torch.from_numpy(of_type).to(device)
        prior = label_prior(corpus, self.label, of_type)
        self.prior = torch.from_numpy(prior).to(device, dtype)
        into = width_of(first.site, model)
        # where one attacker's parameters lie, and their values [P] before training: weights as `nn.Linear` draws them
        draw = generator("adversary", seed)
        places, values, start = {}, [], 0
        for n in range(1, DEPTH + 1):
            rows, columns = classes if n == DEPTH else model.width, model.width if n > 1 else into
            bound = 1 / math.sqrt(columns)
            layer = {
                f"{n}.weight": torch.empty(rows, columns).uniform_(-bound, bound, generator=draw),
                f"{n}.bias": torch.zeros(rows),
            }
            if n < DEPTH:
                layer |= {f"{n}.scale": torch.ones(model.width), f"{n}.shift": torch.zeros(model.width)}
            for name, value in layer.items():
                places[name] = Place(start, start + value.numel(), tuple(value.shape))
                start += value.numel()
                values.append(value.flatten())
        self.places = places
        self.flat = torch.cat(values).to(device, dtype).repeat(len(targets), 1)
        self.strength = torch.tensor([t.strength for t in targets], device=device, dtype=dtype)  # the λ of each attack
        self.mean = torch.zeros(DEPTH - 1, len(targets), model.width, device=device, dtype=dtype)
        self.variance = torch.ones_like(self.mean)
        self.read = Representations([(t.slot, t.site) for t in targets], model, device)
        self.masked = self.flat.device.type != "cpu"
        self.optimizer = torch.optim.AdamW([self.flat], lr=RATE, fused=True, capturable=self.flat.is_cuda)

    @property
    def sites(self) -> list[Site]:
        """The attacked sites."""
        return [t.site for t in self.targets]

    @property
    def columns(self) -> tuple[str]:
        """The label column."""
        return (self.label,)

    def answers(self, targets: Int[Tensor, " N"], labels: Mapping[str, Int[Tensor, " N"]]) -> Int[Tensor, " N"]:
        """What is to be predicted of those next words: their labels, or the control labels of those that have one."""
        y = labels[self.label]
        return y if self.control is None else torch.where(y >= 0, self.control[targets], y)

    def _logits(self, p: Mapping[str, Tensor], inputs: Weighted, mode: Mode) -> Float[Tensor, "A C N"]:
        """What each attacker predicts of each token."""
        x, weight = inputs.x, inputs.weight
        for n in range(1, DEPTH):
            x = F.leaky_relu(torch.bmm(p[f"{n}.weight"], x).add_(p[f"{n}.bias"][..., None]), SLOPE)
            scale, shift = p[f"{n}.scale"], p[f"{n}.shift"]
            mean, variance = self.mean[n - 1], self.variance[n - 1]
            if weight is None or mode == "eval":
                running = (None, None) if mode == "judge" else (mean.view(-1), variance.view(-1))
                # each attacker's units are channels of their own, so one call normalises all and mixes none
                x = F.batch_norm(
                    x.view(1, -1, x.shape[-1]),
                    *running,
                    scale.reshape(-1),
                    shift.reshape(-1),
                    training=mode != "eval",
                    momentum=MOMENTUM,
                    eps=EPSILON,
                ).view_as(x)
                continue
            of_batch = x @ weight
            centred = x - of_batch[..., None]
            spread = centred.square() @ weight
            if mode == "learn":
                # with equal weights the unbiased variance is the biased one times n / (n - 1)
                unbiased = spread.detach() / (1 - weight.square().sum())
                mean.lerp_(of_batch.detach(), MOMENTUM)
                variance.lerp_(unbiased, MOMENTUM)
            x = torch.addcmul(shift[..., None], centred, (scale * (spread + EPSILON).rsqrt())[..., None])
        return torch.bmm(p[f"{DEPTH}.weight"], x).add_(p[f"{DEPTH}.bias"][..., None])

    def recordable(self, labels: Mapping[str, Int[Tensor, " N"]]) -> bool:
        """Whether a window is learned from with shapes that every such window has."""
        return self.masked and len(label_positions(labels, self.label)) >= 2

    def learn(
        self, x: Float[Tensor, "A I N"], y: Int[Tensor, " N"], known: Int[Tensor, " K"] | None = None
    ) -> tuple[Float[Tensor, " A"], Float[Tensor, " A"]] | None:
        """One step on each attacker's own cross-entropy, representations held still; None without two labelled tokens.

        Returns means over the labelled tokens, before the step: of cross-entropy in nats, and of correctness. `known` are
        the places of tokens with a label, where the caller has them.
        """
        known = _places(y, known)
        if len(known) < 2:
            return None
        leaves = {n: v.detach().requires_grad_() for n, v in views(self.flat, self.places).items()}
        given = _weigh_labels(x, y, known, self.masked)
        loss, correct = _judge(self._logits(leaves, given, "learn"), given.y)
        gradients = torch.autograd.grad(given.mean(loss).sum(), list(leaves.values()))
        self.flat.grad = torch.cat([g.flatten(1) for g in gradients], 1)
        self.optimizer.step()
        return given.mean(loss.detach()).double(), given.mean(correct.double())

    def push(
        self,
        kept: Mapping[Block, Tensor],
        targets: Int[Tensor, " N"],
        labels: Mapping[str, Int[Tensor, " N"]],
        into: Mapping[Block, Tensor],
    ) -> dict[int, dict[str, Tensor]]:
        """Learn from one window, then add the gradient of the attacks to that of the blocks (see `lm/edits/base.py`)."""
        x, y, known = self.read.read(kept), self.answers(targets, labels), label_positions(labels, self.label)
        learned = self.learn(x, y, known)
        if learned is None:
            return {}
        self.read.add(self.gradient(x, y, known), into)
        seen = zip(self.targets, *(means.unbind() for means in learned), strict=True)
        return {target.slot: dict(zip(NAMES, own, strict=True)) for target, *own in seen}

    def gradient(
        self, x: Float[Tensor, "A I N"], y: Int[Tensor, " N"], known: Int[Tensor, " K"] | None = None
    ) -> Float[Tensor, "A I N"]:
        """Gradient of −λ·CE(A(x), y) with respect to x, attackers held still (definitions A4).

        Where the attack is bounded, that of λ·KL(prior ‖ A(x)).
        """
        known = _places(y, known)
        leaf = x.detach().requires_grad_()
        if len(known) < 2:
            return torch.zeros_like(x)
        given = _weigh_labels(leaf, y, known, self.masked)
        logits = self._logits(views(self.flat, self.places), given, "judge")
        values = divergence(logits, self.prior) if self.aim == "prior" else -_judge(logits, given.y)[0]
        return torch.autograd.grad((self.strength * given.mean(values)).sum(), leaf)[0]

    def judge(
        self, x: Float[Tensor, "A I N"], y: Int[Tensor, " N"], known: Int[Tensor, " K"] | None = None
    ) -> tuple[Float[Tensor, "A N"], Bool[Tensor, "A N"]]:
        """Loss and correctness on labelled tokens in evaluation mode (running batch statistics)."""
        given = _weigh_labels(x, y, _places(y, known), False)
        with torch.no_grad():
            return _judge(self._logits(views(self.flat, self.places), given, "eval"), given.y)

    def measure(
        self, kept: Mapping[Block, Tensor], targets: Int[Tensor, " N"], labels: Mapping[str, Int[Tensor, " N"]]
    ) -> dict[int, Float[Tensor, "3"]]:
        """Sums of loss and of correct answers over a piece's labelled tokens, and their number, by slot."""
        known = label_positions(labels, self.label)
        loss, correct = self.judge(self.read.read(kept), self.answers(targets, labels), known)
        sums = [loss.double().sum(1), correct.double().sum(1)]
        sums = torch.stack([*sums, torch.full_like(sums[0], correct.shape[1])], 1)
        return {target.slot: own for target, own in zip(self.targets, sums, strict=True)}

    def summary(self, sums: Float[Tensor, "3"]) -> list[tuple[str, float]]:
        """Means over labelled tokens; nothing where there are none."""
        loss, correct, labelled = sums
        means = (float(loss / labelled), float(correct / labelled))
        return list(zip(NAMES, means, strict=True)) if labelled > 0 else []

    def start_rows(self) -> dict[int, list[tuple[str, str, float]]]:
        """Of an attack on control labels, how far their shares are from the true labels'."""
        if self.control is None:
            return {}
        return {t.slot: [("train", "control_distance", self.control_distance)] for t in self.targets}

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, for a snapshot."""
        own = {"flat": self.flat, "mean": self.mean, "variance": self.variance}
        return own | moments(self.optimizer, self.flat)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a snapshot."""
        for name, value in (("flat", self.flat), ("mean", self.mean), ("variance", self.variance)):
            value.copy_(state[name])
        restore_moments(self.optimizer, self.flat, state)


def divergence(logits: Float[Tensor, "A C N"], prior: Float[Tensor, " C"]) -> Float[Tensor, "A N"]:
    """KL(prior ‖ softmax(logits)) of each token, in nats: 0 where the output is the prior, and nowhere less."""
    return torch.special.xlogy(prior, prior).sum() - torch.einsum("c,acn->an", prior, F.log_softmax(logits, 1))


def _judge(logits: Float[Tensor, "A C N"], y: Int[Tensor, " N"]) -> tuple[Float[Tensor, "A N"], Bool[Tensor, "A N"]]:
    """Cross-entropy in nats and correctness; tokens without a label (below 0) have a loss of 0 and are never right."""
    loss = F.cross_entropy(logits, y.expand(logits.shape[0], -1), reduction="none", ignore_index=-1)
    return loss, logits.detach().argmax(1) == y


def _places(y: Int[Tensor, " N"], known: Int[Tensor, " K"] | None) -> Int[Tensor, " K"]:
    return (y >= 0).nonzero()[:, 0] if known is None else known
