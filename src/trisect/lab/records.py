"""The record of a run: the command that repeats it, its question, and About, as JSON."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from trisect.claims import claims_hash
from trisect.core.errors import DamagedFileError, TrisectError
from trisect.core.files import Json, digest, digest_path, read_json
from trisect.core.finding import About
from trisect.core.machine import versions
from trisect.core.schema import Group, Setting, names_of, read, settings_of, to_json_data
from trisect.core.site import Site
from trisect.core.subject import Subject, Texts
from trisect.lab.experiment import Experiment, Measured
from trisect.lab.inputs import ModelSource, ModelsSource, ModelWorkers, TextSource, Workers
from trisect.report.sheet import Document, Sheet, StudyLink, with_links
from trisect.text.hub import is_hub, parse_name, revision_of
from trisect.text.worlds import is_built_in

INVENTED = (
    "Texts of an invented language ('embedded'): of a model that was not trained on it, this says nothing about its own language "
    "(English: \u2011\u2011corpus sample)."
)
MACHINE = {"--device", "--device-map"}  # of several models, and of checkpoints: a single model's command names none
S = TypeVar("S")
F = TypeVar("F")


def groups_of(settings: Any) -> Iterator[object]:
    """The groups of shared settings that are given."""
    groups = (getattr(settings, field.name) for field in settings_of(type(settings)) if isinstance(field, Group))
    return (group for group in groups if group is not None)


# --- the command


def command(
    name: str,
    settings: Any,
    subjects: tuple[Subject, ...] = (),
    texts: Texts | None = None,
    models: Sequence[str] = (),
) -> str:
    """The command that repeats the run: inputs, then every setting that differs from its default.

    `models` are the words of several that are opened one after the other.
    """
    words = ["trisect", name]
    for field in settings_of(type(settings)):
        value = getattr(settings, field.name)
        if isinstance(field, Setting):
            words += _option(field, value)
        elif isinstance(value, ModelSource) and models:
            words += models
            for inner in field.fields:
                words += [] if inner.option.argument else _option(inner, getattr(value, inner.name))
        elif isinstance(value, ModelSource):
            words += [word for subject in subjects for word in subject.options]
        elif isinstance(value, ModelsSource):
            words += [*(subject.options[0] for subject in subjects), *subjects[0].options[1:]]
        elif isinstance(value, TextSource):
            words += [] if texts is None else list(texts.options)
        elif value is not None and not isinstance(value, Workers | ModelWorkers):
            words += [word for inner in field.fields for word in _option(inner, getattr(value, inner.name))]
    return shlex.join(words)


def _option(field: Setting, value: Any) -> list[str]:
    """A setting as words of a command line; empty for defaults, and for settings of Python alone."""
    if not field.words or value == field.default or value is None:
        return []
    name, option = f"--{field.words}", field.option
    if field.kind is bool:
        return [name] if option.value is None else [name, option.value]
    if option.many == "pairs":
        return [word for key, item in value.items() for word in (name, f"{key}={item}")]
    values: Sequence[Any] = value if field.is_many else (value,)
    if isinstance(value, float) and not option.argument:
        return [name, f"{value:g}"]
    items = [_word(field, item) for item in values]
    if option.argument:
        return items
    if not field.is_many or option.count is not None:
        return [name, *items]
    if option.many in ("commas", "seeds"):
        return [name, ",".join(items) + "," * (option.many == "seeds" and len(items) == 1)]
    return [name, " ".join(items)] if option.many == "words" else [word for item in items for word in (name, item)]


def _word(field: Setting, value: Any) -> str:
    """A value as a word, in its one spelling; of what lies on this machine no path: an argument's name in capitals, an option's own
    name.
    """
    if field.option.grammar == Site.parse and isinstance(value, str):
        return str(Site.parse(value))
    if not field.has_path or not Path(value).exists():
        return str(value)
    return field.name.upper() if field.option.argument else Path(value).resolve().name


def plain_command(command: object) -> str:
    """A command without options of the machine, which identifies the question."""
    words = shlex.split(str(command))
    return shlex.join(word for word, before in zip(words, ("", *words), strict=False) if not {word, before} & MACHINE)


# --- the question


def question_of(words: str, settings: Any, models: Sequence[str], texts: Texts | None) -> dict[str, Json]:
    """What a run is asked, and on what, as its record notes it: `words` are its command, `models` marks of their weights.

    A command names no path, and leaves out what Python alone has, so that both are marked by their content.
    """
    python_alone = {}
    for field in settings_of(type(settings)):
        if isinstance(field, Setting) and not field.words and field.name != "batch":
            value = getattr(settings, field.name)
            python_alone |= {} if value == field.default else {field.name: value}
    return {
        "command": words,
        "models": [*models],
        "texts": None if texts is None else [texts.name, texts.fingerprint],
        "files": [*sorted(place_marks(settings, hub=False).values())],
        "data": digest(json.dumps(python_alone, sort_keys=True, default=str)) if python_alone else "",
    }


def place_marks(settings: Any, hub: bool = True) -> dict[str, str]:
    """A hash of every file, folder and (with `hub`) dataset that a setting names; of a dataset on a hub its commit."""
    marks = {}
    for field in settings_of(type(settings)):
        has_place = isinstance(field, Setting) and (field.has_path or field.name in ("audio", "image"))
        value = getattr(settings, field.name) if has_place else None
        for place in value if isinstance(value, tuple) else (value,):
            if not isinstance(place, str | Path) or is_built_in(place):
                continue
            if not is_hub(place) and Path(place).exists():
                marks[str(place)] = digest_path(Path(place))
            elif is_hub(place) and hub:
                folder = Path(parse_name(str(place))[0])
                commit = digest_path(folder) if folder.is_dir() else revision_of(str(place))
                marks[str(place)] = commit or secrets.token_hex(16)
    return marks


# --- About


def conclusion(
    experiment: Experiment[S, F], measured: Measured[F], command: str, seconds: float
) -> tuple[About[F], dict[str, pl.DataFrame]]:
    """The record of what was measured, and all tables by name, verdicts included.

    `command` and `seconds` are those of this call, which count where the measurement has no others.
    """
    about = About(
        experiment.name,
        command if measured.command is None else measured.command,
        seconds if measured.seconds is None else measured.seconds,
        measured.notes,
        versions(*measured.packages),
        None if measured.family is None else claims_hash(measured.family),
        measured.facts,
    )
    return about, dict(measured.tables) | ({} if measured.judge is None else {"claims": measured.judge(about)})


def note_invented(measured: Measured[F], settings: Any) -> Measured[F]:
    """The result of a pretrained model, with a note if it read texts of the invented language.

    Sentence pairs of it are what a translator was trained on, and need no note.
    """
    named = [group.texts for group in groups_of(settings) if isinstance(group, TextSource)]
    named += [] if getattr(settings, "attention", "") == "cross" else [getattr(settings, "corpus", None)]
    if not any(isinstance(corpus, str | Path) and str(corpus) == "embedded" for corpus in named):
        return measured
    return replace(measured, notes=tuple(dict.fromkeys((INVENTED, *measured.notes))))


def draw_page(
    experiment: Experiment[S, F],
    tables: Mapping[str, pl.DataFrame],
    about: About[F],
    links: tuple[StudyLink, ...] = (),
) -> Sheet | Document:
    """The page of an experiment below its links, with a banner if a pretrained model read the invented language."""
    page = with_links(experiment.page(tables, about), links)
    if INVENTED not in about.notes or not isinstance(page, Sheet):
        return page
    return replace(page, links=f'{page.links}<p class="lede notice">{escape(INVENTED)}</p>')


def read_about(experiment: Experiment[S, F], folder: Path) -> About[F]:
    """Read the record beside the tables of a folder; raises DamagedFileError if it is unreadable."""
    path = folder / experiment.record
    todo = f"Delete {path} and call 'trisect {experiment.name}' again."
    return read_about_file(experiment.name, experiment.facts, path, todo)


def read_about_file(name: str, facts: type[F], path: Path, todo: str) -> About[F]:
    """Read a record from its file."""
    body = read_json(path, todo)
    defaults = {"command": "", "seconds": 0.0, "notes": [], "versions": {}, "claims_hash": None}
    try:
        noted = {key: body.get(key, default) for key, default in defaults.items()}
        about = read(About[Any], {"experiment": name, "facts": None, **noted}, path)
        return replace(about, facts=read(facts, {key: body[key] for key in names_of(facts) if key in body}, path))
    except TrisectError as error:
        raise DamagedFileError(f"{path} is damaged.", f"{error.problem} {error.reason}", todo) from error


def record_of(about: About[Any]) -> dict[str, Json]:
    """A record as JSON-ready data, with its facts."""
    hashed = {} if about.claims_hash is None else {"claims_hash": about.claims_hash}
    noted = {"command": about.command, "seconds": about.seconds, "notes": list(about.notes)}
    facts: Any = to_json_data(about.facts)
    return facts | noted | {"versions": dict(about.versions)} | hashed
