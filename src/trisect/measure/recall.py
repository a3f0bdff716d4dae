"""Confidence of answers: AUROC, calibration, risk and coverage, and the threshold below which to abstain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from trisect.stats.shares import upper_bound
from trisect.stats.significance import family_level

BINS = 15
_DELTA = 0.05
_MAX_THRESHOLDS = 20  # at equal steps of coverage
ANSWERS_PER_THRESHOLD = 10  # held-out answers
FOLDS = 10


class Calibration(NamedTuple):
    """Probabilities and accuracies in B bins of equal width; NaN for empty bins.

    `member` is the bin of every answer, from 0; `weight` how many answers a bin has.
    `ece` is the expected calibration error, `excess` the mean probability minus the share that is right.
    """

    edges: Float[np.ndarray, " E"]
    member: Int[np.ndarray, " N"]
    weight: Float[np.ndarray, "*S B"]
    probability: Float[np.ndarray, "*S B"]
    accuracy: Float[np.ndarray, "*S B"]
    ece: Float[np.ndarray, "*S"]
    excess: Float[np.ndarray, "*S"]


class RiskCoverage(NamedTuple):
    """Share of wrong answers among those at or above each threshold, from the highest threshold to the lowest.

    `area` is the mean risk over all answers, each met with its own confidence as the threshold (AURC).
    """

    threshold: Float[np.ndarray, " T"]
    coverage: Float[np.ndarray, "*S T"]
    risk: Float[np.ndarray, "*S T"]
    area: Float[np.ndarray, "*S"]


class _AnswerThreshold(NamedTuple):
    """The lowest confidence for answering with at most a given share of wrong answers; None: always abstain.

    `value` is the threshold, `risk` the stated share. `bound` is the upper confidence bound (at 1 − δ) of the share of wrong answers
    among those given; `n` is the number of held-out answers, `coverage` the share of them that is answered, `error` the share of
    wrong answers among these (None if none is answered).
    """

    value: float | None
    risk: float
    bound: float | None
    error: float | None
    coverage: float
    n: int


class _OutOfFoldScores(NamedTuple):
    """A score for every answer by a model fitted without its name, and its fold."""

    scores: Float[np.ndarray, " N"]
    folds: Int[np.ndarray, " N"]


def auroc(
    scores: Float[np.ndarray, " N"],
    correct: Bool[np.ndarray, " N"],
    weights: Float[np.ndarray, "*S N"] | None = None,
    folds: Int[np.ndarray, " N"] | None = None,
) -> Float[np.ndarray, "*S"]:
    """Probability that a right answer scores above a wrong one, ties counted half; NaN if either kind is missing.

    `weights` count each answer so many times, a row for each draw. With `folds` only answers of one fold are compared.
    Source: Hanley & McNeil 1982, The meaning and use of the area under a receiver operating characteristic curve.
    """
    weights = _as_weights(weights, len(scores))
    if not len(scores) or np.isnan(scores).any():
        return np.full(weights.shape[:-1], np.nan)
    folds_of_answers = np.zeros(len(scores), dtype=int) if folds is None else folds
    ahead, pairs = np.zeros(weights.shape[:-1]), np.zeros(weights.shape[:-1])
    for fold in np.unique(folds_of_answers):
        rows = np.flatnonzero(folds_of_answers == fold)
        right, wrong = _weights_by_score(scores[rows], correct[rows], weights[..., rows])
        ahead += (right * (wrong.cumsum(-1) - wrong / 2)).sum(-1)
        pairs += right.sum(-1) * wrong.sum(-1)
    return _ratio(ahead, pairs)


def calibration(
    probabilities: Float[np.ndarray, " N"],
    correct: Bool[np.ndarray, " N"],
    bins: int = BINS,
    weights: Float[np.ndarray, "*S N"] | None = None,
) -> Calibration:
    """Reliability in `bins` bins of equal width, closed on the right, and the expected calibration error.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, equations 2, 3 and 5: Σ_b n_b/n |accuracy_b −
    probability_b|. It is a sum of absolute values, so that chance alone makes it positive; `excess` is not.
    """
    weights = _as_weights(weights, len(correct))
    edges = np.linspace(0.0, 1.0, bins + 1)
    member = np.digitize(probabilities, edges[1:-1], right=True)
    inside = (member[:, None] == np.arange(bins)).astype(float)
    count, right, confidence = (
        weights @ (inside * part[:, None]) for part in (np.ones(len(member)), correct, probabilities)
    )
    total = weights.sum(-1)
    return Calibration(
        edges,
        member,
        count,
        _ratio(confidence, count),
        _ratio(right, count),
        _ratio(np.abs(right - confidence).sum(-1), total),
        _ratio((confidence - right).sum(-1), total),
    )


def risk_coverage(
    confidence: Float[np.ndarray, " N"],
    correct: Bool[np.ndarray, " N"],
    weights: Float[np.ndarray, "*S N"] | None = None,
) -> RiskCoverage:
    """Risk against coverage for answering from a threshold on; equal confidences are answered together.

    Source: El-Yaniv & Wiener 2010, On the Foundations of Noise-free Selective Classification; the area: Geifman, Uziel &
    El-Yaniv 2019, Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers, section 2.
    """
    weights, confidence = _as_weights(weights, len(correct)), _nan_lowest(confidence)
    right, wrong = (part[..., ::-1] for part in _weights_by_score(confidence, correct, weights))
    answered, total = (right + wrong).cumsum(-1), weights.sum(-1)
    risk = _ratio(wrong.cumsum(-1), answered)
    area = _ratio(np.where(answered > 0, (right + wrong) * risk, 0.0).sum(-1), total)
    return RiskCoverage(np.unique(confidence)[::-1].copy(), _ratio(answered, total[..., None]), risk, area)


def threshold(
    confidence: Float[np.ndarray, " N"], correct: Bool[np.ndarray, " N"], risk: float, delta: float = _DELTA
) -> _AnswerThreshold:
    """The lowest threshold at which, with confidence 1 − `delta`, at most the share `risk` of answers is wrong.

    Tests T thresholds at equal steps of coverage, each by a one-sided Clopper–Pearson bound at δ / T, so that all bounds hold
    together. T is one per ANSWERS_PER_THRESHOLD answers, at least 1 and at most _MAX_THRESHOLDS: fewer tests leave each bound
    tighter when there are few answers. Source: Geifman & El-Yaniv 2017, Selective Classification for Deep Neural Networks,
    lemma 3.1, with Bonferroni's correction over a fixed grid in place of a binary search.
    """
    n, confidence = len(confidence), _nan_lowest(confidence)
    ordered = np.sort(confidence)[::-1]
    best, grid = (
        _AnswerThreshold(None, risk, None, None, 0.0, n),
        min(_MAX_THRESHOLDS, max(1, n // ANSWERS_PER_THRESHOLD)),
    )
    for step in range(1, grid + 1) if n else ():
        level = ordered[-(-step * n // grid) - 1]
        answered = confidence >= level
        count, errors = int(answered.sum()), int((answered & ~correct).sum())
        bound = upper_bound(errors, count, family_level(grid, delta))
        if bound <= risk:
            best = _AnswerThreshold(float(level), risk, bound, errors / count, count / n, n)
    return best


def cross_fit_correctness(
    features: Float[np.ndarray, "N F"], correct: Bool[np.ndarray, " N"], names: Sequence[str], seed: int = 0
) -> _OutOfFoldScores:
    """Out-of-fold scores of a logistic regression of right against wrong on standardised features; higher is more likely right.

    Names are assigned to FOLDS folds at random (fewer if there are fewer names), with all answers of a name in one fold. A model
    fitted on other names is independent of the fold it scores, so that uninformative features have an AUROC of one half on average
    within folds (`auroc` with `folds`), and only there.
    """
    from sklearn.linear_model import LogisticRegression

    _, owners = np.unique(np.asarray(names, dtype=str), return_inverse=True)
    count = int(owners.max()) + 1 if len(owners) else 0
    folds = np.random.default_rng(seed).permutation(np.arange(count) % max(1, min(FOLDS, count)))[owners]
    scores = np.zeros(len(correct))
    for fold in np.unique(folds):
        out = folds == fold
        others, right = features[~out], correct[~out]
        if right.all() or not right.any():
            continue  # a single class cannot be fitted: all scores stay 0
        spread = others.std(0)
        mean, scale = others.mean(0), np.where(spread > 0, spread, 1.0)
        fitted = LogisticRegression().fit((others - mean) / scale, right)
        scores[out] = fitted.decision_function((features[out] - mean) / scale)
    return _OutOfFoldScores(scores, folds)


def _as_weights(weights: Float[np.ndarray, "*S N"] | None, n: int) -> Float[np.ndarray, "*S N"]:
    return np.ones(n) if weights is None else weights


def _nan_lowest(confidence: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Confidences, with NaN as the lowest of all."""
    return np.where(np.isnan(confidence), -np.inf, confidence)


def _weights_by_score(
    scores: Float[np.ndarray, " N"], correct: Bool[np.ndarray, " N"], weights: Float[np.ndarray, "*S N"]
) -> tuple[Float[np.ndarray, "*S T"], Float[np.ndarray, "*S T"]]:
    """The weights of right and wrong answers at each distinct score, ascending."""
    if not len(scores):
        return np.zeros((*weights.shape[:-1], 0)), np.zeros((*weights.shape[:-1], 0))
    order = np.argsort(scores, kind="stable")
    sorted_ = scores[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_[1:] != sorted_[:-1]]))
    right = weights[..., order] * correct[order]
    wrong = weights[..., order] * ~correct[order]
    return np.add.reduceat(right, starts, axis=-1), np.add.reduceat(wrong, starts, axis=-1)


def _ratio(numerator: ArrayLike, denominator: ArrayLike) -> Float[np.ndarray, "*S"]:
    """A ratio; NaN for a division by zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(denominator) > 0, np.asarray(numerator) / np.asarray(denominator), np.nan)


NGRAM_LENGTHS = (2, 4)  # of the pieces of names that are compared


class _Neighbours(NamedTuple):
    """For each of N names the `top` nearest known names, nearest first: their places in the list of these, and cosines.

    With fewer neighbours the index is −1 and the cosine NaN. A name is not its own neighbour.
    """

    nearest: Int[np.ndarray, "N K"]
    similarity: Float[np.ndarray, "N K"]


class NeighbourMatch(NamedTuple):
    """How often an answer is the place of the name's neighbour, the expectation by chance, and the excess.

    `n` is the weight of the answers that were compared: those whose name has a neighbour with a place.
    """

    share: Float[np.ndarray, "*S"]
    expected: Float[np.ndarray, "*S"]
    excess: Float[np.ndarray, "*S"]
    n: Float[np.ndarray, "*S"]


def nearest_names(
    similarity: Float[np.ndarray, "N M"], names: Sequence[str], candidates: Sequence[str], top: int = 1
) -> _Neighbours:
    """The nearest known names by a similarity (NaN: no neighbour); ties in the order of `candidates`."""
    places = {
        name: np.flatnonzero(np.asarray(candidates, dtype=object) == name) for name in set(names) & set(candidates)
    }
    left = np.where(np.isnan(similarity), -np.inf, similarity)
    for row, name in enumerate(names):
        left[row, places.get(name, [])] = -np.inf
    nearest, cosines = np.full((len(names), top), -1), np.full((len(names), top), np.nan)
    rows = np.arange(len(names))
    for rank in range(min(top, len(candidates))):
        best = left.argmax(1)
        near = left[rows, best]
        nearest[:, rank] = np.where(np.isfinite(near), best, -1)
        cosines[:, rank] = np.where(np.isfinite(near), near, np.nan)
        left[rows, best] = -np.inf
    return _Neighbours(nearest, cosines)


def character_similarity(names: Sequence[str], candidates: Sequence[str]) -> Float[np.ndarray, "N M"]:
    """Cosines of character n-grams of 2 to 4 characters, weighted by TF-IDF of `candidates`.

    1 for a name and itself, 0 where none is shared. N-grams do not cross words, and the ends of words count.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not len(names) or not len(candidates):
        return np.zeros((len(names), len(candidates)))
    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=NGRAM_LENGTHS, lowercase=True)
    weighted = grams.fit_transform(candidates)
    return np.asarray((grams.transform(names) @ weighted.T).toarray(), dtype=float)


def last_name_similarity(names: Sequence[str], candidates: Sequence[str]) -> Float[np.ndarray, "N M"]:
    """The same among names of two words or more that share the last one, and NaN elsewhere."""
    last, other = (
        np.array([words[-1] if len(words := name.split(" ")) > 1 else "" for name in each], dtype=object)
        for each in (names, candidates)
    )
    same = (last[:, None] == other[None]) & (last[:, None] != "")
    return np.where(same, character_similarity(names, candidates), np.nan)


def vector_similarity(
    vectors: Float[np.ndarray, "N D"], known_vectors: Float[np.ndarray, "M D"]
) -> Float[np.ndarray, "N M"]:
    """Cosines of a model's vectors for names; 0 for a vector of length 0."""
    lengths = [np.linalg.norm(each, axis=1, keepdims=True) for each in (vectors, known_vectors)]
    unit, others = (
        each / np.where(length > 0, length, 1.0) for each, length in zip((vectors, known_vectors), lengths, strict=True)
    )
    return unit @ others.T


def match_neighbours(
    answers: Sequence[str], places: Sequence[str | None], weights: Float[np.ndarray, "*S N"] | None = None
) -> NeighbourMatch:
    """The share of answers equal to the neighbour's place, less that of random pairing: Σ_c n_a(c) n_b(c) / n².

    n_a and n_b count how often c is an answer and a neighbour's place; the expected share is the mean over all n! pairings. `places`
    is None for a name whose neighbour has no known place; `weights` [*S N] count each answer so many times.
    """
    codes: dict[str, int] = {}
    coded = [
        (i, codes.setdefault(answer, len(codes)), codes.setdefault(place, len(codes)))
        for i, (answer, place) in enumerate(zip(answers, places, strict=True))
        if place is not None
    ]
    compared, answer, neighbour = np.array(coded, dtype=int).reshape(-1, 3).T
    counted = _as_weights(weights, len(answers))[..., compared]
    n = np.asarray(counted.sum(-1))
    tables = [counted @ (column[:, None] == np.arange(len(codes))).astype(float) for column in (answer, neighbour)]
    share = _ratio(counted @ (answer == neighbour).astype(float), n)
    expected = _ratio((tables[0] * tables[1]).sum(-1), n**2)
    return NeighbourMatch(share, expected, share - expected, n)


def agreement(answers: Sequence[str], places: Sequence[str]) -> Float[np.ndarray, "N N"]:
    """1 if the answer about the row's name is the place of the neighbour of the column's name, else 0."""
    return (np.asarray(answers, dtype=object)[:, None] == np.asarray(places, dtype=object)[None]).astype(float)
