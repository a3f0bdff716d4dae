"""Errors, whose messages have three parts (what you gave, what there is, what to do), and translation of system errors."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Any

MAX_NAME_CHARACTERS = 60  # characters of a name that are shown
MAX_QUOTE_CHARACTERS = 200  # characters of any other input that are shown, such as a path
MATCH_CUTOFF = 0.7  # cutoff of difflib: 'tset' suggests 'test', 'depth' does not suggest 'width'


class TrisectError(Exception):
    """Base class of all errors caused by input; the message has three parts.

    `problem` quotes what was given, `reason` says what there is, `todo` says what to do next.
    """

    def __init__(self, problem: str, reason: str, todo: str) -> None:
        super().__init__(problem, reason, todo)
        self.problem, self.reason, self.todo = problem, reason, todo

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.reason}\n  {self.todo}"


class SiteError(TrisectError):
    """A site is misspelled, empty, or not in the model."""


class SpecError(TrisectError):
    """An experiment, a model, a preset or a machine is specified wrongly."""


class CorpusError(TrisectError):
    """A text, a label column or a pipeline cannot be used."""


class StudyError(TrisectError):
    """A study's folder is in use, belongs to another study, or cannot be written."""


class DamagedFileError(StudyError):
    """A file was changed after trisect wrote it."""


class ModelError(TrisectError):
    """A model does not exist, cannot be loaded, cannot be read, or fails verification."""


class TheoryError(TrisectError):
    """A construction of attention by hand cannot be built or computed."""


def check_name(kind: str, name: object) -> None:
    """Raise SpecError for an empty name of a folder or model, which would mean the current folder; OSError as check_accessible."""
    if isinstance(name, str) and not name.strip():
        reason = "An empty name would mean the folder that you are in."
        raise SpecError(f"The name of {kind} is {name!r}.", reason, "Write . for that folder, or name another one.")
    if isinstance(name, (str, Path)):
        check_accessible(Path(name))


def check_accessible(place: Path) -> None:
    """Raise OSError where the system refuses to look at a place or into it: from Python 3.14 on Path.exists hides that."""
    try:
        (place / "x").stat()
    except (OSError, ValueError) as error:  # a NUL character is a ValueError
        if isinstance(error, OSError) and error.errno in (*ACCESS_ERRORS, errno.ENAMETOOLONG):
            raise OSError(error.errno, error.strerror, str(place)) from error


def unknown_name(kind: str, name: object, names: Iterable[str]) -> str:
    """The first part of an error about an unknown name, with the closest known one."""
    quoted = repr(name)
    if len(quoted) > MAX_NAME_CHARACTERS:
        quoted = f"{quoted[:MAX_NAME_CHARACTERS]}…"
    return f"Unknown {kind} {quoted}{suggest_closest(name, names)}"


def suggest_closest(name: object, names: Iterable[str]) -> str:
    """The end of a sentence that quotes a name: a full stop, or the closest known name."""
    close = get_close_matches(name.lower(), list(names), 1, MATCH_CUTOFF) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else "."


def join_words(words: Sequence[str]) -> str:
    """Words as an enumeration: 'q', 'q and k', 'q, k and v'; empty for none."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def require(condition: bool, problem: str, reason: str, todo: str) -> None:
    """Raise a SpecError with these three parts unless `condition` holds."""
    if not condition:
        raise SpecError(problem, reason, todo)


def _holds_arrays(value: object) -> bool:
    """Whether a value is or contains, at any depth, a tensor or array."""
    if isinstance(value, (Mapping, list, tuple)):
        return any(map(_holds_arrays, value.values() if isinstance(value, Mapping) else value))
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "shape") and (package == "torch" or (package == "numpy" and bool(getattr(value, "ndim", 0))))


def shorten(value: object, limit: int = MAX_NAME_CHARACTERS) -> str:
    """A value for an error message, shortened if long."""
    if isinstance(value, int) and abs(value) >= 10**limit:  # Python refuses to write integers of more than 4,300 digits
        return f"a number of over {limit} digits"
    if _holds_arrays(value):
        return f"a {type(value).__name__} of numbers"
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


_MEMORY_MESSAGES = (
    "can't allocate memory",
    "out of memory",
    "bad allocation",
    "not enough memory",
    "failed to allocate",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error reports insufficient memory; compiled libraries raise RuntimeErrors that differ by text alone."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MEMORY_MESSAGES)


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust code (tokenizers, polars, safetensors), which does not derive from Exception."""
    return type(error).__module__ == "pyo3_runtime"


def reraise_out_of_memory(error: BaseException) -> None:
    """Raise an error again if it reports insufficient memory, since that does not depend on what was being checked."""
    if is_out_of_memory(error):
        raise error


DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
# errors on opening a file that say nothing about its content
ACCESS_ERRORS = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_OS_ERROR_NUMBER = re.compile(r"\(os error (\d+)\)")


@contextmanager
def translate_system_errors() -> Iterator[None]:
    """Decorator and context of every command and every function of the API: errors of the system are raised as TrisectError.

    These are OSErrors (no permission, a name that is too long, a full disk, a broken link, …), also those that a compiled
    library wraps in an exception of its own; paths with a NUL character; and out-of-memory errors. BrokenPipeError is
    raised as it is.
    """
    if sys.flags.optimize > 1:
        reason = (
            "Python was started without docstrings (-OO, or PYTHONOPTIMIZE=2), which some of our dependencies need."
        )
        raise StudyError("PYTHONOPTIMIZE is 2 or more.", reason, "Unset it, or set it to 1.")
    try:
        yield
    except (TrisectError, BrokenPipeError):
        raise
    except BaseException as error:
        if is_panic(error):
            message = " ".join(str(error).split())[:MAX_QUOTE_CHARACTERS]
            todo = "Check the files that were given: one of them is probably damaged."
            raise StudyError("A compiled library stopped.", f"It says: {message}", todo) from error
        if not isinstance(error, Exception):
            raise
        if (os_error := find_os_error(error)) is not None:
            raise file_error(os_error) from error
        if is_out_of_memory(error):
            message = " ".join(str(error).split())[:MAX_QUOTE_CHARACTERS]
            reason = f"The system says: {message}" if message else "The system is out of memory."
            todo = "Use a smaller model, shorter texts or fewer points, or a machine with more memory."
            raise StudyError("The memory of this machine does not suffice.", reason, todo) from error
        if isinstance(error, ValueError) and "embedded null" in str(error):
            reason = "It holds a NUL character, which no system allows in the name of a file."
            raise StudyError("An impossible path was given.", reason, "Use another name.") from error
        raise


def find_os_error(error: BaseException) -> OSError | None:
    """The OSError behind an error: the error itself, or one made of the number in the message of a Rust library; else None.

    safetensors and tokenizers raise exceptions of their own, whose message ends in '(os error 13)', for example.
    """
    if isinstance(error, OSError):
        return error
    match = None if isinstance(error, TrisectError) else _OS_ERROR_NUMBER.search(str(error))
    return None if match is None else OSError(int(match[1]), os.strerror(int(match[1])))


@contextmanager
def translate_temporary_errors(content: str) -> Iterator[None]:
    """Context that names the folder of temporary files if the system refuses to write there."""
    try:
        yield
    except Exception as raised:
        if (error := find_os_error(raised)) is None:
            raise
        folder = "the folder of temporary files"
        with suppress(OSError):  # the system may have no such folder
            folder += f", {tempfile.gettempdir()}"
        raise StudyError(
            f"{content} cannot be stored in {folder}.",
            "It is full." if error.errno in DISK_FULL_ERRORS else f"The system says: {error.strerror or error}.",
            "Free some space there, or set TMPDIR to a folder with more of it, and run the same command again.",
        ) from raised


def file_error(error: OSError) -> StudyError:
    """An error of the system about a file, in three parts."""
    names = [str(name)[:MAX_QUOTE_CHARACTERS] for name in (error.filename, error.filename2) if name is not None]
    problem = f"{' and '.join(names)} cannot be read or written." if names else "A file cannot be read or written."
    reason = "The disk is full." if error.errno in DISK_FULL_ERRORS else f"The system says: {error.strerror or error}."
    todo = "Check the path, or choose another place."
    if error.errno in DISK_FULL_ERRORS:
        todo = "Free some space and run the same command again."
    elif isinstance(error, PermissionError):
        todo = "Change its permissions or those of the folders above it, or choose another place."
    elif error.errno == errno.ENAMETOOLONG:
        todo = "Use a shorter name."
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        todo = "Close other programs, or raise the limit of open files (ulimit -n)."
    return StudyError(problem, reason, todo)


def check_access(path: Path, error: BaseException) -> None:
    """Raise StudyError for a file that could not be opened (permissions, limits): it is not damaged, and must not be deleted."""
    os_error = find_os_error(error)
    if os_error is not None and os_error.errno in ACCESS_ERRORS:
        raise file_error(OSError(os_error.errno, os_error.strerror, str(path))) from error


_STEP_LISTENER: ContextVar[Callable[[str], object] | None] = ContextVar("listener", default=None)


def report_step(message: str) -> None:
    """Report that a step begins; does nothing if no progress is shown."""
    if (callback := _STEP_LISTENER.get()) is not None:
        callback(message)


@contextmanager
def on_step(callback: Callable[[str], object]) -> Iterator[None]:
    """Context in which `callback` gets a message for every step that begins."""
    token = _STEP_LISTENER.set(callback)
    try:
        yield
    finally:
        _STEP_LISTENER.reset(token)


PYPI_NAMES = {"PIL": "pillow"}  # of packages that are installed under another name


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a folder of that name in the current directory does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def import_optional(package: str) -> Any:
    """Import the package that a method such as to_pandas needs; raises SpecError if it is not installed."""
    if not is_installed(package):
        todo = f"Run: pip install {package}."
        raise SpecError(f"to_{package} needs the package {package}.", "It is not installed here.", todo)
    return importlib.import_module(package)


def require_extra(package: str, extra: str, feature: str) -> None:
    """Raise SpecError if a package that `feature` needs is missing, naming the extra that installs it."""
    if not is_installed(package):
        raise SpecError(
            f"{feature} needs the package {PYPI_NAMES.get(package, package.replace('_', '-'))}.",
            "It is not installed here.",
            f"Install it with: pip install 'trisect[{extra}]'.",
        )
