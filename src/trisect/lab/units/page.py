"""The page of several models: numbers of each and their mean, by layer, claims over models, and links to single pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Comparison, Estimate, Finding
from trisect.core.tables import ROW
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import Figure
from trisect.report.format import capital, comparison_words, number_words, stack_words
from trisect.report.measures import Bar, layer_figure
from trisect.report.sheet import (
    Bullets,
    Section,
    Sheet,
    Table,
    notes_section,
    present,
    provenance,
    sentences,
    verdict_findings,
)
from trisect.stats.paired import Sample, compare, summary, t_interval
from trisect.stats.significance import finite

if TYPE_CHECKING:
    from trisect.lab.experiment import LayerMeasure, UnitsFacts

NO_MEANS = r"_(p|p_holm|null)$"  # p-values and what chance alone gives are of one model each
KIND = ("measure", "title", "what", "groups", "unit", "source", "per", "signed")  # what tells findings apart
FINDINGS = {
    **dict.fromkeys(("model", *KIND), pl.String),
    "signed": pl.Boolean,
    "name": pl.String,  # of the number within the finding: a component, a site
    **dict.fromkeys(("value", "low", "high"), pl.Float64),
    "n": pl.Int64,
}


def concat_tables(tables: Mapping[str, Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """Concatenate tables of all models by name; the first column has the model."""
    parts: dict[str, list[pl.DataFrame]] = {}
    for model, by_name in tables.items():
        for name, table in by_name.items():
            parts.setdefault(name, []).append(table.select(pl.lit(model, pl.String).alias("model"), pl.all()))
    return {name: pl.concat(tables, how="diagonal_relaxed") for name, tables in parts.items()}


def over_models(measures: pl.DataFrame) -> pl.DataFrame:
    """The mean of every number over models that have it, with a 95 % Student t interval, and the spread of models.

    `n` counts models: a number that fewer of them have says so. There is no interval with one model, or where all agree.
    """
    numbers = measures.filter(pl.col("value").is_not_null(), ~pl.col("measure").str.contains(NO_MEANS))
    table = numbers.group_by(ROW, maintain_order=True).agg(
        pl.col("value").mean(),
        pl.col("value").min().alias("least"),
        pl.col("value").max().alias("most"),
        pl.col("value").alias("each"),
        pl.col("model").n_unique().cast(pl.Int64).alias("n"),
    )
    table = with_intervals(table).select(*ROW, "value", "low", "high", "n", "spread", "least", "most")
    return table.sort(list(ROW), nulls_last=True)


def with_intervals(table: pl.DataFrame) -> pl.DataFrame:
    """The table with `low` and `high`, the 95 % Student t interval, and `spread` of the numbers in each row's list `each`."""
    samples = [summary(row) for row in table["each"].to_list()]
    sample = Sample(*(np.array([float(getattr(s, field)) for s in samples]) for field in Sample._fields))
    ends = t_interval(sample)
    columns = {"low": ends.low, "high": ends.high, "spread": sample.spread}
    return table.with_columns(pl.Series(name, [finite(v) for v in data], pl.Float64) for name, data in columns.items())


def findings_table(findings: Mapping[str, Iterable[Finding]]) -> pl.DataFrame:
    """A row for every number in the models' findings except verdicts, with the model's name."""
    rows = [
        {"model": model, **{key: getattr(finding, key) for key in KIND}, "groups": ", ".join(finding.groups)}
        | {"name": number.name, "value": number.mean, "low": number.low, "high": number.high, "n": number.n}
        for model, of_model in findings.items()
        for finding in of_model
        if finding.claim is None
        for number in finding.values
    ]
    return pl.DataFrame(rows, schema=FINDINGS, orient="row")


class _PooledFinding(NamedTuple):
    """A finding over models: its subject, and of each number that every model has the mean and each model's estimate."""

    measure: str
    label: str
    unit: str
    source: str
    groups: tuple[str, ...]
    per: str
    signed: bool
    numbers: tuple[tuple[Estimate, tuple[Estimate, ...]], ...]
    margin: float | None = None  # within which q, k and v are alike; None where they are not to be ranked

    @property
    def compared(self) -> Comparison | None:
        """Paired differences of q, k and v over models: t over models, Holm over the pairs."""
        values = {
            mean.name: [e.mean or 0.0 for e in each] for mean, each in self.numbers if mean.name in ("q", "k", "v")
        }
        return compare(values, self.margin) if self.margin is not None and len(values) > 1 else None


def pool_findings(table: pl.DataFrame, models: Sequence[str]) -> tuple[_PooledFinding, ...]:
    """The findings that all models share, in the first model's order.

    Sites are left out: which are largest is chosen by each model's own numbers, so that their mean would be too far from 0.
    """
    pooled = []
    table = table.filter(~pl.col("name").str.contains("@", literal=True), pl.col("value").is_not_null())
    for kind, rows in table.group_by(KIND, maintain_order=True):
        measure, title, quantity, groups, unit, source, per = map(str, kind[:-1])
        numbers = []
        for (name,), of_name in rows.group_by("name", maintain_order=True):
            by_model = {row["model"]: row for row in of_name.iter_rows(named=True)}
            if all(model in by_model for model in models):
                each = (Estimate(m, *(by_model[m][key] for key in ("value", "low", "high", "n"))) for m in models)
                numbers.append(_pool(str(name), each))
        about = tuple(filter(None, groups.split(", ")))
        label = title or quantity or measure.replace("_", " ")
        label = ", ".join((label, *(group for group in about if group not in label)))
        if numbers:
            pooled.append(_PooledFinding(measure, label, unit, source, about, per, bool(kind[-1]), tuple(numbers)))
    return tuple(pooled)


def _pool(name: str, each: Iterable[Estimate]) -> tuple[Estimate, tuple[Estimate, ...]]:
    estimates = tuple(each)
    return _mean(name, [estimate.mean or 0.0 for estimate in estimates]), estimates


def _mean(name: str, values: Sequence[float]) -> Estimate:
    """The mean over models with its 95 % Student t interval; no interval for one model, or equal values."""
    sample = summary(values)
    low, high = t_interval(sample)
    return Estimate(name, float(sample.mean), finite(low), finite(high), len(values))


FEW_MODELS = 5
# no effects: what a model does as it is, or how estimates rank
BASELINES = ("answered", "unedited", "attribution_correlation")
FEW_SENTENCES = 3  # findings that are said in paragraphs; more are folded
LAYER_GROUP = r", layers ([0-9](?:[0-9,-]*[0-9])?)"  # how the group of a row says that it is of several layers at once, and of which
TITLES = {False: "Layer by layer", True: "Several layers at once"}
REFERENCES = (
    "Thibault Sellam et al. The MultiBERTs: BERT Reproductions for Robustness Analysis. ICLR 2022.",
    "Oskar van der Wal et al. PolyPythias: Stability and Outliers across Fifty Language Model Pre-Training Runs. ICLR 2025.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> Sheet:
    """The page from the tables, for any experiment."""
    facts, unit = about.facts, "model" if about.facts.is_sample else "revision"
    explanation = (
        "Each of them counts as one unit: means, intervals and claims speak of the recipe that they were made by, on these texts."
        if facts.is_sample
        else "They are steps on one way and no sample, so that nothing is averaged or tested over them: each has its own numbers, in order."
    )
    pooled = _pooled(tables, facts)
    results = [finding for finding in findings(tables, about) if finding.claim is None]
    # the page begins with the first finding that is an effect, and says it once
    effects = [finding for finding in results if finding.measure not in BASELINES]
    answers = [finding for finding in results if finding not in effects[:1]]
    # findings that are too many for paragraphs are a folded table: the figures show their numbers
    is_short, in_words = len(answers) <= FEW_SENTENCES, sentences([replace(f, title=capital(f.title)) for f in answers])
    paragraphs = (*(capital(str(finding)) for finding in answers if is_short), *_reading(results, facts))
    shown = present(None if is_short else in_words, _pairs(pooled, facts) if facts.is_sample else None)
    sections = present(
        Section(f"Over {unit}s", paragraphs, tuple(_figures(pooled, facts)), shown),
        _claims(tables, facts),
        *layer_sections(tables, facts),
        _each_model(pooled, facts),
        notes_section(about),
    )
    weights = ", ".join(f"{model.name} ({model.fingerprint})" for model in facts.models)
    names = words.display_names(facts.names)
    return Sheet(
        f"What does trisect {facts.what} find in {words.quantity(len(facts.models), unit)}?",
        f"trisect · {facts.what} over {facts.units}",
        f"{('; ' if any(',' in name for name in names) else ', ').join(names)}. {explanation}",
        sections,
        provenance(about, (capital(f"{unit}s"), weights), timed=False),
        REFERENCES if facts.is_sample else (),
        "".join(_lead(finding, facts) for finding in effects[:1]),
    )


def _lead(finding: Finding, facts: UnitsFacts) -> str:
    """The first sentence: a finding's means over models; for revisions, its first and last numbers."""
    if not facts.is_sample:
        return capital(str(finding))
    named = [e for e in finding.values if e.name in words.COMPONENT_NAMES]
    values = named if len(named) > 1 else finding.values
    names = {e.name: f" for {words.COMPONENT_NAMES.get(e.name, e.name)}" * (e.name != finding.title) for e in values}
    sizes = words.join_words([f"{number_words(e, finding.signed)}{names[e.name]}" for e in values])
    side = "" if finding.compared is None else f" ({finding.compared.words('model')})"
    quantity, over, _ = (finding.title[:1].lower() + finding.title[1:]).partition(", mean over layers")
    over = f"{words.quantity(len(facts.models), 'model')}{' and their layers' * bool(over)}"
    return f"Averaged over {over}, {quantity}{',' * (', ' in quantity)} is {sizes}, {finding.unit}{side}."


def findings(tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> tuple[Finding, ...]:
    """Findings over models as means (for revisions, first and last); then verdicts over models."""
    names, shared = about.facts.names, list[Finding]()
    for pooled in _pooled(tables, about.facts):
        more: dict[str, Any] = {"source": pooled.source, "title": pooled.label, "groups": pooled.groups}
        if about.facts.is_sample:
            sizes = [(mean.name, number_words(mean, pooled.signed)) for mean, _ in pooled.numbers]
            parts = ", ".join(size if name == pooled.label else f"{name} {size}" for name, size in sizes)
            side = comparison_words(None if pooled.compared is None else pooled.compared.data(), "model")
            sentence = f"mean over {words.quantity(len(names), 'model')}, {pooled.unit}: {parts}.{side}"
            more |= {"per": "model", "comparison": side.strip(), "compared": pooled.compared}
            values = tuple(mean for mean, _ in pooled.numbers)
        else:
            ends = [
                [mean.name, *(words.number(each[i].mean, pooled.signed) for i in (0, -1))]
                for mean, each in pooled.numbers
            ]
            parts = ", ".join(f"{name} {first} to {last}" for name, first, last in ends)
            sentence = f"from {names[0]} to {names[-1]}, {pooled.unit}: {parts}."
            more |= {"per": pooled.per}
            values = tuple(each[-1]._replace(name=mean.name) for mean, each in pooled.numbers)
        shared.append(Finding(pooled.measure, sentence, pooled.unit, values, signed=pooled.signed, **more))
    return (*shared, *(verdict_findings(tables["claims"]) if "claims" in tables else ()))


def _pooled(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> tuple[_PooledFinding, ...]:
    """Findings that all models share, and means over layers of measures by layer without a finding."""
    means = list(_layer_means(tables["measures"], facts))

    def is_of(pooled: _PooledFinding, layers: LayerMeasure, panel: str) -> bool:
        """Whether a finding has the measure, unit and group of a panel."""
        same = (pooled.measure, pooled.unit) == (layers.finding, layers.unit)
        return same and (not panel or not pooled.groups or not set(panel.split(", ")).isdisjoint(pooled.groups))

    def digits(pooled: _PooledFinding) -> set[tuple[float, ...]]:
        return {tuple(round(e.mean or 0.0, 9) for e in each) for _, each in pooled.numbers}

    shared = []
    for pooled in pool_findings(tables["findings"], facts.names):
        margins = (layers.margin for _, layers, panel in means if is_of(pooled, layers, panel))
        shared.append(pooled._replace(margin=next(margins, None)))
    new = (
        mean
        for mean, layers, panel in means
        if not any(is_of(pooled, layers, panel) and digits(pooled) >= digits(mean) for pooled in shared)
    )
    return (*shared, *tuple(new))


def by_title(measures: Iterable[LayerMeasure]) -> dict[tuple[str, str], list[LayerMeasure]]:
    """Measures by layer, by title and unit."""
    grouped: dict[tuple[str, str], list[LayerMeasure]] = {}
    for measure in measures:
        grouped.setdefault((measure.title, measure.unit), []).append(measure)
    return grouped


def _layer_means(measures: pl.DataFrame, facts: UnitsFacts) -> Iterator[tuple[_PooledFinding, LayerMeasure, str]]:
    """Each component's mean over layers, for every measure by layer, with measure and panel."""
    for (title, unit), layers in by_title(facts.by_layer).items():
        values: dict[str, dict[str, dict[str, list[float]]]] = {}  # by panel, component and model
        spots, over = layer_values(measures, layers), "mean over layers"
        at_once = {} if spots else layer_values(measures, layers, True)
        if len({layer for _, _, layer in at_once}) == 1:
            spots, over = at_once, "several layers at once"
        for (panel, component, _), by_model in spots.items():
            for model, value in by_model.items():
                values.setdefault(panel, {}).setdefault(component, {}).setdefault(model, []).append(value)
        for panel, components in values.items():
            numbers = [
                _pool(c, (Estimate(m, sum(components[c][m]) / len(components[c][m])) for m in facts.names))
                for c in render.GROUPS
                if len(components.get(c, {})) == len(facts.names)
            ]
            label, first = f"{', '.join(filter(None, (title, panel)))}, {over}", layers[0]
            if numbers:
                about = (f"mean_{first.measure}", label, unit, "", (), "layer", first.signed)
                yield _PooledFinding(*about, tuple(numbers), first.margin), first, panel


def _reading(answers: Sequence[Finding], facts: UnitsFacts) -> Iterator[str]:
    """How to read numbers over models."""
    if not answers:
        yield "No number stands among the findings of all of them; each model's own page has its own."
    if not facts.is_sample:
        yield "Intervals are each revision's own, over its texts or heads."
        return
    if any(finding.compared is not None for finding in answers):
        yield (
            "Queries, keys and values are compared by each model's own difference: t over models, Holm over the pairs of a measure, "
            "and two one-sided tests for being alike. The result is about the recipe, not about one model."
        )
    yield (
        "Intervals are 95 % of Student's t over models, and include what differs between models of the recipe on these texts. "
        "They are not corrected for how many there are. All models have read the same texts, so that what other texts would "
        "change is common to them and in no interval."
    )
    if len(facts.models) < FEW_MODELS:
        yield f"With {len(facts.models)} models they are wide: t has {words.quantity(len(facts.models) - 1, 'degree')} of freedom."


def _figures(pooled: Sequence[_PooledFinding], facts: UnitsFacts) -> Iterator[Figure]:
    """A figure for each kind of finding, with a panel for each finding.

    Over models means with every model's number, a panel for each way that a component is measured in; else revisions in their order.
    """
    kinds: dict[tuple[str, str], list[_PooledFinding]] = {}
    for finding in sorted(pooled, key=lambda finding: finding.measure in BASELINES):
        if finding.measure != "unedited":  # what changes are of: one number, which the sentence has
            kinds.setdefault((finding.measure, finding.unit), []).append(finding)
    for number, ((measure, unit), alike) in enumerate(kinds.items(), start=1):
        panels, small = dict[str, list[Bar]](), dict[str, list[Bar]]()
        for label, (mean, each) in [(finding.label, number) for finding in alike for number in finding.numbers]:
            if facts.is_sample:
                component, _, way = mean.name.partition(", ")
                split = bool(way) and component in render.GROUPS
                name, title = (component, f"{label}, {way}") if split else (mean.name, label)
                bar = Bar(_group_of(component), name, mean.mean or 0.0, mean.low, mean.high)
                panels.setdefault(title, []).append(bar)
                small.setdefault(title, []).extend(Bar(bar.group, name, e.mean or 0.0) for e in each)
            else:
                group = _group_of(mean.name)
                title = label if group == mean.name else f"{label}, {mean.name}"
                course = (Bar(group, _last_name(e.name), e.mean or 0.0, e.low, e.high) for e in each)
                panels.setdefault(title, []).extend(course)
        every = "Every revision in its order, with its own 95 % interval."
        title = capital(alike[0].label if len(alike) == 1 else measure.replace("_", " "))
        names = (f"over-{words.slug(measure)}-{number}", f"Figure {number}", title)
        across, caption = ("", f"{_signs(facts)}.") if facts.is_sample else ("revision", every)
        yield layer_figure(names, caption, panels, unit, "0", across, small)


def _pairs(pooled: Sequence[_PooledFinding], facts: UnitsFacts) -> Table | None:
    """Paired differences of q, k and v over models, for findings that rank them."""
    rows = []
    for finding in pooled:
        for p in finding.compared.pairs if finding.compared is not None else ():
            side = "alike" if p.alike else f"{p.first} above {p.second}" if p.above else "not distinguished"
            ends = words.ends(Estimate("", p.effect, p.low, p.high), True)
            effect = words.number(p.effect, True)
            rows.append((finding.label, f"{p.first} minus {p.second}", effect, ends, f"{p.p_holm:.2g}", side))
    columns = ("of", "difference", "mean", "95 %", "p, Holm", "reading")
    return Table(columns, tuple(rows), f"Paired by model, n = {len(facts.models)}", wrap=False) if rows else None


def _claims(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Section | None:
    """Verdicts over models, and below them those of single models."""
    if "claims_by_model" not in tables:
        return None
    rows = tables["claims_by_model"].filter(pl.col("part").is_null())
    names = rows["claim"].unique(maintain_order=True).to_list()
    verdicts = {}
    for row in rows.iter_rows(named=True):
        effect = f" {words.number(row['effect'], True)}" if isinstance(row["effect"], float) else ""
        verdicts[row["model"], row["claim"]] = f"{row['verdict']}{effect}"
    cells = tuple((model, *(verdicts.get((model, name), "–") for name in names)) for model in facts.names)
    verdicts_by_model = Table(
        ("model", *names), cells, "Each model's own verdict, from its own texts or heads", wrap=False
    )
    over = (
        "A claim's effect is each model's own; it is tested by Student's t over models, and corrected over the claims of its "
        "source as for one model. A part that has to hold for every head enters with the head that speaks for it least; as noise moves "
        "that head towards the bound, such a part may support a claim and not refute it. What bars a verdict in one model, such as "
        "too few texts, bars it over all: they have read the same texts, and intervals and verdicts hold for these."
    )
    if "claims" not in tables:
        over = "Revisions of one model are no sample of anything: each has verdicts of its own, and there is none over them."
    return Section("Results of the claims", (over,), (), (verdicts_by_model,), tables.get("claims"))


def _each_model(pooled: Sequence[_PooledFinding], facts: UnitsFacts) -> Section:
    """Each model's numbers and a link to its page."""
    links = []
    for model in facts.models:
        sizes = ", ".join(f"{value} {name}" for name, value in model.facts)
        links.append(Markup('<a href="{}">{}</a>: {}').format(model.page, model.name, sizes))
    rows = []
    for finding, (mean, each) in [(shared, number) for shared in pooled for number in shared.numbers]:
        name = finding.label if mean.name == finding.label else f"{finding.label}: {mean.name}"
        over = (words.number(mean.mean, finding.signed), words.ends(mean, finding.signed)) if facts.is_sample else ()
        rows.append((name, *(words.number(e.mean, finding.signed) for e in each), *over))
    columns = ("model", *facts.names, *(("mean", "95 %") if facts.is_sample else ()))
    numbers = (Table(columns, tuple(rows), "Every model's numbers", wrap=False),) if rows else ()
    return Section("Each model", (), (), numbers, blocks=(Bullets(tuple(links), "Their own pages"),))


LayerSpots = dict[tuple[str, str, int | str], dict[str, float]]  # panel, component, layer -> value of each model


def layer_values(measures: pl.DataFrame, layers: Iterable[LayerMeasure], several_at_once: bool = False) -> LayerSpots:
    """The value in every model by panel, component and layer; the mean of heads if the layer has no value of its own.

    Panels stand by name, then layers, then q, k and v. With `several_at_once` it is of what is of more than one layer, in place
    of the layer those layers as the row's group spells them ('1-3').
    """
    spots: LayerSpots = {}
    for measure in layers:
        rows = measures.filter(pl.col("measure") == measure.measure, pl.col("value").is_not_null())
        if several_at_once:
            group, head = pl.col("group").str.replace(LAYER_GROUP, ""), pl.col("head")
            rows = rows.with_columns(
                pl.col("group").str.extract(LAYER_GROUP).alias("layer"),
                pl.when(head.is_null()).then(group).otherwise(pl.format("{}, head {}", group, head)).alias("group"),
                pl.lit(None, pl.Int64).alias("head"),
            )
        rows = rows.filter(pl.col("layer").is_not_null())
        if rows["at"].is_not_null().any():
            rows = rows.filter(pl.col("at").is_null())
        keys = ("model", "stack", "layer", "component", "group")
        by_layer = rows.filter(pl.col("head").is_null()).select(*keys, "value")
        heads = rows.filter(pl.col("head").is_not_null()).group_by(keys).agg(pl.col("value").mean())
        heads = heads.join(by_layer, on=keys, how="anti", nulls_equal=True)
        differ = {name: rows[name].n_unique() > 1 for name in ("stack", "group")}
        for row in pl.concat([by_layer, heads]).sort(keys).iter_rows(named=True):
            component = measure.component or row["component"] or ""
            stack = (stack_words(row["stack"]) or row["stack"]) if differ["stack"] else ""
            group, other = row["group"] if differ["group"] else "", "" if component in render.GROUPS else component
            panel = ", ".join(filter(None, (stack, group, other)))
            spots.setdefault((panel, component, row["layer"]), {})[row["model"]] = row["value"]

    def order(spot: tuple[str, str, int | str]) -> tuple[str, list[int], int]:
        panel, component, layer = spot
        groups = [*render.GROUPS, component]
        return panel, [int(n) for n in re.findall(r"\d+", str(layer))], groups.index(component)

    return {spot: spots[spot] for spot in sorted(spots, key=order)}


def layer_sections(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Iterator[Section]:
    """Means over models for every layer, and for several layers at once; for revisions, every layer's curve."""
    number = 0
    for at_once, section in TITLES.items():
        figures, listed = [], []
        for (title, unit), layers in by_title(facts.by_layer).items():
            spots, first = layer_values(tables["measures"], layers, at_once), layers[0]
            if not spots:
                continue
            number += 1
            figures.append(_layer_figure(spots, title, unit, facts, at_once, number))
            rows = []
            for (panel, component, layer), by_model in spots.items():
                place = (panel, _layer_words(layer), component if component in render.GROUPS else "")
                each = [words.number(by_model.get(model), first.signed) for model in facts.names]
                if facts.is_sample:
                    mean = _mean(component, list(by_model.values()))
                    each = [words.number(mean.mean, first.signed), words.ends(mean, first.signed), *each]
                rows.append((", ".join(filter(None, place)), *each))
            columns = ("mean", "95 %", *facts.names) if facts.is_sample else map(_last_name, facts.names)
            caption = f"{title.capitalize()}, {unit}"
            listed.append(Table(("where", *columns), tuple(rows), caption, wrap=False))
        if figures:
            yield Section(section, (), tuple(figures), tuple(listed))


def _layer_figure(spots: LayerSpots, title: str, unit: str, facts: UnitsFacts, at_once: bool, number: int) -> Figure:
    """Means over models and single models, by panel; for revisions, every layer's curve."""
    across, untitled = ("layers", TITLES[True]) if at_once else ("layer", "All layers")
    panels, small = dict[str, list[Bar]](), dict[str, list[Bar]]()
    for (panel, component, layer), by_model in spots.items():
        group = _group_of(component)
        if facts.is_sample:
            mean = _mean(component, list(by_model.values()))
            panels.setdefault(panel or untitled, []).append(
                Bar(group, str(layer), mean.mean or 0.0, mean.low, mean.high)
            )
            models = (Bar(group, str(layer), value) for value in by_model.values())
            small.setdefault(panel or untitled, []).extend(models)
        else:
            course = [Bar(group, _last_name(model), by_model[model]) for model in facts.names if model in by_model]
            panels.setdefault(", ".join(filter(None, (panel, _layer_words(layer)))), []).extend(course)
    how = TITLES[at_once].lower()
    caption = f"{title.capitalize()}, {how}. " if at_once else f"{title.capitalize()} by layer. "
    caption += f"{_signs(facts)} where all have the {across}." if facts.is_sample else "Revisions in their order."
    name = f"{'several-' if at_once else ''}layers-{words.slug(title)}"
    names = (name, f"Figure L{number}", f"{title.capitalize()}, {how}")
    return layer_figure(names, caption, panels, unit, "0", across if facts.is_sample else "revision", small)


def _layer_words(layer: int | str) -> str:
    return f"layers {layer}" if isinstance(layer, str) else f"layer {layer}"


def _signs(facts: UnitsFacts) -> str:
    """The meaning of marks, if single models are drawn beside their mean."""
    n = words.quantity(len(facts.models), "model")
    return f"Small signs are models, large ones their mean with its 95 % interval, n\u00a0=\u00a0{n}"


def _group_of(name: str) -> str:
    """The group of a number in figures: its component, or none."""
    return name if name in render.GROUPS else "all"


def _last_name(model: str) -> str:
    """A revision's name without the model's."""
    return model.rpartition("@")[2]
