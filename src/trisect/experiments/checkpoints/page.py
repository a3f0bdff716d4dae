"""The page of rewinding between checkpoints: how far each site can go back before the loss moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.core.site import Site
from trisect.report import format as words
from trisect.report.charts import Figure, SharedAxis
from trisect.report.maps import label_maps
from trisect.report.measures import Bar, component_order, layer_figure
from trisect.report.sheet import Section, Sheet, Table, present, provenance, quiet, sentences, small_multiples

if TYPE_CHECKING:
    from trisect.experiments.checkpoints.settings import RewindFacts

REFERENCES = (
    "Niladri Chatterji, Behnam Neyshabur, Hanie Sedghi. The Intriguing Role of Module Criticality in the Generalization of Deep "
    "Networks. ICLR 2020.",
    "Chiyuan Zhang, Samy Bengio, Yoram Singer. Are All Layers Created Equal? JMLR 2022.",
    "Jean-Paul Berrut, Lloyd N. Trefethen. Barycentric Lagrange Interpolation. SIAM Review 46, 2004.",
)


WORDS = {  # of a loss; of a model without one, of how far its output moves
    "curve": ("loss_nats", "output_change"),
    "check": ("rewind_check_nats", "rewind_check"),
    "name": ("loss", "change of the output"),
    "what": (
        "The model's loss",
        "How far the model's output moves (the change's squared length as a share of the output's)",
    ),
    "rise": ("rise over that loss", "change of its output"),  # what an area is the mean of
    "mean rise": ("rise", "change of its output"),  # the same where the loss was named
    "falls": ("rise of the loss", "change of the output"),  # the same in a caption
    "within": ("of the final one", "of the output's squared length"),  # what ε is a share of
    "unit": ("nats per token", "share"),
    "tail": (" nats", " of the output's squared length"),
    "differ": (" nats", ""),  # of how far interpolants differ
    "tokens": ("predicted tokens", "tokens"),
}
Cells = Sequence[tuple[str, float, float]]  # a site, the place on its curve, and the loss there


def _say(name: str, facts: RewindFacts) -> str:
    """What a run measured, in rows or in words."""
    return WORDS[name][facts.objective == "output"]


def page(tables: Mapping[str, pl.DataFrame], about: About[RewindFacts]) -> Sheet:
    """The page from the table sites."""
    sites, facts = tables["sites"], about.facts
    name = words.display_name(facts.subject, about.command)
    lede = f"{name} · {facts.corpus} · {words.sample_words(facts)} · one site at a time set back to {facts.initial}, all else final"
    area = _estimates(sites, "rewind_area", facts)
    (most, size), (least, small) = _extreme(area, facts), _extreme(area, facts, True)
    answer = (
        f"On the way back to {facts.initial} the {_say('falls', facts)} is largest for {most}, {size} on average, and least for "
        f"{least}, {small}."
    )
    found = findings(tables, about)
    sections = (
        _convex(sites, [f for f in found if f.measure != "midstage_area"], facts),
        *(_midstage(sites, str(f), facts) for f in found if f.measure == "midstage_area"),
        _numbers(sites, about),
    )
    curves = f"{facts.points} α, ε {100 * facts.epsilon:g} %, {facts.passes} passes over the texts"
    how = (("Revisions", ", ".join([facts.initial, *facts.stages, facts.final])), ("Curves", curves))
    own = provenance(about, *words.read_facts(facts, "final weights"), *how, timed=False)
    title = f"Which weights of {name} can go back in training?"
    return Sheet(title, "trisect · rewinding over checkpoints", lede, sections, own, REFERENCES, answer)


def _estimates(sites: pl.DataFrame, measure: str, facts: RewindFacts) -> list[Estimate]:
    """A measure at every site, in the order of layers and components."""
    ends = [
        dict(sites.filter(measure=f"{measure}{end}").select("site", "value").iter_rows())
        for end in ("", "_low", "_high")
    ]
    known = (Estimate(s, mean, ends[1].get(s), ends[2].get(s), facts.units) for s, mean in ends[0].items())
    return sorted(known, key=lambda one: _order(one.name))


def _cells(sites: pl.DataFrame, measure: str) -> Cells:
    picked = sites.filter(measure=measure).select("site", "at", "value")
    return sorted(picked.iter_rows(), key=lambda cell: (_order(cell[0]), cell[1]))


def _order(site: str) -> tuple[object, object]:
    return words.stack_order(Site.parse(site).stack or "plain"), words.order(site)


def _title(title: str, site: str) -> str:
    """A panel's title, with the stack that a site is of."""
    stack = Site.parse(site).stack
    return f"{title}{', ' + words.stack_words(stack) if stack else ''}"


def _bars(found: Sequence[Estimate], title: str) -> dict[str, list[Bar]]:
    """A panel for each stack."""
    panels: dict[str, list[Bar]] = {}
    for one in found:
        here = words.place(one.name)
        bar = Bar(here.group, here.layers, one.mean or 0.0, one.low, one.high)
        panels.setdefault(_title(title, one.name), []).append(bar)
    return panels


def _extreme(area: Sequence[Estimate], facts: RewindFacts, least: bool = False) -> tuple[str, str]:
    """The site where an area is largest, or smallest, and it in words."""
    one = (min if least else max)(area, key=lambda e: e.mean or 0.0)
    return one.name, f"{words.number_words(one)}{_say('tail', facts)}"


def findings(tables: Mapping[str, pl.DataFrame], about: About[RewindFacts]) -> tuple[Finding, ...]:
    """The final loss, if it has one, and the area at every site: along the line, and over revisions where there are stages."""
    sites, facts = tables["sites"], about.facts
    found: list[Finding] = []
    if facts.objective != "output":
        final = next(value for _, at, value in _cells(sites, "rewind_loss_nats") if at == 1)
        said = f"With its final weights the model's loss is {words.number(final)} {_say('unit', facts)}."
        found.append(Finding("final_loss", said, _say("unit", facts), (Estimate("final", final, n=facts.units),)))
    area = _estimates(sites, "rewind_area", facts)
    (most, size), (least, small) = _extreme(area, facts), _extreme(area, facts, True)
    said = (
        f"On the straight line from α = 0 (weights of {facts.initial}) to α = 1 (weights of {facts.final}) the mean "
        f"{_say('rise', facts)}, the area, is largest at {most}, {size}, and smallest at {least}, {small}."
    )
    ends = f"most {most}, least {least}"
    found.append(Finding("rewind_area", said, words.unit(facts), tuple(area), ends, per=facts.unit))
    if facts.stages:
        area = _estimates(sites, "midstage_area", facts)
        most, size = _extreme(area, facts)
        said = (
            "With a site's weights as they were at an earlier revision, the mean "
            f"{_say('mean rise', facts)} over all {len(facts.stages) + 2} revisions is largest at "
            f"{most}, {size}."
        )
        found.append(Finding("midstage_area", said, words.unit(facts), tuple(area), f"most {most}", per=facts.unit))
    return tuple(found)


def _kinds(facts: RewindFacts) -> tuple[tuple[str, str, str], ...]:
    """What a site has one number of: its title, its measure and its unit."""
    short = words.unit(facts)
    return (
        ("Area", "rewind_area", short),
        ("Criticality", "criticality", "α"),
        ("Mid-stage area", "midstage_area", short),
    )


def _convex(sites: pl.DataFrame, found: Sequence[Finding], facts: RewindFacts) -> Section:
    """The lead, the figures of the way back, all findings in words, and what criticality can say."""
    area, score, first = (_estimates(sites, m, facts) for m in ("rewind_area", "criticality", "criticality_first"))
    said = [
        f"Criticality is the smallest α from which on the {_say('name', facts)} stays within {_within(facts)}; "
        "the area needs no such line, and is what should be compared.",
    ]
    other = {one.name: one.mean for one in first}
    if differ := [one.name for one in score if other.get(one.name, one.mean) != one.mean]:
        said.append(
            "The other reading of criticality, the smallest α that is within that line at all, differs at "
            f"{words.join_words(differ)}: there the {_say('name', facts)} does not fall steadily."
        )
    floor = [one.name for one in score if one.mean in (0.0, 1.0)]
    if 2 * len(floor) > len(score):
        said.append(
            f"At {words.several(len(floor), 'site')} of {len(score)} criticality is exactly 0 or 1: the measure is at its "
            "floor, and cannot distinguish these sites further."
        )
    short = []
    for title, measure, scale in _kinds(facts):
        of: dict[str, list[float]] = {}
        for one in _estimates(sites, measure, facts):
            of.setdefault(words.place(one.name).group, []).append(one.mean or 0.0)
        values = tuple(Estimate(name, sum(each) / len(each), n=len(each)) for name, each in of.items())
        short.append(Finding(measure, "", scale, values, title=title))
    caption = "Means over sites by component."
    drawn = small_multiples("checkpoints-short", "In short", caption, short)
    caption = (
        f"{_say('what', facts)} with one site's weights on the straight line between {facts.initial} (α = 0) and "
        f"{facts.final} (α = 1), all else final. The same colours in every panel. {_n(facts)}"
    )
    cells = _cells(sites, f"rewind_{_say('curve', facts)}")
    heights = {at: f"{at:g}" for at in sorted({at for _, at, _ in cells}, reverse=True)}
    names = ("checkpoints-convex", "Figure 1", f"{_say('name', facts).capitalize()} along the line")
    line = _map(names, caption, cells, heights, "α", _say("unit", facts))
    figures = present(drawn, line, _scores(area, score, facts))
    return Section("Convex rewinding", (), figures, present(sentences(found)), blocks=quiet(said))


def _within(facts: RewindFacts) -> str:
    """ε in words; of a squared length also what it is of the length."""
    said = f"{100 * facts.epsilon:g} % {_say('within', facts)}"
    return said if facts.objective != "output" else f"{said} ({100 * facts.epsilon**0.5:.3g} % of its length)"


def _n(facts: RewindFacts) -> str:
    return f"n\u00a0=\u00a0{words.sample_words(facts)}, {words.count(facts.tokens)} {_say('tokens', facts)}."


def _scores(area: Sequence[Estimate], score: Sequence[Estimate], facts: RewindFacts) -> Figure:
    """Of each stack a panel of areas and one of criticality."""
    areas, scores = _bars(area, "Area"), _bars(score, "Criticality")
    panels: dict[str, list[Bar]] = {}
    for title, bars in areas.items():
        beside = title.replace("Area", "Criticality")
        panels |= {title: bars} | ({beside: scores[beside]} if beside in scores else {})
    caption = (
        f"The area is the mean {_say('falls', facts)} over α; criticality the smallest α from which on the "
        f"{_say('name', facts)} is within {_within(facts)}. Bars are 95 % intervals. {_n(facts)}"
    )
    names = ("checkpoints-criticality", "Figure 2", "Area and criticality")
    axes = dict.fromkeys(scores, SharedAxis("α", -0.04, 1.04))
    return layer_figure(names, caption, panels, words.unit(facts), axes=axes)


def _midstage(sites: pl.DataFrame, said: str, facts: RewindFacts) -> Section:
    """The loss with each revision's weights, and its mean over revisions."""
    revisions = [facts.initial, *facts.stages, facts.final]
    names = [f"{name} ({i})" if revisions.count(name) > 1 else name for i, name in enumerate(revisions)]
    caption = (
        f"{_say('what', facts)} with one site's weights as they were at each revision, the last on top. {_n(facts)}"
    )
    titled = ("checkpoints-stages", "Figure 3", f"{_say('name', facts).capitalize()} by revision")
    heights = {float(i): names[i] for i in reversed(range(len(names)))}
    heats = _map(
        titled, caption, _cells(sites, f"midstage_{_say('curve', facts)}"), heights, "revision", _say("unit", facts)
    )
    caption = f"The mean {_say('falls', facts)} over all revisions. Bars are 95 % intervals. {_n(facts)}"
    panels = _bars(_estimates(sites, "midstage_area", facts), "Mid-stage area")
    area = layer_figure(("checkpoints-stages-area", "Figure 4", "Mid-stage area"), caption, panels, words.unit(facts))
    return Section("Mid-stage rewinding", (said,), (heats, area))


def _map(
    names: tuple[str, str, str], caption: str, cells: Cells, heights: Mapping[float, str], down: str, unit: str
) -> Figure:
    """Heat maps with a panel per component and stack: layers to the right, the named `heights` downwards."""
    downwards = list(heights)

    def rank(cell: tuple[str, float, float]) -> tuple[object, ...]:
        site, at, _ = cell
        stack, group = Site.parse(site).stack or "plain", words.place(site).group
        return words.stack_order(stack), component_order(group), group, downwards.index(at), words.order(site)

    rows = (
        (
            _title(words.GROUP.get(words.place(site).group, words.place(site).group), site),
            heights[at],
            words.place(site).layers,
            value,
            False,
        )
        for site, at, value in sorted(cells, key=rank)
    )
    return label_maps(names, caption, rows, unit, down, "layer", signed=False)


def _numbers(sites: pl.DataFrame, about: About[RewindFacts]) -> Section:
    """Every site as a row, and how exact its numbers are."""
    facts = about.facts
    every = {
        f"{title.lower()}, {scale}": {one.name: one for one in _estimates(sites, name, facts)}
        for title, name, scale in _kinds(facts)
    }
    found = {title: of for title, of in every.items() if of}
    starts = {site: value for site, at, value in _cells(sites, f"rewind_{_say('curve', facts)}") if at == 0}
    names = sorted({site for of in found.values() for site in of}, key=_order)
    rows = tuple(
        (
            s,
            words.number(starts.get(s)),
            *(words.number_words(of[s], False) if s in of else "–" for of in found.values()),
        )
        for s in names
    )
    said = [
        f"Intervals are 95 % of a bootstrap over {words.sample_words(facts)}; every set of weights is tried on the "
        "same texts. They are not corrected for how many there are.",
        *words.too_few(facts),
    ]
    checks = sites.filter(measure=_say("check", facts))["value"].to_list()
    if not facts.exact and checks:
        said.append(
            f"Of the {facts.points} α of a curve some are tried and the others interpolated; the last two interpolants "
            f"differ by at most {words.number(max(checks))}{_say('differ', facts)}."
        )
    columns = ("site", f"{_say('name', facts)} at α = 0, {words.unit(facts)}", *found)
    return Section("Numbers", (*said, *about.notes), (), (Table(columns, rows, "Every site"),))
