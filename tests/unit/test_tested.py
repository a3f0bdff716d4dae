"""The record of a test, corrections and equivalence, against SciPy and against direct implementations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from trisect.stats import tested
from trisect.stats.bootstrap import _percentile_test, percentile_interval, percentile_result
from trisect.stats.null import Null
from trisect.stats.paired import summary, t_interval, t_quantile, t_result, t_test
from trisect.stats.shares import jeffreys, jeffreys_draws
from trisect.stats.tested import bonferroni, by_direction, family_level, holm


def paired(seed: int, n: int, shift: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(shift, 1, n), draw.normal(0, 1, n)


def test_a_test_over_few_groups_is_that_of_their_means_and_not_of_their_members():
    draw = np.random.default_rng(3)
    groups = draw.normal(0.5, 1, (3, 1)) + draw.normal(0, 0.1, (3, 50))
    wanted: Any = scipy_stats.ttest_1samp(groups.mean(1), 0, alternative="greater")
    found = t_test(summary(groups.mean(1)), "above", 0.0)
    assert found.p_for == pytest.approx(float(wanted.pvalue), rel=1e-9)
    assert t_test(summary(groups.ravel()), "above", 0.0).p_for < found.p_for / 100
    assert t_quantile(0.95, 3) == pytest.approx(scipy_stats.t.isf(0.025, 2), rel=1e-9)


@pytest.mark.parametrize("margin", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("shift", [-0.4, 0.0, 0.3])
def test_equivalence_is_scipys_two_alternatives_against_both_margins(margin, shift):
    a, b = paired(11, 12, shift)
    greater: Any = scipy_stats.ttest_1samp(a - b, -margin, alternative="greater")
    less: Any = scipy_stats.ttest_1samp(a - b, margin, alternative="less")
    found = t_test(summary(a - b), "within", margin)
    assert found.p_for == pytest.approx(max(float(greater.pvalue), float(less.pvalue)), rel=1e-9)
    outside: list[Any] = [
        scipy_stats.ttest_1samp(a - b, bound, alternative=side)
        for bound, side in ((margin, "greater"), (-margin, "less"))
    ]
    assert found.p_against == pytest.approx(min(1, 2 * min(float(o.pvalue) for o in outside)), rel=1e-9)


def test_equivalence_holds_exactly_where_the_interval_at_twice_alpha_lies_inside():
    for seed in range(60):
        sample = summary(np.random.default_rng(seed).normal(0, 0.4, 8))
        low, high = t_interval(sample, 0.90)
        assert (t_test(sample, "within", 0.3).p_for < 0.05) == (low > -0.3 and high < 0.3), seed


def test_equivalence_asks_each_test_at_its_own_margin():
    asked: list[tuple[str, float]] = []

    def side(name: str, p: float):
        return lambda bound: asked.append((name, float(bound))) or np.asarray(p)

    assert by_direction(side("beyond", 0.2), side("short", 0.6), "within", np.asarray(0.5)) == (0.6, 0.4)
    assert sorted(asked) == [("beyond", -0.5), ("beyond", 0.5), ("short", -0.5), ("short", 0.5)]


def test_holm_is_the_step_down_procedure_as_its_author_states_it():
    """Reject the smallest while p_(i) ≤ α / (m − i + 1), and stop at the first that is not: the same at every level."""
    draw = np.random.default_rng(5)
    for m in (1, 2, 5, 14):
        p = np.round(draw.uniform(0, 0.2, m), 2)  # with ties
        adjusted = holm(p)
        for alpha in np.linspace(0.001, 0.999, 500):
            rejected = set()
            for i, which in enumerate(np.argsort(p, kind="stable")):
                if not p[which] * (m - i) <= alpha:
                    break
                rejected.add(int(which))
            assert rejected == set(np.flatnonzero(adjusted <= alpha).tolist())


def test_bonferroni_multiplies_and_widens_intervals():
    assert bonferroni([0.01, 0.4], 3) == pytest.approx([0.03, 1.0])
    assert family_level(14) == 1 - 0.05 / 14
    assert family_level(20, 0.1) == 0.995


def test_the_record_of_a_t_test_holds_what_scipy_says():
    a, b = paired(2, 6)
    found = t_result(summary(a - b), "above", 0.1, 5, "unused")
    one: Any = scipy_stats.ttest_1samp(a - b, 0.1, alternative="greater")
    assert found.effect == pytest.approx((a - b).mean())
    assert found.spread == pytest.approx((a - b).std(ddof=1))
    assert (found.n, found.reason) == (6, None)
    assert found.p_for == pytest.approx(float(one.pvalue), rel=1e-9)
    assert found.p_for + found.p_against == pytest.approx(1)
    two_sided: Any = scipy_stats.ttest_1samp(a - b, 0)
    for level, ends in ((0.95, (found.low, found.high)), (0.99, (found.low_family, found.high_family))):
        assert ends == pytest.approx(tuple(two_sided.confidence_interval(level)), rel=1e-8)


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.5, 0.5]])
def test_the_record_says_why_there_is_no_test_and_speaks_for_neither_side(values):
    found = t_result(summary(values), "above", 0.1, 5, "too few")
    assert (found.reason, found.p_for, found.p_against) == ("too few", 1.0, 1.0)
    assert [found.low, found.high, found.low_family, found.high_family] == [None] * 4
    assert found.effect == (0.5 if values else None)


def test_the_record_of_draws_holds_their_interval_and_test_at_the_groups_freedom():
    draws = np.random.default_rng(4).normal(0.3, 0.1, 4000)
    found = percentile_result(0.3, draws, 50, 4, "above", 0.1, 5)
    assert (found.low, found.high) == tuple(float(end) for end in percentile_interval(draws, 4))
    assert (found.low_family, found.high_family) == tuple(float(e) for e in percentile_interval(draws, 4, 0.99))
    assert found.p == _percentile_test(draws, 4, "above", 0.1)
    assert found.spread == pytest.approx(0.1 * 50**0.5, rel=0.05)
    barred = percentile_result(0.3, draws, 50, 4, "above", 0.1, 5, "barred")
    assert (barred.reason, barred.p) == ("barred", tested.NO_TEST)
    assert (barred.low, barred.spread) == (found.low, found.spread)


def test_what_is_no_number_is_null_in_a_table():
    assert [tested.number(x) for x in (np.nan, np.inf, 0.5)] == [None, np.inf, 0.5]
    assert [tested.finite(x) for x in (np.nan, np.inf, 0.5)] == [None, None, 0.5]
    ends = tested.Interval(np.asarray(np.nan), np.asarray(0.7))
    assert tested.value_row(0.5, ends, 9) == {"value": 0.5, "low": None, "high": 0.7, "n": 9}


@pytest.mark.parametrize(("hits", "units"), [(0, 12), (5, 12), (12, 12)])
def test_jeffreys_interval_is_of_the_posterior_that_is_drawn_from(hits, units):
    posterior = scipy_stats.beta(hits + 0.5, units - hits + 0.5)
    assert jeffreys(hits / units, units) == pytest.approx(posterior.interval(0.95), rel=1e-9)
    draws = jeffreys_draws(hits / units, units, np.random.default_rng(0), 4000)
    assert float(scipy_stats.kstest(draws, posterior.cdf).pvalue) > 0.01


def test_the_interval_of_an_excess_turns_the_nulls_quantiles_round():
    null = Null.of(np.random.default_rng(0).normal(1, 0.1, 5000))
    low, high = null.excess_interval(1.5, 0.1)
    assert (low, high) == (1.5 - null.quantile(0.95), 1.5 - null.quantile(0.05))
    assert low < 0.5 < high
