"""The page of several models: every model's numbers beside their mean, layer by layer, claims over models, and their own pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np
import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Comparison, Estimate, Finding
from trisect.core.tables import NewRow
from trisect.lab.experiment import LayerMeasure
from trisect.lab.units.settings import MODELS, UnitsFacts
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import Figure
from trisect.report.format import paired_words, spoken_subject, stack_words
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
from trisect.stats.compare import compare
from trisect.stats.paired import Sample, summary, t_interval
from trisect.stats.tested import finite

KEYS = ("stack", "layer", "head", "component", "measure", "group", "at")
NO_MEANS = r"_(p|p_holm|null)$"  # p-values and what chance alone gives are of one model each
FINDINGS = {
    "model": pl.String,
    "measure": pl.String,
    "title": pl.String,
    "what": pl.String,
    "groups": pl.String,
    "unit": pl.String,
    "source": pl.String,
    "per": pl.String,
    "signed": pl.Boolean,
    "name": pl.String,  # of the number within the finding: a component, a site
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,
}


class ModelFindings(NamedTuple):
    """What was found in one model, by the name that rows know it by."""

    model: str
    findings: tuple[Finding, ...]


def joined(tables: Mapping[str, Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """Tables by name, each with those of all models, by model; the first column says which one a row is of."""
    names = dict.fromkeys(name for of in tables.values() for name in of)
    return {
        name: pl.concat(
            [
                of[name].select(pl.lit(model, pl.String).alias("model"), pl.all())
                for model, of in tables.items()
                if name in of
            ],
            how="diagonal_relaxed",
        )
        for name in names
    }


def over_models(measures: pl.DataFrame) -> pl.DataFrame:
    """The mean of every number over the models that have it, with a 95 % Student t interval, and how far models spread.

    `n` counts models: a number that fewer of them have says so. There is no interval with one model, or where all agree.
    """
    found = measures.filter(pl.col("value").is_not_null(), ~pl.col("measure").str.contains(NO_MEANS))
    grouped = found.group_by(KEYS, maintain_order=True).agg(
        pl.col("value").mean(),
        pl.col("value").min().alias("least"),
        pl.col("value").max().alias("most"),
        pl.col("value").alias("each"),
        pl.col("model").n_unique().cast(pl.Int64).alias("n"),
    )
    samples = [summary(row) for row in grouped["each"].to_list()]
    whole = Sample(*(np.array([float(getattr(s, field)) for s in samples]) for field in Sample._fields))
    ends = t_interval(whole)
    more = {"low": ends.low, "high": ends.high, "spread": whole.spread}
    columns = [pl.Series(name, [finite(v) for v in values], pl.Float64) for name, values in more.items()]
    table = grouped.drop("each").with_columns(columns)
    return table.select(*KEYS, "value", "low", "high", "n", "spread", "least", "most").sort(list(KEYS), nulls_last=True)


def findings_table(found: Iterable[ModelFindings]) -> pl.DataFrame:
    """Every number that a model's findings hold but for verdicts, a row each."""
    rows: list[NewRow] = []
    for model, findings in found:
        for one in findings:
            if one.claim is not None:
                continue
            own: NewRow = {
                name: getattr(one, name) for name in ("measure", "title", "what", "unit", "source", "per", "signed")
            }
            own |= {"model": model, "groups": ", ".join(one.groups)}
            rows += [own | _numbers(value) for value in one.values]
    return pl.DataFrame([{c: row.get(c) for c in FINDINGS} for row in rows], schema=FINDINGS, orient="row")


def _numbers(value: Estimate) -> NewRow:
    return {"name": value.name, "value": value.mean, "low": value.low, "high": value.high, "n": value.n}


class PooledNumber(NamedTuple):
    """One number of a finding in every model: its name, each model's own estimate in the order of models, and over models."""

    name: str
    each: tuple[Estimate, ...]
    mean: Estimate


class PooledFinding(NamedTuple):
    """One finding over models: what it is about, and its numbers, those alone that every model has."""

    measure: str
    label: str
    unit: str
    source: str
    groups: tuple[str, ...]
    per: str
    signed: bool
    numbers: tuple[PooledNumber, ...]
    margin: float | None = None  # within which q, k and v are alike; null where they are not to be ranked

    @property
    def compared(self) -> Comparison | None:
        """What models say of q, k and v by paired differences: t over models, Holm over the pairs."""
        of = {n.name: [float(e.mean or 0.0) for e in n.each] for n in self.numbers if n.name in ("q", "k", "v")}
        return compare(of, self.margin) if self.margin is not None and len(of) > 1 else None


def pooled(table: pl.DataFrame, models: Sequence[str]) -> tuple[PooledFinding, ...]:
    """The findings that all models share, in the order in which the first has them.

    Sites are left out: which are largest is chosen by each model's own numbers, so that their mean would be too far from 0.
    """
    keys = ("measure", "title", "what", "groups", "unit", "source", "per", "signed")
    found: dict[tuple[object, ...], dict[str, dict[str, Estimate]]] = {}
    for row in table.iter_rows(named=True):
        names = found.setdefault(tuple(row[key] for key in keys), {})
        estimate = Estimate(row["model"], row["value"], row["low"], row["high"], row["n"])
        names.setdefault(row["name"], {})[row["model"]] = estimate
    made = (_pooled(dict(zip(keys, key, strict=True)), names, models) for key, names in found.items())
    return tuple(one for one in made if one.numbers)


def _pooled(
    named: Mapping[str, object], names: Mapping[str, Mapping[str, Estimate]], models: Sequence[str]
) -> PooledFinding:
    numbers = []
    for name, of in names.items():
        if "@" in name:
            continue
        each = tuple(of[model] for model in models if model in of)
        if len(each) == len(models) and all(one.mean is not None for one in each):
            numbers.append(PooledNumber(name, each, mean_of(name, [float(one.mean or 0.0) for one in each])))
    groups = tuple(filter(None, str(named["groups"]).split(", ")))
    label = str(named["title"] or named["what"] or str(named["measure"]).replace("_", " "))
    rest = [group for group in groups if group not in label]
    label = f"{label}, {', '.join(rest)}" if rest else label
    texts = (str(named[key]) for key in ("measure", "unit", "source", "per"))
    measure, unit, source, per = texts
    return PooledFinding(measure, label, unit, source, groups, per, bool(named["signed"]), tuple(numbers))


def mean_of(name: str, values: Sequence[float]) -> Estimate:
    """The mean over models with its 95 % Student t interval; none with one model, or where all agree."""
    sample = summary(values)
    low, high = t_interval(sample)
    return Estimate(name, float(sample.mean), finite(low), finite(high), len(values))


FEW_MODELS = 5
FEW_SENTENCES = 3  # findings that are said in paragraphs; more are folded
SEVERAL = r", layers ([0-9](?:[0-9,-]*[0-9])?)"  # how the group of a row says that it is of several layers at once, and of which
TITLES = {False: "Layer by layer", True: "Several layers at once"}
REFERENCES = (
    "Thibault Sellam et al. The MultiBERTs: BERT Reproductions for Robustness Analysis. ICLR 2022.",
    "Oskar van der Wal et al. PolyPythias: Stability and Outliers across Fifty Language Model Pre-Training Runs. ICLR 2025.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> Sheet:
    """The page from the tables, whatever the experiment."""
    facts, whole = about.facts, about.facts.units == MODELS
    units = (
        "Each of them counts as one unit: means, intervals and claims speak of the recipe that they were made by, on these texts."
        if whole
        else "They are steps on one way and no sample, so that nothing is averaged or tested over them: each has its own numbers, in order."
    )
    found = [one for one in findings(tables, about) if one.claim is None]
    # findings that are too many for paragraphs are a folded table: the figures show their numbers
    few, in_words = len(found) <= FEW_SENTENCES, sentences([replace(one, title=_begun(one.title)) for one in found])
    said = (*(_begun(str(one)) for one in found if few), *_reading(found, facts))
    shown = present(None if few else in_words, _pairs(tables, facts) if whole else None)
    title = "Over models" if whole else "Over revisions"
    sections = present(
        Section(title, said, tuple(_page_numbers(tables, facts)), shown),
        _claims(tables, facts),
        *layer_sections(tables, facts),
        _own(tables, facts),
        notes_section(about),
    )
    own = (("Models" if whole else "Revisions", ", ".join(f"{m.name} ({m.fingerprint})" for m in facts.models)),)
    names = words.called_apart(facts.names)
    return Sheet(
        f"{facts.what.capitalize()} over {words.several(len(facts.models), 'model' if whole else 'revision')}",
        f"trisect · {facts.what} over {facts.units}",
        f"{('; ' if any(',' in name for name in names) else ', ').join(names)}. {units}",
        sections,
        provenance(about, *own, timed=False),
        REFERENCES if whole else (),
    )


def _begun(said: str) -> str:
    return said[:1].upper() + said[1:]


def findings(tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> tuple[Finding, ...]:
    """What all models share, as means over them (of revisions, from the first to the last); then claims' verdicts over models."""
    facts = about.facts
    say = _over_models if facts.units == MODELS else _over_revisions
    found = tuple(say(one, facts.names) for one in _shared(tables, facts))
    return (*found, *(verdict_findings(tables["claims"]) if "claims" in tables else ()))


def _shared(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> tuple[PooledFinding, ...]:
    """What all models share: their findings, and of what is drawn by layer the means over layers that no finding has."""
    averages = list(_averages(tables["measures"], facts))
    found = [
        one._replace(margin=next((of.mean.margin for of in averages if of.is_of(one)), None))
        for one in pooled(tables["findings"], facts.names)
    ]
    return (*found, *(of.mean for of in averages if not any(of.repeats(one) for one in found)))


class LayerAverage(NamedTuple):
    """Means over layers of what is drawn by layer, the measure of the finding that has them too, and the panel they are of."""

    mean: PooledFinding
    finding: str
    panel: str

    def is_of(self, one: PooledFinding) -> bool:
        """Whether a finding is of the same measure, unit and group."""
        same = (one.measure, one.unit) == (self.finding, self.mean.unit)
        return same and (not self.panel or not one.groups or not set(self.panel.split(", ")).isdisjoint(one.groups))

    def repeats(self, one: PooledFinding) -> bool:
        """Whether that finding has the same numbers in every model."""
        return self.is_of(one) and _digits(one) >= _digits(self.mean)


def _digits(one: PooledFinding) -> set[tuple[float, ...]]:
    """Every model's numbers."""
    return {tuple(round(e.mean or 0.0, 9) for e in n.each) for n in one.numbers}


def _titled(facts: UnitsFacts) -> dict[tuple[str, str], list[LayerMeasure]]:
    """What is drawn by layer, by its title and unit."""
    found: dict[tuple[str, str], list[LayerMeasure]] = {}
    for one in facts.by_layer:
        found.setdefault((one.title, one.unit), []).append(one)
    return found


def _averages(measures: pl.DataFrame, facts: UnitsFacts) -> Iterator[LayerAverage]:
    """Each component's mean over the layers, of every measure that is drawn by layer."""
    for (title, unit), asked in _titled(facts).items():
        gathered: dict[str, dict[str, dict[str, list[float]]]] = {}
        for (panel, component, _), of in layer_values(measures, asked).items():
            for model, value in of.items():
                gathered.setdefault(panel, {}).setdefault(component, {}).setdefault(model, []).append(value)
        for panel, components in gathered.items():
            numbers = []
            for name in (c for c in render.GROUPS if len(components.get(c, {})) == len(facts.names)):
                means = {model: sum(v) / len(v) for model, v in components[name].items()}
                each = tuple(Estimate(model, means[model]) for model in facts.names)
                numbers.append(PooledNumber(name, each, mean_of(name, [means[model] for model in facts.names])))
            label = f"{', '.join(filter(None, (title, panel)))}, mean over layers"
            if numbers:
                first = asked[0]
                named = (f"mean_{first.measure}", label, unit, "", (), "layer", first.signed)
                yield LayerAverage(PooledFinding(*named, tuple(numbers), first.margin), first.finding, panel)


def _over_models(one: PooledFinding, names: Sequence[str]) -> Finding:
    sizes = [(n.name, spoken_subject(n.mean, one.signed)) for n in one.numbers]
    parts = ", ".join(size if name == one.label else f"{name} {size}" for name, size in sizes)
    said = f"mean over {words.several(len(names), 'model')}, {one.unit}: {parts}."
    compared = one.compared
    side = paired_words(None if compared is None else compared.data(), "model")
    found = _finding(one, f"{said}{side}", tuple(n.mean for n in one.numbers), "model")
    return replace(found, comparison=side.strip(), compared=compared)


def _over_revisions(one: PooledFinding, names: Sequence[str]) -> Finding:
    ends = [(n.name, n.each[0].mean, n.each[-1].mean) for n in one.numbers]
    parts = ", ".join(f"{name} {words.number(a, one.signed)} to {words.number(b, one.signed)}" for name, a, b in ends)
    said = f"from {names[0]} to {names[-1]}, {one.unit}: {parts}."
    return _finding(one, said, tuple(n.each[-1]._replace(name=n.name) for n in one.numbers), one.per)


def _finding(one: PooledFinding, said: str, values: tuple[Estimate, ...], per: str) -> Finding:
    own = {"source": one.source, "title": one.label, "groups": one.groups, "per": per, "signed": one.signed}
    return Finding(one.measure, said, one.unit, values, **own)


def _reading(found: Sequence[Finding], facts: UnitsFacts) -> Iterator[str]:
    """How to read the numbers of all models."""
    if not found:
        yield "No number stands among the findings of all of them; each model's own page has its own."
    if facts.units != MODELS:
        yield "Intervals are each revision's own, over its texts or heads."
        return
    if any(one.compared is not None for one in found):
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
        yield f"With {len(facts.models)} models they are wide: t has {words.several(len(facts.models) - 1, 'degree')} of freedom."


def _page_numbers(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Iterator[Figure]:
    """A figure for each kind of finding, a panel for each finding."""
    kinds: dict[tuple[str, str], list[PooledFinding]] = {}
    for one in _shared(tables, facts):
        if one.measure != "unedited":  # what changes are of: one number, which the sentence has
            kinds.setdefault((one.measure, one.unit), []).append(one)
    whole = facts.units == MODELS
    for number, ((measure, unit), found) in enumerate(kinds.items(), start=1):
        panels, small = dict[str, list[Bar]](), dict[str, list[Bar]]()
        for one in found:
            (_means if whole else _course)(one, facts, panels, small)
        caption = f"{small_signs(facts)}." if whole else "Every revision in its order, with its own 95 % interval."
        title = _begun(found[0].label if len(found) == 1 else measure.replace("_", " "))
        names = (f"over-{words.slug(measure)}-{number}", f"Figure {number}", title)
        yield layer_figure(names, caption, panels, unit, "0", "" if whole else "revision", small)


Bars = dict[str, list[Bar]]  # by panel


def _means(one: PooledFinding, facts: UnitsFacts, panels: Bars, small: Bars) -> None:
    """Means with every model's number; what is of a component in one of several ways has a panel for each way."""
    for n in one.numbers:
        component, _, way = n.name.partition(", ")
        split = bool(way) and component in render.GROUPS
        name, title = (component, f"{one.label}, {way}") if split else (n.name, one.label)
        own = Bar(group_of_name(name), name, n.mean.mean or 0.0, n.mean.low, n.mean.high)
        panels.setdefault(title, []).append(own)
        small.setdefault(title, []).extend(Bar(own.group, name, e.mean or 0.0) for e in n.each)


def _course(one: PooledFinding, facts: UnitsFacts, panels: Bars, small: Bars) -> None:
    """Revisions in their order; what is no component has a panel of its own."""
    for i, model in enumerate(facts.names):
        for n in one.numbers:
            e, group = n.each[i], group_of_name(n.name)
            title = one.label if group == n.name else f"{one.label}, {n.name}"
            panels.setdefault(title, []).append(Bar(group, last_name(model), e.mean or 0.0, e.low, e.high))


def _pairs(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Table | None:
    """Paired differences of q, k and v over models, of what they are to be ranked by."""
    rows = []
    for one in _shared(tables, facts):
        for p in one.compared.pairs if one.compared is not None else ():
            side = "alike" if p.alike else f"{p.first} above {p.second}" if p.above else "not distinguished"
            ends = words.ends(Estimate("", p.effect, p.low, p.high), True)
            of = (one.label, f"{p.first} minus {p.second}", words.number(p.effect, True))
            rows.append((*of, ends, f"{p.p_holm:.2g}", side))
    columns, caption = (
        ("of", "difference", "mean", "95 %", "p, Holm", "reading"),
        f"Paired by model, n = {len(facts.models)}",
    )
    return Table(columns, tuple(rows), caption, wrap=False) if rows else None


def _claims(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Section | None:
    """Verdicts over models, and below them those of each model alone."""
    if "claims_by_model" not in tables:
        return None
    rows = tables["claims_by_model"].filter(pl.col("part").is_null())
    names = rows["claim"].unique(maintain_order=True).to_list()
    said = {}
    for row in rows.iter_rows(named=True):
        effect = f" {words.number(row['effect'], True)}" if isinstance(row["effect"], float) else ""
        said[row["model"], row["claim"]] = f"{row['verdict']}{effect}"
    cells = tuple((model, *(said.get((model, name), "–") for name in names)) for model in facts.names)
    alone = Table(("model", *names), cells, "Each model's own verdict, from its own texts or heads", wrap=False)
    over = (
        "A claim's effect is each model's own; it is tested by Student's t over models, and corrected over the claims of its "
        "source as for one model. A part that has to hold for every head enters with the head that speaks for it least; as noise moves "
        "that head towards the bound, such a part may support a claim and not refute it. What bars a verdict in one model, such as "
        "too few texts, bars it over all: they have read the same texts, and intervals and verdicts hold for these.",
    )
    if "claims" not in tables:
        over = (
            "Revisions of one model are no sample of anything: each has verdicts of its own, and there is none over them.",
        )
    return Section("What the claims come to", over, (), (alone,), tables.get("claims"))


def _own(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Section:
    """Each model's own numbers and a link to its own page."""
    link = Markup('<a href="{}">{}</a>: {}').format
    said = {model.name: ", ".join(f"{value} {name}" for name, value in model.facts) for model in facts.models}
    own = Bullets(tuple(link(model.page, model.name, said[model.name]) for model in facts.models), "Their own pages")
    found = _shared(tables, facts)
    columns = [(one, n) for one in found for n in one.numbers]
    if not columns:
        return Section("Each model", (), (), (), blocks=(own,))
    rows = [
        (model, *(words.number(n.each[i].mean, one.signed) for one, n in columns))
        for i, model in enumerate(facts.names)
    ]
    if facts.units == MODELS:
        rows.append(("mean", *(words.number(n.mean.mean, one.signed) for one, n in columns)))
        rows.append(("95 %", *(words.ends(n.mean, one.signed) for one, n in columns)))
    names = ("model", *(one.label if n.name == one.label else f"{one.label}: {n.name}" for one, n in columns))
    turned = tuple(zip(names, *rows, strict=True))
    table = Table(tuple(turned[0]), tuple(turned[1:]), "Every model's numbers", wrap=False)
    return Section("Each model", (), (), (table,), blocks=(own,))


def layer_sections(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Iterator[Section]:
    """Means over models at every layer, and of several layers at once; of revisions every layer's curve."""
    numbered = count(1)
    for several in TITLES:
        every = {of: layer_values(tables["measures"], asked, several) for of, asked in _titled(facts).items()}
        drawn = {of: spots for of, spots in every.items() if spots}
        if drawn:
            figures = (_layer_figure(spots, *of, facts, next(numbered)) for of, spots in drawn.items())
            listed = (_layer_table(spots, _titled(facts)[of][0], facts) for of, spots in drawn.items())
            yield Section(TITLES[several], (), tuple(figures), tuple(listed))


LayerSpots = dict[tuple[str, str, int | str], dict[str, float]]  # panel, component, layer -> value of each model


def layer_values(measures: pl.DataFrame, asked: Iterable[LayerMeasure], several_at_once: bool = False) -> LayerSpots:
    """Of each panel, component and layer the value in every model; where a layer has none of its own, its heads' mean.

    With `several_at_once` of what is of more than one layer, in place of the layer those layers as the row's group spells them ('1-3').
    """
    found: LayerSpots = {}
    for one in asked:
        rows = measures.filter(pl.col("measure") == one.measure, pl.col("value").is_not_null())
        if several_at_once:
            single = pl.format("{}, head {}", pl.col("group").str.replace(SEVERAL, ""), "head")
            rows = rows.with_columns(
                pl.col("group").str.extract(SEVERAL).alias("layer"),
                pl.when(pl.col("head").is_null())
                .then(pl.col("group").str.replace(SEVERAL, ""))
                .otherwise(single)
                .alias("group"),
                pl.lit(None, pl.Int64).alias("head"),
            )
        rows = rows.filter(pl.col("layer").is_not_null())
        if rows["at"].is_not_null().any():
            rows = rows.filter(pl.col("at").is_null())
        keys = ("model", "stack", "layer", "component", "group")
        own = rows.filter(pl.col("head").is_null()).select(*keys, "value")
        heads = rows.filter(pl.col("head").is_not_null()).group_by(keys).agg(pl.col("value").mean())
        heads = heads.join(own, on=keys, how="anti", nulls_equal=True)
        several = {name: rows[name].n_unique() > 1 for name in ("stack", "group")}
        for row in pl.concat([own, heads]).sort(keys).iter_rows(named=True):
            component = one.component or row["component"] or ""
            parts = (
                stack_words(row["stack"]) or row["stack"] if several["stack"] else "",
                row["group"] if several["group"] else "",
            )
            plain = component in render.GROUPS
            panel = ", ".join(filter(None, (*parts, "" if plain else component)))
            found.setdefault((panel, component, row["layer"]), {})[row["model"]] = row["value"]
    return found


def _layer_figure(spots: LayerSpots, title: str, unit: str, facts: UnitsFacts, number: int) -> Figure:
    """By panel the means over models and the models themselves; of revisions every layer's course."""
    whole, several = facts.units == MODELS, any(isinstance(layer, str) for _, _, layer in spots)
    across, whose = ("layers", TITLES[True]) if several else ("layer", "All layers")
    panels, small = dict[str, list[Bar]](), dict[str, list[Bar]]()
    for (panel, component, layer), of in sorted(spots.items(), key=_in_order):
        group = group_of_name(component)
        if whole:
            mean = mean_of(component, list(of.values()))
            own = Bar(group, str(layer), mean.mean or 0.0, mean.low, mean.high)
            panels.setdefault(panel or whose, []).append(own)
            small.setdefault(panel or whose, []).extend(own._replace(value=v, low=None, high=None) for v in of.values())
        else:
            course = [Bar(group, last_name(model), of[model]) for model in facts.names if model in of]
            panels.setdefault(", ".join(filter(None, (panel, _called(layer)))), []).extend(course)
    how = TITLES[several].lower()
    caption = f"{title.capitalize()}, {how}. " if several else f"{title.capitalize()} by layer. "
    caption += f"{small_signs(facts)} where all have the {across}." if whole else "Revisions in their order."
    name = f"{'several-' if several else ''}layers-{words.slug(title)}"
    names = (name, f"Figure L{number}", f"{title.capitalize()}, {how}")
    return layer_figure(names, caption, panels, unit, "0", across if whole else "revision", small)


def _in_order(spot: tuple[tuple[str, str, int | str], Mapping[str, float]]) -> tuple[str, list[int], int]:
    """Panels by name, then layers, then q, k and v."""
    panel, component, layer = spot[0]
    known = list(render.GROUPS)
    numbers = [int(n) for n in re.findall(r"\d+", str(layer))]
    return panel, numbers, known.index(component) if component in known else len(known)


def _called(layer: int | str) -> str:
    return f"layers {layer}" if isinstance(layer, str) else f"layer {layer}"


def _layer_table(spots: LayerSpots, drawn: LayerMeasure, facts: UnitsFacts) -> Table:
    rows = []
    for (panel, component, layer), of in sorted(spots.items(), key=_in_order):
        place = ", ".join(filter(None, (panel, _called(layer), component if component in render.GROUPS else "")))
        each = [words.number(of.get(model), drawn.signed) for model in facts.names]
        if facts.units == MODELS:
            mean = mean_of(component, list(of.values()))
            each = [words.number(mean.mean, drawn.signed), words.ends(mean, drawn.signed), *each]
        rows.append((place, *each))
    head = ("mean", "95 %") if facts.units == MODELS else ()
    columns = ("where", *head, *(facts.names if facts.units == MODELS else map(last_name, facts.names)))
    return Table(columns, tuple(rows), f"{drawn.title.capitalize()}, {drawn.unit}", wrap=False)


def small_signs(facts: UnitsFacts) -> str:
    """What signs are, where models are drawn beside their mean."""
    n = words.several(len(facts.models), "model")
    return f"Small signs are models, large ones their mean with its 95 % interval, n\u00a0=\u00a0{n}"


def group_of_name(name: str) -> str:
    """What a number is drawn as: its component, or as what is none."""
    return name if name in render.GROUPS else "all"


def last_name(model: str) -> str:
    """A revision's own name."""
    return model.rpartition("@")[2]
