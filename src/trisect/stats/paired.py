"""Student's t on paired differences: summary, interval, tests, and which of several components is largest, or alike within a margin."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy import special

from trisect.core.finding import MOST_UNITS, Comparison, PairedDifference
from trisect.stats.significance import (
    ALPHA,
    ROUNDING,
    EffectTest,
    Interval,
    PValues,
    Reals,
    by_direction,
    family_level,
    finite,
    holm,
    nan_to_none,
    two_sided,
)


class Sample(NamedTuple):
    """Summary of paired differences: their number, mean, and standard deviation (n − 1 in the denominator).

    Fields are arrays of one shape, or scalars. `spread` is NaN with fewer than two differences.
    """

    n: Reals
    mean: Reals
    spread: Reals

    @property
    def testable(self) -> NDArray[np.bool_]:
        """Whether a t test is possible: at least two differences that are not all equal."""
        return (self.n >= 2) & (self.spread > 0)


def summary(differences: ArrayLike) -> Sample:
    """The Sample of differences along the last axis. A spread at the size of rounding counts as 0."""
    values = np.asarray(differences, dtype=float)
    n = values.shape[-1]
    if n == 0:
        return Sample(*(np.full(values.shape[:-1], fill) for fill in (0.0, np.nan, np.nan)))
    mean = values.mean(-1)
    spread = values.std(-1, ddof=1) if n > 1 else np.full(values.shape[:-1], np.nan)
    rounding = ROUNDING * np.maximum(1.0, np.abs(values).max(-1))
    return Sample(np.full(values.shape[:-1], float(n)), mean, np.where(spread <= rounding, 0.0, spread))


def t_interval(sample: Sample, level: float = 1 - ALPHA) -> Interval:
    """Two-sided Student t interval of the mean at `level`; NaN if no t test is possible."""
    n, mean, spread = _usable(sample)
    half = t_quantile(level, n) * spread / np.sqrt(n)
    return Interval(mean - half, mean + half)


def mean_interval(values: Float[np.ndarray, " N"]) -> tuple[float | None, float | None, float | None]:
    """The mean of the finite values, with Student's 95 % interval; None where there are too few."""
    each = values[np.isfinite(values)]
    n = len(each)
    if not n:
        return None, None, None
    half = float(t_quantile(1 - ALPHA, n)) * each.std(ddof=1) / n**0.5 if n > 1 else np.nan
    return finite(each.mean()), finite(each.mean() - half), finite(each.mean() + half)


def t_quantile(level: float, n: ArrayLike) -> Reals:
    """The half-width, in standard errors, of a two-sided interval at `level` for a mean of `n` units."""
    return np.asarray(special.stdtrit(np.asarray(n) - 1, (1 + level) / 2))


def t_test(sample: Sample, direction: str, bound: ArrayLike) -> PValues:
    """p-values for and against "the mean lies above (below) `bound`" or "within ±`bound`"; 1 if no test is possible."""
    tails = (lambda b: _tail(sample, b, 1.0)), (lambda b: _tail(sample, b, -1.0))
    return by_direction(*tails, direction, np.asarray(bound, dtype=float))


def t_result(sample: Sample, direction: str, bound: float, family: int, reason: Any) -> EffectTest:
    """The result of a sample for one claim in a family; `reason` says why, if no t test is possible."""
    low, high = t_interval(sample)
    low_family, high_family = t_interval(sample, family_level(family))
    return EffectTest(
        nan_to_none(sample.mean),
        int(sample.n),
        nan_to_none(sample.spread),
        t_test(sample, direction, bound),
        nan_to_none(low),
        nan_to_none(high),
        nan_to_none(low_family),
        nan_to_none(high_family),
        None if bool(sample.testable) else reason,
    )


def _usable(sample: Sample) -> Sample:
    """The sample with NaN if no t test is possible, which avoids division by zero."""
    ok = sample.testable
    n, mean, spread = (np.where(ok, field, fill) for field, fill in zip(sample, (2.0, np.nan, np.nan), strict=True))
    return Sample(n, mean, spread)


def _tail(sample: Sample, bound: Reals, sign: float) -> Reals:
    """p-value of H0: mean ≤ bound (`sign` 1) or mean ≥ bound (−1), one-sided Student t."""
    n, mean, spread = _usable(sample)
    return np.nan_to_num(special.stdtr(n - 1, sign * (bound - mean) / (spread / np.sqrt(n))), nan=1.0)


def compare(values: Mapping[str, Sequence[float]] | Mapping[str, Float[np.ndarray, " N"]], margin: float) -> Comparison:
    """Compare components by paired differences over units on which all were measured (same seed, text or head).

    `values` holds an array [N] for each component; units at which some component is not finite are left out. Each pair's
    difference is tested by Student's t against 0, with Holm's correction over pairs, and for equivalence by two one-sided
    tests against ±`margin` (in the unit of the values).
    """
    names = list(values)
    table = np.stack([np.asarray(values[name], dtype=float) for name in names])
    table = table[:, np.isfinite(table).all(0)]
    n = table.shape[1]
    if n == 0:
        return Comparison("uncertain", tuple(names), (), 0, margin)
    order = np.argsort(-table.mean(1), kind="stable")
    names, table = [names[i] for i in order], table[order]
    index_pairs = list(itertools.combinations(range(len(names)), 2))
    samples = [summary(table[a] - table[b]) for a, b in index_pairs]
    p_holm = holm([float(two_sided(t_test(sample, "above", 0.0))) for sample in samples])
    pairs = []
    for (a, b), sample, p in zip(index_pairs, samples, p_holm, strict=True):
        low, high = (nan_to_none(end) for end in t_interval(sample))
        mean, alike = float(sample.mean), float(t_test(sample, "within", margin).p_for) < ALPHA
        same = not bool(sample.testable) and int(sample.n) > 1 and abs(mean) <= margin
        above = bool(p < ALPHA) and not alike and mean > 0
        pairs.append(PairedDifference(names[a], names[b], mean, low, high, float(p), alike or same, above))
    if all(pair.alike for pair in pairs):
        kind = "alike"
    elif all(pair.above for pair in pairs if pair.first == names[0]):
        kind = "most"
    else:
        kind = "above" if any(pair.above for pair in pairs) else "uncertain"
    needed = None
    if kind == "uncertain" and all(bool(sample.testable) for sample in samples):
        # the fewest units, more than there are, with which some pair would be distinguished or all would be alike
        counts = np.arange(max(2, n + 1), MOST_UNITS + 1, dtype=float)
        distinct, alike = np.zeros(len(counts), bool), np.ones(len(counts), bool)
        for sample in samples:
            larger = Sample(counts, np.full_like(counts, sample.mean), np.full_like(counts, sample.spread))
            same = t_test(larger, "within", np.asarray(margin)).p_for < ALPHA
            distinct |= (len(pairs) * two_sided(t_test(larger, "above", 0.0)) < ALPHA) & ~same
            alike &= same
        enough = np.flatnonzero(distinct | alike)
        needed = int(counts[enough[0]]) if len(enough) else None
    return Comparison(kind, tuple(names), tuple(pairs), n, margin, needed)
