"""Rule: parts that were tested, joined into claims and corrected over their source; what every kind of evidence shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from trisect.core.claim import Part
from trisect.stats.tests import ALPHA, Sides, conjunction, holm, two_sided

UNDECIDED = "not decided at the measured spread"


class Tested(Protocol):
    """A part with its p-values, how far its effect lies on the claimed side, and the rule that bars a verdict."""

    @property
    def part(self) -> Part:
        """What is claimed."""
        ...

    @property
    def sides(self) -> Sides:
        """What speaks for it and against it."""
        ...

    @property
    def slack(self) -> float:
        """How far the effect lies on the claimed side of the bound, in the part's own unit; NaN where there is none."""
        ...

    @property
    def barred(self) -> str | None:
        """Why no verdict can rest on it, or null."""
        ...


T = TypeVar("T", bound=Tested)


@dataclass(frozen=True)
class Decided(Generic[T]):
    """A claim by the rule: the parts that decide, both sides of their conjunction, p before and after Holm, and what bars it."""

    deciding: tuple[T, ...]
    sides: Sides
    p: float
    p_holm: float
    barred: str | None

    @property
    def verdict(self) -> str:
        """supported, refuted or inconclusive; only p after Holm decides."""
        if not self.p_holm < ALPHA:
            return "inconclusive"
        return "supported" if self.sides.p_for < self.sides.p_against else "refuted"

    @property
    def undecided(self) -> bool:
        """Whether there is no verdict."""
        return self.verdict == "inconclusive"

    @property
    def weakest(self) -> T:
        """The part that speaks least for the claim: by its p-values, and where these are the same by its effect."""
        return max(self.deciding, key=lambda t: (float(t.sides.p_for), -float(t.sides.p_against), -t.slack))


def decide(claims: Sequence[Sequence[T]], foremost: str, everywhere: str | None = None) -> list[Decided[T]]:
    """Every claim of a source, given its parts (section E of the definitions).

    A claim that a rule bars stays in the family with p = 1; `everywhere` bars all of them, and of several reasons
    `foremost` is the one that is said.
    """
    found = []
    for parts in claims:
        deciding = tuple(test for test in parts if test.part.decides)
        reasons = [test.barred for test in deciding if test.barred is not None]
        barred = everywhere or (foremost if foremost in reasons else next(iter(reasons), None))
        joint = conjunction([test.sides for test in deciding])
        found.append((deciding, joint, 1.0 if barred else float(two_sided(joint)), barred))
    adjusted = holm([p for _, _, p, _ in found])
    return [
        Decided(deciding, joint, p, float(p_holm), barred)
        for (deciding, joint, p, barred), p_holm in zip(found, adjusted, strict=True)
    ]


def slack(part: Part, effect: float) -> float:
    """How far `effect` lies on the claimed side of the part's bound; negative on the other side."""
    if part.direction == "within":
        return part.bound - abs(effect)
    return effect - part.bound if part.direction == "above" else part.bound - effect
