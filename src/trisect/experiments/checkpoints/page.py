"""The page of rewinding between checkpoints: how far each site can go back before the loss moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt
import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.core.site import Site
from trisect.report import format as words
from trisect.report import palette
from trisect.report.axes import SharedAxis
from trisect.report.blocks import TextBlock
from trisect.report.layers import Bar, component_groups, component_key, cut, frame_of, layer_panel
from trisect.report.multiples import sentences, small_multiples
from trisect.report.panels import Figure, Panel, chart_of, lay
from trisect.report.points import order, place
from trisect.report.provenance import provenance
from trisect.report.sheet import Section, Sheet, Table
from trisect.report.subject import read_facts, resampled_words, spoken, stack_order, stack_words, too_few

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


class Ranged(NamedTuple):
    """A number of one site, with its interval's ends or nulls."""

    site: str
    value: float
    low: float | None
    high: float | None


class Cell(NamedTuple):
    """A loss of one site at one place of a curve."""

    site: str
    at: float
    value: float


def page(tables: Mapping[str, pl.DataFrame], about: About[RewindFacts]) -> Sheet:
    """The page from the table sites."""
    sites, facts = tables["sites"], about.facts
    name = words.called(facts.subject, about.command)
    lede = (
        f"Query, key and value weights of {name} are set back towards revision {facts.initial}, one site at "
        f"a time and all else final, and {_asked(facts)} on {facts.corpus} is measured. No model is trained for it. "
        "This speaks of this one model and of these texts."
    )
    found = findings(tables, about)
    stages = [str(f) for f in found if f.measure == "midstage_area"]
    sections = [_convex(sites, [f for f in found if f.measure != "midstage_area"], facts)]
    sections += [_midstage(sites, said, facts) for said in stages]
    sections.append(_numbers(sites, about))
    title = f"How far back {name} can go"
    own = provenance(about, *read_facts(facts, "final weights"), *_how(facts), timed=False)
    return Sheet(title, "Rewinding over checkpoints", lede, tuple(sections), own, REFERENCES)


def _asked(facts: RewindFacts) -> str:
    return "how far the model's output moves" if quantity(facts) is OUTPUT else "the model's own loss"


def _ranged(sites: pl.DataFrame, measure: str) -> list[Ranged]:
    """A measure at every site, in the order of layers and components."""
    found: dict[str, dict[str, float]] = {}
    for site, name, value in sites.select("site", "measure", "value").iter_rows():
        found.setdefault(site, {})[name] = value
    named = sorted(((s, of) for s, of in found.items() if measure in of), key=lambda pair: _order(pair[0]))
    ends = f"{measure}_low", f"{measure}_high"
    return [Ranged(s, of[measure], of.get(ends[0]), of.get(ends[1])) for s, of in named]


def _cells(sites: pl.DataFrame, measure: str) -> list[Cell]:
    picked = sites.filter(pl.col("measure") == measure).select("site", "at", "value")
    return sorted((Cell(*row) for row in picked.iter_rows()), key=lambda c: (_order(c.site), c.at))


def _order(site: str) -> tuple[Any, Any]:
    return stack_order(Site.parse(site).stack or "plain"), order(site)


def _stacks(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(Site.parse(name).stack for name in names))


def _bars(found: Sequence[Ranged], stack: str) -> list[Bar]:
    mine = [r for r in found if Site.parse(r.site).stack == stack]
    return [Bar(place(r.site).group, place(r.site).layers, r.value, r.low, r.high) for r in mine]


def findings(tables: Mapping[str, pl.DataFrame], about: About[RewindFacts]) -> tuple[Finding, ...]:
    """The final loss, if it has one, and the area at every site: along the line, and over revisions where there are stages."""
    sites, facts = tables["sites"], about.facts
    found: list[Finding] = []
    if quantity(facts) is LOSS:
        final = next(c.value for c in _cells(sites, "rewind_loss_nats") if c.at == 1)
        said = f"With its final weights the model's loss is {words.number(final)} {LOSS.unit}."
        found.append(Finding("final_loss", said, LOSS.unit, (Estimate("final", final, n=facts.units),)))
    found.append(_area(_ranged(sites, "rewind_area"), facts))
    if facts.stages:
        found.append(_stage_area(_ranged(sites, "midstage_area"), facts))
    return tuple(found)


def _area(area: Sequence[Ranged], facts: RewindFacts) -> Finding:
    most, least = max(area, key=lambda r: r.value), min(area, key=lambda r: r.value)
    own = quantity(facts)
    said = (
        f"On the straight line from α = 0 (weights of {facts.initial}) to α = 1 (weights of {facts.final}) the mean "
        f"{own.rise}, the area, is largest at {most.site}, {spoken(most.value, most.low, most.high)}{own.tail}, and "
        f"smallest at {least.site}, {spoken(least.value, least.low, least.high)}{own.tail}."
    )
    return Finding(
        "rewind_area", said, own.short, _estimates(area, facts), f"most {most.site}, least {least.site}", per=facts.unit
    )


def _stage_area(area: Sequence[Ranged], facts: RewindFacts) -> Finding:
    most, own = max(area, key=lambda r: r.value), quantity(facts)
    rise = "rise" if own is LOSS else own.rise
    said = (
        f"With a site's weights as they were at an earlier revision, the mean {rise} over all {len(facts.stages) + 2} "
        f"revisions is largest at {most.site}, {spoken(most.value, most.low, most.high)}{own.tail}."
    )
    return Finding("midstage_area", said, own.short, _estimates(area, facts), f"most {most.site}", per=facts.unit)


def _estimates(area: Sequence[Ranged], facts: RewindFacts) -> tuple[Estimate, ...]:
    return tuple(Estimate(*r, facts.units) for r in area)


def _convex(sites: pl.DataFrame, found: Sequence[Finding], facts: RewindFacts) -> Section:
    area, score, first = (_ranged(sites, m) for m in ("rewind_area", "criticality", "criticality_first"))
    own = quantity(facts)
    said = [
        f"Criticality is the smallest α from which on the {own.words} stays within {_within(facts)}; "
        "the area needs no such line, and is what should be compared.",
    ]
    other = {r.site: r.value for r in first}
    differ = [r.site for r in score if other.get(r.site, r.value) != r.value]
    if differ:
        said.append(
            "The other reading of criticality, the smallest α that is within that line at all, differs at "
            f"{words.listed(differ)}: there the {own.words} does not fall steadily."
        )
    floor = [r.site for r in score if r.value in (0.0, 1.0)]
    if 2 * len(floor) > len(score):
        said.append(
            f"At {words.several(len(floor), 'site')} of {len(score)} criticality is exactly 0 or 1: the measure is at its "
            "floor, and cannot distinguish these sites further."
        )
    drawn, in_words = _short(sites, facts), sentences(found)
    figures = (*((drawn,) if drawn else ()), _heat(sites, facts), _scores(area, score, facts))
    notes = tuple(TextBlock(one, "quiet") for one in said)
    lead = _lead(area, facts)
    return Section("Convex rewinding", (lead,), figures, (in_words,) if in_words else (), blocks=notes)


def _lead(area: Sequence[Ranged], facts: RewindFacts) -> str:
    """Where the area is largest, in a sentence."""
    most, own = max(area, key=lambda r: r.value), quantity(facts)
    size = f"{spoken(most.value, most.low, most.high)}{own.tail}"
    return f"The largest area, the mean {own.falls} on the way back to {facts.initial}, is at {most.site}: {size}."


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
        for r in _ranged(sites, measure):
            of.setdefault(place(r.site).group, []).append(r.value)
        values = tuple(Estimate(name, sum(each) / len(each), n=len(each)) for name, each in of.items())
        short.append(Finding(measure, "", unit, values, title=title))
    caption = "Means over sites by component; each panel has an axis of its own."
    return small_multiples("checkpoints-short", "In short", caption, short)


def _heat(sites: pl.DataFrame, facts: RewindFacts) -> Figure:
    own = quantity(facts)
    cells = _cells(sites, f"rewind_{own.curve}")
    heights = [f"{at:g}" for at in sorted({c.at for c in cells}, reverse=True)]
    named = {c: f"{c.at:g}" for c in cells}
    caption = (
        f"{_what(facts)} with one site's weights on the straight line between {facts.initial} (α = 0) and "
        f"{facts.final} (α = 1), all else final. The same colours in every panel. {_n(facts)}"
    )
    return _map(
        "checkpoints-convex", "Figure 1", f"{_title(own)} along the line", caption, named, heights, "α", own.unit
    )


def _within(facts: RewindFacts) -> str:
    """ε in words; of a squared length also what it is of the length."""
    said = f"{100 * facts.epsilon:g} % {quantity(facts).within}"
    return said if quantity(facts) is LOSS else f"{said} ({100 * facts.epsilon**0.5:.3g} % of its length)"


def _what(facts: RewindFacts) -> str:
    if quantity(facts) is LOSS:
        return "The model's loss"
    return "How far the model's output moves (the change's squared length as a share of the output's)"


def _title(own: RewoundQuantity) -> str:
    return own.words[0].upper() + own.words[1:]


def _scores(area: Sequence[Ranged], score: Sequence[Ranged], facts: RewindFacts) -> Figure:
    names = [r.site for r in area]
    unit = SharedAxis("α", -0.04, 1.04)
    panels: list[Panel] = []
    all_bars = [bar for stack in _stacks(names) for bar in _bars(area, stack)]
    own = quantity(facts)
    axis = frame_of(all_bars, own.short)
    for stack in _stacks(names):
        tail = f", {stack_words(stack)}" if stack else ""
        panels.append(layer_panel(f"Area{tail}", _bars(area, stack), axis))
        if mine := _bars(score, stack):
            panels.append(layer_panel(f"Criticality{tail}", mine, unit, zero=False))
    caption = (
        f"The area is the mean {own.falls} over α; criticality the smallest α from which on the "
        f"{own.words} is within {_within(facts)}. Bars are 95 % intervals. {_n(facts)}{cut(all_bars, axis)}"
    )
    key = component_key(all_bars)
    return Figure("checkpoints-criticality", "Figure 2", "Area and criticality", caption, tuple(panels), key)


def _midstage(sites: pl.DataFrame, said: str, facts: RewindFacts) -> Section:
    revisions = [facts.initial, *facts.stages, facts.final]
    names = [f"{name} ({i})" if revisions.count(name) > 1 else name for i, name in enumerate(revisions)]
    own = quantity(facts)
    named = {c: names[round(c.at)] for c in _cells(sites, f"midstage_{own.curve}")}
    area = _ranged(sites, "midstage_area")
    caption = f"{_what(facts)} with one site's weights as they were at each revision, the last on top. {_n(facts)}"
    title = f"{_title(own)} by revision"
    heat = _map("checkpoints-stages", "Figure 3", title, caption, named, names[::-1], "revision", own.unit)
    bars = [bar for stack in _stacks(r.site for r in area) for bar in _bars(area, stack)]
    axis = frame_of(bars, own.short)
    panels = tuple(
        layer_panel(f"Mid-stage area{', ' + stack_words(s) if s else ''}", _bars(area, s), axis)
        for s in _stacks(r.site for r in area)
    )
    caption = f"The mean {own.falls} over all revisions. Bars are 95 % intervals. {_n(facts)}{cut(bars, axis)}"
    second = Figure("checkpoints-stages-area", "Figure 4", "Mid-stage area", caption, panels, component_key(bars))
    return Section("Mid-stage rewinding", (said,), (heat, second))


def _map(
    name: str,
    number: str,
    title: str,
    caption: str,
    cells: Mapping[Cell, str],
    heights: Sequence[str],
    down: str,
    unit: str,
) -> Figure:
    """Heat maps with a panel per component and stack: layers to the right, `heights` downwards."""
    values = [c.value for c in cells]
    low, high = min(values), max(values)
    high = high if high > low else low + (abs(low) or 1.0)
    panels: list[Panel] = []
    for stack in _stacks(c.site for c in cells):
        mine = {c: h for c, h in cells.items() if Site.parse(c.site).stack == stack}
        for group in component_groups([Bar(place(c.site).group, "", 0.0) for c in mine]):
            here = {c: h for c, h in mine.items() if place(c.site).group == group}
            said = words.GROUP.get(group, group) + (f", {stack_words(stack)}" if stack else "")
            panels.append(_panel(said, here, heights, (low, high), (down, unit)))
    return Figure(name, number, title, caption, tuple(panels), (), (low, high, unit))


def _panel(
    title: str, cells: Mapping[Cell, str], heights: Sequence[str], ends: tuple[float, float], named: tuple[str, str]
) -> Panel:
    down, unit = named
    layers = list(dict.fromkeys(place(c.site).layers for c in cells))
    rows = [{"layer": place(c.site).layers, "at": h, "value": c.value} for c, h in cells.items()]
    step = next((s for s in (1, 2, 5, 10, 20, 50) if s * TALL >= STEP * len(heights)), 100)
    x = alt.X("layer:O", scale=alt.Scale(domain=layers, paddingInner=0.04), title="layer")
    side = alt.Axis(values=list(heights[::step]), tickCount=len(heights), ticks=False, labelOverlap=False)
    y = alt.Y("at:O", scale=alt.Scale(domain=list(heights)), title=down, axis=side)
    colours = alt.Scale(domain=list(ends), range=list(palette.VIRIDIS), interpolate="rgb", clamp=True)
    drawn = chart_of("cells", rows).mark_rect().encode(x, y, alt.Color("value:Q", scale=colours, title=unit))
    chart = lay(title, drawn, width=max(WIDE, STEP * len(layers)), height=TALL)
    most = max(cells, key=lambda c: c.value)
    words_for = f"{title}: heat map over {down} and layer, in {unit}. Highest {most.value:.3g} at {most.site}, {down} {cells[most]}."
    return Panel(title, chart, words_for, (), {})


def _numbers(sites: pl.DataFrame, about: About[RewindFacts]) -> Section:
    facts, own = about.facts, quantity(about.facts)
    kinds = [
        ("rewind_area", f"area, {own.short}"),
        ("criticality", "criticality, α"),
        ("midstage_area", f"mid-stage area, {own.short}"),
    ]
    found = {title: {r.site: r for r in _ranged(sites, name)} for name, title in kinds}
    found = {title: of for title, of in found.items() if of}
    starts = {c.site: c.value for c in _cells(sites, f"rewind_{own.curve}") if c.at == 0}
    names = sorted({site for of in found.values() for site in of}, key=_order)
    rows = []
    for site in names:
        numbers = [of.get(site) for of in found.values()]
        cells = [spoken(r.value, r.low, r.high, False) if r else "–" for r in numbers]
        rows.append((site, words.number(starts.get(site)), *cells))
    said = [
        f"Intervals are 95 % of a bootstrap over {resampled_words(facts)}; every set of weights is tried on the "
        "same texts. They are not corrected for how many there are."
    ]
    said += too_few(facts)
    checks = [c.value for c in (Ranged(s, v, None, None) for s, v in _plain(sites, own.check))]
    if not facts.exact and checks:
        said.append(
            f"Of the {facts.points} α of a curve some are tried and the others interpolated; the last two interpolants "
            f"differ by at most {words.number(max(checks))}{' nats' if own is LOSS else ''}."
        )
    columns = ("site", f"{own.words} at α = 0, {own.short}", *found)
    return Section("Numbers", (*said, *about.notes), (), (Table(columns, tuple(rows), "Every site"),))


def _plain(sites: pl.DataFrame, measure: str) -> list[tuple[str, float]]:
    return sites.filter(pl.col("measure") == measure).select("site", "value").rows()


def _n(facts: RewindFacts) -> str:
    tokens = "tokens" if quantity(facts) is OUTPUT else "predicted tokens"
    return f"n\u00a0=\u00a0{resampled_words(facts)}, {words.count(facts.tokens)} {tokens}."


def _how(facts: RewindFacts) -> tuple[tuple[str, str], ...]:
    curves = f"{facts.points} α, ε {100 * facts.epsilon:g} %, {facts.passes} passes over the texts"
    return (("Revisions", ", ".join([facts.initial, *facts.stages, facts.final])), ("Curves", curves))
