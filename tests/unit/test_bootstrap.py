"""The bootstrap: both orders of drawing, ratios, means and crossed units, against SciPy and against drawing one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from trisect.stats.bootstrap import (
    CrossedBootstrap,
    bootstrap_means,
    bootstrap_ratios,
    draw_times,
    percentile_interval,
)
from trisect.stats.describe import spearman, spearman_of_counts
from trisect.stats.shares import ratios


def rng(seed: int | list[int] = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_places_are_counted_and_every_draw_is_of_all_units():
    times = draw_times(rng(), 7, 50, "places")
    assert times.tolist() == [np.bincount(row, minlength=7).tolist() for row in rng().integers(7, size=(50, 7))]
    assert (draw_times(rng(), 7, 50).sum(1) == 7).all()
    assert (draw_times(rng(), 7, 50, size=3).sum(1) == 3).all()


@pytest.mark.parametrize("order", ["counts", "places"])
def test_either_order_draws_units_evenly_and_independently(order):
    """The mean of a count is 1, its variance 1 − 1/n, its covariance with another −1/n, up to 4 standard errors."""
    n, draws = 5, 40_000
    times = draw_times(rng(3), n, draws, order)
    assert times.mean(0) == pytest.approx(np.ones(n), abs=4 * (0.8 / draws) ** 0.5)
    wanted = np.eye(n) - 1 / n
    assert np.cov(times.T) == pytest.approx(wanted, abs=4 * (2 / draws) ** 0.5)


@pytest.mark.parametrize(("order", "first"), [("counts", [1, 0, 0, 3]), ("places", [0, 1, 2, 1])])
def test_what_was_drawn_before_is_drawn_again(order, first):
    """Numbers written before rest on these very draws: numpy keeps its generators' streams."""
    assert draw_times(rng(), 4, 1, order)[0].tolist() == first


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


def test_the_expanded_interval_of_many_units_is_scipys_percentile_interval_widened_to_t():
    n, draws = 30, 40_000
    values = rng(n).exponential(size=n)
    tail = float(scipy_stats.norm.cdf(np.sqrt(n / (n - 1)) * scipy_stats.t.ppf(0.025, n - 1)))
    wanted: Any = scipy_stats.bootstrap(
        (values,), np.mean, n_resamples=draws, confidence_level=1 - 2 * tail, method="percentile", rng=rng(9)
    )
    found = percentile_interval(bootstrap_means(values, rng(8), draws), n)
    wide = float(found.high - found.low)
    # quantiles in the tails of 40,000 draws, both sides of the comparison
    assert found == pytest.approx(tuple(wanted.confidence_interval), abs=0.03 * wide)
    plain: Any = scipy_stats.bootstrap((values,), np.mean, n_resamples=draws, method="percentile", rng=rng(9))
    assert wide > plain.confidence_interval.high - plain.confidence_interval.low


def mean_of(values: np.ndarray):
    return lambda seed, times: (times @ values[seed]) / times.sum(1)


def test_crossed_draws_are_of_units_and_of_seeds_together():
    """A variance of both: that of means over units within a seed, and that of S − 1 seeds of S."""
    draw = rng(7)
    values = draw.normal(size=(6, 1)) + draw.normal(size=(6, 40))
    found = CrossedBootstrap(0, 20_000)([range(40)] * 6, mean_of(values))
    assert float(found.value) == pytest.approx(values.mean())
    seeds = draw_times(rng([0, 1]), 6, 20_000, size=5) / 5
    units = draw_times(rng(0), 40, 20_000)
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
    times = draw_times(rng(3), 3, 200)
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


def test_intervals_over_texts_cover_at_about_their_nominal_rate():
    draw, hits, trials = np.random.default_rng(0), 0, 400
    for trial in range(trials):
        counts = draw.integers(5, 40, 80).astype(float)
        sums = ((0.3 + draw.normal(size=80)) * counts)[:, None]
        ends = percentile_interval(bootstrap_ratios(sums, counts, trial, draws=400), 80)
        hits += bool(ends.low[0] <= 0.3 <= ends.high[0])
    # percentiles of 80 texts fall a little short of 95 %
    low, high = scipy_stats.binom.ppf([1e-4, 1 - 1e-4], trials, [0.90, 0.96])
    assert low <= hits <= high
