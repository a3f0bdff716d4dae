"""Check and convert the fields of a frozen dataclass against its annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from trisect.core.bounds import WHOLE
from trisect.core.errors import SpecError

S = TypeVar("S")
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "null"}


def settle(statement: Any) -> None:
    """Bring a frozen dataclass's fields to their annotated types; raises SpecError naming the field that cannot be.

    Lists become tuples and whole numbers floats where the annotation says so, so that the same statement always has
    the same id; nothing else is converted.
    """
    values = {field.name: getattr(statement, field.name) for field in fields(statement)}
    for name, value in settled(type(statement), values, type(statement).__name__.lower()).items():
        object.__setattr__(statement, name, value)


def settled(statement: type[object], values: Mapping[str, object], name: str) -> dict[str, object]:
    """Values of a dataclass's fields brought to their annotated types, as `settle` does; `name` stands in the error."""
    hints, found = _hints(statement), {}
    for key, value in values.items():
        try:
            found[key] = _fitted(value, hints[key])
        except TypeError:
            where, what = f"{name} has {key} {shortened(value)}.", _word(hints[key])
            raise SpecError(where, f"{key} is {what}.", f"Give {key} as that.") from None
    return found


def filled(statement: type[S], values: Mapping[str, object]) -> S:
    """A statement with these values, which it checks itself as `settle` does; raises SpecError for a name that it has not."""
    made: Callable[..., S] = statement
    try:
        return made(**values)
    except TypeError as error:
        known = ", ".join(_hints(statement))
        raise SpecError(f"{shortened(dict(values))} was given.", str(error), f"Give {known}.") from error


@cache
def _hints(statement: type[object]) -> dict[str, Any]:
    """The annotations of a class, read once: a design is checked with each of its hundreds of edits."""
    return get_type_hints(statement)


def _fitted(value: Any, kind: Any) -> Any:
    if get_origin(kind) is UnionType:
        if value is None and NoneType in get_args(kind):
            return None
        return _fitted(value, next(k for k in get_args(kind) if k is not NoneType))
    if get_origin(kind) is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence | range):
            raise TypeError
        return tuple(_fitted(v, get_args(kind)[0]) for v in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError
    return value


def _word(kind: Any) -> str:
    if get_origin(kind) is UnionType:
        return " or ".join(_word(k) for k in get_args(kind))
    if get_origin(kind) is tuple:
        return f"a list, each of it {_word(get_args(kind)[0])}"
    return WORDS.get(kind, f"a {kind.__name__}")


def need(ok: bool, given: str, known: str, todo: str) -> None:
    """Raise a SpecError of these three parts unless `ok`."""
    if not ok:
        raise SpecError(given, known, todo)


def whole(value: object, name: str, least: int, most: int = WHOLE) -> None:
    """Raise SpecError unless the value is a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        known = f"It is a whole number, {least} or more."
        raise SpecError(f"{name} is {shortened(value)}.", known, f"Give {name} as {least} or more.")
    known = f"It is a whole number, at most {most:,}."
    need(value <= most, f"{name} is {shortened(value)}.", known, f"Give {name} as {most:,} or less.")


def shortened(value: object, most: int = 60) -> str:
    """A value as an error quotes it: one that would fill the screen by its beginning."""
    if isinstance(value, int) and abs(value) >= 10**most:  # Python spells no whole number of over 4,300 digits
        return f"a number of over {most} digits"
    said = repr(value)
    return said if len(said) <= most else f"{said[:most]}… ({len(said):,} characters)"
