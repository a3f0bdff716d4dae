"""Labels of words, from text, treebanks, and links of sentence pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trisect.core.errors import CorpusError
from trisect.text.bitext import SentencePair, open_bitext
from trisect.text.generated import NAME, bitext_corpus
from trisect.text.lines import UNKNOWN
from trisect.text.sources import Labelled, LabelledTexts, check_split

TEXT_LABELS = ("word", "position", "frequency")  # what every text has
NEIGHBOUR_LABELS = ("previous", "next", "head")  # of another word, its column 'pos' or the one named after a dot
PART = "pos"
USUAL_LABELS = ("word", "position", "frequency", "pos", "dep", "previous", "next", "head")
STEP, STEPS = 3, 8  # a bin of positions is so many words wide, the last one open
OTHER_CLASS = "(other)"

Names = tuple[str | None, ...]


@dataclass(frozen=True)
class WordLabeller:
    """Labels every word of a text; `counts` are counts of lower-cased words in the texts."""

    labels: tuple[str, ...]
    counts: Counter[str]

    def __call__(self, text: Labelled) -> dict[str, Names]:
        """The class of each word by label; None where a word carries none."""
        leading = text.leading_words()  # the first word of each written place
        ends = (*leading[1:], len(text.spans))
        places = [n for n, (i, end) in enumerate(zip(leading, ends, strict=True)) for _ in range(i, end)]
        words = [text.text[a:b].lower() for a, b in text.spans]

        def classes(label: str) -> Names:
            which, _, column = label.partition(".")
            if label in TEXT_LABELS:
                return _own_classes(label, words, places, self.counts)
            if which not in NEIGHBOUR_LABELS:
                return text.labels[label]
            names = text.labels[column or PART]
            if which == "head":
                return tuple("root" if h == 0 else names[h - 1] for h in text.heads) or (None,) * len(names)
            boundaries = ("start", *(names[i] for i in leading), "end")
            return tuple(boundaries[n + 2 * (which == "next")] for n in places)

        return {label: classes(label) for label in self.labels}


def _own_classes(label: str, words: Sequence[str], places: Iterable[int], counts: Counter[str]) -> Names:
    """The class of each word, for a label that every text has."""
    if label == "word":
        return tuple(words)
    if label == "position":
        return tuple(_position_bin(place) for place in places)
    bins = (1 << (max(1, counts[word]).bit_length() - 1) for word in words)  # 1, 2–3, 4–7, …
    return tuple("1" if low == 1 else f"{low}–{2 * low - 1}" for low in bins)


def _position_bin(place: int) -> str:
    """The bin of a word's position in its text, from 0."""
    step = min(place // STEP, STEPS - 1)
    return f"{step * STEP + 1} on" if step == STEPS - 1 else f"{step * STEP + 1}–{step * STEP + STEP}"


def make_labeller(texts: LabelledTexts, labels: Sequence[str] | None, limit: int | None) -> WordLabeller:
    """The labeller of the first `limit` texts (None: all usual labels that they have); raises CorpusError for a missing label."""
    counts: Counter[str] = Counter()
    headed = False
    for text in islice(texts.texts(), limit):
        counts.update(text.text[slice(*text.spans[i])].lower() for i in text.leading_words())
        headed = headed or bool(text.heads)
    available = _label_names(texts, headed)
    chosen = tuple(
        dict.fromkeys(labels if labels is not None else (label for label in USUAL_LABELS if label in available))
    )
    check_labels(texts, chosen, headed)
    return WordLabeller(chosen, counts)


def check_labels(texts: LabelledTexts, labels: Sequence[str], headed: bool = True) -> None:
    """Raise CorpusError for a label that the texts do not have, without reading them: words may have heads."""
    available = _label_names(texts, headed)
    for label in labels:
        which, _, column = label.partition(".")
        if label not in available and not (
            which in NEIGHBOUR_LABELS and column in texts.columns and (which != "head" or headed)
        ):
            reason = f"There is {', '.join(available)}; previous, next and head may name a column, as in previous.dep."
            raise CorpusError(f"{texts.name} has no label '{label}'.", reason, "Use labels that there are.")


def _label_names(texts: LabelledTexts, headed: bool) -> tuple[str, ...]:
    """The labels that all words of the texts can have."""
    others = tuple(o for o in NEIGHBOUR_LABELS if o != "head" or headed) if PART in texts.columns else ()
    return (*TEXT_LABELS, *texts.columns, *others)


def is_unknown(word: str) -> bool:
    """Whether a word is a placeholder of one that was left out."""
    return word.lower() == UNKNOWN


def frequent_classes(names: Sequence[str | None], limit: int, least: int) -> tuple[str, ...]:
    """The kept classes: the `limit` most frequent ones with `least` words or more, and one for all others if there are any."""
    counts = Counter(name for name in names if name is not None)
    frequent = sorted((n for n, c in counts.items() if c >= least), key=lambda n: (-counts[n], n))[:limit]
    return (*frequent, OTHER_CLASS) if len(frequent) < len(counts) else tuple(frequent)


LINKED, PLACE = "linked", "linked.position"
LINKS = (LINKED, PLACE)


@dataclass(frozen=True)
class PairTexts:
    """The sentence pairs of one split of a bitext; `linked` if there are gold links."""

    name: str
    pairs: tuple[SentencePair, ...]
    notes: tuple[str, ...]
    fingerprint: str

    @property
    def has_links(self) -> bool:
        """Whether there are gold links."""
        return self.pairs[0].sure is not None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that its words can have."""
        return (*TEXT_LABELS, *LINKS) if self.has_links else TEXT_LABELS


@dataclass(frozen=True)
class PairLabeller:
    """Labels every word of a pair, source then target; `counts` are those of each side's words."""

    labels: tuple[str, ...]
    counts: tuple[Counter[str], Counter[str]]

    def __call__(self, pair: SentencePair) -> tuple[dict[str, Names], dict[str, Names]]:
        """The class of each word by label; None where a word carries none, and those of links of a word with no link, or several."""
        sides = [[word.lower() for word in side] for side in pair.sides]
        classes: tuple[dict[str, Names], dict[str, Names]] = ({}, {})
        for side, (words, others) in enumerate((sides, reversed(sides))):
            ends: list[list[int]] = [[] for _ in words]
            for link in pair.sure or ():
                ends[link[side]].append(link[1 - side])
            linked = [linked_words[0] if len(linked_words) == 1 else None for linked_words in ends]
            for label in self.labels:
                if label in TEXT_LABELS:
                    classes[side][label] = _own_classes(label, words, range(len(words)), self.counts[side])
                else:
                    linked_classes = others if label == LINKED else [_position_bin(j) for j in range(len(others))]
                    classes[side][label] = tuple(None if j is None else linked_classes[j] for j in linked)
        return classes


def open_pairs(where: str | Path, split: str) -> PairTexts:
    """The pairs of one split of a bitext's folder, or of the embedded bitext; raises CorpusError if there are none."""
    try:
        bitext = bitext_corpus() if str(where) == NAME else open_bitext(where)
    except CorpusError as error:
        reason = f"Cross-attention is read over sentence pairs, a bitext. {error.reason}"
        raise CorpusError(error.problem, reason, error.todo) from None
    splits = {name: pairs for name in ("train", "valid", "test") if (pairs := getattr(bitext, name))}
    check_split(bitext.name, split, splits)
    return PairTexts(f"{bitext.name}, {split}", splits[split], bitext.notes, f"{bitext.fingerprint}-{split}")


def make_pair_labeller(texts: PairTexts, labels: Sequence[str] | None, limit: int | None) -> PairLabeller:
    """The labeller of the first `limit` pairs (None: all labels that they have). Raises CorpusError for a missing label."""
    check_pair_labels(texts, labels or ())
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for pair in texts.pairs[:limit]:
        for side, words in zip(counts, pair.sides, strict=True):
            side.update(word.lower() for word in words)
    return PairLabeller(tuple(dict.fromkeys(texts.labels if labels is None else labels)), counts)


def check_pair_labels(texts: PairTexts, labels: Sequence[str]) -> None:
    """Raise CorpusError for a label that sentence pairs do not have."""
    for label in labels:
        if label not in texts.labels:
            more = "" if texts.has_links else f"; {' and '.join(LINKS)} are there where a split has gold links"
            reason = f"Words of sentence pairs have {', '.join(texts.labels)}{more}."
            raise CorpusError(f"{texts.name} has no label '{label}'.", reason, "Use labels that there are.")
