"""Settings and facts of a comparison of a model's matrices."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from trisect.core.schema import MAX_DRAWS, Option, record
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Seed, TextSource, Units

MIN_DRAWS = 20_000  # draws of a null: with 200, nothing can survive 144 heads


@record
class SimilaritySettings:
    """Settings of a comparison: a model, the number of random matrices, and texts for statistics that need them."""

    source: Models
    read: TextSource | None = None
    draws: Annotated[
        int,
        Field(description="Random matrices drawn for each shape.", ge=MIN_DRAWS, le=MAX_DRAWS),
        Option(reason=f"With fewer than {MIN_DRAWS:,} no head could survive the correction for many heads."),
    ] = MIN_DRAWS
    batch: BatchSize = 8
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)


@record
class SimilarityFacts:
    """Facts of a comparison (`texts` None without texts); `draws_made` has the number of draws of each shape."""

    subject: str
    fingerprint: str
    corpus: str | None
    corpus_fingerprint: str | None
    texts: int | None
    tokens: int | None
    draws: int
    draws_made: int
    seed: int
