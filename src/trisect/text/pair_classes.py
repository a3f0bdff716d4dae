"""Labels of the words of sentence pairs, side by side: identity, position, frequency, and the word that a gold link leads to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trisect.core.errors import CorpusError
from trisect.text.alignment_files import LinkSet
from trisect.text.bitext import Bitext, SentencePair, open_bitext
from trisect.text.generated_bitext import NAME, generated
from trisect.text.word_classes import OWN, Names, frequency_bin, position_bin

LINKED, PLACE = "linked", "linked.position"
LINKS = (LINKED, PLACE)


@dataclass(frozen=True)
class PairTexts:
    """The sentence pairs of one split of a bitext; `linked` where somebody made gold links."""

    name: str
    pairs: tuple[SentencePair, ...]
    notes: tuple[str, ...]
    fingerprint: str

    @property
    def linked(self) -> bool:
        """Whether there are gold links."""
        return self.pairs[0].sure is not None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that its words can have."""
        return (*OWN, *LINKS) if self.linked else OWN


@dataclass(frozen=True)
class PairLabeller:
    """Gives every word of a pair its class of each label, source then target; `counts` are those of each side's words."""

    labels: tuple[str, ...]
    counts: tuple[Counter[str], Counter[str]]

    def __call__(self, pair: SentencePair) -> tuple[dict[str, Names], dict[str, Names]]:
        """The class of each word by label; null where a word carries none."""
        source, target = ([word.lower() for word in side] for side in pair.sides)
        sure = pair.sure or frozenset()
        there = _only(sure, len(source)), _only(frozenset((j, i) for i, j in sure), len(target))
        mine, theirs = (source, target), (target, source)
        first, second = (
            {la: _named(la, mine[i], theirs[i], there[i], self.counts[i]) for la in self.labels} for i in (0, 1)
        )
        return first, second


def _only(links: LinkSet, words: int) -> tuple[int | None, ...]:
    """For each word the one that its one link leads to; null where it has none, or several."""
    found: list[list[int]] = [[] for _ in range(words)]
    for i, j in links:
        found[i].append(j)
    return tuple(ends[0] if len(ends) == 1 else None for ends in found)


def _named(
    label: str, words: Sequence[str], others: Sequence[str], there: Sequence[int | None], counts: Counter[str]
) -> Names:
    if label == "word":
        return tuple(words)
    if label == "position":
        return tuple(position_bin(i) for i in range(len(words)))
    if label == "frequency":
        return tuple(frequency_bin(counts[word]) for word in words)
    return tuple(None if j is None else others[j] if label == LINKED else position_bin(j) for j in there)


def open_pairs(where: str | Path, split: str) -> PairTexts:
    """The pairs of one split of a bitext's folder, or of the embedded bitext; raises CorpusError where there are none."""
    bitext = generated() if str(where) == NAME else _folder(where)
    of = {"train": bitext.train, "valid": bitext.valid, "test": bitext.test}
    if not of[split]:
        there = ", ".join(name for name, pairs in of.items() if pairs)
        raise CorpusError(
            f"{bitext.name} has no {split} split.", f"It has {there}.", "Choose one of them with --split."
        )
    return PairTexts(f"{bitext.name}, {split}", of[split], bitext.notes, f"{bitext.fingerprint}-{split}")


def _folder(where: str | Path) -> Bitext:
    try:
        return open_bitext(where)
    except CorpusError as error:
        known = f"Cross-attention is read over sentence pairs, a bitext. {error.known}"
        raise CorpusError(error.given, known, error.todo) from None


def pair_labeller(texts: PairTexts, labels: Sequence[str] | None, limit: int | None) -> PairLabeller:
    """What labels the first `limit` pairs; null stands for all labels that they have. Raises CorpusError for one that they lack."""
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
            more = "" if texts.linked else f"; {' and '.join(LINKS)} are there where a split has gold links"
            there = f"Words of sentence pairs have {', '.join(texts.labels)}{more}."
            raise CorpusError(f"{texts.name} has no label '{label}'.", there, "Use labels that there are.")
