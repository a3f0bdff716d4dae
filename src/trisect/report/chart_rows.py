"""Numbers under the marks of any panel, read from its chart: what pointer, keys and downloads of a page show where no series were given."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from trisect.core.json_text import Json
from trisect.report.chart_data import Measure, Series, Stroke
from trisect.report.panels import Figure, FigureView, LegendEntry, Panel

MarkFields = Mapping[str, Json]
DRAWN = ("point", "rect", "bar", "line")
LOOKS = {"colour", "fill", "shape", "dash", "slot", "line", "order", "x", "y", "x2", "y2", "from", "to", "low", "high"}
APART = ("color", "detail", "strokeDash")  # what splits the rows of a line into several


class _Channel(NamedTuple):
    """One encoding of a layer: its field, whether it is a number, and its title."""

    field: str
    number: bool
    title: str


class _Layer(NamedTuple):
    """One layer of a chart: its name, what its marks are, its encodings, and its rows."""

    name: str
    kind: str
    channels: Mapping[str, _Channel]
    rows: tuple[MarkFields, ...]


class _Value(NamedTuple):
    """Which fields of a layer are its number: one, or the difference of two; and the axis that it is read on."""

    field: str
    less: str
    title: str


def read_out(figure: Figure) -> Figure:
    """The figure with numbers under its marks; panels that have series keep theirs."""
    panels = tuple(_panel(panel, figure.key) for panel in figure.panels)
    others = tuple(
        FigureView(view.name, tuple(_panel(panel, view.key) for panel in view.panels), view.key)
        for view in figure.others
    )
    titles = {axis for panel in figure.panels if not panel.series for axis in (_across(panel),) if axis}
    at = figure.at or (titles.pop() if len(titles) == 1 else "")
    return replace(figure, panels=panels, others=others, at=at)


def _layers(panel: Panel) -> list[_Layer]:
    """Every layer that has a name, with its rows; the chart library keeps them in one place, by a name of their own."""
    spec = panel.chart.to_dict(validate=False)
    kept = spec.get("datasets", {})
    found = []
    for one in spec["layer"]:
        data = one.get("data", spec.get("data", {}))
        values = data.get("values", kept.get(data.get("name"), []))
        rows = json.loads(values) if isinstance(values, str) else values
        if "name" in one:
            mark = one["mark"]
            kind = mark if isinstance(mark, str) else mark["type"]
            found.append(_Layer(one["name"], kind, _channels(one["encoding"]), tuple(rows)))
    return found


def _across(panel: Panel) -> str:
    """The title of the axis that lines run along; empty where the panel has none."""
    found = [layer.channels.get("x") for layer in _layers(panel) if layer.kind == "line"]
    return next((x.title for x in found if x is not None and x.number), "")


def _panel(panel: Panel, key: Sequence[LegendEntry]) -> Panel:
    if panel.series or panel.strokes:
        return panel
    strokes: dict[str, tuple[Stroke, ...]] = {}
    for layer in _layers(panel):
        if not layer.name.startswith("level"):
            strokes[layer.name] = tuple(_strokes(panel.title, layer, key))
    series = tuple(dict.fromkeys(one.series for marks in strokes.values() for one in marks if one.series is not None))
    return panel._replace(series=series, strokes=strokes)


def _strokes(title: str, layer: _Layer, key: Sequence[LegendEntry]) -> list[Stroke]:
    """A stroke for every mark of a layer, in the order of drawing."""
    channels, value = layer.channels, _value(layer.channels)
    rows = [row for row in layer.rows if _drawn(row, channels)]
    if layer.kind == "line":
        return [_line(title, group, channels, value, key) for group in _groups(rows, channels)]
    if value is None or layer.kind not in DRAWN:
        return [Stroke(_key(row, key)) for row in rows]
    return [Stroke(_key(row, key), _single(title, row, channels, value)) for row in rows]


def _channels(coded: Mapping[str, Json]) -> dict[str, _Channel]:
    """Every encoding that has a field, by its name."""
    found = {}
    for name, one in coded.items():
        if isinstance(one, dict) and isinstance(one.get("field"), str):
            title = one.get("title", one["field"])
            # a place without an axis is a matter of drawing
            number = one.get("type") == "quantitative" and one.get("axis", {}) is not None
            found[name] = _Channel(str(one["field"]), number, str(title or ""))
    return found


def _drawn(row: MarkFields, channels: Mapping[str, _Channel]) -> bool:
    """Whether a row has a mark: one whose place is no number has none."""
    ends = [channels[name] for name in ("x", "y") if name in channels and channels[name].number]
    return all(isinstance(row.get(end.field), int | float) and math.isfinite(_number(row, end.field)) for end in ends)


def _number(row: MarkFields, field: str) -> float:
    value = row[field]
    assert isinstance(value, int | float)
    return float(value)


def _value(channels: Mapping[str, _Channel]) -> _Value | None:
    """The number of a layer: its colour, a bar's length, or the axis that is a number; null where it shows none."""
    colour = channels.get("color")
    if colour is not None and colour.number:
        return _Value(colour.field, "", colour.title)
    for name, end in (("y", "y2"), ("x", "x2")):
        if name in channels and channels[name].number:
            if end in channels:
                return _Value(channels[end].field, channels[name].field, channels[name].title)
            return _Value(channels[name].field, "", channels[name].title)
    return None


def _of(row: MarkFields, value: _Value) -> float:
    return _number(row, value.field) - (_number(row, value.less) if value.less else 0.0)


def _end(row: MarkFields, name: str) -> tuple[float | None, ...]:
    found = row.get(name)
    return (float(found),) if isinstance(found, int | float) else (None,)


def _measure(title: str, value: _Value, signed: bool) -> Measure:
    said = [title.replace("\n", " "), value.title]
    return Measure(": ".join(dict.fromkeys(filter(None, said))) or "value", "", signed)


def _single(title: str, row: MarkFields, channels: Mapping[str, _Channel], value: _Value) -> Series:
    number = _of(row, value)
    ends = () if value.less else (_end(row, "low"), _end(row, "high"))
    measure = _measure(title, value, number < 0)
    low, high = ends if ends else ((None,), (None,))
    return Series(measure, _place(row, channels, value), "", None, (), (number,), low, high, 0)


def _groups(rows: Sequence[MarkFields], channels: Mapping[str, _Channel]) -> list[list[MarkFields]]:
    """The rows of each line, along it."""
    apart = [channels[name].field for name in APART if name in channels and not channels[name].number]
    along = channels["order"].field if "order" in channels else channels["x"].field
    groups: dict[str, list[MarkFields]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row.get(field) for field in apart]), []).append(row)
    return [sorted(group, key=lambda row: _number(row, along)) for group in groups.values()]


def _line(
    title: str,
    rows: Sequence[MarkFields],
    channels: Mapping[str, _Channel],
    value: _Value | None,
    key: Sequence[LegendEntry],
) -> Stroke:
    if value is None or not channels["x"].number:
        return Stroke(_key(rows[0], key))
    at, values = (tuple(_number(row, field) for row in rows) for field in (channels["x"].field, value.field))
    measure = _measure(title, value, min(values) < 0)
    series = Series(measure, _place(rows[0], {}, value, {channels["x"].field}), "", None, at, values, n=0)
    return Stroke(_key(rows[0], key), series, 0, len(at))


def _place(
    row: MarkFields, channels: Mapping[str, _Channel], value: _Value, passed: set[str] | frozenset[str] = frozenset()
) -> str:
    """Where a mark stands, in words: what names it, and where it lies on axes that are not its number."""
    axes = {channels[name].field: channels[name].title for name in ("x", "y") if name in channels}
    own = {value.field, value.less, *passed}
    said = []
    for field, found in row.items():
        named = isinstance(found, str) or field in axes or field in ("layer", "head")
        if field in own or found is None or not named or (field in LOOKS and field not in axes):
            continue
        plain = f"{found:.4g}" if isinstance(found, float) else str(found)
        # a field's own name says nothing to a reader but for layers and heads
        title = axes.get(field, field if field in ("layer", "head") else "")
        title = "" if title == field and field not in ("layer", "head") else title
        between = ": " if " " in title else " "
        said.append(f"{title}{between * bool(title)}{plain}".replace("\n", " "))
    return ", ".join(dict.fromkeys(said))


def _key(row: MarkFields, key: Sequence[LegendEntry]) -> str:
    """The name in the key that a mark belongs to: one of the row's words, else that of its colour; empty for none."""
    words = {found for found in row.values() if isinstance(found, str)}
    named = [entry.name for entry in key if entry.name in words]
    return next(iter(named or [entry.name for entry in key if entry.colour in words]), "")
