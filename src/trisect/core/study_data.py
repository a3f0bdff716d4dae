"""What a study keeps as JSON: its ledger, its finished runs, and what is noted of its text."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property, reduce
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from trisect.core.errors import require
from trisect.core.machine import PRECISIONS
from trisect.core.methods import METHODS
from trisect.core.schema import FLEET, Many, Some, one_of, record
from trisect.core.spec import Design, Run

# what designs of one study may differ in, method by method: all else is one for the whole study
ASKED = ("sites", "labels", "strengths", "variants", "identity", "midstage")


@record
class Ledger:
    """What was asked of a study, call by call, and which of its runs are trained side by side.

    `corpus` is the fingerprint of its text as cut, `fleet` how many runs are trained side by side at most, `step` the
    revision of the training step.
    """

    corpus: str
    asked: Some[Design]
    fleets: Many[Many[str]]
    fleet: Annotated[int, Field(ge=1, le=FLEET)]
    precision: Annotated[str, one_of(*PRECISIONS)]
    step: Annotated[int, Field(ge=1)]

    def __post_init__(self) -> None:
        joint = self.asked[0]
        for design in self.asked[1:]:
            differ = differences(joint, design)
            require(
                not differ, f"Its designs differ in {'; '.join(differ)}.", "One study has one way.", "Make two studies."
            )
            joint = union(joint, design)
        trained = sorted(run for fleet in self.fleets for run in fleet)
        odd = sorted({*trained} ^ self.runs.keys())
        facts = f"{odd[0]} stands in one of them alone." if odd else "A run stands in two fleets."
        require(
            trained == sorted(self.runs), "Its fleets are not the runs of its designs.", facts, "Make another study."
        )

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Every run that was asked for, by id."""
        return {run.id: run for design in self.asked for run in design.runs(self.corpus)}

    @cached_property
    def experiment(self) -> Design:
        """All that was asked for as one design."""
        return reduce(union, self.asked)


def differences(earlier: Design, here: Design) -> list[str]:
    """What keeps two designs from being of one study: text apart, all but which runs and evaluations there are."""
    differing = []
    for name in ("model", "training", *(name for name in METHODS if name not in ("control", "tie"))):
        a, b = getattr(earlier, name), getattr(here, name)
        for field in fields(a) if a is not None and b is not None else ():
            old, new = getattr(a, field.name), getattr(b, field.name)
            if (name, field.name) == ("attack", "epochs"):
                old, new = old or earlier.training.epochs, new or here.training.epochs
            unused = (name, field.name) == ("rewind", "sample_seed") and getattr(a, "sample_tokens", None) is None
            is_open = field.name in ASKED and (name, field.name) != ("probe", "sites")
            if old != new and not unused and not is_open:
                differing.append(f"{name}.{field.name} (there {old!r}, here {new!r})")
    return differing


def union(old: Design, new: Design) -> Design:
    """What two designs of one study ask for together; lists keep their order, new members last."""
    parts: dict[str, Any] = {}
    for name in METHODS:
        a, b = getattr(old, name), getattr(new, name)
        parts[name] = b if a is None else a
        if a is not None and b is not None:
            pairs = {item.name: (getattr(a, item.name), getattr(b, item.name)) for item in fields(a)}
            joined = {
                field: tuple(dict.fromkeys((*x, *y))) if isinstance(x, tuple) and isinstance(y, tuple) else x or y
                for field, (x, y) in pairs.items()
            }
            parts[name] = replace(a, **joined)
    edits, seeds = tuple(dict.fromkeys((*old.edits, *new.edits))), tuple(sorted({*old.seeds, *new.seeds}))
    return replace(new, name=old.name, seeds=seeds, edits=edits, **parts)


@record
class FinishedRun:
    """What a finished run's file holds; `metrics` are rows of epoch, split, name and value.

    `numerics`, `products` and `processor` say how sums came out, `recorded` whether a GPU replayed recorded passes.
    """

    spec: Run
    status: str
    diverged_step: int | None
    parameters: int
    versions: dict[str, str]
    claims_hash: str
    revision: int
    device: str
    precision: str
    products: str
    numerics: str
    processor: str
    recorded: bool
    wall_seconds: float
    metrics: tuple[tuple[int, str, str, float | None], ...]


class CorpusData(TypedDict, total=False):
    """What is noted of a study's text: tokens of each split, class names of each label column."""

    name: str
    fingerprint: str
    types: int
    splits: dict[str, int]
    labels: dict[str, list[str]]
    notes: list[str]


class StudyAbout(TypedDict, total=False):
    """What is said of a study beside its tables; the experiment is a Design as JSON, seconds are of all calls."""

    corpus: CorpusData
    experiment: Any
    device: str
    precision: str
    wall_seconds: float
    command: str
    versions: dict[str, str]
