"""Claims about one given model: the rule of all claims, with what was resampled in the place of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trisect.claims.rule import UNDECIDED, Decided, decide, slack
from trisect.core.claim import Combination, Effect, Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.tables import frame
from trisect.stats.intervals import interval, sides, spread
from trisect.stats.tests import ALPHA, Sample, Sides, conjunction, number, two_sided
from trisect.stats.tests import sides as student_sides

LEAST = 30  # units; with fewer, percentiles of resampled numbers are too narrow
MOST = 1_000_000
NOT_MEASURED = "not measured on this model"
NO_SPREAD = "no spread when units are drawn anew, so nothing can be tested"

Reals = NDArray[np.float64]


def too_few(n: int, unit: str) -> str:
    """Why nothing is decided with `n` units."""
    return f"{n} {unit}{'' if n == 1 else 's'}; below {LEAST}, resampling decides nothing"


class Drawn(NamedTuple):
    """What was drawn anew: `n` units, by so many groups of them (as many as units, where each was drawn alone).

    Degrees of freedom are those of the groups.
    """

    n: int
    groups: int
    unit: str


@dataclass(frozen=True)
class Tested:
    """A part with its effect on the model, the resampled effects, and its p-values."""

    part: Part
    effect: float | None
    replicates: Reals
    sides: Sides
    barred: str | None
    drawn: Drawn

    @property
    def spread(self) -> float:
        """Standard deviation of the resampled effects."""
        return spread(self.replicates)

    @property
    def slack(self) -> float:
        """How far the effect lies on the claimed side of the bound, in the part's own unit."""
        return float("nan") if self.effect is None else slack(self.part, self.effect)


def judge_sampled(
    source: Source,
    replicates: Mapping[str, Reals],
    estimates: Mapping[str, float],
    n: int,
    about: Mapping[str, Any],
    groups: int | None = None,
    each: Mapping[str, Drawn] | None = None,
) -> pl.DataFrame:
    """The table `claims` for a source about one model: a row per claim and one for each of its parts.

    `replicates` holds for every Statistic by name its values in R draws of `n` units with replacement, the same draws
    for all; `estimates` its value on the units themselves. A statistic that is missing or not finite is not measured. `about`
    (model, texts) is what the verdicts speak of and stands in the column `runs`. Where units were drawn by `groups`, these
    are fewer than `n` and count for the degrees of freedom. `each` says so of single statistics that were drawn from other
    units than the rest; a part that combines several has the fewest of theirs.
    p_for is the share of draws on the wrong side of the bound, p_against that on the claimed side, both made as wide as
    Student's t with n − 1 degrees of freedom (core.resampling); draws that are no number count against both.
    """
    drawn = Drawn(n, n if groups is None else min(n, groups), source.unit)
    tested = [
        tuple(_test(part, replicates, estimates, _drawn(part, drawn, each or {})) for part in claim.parts)
        for claim in source.claims
    ]
    family, runs = len(source.claims), canonical(dict(about))
    rows: list[dict[str, Any]] = []
    for claim, parts, whole in zip(source.claims, tested, decide(tested, NOT_MEASURED), strict=True):
        named = {"source": source.key, "claim": claim.id, "runs": runs}
        rows.append({**named, "sentence": claim.sentence, **_whole(whole, family)})
        for test in parts:
            own = {"part": test.part.name, "sentence": test.part.sentence, "decides": test.part.decides}
            alone = None if test.barred else number(two_sided(test.sides))
            rows.append({**named, **own, **_row(test, family), "p": alone, "reason": test.barred})
    return frame("claims", rows)


def _drawn(part: Part, rest: Drawn, each: Mapping[str, Drawn]) -> Drawn:
    """What the statistics of a part were drawn from."""
    own = [each.get(leaf.name, rest) for leaf in part.leaves() if isinstance(leaf, Statistic)]
    return Drawn(min(one.n for one in own), min(one.groups for one in own), rest.unit)


def _test(part: Part, replicates: Mapping[str, Reals], estimates: Mapping[str, float], drawn: Drawn) -> Tested:
    effect = _value(part.effect, estimates)
    known = effect is not None and bool(np.isfinite(effect))
    found = _value(part.effect, replicates) if known else None
    values = np.asarray([] if found is None else found, dtype=float)
    barred = None
    if not known or not len(values):
        barred = NOT_MEASURED
    elif drawn.n < LEAST:
        barred = too_few(drawn.n, drawn.unit)
    elif not spread(values) > 0:
        barred = NO_SPREAD
    both = Sides(np.ones(()), np.ones(())) if barred else sides(values, drawn.groups, part.direction, part.bound)
    return Tested(part, float(effect) if known and effect is not None else None, values, both, barred, drawn)


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


def _whole(whole: Decided[Tested], family: int) -> dict[str, Any]:
    measured = all(test.effect is not None for test in whole.deciding)
    more = whole.undecided and more_helps(whole.barred)
    return {
        **(_row(whole.weakest, family) if measured else {}),
        "decides": True,
        "n": whole.weakest.drawn.n,
        "p": whole.p,
        "p_holm": whole.p_holm,
        "verdict": whole.verdict,
        "reason": (whole.barred or UNDECIDED) if whole.undecided else None,
        "seeds_needed": _needed(whole.deciding, family) if more else None,
    }


def more_helps(reason: str | None) -> bool:
    """Whether what keeps a claim undecided is the number of units."""
    return reason in (None, UNDECIDED) or reason.endswith("resampling decides nothing")


def _needed(deciding: Sequence[Tested], family: int) -> int | None:
    """The fewest units that would decide the claim at these effects and spreads; null when a million would not do."""
    if not all(test.effect is not None and test.spread > 0 for test in deciding):
        return None
    counts = np.unique(np.geomspace(LEAST, MOST, 500).round())
    ahead = []
    for test in deciding:
        sample = Sample(
            counts, np.full_like(counts, test.effect), np.full_like(counts, test.spread * test.drawn.n**0.5)
        )
        ahead.append(student_sides(sample, test.part.direction, test.part.bound))
    enough = np.flatnonzero(two_sided(conjunction(ahead)) < ALPHA / family)
    return int(counts[enough[0]]) if len(enough) else None


def _row(test: Tested, family: int) -> dict[str, Any]:
    part, drawn = test.part, test.drawn
    low, high = interval(test.replicates, drawn.groups)
    low_family, high_family = interval(test.replicates, drawn.groups, 1 - ALPHA / family)
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
        "n": drawn.n,
        "spread": number(test.spread * drawn.n**0.5),
    }
