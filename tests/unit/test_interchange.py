"""Interchange scores: which of the predicted answers came, by hand; and changes of logit differences."""

from __future__ import annotations

import numpy as np
import pytest

from trisect.measure.patching import (
    UNKNOWN,
    logit_ratio,
    match_prediction,
    ratio_of_sums,
    share_of,
    shares,
)

# in the fourth pair q and the base are alike, in the fifth k is unknown
PREDICTIONS = {"base": [1, 1, 1, 1, 1], "q": [2, 2, 2, 1, 2], "k": [3, 3, 3, 3, UNKNOWN], "v": [4, 4, 4, 4, 4]}


def hits(found):
    return {name: share.hits for name, share in found.items()}


def test_shares_count_the_pairs_whose_four_predictions_differ() -> None:
    """The fourth pair's q is the base's answer and the fifth's k is not known: neither counts, whatever came."""
    found = shares([2, 4, 1, 2, 2], PREDICTIONS, "q")
    assert {share.n for share in found.values()} == {3}
    assert hits(found) == {"base": 1, "q": 1, "k": 0, "v": 1}
    assert found["q"].value == pytest.approx(1 / 3)


def test_an_answer_that_nothing_predicted_is_in_no_share() -> None:
    found = shares([9, 9, 9, 9, 9], PREDICTIONS, "v")
    assert (found["v"].n, hits(found)) == (3, {"base": 0, "q": 0, "k": 0, "v": 0})


def test_a_joint_component_needs_a_prediction_that_is_its_own() -> None:
    """In the second pair q+k predicts what q does, so that nothing could tell them apart."""
    joint = {**{name: of[:2] for name, of in PREDICTIONS.items()}, "q+k": [5, 2]}
    found = shares([5, 2], joint, "q+k")
    assert (found["q+k"].n, hits(found)) == (1, {"base": 0, "q": 0, "k": 0, "v": 0, "q+k": 1})


def test_components_without_predictions_are_left_out() -> None:
    assert shares([1, 1], {"base": [1, 1], "q": [2, 2], "v": [1, 3]}, "q")["v"].n == 1  # equals that are not neighbours
    found = shares([2, 1], {"base": [1, 1], "q": [2, 2]}, "q")
    assert (found["q"].n, found["q"].value, sorted(found)) == (2, 0.5, ["base", "q"])


def test_intervals_reach_to_certainty_only_where_all_pairs_say_so() -> None:
    every, none, most = share_of(np.ones(20, bool)), share_of(np.zeros(20, bool)), share_of(np.arange(20) > 0)
    assert (every.high, none.low) == (1.0, 0.0)
    assert 0.85 < (every.low or 0.0) < 0.95
    assert (most.high or 1.0) < 1.0
    assert share_of(np.zeros(0, bool)).value is None


def test_which_came_names_the_first_that_predicted_it() -> None:
    assert match_prediction([1, 2, 7, 4, 4], PREDICTIONS) == ("base", "q", "other", "v", "v")
    assert match_prediction([UNKNOWN], {"base": [1], "q": [UNKNOWN]}) == ("other",)


def logit_change(*differences):
    return ratio_of_sums(*logit_ratio(*differences)[:2])


def test_logit_change_is_none_at_the_own_run_and_whole_at_the_other() -> None:
    own, other = np.array([3.0, 2.0, 4.0]), np.array([-1.0, -3.0, -2.0])
    assert logit_change(own, own, other)["value"] == 0.0
    assert logit_change(other, own, other)["value"] == 1.0
    half = logit_change((own + other) / 2, own, other)
    assert (half["value"], half["low"]) == pytest.approx((0.5, 0.5))
    assert half["n"] == 3


def test_a_pair_without_room_adds_nothing_to_the_change() -> None:
    """Both runs answer the second pair alike: its own ratio would be 0 / 0."""
    found = logit_change(np.array([0.0, 1.0]), np.array([2.0, 1.0]), np.array([-2.0, 1.0]))
    assert (found["value"], found["n"]) == (pytest.approx(0.5), 1)
    assert logit_change(np.ones(2), np.ones(2), np.ones(2))["value"] is None
