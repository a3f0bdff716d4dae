"""The bootstrap over units, alone or crossed with seeds, with intervals and p-values expanded to match Student's t."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy import special

from trisect.stats.null import monte_carlo_p
from trisect.stats.shares import jeffreys_draws
from trisect.stats.significance import (
    ALPHA,
    NO_TEST,
    ROUNDING,
    EffectTest,
    Interval,
    PValues,
    Reals,
    by_direction,
    family_level,
    nan_to_none,
    value_row,
)

DRAWS = 2_000
_BLOCK_DRAWS = 2_000  # draws per call of a seed's statistic, which bounds memory
_BLOCK_NUMBERS = 1_000_000  # multiplicities (draws × units) in memory at once

Generator = np.random.Generator
ResamplingMethod: TypeAlias = Literal["counts", "indices"]
# (index of a seed, multiplicity of each of its N answers in every draw) -> statistic [R] or [R C]
SeedStatistic: TypeAlias = Callable[[int, Float[np.ndarray, "R N"]], Float[np.ndarray, "R ..."]]


def resample_counts(
    rng: Generator, units: int, draws: int, method: ResamplingMethod = "counts", size: int | None = None
) -> Float[np.ndarray, "R N"]:
    """How often each unit occurs in each draw of as many units (or of `size`) with replacement.

    'counts' draws the multiplicities (multinomial), 'indices' the unit at each position; the distribution is the same,
    the random numbers differ.
    """
    if method == "counts":
        return rng.multinomial(units if size is None else size, np.full(units, 1 / units), size=draws).astype(float)
    assert size is None
    flat = rng.integers(units, size=(draws, units)) + units * np.arange(draws)[:, None]
    return np.bincount(flat.ravel(), minlength=draws * units).reshape(draws, units).astype(float)


def bootstrap_ratios(
    sums: Float[np.ndarray, "N C"], counts: Float[np.ndarray, " N"], seed: int, draws: int = DRAWS
) -> Float[np.ndarray, "R C"]:
    """Sums divided by counts (ratios.ratios) in every draw of N units; all columns share the draws, so that they stay paired.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, chapter 6.
    """
    rng, ratios = np.random.default_rng(seed), []
    size = max(1, _BLOCK_NUMBERS // len(counts))
    for start in range(0, draws, size):
        multiplicities = resample_counts(rng, len(counts), min(size, draws - start), "indices")
        # a NaN sum or a count of 0 makes the replicate NaN or infinite
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios.append((multiplicities @ sums) / (multiplicities @ counts)[:, None])
    return np.concatenate(ratios)


def bootstrap_means(values: Float[np.ndarray, "*R N"], rng: Generator, draws: int = DRAWS) -> Float[np.ndarray, " R"]:
    """Means of N values in every draw; of values [R N], row r is resampled in draw r."""
    indices = rng.integers(values.shape[-1], size=(draws, values.shape[-1]))
    return np.take_along_axis(np.broadcast_to(values, indices.shape), indices, 1).mean(1)


def percentile_interval(replicates: Reals, n: int, level: float = 1 - ALPHA) -> Interval:
    """Two-sided expanded percentile interval at `level` of numbers [R …] drawn over `n` units.

    NaN with fewer than two units, or if a replicate is not finite. Source: Hesterberg 2015, What Teachers Should Know
    About the Bootstrap, section 5.3.
    """
    defined = np.isfinite(replicates).all(0) & (n > 1) & (len(replicates) > 0)
    if n < 2 or not len(replicates):
        return Interval(np.full(defined.shape, np.nan), np.full(defined.shape, np.nan))
    tail = float(special.ndtr(np.sqrt(n / (n - 1)) * special.stdtrit(n - 1, (1 - level) / 2)))
    low, high = np.quantile(np.where(defined, replicates, 0.0), [tail, 1 - tail], axis=0)
    return Interval(np.where(defined, low, np.nan), np.where(defined, high, np.nan))


def value_rows(values: Reals, replicates: Reals, n: int) -> list[dict[str, float | None]]:
    """Columns value, low, high and n of several numbers [C], drawn [R C] over `n` units: see `percentile_interval`."""
    bounds = percentile_interval(replicates, n)
    return [value_row(value, Interval(*pair), n) for value, *pair in zip(values, bounds.low, bounds.high, strict=True)]


def _percentile_test(replicates: Reals, n: int, direction: str, bound: float) -> PValues:
    """p-values for and against a statement on replicates [R] over n units: above or below `bound`, or within ±`bound`.

    Each is the share of draws on the side that contradicts the statement, expanded as by Student's t with n − 1 degrees of freedom
    (`expand_p`); NaN draws contradict both.
    """
    return by_direction(
        lambda b: expand_p(int(np.count_nonzero(~(replicates > b))), len(replicates), n),
        lambda b: expand_p(int(np.count_nonzero(~(replicates < b))), len(replicates), n),
        direction,
        np.asarray(bound),
    )


def expand_p(count: int, draws: int, n: int) -> Reals:
    """The p-value of `count` of the draws, expanded as by Student's t over n units (see percentile_interval)."""
    share = float(monte_carlo_p(count, draws))
    return np.asarray(special.stdtr(n - 1, special.ndtri(share) * np.sqrt((n - 1) / n)) if share < 1 else 1.0)


def draws_deviation(replicates: Reals) -> float:
    """Standard deviation of the finite replicates; 0 if rounding alone could cause it, NaN with fewer than two."""
    numbers = replicates[np.isfinite(replicates)]
    if len(numbers) < 2:
        return float("nan")
    spread = float(numbers.std(ddof=1))
    return spread if spread > ROUNDING * max(1.0, float(np.abs(numbers).max())) else 0.0


def percentile_result(
    effect: float | None,
    replicates: Reals,
    n: int,
    groups: int,
    direction: str,
    bound: float,
    family: int,
    reason: Any = None,
) -> EffectTest:
    """The result of replicates [R] for one claim in a family; no test is made if there is a `reason` against it.

    `n` is the number of units; they were resampled in `groups` groups, so that there are groups − 1 degrees of freedom
    (`groups` = `n` if each unit was resampled by itself).
    """
    low, high = percentile_interval(replicates, groups)
    low_family, high_family = percentile_interval(replicates, groups, family_level(family))
    return EffectTest(
        effect,
        n,
        nan_to_none(draws_deviation(replicates) * n**0.5),
        _percentile_test(replicates, groups, direction, bound) if reason is None else NO_TEST,
        nan_to_none(low),
        nan_to_none(high),
        nan_to_none(low_family),
        nan_to_none(high_family),
        reason,
    )


class DrawnEstimate(NamedTuple):
    """A number on all units, and in every draw of them."""

    value: Float[np.ndarray, "*S"]
    draws: Float[np.ndarray, "R ..."]


class CrossedEstimate(NamedTuple):
    """Means over a model's seeds of several numbers, on all units and in every draw, and their degrees of freedom.

    `value` [*S] is the mean over `seeds` models, `draws` [R *S] that mean in every draw of the `units`. `groups` [*S] is the
    degrees of freedom plus one: `units` with one seed, fewer if seeds differ.
    """

    value: Float[np.ndarray, "*S"]
    draws: Float[np.ndarray, "R ..."]
    units: int
    groups: np.ndarray
    seeds: int = 1

    def at(self, index: int) -> CrossedEstimate:
        """One of several numbers."""
        return CrossedEstimate(self.value[index], self.draws[:, index], self.units, self.groups[index], self.seeds)

    def minus(self, constant: float) -> CrossedEstimate:
        """The numbers minus a constant."""
        return self._replace(value=self.value - constant, draws=self.draws - constant)

    def row(self) -> dict[str, float | None]:
        """Columns value, low, high and n of one number; None if it is not finite."""
        low, high = percentile_interval(self.draws, int(self.groups))
        # by convention the interval of a share of 0 or 1 includes the share
        return value_row(self.value, Interval(np.minimum(low, self.value), np.maximum(high, self.value)), self.units)


class CrossedBootstrap:
    """Numbers in draws of units with replacement, crossed with draws of seeds; estimates over the same number of units share draws.

    Each draw has S − 1 of the S seeds, since drawing S of S underestimates the variance by the factor (S − 1)/S. Sources: Owen 2007,
    The Pigeonhole Bootstrap; Rao & Wu 1988, Resampling Inference with Complex Survey Data, section 2.
    """

    def __init__(self, seed: int = 0, draws: int = DRAWS) -> None:
        self.seed, self.draws = seed, draws
        self._multiplicities: dict[int, Float[np.ndarray, "R N"]] = {}

    def __call__(self, units: Sequence[Sequence[Hashable]], statistic: SeedStatistic) -> CrossedEstimate:
        """The statistic of each seed's answers, on all of them and in every draw of their units.

        `units` holds, for each seed, the unit of each of its N answers; units are drawn in sorted order.
        """
        distinct = sorted({unit for answers in units for unit in answers})  # pyright: ignore[reportArgumentType]
        index = {unit: i for i, unit in enumerate(distinct)}
        values, draws = [], []
        for seed, answers in enumerate(units):
            columns = [index[unit] for unit in answers]
            if len(distinct) not in self._multiplicities:
                self._multiplicities[len(distinct)] = resample_counts(
                    np.random.default_rng(self.seed), len(distinct), self.draws
                )
            blocks = np.array_split(self._multiplicities[len(distinct)], -(-self.draws // _BLOCK_DRAWS))
            values.append(np.asarray(statistic(seed, np.ones((1, len(columns)))))[0])
            draws.append(np.concatenate([statistic(seed, block[:, columns]) for block in blocks]))
        seed_weights = np.ones((self.draws, 1))  # weight [R S] of each seed in every draw
        if (seeds := len(units)) > 1:
            seed_weights = resample_counts(np.random.default_rng([self.seed, 1]), seeds, self.draws, size=seeds - 1) / (
                seeds - 1
            )
        seed_weights = seed_weights.reshape(-1, len(units), *[1] * values[0].ndim)
        means = np.where(seed_weights > 0, seed_weights * np.stack(draws, 1), 0.0).sum(1)
        groups = _groups(np.array(values), means, len(distinct))
        return CrossedEstimate(np.mean(values, 0), means, len(distinct), groups, len(units))

    def share(self, units: Sequence[Sequence[Hashable]], statistic: SeedStatistic, stream: int = 0) -> CrossedEstimate:
        """As `__call__`, for a share of the units, which is not certain even if it is 0 or 1.

        A share of 0 or 1 has no bootstrap spread, so its draws are from Jeffreys' posterior (shares.jeffreys_draws). Shares that
        are compared each need a `stream` of random numbers of their own.
        """
        estimate = self(units, statistic)
        value = float(estimate.value)
        if value not in (0.0, 1.0):
            return estimate
        rng = np.random.default_rng([self.seed, 2, stream])
        return estimate._replace(draws=jeffreys_draws(value, estimate.units, rng, self.draws))


def _groups(values: Float[np.ndarray, "S ..."], draws: Float[np.ndarray, "R ..."], units: int) -> np.ndarray:
    """One more than the degrees of freedom of a variance with a component over seeds and one over units.

    Source: Satterthwaite 1946, An Approximate Distribution of Estimates of Variance Components, equation 17.
    """
    seeds = len(values)
    if seeds == 1 or units < 2:
        return np.full(draws.shape[1:], units)
    between = values.var(0, ddof=1) / seeds
    within = np.maximum(draws.var(0, ddof=1) - between, 0.0)
    denominator = between**2 / (seeds - 1) + within**2 / (units - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.where(denominator > 0, (between + within) ** 2 / denominator, units - 1)
    return np.clip(np.floor(degrees).astype(int) + 1, 2, units)
