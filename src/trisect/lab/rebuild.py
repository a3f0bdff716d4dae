"""Rebuild: the page of any folder that an experiment left, from its tables and its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import read_json
from trisect.lab.driver import render
from trisect.lab.experiment import Experiment, Result
from trisect.lab.run_folder import COPY_AGAIN, RunFolder, has_tables
from trisect.lab.units.run import OverModels


def rebuild(experiments: Sequence[Experiment[Any, Any]], folder: Path) -> Result[Any]:
    """Make page and figures of a folder again; its list of files says whose they are, or its record. Raises StudyError."""
    return render(_over(_found(experiments, folder), folder), folder)


def _found(experiments: Sequence[Experiment[Any, Any]], folder: Path) -> Experiment[Any, Any]:
    """The experiment that left a folder; raises StudyError where none did, or one that has no page."""
    if folder.is_file():
        known = "A page is rebuilt from tables, which lie in a folder."
        todo = f"Name the folder of {folder.name}, or call the command that wrote it again."
        raise StudyError(f"{folder} is a file.", known, todo)
    name = (
        RunFolder(folder).manifest()["experiment"]
        if RunFolder(folder).has_run
        else next(_recorded(experiments, folder), None)
    )
    if name is None:
        for record in sorted({folder / one.record for one in experiments} if has_tables(folder) else ()):
            if record.is_file():
                read_json(record, COPY_AGAIN)  # raises where it was altered
        known = "There is no study.json in it, and no manifest.json or record, such as about.json, of another command."
        todo = "Name a folder that a command wrote, which is what it was given as --out."
        if (folder / "experiment.json").is_file():
            todo = f"Run its experiment again: trisect study {folder / 'experiment.json'} --out FOLDER."
        raise StudyError(f"{folder} holds no study, and no other results.", known, todo)
    found = next((one for one in experiments if one.name == name and one.paged and not one.single), None)
    if found is None:
        known = "That leaves no page to be made from tables."
        raise StudyError(f"{folder} holds results of 'trisect {name}'.", known, "Name the folder of another command.")
    if not any((folder / "tables").glob("*.parquet")):
        known = f"A page of 'trisect {name}' is made from them."
        raise StudyError(f"There are no tables in {folder}.", known, "Name a folder that has them, or run it again.")
    return found


def _recorded(experiments: Sequence[Experiment[Any, Any]], folder: Path) -> Iterator[str]:
    """Which commands a folder's records name: those that wrote them, where they are experiments' own."""
    for one in experiments:
        words = _command(folder / one.record).split()
        if words[:2] == ["trisect", one.name]:
            yield one.name


def _command(record: Path) -> str:
    """The command that a record names; empty where there is none that can be read."""
    try:
        body = read_json(record, "") if record.is_file() else {}
    except DamagedFileError:  # altered, or another program's
        return ""
    return str(body.get("command", "")) if isinstance(body, dict) else ""


def _over(one: Experiment[Any, Any], folder: Path) -> Experiment[Any, Any]:
    """The experiment over several models where the record is of such a run."""
    path = folder / one.record
    body = read_json(path, f"Delete {path} and call 'trisect {one.name}' again.")
    several = {"units", "what", "models"} <= body.keys() and body["what"] == one.name
    return OverModels(one, None) if several else one
