"""Given: what callers hand to the door, made into what the rooms behind it take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trisect.core.errors import StudyError
from trisect.core.site import Site
from trisect.core.subject import Subject, Text, Texts
from trisect.lab.folder import is_study
from trisect.lab.subject import load


def as_subject(model: Any) -> Any:
    """A model to be read, loaded unless it is one already."""
    return model if isinstance(model, Subject) else load(model)


def read_sites(sites: Site | str | Sequence[Site | str] | None) -> list[Site | str] | None:
    """Sites one by one; a text may hold several, with spaces between."""
    if sites is None:
        return None
    several = [sites] if isinstance(sites, (Site, str)) else sites
    return [site for given in several for site in (given.split() if isinstance(given, str) else [given])]


def free_place(out: str | Path) -> Path:
    """A folder for results; a study's own would lose its report."""
    if is_study(Path(out)):
        known = "A study lies there, and its report.html and tables would be written over."
        raise StudyError(f"{out} was given for results.", known, "Choose another folder with --out.")
    return Path(out)


def texts(
    where: str | Path | Sequence[Text] | Texts, split: str = "test", reader: str | None = None, limit: int | None = None
) -> Texts:
    """Texts to read: those of one split of a corpus ('embedded', a folder, hf:NAME), or a list of texts as they are."""
    from trisect.text.raw import first_texts, given_texts, open_texts

    if isinstance(where, Texts):
        found = where
    else:
        found = open_texts(where, split, reader) if isinstance(where, (str, Path)) else given_texts(where)
    return found if limit is None else first_texts(found, limit)


def given_texts(where: Any) -> Texts:
    """Texts as `texts` takes them; a pair of texts is one text."""
    return texts([where] if isinstance(where, tuple) else where)


def as_tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """Several values; a text or a site is one."""
    return None if values is None else (values,) if isinstance(values, (str, Site)) else tuple(values)


def as_seeds(seeds: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """A number of seeds, or the seeds themselves."""
    return seeds if seeds is None or isinstance(seeds, int) else tuple(seeds)
