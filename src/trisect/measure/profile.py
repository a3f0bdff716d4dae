"""Profile of linear maps: how much of a label closed-form probes find in many maps of the same vectors, cross-fitted.

A probe is linear discriminant analysis: class means and one covariance within classes, all from moments that are gathered once, so
that the probe of any map of the vectors costs a solve. What it finds does not change when a map is followed by an invertible one.

Axes: N word, D width of the vectors, P map, E width of a map, C class, L label, F fold.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

WORDS_AT_ONCE = 1024  # words read at once
MAPS_AT_ONCE = 16  # maps whose predictions are in memory at once
RIDGE = 1e-6  # relative to each direction's variance within classes: keeps the covariance invertible
_FLOOR = 1e-6  # least variance within classes, relative to that among all words, for float32
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class WordClasses:
    """A label of all words: its classes by name, and each word's class (−1: none)."""

    name: str
    classes: tuple[str, ...]
    y: Int[np.ndarray, " N"]

    @cached_property
    def majority(self) -> float:
        """Share of the most frequent class among labelled words."""
        counts = np.bincount(self.y[self.y >= 0], minlength=len(self.classes))
        return float(counts.max() / max(1, counts.sum()))


class MapScores(NamedTuple):
    """Scores of probes in each map, on words that they were not fitted to: accuracy, and V-information in bits.

    Bits are the cross-entropy of the label's prior less that of the probe (Xu et al. 2020); below 0 where the probe is worse.
    """

    accuracy: Float[np.ndarray, "P L"]
    bits: Float[np.ndarray, "P L"]


class _ClassMoments(NamedTuple):
    """Second moments of the vectors, and sums and counts of each class, by fold; labels are concatenated in C."""

    gram: Float[Tensor, "F D D"]
    sums: Float[Tensor, "F C D"]
    counts: Float[Tensor, "F C"]


def assign_folds(groups: Int[np.ndarray, " N"], folds: int, rng: np.random.Generator) -> Int[np.ndarray, " N"]:
    """A fold for each word, from 0: words of one group share it, and folds have about equal numbers of words.

    Groups are assigned from the largest to the smallest (in random order if equal), each to the fold with the fewest words so far.
    """
    names, members = np.unique(groups, return_inverse=True)
    sizes, filled = np.bincount(members), np.zeros(folds, dtype=np.int64)
    chosen = np.zeros(len(names), dtype=np.int64)
    order = rng.permutation(len(names))
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        chosen[group] = int(filled.argmin())
        filled[chosen[group]] += sizes[group]
    return chosen[members]


def random_maps(width: int, into: int, number: int, generator: torch.Generator) -> Float[Tensor, "P D E"]:
    """Maps with independent normal weights."""
    return torch.randn(number, width, into, generator=generator)


@dataclass(frozen=True, eq=False)
class Prober:
    """Vectors of words (an array, possibly on disk) with labels and folds; scores any maps of the vectors.

    `scale` [D] multiplies the stored vectors, so that arrays of half precision can hold what is far from 1.
    """

    x: Float[np.ndarray, "N D"]
    labels: tuple[WordClasses, ...]
    fold: Int[np.ndarray, " N"]
    scale: Float[Tensor, " D"] | None = None

    @property
    def folds(self) -> int:
        """The number of folds."""
        return int(self.fold.max()) + 1

    @cached_property
    def _label_groups(self) -> tuple[_LabelGroup, ...]:
        """Labels grouped by the words that have them."""
        groups: dict[bytes, list[int]] = {}
        for i, label in enumerate(self.labels):
            groups.setdefault(np.packbits(label.y >= 0).tobytes(), []).append(i)
        return tuple(_LabelGroup.of(self, tuple(group)) for group in groups.values())

    def scores(self, maps: Float[Tensor, "P D E"]) -> MapScores:
        """Accuracy and bits of every label in every map, with probes fitted to other folds."""
        return _concatenate([self._score_maps(chunk) for chunk in maps.split(MAPS_AT_ONCE)])

    def random_scores(
        self, into: int, number: int, generator: torch.Generator, advance: Callable[[int], object] = lambda done: None
    ) -> MapScores:
        """The same for random maps, generated as needed (those of `random_maps`), MAPS_AT_ONCE at a time."""
        scores: list[MapScores] = []
        for start in range(0, number, MAPS_AT_ONCE):
            count = min(MAPS_AT_ONCE, number - start)
            scores.append(self._score_maps(random_maps(self.x.shape[1], into, count, generator)))
            advance(start + count)
        return _concatenate(scores)

    def identity_scores(self) -> MapScores:
        """The same for the vectors themselves, whose moments need no matrix products."""
        return self._score_maps(torch.eye(self.x.shape[1])[None], diagonal=True)

    def _score_maps(self, maps: Float[Tensor, "P D E"], diagonal: bool = False) -> MapScores:
        accuracy, bits = (np.full((len(maps), len(self.labels)), np.nan) for _ in range(2))
        scaled = maps if self.scale is None else maps * self.scale[:, None]
        for part in self._label_groups:
            right, gained = part.score(scaled.float(), diagonal)
            accuracy[:, list(part.indices)] = right
            bits[:, list(part.indices)] = gained
        return MapScores(accuracy, bits)


def _concatenate(scores: Sequence[MapScores]) -> MapScores:
    """Concatenate the scores of maps."""
    return MapScores(*(np.concatenate(parts) for parts in zip(*scores, strict=True)))


@dataclass(frozen=True, eq=False)
class _LabelGroup:
    """Labels of the same words, those words by fold, and moments."""

    x: Float[np.ndarray, "N D"]
    indices: tuple[int, ...]
    spans: tuple[slice, ...]
    y: Int[np.ndarray, "L N"]
    words: tuple[Int[np.ndarray, " _"], ...]
    moments: _ClassMoments

    @classmethod
    def of(cls, prober: Prober, indices: tuple[int, ...]) -> _LabelGroup:
        labels = [prober.labels[i] for i in indices]
        ends = np.cumsum([0, *(len(label.classes) for label in labels)])
        spans = tuple(slice(int(a), int(b)) for a, b in pairwise(ends))
        y, labelled = np.stack([label.y for label in labels]), labels[0].y >= 0
        words = tuple(np.flatnonzero(labelled & (prober.fold == f)) for f in range(prober.folds))
        # in double precision: variation within classes is a small difference of large sums if few vectors are distinct
        width, classes = prober.x.shape[1], spans[-1].stop
        gram = torch.zeros(len(words), width, width, dtype=torch.float64)
        sums = torch.zeros(len(words), classes, width, dtype=torch.float64)
        counts = torch.zeros(len(words), classes, dtype=torch.float64)
        for f, chunk in ((f, chunk) for f, fold in enumerate(words) for chunk in _split(fold)):
            rows = _rows(prober.x, chunk).double()
            gram[f] += rows.T @ rows
            hot = torch.zeros(len(chunk), classes, dtype=torch.float64)
            for i, span in enumerate(spans):
                hot[torch.arange(len(chunk)), torch.from_numpy(y[i, chunk]) + span.start] = 1
            sums[f] += hot.T @ rows
            counts[f] += hot.sum(0)
        return cls(prober.x, indices, spans, y, words, _ClassMoments(gram, sums, counts))

    def score(
        self, maps: Float[Tensor, "P D E"], diagonal: bool = False
    ) -> tuple[Float[np.ndarray, "P L"], Float[np.ndarray, "P L"]]:
        """Accuracy and bits of each map and label of this part; `diagonal`: of a single diagonal map."""
        right = torch.zeros(len(maps), len(self.indices), dtype=torch.float64)
        gained = torch.zeros_like(right)
        cat = maps.transpose(0, 1).flatten(1)
        for (weight, bias, prior), words in zip(
            _fit(self.moments, maps, self.spans, diagonal), self.words, strict=True
        ):
            for chunk in _split(words):
                z = _rows(self.x, chunk) @ cat
                logits = torch.baddbmm(bias, weight, z.view(len(chunk), *maps.shape[::2]).permute(1, 2, 0))
                for i, span in enumerate(self.spans):
                    gold = torch.from_numpy(self.y[i, chunk])
                    hit, loss = _losses(logits[:, span], gold)
                    right[:, i] += hit
                    gained[:, i] += -prior[span][gold].sum() - loss
        count = max(1, sum(len(words) for words in self.words))
        return (right / count).numpy(), (gained / (count * math.log(2))).numpy()


def _fit(
    moments: _ClassMoments, maps: Float[Tensor, "P D E"], spans: Sequence[slice], diagonal: bool = False
) -> Iterator[tuple[Float[Tensor, "P C E"], Float[Tensor, "P C 1"], Float[Tensor, " C"]]]:
    """For each fold, class weights, biases and log priors of probes fitted to all other folds.

    A diagonal map's moments are made as they are added up.
    """
    wide, folds = maps.double(), range(len(moments.gram))
    grams = [] if diagonal else [wide.mT @ (gram @ wide) for gram in moments.gram]
    sums = [of_fold @ wide for of_fold in moments.sums]
    scale = wide[0].diagonal()
    for f in folds:
        gram = wide.new_zeros(len(wide), wide.shape[2], wide.shape[2])
        for i in (i for i in folds if i != f):
            gram += scale[:, None] * (moments.gram[i] * scale) if diagonal else grams[i]
        total = sum((s for i, s in enumerate(sums) if i != f), torch.zeros_like(sums[f]))
        counts = moments.counts.sum(0) - moments.counts[f]
        fitted = [_discriminant(gram, total[:, span], counts[span]) for span in spans]
        weights, biases, priors = zip(*fitted, strict=True)
        yield torch.cat(weights, 1), torch.cat(biases, 1), torch.cat(priors)


def _discriminant(
    gram: Float[Tensor, "P E E"], sums: Float[Tensor, "P C E"], counts: Float[Tensor, " C"]
) -> tuple[Float[Tensor, "P C E"], Float[Tensor, "P C 1"], Float[Tensor, " C"]]:
    """Linear discriminant analysis from moments; each class mean includes one word at the mean of all words of other classes."""
    classes, total = len(counts), counts.sum()
    mean = sums.sum(1, keepdim=True) / total.clamp_min(1)
    within = gram - sums.mT @ (sums / counts.clamp_min(1)[:, None])
    within /= (total - (counts > 0).sum()).clamp_min(1)
    second = gram.diagonal(dim1=1, dim2=2) / total.clamp_min(1)
    spread = (second - mean[:, 0].square()).clamp_min(TINY * second.amax(1, keepdim=True) + 1e-300)
    within.diagonal(dim1=1, dim2=2).add_(_FLOOR * spread)
    size = within.diagonal(dim1=1, dim2=2).clamp_min(_FLOOR * spread)
    scale = size.rsqrt()
    shaped = within.mul_(scale[:, :, None]).mul_(scale[:, None, :])
    shaped.diagonal(dim1=1, dim2=2).add_(RIDGE)
    means = (sums + mean) / (counts + 1)[:, None]
    centred = (means - mean) * scale[:, None, :]
    weight = torch.linalg.solve(shaped, centred.mT).mT * scale[:, None, :]
    prior = ((counts + 1) / (total + classes)).log()
    bias = prior - ((means + mean) * weight).sum(2) / 2
    return weight.float(), bias[:, :, None].float(), prior


def _losses(logits: Float[Tensor, "P C N"], gold: Int[Tensor, " N"]) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """Numbers of words that are predicted correctly (ties of m classes count 1/m), and summed cross-entropy in nats."""
    at = gold.expand(len(logits), 1, -1)
    gold_logits = logits.gather(1, at)[:, 0]
    others = logits.scatter(1, at, -torch.inf).amax(1)
    right = (gold_logits > others).sum(1).double()
    which, words = (gold_logits == others).nonzero(as_tuple=True)  # of different vectors none ties
    if len(which):
        as_high = (logits[which, :, words] == gold_logits[which, words, None]).sum(1)
        right.index_add_(0, which, 1 / as_high.double())
    return right, (logits.logsumexp(1) - gold_logits).double().sum(1)


def _split(words: Int[np.ndarray, " _"]) -> list[Int[np.ndarray, " _"]]:
    return [words[start : start + WORDS_AT_ONCE] for start in range(0, len(words), WORDS_AT_ONCE)]


def _rows(x: Float[np.ndarray, "N D"], words: Int[np.ndarray, " W"]) -> Float[Tensor, "W D"]:
    """A copy of some rows; pages of a mapped file are not kept in this process's memory."""
    rows = torch.from_numpy(np.asarray(x[words], dtype=np.float32))
    mapped = getattr(x, "_mmap", None)  # NumPy's memmap and its views have it
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):  # where the system has this
        mapped.madvise(mmap.MADV_DONTNEED)
    return rows
