"""The page of rewinding between checkpoints: how far each site can go back before the loss moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt
import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.core.site import Site
from trisect.report import format as words
from trisect.report.charts import Figure, Panel, SharedAxis, heat
from trisect.report.format import (
    order,
    place,
    read_facts,
    resampled_words,
    spoken_subject,
    stack_order,
    stack_words,
    too_few,
)
from trisect.report.measures import Bar, layer_figure, sort_components
from trisect.report.sheet import Section, Sheet, Table, present, provenance, quiet, sentences, small_multiples

if TYPE_CHECKING:
    from trisect.experiments.checkpoints.settings import RewindFacts

TALL, WIDE = 202, 246  # pixels of a heat map
STEP = 12.0  # pixels that a label needs
REFERENCES = (
    "Niladri Chatterji, Behnam Neyshabur, Hanie Sedghi. The Intriguing Role of Module Criticality in the Generalization of Deep "
    "Networks. ICLR 2020.",
    "Chiyuan Zhang, Samy Bengio, Yoram Singer. Are All Layers Created Equal? JMLR 2022.",
    "Jean-Paul Berrut, Lloyd N. Trefethen. Barycentric Lagrange Interpolation. SIAM Review 46, 2004.",
)


class RewoundQuantity(NamedTuple):
    """What a page is about: the loss, or of a model without one how far its output moves; in rows, in words, and its units.

    `rise` is what an area is the mean of, `falls` the same in a caption, `within` what ε is a share of.
    """

    curve: str
    check: str
    words: str
    rise: str
    falls: str
    within: str
    unit: str
    short: str
    tail: str


LOSS = RewoundQuantity(
    "loss_nats",
    "rewind_check_nats",
    "loss",
    "rise over that loss",
    "rise of the loss",
    "of the final one",
    "nats per token",
    "nats",
    " nats",
)
OUTPUT = RewoundQuantity(
    "output_change",
    "rewind_check",
    "change of the output",
    "change of its output",
    "change of the output",
    "of the output's squared length",
    "share",
    "share",
    " of the output's squared length",
)


def quantity(facts: RewindFacts) -> RewoundQuantity:
    """Which of the two a run measured."""
    return OUTPUT if facts.objective == "output" else LOSS


class Cell(NamedTuple):
    """A loss of one site at one place of a curve."""

    site: str
    at: float
    value: float


def page(tables: Mapping[str, pl.DataFrame], about: About[RewindFacts]) -> Sheet:
    """The page from the table sites."""
    sites, facts = tables["sites"], about.facts
    name = words.called(facts.subject, about.command)
    asked = "how far the model's output moves" if quantity(facts) is OUTPUT else "the model's own loss"
    lede = (
        f"Query, key and value weights of {name} are set back towards revision {facts.initial}, one site at "
        f"a time and all else final, and {asked} on {facts.corpus} is measured. No model is trained for it. "
        "This speaks of this one model and of these texts."
    )
    found = findings(tables, about)
    stages = [str(f) for f in found if f.measure == "midstage_area"]
    sections = (
        _convex(sites, [f for f in found if f.measure != "midstage_area"], facts),
        *(_midstage(sites, said, facts) for said in stages),
        _numbers(sites, about),
    )
    curves = f"{facts.points} α, ε {100 * facts.epsilon:g} %, {facts.passes} passes over the texts"
    how = (("Revisions", ", ".join([facts.initial, *facts.stages, facts.final])), ("Curves", curves))
    own = provenance(about, *read_facts(facts, "final weights"), *how, timed=False)
    return Sheet(f"How far back {name} can go", "Rewinding over checkpoints", lede, sections, own, REFERENCES)


def _ranged(sites: pl.DataFrame, measure: str, facts: RewindFacts) -> list[Estimate]:
    """A measure at every site, in the order of layers and components."""
    found: dict[str, dict[str, float]] = {}
    for site, name, value in sites.select("site", "measure", "value").iter_rows():
        found.setdefault(site, {})[name.removeprefix(measure)] = value
    known = (Estimate(s, of[""], of.get("_low"), of.get("_high"), facts.units) for s, of in found.items() if "" in of)
    return sorted(known, key=lambda one: _order(one.name))


def _cells(sites: pl.DataFrame, measure: str) -> list[Cell]:
    picked = sites.filter(pl.col("measure") == measure).select("site", "at", "value")
    return sorted((Cell(*row) for row in picked.iter_rows()), key=lambda c: (_order(c.site), c.at))


def _order(site: str) -> tuple[Any, Any]:
    return stack_order(_stack(site) or "plain"), order(site)


def _stack(site: str) -> str:
    return Site.parse(site).stack


def _bars(found: Sequence[Estimate], title: str) -> dict[str, list[Bar]]:
    """A panel for each stack."""
    panels: dict[str, list[Bar]] = {}
    for one in found:
        here, stack = place(one.name), _stack(one.name)
        name = f"{title}{', ' + stack_words(stack) if stack else ''}"
        panels.setdefault(name, []).append(Bar(here.group, here.layers, one.mean or 0.0, one.low, one.high))
    return panels


def _extreme(area: Sequence[Estimate], tail: str, least: bool = False) -> tuple[str, str]:
    """The site where an area is largest, or smallest, and it in words."""
    one = (min if least else max)(area, key=lambda e: e.mean or 0.0)
    return one.name, f"{spoken_subject(one)}{tail}"


def findings(tables: Mapping[str, pl.DataFrame], about: About[RewindFacts]) -> tuple[Finding, ...]:
    """The final loss, if it has one, and the area at every site: along the line, and over revisions where there are stages."""
    sites, facts, own = tables["sites"], about.facts, quantity(about.facts)
    found: list[Finding] = []
    if own is LOSS:
        final = next(c.value for c in _cells(sites, "rewind_loss_nats") if c.at == 1)
        said = f"With its final weights the model's loss is {words.number(final)} {LOSS.unit}."
        found.append(Finding("final_loss", said, LOSS.unit, (Estimate("final", final, n=facts.units),)))
    area = _ranged(sites, "rewind_area", facts)
    (most, size), (least, small) = _extreme(area, own.tail), _extreme(area, own.tail, True)
    said = (
        f"On the straight line from α = 0 (weights of {facts.initial}) to α = 1 (weights of {facts.final}) the mean "
        f"{own.rise}, the area, is largest at {most}, {size}, and smallest at {least}, {small}."
    )
    ends = f"most {most}, least {least}"
    found.append(Finding("rewind_area", said, own.short, tuple(area), ends, per=facts.unit))
    if facts.stages:
        area = _ranged(sites, "midstage_area", facts)
        most, size = _extreme(area, own.tail)
        said = (
            f"With a site's weights as they were at an earlier revision, the mean {'rise' if own is LOSS else own.rise} over all "
            f"{len(facts.stages) + 2} revisions is largest at {most}, {size}."
        )
        found.append(Finding("midstage_area", said, own.short, tuple(area), f"most {most}", per=facts.unit))
    return tuple(found)


def _convex(sites: pl.DataFrame, found: Sequence[Finding], facts: RewindFacts) -> Section:
    """The lead, the figures of the way back, all findings in words, and what criticality can say."""
    area, score, first = (_ranged(sites, m, facts) for m in ("rewind_area", "criticality", "criticality_first"))
    own, (most, size) = quantity(facts), _extreme(area, quantity(facts).tail)
    said = [
        f"Criticality is the smallest α from which on the {own.words} stays within {_within(facts)}; "
        "the area needs no such line, and is what should be compared.",
    ]
    other = {one.name: one.mean for one in first}
    if differ := [one.name for one in score if other.get(one.name, one.mean) != one.mean]:
        said.append(
            "The other reading of criticality, the smallest α that is within that line at all, differs at "
            f"{words.listed(differ)}: there the {own.words} does not fall steadily."
        )
    floor = [one.name for one in score if one.mean in (0.0, 1.0)]
    if 2 * len(floor) > len(score):
        said.append(
            f"At {words.several(len(floor), 'site')} of {len(score)} criticality is exactly 0 or 1: the measure is at its "
            "floor, and cannot distinguish these sites further."
        )
    figures = present(_short(sites, facts), _heat(sites, facts), _scores(area, score, facts))
    lead = f"The largest area, the mean {own.falls} on the way back to {facts.initial}, is at {most}: {size}."
    return Section("Convex rewinding", (lead,), figures, present(sentences(found)), blocks=quiet(said))


def _short(sites: pl.DataFrame, facts: RewindFacts) -> Figure | None:
    """Every number of a site by component, as means over sites."""
    own, short = quantity(facts), []
    kinds = (
        ("Area", "rewind_area", own.short),
        ("Criticality", "criticality", "α"),
        ("Mid-stage area", "midstage_area", own.short),
    )
    for title, measure, unit in kinds:
        of: dict[str, list[float]] = {}
        for one in _ranged(sites, measure, facts):
            of.setdefault(place(one.name).group, []).append(one.mean or 0.0)
        values = tuple(Estimate(name, sum(each) / len(each), n=len(each)) for name, each in of.items())
        short.append(Finding(measure, "", unit, values, title=title))
    caption = "Means over sites by component; each panel has an axis of its own."
    return small_multiples("checkpoints-short", "In short", caption, short)


def _heat(sites: pl.DataFrame, facts: RewindFacts) -> Figure:
    own = quantity(facts)
    cells = _cells(sites, f"rewind_{own.curve}")
    heights = [f"{at:g}" for at in sorted({c.at for c in cells}, reverse=True)]
    caption = (
        f"{_what(facts)} with one site's weights on the straight line between {facts.initial} (α = 0) and "
        f"{facts.final} (α = 1), all else final. The same colours in every panel. {_n(facts)}"
    )
    names = ("checkpoints-convex", "Figure 1", f"{own.words.capitalize()} along the line")
    return _map(names, caption, {c: f"{c.at:g}" for c in cells}, heights, "α", own.unit)


def _within(facts: RewindFacts) -> str:
    """ε in words; of a squared length also what it is of the length."""
    said = f"{100 * facts.epsilon:g} % {quantity(facts).within}"
    return said if quantity(facts) is LOSS else f"{said} ({100 * facts.epsilon**0.5:.3g} % of its length)"


def _what(facts: RewindFacts) -> str:
    if quantity(facts) is LOSS:
        return "The model's loss"
    return "How far the model's output moves (the change's squared length as a share of the output's)"


def _scores(area: Sequence[Estimate], score: Sequence[Estimate], facts: RewindFacts) -> Figure:
    """Of each stack a panel of areas and one of criticality."""
    own, areas, scores = quantity(facts), _bars(area, "Area"), _bars(score, "Criticality")
    panels: dict[str, list[Bar]] = {}
    for title, bars in areas.items():
        beside = title.replace("Area", "Criticality")
        panels |= {title: bars} | ({beside: scores[beside]} if beside in scores else {})
    caption = (
        f"The area is the mean {own.falls} over α; criticality the smallest α from which on the "
        f"{own.words} is within {_within(facts)}. Bars are 95 % intervals. {_n(facts)}"
    )
    names = ("checkpoints-criticality", "Figure 2", "Area and criticality")
    axes = dict.fromkeys(scores, SharedAxis("α", -0.04, 1.04))
    return layer_figure(names, caption, panels, own.short, axes=axes)


def _midstage(sites: pl.DataFrame, said: str, facts: RewindFacts) -> Section:
    """The loss with each revision's weights, and its mean over revisions."""
    own, revisions = quantity(facts), [facts.initial, *facts.stages, facts.final]
    names = [f"{name} ({i})" if revisions.count(name) > 1 else name for i, name in enumerate(revisions)]
    cells = {c: names[round(c.at)] for c in _cells(sites, f"midstage_{own.curve}")}
    caption = f"{_what(facts)} with one site's weights as they were at each revision, the last on top. {_n(facts)}"
    titled = ("checkpoints-stages", "Figure 3", f"{own.words.capitalize()} by revision")
    heats = _map(titled, caption, cells, names[::-1], "revision", own.unit)
    caption = f"The mean {own.falls} over all revisions. Bars are 95 % intervals. {_n(facts)}"
    panels = _bars(_ranged(sites, "midstage_area", facts), "Mid-stage area")
    area = layer_figure(("checkpoints-stages-area", "Figure 4", "Mid-stage area"), caption, panels, own.short)
    return Section("Mid-stage rewinding", (said,), (heats, area))


def _map(
    names: tuple[str, str, str], caption: str, cells: Mapping[Cell, str], heights: Sequence[str], down: str, unit: str
) -> Figure:
    """Heat maps with a panel per component and stack: layers to the right, `heights` downwards."""
    values = [c.value for c in cells]
    low, high = min(values), max(values)
    high = high if high > low else low + (abs(low) or 1.0)
    panels: list[Panel] = []
    for stack in dict.fromkeys(_stack(c.site) for c in cells):
        mine = {c: h for c, h in cells.items() if _stack(c.site) == stack}
        for group in sort_components(place(c.site).group for c in mine):
            here = {c: h for c, h in mine.items() if place(c.site).group == group}
            said = words.GROUP.get(group, group) + (f", {stack_words(stack)}" if stack else "")
            panels.append(_panel(said, here, heights, (low, high), down, unit))
    return Figure(*names, caption, tuple(panels), (), (low, high, unit))


def _panel(
    title: str, cells: Mapping[Cell, str], heights: Sequence[str], ends: tuple[float, float], down: str, unit: str
) -> Panel:
    layers = list(dict.fromkeys(place(c.site).layers for c in cells))
    rows = [{"layer": place(c.site).layers, "at": h, "value": c.value} for c, h in cells.items()]
    step = next((s for s in (1, 2, 5, 10, 20, 50) if s * TALL >= STEP * len(heights)), 100)
    x = alt.X("layer:O", scale=alt.Scale(domain=layers, paddingInner=0.04), title="layer")
    side = alt.Axis(values=list(heights[::step]), tickCount=len(heights), ticks=False, labelOverlap=False)
    y = alt.Y("at:O", scale=alt.Scale(domain=list(heights)), title=down, axis=side)
    chart = heat(title, rows, x, (y,), ends, unit, (max(WIDE, STEP * len(layers)), TALL))
    most = max(cells, key=lambda c: c.value)
    said = f"{title}: heat map over {down} and layer, in {unit}. Highest {most.value:.3g} at {most.site}, {down} {cells[most]}."
    return Panel(title, chart, said, (), {})


def _numbers(sites: pl.DataFrame, about: About[RewindFacts]) -> Section:
    """Every site as a row, and how exact its numbers are."""
    facts, own = about.facts, quantity(about.facts)
    kinds = {
        f"area, {own.short}": "rewind_area",
        "criticality, α": "criticality",
        f"mid-stage area, {own.short}": "midstage_area",
    }
    every = {title: {one.name: one for one in _ranged(sites, name, facts)} for title, name in kinds.items()}
    found = {title: of for title, of in every.items() if of}
    starts = {c.site: c.value for c in _cells(sites, f"rewind_{own.curve}") if c.at == 0}
    names = sorted({site for of in found.values() for site in of}, key=_order)
    rows = tuple(
        (s, words.number(starts.get(s)), *(spoken_subject(of[s], False) if s in of else "–" for of in found.values()))
        for s in names
    )
    said = [
        f"Intervals are 95 % of a bootstrap over {resampled_words(facts)}; every set of weights is tried on the "
        "same texts. They are not corrected for how many there are.",
        *too_few(facts),
    ]
    checks = sites.filter(pl.col("measure") == own.check)["value"].to_list()
    if not facts.exact and checks:
        said.append(
            f"Of the {facts.points} α of a curve some are tried and the others interpolated; the last two interpolants "
            f"differ by at most {words.number(max(checks))}{' nats' if own is LOSS else ''}."
        )
    columns = ("site", f"{own.words} at α = 0, {own.short}", *found)
    return Section("Numbers", (*said, *about.notes), (), (Table(columns, rows, "Every site"),))


def _n(facts: RewindFacts) -> str:
    tokens = "tokens" if quantity(facts) is OUTPUT else "predicted tokens"
    return f"n\u00a0=\u00a0{resampled_words(facts)}, {words.count(facts.tokens)} {tokens}."
