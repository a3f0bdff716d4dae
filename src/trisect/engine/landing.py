"""Landing: files that jobs send home are put into an experiment's folder, each whole or not at all, in a given order."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from trisect.core.files import inside, replace_file
from trisect.engine.protocol import Content, Files


def land(files: Files, folder: Path, last: Sequence[str] = ()) -> None:
    """Write files below `folder`; those that fit a pattern of `last` come after the others, in the patterns' order.

    So a file that says that others are there never comes before them. Raises StudyError where a name leads out of the
    folder, or a file cannot be written.
    """

    def rank(name: str) -> tuple[int, str]:
        return max((i for i, pattern in enumerate(last, start=1) if fnmatchcase(name, pattern)), default=0), name

    for name in sorted(files, key=rank):
        content = files[name]
        replace_file(
            inside(folder, *name.split("/")),
            lambda scratch, content=content: _put(content, scratch),
            _is_bytes(content),
        )


def read_content(content: Content) -> bytes:
    """The bytes of a file that was sent home."""
    return content.read_bytes() if isinstance(content, Path) else content


def _is_bytes(content: Content) -> bool:
    return isinstance(content, bytes)  # a file that is moved was written as durably as its job wanted


def _put(content: Content, place: Path) -> None:
    if isinstance(content, Path):
        shutil.move(content, place)
    else:
        place.write_bytes(content)
