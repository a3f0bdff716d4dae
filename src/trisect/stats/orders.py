"""Spearman's rank correlation of a few pairs tested over their orders: all of them, or random ones."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata

from trisect.stats.describe import spearman
from trisect.stats.null import p_of_draws
from trisect.stats.tested import ROUNDING, PValues

EXACT, ORDERS = 8, 20_000  # pairs whose orders are all gone through, and how many random ones else


def permuted_spearman(x: Float[np.ndarray, " L"], y: Float[np.ndarray, " L"], seed: int = 0) -> PValues:
    """One-sided p-values of Spearman's ρ of L pairs: `p_for` that it is below 0, `p_against` that it is above.

    Over all L! orders of y where these are at most 40,320 (eight pairs), else over ORDERS random ones and the one at
    hand; 1 where x or y has one value only, or with fewer than three pairs. Source: Hotelling & Pabst 1936, Rank
    Correlation and Tests of Significance Involving No Assumption of Normality.
    """
    n = len(x)
    observed = float(spearman(np.stack([x, y])))
    if not np.isfinite(observed):
        return PValues(np.ones(()), np.ones(()))
    exact = n <= EXACT
    if exact:
        orders = np.array(list(itertools.permutations(range(n))))
    else:
        orders = np.random.default_rng([seed, 5]).permuted(np.broadcast_to(np.arange(n), (ORDERS, n)), axis=1)
    left, right = (rankdata(one) - (n + 1) / 2 for one in (x, y))
    rho = right[orders] @ left
    scale = np.sqrt((left**2).sum() * (right**2).sum())
    reached = [(rho <= observed * scale + ROUNDING * n**3).sum(), (rho >= observed * scale - ROUNDING * n**3).sum()]
    return PValues(*(np.asarray(r / len(orders)) if exact else p_of_draws(r, len(orders)) for r in reached))
