"""Label a raw text with spaCy, one label per token, by several processes, in shards that survive a stop."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trisect.core.errors import CorpusError, DamagedFileError
from trisect.core.extras import there
from trisect.core.files import digest_file, read_record
from trisect.core.json_text import Json
from trisect.core.machine import Machine
from trisect.core.percent import percent
from trisect.engine.drive import JobOrder, drive
from trisect.engine.landing import land, read_content
from trisect.engine.protocol import Engine, Files
from trisect.engine.start import open_engine, ray_place
from trisect.lab.run_folder import RunFolder, check_place
from trisect.text import arrays, sources
from trisect.text.annotation_folder import check_folder, finished, land_corpus, prepare, shards_of
from trisect.text.corpus import Corpus, Split
from trisect.text.hub import DatasetTexts
from trisect.text.readers.base import Reader
from trisect.text.tagger import COLUMNS, OUTSIDE, Pipeline, PipelineFacts, Shard, ShardLabels, describe, tag

SHARD = 20_000  # words a shard: about two seconds' work, which is what a kill can lose per process
NEEDED, EXTRA = ("pos", "dep"), ("tag", "ent")  # the columns that must be, and those that are used where there are
LONGEST = 1_000  # words shown to the pipeline at once; a longer paragraph is shown in pieces

THIS = Machine()

AnnotationProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Shard:
    path: Path
    texts: Sequence[Sequence[str]]
    tokens: int


def annotate(
    source: str | Path,
    pipeline: str | Path,
    out: str | Path,
    reader: str | None = None,
    placeholder: str = "Unk",
    workers: int | None = None,
    progress: AnnotationProgress | None = None,
    columns: Sequence[str] | None = None,
    machine: Machine = THIS,
) -> Corpus:
    """Label the raw text `source` (a folder, or hf:NAME[:CONFIG]) with a spaCy pipeline into the corpus folder `out`.

    Called again it goes on where it stopped. Words are split first and tagged as they stand, with their case; `<unk>`
    is shown as `placeholder` and gets no label (science A1). `workers` processes (null: one a core) tag shards of
    20,000 words, on the cluster of `machine` where that names one; `progress` is called with (tokens done, tokens in all).
    `columns` are some of pos, tag, dep, ent; null is pos and dep, and tag and ent where the pipeline sets them (a note
    of the corpus says where it does not). The entity type of a word outside every entity is 'O'. Raises CorpusError
    for a text, a pipeline or a folder that cannot be used.
    """
    check_place(out)
    out = Path(out)
    wanted, extra = (NEEDED, EXTRA) if columns is None else (tuple(columns), ())
    _check(placeholder, workers, wanted)
    check_folder(out)
    raw = sources.find_source(source, reader)
    with RunFolder(out).lock(lambda: check_folder(out), lambda: (out, shards_of(out))):
        RunFolder(out).recover()
        return _annotated(raw, pipeline, out, placeholder, (wanted, extra), workers, progress, machine)


def _annotated(
    raw: sources.RawSource,
    pipeline: str | Path,
    out: Path,
    placeholder: str,
    columns: tuple[tuple[str, ...], tuple[str, ...]],
    workers: int | None,
    progress: AnnotationProgress | None,
    machine: Machine,
) -> Corpus:
    """The annotated corpus in a folder that is locked: the one that lies there finished, or labelled and landed now."""
    kind, files = raw.kind, raw.parts
    crew = workers or min(Machine().cores(), 1 + sum(map(_bytes, files.values())) // (5 * SHARD))
    ray = ray_place(replace(machine, workers=workers), "cpu") if machine.engine == "ray" else None
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trisect-")))
        engine = stack.enter_context(open_engine(0 if machine.engine == "here" else crew, scratch / "jobs", ray))
        sent = Path(pipeline) if ray is not None and Path(pipeline).is_dir() else None
        asked, found = Pipeline(str(pipeline), *columns, sent is not None), list[PipelineFacts]()
        opening = [_Describing(asked, out, found, sent) for _ in range(1 if ray is not None else crew)]
        drive(opening, engine)  # by every worker of this machine: it takes them a while
        about = found[0]
        statement = _statement(kind, files, placeholder, about)
        if (done := finished(out, statement)) is not None:
            return done
        text = sources.read(raw)  # before anything is made in the folder: it may be refused
        prepare(out, statement)
        shards = _shards(kind, files, shards_of(out), placeholder)
        total = sum(len(s.tokens) for s in text.splits.values())
        given = _Given(str(pipeline), sent, about.columns, about.digest if ray is not None else "")
        _tag(engine, given, shards, total, progress, machine.losses)
        notes = (*raw.notes, *kind.notes, *_notes(kind, text, placeholder, about))
        land_corpus(_merge(text, kind, shards_of(out), about.columns, notes), out, statement)
    return Corpus.load(out)


def _bytes(part: Path | DatasetTexts) -> int:
    return part.size() if isinstance(part, DatasetTexts) else part.stat().st_size


def _checksum(part: Path | DatasetTexts) -> str:
    if isinstance(part, DatasetTexts):
        return part.checksum()
    return digest_file(part)


def _check(placeholder: str, workers: int | None, columns: Sequence[str]) -> None:
    if not there("spacy"):
        todo = "Install the extra: pip install 'trisect[annotate]'"
        raise CorpusError(
            "spaCy labels are asked for, but spaCy is not there.", "Annotating is an optional extra.", todo
        )
    if len(placeholder.split()) != 1 or placeholder.strip() != placeholder:
        known = "It is shown to the tagger in place of <unk>: one word, without white space."
        raise CorpusError(f"The placeholder is {placeholder!r}.", known, "Use for example Unk.")
    if workers is not None and workers < 1:
        raise CorpusError(
            f"{workers} workers were asked for.", "At least one process must do the work.", "Give 1 or more."
        )
    if again := next((c for i, c in enumerate(columns) if c in columns[:i]), None):
        known = f"columns are {', '.join(map(repr, columns))}."
        raise CorpusError(f"columns was given {again!r} twice.", known, "Give each once.")
    unknown = [c for c in columns if c not in COLUMNS]
    if unknown or not columns:
        given = f"{unknown[0]!r} is not a column that spaCy gives." if columns else "No columns were asked for."
        raise CorpusError(given, f"Columns are {', '.join(COLUMNS)}.", "Ask for some of them.")


def _statement(
    kind: Reader, files: Mapping[str, Path | DatasetTexts], placeholder: str, about: PipelineFacts
) -> dict[str, Json]:
    """All that the labels depend on; shards and results of another statement are never used as ours."""
    return {
        "format": 1,
        "source": {split: _checksum(part) for split, part in files.items()},
        "reader": kind.name,
        "placeholder": placeholder,
        "columns": list(about.columns),
        "pipeline": about.pipeline,
        "pipeline_digest": about.digest,
        "sizes": [SHARD, LONGEST],
    }


def _shards(kind: Reader, files: Mapping[str, Path | DatasetTexts], folder: Path, placeholder: str) -> Iterator[_Shard]:
    """The text in pieces of about 20,000 words; where they are cut depends on the text alone."""
    for split, part in files.items():
        number, tokens, texts = 0, 0, []
        for paragraph in kind.paragraphs(part):
            words = [placeholder if word.lower() in kind.hidden else word for word in paragraph.words]
            texts += [words[i : i + LONGEST] for i in range(0, len(words), LONGEST)]
            tokens += len(words)
            if tokens >= SHARD:
                yield _Shard(_shard_path(folder, split, number), texts, tokens)
                number, tokens, texts = number + 1, 0, []
        if texts:
            yield _Shard(_shard_path(folder, split, number), texts, tokens)


def _shard_path(folder: Path, split: str, number: int) -> Path:
    return folder / f"{split}-{number:06d}.json"


def _whole(shard: _Shard, columns: Sequence[str]) -> bool:
    """Whether a shard's labels lie there: of every column a class for each of its words."""
    if not shard.path.is_file():
        return False
    try:
        body = read_record(shard.path, "", ShardLabels)
    except DamagedFileError:
        return False
    return all(_covers(body["classes"].get(column), body["ids"].get(column), shard.tokens) for column in columns)


def _covers(classes: object, ids: object, count: int) -> bool:
    if not isinstance(classes, list) or not isinstance(ids, list) or len(ids) != count:
        return False
    known = range(len(classes))
    return all(isinstance(name, str) for name in classes) and all(type(i) is int and i in known for i in ids)


@dataclass(frozen=True, eq=False)
class _Describing:
    """Open the pipeline; what it says of itself lands in `found`."""

    pipeline: Pipeline
    out: Path
    found: list[PipelineFacts]
    sent: Path | None
    title: str = "opening the pipeline"

    def ready(self) -> bool:
        return True

    def order(self) -> JobOrder:
        return JobOrder(describe, self.pipeline, self.out, {} if self.sent is None else {"pipeline": self.sent})

    def land(self, files: Files) -> None:
        for content in files.values():
            body = json.loads(read_content(content))["body"]
            missing = {column: body["missing"][column] for column in COLUMNS if column in body["missing"]}
            self.found.append(PipelineFacts(**body | {"columns": tuple(body["columns"]), "missing": missing}))

    def ended(self) -> None:
        pass


class _Given(NamedTuple):
    """The pipeline as it was given, its folder where that is sent to nodes, what is used of it, and what its digest has to be."""

    pipeline: str
    sent: Path | None
    columns: tuple[str, ...]
    digest: str


@dataclass(frozen=True, eq=False)
class _Tagging:
    """Tag one shard; its labels lie beside the others' when it has ended."""

    shard: _Shard
    given: _Given
    report: Callable[[int], None]

    @property
    def title(self) -> str:
        return f"tagging {self.shard.path.stem}"

    def ready(self) -> bool:
        return True

    def order(self) -> JobOrder:
        name, sent, columns, digest = self.given
        path, texts = self.shard.path, tuple(self.shard.texts)
        asked = Shard(name, columns, path.name, texts, sent is not None, "" if sent is not None else digest)
        return JobOrder(tag, asked, path.parent, {} if sent is None else {"pipeline": sent})

    def land(self, files: Files) -> None:
        land(files, self.shard.path.parent)

    def ended(self) -> None:
        self.report(self.shard.tokens)


def _tag(
    engine: Engine,
    given: _Given,
    shards: Iterator[_Shard],
    total: int,
    progress: AnnotationProgress | None,
    losses: int,
) -> None:
    """Have the shards tagged that are not there yet."""
    done = 0

    def report(tokens: int) -> None:
        nonlocal done
        done += tokens
        if progress is not None:
            progress(done, total)

    def works() -> Iterator[_Tagging]:
        for shard in shards:
            if _whole(shard, given.columns):
                report(shard.tokens)
            else:
                yield _Tagging(shard, given, report)

    drive(works(), engine, losses=losses)


def _merge(text: Corpus, kind: Reader, folder: Path, columns: Sequence[str], notes: tuple[str, ...]) -> Corpus:
    """The text with the shards' labels beside its tokens; hidden words and words left out by the pipeline get -1."""
    hidden = np.array([word in kind.hidden for word in text.vocabulary])
    classes = {column: sources.Ids(2**15 - 1) for column in columns}
    splits = {}
    for name, split in text.splits.items():
        grown = {column: arrays.GrowingArray(np.int16) for column in columns}
        number, n = 0, len(split.tokens)
        while (start := len(grown[columns[0]])) < n:
            path = _shard_path(folder, name, number)
            body = read_record(path, f"Delete {folder} and call the same command again.", ShardLabels)
            for column in columns:
                ids = np.array(body["ids"][column])
                lookup = np.array([classes[column][c] if c else -1 for c in body["classes"][column]], np.int16)
                grown[column].append(np.where(hidden[split.tokens[start : start + len(ids)]], -1, lookup[ids]))
            number += 1
        splits[name] = Split(split.tokens, {column: ids.finish() for column, ids in grown.items()})
    labels = {column: ids.names for column, ids in classes.items()}
    for column in columns:
        if not labels[column]:
            known = f"The column '{column}' would be empty."
            raise CorpusError(
                f"The spaCy pipeline gave no token a {COLUMNS[column]}.",
                known,
                "Use another pipeline, or other columns.",
            )
    return Corpus.make(text.name, text.vocabulary, labels, splits, notes)


def _notes(kind: Reader, text: Corpus, placeholder: str, about: PipelineFacts) -> tuple[str, ...]:
    *first, last = (COLUMNS[c] for c in about.columns)
    what = " and ".join([*filter(None, [", ".join(first)]), last])
    pipeline = about.pipeline
    notes = [f"The {what} of each token is that of the spaCy pipeline {pipeline}, shown the tokens with their case."]
    if "ent" in about.columns:
        notes.append(f"A token outside every entity has the entity type '{OUTSIDE}'.")
    notes += [f"There is no column '{c}': the pipeline sets no {COLUMNS[c]}. {why}" for c, why in about.missing.items()]
    for word in sorted(kind.hidden & set(text.vocabulary)):
        train = text.splits["train"].tokens
        share = arrays.counts(train, len(text.vocabulary))[text.vocabulary.index(word)] / len(train)
        notes.append(
            f"{word} ({percent(share, 1)} of train) was shown to the tagger as '{placeholder}' and carries no label."
        )
    return tuple(notes)
