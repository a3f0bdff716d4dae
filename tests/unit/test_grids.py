"""Heat maps of heads, panels of findings, and the numbers under their marks: shape, colours, words and rows."""

import json
import math
import re
from itertools import pairwise
from typing import Any, cast

import altair as alt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trisect.core.finding import Estimate, Finding
from trisect.report import render
from trisect.report.charts import (
    DRAWN_WIDTH,
    Figure,
    LegendEntry,
    Panel,
    SharedAxis,
    arrangement,
    chart_of,
    few_ticks,
    overlay,
    with_numbers,
)
from trisect.report.maps import grid
from trisect.report.measures import Bar, layer_key, layer_panel
from trisect.report.render import mark
from trisect.report.sheet import sentences, small_multiples


def every(layers, heads, value=lambda n, h: n + h / 100):
    return [(n, h, value(n, h)) for n in range(1, layers + 1) for h in range(1, heads + 1)]


def of(values, **options):
    return grid("name", "Figure 1", "A title", "A caption.", values, "share", **options)


def layers_of(panel):
    """The layers of a panel as plain data, each with its rows."""
    whole = panel.chart.to_dict(validate=False)
    rows = whole.get("datasets", {})
    found = []
    for layer in whole["layer"]:
        data = layer.get("data", whole.get("data"))
        values = rows[data["name"]] if "name" in data else data["values"]
        found.append(layer | {"rows": json.loads(values) if isinstance(values, str) else values})
    return found


def cells(panel):
    return layers_of(panel)[0]["rows"]


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (6, 12), (48, 64), (3, 1), (1, 40)])
def test_any_shape_fits_a_telephone_and_shows_every_head(layers, heads):
    figure = of(every(layers, heads))
    (panel,) = figure.panels
    assert {(c["layer"], c["head"]) for c in cells(panel)} == {(n, h) for n, h, _ in every(layers, heads)}
    assert panel.chart.width <= 272
    assert panel.chart.height <= 300
    drawn = cast(Any, arrangement(figure.name, figure.views[0]))["panels"][0]
    assert not drawn["wide"], f"wider than {DRAWN_WIDTH}"
    assert drawn["svg"].count('aria-label="Heat map of') == 1


def test_its_words_name_the_ends_and_what_is_missing():
    figure = of([(1, 1, 0.5), (1, 2, 2.0), (2, 1, math.nan), (4, 2, -1.0)])
    assert figure.panels[0].alt == (
        "Heat map of 3 layers by 2 heads, in share. Highest 2 at layer 1 head 2, lowest -1 at layer 4 head 2. "
        "1 without a number."
    )
    assert figure.ramp == (-1.0, 2.0, "share")
    assert len(cells(figure.panels[0])) == 3


def test_panels_share_one_scale_and_keep_their_own_dots():
    figure = of({"q-k": [(1, 1, 0.2), (1, 2, 0.4)], "k-v": [(1, 1, 0.9)]}, marked={"q-k": {(1, 2), (7, 7)}})
    assert [p.title for p in figure.panels] == ["q-k", "k-v"]
    assert figure.ramp == (0.2, 0.9, "share")
    assert [len(p.chart.layer) for p in figure.panels] == [2, 1]
    assert layers_of(figure.panels[0])[1]["rows"] == [{"layer": 1, "head": 2, "value": 0.4}]
    assert figure.panels[0].alt.endswith("1 marked.")
    for panel in figure.panels:
        scale = layers_of(panel)[0]["encoding"]["color"]["scale"]
        assert scale["domain"] == [0.2, 0.9]
        assert scale["range"] == list(render.VIRIDIS)


@pytest.mark.parametrize(
    ("values", "options", "ends"),
    [
        ([(1, 1, -0.3), (1, 2, 0.1)], {"diverging": True}, (-0.3, 0.3)),
        ([(1, 1, 0.0)], {"diverging": True}, (-1.0, 1.0)),
        ([(1, 1, 2.0), (1, 2, 2.0)], {}, (2.0, 4.0)),
        ([(1, 1, 0.0)], {}, (0.0, 1.0)),
        ([(1, 1, math.nan)], {}, (0.0, 1.0)),
        ([(1, 1, 5.0)], {"ends": (0.0, 1.0)}, (0.0, 1.0)),
    ],
)
def test_ends_of_the_colours(values, options, ends):
    figure = of(values, **options)
    assert figure.ramp is not None
    assert figure.ramp[:2] == ends
    assert figure.stops == (render.DIVERGING if options.get("diverging") else render.VIRIDIS)


def test_a_diverging_ramp_is_palest_in_the_middle_and_avoids_the_components_colours():
    light = [sum(int(stop[i : i + 2], 16) for i in (1, 3, 5)) for stop in render.DIVERGING]
    assert max(light) == light[len(light) // 2]
    assert light[:6] == sorted(light[:6])
    assert light[5:] == sorted(light[5:], reverse=True)
    assert not set(render.DIVERGING) & {mark.colour for mark in render.GROUPS.values()}


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


pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

FREEZING = Finding(
    "freezing",
    "highest at v@1.",
    "nats",
    (Estimate("v", 0.3, 0.1, 0.5, 3), Estimate("q", -0.1), Estimate("k", 0.2, 0.19, 0.21, 3)),
    title="Freezing",
)
SITES = Finding("largest", "at v@6.", "nats", (Estimate("v@6", 0.3), Estimate("k@2", 0.1)), title="Sites")
ALONE = Finding("one", "of v alone.", "nats", (Estimate("v", 0.3), Estimate("q", None)), what="alone")


def test_a_panel_for_each_finding_of_components_with_its_numbers():
    drawn = small_multiples("short", "Method by method", "n = 3.", (FREEZING, SITES, ALONE))
    assert drawn is not None
    assert [panel.title for panel in drawn.panels] == ["Freezing"]
    assert [entry.name for entry in drawn.legend] == ["q", "k", "v", "0"]
    assert drawn.panels[0].alt == "Freezing, in nats: q −0.100, k +0.200, v +0.300."
    (panel,) = with_numbers(drawn).panels
    values = {one.site: (one.values, one.low, one.high) for one in panel.series}
    assert values == {
        "q": ((-0.1,), (None,), (None,)), "k": ((0.2,), (0.19,), (0.21,)), "v": ((0.3,), (0.1,), (0.5,))
    }  # fmt: skip
    assert small_multiples("short", "t", "c", (SITES, ALONE)) is None


def test_panels_of_one_name_say_what_each_is_about():
    alike = [
        Finding("control", f"of {g}.", "nats", FREEZING.values, title="Controls", groups=(g, "bounded")) for g in "ab"
    ]
    drawn = small_multiples("short", "t", "c", (FREEZING, *alike))
    assert drawn is not None
    assert [panel.title for panel in drawn.panels] == ["Freezing", "Controls: a, bounded", "Controls: b, bounded"]
    table = sentences(alike)
    assert table is not None
    assert [name for name, _ in table.rows] == ["Controls: a, bounded", "Controls: b, bounded"]


def test_the_axis_holds_zero_and_the_intervals_that_do_not_dwarf_the_numbers():
    wide = Finding("f", "w", "nats", (Estimate("q", 0.03, 0.02, 0.05), Estimate("k", 0.032, -9.0, 9.0)), title="t")
    drawn = small_multiples("short", "t", "c", (wide,))
    assert drawn is not None
    (low, high) = drawn.panels[0].chart.to_dict(validate=False)["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert -0.1 < low < 0 < 0.05 < high < 0.1
    assert drawn.caption == "c 2 ends of intervals reach beyond the frame."
    near = small_multiples("short", "t", "c", (FREEZING,))
    assert near is not None
    assert near.caption == "c"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 6))
@example(879609.9999999999, 1.0000000000000002e-06, 6)
def test_ticks_are_few_round_and_inside(low, span, most):
    ticks = few_ticks(low, low + span, most)
    assert 1 <= len(ticks) <= most
    assert all(low <= t <= low + span for t in ticks)
    gaps = [b - a for a, b in pairwise(ticks)]
    assert all(gap >= span / (most + 1) * 0.99 for gap in gaps)


def test_pairs_that_are_compared_have_signs_of_their_own():
    looks = {mark(pair) for pair in ("q-k", "k-v", "q-v")}
    assert len(looks) == 3
    assert mark("q-k") == mark("q+k")
    assert mark("v-o") == mark("anything")
