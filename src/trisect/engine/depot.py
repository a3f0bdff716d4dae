"""A place that all machines reach, for files too large to travel as messages: a shared folder, or a URL that fsspec knows."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trisect.core.errors import StudyError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

LARGE = 1 << 20  # bytes from which on a file goes through the depot, where there is one


class Depot:
    """Files under random names in a folder of one experiment's own, below a URL; all of it is removed when the experiment's
    engine opens and closes.
    """

    def __init__(self, url: str, own: str) -> None:
        self.url, self._own = url, f"trisect-{own}"

    def store(self, path: Path) -> str:
        """Copy a file there; returns its name."""
        name = secrets.token_hex(12)
        with self._open("written") as (files, folder):
            files.makedirs(folder, exist_ok=True)
            files.put_file(str(path), f"{folder}/{name}")
        return name

    def fetch(self, name: str, place: Path) -> None:
        """Copy a file from there."""
        with self._open("read") as (files, folder):
            files.get_file(f"{folder}/{name}", str(place))

    def remove(self, name: str) -> None:
        """Remove a file that is not needed any more; one that is gone already is none."""
        with self._open("written") as (files, folder), suppress(FileNotFoundError):
            files.rm_file(f"{folder}/{name}")

    def sweep(self) -> None:
        """Remove all that is left there."""
        with self._open("written") as (files, folder):
            if files.exists(folder):
                files.rm(folder, recursive=True)

    def check(self) -> None:
        """Raise StudyError where nothing can be written; nothing is there afterwards."""
        with self._open("written") as (files, folder):
            files.makedirs(folder, exist_ok=True)
            files.pipe_file(f"{folder}/check", b"")
        self.sweep()

    @contextmanager
    def _open(self, what: str) -> Iterator[tuple[AbstractFileSystem, str]]:
        from fsspec.core import url_to_fs

        try:
            files, root = url_to_fs(self.url)
            yield files, f"{root.rstrip('/')}/{self._own}"
        except (OSError, ImportError, ValueError) as error:
            raise StudyError(
                f"{self.url} cannot be {what}.",
                f"{type(error).__name__}: {error}",
                "Give --scratch a folder or a URL that every machine reaches, or leave it out: then all goes through Ray.",
            ) from error
