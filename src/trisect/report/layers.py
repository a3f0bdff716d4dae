"""Panels by layer: one number with its interval for each component of each layer, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import altair as alt

from trisect.report import format as words
from trisect.report import palette
from trisect.report.axes import SharedAxis, around
from trisect.report.panels import WIDTH, ZERO, Figure, LegendEntry, Panel, lay, marks
from trisect.report.points import order

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
    looks, levels = {g: palette.mark(g) for g in groups}, (ZERO,) if zero else ()
    width = max(WIDTH, ROOM * len(layers) * len(groups))
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
    return Figure(*names, caption + cut(every, axis), drawn, component_key(every, zero))


def component_groups(bars: Sequence[Bar]) -> list[str]:
    """The groups of components, q, k and v first; what is no component comes last."""
    named = {bar.group for bar in bars}
    known = {group for group in named if group in palette.GROUPS or group in palette.BLOCKS}
    return [*sorted(known, key=lambda g: order(f"{g}@1")), *sorted(named - known)]


def component_key(bars: Sequence[Bar], zero: str = "no change") -> tuple[LegendEntry, ...]:
    """The key of layer panels: a sign for each group, and the dashed line's name."""
    looks = [(g, palette.mark(g)) for g in component_groups(bars)]
    return (*(LegendEntry(g, m.colour, m.shape) for g, m in looks), LegendEntry(zero, palette.BASELINE, None, (5, 3)))


def cut(bars: Sequence[Bar], axis: SharedAxis) -> str:
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
