"""The page of two models side by side: each layer's numbers of both and their difference, and their own pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Estimate, Finding
from trisect.lab.units.page import by_title, layer_values
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import capital, number_words
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
SCOPE = (
    "Intervals are 95 % of Student's t over the differences of layers, or of heads where layers have no number of their own, that "
    "both models have. They say whether layers of these two models differ in one direction on these texts, not what other texts or "
    "other trainings would give, and are not corrected for how many there are."
)
PLACES = (
    "Heads are paired by layer and place. Between models that were trained apart a place means nothing: pairs are then pairs of a "
    "layer's heads, as good as any others."
)
SHAPES = "The models differ in shape: differences are of the layers and heads that both have."


def page(tables: Mapping[str, pl.DataFrame], about: About[CompareFacts]) -> Sheet:
    """The page from the table differences and the measures of both models."""
    facts, models, results = about.facts, about.facts.parts[0].models, findings(tables, about)
    first, second = names = words.display_names([model.name for model in models])
    short = [replace(finding, title=capital(finding.title)) for finding in results]
    caption = f"{second} minus {first}, means over layers; lines are 95 % intervals over layers, or heads."
    figures = present(small_multiples("compare-short", "What differs", caption, short))
    means = present(sentences(short, "Means over layers, and what intervals are over"))
    notes = (SCOPE, PLACES, *[SHAPES] * (facts.shapes[0] != facts.shapes[1]))
    parts = (_part(part, tables[f"{part.what}_measures"], names) for part in facts.parts)
    named = zip(models, facts.shapes, strict=True)
    facts_of = [(f"Model {i}", f"{m.name}, weights {m.fingerprint}. {shape}") for i, (m, shape) in enumerate(named, 1)]
    texts = ("Texts", f"{facts.corpus}, fingerprint {facts.corpus_fingerprint}")
    return Sheet(
        f"What differs between {first} and {second}?",
        "trisect · two models",
        f"{first} and {second} · {facts.corpus}. Differences are the second model's number less the first's.",
        present(Section("What differs", (), figures, means, blocks=quiet(notes)), *parts, notes_section(about)),
        provenance(about, *facts_of, texts, timed=False),
        (),
        _answer(results, names),
    )


def _answer(results: Sequence[Finding], names: Sequence[str]) -> str:
    """The difference whose interval is furthest from 0, in its own widths."""
    intervals = [
        (finding, e, e.low, e.high)
        for finding in results
        for e in finding.values
        if e.low is not None and e.high is not None
    ]
    clear = [(abs(low + high) / (high - low), finding, e) for finding, e, low, high in intervals if low * high > 0]
    if not clear:
        return "No difference between the two models is certain over their layers: no 95\u00a0% interval leaves out 0."
    _, finding, e = max(clear, key=lambda item: item[0])
    component = f" ({words.COMPONENT_NAMES.get(e.name, e.name)})" * bool(e.name)
    return (
        f"{' and '.join(names)} differ most clearly in one number, {finding.title}{component}: the second less the first is "
        f"{number_words(e)}, {finding.unit}, mean over {words.quantity(e.n or 0, finding.per)}; "
        f"{len(clear)} of {len(intervals)} such intervals leave out 0."
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[CompareFacts]) -> tuple[Finding, ...]:
    """For each part, the mean over layers of every component in both models, and the difference."""
    results = []
    for part in about.facts.parts:
        for (title, unit), measures in by_title(part.by_layer).items():
            named = pl.col("measure").is_in([f"mean_{shown.measure}" for shown in measures])
            rows = tables["differences"].filter(named, pl.col("per").is_not_null(), part=part.what)
            rows = rows.with_columns(pl.col("component", "group").fill_null(""))
            stacks, kinds = rows["stack"].unique(), sorted(rows.group_by("group", "per").agg().rows())
            for group, per in kinds:
                alike, values, texts = rows.filter(group=group, per=per), [], []
                order = sort_components(alike["component"])
                for row in sorted(alike.to_dicts(), key=lambda row: order.index(row["component"])):
                    name = f"{row['stack'] if len(stacks) > 1 else ''} {row['component']}".strip()
                    values.append(Estimate(name, row["value"], row["low"], row["high"], row["n"]))
                    both = f"{words.number(row['first'])} and {words.number(row['second'])}"
                    texts.append(f"{name} {both}, difference {number_words(values[-1])}".strip())
                over = " or ".join(words.quantity(n, per) for n in sorted(alike["n"].unique()))
                sentence = f"mean over {over}, {unit}: {', '.join(texts)}."
                label = f"{title}, {group}" if group and len(kinds) > 1 else title
                results.append(Finding(f"difference_{part.what}", sentence, unit, tuple(values), title=label, per=per))
    return tuple(results)


def _part(part: UnitsFacts, measures: pl.DataFrame, names: tuple[str, ...]) -> Section:
    """Both models and their difference by layer, and what each model's own page says."""
    layers, link = list(_layers(part, measures, names)), Markup('<a href="{}">{}</a>').format
    named = list(zip(part.models, names, strict=True))
    pages = Bullets(tuple(link(model.page, name) for model, name in named), "Each by itself")
    rows = tuple((name, text) for model, name in named for text in model.findings)
    caption = "What each page found"
    in_words = Table(("model", "found"), rows, caption, folded=True, label=f"{caption}: {part.what}", prose=True)
    shown = tuple(figure for figure, _ in layers), tuple(table for _, table in layers)
    return Section(TITLES.get(part.what, part.what), (), *shown, blocks=(pages, in_words))


def _layers(part: UnitsFacts, measures: pl.DataFrame, names: tuple[str, ...]) -> Iterator[tuple[Figure, Table]]:
    """Both models and their difference by layer, as a figure and a table."""
    for (title, unit), shown in by_title(part.by_layer).items():
        panels: dict[str, list[tuple[str, str, tuple[float, ...]]]] = {}
        for (panel, component, layer), by_model in layer_values(measures, shown).items():
            called = panel.removesuffix(component).removesuffix(", ")  # pairs of components, such as q-k, share a panel
            if len(by_model) == len(names):
                first, second = (by_model[name] for name in part.names)
                panels.setdefault(called, []).append((component, str(layer), (first, second, second - first)))
        for panel, spots in panels.items():
            called = capital(", ".join(filter(None, (title, panel))))
            bars = {
                name: [Bar(component or "whole layer", layer, numbers[i]) for component, layer, numbers in spots]
                for i, name in enumerate((*names, "difference"))
            }
            caption = f"{called} by layer in both models, and the second minus the first."
            name = f"compare-{part.what}-{words.slug(called)}"
            figure = layer_figure((name, "", called), caption, bars, unit, "0", axes={"difference": unit})
            cells = [
                (
                    ", ".join(filter(None, (f"layer {layer}", component))),
                    *(words.number(number, i == len(names)) for i, number in enumerate(numbers)),
                )
                for component, layer, numbers in spots
            ]
            yield figure, Table(("where", *names, "difference"), tuple(cells), f"{called}, {unit}", wrap=False)
