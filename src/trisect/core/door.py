"""The door to the system: what the machine refuses to read, write or hold becomes an error of three parts, for every command."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trisect.core.errors import StudyError, TrisectError
from trisect.core.memory import lacks_memory

FULL = (errno.ENOSPC, errno.EDQUOT)
BARRED = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # a file so met may be whole
_NUMBER = re.compile(r"\(os error (\d+)\)")


@contextmanager
def door() -> Iterator[None]:
    """Every command and every call passes it once: what the system refuses inside is raised as a TrisectError.

    That is each OSError (no permission, a name that is too long, a full disk, a broken link, …), also where a library
    of compiled code raises it as an error of its own; a path that no system takes; and a machine whose memory does not
    suffice. A closed pipe stays what it is: nobody reads any more.
    """
    try:
        yield
    except (TrisectError, BrokenPipeError):
        raise
    except Exception as error:
        if (of_system := system_error(error)) is not None:
            raise refused(of_system) from error
        if lacks_memory(error):
            raise _too_large(error) from error
        if isinstance(error, ValueError) and "embedded null" in str(error):
            known = "It holds a NUL character, which no system allows in the name of a file."
            raise StudyError("A path was given that cannot be one.", known, "Use another name.") from error
        raise


def system_error(error: BaseException) -> OSError | None:
    """What the system refused, where an error says so: an OSError, or one of a library in Rust (safetensors, tokenizers).

    Such a library raises an error of its own, of which only the number in its words tells that the system refused.
    """
    if isinstance(error, OSError):
        return error
    found = None if isinstance(error, TrisectError) else _NUMBER.search(str(error))
    return None if found is None else OSError(int(found[1]), os.strerror(int(found[1])))


@contextmanager
def temporary_room(what: str) -> Iterator[None]:
    """Say where the folder of temporary files lies, when the system refuses to keep something there."""
    try:
        yield
    except Exception as raised:
        if (error := system_error(raised)) is None:
            raise
        place = "the folder of temporary files"
        with suppress(OSError):  # where the system has no such folder
            place += f", {tempfile.gettempdir()}"
        raise StudyError(
            f"{what} cannot be kept in {place}.",
            "It is full." if error.errno in FULL else f"The system says: {error.strerror or error}.",
            "Free some space there, or set TMPDIR to a folder with more of it, and call the same command again.",
        ) from raised


def refused(error: OSError) -> StudyError:
    """What the system said of a file, in three parts."""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    given = f"{' and '.join(names)} cannot be read or written." if names else "A file cannot be read or written."
    known = "The disk is full." if error.errno in FULL else f"The system says: {error.strerror or error}."
    return StudyError(given, known, _todo(error))


def check_barred(path: Path, error: BaseException) -> None:
    """Raise StudyError where the system did not let a file be read, as without permission: it is not damaged, and has to stay."""
    found = system_error(error)
    if found is not None and found.errno in BARRED:
        raise refused(OSError(found.errno, found.strerror, str(path))) from error


def _todo(error: OSError) -> str:
    if error.errno in FULL:
        return "Free some space and call the same command again."
    if isinstance(error, PermissionError):
        return "Change its permissions or those of the folders above it, or choose another place."
    if error.errno == errno.ENAMETOOLONG:
        return "Use a shorter name."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "Close other programs, or raise the limit of open files (ulimit -n)."
    return "Check the path, or choose another place."


def _too_large(error: BaseException) -> StudyError:
    said = " ".join(str(error).split())[:200]
    known = f"The system says: {said}" if said else "The system gave no more of it."
    todo = "Ask for less at once (a smaller model, shorter texts, fewer points), or use a machine with more memory."
    return StudyError("The memory of this machine does not suffice.", known, todo)
