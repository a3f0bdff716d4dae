"""Heat maps of one number per head of a whole model, from one layer with one head to 48 layers with 64."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import altair as alt

from trisect.report import palette
from trisect.report.panels import Figure, Panel, chart_of, lay

WIDEST, LARGEST = 272.0, 24.0  # pixels: of a panel's cells, so that it fits a telephone, and of one cell
TALLEST = 300.0
APART = 17.0  # pixels between the numbers at an axis, so that two digits do not touch


class HeadCell(NamedTuple):
    """One head's number; layers and heads count from 1. A value that is not finite is drawn as a gap."""

    layer: int
    head: int
    value: float


def grid(
    name: str,
    number: str,
    title: str,
    caption: str,
    values: Sequence[tuple[int, int, float]] | Mapping[str, Sequence[tuple[int, int, float]]],
    unit: str,
    diverging: bool = False,
    ends: tuple[float, float] | None = None,
    marked: Mapping[str, Collection[tuple[int, int]]] | None = None,
) -> Figure:
    """Heat maps with layers downwards and heads to the right; a mapping gives a panel per title, all in one scale.

    `values` are rows (layer, head, value). `ends` are the ends of the colours where several figures share them; values
    beyond have the end's colour. `diverging` centres the colours on 0. `marked` puts a dot on those (layer, head) of a
    panel; with one unnamed panel its title is "".
    """
    named = values if isinstance(values, Mapping) else {"": values}
    cells = {panel: [HeadCell(*row) for row in rows] for panel, rows in named.items()}
    low, high = ends or _ends([c.value for rows in cells.values() for c in rows], diverging)
    stops = palette.DIVERGING if diverging else palette.VIRIDIS
    panels = tuple(
        _panel(panel, rows, (low, high), stops, unit, (marked or {}).get(panel, ())) for panel, rows in cells.items()
    )
    return Figure(name, number, title, caption, panels, (), (low, high, unit), stops=stops)


def _ends(values: Sequence[float], diverging: bool) -> tuple[float, float]:
    """The ends of the colours: least and largest value, or the same on both sides of 0; never the same number twice."""
    known = [v for v in values if math.isfinite(v)] or [0.0]
    if diverging:
        most = max(abs(v) for v in known) or 1.0
        return -most, most
    low, high = min(known), max(known)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _panel(
    title: str,
    cells: Sequence[HeadCell],
    ends: tuple[float, float],
    stops: Sequence[str],
    unit: str,
    marked: Collection[tuple[int, int]],
) -> Panel:
    layers, heads = sorted({c.layer for c in cells}), sorted({c.head for c in cells})
    wide = min(LARGEST, WIDEST / max(1, len(heads)))
    high = min(LARGEST, TALLEST / max(1, len(layers)))
    x = alt.X("head:O", scale=_scale(heads), title="head", axis=_axis(heads, wide))
    down = _axis(layers, high)
    down.titleY = -3  # below the numbers of the legend
    y = alt.Y("layer:O", scale=_scale(layers), title="layer", axis=down)
    colours = alt.Scale(domain=list(ends), range=list(stops), interpolate="rgb", clamp=True)
    colour = alt.Color("value:Q", scale=colours, title=unit)
    known = [c for c in cells if math.isfinite(c.value)]
    drawn = chart_of("cells", [c._asdict() for c in known]).mark_rect()
    layered: list[alt.Chart] = [drawn.encode(x, y, colour)]
    dots = [c for c in known if (c.layer, c.head) in marked]
    if dots:
        size = max(3.0, (0.4 * min(wide, high)) ** 2)
        look = chart_of("dots", [c._asdict() for c in dots]).mark_point(
            size=size, filled=True, fill="white", stroke="black", strokeWidth=0.6, opacity=1
        )
        layered.append(look.encode(x, y))
    chart = lay(title, *layered, width=wide * len(heads), height=high * len(layers))
    return Panel(title, chart, _words(title, cells, known, unit, len(dots)), (), {})


def _scale(numbers: Sequence[int]) -> alt.Scale:
    inner = 0.06 if len(numbers) <= 24 else 0.0
    return alt.Scale(domain=list(numbers), paddingInner=inner, paddingOuter=inner / 2)


def _axis(numbers: Sequence[int], room: float) -> alt.Axis:
    """Every number where there is room, else every second, fourth, eighth … from the first on."""
    step = next((s for s in (1, 2, 4, 8, 16) if s * room >= APART), 32)
    # The theme's tickCount would thin out the values that are given.
    return alt.Axis(
        values=list(numbers[::step]),
        tickCount=len(numbers),
        ticks=False,
        domain=False,
        minExtent=0,
        labelPadding=4,
        labelOverlap=False,
    )


def _words(title: str, cells: Sequence[HeadCell], known: Sequence[HeadCell], unit: str, dots: int) -> str:
    """The panel for those who do not see it: its size, its highest and its lowest head."""
    layers, heads = len({c.layer for c in cells}), len({c.head for c in cells})
    named = f"{title}: heat map" if title else "Heat map"
    said = f"{named} of {layers} layer{'s'[: layers > 1]} by {heads} head{'s'[: heads > 1]}, in {unit}."
    if known:
        most, least = max(known, key=lambda c: c.value), min(known, key=lambda c: c.value)
        said += f" Highest {most.value:.3g} at layer {most.layer} head {most.head}"
        said += f", lowest {least.value:.3g} at layer {least.layer} head {least.head}."
    if len(known) < len(cells):
        said += f" {len(cells) - len(known)} without a number."
    return said + (f" {dots} marked." if dots else "")
