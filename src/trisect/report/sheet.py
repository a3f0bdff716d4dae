"""Static HTML pages: a Sheet of sections, figures, tables and verdicts, and a Document that is a text of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

import polars as pl
from markupsafe import Markup

from trisect.core.files import inside, replace_file
from trisect.core.printable import safe
from trisect.report import cards, chart_data, drawing, render, template
from trisect.report import format as words
from trisect.report.blocks import (
    SHORT,
    Bullets,
    Code,
    Facts,
    PageBlock,
    Picture,
    Requirements,
    Strip,
    Table,
    TextBlock,
    Verdicts,
)
from trisect.report.chart_rows import read_out
from trisect.report.panels import Figure

__all__ = [
    "SHORT",
    "Document",
    "Section",
    "Sheet",
    "Table",
    "html",
    "write_document",
    "write_page",
    "write_sheet",
]
HERE = Path(__file__).parent
OPEN_CARDS = 6  # verdicts of one section whose parts are all shown; of more each waits to be opened
SCRIPTS = ("plot.js", "picture.js", "page.js")
RULE = (
    "A claim holds when all of its deciding parts do. Only the p that is corrected over the claims of one source (Holm) "
    "decides."
)
READING = (
    "How to read the drawings: the dot is the effect, the thick line its 95 % interval, the thin line the interval at the "
    "level of the whole family, an arrow a line that goes on. The tinted side is the claimed one, up to its bound (solid); the "
    "dashed line is zero."
)


@dataclass(frozen=True)
class Section:
    """One section: its heading, paragraphs, a table of claims (schema `claims`) as cards, figures, tables, then `blocks`.

    `id` is the place that links lead to, by its number where it is empty; `short` is its title among the contents.
    """

    title: str
    words: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    cards: pl.DataFrame | None = None
    blocks: tuple[PageBlock, ...] = ()
    id: str = ""
    short: str = ""


@dataclass(frozen=True)
class Sheet:
    """A page: the line above its title, the title, what it is about, its sections, and how to reproduce it.

    `under` is a second line of what it is about, `window` the title of the browser's window, `skip` the section that the
    link to the content leads to, `style` further rules, `links` those to the other pages of its study, as HTML. Figures can be
    read by pointer and keys, hide marks, be arranged in other ways and be saved; a page without figures holds no script.
    """

    title: str
    kicker: str
    lede: str
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = ()
    references: tuple[str, ...] = ()
    under: str = ""
    window: str = ""
    skip: tuple[str, str] = ("part-1", "content")
    style: str = ""
    links: str = ""

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure, in the order of the page."""
        return tuple(
            block.figure for section in self.sections for block in _blocks(section) if isinstance(block, Picture)
        )


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

    Every word of the sheet stands on the page as text. Raises as write_page.
    """
    _draw(folder, sheet.figures)
    page = folder / "report.html"
    _store(page, html(sheet).encode())
    return page


def write_document(path: Path, document: Document) -> Path:
    """Write a document as `path`, its figures beside it; returns `path`. Raises as write_page."""
    _draw(path.parent, document.figures)
    _store(path, safe(document.html).encode())
    return path


def _draw(folder: Path, figures: Iterable[Figure]) -> None:
    for figure in figures:
        text = render.svg(figure.chart(), figure.name)
        _store(inside(folder, "figures", f"{figure.name}.svg"), text.encode())
        _store(inside(folder, "figures", f"{figure.name}.png"), render.png(text))


def html(sheet: Sheet) -> str:
    """The whole page as one text, with its style sheet, its figures and its script inside."""
    places = [section.id or f"part-{number}" for number, section in enumerate(sheet.sections, start=1)]
    folds = any(isinstance(block, Verdicts) for section in sheet.sections for block in _blocks(section))
    skip = sheet.skip if sheet.skip[0] in places or not places else (places[0], sheet.skip[1])
    return template.fill(
        HERE / "sheet.html",
        template.read(template.STYLE) + sheet.style,
        template.closed(*(HERE / name for name in SCRIPTS)) if sheet.figures or folds else "",
        sheet=sheet,
        links=Markup(sheet.links),
        sections=[
            {
                "id": place,
                "title": section.title,
                "short": section.short or section.title,
                "blocks": [_ready(block) for block in _blocks(section)],
            }
            for place, section in zip(places, sheet.sections, strict=True)
        ],
        skip=skip,
        folded_from=OPEN_CARDS,
        badge=cards.badge,
    )


def _blocks(section: Section) -> list[PageBlock]:
    """All that stands in a section, in order."""
    found: list[PageBlock] = [TextBlock(text) for text in section.words]
    if section.cards is not None and (made := cards.cards(section.cards)):
        found.append(TextBlock(f"{words.tally(cards.tally(made))} {RULE}"))
        found += [TextBlock(READING, "quiet"), Verdicts(section.cards, "")]
    found += [Picture(figure) for figure in section.figures]
    return [*found, *section.tables, *section.blocks]


def _ready(block: PageBlock) -> dict[str, Any]:
    """A block for the template, which knows it by its kind."""
    match block:
        case Picture():
            return {"kind": "picture", "figure": _figure(block.figure), "titled": block.titled, "folded": block.folded}
        case Verdicts():
            return {"kind": "verdicts", "cards": cards.cards(block.claims, block.controls), "about": block.about}
        case Strip():
            return {"kind": "strip", "cards": cards.cards(block.claims)}
        case TextBlock():
            return {"kind": "text", "block": block}
        case Bullets():
            return {"kind": "bullets", "block": block}
        case Requirements():
            return {"kind": "requirements", "block": block}
        case Table():
            return {"kind": "table", "block": block}
        case Code():
            return {"kind": "code", "block": block}
        case Facts():
            return {"kind": "facts", "block": block}
        case _:
            assert_never(block)


def _figure(drawn: Figure) -> dict[str, Any]:
    """A figure for the page, with all of its arrangements."""
    figure = read_out(drawn)
    return {
        "name": figure.name,
        "number": figure.number,
        "title": figure.title,
        "caption": figure.caption,
        "views": [
            drawing.arrangement(f"{figure.name}{'-' if i else ''}{view.name if i else ''}", view)
            for i, view in enumerate(figure.views)
        ],
        "ramp": figure.ramp,
        "stops": figure.stops,
        "numbers": _numbers(figure),
        "counted": any(panel.series for view in figure.views for panel in view.panels),
    }


def _numbers(figure: Figure) -> Markup:
    """What lies under the marks of every arrangement, as JSON that may stand inside <script>."""
    views = [(view.name, [(panel.series, panel.strokes) for panel in view.panels]) for view in figure.views]
    numbers = json.dumps(chart_data.pack(views, figure.at), ensure_ascii=False, separators=(",", ":"))
    return Markup(numbers.replace("<", "\\u003c"))  # "<" could end the block; as an escape it is the same text


def _store(path: Path, content: bytes) -> None:
    replace_file(path, lambda scratch: scratch.write_bytes(content), durable=False)
