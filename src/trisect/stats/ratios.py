"""Ratios of sums over units: means per token, and intervals of a curve's rise from a sample without replacement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from trisect.stats.paired import t_quantile
from trisect.stats.tested import ALPHA


def ratios(sums: Float[np.ndarray, "N C"], counts: Float[np.ndarray, " N"]) -> Float[np.ndarray, " C"]:
    """Sums over units divided by the counts over units: means per token, for C columns."""
    return sums.sum(0) / counts.sum()


class Band(NamedTuple):
    """95 % intervals of a curve's rise over its last point, and of the mean rise (the area)."""

    low: Float[np.ndarray, " A"]
    high: Float[np.ndarray, " A"]
    area_low: float
    area_high: float


def paired_band(sums: Float[np.ndarray, "A R"], tokens: Int[np.ndarray, " R"], population: int) -> Band:
    """What a sample of whole rows says about the rise of the loss that all of them would show.

    `sums` are each row's summed losses along the curve, in nats, and `tokens` the rows' lengths; the R rows were drawn
    at random without replacement from `population` rows, and the same ones serve every point. The rise at a point is
    the ratio of summed differences to summed tokens; its variance is that of the rows' residuals, with R − 1 degrees
    of freedom and the finite population correction 1 − R/population (so that nothing is uncertain where every row was
    drawn). Source: Cochran 1977, Sampling Techniques, section 6.4.
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
    return Band(low[:-1], high[:-1], float(low[-1]), float(high[-1]))
