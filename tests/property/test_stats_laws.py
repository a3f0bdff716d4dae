"""Laws of the statistics: symmetry, order, scale, no claim both supported and refuted; comparisons have no side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trisect.claims.verdicts import CONTROLS, LOST_EFFECT, NO_EFFECT, SURVIVES, reading
from trisect.core.claim import LossChange, Part
from trisect.stats.paired import compare, summary, t_interval, t_test
from trisect.stats.power import fewest_seeds
from trisect.stats.significance import ALPHA, PValues, conjunction, holm, two_sided

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


# Whole thousandths: sums and their negatives round alike, so that mirrored readings are the same to the bit.
NATS = st.integers(-900, 900).map(lambda n: n / 1000)
SEEDS = st.lists(st.tuples(NATS, NATS), min_size=1, max_size=6)
PART = Part("over-fits", LossChange("attack", ("k@1",), "valid", "pos"), "above", 0.02, "nats", "why")


def read(part, control, pairs):
    attack, other = np.array(pairs).T
    return reading(part, control, summary(attack), summary(other), summary(attack - other))


@given(pairs=SEEDS, control=st.sampled_from(CONTROLS))
def test_a_mirrored_claim_of_mirrored_effects_reads_the_same(pairs, control):
    mirrored = replace(PART, direction="below", bound=-PART.bound)
    assert read(PART, control, pairs) == read(mirrored, control, [(-a, -b) for a, b in pairs])


@given(pairs=SEEDS, control=st.sampled_from(CONTROLS))
def test_there_is_something_to_survive_iff_the_attack_has_the_effect(pairs, control):
    mean = float(np.mean([a for a, _ in pairs]))
    assert (read(PART, control, pairs) == NO_EFFECT) == (not mean > PART.bound)


@given(pairs=st.lists(st.tuples(NATS, st.just(0.0)), min_size=3, max_size=6))
def test_a_control_that_does_just_as_much_is_never_survived(pairs):
    same = [(a, a + 0.001 * (i % 2)) for i, (a, _) in enumerate(pairs)]
    assert read(PART, "control", same) in (LOST_EFFECT, NO_EFFECT)


@given(pairs=SEEDS, shift=st.integers(100, 500).map(lambda n: n / 1000))
def test_a_stronger_control_never_makes_a_claim_survive(pairs, shift):
    stronger = [(a, b + shift) for a, b in pairs]
    assert read(PART, "control", pairs) == SURVIVES or read(PART, "control", stronger) != SURVIVES


UNITS = st.lists(st.tuples(NATS, NATS, NATS), min_size=3, max_size=6)


def compared(units, margin=0.02, order="qkv"):
    columns = dict(zip("qkv", np.array(units).T, strict=True))
    return compare({name: columns[name] for name in order}, margin)


@given(units=UNITS, power=st.integers(-3, 3))
def test_units_change_no_comparison(units, power):
    scale = 4.0**power  # exact in binary
    found, other = compared(units), compared([[x * scale for x in row] for row in units], 0.02 * scale)
    assert (found.kind, found.names) == (other.kind, other.names)
    assert [p.p_holm for p in found.pairs] == pytest.approx([p.p_holm for p in other.pairs], abs=1e-9)


@given(units=UNITS, order=st.permutations("qkv"))
def test_the_order_in_which_components_are_named_changes_nothing(units, order):
    found, other = compared(units), compared(units, order=order)
    assert found.kind == other.kind
    assert {frozenset((p.first, p.second)): p.p_holm for p in found.pairs} == pytest.approx(
        {frozenset((p.first, p.second)): p.p_holm for p in other.pairs}
    )


@given(units=UNITS, shared=st.lists(NATS, min_size=6, max_size=6))
def test_what_all_components_of_a_unit_share_is_in_no_comparison(units, shared):
    """Whole multiples of 1/1024, so that sums are exact."""
    exact = [[round(x * 1024) / 1024 for x in row] for row in units]
    moved = [[x + round(c * 1024) / 1024 for x in row] for row, c in zip(exact, shared, strict=False)]
    assert compared(exact).pairs == compared(moved).pairs


@given(units=UNITS)
def test_the_smallest_of_mirrored_numbers_is_the_largest(units):
    found, turned = compared(units), compared([[-x for x in row] for row in units])
    above = {(p.first, p.second) for p in found.pairs if p.above}
    assert above == {(p.second, p.first) for p in turned.pairs if p.above}
    assert (found.kind == "alike") == (turned.kind == "alike")
