"""The record of one test: effect, intervals, p-values on both sides, how many units, and why there is no test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    """Both ends of an interval, of one number or of many of one shape; NaN where there is none."""

    low: Reals
    high: Reals


NO_TEST = PValues(np.ones(()), np.ones(()))  # where nothing can be tested, nothing speaks for it and nothing against it


@dataclass(frozen=True)
class Tested:
    """A test of one effect, in the effect's own unit; null is what is not known.

    `low, high` are the 95 % interval, `low_family, high_family` that at Bonferroni's level for the family of claims.
    `n` is the number of units; `spread` the standard deviation that one of them stands for, so that spread / √n is the
    standard error. `reason` says why no test could be made, in which case both p-values are 1.
    """

    effect: float | None = None
    n: int = 0
    spread: float | None = None
    p: PValues = NO_TEST
    low: float | None = None
    high: float | None = None
    low_family: float | None = None
    high_family: float | None = None
    reason: str | None = None

    @property
    def p_for(self) -> float:
        """One-sided p-value that speaks for the claim where it is small."""
        return float(self.p.p_for)

    @property
    def p_against(self) -> float:
        """One-sided p-value that speaks against the claim where it is small."""
        return float(self.p.p_against)


def number(value: ArrayLike) -> float | None:
    """A scalar as a table holds it: null instead of NaN."""
    scalar = float(np.asarray(value))
    return None if np.isnan(scalar) else scalar


def finite(value: ArrayLike) -> float | None:
    """A scalar as a table holds it: null instead of NaN and instead of infinity."""
    scalar = float(np.asarray(value))
    return scalar if np.isfinite(scalar) else None


def value_row(value: ArrayLike, ends: Interval, n: int) -> dict[str, float | None]:
    """The columns value, low, high and n of one number; null where it is no finite number."""
    return {"value": finite(value), "low": finite(ends.low), "high": finite(ends.high), "n": n}
