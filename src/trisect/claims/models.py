"""Verdicts on claims about trained models, with heads, layers, resampled texts or models as units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl

from trisect.claims.reasons import NOT_MEASURED, UNDECIDED, Reason, read_reason
from trisect.claims.verdicts import ClaimColumns, Decided, TestedPart, claim_rows, distance_from_bound, family_of
from trisect.core.claim import MIN_SEEDS, Claim, Combination, Effect, Part, Source, Statistic
from trisect.core.tables import frame
from trisect.papers import SOURCES
from trisect.stats.bootstrap import percentile_result
from trisect.stats.paired import Sample, summary, t_result
from trisect.stats.power import fewest_counts, fewest_seeds, smallest_p
from trisect.stats.significance import ALPHA, NO_TEST, EffectTest, PValues, Reals, conjunction, nan_to_none

MIN_UNITS = 30  # units; with fewer, bootstrap intervals are too narrow
LEAST_LAYERS = 3  # layers of one model for a t test over layers
MAX_UNITS = 1_000_000


class ResampledUnits(NamedTuple):
    """Units of a bootstrap: `n` of them, resampled in `groups` (as many as units if each was drawn alone).

    Degrees of freedom are those of the groups. `seeds` is the number of trained models for a claim about training, None for claims
    about one model.
    """

    n: int
    groups: int
    unit: str
    seeds: int | None = None


class UnitTest(NamedTuple):
    """A statistic's own test in place of the bootstrap: its p-values, and number and name of its units."""

    p: PValues
    n: int
    unit: str


@dataclass(frozen=True)
class _SampledPart(TestedPart):
    """A part tested on one model, with its sample; `test` replaces the bootstrap's p-values."""

    sample: ResampledUnits
    test: UnitTest | None = None


def judge_by_draws(
    source: Source,
    replicates: Mapping[str, Reals],
    estimates: Mapping[str, float],
    n: int,
    about: Mapping[str, object],
    groups: int | None = None,
    each: Mapping[str, ResampledUnits] | None = None,
    tests: Mapping[str, UnitTest] | None = None,
) -> pl.DataFrame:
    """The table `claims` for a source about one model: a row per claim and one for each of its parts.

    `replicates` has every Statistic's values in R bootstrap draws of `n` units, by name, from the same draws for all;
    `estimates` has its value on the units themselves. A statistic that is missing or not finite is not measured. `about`
    (model, texts) is stored in the column `runs`. If units were resampled in `groups`, these are fewer than `n` and count for
    the degrees of freedom. `each` gives the units of statistics that differ from the rest; a part that combines several has
    the fewest of them. `tests` has tests of single statistics other than the bootstrap, such as a permutation of layers; their
    intervals are still those of the bootstrap.
    p_for is the share of draws on the wrong side of the bound, p_against that on the claimed side, both made as wide as
    Student's t with n − 1 degrees of freedom (stats.bootstrap); draws that are NaN count against both. If all draws are
    equal, p is 1 / (R + 1); one seed gives no verdict; a part that no outcome could decide has that as its reason.
    """
    rest = ResampledUnits(n, n if groups is None else min(n, groups), source.unit)

    family = family_of(source, lambda part: _has_number(part, estimates, replicates))

    def test(part: Part, _: Claim) -> _SampledPart:
        groups = [(each or {}).get(leaf.name, rest) for leaf in part.leaves() if isinstance(leaf, Statistic)]
        seeds = [group.seeds for group in groups if group.seeds is not None]
        sample = ResampledUnits(
            min(group.n for group in groups), min(group.groups for group in groups), rest.unit, min(seeds, default=None)
        )
        effect, measured = _value(part.effect, estimates), _has_number(part, estimates, replicates)
        values = np.asarray(_value(part.effect, replicates) if measured else [], dtype=float)
        own_test = (tests or {}).get(part.effect.name) if isinstance(part.effect, Statistic) else None
        barred = _rule_against(values, sample, ALPHA / family, own_test) if measured else NOT_MEASURED
        tested = percentile_result(
            float(effect) if measured and effect is not None else None,
            values,
            sample.n,
            sample.groups,
            part.direction,
            part.bound,
            family,
            barred,
        )
        if own_test is not None and barred is None:
            tested = replace(tested, p=own_test.p, n=own_test.n)
        return _SampledPart(part, tested, barred, sample, own_test)

    def whole_row(decided: Decided[_SampledPart]) -> ClaimColumns:
        # a test over layers: more texts would not decide it
        test = decided.weakest.test if decided.barred is None else None
        reason = decided.barred or (UNDECIDED if test is None else Reason("undecided over", test.n, test.unit))
        more = decided.is_open and test is None and reason.kind in ("undecided", "single", "few resampled")
        needed = _units_to_decide(decided.deciding, family) if more else None
        return decided.row(reason, needed, decided.weakest.sample.n)

    return frame("claims", claim_rows(source, test, whole_row, (NOT_MEASURED,), about=about))


def _has_number(part: Part, estimates: Mapping[str, float], replicates: Mapping[str, Reals]) -> bool:
    effect, draws = _value(part.effect, estimates), _value(part.effect, replicates)
    return effect is not None and bool(np.isfinite(effect)) and draws is not None and len(draws) > 0


def _rule_against(values: Reals, sample: ResampledUnits, level: float, test: UnitTest | None) -> Reason | None:
    """Why a measured statistic cannot decide, or None."""
    if sample.n < MIN_UNITS:
        return Reason("few resampled", sample.n, sample.unit, MIN_UNITS)
    if sample.seeds is not None and sample.seeds < MIN_SEEDS:
        return SINGLE_SEED if sample.seeds == 1 else Reason("few trained", sample.seeds, "seed", MIN_SEEDS)
    if test is not None:
        within, sizes = smallest_p("permutation", test.n) < level, (test.n, test.unit)
    else:
        within = smallest_p("bootstrap", sample.groups, len(values)) < level
        sizes = (sample.groups, sample.unit) if sample.seeds is None else (sample.seeds, "seed")
    return None if within else Reason("out of reach", *sizes)


def _value(effect: Effect, values: Mapping[str, float] | Mapping[str, Reals]) -> Reals | None:
    """An effect from statistics by name, as one number or one per draw; None if any is missing."""
    terms = effect.terms if isinstance(effect, Combination) else ((1.0, effect),)
    parts = []
    for weight, leaf in terms:
        assert isinstance(leaf, Statistic), "claims about one model are about statistics"
        if leaf.name not in values:
            return None
        parts.append(weight * np.asarray(values[leaf.name], dtype=float))
    return sum(parts[1:], parts[0])


def _units_to_decide(deciding: Sequence[_SampledPart], family: int) -> int | None:
    """The fewest units that would decide the claim at these effects and spreads; None if a million would not.

    For a claim about training these are seeds, with the spread between seeds that the draws imply.
    """
    ahead = []
    seeds = deciding[0].sample.seeds
    for test in deciding:
        effect, spread = test.tested.effect, test.tested.spread
        if effect is None or spread is None or not spread > 0:
            return None
        if seeds is not None:
            spread *= (seeds / test.sample.n) ** 0.5
        sample = Sample(np.asarray(float(seeds or test.sample.n)), np.asarray(effect), np.asarray(spread))
        ahead.append((sample, test.part.direction, test.part.bound))
    if seeds is not None:
        return fewest_seeds(ahead, family) if seeds > 1 else None
    return fewest_counts(ahead, np.unique(np.geomspace(MIN_UNITS, MAX_UNITS, 500).round()), family)


SINGLE_SEED, SINGLE_MODEL = Reason("single", unit="seed"), Reason("single", unit="model")

# a part over models: each model's value, the reason why it gets no verdict or None, whether values are those of the weakest
# head, and p-values of the model with the weakest evidence if each has its own test
PartOfModels: TypeAlias = tuple[Sequence[float], Reason | None, bool, PValues | None]


@dataclass(frozen=True)
class _ModelsPart(TestedPart):
    """A part with the summary of its models' values; one that is tested head by head cannot be refuted."""

    sample: Sample
    by_head: bool = False

    @property
    def unrefutable(self) -> bool:
        """Whether the mean is on the side that refutes the claim, which tests head by head cannot do."""
        return self.by_head and not self.distance_from_bound > 0

    @property
    def reason(self) -> Reason | None:
        """Why this part has no verdict, or None."""
        return super().reason or (Reason("head by head") if self.unrefutable else None)


def judge_models(
    source: Source,
    values: Mapping[str, Sequence[float]],
    about: Mapping[str, object],
    barred: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """The table `claims` of a source whose unit is the model: a row per claim and one for each of its parts.

    `values` has each model's value of every Statistic by name, with differences within a model (norms less weights) already
    taken; missing ones were not measured. `barred` gives reasons why single statistics get no verdict. With fewer than
    MIN_SEEDS models there is none. `about` is stored in the column `runs`.
    """

    def read(claim: Claim, part: Part) -> PartOfModels:
        assert isinstance(part.effect, Statistic), "claims about models are about statistics"
        reason = (barred or {}).get(part.effect.name)
        return values.get(part.effect.name, ()), None if reason is None else read_reason(reason), False, None

    return frame("claims", _judge_parts(source, read, about))


def judge_over_models(claims: Sequence[pl.DataFrame], about: Mapping[str, object]) -> pl.DataFrame:
    """The table `claims` of a recipe: each part's effects from its models' tables, tested over the models.

    Every source in `claims`, which are from one experiment, is a family as for one model. A part without a verdict in any model
    has none over them, unless the reason is few layers: the models have read the same texts, so that more models do not replace
    texts. A part with the same value in every model is decided as in the model with the weakest evidence. A part that is tested
    head by head has each model's weakest head as its value, which noise moves towards the bound: their mean may support a claim
    and cannot refute it. `about` is stored in the column `runs`; the column `over` says that `n` counts models.
    """
    rows: list[ClaimColumns] = []
    sources = {source.key: source for source in SOURCES}
    for source in (sources[key] for key in claims[0]["source"].unique(maintain_order=True)):

        def read(claim: Claim, part: Part, key: str = source.key) -> PartOfModels:
            """Parts that are tested against a null of each head have a p-value and no spread."""
            row_of = [(pl.col("source") == key) & (pl.col("claim") == claim.id) & (pl.col("part") == part.name)]
            lines = [row for table in claims for row in table.filter(*row_of).iter_rows(named=True)]
            values = [row["effect"] for row in lines if row["effect"] is not None]
            each = [reason for row in lines if (reason := read_reason(row["reason"])) not in (UNDECIDED, SINGLE_SEED)]
            each = [reason for reason in each if (reason.kind, reason.unit) != ("few trained", "layer")]
            why = None
            if values and each:
                why = Reason("some models", each.count(each[0]), need=len(lines), detail=str(each[0]))
            test = None
            if lines and all(row["p"] is not None for row in lines):  # two-sided, on the side that all models share
                p_for = np.asarray(max(row["p"] for row in lines) / 2)
                holds = distance_from_bound(part, values[0]) > 0
                test = PValues(p_for, NO_TEST.p_against) if holds else PValues(NO_TEST.p_for, p_for)
            return values, why, any(row["p"] is not None and row["spread"] is None for row in lines), test

        for row in _judge_parts(source, read, about):
            rows.append(row | {"over": "model"})
            if row["reason"] == str(NOT_MEASURED):  # replaced if all models have the same reason
                same = [
                    pl.col(name).eq_missing(pl.lit(row.get(name), pl.String)) for name in ("source", "claim", "part")
                ]
                reasons = {reason for table in claims for reason in table.filter(*same)["reason"]}
                rows[-1]["reason"] = reasons.pop() if len(reasons) == 1 else str(NOT_MEASURED)
    return frame("claims", rows)


def _judge_parts(
    source: Source, read: Callable[[Claim, Part], PartOfModels], about: Mapping[str, object]
) -> list[ClaimColumns]:
    places = {part: claim for claim in source.claims for part in claim.parts}
    family = family_of(source, lambda part: bool(read(places[part], part)[0]))

    def test(part: Part, claim: Claim) -> _ModelsPart:
        values, barred, by_head, test = read(claim, part)
        sample, reason = summary(values), barred
        if not sample.n:
            reason = NOT_MEASURED
        elif sample.n == 1:
            reason = SINGLE_MODEL
        elif barred is None and sample.n < MIN_SEEDS:
            reason = Reason("few trained", int(sample.n), "model trained alike", MIN_SEEDS)
        untestable = SINGLE_MODEL if sample.n == 1 else Reason("no spread", unit="model")
        tested = t_result(sample, part.direction, part.bound, family, untestable)
        if sample.spread == 0 and test is not None:
            tested = replace(tested, p=test, reason=None)
        if barred is not None:
            tested = replace(tested, p=NO_TEST, reason=barred)
        elif by_head:
            tested = replace(tested, p=PValues(tested.p.p_for, NO_TEST.p_against))
        return _ModelsPart(part, tested, reason, sample, by_head)

    def whole_row(decided: Decided[_ModelsPart]) -> ClaimColumns:
        needed = None
        if decided.is_open and decided.barred is None and not any(test.unrefutable for test in decided.deciding):
            needed = fewest_seeds([(t.sample, t.part.direction, t.part.bound) for t in decided.deciding], family)
        return decided.row(decided.why(needed), needed)

    return claim_rows(source, test, whole_row, (NOT_MEASURED,), about=about)


class HeadsAgainstNull(NamedTuple):
    """A statistic of every head that has a null: its distance from the null's mean, and p-values of the bound.

    `p_for` and `p_against` are one-sided p-values of the part's claim per head; `interval(head, alpha)`, with heads from 0,
    returns the ends of its interval from quantiles of the null.
    """

    effects: Reals
    p_for: Reals
    p_against: Reals
    interval: Callable[[int, float], Iterable[float | Reals]]


class ResampledHeads(NamedTuple):
    """A mean over heads with its bootstrap draws over `n` units; `unit` is the one with fewer of them."""

    effect: float
    replicates: Reals
    n: int
    unit: str = "head"


class LayerMeans(NamedTuple):
    """A model's means over heads by layer, for a test over layers."""

    values: Reals


def judge_heads(
    source: Source,
    statistics: Mapping[str, HeadsAgainstNull | ResampledHeads | LayerMeans],
    about: Mapping[str, object],
    missing: str | Mapping[str, str] = str(NOT_MEASURED),
) -> pl.DataFrame:
    """The table `claims` of a source whose unit is the head; a Statistic missing in `statistics` was not measured.

    `missing` is the reason, for all or by name.

    A part that is tested head by head holds when it holds for every head (intersection–union): p_for is the largest of
    the heads', p_against their smallest times their number; its effect is that of the weakest head. Layers are tested by
    Student's t, at least LEAST_LAYERS of them.
    """
    reasons = {} if isinstance(missing, str) else {name: read_reason(sentence) for name, sentence in missing.items()}
    rest = read_reason(missing) if isinstance(missing, str) else NOT_MEASURED

    family = family_of(source, lambda part: isinstance(part.effect, Statistic) and part.effect.name in statistics)

    def test(part: Part, _: Claim) -> TestedPart:
        assert isinstance(part.effect, Statistic), "claims about heads are about statistics"
        value = statistics.get(part.effect.name)
        if value is None:
            reason = reasons.get(part.effect.name, rest)
            return TestedPart(part, EffectTest(reason=reason), reason)
        if isinstance(value, HeadsAgainstNull):  # it has to hold for every head; its effect is that of the weakest
            if not len(value.effects):
                return TestedPart(part, EffectTest(reason=Reason("no null")), Reason("no null"))
            weakest = int(np.argmin([distance_from_bound(part, float(effect)) for effect in value.effects]))
            joint = conjunction([PValues(*both) for both in zip(value.p_for, value.p_against, strict=True)])
            ends = (e for alpha in (ALPHA, ALPHA / family) for e in value.interval(weakest, alpha))
            low, high, low_family, high_family = (nan_to_none(end) for end in ends)
            effect, n = float(value.effects[weakest]), len(value.effects)
            return TestedPart(part, EffectTest(effect, n, None, joint, low, high, low_family, high_family), None)
        if isinstance(value, LayerMeans):
            sample, layers = summary(value.values), len(value.values)
            shortage = Reason("few trained", layers, "layer", LEAST_LAYERS) if layers < LEAST_LAYERS else None
            tested = t_result(sample, part.direction, part.bound, family, shortage or Reason("no spread", unit="layer"))
            return TestedPart(part, tested, shortage)
        barred = None
        if not np.isfinite(value.effect):
            barred = NOT_MEASURED
        elif value.n < MIN_UNITS:
            barred = Reason("few resampled", value.n, value.unit, MIN_UNITS)
        tested = percentile_result(
            nan_to_none(value.effect), value.replicates, value.n, value.n, part.direction, part.bound, family, barred
        )
        return TestedPart(part, tested, barred)

    def whole_row(decided: Decided[TestedPart]) -> ClaimColumns:
        """Without a number of heads needed, since a model's heads are fixed."""
        reason = decided.barred or UNDECIDED
        if decided.barred is None and decided.p < ALPHA:
            reason = Reason("after Holm", detail=f"{decided.p:.2g}, and {decided.p_holm:.2g}")
        return decided.row(reason, None)

    return frame("claims", claim_rows(source, test, whole_row, {rest, *reasons.values()}, about=about))
