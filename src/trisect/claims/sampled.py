"""Claims about one given model: the rule of all claims, with what was resampled in the place of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import special

from trisect.core.claim import Combination, Effect, Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.stats import ALPHA, Sample, Sides, conjunction, holm, number, two_sided
from trisect.core.stats import sides as student_sides
from trisect.core.tables import frame

LEAST = 30  # units; with fewer, percentiles of resampled numbers are too narrow
MOST = 1_000_000
NOT_MEASURED = "not measured on this model"
NO_SPREAD = "no spread when units are drawn anew, so nothing can be tested"
UNDECIDED = "not decided at the measured spread"

Reals = NDArray[np.float64]


def too_few(n: int, unit: str) -> str:
    """Why nothing is decided with `n` units."""
    return f"{n} {unit}{'' if n == 1 else 's'}; below {LEAST}, resampling decides nothing"


@dataclass(frozen=True)
class Tested:
    """A part with its effect on the model, the resampled effects, and its p-values."""

    part: Part
    effect: float | None
    replicates: Reals
    sides: Sides
    barred: str | None

    @property
    def spread(self) -> float:
        """Standard deviation of the resampled effects."""
        return float(self.replicates.std(ddof=1)) if len(self.replicates) > 1 else float("nan")


def judge_sampled(
    source: Source,
    replicates: Mapping[str, Reals],
    estimates: Mapping[str, float],
    n: int,
    about: Mapping[str, Any],
) -> pl.DataFrame:
    """The table `claims` for a source about one model: a row per claim and one for each of its parts.

    `replicates` holds for every Statistic by name its values in R draws of `n` units with replacement, the same draws
    for all; `estimates` its value on the units themselves. A statistic that is missing or not finite is not measured. `about`
    (model, texts) is what the verdicts speak of and stands in the column `runs`.
    p_for is the share of draws on the wrong side of the bound, p_against that on the claimed side, both made as wide as
    Student's t with n − 1 degrees of freedom (the expanded percentile of Hesterberg 2015); draws that are no number count against both.
    """
    tested = [tuple(_test(part, replicates, estimates, n, source.unit) for part in c.parts) for c in source.claims]
    deciding = [tuple(test for test in parts if test.part.decides) for parts in tested]
    joint = [conjunction([test.sides for test in parts]) for parts in deciding]
    barred = [next((test.barred for test in parts if test.barred), None) for parts in deciding]
    p = [1.0 if why else float(two_sided(both)) for both, why in zip(joint, barred, strict=True)]
    family, runs = len(source.claims), canonical(dict(about))
    rows: list[dict[str, Any]] = []
    for i, (claim, p_holm) in enumerate(zip(source.claims, holm(p), strict=True)):
        named = {"source": source.key, "claim": claim.id, "runs": runs}
        whole = _whole(deciding[i], joint[i], barred[i], float(p_holm), n, family)
        rows.append({**named, "sentence": claim.sentence, "p": p[i], **whole})
        for test in tested[i]:
            own = {"part": test.part.name, "sentence": test.part.sentence, "decides": test.part.decides}
            alone = None if test.barred else number(two_sided(test.sides))
            rows.append({**named, **own, **_row(test, n, family), "p": alone, "reason": test.barred})
    return frame("claims", rows)


def interval(replicates: Reals, n: int, level: float = 1 - ALPHA) -> tuple[Reals, Reals]:
    """Two-sided expanded percentile interval at `level` of numbers [R …] resampled over `n` units; NaN where there is none."""
    known = np.isfinite(replicates).all(0) & (n > 1) & (len(replicates) > 0)
    if n < 2 or not len(replicates):
        return np.full(known.shape, np.nan), np.full(known.shape, np.nan)
    tail = float(special.ndtr(np.sqrt(n / (n - 1)) * special.stdtrit(n - 1, (1 - level) / 2)))
    low, high = np.quantile(np.where(known, replicates, 0.0), [tail, 1 - tail], axis=0)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def sides(replicates: Reals, n: int, direction: str, bound: float) -> Sides:
    """p-values for and against "the number lies above (below) `bound`" or "within ±`bound`", as core.stats.sides."""
    if direction == "above":
        return Sides(_beyond(replicates, n, bound), _short_of(replicates, n, bound))
    if direction == "below":
        return Sides(_short_of(replicates, n, bound), _beyond(replicates, n, bound))
    inside = np.maximum(_beyond(replicates, n, -bound), _short_of(replicates, n, bound))
    outside = np.minimum(_beyond(replicates, n, bound), _short_of(replicates, n, -bound))
    return Sides(inside, np.minimum(1.0, 2 * outside))


def _beyond(replicates: Reals, n: int, bound: float) -> Reals:
    """p-value of H0: the number is at most `bound`."""
    return _expanded(int(np.count_nonzero(~(replicates > bound))), len(replicates), n)


def _short_of(replicates: Reals, n: int, bound: float) -> Reals:
    """p-value of H0: the number is at least `bound`."""
    return _expanded(int(np.count_nonzero(~(replicates < bound))), len(replicates), n)


def _expanded(many: int, draws: int, n: int) -> Reals:
    """A share of draws as a p-value, by Student's t where a percentile takes the normal distribution."""
    share = (many + 1) / (draws + 1)
    return np.asarray(special.stdtr(n - 1, special.ndtri(share) * np.sqrt((n - 1) / n)) if share < 1 else 1.0)


def _test(part: Part, replicates: Mapping[str, Reals], estimates: Mapping[str, float], n: int, unit: str) -> Tested:
    effect = _value(part.effect, estimates)
    known = effect is not None and bool(np.isfinite(effect))
    drawn = _value(part.effect, replicates) if known else None
    values = np.asarray([] if drawn is None else drawn, dtype=float)
    barred = None
    if not known or not len(values):
        barred = NOT_MEASURED
    elif n < LEAST:
        barred = too_few(n, unit)
    elif not np.nanstd(values) > 0:
        barred = NO_SPREAD
    found = Sides(np.ones(()), np.ones(())) if barred else sides(values, n, part.direction, part.bound)
    return Tested(part, float(effect) if known and effect is not None else None, values, found, barred)


def _value(effect: Effect, values: Mapping[str, Any]) -> Any:
    """An effect from statistics by name, as one number or one per draw; null where one is missing."""
    terms = effect.terms if isinstance(effect, Combination) else ((1.0, effect),)
    parts = []
    for weight, leaf in terms:
        assert isinstance(leaf, Statistic), "claims about one model speak of statistics"
        if leaf.name not in values:
            return None
        parts.append(weight * np.asarray(values[leaf.name], dtype=float))
    return sum(parts[1:], parts[0])


def _whole(
    deciding: Sequence[Tested], joint: Sides, barred: str | None, p_holm: float, n: int, family: int
) -> dict[str, Any]:
    verdict = "inconclusive"
    if p_holm < ALPHA:
        verdict = "supported" if joint.p_for < joint.p_against else "refuted"
    undecided = verdict == "inconclusive"
    weakest = max(deciding, key=lambda t: (float(t.sides.p_for), -float(t.sides.p_against)))
    measured = all(test.effect is not None for test in deciding)
    return {
        **(_row(weakest, n, family) if measured else {}),
        "decides": True,
        "n": n,
        "p_holm": p_holm,
        "verdict": verdict,
        "reason": (barred or UNDECIDED) if undecided else None,
        "seeds_needed": _needed(deciding, n, family) if undecided and more_helps(barred) else None,
    }


def more_helps(reason: str | None) -> bool:
    """Whether what keeps a claim undecided is the number of units."""
    return reason in (None, UNDECIDED) or reason.endswith("resampling decides nothing")


def _needed(deciding: Sequence[Tested], n: int, family: int) -> int | None:
    """The fewest units that would decide the claim at these effects and spreads; null when a million would not do."""
    if not all(test.effect is not None and test.spread > 0 for test in deciding):
        return None
    counts = np.unique(np.geomspace(LEAST, MOST, 500).round())
    ahead = []
    for test in deciding:
        sample = Sample(counts, np.full_like(counts, test.effect), np.full_like(counts, test.spread * n**0.5))
        ahead.append(student_sides(sample, test.part.direction, test.part.bound))
    enough = np.flatnonzero(two_sided(conjunction(ahead)) < ALPHA / family)
    return int(counts[enough[0]]) if len(enough) else None


def _row(test: Tested, n: int, family: int) -> dict[str, Any]:
    part = test.part
    low, high = interval(test.replicates, n)
    low_family, high_family = interval(test.replicates, n, 1 - ALPHA / family)
    return {
        "effect": test.effect,
        "low": number(low),
        "high": number(high),
        "low_family": number(low_family),
        "high_family": number(high_family),
        "margin": part.margin,
        "bound": part.bound,
        "direction": part.direction,
        "unit": part.unit,
        "margin_reason": part.reason,
        "n": n,
        "spread": number(test.spread * n**0.5),
    }
