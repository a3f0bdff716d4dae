"""Controls: labels that word types draw by chance, as frequent as the true ones, and the prior of a label column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from trisect.core.errors import CorpusError
from trisect.core.percent import percent
from trisect.lm.fleet import number
from trisect.text.corpus import Corpus

NEAR = 0.05  # total variation distance that control labels stay under (science A4)
ROUNDS = 40  # draws of all types
REDRAWS = 5_000  # of single types in each round


class Chance(NamedTuple):
    """The control label of each word type, and how far their shares of train tokens are from those of true labels."""

    of_type: Int[np.ndarray, " V"]
    distance: float


def label_prior(corpus: Corpus, column: str) -> Float[np.ndarray, " C"]:
    """The share of each class among the labelled tokens of the train split."""
    labels = corpus.splits["train"].labels[column]
    counts = np.bincount(labels[labels >= 0], minlength=len(corpus.column(column)))
    return counts / counts.sum()


def shares(corpus: Corpus, column: str, chance: Chance) -> Float[np.ndarray, " C"]:
    """The share of each class among the labelled tokens of the train split, as control labels have it."""
    split = corpus.splits["train"]
    labels = chance.of_type[np.asarray(split.tokens)[np.asarray(split.labels[column]) >= 0]]
    return np.bincount(labels, minlength=len(corpus.column(column))) / len(labels)


def control_labels(corpus: Corpus, column: str, seed: int) -> Chance:
    """One label for each word type, drawn from the label prior (Hewitt and Liang 2019); a function of column and seed.

    Types are redrawn, one at a time and frequent ones more often, wherever that brings the shares of labels among the
    labelled train tokens closer to the prior, until their total variation distance is under NEAR; where that never
    happens all types are drawn again. Raises CorpusError when it is not reached.
    """
    prior, split = label_prior(corpus, column), corpus.splits["train"]
    labelled = np.asarray(split.tokens)[np.asarray(split.labels[column]) >= 0]
    weights = np.bincount(labelled, minlength=len(corpus.vocabulary)) / len(labelled)
    draw = np.random.default_rng(number("control", column, seed))
    nearest = 1.0
    for _ in range(ROUNDS):
        found = _round(prior, weights, draw)
        if found.distance < NEAR:
            return found
        nearest = min(nearest, found.distance)
    top = int(weights.argmax())
    raise CorpusError(
        f"There are no control labels for the column '{column}' of '{corpus.name}'.",
        f"The nearest to the true labels' shares had a total variation distance of {nearest:.2f}, and under {NEAR} is "
        f"needed; {corpus.vocabulary[top]!r} alone is {percent(weights[top])} of the labelled train tokens.",
        "Leave out the variant 'control', or use a longer text with more word types.",
    )


def _round(prior: Float[np.ndarray, " C"], weights: Float[np.ndarray, " V"], draw: np.random.Generator) -> Chance:
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
        moved = float(np.abs(changed).sum() / 2)
        if moved < distance:
            labels[word], gap, distance = label, changed, moved
    # counted again: sums of many small steps round
    return Chance(labels, float(np.abs(np.bincount(labels, weights, len(prior)) - prior).sum() / 2))


def _pick(shares: Float[np.ndarray, " C"], uniform: Float[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Numbers from 0 on, each as likely as its share, by their cumulative shares."""
    edges = np.cumsum(shares)
    return np.searchsorted(edges / edges[-1], uniform, side="right")
