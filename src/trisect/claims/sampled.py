"""Verdicts on claims about one given model, with resampled texts, names or sentences in the place of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import polars as pl

from trisect.claims.rule import UNDECIDED, ClaimColumns, Decided, TestedPart, decide
from trisect.core.claim import Combination, Effect, Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.tables import frame
from trisect.stats.bootstrap import draws_spread, percentile_tested
from trisect.stats.paired import Sample
from trisect.stats.reach import fewest_counts, seeds_needed, smallest_p
from trisect.stats.tested import ALPHA, PValues, Reals

LEAST = 30  # units; with fewer, percentiles of resampled numbers are too narrow
MOST = 1_000_000
NOT_MEASURED = "not measured on this model"
OPEN = "not decided by a test over"
NO_SPREAD = "no spread when units are resampled, so nothing can be tested"
ONE_SEED = "one seed gives numbers and no verdict"


def too_few(n: int, unit: str) -> str:
    """Why nothing is decided with `n` units."""
    return f"{n} {unit}{'' if n == 1 else 's'}; below {LEAST}, resampling decides nothing"


class Drawn(NamedTuple):
    """What was resampled: `n` units, by so many groups of them (as many as units, where each was drawn alone).

    Degrees of freedom are those of the groups. `seeds` is how many models were trained for a claim about training, null
    for claims about one given model.
    """

    n: int
    groups: int
    unit: str
    seeds: int | None = None


class UnitTest(NamedTuple):
    """A test that a statistic has of its own: its p-values, and how many of which units they are over."""

    p: PValues
    n: int
    unit: str


@dataclass(frozen=True)
class SampledPart(TestedPart):
    """A part tested on one model, with what was drawn; `own` is the test that it has of its own."""

    drawn: Drawn
    own: UnitTest | None = None


def judge_sampled(
    source: Source,
    replicates: Mapping[str, Reals],
    estimates: Mapping[str, float],
    n: int,
    about: Mapping[str, object],
    groups: int | None = None,
    each: Mapping[str, Drawn] | None = None,
    own: Mapping[str, UnitTest] | None = None,
) -> pl.DataFrame:
    """The table `claims` for a source about one model: a row per claim and one for each of its parts.

    `replicates` holds for every Statistic by name its values in R draws of `n` units with replacement, the same draws
    for all; `estimates` its value on the units themselves. A statistic that is missing or not finite is not measured. `about`
    (model, texts) is what the verdicts speak of and stands in the column `runs`. Where units were drawn by `groups`, these
    are fewer than `n` and count for the degrees of freedom. `each` says so of single statistics that were drawn from other
    units than the rest; a part that combines several has the fewest of theirs. `own` are statistics with a test of their
    own, such as a permutation of layers, whose intervals alone are of the draws.
    p_for is the share of draws on the wrong side of the bound, p_against that on the claimed side, both made as wide as
    Student's t with n − 1 degrees of freedom (stats.bootstrap); draws that are no number count against both. Revision 2: where no
    draw moves a statistic p is that of the draws, 1 / (R + 1); one seed gives no verdict; what no outcome could decide is said so.
    """
    drawn = Drawn(n, n if groups is None else min(n, groups), source.unit)
    runs = canonical(dict(about))
    tested = [
        tuple(
            _test(part, replicates, estimates, _drawn(part, drawn, each or {}), source, own or {})
            for part in claim.parts
        )
        for claim in source.claims
    ]
    rows: list[ClaimColumns] = []
    for claim, parts, whole in zip(
        source.claims, tested, decide(tested, NOT_MEASURED, beside=source.beside), strict=True
    ):
        named = {"source": source.key, "claim": claim.id, "runs": runs}
        named |= {"revision": source.revision} if source.revision > 1 else {}
        rows.append({**named, "sentence": claim.sentence, **_whole(whole, source.family)})
        rows += [{**named, **test.row()} for test in parts]
    return frame("claims", rows)


def _drawn(part: Part, rest: Drawn, each: Mapping[str, Drawn]) -> Drawn:
    """What the statistics of a part were drawn from."""
    own = [each.get(leaf.name, rest) for leaf in part.leaves() if isinstance(leaf, Statistic)]
    seeds = [one.seeds for one in own if one.seeds is not None]
    return Drawn(min(one.n for one in own), min(one.groups for one in own), rest.unit, min(seeds, default=None))


def _test(
    part: Part,
    replicates: Mapping[str, Reals],
    estimates: Mapping[str, float],
    drawn: Drawn,
    source: Source,
    own: Mapping[str, UnitTest],
) -> SampledPart:
    effect = _value(part.effect, estimates)
    known = effect is not None and bool(np.isfinite(effect))
    found = _value(part.effect, replicates) if known else None
    values = np.asarray([] if found is None else found, dtype=float)
    alone = own.get(part.effect.name) if isinstance(part.effect, Statistic) else None
    barred = NOT_MEASURED if not known or not len(values) else _barred(values, drawn, source, alone)
    mean = float(effect) if known and effect is not None else None
    tested = percentile_tested(mean, values, drawn.n, drawn.groups, part.direction, part.bound, source.family, barred)
    if alone is not None and barred is None:
        tested = replace(tested, p=alone.p, n=alone.n)
    return SampledPart(part, tested, barred, drawn, alone)


def _barred(values: Reals, drawn: Drawn, source: Source, alone: UnitTest | None) -> str | None:
    """Why a statistic that was measured decides nothing, or null."""
    level = ALPHA / source.family
    if drawn.n < LEAST:
        return too_few(drawn.n, drawn.unit)
    if source.revision == 1:
        return None if draws_spread(values) > 0 else NO_SPREAD
    if drawn.seeds == 1:
        return ONE_SEED
    if alone is not None:
        return None if smallest_p("permutation", alone.n) < level else cannot(alone.n, alone.unit)
    if smallest_p("bootstrap", drawn.groups, len(values)) < level:
        return None
    scarce = (drawn.groups, drawn.unit) if drawn.seeds is None else (drawn.seeds, "seed")
    return cannot(*scarce)


def cannot(n: int, unit: str) -> str:
    """Why no outcome of a test over `n` units could be a verdict."""
    return f"cannot be decided with {n} {unit}{'' if n == 1 else 's'}: no outcome reaches the p that is asked for"


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
    own = whole.weakest.own if whole.barred is None else None  # a test over layers: more texts would not decide it
    reason = whole.barred or (UNDECIDED if own is None else f"{OPEN} {own.n} {own.unit}s")
    more = whole.undecided and own is None and more_helps(whole.barred)
    return {
        **(whole.weakest.columns() if measured else {}),
        **whole.row(),
        "n": whole.weakest.drawn.n,
        "reason": reason if whole.undecided else None,
        "seeds_needed": _needed(whole.deciding, family) if more else None,
    }


def more_helps(reason: str | None) -> bool:
    """Whether what keeps a claim undecided is the number of units."""
    return reason in (None, UNDECIDED, ONE_SEED) or reason.endswith("resampling decides nothing")


def _needed(deciding: Sequence[SampledPart], family: int) -> int | None:
    """The fewest units that would decide the claim at these effects and spreads; null when a million would not do.

    For a claim about training these are seeds, each as far from the next as the draws of both say.
    """
    ahead = []
    seeds = deciding[0].drawn.seeds
    for test in deciding:
        effect, spread = test.tested.effect, test.tested.spread
        if effect is None or spread is None or not spread > 0:
            return None
        if seeds is not None:
            spread *= (seeds / test.drawn.n) ** 0.5
        sample = Sample(np.asarray(float(seeds or test.drawn.n)), np.asarray(effect), np.asarray(spread))
        ahead.append((sample, test.part.direction, test.part.bound))
    if seeds is not None:
        return seeds_needed(ahead, family) if seeds > 1 else None
    return fewest_counts(ahead, np.unique(np.geomspace(LEAST, MOST, 500).round()), family)
