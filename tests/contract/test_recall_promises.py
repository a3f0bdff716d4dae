"""What recall's statistics promise, over hundreds of made-up samples: bounds kept, nulls uniform, intervals that cover."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from trisect.experiments.recall.rows import AnswerBootstrap
from trisect.measure import recall
from trisect.stats.null import permutation_p


@pytest.mark.parametrize(("n", "answering"), [(200, 300), (100, 100)])
def test_a_threshold_breaks_its_promise_no_oftener_than_it_says(n, answering):
    """P(right | confidence u) = u, so that above t a share (1 − t)/2 is wrong. Of 500 sets 25 may fail; 41 come once in 1,000.

    `answering` sets at least have a threshold, so that the promise is put to the test.
    """
    draw, failed, answered = np.random.default_rng(1), 0, 0
    for _ in range(500):
        confidence = draw.random(n)
        found = recall.threshold(confidence, draw.random(n) < confidence, 0.3)
        answered += found.value is not None
        failed += found.value is not None and (1 - found.value) / 2 > 0.3
    assert failed < 41
    assert answered > answering


def test_features_that_tell_nothing_give_one_half_on_average_and_only_within_folds():
    """Of 120 samples; pooled over folds the mean lies below one half, since what a fold lacks the others have more of."""
    draw, within, pooled = np.random.default_rng(0), [], []
    for i in range(120):
        correct, features = draw.random(40) < 0.4, draw.normal(size=(40, 3))
        found = recall.tell_apart(features, correct, [str(j) for j in range(40)], seed=i)
        within.append(float(recall.auroc(found.scores, correct, folds=found.folds)))
        pooled.append(float(recall.auroc(found.scores, correct)))
    error = np.std(within) / 120**0.5
    assert abs(np.mean(within) - 0.5) < 4 * error
    assert np.mean(pooled) < 0.5 - 4 * np.std(pooled) / 120**0.5


def test_the_permutation_null_is_calibrated():
    """Uniform where answers and places are independent: 500 samples, a Kolmogorov–Smirnov distance above 0.087 comes once
    in 1,000; matches come in steps of a seventh of their standard deviation, which adds up to 0.06."""
    draw, found = np.random.default_rng(7), []
    for _ in range(500):
        ours, theirs = draw.integers(0, 4, (2, 300)).astype(str)
        found.append(permutation_p(recall.agreement(ours.tolist(), theirs.tolist()), draw, 199))
    assert stats.kstest(found, "uniform").statistic < 0.147
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(found) <= level) < level + 4 * (level * (1 - level) / 500) ** 0.5


def table(correct: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"name": [f"n{i}" for i in range(len(correct))], "correct": correct})


def share(answers: pl.DataFrame, weights: np.ndarray) -> np.ndarray:
    return weights @ answers["correct"].to_numpy().astype(float) / weights.sum(-1)


def test_names_and_seeds_are_drawn_across_each_other_and_the_interval_covers():
    """Three seeds of 60 names each, both of them with an effect: of 300 intervals 285 should hold the mean, 272 come once in 1,000."""
    draw, held = np.random.default_rng(2), 0
    for i in range(300):
        of_names, of_seeds = draw.normal(size=60), draw.normal(0, 0.3, 3)
        seeds = [table(of_names + s + draw.normal(0, 0.5, 60)) for s in of_seeds]
        row = AnswerBootstrap(i, draws=400)(seeds, share).row()
        assert row["low"] is not None
        assert row["high"] is not None
        held += row["low"] < 0 < row["high"]
    assert held > 272
