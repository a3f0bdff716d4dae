"""What a training study is asked, and what it notes of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from trisect.core.fields import Setting
from trisect.core.finding import Json
from trisect.core.methods import METHODS
from trisect.core.site import Site
from trisect.core.spec import Design, Machine
from trisect.lab.experiment import Experiment, Utility
from trisect.lab.inputs import Workers

Force = Annotated[bool, Setting("Go on with what takes more memory or disk than this machine has.")]


@dataclass(frozen=True)
class DesignSource:
    """What is run: a preset or a statement, with some of its settings replaced."""

    experiment: Annotated[
        str | Path | Design,
        Setting(
            "A preset (quick, wikitext2-small, paper, beyond, roles, roles-quick, induction), or a JSON file; in Python also a Design.",
            argument=True,
            metavar="PRESET_OR_FILE",
        ),
    ] = "quick"
    corpus: (
        Annotated[str | Path, Setting("A corpus folder, a raw folder that a reader knows, or hf:NAME[:CONFIG].")] | None
    ) = None
    seeds: (
        Annotated[
            tuple[int, ...],
            Setting("A number of seeds, or the seeds themselves: 1,2,7 (one seed: 7,).", many="seeds"),
        ]
        | None
    ) = None
    epochs: Annotated[int, Setting("Epochs of every run.", low=1)] | None = None
    sites: Annotated[
        tuple[Site | str, ...],
        Setting("A site such as k@3, q+k@1-2 or v@all; may stand several times.", many="words", metavar="SITE"),
    ] = ()
    only: Annotated[tuple[str, ...], Setting(f"Some of {','.join(METHODS)},edits.", many="commas")] | None = None


@dataclass(frozen=True)
class StudyMachine(Workers):
    """Where and how training runs."""

    precision: Annotated[
        str,
        Setting(
            "Of training's large products: float32, or on a GPU bfloat16.",
            choices=("float32", "bfloat16"),
        ),
    ] = "float32"
    track: Annotated[str, Setting("Log finished runs to wandb, trackio or tensorboard as well.")] | None = None
    force: Force = False

    def machine(self, quiet: bool) -> Machine:
        """The same as a Machine."""
        return replace(super().machine(quiet), precision=self.precision, track=self.track)


@dataclass(frozen=True)
class StudySettings:
    """A study of small language models, trained for it."""

    what: DesignSource = DesignSource()
    how: StudyMachine = StudyMachine()


@dataclass(frozen=True)
class PlanSettings:
    """The study that is planned."""

    what: DesignSource = DesignSource()
    force: Force = False


@dataclass(frozen=True)
class StudyFacts:
    """The text, the machine, the seconds of all calls, and the statement of a study, both as JSON-ready data."""

    corpus: Mapping[str, Json]
    device: str
    precision: str = "float32"
    wall_seconds: float = 0.0
    experiment: Mapping[str, Json] = field(default_factory=dict)


STUDY = Experiment(
    "study",
    """Train, attack, freeze, tie, rewind, probe, erase, interchange; judge; report. Goes on where it stopped when called again.

    \b
    trisect study quick --seeds 1 --only rewind --out study
    """,
    StudySettings,
    StudyFacts,
    "trisect.experiments.study",
    source="submodules",
    out="studies/{name}",
    resumable=True,
    result="Study",
)
PLAN = Utility(
    "plan",
    """Show runs, ids, parameters, expected time and disk; run nothing.

    \b
    trisect plan quick
    """,
    PlanSettings,
    "trisect.experiments.study.plan",
    "Plan",
)
