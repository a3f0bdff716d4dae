"""Positions of a text as a setting names them: all, last, differ, or numbers."""

from __future__ import annotations

import re

from trisect.core.errors import SpecError

WORDS = ("all", "last", "differ")
KNOWN = "They are all, last, differ, or numbers from 1 on such as 3,5-7."


def read_positions(text: str) -> tuple[int, ...] | str:
    """One of WORDS, or numbers; raises SpecError for what is neither."""
    if text in WORDS:
        return text
    numbers: set[int] = set()
    for piece in text.split(","):
        span = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", piece)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, 0)
        if first < 1 or last < first:
            raise SpecError(f"positions is {text!r}.", KNOWN, "Give one of these.")
        numbers |= set(range(first, last + 1))
    return tuple(sorted(numbers))
