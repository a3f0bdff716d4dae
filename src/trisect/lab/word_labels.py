"""Labels and articles at a model's positions: all tokens of a word have the word's label."""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.subject import Batch, Subject, Texts
from trisect.core.trace import Address, Side
from trisect.lm.reading import OwnModel
from trisect.text.lines import UNKNOWN
from trisect.text.readers import basic_english, basic_english_spans
from trisect.text.sources import Labelled

if TYPE_CHECKING:
    from trisect.hf.load import Pretrained


@dataclass(eq=False)
class WordTexts:
    """Texts on their way into a subject's batches, stored with the words of their tokens as long as rows of them can follow."""

    subject: Subject
    _texts: dict[int, tuple[list[int], Labelled]] = field(default_factory=dict, kw_only=True)

    def batches(self, texts: Iterable[Labelled], size: int, scored: bool = True) -> Iterator[Batch]:
        """The texts as batches; `scored` masks tokens for a masked LM."""

        def passed() -> Iterator[str]:
            for number, text in enumerate(texts):
                self._texts[number] = (self._owners(text), text)
                yield text.text

        self._texts.clear()
        for batch in self.subject.batches(passed(), size, scored=scored):
            yield batch
            for number in [n for n in self._texts if n < batch.rows[-1][0]]:
                del self._texts[number]

    def text(self, number: int) -> Labelled:
        """A text of the last batch."""
        return self._texts[number][1]

    def words(self, batch: Batch, last: bool) -> list[tuple[int, int, int, int]]:
        """Row, position (of the first token, or of the last), text and number of every word of a batch, from 0."""
        places = []
        for i, ((number, start), plain) in enumerate(zip(batch.rows, ordinary(batch.source), strict=True)):
            words = self._texts[number][0]
            for piece, position in enumerate(plain.nonzero()[:, 0].tolist(), start):
                word = words[piece] if piece < len(words) else -1
                neighbour = piece + 1 if last else piece - 1
                if word >= 0 and not (0 <= neighbour < len(words) and words[neighbour] == word):
                    places.append((i, position, number, word))
        return places

    def _owners(self, text: Labelled) -> list[int]:
        """The word of each token of a text; −1 for none."""
        if isinstance(self.subject, OwnModel):
            vocabulary = self._vocabulary
            # a word that the model does not know is left out where it has no token for it
            pieces = zip(basic_english(text.text), basic_english_spans(text.text), strict=True)
            spans = [span for word, span in pieces if UNKNOWN in vocabulary or word.lower() in vocabulary]
            return owners(spans, text.spans)
        from trisect.hf.load import piece_spans

        subject: Any = self.subject
        pretrained: Pretrained = subject
        return owners(piece_spans(pretrained, text.text), text.spans)

    @functools.cached_property
    def _vocabulary(self) -> frozenset[str]:
        return frozenset(self.subject.vocabulary) if isinstance(self.subject, OwnModel) else frozenset()


@dataclass(eq=False)
class WordLabels(WordTexts):
    """Labels of texts as they pass into batches: `classes` has ids for the classes of each column.

    With `ahead` a position carries the label of the piece after it, else that of its own. Special tokens and padding
    carry none.
    """

    classes: Mapping[str, Mapping[str, int]]
    ahead: bool

    def at(self, batch: Batch, address: Address, component: str, column: str) -> Int[Tensor, "B T"]:
        """The class at every position of q, k or v; −1 for none."""
        side = _side(batch, address, component)
        labels = torch.full(side.real.shape, -1, dtype=torch.long)
        classes = self.classes[column]
        for i, ((number, start), plain) in enumerate(zip(batch.rows, ordinary(side), strict=True)):
            places = plain.nonzero()[:, 0].tolist()
            owners, text = self._texts[number]
            first = start + self.ahead - (places[0] if places else 0)
            for place in places:
                piece = first + place
                word = owners[piece] if piece < len(owners) else -1
                label = text.labels[column][word] if word >= 0 else None
                labels[i, place] = -1 if label is None else classes.get(label, -1)
        return labels


def owners(pieces: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]) -> list[int]:
    """For each token, the word with which it shares most characters, the first if several; −1 for none."""
    starts, best_words = [start for start, _ in words], []
    for a, b in pieces:
        best, overlap = -1, 0
        before = bisect_right(starts, a) - 1
        first = bisect_left(starts, starts[before]) if before >= 0 else 0  # words may share one place
        for i in range(first, bisect_right(starts, max(a, b - 1))):
            shared = min(b, words[i][1]) - max(a, words[i][0])
            if shared > overlap:
                best, overlap = i, shared
        best_words.append(best)
    return best_words


def ordinary(side: Side) -> Bool[Tensor, "B T"]:
    """Positions other than padding and special tokens."""
    return side.real & ~side.special


def _side(batch: Batch, address: Address, component: str) -> Side:
    return batch.queries(address.stack) if component == "q" else batch.keys(address.stack)


def fitting(batch: Batch, address: Address, component: str, length: int) -> Side:
    """The side of a component's positions; raises ModelError if they are not the text's."""
    side = _side(batch, address, component)
    if side.real.shape[1] != length:
        reason = f"The texts have {side.real.shape[1]} positions, the attention there {length}."
        todo = "Choose sites where attention sees the text's own positions."
        raise ModelError(f"{address} cannot be split into words.", reason, todo)
    return side


class Articles(NamedTuple):
    """The article of each text, from 0; None if texts are the units. `notes` are for the page."""

    numbers: Int[np.ndarray, " N"] | None
    notes: tuple[str, ...] = ()

    def sums(self, table: Float[np.ndarray, "N C"], texts: Iterable[int]) -> Float[np.ndarray, "A C"]:
        """Rows of `texts` summed by article, without articles that have none; unchanged if texts are the units."""
        if self.numbers is None:
            return table
        articles, row = np.unique(self.numbers[list(texts)], return_inverse=True)
        sums = np.zeros((len(articles), table.shape[1]), table.dtype)
        np.add.at(sums, row, table)
        return sums


def number_articles(marks: Iterable[int | None], counted: Iterable[int]) -> Articles:
    """Article numbers from a reader's marks, texts before the first heading being an article; texts not `counted` are left out.

    Where none is marked, or all texts are of one article, texts are drawn.
    """
    numbers = np.array([-1 if mark is None else mark for mark in marks], dtype=int)
    if not (numbers >= 0).any():
        return Articles(None)
    articles = np.unique(numbers[list(counted)])
    if len(articles) < 2:
        return Articles(None, ("All texts are of one article: intervals are over its texts, and speak of it alone.",))
    numbers = np.searchsorted(articles, numbers).clip(max=len(articles) - 1)  # of texts that do not count: any
    return Articles(numbers, (f"Texts of one article are resampled together: {len(articles):,} articles.",))


def find_articles(texts: Texts, count: int, counted: Iterable[int] | None = None) -> Articles:
    """Articles of the first `count` texts, of those that are `counted` (None: all)."""
    marks = [] if texts.articles is None else list(islice(texts.articles(), count))
    return (
        number_articles(marks, range(count) if counted is None else counted) if len(marks) == count else Articles(None)
    )
