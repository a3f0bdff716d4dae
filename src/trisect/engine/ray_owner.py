"""Whose jobs lie on a cluster's nodes: an id that an experiment's folder keeps from one call to the next, no matter where it lies."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

from trisect.core.files import digest, replace_file

NAME = "owner"  # in the folder that the engine's jobs work in
DIGITS = 32


class Owner(NamedTuple):
    """`kept` is what a call before left in `folder`; no two experiments have one id, also where a path is on two machines."""

    folder: Path
    id: str
    kept: bool

    @property
    def mark(self) -> str:
        """What its folders on nodes are called: another for a copy of the experiment's folder."""
        return digest(f"{self.id} {self.folder.absolute()}", 8)

    def keep(self) -> None:
        """Write it for the next call; raises StudyError where it cannot be written."""
        replace_file(self.folder / NAME, lambda scratch: scratch.write_text(self.id, encoding="utf-8"))


def find_owner(folder: Path) -> Owner:
    """The id that a call before left where its jobs worked, else one that nobody has."""
    try:
        found = (folder / NAME).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        found = ""
    kept = len(found) == DIGITS and set(found) <= set("0123456789abcdef")
    return Owner(folder, found if kept else secrets.token_hex(DIGITS // 2), kept)
