"""Settings, recipes (the course's, one for two cores, one for the embedded world) and facts of recall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trisect.core.files import Json
from trisect.core.schema import MAX_INT, MAX_RESAMPLES, TRAINING_BOUNDS, Option, record
from trisect.lab.inputs import Changes, Recipe, Seeds, Workers

if TYPE_CHECKING:
    from trisect.hf.small.gpt import GptShape, Schedule

EMBEDDED_DATA = "embedded"
Reference = tuple[str, tuple[float, ...], tuple[float, ...]]  # a source, its shares without pretraining, and with it


@record
class RecallSettings:
    """Settings of recall: people, and the recipe."""

    data: Annotated[
        str | Path,
        Field(description="A folder of birth places, or 'embedded'."),
        Option(metavar="DATA", positional=True),
    ] = EMBEDDED_DATA
    seeds: Seeds = (1,)
    recipe: Annotated[
        str | None,
        Field(description="embedded, small or course."),
        Option(metavar="RECIPE", unset="embedded for 'embedded', else small"),
    ] = None
    settings: Changes | None = None
    machine: Workers = field(default_factory=Workers)


@record
class RecallFacts:
    """Facts of recall; `part` says what was cut from the data, `references` has published accuracies on them."""

    corpus: str
    settings: Mapping[str, Json] = field(default_factory=dict)
    part: str = ""
    references: tuple[Reference, ...] = ()


@record
class AskSettings:
    """A question to a trained model."""

    model: Annotated[str | Path, Field(description="The folder of a model that recall trained."), Option(argument=True)]
    question: Annotated[str, Field(description="A question such as 'Where was NAME born?'."), Option(argument=True)]
    risk: Annotated[
        float | None,
        Field(
            description="The largest share of wrong answers allowed among those given; 1: always answer.",
            ge=0,
            le=1,
        ),
        Option(unset="the largest that was set and can be kept"),
    ] = None


@record
class RecallRecipe(Recipe):
    """Model and training; defaults are the course's.

    The learning rate rises over `warmup_tokens`, then falls over `decay_epochs` × the lines of the pretraining text × block
    tokens, in pretraining and in fine-tuning alike. Pretraining goes through its epochs and its schedule
    `pretraining_cycles` times, each from the weights of the last (Loshchilov & Hutter 2017, SGDR).
    """

    kind: Annotated[
        str, Field(description="gpt2 has learned positions, llama rotary ones."), Option(choices=("gpt2", "llama"))
    ] = "gpt2"
    block: Annotated[int, Field(description="Characters read at once.", ge=1, le=TRAINING_BOUNDS["window"])] = 128
    pretraining_epochs: Annotated[
        int, Field(description="Epochs of pretraining, in each cycle.", ge=1, le=TRAINING_BOUNDS["epochs"])
    ] = 650
    pretraining_batch: Annotated[
        int, Field(description="Texts of a step of pretraining.", ge=1, le=TRAINING_BOUNDS["columns"])
    ] = 128
    pretraining_rate: Annotated[float, Field(description="Highest learning rate of pretraining.", gt=0)] = 6e-3
    pretraining_cycles: Annotated[
        int, Field(description="How often pretraining goes through its schedule.", ge=1, le=1_000)
    ] = 1
    epochs_without: Annotated[
        int, Field(description="Epochs of fine-tuning without pretraining.", ge=1, le=TRAINING_BOUNDS["epochs"])
    ] = 75
    epochs_after: Annotated[
        int, Field(description="Epochs of fine-tuning after pretraining.", ge=1, le=TRAINING_BOUNDS["epochs"])
    ] = 10
    warmup_tokens: Annotated[int, Field(description="Tokens over which the rate rises.", ge=0, le=MAX_INT)] = 512 * 20
    decay_epochs: Annotated[
        float, Field(description="Epochs of the pretraining text over which the rate falls.", gt=0)
    ] = 200.0
    shortest_text: Annotated[
        int, Field(description="Fewest characters that pretraining cuts a text to.", ge=0, le=MAX_INT)
    ] = 4
    longest_text: Annotated[float, Field(description="Most of them, as a share of the block.", ge=0, le=1)] = 7 / 8
    span: Annotated[float, Field(description="Share of a text that is moved behind it.", ge=0, le=0.5)] = 1 / 4
    trained_people: Annotated[
        int,
        Field(
            description="People kept of those that train asks about; nobody else is read of. 0: all are kept.",
            ge=0,
            le=MAX_INT,
        ),
    ] = 0
    left_out: Annotated[
        int,
        Field(
            description="Names missing from a second pretraining, where the data have no unseen people.",
            ge=0,
            le=MAX_INT,
        ),
    ] = 100
    invented: Annotated[int, Field(description="Names asked about that belong to nobody.", ge=0, le=MAX_RESAMPLES)] = (
        200
    )

    def architecture(self) -> GptShape:
        """The model's sizes; raises SpecError for impossible ones."""
        from trisect.hf.small.gpt import GptShape  # with PyTorch, which a command's help does without

        return GptShape(self.kind, self.layers, self.heads, self.width, self.block, self.dropout)

    def pretraining(self, lines: int) -> Schedule:
        """The schedule of pretraining on a text of so many lines."""
        cycles, batch, rate = self.pretraining_cycles, self.pretraining_batch, self.pretraining_rate
        return self._schedule(self.pretraining_epochs, batch, rate, lines, cycles)

    def fine_tuning(self, lines: int, pretrained: bool) -> Schedule:
        """The schedule of fine-tuning."""
        epochs = self.epochs_after if pretrained else self.epochs_without
        return self._schedule(epochs, self.batch, self.rate, lines)

    def _schedule(self, epochs: int, batch: int, rate: float, lines: int, cycles: int = 1) -> Schedule:
        from trisect.hf.small.gpt import Schedule

        decay, betas = round(self.decay_epochs * lines * self.block), (self.beta1, self.beta2)
        falls = self.warmup_tokens, decay, self.floor, self.weight_decay
        return Schedule(epochs, batch, rate, *falls, betas, self.clip, cycles)

    def check(self) -> None:
        """Raise SpecError for an impossible model or schedule."""
        self.architecture()
        self.pretraining(1)
        self.fine_tuning(1, True)
        self.fine_tuning(1, False)


COURSE = RecallRecipe()
SMALL = replace(
    COURSE,
    name="small",
    kind="llama",
    layers=3,
    heads=6,
    width=192,
    dropout=0.0,
    pretraining_epochs=160,
    pretraining_batch=16,
    pretraining_rate=2e-3,
    pretraining_cycles=2,
    warmup_tokens=200_000,
    decay_epochs=160.0,
    batch=32,
    rate=2e-4,
    trained_people=500,
)
EMBEDDED = replace(
    SMALL,
    name="embedded",
    layers=2,
    heads=4,
    width=128,
    block=64,
    pretraining_epochs=60,
    pretraining_batch=16,
    pretraining_rate=3e-3,
    pretraining_cycles=1,
    epochs_without=50,
    warmup_tokens=512 * 20,
    decay_epochs=60.0,
    rate=6e-4,
    trained_people=0,
    left_out=0,
    invented=60,
)
RECIPES = {recipe.name: recipe for recipe in (EMBEDDED, SMALL, COURSE)}
