"""The training study: attacks with their controls, rewinding, freezing, erasure and ties, and what its claims say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trisect.core.finding import Finding
from trisect.experiments.dissect.evidence import Line
from trisect.experiments.dissect.parts.base import DissectPart, DissectStep, Findings, PartRunner, Results
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.study import STUDY
from trisect.experiments.study.settings import DesignSource, StudyMachine, StudySettings

# The measures that are evidence, in the order of the table, with their names there.
KINDS = {
    "all_layers": "All layers at once",
    "attack": "Attack",
    "control": "Attack minus control",
    "probe": "Removed by the attack",
    "erasure": "Erasure",
    "rewinding": "Rewinding",
    "midstage": "Mid-stage rewinding",
    "freezing": "Freezing",
    "tying": "Tying",
    "ablation": "Ablation in the study",
}
# The claims that speak of a measure, and of one label where it is about a label.
CLAIMS = {
    ("attack", "pos"): ("A-1", "A-2", "A-3", "A-4", "A-5", "A-9"),
    ("attack", "dep"): ("A-6", "A-7", "A-8", "A-9"),
    ("all_layers", "rewinding"): ("A-15",),
    ("all_layers", "freezing"): ("A-15",),
    ("rewinding", ""): ("A-10", "A-11", "A-14"),
    ("midstage", ""): ("A-12",),
    ("freezing", ""): ("A-13", "A-14"),
    ("tying", ""): ("D-2",),
}


def begins(asked: DissectSettings) -> tuple[DissectStep, ...]:
    """The study in the folder training."""
    machine = StudyMachine.of(asked.machine)
    return (DissectStep(STUDY, StudySettings(DesignSource(asked.study, seeds=asked.seeds), machine), "training"),)


def run(asked: DissectSettings, runner: PartRunner) -> Results:
    """Train, or go on."""
    return tuple(map(runner.run, begins(asked)))


def evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """A line for every finding of these measures, by measure."""
    for kind in KINDS:
        for one in found[0]:
            if one.measure == kind and (line := _line(one)) is not None:
                yield line


def _line(one: Finding) -> Line | None:
    claims = CLAIMS.get((one.measure, one.groups[0] if one.groups else ""), ())
    return Line.of(one, KINDS[one.measure], claims)


TRAINING = DissectPart(
    "training",
    "Rewinding, freezing, tying",
    "What is lost when q, k or v is rewound, frozen, replaced or shared, in all layers at once?",
    120.0,
    run,
    evidence,
    begins,
)
