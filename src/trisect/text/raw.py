"""Raw texts: paragraphs and sentences of a corpus or a file, for models with a tokenizer of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from trisect.core.errors import CorpusError, unknown
from trisect.core.files import digest
from trisect.core.subject import TextOrPair, Texts
from trisect.text.corpus import SPLITS, Corpus
from trisect.text.hub import DatasetTexts, is_hub
from trisect.text.sources import find_source, no_reader, open_corpus
from trisect.text.worlds import is_generated

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
