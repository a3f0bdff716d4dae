"""A node's side of an engine of several machines: its folder on its own disk, the values that lie there, and what it says of itself."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from trisect.core.errors import StudyError
from trisect.core.processor import processor
from trisect.engine.depot import Depot
from trisect.engine.parcels import fingerprint, place_value, value_in
from trisect.lab.versions import code_mark, versions


class NodeFacts(NamedTuple):
    """What a node says of itself before it gets jobs."""

    versions: Mapping[str, str]
    processor: str


def node_facts() -> NodeFacts:
    """Versions of everything that a number depends on, with a hash of our own code, and the processor."""
    return NodeFacts(versions("ray") | {"code": code_mark()}, processor())


def node_folder() -> Path:
    """The folder of all our work on this node, below the system's folder for temporary files; nobody else may write there."""
    folder = Path(tempfile.gettempdir()) / f"trisect-node-{_user()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or folder.is_symlink() or status.st_mode & 0o022):
        known = "It belongs to somebody else, or others may write there, so that what lies there could be anybody's."
        raise StudyError(f"{folder} cannot be used.", known, "Remove it, or set TMPDIR to another folder on this node.")
    return folder


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "one"


class ValueShelf:
    """Values by the hash of their bytes: each lies here once, whole, and is checked at its first use by each process."""

    def __init__(self, folder: Path, depot: Depot | None) -> None:
        self.folder, self._depot = folder, depot
        self._checked: set[str] = set()

    def find(self, key: str, fetch: Callable[[], bytes]) -> Path:
        """The value of that hash; what `fetch` gives is written where it is not there, or not whole."""
        place = self.folder / key
        if key not in self._checked or not place.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{place}.lock"):  # of this node's own disk
                if place.exists() and not _whole(place, key):
                    shutil.rmtree(place)
                if not place.exists():
                    self._write(place, key, fetch())
            self._checked.add(key)
        return value_in(place, key)

    def _write(self, place: Path, key: str, parcel: bytes) -> None:
        scratch = self.folder / f".{key}-{secrets.token_hex(4)}"
        try:
            place_value(parcel, scratch, self._depot)
            if not _whole(scratch, key):
                known = f"Its bytes do not have the hash {key}."
                raise StudyError(f"A value for {place} arrived damaged.", known, "Call the same command again.")
            scratch.rename(place)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _whole(place: Path, key: str) -> bool:
    value = value_in(place, key)
    return value.exists() and fingerprint(value) == key
