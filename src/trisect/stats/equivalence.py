"""What a claim's direction asks of two one-sided tests: above a bound, below it, or equivalent within a margin (TOST)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from trisect.stats.correct import bonferroni
from trisect.stats.tested import PValues, Reals

OneSided: TypeAlias = Callable[[Reals], Reals]  # a bound -> the p-value of lying on the wrong side of it


def equivalent(beyond: OneSided, short_of: OneSided, margin: Reals) -> PValues:
    """p-values for and against "within ±`margin`".

    `beyond(b)` tests H0: the number is at most b, `short_of(b)` H0: it is at least b. p_for is the larger of the two
    one-sided tests against ±margin; p_against is twice the smaller of the tests for lying outside, at most 1.
    Source: Schuirmann 1987, A Comparison of the Two One-Sided Tests Procedure and the Power Approach.
    """
    inside = np.maximum(beyond(-margin), short_of(margin))
    outside = np.minimum(beyond(margin), short_of(-margin))
    return PValues(inside, bonferroni(outside, 2))


def by_direction(beyond: OneSided, short_of: OneSided, direction: str, bound: Reals) -> PValues:
    """p-values for and against "the number lies above (below) `bound`" or "within ±`bound`"."""
    if direction == "within":
        return equivalent(beyond, short_of, bound)
    assert direction in ("above", "below"), direction
    both = PValues(beyond(bound), short_of(bound))
    return both if direction == "above" else PValues(both.p_against, both.p_for)
