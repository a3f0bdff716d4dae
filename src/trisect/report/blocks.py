"""What a page is made of: paragraphs, lists, checks, figures, tables, verdicts and facts, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import polars as pl

from trisect.report.panels import Figure

T = TypeVar("T")
SHORT = 12  # rows of a table that is shown unfolded


def present(*items: T | None) -> tuple[T, ...]:
    """Those that there are."""
    return tuple(item for item in items if item is not None)


@dataclass(frozen=True)
class TextBlock:
    """A paragraph; its `look` is empty, 'quiet' or 'notice', and `id` a place to link to."""

    text: str
    look: str = ""
    id: str = ""


def quiet(texts: Iterable[str]) -> tuple[TextBlock, ...]:
    """Paragraphs in small."""
    return tuple(TextBlock(text, "quiet") for text in texts)


@dataclass(frozen=True)
class Bullets:
    """A list, under a small heading where it has a `title`."""

    items: tuple[str, ...]
    title: str = ""
    look: str = ""


@dataclass(frozen=True)
class Requirement:
    """Something that has to hold before anything else is read: its name, what was found, and whether it holds."""

    holds: bool
    name: str
    sentence: str
    numbers: str


@dataclass(frozen=True)
class Requirements:
    """Several of them, each with a sign."""

    items: tuple[Requirement, ...]


@dataclass(frozen=True)
class Picture:
    """A figure; without `titled` its title is for those who do not see the page; a `folded` one waits behind its title."""

    figure: Figure
    titled: bool = True
    folded: bool = False


@dataclass(frozen=True)
class Table:
    """A table: the first column names the row, every row is as long as `columns`.

    One of `prose` holds sentences, which are wrapped; `folded` says whether it has to be opened (null: if it is long).
    `words` stand above it, `label` names it where the caption is none of its own, and where it does not `wrap`
    on narrow screens it scrolls.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    prose: bool = False
    folded: bool | None = None
    label: str = ""
    words: tuple[str, ...] = ()
    id: str = ""
    wrap: bool = True

    @property
    def closed(self) -> bool:
        """Whether the page shows it folded."""
        return len(self.rows) > SHORT if self.folded is None else self.folded


@dataclass(frozen=True)
class Strip:
    """Every verdict of a table of claims as a sign that leads to its card."""

    claims: pl.DataFrame


@dataclass(frozen=True)
class Verdicts:
    """A table of claims as cards; `about` is what each speaks of, `controls` the table of that name."""

    claims: pl.DataFrame
    about: str
    controls: pl.DataFrame | None = None


@dataclass(frozen=True)
class Code:
    """A line to be copied."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names with what they are."""

    items: tuple[tuple[str, str], ...]


PageBlock = TextBlock | Bullets | Requirements | Picture | Table | Strip | Verdicts | Code | Facts
