"""Recall's measures on examples: what is no number, what is always the same, and what is said in words."""

from __future__ import annotations

import numpy as np
import pytest

from trisect.measure import recall
from trisect.stats.null import permutation_p


def test_auroc_is_no_number_where_one_kind_is_missing():
    weights = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    found = recall.auroc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False]), weights)
    assert np.isnan(found[0])
    assert found[1] == 0
    assert np.isnan(recall.auroc(np.zeros(0), np.zeros(0, dtype=bool)))
    assert np.isnan(recall.auroc(np.array([0.1, np.nan]), np.array([True, False])))


def test_a_confidence_that_is_no_number_is_the_lowest():
    confidence, correct = np.array([np.nan, 0.2, 0.9, np.nan]), np.array([False, True, True, False])
    found = recall.risk_coverage(confidence, correct)
    np.testing.assert_array_equal(found.threshold, [0.9, 0.2, -np.inf])
    np.testing.assert_array_equal(found.risk, [0.0, 0.0, 0.5])


def test_a_threshold_and_none_at_all():
    sure = recall.threshold(np.linspace(0.5, 1, 200), np.ones(200, dtype=bool), 0.1)
    assert (sure.value, sure.coverage, sure.n) == (0.5, 1.0, 200)
    for correct in (np.zeros(200, dtype=bool), np.zeros(0, dtype=bool)):
        assert recall.threshold(np.linspace(0, 1, len(correct)), correct, 0.1).value is None


def test_few_answers_are_enough_where_few_thresholds_are_tried():
    """Thirty right answers: 1 − (0.05 / 3)^(1/30) = 0.1276 keeps 0.13, 1 − (0.05 / 20)^(1/30) = 0.181 would not."""
    confidence, correct = np.linspace(0.5, 1, 30), np.ones(30, dtype=bool)
    assert recall.threshold(confidence, correct, 0.13).value == 0.5
    assert recall.threshold(confidence, correct, 0.12).value is None


def test_what_can_be_told_apart_is_and_one_kind_alone_teaches_nothing():
    correct = np.arange(80) % 2 == 0
    features = np.stack([correct * 5.0, np.ones(80)], -1)
    found = recall.tell_apart(features, correct, [str(i) for i in range(80)])
    assert float(recall.auroc(found.scores, correct, folds=found.folds)) == 1
    assert not recall.tell_apart(features, np.ones(80, dtype=bool), [str(i) for i in range(80)]).scores.any()


def test_permutations_see_a_match_and_need_two_names():
    ours = [str(i % 5) for i in range(50)]
    match = recall.agreement(ours, ours)
    assert permutation_p(match, np.random.default_rng(0), 99) == 0.01
    assert permutation_p(match + match, np.random.default_rng(0), 99) == 0.01
    assert permutation_p(1 - match, np.random.default_rng(0), 99) == 1.0
    assert np.isnan(permutation_p(np.ones((1, 1)), np.random.default_rng(0)))
    same = permutation_p(np.ones((9, 9)), np.random.default_rng(0), 99)
    assert same == 1.0


def test_the_last_name_decides_and_then_the_characters():
    known = ["Mara Quell", "Lena Voss", "Maria Voss", "Voss"]
    names = ["Marie Voss", "Solo", "Ann Teck", "Voss"]
    found = recall.nearest_names(recall.last_name_similarity(names, known), names, known, 3)
    assert [known[i] for i in found.nearest[0, :2]] == ["Maria Voss", "Lena Voss"]
    assert found.nearest[:, 0].tolist() == [2, -1, -1, -1]
    assert found.nearest[0, 2] == -1
    assert np.isnan(found.similarity[1:]).all()


@pytest.mark.parametrize("similarity", [recall.character_similarity, recall.last_name_similarity])
def test_nobody_known_is_nobody_near(similarity):
    ada = ["Ada Quill"]
    assert recall.nearest_names(similarity(ada, []), ada, [], 2).nearest.tolist() == [[-1, -1]]
    assert recall.nearest_names(similarity([], ada), [], ada).nearest.shape == (0, 1)


def test_a_vector_without_length_is_near_to_nothing():
    assert recall.vector_similarity(np.zeros((1, 3)), np.eye(3)).tolist() == [[0.0, 0.0, 0.0]]


def test_case_does_not_matter_and_a_name_is_as_near_to_itself_as_can_be():
    same = recall.character_similarity(["ADA Quill", "xyz"], ["Ada Quill", "Bo"])
    np.testing.assert_allclose(same, [[1, 0], [0, 0]], atol=1e-12)


def test_without_answers_nothing_is_measured():
    nothing = recall.follows([], [])
    assert np.isnan(nothing.share)
    assert float(nothing.n) == 0
    assert np.isnan(recall.follows(["a"], [None]).expected)
    empty = recall.risk_coverage(np.zeros(0), np.zeros(0, dtype=bool))
    assert empty.risk.shape == (0,)
    assert np.isnan(empty.area)
    assert np.isnan(recall.calibration(np.zeros(0), np.zeros(0, dtype=bool)).ece)
    assert recall.tell_apart(np.zeros((0, 3)), np.zeros(0, dtype=bool), []).scores.shape == (0,)
