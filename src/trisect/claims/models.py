"""Verdicts on claims about models that were trained alike: the models are the units, by Student's t."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import polars as pl

from trisect.claims.rule import UNDECIDED, ClaimColumns, Decided, TestedPart, decide
from trisect.claims.sampled import NOT_MEASURED, ONE_SEED
from trisect.core.claim import Claim, Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.tables import frame
from trisect.papers import FIRST_REVISION, SOURCES
from trisect.stats.paired import Sample, summary, t_tested
from trisect.stats.reach import seeds_needed
from trisect.stats.tested import NO_TEST, PValues

ONE_MODEL = "one model gives numbers and no verdict"
NO_SPREAD = "no spread between the models, so no t test can be made"
HEAD_BY_HEAD = (
    "tested head by head: the mean over models is of the heads that speak least for it, which noise alone can put "
    "beyond the bound, so that it may support and not refute"
)


class PartOfModels(NamedTuple):
    """What models have of one part: a number each, why no verdict may rest on it or null, and whether each is of its weakest head."""

    values: Sequence[float]
    barred: str | None
    by_head: bool = False


@dataclass(frozen=True)
class ModelsPart(TestedPart):
    """A part with what its models gave, in short; one that is tested head by head cannot be refuted."""

    sample: Sample
    by_head: bool = False

    @property
    def unrefutable(self) -> bool:
        """Whether the mean lies where only a verdict against the claim could rest on it, and none may."""
        return self.by_head and not self.slack > 0

    @property
    def reason(self) -> str | None:
        """Why this part has no verdict of its own, or null."""
        return super().reason or (HEAD_BY_HEAD if self.unrefutable else None)


def judge_models(
    source: Source,
    values: Mapping[str, Sequence[float]],
    about: Mapping[str, object],
    barred: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """The table `claims` of a source whose unit is the model: a row per claim and one for each of its parts.

    `values` holds for every Statistic by name a number of each model, paired already (norms less weights of the same
    model); one that is missing was not measured. `barred` gives, for single statistics, the reason why no verdict may rest on
    them. With fewer than two models, or than a claim asks for, there is none. `about` stands in the column `runs`.
    """

    def read(claim: Claim, part: Part) -> PartOfModels:
        assert isinstance(part.effect, Statistic), "claims about models speak of statistics"
        return PartOfModels(values.get(part.effect.name, ()), (barred or {}).get(part.effect.name))

    return frame("claims", _judged(source, read, about))


def judge_over_models(claims: Sequence[pl.DataFrame], about: Mapping[str, object]) -> pl.DataFrame:
    """The table `claims` of a recipe: what each of its models' own tables has as a part's effect, tested over the models.

    Every source in `claims`, which are of one experiment, is a family as it is for one model. What bars a part in any model
    bars it over them: all of them have read the same texts, so that models do not make up for texts that are too few. A part
    that is tested head by head enters with each model's weakest head, which noise moves towards the bound: a mean of these
    may support a claim and cannot refute it. `about` stands in the column `runs`; the column `over` says that `n` counts models.
    """
    rows: list[ClaimColumns] = []
    for source in _sources(claims[0]):

        def read(claim: Claim, part: Part, key: str = source.key) -> PartOfModels:
            mine = [(pl.col("source") == key) & (pl.col("claim") == claim.id) & (pl.col("part") == part.name)]
            return _of_models([row for one in claims for row in one.filter(*mine).iter_rows(named=True)])

        rows += [row | {"over": "model"} | _why_missing(row, claims) for row in _judged(source, read, about)]
    return frame("claims", rows)


def _why_missing(row: ClaimColumns, claims: Sequence[pl.DataFrame]) -> ClaimColumns:
    """The reason for what was not measured on any model, where all of them say the same of it."""
    if row["reason"] != NOT_MEASURED:
        return {}
    mine = [pl.col(name).eq_missing(pl.lit(row.get(name), pl.String)) for name in ("source", "claim", "part")]
    said = {reason for one in claims for reason in one.filter(*mine)["reason"]}
    return {"reason": said.pop()} if len(said) == 1 else {}


def _of_models(rows: Sequence[Mapping[str, Any]]) -> PartOfModels:
    """One part, given its row in every model's own table; what is tested against a null of each head has p and no spread."""
    values = [row["effect"] for row in rows if row["effect"] is not None]
    reasons = [row["reason"] for row in rows if row["reason"] not in (None, UNDECIDED, ONE_SEED)]
    barred = None
    if values and reasons:
        first = reasons[0]
        barred = f"in {reasons.count(first)} of {len(rows)} models: {first}"
    by_head = any(row["p"] is not None and row["spread"] is None for row in rows)
    return PartOfModels(values, barred, by_head)


def _sources(claims: pl.DataFrame) -> list[Source]:
    """The sources whose claims a table holds, under the revision that it was judged by."""
    found = claims.select("source", pl.col("revision").fill_null(1)).unique(maintain_order=True).rows()
    return [s for key, revision in found for s in (*SOURCES, *FIRST_REVISION) if (s.key, s.revision) == (key, revision)]


def _judged(
    source: Source,
    read: Callable[[Claim, Part], PartOfModels],
    about: Mapping[str, object],
) -> list[ClaimColumns]:
    tested = [tuple(_test(part, claim, source, read(claim, part)) for part in claim.parts) for claim in source.claims]
    rows: list[ClaimColumns] = []
    for claim, parts, whole in zip(
        source.claims, tested, decide(tested, NOT_MEASURED, revision=source.revision, beside=source.beside), strict=True
    ):
        named = {
            "source": source.key,
            "claim": claim.id,
            "revision": source.revision,
            "runs": canonical(dict(about)),
        }
        rows.append({**named, "sentence": claim.sentence, **_whole(whole, source.family)})
        rows += [{**named, **test.row()} for test in parts]
    return rows


def _test(part: Part, claim: Claim, source: Source, given: PartOfModels) -> ModelsPart:
    sample = summary(given.values)
    reason = given.barred
    if not sample.n:
        reason = NOT_MEASURED
    elif sample.n == 1:
        reason = ONE_MODEL
    elif sample.n < claim.least_seeds:
        reason = f"{claim.least_seeds} models trained alike are asked for, {int(sample.n)} given"
    tested = t_tested(sample, part.direction, part.bound, source.family, ONE_MODEL if sample.n == 1 else NO_SPREAD)
    if given.barred is not None:
        tested = replace(tested, p=NO_TEST, reason=given.barred)
    elif given.by_head:
        tested = replace(tested, p=PValues(tested.p.p_for, NO_TEST.p_against))
    return ModelsPart(part, tested, reason, sample, given.by_head)


def _whole(whole: Decided[ModelsPart], family: int) -> ClaimColumns:
    measured = all(test.sample.n > 0 for test in whole.deciding)
    needed = None
    if whole.undecided and whole.barred is None and not any(test.unrefutable for test in whole.deciding):
        needed = seeds_needed([(t.sample, t.part.direction, t.part.bound) for t in whole.deciding], family)
    return {
        **(whole.weakest.columns() if measured else {}),
        **whole.row(),
        "n": min(test.tested.n for test in whole.deciding),
        "reason": whole.why(needed) if whole.undecided else None,
        "seeds_needed": needed,
    }
