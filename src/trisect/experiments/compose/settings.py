"""Settings and facts of path patching."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from trisect.core.schema import MAX_RESAMPLES, Option, record
from trisect.core.site import Site
from trisect.lab.inputs import (
    BaseText,
    BatchSize,
    DonorText,
    Models,
    ModelWorkers,
    PairList,
    PairReader,
    PairsFile,
    PairSplit,
    Seed,
    Units,
    check_source,
)

COUNT = 50  # pairs of a task
TASKS = ("bindings", "induction", "recall")  # for causal language models


@record
class ComposeSettings:
    """The heads into which paths are patched, and the source of the texts."""

    source: Models
    base: BaseText | None = None
    donor: DonorText | None = None
    into: (
        Annotated[
            Site | str,
            Field(
                description="The query, key or value of a head, such as k@2.h3, or of all heads of a layer, such as q+k+v@2."
            ),
            Option(metavar="SITE", unset="every head, the strongest paths exactly", grammar=Site.parse),
        ]
        | None
    ) = None
    pairs: PairsFile | None = None
    pair_list: PairList | None = None
    task: (
        Annotated[
            str,
            Field(
                description="Generated pairs for the model: bindings (who has what), induction (… A B … A), or recall (for a "
                "model of trisect recall)."
            ),
            Option(choices=TASKS, metavar="TASK"),
        ]
        | None
    ) = None
    corpus: (
        Annotated[
            str | Path,
            Field(
                description="For induction: a text whose words and passages make up the pairs (default: English words among "
                "others)."
            ),
            Option(metavar="CORPUS"),
        ]
        | None
    ) = None
    split: PairSplit = "valid"
    reader: PairReader | None = None
    count: Annotated[int, Field(description="Number of pairs of a task.", ge=1, le=MAX_RESAMPLES)] = COUNT
    exact: Annotated[
        int,
        Field(
            description="Number of strongest paths to patch exactly, when the paths of all heads are estimated.",
            ge=1,
            le=MAX_RESAMPLES,
        ),
    ] = 20
    batch: BatchSize = 16
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)

    @property
    def positions(self) -> str:
        """A writer is patched at all positions."""
        return "all"

    def __post_init__(self) -> None:
        """Raise SpecError unless pairs come from one source."""
        check_source(self, COUNT)


@record
class ComposeFacts:
    """Model, pairs and settings of path patching; `ranked` is the rank correlation of first-order with exact effects, `weights` that of
    composition scores with effects, None where there are too few paths.
    """

    subject: str
    fingerprint: str
    objective: str
    corpus: str
    corpus_fingerprint: str
    pairs: int
    into: str | None
    paths: int
    ranked: float | None
    weights: float | None
    seed: int
