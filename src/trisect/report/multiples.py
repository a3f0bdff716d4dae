"""Small multiples: what several findings say of q, k and v as a row of small panels, and their sentences as a folded table."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from trisect.core.finding import Estimate, Finding
from trisect.report import format as words
from trisect.report import palette
from trisect.report.axes import SharedAxis, around, few_ticks
from trisect.report.blocks import Table
from trisect.report.layers import AIR, Bar, component_groups, component_key, cut_each
from trisect.report.panels import Figure, Panel, chart_of, lay, look_of

WIDTH, ROW = 190, 22  # pixels of a panel, and of each component in it
TICKS = 3  # more, and labels such as −0.015 touch


def small_multiples(name: str, title: str, caption: str, findings: Sequence[Finding]) -> Figure | None:
    """A panel for each finding that has numbers of components, on an axis of its own; null where none has.

    Intervals that dwarf the numbers are drawn to the frame's edge, and the caption says how many ends lie beyond it.
    """
    named = titles(findings)
    drawn = [
        (one, found, _frame(one, found), title)
        for one, title in zip(findings, named, strict=True)
        if (found := _components(one))
    ]
    if not drawn:
        return None
    shown = [([Bar(e.name, "", e.mean or 0.0, e.low, e.high) for e in found], frame) for _, found, frame, _ in drawn]
    panels = tuple(_panel(*one) for one in drawn)
    key = component_key([bar for bars, _ in shown for bar in bars], "0")
    return Figure(name, "", title, caption + cut_each(shown), panels, key)


def sentences(findings: Sequence[Finding], caption: str = "The same in words") -> Table | None:
    """What each finding says, as a folded table; null where there is nothing."""
    cells = tuple(zip(titles(findings), (one.words for one in findings), strict=True))
    return Table(("", "found"), cells, caption, folded=True, label=caption, prose=True) if cells else None


def titles(findings: Sequence[Finding]) -> list[str]:
    """What each finding is called; those that share a name say what they are about as well."""
    own = [one.title or one.what or one.measure.replace("_", " ").capitalize() for one in findings]
    about = [", ".join(one.groups) for one in findings]
    return [f"{name}: {more}" if own.count(name) > 1 and more else name for name, more in zip(own, about, strict=True)]


def _components(one: Finding) -> list[Estimate]:
    """The numbers of a finding that are of components alone, in the order of their signs; empty for fewer than two."""
    found = {e.name: e for e in one.values if e.mean is not None and e.name.replace("-", "+") in palette.GROUPS}
    groups = component_groups([Bar(name, "", 0.0) for name in found])
    return [found[name] for name in groups] if len(found) > 1 else []


def _frame(one: Finding, found: Sequence[Estimate]) -> SharedAxis:
    """The axis that holds 0, the numbers, and their intervals as far as these do not dwarf them."""
    means = [e.mean for e in found if e.mean is not None]
    room = AIR * (max(*means, 0.0) - min(*means, 0.0))
    ends = [end for e in found for end in (e.low, e.high) if end is not None]
    kept = [end for end in ends if abs(end) <= max(map(abs, means)) + room]
    return around([*means, *kept], one.unit or "number", zero=True)


def _panel(one: Finding, found: Sequence[Estimate], frame: SharedAxis, title: str) -> Panel:
    """One finding: a row for each component, its number with its 95 % interval along the axis, and a line at 0."""
    unit, names = frame.unit, [e.name for e in found]
    axis, scale = (
        alt.Axis(values=list(few_ticks(frame.low, frame.high, TICKS)), tickCount=40, format="~g"),
        frame.scale(),
    )

    def along(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=scale, title=unit, axis=axis)

    y = alt.Y("group:N", sort=names, scale=alt.Scale(domain=names), title=None, axis=alt.Axis(grid=False))
    colour, shape = look_of({name: palette.mark(name) for name in names})
    rows = [{"group": e.name, "value": e.mean, "low": e.low, "high": e.high} for e in found]
    line = chart_of("level0", [{"level": 0.0}]).mark_rule(color=palette.BASELINE, strokeDash=[5, 3])
    layers = [line.encode(along("level"))]
    if ranged := [row for row in rows if row["low"] is not None and row["high"] is not None]:
        layers.append(
            chart_of("bars", ranged).mark_rule(strokeWidth=1.6).encode(along("low"), alt.X2("high"), y, colour)
        )
    heads = chart_of("main", rows).mark_point(size=52, filled=True, opacity=1)
    layers.append(heads.encode(along("value"), y, colour, shape))
    said = ", ".join(f"{e.name} {words.number(e.mean, one.signed)}" for e in found)
    shown = lay(title, *layers, width=WIDTH, height=ROW * len(names))
    return Panel(title, shown, f"{title}, in {unit}: {said}.", (), {})
