"""Settings and texts on their way to the process that measures a model: as JSON and files, with what lies on this machine's disk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from trisect.core.errors import SpecError
from trisect.core.files import replace_file
from trisect.core.json_text import Json
from trisect.core.schema import Group, Setting, settings_of
from trisect.core.site import Site
from trisect.core.subject import TextOrPair, Texts
from trisect.lab.experiment import Experiment
from trisect.lab.folder import Folder
from trisect.lab.inputs import ModelWorkers, TextSource
from trisect.lab.run_folder import is_study
from trisect.lab.subject import at_revision
from trisect.text.hub import is_hub
from trisect.text.worlds import is_generated

S = TypeVar("S")
HERE = "In this process (without --workers and --engine) it can be given."


def encoded(value: Any, sent: set[Path] | None = None) -> Json:
    """Settings as JSON, which `decoded` reads; files and folders of this machine go into `sent`, where there is one.

    Texts and workers are left out: texts travel as a file. Raises SpecError for what only this process can hold.
    """
    if is_dataclass(value) and not isinstance(value, type | Site):
        if isinstance(value, TextSource | ModelWorkers):
            return {"fresh": type(value).__name__}
        paths = {one.name for one in settings_of(type(value)) if isinstance(one, Group) or _names_a_place(one)}
        own = {one.name: (getattr(value, one.name), sent if one.name in paths else None) for one in fields(value)}
        return {"settings": {name: encoded(*given) for name, given in own.items()}}
    if isinstance(value, Site):
        return {"site": str(value)}
    if isinstance(value, str | Path) and sent is not None and (packed := _sent(value, sent)) is not None:
        return packed
    if isinstance(value, Path):
        return {"path": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"mapping": {str(name): encoded(item, sent) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [encoded(item, sent) for item in value]}
    known = f"Settings go to another process as JSON, and that is {type(value).__name__}."
    raise SpecError(f"{str(value)[:80]!r} was given with --workers or --engine.", known, HERE)


def _names_a_place(one: Setting) -> bool:
    return one.option.argument or one.has_path


def _sent(value: str | Path, sent: set[Path]) -> Json:
    """Where something of this machine's disk will lie; None for a text that names nothing here."""
    if isinstance(value, str) and (is_generated(value) or is_hub(value) or not value.strip() or len(value) > 1_000):
        return None
    revision = at_revision(value)
    if revision is not None and Path(revision.base).is_dir():
        place = Path(revision.base).resolve()
        sent.add(place / revision.revision)
        return {"laid": _below_root(place), "behind": f"@{revision.revision}"}
    place = Path(value).resolve()
    if not place.exists():
        return None
    if place.parent.name == "runs" and is_study(study := place.parent.parent):
        sent.add(Folder(study).corpus)  # whose vocabulary a run of it reads
    sent.add(place)
    return {"laid": _below_root(place), "path": isinstance(value, Path)}


def _below_root(place: Path) -> str:
    return place.relative_to(place.anchor).as_posix()


def beside(model: object, names: Sequence[str]) -> set[Path]:
    """Checkpoints that lie beside a model's folder, and are read with it."""
    folder = Path(model).resolve() if isinstance(model, str | Path) else None
    found = {folder.parent / name for name in names} if folder is not None and folder.exists() else set[Path]()
    return {place for place in found if (place / "config.json").is_file()}


def decoded(kind: type[S], data: Json, laid: Path) -> S:
    """The settings of that class that `encoded` made JSON of; what was sent lies below the folder `laid` as below its root."""
    return _decoded(kind, data, laid)


def _decoded(kind: Any, data: Any, laid: Path) -> Any:
    match data:
        case {"settings": dict(own)}:
            groups = {one.name: one.kind for one in settings_of(kind) if isinstance(one, Group)}
            return kind(**{name: _decoded(groups.get(name), item, laid) for name, item in own.items()})
        case {"fresh": _}:
            return kind()
        case {"site": str(text)}:
            return Site.parse(text)
        case {"laid": str(place), **more}:
            path = laid / place
            return path if more.get("path") else f"{path}{more.get('behind', '')}"
        case {"path": str(text)}:
            return Path(text)
        case {"mapping": dict(own)}:
            return {name: _decoded(None, item, laid) for name, item in own.items()}
        case {"tuple": list(items)}:
            return tuple(_decoded(None, item, laid) for item in items)
        case {"list": list(items)}:
            return [_decoded(None, item, laid) for item in items]
        case _:
            return data


def lay_out(parts: Mapping[str, Path], folder: Path) -> None:
    """Have what was sent lie below a folder as it lay below its root, without a copy where the disk allows that."""
    for place, source in parts.items():
        target = folder / _below_root(Path(place))
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            _second_name(source, target)
        else:
            shutil.copytree(source, target, copy_function=_second_name, dirs_exist_ok=True)


def _second_name(source: str | Path, target: str | Path) -> None:
    if Path(target).exists():  # a study brings its text, and a run of it too
        return
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)


def find_experiment(module: str, name: str) -> Experiment[Any, Any]:
    """The experiment of that name, declared in that module."""
    found = (one for one in vars(import_module(module)).values() if isinstance(one, Experiment) and one.name == name)
    return next(found)


def write_texts(texts: Texts, path: Path) -> None:
    """Texts as a file: what they are called, then a line each."""
    head = {"name": texts.name, "fingerprint": texts.fingerprint}
    head |= {"notes": list(texts.notes), "options": list(texts.options), "articles": texts.articles is not None}

    def write(scratch: Path) -> None:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(json.dumps(head) + "\n")
            numbers = iter(()) if texts.articles is None else texts.articles()
            for text in texts.texts():
                file.write(json.dumps([text, next(numbers, None)]) + "\n")

    replace_file(path, write, durable=False)


def read_texts(path: Path) -> Texts:
    """The texts that `write_texts` wrote, read from the file whenever they are gone through."""
    with path.open(encoding="utf-8") as file:
        head = json.loads(file.readline())

    def lines() -> Iterator[Sequence[Any]]:
        with path.open(encoding="utf-8") as file:
            file.readline()
            for line in file:
                yield json.loads(line)

    def texts() -> Iterator[TextOrPair]:
        for text, _ in lines():
            yield tuple(text) if isinstance(text, list) else text

    def articles() -> Iterator[int | None]:
        return (article for _, article in lines())

    notes, options = tuple(head["notes"]), tuple(head["options"])
    return Texts(head["name"], texts, notes, head["fingerprint"], options, articles if head["articles"] else None)
