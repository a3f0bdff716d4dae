"""Label a raw text with a spaCy pipeline: one label per token and column, in one or several processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from trisect.core.errors import CorpusError, is_installed, shorten
from trisect.core.files import Json, digest_file
from trisect.core.printable import percent
from trisect.text import sources
from trisect.text.corpus import Corpus, GrowingArray, Split, counts
from trisect.text.hub import DatasetTexts
from trisect.text.readers import Reader, SplitText

if TYPE_CHECKING:
    from spacy.language import Language


COLUMNS = {"pos": "part of speech", "tag": "fine-grained tag", "dep": "dependency relation", "ent": "entity type"}
REQUIREMENTS = {
    "pos": "a morphologizer (or a tagger with an attribute_ruler)",
    "tag": "a tagger",
    "dep": "a parser",
    "ent": "a named entity recogniser (or an entity_ruler)",
}
NO_ENTITY = "O"  # the class of a word outside every entity
BATCH = 32  # paragraphs that the pipeline is shown at once
PIECE = 20_000  # words that a process labels at once: about two seconds' work
MAX_WORDS = 1_000  # words of a paragraph shown to the pipeline at once; a longer one is shown in pieces

AnnotationProgress = Callable[[int, int], None]
# per column its classes in the order of first use, and a class number for each word
PieceLabels = dict[str, tuple[list[str], list[int]]]


@dataclass(frozen=True)
class _PipelineFacts:
    """A pipeline's exact name, a digest of its files, its used columns, and why others are left out."""

    pipeline: str
    digest: str
    columns: tuple[str, ...]
    missing: Mapping[str, str]


def check_settings(placeholder: str, workers: int | None, columns: Sequence[str] | None) -> None:
    """Raise CorpusError if spaCy is not installed, or settings are invalid."""
    if not is_installed("spacy"):
        problem, reason = "spaCy labels are asked for, but spaCy is not there.", "Annotating is an optional extra."
        raise CorpusError(problem, reason, "Install it: pip install 'trisect[annotate]'")
    if len(placeholder.split()) != 1 or placeholder.strip() != placeholder:
        reason = "It is shown to the tagger in place of <unk>: one word, without white space."
        raise CorpusError(f"The placeholder is {shorten(placeholder)}.", reason, "Use for example Unk.")
    if workers is not None and workers < 1:
        raise CorpusError(f"{workers} workers were asked for.", "One process at least is needed.", "Give 1 or more.")
    if columns is None:
        return
    if again := next((c for i, c in enumerate(columns) if c in columns[:i]), None):
        reason = f"columns are {', '.join(map(repr, columns))}."
        raise CorpusError(f"columns was given {shorten(again)} twice.", reason, "Give each once.")
    unknown = [c for c in columns if c not in COLUMNS]
    if unknown or not columns:
        problem = f"{shorten(unknown[0])} is no column of spaCy." if columns else "No columns were asked for."
        raise CorpusError(problem, f"Columns are {', '.join(COLUMNS)}.", "Ask for some of them.")


@lru_cache(maxsize=1)
def _open_pipeline(name: str) -> Language:
    """Load the pipeline once per process; raises CorpusError if it cannot be loaded."""
    try:
        import spacy

        return spacy.load(name)
    except Exception as error:  # a pipeline is foreign code and foreign files: anything may go wrong in it
        reason = f"spaCy says: {type(error).__name__}: {error}"
        todo = "Give a folder that spaCy wrote, or install the pipeline: python -m spacy download en_core_web_sm"
        raise CorpusError(f"The spaCy pipeline '{name}' cannot be loaded.", reason, todo) from error


def describe_pipeline(name: str, columns: Sequence[str] | None = None) -> _PipelineFacts:
    """A pipeline's metadata for `columns` (None: pos and dep, and tag and ent if set); raises CorpusError for an unset one."""
    required, extra = (("pos", "dep"), ("tag", "ent")) if columns is None else (columns, ())
    _open_pipeline.cache_clear()  # its files may be others by now
    nlp = _open_pipeline(name)
    metas = [nlp.get_pipe_meta(pipe) for pipe in nlp.pipe_names]
    sets = {attribute for meta in metas for attribute in meta.assigns}
    able = {
        "pos": "token.pos" in sets or any(meta.factory == "attribute_ruler" for meta in metas),
        "tag": "token.tag" in sets,
        "dep": "token.dep" in sets,
        "ent": bool(sets & {"token.ent_type", "doc.ents"}),
    }
    reasons = {
        c: f"Its parts are {', '.join(nlp.pipe_names) or 'none'}; '{c}' needs {need}."
        for c, need in REQUIREMENTS.items()
    }
    for column in required:
        if not able[column]:
            problem = f"The spaCy pipeline '{name}' sets no {COLUMNS[column]}, so there can be no column '{column}'."
            others = ",".join(c for c in required if able[c])
            todo = f"Use another pipeline{f', or ask for {others} alone' if others else ''}."
            raise CorpusError(problem, reasons[column], todo)
    exact = f"{nlp.meta['lang']}_{nlp.meta['name']} {nlp.meta['version']} (spaCy {version('spacy')})"
    state, folder = hashlib.blake2b(exact.encode(), digest_size=16), Path(nlp.path or "")
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        state.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return _PipelineFacts(
        exact,
        state.hexdigest(),
        tuple(c for c in COLUMNS if c in required or (c in extra and able[c])),
        {c: reasons[c] for c in extra if not able[c]},
    )


def label_inputs(raw: sources.RawSource, placeholder: str, about: _PipelineFacts) -> dict[str, Json]:
    """Everything that a text's labels depend on."""
    checksums = {s: p.checksum() if isinstance(p, DatasetTexts) else digest_file(p) for s, p in raw.parts.items()}
    return {
        "format": 1,
        "source": dict(checksums),
        "reader": raw.kind.name,
        "placeholder": placeholder,
        "columns": list(about.columns),
        "pipeline": about.pipeline,
        "pipeline_digest": about.digest,
        "sizes": [PIECE, MAX_WORDS],
    }


def label_text(
    raw: sources.RawSource,
    pipeline: str,
    about: _PipelineFacts,
    placeholder: str,
    workers: int,
    progress: AnnotationProgress | None = None,
) -> Corpus:
    """The text with labels beside its tokens (−1 for hidden words and those without a label); raises CorpusError."""
    text, kind = sources.read(raw), raw.kind
    total, done = sum(len(s.tokens) for s in text.splits.values()), 0
    hidden = np.array([word in kind.hidden for word in text.vocabulary])
    classes = {column: sources.Ids(2**15 - 1) for column in about.columns}
    pieces = (piece for part in raw.parts.values() for piece in _pieces(kind, part, placeholder))
    labelled = _label_pieces(pipeline, pieces, about.columns, workers)
    splits = {}
    for name, split in text.splits.items():
        grown = {column: GrowingArray(np.int16) for column in about.columns}
        while (start := len(grown[about.columns[0]])) < len(split.tokens):
            of_piece = next(labelled)
            for column in about.columns:
                names, numbers = of_piece[column]
                ids, lookup = np.array(numbers), np.array([classes[column][c] if c else -1 for c in names], np.int16)
                grown[column].append(np.where(hidden[split.tokens[start : start + len(ids)]], -1, lookup[ids]))
            done += len(grown[about.columns[0]]) - start
            if progress is not None:
                progress(done, total)
        splits[name] = Split(split.tokens, {column: ids.finish() for column, ids in grown.items()})
    labels = {column: ids.names for column, ids in classes.items()}
    for column in about.columns:
        if not labels[column]:
            reason, todo = f"The column '{column}' would be empty.", "Use another pipeline, or other columns."
            raise CorpusError(f"The spaCy pipeline gave no token a {COLUMNS[column]}.", reason, todo)
    *first, last = (COLUMNS[c] for c in about.columns)
    label_names = " and ".join([*filter(None, [", ".join(first)]), last])
    notes = [*raw.notes, *kind.notes]
    notes.append(
        f"The {label_names} of each token is that of the spaCy pipeline {about.pipeline}, shown the tokens with their case."
    )
    if "ent" in about.columns:
        notes.append(f"A token outside every entity has the entity type '{NO_ENTITY}'.")
    notes += [
        f"There is no column '{c}': the pipeline sets no {COLUMNS[c]}. {reason}" for c, reason in about.missing.items()
    ]
    for word in sorted(kind.hidden & set(text.vocabulary)):
        train = text.splits["train"].tokens
        share = percent(counts(train, len(text.vocabulary))[text.vocabulary.index(word)] / len(train), 1)
        notes.append(f"{word} ({share} of train) was shown to the tagger as '{placeholder}' and carries no label.")
    return Corpus.make(text.name, text.vocabulary, labels, splits, tuple(notes))


def _pieces(kind: Reader, part: SplitText, placeholder: str) -> Iterator[list[list[str]]]:
    """A split in pieces of about 20,000 words, each a list of texts; the cuts depend on the text alone."""
    texts, words = list[list[str]](), 0
    for paragraph in kind.paragraphs(part):
        shown = [placeholder if word.lower() in kind.hidden else word for word in paragraph.words]
        texts += [shown[i : i + MAX_WORDS] for i in range(0, len(shown), MAX_WORDS)]
        words += len(shown)
        if words >= PIECE:
            yield texts
            texts, words = [], 0
    if texts:
        yield texts


def _label_pieces(
    pipeline: str, pieces: Iterator[list[list[str]]], columns: Sequence[str], workers: int
) -> Iterator[PieceLabels]:
    """The labels of each piece, in order; raises CorpusError if the pipeline fails.

    spaCy's own `n_process` is not used: where a process of it dies or raises, or this one is interrupted, it waits for ever.
    """
    if workers == 1:
        for texts in pieces:
            yield _run_pipeline(lambda texts=texts: _label(pipeline, texts, columns))
        return
    with ProcessPoolExecutor(workers, initializer=_start_worker) as pool:
        try:
            waiting = deque()  # so many that no process waits, and the text is never in memory as a whole
            for texts in pieces:
                waiting.append(pool.submit(_label, pipeline, texts, columns))
                if len(waiting) > 2 * workers:
                    yield _run_pipeline(waiting.popleft().result)
            while waiting:
                yield _run_pipeline(waiting.popleft().result)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run_pipeline(call: Callable[[], PieceLabels]) -> PieceLabels:
    try:
        return call()
    except CorpusError:
        raise
    except Exception as error:  # foreign code, maybe in another process, which may have died
        reason = f"It says: {type(error).__name__}: {error}"
        raise CorpusError("The spaCy pipeline did not label the text.", reason, "Use another pipeline.") from error


def _start_worker() -> None:
    """Set up a new process: it ends with its parent, ignores interruptions, and computes in one thread."""
    caller = multiprocessing.parent_process()
    assert caller is not None

    def leave() -> None:
        caller.join()
        os._exit(1)

    Thread(target=leave, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "torch" in sys.modules:  # threads of the caller's are not there after a fork, and would be waited for
        sys.modules["torch"].set_num_threads(1)


def _label(pipeline: str, texts: Sequence[Sequence[str]], columns: Sequence[str]) -> PieceLabels:
    """Classes and ids of each column for tokenized words: '' for a word left out, for `ent` the entity around it or 'O'."""
    from spacy.tokens import Doc, Token

    read: dict[str, Callable[[Token], str]] = {
        "pos": lambda token: token.pos_,
        "tag": lambda token: token.tag_,
        "dep": lambda token: token.dep_,
        "ent": lambda token: token.ent_type_ or NO_ENTITY,
    }
    nlp = _open_pipeline(pipeline)
    numbers: dict[str, dict[str, int]] = {column: {} for column in columns}
    ids: dict[str, list[int]] = {column: [] for column in columns}
    docs = (Doc(nlp.vocab, words=list(words)) for words in texts)
    for words, doc in zip(texts, nlp.pipe(docs, batch_size=BATCH), strict=True):
        assert len(doc) == len(words), "a pipeline must not split or join ready-made words"
        for column in columns:
            classes = numbers[column]
            ids[column] += [classes.setdefault(name, len(classes)) for name in map(read[column], doc)]
    return {c: (list(numbers[c]), ids[c]) for c in columns}
