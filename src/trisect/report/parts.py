"""Figures by site: their panels side by side, legends of components, room for intervals, and what is left out of a panel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trisect.report import palette
from trisect.report.axes import SharedAxis, around
from trisect.report.chart_data import Measure
from trisect.report.layers import beyond_frame
from trisect.report.panels import ZERO, Figure, LegendEntry, Level, site_panel
from trisect.report.points import Point, by_site, order, place


def cut(shown: Iterable[tuple[SharedAxis, Sequence[Point]]]) -> str:
    """How many ends of intervals lie beyond the frames of their panels, as the end of a caption."""
    ends = sum(f.outside(v for v in m[1:3] if v is not None) for f, points in shown for m in by_site(points).values())
    return beyond_frame(ends)


def groups_of(points: Iterable[Point]) -> list[str]:
    """The components and their combinations, in the order of figures."""
    return sorted({place(p.site).group for p in points}, key=lambda g: order(f"{g}@1"))


def component_key(points: Iterable[Point], *levels: Level) -> tuple[LegendEntry, ...]:
    """A key of the components, and of the dashed levels."""
    marks = [(g, palette.mark(g)) for g in groups_of(points)]
    named = {level.name: LegendEntry(level.name, palette.BASELINE, None, level.dash) for level in levels}
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
