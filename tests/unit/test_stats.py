"""Tests, corrections, equivalence, the bootstrap, what so many units can decide: against SciPy, plain loops, and by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from trisect.claims.models import MIN_UNITS
from trisect.experiments.align.settings import DRAWS as ALIGN_DRAWS
from trisect.experiments.norms.run import DRAWS as NORMS_DRAWS
from trisect.experiments.profile.settings import MIN_DRAWS as MAPS
from trisect.experiments.recall.rows import DRAWS as RECALL_DRAWS
from trisect.experiments.similarity.run import PAIRS, Nulls
from trisect.experiments.similarity.settings import MIN_DRAWS as MATRICES
from trisect.papers import SOURCES, matrices
from trisect.stats import significance
from trisect.stats.bootstrap import (
    DRAWS,
    CrossedBootstrap,
    _groups,
    _percentile_test,
    bootstrap_means,
    bootstrap_ratios,
    expand_p,
    percentile_interval,
    percentile_result,
    resample_counts,
)
from trisect.stats.describe import ORDERS, permutation_spearman, spearman, spearman_of_counts
from trisect.stats.null import Null, permutation_p
from trisect.stats.paired import Sample, summary, t_interval, t_result, t_test
from trisect.stats.power import fewest_counts, fewest_draws, fewest_seeds, is_decided, smallest_p
from trisect.stats.shares import jeffreys, jeffreys_draws, ratios, upper_bound, wilson
from trisect.stats.significance import (
    ALPHA,
    PValues,
    bonferroni,
    conjunction,
    family_level,
    holm,
    nan_to_none,
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
    assert [nan_to_none(end) for end in t_interval(found, 0.95)] == [None, None]


def test_a_spread_far_above_rounding_is_tested():
    assert summary([0.1, 0.1 + 1e-9]).testable


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
    assert fewest_seeds([part], 14, min_errors=[0.005]) is None


def test_fourteen_true_nulls_are_seldom_called_anything():
    """Under the null of every claim, a verdict among 14 comes in at most 5 % of studies; without Holm in far more."""
    generator = np.random.default_rng(7)
    draws, claims, n = 4000, 14, 5
    p = two_sided(t_test(summary(generator.standard_normal((draws, claims, n))), "above", 0.0))
    slack = 3 * np.sqrt(0.05 * 0.95 / draws)  # three standard errors of a share of 5 %
    assert (holm(p) < ALPHA).any(-1).mean() <= 0.05 + slack
    assert (p < ALPHA).any(-1).mean() > 0.4


def paired(seed: int, n: int, shift: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(shift, 1, n), draw.normal(0, 1, n)


@pytest.mark.parametrize("margin", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("shift", [-0.4, 0.0, 0.3])
def test_equivalence_is_scipys_two_alternatives_against_both_margins(margin, shift):
    a, b = paired(11, 12, shift)
    found = t_test(summary(a - b), "within", margin)
    inside = max(one_sided(a - b, -margin, "greater"), one_sided(a - b, margin, "less"))
    assert found.p_for == pytest.approx(inside, rel=1e-9)
    outside = min(one_sided(a - b, margin, "greater"), one_sided(a - b, -margin, "less"))
    assert found.p_against == pytest.approx(min(1, 2 * outside), rel=1e-9)


def test_bonferroni_multiplies_and_widens_intervals():
    assert bonferroni([0.01, 0.4], 3) == pytest.approx([0.03, 1.0])
    assert family_level(14) == 1 - 0.05 / 14
    assert family_level(20, 0.1) == 0.995


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
    assert (barred.reason, barred.p) == ("barred", significance.NO_TEST)
    assert (barred.low, barred.spread) == (found.low, found.spread)


def test_what_is_no_number_is_null_in_a_table():
    assert [significance.nan_to_none(x) for x in (np.nan, np.inf, 0.5)] == [None, np.inf, 0.5]
    assert [significance.finite(x) for x in (np.nan, np.inf, 0.5)] == [None, None, 0.5]
    ends = significance.Interval(np.asarray(np.nan), np.asarray(0.7))
    assert significance.value_row(0.5, ends, 9) == {"value": 0.5, "low": None, "high": 0.7, "n": 9}


@pytest.mark.parametrize(("hits", "units"), [(0, 12), (5, 12), (12, 12)])
def test_draws_of_a_share_are_of_its_posterior(hits, units):
    draws = jeffreys_draws(hits / units, units, np.random.default_rng(0), 4000)
    assert float(scipy_stats.kstest(draws, scipy_stats.beta(hits + 0.5, units - hits + 0.5).cdf).pvalue) > 0.01


def test_the_interval_of_an_excess_turns_the_nulls_quantiles_round():
    null = Null.of(np.random.default_rng(0).normal(1, 0.1, 5000))
    low, high = null.excess_interval(1.5, 0.1)
    assert (low, high) == (1.5 - null.quantile(0.95), 1.5 - null.quantile(0.05))
    assert low < 0.5 < high


def rng(seed: int | list[int] = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_places_are_counted_and_every_draw_is_of_all_units():
    times = resample_counts(rng(), 7, 50, "indices")
    assert times.tolist() == [np.bincount(row, minlength=7).tolist() for row in rng().integers(7, size=(50, 7))]
    assert (resample_counts(rng(), 7, 50).sum(1) == 7).all()
    assert (resample_counts(rng(), 7, 50, size=3).sum(1) == 3).all()


@pytest.mark.parametrize("order", ["counts", "indices"])
def test_either_order_draws_units_evenly_and_independently(order):
    """The mean of a count is 1, its variance 1 − 1/n, its covariance with another −1/n, up to 4 standard errors."""
    n, draws = 5, 40_000
    times = resample_counts(rng(3), n, draws, order)
    assert times.mean(0) == pytest.approx(np.ones(n), abs=4 * (0.8 / draws) ** 0.5)
    wanted = np.eye(n) - 1 / n
    assert np.cov(times.T) == pytest.approx(wanted, abs=4 * (2 / draws) ** 0.5)


@pytest.mark.parametrize(("order", "first"), [("counts", [1, 0, 0, 3]), ("indices", [0, 1, 2, 1])])
def test_what_was_drawn_before_is_drawn_again(order, first):
    """Numbers written before rest on these very draws: numpy keeps its generators' streams."""
    assert resample_counts(rng(), 4, 1, order)[0].tolist() == first


def test_ratios_of_draws_are_those_of_the_units_that_were_drawn_whatever_the_block():
    draw = rng(1)
    sums, counts = draw.normal(size=(1500, 2)), draw.integers(1, 9, 1500).astype(float)
    found, places = bootstrap_ratios(sums, counts, 5, draws=700), rng(5).integers(1500, size=(700, 1500))  # two blocks
    for row, place in zip(found[[0, 665, 666, 699]], places[[0, 665, 666, 699]], strict=True):
        assert row == pytest.approx(ratios(sums[place], counts[place]), rel=1e-9)


def test_means_of_draws_are_those_of_the_units_that_were_drawn():
    values = rng(2).normal(size=9)
    found, places = bootstrap_means(values, rng(4), 30), rng(4).integers(9, size=(30, 9))
    assert found.tolist() == [values[place].mean() for place in places]
    rows = rng(2).normal(size=(30, 9))
    assert bootstrap_means(rows, rng(4), 30).tolist() == [r[p].mean() for r, p in zip(rows, places, strict=True)]


def mean_of(values: np.ndarray):
    return lambda seed, times: (times @ values[seed]) / times.sum(1)


def test_crossed_draws_are_of_units_and_of_seeds_together():
    """A variance of both: that of means over units within a seed, and that of S − 1 seeds of S."""
    draw = rng(7)
    values = draw.normal(size=(6, 1)) + draw.normal(size=(6, 40))
    found = CrossedBootstrap(0, 20_000)([range(40)] * 6, mean_of(values))
    assert float(found.value) == pytest.approx(values.mean())
    seeds = resample_counts(rng([0, 1]), 6, 20_000, size=5) / 5
    units = resample_counts(rng(0), 40, 20_000)
    direct = np.einsum("rs,rn,sn->r", seeds, units, values) / 40
    assert found.draws == pytest.approx(direct, abs=1e-12)
    between = values.mean(1).var(ddof=1) / 6
    assert found.draws.var() > between
    assert found.draws.var() == pytest.approx(between + values.mean(0).var(ddof=0) / 40, rel=0.3)


def test_units_that_not_every_seed_has_meet_the_same_draws_by_name():
    one, both = CrossedBootstrap(3, 200), CrossedBootstrap(3, 200)
    given: list[np.ndarray] = []

    def of(seed: int, times: np.ndarray) -> np.ndarray:
        given.append(times)
        return times.sum(1)

    both([["b", "a", "a"], ["c"]], of)
    times = resample_counts(rng(3), 3, 200)
    assert given[1].tolist() == times[:, [1, 0, 0]].tolist()
    assert given[3].tolist() == times[:, [2]].tolist()
    alone = one([["b", "a"]], lambda _, t: t.sum(1))
    assert (alone.units, int(alone.groups)) == (2, 2)


def test_a_share_of_all_or_none_is_drawn_from_its_posterior_and_streams_differ():
    crossed, ones = CrossedBootstrap(1, 4000), np.ones((1, 20))
    found, other = (crossed.share([range(20)], mean_of(ones), stream) for stream in (0, 1))
    assert float(found.value) == 1.0
    assert float(scipy_stats.kstest(found.draws, scipy_stats.beta(20.5, 0.5).cdf).pvalue) > 0.01
    assert not np.array_equal(found.draws, other.draws)
    row = found.row()
    assert (row["value"], row["high"], row["n"]) == (1.0, 1.0, 20)
    assert row["low"] is not None
    assert row["low"] < 0.95
    assert found.minus(0.5).row()["value"] == 0.5


def test_rank_correlations_are_scipys_from_values_and_from_counts():
    draw = rng(5)
    x, y = draw.integers(0, 6, (2, 80))
    wanted: Any = scipy_stats.spearmanr(x, y)
    assert spearman(np.stack([x, y]).astype(float)) == pytest.approx(float(wanted.statistic), abs=1e-12)
    table = np.zeros((1, 6, 6))
    np.add.at(table[0], (x, y), 1)
    assert spearman_of_counts(table)[0] == pytest.approx(float(wanted.statistic), abs=1e-12)
    assert np.isnan(spearman(np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])))
    assert np.isnan(spearman(np.array([[1.0, 2.0], [1.0, 2.0]])))


SIZES = (6, 12, 66, 96, 144, 384, 1000)  # heads, texts or names
RESAMPLED = {
    "norms": NORMS_DRAWS,
    "recall": RECALL_DRAWS,
    "matrices": DRAWS,
    "profile": DRAWS,
    "alignment": ALIGN_DRAWS,
    "speech": DRAWS,
}


def bootstrap_p(values: np.ndarray, draws: int) -> float:
    """The two-sided p of a mean over few groups, by drawing them."""
    picks = np.random.default_rng(0).integers(len(values), size=(draws, len(values)))
    return float(two_sided(_percentile_test(values[picks].mean(1), len(values), "above", 0.0)))


@pytest.mark.parametrize("groups", [2, 3, 4, 5, 12])
@pytest.mark.parametrize("draws", [300, 2000, 10_000])
def test_no_effect_is_large_enough_to_get_below_the_smallest_p_of_a_bootstrap(groups, draws):
    least = smallest_p("bootstrap", groups, draws)
    for effect in (1.0, 10.0, 1e6):
        assert bootstrap_p(effect + np.linspace(-0.5, 0.5, groups), draws) == pytest.approx(least, rel=1e-12)
        assert bootstrap_p(-effect + np.linspace(-0.5, 0.5, groups), draws) == pytest.approx(least, rel=1e-12)
    mixed = bootstrap_p(np.array([-1.0, *np.linspace(1, 2, groups - 1)]), draws)
    assert mixed > least if groups < 12 else mixed == least  # of 12 groups one alone turns no mean round


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_the_smallest_p_of_all_orders_is_found_by_trying_all_of_them(n):
    x = np.arange(float(n))
    rhos = [float(np.corrcoef(x, np.array(order))[0, 1]) for order in itertools.permutations(x)]
    two = float(np.mean([abs(rho) >= 1 - 1e-12 for rho in rhos]))
    assert smallest_p("permutation", n, draws=10**9) == pytest.approx(two)


@pytest.mark.parametrize("draws", [99, 2000])
def test_random_orders_reach_one_in_their_number_and_one_more(draws):
    """Forty names that agree with their own neighbours alone: no random pairing agrees as often."""
    found = permutation_p(np.eye(40), np.random.default_rng(0), draws)
    assert 2 * found == smallest_p("permutation", 40, draws) == 2 / (draws + 1)


@pytest.mark.parametrize("method", ["bootstrap", "permutation"])
def test_one_unit_decides_nothing_and_more_units_reach_further(method):
    assert smallest_p(method, 0) == smallest_p(method, 1) == 1.0
    reached = [smallest_p(method, n) for n in range(1, 60)]
    assert reached == sorted(reached, reverse=True)
    assert all(0 <= p <= 1 for p in reached)


@pytest.mark.parametrize("tests", [1, 6, 864])
def test_the_fewest_draws_let_one_test_survive_and_one_less_do_not(tests):
    def survives(draws: int) -> bool:
        p = Null.of(np.linspace(0, 1, draws)).beyond(np.array([2.0]))[0]
        return bool(holm([p, *[1.0] * (tests - 1)])[0] < 0.05)

    draws = fewest_draws(tests)
    assert survives(draws)
    assert not survives(draws - 1)
    assert fewest_draws(tests, factor=1.25) == int(1.25 * 2 * tests / 0.05)


def test_the_fewest_counts_are_the_first_of_those_given():
    part = (Sample(np.array(40.0), np.array(0.1), np.array(1.0)), "above", 0.0)
    counts = np.array([30.0, 100.0, 1000.0, 10_000.0])
    found = fewest_counts([part], counts, 3)
    assert found == 1000
    for n in (100, 1000):
        p = 2 * scipy_stats.t.sf(0.1 * n**0.5, n - 1)
        assert (p < 0.05 / 3) == (n >= found)
    assert fewest_counts([part], counts[:2], 3) is None


def test_every_source_that_draws_is_one_of_these():
    assert {source.key for source in SOURCES if source.unit not in ("seed", "trained model")} == set(RESAMPLED)


@pytest.mark.parametrize("n", [MIN_UNITS, *(n for n in SIZES if n > MIN_UNITS)])
@pytest.mark.parametrize(
    "source", [source for source in SOURCES if source.key in RESAMPLED], ids=lambda source: source.key
)
def test_resampling_reaches_either_verdict_in_every_family(source, n):
    """The least p, times the parts that a refutation is corrected for, times the claims of the family."""
    tests = max(len(claim.deciding()) for claim in source.claims) * len(source.claims)
    assert tests * smallest_p("bootstrap", n, RESAMPLED[source.key]) < 0.05


@pytest.mark.parametrize(
    "source", [source for source in SOURCES if source.key in RESAMPLED], ids=lambda source: source.key
)
def test_random_orders_reach_either_verdict_in_every_family(source):
    tests = max(len(claim.deciding()) for claim in source.claims) * len(source.claims)
    assert tests * 2 / (ORDERS + 1) < 0.05


@pytest.mark.parametrize("heads", SIZES)
def test_random_matrices_reach_either_verdict_in_every_family(heads):
    """With and without biases, for three pairs; head by head in a claim, of which the weakest decides."""
    for kind, tests in (("subspaces", 2 * len(PAIRS)), ("forms", len(PAIRS)), ("ranks", 1), ("products", 1)):
        assert 2 * tests * heads / (1 + max(MATRICES, Nulls(0, 0, heads).count(kind))) < 0.05, kind
    corrections, draws = (
        2 * heads * len(matrices.CLAIMS[0].deciding()) * len(matrices.CLAIMS),
        Nulls(0, 0, heads).count(),
    )
    assert corrections / (1 + draws) < 0.05
    assert not is_decided(1 / (1 + draws), draws, corrections)  # the least p there is is no verdict
    assert is_decided(1 / (1 + 4 * draws), 4 * draws, corrections)


@pytest.mark.parametrize("heads", SIZES)
def test_random_maps_of_a_profile_have_no_least_p(heads):
    null = Null.of(np.random.default_rng(0).normal(0.5, 0.01, MAPS))
    p = null.t_p(np.array([0.58]))[0]  # eight standard deviations off
    assert holm([p, *[1.0] * (3 * heads - 1)])[0] < 0.05


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
