"""The bootstrap over units, alone or crossed with seeds, with intervals and p-values as wide as Student's t."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy import special

from trisect.stats.null import p_of_draws
from trisect.stats.shares import jeffreys_draws
from trisect.stats.tested import (
    ALPHA,
    NO_TEST,
    ROUNDING,
    Interval,
    PValues,
    Reals,
    Tested,
    by_direction,
    family_level,
    number,
    value_row,
)

DRAWS = 2_000
TOGETHER = 2_000  # draws of a block that a function of answers is given, which bounds the memory
_NUMBERS = 1_000_000  # of a block of draws, where sums alone are drawn

Generator = np.random.Generator
Order: TypeAlias = Literal["counts", "places"]
# the number of a seed, and how often each of its N answers counts in every draw -> numbers [R] or [R C]
OfSeed: TypeAlias = Callable[[int, Float[np.ndarray, "R N"]], Float[np.ndarray, "R ..."]]


def draw_times(
    draw: Generator, units: int, draws: int, order: Order = "counts", size: int | None = None
) -> Float[np.ndarray, "R N"]:
    """Multiplicities of units in draws of as many units (or of `size`) with replacement.

    Both orders are the same distribution; each takes other numbers from the generator. 'counts' draws how often each
    unit comes up, 'places' which unit stands at each place.
    """
    if order == "counts":
        return draw.multinomial(units if size is None else size, np.full(units, 1 / units), size=draws).astype(float)
    assert size is None
    flat = draw.integers(units, size=(draws, units)) + units * np.arange(draws)[:, None]
    return np.bincount(flat.ravel(), minlength=draws * units).reshape(draws, units).astype(float)


def bootstrap_ratios(
    sums: Float[np.ndarray, "N C"], counts: Float[np.ndarray, " N"], seed: int, draws: int = DRAWS
) -> Float[np.ndarray, "R C"]:
    """Sums over counts (ratios.ratios) in every draw of N units; all columns share the draws, which keeps pairs.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, chapter 6.
    """
    draw, ratios = np.random.default_rng(seed), []
    size = max(1, _NUMBERS // len(counts))
    for start in range(0, draws, size):
        times = draw_times(draw, len(counts), min(size, draws - start), "places")
        # what is no number, or over 0, makes a replicate that is none
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios.append((times @ sums) / (times @ counts)[:, None])
    return np.concatenate(ratios)


def bootstrap_means(values: Float[np.ndarray, "*R N"], draw: Generator, draws: int = DRAWS) -> Float[np.ndarray, " R"]:
    """Means of N values in every draw; with a row of values for each draw, of values that were drawn too."""
    places = draw.integers(values.shape[-1], size=(draws, values.shape[-1]))
    return np.take_along_axis(np.broadcast_to(values, places.shape), places, 1).mean(1)


def percentile_interval(replicates: Reals, n: int, level: float = 1 - ALPHA) -> Interval:
    """Two-sided expanded percentile interval at `level` of numbers [R …] drawn over `n` units; NaN if there is none.

    There is none with fewer than two units, or where a replicate is no number. Source: Hesterberg 2015, What Teachers
    Should Know About the Bootstrap, section 5.3.
    """
    defined = np.isfinite(replicates).all(0) & (n > 1) & (len(replicates) > 0)
    if n < 2 or not len(replicates):
        return Interval(np.full(defined.shape, np.nan), np.full(defined.shape, np.nan))
    tail = float(special.ndtr(np.sqrt(n / (n - 1)) * special.stdtrit(n - 1, (1 - level) / 2)))
    low, high = np.quantile(np.where(defined, replicates, 0.0), [tail, 1 - tail], axis=0)
    return Interval(np.where(defined, low, np.nan), np.where(defined, high, np.nan))


def value_rows(values: Reals, replicates: Reals, n: int) -> list[dict[str, float | None]]:
    """Columns value, low, high and n of several numbers [C], drawn [R C] over `n` units: see `percentile_interval`."""
    ends = percentile_interval(replicates, n)
    return [value_row(value, Interval(*both), n) for value, *both in zip(values, ends.low, ends.high, strict=True)]


def _percentile_test(replicates: Reals, n: int, direction: str, bound: float) -> PValues:
    """p-values for and against "the number lies above (below) `bound`" or "within ±`bound`", of replicates [R] over n units.

    Each is the share of draws on the wrong side, made as wide as Student's t with n − 1 degrees of freedom; draws that
    are no number count against both.
    """
    return by_direction(
        lambda b: expand_p(int(np.count_nonzero(~(replicates > b))), len(replicates), n),
        lambda b: expand_p(int(np.count_nonzero(~(replicates < b))), len(replicates), n),
        direction,
        np.asarray(bound),
    )


def expand_p(reached: int, draws: int, n: int) -> Reals:
    """A share of draws as a p-value, with Student's t in place of the normal distribution of percentiles."""
    share = float(p_of_draws(reached, draws))
    return np.asarray(special.stdtr(n - 1, special.ndtri(share) * np.sqrt((n - 1) / n)) if share < 1 else 1.0)


def draws_spread(replicates: Reals) -> float:
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
) -> Tested:
    """The result of replicates [R] for one claim in a family; no test is made if there is a `reason` against it.

    `n` units were drawn, by so many `groups` of them (as many as units, where each was drawn alone): degrees of freedom
    are those of the groups.
    """
    low, high = percentile_interval(replicates, groups)
    low_family, high_family = percentile_interval(replicates, groups, family_level(family))
    return Tested(
        effect,
        n,
        number(draws_spread(replicates) * n**0.5),
        _percentile_test(replicates, groups, direction, bound) if reason is None else NO_TEST,
        number(low),
        number(high),
        number(low_family),
        number(high_family),
        reason,
    )


class DrawnEstimate(NamedTuple):
    """A number on all units, and in every draw of them."""

    value: Float[np.ndarray, "*S"]
    draws: Float[np.ndarray, "R ..."]


class CrossedEstimate(NamedTuple):
    """Means over a model's seeds of several numbers, the same in every draw, the number of units, and degrees of freedom.

    `groups` is one more than the degrees of freedom: as many as units with one seed, fewer where seeds differ. `seeds` says
    of how many models it is.
    """

    value: Float[np.ndarray, "*S"]
    draws: Float[np.ndarray, "R ..."]
    units: int
    groups: np.ndarray
    seeds: int = 1

    def at(self, place: int) -> CrossedEstimate:
        """One of several numbers."""
        return CrossedEstimate(self.value[place], self.draws[:, place], self.units, self.groups[place], self.seeds)

    def minus(self, constant: float) -> CrossedEstimate:
        """The numbers less a constant."""
        return self._replace(value=self.value - constant, draws=self.draws - constant)

    def row(self) -> dict[str, float | None]:
        """Columns value, low, high and n of one number; None if it is not finite."""
        low, high = percentile_interval(self.draws, int(self.groups))
        # at a share of 0 or 1 an interval reaches to the value, as is the custom
        return value_row(self.value, Interval(np.minimum(low, self.value), np.maximum(high, self.value)), self.units)


class CrossedBootstrap:
    """Numbers in draws of units with replacement, crossed with draws of seeds; the same units share draws.

    Of S seeds S − 1 are drawn, since the variance of S drawn from S is too small by the share 1/S. Sources: Owen 2007,
    The Pigeonhole Bootstrap; Rao & Wu 1988, Resampling Inference with Complex Survey Data, section 2.
    """

    def __init__(self, seed: int = 0, draws: int = DRAWS) -> None:
        self.seed, self.draws = seed, draws
        self._times: dict[int, Float[np.ndarray, "R N"]] = {}

    def __call__(self, units: Sequence[Sequence[Hashable]], of: OfSeed) -> CrossedEstimate:
        """The statistic of each seed's answers, on all of them and in every draw of their units.

        `units` says for every seed which unit each of its answers is of; units are drawn in their sorted order.
        """
        distinct = sorted({unit for answers in units for unit in answers})  # pyright: ignore[reportArgumentType]
        place = {unit: i for i, unit in enumerate(distinct)}
        values, draws = [], []
        for seed, answers in enumerate(units):
            owners = [place[unit] for unit in answers]
            if len(distinct) not in self._times:
                self._times[len(distinct)] = draw_times(np.random.default_rng(self.seed), len(distinct), self.draws)
            blocks = np.array_split(self._times[len(distinct)], -(-self.draws // TOGETHER))
            values.append(np.asarray(of(seed, np.ones((1, len(owners)))))[0])
            draws.append(np.concatenate([of(seed, block[:, owners]) for block in blocks]))
        share = np.ones((self.draws, 1))  # of each seed in every draw
        if (seeds := len(units)) > 1:
            share = draw_times(np.random.default_rng([self.seed, 1]), seeds, self.draws, size=seeds - 1) / (seeds - 1)
        share = share.reshape(-1, len(units), *[1] * values[0].ndim)
        means = np.where(share > 0, share * np.stack(draws, 1), 0.0).sum(1)
        groups = _groups(np.array(values), means, len(distinct))
        return CrossedEstimate(np.mean(values, 0), means, len(distinct), groups, len(units))

    def share(self, units: Sequence[Sequence[Hashable]], of: OfSeed, stream: int = 0) -> CrossedEstimate:
        """The same for a share of the units, which is not certain even if it is 0 or 1.

        There the draws are of Jeffreys' posterior (shares.jeffreys_draws). Shares that are compared need a `stream` each.
        """
        estimate = self(units, of)
        value = float(estimate.value)
        if value not in (0.0, 1.0):
            return estimate
        draw = np.random.default_rng([self.seed, 2, stream])
        return estimate._replace(draws=jeffreys_draws(value, estimate.units, draw, self.draws))


def _groups(values: Float[np.ndarray, "S ..."], draws: Float[np.ndarray, "R ..."], units: int) -> np.ndarray:
    """One more than the degrees of freedom of a variance with a component over seeds and one over units.

    Source: Satterthwaite 1946, An Approximate Distribution of Estimates of Variance Components, equation 17.
    """
    seeds = len(values)
    if seeds == 1 or units < 2:
        return np.full(draws.shape[1:], units)
    between = values.var(0, ddof=1) / seeds
    within = np.maximum(draws.var(0, ddof=1) - between, 0.0)
    below = between**2 / (seeds - 1) + within**2 / (units - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(below > 0, (between + within) ** 2 / below, units - 1)
    return np.clip(np.floor(freedom).astype(int) + 1, 2, units)
