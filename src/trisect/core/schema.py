"""The one schema: records that check their values, what stands with their fields, and what is wrong with a value, in words.

Settings, statements, stored records and messages of jobs are `record` classes: pydantic dataclasses, frozen and strict. A field's
help and bounds are pydantic's `Field`; how the command line has it is an `Option` beside that.
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

from trisect.core.errors import SpecError, TrisectError, or_closest, shorten, unknown

WHOLE = 10**9  # of any whole number that says nothing else of itself
SEED = 2**63 - 1  # of a study's seed, as PyTorch takes one
NAME = 200  # characters of a design's name, which its folder has
RUNS = 20_000  # of one study: more are several
FLEET = 1_024  # runs that are trained side by side in one job, and jobs that share a GPU
MODEL: Mapping[str, int] = {"width": 65_536, "layers": 1_000, "heads": 1_024, "feedforward": 262_144}
TRAINING: Mapping[str, int] = {"epochs": 100_000, "columns": 100_000, "eval_columns": 100_000, "window": 100_000}
POINTS = 10_001  # of a rewinding's curve
DRAWS = 10_000_000  # random matrices of a null
RESAMPLES = 1_000_000  # draws of a bootstrap, random subspaces, maps
JSON_BYTES = 16_000_000  # of a statement that a person writes
LINE_BYTES = 10_000_000  # of one line of pairs, links, questions or sentences
TEXT_BYTES = 2_000_000_000  # of a file of these, which is held whole
TEXT_LINE_BYTES = 250_000_000  # of one line of a corpus, which is read in pieces: some are all one line
CORPUS_BYTES = 10**12  # of a file of a corpus
LINES = 2**31  # of any text


MOST_SEEDS = 10_000
# validators are built when they are first needed: a command's help needs none
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True, defer_build=True)
BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
WHOLES, NUMBERS = ("int_type", "int_from_float", "int_parsing"), ("float_type", "float_parsing", "finite_number")
NOUNS = {
    **dict.fromkeys(WHOLES, "a whole number"),
    **dict.fromkeys(NUMBERS, "a number"),
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
    """A frozen dataclass that checks its values against its annotations, and names what does not fit in a SpecError.

    Nothing is converted but whole numbers to floats, and lists to the tuples of `Many`.
    """

    made: Any = pydantic_dataclass(frozen=True, config=STRICT)(kind)
    assert made.__pydantic_fields_complete__(), f"{kind.__name__} names a type that is not imported"
    # the parameters of a dataclass, as the standard library's own have them; pydantic's are known only once it validates
    found = []
    for name, info in made.__pydantic_fields__.items():
        place = Parameter.KEYWORD_ONLY if info.kw_only else Parameter.POSITIONAL_OR_KEYWORD
        default = Parameter.empty if info.is_required() else info.default if info.default_factory is None else ...
        found.append(Parameter(name, place, default=default, annotation=info.annotation))
    check, shown = made.__init__, Signature(sorted(found, key=lambda one: one.kind))

    @wraps(check)
    def checked(self: object, *given: object, **named: object) -> None:
        try:
            check(self, *given, **named)
        except ValidationError as error:
            raise in_words(error, type(self)) from None
        finally:  # pydantic puts its own here when it builds the validator
            if made.__init__ is not checked:
                made.__init__, made.__signature__ = checked, shown

    made.__init__, made.__signature__ = checked, shown
    return made


def _wrong(given: str, known: str, todo: str) -> PydanticCustomError:
    """What a value is wrong by, in three parts in which NAME stands for its field."""
    return PydanticCustomError("wrong", "{given}", {"given": given, "known": known, "todo": todo})


def _different(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise _wrong(f"NAME are {', '.join(map(str, values))}.", "One is given twice.", "Name each once.")
    return values


def one_of(*names: str) -> AfterValidator:
    """A text that is one of these."""
    return AfterValidator(lambda value: _check_choice(value, names))


def _check_choice(value: Any, names: Sequence[str]) -> Any:
    if value not in names:
        given = f"NAME is {shorten(value)}{or_closest(value, names)}"
        raise _wrong(given, f"There is {_and(names)}.", "Use one of them.")
    return value


_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list | range) else value)
Many = Annotated[tuple[T, ...], _as_tuple]  # several values, which JSON has as a list
Some = Annotated[Many[T], Field(min_length=1)]
Each = Annotated[Some[T], AfterValidator(_different)]


@dataclass(frozen=True)
class Option:
    """How a field stands on the command line and in Python, and what it may be besides its type and bounds.

    It is one of `choices`, where there are any. `name` is its name on the command line where it is not the field's (empty: Python
    alone); an `argument` has none. Several values are given one by one
    ('repeat'), or, each of them once, also with spaces between ('words') or commas ('commas'), as files that
    may all stand behind one option ('places'), as a number of seeds or the seeds
    themselves ('seeds'), as NAME=VALUE where they have names ('pairs'), or as so many words behind one option (`count`). An argument
    of 'models' is one model, or a tuple of several.
    A flag that is true unless given has a `name` that begins with 'no-'; `value` is the one word that turns a flag on.
    `unset` says in the help what stands where nothing is given, `known` what there is in an error's second part. In Python the
    setting that is `placed` may follow the argument by place; all others are given by name. `grammar` reads a text, and raises
    TrisectError for one that is of another form.
    """

    choices: tuple[str, ...] = ()
    name: str | None = None
    argument: bool = False
    many: str = "repeat"
    count: int | None = None
    value: str | None = None
    metavar: str | None = None
    unset: str | None = None
    known: str | None = None
    placed: bool = False
    grammar: Callable[[str], object] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], core_schema.CoreSchema]) -> Any:
        schema = handler(source)
        if schema["type"] == "tuple":
            schema = core_schema.no_info_before_validator_function(self._several, schema)
            return core_schema.no_info_after_validator_function(self._check_all, schema)
        return core_schema.no_info_after_validator_function(self._one, schema)

    def _several(self, value: Any) -> Any:
        """Several values as a tuple: of one value, of a list, of words in one text, of a number of seeds."""
        if self.many == "seeds" and isinstance(value, int):
            return seeds_up_to(value)
        if isinstance(value, str | Path) or not isinstance(value, Sequence):
            value = (value,)
        if self.many == "words":
            return tuple(item for v in value for item in ((v.split() or [v]) if isinstance(v, str) else [v]))
        return tuple(value)

    def _check_all(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        for value in values:
            self._one(value)
        if self.count is not None and len(values) != self.count:
            known = f"It takes {self.count}: {self.metavar}."
            raise _wrong(f"NAME was given {len(values)} values.", known, f"Give {self.count}.")
        names = [str(value) for value in values]
        again = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if self.many == "seeds":
            check_seeds(values)
        elif (
            self.many in ("commas", "words", "places") and again is not None
        ):  # it would be measured, or counted, twice
            known = f"NAME are {', '.join(map(shorten, names))}."
            raise _wrong(f"NAME was given {shorten(again)} twice.", known, "Give each once.")
        return values

    def _one(self, value: Any) -> Any:
        if self.grammar is not None and isinstance(value, str):
            self.grammar(value)
        return _check_choice(value, self.choices) if self.choices else value


class Setting(NamedTuple):
    """One field of a settings class: its type without None, whether None is allowed, and its default (MISSING: none)."""

    name: str
    kind: Any
    optional: bool
    default: Any
    option: Option
    info: FieldInfo

    @property
    def help(self) -> str:
        """Its sentence everywhere."""
        return self.info.description or ""

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
    def has_path(self) -> bool:
        """Whether it may be a path."""
        return Path in (self.item, *get_args(self.item))

    @property
    def words(self) -> str:
        """The name as a command line has it, without dashes; empty where it has none."""
        return self.name.replace("_", "-") if self.option.name is None else self.option.name


class Group(NamedTuple):
    """A field that holds settings that several experiments share, such as where a model is from."""

    name: str
    kind: type[Any]
    optional: bool
    fields: tuple[Setting, ...]


@cache
def settings_of(kind: type[Any]) -> tuple[Setting | Group, ...]:
    """Every field of a settings class, in order; a field whose type is itself one is a group."""
    fields: Mapping[str, FieldInfo] = cast("Any", kind).__pydantic_fields__
    return tuple(_setting(kind, name, info) for name, info in fields.items())


def names_of(kind: Any) -> tuple[str, ...]:
    """The names of a record's fields, or of a typed dictionary's keys."""
    return tuple(getattr(kind, "__dataclass_fields__", None) or kind.__annotations__)


def flat(kind: type[Any]) -> tuple[Setting, ...]:
    """Every field of a settings class with those of its groups in their place."""
    return tuple(d for one in settings_of(kind) for d in (one.fields if isinstance(one, Group) else (one,)))


def _without_null(info: FieldInfo) -> FieldInfo:
    """A field as it is where it is not None."""
    kinds = get_args(info.annotation)
    if NoneType not in kinds:
        return info
    kind: Any = Union[tuple(k for k in kinds if k is not NoneType)]  # noqa: UP007
    inner = FieldInfo.from_annotation(kind)
    inner.metadata += info.metadata
    inner.description = inner.description or info.description
    return inner


def _setting(owner: type[Any], name: str, info: FieldInfo) -> Setting | Group:
    inner = _without_null(info)
    kind, optional = inner.annotation, inner is not info
    option = next((m for m in inner.metadata if isinstance(m, Option)), None)
    if isinstance(kind, type) and hasattr(kind, "__pydantic_fields__"):
        own = tuple(one for one in settings_of(kind) if isinstance(one, Setting))
        if option is not None:  # what the settings say of their group's argument
            asked = {"many": option.many, "metavar": option.metavar}
            own = (s._replace(option=replace(s.option, **asked), info=inner) if s.option.argument else s for s in own)
            own = tuple(own)
        return Group(name, kind, optional, tuple(map(_open, own)) if optional else own)
    assert inner.description, f"{owner.__name__}.{name} says nothing of itself"
    default = MISSING if info.is_required() else info.default
    return Setting(name, kind, optional, default, option or Option(), inner)


def _open(one: Setting) -> Setting:
    """A setting of a group that may be missing: nothing stands by default, and its help says what does in the group."""
    plain = one.kind is bool or one.option.unset is not None or one.default in (MISSING, None, ())
    option = one.option if plain else replace(one.option, unset=str(one.default))
    return one._replace(optional=True, default=None, option=option)


def build(kind: type[C], given: Mapping[str, object]) -> C:
    """The settings with these values, groups filled from theirs; checked. Raises SpecError naming the field.

    A group that may be missing is None where none of its values is given; where None is no value, it stands for the default.
    """
    known = [one.name for one in flat(kind)]
    if strange := [name for name in given if name not in known]:
        raise SpecError(unknown("setting", strange[0], known), f"There are {', '.join(known)}.", "Use one of them.")
    values: dict[str, Any] = {}
    for one in settings_of(kind):
        if isinstance(one, Group):
            mine = {d.name: _some_models(d, given[d.name]) for d in one.fields if d.name in given}
            if one.optional and all(value is None or value == () for value in mine.values()):
                values[one.name] = None
            else:
                values[one.name] = build(one.kind, {k: v for k, v in mine.items() if v is not None})
        elif one.name in given and (one.optional or given[one.name] is not None):
            _check_text(one.name, given[one.name])
            values[one.name] = given[one.name]
    return kind(**values)


def _some_models(one: Setting, value: Any) -> Any:
    """One model as it is and several as a tuple, where a setting takes both."""
    if one.option.many != "models" or not isinstance(value, list | tuple):
        return value
    if not value:
        raise SpecError("No model was given.", "At least one is read.", "Give a model.")
    return value[0] if len(value) == 1 else tuple(value)


def _check_text(name: str, value: Any) -> None:
    """Raise SpecError for a text with half a character, which no file and no table can hold."""
    for text in value if isinstance(value, list | tuple) else (value,):
        if isinstance(text, str | Path):
            try:
                str(text).encode()
            except UnicodeEncodeError:
                known = "It holds half a character (a surrogate), which is no text in UTF-8."
                raise SpecError(f"{name} is {str(text)!a}.", known, f"Give {name} as a text.") from None


def read_word(one: Setting, given: object) -> object:
    """One value of a setting, which may be given as a word, such as '1e-3'; checked. Raises SpecError naming the field."""
    item: Any = Annotated[one.item, *one.info.metadata] if one.info.metadata else one.item
    try:
        return TypeAdapter(item, config=STRICT).validate_python(given, strict=not isinstance(given, str | float))
    except ValidationError as error:
        raise _of_value(one.name, error.errors(include_url=False), one.info) from None


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


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read(kind: type[C], data: object, where: str | Path) -> C:
    """A record, or a typed dictionary, from JSON-ready data; raises SpecError naming `where` for what does not fit."""
    try:
        return _adapter(kind).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise in_words(error, kind, str(where)) from None
    except TrisectError as error:  # what a record itself found
        raise type(error)(f"In {where}: {error.given}", error.known, error.todo) from None


def plain(value: object) -> Any:
    """A record as JSON-ready data, which `read` reads; several as a list, None as it is."""
    return (
        [plain(one) for one in value]
        if isinstance(value, list | tuple)
        else _adapter(type(value)).dump_python(value, mode="json")
    )


def in_words(error: ValidationError, kind: type[Any], where: str = "") -> SpecError:
    """What keeps values from being a record of that class, in three parts; `where` is the file that they are from."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda one: one["type"] != "unexpected_keyword_argument")
    names, owner, info = _place(first["loc"], kind)
    if first["type"] == "unexpected_keyword_argument":
        known = sorted(names_of(owner))
        home = " in ".join(filter(None, (".".join(names[:-1]), where))) or f"A {owner.__name__}"
        given = f"{home} has {names[-1]}{or_closest(names[-1], known)}"
        return SpecError(given, f"Known are {', '.join(known)}.", "Correct or remove the others.")
    if not names:
        given = f"{where or 'What was given'} does not hold a {kind.__name__.lower()}."
        known = sorted(names_of(kind))
        return SpecError(given, "It is a JSON object.", f"Its keys are {', '.join(known)}.")
    same = [one for one in errors if _place(one["loc"], kind)[0] == names]
    return _of_value(" in ".join(filter(None, (".".join(names), where))), same, info, owner.__name__.lower())


def _place(loc: tuple[int | str, ...], kind: type[Any]) -> tuple[list[str], Any, FieldInfo | None]:
    """Where pydantic met an error: the names that lead there, the last record among them, and its field."""
    names, owner, inside = list[str](), cast("Any", kind), cast("Any", kind)
    info: FieldInfo | None = None
    for number, step in enumerate(loc):
        fields = getattr(inside, "__pydantic_fields__", {})
        if number == 0 and isinstance(step, int) and fields:  # given by place
            step = list(fields)[step]
        if step in fields:
            owner, info = inside, _without_null(fields[step])
            kinds = (k for k in (info.annotation, *get_args(info.annotation)) if isinstance(k, type))
            inside = next((k for k in kinds if hasattr(k, "__pydantic_fields__")), info.annotation)
        elif isinstance(step, str) and not (fields or is_typeddict(inside) or get_origin(inside) in (dict, Mapping)):
            break  # one type of several, and no name
        elif isinstance(step, str):
            owner = inside if fields else owner
        names += [str(step)] if isinstance(step, str) else []
    return names, owner, info


def _of_value(name: str, errors: Sequence[Any], info: FieldInfo | None, owner: str = "") -> SpecError:
    """What is wrong with the value of a field, which `errors` are all about."""
    first, short = errors[0], name.split(" in ")[0]
    option = next((m for m in (info.metadata if info else ()) if isinstance(m, Option)), Option())
    if first["type"] == "wrong":
        parts = (first["ctx"][part].replace("NAME", name, 1) for part in ("given", "known", "todo"))
        return SpecError(*parts)
    if first["type"] in ("missing", "missing_argument"):
        known = f"It is needed: {info.description}" if info and info.description else "It is needed."
        return SpecError(f"{name} was not given.", known, f"Give {short}.")
    holds = "holds" if len(first["loc"]) > 1 and isinstance(first["loc"][-1], int) else "is"
    given = f"{name} {holds} {shorten(first['input'])}."
    if first["type"] == "too_short":
        return SpecError(f"The {owner} has no {name}.", "It needs at least one.", f"Name some, or leave {owner} out.")
    if first["type"] in ("too_long", "string_too_long"):
        most, what = first["ctx"]["max_length"], "values" if first["type"] == "too_long" else "characters"
        given = f"{name} has {len(first['input']):,} {what}."
        return SpecError(given, f"At most {most:,} are read.", f"Give fewer {what}.")
    nouns = " or ".join(dict.fromkeys(_noun(one, info) for one in errors))
    each = "Each of it" if holds == "holds" else "It"
    known = option.known if first["type"].startswith("greater") else None
    todo = f'Give {short} in brackets, as in ["a", "b"].' if nouns == NOUNS["list_type"] else f"Give {short} as that."
    return SpecError(given, known or f"{each} is {nouns}.", todo)


def _noun(error: Mapping[str, Any], info: FieldInfo | None) -> str:
    """What a value would have to be."""
    if error["type"] in (*WHOLES, *NUMBERS, *BOUNDS):
        return _describe_bounds(error, info)
    if error["type"] == "is_instance_of":
        return f"a {error['ctx']['class'].lower()}"
    return NOUNS.get(error["type"]) or error["msg"].removeprefix("Input should be ")


def _describe_bounds(error: Mapping[str, Any], info: FieldInfo | None) -> str:
    """A number with its bounds, in words; the bound of every whole number is said only where a value lies above it."""
    kinds: Iterable[Any] = (info.annotation, *get_args(info.annotation)) if info else ()
    noun = NOUNS["float_type" if float in kinds or error["type"] in NUMBERS[:2] else "int_type"]
    found = {type(m): m for m in (info.metadata if info else ())}
    above, low, below, high = (found.get(kind) for kind in (Gt, Ge, Lt, Le))
    over = error["type"].startswith("less")
    if high is not None and high.le == WHOLE and not over:
        high = None
    said = [f"above {above.gt:g}"] if above else []
    said += [f"below {below.lt:g}"] if below else []
    if low and high:
        said.append(f"from {_spelt(low.ge)} to {_spelt(high.le)}")
    elif low:
        said.append(f"{_spelt(low.ge)} or more")
    elif high:
        said.append(f"at most {_spelt(high.le)}")
    elif not said and error["type"] in BOUNDS:  # the bound of one of several values
        (bound,) = error["ctx"].values()
        said.append(f"{'at most' if over else 'at least'} {_spelt(bound)}")
    elif not said and error["type"] == "finite_number":
        said.append("and finite")
    return ", ".join([noun, *([" and ".join(said)] if said else [])])


def _spelt(bound: float) -> str:
    return f"{int(bound):,}" if float(bound).is_integer() else f"{bound:g}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
