"""Verdicts on claims about one given model, with resampled texts, names or sentences in the place of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from trisect.claims.rule import UNDECIDED, ClaimColumns, Decided, TestedPart, decide
from trisect.core.claim import Combination, Effect, Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.tables import frame
from trisect.stats.bootstrap import draws_spread, percentile_tested
from trisect.stats.paired import Sample
from trisect.stats.reach import fewest_counts
from trisect.stats.tested import Reals

LEAST = 30  # units; with fewer, percentiles of resampled numbers are too narrow
MOST = 1_000_000
NOT_MEASURED = "not measured on this model"
NO_SPREAD = "no spread when units are drawn anew, so nothing can be tested"


def too_few(n: int, unit: str) -> str:
    """Why nothing is decided with `n` units."""
    return f"{n} {unit}{'' if n == 1 else 's'}; below {LEAST}, resampling decides nothing"


class Drawn(NamedTuple):
    """What was resampled: `n` units, by so many groups of them (as many as units, where each was drawn alone).

    Degrees of freedom are those of the groups.
    """

    n: int
    groups: int
    unit: str


@dataclass(frozen=True)
class SampledPart(TestedPart):
    """A part tested on one model, with what was drawn."""

    drawn: Drawn


def judge_sampled(
    source: Source,
    replicates: Mapping[str, Reals],
    estimates: Mapping[str, float],
    n: int,
    about: Mapping[str, object],
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
    Student's t with n − 1 degrees of freedom (stats.bootstrap); draws that are no number count against both.
    """
    drawn = Drawn(n, n if groups is None else min(n, groups), source.unit)
    family, runs = len(source.claims), canonical(dict(about))
    tested = [
        tuple(_test(part, replicates, estimates, _drawn(part, drawn, each or {}), family) for part in claim.parts)
        for claim in source.claims
    ]
    rows: list[ClaimColumns] = []
    for claim, parts, whole in zip(source.claims, tested, decide(tested, NOT_MEASURED), strict=True):
        named = {"source": source.key, "claim": claim.id, "runs": runs}
        rows.append({**named, "sentence": claim.sentence, **_whole(whole, family)})
        rows += [{**named, **test.row()} for test in parts]
    return frame("claims", rows)


def _drawn(part: Part, rest: Drawn, each: Mapping[str, Drawn]) -> Drawn:
    """What the statistics of a part were drawn from."""
    own = [each.get(leaf.name, rest) for leaf in part.leaves() if isinstance(leaf, Statistic)]
    return Drawn(min(one.n for one in own), min(one.groups for one in own), rest.unit)


def _test(
    part: Part, replicates: Mapping[str, Reals], estimates: Mapping[str, float], drawn: Drawn, family: int
) -> SampledPart:
    effect = _value(part.effect, estimates)
    known = effect is not None and bool(np.isfinite(effect))
    found = _value(part.effect, replicates) if known else None
    values = np.asarray([] if found is None else found, dtype=float)
    barred = None
    if not known or not len(values):
        barred = NOT_MEASURED
    elif drawn.n < LEAST:
        barred = too_few(drawn.n, drawn.unit)
    elif not draws_spread(values) > 0:
        barred = NO_SPREAD
    mean = float(effect) if known and effect is not None else None
    tested = percentile_tested(mean, values, drawn.n, drawn.groups, part.direction, part.bound, family, barred)
    return SampledPart(part, tested, barred, drawn)


def _value(effect: Effect, values: Mapping[str, float] | Mapping[str, Reals]) -> Reals | None:
    """An effect from statistics by name, as one number or one per draw; null where one is missing."""
    terms = effect.terms if isinstance(effect, Combination) else ((1.0, effect),)
    parts = []
    for weight, leaf in terms:
        assert isinstance(leaf, Statistic), "claims about one model speak of statistics"
        if leaf.name not in values:
            return None
        parts.append(weight * np.asarray(values[leaf.name], dtype=float))
    return sum(parts[1:], parts[0])


def _whole(whole: Decided[SampledPart], family: int) -> ClaimColumns:
    measured = all(test.tested.effect is not None for test in whole.deciding)
    more = whole.undecided and more_helps(whole.barred)
    return {
        **(whole.weakest.columns() if measured else {}),
        **whole.row(),
        "n": whole.weakest.drawn.n,
        "reason": (whole.barred or UNDECIDED) if whole.undecided else None,
        "seeds_needed": _needed(whole.deciding, family) if more else None,
    }


def more_helps(reason: str | None) -> bool:
    """Whether what keeps a claim undecided is the number of units."""
    return reason in (None, UNDECIDED) or reason.endswith("resampling decides nothing")


def _needed(deciding: Sequence[SampledPart], family: int) -> int | None:
    """The fewest units that would decide the claim at these effects and spreads; null when a million would not do."""
    ahead = []
    for test in deciding:
        effect, spread = test.tested.effect, test.tested.spread
        if effect is None or spread is None or not spread > 0:
            return None
        sample = Sample(np.asarray(float(test.drawn.n)), np.asarray(effect), np.asarray(spread))
        ahead.append((sample, test.part.direction, test.part.bound))
    return fewest_counts(ahead, np.unique(np.geomspace(LEAST, MOST, 500).round()), family)
