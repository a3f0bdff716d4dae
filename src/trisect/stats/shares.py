"""Intervals of shares (binomial) and of ratios of sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from trisect.stats.paired import t_quantile
from trisect.stats.significance import ALPHA


def jeffreys(share: float, units: int) -> tuple[float, float]:
    """Jeffreys' interval at 1 − ALPHA of a share of n units.

    Source: Brown, Cai & DasGupta 2001, Interval Estimation for a Binomial Proportion, section 4.
    """
    a, b = _posterior(share, units)
    low, high = (float(special.betaincinv(a, b, q)) for q in (ALPHA / 2, 1 - ALPHA / 2))
    return low, high


def jeffreys_draws(share: float, units: int, rng: np.random.Generator, draws: int) -> Float[np.ndarray, " R"]:
    """Draws of a share from Jeffreys' posterior, which has a spread even at shares of 0 or 1."""
    return rng.beta(*_posterior(share, units), draws)


def least_spread(share: float, units: int) -> float:
    """The standard deviation of a share of n units by Jeffreys' posterior."""
    a, b = _posterior(share, units)
    return float(np.sqrt(a * b / ((a + b) ** 2 * (a + b + 1))))


def upper_bound(errors: int, units: int, level: float) -> float:
    """Upper confidence bound of a share at `level`, with `errors` of n units observed; 1 if all were errors.

    Source: Clopper & Pearson 1934, The Use of Confidence or Fiducial Limits.
    """
    return 1.0 if errors == units else float(special.betaincinv(errors + 1, units - errors, level))


def wilson(share: float, units: int) -> tuple[float, float]:
    """Wilson's score interval at 1 − ALPHA of a share of n units.

    Source: Wilson 1927, Probable Inference, the Law of Succession, and Statistical Inference.
    """
    z = float(special.ndtri(1 - ALPHA / 2))
    middle, half = share + z**2 / (2 * units), z * np.sqrt(share * (1 - share) / units + z**2 / (4 * units**2))
    low, high = (float((middle + side * half) / (1 + z**2 / units)) for side in (-1, 1))
    return min(low, share), max(high, share)


def _posterior(share: float, units: int) -> tuple[float, float]:
    hits = share * units
    return hits + 0.5, units - hits + 0.5


def ratios(sums: Float[np.ndarray, "N C"], counts: Float[np.ndarray, " N"]) -> Float[np.ndarray, " C"]:
    """Sums over units divided by counts over units: means per token, for C columns."""
    return sums.sum(0) / counts.sum()


class _Band(NamedTuple):
    """95 % intervals of a curve's rise over its last point, and of the mean rise (the area)."""

    low: Float[np.ndarray, " A"]
    high: Float[np.ndarray, " A"]
    area_low: float
    area_high: float


def paired_band(sums: Float[np.ndarray, "A R"], tokens: Int[np.ndarray, " R"], population: int) -> _Band:
    """Intervals from a sample of whole rows for the rise of the loss over all rows.

    `sums` [A R] are each row's summed losses at A points of the curve, in nats, `tokens` [R] the rows' lengths; the R rows were
    drawn at random without replacement from `population` rows, the same ones for every point. The rise at a point is
    the ratio of summed differences to summed tokens; its variance is that of the rows' residuals, with R − 1 degrees
    of freedom and the finite population correction 1 − R/population (the interval has no width if every row was drawn).
    Source: Cochran 1977, Sampling Techniques, section 6.4.
    """
    rise = sums - sums[-1]
    rises = np.concatenate([rise, rise.mean(0, keepdims=True)])
    count, length = len(tokens), tokens.mean()
    mean = ratios(rises.T, tokens)
    if count < population and count > 1:
        spread = np.sqrt(np.square(rises - mean[:, None] * tokens).sum(1) / (count - 1))
        half = t_quantile(1 - ALPHA, count) * spread * np.sqrt((1 - count / population) / count) / length
    else:
        half = np.full(len(mean), 0.0 if count == population else np.nan)
    low, high = mean - half, mean + half
    return _Band(low[:-1], high[:-1], float(low[-1]), float(high[-1]))
