"""Sheet: a static page of sections, figures, tables and verdicts, for what is measured on one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trisect.core.files import inside, replace_file
from trisect.report import cards, drawing, render
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


def write_sheet(folder: Path, sheet: Sheet) -> Path:
    """Write `folder/report.html` and `folder/figures/NAME.svg` and `.png`; returns the page's path.

    The same sheet gives the same bytes; the page holds no script, and every word of the sheet stands on it as text.
    Raises StudyError when the folder cannot be written.
    """
    for section in sheet.sections:
        for figure in section.figures:
            text = render.svg(figure.chart(), figure.name)
            _store(inside(folder, "figures", f"{figure.name}.svg"), text.encode())
            _store(inside(folder, "figures", f"{figure.name}.png"), render.png(text))
    page = folder / "report.html"
    _store(page, html(sheet).encode())
    return page


def html(sheet: Sheet) -> str:
    """The whole page as one text, with its style sheet and its figures inside."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=words.number)
    return environment.get_template("sheet.html").render(
        sheet=sheet,
        sections=[_section(number, section) for number, section in enumerate(sheet.sections, start=1)],
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
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
