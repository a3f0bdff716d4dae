"""Tests, their records, corrections and equivalence: against SciPy, against direct implementations, and worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from trisect.stats import tested
from trisect.stats.bootstrap import _percentile_test, percentile_interval, percentile_result
from trisect.stats.null import Null
from trisect.stats.paired import Sample, summary, t_interval, t_quantile, t_result, t_test
from trisect.stats.reach import fewest_seeds
from trisect.stats.shares import jeffreys, jeffreys_draws
from trisect.stats.tested import (
    ALPHA,
    PValues,
    bonferroni,
    by_direction,
    conjunction,
    family_level,
    holm,
    number,
    two_sided,
)

CASES = [[0.3, 0.1, 0.2], [-0.4, 0.1, 0.02, 0.3, -0.2], [5.0, 5.1], list(np.linspace(-1, 2, 30))]


def one_sided(values, bound: float, alternative: str) -> float:
    result: Any = scipy_stats.ttest_1samp(values, bound, alternative=alternative)
    return float(result.pvalue)


def sample(n: float, mean: float, spread: float) -> Sample:
    return Sample(np.array(n), np.array(mean), np.array(spread))


@pytest.mark.parametrize("values", CASES)
@pytest.mark.parametrize("bound", [-0.5, 0.0, 0.02])
def test_one_sided_tests_are_those_of_scipy(values, bound):
    greater = one_sided(values, bound, "greater")
    less = one_sided(values, bound, "less")
    assert t_test(summary(values), "above", bound) == pytest.approx((greater, less), rel=1e-9)
    assert t_test(summary(values), "below", bound) == pytest.approx((less, greater), rel=1e-9)


@pytest.mark.parametrize("values", CASES)
@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 14])
def test_intervals_are_those_of_scipy(values, level):
    result: Any = scipy_stats.ttest_1samp(values, 0)
    expected = result.confidence_interval(level)
    assert t_interval(summary(values), level) == pytest.approx(tuple(expected), rel=1e-8)


@pytest.mark.parametrize("values", [[], [0.3], [0.25, 0.25, 0.25], [0.1, 0.1 + 1e-15]])
def test_no_test_is_made_without_two_differences_and_a_spread(values):
    found = summary(values)
    assert not found.testable
    for direction in ("above", "below", "within"):
        assert t_test(found, direction, 0.02) == (1.0, 1.0)
    assert [number(end) for end in t_interval(found, 0.95)] == [None, None]


def test_a_spread_far_above_rounding_is_tested():
    assert summary([0.1, 0.1 + 1e-9]).testable


def test_summary_is_count_mean_and_sample_standard_deviation():
    found = summary([1.0, 2.0, 4.0])
    assert (float(found.n), float(found.mean)) == (3.0, pytest.approx(7 / 3))
    assert float(found.spread) == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert number(summary([]).mean) is None
    assert number(summary([0.3]).mean) == 0.3


def test_all_parts_hold_by_the_largest_p_for_and_fail_by_k_times_the_smallest_p_against():
    parts = [
        PValues(np.array(0.01), np.array(0.9)),
        PValues(np.array(0.04), np.array(0.02)),
        PValues(np.array(0.2), np.array(0.5)),
    ]
    assert conjunction(parts) == (0.2, pytest.approx(0.06))
    assert conjunction([PValues(np.array(0.3), np.array(0.7))] * 2) == (0.3, 1.0)


@pytest.mark.parametrize(("p_for", "p_against", "expected"), [(0.01, 0.99, 0.02), (0.9, 0.03, 0.06), (0.6, 0.7, 1.0)])
def test_a_claim_is_tested_on_both_sides(p_for, p_against, expected):
    assert two_sided(PValues(np.array(p_for), np.array(p_against))) == pytest.approx(expected)


def test_seeds_needed_is_the_first_number_that_decides():
    part = (sample(3, 0.05, 0.03), "above", 0.02)
    needed = fewest_seeds([part], 14)
    assert needed is not None
    for n, decides in ((needed - 1, False), (needed, True)):
        p = scipy_stats.t.sf((0.05 - 0.02) / (0.03 / np.sqrt(n)), n - 1)
        assert (2 * p < 0.05 / 14) == decides


def test_seeds_needed_follows_the_hardest_part_and_either_side():
    easy, hard = (sample(5, 1.0, 0.1), "above", 0.0), (sample(5, 0.1, 0.2), "above", 0.0)
    against = (sample(5, -1.0, 0.1), "above", 0.0)
    both, alone = fewest_seeds([easy, hard], 14), fewest_seeds([hard], 14)
    assert both == alone
    assert both is not None
    refuted = fewest_seeds([hard, against], 14)
    assert refuted is not None
    assert refuted < both


def test_a_part_that_is_the_same_in_every_seed_leaves_the_others_to_decide_against():
    same, against = (sample(5, 1.0, 0.0), "above", 0.9), (sample(5, 0.4, 0.4), "above", 0.9)
    assert fewest_seeds([same], 2) is None
    refuted, alone = fewest_seeds([same, against], 2), fewest_seeds([against], 2)
    assert refuted is not None
    assert alone is not None
    assert refuted > alone  # the smallest p of two is doubled
    assert (
        fewest_seeds([same, (sample(5, 1.0, 0.01), "above", 0.9)], 2) is None
    )  # it keeps a claim from being supported


@pytest.mark.parametrize(
    "undecidable",
    [
        sample(5, 0.02, 0.1),  # on its margin: no number decides
        sample(5, 0.021, 0.1),  # far beyond a thousand
        sample(1, 0.5, np.nan),
        sample(5, 0.5, 0.0),
        sample(0, np.nan, np.nan),
    ],
)
def test_seeds_needed_is_none_where_it_cannot_be_said_of_any_part(undecidable):
    fine = (sample(5, 0.5, 0.1), "above", 0.02)
    assert fewest_seeds([fine], 14) is not None
    assert fewest_seeds([(undecidable, "above", 0.02)], 14) is None
    assert fewest_seeds([fine, (undecidable, "above", 0.02)], 14) is None


def test_no_number_of_seeds_takes_a_standard_error_below_the_noise_of_training():
    part = (sample(5, 0.03, 0.02), "above", 0.02)
    assert fewest_seeds([part], 14) is not None
    assert fewest_seeds([part], 14, least=[0.005]) is None


def test_fourteen_true_nulls_are_seldom_called_anything():
    """Under the null of every claim, a verdict among 14 comes in at most 5 % of studies; without Holm in far more."""
    generator = np.random.default_rng(7)
    draws, claims, n = 4000, 14, 5
    p = two_sided(t_test(summary(generator.standard_normal((draws, claims, n))), "above", 0.0))
    slack = 3 * np.sqrt(0.05 * 0.95 / draws)  # three standard errors of a share of 5 %
    assert (holm(p) < ALPHA).any(-1).mean() <= 0.05 + slack
    assert (p < ALPHA).any(-1).mean() > 0.4


@pytest.mark.parametrize("parts", [2, 8])
def test_claims_of_several_parts_keep_the_error_when_each_part_sits_on_its_margin(parts):
    generator = np.random.default_rng(8)
    draws, claims, n = 2000, 14, 5
    drawn = [t_test(summary(0.02 + generator.standard_normal((draws, claims, n))), "above", 0.02) for _ in range(parts)]
    wrong = (holm(two_sided(conjunction(drawn))) < ALPHA).any(-1).mean()
    assert wrong <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


def test_equivalence_on_its_margin_keeps_the_error():
    generator = np.random.default_rng(9)
    found = t_test(summary(0.02 + 0.005 * generator.standard_normal((4000, 5))), "within", 0.02)
    assert (found.p_for < ALPHA).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)
    assert (found.p_against < ALPHA).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)


def paired(seed: int, n: int, shift: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(shift, 1, n), draw.normal(0, 1, n)


def test_a_test_over_few_groups_is_that_of_their_means_and_not_of_their_members():
    draw = np.random.default_rng(3)
    groups = draw.normal(0.5, 1, (3, 1)) + draw.normal(0, 0.1, (3, 50))
    found = t_test(summary(groups.mean(1)), "above", 0.0)
    assert found.p_for == pytest.approx(one_sided(groups.mean(1), 0, "greater"), rel=1e-9)
    assert t_test(summary(groups.ravel()), "above", 0.0).p_for < found.p_for / 100
    assert t_quantile(0.95, 3) == pytest.approx(scipy_stats.t.isf(0.025, 2), rel=1e-9)


@pytest.mark.parametrize("margin", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("shift", [-0.4, 0.0, 0.3])
def test_equivalence_is_scipys_two_alternatives_against_both_margins(margin, shift):
    a, b = paired(11, 12, shift)
    found = t_test(summary(a - b), "within", margin)
    inside = max(one_sided(a - b, -margin, "greater"), one_sided(a - b, margin, "less"))
    assert found.p_for == pytest.approx(inside, rel=1e-9)
    outside = min(one_sided(a - b, margin, "greater"), one_sided(a - b, -margin, "less"))
    assert found.p_against == pytest.approx(min(1, 2 * outside), rel=1e-9)


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


def test_bonferroni_multiplies_and_widens_intervals():
    assert bonferroni([0.01, 0.4], 3) == pytest.approx([0.03, 1.0])
    assert family_level(14) == 1 - 0.05 / 14
    assert family_level(20, 0.1) == 0.995


def test_the_record_of_a_t_test_holds_what_scipy_says():
    a, b = paired(2, 6)
    found = t_result(summary(a - b), "above", 0.1, 5, "unused")
    assert found.effect == pytest.approx((a - b).mean())
    assert found.spread == pytest.approx((a - b).std(ddof=1))
    assert (found.n, found.reason) == (6, None)
    assert found.p_for == pytest.approx(one_sided(a - b, 0.1, "greater"), rel=1e-9)
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
