"""Lines that are too long: found in a file's bytes before any of it is read as text."""

from __future__ import annotations

from pathlib import Path

from trisect.core.errors import CorpusError

_BLOCK = 2**20


def check_lines(path: Path, most: int) -> None:
    """Raise CorpusError for a file with a line of more than `most` bytes; raises OSError where it cannot be read."""
    if path.stat().st_size <= most:
        return
    number, length = 1, 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            first, *rest = block.split(b"\n")
            for at, piece in enumerate((first, *rest)):
                number, length = (number + 1, len(piece)) if at else (number, length + len(piece))
                if length > most:
                    known = f"A line has at most {most:,} bytes."
                    raise CorpusError(f"{path}, line {number}, is too long.", known, "Break it into lines, one a text.")
