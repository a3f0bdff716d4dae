"""Of several models, by layer and of several layers at once: means over models with their intervals, or courses over revisions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

import polars as pl

from trisect.core.finding import Estimate
from trisect.lab.experiment import LayerMeasure
from trisect.lab.units.names import MODELS
from trisect.lab.units.pool import mean_of
from trisect.lab.units.settings import UnitsFacts
from trisect.report import format as words
from trisect.report import palette
from trisect.report.blocks import Table
from trisect.report.layers import Bar, component_key, cut, frame_of, layer_panel
from trisect.report.panels import Figure, Panel
from trisect.report.sheet import Section
from trisect.report.subject import stack_words

SEVERAL = r", layers ([0-9](?:[0-9,-]*[0-9])?)"  # how the group of a row says that it is of several layers at once, and of which
TITLES = {False: "Layer by layer", True: "Several layers at once"}


def layer_sections(tables: Mapping[str, pl.DataFrame], facts: UnitsFacts) -> Iterator[Section]:
    """Means over models at every layer, and of several layers at once; of revisions every layer's curve."""
    numbered = count(1)
    for several in TITLES:
        figures, listed = [], []
        titles = dict.fromkeys((one.title, one.unit) for one in facts.by_layer)
        for title, unit in titles:
            asked = [one for one in facts.by_layer if (one.title, one.unit) == (title, unit)]
            spots = layer_values(tables["measures"], asked, several)
            if not spots:
                continue
            figures.append(_layer_figure(spots, title, unit, facts, next(numbered)))
            listed.append(_layer_table(spots, asked[0], facts))
        if figures:
            yield Section(TITLES[several], (), tuple(figures), tuple(listed))


LayerSpots = dict[tuple[str, str, int | str], dict[str, float]]  # panel, component, layer -> value of each model


def layer_values(measures: pl.DataFrame, asked: Iterable[LayerMeasure], several_at_once: bool = False) -> LayerSpots:
    """Of each panel, component and layer the value in every model; where a layer has none of its own, its heads' mean.

    With `several_at_once` of what is of more than one layer, in place of the layer those layers as the row's group spells them ('1-3').
    """
    found: LayerSpots = {}
    for one in asked:
        rows = measures.filter(pl.col("measure") == one.measure, pl.col("value").is_not_null())
        if several_at_once:
            single = pl.format("{}, head {}", pl.col("group").str.replace(SEVERAL, ""), "head")
            rows = rows.with_columns(
                pl.col("group").str.extract(SEVERAL).alias("layer"),
                pl.when(pl.col("head").is_null())
                .then(pl.col("group").str.replace(SEVERAL, ""))
                .otherwise(single)
                .alias("group"),
                pl.lit(None, pl.Int64).alias("head"),
            )
        rows = rows.filter(pl.col("layer").is_not_null())
        if rows["at"].is_not_null().any():
            rows = rows.filter(pl.col("at").is_null())
        keys = ("model", "stack", "layer", "component", "group")
        own = rows.filter(pl.col("head").is_null()).select(*keys, "value")
        heads = rows.filter(pl.col("head").is_not_null()).group_by(keys).agg(pl.col("value").mean())
        heads = heads.join(own, on=keys, how="anti", nulls_equal=True)
        several = {name: rows[name].n_unique() > 1 for name in ("stack", "group")}
        for row in pl.concat([own, heads]).sort(keys).iter_rows(named=True):
            component = one.component or row["component"] or ""
            parts = (
                stack_words(row["stack"]) or row["stack"] if several["stack"] else "",
                row["group"] if several["group"] else "",
            )
            plain = component in palette.GROUPS
            panel = ", ".join(filter(None, (*parts, "" if plain else component)))
            found.setdefault((panel, component, row["layer"]), {})[row["model"]] = row["value"]
    return found


def _layer_figure(spots: LayerSpots, title: str, unit: str, facts: UnitsFacts, number: int) -> Figure:
    whole, (means, dots) = facts.units == MODELS, _layer_bars(spots, facts)
    every = [bar for of in means.values() for bar in of]
    axis = frame_of([*every, *(bar for of in dots.values() for bar in of)], unit)
    several = any(isinstance(layer, str) for _, _, layer in spots)
    across, whose = ("layers", TITLES[True]) if several else ("layer", "All layers")
    panels: tuple[Panel, ...] = tuple(
        layer_panel(
            panel or whose,
            of,
            axis,
            True,
            across if whole else "revision",
            dots.get(panel, ()),
        )
        for panel, of in means.items()
    )
    how = TITLES[several].lower()
    caption = f"{title.capitalize()}, {how}. " if several else f"{title.capitalize()} by layer. "
    caption += f"{small_signs(facts)} where all have the {across}." if whole else "Revisions in their order."
    name = f"{'several-' if several else ''}layers-{words.slug(title)}"
    return Figure(
        name,
        f"Figure L{number}",
        f"{title.capitalize()}, {how}",
        caption + cut(every, axis),
        panels,
        component_key(every, "0"),
    )


def _layer_bars(spots: LayerSpots, facts: UnitsFacts) -> tuple[dict[str, list[Bar]], dict[str, list[Bar]]]:
    """By panel the means over models and the models themselves; of revisions every layer's course."""
    means: dict[str, list[Bar]] = {}
    dots: dict[str, list[Bar]] = {}
    for (panel, component, layer), of in sorted(spots.items(), key=_in_order):
        if facts.units != MODELS:
            named = ", ".join(filter(None, (panel, _called(layer))))
            course = [
                Bar(group_of_name(component), last_name(model), of[model]) for model in facts.names if model in of
            ]
            means.setdefault(named, []).extend(course)
            continue
        mean = mean_of(component, list(of.values()))
        means.setdefault(panel, []).append(
            Bar(group_of_name(component), str(layer), mean.mean or 0.0, mean.low, mean.high)
        )
        dots.setdefault(panel, []).extend(Bar(group_of_name(component), str(layer), value) for value in of.values())
    return means, dots


def _in_order(spot: tuple[tuple[str, str, int | str], Mapping[str, float]]) -> tuple[str, list[int], int]:
    """Panels by name, then layers, then q, k and v."""
    panel, component, layer = spot[0]
    known = list(palette.GROUPS)
    numbers = [int(n) for n in re.findall(r"\d+", str(layer))]
    return panel, numbers, known.index(component) if component in known else len(known)


def _called(layer: int | str) -> str:
    return f"layers {layer}" if isinstance(layer, str) else f"layer {layer}"


def _layer_table(spots: LayerSpots, drawn: LayerMeasure, facts: UnitsFacts) -> Table:
    rows = []
    for (panel, component, layer), of in sorted(spots.items(), key=_in_order):
        place = ", ".join(filter(None, (panel, _called(layer), component if component in palette.GROUPS else "")))
        each = [words.number(of.get(model), drawn.signed) for model in facts.names]
        if facts.units == MODELS:
            mean = mean_of(component, list(of.values()))
            each = [words.number(mean.mean, drawn.signed), ends_said(mean, drawn.signed), *each]
        rows.append((place, *each))
    head = ("mean", "95 %") if facts.units == MODELS else ()
    columns = ("where", *head, *(facts.names if facts.units == MODELS else map(last_name, facts.names)))
    return Table(columns, tuple(rows), f"{drawn.title.capitalize()}, {drawn.unit}", wrap=False)


def small_signs(facts: UnitsFacts) -> str:
    """What signs are, where models are drawn beside their mean."""
    n = words.several(len(facts.models), "model")
    return f"Small signs are models, large ones their mean with its 95 % interval, n\u00a0=\u00a0{n}"


def group_of_name(name: str) -> str:
    """What a number is drawn as: its component, or as what is none."""
    return name if name in palette.GROUPS else "all"


def last_name(model: str) -> str:
    """A revision's own name."""
    return model.rpartition("@")[2]


def ends_said(one: Estimate, signed: bool) -> str:
    """An interval in words, with its signs where the number is a difference."""
    return "–" if one.low is None else f"{words.number(one.low, signed)} to {words.number(one.high, signed)}"
