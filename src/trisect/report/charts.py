"""Figures: panels with shared axes, the data behind their marks, and their HTML."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from markupsafe import Markup

from trisect.core.files import Json
from trisect.report import alt, render
from trisect.report.format import Point, by_site, extreme, order, site_position
from trisect.stats.paired import summary, t_interval
from trisect.stats.significance import nan_to_none


class SharedAxis(NamedTuple):
    """The vertical axis that the panels of a figure share: its unit, its range, and where it becomes logarithmic.

    `linear` is None for a linear axis, else the size up to which the axis is linear around zero. Values outside the range are
    drawn at its edge.
    """

    unit: str
    low: float
    high: float
    linear: float | None = None

    def scale(self) -> alt.Scale:
        """The axis as an Altair scale that clamps values outside its range."""
        domain = [self.low, self.high]
        if self.linear is None:
            return alt.Scale(domain=domain, nice=False, zero=False, clamp=True)
        return alt.Scale(type="symlog", constant=self.linear, domain=domain, nice=False, clamp=True)

    def axis(self, field: str) -> alt.Y:
        """The axis as an encoding of `field`."""
        axis = (
            alt.Axis(format=".6~g")  # the default format writes a single tick 10 as 1e+1
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
        """How many of the values lie outside the range and are drawn at its edge."""
        return sum(not self.low <= v <= self.high for v in values)


def axis_for(
    values: Sequence[float], unit: str, zero: bool = False, ceiling: float = math.inf, bend: bool = False
) -> SharedAxis:
    """An axis whose range covers the values up to `ceiling`, with a margin; with `zero` the range includes 0.

    With `bend`, values of very different size get an axis that is linear near zero and logarithmic beyond.
    """
    shown = [v for v in values if v <= ceiling] or [0.0]
    if max(values, default=0.0) > ceiling:
        shown.append(ceiling)
    low, high = min(shown), max(shown)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.1
    linear_axis = SharedAxis(unit, low - margin, high + margin)
    sizes = sorted(abs(v) for v in shown if v)
    if bend and sizes and sizes[-1] > 15 * max(sizes[len(sizes) // 2], 1e-4):
        return SharedAxis(unit, low - 0.5 * abs(low) - 0.01, high * 1.4 + 0.01, 0.01)
    return linear_axis


def _label_heights(values: Sequence[float], axis: SharedAxis, gap: float) -> list[float]:
    """Heights of labels for these values: at least `gap` apart, inside the axis, and near their values.

    If they do not all fit, the topmost lie above the axis.
    """

    def centre(value: float, size: int) -> float:
        half = gap * (size - 1) / 2
        return max(min(value, axis.high - half), axis.low + half)

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


def _whole_ticks(last: float) -> list[int]:
    """Ticks of an integer axis from 0 to `last`: at most seven."""
    steps = (s * 10**k for k in range(9) for s in (1, 2, 5))
    step = next(s for s in steps if last / s <= 6)
    return list(range(0, math.floor(last) + 1, step))


def few_ticks(low: float, high: float, limit: int) -> tuple[float, ...]:
    """At most `limit` round ticks in a range, as many as possible: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return (low,)
    first = math.floor(math.log10((high - low) / (limit + 1))) - 1
    for k in range(first, first + 5):
        for digit in (1, 2, 5):
            step = digit * 10.0**k
            start, end = math.ceil(low / step), math.floor(high / step)
            if end - start < limit:
                ticks = (float(f"{i * digit}e{k}") for i in range(start, end + 1))
                return tuple(t for t in ticks if low <= t <= high) or (low,)  # rounding may put a tick outside
    return (low,)


DIGITS = 8  # significant digits stored; losses are sums of float32 products, further digits are noise


class Measure(NamedTuple):
    """The quantity that numbers measure: name, unit, and whether to show a sign, as for differences."""

    name: str
    unit: str
    signed: bool = False


class Series(NamedTuple):
    """Numbers of one run at one site, or their mean over seeds (`seed` None); `at` is empty where there is one number.

    `low` and `high` are the ends of 95 % intervals, None where there is none; `n` is how many seeds are in each number.
    """

    measure: Measure
    site: str
    run: str
    seed: int | None
    at: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    n: int = 1
    diverged: bool = False


class Stroke(NamedTuple):
    """One drawn mark: the legend entry that toggles it, and the numbers that it shows.

    `series` is None for marks without numbers; a line has `length` vertices, from number `offset` of its series.
    """

    key: str
    series: Series | None = None
    offset: int = 0
    length: int = 1


Strokes = Mapping[str, tuple[Stroke, ...]]  # layer of the drawing -> its marks in the order of drawing


def of_runs(points: Iterable[Point], measure: Measure) -> list[Series]:
    """A series for every run at every site, in the order of first appearance; numbers in the order of `at`."""
    by_run: dict[tuple[str, int, str], list[Point]] = {}
    for point in points:
        by_run.setdefault((point.site, point.seed, point.run), []).append(point)
    series = []
    for (site, seed, run), group in by_run.items():
        group.sort(key=lambda p: p.at or 0.0)
        at = tuple(p.at for p in group if p.at is not None)
        series.append(
            Series(measure, site, run, seed, at, tuple(p.value for p in group), diverged=any(p.diverged for p in group))
        )
    return series


def mean_of(runs: Sequence[Series]) -> Series:
    """The mean over seeds of one site's series, at the positions for which the most seeds have a number; a single series is returned."""
    assert runs
    if len(runs) == 1:
        return runs[0]
    columns = [dict(zip(run.at or (None,), run.values, strict=True)) for run in runs]
    count = Counter(at for column in columns for at in column)
    seeds = max(count.values())
    places = [at for at in dict.fromkeys(at for column in columns for at in column) if count[at] == seeds]
    places.sort(key=lambda at: at or 0.0)
    sample = summary([[column[at] for column in columns if at in column] for at in places])
    low, high = t_interval(sample)
    ends = [[nan_to_none(v) for v in end] for end in (low, high)]
    at = tuple(at for at in places if at is not None)
    means = tuple(float(m) for m in sample.mean)
    diverged = any(run.diverged for run in runs)
    return Series(runs[0].measure, runs[0].site, "", None, at, means, tuple(ends[0]), tuple(ends[1]), seeds, diverged)


def pack(views: Sequence[tuple[str, Sequence[tuple[Sequence[Series], Strokes]]]], at: str) -> dict[str, object]:
    """A figure's numbers for the page's script: tables of words, the series, and the series that each stroke shows.

    `views` are the arrangements of the figure: a name, and for every panel its series and its strokes. Each series is stored
    once, however often it is drawn. `at` names the horizontal axis of curves, such as epoch.
    """
    words: dict[str, list[Any]] = {"measures": [], "sites": [], "runs": [], "axes": [], "keys": []}
    index: dict[tuple[str, Any], int] = {}
    numbers: dict[Series, int] = {}
    packed: list[list[Any]] = []

    def code(kind: str, value: Any) -> int:
        if (kind, value) not in index:
            index[kind, value] = len(words[kind])
            words[kind].append(list(value) if isinstance(value, tuple) else value)
        return index[kind, value]

    def series_number(series: Series) -> int:
        if series not in numbers:
            numbers[series] = len(packed)
            row: list[Any] = [code("measures", series.measure), code("sites", series.site), code("runs", series.run)]
            row += [series.seed, series.n, int(series.diverged), code("axes", series.at), _short(series.values)]
            ends = [_short(series.low), _short(series.high)] if any(v is not None for v in series.low) else []
            packed.append(row + ends)
        return numbers[series]

    def stroke_numbers(stroke: Stroke) -> list[int]:
        key = code("keys", stroke.key)
        if stroke.series is None:
            return [key]
        single = (stroke.offset, stroke.length) == (0, 1)
        return [key, series_number(stroke.series), *(() if single else (stroke.offset, stroke.length))]

    arranged = []
    for name, panels in views:
        shown = []
        for series, strokes in panels:
            numbered = {layer: [stroke_numbers(item) for item in items] for layer, items in strokes.items()}
            shown.append({"series": [series_number(item) for item in dict.fromkeys(series)], "strokes": numbered})
        arranged.append({"name": name, "panels": shown})
    return {"at": at, **words, "series": packed, "views": arranged}


def _short(values: Iterable[float | None]) -> list[float | int | None]:
    short = [None if v is None else float(f"{v:.{DIGITS}g}") for v in values]
    return [int(v) if v is not None and v == int(v) else v for v in short]


PANEL_WIDTH, HEIGHT = 246, 176
LINE_HEIGHT = 13.5
DOTS = 6  # most marks on a curve


class Panel(NamedTuple):
    """One plot of a figure, with its alternative text and the numbers that its marks show."""

    title: str
    chart: alt.LayerChart
    alt: str
    series: tuple[Series, ...]
    strokes: Strokes

    def with_title(self, title: str) -> Panel:
        """The same panel under another title."""
        chart = self.chart.copy(deep=False)
        chart.title = title
        return self._replace(title=title, chart=chart, alt=f"{title}{self.alt.removeprefix(self.title)}")


class LegendEntry(NamedTuple):
    """One legend entry: its name, and colour, shape and dash of its marks; without a shape it is a line."""

    name: str
    colour: str
    shape: str | None = None
    dash: tuple[int, ...] = ()


def by_kind_key(kinds: Mapping[str, render.Mark] = render.KINDS) -> tuple[LegendEntry, ...]:
    """The legend of a figure that compares weight and norm, or the given `kinds`."""
    return tuple(LegendEntry(f"by {name}", mark.colour, mark.shape) for name, mark in kinds.items())


class FigureView(NamedTuple):
    """Another arrangement of a figure's data: what its panels show, the panels, and their legend."""

    name: str
    panels: tuple[Panel, ...]
    legend: tuple[LegendEntry, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure of the report: its panels side by side, with title and caption.

    `legend` explains the marks; `ramp` gives the range of a heat map's colours and their unit, `stops` the colours.
    `at` names the horizontal axis of curves. `view` says what a panel shows if `others` arrange the same data differently.
    """

    name: str
    number: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[LegendEntry, ...] = ()
    ramp: tuple[float, float, str] | None = None
    at: str = ""
    view: str = ""
    others: tuple[FigureView, ...] = ()
    stops: tuple[str, ...] = render.VIRIDIS

    @property
    def views(self) -> tuple[FigureView, ...]:
        """All arrangements; the first is the one that is printed and stored."""
        return (FigureView(self.view, self.panels, self.legend), *self.others)

    def chart(self) -> alt.ConcatChart:
        """All panels as one chart, which is stored and shown in notebooks."""
        # scales per panel: shared ones would have the series of all panels in their domains
        scale = alt.ScaleResolveMap(
            color="independent", shape="independent", strokeDash="independent", x="independent", xOffset="independent"
        )
        resolve = alt.Resolve(scale=scale)
        return alt.concat(*(p.chart for p in self.panels), columns=3, config=render.theme(), resolve=resolve)


def chart_of(name: str, rows: Sequence[Mapping[str, object]]) -> alt.Chart:
    """A layer of a panel from its rows, with the name that the page's script uses."""
    # as a JSON string, since Altair copies and validates every value of a list several times
    data = alt.InlineData(values=json.dumps(rows), format=alt.JsonDataFormat(type="json"))
    return alt.Chart(data, name=name)


def overlay(title: str, *layers: alt.Chart, width: float = PANEL_WIDTH, height: float = HEIGHT) -> alt.LayerChart:
    """A chart of layers with a title."""
    chart = alt.LayerChart(layer=list(layers))
    chart.title, chart.width, chart.height = title, width, height
    return chart


def heat_map(
    title: str,
    rows: Sequence[Mapping[str, object]],
    x: alt.X,
    y: tuple[alt.Y] | tuple[alt.Y, alt.Y2],
    ends: tuple[float, float],
    unit: str,
    size: tuple[float, float],
    stops: Sequence[str] = render.VIRIDIS,
    dots: Sequence[Mapping[str, object]] = (),
    dot: float = 0.0,
) -> alt.LayerChart:
    """A heat map of each row's `value`, with colours from `ends[0]` to `ends[1]`; `dots` are white marks of area `dot` on some cells."""
    scale = alt.Scale(domain=list(ends), range=list(stops), interpolate="rgb", clamp=True)
    cells = chart_of("cells", rows).mark_rect().encode(x, *y, alt.Color("value:Q", scale=scale, title=unit))
    if not dots:
        return overlay(title, cells, width=size[0], height=size[1])
    look = chart_of("dots", dots).mark_point(
        size=dot, filled=True, fill="white", stroke="black", strokeWidth=0.6, opacity=1
    )
    return overlay(title, cells, look.encode(x, *y), width=size[0], height=size[1])


def encoding_of(looks: Mapping[str, render.Mark]) -> tuple[alt.Color, alt.Shape]:
    """Colour and shape of every group, as encodings."""
    domain, values = list(looks), looks.values()
    colours, shapes = (
        alt.Scale(domain=domain, range=ends) for ends in ([m.colour for m in values], [m.shape for m in values])
    )
    return alt.Color("group:N", scale=colours, title=None), alt.Shape("group:N", scale=shapes, title=None)


def marks(
    rows: Sequence[Mapping[str, Any]],
    axis: SharedAxis,
    x: alt.X,
    looks: Mapping[str, render.Mark],
    slots: Sequence[str] | None = None,
    levels: Sequence[Level] = (),
    small: Sequence[Mapping[str, Any]] = (),
    behind: Sequence[alt.Chart] = (),
) -> list[alt.Chart]:
    """The layers of a panel of numbers: dashed levels, `small` marks of single seeds, 95 % intervals, and the main marks on top.

    A row has a `group`, a `value`, and `low` and `high`, the ends of its interval, or nulls. Groups at the same `x` are drawn side by
    side, or each row at its own `slot` if `slots` are given; if `x` is quantitative, all are drawn at its value.
    """
    colour, shape = encoding_of(looks)
    at, numeric = list(slots or looks), str(x["shorthand"]).endswith(":Q")
    offset = [] if numeric else [alt.XOffset("slot:N" if slots else "group:N", scale=alt.Scale(domain=at), sort=at)]
    layers: list[alt.Chart] = []
    for i, level in enumerate(levels):
        line = chart_of(f"level{i}", [{"level": level.value}])
        layers.append(line.mark_rule(color=render.BASELINE, strokeDash=list(level.dash)).encode(axis.axis("level")))
    layers += behind
    if small:
        dots = chart_of("seeds", small).mark_point(size=13, strokeWidth=1, opacity=1, filled=False)
        layers.append(dots.encode(x, axis.axis("value"), colour, shape, *offset))
    if ranged := [row for row in rows if row["low"] is not None and row["high"] is not None]:
        bars = chart_of("bars", ranged).mark_rule(strokeWidth=1.6)
        layers.append(bars.encode(x, axis.axis("low"), alt.Y2("high"), colour, *offset))
    main = chart_of("main", rows).mark_point(size=50, filled=True, opacity=1)
    return [*layers, main.encode(x, axis.axis("value"), colour, shape, *offset)]


class Level(NamedTuple):
    """A horizontal reference line: its name in the legend, its height, and its dashes."""

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
    """Mean and 95 % interval per site, with the seeds' points beside it; x is the layer, colour and shape the component.

    `levels` are drawn as grey dashed lines; `measure` says what the numbers are (by default the title, in the axis' unit).
    """
    means = by_site(points)
    places = {site: site_position(site) for site in means}
    columns = list(dict.fromkeys(p.layers for p in places.values()))
    groups = sorted({p.group for p in places.values()}, key=lambda g: order(f"{g}@1"))
    x = alt.X("layers:O", sort=columns, scale=alt.Scale(domain=columns, paddingInner=0.22), title="layer")

    def row(site: str, slot: str) -> dict[str, Any]:
        return {"layers": places[site].layers, "group": places[site].group, "slot": places[site].group + slot}

    runs = of_runs(points, measure or Measure(title, axis.unit.partition(",")[0]))
    run_means = {site: mean_of([r for r in runs if r.site == site]) for site in means}
    main = [row(s, "") | {"value": m.mean, "low": m.low, "high": m.high} for s, m in means.items()]
    seeds = [row(r.site, " seeds") | {"value": r.values[0], "seed": r.seed} for r in runs]
    small = seeds if max(m.n for m in means.values()) > 1 else ()
    slots = [slot for group in groups for slot in (group, f"{group} seeds")]
    layers = marks(main, axis, x, {g: render.mark(g) for g in groups}, slots, levels, small)
    all_strokes = {f"level{i}": (Stroke(level.name),) for i, level in enumerate(levels)} | {
        "seeds": tuple(Stroke(places[r.site].group, r) for r in runs),
        "bars": tuple(Stroke(places[s].group) for s, m in means.items() if m.low is not None),
        "main": tuple(Stroke(places[s].group, run_means[s]) for s in means),
    }
    strokes = {str(layer.name): all_strokes[str(layer.name)] for layer in layers}
    width = max(PANEL_WIDTH, 13 * len(columns) * len(groups))
    ends = ((word, extreme(means, way)) for word, way in (("Highest", 1), ("lowest", -1)))
    extremes = ", ".join(f"{word} mean {means[sites[0]].mean:.3g} at {', '.join(sites)}" for word, sites in ends)
    alt_text = f"{title}, in {axis.unit}, for {len(means)} sites. {extremes}."
    return Panel(title, overlay(title, *layers, width=width), alt_text, (*runs, *run_means.values()), strokes)


class CurveLine(NamedTuple):
    """One curve of a panel: seeds as thin lines, the mean as a bold one, its name at the end; `shape` distinguishes it besides colour."""

    name: str
    colour: str
    dash: tuple[int, ...]
    series: tuple[Series, ...]
    shape: str | None = None

    @property
    def key(self) -> LegendEntry:
        """Its entry in the figure's legend."""
        return LegendEntry(self.name, self.colour, self.shape, self.dash)

    @property
    def last(self) -> float:
        """The largest `at` of its series."""
        return max(at for series in self.series for at in series.at)


MarkRow = dict[str, Any]


def curve_panel(
    title: str, lines: Sequence[CurveLine], axis: SharedAxis, x_title: str = "epoch", list_names: bool = False
) -> Panel:
    """Curves over `at`: seeds as thin lines, and their mean as a bold line.

    Names are written at the ends of the curves, or, with `list_names`, as a list beside them for curves that meet at their ends.
    """
    thin: list[MarkRow] = []
    bold: list[MarkRow] = []
    dots: list[MarkRow] = []
    ends: list[MarkRow] = []
    strokes: dict[str, list[Stroke]] = {name: [] for name in ("seeds", "main", "dots", "signs", "dashes", "names")}
    means = [mean_of(line.series) for line in lines]
    for number, (line, mean) in enumerate(zip(lines, means, strict=True)):
        look = {"line": f"{number}", "colour": line.colour, "dash": list(line.dash)}
        for run in line.series:
            thin += [look | {"at": a, "value": v, "seed": f"{number} {run.seed}"} for a, v in _numbers(run)]
            strokes["seeds"].append(Stroke(line.name, run, 0, len(run.at)))
        bold += [look | {"at": a, "value": v} for a, v in _numbers(mean)]
        strokes["main"].append(Stroke(line.name, mean, 0, len(mean.at)))
        if line.shape is not None:
            step = math.ceil(len(mean.at) / DOTS)
            shown = [pair for i, pair in enumerate(_numbers(mean)) if (i + number) % step == 0]
            dots += [look | {"at": a, "value": v, "shape": line.shape} for a, v in shown]
            strokes["dots"] += [Stroke(line.name)] * len(shown)
        ends.append(look | {"value": mean.values[-1], "name": line.name, "shape": line.shape or "stroke"})
        strokes["signs" if line.shape else "dashes"].append(Stroke(line.name))
        strokes["names"].append(Stroke(line.name))
    last = max(line.last for line in lines)
    gap = LINE_HEIGHT / HEIGHT * (axis.high - axis.low)
    heights = [axis.high - gap * (i + 0.5) for i in range(len(ends))]
    if not list_names:
        heights = _label_heights([e["value"] for e in ends], axis, gap)
    for end, height in zip(ends, heights, strict=True):
        end.update(at=last, value=height)
    whole_x = alt.Axis(values=_whole_ticks(last), tickCount=40, format="d")
    x = alt.X("at:Q", scale=alt.Scale(domain=[0, last or 1], nice=False), title=x_title, axis=whole_x)
    layers = _curves(thin, bold, dots, ends, axis, x)
    ends_at = "; ".join(f"{line.name} ends at {mean.values[-1]:.3g}" for line, mean in zip(lines, means, strict=True))
    alt_text = f"{title}: curves over {x_title}, in {axis.unit}. {ends_at}."
    series = tuple(s for line, mean in zip(lines, means, strict=True) for s in (*line.series, mean))
    names = {layer.name for layer in layers}
    kept_strokes = {name: tuple(group) for name, group in strokes.items() if name in names}
    return Panel(title, overlay(title, *layers, width=PANEL_WIDTH - 50), alt_text, series, kept_strokes)


def _numbers(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.at, series.values, strict=True))


def _curves(
    thin: list[MarkRow], bold: list[MarkRow], dots: list[MarkRow], ends: list[MarkRow], axis: SharedAxis, x: alt.X
) -> list[alt.Chart]:
    """The layers of a panel of curves. Names are in text colour, after a mark in the colour and shape of the curve."""
    colour, dash, y = alt.Color("colour:N", scale=None), alt.StrokeDash("dash:N", scale=None), axis.axis("value")
    shape = alt.Shape("shape:N", scale=None)
    layers = []
    if len({row["seed"] for row in thin}) > len({row["line"] for row in thin}):
        seeds = chart_of("seeds", thin).mark_line(strokeWidth=0.8, opacity=0.4)
        layers.append(seeds.encode(x, y, colour, alt.Detail("seed:N")))
    means = chart_of("main", bold).mark_line(strokeWidth=2)
    layers.append(means.encode(x, y, colour, dash, alt.Detail("line:N")))
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
    names = chart_of("names", ends).mark_text(align="left", dx=17, fontSize=12, color=render.INK)
    layers.append(names.encode(x, y, alt.Text("name:N")))
    return layers


def heat_panel(title: str, cells: Sequence[Point], low: float, high: float, measure: Measure) -> Panel:
    """A heat map of means over seeds: x is the layer, y is α (`at`); colours range from `low` to `high`."""
    runs = of_runs(cells, measure)
    sites = sorted({r.site for r in runs}, key=order)
    means = {site: mean_of([r for r in runs if r.site == site]) for site in sites}
    heights = sorted({at for mean in means.values() for at in mean.at})
    half = (heights[-1] - heights[0]) / max(1, len(heights) - 1) / 2 or 0.5
    names = {site: site_position(site).layers for site in sites}
    rows = [
        {"layers": names[s], "from": at - half, "to": at + half, "value": value}
        for s, mean in means.items()
        for at, value in _numbers(mean)
    ]
    x = alt.X(
        "layers:O", sort=list(names.values()), scale=alt.Scale(paddingInner=0.04, paddingOuter=0.02), title="layer"
    )
    ends = alt.Scale(domain=[heights[0] - half, heights[-1] + half], nice=False, zero=False)
    y = alt.Y("from:Q", scale=ends, title="α (0: initial weights, 1: final)", axis=alt.Axis(grid=False))
    chart = heat_map(title, rows, x, (y, alt.Y2("to")), (low, high), measure.unit, size=(PANEL_WIDTH, 202))
    largest = max(rows, key=lambda r: r["value"])
    alt_text = f"{title}: heat map over alpha and layer, in {measure.unit}. Highest {largest['value']:.3g} at layer {largest['layers']}."
    strokes = tuple(Stroke("", mean, i) for mean in means.values() for i in range(len(mean.at)))
    return Panel(title, chart, alt_text, (*runs, *means.values()), {"cells": strokes})


MarkFields = Mapping[str, Json]
VISIBLE_MARKS = ("point", "rect", "bar", "line")
DRAWING_FIELDS = {
    "colour",
    "fill",
    "shape",
    "dash",
    "slot",
    "line",
    "order",
    "x",
    "y",
    "x2",
    "y2",
    "from",
    "to",
    "low",
    "high",
}
SPLIT_ENCODINGS = ("color", "detail", "strokeDash")  # encodings that split the rows of a layer into several lines


class _Channel(NamedTuple):
    """One encoding of a layer: its field, whether it is a number, and its title."""

    field: str
    number: bool
    title: str


_Layer = tuple[str, str, Mapping[str, _Channel], Sequence[MarkFields]]  # name, type of marks, encodings, rows


def with_numbers(figure: Figure) -> Figure:
    """The figure with the numbers that its marks show, read from its charts; panels that have series keep theirs."""
    panels, titles = list[Panel](), set[str]()  # titles of the horizontal axes of lines, the first of each panel
    for panel in figure.panels:
        layers = [] if panel.series else list(_layers(panel))
        panels.append(_with_numbers(panel, figure.legend, layers))
        along = (channels.get("x") for _, kind, channels, _ in layers if kind == "line")
        titles |= {x.title for x in [next((x for x in along if x is not None and x.number), None)] if x and x.title}
    others = tuple(
        view._replace(panels=tuple(_with_numbers(panel, view.legend, _layers(panel)) for panel in view.panels))
        for view in figure.others
    )
    at = figure.at or (titles.pop() if len(titles) == 1 else "")
    return replace(figure, panels=tuple(panels), others=others, at=at)


def _layers(panel: Panel) -> Iterator[_Layer]:
    """Every named layer with its rows, which Altair may store apart, under the name of a dataset."""
    spec = panel.chart.to_dict(validate=False)
    for layer in spec["layer"]:
        data = layer.get("data", spec.get("data", {}))
        values = data.get("values", spec.get("datasets", {}).get(data.get("name"), []))
        channels = {}
        for name, code in layer["encoding"].items():
            if isinstance(code, dict) and isinstance(code.get("field"), str):
                # a position without an axis shows no number
                number = code.get("type") == "quantitative" and code.get("axis", {}) is not None
                channels[name] = _Channel(code["field"], number, str(code.get("title", code["field"]) or ""))
        if "name" in layer:
            kind = layer["mark"] if isinstance(layer["mark"], str) else layer["mark"]["type"]
            yield layer["name"], kind, channels, json.loads(values) if isinstance(values, str) else values


def _with_numbers(panel: Panel, key: Sequence[LegendEntry], layers: Iterable[_Layer]) -> Panel:
    if panel.series or panel.strokes:
        return panel
    strokes = {
        layer[0]: tuple(_strokes(panel.title.replace("\n", " "), layer, key))
        for layer in layers
        if not layer[0].startswith("level")
    }
    series = tuple(
        dict.fromkeys(mark.series for marks in strokes.values() for mark in marks if mark.series is not None)
    )
    return panel._replace(series=series, strokes=strokes)


def _strokes(title: str, layer: _Layer, key: Sequence[LegendEntry]) -> Iterator[Stroke]:
    """A stroke for every mark of a layer, in the order of drawing; rows without a finite position are not drawn."""
    _, kind, channels, rows = layer
    ends = [channels[name].field for name in ("x", "y") if name in channels and channels[name].number]
    rows = [row for row in rows if all(math.isfinite(_number(row, end)) for end in ends)]
    value = _value(channels)

    def legend_name(row: MarkFields) -> str:
        """The legend entry of a mark: one that the row names, else the one of its colour; empty if there is none."""
        words = {word for word in row.values() if isinstance(word, str)}
        named = [entry.name for entry in key if entry.name in words]
        return next(iter(named or [entry.name for entry in key if entry.colour in words]), "")

    def measure(unit: str, signed: bool) -> Measure:
        return Measure(": ".join(dict.fromkeys(filter(None, (title, unit)))) or "value", "", signed)

    if kind == "line":
        fields = [channels[name].field for name in SPLIT_ENCODINGS if name in channels and not channels[name].number]
        along = channels["order" if "order" in channels else "x"].field
        groups: dict[str, list[MarkFields]] = {}
        for row in rows:
            groups.setdefault(json.dumps([row.get(field) for field in fields]), []).append(row)
        for group in groups.values():
            line = sorted(group, key=lambda row: _number(row, along))
            if value is None or not channels["x"].number:
                yield Stroke(legend_name(line[0]))
                continue
            field, _, unit = value
            at, values = (tuple(_number(row, name) for row in line) for name in (channels["x"].field, field))
            position = _position(line[0], {}, {field, channels["x"].field})
            series = Series(measure(unit, min(values) < 0), position, "", None, at, values, n=0)
            yield Stroke(legend_name(line[0]), series, 0, len(at))
        return
    for row in rows:
        if value is None or kind not in VISIBLE_MARKS:
            yield Stroke(legend_name(row))
            continue
        field, subtracted, unit = value
        number = _number(row, field) - (_number(row, subtracted) if subtracted else 0.0)
        low, high = ((None if subtracted or math.isnan(v := _number(row, end)) else v,) for end in ("low", "high"))
        position = _position(row, channels, {field, subtracted})
        yield Stroke(
            legend_name(row), Series(measure(unit, number < 0), position, "", None, (), (number,), low, high, 0)
        )


def _number(row: MarkFields, field: str) -> float:
    """A field of a row as a float; NaN if it is not a number."""
    value = row.get(field)
    return float(value) if isinstance(value, int | float) else math.nan


def _value(channels: Mapping[str, _Channel]) -> tuple[str, str, str] | None:
    """What the marks of a layer show: colour, length of a bar, or position on a quantitative axis; None if they show no number.

    It is given as a field, a field to subtract or '', and the title of the axis.
    """
    colour = channels.get("color")
    if colour is not None and colour.number:
        return colour.field, "", colour.title
    for name, end in (("y", "y2"), ("x", "x2")):
        if name in channels and channels[name].number:
            axis = channels[name]
            return (channels[end].field, axis.field, axis.title) if end in channels else (axis.field, "", axis.title)
    return None


def _position(row: MarkFields, channels: Mapping[str, _Channel], excluded: set[str]) -> str:
    """The position of a mark in words: its names, and its values on the axes that do not show its number."""
    axes = {channels[name].field: channels[name].title for name in ("x", "y") if name in channels}
    places = []
    for field, value in row.items():
        counted = field in ("layer", "head")
        named = isinstance(value, str) or field in axes or counted
        if field in excluded or value is None or not named or (field in DRAWING_FIELDS and field not in axes):
            continue
        plain = f"{value:.4g}" if isinstance(value, float) else str(value)
        # names of fields are shown for layers and heads only
        title = axes.get(field, field if counted else "")
        title = "" if title == field and not counted else title
        separator = ": " if " " in title else " "
        places.append(f"{title}{separator * bool(title)}{plain}".replace("\n", " "))
    return ", ".join(dict.fromkeys(places))


DRAWN_WIDTH = 328
_SHAPES = {
    "circle": '<circle cx="7" cy="7" r="5"/>',
    "square": '<rect x="2.5" y="2.5" width="9" height="9"/>',
    "triangle-up": '<path d="M7 1.5L13 12H1Z"/>',
    "diamond": '<path d="M7 1L13 7 7 13 1 7Z"/>',
    "triangle-down": '<path d="M7 12.5L1 2h12Z"/>',
    "cross": '<path d="M5 1h4v4h4v4H9v4H5V9H1V5h4Z"/>',
    "triangle-left": '<path d="M1.5 7L12 1v12Z"/>',
    "triangle-right": '<path d="M12.5 7L2 1v12Z"/>',
}


def arrangement(name: str, view: FigureView) -> dict[str, object]:
    """One arrangement of a figure as data for a template.

    `panels` have `svg`, alternative text (`alt`), `width` in pixels, and whether they need the whole line (`wide`). `key` is the
    legend: symbols, names, and whether each can hide marks. `width` is that of the widest panel.
    """
    panels: list[dict[str, Any]] = []
    for i, panel in enumerate(view.panels, start=1):
        text = render.slim(render.svg(panel.chart, f"{name}-{i}", legend=False))
        width = math.ceil(float(text.partition('width="')[2].partition('"')[0]))
        root = Markup('<svg role="img" aria-label="{}" ').format(panel.alt)
        picture = root + Markup(text.removeprefix("<svg "))
        panels.append({"svg": picture, "width": width, "wide": width > DRAWN_WIDTH, "alt": panel.alt})
    hides = {stroke.key for panel in view.panels for strokes in panel.strokes.values() for stroke in strokes}
    key = []
    for entry in view.legend:
        if entry.shape is None:
            dash = f' stroke-dasharray="{" ".join(map(str, entry.dash))}"' if entry.dash else ""
            sign = f'<line x1="0" x2="26" y1="7" y2="7" stroke="{entry.colour}"{dash} stroke-width="2"/>'
        else:
            sign = _SHAPES[entry.shape].replace("/>", f' fill="{entry.colour}"/>')
        wide = 14 if entry.shape else 26
        svg = f'<svg viewBox="0 0 {wide} 14" width="{wide}" height="14" aria-hidden="true">{sign}</svg>'
        key.append((Markup(svg), entry.name, entry.name in hides))
    return {"name": view.name, "panels": panels, "key": key, "width": max((p["width"] for p in panels), default=0)}
