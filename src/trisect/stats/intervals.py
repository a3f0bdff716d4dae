"""Resampling: intervals and one-sided p-values of numbers whose units were drawn anew, as wide as Student's t."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from trisect.stats.tests import ALPHA, ROUNDING, Sides

Reals = NDArray[np.float64]


def interval(replicates: Reals, n: int, level: float = 1 - ALPHA) -> tuple[Reals, Reals]:
    """Two-sided expanded percentile interval at `level` of numbers [R …] resampled over `n` units; NaN where there is none.

    Source: Hesterberg 2015, What Teachers Should Know About the Bootstrap, section 5.3.
    """
    known = np.isfinite(replicates).all(0) & (n > 1) & (len(replicates) > 0)
    if n < 2 or not len(replicates):
        return np.full(known.shape, np.nan), np.full(known.shape, np.nan)
    tail = float(special.ndtr(np.sqrt(n / (n - 1)) * special.stdtrit(n - 1, (1 - level) / 2)))
    low, high = np.quantile(np.where(known, replicates, 0.0), [tail, 1 - tail], axis=0)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def sides(replicates: Reals, n: int, direction: str, bound: float) -> Sides:
    """p-values for and against "the number lies above (below) `bound`" or "within ±`bound`", as core.stats.sides."""
    if direction == "above":
        return Sides(_beyond(replicates, n, bound), _short_of(replicates, n, bound))
    if direction == "below":
        return Sides(_short_of(replicates, n, bound), _beyond(replicates, n, bound))
    inside = np.maximum(_beyond(replicates, n, -bound), _short_of(replicates, n, bound))
    outside = np.minimum(_beyond(replicates, n, bound), _short_of(replicates, n, -bound))
    return Sides(inside, np.minimum(1.0, 2 * outside))


def spread(replicates: Reals) -> float:
    """Standard deviation of the replicates that are numbers, 0 where rounding alone could make it; NaN with fewer than two."""
    known = replicates[np.isfinite(replicates)]
    if len(known) < 2:
        return float("nan")
    found = float(known.std(ddof=1))
    return found if found > ROUNDING * max(1.0, float(np.abs(known).max())) else 0.0


def _beyond(replicates: Reals, n: int, bound: float) -> Reals:
    """p-value of H0: the number is at most `bound`."""
    return _expanded(int(np.count_nonzero(~(replicates > bound))), len(replicates), n)


def _short_of(replicates: Reals, n: int, bound: float) -> Reals:
    """p-value of H0: the number is at least `bound`."""
    return _expanded(int(np.count_nonzero(~(replicates < bound))), len(replicates), n)


def _expanded(many: int, draws: int, n: int) -> Reals:
    """A share of draws as a p-value, by Student's t where a percentile takes the normal distribution."""
    share = (many + 1) / (draws + 1)
    return np.asarray(special.stdtr(n - 1, special.ndtri(share) * np.sqrt((n - 1) / n)) if share < 1 else 1.0)
