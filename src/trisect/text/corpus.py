"""Corpus: token ids, aligned labels, splits and a fingerprint; windows addressed by training step."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from trisect.core.errors import CorpusError, DamagedFileError
from trisect.core.files import Json, as_record, canonical, digest, read_json, replace_file, safe_join, write_json
from trisect.core.spec import Text
from trisect.text.lines import SPLITS, UNKNOWN, XML_FORBIDDEN

CHUNK = 1 << 22


class GrowingArray:
    """An integer array that only grows, in an anonymous temporary file."""

    def __init__(self, dtype: npt.DTypeLike, folder: Path | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self._length = 0
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by `finish`, or with self
        except OSError as error:
            raise self._full(error) from error
        weakref.finalize(self, _close, self._file)

    def __len__(self) -> int:
        return self._length

    def append(self, values: npt.ArrayLike) -> None:
        """Append values; raises CorpusError if the temporary folder is full."""
        block = np.asarray(values, self.dtype)
        try:
            self._file.write(block.tobytes())
        except OSError as error:
            raise self._full(error) from error
        self._length += len(block)

    def finish(self) -> np.ndarray:
        """The array, read-only and mapped; nothing can be added afterwards. Raises CorpusError as `append`."""
        try:
            with self._file as file:
                file.flush()
                if not self._length:
                    return np.zeros(0, self.dtype)
                return np.memmap(file, self.dtype, "r", shape=(self._length,))
        except OSError as error:
            raise self._full(error) from error

    def _full(self, error: OSError) -> CorpusError:
        problem = f"A text of more than {self._length:,} tokens could not be kept while it was read."
        reason = f"The temporary folder {tempfile.gettempdir()} says: {error}"
        return CorpusError(problem, reason, "Free some space there, or name a roomier folder in the variable TMPDIR.")


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # on a full disk what is still to be written fails once more
        file.close()


def _chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array in pieces, to limit memory."""
    return (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))


def counts(array: np.ndarray, classes: int) -> np.ndarray:
    """Counts of 0..classes-1, without negative entries. Shape [classes]."""
    total = np.zeros(classes, np.int64)
    for piece in _chunks(array):
        total += np.bincount(piece[piece >= 0], minlength=classes)
    return total


def checksum(array: np.ndarray) -> str:
    """BLAKE2b of the array's values (little-endian, in its own width), 16 bytes in hex."""
    state = hashlib.blake2b(digest_size=16)
    for piece in _chunks(array):
        state.update(np.ascontiguousarray(piece, piece.dtype.newbyteorder("<")).data)
    return state.hexdigest()


def _write_array(path: Path, array: np.ndarray) -> None:
    """Write a .npy file atomically, from the mapping if there is one."""

    def write(scratch: Path) -> None:
        with scratch.open("wb") as handle:
            np.save(handle, array, allow_pickle=False)

    replace_file(path, write)


def _read_array(path: Path, dtype: npt.DTypeLike, length: int, todo: str) -> np.ndarray:
    """Map a .npy file; raises DamagedFileError if it is missing or has another type or length."""
    try:
        array = np.load(path, mmap_mode="r" if length else None, allow_pickle=False)
    except Exception as error:  # NumPy reads the header as Python, which fails in many ways
        raise DamagedFileError(f"{path} cannot be read.", f"{type(error).__name__}: {error}", todo) from error
    if array.dtype != np.dtype(dtype) or array.shape != (length,):
        reason = f"It holds {array.dtype} of shape {array.shape}, not {np.dtype(dtype)} of shape ({length},)."
        raise DamagedFileError(f"{path} is damaged.", reason, todo)
    return array


FORMAT = 2  # of corpus.json


def is_corpus(folder: Path) -> bool:
    """Whether a folder has a stored corpus."""
    return (folder / "corpus.json").is_file()


@dataclass(frozen=True)
class Documents:
    """Consecutive documents of `length` tokens, of which only the last token is predicted.

    `own` are the label columns that speak of the word that is read; all others speak of the next word.
    """

    length: int
    own: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Split:
    """Token ids [n], and for each label column a class per token [n] (−1: none); `documents` is None for running text."""

    tokens: np.ndarray
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    documents: Documents | None = None

    def first(self, n: int | None) -> Split:
        """The first `n` tokens (None: all), without copying."""
        return Split(self.tokens[:n], {name: ids[:n] for name, ids in self.labels.items()}, self.documents)


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """A tokenized text. `labels` maps each column to its class names, `notes` are sentences for the report.

    The fingerprint (16 hex digits) covers ids, labels, vocabulary and class names; not name, notes or folder.
    Arrays may be mapped files, so that a corpus larger than memory works. Make one with `Corpus.make`.
    """

    name: str
    vocabulary: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]]
    splits: Mapping[str, Split]
    notes: tuple[str, ...]
    fingerprint: str

    @classmethod
    def make(
        cls,
        name: str,
        vocabulary: tuple[str, ...],
        labels: Mapping[str, tuple[str, ...]],
        splits: Mapping[str, Split],
        notes: tuple[str, ...] = (),
    ) -> Corpus:
        """Make a corpus with its fingerprint; raises CorpusError for a split of fewer than two tokens, or an unprintable column."""
        _check_columns(name, labels)
        for split in SPLITS:
            if split == "test" and split not in splits:
                continue
            n = len(splits[split].tokens) if split in splits else 0
            if n < 2:
                sizes = ", ".join(f"{s} ({len(splits[s].tokens)} tokens)" for s in splits) or "none"
                reason = f"Its splits are {sizes}."
                todo = "Give a text with at least two tokens in train and in valid (and in test, if there is one)."
                raise CorpusError(f"The {split} split of '{name}' has {_tokens(n)}.", reason, todo)
        for part in splits.values():
            assert part.tokens.dtype == np.int32
            assert all(len(v) == len(part.tokens) and v.dtype == np.int16 for v in part.labels.values())
            assert set(part.labels) == set(labels)
        assert len({part.documents for part in splits.values()}) == 1
        splits = {split: splits[split] for split in SPLITS if split in splits}
        mark = _fingerprint(vocabulary, labels, _checksums(splits), splits["train"].documents)
        return cls(name, tuple(vocabulary), dict(labels), splits, tuple(notes), mark)

    @property
    def documents(self) -> Documents | None:
        """The text's documents; None for running text."""
        return self.splits["train"].documents

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(split.tokens):,}" for name, split in self.splits.items())
        labels = ", ".join(self.labels) or "no labels"
        return f"<Corpus {self.name}: {sizes} tokens, {len(self.vocabulary):,} types, {labels}, {self.fingerprint}>"

    def _repr_html_(self) -> str:
        """Splits, labels and notes, for a notebook."""
        rows = "".join(f"<tr><th>{s}</th><td>{len(part.tokens):,} tokens</td></tr>" for s, part in self.splits.items())
        rows += f"<tr><th>types</th><td>{len(self.vocabulary):,}</td></tr>"
        for column, classes in self.labels.items():
            shown = ", ".join(classes[:12]) + (f" and {len(classes) - 12} more" if len(classes) > 12 else "")
            rows += f"<tr><th>{escape(column)}</th><td style='text-align: left'>{escape(shown)}</td></tr>"
        head = f"<b>{escape(self.name)}</b>, fingerprint {self.fingerprint}"
        return f"<div>{head}<table>{rows}</table>{'<br>'.join(map(escape, self.notes))}</div>"

    def cut(self, text: Text) -> Corpus:
        """The text cut for an experiment: a number of tokens per split, with rare types replaced by <unk>.

        The vocabulary is the cut train split's types with at least `min_count` occurrences, by falling count, then
        by token. Everything else becomes <unk>, also types that only valid or test have; labels stay as they are.
        """
        budget = {"train": text.train_tokens, "valid": text.valid_tokens}
        parts = {name: split.first(budget.get(name)) for name, split in self.splits.items()}
        size = len(self.vocabulary)
        seen = {name: counts(split.tokens, size) for name, split in parts.items()}
        train = seen["train"]
        keep = train >= text.min_count
        frequencies = {self.vocabulary[i]: int(train[i]) for i in np.flatnonzero(keep)}
        if ((sum(seen.values()) > 0) & ~keep).any():
            frequencies[UNKNOWN] = frequencies.get(UNKNOWN, 0) + int(train[~keep].sum())
        vocabulary = tuple(sorted(frequencies, key=lambda word: (-frequencies[word], word)))
        ids = {word: i for i, word in enumerate(vocabulary)}
        new = [ids[w] if keep[i] else ids.get(UNKNOWN, -1) for i, w in enumerate(self.vocabulary)]
        lookup = np.array(new, np.int32)
        for name, split in parts.items():
            if len(split.tokens) <= CHUNK:  # in memory when it is short
                parts[name] = replace(split, tokens=lookup[split.tokens])
                continue
            tokens = GrowingArray(np.int32)
            for piece in _chunks(split.tokens):
                tokens.append(lookup[piece])
            parts[name] = replace(split, tokens=tokens.finish())
        notes = []
        for name, limit in budget.items():
            full = len(self.splits[name].tokens)
            if limit is not None and limit < full:
                notes.append(f"Only the first {limit:,} of {full:,} {name} tokens are used.")
        if text.min_count > 1:
            rare = f"Types seen fewer than {text.min_count} times in train ({100 * train[~keep].sum() / train.sum():.1f}\u00a0%"
            notes.append(f"{rare} of its tokens) become {UNKNOWN}.")
        return Corpus.make(self.name, vocabulary, self.labels, parts, (*self.notes, *notes))

    def column(self, label: str) -> tuple[str, ...]:
        """The class names of a label column; raises CorpusError if it is missing or has fewer than two in train."""
        if label not in self.labels:
            reason = f"It has {', '.join(sorted(self.labels))}." if self.labels else "It has no label columns at all."
            todo = "Use a column that there is, or make some with 'trisect corpus annotate'."
            raise CorpusError(f"The corpus '{self.name}' has no label column '{label}'.", reason, todo)
        names = self.labels[label]
        present = np.flatnonzero(counts(self.splits["train"].labels[label], len(names)))
        if len(present) < 2:
            reason = f"Only {names[present[0]]!r} occurs." if len(present) else "No class occurs."
            problem = f"The label column '{label}' has fewer than two classes in the train split of '{self.name}'."
            raise CorpusError(
                problem, reason, "Use a column with at least two classes: there is nothing to distinguish."
            )
        return names

    def save(self, folder: Path) -> Path:
        """Write the corpus folder, arrays first and `corpus.json` last, so that an incomplete one is never read."""
        folder = Path(folder)
        with suppress(OSError):  # a place that cannot be written is named by the first array's own error
            (folder / "corpus.json").unlink()
        for split, part in self.splits.items():
            _write_array(safe_join(folder, f"{split}.npy"), part.tokens)
            for number, label in enumerate(sorted(part.labels), start=1):
                _write_array(_column_path(folder, split, number), part.labels[label])
        body = {
            "format": FORMAT,
            "name": self.name,
            "vocabulary": list(self.vocabulary),
            "labels": {name: list(classes) for name, classes in self.labels.items()},
            "lengths": {name: len(split.tokens) for name, split in self.splits.items()},
            "checksums": _checksums(self.splits),
            "notes": list(self.notes),
            "fingerprint": self.fingerprint,
        } | _documents_data(self.documents)
        write_json(folder / "corpus.json", body)
        return folder

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        """Map a corpus folder and check all bytes once; raises CorpusError or DamagedFileError."""
        folder = Path(folder)
        path = folder / "corpus.json"
        if not path.is_file():
            reason = "It holds no corpus.json." if folder.is_dir() else "There is no such folder."
            raise CorpusError(f"{folder} is not a corpus folder.", reason, "Give a folder that 'trisect corpus' wrote.")
        todo = f"Delete {folder} and read or annotate the text again."
        content = read_json(path, todo)
        if content.get("format") != FORMAT:
            reason = f"This version reads format {FORMAT}."
            raise DamagedFileError(f"{path} has format {content.get('format')}.", reason, todo)
        body = as_record(content, path, todo, CorpusFile)
        _check_columns(body.name, body.labels)
        splits, paths = {}, {}
        for split in (s for s in SPLITS if s in body.lengths):
            n, paths[f"{split}.npy"] = body.lengths[split], safe_join(folder, f"{split}.npy")
            tokens, labels = _read_array(paths[f"{split}.npy"], np.int32, n, todo), {}
            for number, label in enumerate(sorted(body.labels), start=1):
                paths[f"{split}.{label}.npy"] = column = _column_path(folder, split, number)
                labels[label] = _read_array(column, np.int16, n, todo)
            splits[split] = Split(tokens, labels, body.documents)
        sums = _checksums(splits)
        for array, value in body.checksums.items():
            if sums.get(array) != value:
                reason = "Its content does not match its checksum."
                raise DamagedFileError(f"{paths.get(array, path)} is damaged.", reason, todo)
        mark = _fingerprint(body.vocabulary, body.labels, sums, body.documents)
        return cls(body.name, body.vocabulary, body.labels, splits, body.notes, mark)


@dataclass(frozen=True)
class CorpusFile:
    """Content of corpus.json: names, classes of each label column, and length and checksum of every array."""

    format: int
    name: str
    vocabulary: tuple[str, ...]
    labels: dict[str, tuple[str, ...]]
    lengths: dict[str, int]
    checksums: dict[str, str]
    notes: tuple[str, ...]
    fingerprint: str = ""
    documents: Documents | None = None


class WindowBatch(NamedTuple):
    """One window of every column. All arrays are int64 [B T]; targets and labels belong to the next word, but for labels
    that speak of the word that is read. `scored` [B T] marks targets to be predicted (None: all), `starts` [B] rows' places.
    """

    inputs: np.ndarray
    targets: np.ndarray
    labels: dict[str, np.ndarray]
    starts: np.ndarray
    scored: np.ndarray | None = None


def steps(split: Split, columns: int, window: int) -> int:
    """The number of windows of a split: rows less one, over `window`, rounded up; raises CorpusError for fewer than two rows."""
    return -(-(_rows(split, columns) - 1) // window)


def check_windows(corpus: Corpus, window: int) -> None:
    """Raise CorpusError if windows would cut documents, or join unrelated ones."""
    documents = corpus.documents
    if documents is not None and window != documents.length:
        reason = f"A document of '{corpus.name}' has {documents.length} tokens, and a window is one document."
        raise CorpusError(f"The window is {window} tokens.", reason, f"Use a window of {documents.length}.")


def batch(split: Split, columns: int, window: int, step: int, labels: tuple[str, ...] = ()) -> WindowBatch:
    """Window number `step` of the split in `columns` columns (definitions A1); the last one may be shorter.

    Column b holds the tokens b*rows .. (b+1)*rows - 1, whole documents where the text has such.
    """
    rows, start = _rows(split, columns), step * window
    stop = min(start + window, rows - 1)
    if not 0 <= start < stop:
        raise IndexError(f"step {step} of {steps(split, columns, window)}")

    def rows_of(array: np.ndarray, shift: int) -> np.ndarray:
        grid = array[: columns * rows].reshape(columns, rows)
        return grid[:, start + shift : stop + shift].astype(np.int64)

    documents = split.documents
    of_word = () if documents is None else documents.own
    spoken = {name: rows_of(split.labels[name], 0 if name in of_word else 1) for name in labels}
    inputs, targets = rows_of(split.tokens, 0), rows_of(split.tokens, 1)
    windows = WindowBatch(inputs, targets, spoken, np.arange(columns) * rows + start)
    if documents is None:
        return windows
    last = np.arange(start + 1, stop + 1) % documents.length == documents.length - 1
    return windows._replace(scored=np.broadcast_to(last, targets.shape))


def sample_steps(split: Split, columns: int, window: int, tokens: int | None) -> tuple[int, ...]:
    """A fixed sample of whole windows, evenly spread over the split, of about `tokens` tokens; all steps for None."""
    full = (_rows(split, columns) - 1) // window
    if tokens is None or not full:
        return tuple(range(steps(split, columns, window)))
    n = min(full, max(1, round(tokens / (columns * window))))
    return tuple((2 * i + 1) * full // (2 * n) for i in range(n))


def unigram_loss(corpus: Corpus, targets: np.ndarray) -> float:
    """Nats per predicted token under the train split's word frequencies, with one added to each count."""
    size, documents = len(corpus.vocabulary), corpus.documents
    tokens = corpus.splits["train"].tokens
    if documents is not None:
        tokens = tokens[documents.length - 1 :: documents.length]
    train = counts(tokens, size) + 1
    tally = counts(targets, size)
    return float(-(tally * np.log(train / train.sum())).sum() / tally.sum())


def _rows(split: Split, columns: int) -> int:
    n, documents = len(split.tokens), split.documents
    least = 2 if documents is None else documents.length
    content = "a word and a next word" if documents is None else f"a document of {least}"
    if n < columns * least:
        reason = f"{columns} columns need at least {columns * least} tokens: {content} in each."
        raise CorpusError(f"A split of {_tokens(n)} is too short.", reason, "Use a longer text or fewer columns.")
    return n // columns if documents is None else n // columns // least * least


def _tokens(n: int) -> str:
    return "1 token" if n == 1 else f"{n:,} tokens"


def _check_columns(corpus: str, labels: Mapping[str, tuple[str, ...]]) -> None:
    for label in labels:
        if not XML_FORBIDDEN.isdisjoint(label) or any("\ud800" <= c <= "\udfff" for c in label):
            problem = f"The corpus '{corpus}' has a label column {label!r}."
            raise CorpusError(problem, "Control characters cannot be shown on a page.", "Rename that column.")


def _column_path(folder: Path, split: str, number: int) -> Path:
    """The file of a label column of a split; `number` is the label's rank by name, from 1."""
    return safe_join(folder, f"{split}.column-{number}.npy")


def _checksums(splits: Mapping[str, Split]) -> dict[str, str]:
    """By split, and split and label, from which fingerprints are made."""
    sums = {}
    for name, split in splits.items():
        sums[f"{name}.npy"] = checksum(split.tokens)
        sums |= {f"{name}.{label}.npy": checksum(ids) for label, ids in split.labels.items()}
    return sums


def _fingerprint(
    vocabulary: tuple[str, ...],
    labels: Mapping[str, tuple[str, ...]],
    checksums: Mapping[str, str],
    documents: Documents | None,
) -> str:
    content = {"vocabulary": list(vocabulary), "labels": {k: list(v) for k, v in labels.items()}}
    return digest(canonical(content | {"checksums": dict(checksums)} | _documents_data(documents)), 8)


def _documents_data(documents: Documents | None) -> dict[str, Json]:
    """Documents as JSON-ready data; empty for running text."""
    return {} if documents is None else {"documents": {"length": documents.length, "own": list(documents.own)}}
