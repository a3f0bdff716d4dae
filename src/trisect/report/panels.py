"""The three kinds of panel that all figures are made of: numbers per site, curves per layer, and a heat map."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt

from trisect.report import palette
from trisect.report.rows import Point, by_site, extreme, interval, order, place

WIDTH, HEIGHT = 246, 176
LINE_HEIGHT = 12.5
DOTS = 6  # at most so many marks on a curve


class Frame(NamedTuple):
    """The vertical axis that the panels of a figure share: its unit, its ends, and where it turns logarithmic.

    `linear` is null on a linear axis; else the size up to which the axis is linear around zero. Values outside are
    drawn at the edge.
    """

    unit: str
    low: float
    high: float
    linear: float | None = None

    def scale(self) -> alt.Scale:
        """The axis as a scale that keeps what lies outside at its edge."""
        domain = [self.low, self.high]
        if self.linear is None:
            return alt.Scale(domain=domain, nice=False, zero=False, clamp=True)
        return alt.Scale(type="symlog", constant=self.linear, domain=domain, nice=False, clamp=True)

    def axis(self, field: str) -> alt.Y:
        """The axis as an encoding of `field`."""
        axis = (
            alt.Axis(format="~g")
            if self.linear is None
            else alt.Axis(format="~g", values=list(self.ticks()), tickCount=40)
        )
        return alt.Y(field=field, type="quantitative", scale=self.scale(), title=self.unit, axis=axis)

    def ticks(self) -> tuple[float, ...]:
        """Tick marks of the logarithmic axis: zero, and half-decades on both sides from three times `linear`."""
        assert self.linear is not None
        sizes = [self.linear * s * 10**k for k in range(8) for s in (3, 10)]
        marks = [-s for s in reversed(sizes)] + [0.0] + sizes
        return tuple(float(f"{m:.3g}") for m in marks if self.low <= m <= self.high)

    def outside(self, values: Iterable[float]) -> int:
        """How many of the values are drawn at the edge because they lie beyond it."""
        return sum(not self.low <= v <= self.high for v in values)


def around(values: Sequence[float], unit: str, zero: bool = False, most: float = math.inf, bend: bool = False) -> Frame:
    """The frame that holds the values with a little air, at most up to `most`; `zero` makes sure that 0 is in it.

    With `bend`, values of very unequal size get an axis that is linear near zero and logarithmic beyond.
    """
    inside = [v for v in values if v <= most] or [0.0]
    if max(values, default=0.0) > most:
        inside.append(most)
    low, high = min(inside), max(inside)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    air = 0.06 * (high - low) or 0.05 * abs(high) or 0.1
    frame = Frame(unit, low - air, high + air)
    sizes = sorted(abs(v) for v in inside if v)
    if bend and sizes and sizes[-1] > 15 * max(sizes[len(sizes) // 2], 1e-4):
        return Frame(unit, low - 0.5 * abs(low) - 0.01, high * 1.4 + 0.01, 0.01)
    return frame


class Panel(NamedTuple):
    """One plot of a figure, with the words for those who do not see it."""

    chart: alt.LayerChart
    alt: str


@dataclass(frozen=True)
class Figure:
    """A figure of the report: its panels side by side, and what the page says about them.

    `key` names the marks: (kind, name) pairs, where kind is a group of components or `baseline`;
    `ramp` gives the ends of a heat map's colours and their unit.
    """

    name: str
    number: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    key: tuple[tuple[str, str], ...] = ()
    ramp: tuple[float, float, str] | None = None

    def chart(self) -> alt.ConcatChart:
        """All panels as one chart, as it is stored and shown in a notebook."""
        whole = alt.concat(*(p.chart for p in self.panels), columns=3)
        whole.config = palette.theme()
        return whole


def _data(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    # As text, since the chart library copies and checks every value of a list several times over.
    return alt.InlineData(values=json.dumps(rows), format=alt.JsonDataFormat(type="json"))


def _lay(title: str, *layers: alt.Chart, width: float = WIDTH, height: float = HEIGHT) -> alt.LayerChart:
    chart = alt.LayerChart(layer=list(layers))
    chart.title, chart.width, chart.height = title, width, height
    return chart


def site_panel(title: str, points: Sequence[Point], axis: Frame, zero: bool = True) -> Panel:
    """Mean and 95 % interval per site, each seed's point beside it; x is the layer, colour and shape the component.

    `zero` draws the baseline, from which differences are counted, as a grey dashed line.
    """
    means = by_site(points)
    places = {site: place(site) for site in means}
    columns = list(dict.fromkeys(p.layers for p in places.values()))
    groups = sorted({p.group for p in places.values()}, key=lambda g: order(f"{g}@1"))
    slots = [slot for group in groups for slot in (group, f"{group} seeds")]
    marks = [palette.mark(g) for g in groups]
    colour = alt.Color("group:N", scale=alt.Scale(domain=groups, range=[m.colour for m in marks]), title=None)
    shape = alt.Shape("group:N", scale=alt.Scale(domain=groups, range=[m.shape for m in marks]), title=None)
    x = alt.X("layers:O", sort=columns, scale=alt.Scale(domain=columns, paddingInner=0.22), title="layer")
    offset = alt.XOffset("slot:N", scale=alt.Scale(domain=slots), sort=slots)

    def row(site: str, slot: str) -> dict[str, Any]:
        return {"layers": places[site].layers, "group": places[site].group, "slot": places[site].group + slot}

    whole = [row(s, "") | {"mean": m.mean, "low": m.low, "high": m.high} for s, m in means.items()]
    seeds = [row(p.site, " seeds") | {"value": p.value, "seed": p.seed} for p in points]
    ranged = [r for r in whole if r["low"] is not None]
    layers = []
    if zero:
        line = alt.Chart(_data([{"zero": 0}])).mark_rule(color=palette.BASELINE, strokeDash=[5, 3])
        layers.append(line.encode(axis.axis("zero")))
    if seeds and max(m.n for m in means.values()) > 1:
        dots = alt.Chart(_data(seeds)).mark_point(size=13, strokeWidth=1, opacity=1, filled=False)
        layers.append(dots.encode(x, axis.axis("value"), colour, shape, offset))
    if ranged:
        bars = alt.Chart(_data(ranged)).mark_rule(strokeWidth=1.6)
        layers.append(bars.encode(x, axis.axis("low"), alt.Y2("high"), colour, offset))
    heads = alt.Chart(_data(whole)).mark_point(size=52, filled=True, opacity=1)
    layers.append(heads.encode(x, axis.axis("mean"), colour, shape, offset))
    width = max(WIDTH, 13 * len(columns) * len(groups))
    ends = ((word, extreme(means, way)) for word, way in (("Highest", 1), ("lowest", -1)))
    said = ", ".join(f"{word} mean {means[sites[0]].mean:.3g} at {', '.join(sites)}" for word, sites in ends)
    return Panel(_lay(title, *layers, width=width), f"{title}, in {axis.unit}, for {len(means)} sites. {said}.")


def label_heights(values: Sequence[float], axis: Frame, gap: float) -> list[float]:
    """Where labels of these values stand: neighbours `gap` apart, inside the axis, and near their values.

    When they do not all fit, those at the top go beyond it.
    """

    def centre(wanted: float, size: int) -> float:
        half = gap * (size - 1) / 2
        return max(min(wanted, axis.high - half), axis.low + half)

    rank = sorted(range(len(values)), key=lambda i: (values[i], i))
    blocks: list[tuple[float, list[int]]] = []
    for i in rank:
        blocks.append((centre(values[i], 1), [i]))
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (len(blocks[-1][1]) + len(blocks[-2][1])) / 2:
            (under, below), (over, above) = blocks[-2:]
            size = len(below) + len(above)
            blocks[-2:] = [(centre((under * len(below) + over * len(above)) / size, size), below + above)]
    placed = [0.0] * len(values)
    for middle, members in blocks:
        for k, i in enumerate(members):
            placed[i] = middle + gap * (k - (len(members) - 1) / 2)
    return placed


class Line(NamedTuple):
    """One curve of a panel: every seed thin, the mean bold, a word at its end; `shape` marks it beside its colour."""

    name: str
    colour: str
    dash: tuple[int, ...]
    points: tuple[Point, ...]
    shape: str | None = None


def whole_ticks(last: float) -> list[int]:
    """Ticks of an axis of whole numbers from 0 to `last`: at most seven, and none twice."""
    steps = (s * 10**k for k in range(9) for s in (1, 2, 5))
    step = next(s for s in steps if last / s <= 6)
    return list(range(0, math.floor(last) + 1, step))


def curve_panel(title: str, lines: Sequence[Line], axis: Frame, x_title: str = "epoch", meet: bool = False) -> Panel:
    """Curves over `at`: seeds as thin lines, their mean as a bold one for as long as every seed is there.

    Names stand at the ends of the curves; where the curves `meet` at their ends, names stand as a list beside them.
    """
    thin, bold, dots, ends = [], [], [], []
    for number, line in enumerate(lines):
        look = {"line": f"{number}", "colour": line.colour, "dash": list(line.dash)}
        by_at: dict[float, list[float]] = {}
        for p in line.points:
            assert p.at is not None
            thin.append(look | {"at": p.at, "value": p.value, "seed": f"{number} {p.seed}"})
            by_at.setdefault(p.at, []).append(p.value)
        full = max(len(v) for v in by_at.values())
        means = [(at, interval(v).mean) for at, v in sorted(by_at.items()) if len(v) == full]
        bold += [look | {"at": at, "value": value} for at, value in means]
        if line.shape is not None:
            every = math.ceil(len(means) / DOTS)
            kept = [pair for i, pair in enumerate(means) if (i + number) % every == 0]
            dots += [look | {"at": at, "value": value, "shape": line.shape} for at, value in kept]
        ends.append(look | {"value": means[-1][1], "name": line.name, "shape": line.shape or "stroke"})
    last = max(p.at or 0.0 for line in lines for p in line.points)
    gap = LINE_HEIGHT / HEIGHT * (axis.high - axis.low)
    heights = [axis.high - gap * (i + 0.5) for i in range(len(ends))]
    if not meet:
        heights = label_heights([e["value"] for e in ends], axis, gap)
    for end, height in zip(ends, heights, strict=True):
        end.update(at=last, value=height)
    layers = _curves(thin, bold, dots, ends, axis, _whole_x(last, x_title))
    said = "; ".join(f"{line.name} ends at {end:.3g}" for line, end in zip(lines, _last_means(lines), strict=True))
    return Panel(_lay(title, *layers, width=WIDTH - 50), f"{title}: curves over {x_title}, in {axis.unit}. {said}.")


Rowlike = dict[str, Any]


def _whole_x(last: float, title: str) -> alt.X:
    scale = alt.Scale(domain=[0, last or 1], nice=False)
    return alt.X("at:Q", scale=scale, title=title, axis=alt.Axis(values=whole_ticks(last), tickCount=40, format="d"))


def _curves(
    thin: list[Rowlike], bold: list[Rowlike], dots: list[Rowlike], ends: list[Rowlike], axis: Frame, x: alt.X
) -> list[alt.Chart]:
    """The layers of a panel of curves. A name is ink; the mark before it has the look of its curve."""
    colour, dash, y = alt.Color("colour:N", scale=None), alt.StrokeDash("dash:N", scale=None), axis.axis("value")
    shape = alt.Shape("shape:N", scale=None)
    layers = []
    if len({row["seed"] for row in thin}) > len({row["line"] for row in thin}):
        seeds = alt.Chart(_data(thin)).mark_line(strokeWidth=0.8, opacity=0.4)
        layers.append(seeds.encode(x, y, colour, alt.Detail("seed:N")))
    whole = alt.Chart(_data(bold)).mark_line(strokeWidth=2)
    layers.append(whole.encode(x, y, colour, dash, alt.Detail("line:N")))
    if dots:
        layers.append(alt.Chart(_data(dots)).mark_point(size=34, filled=True, opacity=1).encode(x, y, colour, shape))
    marked = [row for row in ends if row["shape"] != "stroke"]
    plain = [row for row in ends if row["shape"] == "stroke"]
    if marked:
        signs = alt.Chart(_data(marked)).mark_point(size=40, filled=True, opacity=1, xOffset=9)
        layers.append(signs.encode(x, y, colour, shape))
    if plain:
        strokes = alt.Chart(_data(plain)).mark_point(size=120, strokeWidth=2, opacity=1, xOffset=9)
        layers.append(strokes.encode(x, y, colour, shape, dash))
    names = alt.Chart(_data(ends)).mark_text(align="left", dx=17, fontSize=11, color=palette.INK)
    layers.append(names.encode(x, y, alt.Text("name:N")))
    return layers


def _last_means(lines: Sequence[Line]) -> list[float]:
    found = []
    for line in lines:
        last = max(p.at or 0.0 for p in line.points)
        found.append(interval([p.value for p in line.points if p.at == last]).mean)
    return found


def heat_panel(title: str, cells: Sequence[Point], low: float, high: float, unit: str) -> Panel:
    """Mean over seeds as colour: x is the layer, y the alpha of `at`; `low` and `high` are the ends of the ramp."""
    table: dict[tuple[str, float], list[float]] = {}
    for cell in cells:
        assert cell.at is not None
        table.setdefault((cell.site, cell.at), []).append(cell.value)
    heights = sorted({at for _, at in table})
    half = (heights[-1] - heights[0]) / max(1, len(heights) - 1) / 2 or 0.5
    names = {site: place(site).layers for site in sorted({site for site, _ in table}, key=order)}
    rows = [
        {"layers": names[s], "from": at - half, "to": at + half, "value": interval(v).mean}
        for (s, at), v in sorted(table.items())
    ]
    x = alt.X(
        "layers:O", sort=list(names.values()), scale=alt.Scale(paddingInner=0.04, paddingOuter=0.02), title="layer"
    )
    ends = alt.Scale(domain=[heights[0] - half, heights[-1] + half], nice=False, zero=False)
    y = alt.Y("from:Q", scale=ends, title="α (0: initial weights, 1: final)", axis=alt.Axis(grid=False))
    colours = alt.Scale(domain=[low, high], range=list(palette.VIRIDIS), interpolate="rgb", clamp=True)
    colour = alt.Color("value:Q", scale=colours, title=unit)
    chart = alt.Chart(_data(rows)).mark_rect().encode(x, y, alt.Y2("to"), colour)
    most = max(rows, key=lambda r: r["value"])
    words = f"{title}: heat map over alpha and layer, in {unit}. Highest {most['value']:.3g} at layer {most['layers']}."
    return Panel(_lay(title, chart, height=202), words)
