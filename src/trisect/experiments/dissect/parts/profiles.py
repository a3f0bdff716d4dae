"""Profile: what q, k and v of each head keep and drop, in a pretrained model where one is given, else in one just trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trisect.experiments.dissect.evidence import Line
from trisect.experiments.dissect.parts.base import (
    DissectPart,
    DissectStep,
    Findings,
    PartRunner,
    Results,
    trained_models,
)
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.profile import PROFILE
from trisect.experiments.profile.settings import ProfileSettings
from trisect.lab.inputs import ModelSource

CLAIMS = ("F-2", "F-3")
LABELS = ("position", "pos", "previous")
WORDS = 4_000


def run(asked: DissectSettings, runner: PartRunner) -> Results:
    """One model over the embedded words."""
    model = next(iter(trained_models(runner).values())) if asked.model is None else asked.model
    settings = ProfileSettings(ModelSource(model), "embedded", labels=LABELS, words=WORDS)
    return (runner.run(DissectStep(PROFILE, settings, "profile")),)


def evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """For each label what heads keep of it beyond random maps of the same input."""
    for one in found[0]:
        if one.measure == "profile":
            what = f"{one.title}, accuracy of a probe less that from random maps, mean over heads"
            line = Line.of(replace(one, what=what, per="head"), "Profile", CLAIMS)
            yield from () if line is None else (line,)


PROFILES = DissectPart(
    "profile",
    "What each keeps and drops",
    "What do the queries, keys and values of a head keep of a word, and what do they drop, beside random maps of the same input?",
    40.0,
    run,
    evidence,
)
