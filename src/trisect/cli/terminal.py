"""The terminal: what is printed is safe for it and fits its encoding, and the three standard streams are there."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from trisect.core.door import FULL
from trisect.core.errors import SpecError, StudyError
from trisect.core.printable import safe


def say(text: object, err: bool = False) -> None:
    """Print a line (to standard error where `err`): control characters as their signs."""
    _print(safe(str(text)), err)


def say_step(words: str) -> None:
    """A step of work that begins, on a line of standard error."""
    say(words, err=True)


def say_json(data: Any, indent: int | None = None) -> None:
    """Print data as JSON: its characters as they are where standard output can hold them all, else as JSON's escapes."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(data, indent=indent, ensure_ascii=encoding != "utf8")
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which JSON's escapes alone can hold
        text = json.dumps(data, indent=indent, ensure_ascii=True)
    _print(text)


def open_page(page: Path) -> None:
    """Open a page in the browser of this machine, or say that it has none."""
    if not webbrowser.open(page.resolve().as_uri()):
        say(f"No browser could be opened here. Open the page yourself: {page.resolve()}", err=True)


def _print(text: str, err: bool = False) -> None:
    """Print; raises StudyError where standard output cannot take it, and prints no more there."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unprinted(error) from error


def of_stream(error: OSError) -> bool:
    """Whether it is a standard stream's: such an error names no file, and says that what is written leads nowhere."""
    return error.filename is None and error.errno in (*FULL, errno.EPIPE, errno.EBADF, errno.EIO, errno.EFBIG)


def unprinted(error: OSError) -> StudyError:
    """The error of standard output that takes no more; what is left to say there leads nowhere."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  it would fail once more at the end
    full = error.errno in FULL
    return StudyError(
        "What was found could not be printed.",
        "The disk that standard output is on is full." if full else f"The system says: {error.strerror or error}.",
        f"{'Free some space' if full else 'Send it elsewhere'} and call the same command again: nothing is lost.",
    )


def settle_streams() -> None:
    """A standard stream that is closed leads nowhere, and what an encoding lacks is printed as its number.

    A closed stream's number would else be given to the next file that is opened, and be written into.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def check_words(words: Sequence[str]) -> None:
    """Raise SpecError for an argument that is no text in the encoding of this system's names."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            known = f"It is no text in the encoding of names here, which is {sys.getfilesystemencoding()}."
            todo = "Call it with PYTHONUTF8=1 in the environment, or use another name."
            raise SpecError(f"{word!a} was given.", known, todo) from None
