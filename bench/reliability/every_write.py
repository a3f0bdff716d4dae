"""A disk that is full from each write of a command on, one after the other, while the command is run once.

At each write the process is copied: the copy's disk is full from there on, and it comes to its end; then the folder is put
back as it was, and the command goes on to its next write.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

DEADLINE = 180.0  # seconds in which a copy has to have ended
WAYS = (("rename", Path, "replace"), ("fsync", os, "fsync"))


class Refused(NamedTuple):
    """What came of a full disk: which write it began at, the exit status (-9: it did not end), what was said, and the folder."""

    number: int
    status: int
    said: str
    folder: Path


def each_write(way: str, out: Path, left: Path) -> Callable[[], None]:
    """What copies the process at each rename, or wait for the disk; folders as the copies left them are kept below `left`."""

    def begin() -> None:
        place, name = next((place, name) for kind, place, name in WAYS if kind == way)
        real, full, seen = getattr(place, name), [False], [0]

        def at(*given: Any) -> Any:
            if not full[0]:
                seen[0] += 1
                full[0] = _copied(seen[0], out, left)
            if full[0]:
                raise OSError(errno.ENOSPC, "No space left on device", str(given[0]))
            return real(*given)

        mock.patch.object(place, name, at).start()

    return begin


def _copied(number: int, out: Path, left: Path) -> bool:
    """Whether this is the copy; the other one waits for it, and puts the folder back."""
    kept, before = left / f"{number}", left / f"{number}.before"
    sys.stdout.flush()
    sys.stderr.flush()
    shutil.copytree(out, before, symlinks=True, copy_function=_second_name)
    child = os.fork()
    if child == 0:
        file = os.open(left / f"{number}.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        return True
    end, status = time.monotonic() + DEADLINE, None
    while status is None and time.monotonic() < end:
        done, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else None
        time.sleep(0.005)
    if status is None:
        os.kill(child, 9)
        os.waitpid(child, 0)
    if out.exists():  # else the copy has made it, and removed it again
        shutil.copytree(out, kept, symlinks=True, copy_function=_second_name)
    _put_back(before, out)
    said = (left / f"{number}.said").read_text(errors="replace")
    (left / f"{number}.json").write_text(json.dumps([number, -9 if status is None else status, said]))
    return False


def _second_name(source: str, target: str, **_: object) -> None:
    """Files are replaced, never changed: a second name keeps them, with the number and the time that jobs know them by."""
    os.link(source, target, follow_symlinks=False)


def _put_back(before: Path, out: Path) -> None:
    """The folder as it was; its lock is held open, and stays the file that it is."""
    out.mkdir(exist_ok=True)
    for path in out.iterdir():
        if path.name != ".lock":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in before.iterdir():
        if not (out / path.name).exists():
            path.rename(out / path.name)
    shutil.rmtree(before)


def refusals(left: Path) -> Iterator[Refused]:
    """What came of each write, in their order."""
    for path in sorted(left.glob("*.json"), key=lambda path: int(path.stem)):
        number, status, said = json.loads(path.read_text())
        yield Refused(number, status, said, left / path.stem)
