"""Laws of recall's measures: against scikit-learn, definitions written out, closed forms, and chance itself."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from trisect.experiments.recall.rows import AnswerBootstrap
from trisect.measure import recall
from trisect.stats.null import permutation_p
from trisect.stats.shares import jeffreys

SEEDS = st.integers(0, 10_000)
ROUNDING = 1e-12  # sums of at most a few hundred terms of order one


def answered(seed: int, n: int, levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with ties in (0, 1), whether each answer is right (both kinds are there), and counts in four draws."""
    draw = np.random.default_rng(seed)
    scores = draw.integers(1, levels + 1, n) / (levels + 1)
    correct = draw.random(n) < scores
    correct[:2] = True, False
    return scores, correct, draw.integers(1, 4, (4, n)).astype(float)


def repeated(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.repeat(values, counts.astype(int))


@settings(max_examples=40)
@given(seed=SEEDS, n=st.integers(2, 60), levels=st.integers(1, 40))
def test_auroc_is_that_of_scikit_learn_in_every_draw(seed, n, levels):
    scores, correct, weights = answered(seed, n, levels)
    want = [roc_auc_score(correct, scores, sample_weight=w) for w in weights]
    np.testing.assert_allclose(recall.auroc(scores, correct, weights), want, rtol=ROUNDING, atol=ROUNDING)
    assert float(recall.auroc(scores, correct)) == pytest.approx(float(roc_auc_score(correct, scores)), abs=ROUNDING)


@settings(max_examples=30)
@given(seed=SEEDS, n=st.integers(6, 40), levels=st.integers(1, 20))
def test_auroc_within_folds_counts_pairs_of_one_fold_alone(seed, n, levels):
    scores, correct, _ = answered(seed, n, levels)
    folds = np.random.default_rng(seed).integers(0, 3, n)
    pairs = [(i, j) for i in range(n) for j in range(n) if correct[i] and not correct[j] and folds[i] == folds[j]]
    assume(pairs)
    want = np.mean([(scores[i] > scores[j]) + (scores[i] == scores[j]) / 2 for i, j in pairs])
    assert float(recall.auroc(scores, correct, folds=folds)) == pytest.approx(float(want), abs=ROUNDING)


@settings(max_examples=40)
@given(seed=SEEDS, n=st.integers(2, 60), bins=st.integers(1, 20))
def test_calibration_is_its_definition_written_out(seed, n, bins):
    """Bins ((b − 1)/B, b/B], as in the source; a probability of 0 belongs to the first."""
    probabilities, correct, weights = answered(seed, n, 30)
    found = recall.calibration(probabilities, correct, bins, weights)
    for row, counts in enumerate(weights):
        p, right = repeated(probabilities, counts), repeated(correct, counts)
        error = 0.0
        for b in range(bins):
            inside = (p > b / bins) & (p <= (b + 1) / bins)
            assert found.weight[row, b] == inside.sum()
            if inside.any():
                assert found.accuracy[row, b] == pytest.approx(right[inside].mean(), abs=ROUNDING)
                assert found.probability[row, b] == pytest.approx(p[inside].mean(), abs=ROUNDING)
                error += inside.mean() * abs(right[inside].mean() - p[inside].mean())
            else:
                assert np.isnan(found.accuracy[row, b])
        assert found.ece[row] == pytest.approx(error, abs=ROUNDING)
        assert found.excess[row] == pytest.approx(p.mean() - right.mean(), abs=ROUNDING)
        assert abs(found.excess[row]) <= found.ece[row] + 1e-12
    assert recall.calibration(np.zeros(3), correct[:1].repeat(3), bins).weight[0] == 3


@settings(max_examples=40)
@given(seed=SEEDS, n=st.integers(2, 40), levels=st.integers(1, 40))
def test_risk_and_its_area_are_their_definitions_written_out(seed, n, levels):
    confidence, correct, weights = answered(seed, n, levels)
    found = recall.risk_coverage(confidence, correct, weights)
    np.testing.assert_array_equal(found.threshold, np.unique(confidence)[::-1])
    for row, counts in enumerate(weights):
        c, right = repeated(confidence, counts), repeated(correct, counts)
        want = [((c >= t).mean(), 1 - right[c >= t].mean()) for t in found.threshold]
        np.testing.assert_allclose(
            np.stack([found.coverage[row], found.risk[row]], -1), want, rtol=ROUNDING, atol=ROUNDING
        )
        assert found.area[row] == pytest.approx(np.mean([1 - right[c >= own].mean() for own in c]), abs=ROUNDING)


@settings(max_examples=40)
@given(seed=SEEDS, n=st.integers(1, 300), risk=st.sampled_from([0.05, 0.2, 0.5, 0.9]))
def test_a_threshold_keeps_its_bound_which_is_that_of_clopper_and_pearson(seed, n, risk):
    draw = np.random.default_rng(seed)
    confidence = draw.integers(0, 50, n) / 50
    correct = draw.random(n) < confidence**0.3
    found = recall.threshold(confidence, correct, risk)
    if found.value is None:
        assert (found.coverage, found.bound, found.error, found.n) == (0.0, None, None, n)
        return
    answered, grid = confidence >= found.value, min(20, max(1, n // 10))
    errors, many = int((answered & ~correct).sum()), int(answered.sum())
    exact = stats.binomtest(errors, many, alternative="less").proportion_ci(1 - 0.05 / grid, "exact").high
    assert found.bound == pytest.approx(exact, abs=1e-9)  # scipy solves for the bound by bisection
    assert found.bound is not None
    assert found.bound <= risk
    assert (found.error, found.coverage) == (errors / many, many / n)
    higher = recall.threshold(confidence, correct, min(1.0, risk + 0.1))
    assert higher.value is not None
    assert higher.value <= found.value


@given(st.integers(1, 400))
def test_one_threshold_is_tried_for_ten_answers_at_least_one_and_at_most_twenty(n):
    """All answers right: the bound at n of n is 1 − (δ / T)^(1 / n), and the lowest threshold is that of every answer."""
    grid = min(20, max(1, n // 10))
    found = recall.threshold(np.arange(1.0, n + 1), np.ones(n, dtype=bool), 0.999)
    assert (found.value, found.coverage) == (1.0, 1.0)
    bound = 1 - (0.05 / grid) ** (1 / n)
    assert found.bound == pytest.approx(bound, abs=1e-9)
    assert recall.threshold(np.arange(1.0, n + 1), np.ones(n, dtype=bool), bound - 1e-6).value is None


@settings(max_examples=15)
@given(seed=SEEDS, people=st.integers(1, 30))
def test_a_name_is_never_fitted_and_scored(seed, people):
    draw = np.random.default_rng(seed)
    names_ = [f"n{i}" for i in draw.integers(0, people, 60)]
    correct = draw.random(60) < 0.5
    found = recall.cross_fit_correctness(draw.normal(size=(60, 2)), correct, names_, seed)
    folds = {name: {int(f) for n, f in zip(names_, found.folds, strict=True) if n == name} for name in names_}
    assert all(len(mine) == 1 for mine in folds.values())
    assert len(set(found.folds)) == min(recall.FOLDS, len(folds))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["a", "b", None])), min_size=1, max_size=6))
def test_the_expected_share_is_the_mean_over_all_pairings(pairs):
    answers, places = [a for a, _ in pairs], [p for _, p in pairs]
    kept = [(a, p) for a, p in pairs if p is not None]
    found = recall.match_neighbours(answers, places)
    assert float(found.n) == len(kept)
    if not kept:
        assert np.isnan(found.share)
        return
    dealt = [
        np.mean([a == p for (a, _), p in zip(kept, order, strict=True)])
        for order in itertools.permutations([p for _, p in kept])
    ]
    assert float(found.expected) == pytest.approx(float(np.mean(dealt)), abs=ROUNDING)
    assert float(found.share) == pytest.approx(float(np.mean([a == p for a, p in kept])), abs=ROUNDING)
    assert float(found.excess) == pytest.approx(float(found.share - found.expected), abs=ROUNDING)


@settings(max_examples=25)
@given(seed=SEEDS, n=st.integers(2, 30))
def test_counts_of_answers_are_answers_repeated(seed, n):
    draw = np.random.default_rng(seed)
    ours, theirs = draw.choice(list("abcd"), (2, n))
    theirs = [None if draw.random() < 0.2 else str(t) for t in theirs]
    counts = draw.integers(1, 4, n)
    weighted = recall.match_neighbours(ours.tolist(), theirs, counts[None].astype(float))
    again = [i for i, c in enumerate(counts) for _ in range(c)]
    written = recall.match_neighbours([str(ours[i]) for i in again], [theirs[i] for i in again])
    for one, other in zip(weighted, written, strict=True):
        np.testing.assert_allclose(one[0], other, rtol=ROUNDING, atol=ROUNDING)


NAMES = st.lists(st.text("abcd ", min_size=1, max_size=9).filter(str.strip), min_size=1, max_size=8, unique=True)


@settings(max_examples=40)
@given(asked=NAMES, known=NAMES, top=st.integers(1, 9))
def test_neighbours_are_known_other_names_nearest_first(asked, known, top):
    found = recall.nearest_names(recall.character_similarity(asked, known), asked, known, top)
    assert found.nearest.shape == found.similarity.shape == (len(asked), top)
    for name, places, near in zip(asked, found.nearest, found.similarity, strict=True):
        there = places[places >= 0]
        assert len(set(there.tolist())) == len(there) == min(top, len(known) - (name in known))
        assert name not in {known[i] for i in there}
        assert (np.diff(near[: len(there)]) <= 1e-12).all()
        assert ((near[: len(there)] >= 0) & (near[: len(there)] <= 1 + 1e-12)).all()
        assert np.isnan(near[len(there) :]).all()
    again = recall.nearest_names(recall.character_similarity(asked, known[::-1]), asked, known[::-1], top)
    np.testing.assert_allclose(again.similarity, found.similarity, rtol=1e-9, atol=1e-12)


@settings(max_examples=25)
@given(seed=SEEDS, scale=st.floats(0.1, 10))
def test_neighbours_by_vectors_are_those_of_the_smallest_angle(seed, scale):
    ours, theirs = np.random.default_rng(seed).normal(size=(2, 6, 4))
    found = recall.nearest_names(recall.vector_similarity(scale * ours, theirs), list("abcdef"), list("ghijkl"), 2)
    angles = [[float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for b in theirs] for a in ours]
    np.testing.assert_array_equal(found.nearest[:, 0], np.argmax(angles, 1))
    np.testing.assert_allclose(found.similarity, np.sort(angles, 1)[:, ::-1][:, :2], rtol=1e-9, atol=1e-12)


def table(correct: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"name": [f"n{i}" for i in range(len(correct))], "correct": correct})


def share(answers: pl.DataFrame, weights: np.ndarray) -> np.ndarray:
    return weights @ answers["correct"].to_numpy().astype(float) / weights.sum(-1)


def test_the_spread_over_seeds_alone_is_that_of_their_mean():
    """Seeds that differ and names that do not: s / √S, with S − 1 degrees of freedom; 20,000 draws leave 1 %."""
    seeds = [table(np.full(40, value)) for value in (0.0, 1.0, 5.0, 2.0)]
    found = AnswerBootstrap(0, draws=20_000)(seeds, share)
    assert float(found.value) == 2.0
    assert found.draws.std() == pytest.approx(np.std([0, 1, 5, 2], ddof=1) / 2, rel=0.02)
    assert int(found.groups) == 4
    one = AnswerBootstrap(0)(seeds[:1], share)
    assert (int(one.groups), one.units) == (40, 40)


@pytest.mark.parametrize("value", [False, True])
def test_a_share_of_none_or_all_is_not_taken_for_certain(value):
    """Draws of Jeffreys' posterior, whose quantiles 2,000 draws give to a tenth of their size."""
    found = AnswerBootstrap(0).share([table(np.full(50, value))], share)
    assert float(found.value) == float(value)
    low, high = jeffreys(float(value), 50)
    inner = high if value is False else 1 - low
    assert np.quantile(np.abs(found.draws - value), 0.975) == pytest.approx(inner, rel=0.1)
    some = np.arange(50) < 5
    assert AnswerBootstrap(0).share([table(some)], share).draws.std() == pytest.approx(
        (0.1 * 0.9 / 50) ** 0.5, rel=0.05
    )


# --- promises, over hundreds of samples: bounds kept, nulls uniform, intervals that cover ---


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
        found = recall.cross_fit_correctness(features, correct, [str(j) for j in range(40)], seed=i)
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


# --- examples ---


def test_a_confidence_that_is_no_number_is_the_lowest():
    confidence, correct = np.array([np.nan, 0.2, 0.9, np.nan]), np.array([False, True, True, False])
    found = recall.risk_coverage(confidence, correct)
    np.testing.assert_array_equal(found.threshold, [0.9, 0.2, -np.inf])
    np.testing.assert_array_equal(found.risk, [0.0, 0.0, 0.5])


def test_permutations_see_a_match_and_need_two_names():
    ours = [str(i % 5) for i in range(50)]
    match = recall.agreement(ours, ours)
    assert permutation_p(match, np.random.default_rng(0), 99) == 0.01
    assert permutation_p(match + match, np.random.default_rng(0), 99) == 0.01
    assert permutation_p(1 - match, np.random.default_rng(0), 99) == 1.0
    assert np.isnan(permutation_p(np.ones((1, 1)), np.random.default_rng(0)))
    assert permutation_p(np.ones((9, 9)), np.random.default_rng(0), 99) == 1.0


def test_the_last_name_decides_and_then_the_characters():
    known = ["Mara Quell", "Lena Voss", "Maria Voss", "Voss"]
    names = ["Marie Voss", "Solo", "Ann Teck", "Voss"]
    found = recall.nearest_names(recall.last_name_similarity(names, known), names, known, 3)
    assert [known[i] for i in found.nearest[0, :2]] == ["Maria Voss", "Lena Voss"]
    assert found.nearest[:, 0].tolist() == [2, -1, -1, -1]
    assert found.nearest[0, 2] == -1
    assert np.isnan(found.similarity[1:]).all()


def test_without_answers_or_with_one_kind_alone_nothing_is_measured():
    nothing, none = recall.match_neighbours([], []), np.zeros(0, dtype=bool)
    assert (np.isnan(nothing.share), float(nothing.n)) == (True, 0)
    assert np.isnan(recall.match_neighbours(["a"], [None]).expected)
    empty = recall.risk_coverage(np.zeros(0), none)
    assert (empty.risk.shape, np.isnan(empty.area)) == ((0,), True)
    assert np.isnan(recall.calibration(np.zeros(0), none).ece)
    for correct in (np.zeros(200, dtype=bool), none):
        assert recall.threshold(np.linspace(0, 1, len(correct)), correct, 0.1).value is None
    weights = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])  # no wrong answer in the first draw
    found = recall.auroc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False]), weights)
    assert (np.isnan(found[0]), found[1]) == (True, 0)
    assert np.isnan(recall.auroc(np.zeros(0), none))
    assert np.isnan(recall.auroc(np.array([0.1, np.nan]), np.array([True, False])))
    names, correct = [str(i) for i in range(80)], np.arange(80) % 2 == 0
    features = np.stack([correct * 5.0, np.ones(80)], -1)
    apart = recall.cross_fit_correctness(features, correct, names)
    assert float(recall.auroc(apart.scores, correct, folds=apart.folds)) == 1
    assert not recall.cross_fit_correctness(features, np.ones(80, dtype=bool), names).scores.any()
    assert recall.cross_fit_correctness(np.zeros((0, 3)), none, []).scores.shape == (0,)


def test_nobody_known_or_without_length_is_near_and_case_does_not_matter():
    ada = ["Ada Quill"]
    for similarity in (recall.character_similarity, recall.last_name_similarity):
        assert recall.nearest_names(similarity(ada, []), ada, [], 2).nearest.tolist() == [[-1, -1]]
        assert recall.nearest_names(similarity([], ada), [], ada).nearest.shape == (0, 1)
    assert recall.vector_similarity(np.zeros((1, 3)), np.eye(3)).tolist() == [[0.0, 0.0, 0.0]]
    same = recall.character_similarity(["ADA Quill", "xyz"], ["Ada Quill", "Bo"])
    np.testing.assert_allclose(same, [[1, 0], [0, 0]], atol=1e-12)
