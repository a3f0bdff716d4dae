"""Attention worked by hand: the constructions, computed beside their laws."""

from __future__ import annotations

from collections.abc import Iterator

from trisect.core.finding import Finding
from trisect.experiments.dissect.parts.base import DissectPart, DissectStep, PartRunner, Results
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.theory import THEORY
from trisect.experiments.theory.settings import TheorySettings


def run(asked: DissectSettings, runner: PartRunner) -> Results:
    """All constructions."""
    return (runner.run(DissectStep(THEORY, TheorySettings(), "theory")),)


def says(results: Results) -> Iterator[Finding]:
    """How many bounds hold, in the place of a line for every construction."""
    found = results[0].findings
    bounded = [one for one in found if one.comparison]
    held = sum(one.comparison == "error ≤ law" for one in bounded)
    yield Finding(
        "laws",
        f"{len(found)} constructions are computed beside the laws derived for them: of {len(bounded)} bounds {held} hold.",
    )


BY_HAND = DissectPart(
    "theory",
    "Attention by hand",
    "What can attention do when worked by hand?",
    10.0,
    run,
    says=says,
    page="theory/theory.html",
)
