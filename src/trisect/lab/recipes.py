"""Recipes: named settings of what is trained, whose fields are declared as those of experiments are, changed one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

from trisect.core.errors import SpecError, unknown
from trisect.core.json_text import Json
from trisect.core.schema import Setting, flat, read_word


class NamedRecipe(Protocol):
    """A frozen dataclass whose fields carry what they are and their bounds; one without an option is not a setting."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """What it is called."""
        ...


R = TypeVar("R", bound=NamedRecipe)


def with_settings(recipes: Mapping[str, R], wanted: str, settings: Mapping[str, object]) -> R:
    """The wanted recipe with some settings changed, each given as a value or as a word that says one.

    Raises SpecError for a recipe, a setting or a value that there is not.
    """
    if wanted not in recipes:
        given = unknown("recipe", wanted, recipes)
        raise SpecError(given, f"There are {', '.join(recipes)}.", "Use one of them, and change settings with --set.")
    known = {one.name: one for one in settings_of(type(recipes[wanted]))}
    if strange := [name for name in settings if name not in known]:
        given, there = unknown("setting of a recipe", strange[0], known), f"There are {', '.join(known)}."
        raise SpecError(given, there, "Use one of them, as in --set layers=2.")
    return replace(recipes[wanted], **{name: read_word(known[name], given) for name, given in settings.items()})


def settings_of(recipe: type[Any]) -> tuple[Setting, ...]:
    """The settings of a recipe that can be changed."""
    return tuple(one for one in flat(recipe) if one.words)


def changed(recipes: Mapping[str, R], recipe: R) -> dict[str, Json]:
    """The settings in which a recipe differs from the one of its name."""
    names, base = [one.name for one in settings_of(type(recipe))], recipes[recipe.name]
    return {name: getattr(recipe, name) for name in names if getattr(recipe, name) != getattr(base, name)}
