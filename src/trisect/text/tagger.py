"""Run a spaCy pipeline on shards of words: jobs that describe the pipeline and write label files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from trisect.core.errors import CorpusError
from trisect.core.files import write_json
from trisect.core.schema import record
from trisect.engine.jobs import JobDesk, job

if TYPE_CHECKING:
    from spacy.language import Language

COLUMNS = {
    "pos": "part of speech",
    "tag": "fine-grained tag",
    "dep": "dependency relation",
    "ent": "entity type",
}
NEEDS = {
    "pos": "a morphologizer (or a tagger with an attribute_ruler)",
    "tag": "a tagger",
    "dep": "a parser",
    "ent": "a named entity recogniser (or an entity_ruler)",
}
OUTSIDE = "O"  # the class of a word outside every entity
BATCH = 32


@dataclass(frozen=True)
class PipelineFacts:
    """What there is to say of a pipeline: its exact name, a digest of its files, its columns that are used, and of those
    that are left out why.
    """

    pipeline: str
    digest: str
    columns: tuple[str, ...]
    missing: Mapping[str, str]


@lru_cache(maxsize=1)
def open_pipeline(name: str) -> Language:
    """The pipeline, loaded once by each process; raises CorpusError where it cannot be."""
    try:
        import spacy

        return spacy.load(name)
    except Exception as error:  # a pipeline is foreign code and foreign files: anything may go wrong in it
        known = f"spaCy says: {type(error).__name__}: {error}"
        todo = "Give a folder that spaCy wrote, or install the pipeline: python -m spacy download en_core_web_sm"
        raise CorpusError(f"The spaCy pipeline '{name}' cannot be loaded.", known, todo) from error


def describe_pipeline(name: str, columns: Sequence[str], extra: Sequence[str] = ()) -> PipelineFacts:
    """What the pipeline says of itself; raises CorpusError where it does not set one of `columns`. `extra` may be missing."""
    nlp = open_pipeline(name)
    metas = [nlp.get_pipe_meta(pipe) for pipe in nlp.pipe_names]
    sets = {what for meta in metas for what in meta.assigns}
    able = {
        "pos": "token.pos" in sets or any(meta.factory == "attribute_ruler" for meta in metas),
        "tag": "token.tag" in sets,
        "dep": "token.dep" in sets,
        "ent": bool(sets & {"token.ent_type", "doc.ents"}),
    }
    why = {c: f"Its parts are {', '.join(nlp.pipe_names) or 'none'}; '{c}' needs {need}." for c, need in NEEDS.items()}
    for column in columns:
        if not able[column]:
            given = f"The spaCy pipeline '{name}' sets no {COLUMNS[column]}, so there can be no column '{column}'."
            others = ",".join(c for c in columns if able[c])
            todo = f"Use another pipeline{f', or ask for {others} alone' if others else ''}."
            raise CorpusError(given, why[column], todo)
    taken = tuple(c for c in COLUMNS if c in columns or (c in extra and able[c]))
    exact = _exact(nlp)
    missing = {c: why[c] for c in extra if c not in taken}
    return PipelineFacts(exact, _folder_digest(Path(nlp.path or ""), exact), taken, missing)


@lru_cache(maxsize=1)
def _digest_here(name: str) -> str:
    nlp = open_pipeline(name)
    return _folder_digest(Path(nlp.path or ""), _exact(nlp))


def _exact(nlp: Language) -> str:
    return f"{nlp.meta['lang']}_{nlp.meta['name']} {nlp.meta['version']} (spaCy {version('spacy')})"


def _folder_digest(folder: Path, start: str) -> str:
    state = hashlib.blake2b(start.encode(), digest_size=16)
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        state.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return state.hexdigest()


class ShardLabels(TypedDict):
    """Labels of one shard: per column its classes in the order of first use, and a class number for each word."""

    classes: dict[str, list[str]]
    ids: dict[str, list[int]]


def label(nlp: Language, texts: Sequence[Sequence[str]], columns: Sequence[str]) -> ShardLabels:
    """Classes and ids of each column for ready-made words; '' is the class of a word the pipeline left out.

    A word's entity type is that of the entity around it, 'O' where there is none.
    """
    from spacy.tokens import Doc, Token

    read: dict[str, Callable[[Token], str]] = {
        "pos": lambda token: token.pos_,
        "tag": lambda token: token.tag_,
        "dep": lambda token: token.dep_,
        "ent": lambda token: token.ent_type_ or OUTSIDE,
    }
    numbers: dict[str, dict[str, int]] = {column: {} for column in columns}
    ids: dict[str, list[int]] = {column: [] for column in columns}
    docs = (Doc(nlp.vocab, words=list(words)) for words in texts)
    for words, doc in zip(texts, nlp.pipe(docs, batch_size=BATCH), strict=True):
        assert len(doc) == len(words), "a pipeline must not split or join ready-made words"
        for column in columns:
            known = numbers[column]
            ids[column] += [known.setdefault(name, len(known)) for name in map(read[column], doc)]
    return {"classes": {c: list(numbers[c]) for c in columns}, "ids": ids}


@record
class Pipeline:
    """Which pipeline, and which columns of it: those that must be, and those that are used where there are.

    One that is `sent` comes with the job.
    """

    name: str
    columns: tuple[str, ...]
    extra: tuple[str, ...]
    sent: bool = False


@record
class Shard:
    """Some texts, word by word, and the file for their labels; where there is a `digest` the pipeline here has to have it."""

    pipeline: str
    columns: tuple[str, ...]
    file: str
    texts: tuple[Sequence[str], ...]
    sent: bool = False
    digest: str = ""


def _pipeline(asked: Pipeline | Shard, name: str, desk: JobDesk) -> str:
    return str(desk.fetch("pipeline")) if asked.sent else name


@job
def describe(asked: Pipeline, desk: JobDesk) -> None:
    """Write what `describe_pipeline` finds to about.json."""
    name = _pipeline(asked, asked.name, desk)
    write_json(desk.scratch / "about.json", asdict(describe_pipeline(name, asked.columns, asked.extra)))


@job
def tag(asked: Shard, desk: JobDesk) -> None:
    """Write the labels of a shard's words."""
    name = _pipeline(asked, asked.pipeline, desk)
    if asked.digest and _digest_here(name) != asked.digest:
        known = f"Its files have the digest {_digest_here(name)} here, and elsewhere {asked.digest}."
        todo = "Install the same pipeline on every node, or give --pipeline a folder: that is sent to them."
        raise CorpusError(f"The spaCy pipeline '{asked.pipeline}' is another on {gethostname()}.", known, todo)
    write_json(desk.scratch / asked.file, label(open_pipeline(name), asked.texts, asked.columns))
