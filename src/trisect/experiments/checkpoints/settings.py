"""What rewinding between checkpoints is asked, and what it notes of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trisect.core.finding import ReadFacts
from trisect.core.schema import MAX_POINTS, Option, record
from trisect.lab.inputs import BatchSize, Device, Dtype, Pickle, RemoteCode, Seed, Sites, TextSource, Window


@record
class RewindSettings:
    """Which parts of a model are set back to which of its earlier revisions, over texts."""

    model: Annotated[
        str | Path,
        Field(description="A name on a hub, or a folder with every checkpoint in a subfolder."),
        Option(argument=True),
    ]
    initial: Annotated[str, Field(description="The revision to rewind to."), Option(metavar="REVISION")]
    final: Annotated[str, Field(description="The revision to rewind from."), Option(metavar="REVISION")]
    read: TextSource
    stages: Annotated[
        tuple[str, ...],
        Field(description="Revisions in between, joined by commas, in the order of training."),
        Option(many="commas", metavar="REVISIONS"),
    ] = ()
    sites: Sites | None = None
    points: Annotated[int, Field(description="Values of α from 0 to 1.", ge=2, le=MAX_POINTS)] = 101
    epsilon: Annotated[
        float,
        Field(
            description="Tolerance of criticality, as a share of the final loss (without a loss: of the output's squared length).",
            gt=0,
            lt=1,
        ),
    ] = 0.01
    exact: Annotated[bool, Field(description="Evaluate every α instead of interpolating between some.")] = False
    window: Window | None = None
    device: Device = "auto"
    dtype: Dtype | None = None
    pickle: Pickle = False
    remote_code: RemoteCode = False
    batch: BatchSize = 8
    seed: Seed = 0

    @property
    def revisions(self) -> tuple[str, ...]:
        """The initial one, those in between, and the final one."""
        return (self.initial, *self.stages, self.final)


@record
class RewindFacts(ReadFacts):
    """The final model, texts and settings of a rewinding; `passes` counts how often the texts were read."""

    passes: int
    points: int
    epsilon: float
    exact: bool
    seed: int
    initial: str
    stages: tuple[str, ...]
    final: str
