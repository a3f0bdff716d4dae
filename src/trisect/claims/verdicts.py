"""Verdicts on claims about training: parts tested against their margins over seeds, joined, corrected by Holm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from trisect.claims.evidence import Evidence, gather
from trisect.claims.preconditions import checks
from trisect.claims.readings import EffectReading, When, above_unigram, read
from trisect.claims.rule import UNDECIDED, ClaimColumns, Decided, TestedPart, decide, slack
from trisect.core.claim import Part, SiteMean, Source
from trisect.core.tables import frame
from trisect.papers import SOURCES, roles, tying
from trisect.stats.paired import Sample, summary, t_tested
from trisect.stats.reach import seeds_needed

NOT_IN_USE = "attention is not in use here"
NOT_CHECKED = "whether attention is in use was not measured in this study"
BASELINE_DIVERGED = "a baseline diverged"
NOT_MEASURED = "not measured in this study"
OTHER_EPSILON = "criticality was measured with another ε than 1 % of the final loss"
AT_FLOOR = "measure at its floor"
ONE_SEED = "one seed decides nothing"
NO_SPREAD = "no spread between the seeds, so no t test can be made"
EPSILON = 0.01
INTERCHANGED = "interchange_own"


@dataclass(frozen=True)
class SeedPart(TestedPart):
    """A part with its paired differences in short, and what a card shows beside its test."""

    sample: Sample
    best_valid: float | None
    matched_train: float | None
    above_unigram: float | None
    runs: frozenset[str]

    @property
    def early_stopping(self) -> bool | None:
        """Whether this part's validation loss lies on the other side of the bound at an earlier reading; else null."""
        readings = [x for x in (self.best_valid, self.matched_train) if x is not None]
        if not self.part.speaks_of_validation() or self.tested.effect is None or not readings:
            return None
        return any((slack(self.part, x) > 0) != (self.slack > 0) for x in readings)


def judge(tables: Mapping[str, pl.DataFrame], about: Mapping[str, Any]) -> pl.DataFrame:
    """The table `claims`: for each claim of each source a row for the whole (`part` null) and one for each part.

    `tables` holds runs, metrics and sites; `about` tells with which ε criticality was measured, and how many layers there
    are. A source about ties is judged where something was tied: other studies do not ask it.
    """
    evidence = gather(tables, depth(about))
    everywhere = barred_everywhere(evidence)
    diverged = frozenset(run.run for run in evidence.trained.values() if run.diverged)
    epsilon = _epsilon(about)
    rows: list[ClaimColumns] = []
    for source in asked(evidence):
        family = len(source.claims)
        tested = [tuple(_test(part, evidence, epsilon, family) for part in claim.parts) for claim in source.claims]
        rows += _judge_source(source, tested, everywhere, diverged)
    return frame("claims", rows)


def depth(about: Mapping[str, Any]) -> int | None:
    """How many layers the study's model has, or null where nothing says so."""
    return (about["experiment"].get("model") or {}).get("layers")


def asked(evidence: Evidence) -> list[Source]:
    """The sources whose claims are about training, without that about ties where nothing is tied.

    Of a world with planted roles, where donors were interchanged, only the claims on such worlds are asked.
    """
    if any(spot.measure == INTERCHANGED for spot in evidence.spots):
        return [roles.SOURCE]
    tied = any(key.edit in ("tie", "identity") for key in evidence.trained)
    left = {roles.SOURCE.key} | (set() if tied else {tying.SOURCE.key})
    return [source for source in SOURCES if source.unit == "seed" and source.key not in left]


def barred_everywhere(evidence: Evidence) -> str | None:
    """Why no claim of the study can have a verdict, or null when both preconditions hold."""
    found = checks(evidence)
    if all(check.ok for check in found):
        return None
    if any(check.diverged for check in found):
        return BASELINE_DIVERGED
    return NOT_CHECKED if any(check.n < max(1, len(evidence.seeds)) for check in found) else NOT_IN_USE


def _epsilon(about: Mapping[str, Any]) -> float:
    rewind = about["experiment"].get("rewind")
    return EPSILON if rewind is None else float(rewind["epsilon"])


def _test(part: Part, evidence: Evidence, epsilon: float, family: int) -> SeedPart:
    readings = {seed: r for seed in evidence.seeds if (r := read(part.effect, evidence, seed)) is not None}
    sample = summary([r.value for r in readings.values()])
    critical = [leaf for leaf in part.leaves() if isinstance(leaf, SiteMean) and leaf.measure == "criticality"]
    barred = None
    if not readings:
        barred = NOT_MEASURED
    elif critical and epsilon != EPSILON:
        barred = OTHER_EPSILON
    elif critical and _at_floor(critical, evidence, tuple(readings)):
        barred = AT_FLOOR
    untestable = ONE_SEED if sample.n == 1 else NO_SPREAD
    return SeedPart(
        part,
        t_tested(sample, part.direction, part.bound, family, untestable),
        barred,
        sample,
        _early(part, evidence, tuple(readings), "best_valid"),
        _early(part, evidence, tuple(readings), "matched_train"),
        _mean_of([above_unigram(part.effect, evidence, seed) for seed in readings]),
        frozenset().union(*(r.runs for r in readings.values())),
    )


def _at_floor(leaves: Sequence[SiteMean], evidence: Evidence, seeds: Sequence[int]) -> bool:
    """Whether more than half of the contrast's sites, counted in every seed, have criticality 0 or 1."""
    sites = {(site, leaf.split) for leaf in leaves for site in leaf.sites}
    values = [evidence.measured(seed, site, "criticality", split) for seed in seeds for site, split in sites]
    return sum(value in (0.0, 1.0) for value in values) > len(values) / 2


def _early(part: Part, evidence: Evidence, seeds: Sequence[int], when: When) -> float | None:
    return _mean_of([read(part.effect, evidence, seed, when) for seed in seeds])


def _mean_of(readings: Sequence[EffectReading | None]) -> float | None:
    """The mean over seeds, or null when any seed lacks it."""
    values = [reading.value for reading in readings if reading is not None]
    return sum(values) / len(values) if values and len(values) == len(readings) else None


def _judge_source(
    source: Source, tested: Sequence[tuple[SeedPart, ...]], everywhere: str | None, diverged: frozenset[str]
) -> list[ClaimColumns]:
    """Rows of one source; a claim that a rule bars from a verdict stays in the family with p = 1."""
    family = len(source.claims)
    wholes = decide(tested, NOT_MEASURED, everywhere)
    rows: list[ClaimColumns] = []
    for claim, parts, whole in zip(source.claims, tested, wholes, strict=True):
        named = {"source": source.key, "claim": claim.id}
        rows.append({**named, "sentence": claim.sentence, **_whole_row(whole, family, diverged)})
        rows += [{**named, **test.row(), **_beside(test, diverged)} for test in parts]
    return rows


def _whole_row(whole: Decided[SeedPart], family: int, diverged: frozenset[str]) -> ClaimColumns:
    """The row of the claim as a whole: its verdict, and the effect of its weakest part."""
    undecided, weakest = whole.undecided, whole.weakest
    untested = next((test.reason for test in whole.deciding if test.reason is not None), UNDECIDED)
    needed = None
    if undecided and whole.barred is None:
        needed = seeds_needed([(t.sample, t.part.direction, t.part.bound) for t in whole.deciding], family)
    measured = all(test.sample.n > 0 for test in whole.deciding)
    runs = frozenset().union(*(test.runs for test in whole.deciding))
    flags = [test.early_stopping for test in whole.deciding if test.early_stopping is not None]
    return {
        **({**weakest.columns(), **_beside(weakest, diverged)} if measured else {}),
        **whole.row(),
        "n": min(test.tested.n for test in whole.deciding),
        "reason": (whole.barred or untested) if undecided else None,
        "seeds_needed": needed,
        "early_stopping": any(flags) if flags and measured else None,
        "diverged": len(runs & diverged),
        "runs": json.dumps(sorted(runs)),
    }


def _beside(test: SeedPart, diverged: frozenset[str]) -> ClaimColumns:
    """The columns that only evidence over seeds has: earlier readings, runs, and how many of these diverged."""
    return {
        "effect_best_valid": test.best_valid,
        "effect_matched_train": test.matched_train,
        "early_stopping": test.early_stopping,
        "above_unigram": test.above_unigram,
        "diverged": len(test.runs & diverged),
        "runs": json.dumps(sorted(test.runs)),
    }
