"""Claims into verdicts by one rule: parts tested against their margins, joined, corrected by Holm over the source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from trisect.claims.evidence import Evidence, gather
from trisect.claims.preconditions import checks
from trisect.claims.readings import Reading, When, above_unigram, read
from trisect.claims.rule import UNDECIDED, Decided, decide, slack
from trisect.core.claim import Part, SiteMean, Source
from trisect.core.tables import frame
from trisect.papers import SOURCES, tying
from trisect.stats.tests import ALPHA, Sample, Sides, interval, number, seeds_needed, sides, summary, two_sided

NOT_IN_USE = "attention is not in use here"
NOT_CHECKED = "whether attention is in use was not measured in this study"
BASELINE_DIVERGED = "a baseline diverged"
NOT_MEASURED = "not measured in this study"
OTHER_EPSILON = "criticality was measured with another ε than 1 % of the final loss"
AT_FLOOR = "measure at its floor"
ONE_SEED = "one seed decides nothing"
NO_SPREAD = "no spread between the seeds, so no t test can be made"
EPSILON = 0.01


@dataclass(frozen=True)
class Tested:
    """A part with its paired differences in short, its p-values, and what a card shows beside them."""

    part: Part
    sample: Sample
    sides: Sides
    best_valid: float | None
    matched_train: float | None
    above_unigram: float | None
    runs: frozenset[str]
    barred: str | None

    @property
    def effect(self) -> float | None:
        """The mean difference, or null where nothing was measured."""
        return number(self.sample.mean)

    @property
    def slack(self) -> float:
        """How far the mean lies on the claimed side of the bound, in the part's own unit."""
        return slack(self.part, float(self.sample.mean))

    @property
    def reason(self) -> str | None:
        """Why this part cannot be tested, or null."""
        if self.barred is not None or bool(self.sample.testable):
            return self.barred
        return ONE_SEED if self.sample.n == 1 else NO_SPREAD

    @property
    def early_stopping(self) -> bool | None:
        """Whether this part's validation loss lies on the other side of the bound at an earlier reading; else null."""
        readings = [x for x in (self.best_valid, self.matched_train) if x is not None]
        if not self.part.speaks_of_validation() or self.effect is None or not readings:
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
    rows: list[dict[str, Any]] = []
    for source in asked(evidence):
        tested = [tuple(_test(part, evidence, epsilon) for part in claim.parts) for claim in source.claims]
        rows += _judge_source(source, tested, everywhere, diverged)
    return frame("claims", rows)


def depth(about: Mapping[str, Any]) -> int | None:
    """How many layers the study's model has, or null where nothing says so."""
    return (about["experiment"].get("model") or {}).get("layers")


def asked(evidence: Evidence) -> list[Source]:
    """The sources whose claims are about training, without that about ties where nothing is tied."""
    tied = any(key.edit in ("tie", "identity") for key in evidence.trained)
    return [source for source in SOURCES if source.unit == "seed" and (tied or source.key != tying.SOURCE.key)]


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


def _test(part: Part, evidence: Evidence, epsilon: float) -> Tested:
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
    return Tested(
        part,
        sample,
        sides(sample, part.direction, part.bound),
        _early(part, evidence, tuple(readings), "best_valid"),
        _early(part, evidence, tuple(readings), "matched_train"),
        _mean_of([above_unigram(part.effect, evidence, seed) for seed in readings]),
        frozenset().union(*(r.runs for r in readings.values())),
        barred,
    )


def _at_floor(leaves: Sequence[SiteMean], evidence: Evidence, seeds: Sequence[int]) -> bool:
    """Whether more than half of the contrast's sites, counted in every seed, have criticality 0 or 1."""
    sites = {(site, leaf.split) for leaf in leaves for site in leaf.sites}
    values = [evidence.measured(seed, site, "criticality", split) for seed in seeds for site, split in sites]
    return sum(value in (0.0, 1.0) for value in values) > len(values) / 2


def _early(part: Part, evidence: Evidence, seeds: Sequence[int], when: When) -> float | None:
    return _mean_of([read(part.effect, evidence, seed, when) for seed in seeds])


def _mean_of(readings: Sequence[Reading | None]) -> float | None:
    """The mean over seeds, or null when any seed lacks it."""
    values = [reading.value for reading in readings if reading is not None]
    return sum(values) / len(values) if values and len(values) == len(readings) else None


def _judge_source(
    source: Source, tested: Sequence[tuple[Tested, ...]], everywhere: str | None, diverged: frozenset[str]
) -> list[dict[str, Any]]:
    """Rows of one source; a claim that a rule bars from a verdict stays in the family with p = 1."""
    family = len(source.claims)
    wholes = decide(tested, NOT_MEASURED, everywhere)
    rows = []
    for claim, parts, whole in zip(source.claims, tested, wholes, strict=True):
        named = {"source": source.key, "claim": claim.id}
        rows.append({**named, "sentence": claim.sentence, **_whole_row(whole, family, diverged)})
        for test in parts:
            p = number(two_sided(test.sides)) if bool(test.sample.testable) else None
            own = {"part": test.part.name, "sentence": test.part.sentence, "decides": test.part.decides}
            rows.append({**named, **own, **_row(test, family, diverged), "p": p, "reason": test.reason})
    return rows


def _whole_row(whole: Decided[Tested], family: int, diverged: frozenset[str]) -> dict[str, Any]:
    """The row of the claim as a whole: its verdict, and the effect of its weakest part."""
    undecided = whole.undecided
    untested = next((test.reason for test in whole.deciding if test.reason is not None), UNDECIDED)
    needed = None
    if undecided and whole.barred is None:
        needed = seeds_needed([(t.sample, t.part.direction, t.part.bound) for t in whole.deciding], family)
    measured = all(test.sample.n > 0 for test in whole.deciding)
    runs = frozenset().union(*(test.runs for test in whole.deciding))
    flags = [test.early_stopping for test in whole.deciding if test.early_stopping is not None]
    return {
        **(_row(whole.weakest, family, diverged) if measured else {}),
        "decides": True,
        "n": int(min(test.sample.n for test in whole.deciding)),
        "p": whole.p,
        "p_holm": whole.p_holm,
        "verdict": whole.verdict,
        "reason": (whole.barred or untested) if undecided else None,
        "seeds_needed": needed,
        "early_stopping": any(flags) if flags and measured else None,
        "diverged": len(runs & diverged),
        "runs": json.dumps(sorted(runs)),
    }


def _row(test: Tested, family: int, diverged: frozenset[str]) -> dict[str, Any]:
    """The columns that a part's row and the row of the whole share: effect, intervals, margin, spread, readings."""
    part, sample = test.part, test.sample
    low, high = interval(sample, 1 - ALPHA)
    low_family, high_family = interval(sample, 1 - ALPHA / family)
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
        "n": int(sample.n),
        "spread": number(sample.spread),
        "effect_best_valid": test.best_valid,
        "effect_matched_train": test.matched_train,
        "early_stopping": test.early_stopping,
        "above_unigram": test.above_unigram,
        "diverged": len(test.runs & diverged),
        "runs": json.dumps(sorted(test.runs)),
    }
