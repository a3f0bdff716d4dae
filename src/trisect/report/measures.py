"""One view of the table `measures` for pages: its rows as numbers at their places, selected, grouped and averaged."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import polars as pl

from trisect.core.finding import Estimate
from trisect.report import alt, render
from trisect.report import format as words
from trisect.report.charts import (
    PANEL_WIDTH,
    ZERO,
    Figure,
    LegendEntry,
    Level,
    Measure,
    Panel,
    SharedAxis,
    axis_for,
    marks,
    overlay,
    site_panel,
)
from trisect.report.format import Mean, Point, by_site, order, side, site_position, stack_order

MARK_WIDTH = 11  # pixels of a mark with its interval
AIR = 2.0  # an interval may reach this many spans of the values beyond them before it is cut


class Bar(NamedTuple):
    """A number at a layer (as spelled) of a group of components such as `q` or `q+k`, with interval ends or None."""

    group: str
    layer: str
    value: float
    low: float | None = None
    high: float | None = None


def layer_figure(
    names: tuple[str, str, str],
    caption: str,
    panels: Mapping[str, Sequence[Bar]],
    unit: str = "",
    zero: str = "no change",
    across: str = "layer",
    units: Mapping[str, Sequence[Bar]] | None = None,
    axes: Mapping[str, SharedAxis | str] | None = None,
) -> Figure:
    """A figure of panels by title, on one axis in `unit`; `names` are its name, number and title.

    `zero` is what the dashed line at 0 stands for, which is not drawn where it is empty; `units` are, by panel, what numbers
    are means of. `axes` has the panels that do not share the axis: the unit of an axis of their own, or one that is fixed and
    has no line. The caption ends with how many ends of intervals lie beyond the axes.
    """
    small, own_axes = units or {}, axes or {}
    shared = frame_of(
        [bar for group in (panels, small) for t, bars in group.items() if t not in own_axes for bar in bars], unit
    )
    plots, framed = [], []
    for title, bars in panels.items():
        axis, beside = own_axes.get(title, shared), small.get(title, ())
        lined = bool(zero) and (axis is shared or isinstance(axis, str))
        axis = frame_of([*bars, *beside], axis) if isinstance(axis, str) else axis
        plots.append(layer_panel(title, bars, axis, lined, across, beside))
        framed.append((axis, bars))
    key = layer_key([bar for bars in panels.values() for bar in bars], zero)
    return Figure(*names, caption + cut_ends(framed), tuple(plots), key)


def layer_panel(
    title: str,
    bars: Sequence[Bar],
    axis: SharedAxis,
    zero: bool = True,
    across: str = "layer",
    units: Sequence[Bar] = (),
) -> Panel:
    """Numbers with 95 % intervals; x is the layer, or the field `across`, colour and shape the component.

    `zero` draws the line that stands for no change; `units` are what the numbers are means of, drawn small.
    """
    layers = list(dict.fromkeys(bar.layer for bar in bars))
    groups = sort_components(bar.group for bar in bars)
    x = alt.X("layer:O", sort=layers, scale=alt.Scale(domain=layers, paddingInner=0.22), title=across)
    rows, small = ([bar._asdict() for bar in group] for group in (bars, units))
    looks, levels = {g: render.mark(g) for g in groups}, (ZERO,) if zero else ()
    width = max(PANEL_WIDTH, MARK_WIDTH * len(layers) * len(groups))
    chart = overlay(title, *marks(rows, axis, x, looks, None, levels, small), width=width)
    ends = (("Highest", max(bars, key=lambda b: b.value)), ("lowest", min(bars, key=lambda b: b.value)))
    extremes = ", ".join(f"{word} {bar.value:.3g} at {bar.group}@{bar.layer}" for word, bar in ends)
    text = f"{title}, in {axis.unit}, for {words.quantity(len(bars), 'site')}. {extremes}."
    return Panel(title, chart, text, (), {})


def layer_key(bars: Sequence[Bar], zero: str = "no change") -> tuple[LegendEntry, ...]:
    """The legend of layer panels: a mark for each group, and the dashed line's name if there is one."""
    looks = [(g, render.mark(g)) for g in sort_components(bar.group for bar in bars)]
    level = (LegendEntry(zero, render.BASELINE, None, (5, 3)),) if zero else ()
    return (*(LegendEntry(g, m.colour, m.shape) for g, m in looks), *level)


def sort_components(names: Iterable[str]) -> list[str]:
    """Distinct names: q, k and v first, then combinations, then others."""
    named = set(names)
    components = {name for name in named if name in render.GROUPS or name in render.BLOCKS}
    return [*sorted(components, key=lambda g: order(f"{g}@1")), *sorted(named - components)]


def frame_of(bars: Sequence[Bar], unit: str) -> SharedAxis:
    """The axis for the numbers, zero, and intervals that are not much longer than the numbers' range."""
    values = [bar.value for bar in bars]
    return axis_for([*values, *near(values, bars)], unit, zero=True)


def near(values: Sequence[float], intervals: Iterable[Bar | Mean | Estimate]) -> list[float]:
    """The ends of intervals that are not much longer than the values' range."""
    if not values:
        return []
    low, high = min(values), max(values)
    margin = AIR * (high - low)
    ends = (end for interval in intervals for end in (interval.low, interval.high) if end is not None)
    return [end for end in ends if low - margin <= end <= high + margin]


def cut_ends(framed: Iterable[tuple[SharedAxis, Iterable[Bar | Mean | Estimate]]]) -> str:
    """The number of interval ends beyond their axes, as the end of a caption; empty if there are none."""
    ends = sum(axis.outside(end for i in bars for end in (i.low, i.high) if end is not None) for axis, bars in framed)
    if not ends:
        return ""
    return f" {words.quantity(ends, 'end')} of intervals {'reaches' if ends == 1 else 'reach'} beyond the frame."


class MeasuredValue(NamedTuple):
    """A row of the table: a number, its interval and n, measure and site.

    A `value` that is not known is NaN. A `layer` or `head` of None is the whole model or
    layer, or several at once: its `group` then names them, as in 'mean, layers 1-2'.
    """

    subject: str
    stack: str
    layer: int | None
    head: int | None
    component: str | None
    measure: str
    group: str | None
    at: float | None
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @property
    def mean(self) -> float | None:
        """The value, None if unknown."""
        return None if math.isnan(self.value) else self.value

    @property
    def spot(self) -> str:
        """Layer and heads, as in a site."""
        heads = self.head or _named("heads", self.group)
        return f"{self.layer or _named('layers', self.group)}" + (f".h{heads}" if heads else "")

    @property
    def site(self) -> str:
        """The whole site, as spelled."""
        return f"{'' if self.stack == 'plain' else f'{self.stack}.'}{self.component}@{self.spot}"

    @property
    def bar(self) -> Bar:
        """The number for a panel by layer."""
        return Bar(self.component or "", self.spot, self.value or 0.0, self.low, self.high)

    @property
    def side(self) -> int:
        """1 or −1 for an interval above or below 0, else 0."""
        return side(self)

    def estimate(self, name: str = "") -> Estimate:
        """The number for a finding, named by its site unless a name is given."""
        return Estimate(name or self.site, self.mean, self.low, self.high, self.n)


def _named(noun: str, group: str | None) -> str:
    """The numbers in a group's name: the layers of 'denoise, layers 1-2, heads 1,3' are '1-2'."""
    numbers = re.search(rf"{noun} ([0-9,-]+?)(?=, [a-z]|$)", group or "")
    return numbers[1] if numbers else ""


def component_order(component: str) -> tuple[int, int]:
    """Sort key: q, k and v before combinations."""
    return component.count("+"), "qkv".find(component[:1])


@dataclass(frozen=True, eq=False)
class Measures:
    """Rows of the table, in order."""

    rows: tuple[MeasuredValue, ...]

    @classmethod
    def of(cls, table: pl.DataFrame, missing: bool = False) -> Measures:
        """The rows of a table; those without a number only with `missing`."""
        number = pl.col("value").fill_null(float("nan"))
        table = table.with_columns(number) if missing else table.filter(number.is_finite())
        return cls(tuple(MeasuredValue(*row) for row in table.select(MeasuredValue._fields).iter_rows()))

    @property
    def finite(self) -> Measures:
        """The rows with a number."""
        return Measures(tuple(row for row in self.rows if row.mean is not None))

    def __iter__(self) -> Iterator[MeasuredValue]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, *measures: str, **place: Any) -> Measures:
        """The rows of these measures (default: any) whose columns have these values, or one of a collection."""
        tests = [
            (MeasuredValue._fields.index(n), v if isinstance(v, Collection) and not isinstance(v, str) else (v,))
            for n, v in place.items()
        ]
        rows = self.rows if not measures else [row for name in measures for row in self._by_measure.get(name, ())]
        return Measures(tuple(row for row in rows if all(row[at] in values for at, values in tests)))

    @cached_property
    def _by_measure(self) -> Mapping[str, Measures]:
        return self.by("measure")

    @cached_property
    def _by_place(self) -> Mapping[tuple[Any, ...], MeasuredValue]:
        return {(r.measure, r.stack, r.layer, r.head, r.component, r.group, r.at): r for r in reversed(self.rows)}

    def get(
        self,
        measure: str,
        component: str | None = None,
        group: str | None = None,
        layer: int | None = None,
        head: int | None = None,
        stack: str = "plain",
        at: float | None = None,
    ) -> MeasuredValue | None:
        """The number at exactly this site; None if not measured."""
        return self._by_place.get((measure, stack, layer, head, component, group, at))

    def ordered(self) -> Measures:
        """The rows ordered by stack, layer and head, then q, k and v."""

        def key(row: MeasuredValue) -> tuple[Any, ...]:
            component = component_order(row.component or "")
            return stack_order(row.stack), row.layer or 0, row.head or 0, component, row.group or ""

        return Measures(tuple(sorted(self.rows, key=key)))

    def distinct(self, column: str) -> list[Any]:
        """The values of a column, in the order of first appearance."""
        return list(dict.fromkeys(getattr(row, column) for row in self.rows))

    def by(self, *columns: str) -> dict[Any, Measures]:
        """The rows grouped by one or several columns, in order of first appearance."""
        key, groups = attrgetter(*columns), dict[Any, list[MeasuredValue]]()
        for row in self.rows:
            groups.setdefault(key(row), []).append(row)
        return {value: Measures(tuple(rows)) for value, rows in groups.items()}

    def first(self, column: str) -> dict[Any, MeasuredValue]:
        """The first row of each value of a column."""
        return {value: rows.rows[0] for value, rows in self.by(column).items()}

    @property
    def mean(self) -> float:
        """The mean of the numbers."""
        return sum(row.value for row in self.rows) / len(self.rows)

    def means(self, column: str = "component") -> tuple[Estimate, ...]:
        """The mean of the rows of each component, or each value of another column, with n their number."""
        return tuple(Estimate(str(name), rows.mean, n=len(rows)) for name, rows in self.by(column).items())

    def cells(self) -> list[tuple[int, int, float]]:
        """Layer, head and number of rows of single heads, for a map."""
        return [(row.layer, row.head, row.value) for row in self.rows if row.layer is not None and row.head is not None]


def cut(shown: Iterable[tuple[SharedAxis, Sequence[Point]]]) -> str:
    """`cut_ends` for points by site."""
    return cut_ends((axis, by_site(points).values()) for axis, points in shown)


def groups_of(points: Iterable[Point]) -> list[str]:
    """The components and combinations, in the order of figures."""
    return sorted({site_position(p.site).group for p in points}, key=lambda g: order(f"{g}@1"))


def with_means(points: Sequence[Point]) -> list[Point]:
    """The points, and interval ends of their sites that are not much longer than their range."""
    return [*points, *(Point("", 0, end) for end in near([p.value for p in points], by_site(points).values()))]


def axis_of(
    points: Sequence[Point], unit: str, zero: bool = True, bend: bool = False, more: Sequence[float] = ()
) -> SharedAxis:
    """The axis for the points, their intervals unless much longer, and `more`."""
    return axis_for([*(p.value for p in with_means(points)), *more], unit, zero=zero, bend=bend)


class SitePanel(NamedTuple):
    """A panel of a figure by site: title, points, quantity, axis, and dashed lines."""

    title: str
    points: Sequence[Point]
    measure: Measure
    axis: SharedAxis
    levels: Sequence[Level] = (ZERO,)


def site_panels(
    shown: Mapping[str, Sequence[Point]],
    noun: str,
    unit: str = "nats, valid",
    shared: bool = True,
    signed: bool = True,
    levels: Sequence[Level] = (ZERO,),
    axis: SharedAxis | None = None,
) -> list[SitePanel]:
    """A panel for each title with points, on one axis or (not `shared`) each on its own; `noun` is the quantity.

    `unit` is the axis's, up to a comma that of the numbers; those that are `signed` are changes.
    """
    all_points = [p for points in shown.values() for p in points]
    common = axis or (axis_of(all_points, unit, signed, signed) if shared and all_points else None)
    return [
        SitePanel(
            title,
            points,
            Measure(f"{title}: {noun}", unit.partition(",")[0], signed),
            common or axis_of(points, unit, signed, signed),
            levels,
        )
        for title, points in shown.items()
        if points
    ]


def site_figure(names: tuple[str, str, str], caption: str, panels: Sequence[SitePanel]) -> Figure:
    """The panels as a figure with a legend; `names` are its name, number and title. The caption ends with what is cut."""
    plots = tuple(site_panel(p.title, p.points, p.axis, p.levels, p.measure) for p in panels)
    looks = [(g, render.mark(g)) for g in groups_of(point for panel in panels for point in panel.points)]
    levels = {level.name: level for panel in panels for level in panel.levels}
    key = [LegendEntry(g, m.colour, m.shape) for g, m in looks]
    key += [LegendEntry(level.name, render.BASELINE, None, level.dash) for level in levels.values()]
    return Figure(*names, caption + cut((panel.axis, panel.points) for panel in panels), plots, tuple(key))
