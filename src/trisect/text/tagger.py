"""Tagger: the process that runs a spaCy pipeline; it reads shards of words as JSON lines and writes label files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trisect.core.files import write_json

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


def open_pipeline(
    name: str, columns: Sequence[str], extra: Sequence[str] = ()
) -> tuple[Language | None, dict[str, Any]]:
    """The pipeline and what there is to say about it, or {"problem": three parts}.

    {"pipeline": exact name, "digest", "columns": those to be had, "missing": {column of `extra` left out: why}}.
    A pipeline that sets one of `columns` not is a problem, one of `extra` is left out.
    """
    try:
        import spacy

        nlp = spacy.load(name)
    except Exception as error:  # a pipeline is foreign code and foreign files: anything may go wrong in it
        known = f"spaCy says: {type(error).__name__}: {error}"
        todo = "Give a folder that spaCy wrote, or install the pipeline: python -m spacy download en_core_web_sm"
        return None, {"problem": [f"The spaCy pipeline '{name}' cannot be loaded.", known, todo]}
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
            return None, {"problem": [given, why[column], todo]}
    columns = [c for c in COLUMNS if c in columns or (c in extra and able[c])]
    exact = f"{nlp.meta['lang']}_{nlp.meta['name']} {nlp.meta['version']} (spaCy {version('spacy')})"
    missing = {c: why[c] for c in extra if c not in columns}
    digest = _folder_digest(Path(nlp.path or ""), exact)
    return nlp, {"pipeline": exact, "digest": digest, "columns": columns, "missing": missing}


def _folder_digest(folder: Path, start: str) -> str:
    state = hashlib.blake2b(start.encode(), digest_size=16)
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        state.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return state.hexdigest()


def label(nlp: Language, texts: Sequence[Sequence[str]], columns: Sequence[str]) -> dict[str, Any]:
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


def serve(tasks: IO[str], answers: IO[str], pipeline: str, columns: Sequence[str], extra: Sequence[str]) -> None:
    """Say what the pipeline is, then tag shard after shard until the tasks end (or whoever gave them is gone)."""
    nlp, hello = open_pipeline(pipeline, columns, extra)
    print(json.dumps(hello), file=answers, flush=True)
    if nlp is None:
        return
    for line in tasks:
        task = json.loads(line)
        body = label(nlp, task["texts"], hello["columns"])
        write_json(Path(task["path"]), body)
        print(json.dumps({"done": task["path"]}), file=answers, flush=True)


def main() -> None:
    """Answers leave by the standard output as it was at the start; anything else printed goes to the errors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(sys.stdin, answers, sys.argv[1], *(list(filter(None, text.split(","))) for text in sys.argv[2:4]))


if __name__ == "__main__":
    main()
