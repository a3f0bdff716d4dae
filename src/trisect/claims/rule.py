"""The rule of all verdicts: tested parts joined into claims and corrected by Holm over their source."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from trisect.core.claim import Part
from trisect.core.finding import NOT_TESTED
from trisect.stats.correct import conjunction, holm, two_sided
from trisect.stats.tested import ALPHA, PValues, Tested, number

UNDECIDED = "not decided at the measured spread"

ClaimColumns: TypeAlias = dict[str, float | int | str | bool | None]


@dataclass(frozen=True)
class TestedPart:
    """A part of a claim with its test, and the rule that bars a verdict from resting on it, or null."""

    part: Part
    tested: Tested
    barred: str | None

    @property
    def slack(self) -> float:
        """How far the effect lies on the claimed side of the bound, in the part's own unit; NaN where there is none."""
        return float("nan") if self.tested.effect is None else slack(self.part, self.tested.effect)

    @property
    def reason(self) -> str | None:
        """Why this part has no verdict of its own, or null."""
        return self.tested.reason if self.barred is None else self.barred

    def columns(self) -> ClaimColumns:
        """What the row of a part and that of a whole claim share: effect, intervals, margin, n and spread."""
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
        """The row of this part: what it says, its numbers, its own p on either side, and why it has none."""
        said = {"part": self.part.name, "sentence": self.part.sentence, "decides": self.part.decides}
        p = None if self.tested.reason is not None else number(two_sided(self.tested.p))
        return {**said, **self.columns(), "p": p, "reason": self.reason}


T = TypeVar("T", bound=TestedPart)


@dataclass(frozen=True)
class Decided(Generic[T]):
    """A claim by the rule: the parts that decide, both sides of their conjunction, p before and after Holm, and what bars it."""

    deciding: tuple[T, ...]
    sides: PValues
    p: float
    p_holm: float
    barred: str | None
    collected: bool = True

    @property
    def verdict(self) -> str:
        """supported, refuted or inconclusive, where only p after Holm decides; not tested where its data were not collected."""
        if not self.collected:
            return NOT_TESTED
        if not self.p_holm < ALPHA:
            return "inconclusive"
        return "supported" if self.sides.p_for < self.sides.p_against else "refuted"

    def row(self) -> ClaimColumns:
        """The columns of the claim as a whole that every kind of evidence has."""
        return {"decides": True, "p": self.p, "p_holm": self.p_holm, "verdict": self.verdict}

    @property
    def undecided(self) -> bool:
        """Whether there is no verdict."""
        return self.verdict in ("inconclusive", NOT_TESTED)

    def why(self, needed: int | None) -> str:
        """Why there is no verdict: what bars it, or why its weakest part has no test, or another one where no number of units would do."""
        untested = [test.reason for test in (self.weakest, *self.deciding) if test.reason is not None]
        return self.barred or self.weakest.reason or (untested[0] if untested and needed is None else UNDECIDED)

    @property
    def weakest(self) -> T:
        """The part that speaks least for the claim: by its p-values, and where these are the same by its effect.

        One of which no test can be made speaks neither for the claim nor against it: a part that speaks against it comes before.
        """
        return max(self.deciding, key=lambda t: (_doubt(t), -t.tested.p_against, -t.slack))


def decide(
    claims: Sequence[Sequence[T]],
    missing: str | Collection[str],
    everywhere: str | None = None,
    revision: int = 2,
    beside: int = 0,
) -> list[Decided[T]]:
    """Every claim of a source, given its parts (section E of the definitions).

    A claim that a rule bars stays in the family with p = 1; `everywhere` bars all of them. Of several reasons `missing`, that
    its data were not collected (or one of several such reasons), is the one that is said: the claim is then not tested
    (inconclusive by revision 1). `beside` claims of the same source, judged on other data, stay in the family with p = 1.
    """
    found = []
    gone = (missing,) if isinstance(missing, str) else tuple(missing)
    for parts in claims:
        deciding = tuple(test for test in parts if test.part.decides)
        reasons = [test.barred for test in deciding if test.barred is not None]
        lacking = next((reason for reason in reasons if reason in gone), None)
        absent = lacking is not None and revision > 1
        barred = lacking if absent else everywhere or lacking or next(iter(reasons), None)
        joint = conjunction([test.tested.p for test in deciding])
        found.append((deciding, joint, 1.0 if barred else float(two_sided(joint)), barred, not absent))
    adjusted = holm([*(p for _, _, p, _, _ in found), *[1.0] * beside])
    return [
        Decided(deciding, joint, p, float(p_holm), barred, collected)
        for (deciding, joint, p, barred, collected), p_holm in zip(found, adjusted, strict=False)
    ]


def _doubt(test: TestedPart) -> float:
    """Near 1 where a part speaks against its claim, near 0 where it speaks for it."""
    return test.tested.p_for if test.tested.reason is None else 0.5


def slack(part: Part, effect: float) -> float:
    """How far `effect` lies on the claimed side of the part's bound; negative on the other side."""
    if part.direction == "within":
        return part.bound - abs(effect)
    return effect - part.bound if part.direction == "above" else part.bound - effect
