"""The record of a test, corrections for several tests, and tests of a claim's direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

ALPHA = 0.05
ROUNDING = 1e-12  # effects are differences of numbers of order one, each good to about 1e-16

Reals = NDArray[np.float64]


class PValues(NamedTuple):
    """The two one-sided p-values of a part or a claim: small `p_for` speaks for it, small `p_against` against it."""

    p_for: Reals
    p_against: Reals


class Interval(NamedTuple):
    """The ends of an interval, of one number or of arrays; NaN without an interval."""

    low: Reals
    high: Reals


NO_TEST = PValues(np.ones(()), np.ones(()))  # neither for nor against, where no test can be made


@dataclass(frozen=True)
class EffectTest:
    """A test of one effect, in the effect's unit; None is unknown.

    `low, high` are the 95 % interval, `low_family, high_family` that at Bonferroni's level for the family of claims.
    `n` is the number of units; `spread` the standard deviation per unit, so that spread / √n is the standard error.
    `reason` is why no test could be made (both p-values are then 1), None if one was.
    """

    effect: float | None = None
    n: int = 0
    spread: float | None = None
    p: PValues = NO_TEST
    low: float | None = None
    high: float | None = None
    low_family: float | None = None
    high_family: float | None = None
    reason: Any = None

    @property
    def p_for(self) -> float:
        """One-sided p-value that speaks for the claim where it is small."""
        return float(self.p.p_for)

    @property
    def p_against(self) -> float:
        """One-sided p-value that speaks against the claim where it is small."""
        return float(self.p.p_against)


def nan_to_none(value: ArrayLike) -> float | None:
    """A scalar for a table: None instead of NaN."""
    scalar = float(np.asarray(value))
    return None if np.isnan(scalar) else scalar


def finite(value: ArrayLike) -> float | None:
    """A scalar for a table: None instead of NaN and infinity."""
    scalar = float(np.asarray(value))
    return scalar if np.isfinite(scalar) else None


def value_row(value: ArrayLike, ends: Interval, n: int) -> dict[str, float | None]:
    """Columns value, low, high and n of one number; None if it is not finite."""
    return {"value": finite(value), "low": finite(ends.low), "high": finite(ends.high), "n": n}


def bonferroni(p: ArrayLike, tests: int) -> Reals:
    """p-values times the number of tests, at most 1."""
    return np.minimum(1.0, tests * np.asarray(p, dtype=float))


def family_level(family: int, alpha: float = ALPHA) -> float:
    """The level of each of `family` intervals for joint coverage of 1 − `alpha`, by Bonferroni."""
    return 1 - alpha / family


def two_sided(p: PValues) -> Reals:
    """The two-sided p-value: min(1, 2·min(p_for, p_against))."""
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


OneSided: TypeAlias = Callable[[Reals], Reals]  # bound -> p-value of a one-sided test against it


def by_direction(greater: OneSided, less: OneSided, direction: str, bound: Reals) -> PValues:
    """p-values for and against "the number lies above (below) `bound`" or "within ±`bound`".

    `greater(b)` tests H0: the number is at most b, `less(b)` H0: it is at least b. Within: p_for is the larger of the two
    one-sided tests against ±bound; p_against is twice the smaller of the tests for lying outside, at most 1.
    Source: Schuirmann 1987, A Comparison of the Two One-Sided Tests Procedure and the Power Approach.
    """
    if direction == "within":
        inside = np.maximum(greater(-bound), less(bound))
        outside = np.minimum(greater(bound), less(-bound))
        return PValues(inside, bonferroni(outside, 2))
    assert direction in ("above", "below"), direction
    both = PValues(greater(bound), less(bound))
    return both if direction == "above" else PValues(both.p_against, both.p_for)
