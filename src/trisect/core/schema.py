"""Records that validate their values, options of their fields, and validation errors as SpecErrors.

Settings, designs, stored records and messages of jobs are `record` classes: pydantic dataclasses, frozen and strict. A field's
help and bounds are pydantic's `Field`; its form on the command line is an `Option` beside that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from functools import cache, wraps
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, dataclass_transform, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema
from typing_extensions import is_typeddict

from trisect.core.errors import SpecError, TrisectError, join_words, shorten, suggest_closest, unknown_name

MAX_INT = 10**9  # bound of integers that have no other
MAX_SEED = 2**63 - 1  # of a study's seed: the largest that PyTorch accepts
MAX_NAME = 200  # characters of a design's name, which is also a folder's
MAX_RUNS = 20_000  # of one study
MAX_FLEET = 1_024  # runs that are trained side by side in one job
MODEL_BOUNDS: Mapping[str, int] = {"width": 65_536, "layers": 1_000, "heads": 1_024, "feedforward": 262_144}
TRAINING_BOUNDS: Mapping[str, int] = {"epochs": 100_000, "columns": 100_000, "eval_columns": 100_000, "window": 100_000}
MAX_POINTS = 10_001  # of a rewinding curve
MAX_DRAWS = 10_000_000  # random matrices for a null distribution
MAX_RESAMPLES = 1_000_000  # draws of a bootstrap, random subspaces, maps
MAX_JSON_BYTES = 16_000_000  # of a JSON file written by hand
MAX_LINE_BYTES = 10_000_000  # of one line of pairs, links, questions or sentences
MAX_TEXT_BYTES = 2_000_000_000  # of a file of these, which is read into memory
MAX_CORPUS_LINE_BYTES = 250_000_000  # of one line of a corpus, which may be a single line and is read in pieces
MAX_CORPUS_BYTES = 10**12  # of a file of a corpus
MAX_LINES = 2**31  # of any text
MAX_SEEDS = 10_000
# validators are built on first use, since the help of commands needs none
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True, defer_build=True)
BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
INTEGER_ERRORS = ("int_type", "int_from_float", "int_parsing")
NUMBER_ERRORS = ("float_type", "float_parsing", "finite_number")
NOUNS = {
    **dict.fromkeys(INTEGER_ERRORS, "a whole number"),
    **dict.fromkeys(NUMBER_ERRORS, "a number"),
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "values by their names",
    "mapping_type": "values by their names",
    "dataclass_type": "a JSON object",
    "dataclass_exact_type": "a JSON object",
    "none_required": "null",
}
C = TypeVar("C")
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def record(kind: type[C]) -> type[C]:
    """A frozen dataclass that validates its values; raises SpecError naming the field.

    Only whole numbers are converted to floats, and lists to the tuples of `Many`.
    """

    checked_kind: Any = pydantic_dataclass(frozen=True, config=STRICT)(kind)
    assert checked_kind.__pydantic_fields_complete__(), f"{kind.__name__} names a type that is not imported"
    # the signature as the standard library's dataclasses have it; pydantic builds its own only with the validator
    parameters = []
    for name, info in checked_kind.__pydantic_fields__.items():
        passed = Parameter.KEYWORD_ONLY if info.kw_only else Parameter.POSITIONAL_OR_KEYWORD
        default = Parameter.empty if info.is_required() else info.default if info.default_factory is None else ...
        parameters.append(Parameter(name, passed, default=default, annotation=info.annotation))
    check, shown = checked_kind.__init__, Signature(sorted(parameters, key=lambda parameter: parameter.kind))

    @wraps(check)
    def checked(self: object, *values: object, **named: object) -> None:
        try:
            check(self, *values, **named)
        except ValidationError as error:
            raise to_spec_error(error, type(self)) from None
        finally:  # pydantic replaces both when it builds the validator
            if checked_kind.__init__ is not checked:
                checked_kind.__init__, checked_kind.__signature__ = checked, shown

    checked_kind.__init__, checked_kind.__signature__ = checked, shown
    return checked_kind


def _field_error(problem: str, reason: str, todo: str) -> PydanticCustomError:
    """A validation error in three parts, with NAME for the field."""
    return PydanticCustomError("wrong", "{problem}", {"problem": problem, "reason": reason, "todo": todo})


def _check_distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise _field_error(f"NAME are {', '.join(map(str, values))}.", "One of them is given twice.", "Give each once.")
    return values


def one_of(*names: str) -> AfterValidator:
    """A string that is one of the given ones."""
    return AfterValidator(lambda value: _check_choice(value, names))


def _check_choice(value: Any, names: Sequence[str]) -> Any:
    if value not in names:
        problem = f"NAME is {shorten(value)}{suggest_closest(value, names)}"
        raise _field_error(problem, f"There is {join_words(names)}.", "Use one of them.")
    return value


_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list | range) else value)
Many = Annotated[tuple[T, ...], _as_tuple]  # several values, which JSON has as a list
Some = Annotated[Many[T], Field(min_length=1)]
Each = Annotated[Some[T], AfterValidator(_check_distinct)]


@dataclass(frozen=True)
class Option:
    """How a field appears on the command line and in Python, besides its type and bounds.

    `choices` are the allowed values, empty for any. `name` is the option's name if it differs from the field's (empty: only in
    Python); an `argument` has none. `many` is the form of several values: the option repeated ('repeat'), distinct values
    separated by spaces ('words') or commas ('commas'), files after one option ('paths'), a number of seeds or the seeds
    themselves ('seeds'), NAME=VALUE ('pairs'), or `count` words after one option; an argument of 'models' is one model, or a tuple.
    A flag that is true by default has a `name` that begins with 'no-'; `value` is the one word that turns a flag on.
    `unset` is the default as the help states it, `reason` the second part of an error about bounds. In Python a `positional`
    setting may follow the argument by position; all others are keywords. `grammar` parses a text, and raises TrisectError for
    an invalid one.
    """

    choices: tuple[str, ...] = ()
    name: str | None = None
    argument: bool = False
    many: str = "repeat"
    count: int | None = None
    value: str | None = None
    metavar: str | None = None
    unset: str | None = None
    reason: str | None = None
    positional: bool = False
    grammar: Callable[[str], object] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], core_schema.CoreSchema]) -> Any:
        schema = handler(source)
        if schema["type"] == "tuple":
            schema = core_schema.no_info_before_validator_function(self._to_tuple, schema)
            return core_schema.no_info_after_validator_function(self._check_all, schema)
        return core_schema.no_info_after_validator_function(self._check_item, schema)

    def _to_tuple(self, value: Any) -> Any:
        """Several values as a tuple, from a single value, a list, words in one string, or a number of seeds."""
        if self.many == "seeds" and isinstance(value, int):
            if isinstance(value, bool) or not 1 <= value <= MAX_SEEDS:
                reason = f"It is a number of seeds, 1 or more (at most {MAX_SEEDS:,}), or the seeds themselves."
                raise SpecError(f"seeds is {value!r}.", reason, "Use for example 5.")
            return tuple(range(1, value + 1))
        if isinstance(value, str | Path) or not isinstance(value, Sequence):
            value = (value,)
        if self.many == "words":
            return tuple(item for v in value for item in ((v.split() or [v]) if isinstance(v, str) else [v]))
        return tuple(value)

    def _check_all(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        for value in values:
            self._check_item(value)
        if self.count is not None and len(values) != self.count:
            reason = f"It takes {self.count}: {self.metavar}."
            raise _field_error(f"NAME was given {len(values)} values.", reason, f"Give {self.count}.")
        names = [str(value) for value in values]
        repeated = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if self.many == "seeds":
            if (
                not values
                or repeated is not None
                or not all(isinstance(seed, int) and 0 <= seed < 2**32 for seed in values)
            ):
                reason = "They are different whole numbers from 0 to 4,294,967,295, at least one."
                raise SpecError(f"The seeds {list(values)}.", reason, "Give for example 1, 2 and 3.")
        elif repeated is not None and self.many in ("commas", "words", "paths"):
            # a repeated value would be counted twice
            reason = f"NAME are {', '.join(map(shorten, names))}."
            raise _field_error(f"NAME was given {shorten(repeated)} twice.", reason, "Give each once.")
        return values

    def _check_item(self, value: Any) -> Any:
        if self.grammar is not None and isinstance(value, str):
            self.grammar(value)
        return _check_choice(value, self.choices) if self.choices else value


class Setting(NamedTuple):
    """A field of a settings class: its type without None, whether None is allowed, and its default (MISSING: none)."""

    name: str
    kind: Any
    optional: bool
    default: Any
    option: Option
    info: FieldInfo

    @property
    def help(self) -> str:
        """Its description."""
        return self.info.description or ""

    @property
    def required(self) -> bool:
        """Whether a value is required."""
        return self.default is MISSING

    @property
    def is_many(self) -> bool:
        """Whether it has several values."""
        return get_origin(self.kind) is tuple

    @property
    def item(self) -> object:
        """The type of a single value."""
        return get_args(self.kind)[0] if self.is_many else self.kind

    @property
    def has_path(self) -> bool:
        """Whether a value may be a path."""
        return Path in (self.item, *get_args(self.item))

    @property
    def words(self) -> str:
        """Its name on the command line, without dashes; empty if it has none."""
        return self.name.replace("_", "-") if self.option.name is None else self.option.name


class Group(NamedTuple):
    """A field with settings that several experiments share, such as the source of a model."""

    name: str
    kind: type[Any]
    optional: bool
    fields: tuple[Setting, ...]


@cache
def settings_of(kind: type[Any]) -> tuple[Setting | Group, ...]:
    """All fields of a settings class, in order; a field whose type is a settings class is a group."""
    fields: Mapping[str, FieldInfo] = cast("Any", kind).__pydantic_fields__
    return tuple(_setting(kind, name, info) for name, info in fields.items())


def names_of(kind: Any) -> tuple[str, ...]:
    """The names of a record's fields, or of a typed dictionary's keys."""
    return tuple(getattr(kind, "__dataclass_fields__", None) or kind.__annotations__)


def flat_settings(kind: type[Any]) -> tuple[Setting, ...]:
    """All fields of a settings class, with those of groups in their place."""
    return tuple(d for entry in settings_of(kind) for d in (entry.fields if isinstance(entry, Group) else (entry,)))


def _without_none(info: FieldInfo) -> FieldInfo:
    """A field without None among its types."""
    kinds = get_args(info.annotation)
    if NoneType not in kinds:
        return info
    kind: Any = Union[tuple(k for k in kinds if k is not NoneType)]  # noqa: UP007
    inner = FieldInfo.from_annotation(kind)
    inner.metadata += info.metadata
    inner.description = inner.description or info.description
    return inner


def _setting(owner: type[Any], name: str, info: FieldInfo) -> Setting | Group:
    inner = _without_none(info)
    kind, optional = inner.annotation, inner is not info
    option = next((m for m in inner.metadata if isinstance(m, Option)), None)
    if isinstance(kind, type) and hasattr(kind, "__pydantic_fields__"):
        fields = [setting for setting in settings_of(kind) if isinstance(setting, Setting)]
        for i, setting in enumerate(fields):
            if option is not None and setting.option.argument:  # the group's option changes that of its argument
                argument = replace(setting.option, many=option.many, metavar=option.metavar)
                fields[i] = setting = setting._replace(option=argument, info=inner)
            if optional:  # the default is None, and the help states the group's own
                keeps_option = (
                    setting.kind is bool or setting.option.unset is not None or setting.default in (MISSING, None, ())
                )
                described = setting.option if keeps_option else replace(setting.option, unset=str(setting.default))
                fields[i] = setting._replace(optional=True, default=None, option=described)
        return Group(name, kind, optional, tuple(fields))
    assert inner.description, f"{owner.__name__}.{name} has no description"
    default = MISSING if info.is_required() else info.default
    return Setting(name, kind, optional, default, option or Option(), inner)


def build(kind: type[C], values: Mapping[str, object]) -> C:
    """Build validated settings from values, groups included. Raises SpecError naming the field.

    An optional group without values is None; None stands for the default of a setting that cannot be None. A setting of one or
    several models gets the model itself, or a tuple. Also raises SpecError for a text with surrogates, which UTF-8 cannot encode.
    """
    names = [setting.name for setting in flat_settings(kind)]
    if unexpected := [name for name in values if name not in names]:
        raise SpecError(
            unknown_name("setting", unexpected[0], names), f"There are {', '.join(names)}.", "Use one of them."
        )
    arguments: dict[str, Any] = {}
    for entry in settings_of(kind):
        if isinstance(entry, Group):
            inner = {f.name: values[f.name] for f in entry.fields if f.name in values}
            for setting in entry.fields:
                value = inner.get(setting.name)
                if setting.option.many == "models" and isinstance(value, list | tuple):
                    if not value:
                        raise SpecError("No model was given.", "At least one is needed.", "Give a model.")
                    inner[setting.name] = value[0] if len(value) == 1 else tuple(value)
            is_empty = all(value is None or value == () for value in inner.values())
            filled = {name: value for name, value in inner.items() if value is not None}
            arguments[entry.name] = None if entry.optional and is_empty else build(entry.kind, filled)
        elif entry.name in values and (entry.optional or values[entry.name] is not None):
            arguments[entry.name] = value = values[entry.name]
            for text in value if isinstance(value, list | tuple) else (value,):
                if isinstance(text, str | Path) and any("\ud800" <= c <= "\udfff" for c in str(text)):
                    reason = "It holds half a character (a surrogate), which is no text in UTF-8."
                    raise SpecError(f"{entry.name} is {str(text)!a}.", reason, f"Give {entry.name} as a text.")
    return kind(**arguments)


def read_word(setting: Setting, word: object) -> object:
    """Parse and validate a value of a setting, which may be a string such as '1e-3'. Raises SpecError naming the field."""
    item: Any = Annotated[setting.item, *setting.info.metadata] if setting.info.metadata else setting.item
    try:
        return TypeAdapter(item, config=STRICT).validate_python(word, strict=not isinstance(word, str | float))
    except ValidationError as error:
        raise _value_error(setting.name, error.errors(include_url=False), setting.info) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read(kind: type[C], data: object, where: str | Path) -> C:
    """Read a record, or a typed dictionary, from JSON-ready data; raises SpecError naming `where`."""
    try:
        return _adapter(kind).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise to_spec_error(error, kind, str(where)) from None
    except TrisectError as error:  # raised by the record's __post_init__
        raise type(error)(f"In {where}: {error.problem}", error.reason, error.todo) from None


def to_json_data(value: object) -> Any:
    """A record as JSON-ready data for `read`; several as a list, None unchanged."""
    return (
        [to_json_data(item) for item in value]
        if isinstance(value, list | tuple)
        else _adapter(type(value)).dump_python(value, mode="json")
    )


def to_spec_error(error: ValidationError, kind: type[Any], where: str = "") -> SpecError:
    """Why values do not fit a record class, in three parts; `where` is their file."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda detail: detail["type"] != "unexpected_keyword_argument")
    names, owner, info = _locate(first["loc"], kind)
    if first["type"] == "unexpected_keyword_argument":
        names_there = sorted(names_of(owner))
        owner_name = " in ".join(filter(None, (".".join(names[:-1]), where))) or f"A {owner.__name__.lstrip('_')}"
        problem = f"{owner_name} has {names[-1]}{suggest_closest(names[-1], names_there)}"
        return SpecError(problem, f"It may have {', '.join(names_there)}.", "Correct or remove it.")
    if not names:
        problem = f"{where or 'What was given'} does not hold a {kind.__name__.lstrip('_').lower()}."
        names_there = sorted(names_of(kind))
        return SpecError(problem, "It is a JSON object.", f"Its keys are {', '.join(names_there)}.")
    same = [detail for detail in errors if _locate(detail["loc"], kind)[0] == names]
    return _value_error(
        " in ".join(filter(None, (".".join(names), where))), same, info, owner.__name__.lstrip("_").lower()
    )


def _locate(loc: tuple[int | str, ...], kind: type[Any]) -> tuple[list[str], Any, FieldInfo | None]:
    """Where a pydantic error is: the names that lead to it, with the innermost record and its field."""
    names, owner, inside = list[str](), cast("Any", kind), cast("Any", kind)
    info: FieldInfo | None = None
    for number, step in enumerate(loc):
        fields = getattr(inside, "__pydantic_fields__", {})
        if number == 0 and isinstance(step, int) and fields:  # a positional argument
            step = list(fields)[step]
        if step in fields:
            owner, info = inside, _without_none(fields[step])
            kinds = (k for k in (info.annotation, *get_args(info.annotation)) if isinstance(k, type))
            inside = next((k for k in kinds if hasattr(k, "__pydantic_fields__")), info.annotation)
        elif isinstance(step, str) and not (fields or is_typeddict(inside) or get_origin(inside) in (dict, Mapping)):
            break  # the name of a type in a union, not of a field
        elif isinstance(step, str):
            owner = inside if fields else owner
        names += [str(step)] if isinstance(step, str) else []
    return names, owner, info


def _value_error(name: str, errors: Sequence[Any], info: FieldInfo | None, owner: str = "") -> SpecError:
    """What is wrong with the value of a field, given all of its `errors`."""
    first, short = errors[0], name.split(" in ")[0]
    option = next((m for m in (info.metadata if info else ()) if isinstance(m, Option)), Option())
    if first["type"] == "wrong":
        parts = (first["ctx"][part].replace("NAME", name, 1) for part in ("problem", "reason", "todo"))
        return SpecError(*parts)
    if first["type"] in ("missing", "missing_argument"):
        reason = f"It is needed: {info.description}" if info and info.description else "It is needed."
        return SpecError(f"{name} was not given.", reason, f"Give {short}.")
    holds = "holds" if len(first["loc"]) > 1 and isinstance(first["loc"][-1], int) else "is"
    problem = f"{name} {holds} {shorten(first['input'])}."
    if first["type"] == "too_short":
        return SpecError(f"The {owner} has no {name}.", "It needs at least one.", f"Name some, or leave {owner} out.")
    if first["type"] in ("too_long", "string_too_long"):
        limit, unit = first["ctx"]["max_length"], "values" if first["type"] == "too_long" else "characters"
        problem = f"{name} has {len(first['input']):,} {unit}."
        return SpecError(problem, f"At most {limit:,} are read.", f"Give fewer {unit}.")
    nouns = " or ".join(dict.fromkeys(_describe(error, info) for error in errors))
    subject = "Each value" if holds == "holds" else "It"
    reason = option.reason if first["type"].startswith("greater") else None
    todo = (
        f'Give {short} in brackets, as in ["a", "b"].'
        if nouns == NOUNS["list_type"]
        else f"Change {short} accordingly."
    )
    return SpecError(problem, reason or f"{subject} is {nouns}.", todo)


def _describe(error: Mapping[str, Any], info: FieldInfo | None) -> str:
    """What a value has to be; the bound of whole numbers is named only for values above it."""
    if error["type"] == "is_instance_of":
        return f"a {error['ctx']['class'].lower()}"
    if error["type"] not in (*INTEGER_ERRORS, *NUMBER_ERRORS, *BOUNDS):
        return NOUNS.get(error["type"]) or error["msg"].removeprefix("Input should be ")
    kinds: Iterable[Any] = (info.annotation, *get_args(info.annotation)) if info else ()
    noun = NOUNS["float_type" if float in kinds or error["type"] in NUMBER_ERRORS[:2] else "int_type"]
    limits = {type(m): m for m in (info.metadata if info else ())}
    above, low, below, high = (limits.get(kind) for kind in (Gt, Ge, Lt, Le))
    is_above = error["type"].startswith("less")
    if high is not None and high.le == MAX_INT and not is_above:
        high = None
    bounds = [f"above {above.gt:g}"] if above else []
    bounds += [f"below {below.lt:g}"] if below else []
    if low and high:
        bounds.append(f"from {_spell(low.ge)} to {_spell(high.le)}")
    elif low:
        bounds.append(f"{_spell(low.ge)} or more")
    elif high:
        bounds.append(f"at most {_spell(high.le)}")
    elif not bounds and error["type"] in BOUNDS:  # of one of several values
        (bound,) = error["ctx"].values()
        bounds.append(f"{'at most' if is_above else 'at least'} {_spell(bound)}")
    elif not bounds and error["type"] == "finite_number":
        bounds.append("and finite")
    return ", ".join([noun, *([" and ".join(bounds)] if bounds else [])])


def _spell(bound: float) -> str:
    return f"{int(bound):,}" if float(bound).is_integer() else f"{bound:g}"
