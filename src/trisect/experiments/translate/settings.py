"""Translation recipes: the settings of small translation models — one for real bitexts on two cores, one for the embedded bitext."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from trisect.core.errors import SpecError
from trisect.hf.small.training import Schedule
from trisect.hf.small.translator import Architecture, Translating
from trisect.lab.settings import with_settings

ROWS = 1  # a schedule counts pairs here, whatever their length


@dataclass(frozen=True)
class TranslationRecipe:
    """What is trained, and how. Defaults are those for a real bitext on two cores.

    Learnt from are the train pairs of at most `longest` words a side, each once, with a joint byte-pair encoding of
    `pieces`. The rate rises over `warmup_steps` to `rate`, then falls as a cosine to the share `floor` of it at the last
    step. `smoothing` is that of the labels.
    """

    name: str = "small"
    layers: int = 2
    heads: int = 4
    width: int = 256
    inner: int = 512
    dropout: float = 0.1
    pieces: int = 5000
    longest: int = 15
    epochs: int = 9
    batch: int = 32
    rate: float = 1e-3
    warmup_steps: int = 1000
    floor: float = 0.05
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.98
    clip: float = 1.0
    smoothing: float = 0.1

    def architecture(self) -> Architecture:
        """The model; raises SpecError for one that cannot be."""
        return Architecture(self.layers, self.heads, self.width, self.inner, self.dropout)

    def schedule(self, pairs: int) -> Schedule:
        """How it learns from so many pairs; raises SpecError for what no schedule can be."""
        steps = math.ceil(pairs / self.batch) if self.batch else 0
        decay = self.epochs * steps * self.batch
        betas = (self.beta1, self.beta2)
        return Schedule(
            self.epochs,
            self.batch,
            self.rate,
            self.warmup_steps * self.batch,
            decay,
            self.floor,
            self.weight_decay,
            betas,
            self.clip,
        )

    def lecture(self, padding: int) -> Translating:
        """How a pair becomes a loss."""
        return Translating(padding, self.smoothing)

    def data(self) -> dict[str, Any]:
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
MOST = {"dropout": 1.0, "floor": 1.0, "beta1": 0.999, "beta2": 0.9999, "smoothing": 0.5}
RECIPES = {recipe.name: recipe for recipe in (EMBEDDED, SMALL)}


def choose_translation(
    name: str | None, embedded: bool, settings: Mapping[str, Any] | None = None
) -> TranslationRecipe:
    """A recipe by name, with some settings changed; null is 'embedded' for the generated bitext and 'small' else.

    Raises SpecError for a recipe, a setting or a value that there is not.
    """
    recipe = with_settings(RECIPES, name or ("embedded" if embedded else "small"), settings or {}, SMALL, MOST)
    recipe.architecture()
    recipe.schedule(1)
    if not recipe.longest:
        raise SpecError("longest=0.", "A sentence has at least one word.", "Give a larger number.")
    return recipe
