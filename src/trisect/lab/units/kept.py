"""What a command over several models keeps until it ends: of each finished model its files, by what they are of, with checksums."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import digest_file, inside, read_record, write_json

KEPT = ".units"  # in the command's own folder; gone once all of it has landed
UNIT = "unit.json"  # of one model, written last of all
ABOUT = "units.json"  # which command keeps models here
HALF = ".half-"  # how the name of a model's folder begins that is being written
AGAIN = "Delete it and call the same command again."
GO_ON = "Call that command again, with the same models and settings: it goes on from there"


class UnitData(TypedDict):
    """What stands beside one model's files: what they are of, the model, and a checksum of each (empty: it has its own).

    `asked` is a mark of the command, its settings, texts and software, `weights` one of the model's files (empty where it has
    none), `made_on` the processor and how many threads.
    """

    asked: str
    weights: str
    made_on: str
    subject: str
    fingerprint: str
    family: str | None
    packages: list[str]
    page: str
    files: dict[str, str]


class KeptData(TypedDict):
    """Which command keeps models in a folder."""

    experiment: str


@dataclass(frozen=True)
class UnitStore:
    """The folder of models that are finished, in a command's folder, which has to be locked."""

    root: Path

    @classmethod
    def open(cls, folder: Path, experiment: str) -> UnitStore:
        """The store of a command in its folder; what was half written goes, and so does one that does not say whose it is.

        Another command's is refused before the folder is locked (`check_begun`).
        """
        root = folder / KEPT
        for old in folder.glob(f"{KEPT}.*.trisect-part"):
            shutil.rmtree(old)
        if root.exists() and begun_units(folder) != experiment:
            shutil.rmtree(root)
        if not root.exists():
            scratch = folder / f"{KEPT}.{os.getpid()}-{secrets.token_hex(4)}.trisect-part"
            try:
                write_json(scratch / ABOUT, {"experiment": experiment})
                scratch.replace(root)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        for old in root.glob(f"{HALF}*"):
            shutil.rmtree(old)
        return cls(root)

    def remove_empty(self) -> None:
        """Remove the store where nothing is kept in it."""
        if not any(path.is_dir() for path in self.root.iterdir()):
            shutil.rmtree(self.root)

    def forget(self, keys: Iterable[str]) -> None:
        """Remove what is kept of some models."""
        for key in keys:
            shutil.rmtree(self.place(key), ignore_errors=True)

    def place(self, key: str) -> Path:
        """Where one model's files lie."""
        return inside(self.root, key)

    def read(self, key: str) -> UnitData:
        """What is noted of a finished model; raises DamagedFileError where it is not whole."""
        place = self.place(key)
        found = read_record(place / UNIT, AGAIN, UnitData)
        for name, mark in found["files"].items():
            path = inside(place, *name.split("/"))
            if not path.is_file() or (mark and digest_file(path) != mark):
                raise DamagedFileError(f"{path} is missing or was altered.", "It is not what was kept.", AGAIN)
        return found

    def has(self, key: str, asked: str, made_on: str, weights: Callable[[], str]) -> bool:
        """Whether a model's files are there, whole, and of just that: the same question, numerics and weights."""
        if not self.place(key).exists():
            return False
        with suppress(DamagedFileError):
            kept = self.read(key)
            same = kept["asked"] == asked and kept["made_on"] == made_on
            if same and kept["weights"] and kept["weights"] == weights():
                return True
        shutil.rmtree(self.place(key))
        return False

    @contextmanager
    def filling(self, key: str) -> Iterator[Path]:
        """An empty folder for one model's files, which are kept, all of them or none, when the context ends without an error."""
        scratch = self.root / f"{HALF}{key}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            yield scratch
            scratch.replace(self.place(key))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def copy_pages(self, key: str, target: Path, besides: str) -> None:
        """A second copy of a model's page and figures, and of nothing else: tables and the record `besides` stay."""
        for name in self.read(key)["files"]:
            if name != besides and not name.startswith("tables/"):
                place = target.joinpath(*name.split("/"))
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.place(key) / name, place)


def begun_units(folder: Path) -> str:
    """Which command keeps finished models in a folder; empty where none does."""
    path = folder / KEPT / ABOUT
    if not path.is_file():
        return ""
    try:
        return str(read_record(path, AGAIN, KeptData)["experiment"])
    except DamagedFileError:
        return ""


def check_begun(folder: Path, experiment: str) -> None:
    """Raise StudyError where another command keeps finished models in a folder."""
    if (there := begun_units(folder)) and there != experiment:
        given = f"{folder} was given for results of 'trisect {experiment}'."
        raise StudyError(given, begun_words(folder), f"{GO_ON}, or choose another folder with --out.")


def begun_words(folder: Path, called: str = "It") -> str:
    """What a folder, `called` so, holds of a command over several models that has not ended."""
    count = sum(1 for path in (folder / KEPT).iterdir() if path.is_dir() and not path.name.startswith("."))
    held = f"{count:,} measured model{'' if count == 1 else 's'}" if count else "the beginning"
    return f"{called} holds {held} of 'trisect {begun_units(folder)}' over several, which was stopped before its end or still runs."


def check_units(folder: Path) -> list[StudyError]:
    """An error for each kept model of a folder with a file that is gone or altered; none where all are whole."""
    store, found = UnitStore(folder / KEPT), list[StudyError]()
    for path in sorted(store.root.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            try:
                store.read(path.name)
            except DamagedFileError as error:
                found.append(error)
    return found


def remove_units(folder: Path) -> None:
    """Remove what was kept: all of it has landed."""
    shutil.rmtree(folder / KEPT, ignore_errors=True)
