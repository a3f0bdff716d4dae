"""Begun: the folder of a command that goes on where it stopped; what is done there, what is left, and each damaged file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trisect.core.errors import DamagedFileError, ModelError, StudyError
from trisect.lab.experiment import Experiment


class Begun(NamedTuple):
    """What a command that goes on has in its folder: `done` in words, and whether anything is left to do.

    `within` are folders of other commands' results that lie in it.
    """

    command: str
    done: str
    left: bool
    errors: Sequence[StudyError] = ()
    within: Sequence[Path] = ()

    def words(self, called: str) -> str:
        """Of what the folder, `called` so, holds the beginning, what is done, and how to go on; empty where nothing is left."""
        if not self.left:
            return ""
        held = (
            f"{called} holds {self.done} of 'trisect {self.command}', which was stopped before its end or still runs."
        )
        return f"{held} Call that command again, with the same settings: it goes on from there."


class Looks(Protocol):
    """The module `check` of an experiment that has a plan in its folder."""

    def look(self, folder: Path) -> Begun:
        """What is done there; raises DamagedFileError where the plan cannot be read."""
        ...


def planned_by(experiments: Iterable[Experiment[Any, Any]], folder: Path) -> Experiment[Any, Any] | None:
    """The experiment whose plan lies in a folder that is no model's; null where none does."""
    if (
        folder / "config.json"
    ).exists():  # a model that recall trained notes what it may be asked, in a file of that name
        return None
    return next((one for one in experiments if one.plan and (folder / one.plan).is_file()), None)


def look(experiment: Experiment[Any, Any], folder: Path) -> Begun:
    """What is done in a folder that an experiment planned; raises DamagedFileError where its plan cannot be read."""
    module: Any = import_module(f"{experiment.home}.check")
    looks: Looks = module
    return looks.look(folder)


def damaged(readers: Iterable[tuple[Path, Callable[[], object]]], again: Callable[[Path], str]) -> list[StudyError]:
    """An error for each file or model's folder that is there and cannot be read, saying what to delete."""
    found = list[StudyError]()
    for path, read in readers:
        if path.exists():
            try:
                read()
            except StudyError as error:
                found.append(error)
            except ModelError as error:
                found.append(DamagedFileError(error.given, error.known, again(path)))
    return found
