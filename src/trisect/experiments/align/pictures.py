"""Sentence pairs as drawings: gold links as cells of a table of words, and beside them those by weight and by norm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from trisect.report import palette
from trisect.report.palette import KINDS
from trisect.report.panels import Figure, LegendEntry, Panel, chart_of, lay

if TYPE_CHECKING:
    from trisect.experiments.align.settings import PicturedPair

CELL, WIDEST = 21.0, 225.0  # pixels: of a cell, and of a side's, so that it fits a telephone with its words
FAINT = 0.3  # of a possible link's cell
LONGEST = 110  # pixels of a word; what is longer is cut
GOLD = {"sure": "sure gold link", "possible": "possible gold link"}


def pictures(given: Sequence[PicturedPair], rule: str, n: str) -> Figure | None:
    """A panel for each sentence pair; null where there is none. `rule` says how the pairs were chosen."""
    if not given:
        return None
    gold = any(one["sure"] or one["possible"] for one in given)
    keys = [
        LegendEntry(GOLD["sure"], palette.BASELINE, "square"),
        LegendEntry(GOLD["possible"], f"{palette.BASELINE}4d", "square"),
    ]
    keys = keys * gold + [LegendEntry(f"by {name}", mark.colour, mark.shape) for name, mark in KINDS.items()]
    caption = f"Source words from left to right, target words downwards. {rule} {n}."
    panels = tuple(_panel(one) for one in given)
    return Figure("sentence-pairs", "", "Links of single sentence pairs", caption, panels, tuple(keys))


def _panel(one: PicturedPair) -> Panel:
    source, target = one["source"], one["target"]
    cell = min(CELL, WIDEST / max(len(source), len(target)))
    x, y = _axis("source", source, "top", -90), _axis("target", target, "left", 0)
    layers: list[alt.Chart] = []
    for name, opacity in (("sure", 1.0), ("possible", FAINT)):
        known = one[name] if name == "sure" else [p for p in one[name] if p not in one["sure"]]
        if known:
            look = chart_of(name, _rows(known)).mark_rect(fill=palette.BASELINE, fillOpacity=opacity)
            layers.append(look.encode(x, y))
    for side, (name, mark) in zip((-1, 1), KINDS.items(), strict=True):
        look = chart_of(name, _rows(one[name])).mark_point(
            shape=mark.shape,
            fill=mark.colour,
            stroke=palette.PAPER,
            strokeWidth=0.8,
            opacity=1,
            size=(0.42 * cell) ** 2,
            xOffset=side * 0.22 * cell,
        )
        layers.append(look.encode(x, y))
    chart = lay(one["title"], *layers, width=cell * len(source), height=cell * len(target))
    return Panel(one["title"], chart, _said(one), (), {})


def _rows(links: Sequence[Sequence[int]]) -> list[dict[str, int]]:
    return [{"source": source, "target": target} for source, target in links]


def _axis(side: str, words: Sequence[str], orient: str, angle: float) -> Any:
    """Words beside the cells; they are distinguished by their place, since a word may stand there twice."""
    axis = alt.Axis(
        orient=orient,  # type: ignore[arg-type]
        labelExpr=f"{json.dumps(list(words))}[datum.value - 1]",
        labelAngle=angle,
        labelLimit=LONGEST,
        labelOverlap=False,
        labelColor=palette.INK,
        ticks=False,
        domain=False,
        grid=True,
        minExtent=0,
        tickCount=len(words),
        title=None,
        bandPosition=0,
    )
    numbers = list(range(1, len(words) + 1))
    scale = alt.Scale(domain=numbers, paddingInner=0.08, paddingOuter=0.04)
    made = alt.X if side == "source" else alt.Y
    return made(f"{side}:O", scale=scale, axis=axis)


def _said(one: PicturedPair) -> str:
    """The pair for those who do not see it: its words, and how many links of each kind are right."""
    sure, allowed = {tuple(p) for p in one["sure"]}, {tuple(p) for p in (*one["sure"], *one["possible"])}
    said = f"{one['title']}. Source: {' '.join(one['source'])}. Target: {' '.join(one['target'])}."
    for name in KINDS:
        links = {tuple(p) for p in one[name]}
        right = f", {len(links & allowed)} of them gold, {len(links & sure)} of {len(sure)} sure ones found" * bool(
            allowed
        )
        said += f" By {name}: {len(links)} links{right}."
    return said
