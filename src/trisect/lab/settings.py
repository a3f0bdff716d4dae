"""Settings: the numbers of a recipe, and seeds, taken as a command line gives them and checked one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

from trisect.core.errors import SpecError


class Recipe(Protocol):
    """A frozen dataclass of numbers and words, with a name."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """What it is called."""
        ...


R = TypeVar("R", bound=Recipe)


def with_settings(
    recipes: Mapping[str, R], wanted: str, settings: Mapping[str, Any], example: R, most: Mapping[str, float]
) -> R:
    """The wanted recipe with some settings changed; `example` shows what a value looks like, `most` bounds it above.

    Raises SpecError for a recipe, a setting or a value that there is not.
    """
    if wanted not in recipes:
        given = f"{wanted!r} is no recipe."
        raise SpecError(given, f"There are {', '.join(recipes)}.", "Use one of them, and change settings with --set.")
    known = [field.name for field in fields(example) if field.name != "name"]
    return replace(
        recipes[wanted], **{key: _value(key, given, known, example, most) for key, given in settings.items()}
    )


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise SpecError for no seeds, one given twice, and what is none."""
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**32 for seed in seeds):
        known = "They are different whole numbers from 0 to 4,294,967,295, at least one."
        raise SpecError(f"The seeds {list(seeds)}.", known, "Give for example 1, 2 and 3.")


def difference(key: str, old: Any, new: Any) -> str:
    """In words, how a plan that is there differs from one that is asked for."""
    if isinstance(old, dict):
        return ", ".join(
            f"{name}: {old.get(name)} there, {new[name]} here" for name in new if old.get(name) != new[name]
        )
    return f"{key}: {old} there, {new} here"


def _value(key: str, given: Any, known: list[str], example: Recipe, most: Mapping[str, float]) -> Any:
    if key not in known:
        there = f"There are {', '.join(known)}."
        raise SpecError(f"{key!r} is no setting of a recipe.", there, "Use one of them, as in --set layers=2.")
    kind = type(getattr(example, key))
    try:
        value = kind(given)
        if kind is int and float(given) != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        want = {int: "a whole number", float: "a number", str: "a word"}[kind]
        raise SpecError(
            f"{key}={given!r}.", f"{key} is {want}, such as {getattr(example, key)}.", "Give one."
        ) from None
    if not isinstance(value, str):
        bound = most.get(key, float("inf"))
        if not (0 <= value <= bound and math.isfinite(value)):
            there = "0 or more" if math.isinf(bound) else f"from 0 to {bound:g}"
            raise SpecError(f"{key}={given!r}.", f"{key} is a finite number, {there}.", "Give one.")
    return value
