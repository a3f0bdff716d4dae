"""Helpers of figures: legends of components, axis space for intervals, and what is left out of a panel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trisect.report import palette
from trisect.report.axes import SharedAxis
from trisect.report.layers import beyond_frame
from trisect.report.panels import LegendEntry, Level
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
