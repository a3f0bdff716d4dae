"""Claims about the heads of one given model: each head against its null, or heads resampled, by the rule of all claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trisect.claims.rule import UNDECIDED, Decided, decide, slack
from trisect.claims.sampled import LEAST, NO_SPREAD, NOT_MEASURED, too_few
from trisect.core.claim import Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.tables import frame
from trisect.stats.intervals import interval, sides, spread
from trisect.stats.tests import ALPHA, Sides, number, two_sided

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

    @property
    def slack(self) -> float:
        """How far the effect lies on the claimed side of the bound, in the part's own unit."""
        return float("nan") if self.row.get("effect") is None else slack(self.part, self.row["effect"])


def judge_heads(source: Source, found: Mapping[str, Against | Resampled], about: Mapping[str, Any]) -> pl.DataFrame:
    """The table `claims` of a source whose unit is the head; a Statistic that `found` lacks was not measured.

    A part that is tested head by head holds when it holds for every head (intersection–union): p_for is the largest of
    the heads', p_against their smallest times their number; it carries the head that speaks for it least.
    """
    family = len(source.claims)
    tested = [tuple(_test(part, found, family) for part in claim.parts) for claim in source.claims]
    rows: list[dict[str, Any]] = []
    for claim, parts, whole in zip(source.claims, tested, decide(tested, NOT_MEASURED), strict=True):
        named = {"source": source.key, "claim": claim.id, "runs": canonical(dict(about))}
        rows.append({**named, "sentence": claim.sentence, **_whole(whole)})
        for test in parts:
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
    wide = spread(given.replicates)
    row = said | _ends([*ends[0], *ends[1]]) | {"effect": number(given.effect), "n": given.n}
    row |= {"spread": number(wide * given.n**0.5)}
    barred = None
    if not np.isfinite(given.effect):
        barred = NOT_MEASURED
    elif given.n < LEAST:
        barred = too_few(given.n, given.unit)
    elif not wide > 0:
        barred = NO_SPREAD
    tested = nothing if barred else sides(given.replicates, given.n, part.direction, part.bound)
    return Tested(part, tested, barred, row)


def _ends(ends: Sequence[float | Reals] | Reals) -> dict[str, float | None]:
    return dict(zip(("low", "high", "low_family", "high_family"), map(number, ends), strict=True))


def _whole(whole: Decided[Tested]) -> dict[str, Any]:
    """The row of the claim as a whole: its verdict, and the effect of its weakest part.

    How many heads would decide is not said: a model has the heads that it has.
    """
    measured = all(test.row.get("effect") is not None for test in whole.deciding)
    return {
        **(whole.weakest.row if measured else {}),
        "decides": True,
        "n": min(test.row["n"] for test in whole.deciding),
        "p": whole.p,
        "p_holm": whole.p_holm,
        "verdict": whole.verdict,
        "reason": (whole.barred or UNDECIDED) if whole.undecided else None,
    }
