"""Readers of texts: one file each, and this tuple, in the order in which they are asked whether a text suits them."""

from __future__ import annotations

from pathlib import Path

from trisect.core.errors import CorpusError, unknown
from trisect.text.readers.base import Reader, SplitText, missing_split_error, need_folder
from trisect.text.readers.conllu import CONLLU
from trisect.text.readers.english import PLAIN, PUBLISHED, WIKITEXT

READERS: tuple[Reader, ...] = (CONLLU, WIKITEXT, PLAIN, PUBLISHED)
NAMES = tuple(one.name for one in READERS)
HELP = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"


def find_reader(name: str) -> Reader:
    """The reader of that name; raises CorpusError for an unknown one."""
    for known in READERS:
        if known.name == name:
            return known
    raise CorpusError(unknown("reader", name, NAMES), f"Readers are {', '.join(NAMES)}.", "Use one of them.")


def detect_reader(where: SplitText) -> Reader:
    """The first reader that a folder, a file, or the train rows of a dataset suits; raises CorpusError where none does."""
    for known in READERS:
        if known.suits(where):
            return known
    assert isinstance(where, Path), "rows of text suit the last reader"
    need_folder(where)
    patterns = dict.fromkeys(pattern for known in READERS for pattern in known.files["train"])
    raise missing_split_error(where, "train", patterns, "choose another folder")
