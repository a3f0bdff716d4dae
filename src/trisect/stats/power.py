"""Power before any data: the smallest possible p-value, and how many units or draws a decision needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from trisect.stats.bootstrap import DRAWS, expand_p
from trisect.stats.null import PERMUTATIONS, monte_carlo_p
from trisect.stats.paired import Sample, t_test
from trisect.stats.significance import ALPHA, Reals, bonferroni, conjunction, two_sided

MAX_SEEDS = 1000
ClaimPart: TypeAlias = tuple[Sample, str, float]  # the sample of a part, its direction and its bound


def smallest_p(method: Literal["bootstrap", "permutation"], n: int, draws: int | None = None) -> float:
    """The smallest possible two-sided p-value of a test over `n` units (or groups); 1 with fewer than two.

    'bootstrap': all of `draws` draws (default DRAWS) lie on one side, expanded as by Student's t with n − 1 degrees of freedom.
    'permutation': over all n! orders of n units, or over `draws` random ones (default PERMUTATIONS) if these are fewer.
    """
    if n < 2:
        return 1.0
    if method == "bootstrap":
        one_sided = expand_p(0, DRAWS if draws is None else draws, n)
    else:
        floor = monte_carlo_p(0, PERMUTATIONS if draws is None else draws)
        one_sided = max(math.exp(-math.lgamma(n + 1)), float(floor))
    return float(bonferroni(one_sided, 2))


def fewest_draws(tests: int, factor: float = 1.0) -> int:
    """The number of draws of a null with which one test of a family can be significant, two-sided and Holm-corrected, times `factor`."""
    return int(factor * 2 * tests / ALPHA)


def is_decided(p: float, draws: int, tests: int) -> bool:
    """Whether a p-value from `draws` draws of a null is clearly on one side of ALPHA after a correction for `tests`.

    That is, whether p ± 3 standard errors stays on one side. That p is the smallest possible, 1 / (draws + 1), does not suffice.
    """
    error = 3 * (p / (draws + 1)) ** 0.5
    return tests * (p + error) < ALPHA or tests * (p - error) >= ALPHA


def fewest_counts(
    parts: Sequence[ClaimPart],
    counts: Reals,
    family: int,
    min_errors: Sequence[float] | None = None,
) -> int | None:
    """The smallest number of units in `counts` (ascending) at which a claim would be decided, with the same means and deviations.

    A claim is decided if its two-sided p < ALPHA / family, Holm's first step. None if no count is enough. `min_errors` is the
    part of the standard error that more units do not reduce, for each part of the claim.
    """
    p_values = [
        t_test(
            Sample(counts, np.full_like(counts, s.mean), np.maximum(s.spread, error * np.sqrt(counts))),
            direction,
            bound,
        )
        for (s, direction, bound), error in zip(parts, min_errors or [0.0] * len(parts), strict=True)
    ]
    sufficient = np.flatnonzero(two_sided(conjunction(p_values)) < ALPHA / family)
    return int(counts[sufficient[0]]) if len(sufficient) else None


def fewest_seeds(parts: Sequence[ClaimPart], family: int, min_errors: Sequence[float] | None = None) -> int | None:
    """The fewest seeds that would decide the claim at these means, deviations and `min_errors` (see `fewest_counts`).

    None if more than MAX_SEEDS − 1 seeds are needed, or if a part has fewer than two. A part without a spread never supports the
    claim, so that the other parts can then only refute it.
    """
    if any(int(sample.n) < 2 for sample, _, _ in parts):
        return None
    return fewest_counts(parts, np.arange(2, MAX_SEEDS, dtype=float), family, min_errors)
