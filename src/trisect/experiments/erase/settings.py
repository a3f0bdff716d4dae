"""Settings and facts of an erasure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from trisect.core.finding import Json, ReadFacts
from trisect.core.schema import MAX_INT, MAX_RESAMPLES, Option, record
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Per, Seed, Sites, Units
from trisect.text.lines import SPLITS
from trisect.text.readers import HELP

LABEL_OWNERS = ("own", "next")
FIT_TOKENS = 20_000


@record
class EraseSettings:
    """Settings of an erasure: labels, sites and texts."""

    source: Models
    corpus: Annotated[
        str | Path,
        Field(description="A labelled text: a treebank's folder, a corpus folder, or 'embedded'."),
        Option(metavar="CORPUS", positional=True),
    ]
    labels: Annotated[
        tuple[str, ...],
        Field(description="Label columns, separated by commas."),
        Option(many="commas", metavar="LABELS"),
    ] = ("pos",)
    split: Annotated[
        str,
        Field(description="What the loss is measured on: train, valid or test."),
        Option(choices=SPLITS, metavar="SPLIT"),
    ] = "test"
    reader: Annotated[str, Field(description=f"{HELP}."), Option(unset="detected")] | None = None
    limit: Annotated[int, Field(description="Read at most this many texts of the split.", ge=1, le=MAX_INT)] | None = (
        None
    )
    sites: Sites | None = None
    draws: Annotated[int, Field(description="Random subspaces to compare with.", ge=1, le=MAX_RESAMPLES)] = 10
    per: Per = "layer"
    whose: (
        Annotated[
            str,
            Field(description="Whose label a position has: own (its word's) or next (that of the next piece's word)."),
            Option(choices=LABEL_OWNERS, metavar="WHOSE", unset="next for causal models"),
        ]
        | None
    ) = None
    tokens: Annotated[
        int,
        Field(
            description="About how many labelled positions of the train split erasers are fitted to.", ge=2, le=MAX_INT
        ),
        Option(name=""),
    ] = FIT_TOKENS
    shrinkage: Annotated[
        bool,
        Field(description="Shrink the covariance by which erasers whiten; --no-shrinkage uses the sample covariance."),
        Option(name="no-shrinkage"),
    ] = True
    batch: BatchSize = 8
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)


@record
class EraseFacts(ReadFacts):
    """Facts of an erasure; `fitted` is the smallest number of positions that an eraser was fitted to.

    `compared` is what paired differences over texts say of q, k and v, by label, as data of Comparisons.
    """

    fitted: int
    labels: tuple[str, ...]
    sites: tuple[str, ...] | None
    draws: int
    whose: str
    per: str
    seed: int
    limit: int | None
    compared: Mapping[str, Json] = field(default_factory=dict)
    shrinkage: bool = True
