"""Claims about the heads of one given model: each head against its null, or heads resampled, by the rule of all claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trisect.claims.sampled import LEAST, NO_SPREAD, NOT_MEASURED, UNDECIDED, interval, sides, too_few
from trisect.claims.verdicts import slack
from trisect.core.claim import Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.stats import ALPHA, ROUNDING, Sides, conjunction, holm, number, two_sided
from trisect.core.tables import frame

NO_NULL = "heads are as wide as the model, so that random ones overlap as much"

Reals = NDArray[np.float64]


class Against(NamedTuple):
    """A statistic of every head that has a null: its distance from the null's mean, and what the null says of the bound.

    `p_for` and `p_against` are one-sided p-values of the part's claim per head; `ends` [4 H] are the ends of the
    interval at 95 %, then at the family's level, made of the null's own quantiles.
    """

    effects: Reals
    p_for: Reals
    p_against: Reals
    ends: Reals


class Resampled(NamedTuple):
    """A mean over heads, and the same over `n` units drawn anew with replacement; `unit` is the scarcer of them."""

    effect: float
    replicates: Reals
    n: int
    unit: str = "head"


class Tested(NamedTuple):
    """A part that was tested, or why it could not be."""

    part: Part
    sides: Sides
    barred: str | None
    row: Mapping[str, Any]


def judge_heads(source: Source, found: Mapping[str, Against | Resampled], about: Mapping[str, Any]) -> pl.DataFrame:
    """The table `claims` of a source whose unit is the head; a Statistic that `found` lacks was not measured.

    A part that is tested head by head holds when it holds for every head (intersection–union): p_for is the largest of
    the heads', p_against their smallest times their number; it carries the head that speaks for it least.
    """
    family = len(source.claims)
    tested = [tuple(_test(part, found, family) for part in claim.parts) for claim in source.claims]
    deciding = [[test for test in parts if test.part.decides] for parts in tested]
    joint = [conjunction([test.sides for test in parts]) for parts in deciding]
    barred = [_barred(parts) for parts in deciding]
    p = [1.0 if why else float(two_sided(both)) for both, why in zip(joint, barred, strict=True)]
    rows: list[dict[str, Any]] = []
    for i, (claim, p_holm) in enumerate(zip(source.claims, holm(p), strict=True)):
        named = {"source": source.key, "claim": claim.id, "runs": canonical(dict(about))}
        whole = _whole(deciding[i], joint[i], barred[i], float(p_holm))
        rows.append({**named, "sentence": claim.sentence, "p": p[i], **whole})
        for test in tested[i]:
            own = {"part": test.part.name, "sentence": test.part.sentence, "decides": test.part.decides}
            alone = None if test.barred else number(two_sided(test.sides))
            rows.append({**named, **own, **test.row, "p": alone, "reason": test.barred})
    return frame("claims", rows)


def _test(part: Part, found: Mapping[str, Against | Resampled], family: int) -> Tested:
    assert isinstance(part.effect, Statistic), "claims about heads speak of statistics"
    said = {
        "margin": part.margin,
        "bound": part.bound,
        "direction": part.direction,
        "unit": part.unit,
        "margin_reason": part.reason,
    }
    nothing = Sides(np.ones(()), np.ones(()))
    given = found.get(part.effect.name)
    if given is None:
        return Tested(part, nothing, NOT_MEASURED, said | {"n": 0})
    if isinstance(given, Against):
        if not len(given.effects):
            return Tested(part, nothing, NO_NULL, said | {"n": 0})
        weakest = int(np.argmin([slack(part, float(effect)) for effect in given.effects]))
        against = min(1.0, len(given.effects) * float(given.p_against.min()))
        row = said | _ends(given.ends[:, weakest]) | {"effect": float(given.effects[weakest]), "n": len(given.effects)}
        return Tested(part, Sides(given.p_for.max(), np.asarray(against)), None, row)
    ends = [interval(given.replicates, given.n, 1 - level) for level in (ALPHA, ALPHA / family)]
    spread = float(given.replicates.std(ddof=1)) if len(given.replicates) > 1 else float("nan")
    row = said | _ends([*ends[0], *ends[1]]) | {"effect": number(given.effect), "n": given.n}
    row |= {"spread": number(spread * given.n**0.5)}
    barred = None
    if not np.isfinite(given.effect):
        barred = NOT_MEASURED
    elif given.n < LEAST:
        barred = too_few(given.n, given.unit)
    elif not np.ptp(given.replicates) > ROUNDING:
        barred = NO_SPREAD
    tested = nothing if barred else sides(given.replicates, given.n, part.direction, part.bound)
    return Tested(part, tested, barred, row)


def _barred(deciding: Sequence[Tested]) -> str | None:
    """Why a claim cannot be tested, or null: first of all because a part of it was not measured."""
    reasons = [test.barred for test in deciding if test.barred]
    return NOT_MEASURED if NOT_MEASURED in reasons else next(iter(reasons), None)


def _ends(ends: Sequence[float | Reals] | Reals) -> dict[str, float | None]:
    return dict(zip(("low", "high", "low_family", "high_family"), map(number, ends), strict=True))


def _weakness(test: Tested) -> tuple[float, float, float]:
    """How little a part speaks for its claim: by its p-values, and where these are the same by its effect."""
    return float(test.sides.p_for), -float(test.sides.p_against), -slack(test.part, test.row["effect"])


def _whole(deciding: Sequence[Tested], joint: Sides, barred: str | None, p_holm: float) -> dict[str, Any]:
    """The row of the claim as a whole: its verdict, and the effect of its weakest part."""
    verdict = "inconclusive"
    if p_holm < ALPHA:
        verdict = "supported" if joint.p_for < joint.p_against else "refuted"
    undecided = verdict == "inconclusive"
    measured = all(test.row.get("effect") is not None for test in deciding)
    weakest = max(deciding, key=_weakness) if measured else deciding[0]
    return {
        **(weakest.row if measured else {}),
        "decides": True,
        "n": min(test.row["n"] for test in deciding),
        "p_holm": p_holm,
        "verdict": verdict,
        "reason": (barred or UNDECIDED) if undecided else None,
    }
