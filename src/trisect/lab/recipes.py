"""Recipes of training: sets of settings by name, of which a user may change some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, TypeVar

from pydantic import Field

from trisect.core.errors import SpecError, unknown
from trisect.core.files import Json
from trisect.core.schema import MODEL, TRAINING, Option, flat, read_word, record


@record
class Recipe:
    """What every small model of ours is made and trained with; the rate rises, then falls as a cosine to the share `floor`.

    Defaults are those of Stanford's CS 224N, assignment 5.
    """

    name: Annotated[str, Field(description="What it is called."), Option(name="")] = "course"
    layers: Annotated[int, Field(description="Layers, of encoder and decoder each.", ge=1, le=MODEL["layers"])] = 4
    heads: Annotated[int, Field(description="Heads of a layer.", ge=1, le=MODEL["heads"])] = 8
    width: Annotated[int, Field(description="Floats of the residual stream.", ge=1, le=MODEL["width"])] = 256
    dropout: Annotated[float, Field(description="Share that is dropped in training.", ge=0, lt=1)] = 0.1
    batch: Annotated[int, Field(description="Questions, or pairs, of a step.", ge=1, le=TRAINING["columns"])] = 256
    rate: Annotated[float, Field(description="Highest learning rate (of fine-tuning).", gt=0)] = 6e-4
    floor: Annotated[float, Field(description="The share of the rate that it falls to.", ge=0, le=1)] = 0.1
    weight_decay: Annotated[float, Field(description="Weight decay, on matrices alone.", ge=0)] = 0.1
    beta1: Annotated[float, Field(description="AdamW's first decay of moments.", ge=0, le=0.999)] = 0.9
    beta2: Annotated[float, Field(description="AdamW's second decay of moments.", ge=0, le=0.9999)] = 0.95
    clip: Annotated[float, Field(description="Bound of the gradient's norm.", gt=0)] = 1.0

    def check(self) -> None:
        """Raise SpecError for a model or a schedule that cannot be."""

    def data(self) -> dict[str, Json]:
        """As JSON-ready data."""
        return asdict(self)


R = TypeVar("R", bound=Recipe)


def choose_recipe(
    recipes: Mapping[str, R], name: str | None, embedded: bool, changes: Mapping[str, object] | None = None
) -> R:
    """A recipe with some settings changed, each given as a value or as a word that says one.

    Without a name it is 'embedded' for generated data and 'small' for others. Raises SpecError for a recipe, a setting or a
    value that there is not.
    """
    wanted, changes = name or ("embedded" if embedded else "small"), changes or {}
    if wanted not in recipes:
        given = unknown("recipe", wanted, recipes)
        raise SpecError(given, f"There are {', '.join(recipes)}.", "Use one of them, and change settings with --set.")
    known = {one.name: one for one in flat(type(recipes[wanted])) if one.words}
    if strange := [setting for setting in changes if setting not in known]:
        given, there = unknown("setting of a recipe", strange[0], known), f"There are {', '.join(known)}."
        raise SpecError(given, there, "Use one of them, as in --set layers=2.")
    recipe = replace(recipes[wanted], **{setting: read_word(known[setting], to) for setting, to in changes.items()})
    recipe.check()
    return recipe


def changes_of(recipes: Mapping[str, R], recipe: R) -> dict[str, Json]:
    """The settings in which a recipe differs from the one of its name."""
    base = recipes[recipe.name].data()
    return {name: value for name, value in recipe.data().items() if value != base[name]}
