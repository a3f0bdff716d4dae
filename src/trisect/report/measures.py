"""One view of the table `measures` for pages: its rows as numbers at their places, selected, grouped and averaged."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import altair as alt
import polars as pl

from trisect.core.finding import Estimate
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import (
    PANEL_WIDTH,
    ZERO,
    Figure,
    LegendEntry,
    Level,
    Measure,
    Panel,
    SharedAxis,
    around,
    lay,
    marks,
    site_panel,
)
from trisect.report.format import Point, by_site, order, place, side, stack_order

ROOM = 11  # pixels of a mark with its interval
AIR = 2.0  # an interval may reach this many spans of the values beyond them before it is cut


class Bar(NamedTuple):
    """A number at a layer (as spelt), of a group of components such as `q` or `q+k`; its interval's ends or nulls."""

    group: str
    layer: str
    value: float
    low: float | None = None
    high: float | None = None


def frame_of(bars: Sequence[Bar], unit: str) -> SharedAxis:
    """The axis that holds the numbers, zero, and their intervals as far as these do not dwarf the numbers."""
    values = [bar.value for bar in bars]
    room = AIR * (max(values) - min(values)) if values else 0.0
    ends = [end for bar in bars for end in (bar.low, bar.high) if end is not None]
    kept = [end for end in ends if min(values) - room <= end <= max(values) + room]
    return around([*values, *kept], unit, zero=True)


def layer_panel(
    title: str,
    bars: Sequence[Bar],
    axis: SharedAxis,
    zero: bool = True,
    across: str = "layer",
    units: Sequence[Bar] = (),
) -> Panel:
    """Every number with its 95 % interval; x is the layer, or what `across` names, colour and shape the component.

    `zero` draws the line that stands for no change; `units` are what the numbers are means of, drawn small.
    """
    layers = list(dict.fromkeys(bar.layer for bar in bars))
    groups = component_groups(bars)
    x = alt.X("layer:O", sort=layers, scale=alt.Scale(domain=layers, paddingInner=0.22), title=across)
    rows, small = ([bar._asdict() for bar in of] for of in (bars, units))
    looks, levels = {g: render.mark(g) for g in groups}, (ZERO,) if zero else ()
    width = max(PANEL_WIDTH, ROOM * len(layers) * len(groups))
    chart = lay(title, *marks(rows, axis, x, looks, None, levels, small), width=width)
    return Panel(title, chart, _words(title, bars, axis.unit), (), {})


def layer_figure(
    names: tuple[str, str, str],
    caption: str,
    panels: Mapping[str, Sequence[Bar]],
    unit: str,
    zero: str = "no change",
    across: str = "layer",
    units: Mapping[str, Sequence[Bar]] | None = None,
) -> Figure:
    """Panels by their titles on one axis, with what the axis cuts said at the caption's end; `names` are name, number and title.

    `zero` is what the dashed line stands for; `units` are, by panel, what numbers are means of.
    """
    small = units or {}
    every = [bar for bars in panels.values() for bar in bars]
    axis = frame_of([*every, *(bar for bars in small.values() for bar in bars)], unit)
    drawn = tuple(layer_panel(title, bars, axis, True, across, small.get(title, ())) for title, bars in panels.items())
    return Figure(*names, caption + cut_layers(every, axis), drawn, layer_key(every, zero))


def component_groups(bars: Sequence[Bar]) -> list[str]:
    """The groups of components, q, k and v first; what is no component comes last."""
    named = {bar.group for bar in bars}
    known = {group for group in named if group in render.GROUPS or group in render.BLOCKS}
    return [*sorted(known, key=lambda g: order(f"{g}@1")), *sorted(named - known)]


def layer_key(bars: Sequence[Bar], zero: str = "no change") -> tuple[LegendEntry, ...]:
    """The key of layer panels: a sign for each group, and the dashed line's name."""
    looks = [(g, render.mark(g)) for g in component_groups(bars)]
    return (*(LegendEntry(g, m.colour, m.shape) for g, m in looks), LegendEntry(zero, render.BASELINE, None, (5, 3)))


def cut_layers(bars: Sequence[Bar], axis: SharedAxis) -> str:
    """How many ends of intervals lie beyond the axis, as the end of a caption."""
    return cut_each(((bars, axis),))


def beyond_frame(ends: int) -> str:
    """That so many ends of intervals lie beyond the frame, as the end of a caption; empty for none."""
    if not ends:
        return ""
    return f" {words.several(ends, 'end')} of intervals {'reaches' if ends == 1 else 'reach'} beyond the frame."


def cut_each(shown: Iterable[tuple[Sequence[Bar], SharedAxis]]) -> str:
    """The same of panels that have an axis each."""
    ends = sum(axis.outside(e for bar in bars for e in (bar.low, bar.high) if e is not None) for bars, axis in shown)
    return beyond_frame(ends)


def _words(title: str, bars: Sequence[Bar], unit: str) -> str:
    most, least = max(bars, key=lambda b: b.value), min(bars, key=lambda b: b.value)
    ends = (("Highest", most), ("lowest", least))
    said = ", ".join(f"{word} {bar.value:.3g} at {bar.group}@{bar.layer}" for word, bar in ends)
    return f"{title}, in {unit}, for {words.several(len(bars), 'site')}. {said}."


class MeasuredValue(NamedTuple):
    """A row of the table: a number, its interval and over how many it is, of which measure and at which place.

    A `value` that is not known is NaN. A null `layer` or `head` is the whole model or
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
        """The value, null where it is not known."""
        return None if math.isnan(self.value) else self.value

    @property
    def spot(self) -> str:
        """Layer and heads, as a site spells them."""
        heads = self.head or _named("heads", self.group)
        return f"{self.layer or _named('layers', self.group)}" + (f".h{heads}" if heads else "")

    @property
    def site(self) -> str:
        """The whole place, as a site is spelt."""
        return f"{'' if self.stack == 'plain' else f'{self.stack}.'}{self.component}@{self.spot}"

    @property
    def bar(self) -> Bar:
        """The number for a panel by layer."""
        return Bar(self.component or "", self.spot, self.value or 0.0, self.low, self.high)

    @property
    def side(self) -> int:
        """1 or −1 where the interval lies above or below 0, else 0."""
        return side(self)

    def estimate(self, name: str = "") -> Estimate:
        """The number for a finding, by its site where no name is given."""
        return Estimate(name or self.site, self.mean, self.low, self.high, self.n)


def _named(what: str, group: str | None) -> str:
    """The numbers that a group names: of 'denoise, layers 1-2, heads 1,3' the layers are '1-2'."""
    found = re.search(rf"{what} ([0-9,-]+?)(?=, [a-z]|$)", group or "")
    return found[1] if found else ""


def component_order(component: str) -> tuple[int, int]:
    """q, k and v before what joins them."""
    return component.count("+"), "qkv".find(component[:1])


def place_order(row: MeasuredValue) -> tuple[Any, ...]:
    """Sort key of places: by stack, layer and head, then q, k and v."""
    own = component_order(row.component or "")
    return stack_order(row.stack), row.layer or 0, row.head or 0, own, row.group or ""


@dataclass(frozen=True, eq=False)
class Measures:
    """Rows of the table in their order."""

    rows: tuple[MeasuredValue, ...]

    @classmethod
    def of(cls, table: pl.DataFrame, missing: bool = False) -> Measures:
        """The rows of a table; those without a number only where `missing` ones are wanted."""
        number = pl.col("value").fill_null(float("nan"))
        kept = table.with_columns(number) if missing else table.filter(number.is_finite())
        return cls(tuple(MeasuredValue(*row) for row in kept.select(MeasuredValue._fields).iter_rows()))

    @property
    def known(self) -> Measures:
        """The rows that have a number."""
        return Measures(tuple(row for row in self.rows if row.mean is not None))

    def __iter__(self) -> Iterator[MeasuredValue]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, *measures: str, **place: Any) -> Measures:
        """The rows of these measures (of any, without) whose columns have these values, or one of several in a collection."""
        tests = [
            (MeasuredValue._fields.index(n), v if isinstance(v, Collection) and not isinstance(v, str) else (v,))
            for n, v in place.items()
        ]
        found = self.rows if not measures else [row for name in measures for row in self._by_measure.get(name, ())]
        return Measures(tuple(row for row in found if all(row[at] in known for at, known in tests)))

    @cached_property
    def _by_measure(self) -> Mapping[str, list[MeasuredValue]]:
        found: dict[str, list[MeasuredValue]] = {}
        for row in self.rows:
            found.setdefault(row.measure, []).append(row)
        return found

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
        """The number at exactly this place; null where it was not measured."""
        return self._by_place.get((measure, stack, layer, head, component, group, at))

    def ordered(self) -> Measures:
        """The rows in the order of places."""
        return Measures(tuple(sorted(self.rows, key=place_order)))

    def distinct(self, column: str) -> list[Any]:
        """The values of a column, in the order of first appearance."""
        return list(dict.fromkeys(getattr(row, column) for row in self.rows))

    def by(self, *columns: str) -> dict[Any, Measures]:
        """The rows apart by the values of a column, or of several, in the order of first appearance."""
        found: dict[Any, list[MeasuredValue]] = {}
        for row in self.rows:
            key = tuple(getattr(row, column) for column in columns)
            found.setdefault(key if len(columns) > 1 else key[0], []).append(row)
        return {key: Measures(tuple(rows)) for key, rows in found.items()}

    def first(self, column: str) -> dict[Any, MeasuredValue]:
        """The first row of each value of a column."""
        return {value: rows.rows[0] for value, rows in self.by(column).items()}

    @property
    def mean(self) -> float:
        """The mean of the numbers, whatever they are of: heads, layers."""
        return sum(row.value for row in self.rows) / len(self.rows)

    def means(self, column: str = "component") -> tuple[Estimate, ...]:
        """The mean of the rows of each component, or of each value of another column, n being how many there are."""
        return tuple(Estimate(str(name), rows.mean, n=len(rows)) for name, rows in self.by(column).items())

    def cells(self) -> list[tuple[int, int, float]]:
        """Layer, head and number of the rows that are of one head, for a map."""
        return [(row.layer, row.head, row.value) for row in self.rows if row.layer is not None and row.head is not None]


class SiteMeasures(NamedTuple):
    """One place and its numbers by measure; `group` is what its rows are of, such as a direction or a label."""

    place: MeasuredValue
    numbers: Mapping[str, MeasuredValue]

    @property
    def site(self) -> str:
        """The place, as a site is spelt."""
        return self.place.site

    def mean(self, measure: str) -> float | None:
        """One of its numbers, null where there is none."""
        return self.numbers[measure].mean if measure in self.numbers else None


def at_sites(measures: Measures) -> list[SiteMeasures]:
    """Every place with its numbers, in the order of places."""
    apart = measures.ordered().by("stack", "layer", "head", "component", "group")
    return [SiteMeasures(rows.rows[0], rows.first("measure")) for rows in apart.values()]


def cut(shown: Iterable[tuple[SharedAxis, Sequence[Point]]]) -> str:
    """How many ends of intervals lie beyond the frames of their panels, as the end of a caption."""
    ends = sum(f.outside(v for v in m[1:3] if v is not None) for f, points in shown for m in by_site(points).values())
    return beyond_frame(ends)


def groups_of(points: Iterable[Point]) -> list[str]:
    """The components and their combinations, in the order of figures."""
    return sorted({place(p.site).group for p in points}, key=lambda g: order(f"{g}@1"))


def component_key(points: Iterable[Point], *levels: Level) -> tuple[LegendEntry, ...]:
    """A key of the components, and of the dashed levels."""
    marks = [(g, render.mark(g)) for g in groups_of(points)]
    named = {level.name: LegendEntry(level.name, render.BASELINE, None, level.dash) for level in levels}
    return (*(LegendEntry(g, m.colour, m.shape) for g, m in marks), *named.values())


def with_means(points: Sequence[Point]) -> list[Point]:
    """The points, and the ends of their sites' intervals as far as these do not dwarf them."""
    extra = [Point(s, 0, v) for s, m in by_site(points).items() for v in (m.low, m.high) if v is not None]
    span = [p.value for p in points]
    room = 2.0 * (max(span) - min(span)) if span else 0.0
    return [*points, *(p for p in extra if min(span) - room <= p.value <= max(span) + room)]


def axis_of(
    points: Sequence[Point], unit: str, zero: bool = True, bend: bool = False, more: Sequence[float] = ()
) -> SharedAxis:
    """The axis that holds the points, their intervals as far as these do not dwarf them, and `more`."""
    return around([*(p.value for p in with_means(points)), *more], unit, zero=zero, bend=bend)


class SitePanel(NamedTuple):
    """One panel of a figure by site: its title, its points, what they are, its axis, and the dashed lines in it."""

    title: str
    points: Sequence[Point]
    measure: Measure
    axis: SharedAxis
    levels: Sequence[Level] = (ZERO,)


def change_panel(
    title: str, points: Sequence[Point], split: str, noun: str, axis: SharedAxis | None = None
) -> SitePanel:
    """A panel of changes of a split's loss in nats, on an axis of its own where none is shared."""
    own = axis or axis_of(points, f"nats, {split}", bend=True)
    return SitePanel(title, points, Measure(f"{title}: {noun}", "nats", True), own)


def site_figure(names: tuple[str, str, str], caption: str, panels: Sequence[SitePanel]) -> Figure:
    """The panels as a figure with a key; `names` are its name, number and title. The caption ends with what is cut."""
    drawn = tuple(site_panel(one.title, one.points, one.axis, one.levels, one.measure) for one in panels)
    every = [point for one in panels for point in one.points]
    key = component_key(every, *(level for one in panels for level in one.levels))
    return Figure(*names, caption + cut((one.axis, one.points) for one in panels), drawn, key)
