"""What an erasure is asked, and what it notes of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from trisect.core.bounds import RESAMPLES
from trisect.core.fields import Setting
from trisect.core.finding import ALIKE, Json, ReadFacts
from trisect.lab.experiment import Experiment, LayerMeasure
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Per, Seed, Sites, Units
from trisect.text.names import SPLITS
from trisect.text.readers import HELP

WHOSE = ("own", "next")
FITTED = 20_000


@dataclass(frozen=True)
class EraseSettings:
    """Which labels of a text are removed from which parts of a model's queries, keys and values."""

    source: Models
    corpus: Annotated[
        str | Path,
        Setting("A labelled text: a treebank's folder, a corpus folder, or 'embedded'.", metavar="CORPUS"),
    ]
    labels: Annotated[
        tuple[str, ...], Setting("Label columns, separated by commas.", many="commas", former="label", metavar="LABELS")
    ] = ("pos",)
    split: Annotated[
        str, Setting("What the loss is measured on: train, valid or test.", choices=SPLITS, metavar="SPLIT")
    ] = "test"
    reader: Annotated[str, Setting(f"{HELP}.", unset="detected")] | None = None
    limit: Annotated[int, Setting("Read at most this many texts of the split.", low=1)] | None = None
    sites: Sites | None = None
    draws: Annotated[int, Setting("Random subspaces to compare with.", low=1, high=RESAMPLES)] = 10
    per: Per = "layer"
    whose: (
        Annotated[
            str,
            Setting(
                "own or next: whose label a position carries, that of its word or of the next piece's.",
                choices=WHOSE,
                metavar="WHOSE",
                unset="next for causal models",
            ),
        ]
        | None
    ) = None
    tokens: Annotated[
        int, Setting("Labelled positions of the train split that erasers are fitted to, about.", low=2, option="")
    ] = FITTED
    shrinkage: Annotated[
        bool,
        Setting(
            "The covariance that erasers whiten by is shrunk; with --no-shrinkage it is as the positions have it.",
            option="no-shrinkage",
        ),
    ] = True
    batch: BatchSize = 8
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)


@dataclass(frozen=True)
class EraseFacts(ReadFacts):
    """Model, texts and settings of an erasure; `fitted` is the least number of positions that an eraser was fitted to.

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


ERASE = Experiment(
    "erase",
    """Erase a label linearly (LEACE) from queries, keys or values, and measure the change of the loss.

    \b
    trisect erase MODEL --corpus ud-english-ewt --labels pos --sites k@all
    """,
    EraseSettings,
    EraseFacts,
    "trisect.experiments.erase",
    out="erase-{model}",
    record="erasure.json",
    checks=True,
    by_layer=(
        LayerMeasure("erase_excess_nats", "rise beyond random subspaces", "nats", margin=ALIKE),
        LayerMeasure("erase_excess_share", "change beyond random subspaces", "share", margin=ALIKE),
    ),
)
