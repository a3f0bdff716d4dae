"""The command line that repeats a run: inputs by their own words, then every setting that is not its default."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trisect.core.files import Json, digest, digest_place
from trisect.core.schema import Group, Setting, settings_of
from trisect.core.site import Site
from trisect.core.subject import Subject, Texts
from trisect.lab.inputs import ModelSource, ModelsSource, ModelWorkers, TextSource, Workers
from trisect.text.hub import is_hub, parse_name, revision_of
from trisect.text.worlds import is_built_in

MACHINE = {"--device", "--device-map"}  # of several models, and of checkpoints: a single model's command names none


def groups_of(settings: Any) -> Iterable[object]:
    """The groups of shared settings that are given."""
    found = (getattr(settings, one.name) for one in settings_of(type(settings)) if isinstance(one, Group))
    return (group for group in found if group is not None)


def command_of(name: str, settings: object) -> str:
    """The command `name` that repeats a run of these settings, which name no model and no texts to be opened."""
    return command(name, settings, (), None)


def command(
    name: str,
    settings: Any,
    subjects: tuple[Subject, ...],
    texts: Texts | None,
    models: Sequence[str] = (),
) -> str:
    """The command that repeats the run; `models` are the words of several that are opened one after the other."""
    words = ["trisect", name]
    for one in settings_of(type(settings)):
        value = getattr(settings, one.name)
        if isinstance(one, Setting):
            words += _option(one, value)
        elif isinstance(value, ModelSource) and models:
            own = [
                inner
                for inner in settings_of(type(value))
                if isinstance(inner, Setting) and inner.words and not inner.option.argument
            ]
            words += [*models, *(word for inner in own for word in _option(inner, getattr(value, inner.name)))]
        elif isinstance(value, ModelSource):
            words += [word for subject in subjects for word in subject.options]
        elif isinstance(value, ModelsSource):
            words += [*(subject.options[0] for subject in subjects), *subjects[0].options[1:]]
        elif isinstance(value, TextSource):
            words += [] if texts is None else list(texts.options)
        elif value is not None and not isinstance(value, Workers | ModelWorkers):
            words += [word for inner in one.fields for word in _option(inner, getattr(value, inner.name))]
    return shlex.join(words)


def _option(one: Setting, value: Any) -> list[str]:
    """One setting as words of a command line; none where it is the default, or where Python alone has it."""
    if not one.words or value == one.default or value is None:
        return []
    name, option = f"--{one.words}", one.option
    if option.argument:
        return [_word(one, item) for item in value] if one.is_many else [_word(one, value)]
    if one.kind is bool:
        return [name] if option.value is None else [name, option.value]
    if option.many == "pairs":
        return [word for key, item in value.items() for word in (name, f"{key}={item}")]
    if not one.is_many:
        return [name, f"{value:g}" if isinstance(value, float) else _word(one, value)]
    items = [_word(one, item) for item in value]
    if option.count is not None:
        return [name, *items]
    if option.many in ("commas", "seeds"):
        return [name, ",".join(items) + "," * (option.many == "seeds" and len(items) == 1)]
    return [name, " ".join(items)] if option.many == "words" else [word for item in items for word in (name, item)]


def _word(one: Setting, value: Any) -> str:
    """A value as a word, in its one spelling; of what lies on this machine no path: an argument's name in capitals, an option's own
    name.
    """
    if one.option.grammar == Site.parse and isinstance(value, str):
        return str(Site.parse(value))
    if not one.has_path or not Path(value).exists():
        return str(value)
    return one.name.upper() if one.option.argument else Path(value).resolve().name


def plain_command(command: object) -> str:
    """A command without what says on which machine it runs: the same question is asked there and here."""
    words = shlex.split(str(command))
    return shlex.join(word for word, before in zip(words, ("", *words), strict=False) if not {word, before} & MACHINE)


def question_of(words: str, settings: Any, models: Sequence[str], texts: Texts | None) -> dict[str, Json]:
    """What a run is asked, and on what, as its record notes it: `words` are its command, `models` marks of their weights.

    A command names no path, and leaves out what Python alone has, so that both are marked by their content.
    """
    hidden = [one for one in settings_of(type(settings)) if isinstance(one, Setting) and one.name != "batch"]
    given = {
        one.name: value for one in hidden if not one.words and (value := getattr(settings, one.name)) != one.default
    }
    return {
        "command": words,
        "models": [*models],
        "texts": None if texts is None else [texts.name, texts.fingerprint],
        "files": [*sorted(place_marks(settings, hub=False).values())],
        "data": digest(json.dumps(given, sort_keys=True, default=str)) if given else "",
    }


def place_marks(settings: Any, hub: bool = True) -> dict[str, str]:
    """A mark of every file, folder and (with `hub`) dataset that a setting names; of a dataset on a hub its commit."""
    named = [d for d in settings_of(type(settings)) if isinstance(d, Setting) and d.has_path]
    given = (getattr(settings, one.name) for one in named)
    each = (one for value in given for one in (value if isinstance(value, tuple) else (value,)))
    values = [one for one in each if isinstance(one, str | Path) and not is_built_in(one)]
    found = {str(value): digest_place(Path(value)) for value in values if not is_hub(value) and Path(value).exists()}
    for value in map(str, filter(is_hub, values if hub else ())):
        place = Path(parse_name(value)[0])
        found[value] = digest_place(place) if place.is_dir() else revision_of(value) or secrets.token_hex(16)
    return found
