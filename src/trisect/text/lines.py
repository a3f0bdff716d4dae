"""Text files, read line by line within bounds; the names of splits, and words and characters that are special in a text."""

from __future__ import annotations

import io
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, TextIO

from trisect.core.errors import CorpusError
from trisect.core.schema import MAX_LINE_BYTES, MAX_LINES, MAX_TEXT_BYTES

SPLITS = ("train", "valid", "test")
UNKNOWN = "<unk>"
XML_FORBIDDEN = frozenset(map(chr, {*range(32), 0xFFFE, 0xFFFF} - {9, 10, 13}))  # not in XML, and so in no figure
BLOCK = 2**20  # bytes that are read at once
SPECIAL = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}


class _BoundedFile(io.RawIOBase):
    """The bytes of a file as far as bounds on them, on its lines and on each line's length are kept; CorpusError beyond."""

    def __init__(self, file: IO[bytes], name: str, longest: int, limit: int) -> None:
        self.file, self.name, self.longest, self.limit = file, name, longest, limit
        self.size = self.length = self.returns = 0
        self.number = 1  # of the line that is being read, and how many bytes it has so far

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        block = self.file.read(min(len(buffer), BLOCK))
        self.size += len(block)
        self.returns += block.count(b"\r")
        if not block and self.returns and self.number == 1:
            reason = (
                "It has carriage returns and no line feed, with which a line ends (with or without a return before it)."
            )
            raise CorpusError(f"{self.name} has one line.", reason, "Save it with line feeds.")
        first, *rest = block.split(b"\n")
        for at, piece in enumerate((first, *rest)):
            self.number, self.length = (self.number + 1, len(piece)) if at else (self.number, self.length + len(piece))
            if self.length > self.longest:
                reason, todo = f"A line has at most {self.longest:,} bytes.", "Break it into lines, one a text."
                raise CorpusError(f"{self.name}, line {self.number}, is too long.", reason, todo)
        if self.size > self.limit or self.number > MAX_LINES:
            reason = f"A file of this kind has at most {self.limit:,} bytes and {MAX_LINES:,} lines."
            raise CorpusError(f"{self.name} is too long.", reason, "Give a part of it.")
        buffer[: len(block)] = block
        return len(block)


@contextmanager
def open_text(path: Path, longest: int, limit: int, todo: str = "Give a readable UTF-8 text file.") -> Iterator[TextIO]:
    """A UTF-8 file to be read line by line, without a byte-order mark; `-` is standard input. Every text is read by this.

    Only a line feed ends a line, with or without a carriage return before it: other ends (U+2028, a return alone) stand inside
    sentences of crawled text.

    Raises CorpusError for no regular file, a line of more than `longest` bytes, a file of more than `limit`, and bytes that are not UTF-8.
    """
    try:
        if str(path) == "-":
            source: Any = nullcontext(sys.stdin.buffer)
        elif stat.S_ISREG(mode := path.stat().st_mode):
            source = path.open("rb")
        else:
            kind = next((name for holds, name in SPECIAL.items() if holds(mode)), "a device")
            reason = f"It is {kind}; a text is read from a regular file, or from standard input, which is called -."
            raise CorpusError(f"{path} is no text file.", reason, todo)
        with source as raw:
            bounded = _BoundedFile(raw, str(path), longest, limit)
            yield io.TextIOWrapper(io.BufferedReader(bounded, BLOCK), encoding="utf-8-sig", newline="\n")
    except FileNotFoundError:
        names = sorted(p.name for p in path.parent.iterdir())[:8] if path.parent.is_dir() else []
        place = path.parent.absolute()
        state = f"holds {', '.join(names)}" if names else "is empty" if place.is_dir() else "is not there"
        reason = f"Its folder {place} {state}."
        raise CorpusError(f"There is no file {path}.", reason, todo) from None
    except UnicodeDecodeError as error:
        where, byte = "", "A byte of it"
        if str(path) != "-":
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    try:
                        line.decode()
                    except UnicodeDecodeError as wrong:
                        where, byte = f", line {number},", f"Byte {wrong.start + 1} of it"
                        break
        raise CorpusError(f"{path}{where} is not UTF-8.", f"{byte} is none.", "Save it as UTF-8.") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read.", f"The system says: {error}", todo) from None


def read_lines(path: Path, todo: str = "Give a file that is there.") -> list[str]:
    """The lines of a UTF-8 file without their ends; raises CorpusError as `open_text` does."""
    with open_text(path, MAX_LINE_BYTES, MAX_TEXT_BYTES, todo) as file:
        return [line.removesuffix("\n").removesuffix("\r") for line in file]
