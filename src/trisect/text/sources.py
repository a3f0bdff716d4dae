"""Open any text as a Corpus: the embedded one, a corpus folder, a raw folder with a reader, or a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trisect.core.errors import CorpusError, check_named
from trisect.core.spec import Text
from trisect.text import arrays
from trisect.text.corpus import Corpus, Split
from trisect.text.hub import is_hub, open_dataset, whole_name
from trisect.text.readers import named, suiting
from trisect.text.readers.base import Reader, SplitText
from trisect.text.worlds import generate, is_generated


@dataclass(frozen=True)
class RawSource:
    """A raw text before it is read: its name, who reads it, a file or rows for each split, and notes on where it is from."""

    name: str
    kind: Reader
    parts: Mapping[str, SplitText]
    notes: tuple[str, ...] = ()


def find_source(where: str | Path, name: str | None = None) -> RawSource:
    """A raw folder or `hf:NAME[:CONFIG]`, with the reader `name` or the one that suits; raises CorpusError."""
    kind = None if name is None else named(name)
    if is_hub(where):
        found = open_dataset(str(where))
        return RawSource(found.name, kind or suiting(found.rows["train"]), found.rows, found.notes)
    folder = Path(where)
    kind = kind or suiting(folder)
    shown = folder.resolve().name.encode(errors="replace").decode()  # a name that is no text cannot enter the tables
    return RawSource(shown, kind, kind.find(folder))


class Ids:
    """Numbers for names, in the order in which they are first met."""

    def __init__(self, limit: int = 2**31 - 1) -> None:
        self._ids: dict[str, int] = {}
        self._limit = limit

    def __getitem__(self, name: str) -> int:
        number = self._ids.setdefault(name, len(self._ids))
        if number >= self._limit:
            known = f"At most {self._limit:,} fit; {name!r} is one too many."
            raise CorpusError("There are too many different names in one column.", known, "Use a coarser column.")
        return number

    @property
    def names(self) -> tuple[str, ...]:
        """All names, by number."""
        return tuple(self._ids)


def read(where: str | Path | RawSource, name: str | None = None) -> Corpus:
    """Read a raw text in one pass, with memory bounded by the vocabulary, not by the text.

    The corpus keeps every type of every split; `Corpus.cut` chooses the vocabulary.
    """
    source = where if isinstance(where, RawSource) else find_source(where, name)
    kind = source.kind
    types, classes = Ids(), {column: Ids(2**15 - 1) for column in kind.columns}
    splits = {}
    for split, part in source.parts.items():
        tokens = arrays.GrowingArray(np.int32)
        labels = {column: arrays.GrowingArray(np.int16) for column in kind.columns}
        for paragraph in kind.paragraphs(part):
            tokens.append([types[word.lower()] for word in paragraph.words])
            for column in paragraph.labels.keys() - labels.keys():  # a feature that is met for the first time
                classes.setdefault(column, Ids(2**15 - 1))
                labels[column] = arrays.GrowingArray(np.int16)
            for column, ids in labels.items():
                found = paragraph.labels.get(column) or [None] * len(paragraph.words)
                ids.append([-1] * (len(tokens) - len(found) - len(ids)))
                ids.append([-1 if c is None else classes[column][c] for c in found])
        splits[split] = Split(tokens.finish(), {column: ids.finish() for column, ids in labels.items()})
    given = [c for c in classes if c in kind.columns] + sorted(c for c in classes if c not in kind.columns)
    names = {column: classes[column].names for column in given if classes[column].names}
    splits = {
        s: Split(part.tokens, {c: part.labels.get(c, np.full(len(part.tokens), -1, np.int16)) for c in names})
        for s, part in splits.items()
    }
    empty = tuple(f"No word carries a '{c}': the column is left out." for c in classes if c not in names)
    notes = (*source.notes, *kind.notes, *kind.label_notes, *empty)
    return Corpus.make(source.name, types.names, names, splits, notes)


def open_corpus(where: str | Path, name: str | None = None) -> Corpus:
    """'embedded', 'roles', a corpus folder, a raw folder, or hf:NAME[:CONFIG] (read by `name`, or what suits), uncut."""
    check_named("a corpus", where)
    if is_generated(where):
        no_reader(where, name)
        return generate(where)
    if is_hub(where):
        return read(where, name)
    folder = Path(where)
    if name is None and (folder / "corpus.json").is_file():
        return Corpus.load(folder)
    return read(folder, name)


def no_reader(where: str | Path, name: str | None) -> None:
    """Raise CorpusError where a reader is named for a text that comes with trisect."""
    if name is not None:
        named(name)
        known = f"'{where}' comes with trisect and is read by no reader."
        raise CorpusError(f"The reader {name!r} was named for '{where}'.", known, "Leave --reader out.")


def whole_place(where: str | Path) -> str:
    """A text's name as it works from anywhere: folders in full, so that experiment.json can be moved."""
    if is_hub(where):
        return whole_name(str(where))
    return str(where) if is_generated(where) else str(Path(where).resolve())


def load_text(text: Text) -> Corpus:
    """The text of an experiment, cut as it says; raises CorpusError where it names none."""
    if text.corpus is None:
        known = "Its preset leaves the text to you."
        raise CorpusError(
            "The experiment names no corpus.", known, "Name a corpus folder with --corpus, or 'embedded'."
        )
    return open_corpus(text.corpus).cut(text)
