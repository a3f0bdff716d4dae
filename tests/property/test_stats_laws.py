"""Laws of the statistics: symmetry, order, scale, no claim both supported and refuted, and intervals of differences of shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trisect.stats.paired import summary, t_interval, t_test
from trisect.stats.reach import fewest_seeds
from trisect.stats.shares import paired_difference, wilson
from trisect.stats.tested import ALPHA, PValues, conjunction, holm, two_sided

DIRECTIONS = ("above", "below", "within")
TURNED = {"above": "below", "below": "above", "within": "within"}
numbers = st.floats(-10, 10, allow_nan=False).map(lambda x: round(x, 6))
samples = hnp.arrays(float, st.integers(2, 12), elements=numbers)
bounds = st.floats(0.001, 5).map(lambda x: round(x, 6))
probabilities = st.floats(0, 1)
families = st.lists(probabilities, min_size=1, max_size=20)
pairs = st.builds(lambda a, b: PValues(np.array(a), np.array(b)), probabilities, probabilities)


@given(samples, st.sampled_from(DIRECTIONS), bounds, st.booleans())
def test_turning_effect_and_claim_round_changes_nothing(values, direction, bound, negative):
    bound = -bound if negative and direction != "within" else bound
    turned = bound if direction == "within" else -bound
    here = t_test(summary(values), direction, bound)
    there = t_test(summary(-values), TURNED[direction], turned)
    assert here == pytest.approx(there, rel=1e-9, abs=1e-300)


@given(samples, st.sampled_from(("above", "below")), bounds)
def test_claiming_the_opposite_swaps_the_sides(values, direction, bound):
    here, there = (t_test(summary(values), d, bound) for d in (direction, TURNED[direction]))
    assert (here.p_for, here.p_against) == (there.p_against, there.p_for)


@given(samples, bounds, st.floats(0, 5))
def test_adding_a_constant_moves_the_claim_one_way(values, bound, constant):
    here, there = (t_test(summary(values + c), "above", bound) for c in (0.0, constant))
    assert there.p_for <= here.p_for + 1e-9  # rounding of the shifted values
    assert there.p_against >= here.p_against - 1e-9


@given(samples, st.sampled_from(DIRECTIONS), bounds, st.sampled_from((0.25, 4.0, 1024.0)))
def test_units_do_not_matter(values, direction, bound, scale):
    here = summary(values)
    there = summary(values * scale)
    if here.testable and there.testable:
        expected = t_test(here, direction, bound)
        assert t_test(there, direction, bound * scale) == pytest.approx(expected, rel=1e-6, abs=1e-300)


@given(samples, st.sampled_from(DIRECTIONS), bounds)
def test_no_part_has_two_small_sides(values, direction, bound):
    found = t_test(summary(values), direction, bound)
    assert 0 <= found.p_for <= 1
    assert 0 <= found.p_against <= 1
    assert found.p_for + found.p_against >= 1 - 1e-9


@given(st.lists(pairs, min_size=1, max_size=20))
def test_joining_parts_never_makes_a_claim_easier(parts):
    joint = conjunction(parts)
    assert all(joint.p_for >= part.p_for for part in parts)
    assert joint.p_against >= min(part.p_against for part in parts)
    assert joint == conjunction(parts[::-1])


@given(st.lists(samples, min_size=1, max_size=4), bounds)
def test_supported_and_refuted_never_both(values, bound):
    joint = conjunction([t_test(summary(v), "above", bound) for v in values])
    assert not (joint.p_for < ALPHA / 2 and joint.p_against < ALPHA / 2)


@given(families)
def test_holm_is_the_step_down_procedure_as_its_author_states_it(p):
    """Reject the smallest while p_(i) ≤ α / (m − i + 1), and stop at the first that is not: the same at every level."""
    adjusted = holm(p)
    levels = sorted({*p, *adjusted.tolist(), *np.linspace(0.001, 0.999, 50).tolist()})
    for alpha in (level for level in levels if level < 1):
        rejected = set()
        for i, which in enumerate(np.argsort(p, kind="stable")):
            if not p[which] * (len(p) - i) <= alpha:
                break
            rejected.add(int(which))
        assert rejected == set(np.flatnonzero(adjusted <= alpha).tolist())


@given(samples, bounds)
def test_the_interval_agrees_with_the_tests(values, bound):
    found = summary(values)
    if found.testable:
        low, high = t_interval(found, 0.95)
        p = t_test(found, "above", bound)
        assert (p.p_for < 0.025) == (low > bound) or p.p_for == pytest.approx(0.025)
        assert (p.p_against < 0.025) == (high < bound) or p.p_against == pytest.approx(0.025)


@given(samples, st.sampled_from(DIRECTIONS), bounds, st.integers(1, 20))
def test_an_undecided_claim_needs_more_seeds_than_it_has(values, direction, bound, family):
    found = summary(values)
    needed = fewest_seeds([(found, direction, bound)], family)
    if needed is not None and two_sided(t_test(found, direction, bound)) >= ALPHA / family:
        assert needed > found.n


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
