"""Heat maps of a whole model: one number per head, or labels by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from trisect.report import alt, render
from trisect.report import format as words
from trisect.report.charts import Figure, Panel, heat_map
from trisect.report.format import GROUP
from trisect.report.measures import MeasuredValue, Measures

MAX_PANEL_WIDTH, MAX_CELL_SIZE = 272.0, 24.0  # pixels: of a panel's cells, so that it fits a telephone, and of one cell
MAX_PANEL_HEIGHT = 300.0
LABELS, LABEL = 248.0, 30.0  # the same of a map of labels, whose words stand below their columns
LABEL_GAP = 17.0  # pixels between the numbers at an axis, so that two digits do not touch
LINE = 13.0  # the same of names
TICKS = {"ticks": False, "domain": False, "labelPadding": 4, "labelOverlap": False}


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
    """Heat maps with layers downwards and heads to the right; a mapping gives a panel per title, with one scale.

    `values` are rows (layer, head, value), from 1; a value that is not finite is drawn as a gap. `ends` are the ends of the
    colours where several figures share them; values beyond have the end's colour. `diverging` centres the colours on 0.
    `marked` puts a dot on those (layer, head) of a panel; with one unnamed panel its title is "".
    """
    named = values if isinstance(values, Mapping) else {"": values}
    low, high = ends or _ends([value for rows in named.values() for *_, value in rows], diverging)
    stops, dots = render.DIVERGING if diverging else render.VIRIDIS, marked or {}
    panels = tuple(_heads(panel, rows, (low, high), stops, unit, dots.get(panel, ())) for panel, rows in named.items())
    return Figure(name, number, title, caption, panels, (), (low, high, unit), stops=stops)


def head_maps(
    names: tuple[str, str, str],
    caption: str,
    rows: Measures,
    unit: str,
    signed: bool = False,
    ends: tuple[float, float] | None = None,
    marked: Callable[[MeasuredValue], bool] | None = None,
    title: Callable[[MeasuredValue], str] = lambda row: GROUP.get(row.component or "", row.component or ""),
) -> Figure:
    """Maps of rows of single heads, a panel for each component or other `title`; a dot for `marked` rows."""
    values: dict[str, list[tuple[int, int, float]]] = {}
    dots: dict[str, set[tuple[int, int]]] = {}
    for row in rows:
        cell = (row.layer or 0, row.head or 0)
        values.setdefault(title(row), []).append((*cell, row.value))
        if marked is not None and marked(row):
            dots.setdefault(title(row), set()).add(cell)
    return grid(*names, caption, values, unit, signed, ends, dots)


def label_maps(
    names: tuple[str, str, str],
    caption: str,
    rows: Iterable[tuple[str, str, str, float, bool]],
    unit: str,
    down: str = "layer",
    across: str | None = None,
    signed: bool = True,
) -> Figure:
    """Maps of labels with one scale, centred on 0 if `signed`: a panel for each component or other title.

    `rows` are (component, layer or what `down` names, label or what `across` names, number, whether it has a dot). Each label is a
    column. A number that is not finite is a gap.
    """
    panels: dict[str, list[tuple[str, str, float, bool]]] = {}
    for component, layer, label, value, marked in rows:
        panels.setdefault(GROUP.get(component, component), []).append((layer, label, value, marked))
    ends = _ends([value for cells in panels.values() for _, _, value, _ in cells], signed)
    stops = render.DIVERGING if signed else render.VIRIDIS
    plots = tuple(_labels(title, cells, ends, unit, down, across, stops) for title, cells in panels.items())
    return Figure(*names, caption, plots, (), (*ends, unit), stops=stops)


def _ends(values: Sequence[float], diverging: bool) -> tuple[float, float]:
    """The ends of the colour scale: least and largest value, or symmetric around 0; never equal."""
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    if diverging:
        largest = max(abs(v) for v in finite) or 1.0
        return -largest, largest
    low, high = min(finite), max(finite)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _heads(
    title: str,
    cells: Sequence[tuple[int, int, float]],
    ends: tuple[float, float],
    stops: Sequence[str],
    unit: str,
    marked: Collection[tuple[int, int]],
) -> Panel:
    layers, heads = (sorted({cell[i] for cell in cells}) for i in (0, 1))
    wide = min(MAX_CELL_SIZE, MAX_PANEL_WIDTH / max(1, len(heads)))
    high = min(MAX_CELL_SIZE, MAX_PANEL_HEIGHT / max(1, len(layers)))
    x = alt.X("head:O", scale=_scale(heads), title="head", axis=_axis(heads, wide, LABEL_GAP))
    y = alt.Y("layer:O", scale=_scale(layers), title="layer", axis=_axis(layers, high, LABEL_GAP, -3))
    rows = [{"layer": layer, "head": head, "value": v} for layer, head, v in cells if math.isfinite(v)]
    dots = [row for row in rows if (row["layer"], row["head"]) in marked]
    named = f"{title}: heat map" if title else "Heat map"
    text = f"{named} of {words.quantity(len(layers), 'layer')} by {words.quantity(len(heads), 'head')}, in {unit}."
    text += _extremes(rows, lambda row: f"at layer {row['layer']} head {row['head']}")
    text += f" {len(cells) - len(rows)} without a number." if len(rows) < len(cells) else ""
    text += f" {len(dots)} marked." if dots else ""
    size, dot = (wide * len(heads), high * len(layers)), max(3.0, (0.4 * min(wide, high)) ** 2)
    return Panel(title, heat_map(title, rows, x, (y,), ends, unit, size, stops, dots, dot), text, (), {})


def _labels(
    title: str,
    cells: Sequence[tuple[str, str, float, bool]],
    ends: tuple[float, float],
    unit: str,
    down: str,
    across: str | None,
    stops: Sequence[str],
) -> Panel:
    layers, labels = list(dict.fromkeys(cell[0] for cell in cells)), list(dict.fromkeys(cell[1] for cell in cells))
    wide, high = min(LABEL, LABELS / max(1, len(labels))), min(MAX_CELL_SIZE, MAX_PANEL_HEIGHT / max(1, len(layers)))
    angle = 0 if all(label.isdigit() for label in labels) else -90
    axis = alt.Axis(labelAngle=angle, labelLimit=110, **TICKS)
    x = alt.X("label:N", scale=_scale(labels), sort=labels, title=across, axis=axis)
    y = alt.Y("layer:N", scale=_scale(layers), sort=layers, title=down, axis=_axis(layers, high, LINE, -3))
    finite = [cell for cell in cells if math.isfinite(cell[2])]
    rows = [{"layer": layer, "label": label, "value": value} for layer, label, value, _ in finite]
    dots = [row for row, cell in zip(rows, finite, strict=True) if cell[3]]
    text = f"{title}: heat map of {across or 'label'}s by {down}, in {unit}."
    text += _extremes(
        rows, lambda row: f"for {across or ''} {row['label']} at {down} {row['layer']}".replace("  ", " ")
    )
    text += f" {len(dots)} marked." if dots else ""
    size, dot = (wide * len(labels), high * len(layers)), (0.3 * min(wide, high)) ** 2 + 8
    return Panel(title, heat_map(title, rows, x, (y,), ends, unit, size, stops, dots, dot), text, (), {})


def _scale(names: Sequence[Any]) -> alt.Scale:
    inner = 0.06 if len(names) <= 24 else 0.0
    return alt.Scale(domain=list(names), paddingInner=inner, paddingOuter=inner / 2)


def _axis(names: Sequence[Any], spacing: float, gap: float, title: float | None = None) -> alt.Axis:
    """All names if they fit, else every second, fourth, eighth … from the first; `title` moves clear of the legend."""
    step = next((s for s in (1, 2, 4, 8, 16) if s * spacing >= gap), 32)
    # The theme's tickCount would thin out the values that are given.
    axis = alt.Axis(values=list(names[::step]), tickCount=len(names), minExtent=0, **TICKS)
    if title is not None:
        axis.titleY = title
    return axis


def _extremes(rows: Sequence[Mapping[str, Any]], where: Callable[[Mapping[str, Any]], str]) -> str:
    """The highest and the lowest cell as a text alternative; empty if there is none."""
    if not rows:
        return ""
    largest, least = (find(rows, key=lambda row: row["value"]) for find in (max, min))
    return f" Highest {largest['value']:.3g} {where(largest)}, lowest {least['value']:.3g} {where(least)}."
