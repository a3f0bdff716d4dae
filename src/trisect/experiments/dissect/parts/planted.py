"""Planted roles: what q, k and v do where the truth is known, and which methods find it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trisect.core.finding import Finding
from trisect.experiments.dissect.evidence import Line
from trisect.experiments.dissect.parts.base import DissectPart, DissectStep, Findings, PartRunner, Results, found
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.study import STUDY
from trisect.experiments.study.settings import DesignSource, StudyMachine, StudySettings
from trisect.papers import roles

CLAIMS = ("F-1", "F-4")
SAID = ("answer", "planted")  # shares at single sites stand on the study's own page
WHAT = (
    "share of pairs in which the model gives the answer that the replaced component predicts, at the layer that reads"
)


def begins(asked: DissectSettings) -> tuple[DissectStep, ...]:
    """The study in the folder roles."""
    machine = StudyMachine.of(asked.machine)
    return (DissectStep(STUDY, StudySettings(DesignSource(asked.roles), machine), "roles"),)


def run(asked: DissectSettings, runner: PartRunner) -> Results:
    """Train, or go on."""
    return tuple(map(runner.run, begins(asked)))


def evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """The share of pairs in which each component shows itself, which ranks nothing: all three are needed."""
    for one in found[0]:
        if one.measure == "interchange_own":
            values = tuple(
                value._replace(name=value.name[0]) for value in one.values if value.name.endswith(f"@{roles.LAYER}")
            )
            line = Line.of(replace(one, measure="interchange", values=values, what=WHAT), "Interchange", CLAIMS)
            yield from () if line is None else (line,)


def says(results: Results) -> Iterator[Finding]:
    """The answer, and how well each method finds what was planted."""
    yield from (one for one in found(results) if one.measure in SAID)


PLANTED = DissectPart(
    "roles",
    "Planted roles",
    "Where it is known what query, key and value have to carry: does each do that, and which methods find it?",
    90.0,
    run,
    evidence,
    begins,
    says,
)
