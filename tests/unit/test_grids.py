"""Grids: heat maps of heads keep their shape, their colours and their words from one head to thousands."""

import json
import math
from typing import Any, cast

import pytest

from trisect.report import render
from trisect.report.charts import DRAWN_WIDTH, arrangement
from trisect.report.maps import grid


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
