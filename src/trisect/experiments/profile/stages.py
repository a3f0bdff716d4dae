"""Checkpoints of a profile: a study's epochs, whose weights meet what the final model reads, or revisions of a published model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trisect.core.errors import SpecError
from trisect.core.subject import Subject
from trisect.core.tables import NewRow
from trisect.core.trace import Address, Projections
from trisect.experiments.profile.statistics import LayerScores, mean_over_model, mean_over_random
from trisect.lab.inputs import ModelSource
from trisect.lab.subject import beside, check_there, read_epochs
from trisect.lm.reading import OwnModel
from trisect.stats.tested import finite

ALL = "all"
COMPONENTS = ("q", "k", "v")
EPOCHS = (
    "Of a study's epochs the weights of q, k and v are kept, not whole models: at each epoch they are applied to what the layers of "
    "the final model read."
)


class Stage(NamedTuple):
    """A checkpoint by name, and what probes found in its layers."""

    name: str
    scores: Sequence[LayerScores]


class EpochWeights(NamedTuple):
    """A study's model at one epoch: the weights of its layers' queries, keys and values."""

    name: str
    projections: dict[Address, Projections]


def epochs_of(source: ModelSource, subject: Subject, wanted: Sequence[str]) -> list[EpochWeights]:
    """The epochs that are wanted of a model that a study trained; raises SpecError for one that there is not."""
    if not isinstance(subject, OwnModel) or not wanted:
        return []
    if not isinstance(source.model, (str, Path)):
        known = "Its epochs lie in the folder of its study."
        raise SpecError("checkpoints of a loaded model were asked for.", known, "Give the study's folder, or a run's.")
    there = read_epochs(subject, source.model)
    names = [str(n) for n in range(len(there))]
    chosen = names if tuple(wanted) == (ALL,) else list(wanted)
    if wrong := [name for name in chosen if name not in names]:
        known = f"{subject.name} has epochs 0 to {len(there) - 1}."
        raise SpecError(f"There is no epoch {wrong[0]!r}.", known, f"Use some of them, or '{ALL}'.")
    return [EpochWeights(name, {p.address: p for p in there[int(name)].projections()}) for name in chosen]


class PlacedRevision(NamedTuple):
    """A checkpoint of a published model, and where it is opened from."""

    name: str
    source: ModelSource


def places_of(source: ModelSource, wanted: Sequence[str]) -> tuple[PlacedRevision, ...]:
    """Where the revisions of a published model are, of a folder those beside it; raises ModelError for one that is not there.

    None is loaded yet: what is wrong is met before anything is computed.
    """
    if not wanted:
        return ()
    if not isinstance(source.model, (str, Path)):
        known = "Its revisions are not known."
        raise SpecError(
            "checkpoints of a loaded model were asked for.", known, "Give its name on a hub, or its folder."
        )
    found = list[PlacedRevision]()
    for name in wanted:
        place, revision = beside(source.model, name)
        found.append(PlacedRevision(name, replace(source, model=place, revision=revision)))
        check_there(place, **found[-1].source.fetched())
    return tuple(found)


def stage_rows(stages: Sequence[Stage], labels: Sequence[str]) -> Iterator[NewRow]:
    """Means over heads less random maps at every checkpoint, `at` its number from 0: layer by layer, and over all layers."""
    for number, stage in enumerate(stages):
        for i, label in enumerate(labels):
            of: NewRow = {"stack": stage.scores[0].address.stack, "group": label, "at": float(number)}
            for c in COMPONENTS:
                tests: list[tuple[int | None, Any]] = [(None, mean_over_model(stage.scores, c, i))]
                tests += [(one.address.layer, mean_over_random(one, c, i)) for one in stage.scores]
                for layer, test in tests:
                    low, high = (finite(end) for end in test.ends)
                    ends = {"value": test.value, "low": low, "high": high, "n": test.n}
                    yield of | {"component": c, "layer": layer, "measure": "profile_stage_gain"} | ends
