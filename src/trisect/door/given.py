"""Given: what callers hand to the door, made into what the rooms behind it take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trisect.core.errors import StudyError
from trisect.core.site import Site
from trisect.core.subject import TextOrPair, Texts
from trisect.lab.folder import is_study


def free_place(out: str | Path) -> Path:
    """A folder for results; a study's own would lose its report."""
    if is_study(Path(out)):
        known = "A study lies there, and its report.html and tables would be written over."
        raise StudyError(f"{out} was given for results.", known, "Choose another folder with --out.")
    return Path(out)


def texts(
    where: str | Path | Sequence[TextOrPair] | Texts,
    split: str = "test",
    reader: str | None = None,
    limit: int | None = None,
) -> Texts:
    """Texts to read: those of one split of a corpus ('embedded', a folder, hf:NAME), or a list of texts as they are."""
    from trisect.text.raw import first_texts, given_texts, open_texts

    if isinstance(where, Texts):
        found = where
    else:
        found = open_texts(where, split, reader) if isinstance(where, (str, Path)) else given_texts(where)
    return found if limit is None else first_texts(found, limit)


def as_tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """Several values; a text or a site is one."""
    return None if values is None else (values,) if isinstance(values, (str, Site)) else tuple(values)


def as_seeds(seeds: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """A number of seeds, or the seeds themselves."""
    return seeds if seeds is None or isinstance(seeds, int) else tuple(seeds)
