"""Plain text: a file for each split, a text a line, its words split by the basic_english rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trisect.text.corpus import SPLITS
from trisect.text.readers.base import BASIC_ENGLISH, RawText, Reader, SplitText, english, lines


def suits(where: SplitText) -> bool:
    """Any rows of text, and any folder with a file train.txt."""
    return not isinstance(where, Path) or bool(PLAIN.candidates(where, "train"))


def texts(part: SplitText) -> Iterator[RawText]:
    """Every line that is not empty."""
    return (RawText(text) for line in lines(part) if (text := line.strip()))


PLAIN = Reader(
    "plain", {s: (f"{s}.txt",) for s in SPLITS}, suits, english, texts, "A text is a line.", notes=(BASIC_ENGLISH,)
)
