"""Descriptive statistics: coefficient of variation from moments, and Spearman's rank correlation."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Float, Real

from trisect.stats.null import monte_carlo_p
from trisect.stats.significance import ROUNDING, PValues


def variation(sums: Float[np.ndarray, "... 3"]) -> Float[np.ndarray, "*S"]:
    """Coefficient of variation, standard deviation over mean, from number, sum and sum of squares on the last axis.

    NaN without values, or if the mean is 0.
    """
    count, first, second = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = first / count
        return np.where(mean > 0, np.sqrt(np.maximum(second / count - mean**2, 0.0)) / mean, np.nan)


def mean_ranks(values: Real[np.ndarray, "*S L"]) -> Float[np.ndarray, "*S L"]:
    """Ranks from 1 along the last axis; ties share their mean rank."""
    order, is_first = values.argsort(-1), np.ones(values.shape, bool)
    ordered = np.take_along_axis(values, order, -1)
    is_first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    starts = np.flatnonzero(is_first)
    counts = np.diff(starts, append=values.size)
    shared = np.repeat(starts % values.shape[-1] + (counts + 1) / 2, counts)
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, shared.reshape(values.shape), -1)
    return ranks


def spearman(pair: Float[np.ndarray, "... 2 L"]) -> Float[np.ndarray, "*S"]:
    """Spearman's ρ of two rows of L numbers; NaN with fewer than three, or if a row is constant."""
    if pair.shape[-1] < 3:
        return np.full(pair.shape[:-2], np.nan)
    ranks = mean_ranks(pair)
    ranks -= ranks.mean(-1, keepdims=True)
    products, spread = ranks.prod(-2).sum(-1), (ranks**2).sum(-1).prod(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isfinite(pair).all((-1, -2)) & (spread > 0), products / np.sqrt(spread), np.nan)


def spearman_of_counts(table: Float[np.ndarray, "N X Y"]) -> Float[np.ndarray, " N"]:
    """Spearman's ρ from joint counts of x in X ascending bins and y in Y: Pearson's correlation of mid-ranks.

    NaN if x or y is in a single bin.
    """
    margins = (table.sum(2), table.sum(1))
    x, y = (_centred_ranks(counts) for counts in margins)
    products = np.einsum("nxy,nx,ny->n", table, x, y, optimize=True)
    spread = (margins[0] * x**2).sum(1) * (margins[1] * y**2).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, products / np.sqrt(spread), np.nan)


def _centred_ranks(counts: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "N K"]:
    """Mid-rank of every bin less the mean rank."""
    return counts.cumsum(1) - counts / 2 - counts.sum(1, keepdims=True) / 2


MAX_EXACT, ORDERS = 8, 20_000  # up to MAX_EXACT pairs all permutations are used, beyond that ORDERS random ones


def permutation_spearman(x: Float[np.ndarray, " L"], y: Float[np.ndarray, " L"], seed: int = 0) -> PValues:
    """One-sided p-values of Spearman's ρ of L pairs: `p_for` that it is below 0, `p_against` that it is above.

    Over all L! orders of y for at most eight pairs (40,320 orders), else over ORDERS random ones and the observed one; 1 if x or y
    is constant, or with fewer than three pairs. Source: Hotelling & Pabst 1936, Rank Correlation and Tests of Significance Involving
    No Assumption of Normality.
    """
    n = len(x)
    observed = float(spearman(np.stack([x, y])))
    if not np.isfinite(observed):
        return PValues(np.ones(()), np.ones(()))
    exact = n <= MAX_EXACT
    if exact:
        orders = np.array(list(itertools.permutations(range(n))))
    else:
        orders = np.random.default_rng([seed, 5]).permuted(np.broadcast_to(np.arange(n), (ORDERS, n)), axis=1)
    left, right = (mean_ranks(values) - (n + 1) / 2 for values in (x, y))
    rho = right[orders] @ left
    scale = np.sqrt((left**2).sum() * (right**2).sum())
    reached = [(rho <= observed * scale + ROUNDING * n**3).sum(), (rho >= observed * scale - ROUNDING * n**3).sum()]
    return PValues(*(np.asarray(r / len(orders)) if exact else monte_carlo_p(r, len(orders)) for r in reached))
