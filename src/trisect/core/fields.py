"""Settings declared once: a frozen dataclass whose fields carry their help, bounds and names, and the check of its values.

The command line, the Python API and their reference are made from these declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from trisect.core.bounds import WHOLE
from trisect.core.errors import SpecError, or_closest, unknown
from trisect.core.typecheck import shortened

MOST_SEEDS = 10_000
NUMBERS = {int: "a whole number", float: "a number"}
NOUNS = {**NUMBERS, str: "a text", bool: "true or false", Path: "a path"}


@dataclass(frozen=True)
class Setting:
    """What stands with a field: `help` is its sentence everywhere.

    Values lie from `low` to `high`, above `above` and below `below`, or are one of `choices`. `option` is its name on the
    command line where it is not the field's (empty: Python alone), `former` a name that it had before and that is still read; an
    `argument` has none. Several values are given one by one ('repeat'), or, each of them once, also with spaces between ('words')
    or commas ('commas'), as a number of seeds or the seeds themselves ('seeds'), as NAME=VALUE where they have names ('pairs'),
    or as so many words behind one option (`count`). An argument of 'models' is one model, or a tuple of several.
    A flag that is true unless given has an `option` that begins with 'no-'; `value` is the one word that turns a flag on.
    `unset` says in the help what stands where nothing is given, `known` what there is in an error's second part. One that
    is `placed` may be given by place in Python. `grammar` reads a text, and raises TrisectError for one that is of another form.
    """

    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    option: str | None = None
    former: str | None = None
    argument: bool = False
    many: str = "repeat"
    count: int | None = None
    value: str | None = None
    metavar: str | None = None
    unset: str | None = None
    known: str | None = None
    placed: bool = False
    grammar: Callable[[str], object] | None = None


class Declared(NamedTuple):
    """One field of a settings class: its type without null, whether null is allowed, and its default (MISSING: none)."""

    name: str
    kind: Any
    optional: bool
    setting: Setting
    default: Any

    @property
    def required(self) -> bool:
        """Whether a value has to be given."""
        return self.default is MISSING

    @property
    def several(self) -> bool:
        """Whether it holds several values."""
        return get_origin(self.kind) is tuple

    @property
    def item(self) -> object:
        """The type of one value."""
        return get_args(self.kind)[0] if self.several else self.kind

    @property
    def words(self) -> str:
        """The name as a command line has it, without dashes; empty where it has none."""
        return self.name.replace("_", "-") if self.setting.option is None else self.setting.option


class Group(NamedTuple):
    """A field that holds settings that several experiments share, such as where a model is from."""

    name: str
    kind: type[Any]
    optional: bool
    fields: tuple[Declared, ...]


@cache
def declared(settings: type[Any]) -> tuple[Declared | Group, ...]:
    """Every field of a settings class, in order; a field whose type is itself one is a group."""
    hints = get_type_hints(settings, include_extras=True)
    return tuple(_declared(settings, field.name, hints[field.name], field.default) for field in fields(settings))


def flat(settings: type[Any]) -> tuple[Declared, ...]:
    """Every field of a settings class with those of its groups in their place."""
    return tuple(d for one in declared(settings) for d in (one.fields if isinstance(one, Group) else (one,)))


def _declared(settings: type[Any], name: str, hint: Any, default: Any) -> Declared | Group:
    kind, optional, setting = hint, False, None
    while True:
        if get_origin(kind) is Annotated:
            kind, setting = get_args(kind)[0], get_args(kind)[1]
        elif get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind):
            kind, optional = next(k for k in get_args(kind) if k is not NoneType), True
        else:
            break
    if isinstance(kind, type) and is_dataclass(kind):
        inner = tuple(d for d in declared(kind) if isinstance(d, Declared))
        if setting is not None:  # what the settings say of their group's argument
            inner = tuple(_respoken(d, setting) if d.setting.argument else d for d in inner)
        return Group(name, kind, optional, tuple(map(_open, inner)) if optional else inner)
    assert isinstance(setting, Setting), f"{settings.__name__}.{name} says nothing of itself"
    return Declared(name, kind, optional, setting, default)


def _respoken(one: Declared, setting: Setting) -> Declared:
    """A group's argument where settings ask for several of it."""
    return one._replace(setting=replace(one.setting, many=setting.many, metavar=setting.metavar, help=setting.help))


def _open(one: Declared) -> Declared:
    """A setting of a group that may be missing: nothing stands by default, and its help says what does in the group."""
    plain = one.kind is bool or one.setting.unset is not None or one.default in (MISSING, None, ())
    setting = one.setting if plain else replace(one.setting, unset=str(one.default))
    return one._replace(optional=True, default=None, setting=setting)


S = TypeVar("S")


def build(settings: type[S], given: Mapping[str, object]) -> S:
    """The settings with these values, groups filled from theirs; checked. Raises SpecError naming the field.

    A group that may be missing is null where none of its values is given.
    """
    known = [d.name for d in flat(settings)]
    if strange := [name for name in given if name not in known]:
        raise SpecError(unknown("setting", strange[0], known), f"There are {', '.join(known)}.", "Use one of them.")
    values: dict[str, Any] = {}
    for one in declared(settings):
        if isinstance(one, Declared):
            if one.name in given or one.required:
                values[one.name] = _checked(one, given.get(one.name))
        else:
            mine = {d.name: _some_models(d, given[d.name]) for d in one.fields if d.name in given}
            if one.optional and all(_empty(value) for value in mine.values()):
                values[one.name] = None
            else:
                values[one.name] = build(one.kind, {k: v for k, v in mine.items() if v is not None})
    return settings(**values)


def _some_models(one: Declared, value: Any) -> Any:
    """One model as it is and several as a tuple, where a setting takes both."""
    if one.setting.many != "models" or not isinstance(value, list | tuple):
        return value
    if not value:
        raise SpecError("No model was given.", "At least one is read.", "Give a model.")
    return value[0] if len(value) == 1 else tuple(value)


def _empty(value: Any) -> bool:
    return value is None or value == ()


def _checked(one: Declared, value: Any) -> Any:
    """The value as its field holds it."""
    if value is None and one.required and not one.optional:
        raise SpecError(f"{one.name} was not given.", f"It is needed: {one.setting.help}", f"Give {one.name}.")
    if value is None:
        return value if one.optional else one.default
    if one.setting.many == "pairs" and not isinstance(value, Mapping):
        raise SpecError(f"{one.name} is {value!r}.", "It is values by their names.", f"Give {one.name} as that.")
    if not one.several:
        return _one(one, value)
    if one.setting.many == "seeds" and isinstance(value, int):
        return seeds_up_to(value)
    if isinstance(value, str | Path) or not isinstance(value, Sequence):
        value = (value,)
    if one.setting.many == "words":
        value = [item for v in value for item in ((v.split() or [v]) if isinstance(v, str) else [v])]
    found = tuple(_one(one, item) for item in value)
    if one.setting.count is not None and len(found) != one.setting.count:
        known = f"It takes {one.setting.count}: {one.setting.metavar or one.setting.help}"
        raise SpecError(f"{one.name} was given {len(found)} values.", known, f"Give {one.setting.count}.")
    if one.setting.many == "seeds":
        check_seeds(found)
    elif one.setting.many in ("commas", "words"):
        _check_different(one, found)
    return found


def _check_different(one: Declared, values: Sequence[object]) -> None:
    """Raise SpecError for a name or number that is given twice: it would be measured, or counted, twice."""
    names = [str(value) for value in values]
    if again := next((name for i, name in enumerate(names) if name in names[:i]), None):
        known = f"{one.name} are {', '.join(map(shortened, names))}."
        raise SpecError(f"{one.name} was given {shortened(again)} twice.", known, "Give each once.")


def seeds_up_to(number: int) -> tuple[int, ...]:
    """The seeds 1 to `number`; raises SpecError for none and for more than anybody could mean."""
    if isinstance(number, bool) or not 1 <= number <= MOST_SEEDS:
        known = f"It is a number of seeds, 1 or more (at most {MOST_SEEDS:,}), or the seeds themselves."
        raise SpecError(f"seeds is {number!r}.", known, "Use for example 5.")
    return tuple(range(1, number + 1))


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise SpecError for no seeds, one given twice, and what is none."""
    good = all(isinstance(seed, int) and 0 <= seed < 2**32 for seed in seeds)
    if not seeds or len(set(seeds)) < len(seeds) or not good:
        known = "They are different whole numbers from 0 to 4,294,967,295, at least one."
        raise SpecError(f"The seeds {list(seeds)}.", known, "Give for example 1, 2 and 3.")


def read(one: Declared, given: object) -> object:
    """One value of a field, which may be given as a word, such as '1e-3'; checked. Raises SpecError naming the field."""
    value, kind = given, one.item
    if kind in (int, float) and isinstance(given, str):
        with suppress(ValueError):  # what is no number stays a word, and is refused as one
            value = int(given) if kind is int else float(given)
    elif kind is int and isinstance(given, float) and given.is_integer():
        value = int(given)
    return _one(one, value)


def _one(one: Declared, value: Any) -> Any:
    kind, setting = get_args(one.kind)[0] if one.several else one.kind, one.setting
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    known = all(k in NOUNS for k in kinds)
    if known and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        nouns = " or ".join(_noun(k, setting) for k in kinds)
        raise SpecError(f"{one.name} is {shortened(value)}.", f"It is {nouns}.", f"Give {one.name} as that.")
    if isinstance(value, str | Path):
        _check_text(one, str(value))
    if setting.grammar is not None and isinstance(value, str):
        setting.grammar(value)
    if setting.choices and value not in setting.choices:
        there = f"There is {_listed(setting.choices)}."
        raise SpecError(
            f"{one.name} is {shortened(value)}{or_closest(value, setting.choices)}", there, "Use one of them."
        )
    if kind in (int, float) and isinstance(value, int | float):
        _check_number(one, value)
    return value


def _check_number(one: Declared, value: float) -> None:
    """Raise SpecError for a number outside its bounds."""
    setting, most = one.setting, highest(one)
    if _inside(value, setting, most):
        return
    over = most is not None and value > most
    noun = _noun(one.item, replace(setting, high=most) if over and setting.below is None else setting)
    known = (None if over else setting.known) or f"It is {noun}."
    raise SpecError(f"{one.name} is {shortened(value)}.", known, f"Give {one.name} as {noun}.")


def highest(one: Declared) -> float | None:
    """The largest value that a number may have: its own, or that of every whole number; null for a number without."""
    setting = one.setting
    own = setting.high if setting.high is not None else setting.below
    return own if own is not None or one.item is not int else WHOLE


def _check_text(one: Declared, text: str) -> None:
    """Raise SpecError for a text with half a character, which no file and no table can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        known = "It holds half a character (a surrogate), which is no text in UTF-8."
        raise SpecError(f"{one.name} is {text!a}.", known, f"Give {one.name} as a text.") from None


def _inside(value: float, setting: Setting, most: float | None) -> bool:
    return (
        (isinstance(value, int) or math.isfinite(value))
        and (setting.low is None or value >= setting.low)
        and (most is None or value <= most)
        and (setting.above is None or value > setting.above)
        and (setting.below is None or value < setting.below)
    )


def _noun(kind: Any, setting: Setting) -> str:
    """What a value is, with its bounds in words."""
    low, high = setting.low, setting.high
    bounds = [f"above {setting.above:g}"] if setting.above is not None else []
    bounds += [f"below {setting.below:g}"] if setting.below is not None else []
    if low is not None and high is not None:
        bounds.append(f"from {_spelt(low)} to {_spelt(high)}")
    elif low is not None:
        bounds.append(f"{_spelt(low)} or more")
    elif high is not None:
        bounds.append(f"at most {_spelt(high)}")
    return ", ".join([NOUNS[kind], " and ".join(bounds)] if bounds else [NOUNS[kind]])


def _spelt(bound: float) -> str:
    return f"{int(bound):,}" if float(bound).is_integer() else f"{bound:g}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
