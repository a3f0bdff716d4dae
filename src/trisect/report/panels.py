"""The three kinds of panel that all figures are made of: numbers per site, curves per layer, and a heat map."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt

from trisect.report import palette
from trisect.report.axes import SharedAxis, label_heights, whole_ticks
from trisect.report.chart_data import Measure, Series, Stroke, Strokes, mean_of, of_runs
from trisect.report.points import Point, by_site, extreme, order, place

WIDTH, HEIGHT = 246, 176
LINE_HEIGHT = 13.5
DOTS = 6  # at most so many marks on a curve


class Panel(NamedTuple):
    """One plot of a figure, with the words for those who do not see it, and the numbers under its marks."""

    title: str
    chart: alt.LayerChart
    alt: str
    series: tuple[Series, ...]
    strokes: Strokes

    def titled(self, title: str) -> Panel:
        """The same panel under another title."""
        chart = self.chart.copy(deep=False)
        chart.title = title
        return self._replace(title=title, chart=chart, alt=f"{title}{self.alt.removeprefix(self.title)}")


class LegendEntry(NamedTuple):
    """One entry of a figure's key: its name, and the look of its marks; without a shape it is a line."""

    name: str
    colour: str
    shape: str | None = None
    dash: tuple[int, ...] = ()


class FigureView(NamedTuple):
    """Another arrangement of a figure's rows: what its panels stand for, the panels, and their key."""

    name: str
    panels: tuple[Panel, ...]
    key: tuple[LegendEntry, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure of the report: its panels side by side, and what the page says about them.

    `key` names the marks; `ramp` gives the ends of a heat map's colours and their unit, `stops` the colours between.
    `at` is the word for what curves run over. `view` says what a panel stands for where `others` arrange the same rows differently.
    """

    name: str
    number: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    key: tuple[LegendEntry, ...] = ()
    ramp: tuple[float, float, str] | None = None
    at: str = ""
    view: str = ""
    others: tuple[FigureView, ...] = ()
    stops: tuple[str, ...] = palette.VIRIDIS

    @property
    def views(self) -> tuple[FigureView, ...]:
        """Every arrangement, the one of paper and of the stored file first."""
        return (FigureView(self.view, self.panels, self.key), *self.others)

    def chart(self) -> alt.ConcatChart:
        """All panels as one chart, as it is stored and shown in a notebook."""
        whole = alt.concat(*(p.chart for p in self.panels), columns=3)
        whole.config = palette.theme()
        # each panel keeps its own colours and offsets: shared, they would be taken from all panels' series at once
        return whole.resolve_scale(
            color="independent", shape="independent", strokeDash="independent", x="independent", xOffset="independent"
        )


def data_of(rows: Sequence[Mapping[str, object]]) -> alt.InlineData:
    """Rows for a chart."""
    # As text, since the chart library copies and checks every value of a list several times over.
    return alt.InlineData(values=json.dumps(rows), format=alt.JsonDataFormat(type="json"))


def chart_of(name: str, rows: Sequence[Mapping[str, object]]) -> alt.Chart:
    """A layer of a panel: its rows, by a name that the page knows it by."""
    return alt.Chart(data_of(rows), name=name)


def lay(title: str, *layers: alt.Chart, width: float = WIDTH, height: float = HEIGHT) -> alt.LayerChart:
    """Layers over one another, with a title."""
    chart = alt.LayerChart(layer=list(layers))
    chart.title, chart.width, chart.height = title, width, height
    return chart


def heat(
    title: str,
    rows: Sequence[Mapping[str, object]],
    x: alt.X,
    y: tuple[alt.Y] | tuple[alt.Y, alt.Y2],
    ends: tuple[float, float],
    unit: str,
    size: tuple[float, float],
    stops: Sequence[str] = palette.VIRIDIS,
    dots: Sequence[Mapping[str, object]] = (),
    dot: float = 0.0,
) -> alt.LayerChart:
    """A heat map of each row's `value` between the ends of the colours; white `dots` of that area stand on some of its cells."""
    scale = alt.Scale(domain=list(ends), range=list(stops), interpolate="rgb", clamp=True)
    cells = chart_of("cells", rows).mark_rect().encode(x, *y, alt.Color("value:Q", scale=scale, title=unit))
    if not dots:
        return lay(title, cells, width=size[0], height=size[1])
    look = chart_of("dots", dots).mark_point(
        size=dot, filled=True, fill="white", stroke="black", strokeWidth=0.6, opacity=1
    )
    return lay(title, cells, look.encode(x, *y), width=size[0], height=size[1])


def look_of(looks: Mapping[str, palette.Mark]) -> tuple[alt.Color, alt.Shape]:
    """Colour and shape of every group, as encodings."""
    domain, found = list(looks), looks.values()
    colours, shapes = (
        alt.Scale(domain=domain, range=ends) for ends in ([m.colour for m in found], [m.shape for m in found])
    )
    return alt.Color("group:N", scale=colours, title=None), alt.Shape("group:N", scale=shapes, title=None)


def marks(
    rows: Sequence[Mapping[str, Any]],
    axis: SharedAxis,
    x: alt.X,
    looks: Mapping[str, palette.Mark],
    slots: Sequence[str] | None = None,
    levels: Sequence[Level] = (),
    small: Sequence[Mapping[str, Any]] = (),
    behind: Sequence[alt.Chart] = (),
) -> list[alt.Chart]:
    """The layers of a panel of numbers: dashed levels, `small` marks of what they are of, 95 % intervals, and marks on top.

    A row has its `group`, its `value` and the ends of its interval, `low` and `high`, or nulls. Groups stand beside each other at one
    place of `x`, or each row at its own `slot` where there are `slots`.
    """
    colour, shape = look_of(looks)
    at = list(slots or looks)
    offset = alt.XOffset("slot:N" if slots else "group:N", scale=alt.Scale(domain=at), sort=at)
    layers: list[alt.Chart] = []
    for i, level in enumerate(levels):
        line = chart_of(f"level{i}", [{"level": level.value}])
        layers.append(line.mark_rule(color=palette.BASELINE, strokeDash=list(level.dash)).encode(axis.axis("level")))
    layers += behind
    if small:
        dots = chart_of("seeds", small).mark_point(size=13, strokeWidth=1, opacity=1, filled=False)
        layers.append(dots.encode(x, axis.axis("value"), colour, shape, offset))
    if ranged := [row for row in rows if row["low"] is not None and row["high"] is not None]:
        bars = chart_of("bars", ranged).mark_rule(strokeWidth=1.6)
        layers.append(bars.encode(x, axis.axis("low"), alt.Y2("high"), colour, offset))
    main = chart_of("main", rows).mark_point(size=50, filled=True, opacity=1)
    return [*layers, main.encode(x, axis.axis("value"), colour, shape, offset)]


class Level(NamedTuple):
    """A horizontal line that sites are compared with: its name in the key, its height, and how it is dashed."""

    name: str
    value: float
    dash: tuple[int, ...] = (5, 3)


ZERO = Level("baseline", 0.0)


def site_panel(
    title: str,
    points: Sequence[Point],
    axis: SharedAxis,
    levels: Sequence[Level] = (ZERO,),
    measure: Measure | None = None,
) -> Panel:
    """Mean and 95 % interval per site, each seed's point beside it; x is the layer, colour and shape the component.

    `levels` are drawn as grey dashed lines; `measure` says what the numbers are (else: the title, in the axis' unit).
    """
    means = by_site(points)
    places = {site: place(site) for site in means}
    columns = list(dict.fromkeys(p.layers for p in places.values()))
    groups = sorted({p.group for p in places.values()}, key=lambda g: order(f"{g}@1"))
    x = alt.X("layers:O", sort=columns, scale=alt.Scale(domain=columns, paddingInner=0.22), title="layer")

    def row(site: str, slot: str) -> dict[str, Any]:
        return {"layers": places[site].layers, "group": places[site].group, "slot": places[site].group + slot}

    runs = of_runs(points, measure or Measure(title, axis.unit.partition(",")[0]))
    wholes = {site: mean_of([r for r in runs if r.site == site]) for site in means}
    whole = [row(s, "") | {"value": m.mean, "low": m.low, "high": m.high} for s, m in means.items()]
    seeds = [row(r.site, " seeds") | {"value": r.values[0], "seed": r.seed} for r in runs]
    small = seeds if max(m.n for m in means.values()) > 1 else ()
    slots = [slot for group in groups for slot in (group, f"{group} seeds")]
    layers = marks(whole, axis, x, {g: palette.mark(g) for g in groups}, slots, levels, small)
    every = {f"level{i}": (Stroke(level.name),) for i, level in enumerate(levels)} | {
        "seeds": tuple(Stroke(places[r.site].group, r) for r in runs),
        "bars": tuple(Stroke(places[s].group) for s, m in means.items() if m.low is not None),
        "main": tuple(Stroke(places[s].group, wholes[s]) for s in means),
    }
    strokes = {str(layer.name): every[str(layer.name)] for layer in layers}
    width = max(WIDTH, 13 * len(columns) * len(groups))
    ends = ((word, extreme(means, way)) for word, way in (("Highest", 1), ("lowest", -1)))
    said = ", ".join(f"{word} mean {means[sites[0]].mean:.3g} at {', '.join(sites)}" for word, sites in ends)
    words = f"{title}, in {axis.unit}, for {len(means)} sites. {said}."
    return Panel(title, lay(title, *layers, width=width), words, (*runs, *wholes.values()), strokes)


class CurveLine(NamedTuple):
    """One curve of a panel: every seed thin, the mean bold, a word at its end; `shape` marks it beside its colour."""

    name: str
    colour: str
    dash: tuple[int, ...]
    series: tuple[Series, ...]
    shape: str | None = None

    @property
    def key(self) -> LegendEntry:
        """Its entry in the figure's key."""
        return LegendEntry(self.name, self.colour, self.shape, self.dash)

    @property
    def last(self) -> float:
        """How far to the right its numbers go."""
        return max(at for series in self.series for at in series.at)


MarkRow = dict[str, Any]


def curve_panel(
    title: str, lines: Sequence[CurveLine], axis: SharedAxis, x_title: str = "epoch", meet: bool = False
) -> Panel:
    """Curves over `at`: seeds as thin lines, their mean as a bold one for as long as every seed is there.

    Names stand at the ends of the curves; where the curves `meet` at their ends, names stand as a list beside them.
    """
    thin: list[MarkRow] = []
    bold: list[MarkRow] = []
    dots: list[MarkRow] = []
    ends: list[MarkRow] = []
    strokes: dict[str, list[Stroke]] = {name: [] for name in ("seeds", "main", "dots", "signs", "dashes", "names")}
    wholes = [mean_of(line.series) for line in lines]
    for number, (line, whole) in enumerate(zip(lines, wholes, strict=True)):
        look = {"line": f"{number}", "colour": line.colour, "dash": list(line.dash)}
        for one in line.series:
            thin += [look | {"at": a, "value": v, "seed": f"{number} {one.seed}"} for a, v in _numbers(one)]
            strokes["seeds"].append(Stroke(line.name, one, 0, len(one.at)))
        bold += [look | {"at": a, "value": v} for a, v in _numbers(whole)]
        strokes["main"].append(Stroke(line.name, whole, 0, len(whole.at)))
        if line.shape is not None:
            every = math.ceil(len(whole.at) / DOTS)
            kept = [pair for i, pair in enumerate(_numbers(whole)) if (i + number) % every == 0]
            dots += [look | {"at": a, "value": v, "shape": line.shape} for a, v in kept]
            strokes["dots"] += [Stroke(line.name)] * len(kept)
        ends.append(look | {"value": whole.values[-1], "name": line.name, "shape": line.shape or "stroke"})
        strokes["signs" if line.shape else "dashes"].append(Stroke(line.name))
        strokes["names"].append(Stroke(line.name))
    last = max(line.last for line in lines)
    gap = LINE_HEIGHT / HEIGHT * (axis.high - axis.low)
    heights = [axis.high - gap * (i + 0.5) for i in range(len(ends))]
    if not meet:
        heights = label_heights([e["value"] for e in ends], axis, gap)
    for end, height in zip(ends, heights, strict=True):
        end.update(at=last, value=height)
    layers = _curves(thin, bold, dots, ends, axis, _whole_x(last, x_title))
    said = "; ".join(f"{line.name} ends at {whole.values[-1]:.3g}" for line, whole in zip(lines, wholes, strict=True))
    words = f"{title}: curves over {x_title}, in {axis.unit}. {said}."
    series = tuple(s for line, whole in zip(lines, wholes, strict=True) for s in (*line.series, whole))
    drawn = {layer.name for layer in layers}
    kept_strokes = {name: tuple(found) for name, found in strokes.items() if name in drawn}
    return Panel(title, lay(title, *layers, width=WIDTH - 50), words, series, kept_strokes)


def _numbers(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.at, series.values, strict=True))


def _whole_x(last: float, title: str) -> alt.X:
    scale = alt.Scale(domain=[0, last or 1], nice=False)
    return alt.X("at:Q", scale=scale, title=title, axis=alt.Axis(values=whole_ticks(last), tickCount=40, format="d"))


def _curves(
    thin: list[MarkRow], bold: list[MarkRow], dots: list[MarkRow], ends: list[MarkRow], axis: SharedAxis, x: alt.X
) -> list[alt.Chart]:
    """The layers of a panel of curves. A name is ink; the mark before it has the look of its curve."""
    colour, dash, y = alt.Color("colour:N", scale=None), alt.StrokeDash("dash:N", scale=None), axis.axis("value")
    shape = alt.Shape("shape:N", scale=None)
    layers = []
    if len({row["seed"] for row in thin}) > len({row["line"] for row in thin}):
        seeds = chart_of("seeds", thin).mark_line(strokeWidth=0.8, opacity=0.4)
        layers.append(seeds.encode(x, y, colour, alt.Detail("seed:N")))
    whole = chart_of("main", bold).mark_line(strokeWidth=2)
    layers.append(whole.encode(x, y, colour, dash, alt.Detail("line:N")))
    if dots:
        layers.append(chart_of("dots", dots).mark_point(size=34, filled=True, opacity=1).encode(x, y, colour, shape))
    marked = [row for row in ends if row["shape"] != "stroke"]
    plain = [row for row in ends if row["shape"] == "stroke"]
    if marked:
        signs = chart_of("signs", marked).mark_point(size=40, filled=True, opacity=1, xOffset=9)
        layers.append(signs.encode(x, y, colour, shape))
    if plain:
        strokes = chart_of("dashes", plain).mark_point(size=120, strokeWidth=2, opacity=1, xOffset=9)
        layers.append(strokes.encode(x, y, colour, shape, dash))
    names = chart_of("names", ends).mark_text(align="left", dx=17, fontSize=12, color=palette.INK)
    layers.append(names.encode(x, y, alt.Text("name:N")))
    return layers


def heat_panel(title: str, cells: Sequence[Point], low: float, high: float, measure: Measure) -> Panel:
    """Mean over seeds as colour: x is the layer, y the alpha of `at`; `low` and `high` are the ends of the ramp."""
    runs = of_runs(cells, measure)
    sites = sorted({r.site for r in runs}, key=order)
    wholes = {site: mean_of([r for r in runs if r.site == site]) for site in sites}
    heights = sorted({at for whole in wholes.values() for at in whole.at})
    half = (heights[-1] - heights[0]) / max(1, len(heights) - 1) / 2 or 0.5
    names = {site: place(site).layers for site in sites}
    rows = [
        {"layers": names[s], "from": at - half, "to": at + half, "value": value}
        for s, whole in wholes.items()
        for at, value in _numbers(whole)
    ]
    x = alt.X(
        "layers:O", sort=list(names.values()), scale=alt.Scale(paddingInner=0.04, paddingOuter=0.02), title="layer"
    )
    ends = alt.Scale(domain=[heights[0] - half, heights[-1] + half], nice=False, zero=False)
    y = alt.Y("from:Q", scale=ends, title="α (0: initial weights, 1: final)", axis=alt.Axis(grid=False))
    chart = heat(title, rows, x, (y, alt.Y2("to")), (low, high), measure.unit, size=(WIDTH, 202))
    most = max(rows, key=lambda r: r["value"])
    words = f"{title}: heat map over alpha and layer, in {measure.unit}. Highest {most['value']:.3g} at layer {most['layers']}."
    strokes = tuple(Stroke("", whole, i) for whole in wholes.values() for i in range(len(whole.at)))
    return Panel(title, chart, words, (*runs, *wholes.values()), {"cells": strokes})
