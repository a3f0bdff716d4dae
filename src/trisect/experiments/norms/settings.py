"""Settings and facts of a norm analysis."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from trisect.core.schema import Option, record
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Seed, TextSource, Units

BLOCKS = ("attention", "residual", "full", "feed-forward")


@record
class NormsSettings:
    """Settings of a norm analysis: norms beside weights, of a model over texts."""

    source: Models
    read: TextSource
    block: Annotated[
        str,
        Field(
            description="Also shown: norms of attention, with the residual, full (with layer norm), or feed-forward (behind "
            "the block that follows, "
            "which takes a pass through it for every token). Claims are about attention."
        ),
        Option(choices=BLOCKS, metavar="BLOCK"),
    ] = "attention"
    batch: BatchSize = 8
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)


@record
class NormsFacts:
    """Facts of a norm analysis; `stack` is the one that the claims are about."""

    subject: str
    fingerprint: str
    objective: str
    shape: str
    corpus: str
    corpus_fingerprint: str
    texts: int
    tokens: int
    stack: str
    block: str
    seed: int
    batch: int
