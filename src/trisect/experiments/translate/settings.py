"""Settings, recipes (for bitexts on two cores, and for the embedded one) and facts of translation models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trisect.core.files import Json
from trisect.core.schema import MAX_INT, MAX_RESAMPLES, MODEL_BOUNDS, TRAINING_BOUNDS, Option, record
from trisect.lab.inputs import Changes, Recipe, Seeds, Workers

if TYPE_CHECKING:
    from trisect.hf.small.gpt import Schedule
    from trisect.hf.small.translator import TranslatorShape

EMBEDDED_DATA = "embedded"


@record
class TranslateSettings:
    """Settings of small translation models: bitext and recipe."""

    data: (
        Annotated[
            str | Path,
            Field(description="A folder with a bitext, or 'embedded'."),
            Option(metavar="DATA", unset=EMBEDDED_DATA, positional=True),
        ]
        | None
    ) = None
    source: (
        Annotated[
            str | Path,
            Field(description="A file of source sentences, one a line (with --target, instead of --data)."),
            Option(metavar="FILE"),
        ]
        | None
    ) = None
    target: (
        Annotated[str | Path, Field(description="The file of their translations."), Option(metavar="FILE")] | None
    ) = None
    seeds: Seeds = (1, 2)
    recipe: Annotated[
        str | None,
        Field(description="embedded or small."),
        Option(metavar="RECIPE", unset="embedded for 'embedded', else small"),
    ] = None
    settings: Changes | None = None
    keep: Annotated[
        int | None,
        Field(
            description="Keep the model after every so many epochs too, in seed-N-epoch-M.",
            ge=1,
            le=TRAINING_BOUNDS["epochs"],
        ),
        Option(unset="the last alone"),
    ] = None
    machine: Workers = field(default_factory=Workers)


@record
class TranslateFacts:
    """Bitext and recipe of translation models."""

    bitext: str
    settings: Mapping[str, Json] = field(default_factory=dict)


@record
class TranslationRecipe(Recipe):
    """Model and training.

    Learnt from are the train pairs of at most `longest` words a side, each once, with a joint byte-pair encoding of
    `pieces`. The rate rises over `warmup_steps`, and falls until the last step.
    """

    inner: Annotated[int, Field(description="Floats inside a feed-forward.", ge=1, le=MODEL_BOUNDS["feedforward"])] = (
        512
    )
    pieces: Annotated[
        int, Field(description="Pieces of the vocabulary, one for both sides.", ge=0, le=MAX_RESAMPLES)
    ] = 5000
    longest: Annotated[int, Field(description="Words of the longest sentence learnt from.", ge=1, le=MAX_INT)] = 15
    epochs: Annotated[int, Field(description="Epochs of training.", ge=1, le=TRAINING_BOUNDS["epochs"])] = 9
    warmup_steps: Annotated[int, Field(description="Steps over which the rate rises.", ge=0, le=MAX_INT)] = 1000
    smoothing: Annotated[float, Field(description="Smoothing of the labels.", ge=0, le=0.5)] = 0.1

    def architecture(self) -> TranslatorShape:
        """The model's sizes; raises SpecError for impossible ones."""
        from trisect.hf.small.translator import TranslatorShape  # with PyTorch, which a command's help does without

        return TranslatorShape(self.layers, self.heads, self.width, self.inner, self.dropout)

    def schedule(self, pairs: int) -> Schedule:
        """The schedule for so many pairs; raises SpecError for an impossible one."""
        from trisect.hf.small.gpt import Schedule

        decay = self.epochs * math.ceil(pairs / self.batch) * self.batch
        rates = self.rate, self.warmup_steps * self.batch, decay, self.floor
        return Schedule(self.epochs, self.batch, *rates, self.weight_decay, (self.beta1, self.beta2), self.clip)

    def check(self) -> None:
        """Raise SpecError for an impossible model or schedule."""
        self.architecture()
        self.schedule(1)


# for a real bitext on two cores
SMALL_RECIPE = TranslationRecipe(
    name="small", layers=2, heads=4, batch=32, rate=1e-3, floor=0.05, weight_decay=0.01, beta2=0.98
)
EMBEDDED = replace(
    SMALL_RECIPE,
    name="embedded",
    width=64,
    inner=128,
    pieces=250,
    longest=20,
    epochs=6,
    batch=64,
    rate=4e-3,
    warmup_steps=100,
)
RECIPES = {recipe.name: recipe for recipe in (EMBEDDED, SMALL_RECIPE)}
