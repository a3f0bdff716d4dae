"""The adversaries of a fleet: a small classifier per member that predicts the next word's label at a site.

Axes: A attacker, I width of its input, N token, C class; F, B, T, W as in fleet.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


class _Weighted(NamedTuple):
    """Inputs and labels of a window, and each token's weight in means; None for equal weights."""

    x: Float[Tensor, "A I N"]
    y: Int[Tensor, " N"]
    weight: Float[Tensor, " N"] | None

    def mean(self, values: Shaped[Tensor, "A N"]) -> Float[Tensor, " A"]:
        """The mean over labelled tokens, for each adversary."""
        return values.mean(1) if self.weight is None else torch.mv(values, self.weight.to(values))


def _weigh_labels(x: Float[Tensor, "A I N"], y: Int[Tensor, " N"], labelled: Tensor, masked: bool) -> _Weighted:
    """Labelled tokens alone; with `masked`, all tokens, those without a label (below 0) with weight 0."""
    if not masked:
        return _Weighted(x[..., labelled], y[labelled], None)
    weight = (y >= 0).to(x.dtype)
    return _Weighted(x, y, weight / weight.sum())


MAX_DISTANCE = 0.05  # total variation distance that control labels stay under (definitions A4)
ROUNDS = 40  # draws of all types
ROUND_DRAWS = 5_000  # of single types in each round


def _labelled_tokens(corpus: Corpus, column: str) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """The labelled tokens of the train split, with their labels."""
    split = corpus.splits["train"]
    labels = np.asarray(split.labels[column])
    return np.asarray(split.tokens)[labels >= 0], labels[labels >= 0]


def _shares(labels: Int[np.ndarray, " N"], classes: int) -> Float[np.ndarray, " C"]:
    return np.bincount(labels, minlength=classes) / len(labels)


def control_labels(corpus: Corpus, column: str, seed: int) -> tuple[Int[np.ndarray, " V"], float]:
    """A label for each word type, drawn from the label prior (Hewitt and Liang 2019), and how far their shares of train tokens are
    from those of true labels; a function of column and seed.

    Types are redrawn, one at a time and frequent ones more often, wherever that brings the shares of labels among the
    labelled train tokens closer to the prior, until their total variation distance is under NEAR; where that never
    happens all types are drawn again. Raises CorpusError when it is not reached.
    """
    tokens, labelled = _labelled_tokens(corpus, column)
    prior, weights = _shares(labelled, len(corpus.column(column))), _shares(tokens, len(corpus.vocabulary))
    draw = np.random.default_rng(derive_seed("control", column, seed))
    nearest = 1.0
    for _ in range(ROUNDS):
        labels = _pick(prior, draw.random(len(weights)))
        gap = np.bincount(labels, weights, len(prior)) - prior
        distance = float(np.abs(gap).sum() / 2)
        types, fresh = _pick(weights, draw.random(ROUND_DRAWS)), _pick(prior, draw.random(ROUND_DRAWS))
        for word, label in zip(types.tolist(), fresh.tolist(), strict=True):
            if distance < MAX_DISTANCE:
                break
            changed = gap.copy()
            changed[labels[word]] -= weights[word]
            changed[label] += weights[word]
            closer = float(np.abs(changed).sum() / 2)
            if closer < distance:
                labels[word], gap, distance = label, changed, closer
        # counted again: sums of many small steps round
        distance = float(np.abs(np.bincount(labels, weights, len(prior)) - prior).sum() / 2)
        if distance < MAX_DISTANCE:
            return labels, distance
        nearest = min(nearest, distance)
    top = int(weights.argmax())
    reason = (
        f"The nearest to the true labels' shares had a total variation distance of {nearest:.2f}, and under {MAX_DISTANCE} is "
        f"needed; {corpus.vocabulary[top]!r} alone is {percent(weights[top])} of the labelled train tokens."
    )
    todo = "Leave out the variant 'control', or use a longer text with more word types."
    raise CorpusError(f"There are no control labels for the column '{column}' of '{corpus.name}'.", reason, todo)


def _pick(shares: Float[np.ndarray, " C"], uniform: Float[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Random indices with probabilities given by cumulative shares."""
    edges = np.cumsum(shares)
    return np.searchsorted(edges / edges[-1], uniform, side="right")


RATE = 1e-3  # of AdamW
NAMES = ("adversary_loss_nats", "adversary_accuracy")
STATE = ("flat", "mean", "variance")  # what training changes, beside the optimiser's


class Attackers:
    """All adversaries of a fleet with the same label, width of representation and settings, side by side.

    `targets` are slot, resolved site and strength λ of each. With `control` the labels are those that word types drew by chance.
    Each is `DEPTH` linear layers with leaky ReLU and then batch normalisation in between; width = the model's.
    Tokens without a label count for nothing, in the batch statistics too: left out, or where `masked` is set weighted by 0, so
    that shapes stay the same and a pass can be recorded. It is set off the CPU.
    """

    def __init__(
        self,
        targets: Sequence[tuple[int, Site, float]],
        label: str,
        control: bool,
        aim: Aim,
        reach: Reach,
        fleet: Trained,
    ) -> None:
        model, corpus, seed, device, dtype = fleet
        self.slots = tuple(slot for slot, _, _ in targets)
        self.sites = tuple(site for _, site, _ in targets)
        self.label, self.columns = label, (label,)
        self.reach: Reach = reach
        self._aim: Aim = aim
        classes = len(corpus.column(label))
        tokens, labels = _labelled_tokens(corpus, label)
        self.control: Tensor | None = None
        if control:
            of_type, self._control_distance = control_labels(corpus, label, seed)
            self.control, labels = torch.from_numpy(of_type).to(device), of_type[tokens]
        self.prior = torch.from_numpy(_shares(labels, classes)).to(device, dtype)
        into = width_of(self.sites[0], model)
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
        # the λ of each attack
        self.strength = torch.tensor([strength for *_, strength in targets], device=device, dtype=dtype)
        self.mean = torch.zeros(DEPTH - 1, len(targets), model.width, device=device, dtype=dtype)
        self.variance = torch.ones_like(self.mean)
        self.read = Representations(list(zip(self.slots, self.sites, strict=True)), model, device)
        self.masked = self.flat.device.type != "cpu"
        self.optimizer = torch.optim.AdamW([self.flat], lr=RATE, fused=True, capturable=self.flat.is_cuda)

    def answers(self, words: Int[Tensor, " N"], labels: Mapping[str, Int[Tensor, " N"]]) -> Int[Tensor, " N"]:
        """The targets for these words: their labels, or the control labels of those that have one."""
        y = labels[self.label]
        return y if self.control is None else torch.where(y >= 0, self.control[words], y)

    def _logits(self, p: Mapping[str, Tensor], inputs: _Weighted, mode: Mode) -> Float[Tensor, "A C N"]:
        """Each adversary's logits for each token."""
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
        self, x: Float[Tensor, "A I N"], y: Int[Tensor, " N"], labelled: Int[Tensor, " K"] | None = None
    ) -> tuple[Float[Tensor, " A"], Float[Tensor, " A"]] | None:
        """One step on each adversary's cross-entropy, with fixed representations; None with fewer than two labelled tokens.

        Returns means over the labelled tokens, before the step: of cross-entropy in nats, and of correctness. `labelled` are
        the positions of tokens with a label, where the caller has them.
        """
        labelled = _find_labelled(y, labelled)
        if len(labelled) < 2:
            return None
        leaves = {n: v.detach().requires_grad_() for n, v in views(self.flat, self.places).items()}
        inputs = _weigh_labels(x, y, labelled, self.masked)
        loss, correct = _score(self._logits(leaves, inputs, "learn"), inputs.y)
        gradients = torch.autograd.grad(inputs.mean(loss).sum(), list(leaves.values()))
        self.flat.grad = torch.cat([g.flatten(1) for g in gradients], 1)
        self.optimizer.step()
        return inputs.mean(loss.detach()).double(), inputs.mean(correct.double())

    def push(
        self,
        blocks: Mapping[Block, Tensor],
        words: Int[Tensor, " N"],
        labels: Mapping[str, Int[Tensor, " N"]],
        into: Mapping[Block, Tensor],
    ) -> dict[int, dict[str, Tensor]]:
        """Learn from a window, then add the gradient of the attacks to that of the blocks (see `Objective`)."""
        x, y, labelled = self.read.read(blocks), self.answers(words, labels), label_positions(labels, self.label)
        means = self.learn(x, y, labelled)
        if means is None:
            return {}
        self.read.add(self.gradient(x, y, labelled), into)
        each = zip(self.slots, *(mean.unbind() for mean in means), strict=True)
        return {slot: dict(zip(NAMES, values, strict=True)) for slot, *values in each}

    def gradient(
        self, x: Float[Tensor, "A I N"], y: Int[Tensor, " N"], labelled: Int[Tensor, " K"] | None = None
    ) -> Float[Tensor, "A I N"]:
        """Gradient of −λ·CE(A(x), y) with respect to x, with fixed adversaries (definitions A4).

        Where the attack is bounded, that of λ·KL(prior ‖ A(x)).
        """
        labelled = _find_labelled(y, labelled)
        if len(labelled) < 2:
            return torch.zeros_like(x)
        leaf = x.detach().requires_grad_()
        inputs = _weigh_labels(leaf, y, labelled, self.masked)
        logits = self._logits(views(self.flat, self.places), inputs, "judge")
        values = _divergence(logits, self.prior) if self._aim == "prior" else -_score(logits, inputs.y)[0]
        return torch.autograd.grad((self.strength * inputs.mean(values)).sum(), leaf)[0]

    def judge(
        self, x: Float[Tensor, "A I N"], y: Int[Tensor, " N"], labelled: Int[Tensor, " K"] | None = None
    ) -> tuple[Float[Tensor, "A N"], Bool[Tensor, "A N"]]:
        """Loss and correctness on labelled tokens in evaluation mode (running batch statistics)."""
        inputs = _weigh_labels(x, y, _find_labelled(y, labelled), False)
        with torch.no_grad():
            return _score(self._logits(views(self.flat, self.places), inputs, "eval"), inputs.y)

    def measure(
        self, blocks: Mapping[Block, Tensor], words: Int[Tensor, " N"], labels: Mapping[str, Int[Tensor, " N"]]
    ) -> dict[int, Float[Tensor, "3"]]:
        """Sums of loss and of correct answers over a piece's labelled tokens, and their number, by slot."""
        labelled = label_positions(labels, self.label)
        loss, correct = self.judge(self.read.read(blocks), self.answers(words, labels), labelled)
        sums = [loss.double().sum(1), correct.double().sum(1)]
        sums = torch.stack([*sums, torch.full_like(sums[0], correct.shape[1])], 1)
        return dict(zip(self.slots, sums, strict=True))

    def summary(self, sums: Float[Tensor, "3"]) -> list[tuple[str, float]]:
        """Means over labelled tokens; empty if there are none."""
        loss, correct, count = sums
        return list(zip(NAMES, (float(loss / count), float(correct / count)), strict=True)) if count > 0 else []

    def start_rows(self) -> dict[int, list[tuple[str, str, float]]]:
        """For control labels, the distance of their shares from the true labels'."""
        if self.control is None:
            return {}
        return {slot: [("train", "control_distance", self._control_distance)] for slot in self.slots}

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, for a snapshot."""
        return {name: getattr(self, name) for name in STATE} | moments(self.optimizer, self.flat)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a snapshot."""
        for name in STATE:
            getattr(self, name).copy_(state[name])
        restore_moments(self.optimizer, self.flat, state)


def _divergence(logits: Float[Tensor, "A C N"], prior: Float[Tensor, " C"]) -> Float[Tensor, "A N"]:
    """KL(prior ‖ softmax(logits)) of each token, in nats."""
    return torch.special.xlogy(prior, prior).sum() - torch.einsum("c,acn->an", prior, F.log_softmax(logits, 1))


def _score(logits: Float[Tensor, "A C N"], y: Int[Tensor, " N"]) -> tuple[Float[Tensor, "A N"], Bool[Tensor, "A N"]]:
    """Cross-entropy in nats and correctness; tokens without a label (below 0) have loss 0 and are never correct."""
    loss = F.cross_entropy(logits, y.expand(logits.shape[0], -1), reduction="none", ignore_index=-1)
    return loss, logits.detach().argmax(1) == y


def _find_labelled(y: Int[Tensor, " N"], labelled: Int[Tensor, " K"] | None) -> Int[Tensor, " K"]:
    return (y >= 0).nonzero()[:, 0] if labelled is None else labelled
