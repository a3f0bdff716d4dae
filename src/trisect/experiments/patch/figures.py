"""Figures of an interchange: numbers by layer, and maps of layers by heads for q, k and v side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trisect.experiments.patch.sites import SiteNumbers
from trisect.experiments.patch.words import NUMBERS, RUNS, TITLES, UNITS, heads_of, layers_of
from trisect.report import format as words
from trisect.report.heatmaps import grid
from trisect.report.layers import Bar, component_groups, component_key, cut, frame_of, layer_panel
from trisect.report.panels import Figure
from trisect.report.subject import stack_words

if TYPE_CHECKING:
    from trisect.experiments.patch.settings import PatchFacts


def draw(sites: Sequence[SiteNumbers], facts: PatchFacts) -> Iterable[Figure]:
    """By layer both numbers beside each other, and by head a figure for each; a set for every stack and direction."""
    number = 0
    for how, stack in dict.fromkeys((site.how, site.stack) for site in sites):
        mine = [site for site in sites if (site.how, site.stack) == (how, stack)]
        if whole := [s for s in mine if s.head is None and any(s.mean(one) is not None for one in TITLES)]:
            number += 1
            yield _by_layer(whole, number, facts)
        for measure in NUMBERS:
            if single := [s for s in mine if s.head is not None and s.mean(measure) is not None]:
                number += 1
                yield _by_head(single, measure, number, facts)


def _by_layer(sites: Sequence[SiteNumbers], number: int, facts: PatchFacts) -> Figure:
    panels, bars, said = [], [], []
    for measure, title in TITLES.items():
        known = [(site, site.numbers[measure]) for site in sites if site.mean(measure) is not None]
        if known:
            bars = [Bar(site.component, _layer(site), one.mean or 0.0, one.low, one.high) for site, one in known]
            axis = frame_of(bars, UNITS[measure])
            panels.append(layer_panel(title[0].upper() + title[1:], bars, axis))
            said.append(f"{_caption([site for site, _ in known], measure, facts)}{cut(bars, axis)}")
    caption = f"{' '.join(said)} Bars are 95 % intervals."
    return Figure(
        _name("layers", sites),
        f"Figure {number}",
        _title("By layer", sites),
        caption,
        tuple(panels),
        component_key(bars),
    )


def _by_head(sites: Sequence[SiteNumbers], measure: str, number: int, facts: PatchFacts) -> Figure:
    """A map for each component, side by side and in one scale."""
    signed = measure == "logit_change"
    groups = component_groups([Bar(s.component, "", 0.0) for s in sites])
    values = {
        words.GROUP.get(g, g): [(s.layer or 0, s.head or 0, s.mean(measure) or 0.0) for s in sites if s.component == g]
        for g in groups
    }
    most = max((abs(row[2]) for rows in values.values() for row in rows), default=0.0) or 1.0
    ends = (-most, most) if signed else (0.0, 1.0 if measure == "own" else most)
    caption = f"{_caption(sites, measure, facts)} The same colours in every panel."
    title = f"{_title('By head', sites)}: {TITLES[measure]}"
    name = _name(f"heads-{measure.replace('_', '-')}", sites)
    return grid(name, f"Figure {number}", title, caption, values, UNITS[measure], signed, ends)


def _caption(sites: Sequence[SiteNumbers], measure: str, facts: PatchFacts) -> str:
    n = max((s.numbers[measure].n or 0 for s in sites), default=0)
    what = NUMBERS[measure][0].upper() + NUMBERS[measure][1:]
    run = RUNS[sites[0].how]
    what_is = "all that a site names patched at once" if facts.per == "site" else f"one {facts.per}'s component patched"
    return f"{what}, with {what_is}, {run}; n\u00a0=\u00a0{words.several(n, 'pair')}."


def _name(kind: str, sites: Sequence[SiteNumbers]) -> str:
    stack = "" if sites[0].stack == "plain" else f"-{sites[0].stack}"
    return f"patch-{kind}{stack}" + ("-noise" if sites[0].how == "noise" else "")


def _title(kind: str, sites: Sequence[SiteNumbers]) -> str:
    stack = stack_words(sites[0].stack)
    return kind + (f", {stack}" if stack else "") + (f", {RUNS['noise']}" if sites[0].how == "noise" else "")


def _layer(site: SiteNumbers) -> str:
    return layers_of(site.layer, site.group) + heads_of(None, site.group)
