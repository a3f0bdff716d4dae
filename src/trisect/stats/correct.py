"""Corrections for several tests: Bonferroni, Holm, both sides of one claim, and parts that must all hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from trisect.stats.tested import ALPHA, PValues, Reals


def bonferroni(p: ArrayLike, tests: int) -> Reals:
    """p-values times the number of tests, at most 1."""
    return np.minimum(1.0, tests * np.asarray(p, dtype=float))


def family_level(family: int, alpha: float = ALPHA) -> float:
    """The level of each of `family` intervals that all hold together at 1 − `alpha`, by Bonferroni."""
    return 1 - alpha / family


def two_sided(p: PValues) -> Reals:
    """One p-value for a verdict on either side: min(1, 2·min(p_for, p_against))."""
    return bonferroni(np.minimum(p.p_for, p.p_against), 2)


def conjunction(parts: Sequence[PValues]) -> PValues:
    """p-values of "all k parts hold" (intersection–union): the largest p_for; min(1, k · smallest p_against).

    Source: Berger 1982, Multiparameter Hypothesis Testing and Acceptance Sampling, theorem 1.
    """
    assert parts
    for_all = np.max([part.p_for for part in parts], axis=0)
    against = np.min([part.p_against for part in parts], axis=0)
    return PValues(for_all, bonferroni(against, len(parts)))


def holm(p: ArrayLike) -> Reals:
    """Holm's step-down adjustment over the last axis: controls the family-wise error at any dependence."""
    p = np.asarray(p, dtype=float)
    m = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")
    stepped = np.take_along_axis(p, order, -1) * (m - np.arange(m))
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(1.0, np.maximum.accumulate(stepped, axis=-1)), -1)
    return adjusted
