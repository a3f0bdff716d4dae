"""Intervals and bounds of one binomial share: Jeffreys' interval and draws, Clopper and Pearson's upper bound."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy import special

from trisect.stats.tested import ALPHA


def jeffreys(share: float, units: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Both ends of Jeffreys' interval at 1 − `alpha` of a share of so many units.

    Source: Brown, Cai & DasGupta 2001, Interval Estimation for a Binomial Proportion, section 4.
    """
    a, b = _posterior(share, units)
    low, high = (float(special.betaincinv(a, b, q)) for q in (alpha / 2, 1 - alpha / 2))
    return low, high


def jeffreys_draws(share: float, units: int, draw: np.random.Generator, draws: int) -> Float[np.ndarray, " R"]:
    """Draws of a share from Jeffreys' posterior, which is certain of nothing even where the share is 0 or 1."""
    return draw.beta(*_posterior(share, units), draws)


def least_spread(share: float, units: int) -> float:
    """The standard deviation of a share of so many units, by Jeffreys' posterior: what drawing the units alone leaves open."""
    a, b = _posterior(share, units)
    return float(np.sqrt(a * b / ((a + b) ** 2 * (a + b + 1))))


def upper_bound(errors: int, units: int, level: float) -> float:
    """What a share is below with confidence `level`, `errors` of so many units having been seen; 1 where all were errors.

    Source: Clopper & Pearson 1934, The Use of Confidence or Fiducial Limits.
    """
    return 1.0 if errors == units else float(special.betaincinv(errors + 1, units - errors, level))


def _posterior(share: float, units: int) -> tuple[float, float]:
    hits = share * units
    return hits + 0.5, units - hits + 0.5
