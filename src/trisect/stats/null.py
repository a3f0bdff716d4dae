"""Null distributions by sampling: p-values of values among draws of a null, and of pairings among random pairings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from trisect.stats.tested import ALPHA, Interval, Reals, bonferroni

PERMUTATIONS = 2_000
_TOGETHER = 2_000_000  # places of a block of permutations


def p_of_draws(reached: ArrayLike, draws: int) -> Reals:
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
        return p_of_draws(reached, len(self.draws))

    def below(self, values: Float[np.ndarray, " H"]) -> Float[np.ndarray, " H"]:
        """p of the null against "smaller"."""
        return p_of_draws(np.searchsorted(self.draws, values, side="right"), len(self.draws))

    def beyond(self, values: Float[np.ndarray, " H"]) -> Float[np.ndarray, " H"]:
        """p against "larger or smaller": twice the smaller one-sided p, at most 1."""
        return bonferroni(np.minimum(self.above(values), self.below(values)), 2)

    def t_p(self, values: Float[np.ndarray, " H"]) -> Float[np.ndarray, " H"]:
        """Two-sided p of a value as one more draw of a null that is near normal: Student's t with R − 1 degrees of freedom.

        Unlike `beyond` it can be smaller than 2 / (R + 1), and so survive a correction for many. 1 where all draws are the same.
        """
        n = len(self.draws)
        wide = self.spread * np.sqrt(1 + 1 / n)
        return 2 * special.stdtr(n - 1, -np.abs(values - self.mean) / wide) if wide > 0 else np.ones(len(values))

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
    agreement: Float[np.ndarray, "N N"], generator: np.random.Generator, permutations: int = PERMUTATIONS
) -> float:
    """One-sided p-value of rows agreeing with their own columns no more often than with permuted columns.

    `p_of_draws` of random pairings that agree at least as often; NaN with fewer than two rows. For several tables of the
    same rows and columns give the sum of their agreements.
    """
    n = len(agreement)
    if n < 2:
        return float("nan")
    observed, least = agreement.trace(), 0
    size = max(1, _TOGETHER // n)
    for start in range(0, permutations, size):
        few = min(size, permutations - start)
        dealt = generator.permuted(np.broadcast_to(np.arange(n), (few, n)), axis=1)
        least += int((agreement[np.arange(n), dealt].sum(1) >= observed).sum())
    return float(p_of_draws(least, permutations))
