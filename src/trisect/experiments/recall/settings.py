"""Recipes: the settings of a recall experiment — the course's own, one for two cores, one for the embedded world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from trisect.hf.small.gpt import Architecture
from trisect.hf.small.training import Schedule
from trisect.lab.settings import with_settings


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how. Defaults are the assignment's.

    The learning rate rises over `warmup_tokens`, then falls as a cosine to the share `floor`, over `decay_epochs` × the
    lines of the pretraining text × block tokens, in pretraining and in fine-tuning alike. Pretraining goes through its epochs
    and its schedule `pretraining_cycles` times, each from the weights of the last (Loshchilov & Hutter 2017, SGDR); it cuts
    a text to `shortest_text` characters up to the share `longest_text` of the block, and moves a `span` of it.
    `trained_people` keeps so many of the people that train asks about, and leaves out everybody whom no question is about
    (0: all are kept). `left_out` names are missing from a second pretraining where the data have no unseen people by themselves; `invented`
    names belong to nobody.
    """

    name: str = "course"
    kind: str = "gpt2"
    layers: int = 4
    heads: int = 8
    width: int = 256
    block: int = 128
    dropout: float = 0.1
    pretraining_epochs: int = 650
    pretraining_batch: int = 128
    pretraining_rate: float = 6e-3
    pretraining_cycles: int = 1
    epochs_without: int = 75
    epochs_after: int = 10
    batch: int = 256
    rate: float = 6e-4
    warmup_tokens: int = 512 * 20
    decay_epochs: float = 200.0
    floor: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    shortest_text: int = 4
    longest_text: float = 7 / 8
    span: float = 1 / 4
    trained_people: int = 0
    left_out: int = 100
    invented: int = 200

    def architecture(self) -> Architecture:
        """The model; raises SpecError for one that cannot be."""
        return Architecture(self.kind, self.layers, self.heads, self.width, self.block, self.dropout)

    def pretraining(self, lines: int) -> Schedule:
        """How it reads a text of so many lines."""
        batch, rate = self.pretraining_batch, self.pretraining_rate
        return self._schedule(self.pretraining_epochs, batch, rate, lines, self.pretraining_cycles)

    def fine_tuning(self, lines: int, pretrained: bool) -> Schedule:
        """How it learns to answer."""
        epochs = self.epochs_after if pretrained else self.epochs_without
        return self._schedule(epochs, self.batch, self.rate, lines)

    def _schedule(self, epochs: int, batch: int, rate: float, lines: int, cycles: int = 1) -> Schedule:
        decay = round(self.decay_epochs * lines * self.block)
        betas = (self.beta1, self.beta2)
        return Schedule(
            epochs, batch, rate, self.warmup_tokens, decay, self.floor, self.weight_decay, betas, self.clip, cycles
        )

    def data(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return asdict(self)


COURSE = Recipe()
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
MOST = {"floor": 1.0, "beta1": 0.999, "beta2": 0.9999, "longest_text": 1.0, "span": 0.5}
RECIPES = {recipe.name: recipe for recipe in (EMBEDDED, SMALL, COURSE)}


def choose_recipe(name: str | None, embedded: bool, settings: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe by name, with some settings changed; null is 'embedded' for the generated world and 'small' else.

    Raises SpecError for a recipe, a setting or a value that there is not.
    """
    recipe = with_settings(RECIPES, name or ("embedded" if embedded else "small"), settings or {}, COURSE, MOST)
    recipe.architecture()
    for pretrained in (True, False):
        recipe.fine_tuning(1, pretrained)
    recipe.pretraining(1)
    return recipe
