"""Laws of the interval of a difference of two shares over the same units: it has a width everywhere, and covers what is true."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.stats.shares import paired_difference, wilson

BOTH = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60)


def columns(pairs):
    return np.array(pairs, dtype=float).T


@settings(max_examples=150, deadline=None)
@given(BOTH)
def test_the_interval_holds_the_difference_has_a_width_and_no_side_is_special(pairs):
    first, second = columns(pairs)
    low, high = paired_difference(first, second)
    assert -1 - 1e-12 <= low <= (second - first).mean() <= high <= 1 + 1e-12
    assert high - low > 0.5 / len(pairs)
    assert paired_difference(second, first) == pytest.approx((-high, -low))
    assert paired_difference(1 - first, 1 - second) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.5), (0.25, 0.75), (1.0, 0.5), (0.0, 1.0), (1.0, 1.0)])
def test_of_shares_that_are_independent_it_squares_and_adds_both_wilson_intervals(p, q):
    first, second = (a.ravel() for a in np.meshgrid(np.arange(4) < 4 * p, np.arange(4) < 4 * q))
    low, high = paired_difference(first.astype(float), second.astype(float))
    (low_p, high_p), (low_q, high_q) = wilson(p, 16), wilson(q, 16)
    assert low == pytest.approx(q - p - np.hypot(q - low_q, high_p - p))
    assert high == pytest.approx(q - p + np.hypot(high_q - q, p - low_p))


def test_all_and_none_and_the_same_in_both_worked_by_hand():
    z = 1.959964**2
    short = z / (40 + z)  # Wilson's of 40 of 40 lacks this much of 1
    ones, half = np.ones(40), np.repeat([0.0, 1.0], 20)
    assert paired_difference(ones, ones) == pytest.approx((-short, short), abs=1e-6)
    assert paired_difference(1 - ones, ones) == pytest.approx((1 - 2**0.5 * short, 1.0), abs=1e-6)
    low, high = paired_difference(half, half)  # by the correction they count as alike to 0.95
    reach = (wilson(0.5, 40)[1] - 0.5) * (2 - 2 * 0.95) ** 0.5
    assert (low, high) == pytest.approx((-reach, reach))


@pytest.mark.parametrize("table", [(0.96, 0.02, 0.01, 0.01), (0.5, 0.05, 0.05, 0.4), (0.3, 0.3, 0.1, 0.3)])
def test_it_covers_what_is_true_about_as_often_as_it_says(table):
    draw, n, times = np.random.default_rng(0), 40, 1_500
    true, missed = table[2] - table[1], 0
    for cells in draw.multinomial(n, table, size=times):
        first, second = (np.repeat(of, cells).astype(float) for of in ((1, 1, 0, 0), (1, 0, 1, 0)))
        low, high = paired_difference(first, second)
        missed += not low <= true <= high
    assert missed / times < 0.07
