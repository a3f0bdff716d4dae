"""Student's t on paired differences, over any number of units from two: summary, interval, one-sided tests, equivalence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from trisect.stats.tested import ALPHA, ROUNDING, Interval, PValues, Reals, Tested, by_direction, family_level, number


class Sample(NamedTuple):
    """Paired differences in short: how many, their mean, their standard deviation (n − 1 in the denominator).

    Fields are arrays of one shape, or scalars. `spread` is NaN with fewer than two differences.
    """

    n: Reals
    mean: Reals
    spread: Reals

    @property
    def testable(self) -> NDArray[np.bool_]:
        """Whether a t test can be made: at least two differences, and they are not all the same."""
        return (self.n >= 2) & (self.spread > 0)


def summary(differences: ArrayLike) -> Sample:
    """The Sample of differences along the last axis. A spread that rounding alone could make counts as 0."""
    values = np.asarray(differences, dtype=float)
    n = values.shape[-1]
    if n == 0:
        return Sample(*(np.full(values.shape[:-1], fill) for fill in (0.0, np.nan, np.nan)))
    mean = values.mean(-1)
    spread = values.std(-1, ddof=1) if n > 1 else np.full(values.shape[:-1], np.nan)
    rounding = ROUNDING * np.maximum(1.0, np.abs(values).max(-1))
    return Sample(np.full(values.shape[:-1], float(n)), mean, np.where(spread <= rounding, 0.0, spread))


def t_interval(sample: Sample, level: float = 1 - ALPHA) -> Interval:
    """Two-sided Student t interval of the mean at `level`; NaN where no t test can be made."""
    n, mean, spread = _usable(sample)
    half = t_quantile(level, n) * spread / np.sqrt(n)
    return Interval(mean - half, mean + half)


def t_quantile(level: float, n: ArrayLike) -> Reals:
    """How many standard errors of a mean of `n` units a two-sided interval at `level` reaches to each side."""
    return np.asarray(special.stdtrit(np.asarray(n) - 1, (1 + level) / 2))


def t_test(sample: Sample, direction: str, bound: ArrayLike) -> PValues:
    """p-values for and against "the mean lies above (below) `bound`" or "within ±`bound`"; 1 where no test can be made."""

    def beyond(bound: Reals) -> Reals:
        return _tail(sample, bound, 1.0)

    def short_of(bound: Reals) -> Reals:
        return _tail(sample, bound, -1.0)

    return by_direction(beyond, short_of, direction, np.asarray(bound, dtype=float))


def t_result(sample: Sample, direction: str, bound: float, family: int, reason: Any) -> Tested:
    """Everything that a scalar sample says of one claim in a family; `reason` is why, where no t test can be made."""
    low, high = t_interval(sample)
    low_family, high_family = t_interval(sample, family_level(family))
    return Tested(
        number(sample.mean),
        int(sample.n),
        number(sample.spread),
        t_test(sample, direction, bound),
        number(low),
        number(high),
        number(low_family),
        number(high_family),
        None if bool(sample.testable) else reason,
    )


def _usable(sample: Sample) -> Sample:
    """The sample with NaN where no t test can be made, so that no division by zero is met."""
    ok = sample.testable
    n, mean, spread = (np.where(ok, field, fill) for field, fill in zip(sample, (2.0, np.nan, np.nan), strict=True))
    return Sample(n, mean, spread)


def _tail(sample: Sample, bound: Reals, way: float) -> Reals:
    """p-value of H0: mean ≤ bound (`way` 1) or mean ≥ bound (−1), one-sided Student t."""
    n, mean, spread = _usable(sample)
    return np.nan_to_num(special.stdtr(n - 1, way * (bound - mean) / (spread / np.sqrt(n))), nan=1.0)
