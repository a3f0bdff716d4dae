"""Readings of controls and comparisons of q, k and v have no side of their own: signs, units and names turn with the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trisect.claims.verdicts import CONTROLS, NOT, NOTHING, SURVIVES, reading
from trisect.core.claim import LossChange, Part
from trisect.stats.paired import compare, summary

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
    assert (read(PART, control, pairs) == NOTHING) == (not mean > PART.bound)


@given(pairs=st.lists(st.tuples(NATS, st.just(0.0)), min_size=3, max_size=6))
def test_a_control_that_does_just_as_much_is_never_survived(pairs):
    same = [(a, a + 0.001 * (i % 2)) for i, (a, _) in enumerate(pairs)]
    assert read(PART, "control", same) in (NOT, NOTHING)


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
