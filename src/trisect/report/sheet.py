"""Static HTML pages: a Sheet of sections, figures, tables and verdicts, and a Document that is a text of its own."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, assert_never

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trisect.core.files import replace_file, safe_join
from trisect.core.finding import About, Estimate, Finding
from trisect.core.printable import safe
from trisect.report import alt, cards, charts, render
from trisect.report import format as words
from trisect.report.charts import (
    Figure,
    Panel,
    SharedAxis,
    axis_for,
    chart_of,
    encoding_of,
    few_ticks,
    overlay,
    with_numbers,
)
from trisect.report.measures import Bar, cut_ends, frame_of, layer_key, layer_panel, near, sort_components

T = TypeVar("T")
UNFOLDED_ROWS = 12  # rows of a table that is shown unfolded


def present(*items: T | None) -> tuple[T, ...]:
    """The items that are not None."""
    return tuple(item for item in items if item is not None)


@dataclass(frozen=True)
class TextBlock:
    """A paragraph; `look` is empty, 'quiet' or 'notice', and `id` an anchor."""

    text: str
    look: str = ""
    id: str = ""


def quiet(texts: Iterable[str]) -> tuple[TextBlock, ...]:
    """Paragraphs in small type."""
    return tuple(TextBlock(text, "quiet") for text in texts)


@dataclass(frozen=True)
class Bullets:
    """A list, with a small heading if it has a `title`."""

    items: tuple[str, ...]
    title: str = ""
    look: str = ""


@dataclass(frozen=True)
class Requirement:
    """A requirement of all results: its name, the measurement, and whether it holds."""

    holds: bool
    name: str
    sentence: str
    numbers: str


@dataclass(frozen=True)
class Requirements:
    """Several requirements, each with a sign."""

    items: tuple[Requirement, ...]


@dataclass(frozen=True)
class Picture:
    """A figure; a `folded` one is behind its title."""

    figure: Figure
    folded: bool = False


@dataclass(frozen=True)
class Table:
    """A table: the first column names the row, every row has the length of `columns`.

    One of `prose` holds sentences, which are wrapped; `folded` says whether it has to be opened (None: if it is long).
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
    def is_folded(self) -> bool:
        """Whether the page shows it folded."""
        return len(self.rows) > UNFOLDED_ROWS if self.folded is None else self.folded


@dataclass(frozen=True)
class Strip:
    """Every verdict of a table of claims as a sign that links to its card."""

    claims: pl.DataFrame


@dataclass(frozen=True)
class Verdicts:
    """A table of claims as cards; `about` is the subject of each, `controls` the table of that name."""

    claims: pl.DataFrame
    about: str
    controls: pl.DataFrame | None = None


@dataclass(frozen=True)
class Code:
    """A line of code to copy."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    items: tuple[tuple[str, str], ...]


STYLE = Path(__file__).parent / "page.css"
# buttons that save drawings and their numbers, for pages that draw by themselves
SAVE = Path(__file__).parent / "save.js"
FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": words.number,
    "count": words.count,
    "quantity": words.quantity,
    "listed": words.join_words,
}


def fill(
    template: Path, style: str, script: str = "", filters: Mapping[str, Callable[..., Any]] = FILTERS, **values: Any
) -> str:
    """Fill a template with values, and with `style`, `script` and `script_hash` (SHA-256, base64) for its head.

    Everything is escaped but what is Markup, and control characters are shown as
    their signs; a name that the template asks for and nobody gave is an error.
    """
    environment = _environment(template.parent, tuple(filters.items()))
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values |= {"style": Markup(style), "script": Markup(script), "script_hash": digest}
    return safe(environment.get_template(template.name).render(**values))


@cache
def _environment(folder: Path, filters: tuple[tuple[str, Callable[..., Any]], ...]) -> Environment:
    """The cached template environment: a study writes many pages."""
    loader = FileSystemLoader(folder)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(filters)
    return environment


def wrap_scripts(*paths: Path) -> str:
    """Join scripts into one without global names."""
    return f'"use strict";\n(() => {{\n{"".join(map(read, paths))}}})();\n'


def read(path: Path) -> str:
    """Read a file beside the code."""
    return path.read_text(encoding="utf-8")


HERE = Path(__file__).parent
UNFOLDED_VERDICTS = 6  # verdicts that are listed unfolded; of more there is a strip of signs
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

    `id` is the place that links lead to, by its number where it is empty. The first section of a page, those with verdicts and
    those that are `shown` stand unfolded, all others behind their headings; so does a section among the blocks of another.
    """

    title: str
    words: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    cards: pl.DataFrame | None = None
    blocks: tuple[PageBlock, ...] = ()
    id: str = ""
    shown: bool = False


PageBlock = TextBlock | Bullets | Requirements | Picture | Table | Strip | Verdicts | Code | Facts | Section


@dataclass(frozen=True)
class Sheet:
    """A page: the line above its title, title, inputs, sections, how to reproduce it, and the answer.

    The `answer` is one sentence that answers the title, with its number; the first figure, below it, shows it. `style` are
    further rules, `links` those to the other pages of its study, as HTML. Figures can be read by pointer and keys, hide marks,
    be arranged in other ways and be saved; a page without figures holds no script.
    """

    title: str
    kicker: str
    lede: str
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = ()
    references: tuple[str, ...] = ()
    answer: str | Markup = ""
    style: str = ""
    links: str = ""

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure, in the order of the page."""
        blocks = [block for section in self.sections for block in _blocks(section)]
        for block in blocks:  # which grow by those of sections among them
            blocks += _blocks(block) if isinstance(block, Section) else []
        return tuple(block.figure for block in blocks if isinstance(block, Picture))


@dataclass(frozen=True)
class Document:
    """A page that is no sheet, such as an interactive one: file name, text, and figures beside it."""

    name: str
    html: str
    figures: tuple[Figure, ...] = ()
    answer: str = ""


def write_page(folder: Path, page: Sheet | Document) -> Path:
    """Write a page and its figures: a sheet as `report.html`, a document under its own name; returns the page's path."""
    return write_document(folder / ("report.html" if isinstance(page, Sheet) else page.name), page)


def write_document(path: Path, page: Sheet | Document) -> Path:
    """Write a page as `path`, its figures as SVG and PNG in `figures` beside it; returns `path`.

    The same page gives the same bytes. Raises StudyError when the folder cannot be written.
    """
    contents = {}
    for figure in page.figures:
        for kind, content in zip(("svg", "png"), _draw_figure(figure), strict=True):
            contents[safe_join(path.parent, "figures", f"{figure.name}.{kind}")] = content
    contents[path] = (html(page) if isinstance(page, Sheet) else safe(page.html)).encode()
    for place, content in contents.items():
        replace_file(place, lambda scratch, content=content: scratch.write_bytes(content), durable=False)
    return path


def _draw_figure(figure: Figure) -> tuple[bytes, bytes]:
    """Draw a figure as SVG and PNG."""
    text = render.svg(figure.chart(), figure.name)
    return text.encode(), render.png(text)


def html(sheet: Sheet) -> str:
    """The whole page as text, with style sheet, figures and script."""
    sections = []
    for number, section in enumerate(sheet.sections, start=1):
        blocks = _blocks(section)
        if number == 1:  # one figure is open, the others and all tables wait, and last comes what explains them
            first = next((block for block in blocks if isinstance(block, Picture)), None)
            rest = [block for block in blocks if block is not first]
            small = tuple(block for block in rest if isinstance(block, TextBlock) and block.look == "quiet")
            rest = [_fold(block) for block in rest if block not in small]
            blocks = [*present(first), *rest, *([Section("How this was measured", blocks=small)] if small else [])]
        shown = number == 1 or section.cards is not None or section.shown
        place = {"id": section.id or f"part-{number}", "title": section.title, "shown": shown}
        sections.append(place | {"blocks": [_ready(block) for block in blocks]})
    return fill(
        HERE / "sheet.html",
        read(STYLE) + sheet.style,
        wrap_scripts(*(HERE / name for name in SCRIPTS)),
        sheet=sheet,
        links=Markup(sheet.links),
        sections=sections,
        badge=cards.badge,
    )


def _fold(block: PageBlock) -> PageBlock:
    """A block behind its title, for figures, and for tables unless they say otherwise."""
    if isinstance(block, Picture) or (isinstance(block, Table) and block.folded is None):
        return replace(block, folded=True)
    return block


def _blocks(section: Section) -> list[PageBlock]:
    """All blocks of a section, in order."""
    blocks: list[PageBlock] = [TextBlock(text) for text in section.words]
    if section.cards is not None and (verdicts := cards.cards(section.cards)):
        rules = Section("How claims are tested", (*section.words, RULE, READING))
        listed = Verdicts(section.cards, "")
        blocks = [TextBlock(words.tally(cards.tally(verdicts))), listed, rules]
        if len(verdicts) > UNFOLDED_VERDICTS:
            blocks[1:2] = [Strip(section.cards), Section("Claim by claim", blocks=(listed,))]
        return [
            *blocks,
            *(Picture(figure, True) for figure in section.figures),
            *map(_fold, section.tables),
            *section.blocks,
        ]
    blocks += [Picture(figure) for figure in section.figures]
    return [*blocks, *section.tables, *section.blocks]


def _ready(block: PageBlock) -> dict[str, Any]:
    """A block for the template, which selects by kind."""
    match block:
        case Picture():
            figure = with_numbers(block.figure)
            views = [(view.name, [(panel.series, panel.strokes) for panel in view.panels]) for view in figure.views]
            numbers = json.dumps(charts.pack(views, figure.at), ensure_ascii=False, separators=(",", ":"))
            picture = {
                "views": [
                    charts.arrangement(f"{figure.name}{'-' if i else ''}{view.name if i else ''}", view)
                    for i, view in enumerate(figure.views)
                ],
                # what lies under the marks may stand inside <script>: "<" could end it; as an escape it is the same text
                "numbers": Markup(numbers.replace("<", "\\u003c")),
                "counted": any(panel.series for view in figure.views for panel in view.panels),
            }
            picture |= {n: getattr(figure, n) for n in ("name", "title", "caption", "ramp", "stops")}
            return {"kind": "picture", "figure": picture, "folded": block.folded}
        case Section():
            return {"kind": "section", "title": block.title, "blocks": [_ready(inner) for inner in _blocks(block)]}
        case Verdicts():
            return {"kind": "verdicts", "cards": cards.cards(block.claims, block.controls), "about": block.about}
        case Strip():
            return {"kind": "strip", "cards": cards.cards(block.claims)}
        case TextBlock() | Bullets() | Requirements() | Table() | Code() | Facts():
            return {"kind": type(block).__name__.removesuffix("Block").lower(), "block": block}
        case _:
            assert_never(block)


BLIND = 0.75  # an AUROC below this is hardly better than guessing
NAMES = {"q": "query", "k": "key", "v": "value"}
DEFINITIONS = (
    ("Query q = x W_Q", "made from the word that reads: it is compared with every key"),
    ("Key k = x W_K", "made from every word that can be read: softmax(q·k / √E) is how much each is attended to"),
    ("Value v = x W_V", "made from the same words: what is added up, in those shares, and passed on"),
)
INTRODUCTION = (
    "Attention lets a word read others. Each word x is multiplied by three matrices. What does each of the three do?"
)


def answers_of(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings for query, key and value, in this order."""
    by_component = {
        finding.groups[0]: finding for finding in findings if finding.measure == "answer" and finding.groups
    }
    return tuple(by_component[c] for c in NAMES if c in by_component)


def opening(
    answers: Sequence[Finding],
    picture: Figure | None,
    more: Sequence[str | Markup] = (),
    title: str = "The answer",
    none: str = "No intervention has numbers yet, so there is no answer.",
) -> Section:
    """One figure, three sentences, and `more` with definitions behind a line; without an answer, `none` says why."""
    blocks: list[PageBlock] = [Picture(picture)] if picture is not None else []
    if answers:
        items = (Markup("<strong>{}.</strong> {}").format(finding.title, finding.words) for finding in answers)
        blocks += [Bullets(tuple(items), look="findings answers")]
    else:
        blocks += [TextBlock(none, "notice")]
    blocks.append(
        Section("What are query, key and value?", (INTRODUCTION,), blocks=(Facts(DEFINITIONS), *map(TextBlock, more)))
    )
    return Section(title, blocks=tuple(blocks), id="short-answer")


def sure(sentences: Sequence[str]) -> Section:
    """The evidence for the answer."""
    return Section("How sure?", blocks=(Bullets(tuple(sentences)),) if sentences else (), id="sure", shown=True)


def open_section(findings: Iterable[Finding], blind: Sequence[str] = ()) -> Section:
    """Undecided comparisons of q, k and v, those alike within their margin, and the limits of the method."""
    open_, same = [], []
    for finding in findings:
        if finding.compared is None or finding.compared.kind not in ("uncertain", "alike"):
            continue
        name = f"{finding.title or finding.measure}: {finding.compared.words(finding.per or 'seed')}"
        (open_ if finding.compared.kind == "uncertain" else same).append(f"{name}.")
    blocks = tuple(
        Bullets(tuple(dict.fromkeys(items)), title)
        for title, items in (
            ("Too uncertain", open_),
            ("Alike within the margin", same),
            ("The method cannot see it, by the synthetic task with known roles", list(blind)),
        )
        if items
    )
    none = () if blocks else ("Nothing that was compared was left open.",)
    return Section(
        "Inconclusive comparisons, and why",
        none,
        blocks=blocks,
        id="open",
    )


def picture_of(answers: Sequence[Finding], shares: str, costs: str) -> Figure | None:
    """The numbers of the three sentences in one figure, with a caption for shares of pairs, or for changes of a loss."""
    bars = [
        Bar(finding.groups[0], value.name, value.mean, value.low, value.high)
        for finding in answers
        for value in finding.values
        if value.mean is not None
    ]
    if not bars:
        return None
    of_pairs = answers[0].unit == "of pairs"
    axis = SharedAxis("share of pairs", -0.02, 1.02) if of_pairs else frame_of(bars, answers[0].unit)
    title = "Resulting answer" if of_pairs else "What it costs to take it away"
    panel = layer_panel(title, bars, axis, across="resulting answer" if of_pairs else "what is done")
    caption, key = (
        shares if of_pairs else costs + cut_ends([(axis, bars)]),
        layer_key(bars, "none" if of_pairs else "no change"),
    )
    return Figure(
        "in-short",
        "",
        "Effect of replacing q, k and v" if of_pairs else "Effect of removing q, k or v",
        caption,
        (panel,),
        key,
    )


MARK = "<!-- links of the study -->"  # where a page of its own has them


@dataclass(frozen=True)
class StudyLink:
    """A link: title, path, and whether it is this page, or one of the same part.

    `models` are the same part's pages for other models, each with its name; an empty way is this page's.
    """

    title: str
    href: str
    here: bool = False
    models: tuple[tuple[str, str], ...] = ()


def with_links(page: Sheet | Document, links: tuple[StudyLink, ...]) -> Sheet | Document:
    """The page with a header of links; unchanged without links."""
    if not links:
        return page
    header = fill(Path(__file__).parent / "study_links.html", "", links=links)
    if isinstance(page, Sheet):
        return replace(page, links=header)
    return replace(page, html=page.html.replace(MARK, header, 1))


F = TypeVar("F")


def provenance(about: About[F], *facts: tuple[str, str], timed: bool = True) -> tuple[tuple[str, str], ...]:
    """Facts at the end of a page: command, the experiment's `facts`, seconds, claims and software.

    Without `timed` the seconds are left to the record, so that the same call writes the same page.
    """
    seconds = (("Seconds", f"{about.seconds:.0f}"),) if timed and about.seconds >= 1 else ()
    claims = (("Claims", f"hash {about.claims_hash}"),) if about.claims_hash is not None else ()
    software = ", ".join(f"{name} {version}" for name, version in sorted(about.versions.items()))
    return (("Command", about.command), *facts, *seconds, *claims, ("Made by", software))


def notes_section(about: About[F]) -> Section | None:
    """The notes of a run; None without notes."""
    return Section("Notes", tuple(about.notes)) if about.notes else None


def verdict_findings(claims: pl.DataFrame) -> tuple[Finding, ...]:
    """Every claim of a table: verdict, effect with interval, and the reason if it is inconclusive."""
    findings = []
    for row, line in words.verdict_lines(claims):
        effect = Estimate(row["claim"], row["effect"], row["low"], row["high"], row["n"])
        values = (effect,) if effect.mean is not None else ()
        named = {name: row[name] for name in ("source", "claim", "verdict")}
        findings.append(Finding("claim", line, row["unit"] or "", values, **named))
    return tuple(findings)


WIDTH, ROW = 190, 22  # pixels of a panel, and of each component in it
TICKS = 3  # more, and labels such as −0.015 touch


def small_multiples(name: str, title: str, caption: str, findings: Sequence[Finding]) -> Figure | None:
    """A panel for each finding with numbers of components, those of one unit on one axis; None without any.

    Intervals that dwarf the numbers are drawn to the frame's edge, and the caption says how many ends lie beyond it.
    """
    picked = []
    for finding, heading in zip(findings, titles(findings), strict=True):
        named = {e.name: e for e in finding.values if e.mean is not None and e.name.replace("-", "+") in render.GROUPS}
        if len(named) < 2:
            continue
        picked.append((finding, heading, finding.unit or "number", [named[name] for name in sort_components(named)]))
    if not picked:
        return None
    axes = {}
    for unit in {unit for *_, unit, _ in picked}:
        estimates = [e for *_, unit_of, each in picked if unit_of == unit for e in each]
        means = [e.mean or 0.0 for e in estimates]
        axes[unit] = axis_for([*means, *near([*means, 0.0], estimates)], unit, zero=True)
    plots = [(_panel(finding, each, axes[unit], heading), axes[unit], each) for finding, heading, unit, each in picked]
    key = layer_key([Bar(e.name, "", 0.0) for _, _, estimates in plots for e in estimates], "0")
    cut = cut_ends((axis, estimates) for _, axis, estimates in plots)
    return Figure(name, "", title, caption + cut, tuple(panel for panel, *_ in plots), key)


def sentences(findings: Sequence[Finding], caption: str = "The same in words") -> Table | None:
    """The sentences of findings, as a folded table; None without any."""
    cells = tuple(zip(titles(findings), (finding.words for finding in findings), strict=True))
    return Table(("", "found"), cells, caption, folded=True, label=caption, prose=True) if cells else None


def titles(findings: Sequence[Finding]) -> list[str]:
    """The titles of findings; those with equal titles also say their subject."""
    names = [finding.title or finding.what or finding.measure.replace("_", " ").capitalize() for finding in findings]
    about = [", ".join(finding.groups) for finding in findings]
    return [
        f"{name}: {more}" if names.count(name) > 1 and more else name for name, more in zip(names, about, strict=True)
    ]


def _panel(finding: Finding, estimates: Sequence[Estimate], frame: SharedAxis, title: str) -> Panel:
    """A panel of one finding: a row for each component, its number with 95 % interval, and a line at 0."""
    unit, names = frame.unit, [e.name for e in estimates]
    axis, scale = (
        alt.Axis(values=list(few_ticks(frame.low, frame.high, TICKS)), tickCount=40, format="~g"),
        frame.scale(),
    )

    def along(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=scale, title=unit, axis=axis)

    y = alt.Y("group:N", sort=names, scale=alt.Scale(domain=names), title=None, axis=alt.Axis(grid=False))
    colour, shape = encoding_of({name: render.mark(name) for name in names})
    rows = [{"group": e.name, "value": e.mean, "low": e.low, "high": e.high} for e in estimates]
    line = chart_of("level0", [{"level": 0.0}]).mark_rule(color=render.BASELINE, strokeDash=[5, 3])
    layers = [line.encode(along("level"))]
    if ranged := [row for row in rows if row["low"] is not None and row["high"] is not None]:
        layers.append(
            chart_of("bars", ranged).mark_rule(strokeWidth=1.6).encode(along("low"), alt.X2("high"), y, colour)
        )
    heads = chart_of("main", rows).mark_point(size=52, filled=True, opacity=1)
    layers.append(heads.encode(along("value"), y, colour, shape))
    numbers = ", ".join(f"{e.name} {words.number(e.mean, finding.signed)}" for e in estimates)
    shown = overlay(title, *layers, width=WIDTH, height=ROW * len(names))
    return Panel(title, shown, f"{title}, in {unit}: {numbers}.", (), {})
