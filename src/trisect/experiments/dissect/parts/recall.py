"""Recall: models with and without pretraining, asked where people were born."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trisect.experiments.dissect.evidence import Line
from trisect.experiments.dissect.parts.base import DissectPart, DissectStep, Findings, PartRunner, Results, of
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.recall import RECALL as RECALL_EXPERIMENT
from trisect.experiments.recall import settings as recall

SEEDS = (1,)
CLAIMS = ("B-1", "B-2", "B-3", "B-4")


def begins(asked: DissectSettings) -> tuple[DissectStep, ...]:
    """Recall in its folder."""
    settings = recall.RecallSettings(seeds=SEEDS, settings=asked.recall or {}, machine=asked.machine)
    return (DissectStep(RECALL_EXPERIMENT, settings, "recall"),)


def run(asked: DissectSettings, runner: PartRunner) -> Results:
    """Train, or go on, and ask."""
    return tuple(map(runner.run, begins(asked)))


def evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """The share of retrieved answers that are lost when a component of one layer is replaced by its mean."""
    if (stay := of(found[0], "survival")) is not None:
        values = tuple(one._replace(mean=1 - one.mean) for one in stay.values if one.mean is not None)
        lost = replace(stay, measure="recall", values=values, what=stay.what.replace("that stay", "lost"))
        line = Line.of(lost, "Recall", CLAIMS, "no interval, so not ranked")
        yield from () if line is None else (line,)


RECALL = DissectPart(
    "recall",
    "Answers from memory",
    "What does pretraining add to what a model can answer, and which of q, k and v hold the answers?",
    75.0,
    run,
    evidence,
    begins,
)
