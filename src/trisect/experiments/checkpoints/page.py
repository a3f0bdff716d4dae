"""The page of rewinding between checkpoints: how far each site can go back before the loss changes."""

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
from trisect.report.sheet import Section, Sheet, Table, present, provenance, quiet, small_multiples

if TYPE_CHECKING:
    from trisect.experiments.checkpoints.settings import RewindFacts

REFERENCES = (
    "Niladri Chatterji, Behnam Neyshabur, Hanie Sedghi. The Intriguing Role of Module Criticality in the Generalization of Deep "
    "Networks. ICLR 2020.",
    "Chiyuan Zhang, Samy Bengio, Yoram Singer. Are All Layers Created Equal? JMLR 2022.",
    "Jean-Paul Berrut, Lloyd N. Trefethen. Barycentric Lagrange Interpolation. SIAM Review 46, 2004.",
)


WORDS = {  # for a loss; for a model without one, the change of its output
    "curve": ("loss_nats", "output_change"),
    "check": ("rewind_check_nats", "rewind_check"),
    "name": ("loss", "change of the output"),
    "what": ("The model's loss", "Relative squared change of the model's output"),
    "rise": ("rise over that loss", "change of its output"),  # whose mean an area is
    "mean rise": ("rise", "change of its output"),  # the same where the loss was named
    "falls": ("rise of the loss", "change of the output"),  # the same in a caption
    "verb": ("raise the loss", "change the output"),
    "within": ("of the final one", "of the output's squared length"),  # reference of ε
    "unit": ("nats per token", "share"),
    "tail": (" nats", " of the output's squared length"),
    "differ": (" nats", ""),  # unit of differences between interpolants
    "tokens": ("predicted tokens", "tokens"),
}
Cells = Sequence[tuple[str, float, float]]  # a site, the position on its curve, and the loss there


def _say(name: str, facts: RewindFacts) -> str:
    """Format a measure for tables or sentences."""
    return WORDS[name][facts.objective == "output"]


def page(tables: Mapping[str, pl.DataFrame], about: About[RewindFacts]) -> Sheet:
    """The page from the table sites."""
    sites, facts = tables["sites"], about.facts
    name = words.display_name(facts.subject, about.command)
    lede = f"{name} · {facts.corpus} · {words.sample_words(facts)} · one site at a time set back to {facts.initial}, all else final"
    (largest, size), (least, small) = _extremes(_estimates(sites, "rewind_area", facts), facts)
    answer = (
        f"Set back step by step towards {facts.initial}, the weights of {words.site_words(largest)} {_say('verb', facts)} most, "
        f"by {size} on average over the way{f', and those of {words.site_words(least)} least, by {small}' * (least != largest)}."
    )
    results = findings(tables, about)
    midstage = [_midstage(sites, str(finding), facts) for finding in results if finding.measure == "midstage_area"]
    final = [finding.words for finding in results if finding.measure == "final_loss"]
    sections = (_convex(sites, final, facts), *midstage, _numbers(sites, about))
    curves = f"{facts.points} α, ε {100 * facts.epsilon:g} %, {facts.passes} passes over the texts"
    how = (("Revisions", ", ".join([facts.initial, *facts.stages, facts.final])), ("Curves", curves))
    made_by = provenance(about, *words.read_facts(facts, "final weights"), *how, timed=False)
    title = f"Which weights of {name} can go back in training?"
    return Sheet(title, "trisect · rewinding over checkpoints", lede, sections, made_by, REFERENCES, answer)


def findings(tables: Mapping[str, pl.DataFrame], about: About[RewindFacts]) -> tuple[Finding, ...]:
    """The final loss, if any, and the area of every site: along the line, and over intermediate revisions if given."""
    sites, facts = tables["sites"], about.facts
    result: list[Finding] = []
    if facts.objective != "output":
        final = next(value for _, at, value in _cells(sites, "rewind_loss_nats") if at == 1)
        text = f"With its final weights the model's loss is {words.number(final)} {_say('unit', facts)}."
        result.append(Finding("final_loss", text, _say("unit", facts), (Estimate("final", final, n=facts.units),)))
    area = _estimates(sites, "rewind_area", facts)
    (largest, size), (least, small) = _extremes(area, facts)
    text = (
        f"On the straight line from α = 0 (weights of {facts.initial}) to α = 1 (weights of {facts.final}) the mean "
        f"{_say('rise', facts)}, the area, is largest at {largest}, {size}, and smallest at {least}, {small}."
    )
    ends = f"most {largest}, least {least}"
    result.append(Finding("rewind_area", text, words.unit(facts), tuple(area), ends, per=facts.unit))
    if facts.stages:
        area = _estimates(sites, "midstage_area", facts)
        (largest, size), _ = _extremes(area, facts)
        text = (
            f"With a site's weights as they were at an earlier revision, the mean {_say('mean rise', facts)} over all "
            f"{len(facts.stages) + 2} revisions is largest at {largest}, {size}."
        )
        result.append(Finding("midstage_area", text, words.unit(facts), tuple(area), f"most {largest}", per=facts.unit))
    return tuple(result)


def _estimates(sites: pl.DataFrame, measure: str, facts: RewindFacts) -> list[Estimate]:
    """A measure at every site, ordered by layer and component."""
    means, low, high = (
        dict(sites.filter(measure=f"{measure}{end}").select("site", "value").iter_rows())
        for end in ("", "_low", "_high")
    )
    estimates = (Estimate(site, mean, low.get(site), high.get(site), facts.units) for site, mean in means.items())
    return sorted(estimates, key=lambda estimate: _order(estimate.name))


def _cells(sites: pl.DataFrame, measure: str) -> Cells:
    picked = sites.filter(measure=measure).select("site", "at", "value")
    return sorted(picked.iter_rows(), key=lambda cell: (_order(cell[0]), cell[1]))


def _order(site: str) -> tuple[object, object]:
    return words.stack_order(Site.parse(site).stack or "plain"), words.order(site)


def _title(title: str, site: str) -> str:
    """A panel's title, with the site's stack."""
    stack = Site.parse(site).stack
    return f"{title}{', ' + words.stack_words(stack) if stack else ''}"


def _bars(estimates: Sequence[Estimate], title: str) -> dict[str, list[Bar]]:
    """Bars by site, a panel for each stack."""
    panels: dict[str, list[Bar]] = {}
    for estimate in estimates:
        place = words.site_position(estimate.name)
        bar = Bar(place.group, place.layers, estimate.mean or 0.0, estimate.low, estimate.high)
        panels.setdefault(_title(title, estimate.name), []).append(bar)
    return panels


def _extremes(area: Sequence[Estimate], facts: RewindFacts) -> tuple[tuple[str, str], tuple[str, str]]:
    """The sites with the largest and the smallest area, with their areas in words."""
    largest, least = (choose(area, key=lambda e: e.mean or 0.0) for choose in (max, min))
    tail = _say("tail", facts)
    return (largest.name, words.number_words(largest) + tail), (least.name, words.number_words(least) + tail)


def _kinds(sites: pl.DataFrame, facts: RewindFacts) -> list[tuple[str, str, str, list[Estimate]]]:
    """The measures with one number per site: title, measure, unit and values."""
    names = (("Area", "rewind_area"), ("Criticality", "criticality"), ("Mid-stage area", "midstage_area"))
    units = {"criticality": "α"}
    return [(title, m, units.get(m, words.unit(facts)), _estimates(sites, m, facts)) for title, m in names]


def _convex(sites: pl.DataFrame, final: Sequence[str], facts: RewindFacts) -> Section:
    """Figures of interpolation, the final loss, and the limits of criticality."""
    kinds = _kinds(sites, facts)
    area, score = kinds[0][-1], kinds[1][-1]
    name = _say("name", facts)
    notes = [
        *final,
        f"Criticality is the smallest α from which on the {name} stays within {_within(facts)}; "
        "the area needs no such line, and is what should be compared.",
    ]
    first = {estimate.name: estimate.mean for estimate in _estimates(sites, "criticality_first", facts)}
    if differ := [e.name for e in score if first.get(e.name, e.mean) != e.mean]:
        notes.append(
            "The other reading of criticality, the smallest α that is within that line at all, differs at "
            f"{words.join_words(differ)}: there the {name} does not fall steadily."
        )
    floor = sum(e.mean in (0.0, 1.0) for e in score)
    if 2 * floor > len(score):
        notes.append(
            f"At {words.quantity(floor, 'site')} of {len(score)} criticality is exactly 0 or 1: the measure is at its "
            "floor, and cannot distinguish these sites further."
        )
    short = []
    for title, measure, unit, estimates in kinds:
        groups: dict[str, list[float]] = {}
        for estimate in estimates:
            groups.setdefault(words.site_position(estimate.name).group, []).append(estimate.mean or 0.0)
        values = tuple(Estimate(group, sum(means) / len(means), n=len(means)) for group, means in groups.items())
        short.append(Finding(measure, "", unit, values, title=title))
    caption = f"Means over sites by component: the area is the mean {_say('falls', facts)} over the way, criticality explained below."
    multiples = small_multiples("checkpoints-short", "In short", caption, short)
    caption = (
        f"{_say('what', facts)} with one site's weights on the straight line between {facts.initial} (α = 0) and "
        f"{facts.final} (α = 1), all else final. The same colours in every panel. {_n(facts)}"
    )
    cells = _cells(sites, f"rewind_{_say('curve', facts)}")
    heights = {at: f"{at:g}" for at in sorted({at for _, at, _ in cells}, reverse=True)}
    names = ("checkpoints-convex", "Figure 1", f"{name.capitalize()} along the line")
    line = _map(names, caption, cells, heights, "α", facts)
    caption = (
        f"The area is the mean {_say('falls', facts)} over α; criticality the smallest α from which on the "
        f"{name} is within {_within(facts)}. Bars are 95 % intervals. {_n(facts)}"
    )
    panels: dict[str, list[Bar]] = {}  # of each stack a panel of areas and one of criticality
    scores = _bars(score, "Criticality")
    for title, bars in _bars(area, "Area").items():
        other_title = title.replace("Area", "Criticality")
        panels |= {title: bars} | ({other_title: scores[other_title]} if other_title in scores else {})
    names = ("checkpoints-criticality", "Figure 2", "Area and criticality")
    axes = dict.fromkeys(scores, SharedAxis("α", -0.04, 1.04))
    figures = present(multiples, line, layer_figure(names, caption, panels, words.unit(facts), axes=axes))
    return Section("Convex rewinding", (), figures, blocks=quiet(notes))


def _within(facts: RewindFacts) -> str:
    """ε in words; for a squared length also as a share of it."""
    text = f"{100 * facts.epsilon:g} % {_say('within', facts)}"
    return text if facts.objective != "output" else f"{text} ({100 * facts.epsilon**0.5:.3g} % of its length)"


def _n(facts: RewindFacts) -> str:
    return f"n\u00a0=\u00a0{words.sample_words(facts)}, {words.count(facts.tokens)} {_say('tokens', facts)}."


def _midstage(sites: pl.DataFrame, sentence: str, facts: RewindFacts) -> Section:
    """The loss with each revision's weights, and its mean over revisions."""
    revisions = [facts.initial, *facts.stages, facts.final]
    names = [f"{name} ({i})" if revisions.count(name) > 1 else name for i, name in enumerate(revisions)]
    caption = (
        f"{_say('what', facts)} with one site's weights as they were at each revision, the last on top. {_n(facts)}"
    )
    titles = ("checkpoints-stages", "Figure 3", f"{_say('name', facts).capitalize()} by revision")
    heights = {float(i): names[i] for i in reversed(range(len(names)))}
    cells = _cells(sites, f"midstage_{_say('curve', facts)}")
    heats = _map(titles, caption, cells, heights, "revision", facts)
    caption = f"The mean {_say('falls', facts)} over all revisions. Bars are 95 % intervals. {_n(facts)}"
    panels = _bars(_estimates(sites, "midstage_area", facts), "Mid-stage area")
    area = layer_figure(("checkpoints-stages-area", "Figure 4", "Mid-stage area"), caption, panels, words.unit(facts))
    return Section("Mid-stage rewinding", (sentence,), (heats, area))


def _map(
    names: tuple[str, str, str], caption: str, cells: Cells, heights: Mapping[float, str], down: str, facts: RewindFacts
) -> Figure:
    """Heat maps with a panel per component and stack: layers to the right, the named `heights` downwards."""
    downwards = list(heights)

    def rank(cell: tuple[str, float, float]) -> tuple[object, ...]:
        site, at, _ = cell
        stack, group = Site.parse(site).stack or "plain", words.site_position(site).group
        return words.stack_order(stack), component_order(group), group, downwards.index(at), words.order(site)

    rows = []
    for site, at, value in sorted(cells, key=rank):
        place = words.site_position(site)
        title = _title(words.GROUP.get(place.group, place.group), site)
        rows.append((title, heights[at], place.layers, value, False))
    return label_maps(names, caption, rows, _say("unit", facts), down, "layer", signed=False)


def _numbers(sites: pl.DataFrame, about: About[RewindFacts]) -> Section:
    """A table of all sites, with the precision of the numbers."""
    facts = about.facts
    columns = {
        f"{title.lower()}, {unit}": {estimate.name: words.number_words(estimate, False) for estimate in estimates}
        for title, _, unit, estimates in _kinds(sites, facts)
        if estimates
    }
    starts = {site: value for site, at, value in _cells(sites, f"rewind_{_say('curve', facts)}") if at == 0}
    rows = tuple(
        (site, words.number(starts.get(site)), *(column.get(site, "–") for column in columns.values()))
        for site in sorted({site for column in columns.values() for site in column}, key=_order)
    )
    notes = [
        f"Intervals are 95 % of a bootstrap over {words.sample_words(facts)}; every set of weights is tried on the "
        "same texts. They are not corrected for how many there are.",
        *words.too_few(facts),
    ]
    checks = sites.filter(measure=_say("check", facts))["value"].to_list()
    if not facts.exact and checks:
        notes.append(
            f"Of the {facts.points} α of a curve some are tried and the others interpolated; the last two interpolants "
            f"differ by at most {words.number(max(checks))}{_say('differ', facts)}."
        )
    names = ("site", f"{_say('name', facts)} at α = 0, {words.unit(facts)}", *columns)
    return Section("Numbers", (*notes, *about.notes), (), (Table(names, rows, "Every site"),))
