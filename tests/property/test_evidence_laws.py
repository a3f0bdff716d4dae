"""Readings of controls and lines of evidence have no side of their own: signs, units and names turn with the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trisect.claims.controls import CONTROLS, NOT, NOTHING, SURVIVES, reading
from trisect.core.claim import LossChange, Part
from trisect.experiments.dissect.evidence import Line, first
from trisect.report.points import Mean
from trisect.stats.paired import summary

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


def line(means):
    q, k, v = means
    return Line("attack", "", "POS", "nats", q, k, v)


MEANS = st.tuples(NATS, st.integers(1, 100).map(lambda n: n / 1000)).map(
    lambda x: Mean(x[0], x[0] - x[1], x[0] + x[1], 5)
)


@given(means=st.tuples(MEANS, MEANS, MEANS), power=st.integers(-3, 3))
def test_units_change_no_order(means, power):
    scale = 4.0**power  # exact in binary
    scaled = [Mean(m.mean * scale, m.low * scale, m.high * scale, m.n) for m in means]
    found, other = first(line(means)), first(line(scaled))
    assert found is not None
    assert other is not None
    assert found.component == other.component
    if power <= 0:
        return
    # means closer than rounding count as the same, and so may part as they grow
    assert set(other.rivals) <= set(found.rivals)


@given(means=st.tuples(MEANS, MEANS, MEANS))
def test_a_component_is_first_alone_only_where_it_is_clear_of_all_others(means):
    found = first(line(means))
    assert found is not None
    named = dict(zip("qkv", means, strict=True))
    top = named.pop(found.component)
    for name, other in named.items():
        assert abs(other.mean) <= abs(top.mean)
        if name not in found.rivals:
            assert max(abs(other.low), abs(other.high)) < min(abs(top.low), abs(top.high))
