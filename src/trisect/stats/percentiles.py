"""Bootstrap: what would have been measured with other texts of the same kind, texts drawn anew with replacement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from trisect.stats.intervals import interval

DRAWS = 2_000
_TOGETHER = 1_000_000  # numbers of a block of draws


class Ends(NamedTuple):
    """Both ends of a 95 % interval per column; NaN where there is none."""

    low: Float[np.ndarray, " C"]
    high: Float[np.ndarray, " C"]


def ratios(sums: Float[np.ndarray, "N C"], counts: Float[np.ndarray, " N"]) -> Float[np.ndarray, " C"]:
    """Sums over texts divided by the counts over texts: means per token, for C columns."""
    return sums.sum(0) / counts.sum()


def replicates(
    sums: Float[np.ndarray, "N C"], counts: Float[np.ndarray, " N"], seed: int, draws: int = DRAWS
) -> Float[np.ndarray, "R C"]:
    """`ratios` of every draw of N texts with replacement; each draw is the same for all columns, which keeps pairs.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, chapter 6, the text being the unit.
    """
    draw, n = np.random.default_rng(seed), len(counts)
    found = np.empty((draws, sums.shape[1]))
    size = max(1, _TOGETHER // n)
    for start in range(0, draws, size):
        few = min(size, draws - start)
        chosen = draw.integers(n, size=(few, n)) + n * np.arange(few)[:, None]
        times = np.bincount(chosen.ravel(), minlength=few * n).reshape(few, n).astype(float)
        with np.errstate(invalid="ignore"):  # a loss that is no number makes a replicate that is none
            found[start : start + few] = (times @ sums) / (times @ counts)[:, None]
    return found


def percentiles(found: Float[np.ndarray, "R C"], texts: int) -> Ends:
    """The middle 95 % of the replicates, as wide as Student's t makes it for so many texts (core.resampling.interval).

    NaN with fewer than two texts, or where a replicate is not a number.
    """
    return Ends(*interval(found, texts))
