"""Verdicts on claims about models that were trained alike: the models are the units, by Student's t."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from trisect.claims.rule import UNDECIDED, ClaimColumns, Decided, TestedPart, decide
from trisect.claims.sampled import NOT_MEASURED
from trisect.core.claim import Claim, Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.tables import frame
from trisect.stats.paired import Sample, summary, t_tested
from trisect.stats.reach import seeds_needed

ONE_MODEL = "one model gives numbers and no verdict"
NO_SPREAD = "no spread between the models, so no t test can be made"


@dataclass(frozen=True)
class ModelsPart(TestedPart):
    """A part with what its models gave, in short."""

    sample: Sample


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
    tested = [
        tuple(_test(part, claim, source, values, barred or {}) for part in claim.parts) for claim in source.claims
    ]
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
    return frame("claims", rows)


def _test(
    part: Part, claim: Claim, source: Source, values: Mapping[str, Sequence[float]], barred: Mapping[str, str]
) -> ModelsPart:
    assert isinstance(part.effect, Statistic), "claims about models speak of statistics"
    name = part.effect.name
    sample = summary(values.get(name, ()))
    reason = None
    if not sample.n:
        reason = NOT_MEASURED
    elif sample.n == 1:
        reason = ONE_MODEL
    elif sample.n < claim.least_seeds:
        reason = f"{claim.least_seeds} models trained alike are asked for, {int(sample.n)} given"
    elif name in barred:
        reason = barred[name]
    tested = t_tested(sample, part.direction, part.bound, source.family, ONE_MODEL if sample.n == 1 else NO_SPREAD)
    return ModelsPart(part, tested, reason, sample)


def _whole(whole: Decided[ModelsPart], family: int) -> ClaimColumns:
    measured = all(test.sample.n > 0 for test in whole.deciding)
    untested = next((test.reason for test in whole.deciding if test.reason is not None), UNDECIDED)
    needed = None
    if whole.undecided and whole.barred is None:
        needed = seeds_needed([(t.sample, t.part.direction, t.part.bound) for t in whole.deciding], family)
    return {
        **(whole.weakest.columns() if measured else {}),
        **whole.row(),
        "n": min(test.tested.n for test in whole.deciding),
        "reason": (whole.barred or untested) if whole.undecided else None,
        "seeds_needed": needed,
    }
