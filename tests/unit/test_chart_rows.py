"""Numbers under the marks of panels that gave none: every drawn mark has its row, in the order of drawing."""

import re

import altair as alt
import pytest

from trisect.report import render
from trisect.report.charts import Figure, LegendEntry, Panel, SharedAxis, chart_of, overlay, with_numbers
from trisect.report.maps import grid
from trisect.report.measures import Bar, layer_key, layer_panel

AXIS = SharedAxis("nats", 0.0, 1.0)
BARS = (Bar("q", "1", 0.3, 0.2, 0.4), Bar("k", "1", 0.5), Bar("v", "2", 0.7, 0.6, 0.9))


def stroked(figure):
    """Marks of every layer of the first panel, as drawn and as stroked."""
    panel = with_numbers(figure).panels[0]
    text = render.svg(panel.chart, "x", legend=False)
    drawn = {}
    for name, marks in panel.strokes.items():
        groups = re.findall(rf'<g class="[^"]*\b{name}_marks"[^>]*>(.*?)</g>', text)
        drawn[name] = (sum(len(re.findall("<(?:path|text|line)", group)) for group in groups), len(marks))
    return panel, drawn


def series_of(panel, layer):
    """The series under the marks of a layer."""
    return [stroke.series for stroke in panel.strokes[layer] if stroke.series is not None]


def test_points_have_their_value_their_interval_and_the_name_that_hides_them():
    figure = Figure("f", "", "F", "", (layer_panel("Loss", BARS, AXIS),), layer_key(BARS))
    panel, drawn = stroked(figure)
    assert drawn == {"bars": (2, 2), "main": (3, 3)}
    first = series_of(panel, "main")[0]
    assert panel.strokes["main"][0].key == "q"
    assert (first.values, first.low, first.high) == ((0.3,), (0.2,), (0.4,))
    assert (first.site, first.measure.name, first.n) == ("q, layer 1", "Loss: nats", 0)
    assert [stroke.series for stroke in panel.strokes["bars"]] == [None, None]
    assert [stroke.key for stroke in panel.strokes["bars"]] == ["q", "v"]


def test_cells_of_a_head_map_say_their_layer_and_head_and_gaps_have_no_mark():
    cells = [(1, 1, 0.25), (1, 2, float("nan")), (2, 1, -0.5)]
    panel, drawn = stroked(grid("g", "", "G", "", cells, "ρ", marked={"": {(2, 1)}}))
    assert drawn["cells"] == (2, 2)
    cells_read = series_of(panel, "cells")
    assert [one.site for one in cells_read] == ["layer 1, head 1", "layer 2, head 1"]
    assert cells_read[1].measure.signed


def test_lines_keep_the_order_of_their_vertices_and_are_named_by_colour():
    rows = [{"x": x, "y": y, "colour": c, "name": n} for c, n, x, y in (
        ("#111111", "a", 2.0, 0.2), ("#222222", "b", 0.0, 0.4), ("#111111", "a", 1.0, 0.1))]  # fmt: skip
    line = chart_of("main", rows).mark_line()
    drawn = line.encode(alt.X("x:Q", title="epoch"), alt.Y("y:Q", title="loss"), alt.Color("colour:N", scale=None))
    key = (LegendEntry("first", "#111111"), LegendEntry("second", "#222222"))
    figure = Figure("f", "", "F", "", (Panel("T", overlay("T", drawn), "", (), {}),), key)
    panel, found = stroked(figure)
    assert found["main"] == (2, 2)
    first, second = series_of(panel, "main")
    assert [(stroke.key, stroke.length) for stroke in panel.strokes["main"]] == [("first", 2), ("second", 1)]
    assert (first.at, first.values, second.site) == ((1.0, 2.0), (0.1, 0.2), "b")
    assert with_numbers(figure).at == "epoch"


@pytest.mark.parametrize("axis", [None, alt.Axis()])
def test_a_drawing_without_axes_has_no_numbers(axis):
    rows = [{"x": 1.0, "x2": 2.0, "y": 1.0, "y2": 2.0, "token": "w"}]
    cells = chart_of("cells", rows).mark_rect()
    drawn = cells.encode(alt.X("x:Q", axis=axis), alt.X2("x2"), alt.Y("y:Q", axis=axis), alt.Y2("y2"))
    panel, found = stroked(Figure("f", "", "F", "", (Panel("T", overlay("T", drawn), "", (), {}),)))
    assert found["cells"] == (1, 1)
    assert bool(panel.series) == (axis is not None)


def test_panels_that_gave_series_keep_them():
    panel = layer_panel("Loss", BARS, AXIS)
    given = with_numbers(Figure("f", "", "F", "", (panel,))).panels[0]
    assert with_numbers(Figure("f", "", "F", "", (given,))).panels[0] is given
