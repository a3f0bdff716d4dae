"""What an ablation is asked, and what it notes of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from trisect.core.fields import Setting
from trisect.core.finding import ReadFacts
from trisect.lab.experiment import Experiment
from trisect.lab.inputs import BatchSize, ModelSource, Per, Seed, Sites, TextSource

HOW = ("zero", "mean", "resample")


@dataclass(frozen=True)
class AblateSettings:
    """What replaces which parts of a model's queries, keys and values, over texts."""

    source: ModelSource
    read: TextSource
    sites: Sites | None = None
    how: Annotated[
        str,
        Setting(
            "zero, mean (over all tokens of the texts) or resample (from another text, place by place).",
            choices=HOW,
            metavar="HOW",
        ),
    ] = "zero"
    per: Per = "layer"
    hold: Annotated[
        bool,
        Setting(
            "pattern: keep all attention weights but those of a layer whose q or k is replaced.",
            value="pattern",
            metavar="WHAT",
        ),
    ] = False
    batch: BatchSize = 8
    seed: Seed = 0


@dataclass(frozen=True)
class AblateFacts(ReadFacts):
    """Model, texts and settings of an ablation; `sites` is null for q, k and v of every layer."""

    sites: tuple[str, ...] | None
    how: str
    per: str
    hold: bool
    seed: int
    batch: int


ABLATE = Experiment(
    "ablate",
    """Measure what changes when queries, keys or values are ablated: replaced by zero, a mean, or another text's.

    \b
    trisect ablate MODEL --corpus wikitext-2 --sites q@all v@all --per head
    """,
    AblateSettings,
    AblateFacts,
    "trisect.experiments.ablate",
    out="ablate-{model}",
    record="ablation.json",
)
