"""What an ablation is asked, and what it notes of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from pydantic import Field

from trisect.core.finding import Json, ReadFacts
from trisect.core.schema import Option, record
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Per, Seed, Sites, TextSource, Units

HOW = ("zero", "mean", "resample")


@record
class AblateSettings:
    """What replaces which parts of a model's queries, keys and values, over texts."""

    source: Models
    read: TextSource
    sites: Sites | None = None
    how: Annotated[
        str,
        Field(description="zero, mean (over all tokens of the texts) or resample (from another text, place by place)."),
        Option(choices=HOW, metavar="HOW"),
    ] = "mean"
    per: Per = "layer"
    hold: Annotated[
        bool,
        Field(description="pattern: keep all attention weights but those of a layer whose q or k is replaced."),
        Option(value="pattern", metavar="WHAT"),
    ] = False
    batch: BatchSize = 8
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)


@record
class AblateFacts(ReadFacts):
    """Model, texts and settings of an ablation; `sites` is None for q, k and v of every layer.

    `compared` is what paired differences over texts say of q, k and v, as data of a Comparison.
    """

    sites: tuple[str, ...] | None
    how: str
    per: str
    hold: bool
    seed: int
    batch: int
    compared: Mapping[str, Json] | None = None
