"""Synthetic tasks with known roles: documents whose answer has to be looked up, and pairs of them for interchange.

What q, k and v have to carry is known by construction; that stands in `planted.py`, which no method reads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from trisect.core.errors import CorpusError
from trisect.text.corpus import Corpus, Documents, Split
from trisect.text.generated import embedded_corpus

SIZES = {"train": 12_800, "valid": 1_000}  # documents of each split


class Lookup(NamedTuple):
    """N documents of I items (key, value, rest), the queried item, and a meaningless value and rest for the question."""

    key: Int[np.ndarray, "N I"]
    value: Int[np.ndarray, "N I"]
    rest: Int[np.ndarray, "N I"]
    position: Int[np.ndarray, " N"]
    beside: Int[np.ndarray, "N 2"]

    @property
    def question(self) -> Int[np.ndarray, " N"]:
        """The queried key."""
        return _select(self.key, self.position)

    def item_of(self, key: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """The index of the item with that key."""
        return (self.key == key[:, None]).argmax(1)

    def take(self, which: np.ndarray) -> Lookup:
        """Select documents."""
        return Lookup(*(part[which] for part in self))


class _LabelColumn(NamedTuple):
    """A label column: classes of words, their positions, the labels of documents [N W], and the part that changes with them."""

    classes: tuple[str, ...]
    places: slice
    read: Callable[[Lookup], np.ndarray]
    part: str
    where: tuple[slice | int, ...] = (slice(None),)


class DonorPairs(NamedTuple):
    """Words of documents and donors, the base's answer, and the answers that a donor's q, k or v would give; all differ."""

    base: tuple[tuple[str, ...], ...]
    donor: tuple[tuple[str, ...], ...]
    unchanged: tuple[str, ...]
    predicted: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class World:
    """A kind of document: `items` items with distinct keys, values and others."""

    name: str
    items: int
    keys: int
    values: int
    rests: int
    note: str

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]:
        """All words."""

    @property
    @abstractmethod
    def columns(self) -> dict[str, _LabelColumn]:
        """Label columns, which describe the input word."""

    @abstractmethod
    def write(self, documents: Lookup) -> Int[np.ndarray, "N T"]:
        """Word ids of the documents, the answer last."""

    def answer(self, value: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """The ids of the answers for values: the last of the vocabulary."""
        return len(self.vocabulary) - self.values + value

    def change(self, documents: Lookup, column: str, rng: np.random.Generator) -> Lookup:
        """The documents with the label column's part changed alone."""
        label = self.columns[column]
        if label.part == "key":  # in turn, and the same key is asked for
            return documents._replace(key=np.roll(documents.key, 1, 1), position=(documents.position + 1) % self.items)
        size = self.items if label.part == "position" else len(label.classes)
        new = getattr(documents, label.part).copy()
        new[label.where] = (new[label.where] + 1 + _below(rng, size - 1, *new[label.where].shape)) % size
        return documents._replace(**{label.part: new})

    def draw(self, count: int, rng: np.random.Generator) -> Lookup:
        """Documents with distinct keys in random order; values, others and queries are random."""
        key = rng.random((count, self.keys)).argsort(1)[:, : self.items]
        value, rest = (_below(rng, n, count, self.items) for n in (self.values, self.rests))
        beside = np.concatenate([_below(rng, n, count, 1) for n in (self.values, self.rests)], 1)
        return Lookup(key, value, rest, _below(rng, self.items, count, 1)[:, 0], beside)

    def corpus(self, sizes: dict[str, int] | None = None, seed: int = 0) -> Corpus:
        """The world as a corpus; `sizes` has the number of documents of each split."""
        splits = {}
        for number, (split, count) in enumerate((SIZES | (sizes or {})).items()):
            documents = self.draw(count, np.random.default_rng([seed, number]))
            words, labels = self.write(documents), {}
            for name, column in self.columns.items():
                labels[name] = np.full(words.shape, -1, np.int16)
                labels[name][:, column.places] = column.read(documents)
            flat = {name: ids.ravel() for name, ids in labels.items()}
            splits[split] = Split(words.astype(np.int32).ravel(), flat, Documents(words.shape[1], tuple(flat)))
        classes = {name: column.classes for name, column in self.columns.items()}
        return Corpus.make(self.name, self.vocabulary, classes, splits, (self.note,))

    def pairs(self, count: int, seed: int) -> DonorPairs:
        """Documents and donors with the same keys in another order, other values, and another question."""
        rng = np.random.default_rng([seed, len(SIZES)])
        batches: list[tuple[Lookup, Lookup]] = []
        while sum(len(base.position) for base, _ in batches) < count:
            base, donor = self.draw(count, rng), self.draw(count, rng)
            order = rng.random(base.key.shape).argsort(1)
            donor = donor._replace(key=np.take_along_axis(base.key, order, 1))
            four = np.stack(list(predictions(base, donor).values()))
            differ = np.all([four[i] != four[j] for i in range(4) for j in range(i)], 0)
            batches.append((base.take(differ), donor.take(differ)))
        base, donor = (
            Lookup(*(np.concatenate(parts)[:count] for parts in zip(*lookups, strict=True)))
            for lookups in zip(*batches, strict=True)
        )
        answers = {name: _spell(self.vocabulary, self.answer(v)) for name, v in predictions(base, donor).items()}
        del answers["unchanged"]
        return self._pairs(base, donor)._replace(predicted=answers)

    def near_pairs(self, count: int, seed: int, column: str) -> DonorPairs:
        """Documents and donors that differ in the label column's part alone."""
        rng = np.random.default_rng([seed, len(SIZES) + 1])
        base = self.draw(count, rng)
        return self._pairs(base, self.change(base, column, rng))

    def _pairs(self, base: Lookup, donor: Lookup) -> DonorPairs:
        words = self.vocabulary
        bases, donors = (
            tuple(_spell(words, row) for row in self.write(documents)[:, :-1]) for documents in (base, donor)
        )
        return DonorPairs(bases, donors, _spell(words, self.answer(_select(base.value, base.position))), {})


def predictions(base: Lookup, donor: Lookup) -> dict[str, Int[np.ndarray, " N"]]:
    """The value that answers the base; its own for the donor's question (q), its own at the donor's key (k), the donor's (v)."""
    return {
        "unchanged": _select(base.value, base.position),
        "q": _select(base.value, base.item_of(donor.question)),
        "k": _select(base.value, donor.item_of(base.question)),
        "v": _select(donor.value, base.position),
    }


@dataclass(frozen=True)
class Roles(World):
    """Items (a, b, c), each one word; a question of the same form names an a; the answer is the b of the item that has it."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Items, questions, answers."""
        items = ["".join(names) for names in product(*self._classes().values())]
        return (*items, *(f"find-{item}" for item in items), *self._classes()["b"])

    def _classes(self) -> dict[str, tuple[str, ...]]:
        sizes = {"a": self.keys, "b": self.values, "c": self.rests}
        return {name: tuple(f"{name}{i}" for i in range(1, size + 1)) for name, size in sizes.items()}

    @property
    def columns(self) -> dict[str, _LabelColumn]:
        """a, b and c of every item, and of every question."""
        a, b, c = self._classes().values()
        items, question, rows = slice(self.items), slice(self.items, self.items + 1), slice(None)
        return {
            "item.a": _LabelColumn(a, items, lambda documents: documents.key, "key"),
            "item.b": _LabelColumn(b, items, lambda documents: documents.value, "value"),
            "item.c": _LabelColumn(c, items, lambda documents: documents.rest, "rest"),
            "question.a": _LabelColumn(a, question, lambda documents: documents.question[:, None], "position"),
            "question.b": _LabelColumn(b, question, lambda documents: documents.beside[:, :1], "beside", (rows, 0)),
            "question.c": _LabelColumn(c, question, lambda documents: documents.beside[:, 1:], "beside", (rows, 1)),
        }

    def write(self, documents: Lookup) -> Int[np.ndarray, "N T"]:
        """Items, question, answer."""
        items = (documents.key * self.values + documents.value) * self.rests + documents.rest
        question = (documents.question * self.values + documents.beside[:, 0]) * self.rests + documents.beside[:, 1]
        last = self.answer(_select(documents.value, documents.position))
        kinds = self.keys * self.values * self.rests
        return np.concatenate([items, kinds + question[:, None], last[:, None]], 1)


@dataclass(frozen=True)
class Induction(World):
    """Keys and values as alternating words; the question is a key, the answer the value after it."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Keys, values."""
        sizes = {"k": self.keys, "v": self.values}
        return tuple(f"{kind}{i}" for kind, size in sizes.items() for i in range(1, size + 1))

    @property
    def columns(self) -> dict[str, _LabelColumn]:
        """The word itself and the one before it, of every value and of the question; and every key's own."""
        keys, values = self.vocabulary[: self.keys], self.vocabulary[self.keys :]
        last, rows = 2 * self.items, slice(None)
        question, odd, even = slice(last, last + 1), slice(1, last, 2), slice(0, last, 2)
        return {
            "question.own": _LabelColumn(keys, question, lambda documents: documents.question[:, None], "position"),
            "question.before": _LabelColumn(
                values, question, lambda documents: documents.value[:, -1:], "value", (rows, -1)
            ),
            "value.own": _LabelColumn(values, odd, lambda documents: documents.value, "value"),
            "value.before": _LabelColumn(keys, odd, lambda documents: documents.key, "key"),
            "key.own": _LabelColumn(keys, even, lambda documents: documents.key, "key"),
        }

    def write(self, documents: Lookup) -> Int[np.ndarray, "N T"]:
        """Key and value in turn, the question, the answer."""
        pairs = np.stack([documents.key, self.keys + documents.value], 2).reshape(len(documents.position), -1)
        answer = self.answer(_select(documents.value, documents.position))
        return np.concatenate([pairs, documents.question[:, None], answer[:, None]], 1)


ROLES = Roles(
    "roles",
    items=4,
    keys=6,
    values=6,
    rests=6,
    note="A generated world: four items (a, b, c), each one word, and a question that names an a; the answer is the b of the "
    "item that has it, and nothing else is to be predicted. Labels speak of the word that is read.",
)
INDUCTION = Induction(
    "induction",
    items=4,
    keys=8,
    values=8,
    rests=1,
    note="A generated world: four keys, each with a value after it, and one of the keys again; the answer is the value that came "
    "after it, and nothing else is to be predicted. Labels speak of the word that is read.",
)
WORLDS: dict[str, World] = {world.name: world for world in (ROLES, INDUCTION)}


SAMPLE = "sample"  # sentences of English, which are read and not generated
BUILT_IN = ("embedded", *WORLDS, SAMPLE)


def is_built_in(where: str | Path) -> bool:
    """Whether a text of that name comes with trisect."""
    return str(where) in BUILT_IN


def is_generated(where: str | Path) -> bool:
    """Whether a text of that name is generated: the embedded language, or a world."""
    return is_built_in(where) and str(where) != SAMPLE


@cache
def generate(name: str) -> Corpus:
    """The generated text of that name, cached in the process."""
    return embedded_corpus() if name == "embedded" else WORLDS[name].corpus()


def world_of(corpus: Corpus) -> World:
    """The world that a corpus was made from; raises CorpusError if there is none."""
    world = WORLDS.get(corpus.name)
    if world is None or set(world.columns) != set(corpus.labels):
        reason = f"Donors can be made for documents of {', '.join(WORLDS)}."
        problem = f"An interchange was asked for in the text '{corpus.name}'."
        raise CorpusError(problem, reason, "Leave interchange out, or use such a text.")
    return world


def _spell(words: tuple[str, ...], numbers: Int[np.ndarray, " N"]) -> tuple[str, ...]:
    return tuple(words[i] for i in numbers.tolist())


def _select(table: Int[np.ndarray, "N I"], place: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    return np.take_along_axis(table, place[:, None], 1)[:, 0]


def _below(rng: np.random.Generator, n: int, *shape: int) -> Int[np.ndarray, "N W"]:
    """Integers below n from uniform numbers, whose stream is the same in every version of NumPy."""
    return (rng.random(shape) * n).astype(np.int64)
