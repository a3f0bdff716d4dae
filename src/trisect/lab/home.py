"""Home: the dissection that a page's folder is a part of, and the links from the page to the others of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NotRequired, TypedDict

from trisect.core.errors import DamagedFileError
from trisect.core.files import is_name, read_record
from trisect.core.json_text import Json
from trisect.report.study_links import StudyLink

NOTED = (
    "parts.json"  # beside the front page: the steps that have begun, by their folders, and the pages that will be there
)
STAGED = ".trisect-part"  # how the name of a stage ends, which lies inside the folder that it lands in
DEEPEST = 3  # folders below the front page that a part's page may lie in


class NotesData(TypedDict):
    """Notes of a dissection as their file holds them; `pages` are titles, each with its pages by the model's name."""

    seconds: float
    steps: dict[str, dict[str, Json]]
    pages: NotRequired[list[Json]]


class PlannedPage(TypedDict):
    """One part's entry among the pages of a dissection: its title, and its page for each model ('' where there is one)."""

    title: str
    models: dict[str, str]


def links_of(folder: Path, name: str) -> tuple[StudyLink, ...]:
    """Links of the page `name` in `folder`, or staged there, to all of its dissection; none where it is no page of one."""
    place = folder.absolute()
    place = place.parent if place.name.endswith(STAGED) else place
    for above in (place, *tuple(place.parents)[:DEEPEST]):
        pages = planned(above)
        page = (place / name).relative_to(above).as_posix()
        if any(page in one["models"].values() for one in pages):
            return tuple(_link(one, page) for one in pages)
    return ()


def _link(one: PlannedPage, page: str) -> StudyLink:
    def way(to: str) -> str:
        return "" if to == page else os.path.relpath(to, PurePosixPath(page).parent).replace(os.sep, "/")

    here = page in one["models"].values()
    models = tuple((name, way(to)) for name, to in one["models"].items()) if len(one["models"]) > 1 else ()
    first = next(iter(one["models"].values()))
    return StudyLink(one["title"], "" if here else way(first), here, models)


def planned(folder: Path) -> list[PlannedPage]:
    """The pages that a dissection in that folder has, or will have; empty where none is there, or its notes say nothing of them."""
    if not (folder / NOTED).is_file():
        return []
    with suppress(DamagedFileError):
        found = read_record(folder / NOTED, "", NotesData).get("pages", [])
        return [one for one in map(_page, found) if one is not None]
    return []


def _page(given: Json) -> PlannedPage | None:
    """An entry as it was noted; null for anything else, and for a way that leads elsewhere."""
    if not isinstance(given, dict):
        return None
    title, models = given.get("title"), given.get("models")
    if not isinstance(title, str) or not isinstance(models, dict) or not models:
        return None
    ways = {name: to for name, to in models.items() if isinstance(to, str) and all(map(is_name, to.split("/")))}
    return PlannedPage(title=title, models=ways) if len(ways) == len(models) else None
