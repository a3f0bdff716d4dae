"""Settings, recipes and facts of a lookup study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trisect.core.errors import SpecError
from trisect.core.files import Json
from trisect.core.schema import MAX_INT, MAX_RESAMPLES, MODEL_BOUNDS, TRAINING_BOUNDS, Option, record
from trisect.lab.inputs import Changes, Recipe, Seeds, Workers
from trisect.text.readers import HELP

if TYPE_CHECKING:
    from trisect.hf.small.gpt import Schedule
    from trisect.hf.small.lookup import LookupShape

EMBEDDED_DATA = "embedded"
EDITS = tuple(
    f"{kind}-{site}"
    for kind, each in (("tie", ""), ("freeze", "q k v "))
    for site in f"{each}q+k k+v q+v q+k+v".split()
)


@record
class LookupSettings:
    """The text that models learn to look up in, their number, and the recipe."""

    corpus: Annotated[
        str | Path,
        Field(description="A raw folder with a train and a valid split, hf:NAME[:CONFIG], or 'embedded'."),
        Option(metavar="CORPUS"),
    ] = EMBEDDED_DATA
    reader: Annotated[str, Field(description=f"{HELP}."), Option(unset="detected")] | None = None
    seeds: Seeds = (1, 2, 3, 4, 5)
    recipe: Annotated[
        str | None,
        Field(description="embedded, small (two layers of attention alone) or deep (four layers with MLPs)."),
        Option(metavar="RECIPE", unset="embedded for 'embedded', else small"),
    ] = None
    settings: Changes | None = None
    edits: Annotated[
        tuple[str, ...],
        Field(
            description="Train each seed's model with an edit too: tie-k+v makes k's and v's matrix one, freeze-q+k keeps both as drawn."
        ),
        Option(many="commas", name="edit", choices=EDITS, metavar="EDIT"),
    ] = ()
    pairs: Annotated[int, Field(description="Pairs of windows that are patched.", ge=2, le=MAX_RESAMPLES)] = 200
    machine: Workers = field(default_factory=Workers)


@record
class LookupFacts:
    """Text and recipe of a lookup study."""

    corpus: str
    settings: Mapping[str, Json] = field(default_factory=dict)


@record
class LookupRecipe(Recipe):
    """Model and training: steps on rows of tokens, a share of which repeats a short segment; the rate stays constant after warm-up."""

    layers: Annotated[int, Field(description="Layers; looking up takes two.", ge=2, le=MODEL_BOUNDS["layers"])] = 2
    heads: Annotated[int, Field(description="Heads of a layer.", ge=1, le=MODEL_BOUNDS["heads"])] = 4
    width: Annotated[int, Field(description="Floats of the residual stream.", ge=1, le=MODEL_BOUNDS["width"])] = 128
    dropout: Annotated[float, Field(description="Share of attention weights dropped in training.", ge=0, lt=1)] = 0.0
    inner: Annotated[
        int,
        Field(
            description="Floats of a feed-forward network; 0: attention alone.", ge=0, le=MODEL_BOUNDS["feedforward"]
        ),
    ] = 0
    spread: Annotated[float, Field(description="Standard deviation of weights before training.", gt=0)] = 0.1
    base: Annotated[float, Field(description="Base of rotary positions.", gt=1)] = 100.0
    pieces: Annotated[int, Field(description="Pieces of the vocabulary.", ge=8, le=MAX_INT)] = 1024
    block: Annotated[int, Field(description="Pieces read at once.", ge=16, le=TRAINING_BOUNDS["window"])] = 64
    batch: Annotated[int, Field(description="Rows of a step.", ge=1, le=TRAINING_BOUNDS["columns"])] = 32
    repeats: Annotated[float, Field(description="Share of rows that repeat a segment.", ge=0, le=1)] = 0.75
    shortest: Annotated[int, Field(description="Fewest pieces of a segment.", ge=1, le=MAX_INT)] = 4
    longest: Annotated[int, Field(description="Most pieces of a segment.", ge=1, le=MAX_INT)] = 20
    checkpoints: Annotated[
        int, Field(description="Checkpoints after the first.", ge=1, le=TRAINING_BOUNDS["epochs"])
    ] = 16
    steps: Annotated[int, Field(description="Steps between two checkpoints.", ge=1, le=MAX_INT)] = 100
    warmup: Annotated[int, Field(description="Steps over which the rate rises.", ge=0, le=MAX_INT)] = 60
    rate: Annotated[float, Field(description="Learning rate.", gt=0)] = 8e-3
    floor: Annotated[float, Field(description="The share of the rate that it falls to.", ge=0, le=1)] = 1.0
    weight_decay: Annotated[float, Field(description="Weight decay, on matrices alone.", ge=0)] = 0.02
    beta2: Annotated[float, Field(description="AdamW's second decay of moments.", ge=0, le=0.9999)] = 0.98

    def architecture(self) -> LookupShape:
        """The model's sizes; raises SpecError for impossible ones."""
        from trisect.hf.small.lookup import LookupShape  # imports PyTorch, which help does not need

        sizes = self.layers, self.heads, self.width, self.inner
        return LookupShape(*sizes, self.block, self.spread, self.base, self.dropout)

    def schedule(self) -> Schedule:
        """The schedule of training."""
        from trisect.hf.small.gpt import Schedule

        step = self.batch * self.block
        total = self.checkpoints * self.steps * step
        rates = self.rate, self.warmup * step, total, self.floor
        return Schedule(self.checkpoints, self.batch, *rates, self.weight_decay, (self.beta1, self.beta2), self.clip)

    def words(self) -> str:
        """Model and length of training, in words."""
        layers = (
            f"{self.layers} layers of {self.heads} attention heads{' with feed-forward networks' * bool(self.inner)}"
        )
        return f"{layers}, width {self.width}, trained for {self.checkpoints * self.steps:,} steps of {self.batch} rows"

    def check(self) -> None:
        """Raise SpecError for an impossible model, schedule or segments."""
        self.architecture()
        self.schedule()
        if not self.shortest <= self.longest < self.block:
            requirement = f"A row has {self.block} pieces, and a segment has to begin again in it."
            raise SpecError(f"Segments of {self.shortest} to {self.longest} pieces.", requirement, "Give shorter ones.")


SMALL_RECIPE = LookupRecipe(name="small")
# with segments of up to half a row, as in the random rows that induction is measured on, and a smaller initial spread and rate, and
# more decay: with SMALL's the feed-forward networks learn pairs of pieces first, and induction heads only begin to form
DEEP_RECIPE = replace(
    SMALL_RECIPE,
    name="deep",
    layers=4,
    inner=256,
    spread=0.05,
    repeats=0.9,
    longest=32,
    warmup=100,
    rate=2e-3,
    weight_decay=0.1,
)
# segments of half a row and longer, like the random rows that induction is measured on
EMBEDDED = replace(
    SMALL_RECIPE,
    name="embedded",
    heads=2,
    width=64,
    pieces=512,
    block=48,
    repeats=0.9,
    longest=30,
    weight_decay=0.1,
    checkpoints=5,
    steps=200,
)
RECIPES = {recipe.name: recipe for recipe in (EMBEDDED, SMALL_RECIPE, DEEP_RECIPE)}
