"""The page of two models side by side: each layer's numbers of both and their difference, and their own pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Estimate, Finding
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import Figure
from trisect.report.format import FEW_TEXTS, spoken_subject, stack_words
from trisect.report.measures import Bar, layer_figure
from trisect.report.sheet import Bullets, Section, Sheet, Table, provenance, sentences, small_multiples

if TYPE_CHECKING:
    from trisect.experiments.compare.settings import ComparedPart, CompareFacts

TITLES = {
    "norms": "Where information comes from",
    "similarity": "How alike matrices are",
    "ablate": "What breaks",
    "erase": "What a label is needed for",
    "profile": "What is kept",
    "patch": "What another text's parts change",
}
DifferenceRows = list[dict[str, Any]]
LAYER = "whole layer"  # what a number is of that belongs to no component


def page(tables: Mapping[str, pl.DataFrame], about: About[CompareFacts]) -> Sheet:
    """The page from the table differences."""
    facts = about.facts
    first, second = words.called_apart(facts.models)
    paired = _pairing(facts, _units(tables["differences"].to_dicts()))
    lede = f"{second} beside {first} on {facts.corpus}. Differences are {second} minus {first}. {paired}"
    found = findings(tables, about)
    sections = (
        _opening(found, tables["differences"], facts),
        *(_section(part, tables["differences"], facts) for part in facts.parts),
        *((Section("Notes", tuple(about.notes)),) if about.notes else ()),
    )
    own = [
        (f"Model {i}", f"{name}, weights {mark}. {shape}")
        for i, (name, mark, shape) in enumerate(zip(facts.models, facts.fingerprints, facts.shapes, strict=True), 1)
    ]
    texts = f"{facts.corpus}, fingerprint {facts.corpus_fingerprint}; {_both(facts)}"
    ends = provenance(about, *own, ("Texts", texts), timed=False)
    return Sheet(f"{first} and {second}", "trisect · two models", lede, sections, ends)


def _opening(found: Sequence[Finding], differences: pl.DataFrame, facts: CompareFacts) -> Section:
    """Every difference of means over layers as a small panel, and the sentences in a folded table."""
    first, second = words.called_apart(facts.models)
    short = [replace(one, title=_begun(one.title.partition(", mean over layers")[0])) for one in found]
    caption = f"{second} minus {first}, means over layers; each panel has an axis of its own, lines are 95 % intervals."
    drawn, in_words = small_multiples("compare-short", "What differs", caption, short), sentences(found)
    figures, tables = (drawn,) if drawn else (), (in_words,) if in_words else ()
    return Section("What differs", tuple(_scope(differences, facts)), figures, tables)


def findings(tables: Mapping[str, pl.DataFrame], about: About[CompareFacts]) -> tuple[Finding, ...]:
    """Of each part what it draws by layer: every component's mean over layers in both models, and the difference."""
    return tuple(one for part in about.facts.parts for one in _part_findings(part, tables["differences"]))


def _part_findings(part: ComparedPart, differences: pl.DataFrame) -> Iterator[Finding]:
    for title, unit in dict.fromkeys((one.title, one.unit) for one in part.by_layer):
        names = [f"mean_{one.measure}" for one in part.by_layer if (one.title, one.unit) == (title, unit)]
        rows = differences.filter(pl.col("part") == part.name, pl.col("measure").is_in(names)).to_dicts()
        groups = sorted({str(row["group"] or "") for row in rows})
        for group in groups:
            own = [row for row in rows if (row["group"] or "") == group]
            called = f"{title}, {group}" if len(groups) > 1 else title
            yield _finding(part, f"{called}, mean over layers, {unit}", unit, own)


def _finding(part: ComparedPart, label: str, unit: str, rows: DifferenceRows) -> Finding:
    """Every component's mean over layers in both models, and the difference."""
    rows = sorted(rows, key=lambda row: _order(row["component"]))
    values = tuple(Estimate(_named(row, rows), row["value"], row["low"], row["high"], row["n"]) for row in rows)
    said = ", ".join(
        f"{value.name} {words.number(row['first'])} and {words.number(row['second'])}, difference {spoken_subject(value)}"
        for value, row in zip(values, rows, strict=True)
    )
    return Finding(
        f"difference_{part.name}", f"{said.strip()}.", unit, values, title=label, per=" or ".join(_units(rows))
    )


def _units(rows: DifferenceRows) -> list[str]:
    """What was resampled behind the intervals: text or article, both where parts differ; none where there is no interval."""
    return sorted({str(row.get("per") or "text") for row in rows if row["n"] is not None})


def _named(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """A component, with its stack where there are several."""
    several = len({one["stack"] for one in rows}) > 1
    return " ".join(filter(None, (row["stack"] if several else "", row["component"])))


def _order(component: str) -> tuple[int, str]:
    known = list(render.GROUPS)
    return (known.index(component) if component in known else len(known), component)


def _both(facts: CompareFacts) -> str:
    return " and ".join(words.several(n, "token") for n in facts.tokens)


def _pairing(facts: CompareFacts, units: Sequence[str]) -> str:
    if facts.paired:
        by = " or ".join(units) or "text"
        return f"Both split the texts into the same tokens, so that differences are paired by {by}."
    return f"They split the texts differently ({_both(facts)}): differences over texts have no interval."


def _scope(differences: pl.DataFrame, facts: CompareFacts) -> Iterator[str]:
    units = _units(differences.to_dicts())
    over = " or ".join(f"{unit}s" for unit in units)
    if units:
        yield (
            f"Intervals are 95 % of a bootstrap over {over} in which both models meet the same draws. They speak of "
            "these two models, not of how they were made, and are not corrected for how many there are. What is of the weights "
            "alone has none."
        )
    if "head" in units:
        yield (
            "Heads are paired by layer and place. Between models that were trained apart a place means nothing: pairs are then pairs "
            "of a layer's heads, as good as any others."
        )
    if "pair" in units:
        yield (
            "Differences of shares of pairs have Newcombe's interval for paired shares instead (1998, method 10), which has a width also "
            "where all pairs say the same; means of shares over layers have it where every draw has the same difference."
        )
    yield from _few(differences)
    if facts.shapes[0] != facts.shapes[1]:
        yield "The models differ in shape: differences are of the layers and heads that both have."


def _few(differences: pl.DataFrame) -> Iterator[str]:
    """A warning for each kind of unit of which some interval has fewer than a bootstrap needs."""
    known = differences.filter(pl.col("n").is_not_null(), pl.col("n") < FEW_TEXTS)
    for (unit,), rows in sorted(known.group_by("per")):
        counts = sorted(set(rows["n"]))
        there = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        yield f"With fewer than {FEW_TEXTS} {unit}s such intervals are too narrow to lean on; here some are over {there}."


def _section(part: ComparedPart, differences: pl.DataFrame, facts: CompareFacts) -> Section:
    """One part: both models and their difference by layer, and what each model's own page says."""
    rows = differences.filter(pl.col("part") == part.name)
    figures = [
        figure for number, one in enumerate(_drawn(part, rows), 1) for figure in (_figure(part, *one, number, facts),)
    ]
    tables = [_table(title, unit, found, facts) for title, unit, found in _drawn(part, rows)]
    link = Markup('<a href="{}">{}</a>').format
    said = list(zip(part.pages, words.called_apart(facts.models), part.findings, strict=True))
    own = Bullets(tuple(link(page, name) for page, name, _ in said), "Each by itself")
    found = tuple((name, one) for _, name, of in said for one in of)
    caption = "What each page found"
    in_words = Table(("model", "found"), found, caption, folded=True, label=f"{caption}: {part.name}", prose=True)
    return Section(TITLES.get(part.name, part.name), (), tuple(figures), tuple(tables), blocks=(own, in_words))


def _drawn(part: ComparedPart, rows: pl.DataFrame) -> Iterator[tuple[str, str, DifferenceRows]]:
    """What is drawn by layer, by what it is of: title, unit, and a row for each layer and component; heads as their layer's mean."""
    for title, unit in dict.fromkeys((one.title, one.unit) for one in part.by_layer):
        named = {one.measure: one.component for one in part.by_layer if (one.title, one.unit) == (title, unit)}
        mine = rows.filter(pl.col("measure").is_in(list(named)), pl.col("layer").is_not_null())
        plain = mine.filter(pl.col("group").is_null())
        mine = mine if plain.is_empty() else plain
        whole = mine.filter(pl.col("head").is_null())
        found = whole.to_dicts()
        if whole.is_empty():
            keys = ["stack", "layer", "component", "measure", "group"]
            means = mine.group_by(keys, maintain_order=True).agg(pl.col("first", "second", "value").mean())
            found = [row | {"low": None, "high": None} for row in means.to_dicts()]
        for row in found:
            row["component"] = named[str(row["measure"])] or row["component"] or LAYER
        groups = list(dict.fromkeys(row["group"] for row in found))
        for group in groups:
            own = [row for row in found if row["group"] == group]
            called = f"{title}, {group}" if len(groups) > 1 else title
            yield called, unit, sorted(own, key=lambda r: (r["stack"], r["layer"], _order(r["component"])))


def _figure(
    part: ComparedPart, title: str, unit: str, rows: DifferenceRows, number: int, facts: CompareFacts
) -> Figure:
    """Three panels: the first model, the second, and their difference with its interval."""
    panels = {
        name: [Bar(row["component"], _place(row, rows), row[key]) for row in rows]
        for key, name in zip(("first", "second"), words.called_apart(facts.models), strict=True)
    }
    panels["difference"] = [
        Bar(row["component"], _place(row, rows), row["value"], row["low"], row["high"]) for row in rows
    ]
    caption = f"{_begun(title)} by layer in both models, and the second minus the first with its 95 % interval where there is one."
    names = (f"compare-{part.name}-{number}", "", _begun(title))
    return layer_figure(names, caption, panels, unit, "0", axes={"difference": unit})


def _begun(title: str) -> str:
    return title[:1].upper() + title[1:]


def _place(row: Mapping[str, Any], rows: DifferenceRows) -> str:
    """The layer, with its stack where there are several."""
    several = len({one["stack"] for one in rows}) > 1
    return f"{stack_words(row['stack']) or row['stack']} {row['layer']}" if several else str(row["layer"])


def _table(title: str, unit: str, rows: DifferenceRows, facts: CompareFacts) -> Table:
    cells = tuple(
        (
            f"layer {_place(row, rows)}" + ("" if row["component"] == LAYER else f", {row['component']}"),
            words.number(row["first"]),
            words.number(row["second"]),
            words.number(row["value"], True),
            "–" if row["low"] is None else f"{words.number(row['low'], True)} to {words.number(row['high'], True)}",
        )
        for row in rows
    )
    return Table(
        ("where", *words.called_apart(facts.models), "difference", "95 %"),
        cells,
        f"{_begun(title)}, {unit}",
        wrap=False,
    )
