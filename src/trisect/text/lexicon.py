"""The lexicon of the embedded language: invented words, with what each asks of its neighbours."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")

TOPICS = 6
KINDS = 3
GENDERS = 3
_SYLLABLES = [c + v for c in "bdfgklmnprtvzh" for v in "aeiou"]
_ENDINGS = ("", "n", "", "r", "l")


@dataclass(frozen=True)
class Noun:
    """A noun: which kind of thing it is (verbs select kinds), its gender, and the preposition that follows it."""

    stem: str
    kind: int
    gender: int
    preposition: str


@dataclass(frozen=True)
class Verb:
    """A verb: its frame (none, object, clause), the kind of object it selects, and the preposition it governs."""

    stem: str
    frame: str
    kind: int
    preposition: str


class Menu(Generic[T]):
    """Things to choose from, with weights; uses nothing of the generator but `random()`, which never changes."""

    def __init__(self, weighted: Iterable[tuple[T, float]]) -> None:
        pairs = list(weighted)
        self.items = [item for item, _ in pairs]
        self._sums = list(accumulate(weight for _, weight in pairs))

    def pick(self, rng: Random) -> T:
        """One item, with a chance in proportion to its weight."""
        return self.items[min(bisect_right(self._sums, rng.random() * self._sums[-1]), len(self.items) - 1)]


def zipf(items: Sequence[T], mass: float = 1.0) -> list[tuple[T, float]]:
    """Weights in proportion to 1/(rank + 1) that sum to `mass`."""
    total = fsum(1 / rank for rank in range(2, len(items) + 2))  # exact, so the same in every Python
    return [(item, mass / rank / total) for rank, item in enumerate(items, 2)]


def function_word(index: int) -> str:
    """The `index`-th one-syllable word."""
    return _SYLLABLES[(index * 31 + 17) % len(_SYLLABLES)]


def stem(index: int, syllables: int = 2) -> str:
    """The `index`-th stem of two or three syllables; no two are the same, and none ends in -s."""
    size = len(_SYLLABLES)
    first = _SYLLABLES[(index * 23 + 5) % size]
    rest = [_SYLLABLES[(index * 9 + index // size + 27 * place) % size] for place in range(1, syllables)]
    return first + "".join(rest) + _ENDINGS[index % len(_ENDINGS)]


# Words with two uses stand under both names: that is what makes a part of speech more than a list of words.
_NAMES = (
    *("the", "a", "this", "that", "these", "some", "of", "in", "on", "with", "to", "before", "and", "or", "but"),
    *("if", "because", "not", "has", "have", "is", "are", "may", "will", "he", "she", "it", "they", "him", "her"),
    *("them", "his", "its", "their", "who", "which", "two", "three", "four", "five", "when", "here", "now", "well"),
    *("yes", "no", "oh"),
)
FUNCTION = {name: function_word(i) for i, name in enumerate(_NAMES)}
PREPOSITIONS = tuple(FUNCTION[name] for name in ("of", "in", "with", "on", "to", "before"))


class Lexicon:
    """All words, in menus by topic: three quarters of the nouns, verbs and adjectives belong to the topic."""

    def __init__(self) -> None:
        self._next = 0
        nouns, verbs, adjectives = [], [], []
        for topic in range(TOPICS + 1):  # the last group belongs to every topic
            general = topic == TOPICS
            stems = [self._stem() for _ in range(14 if general else 9)]
            nouns.append([self._noun(s, i + topic) for i, s in enumerate(stems)])
            shared = stems[1:5]
            own = [self._stem() for _ in range(6 if general else 2)]
            verbs.append([self._verb(s, i, topic) for i, s in enumerate([*shared, *own])])
            adjectives.append([self._stem() for _ in range(8 if general else 5)])
        self.topics = Menu((t, 1 / (t + 3)) for t in range(TOPICS))
        self.names = Menu(zipf([(self._stem(3), i % 2) for i in range(20)]))
        self.adverbs = Menu(zipf([*adjectives[TOPICS][:4], *(self._stem() for _ in range(6))]))
        self.adjectives = [_mixed(adjectives[t], adjectives[TOPICS]) for t in range(TOPICS)]
        self.nouns = [self._by_kind(nouns[t], nouns[TOPICS]) for t in range(TOPICS)]
        self.verbs = [_mixed(verbs[t], verbs[TOPICS]) for t in range(TOPICS)]
        self.takers = [self._takers(verbs[t], verbs[TOPICS]) for t in range(TOPICS)]
        self.protagonists = [Menu(zipf([n for n in nouns[t] if n.kind == 0] + nouns[t][:2])) for t in range(TOPICS)]

    def _stem(self, syllables: int = 2) -> str:
        self._next += 1
        return stem(self._next, syllables)

    @staticmethod
    def _noun(word: str, i: int) -> Noun:
        return Noun(word, i % KINDS, (i // KINDS + i) % GENDERS, PREPOSITIONS[i % 3])

    @staticmethod
    def _verb(word: str, i: int, topic: int) -> Verb:
        frame = ("object", "object", "none", "object", "clause", "object")[(i + topic) % 6]
        return Verb(word, frame, (i + topic) % KINDS, PREPOSITIONS[(i * 5 + topic) % len(PREPOSITIONS)])

    @staticmethod
    def _by_kind(own: list[Noun], general: list[Noun]) -> dict[int | None, Menu[Noun]]:
        menus: dict[int | None, Menu[Noun]] = {None: _mixed(own, general)}
        for kind in range(KINDS):
            menus[kind] = _mixed([n for n in own if n.kind == kind], [n for n in general if n.kind == kind])
        return menus

    @staticmethod
    def _takers(own: list[Verb], general: list[Verb]) -> dict[int, Menu[Verb]]:
        """Verbs that take an object of each kind, for clauses whose object has already been said."""
        every = [v for v in (*own, *general) if v.frame == "object"]
        return {kind: Menu(zipf([v for v in every if v.kind == kind] or every)) for kind in range(KINDS)}


def _mixed(own: list[T], general: list[T]) -> Menu[T]:
    return Menu([*zipf(own, 0.75), *zipf(general, 0.25)])
