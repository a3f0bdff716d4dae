"""Comparisons of q, k and v by paired differences: what is said of known numbers, and how often by chance."""

import numpy as np
import pytest
from scipy import stats

from trisect.stats.compare import compare

NOISE = np.array([0.01, -0.02, 0.005, 0.012, -0.007])


def paired(**shifts):
    """Five units that share a large spread of their own, each component shifted by a known amount."""
    shared = np.array([3.0, -1.0, 0.5, 7.0, 2.0])
    return {name: shared + shift + NOISE * (-1) ** i * (i + 1) / 3 for i, (name, shift) in enumerate(shifts.items(), 1)}


def test_one_component_far_above_is_most_though_units_differ_more_than_components():
    found = compare(paired(q=0.0, k=0.1, v=1.0), 0.02)
    assert found.kind == "most"
    assert found.largest == "v"
    assert found.words() == "v most"
    assert found.n == 5


def test_two_components_above_the_third():
    found = compare(paired(q=0.0, k=1.0, v=1.002), 0.001)
    assert found.kind == "above"
    assert found.words() in ("v and k above q", "k and v above q")


def test_components_within_the_margin_are_alike_even_where_a_small_difference_is_sure():
    found = compare(paired(q=0.0, k=0.002, v=0.004), 0.5)
    assert found.kind == "alike"
    assert found.words() == "alike within 0.5"
    assert not any(pair.above for pair in found.pairs)


def test_too_few_units_say_how_many_would_do():
    draw = np.random.default_rng(1)
    values = {name: shift + draw.normal(0, 1, 3) for name, shift in (("q", 0.0), ("k", 0.2), ("v", 0.9))}
    found = compare(values, 0.02)
    assert found.kind == "uncertain"
    assert found.needed is not None
    assert found.needed > 3
    assert found.words("text") == f"too uncertain: about {found.needed} texts needed, 3 run"


def test_one_unit_decides_nothing():
    found = compare({"q": [0.0], "k": [5.0], "v": [9.0]}, 0.02)
    assert found.words() == "too uncertain: 1 seed run, which decides nothing"
    same = compare({"q": [0.0, 0.0], "k": [5.0, 5.0]}, 0.02)
    assert same.words() == "too uncertain: no spread over 2 seeds, so no t test"
    assert compare({"q": [], "k": [], "v": []}, 0.02).n == 0


def test_units_that_lack_a_component_are_left_out():
    values = paired(q=0.0, k=0.1, v=1.0)
    with_gap = {name: np.append(row, np.nan if name == "k" else 99.0) for name, row in values.items()}
    assert compare(with_gap, 0.02) == compare(values, 0.02)


def test_p_values_are_scipys_with_holm():
    values = paired(q=0.0, k=0.015, v=0.02)
    found = compare(values, 0.001)
    raw = {(p.first, p.second): stats.ttest_rel(values[p.first], values[p.second]).pvalue for p in found.pairs}
    ordered = sorted(raw.values())
    smallest = min(found.pairs, key=lambda p: raw[p.first, p.second])
    assert smallest.p_holm == pytest.approx(min(1, 3 * ordered[0]))


def test_without_a_difference_some_pair_is_told_apart_in_at_most_a_twentieth_of_draws():
    draw = np.random.default_rng(0)
    hits = sum(
        compare(dict(zip("qkv", draw.normal(0, 1, (3, 6)), strict=True)), 0.01).kind in ("most", "above")
        for _ in range(1000)
    )
    assert hits <= 65  # the upper end of 99 % for a share of 0.05
