"""Statistics of claims: paired effects, one-sided tests, equivalence, several parts, Holm, seeds needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

ALPHA = 0.05
MOST_SEEDS = 1000
ROUNDING = 1e-12  # effects are differences of numbers of order one, each good to about 1e-16

Reals = NDArray[np.float64]


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


class Sides(NamedTuple):
    """The two one-sided p-values of a part or a claim: small `p_for` speaks for it, small `p_against` against it."""

    p_for: Reals
    p_against: Reals


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


def interval(sample: Sample, level: float) -> tuple[Reals, Reals]:
    """Two-sided Student t interval of the mean at `level` (0.95); NaN where no t test can be made."""
    n, mean, spread = _usable(sample)
    half = special.stdtrit(n - 1, (1 + level) / 2) * spread / np.sqrt(n)
    return mean - half, mean + half


def sides(sample: Sample, direction: str, bound: ArrayLike) -> Sides:
    """p-values for and against "the mean lies above (below) `bound`" or "within ±`bound`"; 1 where no test can be made.

    Within: p_for is the larger of the two one-sided tests against ±bound; p_against is twice the smaller of the
    tests for lying outside, at most 1.
    """
    assert direction in ("above", "below", "within")
    bound = np.asarray(bound, dtype=float)
    if direction == "above":
        return Sides(_beyond(sample, bound), _short_of(sample, bound))
    if direction == "below":
        return Sides(_short_of(sample, bound), _beyond(sample, bound))
    inside = np.maximum(_beyond(sample, -bound), _short_of(sample, bound))
    outside = np.minimum(_beyond(sample, bound), _short_of(sample, -bound))
    return Sides(inside, np.minimum(1.0, 2 * outside))


def conjunction(parts: Sequence[Sides]) -> Sides:
    """p-values of "all k parts hold" (intersection–union): the largest p_for; min(1, k · smallest p_against)."""
    assert parts
    for_all = np.max([part.p_for for part in parts], axis=0)
    against = np.min([part.p_against for part in parts], axis=0)
    return Sides(for_all, np.minimum(1.0, len(parts) * against))


def two_sided(p: Sides) -> Reals:
    """One p-value for a verdict on either side: min(1, 2·min(p_for, p_against))."""
    return np.minimum(1.0, 2 * np.minimum(p.p_for, p.p_against))


def holm(p: ArrayLike) -> Reals:
    """Holm's step-down adjustment over the last axis: controls the family-wise error at any dependence."""
    p = np.asarray(p, dtype=float)
    m = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")
    stepped = np.take_along_axis(p, order, -1) * (m - np.arange(m))
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(1.0, np.maximum.accumulate(stepped, axis=-1)), -1)
    return adjusted


def seeds_needed(parts: Sequence[tuple[Sample, str, float]], family: int, alpha: float = ALPHA) -> int | None:
    """The fewest seeds that would decide the claim at these means and spreads: p < alpha / family, Holm's first step.

    None when fewer than MOST_SEEDS would not do, or when some part has one seed or no spread and so cannot tell.
    """
    if not all(bool(sample.testable) for sample, _, _ in parts):
        return None
    n = np.arange(2, MOST_SEEDS, dtype=float)
    ahead = [(Sample(n, np.full_like(n, s.mean), np.full_like(n, s.spread)), d, bound) for s, d, bound in parts]
    p = two_sided(conjunction([sides(sample, direction, bound) for sample, direction, bound in ahead]))
    enough = np.flatnonzero(p < alpha / family)
    return int(n[enough[0]]) if len(enough) else None


def number(value: ArrayLike) -> float | None:
    """A scalar as a table holds it: null instead of NaN."""
    scalar = float(np.asarray(value))
    return None if np.isnan(scalar) else scalar


def _usable(sample: Sample) -> Sample:
    """The sample with NaN where no t test can be made, so that no division by zero is met."""
    ok = sample.testable
    n, mean, spread = (np.where(ok, field, fill) for field, fill in zip(sample, (2.0, np.nan, np.nan), strict=True))
    return Sample(n, mean, spread)


def _beyond(sample: Sample, bound: Reals) -> Reals:
    """p-value of H0: mean ≤ bound, one-sided Student t."""
    n, mean, spread = _usable(sample)
    return np.nan_to_num(special.stdtr(n - 1, (bound - mean) / (spread / np.sqrt(n))), nan=1.0)


def _short_of(sample: Sample, bound: Reals) -> Reals:
    """p-value of H0: mean ≥ bound, one-sided Student t."""
    n, mean, spread = _usable(sample)
    return np.nan_to_num(special.stdtr(n - 1, (mean - bound) / (spread / np.sqrt(n))), nan=1.0)
