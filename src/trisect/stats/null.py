"""Null distributions by sampling: p-values of values among draws of a null, and of pairings among random pairings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from trisect.stats.significance import ALPHA, Interval, Reals, bonferroni

PERMUTATIONS = 2_000
_BLOCK_NUMBERS = 2_000_000  # numbers in a block of permutations


def monte_carlo_p(reached: ArrayLike, draws: int) -> Reals:
    """(1 + number of draws at least as extreme) / (1 + draws), which is never 0.

    Source: Phipson & Smyth 2010, Permutation P-values Should Never Be Zero, section 4.
    """
    return (1 + np.asarray(reached)) / (1 + draws)


class Null(NamedTuple):
    """Sorted draws of a statistic under a null, with their mean and standard deviation."""

    draws: Float[np.ndarray, " R"]
    mean: float
    spread: float

    @staticmethod
    def of(draws: Float[np.ndarray, " R"]) -> Null:
        """The null distribution from its draws."""
        return Null(np.sort(draws), float(draws.mean()), float(draws.std(ddof=1)))

    def above(self, values: Float[np.ndarray, " H"]) -> Float[np.ndarray, " H"]:
        """p of the null against "larger"."""
        reached = len(self.draws) - np.searchsorted(self.draws, values, side="left")
        return monte_carlo_p(reached, len(self.draws))

    def below(self, values: Float[np.ndarray, " H"]) -> Float[np.ndarray, " H"]:
        """p of the null against "smaller"."""
        return monte_carlo_p(np.searchsorted(self.draws, values, side="right"), len(self.draws))

    def beyond(self, values: Float[np.ndarray, " H"]) -> Float[np.ndarray, " H"]:
        """p against "larger or smaller": twice the smaller one-sided p, at most 1."""
        return bonferroni(np.minimum(self.above(values), self.below(values)), 2)

    def t_p(self, values: Float[np.ndarray, " H"]) -> Float[np.ndarray, " H"]:
        """Two-sided p of a value as one more draw of a null that is near normal: Student's t with R − 1 degrees of freedom.

        Unlike `beyond` it can be smaller than 2 / (R + 1), and so survive a correction for many tests. 1 if all draws are the same.
        """
        n = len(self.draws)
        error = self.spread * np.sqrt(1 + 1 / n)
        return 2 * special.stdtr(n - 1, -np.abs(values - self.mean) / error) if error > 0 else np.ones(len(values))

    def scores(self, values: Float[np.ndarray, " H"]) -> Float[np.ndarray, " H"]:
        """z: distance from the null's mean in standard deviations; NaN if all draws are equal."""
        return (values - self.mean) / self.spread if self.spread > 0 else np.full(len(values), np.nan)

    def quantile(self, share: float) -> float:
        """A quantile of the draws."""
        return float(np.quantile(self.draws, share))

    def excess_interval(self, value: float, alpha: float = ALPHA) -> Interval:
        """Interval at 1 − `alpha` for the difference between a value and the null."""
        low, high = (value - self.quantile(share) for share in (1 - alpha / 2, alpha / 2))
        return Interval(np.asarray(low), np.asarray(high))


def permutation_p(
    agreement: Float[np.ndarray, "N N"], rng: np.random.Generator, permutations: int = PERMUTATIONS
) -> float:
    """One-sided p-value of rows agreeing with their own columns no more often than with permuted columns.

    `agreement` [N N] counts agreements of each row with each column; for several tables of the same rows and columns, pass their sum.
    NaN with fewer than two rows.
    """
    n = len(agreement)
    if n < 2:
        return float("nan")
    observed, reached = agreement.trace(), 0
    size = max(1, _BLOCK_NUMBERS // n)
    for start in range(0, permutations, size):
        count = min(size, permutations - start)
        columns = rng.permuted(np.broadcast_to(np.arange(n), (count, n)), axis=1)
        reached += int((agreement[np.arange(n), columns].sum(1) >= observed).sum())
    return float(monte_carlo_p(reached, permutations))
