"""What a number of units can decide, before any data: the smallest possible p, and numbers of units or draws needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from trisect.stats.bootstrap import DRAWS, expand_p
from trisect.stats.null import PERMUTATIONS, monte_carlo_p
from trisect.stats.paired import Sample, t_test
from trisect.stats.significance import ALPHA, Reals, bonferroni, conjunction, two_sided

MOST_SEEDS = 1000
ClaimPart: TypeAlias = tuple[Sample, str, float]  # the sample of a part, its direction and its bound


def smallest_p(method: Literal["bootstrap", "permutation"], n: int, draws: int | None = None) -> float:
    """The smallest possible two-sided p-value of a test over `n` units (or groups); 1 with fewer than two.

    'bootstrap': all of `draws` draws (default DRAWS) lie on one side, widened as by t with n − 1 degrees of freedom.
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


def fewest_draws(tests: int, spare: float = 1.0) -> int:
    """The number of draws of a null with which one test of a family can be significant after Holm on either side, times `spare`."""
    return int(spare * 2 * tests / ALPHA)


def is_decided(p: float, draws: int, tests: int) -> bool:
    """Whether a p-value from so many draws of a null is clearly on one side of ALPHA after a correction for `tests`.

    That is, whether three standard errors of the count leave it on that side; the smallest possible p, 1 / (draws + 1), is not
    enough by itself.
    """
    error = 3 * (p / (draws + 1)) ** 0.5
    return tests * (p + error) < ALPHA or tests * (p - error) >= ALPHA


def fewest_counts(
    parts: Sequence[ClaimPart],
    counts: Reals,
    family: int,
    min_errors: Sequence[float] | None = None,
) -> int | None:
    """The first of ascending `counts` of units that would decide a claim whose parts keep their means and spreads.

    A claim is decided if its two-sided p < ALPHA / family, Holm's first step. None if no count is enough. `min_errors` is the
    standard error of each part that more units do not reduce.
    """
    p_values = [
        t_test(
            Sample(counts, np.full_like(counts, s.mean), np.maximum(s.spread, error * np.sqrt(counts))),
            direction,
            bound,
        )
        for (s, direction, bound), error in zip(parts, min_errors or [0.0] * len(parts), strict=True)
    ]
    enough = np.flatnonzero(two_sided(conjunction(p_values)) < ALPHA / family)
    return int(counts[enough[0]]) if len(enough) else None


def fewest_seeds(parts: Sequence[ClaimPart], family: int, min_errors: Sequence[float] | None = None) -> int | None:
    """The fewest seeds that would decide the claim at these means, spreads and least errors (see `fewest_counts`).

    None if more than MOST_SEEDS − 1 seeds are needed, or if a part has fewer than two. A part without a spread never supports the
    claim, so that the other parts can then only refute it.
    """
    if any(int(sample.n) < 2 for sample, _, _ in parts):
        return None
    return fewest_counts(parts, np.arange(2, MOST_SEEDS, dtype=float), family, min_errors)
