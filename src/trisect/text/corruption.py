"""Span corruption for pretraining: a text with a span moved to its end; and a question with its answer, for fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from trisect.core.errors import CorpusError

T = TypeVar("T")

SHORTEST = 4  # characters that a text is never cut below
KEPT = 7 / 8  # of the block, the longest that a text is cut to
SPAN = 1 / 4  # of what is left of the text, on average, the length of the span
IGNORED = -100


class CutSpan(NamedTuple):
    """Where a text is cut: its first `length` characters stay, and [start, end) of these are moved to the end."""

    length: int
    start: int
    end: int


class Corrupted(NamedTuple, Generic[T]):
    """The three pieces of a cut text: characters, or their ids."""

    before: Sequence[T]
    after: Sequence[T]
    span: Sequence[T]

    def joined(self, mask: T) -> list[T]:
        """What the model reads: both sides of the span, and the span behind a second mask."""
        return [*self.before, mask, *self.after, mask, *self.span]

    def original(self) -> list[T]:
        """The text that the pieces are of."""
        return [*self.before, *self.span, *self.after]


class Example(NamedTuple):
    """Ids that are read, and of each the id that is to be predicted after it; IGNORED where nothing is."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many ids are read."""
        return len(self.ids)

    @property
    def predicted(self) -> int:
        """How many ids are predicted."""
        return sum(label != IGNORED for label in self.labels)


def draw_span(
    size: int, block: int, draw: np.random.Generator, shortest: int = SHORTEST, kept: float = KEPT, span: float = SPAN
) -> CutSpan:
    """A cut for a text of `size` characters, for a model that reads `block` at once.

    The length is uniform from `shortest` (4) to the share `kept` (7/8) of the block, and a shorter text stays whole; the
    span is the share `span` (a quarter) of it on average, uniform from 1 to twice that less one, and lies anywhere but at
    its first and last character.
    """
    length = min(size, int(draw.integers(shortest, max(shortest, int(block * kept)) + 1)))
    if length < 3:
        return CutSpan(length, length, length)
    most = max(1, min(int(2 * span * length) - 1, length - 2))
    width = int(draw.integers(1, most + 1))
    start = int(draw.integers(1, length - width))
    return CutSpan(length, start, start + width)


def corrupt(text: Sequence[T], span: CutSpan) -> Corrupted[T]:
    """The pieces that a cut makes of a text."""
    return Corrupted(text[: span.start], text[span.end : span.length], text[span.start : span.end])


def pretraining_example(ids: Sequence[int], span: CutSpan, mask: int) -> Example:
    """A text's ids, with the span behind the second mask; every next id is to be predicted, as of an ordinary text.

    Source: the assignment's span corruption, after Raffel et al. 2020, section 3.1.4.
    """
    moved = corrupt(ids, span).joined(mask)
    return Example(tuple(moved[:-1]), tuple(moved[1:]))


def question_example(question: Sequence[int], answer: Sequence[int], mask: int) -> Example:
    """Question, mask, answer, mask; what is to be predicted is the answer and the mask that ends it."""
    row = [*question, mask, *answer, mask]
    silent = [IGNORED] * len(question)
    return Example(tuple(row[:-1]), (*silent, *answer, mask))


def check_block(texts: Sequence[str], block: int, what: str) -> None:
    """Raise CorpusError where a question with its answer does not fit into what the model reads at once."""
    longest = max(texts, key=len, default="")
    if len(longest) > block:
        known = f"{what} {longest[:60]!r} takes {len(longest)} characters with its marks."
        raise CorpusError(f"A block of {block} characters.", known, f"Give a block of at least {len(longest)}.")
