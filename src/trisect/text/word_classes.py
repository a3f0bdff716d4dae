"""Labels of words made from labelled texts: identity, position, frequency, neighbours' and head's labels, and any column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from trisect.core.errors import CorpusError
from trisect.text.corpus import UNKNOWN
from trisect.text.labelled import Labelled, LabelledTexts

OWN = ("word", "position", "frequency")  # what every text has
OTHERS = ("previous", "next", "head")  # of another word, its column 'pos' or the one named after a dot
PART = "pos"
USUAL = ("word", "position", "frequency", "pos", "dep", "previous", "next", "head")
STEP, STEPS = 3, 8  # a bin of positions is so many words wide, the last one open
OTHER = "(other)"

Names = tuple[str | None, ...]


@dataclass(frozen=True)
class WordLabeller:
    """Gives every word of a text its class of each label; `counts` is how often each word stands in the texts, in lower case."""

    labels: tuple[str, ...]
    counts: Counter[str]

    def __call__(self, one: Labelled) -> dict[str, Names]:
        """The class of each word by label; null where a word carries none."""
        leading = one.leading_words()
        ends = (*leading[1:], len(one.spans))
        places = [n for n, (i, end) in enumerate(zip(leading, ends, strict=True)) for _ in range(i, end)]
        return {label: self._named(label, one, leading, places) for label in self.labels}

    def _named(self, label: str, one: Labelled, leading: Sequence[int], places: Sequence[int]) -> Names:
        """One label; `places` numbers what is written at each word, `leading` is its first word."""
        words = [one.text[a:b].lower() for a, b in one.spans]
        if label == "word":
            return tuple(words)
        if label == "position":
            return tuple(position_bin(n) for n in places)
        if label == "frequency":
            return tuple(frequency_bin(self.counts[word]) for word in words)
        which, _, column = label.partition(".")
        if which not in OTHERS:
            return one.labels[label]
        names = one.labels[column or PART]
        beside = ("start", *(names[i] for i in leading), "end")
        if which == "previous":
            return tuple(beside[n] for n in places)
        if which == "next":
            return tuple(beside[n + 2] for n in places)
        return tuple("root" if h == 0 else names[h - 1] for h in one.heads) or (None,) * len(names)


def position_bin(place: int) -> str:
    """The bin of a word's place in its text, from 0."""
    step = min(place // STEP, STEPS - 1)
    return f"{step * STEP + 1} on" if step == STEPS - 1 else f"{step * STEP + 1}–{step * STEP + STEP}"


def frequency_bin(count: int) -> str:
    """The bin of how often a word stands in the texts: 1, 2–3, 4–7, …"""
    low = 1 << (max(1, count).bit_length() - 1)
    return "1" if low == 1 else f"{low}–{2 * low - 1}"


def labeller(texts: LabelledTexts, labels: Sequence[str] | None, limit: int | None) -> WordLabeller:
    """What labels the first `limit` texts; null stands for all usual labels that the texts have.

    Raises CorpusError for a label that they do not have.
    """
    counts: Counter[str] = Counter()
    headed = False
    for one in islice(texts.texts(), limit):
        counts.update(one.text[slice(*one.spans[i])].lower() for i in one.leading_words())
        headed = headed or bool(one.heads)
    known = _known(texts, headed)
    chosen = tuple(dict.fromkeys(labels if labels is not None else (label for label in USUAL if label in known)))
    check_labels(texts, chosen, headed)
    return WordLabeller(chosen, counts)


def check_labels(texts: LabelledTexts, labels: Sequence[str], headed: bool = True) -> None:
    """Raise CorpusError for a label that the texts do not have; without a look at them their words may have heads."""
    known = _known(texts, headed)
    for label in labels:
        which, _, column = label.partition(".")
        if label not in known and not (which in OTHERS and column in texts.columns and (which != "head" or headed)):
            there = f"There is {', '.join(known)}; previous, next and head may name a column, as in previous.dep."
            raise CorpusError(f"{texts.name} has no label '{label}'.", there, "Use labels that there are.")


def _known(texts: LabelledTexts, headed: bool) -> tuple[str, ...]:
    """The labels that every word of the texts can have."""
    others = tuple(o for o in OTHERS if o != "head" or headed) if PART in texts.columns else ()
    return (*OWN, *texts.columns, *others)


def unread(word: str) -> bool:
    """Whether a word stands for one that was left out of the text."""
    return word.lower() == UNKNOWN


def common(names: Sequence[str | None], most: int, least: int) -> tuple[str, ...]:
    """The classes that are kept: the `most` frequent ones of `least` words or more, and one for all others where there are any."""
    counts = Counter(name for name in names if name is not None)
    kept = sorted((n for n, c in counts.items() if c >= least), key=lambda n: (-counts[n], n))[:most]
    return (*kept, OTHER) if len(kept) < len(counts) else tuple(kept)
