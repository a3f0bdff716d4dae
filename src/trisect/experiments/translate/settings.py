"""Translation's settings and recipes — one for real bitexts on two cores, one for the embedded bitext — and what it notes of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trisect.core.files import Json
from trisect.core.schema import MODEL, RESAMPLES, TRAINING, WHOLE, Option, record
from trisect.lab.experiment import with_settings
from trisect.lab.inputs import Changes, Seeds, Workers

if TYPE_CHECKING:
    from trisect.hf.small.gpt import Schedule
    from trisect.hf.small.translator import Translating, TranslatorShape

EMBEDDED_DATA = "embedded"
ROWS = 1  # a schedule counts pairs here, whatever their length


@record
class TranslateSettings:
    """Small translation models, of which bitext, with which recipe."""

    data: (
        Annotated[
            str | Path,
            Field(description="A folder with a bitext, or 'embedded'."),
            Option(metavar="DATA", unset=EMBEDDED_DATA),
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
    recipe: (
        Annotated[
            str,
            Field(description="embedded or small."),
            Option(metavar="RECIPE", unset="embedded for 'embedded', else small"),
        ]
        | None
    ) = None
    settings: Changes | None = None
    keep: (
        Annotated[
            int,
            Field(
                description="Keep the model after every so many epochs too, in seed-N-epoch-M.",
                ge=1,
                le=TRAINING["epochs"],
            ),
            Option(unset="the last alone"),
        ]
        | None
    ) = None
    machine: Workers = field(default_factory=Workers)


@record
class TranslateFacts:
    """Bitext and recipe of translation models."""

    bitext: str
    settings: Mapping[str, Json] = field(default_factory=dict)


@record
class TranslationRecipe:
    """What is trained, and how. Defaults are those for a real bitext on two cores.

    Learnt from are the train pairs of at most `longest` words a side, each once, with a joint byte-pair encoding of
    `pieces`. The rate rises over `warmup_steps` to `rate`, then falls as a cosine to the share `floor` of it at the last
    step.
    """

    name: Annotated[str, Field(description="What it is called."), Option(name="")] = "small"
    layers: Annotated[int, Field(description="Layers of encoder and of decoder.", ge=1, le=MODEL["layers"])] = 2
    heads: Annotated[int, Field(description="Heads of a layer.", ge=1, le=MODEL["heads"])] = 4
    width: Annotated[int, Field(description="Floats of the residual stream.", ge=1, le=MODEL["width"])] = 256
    inner: Annotated[int, Field(description="Floats inside a feed-forward.", ge=1, le=MODEL["feedforward"])] = 512
    dropout: Annotated[float, Field(description="Share that is dropped in training.", ge=0, lt=1)] = 0.1
    pieces: Annotated[int, Field(description="Pieces of the vocabulary, one for both sides.", ge=0, le=RESAMPLES)] = (
        5000
    )
    longest: Annotated[int, Field(description="Words of the longest sentence learnt from.", ge=1, le=WHOLE)] = 15
    epochs: Annotated[int, Field(description="Epochs of training.", ge=1, le=TRAINING["epochs"])] = 9
    batch: Annotated[int, Field(description="Pairs of a step.", ge=1, le=TRAINING["columns"])] = 32
    rate: Annotated[float, Field(description="Highest learning rate.", gt=0)] = 1e-3
    warmup_steps: Annotated[int, Field(description="Steps over which the rate rises.", ge=0, le=WHOLE)] = 1000
    floor: Annotated[float, Field(description="The share of the rate that it falls to.", ge=0, le=1)] = 0.05
    weight_decay: Annotated[float, Field(description="Weight decay, on matrices alone.", ge=0)] = 0.01
    beta1: Annotated[float, Field(description="AdamW's first decay of moments.", ge=0, le=0.999)] = 0.9
    beta2: Annotated[float, Field(description="AdamW's second decay of moments.", ge=0, le=0.9999)] = 0.98
    clip: Annotated[float, Field(description="Bound of the gradient's norm.", gt=0)] = 1.0
    smoothing: Annotated[float, Field(description="Smoothing of the labels.", ge=0, le=0.5)] = 0.1

    def architecture(self) -> TranslatorShape:
        """The model; raises SpecError for one that cannot be."""
        from trisect.hf.small.translator import TranslatorShape  # with PyTorch, which a command's help does without

        return TranslatorShape(self.layers, self.heads, self.width, self.inner, self.dropout)

    def schedule(self, pairs: int) -> Schedule:
        """How it learns from so many pairs; raises SpecError for what no schedule can be."""
        from trisect.hf.small.gpt import Schedule

        decay = self.epochs * math.ceil(pairs / self.batch) * self.batch
        rates = self.rate, self.warmup_steps * self.batch, decay, self.floor
        return Schedule(self.epochs, self.batch, *rates, self.weight_decay, (self.beta1, self.beta2), self.clip)

    def lecture(self, padding: int) -> Translating:
        """How a pair becomes a loss."""
        from trisect.hf.small.translator import Translating

        return Translating(padding, self.smoothing)

    def data(self) -> dict[str, Json]:
        """As JSON-ready data."""
        return asdict(self)


SMALL = TranslationRecipe()
EMBEDDED = replace(
    SMALL,
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
RECIPES = {recipe.name: recipe for recipe in (EMBEDDED, SMALL)}


def choose_translation(
    name: str | None, embedded: bool, settings: Mapping[str, object] | None = None
) -> TranslationRecipe:
    """A recipe by name, with some settings changed; null is 'embedded' for the generated bitext and 'small' else.

    Raises SpecError for a recipe, a setting or a value that there is not.
    """
    recipe = with_settings(RECIPES, name or ("embedded" if embedded else "small"), settings or {})
    recipe.architecture()
    recipe.schedule(1)
    return recipe
