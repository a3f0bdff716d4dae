"""Verdicts on claims about the heads of one given model: against a null per head, or with heads resampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from trisect.claims.rule import UNDECIDED, ClaimColumns, Decided, TestedPart, decide, slack
from trisect.claims.sampled import LEAST, NO_SPREAD, NOT_MEASURED, too_few
from trisect.core.claim import Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.tables import frame
from trisect.stats.bootstrap import draws_spread, percentile_tested
from trisect.stats.correct import conjunction
from trisect.stats.tested import ALPHA, PValues, Reals, Tested, number

NO_NULL = "heads are as wide as the model, so that random ones overlap as much"


class Against(NamedTuple):
    """A statistic of every head that has a null: its distance from the null's mean, and what the null says of the bound.

    `p_for` and `p_against` are one-sided p-values of the part's claim per head; `ends` [4 H] are the ends of the
    interval at 95 %, then at the family's level, made of the null's own quantiles.
    """

    effects: Reals
    p_for: Reals
    p_against: Reals
    ends: Reals


class ResampledHeads(NamedTuple):
    """A mean over heads, and the same over `n` units resampled with replacement; `unit` is the scarcer of them."""

    effect: float
    replicates: Reals
    n: int
    unit: str = "head"


def judge_heads(
    source: Source,
    found: Mapping[str, Against | ResampledHeads],
    about: Mapping[str, object],
    missing: str | Mapping[str, str] = NOT_MEASURED,
) -> pl.DataFrame:
    """The table `claims` of a source whose unit is the head; a Statistic that `found` lacks was not measured.

    `missing` says why not, of all or of each by its name.

    A part that is tested head by head holds when it holds for every head (intersection–union): p_for is the largest of
    the heads', p_against their smallest times their number; it carries the head that speaks for it least.
    """
    why = {} if isinstance(missing, str) else missing
    rest = missing if isinstance(missing, str) else NOT_MEASURED

    def reason(part: Part) -> str:
        return why.get(part.effect.name, rest) if isinstance(part.effect, Statistic) else rest

    tested = [tuple(_test(part, found, source, reason(part)) for part in claim.parts) for claim in source.claims]
    whole_claims = decide(tested, {rest, *why.values()}, beside=source.beside)
    rows: list[ClaimColumns] = []
    for claim, parts, whole in zip(source.claims, tested, whole_claims, strict=True):
        named = {"source": source.key, "claim": claim.id, "runs": canonical(dict(about))}
        named |= {"revision": source.revision} if source.revision > 1 else {}
        rows.append({**named, "sentence": claim.sentence, **_whole(whole)})
        rows += [{**named, **test.row()} for test in parts]
    return frame("claims", rows)


def _test(
    part: Part, found: Mapping[str, Against | ResampledHeads], source: Source, missing: str = NOT_MEASURED
) -> TestedPart:
    assert isinstance(part.effect, Statistic), "claims about heads speak of statistics"
    given = found.get(part.effect.name)
    if given is None:
        return TestedPart(part, Tested(reason=missing), missing)
    if isinstance(given, Against):
        return _against_null(part, given)
    barred = None
    if not np.isfinite(given.effect):
        barred = NOT_MEASURED
    elif given.n < LEAST:
        barred = too_few(given.n, given.unit)
    elif source.revision == 1 and not draws_spread(given.replicates) > 0:
        barred = NO_SPREAD
    tested = percentile_tested(
        number(given.effect), given.replicates, given.n, given.n, part.direction, part.bound, source.family, barred
    )
    return TestedPart(part, tested, barred)


def _against_null(part: Part, given: Against) -> TestedPart:
    """A part that must hold for every head, carrying the head that speaks for it least."""
    if not len(given.effects):
        return TestedPart(part, Tested(reason=NO_NULL), NO_NULL)
    weakest = int(np.argmin([slack(part, float(effect)) for effect in given.effects]))
    every = conjunction([PValues(*both) for both in zip(given.p_for, given.p_against, strict=True)])
    low, high, low_family, high_family = (number(end) for end in given.ends[:, weakest])
    effect, n = float(given.effects[weakest]), len(given.effects)
    return TestedPart(part, Tested(effect, n, None, every, low, high, low_family, high_family), None)


def _why(whole: Decided[TestedPart]) -> str:
    """Why a claim is open: what bars it, the correction over its source where that alone keeps it open, or its spread."""
    if whole.barred is None and whole.p < ALPHA:
        return f"p is {whole.p:.2g}, and {whole.p_holm:.2g} after Holm's correction over its source's claims"
    return whole.barred or UNDECIDED


def _whole(whole: Decided[TestedPart]) -> ClaimColumns:
    """The row of the claim as a whole: its verdict, and the effect of its weakest part.

    How many heads would decide is not said: a model has the heads that it has.
    """
    measured = all(test.tested.effect is not None for test in whole.deciding)
    return {
        **(whole.weakest.columns() if measured else {}),
        **whole.row(),
        "n": min(test.tested.n for test in whole.deciding),
        "reason": _why(whole) if whole.undecided else None,
    }
