"""Laws of the statistics: symmetry, order, scale, and that no claim is both supported and refuted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trisect.stats.paired import summary, t_interval, t_test
from trisect.stats.reach import fewest_seeds
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
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p):
    adjusted = holm(p)
    assert np.all(adjusted >= np.minimum(1, np.array(p)) - 1e-15)
    assert np.all(adjusted <= 1)
    assert np.all(np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0)


@given(families)
def test_holm_never_exceeds_bonferroni_and_a_larger_family_never_helps(p):
    assert np.all(holm(p) <= np.minimum(1, len(p) * np.array(p)) + 1e-15)
    assert np.all(holm([*p, 1.0])[: len(p)] >= holm(p) - 1e-15)


@given(families, st.randoms(use_true_random=False))
def test_holm_does_not_mind_the_order_of_claims(p, random):
    order = list(range(len(p)))
    random.shuffle(order)
    assert holm([p[i] for i in order]) == pytest.approx([holm(p)[i] for i in order])


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
