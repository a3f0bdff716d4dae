"""The page of several models: every model's numbers beside their mean, layer by layer, claims over models, and their own pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Estimate, Finding, PairedDifference
from trisect.lab.units.names import MODELS
from trisect.lab.units.page_layers import ends_said, group_of_name, last_name, layer_sections, layer_values, small_signs
from trisect.lab.units.pool import PooledFinding, PooledNumber, mean_of, pooled
from trisect.lab.units.settings import UnitsFacts
from trisect.report import format as words
from trisect.report import palette
from trisect.report.blocks import Bullets, Table
from trisect.report.layers import Bar, component_key, cut, frame_of, layer_panel
from trisect.report.multiples import sentences
from trisect.report.panels import Figure
from trisect.report.provenance import provenance, verdict_findings
from trisect.report.sheet import Section, Sheet
from trisect.report.subject import paired_words, spoken

FEW_MODELS = 5
FEW_SENTENCES = 3  # findings that are said in paragraphs; more are folded
REFERENCES = (
    "Thibault Sellam et al. The MultiBERTs: BERT Reproductions for Robustness Analysis. ICLR 2022.",
    "Oskar van der Wal et al. PolyPythias: Stability and Outliers across Fifty Language Model Pre-Training Runs. ICLR 2025.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> Sheet:
    """The page from the tables, whatever the experiment."""
    facts = about.facts
    whole = facts.units == MODELS
    count = words.several(len(facts.models), "model" if whole else "revision")
    units = (
        "Each of them counts as one unit: means, intervals and claims speak of the recipe that they were made by, on these texts."
        if whole
        else "They are steps on one way and no sample, so that nothing is averaged or tested over them: each has its own numbers, in order."
    )
    sections = (
        Section(
            "Over models" if whole else "Over revisions",
            tuple(_said(tables, about)),
            tuple(_numbers(tables, facts)),
            (*_in_words(tables, about), *(_pairs(tables, facts) if whole else ())),
        ),
        *_claims(tables, facts),
        *layer_sections(tables, facts),
        _own(tables, facts),
        *((Section("Notes", tuple(about.notes)),) if about.notes else ()),
    )
    own = (("Models" if whole else "Revisions", ", ".join(f"{m.name} ({m.fingerprint})" for m in facts.models)),)
    return Sheet(
        f"{facts.what.capitalize()} over {count}",
        f"trisect · {facts.what} over {facts.units}",
        f"{_joined(words.called_apart(facts.names))}. {units}",
        sections,
        provenance(about, *own, timed=False),
        REFERENCES if whole else (),
    )


def _begun(said: str) -> str:
    return said[:1].upper() + said[1:]


def _joined(names: Sequence[str]) -> str:
    return ("; " if any("," in name for name in names) else ", ").join(names)


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


def _averages(measures: pl.DataFrame, facts: UnitsFacts) -> Iterator[LayerAverage]:
    """Each component's mean over the layers, of every measure that is drawn by layer."""
    for title, unit in dict.fromkeys((one.title, one.unit) for one in facts.by_layer):
        asked = [one for one in facts.by_layer if (one.title, one.unit) == (title, unit)]
        gathered: dict[str, dict[str, dict[str, list[float]]]] = {}
        for (panel, component, _), of in layer_values(measures, asked).items():
            for model, value in of.items():
                gathered.setdefault(panel, {}).setdefault(component, {}).setdefault(model, []).append(value)
        for panel, components in gathered.items():
            numbers = []
            for name in (c for c in palette.GROUPS if len(components.get(c, {})) == len(facts.names)):
                means = {model: sum(v) / len(v) for model, v in components[name].items()}
                each = tuple(Estimate(model, means[model]) for model in facts.names)
                numbers.append(PooledNumber(name, each, mean_of(name, [means[model] for model in facts.names])))
            label = f"{', '.join(filter(None, (title, panel)))}, mean over layers"
            if numbers:
                first = asked[0]
                named = (f"mean_{first.measure}", label, unit, "", (), "layer", first.signed)
                yield LayerAverage(PooledFinding(*named, tuple(numbers), first.margin), first.finding, panel)


def _over_models(one: PooledFinding, names: Sequence[str]) -> Finding:
    sizes = [(n.name, spoken(n.mean.mean, n.mean.low, n.mean.high, one.signed)) for n in one.numbers]
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
    return Finding(
        one.measure,
        said,
        one.unit,
        values,
        source=one.source,
        title=one.label,
        groups=one.groups,
        per=per,
        signed=one.signed,
    )


def _found(tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> list[Finding]:
    return [one for one in findings(tables, about) if one.claim is None]


def _in_words(tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> Iterator[Table]:
    """Findings that are too many for paragraphs, as a table that is folded: the figures show their numbers."""
    found = _found(tables, about)
    whole = sentences([replace(one, title=_begun(one.title)) for one in found])
    if whole is not None and len(found) > FEW_SENTENCES:
        yield whole


def _said(tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> Iterator[str]:
    facts = about.facts
    found = _found(tables, about)
    if len(found) <= FEW_SENTENCES:
        yield from (_begun(str(one)) for one in found)
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


def _numbers(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Iterator[Figure]:
    """A figure for each kind of finding, a panel for each finding."""
    kinds: dict[tuple[str, str], list[PooledFinding]] = {}
    for one in _shared(tables, facts):
        if one.measure != "unedited":  # what changes are of: one number, which the sentence has
            kinds.setdefault((one.measure, one.unit), []).append(one)
    whole = facts.units == MODELS
    for number, ((measure, unit), found) in enumerate(kinds.items(), start=1):
        panels = [panel for one in found for panel in (_means(one) if whole else _course(one, facts))]
        every = [bar for _, bars, _ in panels for bar in bars]
        axis = frame_of([*every, *(bar for _, _, units in panels for bar in units)], unit)
        drawn = tuple(
            layer_panel(title, bars, axis, True, "" if whole else "revision", units) for title, bars, units in panels
        )
        caption = f"{small_signs(facts)}." if whole else "Every revision in its order, with its own 95 % interval."
        title = _begun(found[0].label if len(found) == 1 else measure.replace("_", " "))
        key = component_key(every, "0")
        yield Figure(
            f"over-{words.slug(measure)}-{number}", f"Figure {number}", title, caption + cut(every, axis), drawn, key
        )


def _pairs(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Iterator[Table]:
    """Paired differences of q, k and v over models, of what they are to be ranked by."""
    rows = [
        (
            one.label,
            f"{p.first} minus {p.second}",
            words.number(p.effect, True),
            _between(p),
            f"{p.p_holm:.2g}",
            _side(p),
        )
        for one in _shared(tables, facts)
        if one.compared is not None
        for p in one.compared.pairs
    ]
    if rows:
        columns = ("of", "difference", "mean", "95 %", "p, Holm", "reading")
        yield Table(columns, tuple(rows), f"Paired by model, n = {len(facts.models)}", wrap=False)


def _between(pair: PairedDifference) -> str:
    return "–" if pair.low is None else f"{words.number(pair.low, True)} to {words.number(pair.high, True)}"


def _side(pair: PairedDifference) -> str:
    return "alike" if pair.alike else f"{pair.first} above {pair.second}" if pair.above else "not distinguished"


PanelBars = tuple[str, list[Bar], list[Bar]]  # title, numbers, and what they are means of


def _means(one: PooledFinding) -> list[PanelBars]:
    """Means with every model's number; what is of a component in one of several ways has a panel for each way."""
    panels: dict[str, tuple[list[Bar], list[Bar]]] = {}
    for n in one.numbers:
        component, _, way = n.name.partition(", ")
        split = bool(way) and component in palette.GROUPS
        name, title = (component, f"{one.label}, {way}") if split else (n.name, one.label)
        means, each = panels.setdefault(title, ([], []))
        means.append(Bar(group_of_name(name), name, n.mean.mean or 0.0, n.mean.low, n.mean.high))
        each.extend(Bar(group_of_name(name), name, e.mean or 0.0) for e in n.each)
    return [(title, means, each) for title, (means, each) in panels.items()]


def _course(one: PooledFinding, facts: UnitsFacts) -> list[PanelBars]:
    """Revisions in their order; what is no component has a panel of its own."""
    panels: dict[str, list[Bar]] = {}
    for i, model in enumerate(facts.names):
        for n in one.numbers:
            e, group = n.each[i], group_of_name(n.name)
            title = one.label if group == n.name else f"{one.label}, {n.name}"
            panels.setdefault(title, []).append(Bar(group, last_name(model), e.mean or 0.0, e.low, e.high))
    return [(title, bars, []) for title, bars in panels.items()]


def _claims(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Iterator[Section]:
    """Verdicts over models, and below them those of each model alone."""
    if "claims_by_model" not in tables:
        return
    rows = tables["claims_by_model"].filter(pl.col("part").is_null())
    names = rows["claim"].unique(maintain_order=True).to_list()
    of = {(row["model"], row["claim"]): row for row in rows.iter_rows(named=True)}
    cells = tuple((model, *(_verdict(of.get((model, name))) for name in names)) for model in facts.names)
    alone = Table(("model", *names), cells, "Each model's own verdict, from its own texts or heads", wrap=False)
    said = (
        "A claim's effect is each model's own; it is tested by Student's t over models, and corrected over the claims of its "
        "source as for one model. A part that has to hold for every head enters with the head that speaks for it least; as noise moves "
        "that head towards the bound, such a part may support a claim and not refute it. What bars a verdict in one model, such as "
        "too few texts, bars it over all: they have read the same texts, and intervals and verdicts hold for these.",
    )
    if "claims" in tables:
        yield Section("What the claims come to", said, (), (alone,), tables["claims"])
    else:
        alone_said = "Revisions of one model are no sample of anything: each has verdicts of its own, and there is none over them."
        yield Section("What the claims come to", (alone_said,), (), (alone,))


def _verdict(row: Mapping[str, object] | None) -> str:
    if row is None:
        return "–"
    effect = row["effect"]
    return str(row["verdict"]) + (f" {words.number(effect, True)}" if isinstance(effect, float) else "")


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
        rows.append(("95 %", *(ends_said(n.mean, one.signed) for one, n in columns)))
    names = ("model", *(one.label if n.name == one.label else f"{one.label}: {n.name}" for one, n in columns))
    turned = tuple(zip(names, *rows, strict=True))
    table = Table(tuple(turned[0]), tuple(turned[1:]), "Every model's numbers", wrap=False)
    return Section("Each model", (), (), (table,), blocks=(own,))
