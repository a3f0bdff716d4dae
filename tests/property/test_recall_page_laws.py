"""Curves of recall's page: the area under one is the measure of that name, whatever the scores."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trisect.experiments.recall.page import cumulative, roc, thin
from trisect.measure.recall import auroc

SCORED = st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=1, max_size=60)


@given(SCORED)
def test_the_area_under_the_curve_is_the_auroc(pairs):
    scores, correct = [float(s) for s, _ in pairs], [c for _, c in pairs]
    points = roc(scores, correct)
    expected = float(auroc(np.array(scores), np.array(correct)))
    assert bool(points) == np.isfinite(expected)
    if points:
        x, y = np.array(points).T
        assert points[0] == (0.0, 0.0)
        assert points[-1] == (1.0, 1.0)
        assert abs(np.trapezoid(y, x) - expected) < 1e-12  # sums of at most 60 terms below 1


@given(SCORED, st.floats(0.1, 10), st.floats(-5, 5))
def test_the_curve_does_not_change_when_scores_are_stretched(pairs, factor, shift):
    scores, correct = [float(s) for s, _ in pairs], [c for _, c in pairs]
    assert roc([factor * s + shift for s in scores], correct) == roc(scores, correct)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=500))
def test_a_cumulative_curve_climbs_from_nothing_to_all(values):
    points = cumulative(sorted(values))
    x, y = np.array(points).T
    assert (y[0], y[-1]) == (0.0, 1.0)
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) > 0).all()
    assert (x[0], x[-1]) == (min(values), max(values))
    assert len(points) <= 201


@given(st.integers(1, 500), st.integers(2, 50))
def test_thinning_keeps_the_order_and_both_ends(size, most):
    kept = thin(range(size), most)
    assert len(kept) == min(size, most)
    assert (kept[0], kept[-1]) == (0, size - 1)
    assert kept == sorted(set(kept))
