"""Readers of WikiText folders, CoNLL-U treebanks, plain text and datasets, one paragraph at a time, into a Corpus."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, TypedDict

import numpy as np

from trisect.core.errors import CorpusError
from trisect.core.spec import Text
from trisect.text import arrays
from trisect.text.corpus import SPLITS, UNKNOWN, UNSHOWN, Corpus, Split
from trisect.text.hub import DatasetTexts, is_hub, open_dataset, whole_name
from trisect.text.worlds import generate, is_generated

LINE = 1 << 20  # characters read at once: a text without line ends is read in pieces of this size
READ = {"FORM": 1, "UPOS": 3, "XPOS": 4, "FEATS": 5, "DEPREL": 7}  # the columns of a CoNLL-U word that are used
MORPH = "morph"  # the column of whole bundles of features, and how those of single features begin
_APART = str.maketrans({c: f" {c} " for c in "'.,()!?"} | {'"': "", ";": " ", ":": " "})
_BREAK = re.compile("<br />", re.IGNORECASE)


@dataclass(frozen=True)
class Paragraph:
    """Words with their case kept, and for each label column one class name a word (null where there is none)."""

    words: Sequence[str]
    labels: Mapping[str, Sequence[str | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reader:
    """How one kind of folder is read. `files` lists, for each split, the patterns that its file's name may have.

    `hidden` are (lower-cased) words that stand for words left out, so that they carry no label. `notes` speak of the
    words, `label_notes` of the labels that come with them.
    """

    name: str
    files: Mapping[str, tuple[str, ...]]
    columns: tuple[str, ...]
    hidden: frozenset[str]
    notes: tuple[str, ...]
    label_notes: tuple[str, ...]
    paragraphs: Callable[[Path | DatasetTexts], Iterator[Paragraph]]

    def find(self, folder: Path) -> dict[str, Path]:
        """The file of each split; raises CorpusError when train or valid has none, or a split has several."""
        if not folder.is_dir():
            known = "A corpus is a folder with a text file for each of train and valid."
            raise CorpusError(f"There is no folder {folder}.", known, "Check the path.")
        found = {}
        for split in SPLITS:
            paths = sorted({path for pattern in self.files[split] for path in folder.glob(pattern) if path.is_file()})
            if len(paths) > 1:
                known = f"Found {', '.join(p.name for p in paths)}."
                raise CorpusError(f"{folder} has several {split} files.", known, "Keep one of them in the folder.")
            if not paths and split != "test":
                there = ", ".join(sorted(p.name for p in folder.iterdir())[:12]) or "nothing"
                known = f"Looked for {' or '.join(self.files[split])}; the folder holds {there}."
                raise CorpusError(
                    f"{folder} has no {split} split.",
                    known,
                    f"Add that file, or name a reader other than '{self.name}'.",
                )
            if paths:
                found[split] = paths[0]
        return found


def basic_english(line: str) -> list[str]:
    """Words of a line with their case kept; lower-casing each gives the `basic_english` tokens, one for one.

    ' . , ( ) ! ? stand alone; " is deleted; ; : and <br /> become a space (science A1).
    """
    bare = line.replace('"', "")
    return (_BREAK.sub(" ", bare) if "<" in bare else bare).translate(_APART).split()


def lines(part: Path | DatasetTexts) -> Iterator[str]:
    """The lines of a UTF-8 file, without a byte-order mark, or of a dataset's rows; what is too long comes in pieces.

    Pieces of 2^20 characters break at white space if possible. Raises CorpusError naming a file that cannot be read.
    """
    if isinstance(part, DatasetTexts):
        for text in part.texts():
            yield from _pieces(io.StringIO(text, newline=None))
        return
    path = part
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from _pieces(file)
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(
            f"{path} cannot be read.", f"The system says: {error}", "Give a readable UTF-8 text file."
        ) from error


def _pieces(file: TextIO) -> Iterator[str]:
    rest = ""
    while piece := file.readline(LINE):
        line, rest = rest + piece, ""
        if not line.endswith("\n") and len(piece) == LINE:
            at = max(line.rfind(" "), line.rfind("\t")) + 1 or len(line)
            line, rest = line[:at], line[at:]
        yield line
    if rest:
        yield rest


def _english(part: Path | DatasetTexts) -> Iterator[Paragraph]:
    for line in lines(part):
        if words := basic_english(line):
            yield Paragraph(words)


def _conllu(path: Path | DatasetTexts) -> Iterator[Paragraph]:
    rows: list[list[str]] = []
    for number, line in enumerate(lines(path), 1):
        line = line.rstrip("\r\n")
        if not line.strip():
            if rows:
                yield _sentence(rows)
            rows = []
        elif not line.startswith("#"):
            cells = line.split("\t")
            if len(cells) != 10:
                raise CorpusError(
                    f"{path}, line {number}: {line[:60]!r} has {len(cells)} column{'s'[: len(cells) != 1]}.",
                    "A CoNLL-U word has 10 columns with tabs between them.",
                    "Correct that line.",
                )
            if not re.fullmatch(r"[0-9]+([-.][0-9]+)?", cells[0]):
                known = "An id is a number, a range such as 3-4, or an empty node such as 8.1."
                raise CorpusError(
                    f"{path}, line {number}: {cells[0]!r} is not a word's id.", known, "Correct that line."
                )
            if cells[0].isdigit():
                if empty := [name for name, i in READ.items() if not cells[i]]:
                    known = "No column of a CoNLL-U word is empty: what is not known is '_'."
                    raise CorpusError(f"{path}, line {number}: {empty[0]} is empty.", known, "Correct that line.")
                if not re.fullmatch(r"_|[^=|]+=[^=|]+(\|[^=|]+=[^=|]+)*", cells[READ["FEATS"]]):
                    given = f"{path}, line {number}: {cells[READ['FEATS']][:60]!r} are no features."
                    known = "Features are written Name=Value with '|' between them, and '_' where there are none."
                    raise CorpusError(given, known, "Correct that line.")
                if not UNSHOWN.isdisjoint(cells[READ["FEATS"]]):
                    given = f"{path}, line {number}: {cells[READ['FEATS']][:60]!r} holds a control character."
                    raise CorpusError(given, "Features name label columns, which pages show.", "Correct that line.")
                rows.append(cells)
    if rows:
        yield _sentence(rows)


def _sentence(rows: list[list[str]]) -> Paragraph:
    def column(i: int) -> list[str | None]:
        return [None if row[i] == "_" else row[i] for row in rows]

    labels = {"pos": column(READ["UPOS"]), "tag": column(READ["XPOS"]), "dep": column(READ["DEPREL"])}
    labels[MORPH] = column(READ["FEATS"])
    for i, bundle in enumerate(labels[MORPH]):
        for feature in bundle.split("|") if bundle else ():
            name, _, value = feature.partition("=")
            labels.setdefault(f"{MORPH}.{name}", [None] * len(rows))[i] = value
    return Paragraph([row[READ["FORM"]] for row in rows], labels)


_RULES = (
    "Words are split by the basic_english rules and lower-cased; empty lines are dropped and there is no "
    "end-of-line token."
)

WIKITEXT = Reader(
    "wikitext",
    {s: (f"{s}.txt", f"{s}.tokens", f"wiki.{s}.tokens", f"wiki.{s}.raw") for s in SPLITS},
    (),
    frozenset((UNKNOWN,)),
    (_RULES,),
    (),
    _english,
)
CONLLU = Reader(
    "conllu",
    {
        "train": ("train.conllu", "*[-_.]train.conllu"),
        "valid": ("valid.conllu", "dev.conllu", "*[-_.]dev.conllu", "*[-_.]valid.conllu"),
        "test": ("test.conllu", "*[-_.]test.conllu"),
    },
    ("pos", "tag", "dep", MORPH),
    frozenset(),
    ("The treebank's own words, lower-cased; ranges of multi-word tokens and empty nodes are left out.",),
    ("Part of speech (UPOS), fine-grained tag (XPOS), relation and morphology (FEATS) are the treebank's.",),
    _conllu,
)
PLAIN = Reader("plain", {s: (f"{s}.txt",) for s in SPLITS}, (), frozenset(), (_RULES,), (), _english)

READERS = (WIKITEXT, CONLLU, PLAIN)


def reader(folder: Path, name: str | None = None) -> Reader:
    """The reader of that name, or the one that suits the folder's files; raises CorpusError for an unknown name.

    Without a name: *.conllu files are a treebank; text files are WikiText where the first 2^20 characters of train
    hold an <unk>, an @-@, @,@ or @.@, or a ` = Heading = ` line; else they are plain.
    """
    if name is not None:
        return _named(name)
    if folder.is_dir() and any(folder.glob("*.conllu")):
        return CONLLU
    return _suits(WIKITEXT.find(folder)["train"])


def _named(name: str) -> Reader:
    for known in READERS:
        if known.name == name:
            return known
    raise CorpusError(
        f"{name!r} is not a reader.", f"Readers are {', '.join(r.name for r in READERS)}.", "Use one of them."
    )


def _suits(train: Path | DatasetTexts) -> Reader:
    start = ""
    for line in lines(train):
        start += line
        if len(start) >= LINE:
            break
    return WIKITEXT if re.search(r"<unk>|@[-,.]@|^ ?= .+ =\s*$", start, re.MULTILINE) else PLAIN


@dataclass(frozen=True)
class RawSource:
    """A raw text before it is read: its name, who reads it, a file or rows for each split, and notes on where it is from."""

    name: str
    kind: Reader
    parts: Mapping[str, Path | DatasetTexts]
    notes: tuple[str, ...] = ()


def find_source(where: str | Path, name: str | None = None) -> RawSource:
    """A raw folder or `hf:NAME[:CONFIG]`, with the reader `name` or the one that suits; raises CorpusError."""
    if is_hub(where):
        kind = None if name is None else _named(name)
        found = open_dataset(str(where))
        return RawSource(found.name, kind or _suits(found.rows["train"]), found.rows, found.notes)
    folder = Path(where)
    kind = reader(folder, name)
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
    if is_generated(where):
        return generate(where)
    if is_hub(where):
        return read(where, name)
    folder = Path(where)
    if name is None and (folder / "corpus.json").is_file():
        return Corpus.load(folder)
    return read(folder, name)


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
    seen = {name: arrays.counts(split.tokens, len(corpus.vocabulary)) for name, split in corpus.splits.items()}
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
            train = arrays.counts(corpus.splits["train"].labels[column], len(classes))
            here = arrays.counts(split.labels[column], len(classes))
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
