"""The folder of an annotated corpus: what may lie there, what a stopped call left, and how a finished one lands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trisect.core.errors import CorpusError, DamagedFileError
from trisect.core.files import canonical, digest, is_scratch, read_json, write_json
from trisect.core.json_text import Json
from trisect.lab.run_folder import RunFolder
from trisect.text.corpus import SPLITS, Corpus

NAME = "corpus annotate"  # whose run the folder's list of files names
ANOTHER = "Choose an empty or a new folder with --out."
STATEMENT = "annotation.json"


def shards_of(out: Path) -> Path:
    """The folder of what is labelled so far; it is gone when all of it is."""
    return out / ".shards"


def has_begun(out: Path) -> bool:
    """Whether a corpus is being labelled in a folder."""
    return (shards_of(out) / "statement.json").is_file()


def check_folder(out: Path) -> None:
    """Raise StudyError or CorpusError where the folder is a study's, another command's or anybody else's."""
    whole, begun = (out / "corpus.json").is_file(), has_begun(out)
    if RunFolder(out).check_command(NAME):
        pass
    elif whole and not (begun or (out / STATEMENT).exists()):
        raise another(out, "It was not made by annotating.")
    elif not whole and not begun:
        _check_files(out)
        if not shards_of(out).is_dir():
            RunFolder(out).check_empty("annotated corpus")
    _check_shards(shards_of(out))


def _check_files(out: Path) -> None:
    """Raise CorpusError where a file lies in the way of one that annotating writes."""
    names = (STATEMENT, *(f"{split}{end}" for split in SPLITS for end in (".npy", ".column-*.npy")))
    if there := [path.name for name in names for path in (sorted(out.glob(name)) if out.is_dir() else ())]:
        known = f"There is {', '.join(there[:5])}, and no corpus.json."
        raise CorpusError(f"{out} holds something else.", known, ANOTHER)


def _check_shards(shards: Path) -> None:
    others = sorted(p.name for p in (shards.iterdir() if shards.is_dir() else ()) if not _is_ours(p.name))
    if others:
        known = f"There is {', '.join(others[:5])}, which annotating does not write."
        raise CorpusError(f"{shards} holds something else.", known, ANOTHER)


def _is_ours(name: str) -> bool:
    """Whether a file of that name in the folder of shards is one that annotating writes."""
    known = ("lock", "statement.json")  # versions before had their lock there
    return name in known or bool(re.fullmatch(rf"({'|'.join(SPLITS)})-[0-9]{{6,}}\.json", name)) or is_scratch(name)


def clear(out: Path) -> None:
    """Remove what annotating wrote in the folder of shards, and the folder where nothing else is left of it."""
    shards = shards_of(out)
    for path in shards.iterdir() if shards.is_dir() else ():
        if _is_ours(path.name):
            path.unlink()
    with suppress(OSError):  # something came in between
        shards.rmdir()


def another(out: Path, known: str) -> CorpusError:
    """The error of a folder that holds a corpus which is not the one asked for."""
    return CorpusError(f"{out} already holds another corpus.", known, "Choose another folder, or delete this one.")


def finished(out: Path, statement: Mapping[str, Json]) -> Corpus | None:
    """The corpus that an earlier call finished, null while there is none; raises CorpusError for another's."""
    if not (out / "corpus.json").is_file() or (shards_of(out).is_dir() and not RunFolder(out).has_run):
        return None
    body = read_json(out / STATEMENT, f"Delete {out} and annotate again.")
    if other := [key for key in statement if body.get(key) != statement[key]]:
        raise another(out, f"It differs in {', '.join(other)}.")
    clear(out)
    return Corpus.load(out)


def prepare(out: Path, statement: Mapping[str, Json]) -> None:
    """Keep the shards of the same statement, remove those of another."""
    key = shards_of(out) / "statement.json"
    try:
        same = key.is_file() and read_json(key, "") == statement
    except DamagedFileError:
        same = False
    if not same:
        clear(out)
        write_json(key, statement)


def land_corpus(corpus: Corpus, out: Path, statement: Mapping[str, Json]) -> None:
    """Have the corpus and its statement land together, and remove the shards; the folder has to be locked."""
    with RunFolder(out).stage() as stage:
        corpus.save(stage)
        write_json(stage / STATEMENT, statement)
        RunFolder(out).commit(stage, NAME, digest(canonical(statement)))
    clear(out)
