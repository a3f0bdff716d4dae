"""The page of two models side by side: each layer's numbers of both and their difference, and their own pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Estimate, Finding
from trisect.core.tables import ROW
from trisect.lab.units.page import by_title, layer_values
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import FEW_TEXTS, capital, number_words
from trisect.report.measures import Bar, layer_figure, sort_components
from trisect.report.sheet import (
    Bullets,
    Section,
    Sheet,
    Table,
    notes_section,
    present,
    provenance,
    quiet,
    sentences,
    small_multiples,
)

if TYPE_CHECKING:
    from trisect.experiments.compare.settings import CompareFacts
    from trisect.lab.experiment import UnitsFacts

TITLES = {
    "norms": "Where information comes from",
    "similarity": "How alike matrices are",
    "ablate": "What breaks",
    "erase": "What a label is needed for",
    "profile": "What is kept",
    "patch": "What another text's parts change",
}


def page(tables: Mapping[str, pl.DataFrame], about: About[CompareFacts]) -> Sheet:
    """The page from the table differences."""
    facts, differences, models = about.facts, tables["differences"], about.facts.parts[0].models
    first, second = words.display_names([model.name for model in models])
    tokens = " and ".join(words.quantity(n, "token") for n in facts.tokens)
    paired = f"They split the texts differently ({tokens}): differences over texts have no interval."
    if facts.paired:
        units = " or ".join(_units(differences)) or "text"
        paired = f"Both split the texts into the same tokens, so that differences are paired by {units}."
    results = findings(tables, about)
    short = [replace(result, title=capital(result.title.partition(", mean over layers")[0])) for result in results]
    caption = f"{second} minus {first}, means over layers; lines are 95 % intervals."
    figure = present(small_multiples("compare-short", "What differs", caption, short))
    parts, link = [], Markup('<a href="{}">{}</a>').format
    for part in facts.parts:  # both models and their difference by layer, and what each model's own page says
        layers = list(_layers(part, differences, (first, second)))
        named = list(zip(part.models, (first, second), strict=True))
        pages = Bullets(tuple(link(model.page, name) for model, name in named), "Each by itself")
        rows = tuple((name, text) for model, name in named for text in model.findings)
        caption = "What each page found"
        in_words = Table(("model", "found"), rows, caption, folded=True, label=f"{caption}: {part.what}", prose=True)
        shown = tuple(drawing for drawing, _ in layers), tuple(table for _, table in layers)
        parts.append(Section(TITLES.get(part.what, part.what), (), *shown, blocks=(pages, in_words)))
    sections = present(
        Section("What differs", (), figure, present(sentences(results)), blocks=quiet(_scope(differences, facts))),
        *parts,
        notes_section(about),
    )
    named = zip(models, facts.shapes, strict=True)
    facts_of = [(f"Model {i}", f"{m.name}, weights {m.fingerprint}. {shape}") for i, (m, shape) in enumerate(named, 1)]
    texts = ("Texts", f"{facts.corpus}, fingerprint {facts.corpus_fingerprint}; {tokens}")
    lede = f"{first} and {second} · {facts.corpus} · {tokens}. {paired}"
    clear = [
        (abs(e.low + e.high) / (e.high - e.low), result, e)
        for result in results
        for e in result.values
        if e.low is not None and e.high is not None and e.high > e.low and e.low * e.high > 0
    ]
    answer = "No difference between the two models is certain: every 95\u00a0% interval holds 0."
    if clear:
        _, result, e = max(clear, key=lambda item: item[0])
        quantity, mean_of, _ = result.title.partition(", mean over layers")
        answer = (
            f"{first} and {second} differ most clearly in the {quantity} of {words.COMPONENT_NAMES.get(e.name, e.name)}{mean_of}: "
            f"the second less the first is {number_words(e)}, {result.unit}."
        )
    ends = provenance(about, *facts_of, texts, timed=False)
    return Sheet(
        f"What differs between {first} and {second}?", "trisect · two models", lede, sections, ends, (), answer
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[CompareFacts]) -> tuple[Finding, ...]:
    """For each part, the mean over layers of every component in both models, and the difference."""
    findings = []
    for part in about.facts.parts:
        for (title, unit), measures in by_title(part.by_layer).items():
            means = pl.col("measure").is_in([f"mean_{m.measure}" for m in measures])
            rows = tables["differences"].filter(pl.col("part") == part.what, means)
            rows = rows.with_columns(pl.col("group").fill_null(""))
            is_one_stack = rows["stack"].n_unique() < 2
            for group in (groups := sorted(rows["group"].unique())):
                group_rows, values, texts = rows.filter(group=group), [], []
                order = sort_components(group_rows["component"])
                for row in sorted(group_rows.to_dicts(), key=lambda row: order.index(row["component"])):
                    name = f"{'' if is_one_stack else row['stack']} {row['component']}".strip()
                    values.append(Estimate(name, row["value"], row["low"], row["high"], row["n"]))
                    both = f"{words.number(row['first'])} and {words.number(row['second'])}"
                    texts.append(f"{name} {both}, difference {number_words(values[-1])}".strip())
                label = f"{title}{f', {group}' if len(groups) > 1 else ''}, mean over layers, {unit}"
                fields = (f"difference_{part.what}", f"{', '.join(texts)}.", unit, tuple(values))
                findings.append(Finding(*fields, title=label, per=" or ".join(_units(group_rows))))
    return tuple(findings)


def _units(rows: pl.DataFrame) -> list[str]:
    """The units that were resampled for intervals: text or article, or both if parts differ; empty without intervals."""
    return sorted(rows.filter(pl.col("n").is_not_null())["per"].unique())


def _scope(differences: pl.DataFrame, facts: CompareFacts) -> Iterator[str]:
    if units := _units(differences):
        yield (
            f"Intervals are 95 % of a bootstrap over {' or '.join(f'{unit}s' for unit in units)} in which both models meet the same "
            "draws. They speak of these two models, not of how they were made, and are not corrected for how many there are. What is "
            "of the weights alone has none."
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
    """A warning for each kind of unit with fewer members than a bootstrap needs."""
    small_samples = differences.filter(pl.col("n").is_not_null(), pl.col("n") < FEW_TEXTS)
    for (unit,), rows in sorted(small_samples.group_by("per")):
        counts = sorted(set(rows["n"]))
        numbers = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        yield f"With fewer than {FEW_TEXTS} {unit}s such intervals are too narrow to lean on; here some are over {numbers}."


def _layers(part: UnitsFacts, differences: pl.DataFrame, names: tuple[str, ...]) -> Iterator[tuple[Figure, Table]]:
    """Both models and their difference by layer, with intervals, as a figure and a table."""
    rows = differences.filter(pl.col("part") == part.what)
    rows = rows.filter(pl.col("group").is_null() | ~pl.col("group").is_null().any().over("measure", "layer"))
    columns = ("first", "second", "value", "low", "high")
    long = pl.concat(
        rows.filter(pl.col("head").is_null() | pl.lit(name not in ("low", "high"))).select(  # heads' ends have no mean
            pl.lit(name).alias("model"), *ROW, pl.col(name).alias("value")
        )
        for name in columns
    )
    for (title, unit), measures in by_title(part.by_layer).items():
        panels: dict[str, list[tuple[str, str, Mapping[str, float]]]] = {}
        for (panel, component, layer), row in layer_values(long, measures).items():
            called = panel.removesuffix(component).removesuffix(", ")  # pairs of components, such as q-k, share a panel
            panels.setdefault(called, []).append((component, str(layer), row))
        for panel, spots in panels.items():
            called = capital(", ".join(filter(None, (title, panel))))
            shown: dict[str, list[Bar]] = {
                name: [Bar(component or "whole layer", layer, row[key]) for component, layer, row in spots]
                for key, name in zip(columns, names, strict=False)
            }
            shown["difference"] = [
                Bar(component or "whole layer", layer, row["value"], row.get("low"), row.get("high"))
                for component, layer, row in spots
            ]
            caption = f"{called} by layer in both models, and the second minus the first with its 95 % interval where there is one."
            name = f"compare-{part.what}-{words.slug(called)}"
            figure = layer_figure((name, "", called), caption, shown, unit, "0", axes={"difference": unit})
            cells = [
                (
                    ", ".join(filter(None, (f"layer {layer}", component))),
                    words.number(row["first"]),
                    words.number(row["second"]),
                    words.number(row["value"], True),
                    f"{words.number(row['low'], True)} to {words.number(row['high'], True)}" if "low" in row else "–",
                )
                for component, layer, row in spots
            ]
            yield figure, Table(("where", *names, "difference", "95 %"), tuple(cells), f"{called}, {unit}", wrap=False)
