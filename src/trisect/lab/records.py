"""What is noted beside tables: written as JSON, and read back as About with the experiment's own facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from trisect.core.errors import DamagedFileError
from trisect.core.files import read_json, read_record
from trisect.core.finding import About
from trisect.core.json_text import Json
from trisect.lab.experiment import Experiment

S = TypeVar("S")
F = TypeVar("F")


class NotedRun(TypedDict, total=False):
    """What is noted beside tables, besides the experiment's own facts."""

    command: str
    seconds: float
    notes: list[str]
    versions: dict[str, str]
    claims_hash: str | None


def read_about(experiment: Experiment[S, F], folder: Path) -> About[F]:
    """What was noted beside the tables of a folder; raises DamagedFileError where it cannot be read."""
    path = folder / experiment.record
    body = read_json(path, f"Delete {path} and call 'trisect {experiment.name}' again.")
    own = {field.name for field in fields(experiment.facts)}  # pyright: ignore[reportArgumentType]
    try:
        facts = experiment.facts(**{name: _frozen(value) for name, value in body.items() if name in own})
    except TypeError as error:
        todo = f"Delete {path} and call 'trisect {experiment.name}' again."
        raise DamagedFileError(f"{path} lacks something.", str(error), todo) from error
    noted = read_record(path, f"Delete {path} and call 'trisect {experiment.name}' again.", NotedRun)
    made, hashed = noted.get("versions", {}), noted.get("claims_hash")
    words, seconds, notes = noted.get("command", ""), noted.get("seconds", 0.0), tuple(noted.get("notes", ()))
    return About(experiment.name, words, seconds, notes, made, hashed, facts)


def record(about: About[Any]) -> dict[str, Json]:
    """About as JSON-ready data, the facts among the rest."""
    rest = {"command": about.command, "seconds": about.seconds, "notes": list(about.notes)}
    hashed = {} if about.claims_hash is None else {"claims_hash": about.claims_hash}
    return _plain(asdict(about.facts)) | rest | {"versions": dict(about.versions)} | hashed


def _plain(value: Any) -> Any:
    """Tuples as lists, paths and sites as texts."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
