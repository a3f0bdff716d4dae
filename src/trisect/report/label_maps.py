"""Heat maps of labels by layer: a panel each for q, k and v, one column a label, violet below zero and orange above."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import altair as alt

from trisect.report import palette
from trisect.report.panels import Figure, Panel, chart_of, lay

WIDEST, CELL = 248.0, 30.0  # pixels: of a panel's cells, and of one cell
TALLEST = 300.0


class LabelCell(NamedTuple):
    """One number: of which row (a layer, as spelt) and which label."""

    layer: str
    label: str
    value: float


def label_grid(
    name: str,
    number: str,
    title: str,
    caption: str,
    values: Mapping[str, Sequence[LabelCell]],
    unit: str,
    marked: Mapping[str, Collection[tuple[str, str]]],
    rows: str = "layer",
) -> Figure:
    """A panel per title, all in one scale centred on 0, with a dot on the (layer, label) that are `marked` there."""
    known = [abs(cell.value) for cells in values.values() for cell in cells if math.isfinite(cell.value)]
    most = max(known, default=0.0) or 1.0
    panels = tuple(_panel(panel, cells, most, unit, marked.get(panel, ()), rows) for panel, cells in values.items())
    return Figure(name, number, title, caption, panels, (), (-most, most, unit), stops=palette.DIVERGING)


def _panel(
    title: str, cells: Sequence[LabelCell], most: float, unit: str, marked: Collection[tuple[str, str]], rows: str
) -> Panel:
    layers, labels = (list(dict.fromkeys(getattr(c, field) for c in cells)) for field in ("layer", "label"))
    wide, high = min(CELL, WIDEST / max(1, len(labels))), min(24.0, TALLEST / max(1, len(layers)))
    across = alt.Axis(labelAngle=-90, ticks=False, domain=False, labelPadding=4, labelOverlap=False, labelLimit=110)
    x = alt.X("label:N", scale=_scale(labels), sort=labels, title=None, axis=across)
    step = next((s for s in (1, 2, 4, 8, 16) if s * high >= 13), 32)
    down = alt.Axis(
        values=layers[::step],
        tickCount=len(layers),
        ticks=False,
        domain=False,
        minExtent=0,
        labelPadding=4,
        labelOverlap=False,
    )
    down.titleY = -3
    y = alt.Y("layer:N", scale=_scale(layers), sort=layers, title=rows, axis=down)
    colours = alt.Scale(domain=[-most, most], range=list(palette.DIVERGING), interpolate="rgb", clamp=True)
    known = [c for c in cells if math.isfinite(c.value)]
    drawn = chart_of("cells", [c._asdict() for c in known]).mark_rect()
    layered: list[alt.Chart] = [drawn.encode(x, y, alt.Color("value:Q", scale=colours, title=unit))]
    if dots := [c for c in known if (c.layer, c.label) in marked]:
        look = chart_of("dots", [c._asdict() for c in dots]).mark_point(
            size=(0.3 * min(wide, high)) ** 2 + 8, filled=True, fill="white", stroke="black", strokeWidth=0.6, opacity=1
        )
        layered.append(look.encode(x, y))
    chart = lay(title, *layered, width=wide * len(labels), height=high * len(layers))
    return Panel(title, chart, _words(title, known, unit, len(dots), rows), (), {})


def _scale(names: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=list(names), paddingInner=0.06, paddingOuter=0.03)


def _words(title: str, known: Sequence[LabelCell], unit: str, dots: int, rows: str) -> str:
    """The panel for those who do not see it."""
    said = f"{title}: heat map of labels by {rows}, in {unit}."
    if known:
        most, least = max(known, key=lambda c: c.value), min(known, key=lambda c: c.value)
        said += f" Highest {most.value:.3g} for {most.label} at {rows} {most.layer}"
        said += f", lowest {least.value:.3g} for {least.label} at {rows} {least.layer}."
    return said + (f" {dots} marked." if dots else "")
