"""Verdicts on claims: parts tested against their margins, joined, and corrected by Holm over their source."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import polars as pl

from trisect.claims.evidence import (
    EffectReading,
    Evidence,
    checks,
    find_collapsed_runs,
    gather,
    is_attack,
    off_floor,
    read,
)
from trisect.claims.reasons import UNDECIDED, Reason
from trisect.core.claim import (
    MIN_SEEDS,
    AboveUnigram,
    Claim,
    Combination,
    CurveDistance,
    Effect,
    Leaf,
    LearnedFraction,
    LossChange,
    Part,
    SiteMean,
    Source,
)
from trisect.core.files import canonical
from trisect.core.finding import NOT_TESTED
from trisect.core.methods import VARIANTS
from trisect.core.spec import StudyAbout
from trisect.core.tables import TableRow, frame
from trisect.papers import SOURCES, roles, tying
from trisect.papers.submodules import MARGIN
from trisect.stats.paired import Sample, summary, t_interval, t_result, t_test
from trisect.stats.power import fewest_seeds
from trisect.stats.shares import least_spread
from trisect.stats.significance import ALPHA, EffectTest, PValues, conjunction, holm, nan_to_none, two_sided

ClaimColumns: TypeAlias = dict[str, float | int | str | bool | None]


@dataclass(frozen=True)
class TestedPart:
    """A part of a claim with its test, and the rule that prevents a verdict based on it, or None."""

    part: Part
    tested: EffectTest
    barred: Reason | None

    @property
    def distance_from_bound(self) -> float:
        """Distance of the effect from the bound, positive on the claimed side, in the part's unit; NaN if unknown."""
        return float("nan") if self.tested.effect is None else distance_from_bound(self.part, self.tested.effect)

    @property
    def reason(self) -> Reason | None:
        """Why this part has no verdict of its own, or None."""
        return self.barred or self.tested.reason

    def columns(self) -> ClaimColumns:
        """Columns shared by the rows of parts and claims: effect, intervals, margin, n and spread."""
        part, tested = self.part, self.tested
        return {
            "effect": tested.effect,
            "low": tested.low,
            "high": tested.high,
            "low_family": tested.low_family,
            "high_family": tested.high_family,
            "margin": part.margin,
            "bound": part.bound,
            "direction": part.direction,
            "unit": part.unit,
            "margin_reason": part.reason,
            "n": tested.n,
            "spread": tested.spread,
        }

    def row(self) -> ClaimColumns:
        """The row of this part: its sentence, numbers, p on either side, and why it has no verdict."""
        columns = {"part": self.part.name, "sentence": self.part.sentence, "decides": self.part.decides}
        p = None if self.tested.reason is not None else nan_to_none(two_sided(self.tested.p))
        return {**columns, **self.columns(), "p": p, "reason": None if self.reason is None else str(self.reason)}


T = TypeVar("T", bound=TestedPart)


@dataclass(frozen=True)
class Decided(Generic[T]):
    """A claim by the rule: the parts that decide, those of them that were measured, both sides of their conjunction, p before
    and after Holm, and what bars a verdict.
    """

    deciding: tuple[T, ...]
    measured: tuple[T, ...]
    sides: PValues
    p: float
    p_holm: float
    barred: Reason | None

    @property
    def verdict(self) -> str:
        """Supported if all parts were measured and hold, refuted if one is; not tested if none was measured."""
        if not self.measured:
            return NOT_TESTED
        complete = len(self.measured) == len(self.deciding) or self._side == "refuted"
        return self._side if complete else "inconclusive"

    @property
    def _side(self) -> str:
        """The decision of the measured parts, by p after Holm alone."""
        if not self.p_holm < ALPHA:
            return "inconclusive"
        return "supported" if self.sides.p_for < self.sides.p_against else "refuted"

    def row(self, reason: Reason, needed: int | None, n: int | None = None) -> ClaimColumns:
        """The row of the whole claim: its verdict, and the effect of its weakest part if all were measured or one is refuted.

        `reason` stands there where there is no verdict; `n` is else the least of the parts'.
        """
        shown = self.verdict == "refuted" or all(test.tested.effect is not None for test in self.deciding)
        parts = {test.part for test in self.measured}
        lacking = {t.part.name.partition(":")[0]: t.barred for t in self.deciding if t.part not in parts}
        if self.barred is None and lacking:
            (name, why), more = next(iter(lacking.items())), f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            ending = " not run" if why is None or why.kind == "not measured" else f": {why}"
            reason = Reason(
                "some parts", len(parts), need=len(self.deciding), detail=f"{self._side}; {name}{more}{ending}"
            )
        return {
            **(self.weakest.columns() if shown else {}),
            "decides": True,
            "p": self.p,
            "p_holm": self.p_holm,
            "verdict": self.verdict,
            "n": min((test.tested.n for test in self.measured), default=0) if n is None else n,
            "reason": str(reason) if self.is_open else None,
            "seeds_needed": needed,
        }

    @property
    def is_open(self) -> bool:
        """Whether there is no verdict."""
        return self.verdict in ("inconclusive", NOT_TESTED)

    def why(self, needed: int | None) -> Reason:
        """Why there is no verdict: the rule that prevents one, or why the weakest part has no test, or is undecidable by more units."""
        untested = [test.reason for test in (self.weakest, *self.deciding) if test.reason is not None]
        return self.barred or self.weakest.reason or (untested[0] if untested and needed is None else UNDECIDED)

    @property
    def weakest(self) -> T:
        """The part with the least support: by p-values, then by effect.

        One of which no test can be made speaks neither for the claim nor against it: a part that speaks against it comes before.
        """
        return max(
            self.deciding,
            key=lambda test: (
                test.tested.p_for if test.tested.reason is None else 0.5,
                -test.tested.p_against,
                -test.distance_from_bound,
            ),
        )


def decide(
    claims: Sequence[Sequence[T]], missing: Collection[Reason], everywhere: Reason | None = None
) -> list[Decided[T]]:
    """Every claim of a source, given its parts (definitions E).

    A part that is barred by one of `missing`, that its data were not collected, says nothing: what
    is left of the claim is judged, and may refute the whole and not support it. The family of Holm's correction are the claims of
    which something was measured; one that another rule bars stays in it with p = 1. `everywhere` bars all of them.
    """
    decided: list[Decided[T]] = []
    for parts in claims:
        deciding = tuple(test for test in parts if test.part.decides)
        measured = tuple(test for test in deciding if test.barred not in missing)
        reasons = [everywhere, *(test.barred for test in measured)] if measured else [deciding[0].barred]
        barred = next((reason for reason in reasons if reason is not None), None)
        joint = conjunction([test.tested.p for test in measured or deciding])
        decided.append(Decided(deciding, measured, joint, 1.0 if barred else float(two_sided(joint)), 1.0, barred))
    adjusted = iter(holm([claim.p for claim in decided if claim.measured]))
    return [replace(claim, p_holm=float(next(adjusted))) if claim.measured else claim for claim in decided]


def family_of(source: Source, is_measured: Callable[[Part], bool]) -> int:
    """The number of claims of a source that are tested together: those with a measured deciding part, at least one."""
    return max(1, sum(any(map(is_measured, claim.deciding())) for claim in source.claims))


def claim_rows(
    source: Source,
    test: Callable[[Part, Claim], T],
    whole_row: Callable[[Decided[T]], ClaimColumns],
    missing: Collection[Reason],
    everywhere: Reason | None = None,
    about: Mapping[str, object] | None = None,
) -> list[ClaimColumns]:
    """The rows of one source: for each claim one for the whole (`whole_row`), and one for each part (`test`).

    `about` is what the verdicts speak of and stands in the column `runs` of all of them.
    """
    shared: ClaimColumns = {"source": source.key, "revision": source.revision}
    if about is not None:
        shared["runs"] = canonical(dict(about))
    rows: list[ClaimColumns] = []
    tested = [tuple(test(part, claim) for part in claim.parts) for claim in source.claims]
    for claim, parts, decided in zip(source.claims, tested, decide(tested, missing, everywhere), strict=True):
        named = {**shared, "claim": claim.id}
        rows.append({**named, "sentence": claim.sentence, **whole_row(decided)})
        rows += [{**named, **part.row()} for part in parts]
    return rows


def distance_from_bound(part: Part, effect: float) -> float:
    """Distance of `effect` from the part's bound, positive on the claimed side."""
    if part.direction == "within":
        return part.bound - abs(effect)
    return effect - part.bound if part.direction == "above" else part.bound - effect


NOT_MEASURED = Reason("not measured", detail="in this study")
EPSILON = 0.01
INTERCHANGED = "interchange_own"


@dataclass(frozen=True)
class _SeedPart(TestedPart):
    """A part with a summary of its paired differences, further columns of its card, and its diverged or collapsed runs.

    `noise` is the least standard error: that of a baseline that is trained twice, and 0 where the seeds are all the same.
    """

    sample: Sample
    noise: float
    best_valid: float | None
    matched_train: float | None
    above_unigram: float | None
    runs: frozenset[str]
    diverged: frozenset[str]
    collapsed: frozenset[str]

    @property
    def early_stopping(self) -> bool | None:
        """Whether this part's validation loss lies on the other side of the bound at an earlier reading; else None."""
        readings = [x for x in (self.best_valid, self.matched_train) if x is not None]
        losses = [leaf for leaf in self.part.leaves() if isinstance(leaf, (LossChange, LearnedFraction))]
        if self.tested.effect is None or not readings or not any(leaf.split == "valid" for leaf in losses):
            return None
        return any((distance_from_bound(self.part, x) > 0) != (self.distance_from_bound > 0) for x in readings)

    def columns(self) -> ClaimColumns:
        """The columns of every part, and those of evidence over seeds: earlier readings, and runs."""
        return {
            **super().columns(),
            "effect_best_valid": self.best_valid,
            "effect_matched_train": self.matched_train,
            "early_stopping": self.early_stopping,
            "above_unigram": self.above_unigram,
            **_run_columns([self]),
        }


def _run_columns(parts: Sequence[_SeedPart]) -> ClaimColumns:
    """The runs of parts, and how many of them diverged and collapsed."""
    runs, diverged, collapsed = (
        frozenset().union(*ids) for ids in zip(*((p.runs, p.diverged, p.collapsed) for p in parts), strict=True)
    )
    return {"diverged": len(diverged), "collapsed": len(collapsed), "runs": json.dumps(sorted(runs))}


def judge(tables: Mapping[str, pl.DataFrame], about: StudyAbout) -> pl.DataFrame:
    """The table `claims`: for each claim of each source a row for the whole (`part` None) and one for each part.

    `tables` holds runs, metrics and sites; `about` tells with which ε criticality was measured, and how many layers there
    are. A source about ties is judged where something was tied: other studies do not ask it.
    """
    evidence = gather(tables, depth(about))
    everywhere, collapsed = _rule_of_study(evidence), find_collapsed_runs(evidence)
    rows: list[ClaimColumns] = []
    for source in _sources_for(evidence):
        readings: dict[Part, dict[int, EffectReading]] = {}
        for part in [part for claim in source.claims for part in claim.parts]:
            by_seed = {seed: read(part.effect, evidence, seed) for seed in evidence.seeds}
            readings[part] = {seed: reading for seed, reading in by_seed.items() if reading is not None}
        family = family_of(source, lambda part, by_part=readings: bool(by_part[part]))

        def whole_row(decided: Decided[_SeedPart], family: int = family) -> ClaimColumns:
            needed = None
            if decided.is_open and decided.barred is None:
                ahead = [(t.sample, t.part.direction, t.part.bound) for t in decided.deciding]
                needed = fewest_seeds(ahead, family, min_errors=[t.noise for t in decided.deciding])
            row = decided.row(decided.why(needed), needed)
            flags = [test.early_stopping for test in decided.deciding if test.early_stopping is not None]
            row["early_stopping"] = any(flags) if flags and "early_stopping" in row else None
            return row | _run_columns(decided.deciding)

        def test(
            part: Part, claim: Claim, by_part: Mapping[Part, dict[int, EffectReading]] = readings, family: int = family
        ) -> _SeedPart:
            return _test(part, claim, by_part[part], evidence, about, collapsed, family)

        rows += claim_rows(source, test, whole_row, (NOT_MEASURED,), everywhere)
    return frame("claims", rows)


def depth(about: StudyAbout) -> int | None:
    """The number of layers of the study's model; None if unknown."""
    return about.get("experiment", {}).get("model", {}).get("layers")


def _sources_for(evidence: Evidence) -> list[Source]:
    """The sources with claims about training; without the one about ties if nothing is tied.

    Of a synthetic task with known roles, where donors were interchanged, only the claims on such worlds are asked.
    """
    if any(measure == INTERCHANGED for _, _, measure, _, _ in evidence.spots):
        return [roles.SOURCE]
    tied = any(key.edit in ("tie", "identity") for key in evidence.trained)
    left = {roles.SOURCE.key} | (set() if tied else {tying.SOURCE.key})
    return [source for source in SOURCES if source.unit == "seed" and source.key not in left]


def _rule_of_study(evidence: Evidence) -> Reason | None:
    """Why no claim of the study can have a verdict; None if both preconditions hold."""
    done = checks(evidence)
    if all(check.ok for check in done):
        return None
    if any(check.diverged for check in done):
        return Reason("baseline diverged")
    unchecked = any(check.n < max(1, len(evidence.seeds)) for check in done)
    return Reason("attention not checked" if unchecked else "attention not in use")


def _test(
    part: Part,
    claim: Claim,
    readings: Mapping[int, EffectReading],
    evidence: Evidence,
    about: StudyAbout,
    collapsed: frozenset[str],
    family: int,
) -> _SeedPart:
    """The test of a part over seeds, and the first rule that prevents a verdict based on it.

    The mean over seeds has at least the standard error of a baseline that is trained twice.
    """
    runs = frozenset[str]().union(*(r.runs for r in readings.values()))
    sample = summary([r.value for r in readings.values()])
    noise = float(np.mean([r.noise for r in readings.values()])) if sample.spread > 0 else 0.0
    if noise:
        sample = sample._replace(spread=np.maximum(sample.spread, noise * np.sqrt(sample.n)))
    leaves = list(part.leaves())
    measures = [leaf.measure for leaf in leaves if isinstance(leaf, SiteMean)]
    # shares of pairs: drawing the pairs leaves them open even where they are the same in every seed
    pairs = (about.get("experiment", {}).get("interchange") or {}).get("pairs")
    if pairs is not None and sample.n > 1 and [m[:12] for m in measures] == ["interchange_"] * len(leaves):
        sample = sample._replace(spread=max(sample.spread, least_spread(float(sample.mean), pairs)))
    critical = [leaf for leaf in leaves if isinstance(leaf, SiteMean) and leaf.measure == "criticality"]
    sites = {(site, leaf.split) for leaf in critical for site in leaf.sites}
    values = [evidence.measured(seed, site, "criticality", split) for seed in readings for site, split in sites]
    rewind = about.get("experiment", {}).get("rewind")
    barred = None
    if not readings:
        barred = NOT_MEASURED
    elif 1 < sample.n < MIN_SEEDS:
        barred = Reason("few trained", int(sample.n), "seed", MIN_SEEDS)
    elif critical and rewind is not None and float(rewind["epsilon"]) != EPSILON:
        barred = Reason("other epsilon")
    elif sum(value in (0.0, 1.0) for value in values) > len(values) / 2:
        barred = Reason("at floor")  # more than half of the contrast's sites, counted in every seed
    elif claim.floored and (reason := off_floor(claim, evidence)):
        barred = reason
    elif runs & collapsed and any(map(is_attack, leaves)):
        # contrasts are not read from collapsed attacks, and nothing is refuted by them
        contrast = isinstance(part.effect, (Combination, CurveDistance))
        barred = Reason("collapsed") if contrast or not distance_from_bound(part, float(sample.mean)) > 0 else None
    untestable = Reason("single seed") if sample.n == 1 else Reason("no spread", unit="seed")
    beyond = None  # of a learned fraction, the same counted from the unigram loss
    if isinstance(part.effect, LearnedFraction) and not isinstance(part.effect, AboveUnigram):
        beyond = AboveUnigram(part.effect.label, part.effect.sites, part.effect.split)
    return _SeedPart(
        part,
        t_result(sample, part.direction, part.bound, family, untestable),
        barred,
        sample,
        noise,
        _mean_of([read(part.effect, evidence, seed, "best_valid") for seed in readings]),
        _mean_of([read(part.effect, evidence, seed, "matched_train") for seed in readings]),
        _mean_of([read(beyond, evidence, seed) for seed in readings]) if beyond else None,
        runs,
        runs & frozenset(run.run for run in evidence.trained.values() if run.diverged),
        runs & collapsed,
    )


def _mean_of(readings: Sequence[EffectReading | None]) -> float | None:
    """The mean over seeds; None if a seed has no value."""
    values = [reading.value for reading in readings if reading is not None]
    return sum(values) / len(values) if values and len(values) == len(readings) else None


CONTROLS = (*VARIANTS[1:], "bounded+site")
SURVIVES, LOST_EFFECT, SURVIVAL_UNDECIDED, NO_EFFECT = "survives", "does not survive", "undecided", "no such effect"
READINGS = (SURVIVES, LOST_EFFECT, SURVIVAL_UNDECIDED, NO_EFFECT)
# Differences up to this size are none, where a part's own margin is not of that kind.
EQUIVALENCE_MARGINS = {"nats": MARGIN, "of what the baseline learned": 0.10}

LabelledSite = tuple[str, str]  # label and site


def judge_controls(tables: Mapping[str, pl.DataFrame], about: StudyAbout) -> pl.DataFrame:
    """The table `controls`: a row for each deciding part of a claim about attacks and each control that its sites have.

    `difference` is the effect with plain attacks less that with the control, paired by seed. Where only some of a part's sites
    have the control, both effects are of these, and the part's name says so. How a row is read: see `reading`.
    """
    evidence = gather(tables, depth(about))
    barred = _rule_of_study(evidence) is not None
    rows = []
    for source in _sources_for(evidence):
        for claim in source.claims:
            for part in claim.parts:
                for control in CONTROLS if part.decides else ():
                    if (row := _control_row(part, control, evidence, barred)) is not None:
                        rows.append({"source": source.key, "claim": claim.id, **row})
    return frame("controls", rows)


def _control_row(part: Part, control: str, evidence: Evidence, barred: bool) -> TableRow | None:
    at_control = _at_control(part, control, evidence)
    if at_control is None:
        return None
    effect, where = at_control
    both = [
        (plain.value, other.value)
        for seed in evidence.seeds
        if (plain := read(effect, evidence, seed)) is not None
        and (other := read(effect, evidence, seed, variant=control)) is not None
    ]
    if not both:
        return None
    plain_values, control_values = zip(*both, strict=True)
    attack, other = summary(plain_values), summary(control_values)
    difference = summary(np.subtract(plain_values, control_values))
    low, high = t_interval(difference)
    return {
        "part": part.name + (f" (at {', '.join(where)})" if where else ""),
        "control": control,
        "effect": nan_to_none(attack.mean),
        "control_effect": nan_to_none(other.mean),
        "difference": nan_to_none(difference.mean),
        "low": nan_to_none(low),
        "high": nan_to_none(high),
        "n": len(both),
        "reading": SURVIVAL_UNDECIDED if barred else reading(part, control, attack, other, difference),
    }


def reading(part: Part, control: str, attack: Sample, other: Sample, difference: Sample) -> str:
    """The reading of a part against one control; one of READINGS.

    'no such effect': the mean effect of the attack is not on the claimed side of the part's bound.
    Against control labels, which are not to have the effect, it 'does not survive' where the two are the same within a
    margin (two one-sided tests) or the 95 % interval of the difference lies on the wrong side of 0, and 'survives' where the
    interval lies on the claimed side.
    The bounded attack, that of the site alone and the one that is both remove the label too, so that they are to have it: it 'survives'
    where their own effect lies beyond the part's bound (one-sided test), and 'does not survive' where it lies short of it.
    """
    sign = 1.0 if part.direction == "above" else -1.0
    if not sign * (float(attack.mean) - part.bound) > 0:
        return NO_EFFECT
    match control:
        case "bounded" | "site" | "bounded+site":
            test = t_test(other, part.direction, part.bound)
            return SURVIVES if test.p_for < ALPHA else LOST_EFFECT if test.p_against < ALPHA else SURVIVAL_UNDECIDED
        case "control":
            pass
        case _:
            raise AssertionError(f"no rule reads the control {control!r}")
    low, high = t_interval(difference)
    near, far = (low, high) if sign > 0 else (-high, -low)
    margin = EQUIVALENCE_MARGINS.get(part.unit)
    same = margin is not None and bool(t_test(difference, "within", margin).p_for < ALPHA)
    if same or far < 0:
        return LOST_EFFECT
    return SURVIVES if near > 0 else SURVIVAL_UNDECIDED


def _at_control(part: Part, control: str, evidence: Evidence) -> tuple[Effect, tuple[str, ...]] | None:
    """The part's effect at those of its sites that have the control, and these sites unless they are all.

    None where none has it, and for parts that claim no change: a control cannot explain what is not there.
    """
    if part.direction == "within" or not all(is_attack(leaf) for leaf in part.leaves()):
        return None
    have = {
        (key.label or "", key.site or "") for key in evidence.trained if key.edit == "attack" and key.variant == control
    }
    # A contrast between components stays one between the same layers on both sides.
    layers = set.intersection(*({_layer(site) for _, site in _places(leaf) & have} for leaf in part.leaves()))
    terms = part.effect.terms if isinstance(part.effect, Combination) else ((1.0, part.effect),)
    left = [(weight, _at(leaf, have, layers)) for weight, leaf in terms]
    remaining = tuple((weight, leaf) for weight, leaf in left if leaf is not None)
    if len(remaining) < len(left):
        return None
    effect = remaining[0][1] if not isinstance(part.effect, Combination) else Combination(remaining)
    before, after = (_sites(leaf for _, leaf in leaves) for leaves in (terms, remaining))
    return effect, () if after == before else after


def _places(leaf: Leaf) -> set[LabelledSite]:
    """All labels and sites of a leaf about attacks."""
    if isinstance(leaf, CurveDistance):
        return {(label, f"{c}@{n}") for label in leaf.labels for c in leaf.pair for n in leaf.layers}
    assert isinstance(leaf, (LossChange, LearnedFraction))
    return {(leaf.label or "", site) for site in leaf.sites}


def _at(leaf: Leaf, have: set[LabelledSite], layers: set[str]) -> Leaf | None:
    """The leaf at those of its places and layers; None if there are none."""
    if isinstance(leaf, CurveDistance):
        labels = tuple(x for x in leaf.labels if any(label == x for label, _ in have))
        present = [n for n in leaf.layers if str(n) in layers]
        layers_left = tuple(n for n in present if all((x, f"{c}@{n}") in have for x in labels for c in leaf.pair))
        return replace(leaf, layers=layers_left, labels=labels) if layers_left and labels else None
    assert isinstance(leaf, (LossChange, LearnedFraction))
    sites = tuple(site for site in leaf.sites if (leaf.label or "", site) in have and _layer(site) in layers)
    return replace(leaf, sites=sites) if sites else None


def _layer(site: str) -> str:
    return site.rpartition("@")[2]


def _sites(leaves: Iterable[Leaf]) -> tuple[str, ...]:
    """The sites of several leaves from the first layer up, and the labels of leaves with several."""
    listed = list(leaves)
    sites = {site for leaf in listed for _, site in _places(leaf)}
    labels = [label.upper() for leaf in listed if isinstance(leaf, CurveDistance) for label in leaf.labels]
    return (*sorted(sites, key=lambda s: (_layer(s), "qkv".find(s[0]))), *dict.fromkeys(labels))
