"""stats against values made by SciPy and plain loops (tests/references.py): intervals, p-values and corrections, digit for digit."""

import json
from pathlib import Path

import numpy as np
import pytest

from trisect.stats.bootstrap import _groups, _percentile_test, expand_p, percentile_interval
from trisect.stats.describe import permutation_spearman
from trisect.stats.null import Null, permutation_p
from trisect.stats.paired import summary, t_interval, t_test
from trisect.stats.shares import jeffreys, upper_bound, wilson
from trisect.stats.tested import holm

WANTED = json.loads(Path(__file__).with_name("references.json").read_text())
REPLICATES = np.array(WANTED["replicates"])
near = lambda value: pytest.approx(value, rel=1e-9, abs=1e-12)  # noqa: E731


@pytest.mark.parametrize(("n", "level", "low", "high"), WANTED["percentile"])
def test_percentile_intervals(n, level, low, high):
    found = percentile_interval(REPLICATES, n, level)
    assert (float(found.low), float(found.high)) == near((low, high))


@pytest.mark.parametrize(("reached", "draws", "n", "p"), WANTED["expanded"])
def test_expanded_p_values(reached, draws, n, p):
    assert float(expand_p(reached, draws, n)) == near(p)


def test_degrees_of_freedom_of_three_seeds_crossed_with_units():
    # Satterthwaite: between 9/3, within 4.5 - 3; 4.5² / (3²/2 + 1.5²/30) = 4.43
    assert _groups(np.array([0.0, 3.0, 6.0]), np.array([0.0, 3.0]), 31) == 5


def test_a_percentile_test_counts_draws_on_each_side():
    below, above = int((REPLICATES <= 0.5).sum()), int((REPLICATES >= 0.5).sum())
    found = _percentile_test(REPLICATES, 30, "above", 0.5)
    assert float(found.p_for) == float(expand_p(below, 400, 30))
    assert float(found.p_against) == float(expand_p(above, 400, 30))


@pytest.mark.parametrize(("name", "draws"), [("predicted", REPLICATES), ("predicted of five", REPLICATES[:5])])
def test_a_value_as_one_more_draw_is_a_t_test_of_one_against_many(name, draws):
    for value, p in WANTED[name]:
        assert float(Null.of(draws).t_p(np.array([value]))[0]) == near(p)


def test_student_s_t():
    sample = summary(WANTED["sample"])
    for level in (0.95, 0.99):
        found = t_interval(sample, level)
        assert [float(found.low), float(found.high)] == near(WANTED[f"t {level}"])
    assert float(t_test(sample, "above", 0.1).p_for) == near(WANTED["t above"])
    assert float(t_test(sample, "above", 0.1).p_against) == near(WANTED["t below"])
    within = t_test(sample, "within", 0.5)
    assert float(within.p_for) == near(max(WANTED["t beyond"], WANTED["t short"]))


def test_holm():
    p, adjusted = WANTED["holm"]
    assert holm(p).tolist() == near(adjusted)
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]).tolist() == near([0.05, 0.08, 0.09, 0.09, 0.09])  # R's p.adjust


def test_pairings():
    table, exact = WANTED["pairings"]
    draws = 20_000
    found = permutation_p(np.array(table), np.random.default_rng(0), draws)
    assert abs(found - exact) < 4 * (exact * (1 - exact) / draws) ** 0.5
    assert permutation_p(np.eye(9), np.random.default_rng(0), 199) == 1 / 200


def test_spearman_over_all_orders():
    x, y, less, greater = WANTED["spearman"]
    found = permutation_spearman(np.array(x), np.array(y))
    assert (float(found.p_for), float(found.p_against)) == near((less, greater))


def test_shares():
    for (hits, units, *ends), (_, _, *posterior), (_, _, most) in zip(
        WANTED["wilson"], WANTED["jeffreys"], WANTED["upper"], strict=True
    ):
        assert wilson(hits / units, units) == near(tuple(ends))
        assert jeffreys(hits / units, units) == near(tuple(posterior))
        assert upper_bound(hits, units, 0.95) == near(most)
