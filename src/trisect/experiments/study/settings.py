"""Settings and facts of a training study."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from trisect.core.machine import Machine
from trisect.core.methods import METHODS
from trisect.core.schema import MAX_FLEET, MAX_INT, Option, record
from trisect.core.site import Site
from trisect.core.spec import CorpusData, Design
from trisect.lab.inputs import Workers

FleetSize = Annotated[
    int,
    Field(
        description="How many runs a new study trains side by side in one job; fixed once it has begun.",
        ge=1,
        le=MAX_FLEET,
    ),
    Option(unset="8, on a GPU 32"),
]
Force = Annotated[bool, Field(description="Run even if more memory or disk is needed than this machine has.")]


@record
class DesignSource:
    """The design: a preset or a statement, with some settings replaced."""

    experiment: Annotated[
        str | Path | Design,
        Field(
            description="A preset (quick, wikitext2-small, paper, beyond, roles, roles-quick, induction), or a JSON file; in "
            "Python also a Design."
        ),
        Option(argument=True, metavar="PRESET_OR_FILE"),
    ] = "quick"
    corpus: (
        Annotated[
            str | Path,
            Field(description="A corpus folder, a raw folder that a reader knows, or hf:NAME[:CONFIG]."),
            Option(metavar="CORPUS"),
        ]
        | None
    ) = None
    seeds: (
        Annotated[
            tuple[int, ...],
            Field(description="Number of seeds (5: seeds 1 to 5), or a list: 1,2,7 or 3-6 (seed 7 alone: 7-7)."),
            Option(many="seeds", metavar="SEEDS"),
        ]
        | None
    ) = None
    epochs: Annotated[int, Field(description="Epochs of every run.", ge=1, le=MAX_INT)] | None = None
    sites: Annotated[
        tuple[Site | str, ...],
        Field(description="Sites such as k@3, q+k@1-2 or v@all, one or several."),
        Option(many="words", metavar="SITE"),
    ] = ()
    only: (
        Annotated[
            tuple[str, ...],
            Field(description=f"Methods to run, out of {','.join(METHODS)},edits."),
            Option(many="commas", metavar="METHODS"),
        ]
        | None
    ) = None


@record
class StudyMachine(Workers):
    """Settings of the machine and its workers."""

    precision: Annotated[
        str,
        Field(description="Precision of training's large matrix products: float32, or bfloat16 (faster, less exact)."),
        Option(choices=("float32", "bfloat16")),
    ] = "float32"
    fleet: FleetSize | None = None
    force: Force = False

    @classmethod
    def of(cls, workers: Workers) -> StudyMachine:
        """The same workers, or the defaults."""
        return cls(**{field.name: getattr(workers, field.name) for field in fields(workers)})

    def machine(self, quiet: bool) -> Machine:
        """The same as a Machine."""
        return replace(super().machine(quiet), precision=self.precision, fleet=self.fleet)


@record
class StudySettings:
    """Settings of a study of small language models that are trained for it."""

    what: DesignSource = DesignSource()
    how: StudyMachine = StudyMachine()
    join: Annotated[
        tuple[str | Path, ...],
        Field(
            description="Two or more studies of other seeds that were trained apart: they become one, and nothing is trained."
        ),
        Option(many="paths", metavar="STUDY..."),
    ] = ()


@record
class PlanSettings:
    """Settings of a plan: the design, and the machine."""

    what: DesignSource = DesignSource()
    force: Force = False
    runs: Annotated[bool, Field(description="Also list the id of every run.")] = False
    fleet: FleetSize | None = None
    workers: Annotated[
        int | None,
        Field(description="Cores to spread jobs over.", ge=1, le=MAX_INT),
        Option(unset="those of this machine"),
    ] = None
    gpus: Annotated[
        int | None,
        Field(description="GPUs to spread training over (expected times, not measured).", ge=1, le=MAX_INT),
    ] = None


@record
class StudyFacts:
    """Facts of a study: text, machine, seconds of all calls, and the full statement."""

    corpus: CorpusData
    device: str
    precision: str = "float32"
    wall_seconds: float = 0.0
    experiment: Design | None = None
