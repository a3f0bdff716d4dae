"""Open any text: the embedded corpus, a folder, a treebank, a file or a Hugging Face dataset, as tokens or as raw texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Int
from typing_extensions import TypedDict

from trisect.core.errors import CorpusError, check_named, unknown
from trisect.core.files import digest
from trisect.core.spec import Text
from trisect.core.subject import TextOrPair, Texts
from trisect.text import corpus
from trisect.text import corpus as text_corpus
from trisect.text.corpus import SPLITS, Corpus, Split
from trisect.text.hub import DatasetTexts, is_hub, open_dataset, whole_name
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
        tokens = corpus.GrowingArray(np.int32)
        labels = {column: corpus.GrowingArray(np.int16) for column in kind.columns}
        for paragraph in kind.paragraphs(part):
            tokens.append([types[word.lower()] for word in paragraph.words])
            for column in paragraph.labels.keys() - labels.keys():  # a feature that is met for the first time
                classes.setdefault(column, Ids(2**15 - 1))
                labels[column] = corpus.GrowingArray(np.int16)
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


STOP = "."
FEW = 3  # texts that a command is still written out with
LONGEST_SENTENCE = 128  # words, where a corpus folder has no sentence ends


def given_texts(texts: Iterable[TextOrPair]) -> Texts:
    """Texts that were handed over one by one; raises CorpusError for none or for an empty one."""
    kept = tuple(texts)
    if not kept:
        raise CorpusError("No text was given.", "At least one is needed.", "Give a text, or a corpus.")
    for number, text in enumerate(kept, 1):
        if not (" ".join(text) if isinstance(text, tuple) else text).strip():
            known = "A text has at least one character that is not white space."
            raise CorpusError(f"Text {number} is {text!r}.", known, "Leave it out, or give its words.")
    short = kept if len(kept) <= FEW and all(isinstance(text, str) for text in kept) else ("…",)
    options = tuple(str(word) for text in short for word in ("--text", text))
    again = len(kept) - len(set(kept))
    notes = (f"{again:,} of {len(kept):,} texts repeat an earlier one; each counts as often as it was given.",)
    return Texts("texts given by hand", lambda: iter(kept), notes if again else (), digest(repr(kept), 8), options)


def first_texts(texts: Texts, limit: int) -> Texts:
    """The first `limit` of some texts; raises CorpusError for a limit below 1."""
    if limit < 1:
        raise CorpusError(f"A limit of {limit} texts.", "At least one is needed.", "Give 1 or more, or leave it out.")
    note = f"Only the first {limit:,} texts are read."
    options = (*texts.options, "--limit", str(limit))
    most, articles = min(limit, sys.maxsize), texts.articles
    return replace(
        texts,
        texts=lambda: islice(texts.texts(), most),
        notes=(*texts.notes, note),
        options=options,
        articles=None if articles is None else lambda: islice(articles(), most),
    )


def open_texts(where: str | Path, split: str = "test", reader: str | None = None) -> Texts:
    """The texts of one split: WikiText paragraphs, treebank sentences, lines of plain text, rows of a dataset.

    WikiText's headings are left out and its `@-@`, `@,@`, `@.@` joined again; a treebank's sentence is its `# text`
    line where there is one. A corpus folder and generated texts hold words without paragraphs: those are cut at full stops.
    Raises CorpusError where there is no such split.
    """
    if split not in SPLITS:
        raise CorpusError(unknown("split", split, SPLITS), f"Splits are {', '.join(SPLITS)}.", "Use one of them.")
    if is_generated(where):
        no_reader(where, reader)
    if is_generated(where) or (reader is None and (Path(where) / "corpus.json").is_file()):
        return _of_corpus(open_corpus(where), split, _options(where, split, reader))
    source = find_source(where, reader)
    if split not in source.parts:
        raise _no_split(str(where), split, tuple(source.parts))
    part, kind, options = source.parts[split], source.kind, _options(where, split, reader)
    notes = (*source.notes, kind.unit)
    name = f"{source.name}, {split}"
    return Texts(
        name,
        lambda: (one.text for one in kind.raw(part)),
        notes,
        _mark(part),
        options,
        lambda: (one.article for one in kind.raw(part)),
    )


def _options(where: str | Path, split: str, reader: str | None) -> tuple[str, ...]:
    """The words of a command line; a folder by its name alone, since where it lies is nobody else's affair."""
    name = str(where) if is_hub(where) or is_generated(where) else Path(where).resolve().name
    return ("--corpus", name, "--split", split, *(() if reader is None else ("--reader", reader)))


def _of_corpus(corpus: Corpus, split: str, options: tuple[str, ...]) -> Texts:
    if split not in corpus.splits:
        raise _no_split(corpus.name, split, tuple(corpus.splits))
    note = "A text is a run of words up to a full stop."
    return Texts(
        f"{corpus.name}, {split}", lambda: _runs(corpus, split), (note,), f"{corpus.fingerprint}-{split}", options
    )


def _runs(corpus: Corpus, split: str) -> Iterator[str]:
    words: list[str] = []
    for token in corpus.splits[split].tokens:
        words.append(corpus.vocabulary[token])
        if words[-1] == STOP or len(words) == LONGEST_SENTENCE:
            yield " ".join(words)
            words = []
    if words:
        yield " ".join(words)


def _mark(part: Path | DatasetTexts) -> str:
    """Hex digits of a file's bytes, or of a dataset's rows."""
    if isinstance(part, DatasetTexts):
        return digest("\n".join(part.texts()), 8)
    return digest(part.read_bytes(), 8)


def _no_split(name: str, split: str, there: tuple[str, ...]) -> CorpusError:
    return CorpusError(
        f"{name} has no {split} split.", f"It has {', '.join(there)}.", "Choose one of them with --split."
    )


class SplitSize(TypedDict):
    """One split in numbers; `unknown` are tokens whose type train lacks."""

    split: str
    tokens: int
    types: int
    unknown: int
    columns: int
    rows: int


class CorpusFacts(TypedDict):
    """What a corpus holds, JSON-ready: its splits, and a row for each split, label column and class (null: no label)."""

    name: str
    fingerprint: str
    types: int
    splits: list[SplitSize]
    labels: list[dict[str, str | int | None]]
    notes: list[str]


def describe(corpus: Corpus, columns: Mapping[str, int] | None = None) -> CorpusFacts:
    """What `trisect corpus show` prints, JSON-ready.

    `splits`: one row a split with tokens, types, unknown (tokens whose type train lacks), columns and rows (20 columns
    for train and 10 for the others, unless given); `labels`: one row for each split, column and class with its
    count, most frequent in train first, and a row of class null for tokens without label.
    """
    columns = {"train": 20, "valid": 10, "test": 10} | dict(columns or {})
    seen = {name: text_corpus.counts(split.tokens, len(corpus.vocabulary)) for name, split in corpus.splits.items()}
    splits: list[SplitSize] = []
    labels: list[dict[str, str | int | None]] = []
    for name, split in corpus.splits.items():
        n = len(split.tokens)
        splits.append(
            {
                "split": name,
                "tokens": n,
                "types": int((seen[name] > 0).sum()),
                "unknown": int(seen[name][seen["train"] == 0].sum()),
                "columns": columns[name],
                "rows": n // columns[name],
            }
        )
        for column, classes in corpus.labels.items():
            train = text_corpus.counts(corpus.splits["train"].labels[column], len(classes))
            here = text_corpus.counts(split.labels[column], len(classes))
            order = sorted(range(len(classes)), key=lambda i: (-train[i], classes[i]))
            rows = [(classes[i], int(here[i])) for i in order] + [(None, n - int(here.sum()))]
            labels += [{"split": name, "label": column, "class": c, "count": k} for c, k in rows]
    return {
        "name": corpus.name,
        "fingerprint": corpus.fingerprint,
        "types": len(corpus.vocabulary),
        "splits": splits,
        "labels": labels,
        "notes": list(corpus.notes),
    }


MARK = "="
ENDS = frozenset(".!?)'\"")  # a paragraph ends so, or with a heading; after any other word a mark is part of a formula
LONGEST = 25  # tokens of a title


def article_starts(tokens: Int[np.ndarray, " N"], vocabulary: Sequence[str]) -> Int[np.ndarray, " A"]:
    """The place of each article's first token; nothing where no headings are marked.

    A heading of level n is a title between n marks and n marks. Two headings may follow one another, so that the marks
    between two titles are those that close the one and open the other.
    """
    marks = np.flatnonzero(np.asarray(tokens) == vocabulary.index(MARK)) if MARK in vocabulary else np.empty(0, int)
    runs = np.split(marks, np.flatnonzero(np.diff(marks) > 1) + 1) if len(marks) else []
    found, opened, free = [], None, -1  # where a heading opened and at which level; the last token of a heading
    for run in runs:
        start, many = int(run[0]), len(run)
        if opened is not None:
            begun, level = opened
            if many >= level and start - begun - level <= LONGEST:
                if level == 1:
                    found.append(begun)
                start, many = start + level, many - level
                free, opened = start - 1, None
        if many and _may_open(tokens, vocabulary, start, free):
            opened = (start, many)
    return np.array(found, dtype=int)


def _may_open(tokens: Int[np.ndarray, " N"], vocabulary: Sequence[str], start: int, free: int) -> bool:
    """Whether what precedes can be the end of a paragraph or of a heading."""
    return start == 0 or free == start - 1 or vocabulary[int(tokens[start - 1])] in ENDS
