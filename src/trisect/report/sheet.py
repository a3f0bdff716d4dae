"""Sheet: a static page of sections, figures, tables and verdicts; Document: a page that is a text of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from trisect.core.files import inside, replace_file
from trisect.report import cards, drawing, render, template
from trisect.report import format as words
from trisect.report.panels import Figure

HERE = Path(__file__).parent
SHORT = 12  # rows of a table that is shown unfolded


@dataclass(frozen=True)
class Table:
    """A table: the first column names the row, every row is as long as `columns`.

    One of `prose` holds sentences, which are wrapped; `folded` says whether it has to be opened (null: if it is long).
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    prose: bool = False
    folded: bool | None = None

    @property
    def closed(self) -> bool:
        """Whether the page shows it folded."""
        return len(self.rows) > SHORT if self.folded is None else self.folded


@dataclass(frozen=True)
class Section:
    """One section: its heading, paragraphs, figures, tables, and a table of claims (schema `claims`) as cards."""

    title: str
    words: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    cards: pl.DataFrame | None = None


@dataclass(frozen=True)
class Sheet:
    """A page: the line above its title, the title, what it is about, its sections, and how to reproduce it."""

    title: str
    kicker: str
    lede: str
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = ()
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class Document:
    """A page that is no sheet, such as one to move things on: its file's name, its text, and figures to lie beside it."""

    name: str
    html: str
    figures: tuple[Figure, ...] = ()


def write_page(folder: Path, page: Sheet | Document) -> Path:
    """Write a page and its figures: a sheet as `report.html`, a document under its own name; returns the page's path.

    The same page gives the same bytes. Raises StudyError when the folder cannot be written.
    """
    return write_sheet(folder, page) if isinstance(page, Sheet) else write_document(folder / page.name, page)


def write_sheet(folder: Path, sheet: Sheet) -> Path:
    """Write `folder/report.html` and `folder/figures/NAME.svg` and `.png`; returns the page's path.

    The page holds no script, and every word of the sheet stands on it as text. Raises as write_page.
    """
    _draw(folder, [figure for section in sheet.sections for figure in section.figures])
    page = folder / "report.html"
    _store(page, html(sheet).encode())
    return page


def write_document(path: Path, document: Document) -> Path:
    """Write a document as `path`, its figures beside it; returns `path`. Raises as write_page."""
    _draw(path.parent, document.figures)
    _store(path, document.html.encode())
    return path


def _draw(folder: Path, figures: Iterable[Figure]) -> None:
    for figure in figures:
        text = render.svg(figure.chart(), figure.name)
        _store(inside(folder, "figures", f"{figure.name}.svg"), text.encode())
        _store(inside(folder, "figures", f"{figure.name}.png"), render.png(text))


def html(sheet: Sheet) -> str:
    """The whole page as one text, with its style sheet and its figures inside."""
    return template.fill(
        HERE / "sheet.html",
        template.read(template.STYLE),
        sheet=sheet,
        sections=[_section(number, section) for number, section in enumerate(sheet.sections, start=1)],
    )


def _section(number: int, section: Section) -> dict[str, Any]:
    found = [] if section.cards is None else cards.cards(section.cards)
    return {
        "id": f"part-{number}",
        "title": section.title,
        "words": section.words,
        "figures": [_figure(figure) for figure in section.figures],
        "tables": section.tables,
        "cards": found,
        "tally": words.tally(cards.tally(found)) if found else "",
    }


def _figure(figure: Figure) -> dict[str, Any]:
    """A figure for the page; only its first arrangement, since nothing on this page can switch to another."""
    return {
        "name": figure.name,
        "number": figure.number,
        "title": figure.title,
        "caption": figure.caption,
        "view": drawing.arrangement(figure.name, figure.views[0]),
        "ramp": figure.ramp,
        "stops": figure.stops,
    }


def _store(path: Path, content: bytes) -> None:
    replace_file(path, lambda scratch: scratch.write_bytes(content), durable=False)
