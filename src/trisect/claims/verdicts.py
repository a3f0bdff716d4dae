"""Verdicts on claims about training: parts tested against their margins over seeds, joined, corrected by Holm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from trisect.claims.evidence import Evidence, gather
from trisect.claims.floors import AT_FLOOR, collapsed_runs, off_floor, reads_collapsed
from trisect.claims.preconditions import checks
from trisect.claims.readings import EffectReading, When, above_unigram, read
from trisect.claims.rule import ClaimColumns, Decided, TestedPart, decide, slack
from trisect.core.claim import Claim, Leaf, Part, SiteMean, Source
from trisect.core.study_data import StudyAbout
from trisect.core.tables import frame
from trisect.papers import FIRST_REVISION, REVISION, SOURCES, roles, tying
from trisect.stats.paired import Sample, summary, t_tested
from trisect.stats.reach import seeds_needed
from trisect.stats.shares import least_spread

NOT_IN_USE = "attention is not in use here"
NOT_CHECKED = "whether attention is in use was not measured in this study"
BASELINE_DIVERGED = "a baseline diverged"
NOT_MEASURED = "not measured in this study"
OTHER_EPSILON = "criticality was measured with another ε than 1 % of the final loss"
STOPPED = "the attack stopped all learning"
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


class Context(NamedTuple):
    """What every part is judged against: the evidence, what bars all claims, the study's ε, how many pairs were interchanged
    (null: none), and which runs went wrong.
    """

    evidence: Evidence
    everywhere: str | None
    epsilon: float
    pairs: int | None
    diverged: frozenset[str]
    collapsed: frozenset[str]
    revision: int


def judge(tables: Mapping[str, pl.DataFrame], about: StudyAbout, revision: int | None = None) -> pl.DataFrame:
    """The table `claims`: for each claim of each source a row for the whole (`part` null) and one for each part.

    `tables` holds runs, metrics and sites; `about` tells with which ε criticality was measured, and how many layers there
    are. A source about ties is judged where something was tied: other studies do not ask it. Null for `revision` takes that
    of the rules under which the study's runs were made: nobody chooses one by its outcome.
    """
    evidence = gather(tables, depth(about))
    under = revision_of(tables["runs"]) if revision is None else revision
    diverged = frozenset(run.run for run in evidence.trained.values() if run.diverged)
    collapsed = collapsed_runs(evidence) if under > 1 else frozenset[str]()
    context = Context(evidence, barred_everywhere(evidence), _epsilon(about), _pairs(about), diverged, collapsed, under)
    rows: list[ClaimColumns] = []
    for source in asked(evidence, under):
        family = source.family
        tested = [tuple(_test(part, claim, context, family) for part in claim.parts) for claim in source.claims]
        rows += _judge_source(source, tested, context)
    return frame("claims", rows)


def revision_of(runs: pl.DataFrame) -> int:
    """The revision of the rules that all runs of a study were made under: the earliest; runs of before say none, which is 1."""
    if "revision" not in runs.columns or not runs.height:
        return 1 if runs.height else REVISION
    return int(runs["revision"].fill_null(1).min() or 1)  # type: ignore[arg-type]


def depth(about: StudyAbout) -> int | None:
    """How many layers the study's model has, or null where nothing says so."""
    return about.get("experiment", {}).get("model", {}).get("layers")


def asked(evidence: Evidence, revision: int = REVISION) -> list[Source]:
    """The sources whose claims are about training, as that revision has them, without that about ties where nothing is tied.

    Of a world with planted roles, where donors were interchanged, only the claims on such worlds are asked.
    """
    if any(spot.measure == INTERCHANGED for spot in evidence.spots):
        return [roles.SOURCE]
    tied = any(key.edit in ("tie", "identity") for key in evidence.trained)
    left = {roles.SOURCE.key} | (set() if tied else {tying.SOURCE.key})
    first = {source.key: source for source in FIRST_REVISION} if revision == 1 else {}
    own = [source for source in SOURCES if source.unit == "seed" and source.key not in left]
    return [first.get(source.key, source) for source in own]


def barred_everywhere(evidence: Evidence) -> str | None:
    """Why no claim of the study can have a verdict, or null when both preconditions hold."""
    found = checks(evidence)
    if all(check.ok for check in found):
        return None
    if any(check.diverged for check in found):
        return BASELINE_DIVERGED
    return NOT_CHECKED if any(check.n < max(1, len(evidence.seeds)) for check in found) else NOT_IN_USE


def _epsilon(about: StudyAbout) -> float:
    rewind = about.get("experiment", {}).get("rewind")
    return EPSILON if rewind is None else float(rewind["epsilon"])


def _pairs(about: StudyAbout) -> int | None:
    return (about.get("experiment", {}).get("interchange") or {}).get("pairs")


def _test(part: Part, claim: Claim, context: Context, family: int) -> SeedPart:
    evidence, epsilon = context.evidence, context.epsilon
    readings = {seed: r for seed in evidence.seeds if (r := read(part.effect, evidence, seed)) is not None}
    sample = summary([r.value for r in readings.values()])
    if (pairs := context.pairs) is not None and sample.n > 1 and all(_is_share(leaf) for leaf in part.leaves()):
        sample = sample._replace(spread=max(sample.spread, least_spread(float(sample.mean), pairs)))
    critical = [leaf for leaf in part.leaves() if isinstance(leaf, SiteMean) and leaf.measure == "criticality"]
    barred = None
    if not readings:
        barred = NOT_MEASURED
    elif 1 < sample.n < claim.least_seeds:
        barred = f"{claim.least_seeds} seeds are asked for, {int(sample.n)} run"
    elif critical and epsilon != EPSILON:
        barred = OTHER_EPSILON
    elif critical and _at_floor(critical, evidence, tuple(readings)):
        barred = AT_FLOOR
    elif claim.floored and (reason := off_floor(claim, evidence)):
        barred = reason
    elif reads_collapsed(part, frozenset().union(*(r.runs for r in readings.values())) & context.collapsed):
        barred = STOPPED
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


def _is_share(leaf: Leaf) -> bool:
    """Whether it is a share of pairs, which drawing the pairs leaves open even where it is the same in every seed."""
    return isinstance(leaf, SiteMean) and leaf.measure.startswith("interchange_")


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


def _judge_source(source: Source, tested: Sequence[tuple[SeedPart, ...]], context: Context) -> list[ClaimColumns]:
    """Rows of one source; a claim that a rule bars from a verdict stays in the family with p = 1."""
    family = source.family
    wholes = decide(tested, NOT_MEASURED, context.everywhere, context.revision, source.beside)
    rows: list[ClaimColumns] = []
    for claim, parts, whole in zip(source.claims, tested, wholes, strict=True):
        named = {"source": source.key, "claim": claim.id, "revision": source.revision}
        rows.append({**named, "sentence": claim.sentence, **_whole_row(whole, family, context)})
        rows += [{**named, **test.row(), **_beside(test, context)} for test in parts]
    return rows


def _whole_row(whole: Decided[SeedPart], family: int, context: Context) -> ClaimColumns:
    """The row of the claim as a whole: its verdict, and the effect of its weakest part."""
    undecided, weakest = whole.undecided, whole.weakest
    needed = None
    if undecided and whole.barred is None:
        needed = seeds_needed([(t.sample, t.part.direction, t.part.bound) for t in whole.deciding], family)
    measured = all(test.sample.n > 0 for test in whole.deciding)
    runs = frozenset().union(*(test.runs for test in whole.deciding))
    flags = [test.early_stopping for test in whole.deciding if test.early_stopping is not None]
    return {
        **({**weakest.columns(), **_beside(weakest, context)} if measured else {}),
        **whole.row(),
        "n": min(test.tested.n for test in whole.deciding),
        "reason": whole.why(needed) if undecided else None,
        "seeds_needed": needed,
        "early_stopping": any(flags) if flags and measured else None,
        "diverged": len(runs & context.diverged),
        "collapsed": len(runs & context.collapsed) if context.revision > 1 else None,
        "runs": json.dumps(sorted(runs)),
    }


def _beside(test: SeedPart, context: Context) -> ClaimColumns:
    """The columns that only evidence over seeds has: earlier readings, runs, and how many of these diverged."""
    return {
        "effect_best_valid": test.best_valid,
        "effect_matched_train": test.matched_train,
        "early_stopping": test.early_stopping,
        "above_unigram": test.above_unigram,
        "diverged": len(test.runs & context.diverged),
        "collapsed": len(test.runs & context.collapsed) if context.revision > 1 else None,
        "runs": json.dumps(sorted(test.runs)),
    }
