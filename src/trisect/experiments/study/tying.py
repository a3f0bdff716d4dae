"""Tying: loss and accuracy of models with fewer matrices against their parameters, beside narrower heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import altair as alt
import polars as pl

from trisect.core.finding import Estimate, Finding
from trisect.experiments.study import words as study_words
from trisect.experiments.study.curves import SPLIT
from trisect.experiments.study.rows import StudyRows
from trisect.papers.tying import SOURCE
from trisect.report import format as words
from trisect.report import palette
from trisect.report.axes import SharedAxis, around
from trisect.report.chart_data import Measure, Stroke, mean_of, of_runs
from trisect.report.panels import HEIGHT, WIDTH, ZERO, Figure, LegendEntry, Panel, chart_of, lay
from trisect.report.parts import SitePanel, axis_of, cut, site_figure, with_means
from trisect.report.points import Mean, Point, interval, paired, place

EDITS = ("tie", "identity", "narrow")
DASHED = (5, 3)
WHAT = {
    "tie": "matrices that are one from the first step",
    "identity": "the identity in the place of a matrix",
    "narrow": "separate matrices in narrower heads (grey) that have as nearly as many parameters",
}


class Fewer(NamedTuple):
    """Models of one kind with fewer parameters: the edit, where, how many, and each seed's change against its baseline."""

    edit: str
    site: str
    parameters: int
    loss: tuple[Point, ...]
    train: tuple[Point, ...]
    accuracy: tuple[Point, ...]

    @property
    def name(self) -> str:
        """Such as `Q=K`, `V is the identity`, `narrower heads`."""
        return named(self.edit, self.site)


def named(edit: str, site: str) -> str:
    """An edit of matrices in words."""
    parts = place(site).group.upper().split("+")
    return {"tie": "=".join(parts), "identity": f"{parts[0]} the identity", "narrow": "narrower heads"}[edit]


def fewer(rows: StudyRows) -> list[Fewer]:
    """Every kind of model with fewer parameters that the study has, by layers, then as it stands in EDITS."""
    runs = rows.runs.filter(pl.col("edit").is_in(EDITS) & pl.col("parameters").is_not_null())
    ids: dict[tuple[str, str, int], set[str]] = {}
    for run, edit, site, parameters in runs.select("run", "edit", "site", "parameters").iter_rows():
        ids.setdefault((edit, site, parameters), set()).add(run)
    effects = {
        (edit, split, name): rows.effects(edit, split, name=name)
        for edit in EDITS
        for split, name in (("valid", "loss_nats"), ("train", "loss_nats"), ("valid", "accuracy"))
    }

    def mine(key: tuple[str, str, int], split: str, name: str = "loss_nats") -> tuple[Point, ...]:
        return tuple(p for p in effects[key[0], split, name] if p.run in ids[key])

    found = [Fewer(*key, mine(key, "valid"), mine(key, "train"), mine(key, "valid", "accuracy")) for key in ids]
    rank = {edit: i for i, edit in enumerate(EDITS)}

    def key(one: Fewer) -> tuple[object, ...]:
        return place(one.site).single, _layers(one.site), rank[one.edit], -one.parameters, one.site

    return sorted((f for f in found if f.loss), key=key)


def _layers(site: str) -> str:
    return place(site).layers


def parameters(rows: StudyRows) -> int | None:
    """How many parameters the baseline has."""
    found = rows.runs.filter(pl.col("edit") == "none")["parameters"].drop_nulls()
    return None if found.is_empty() else int(found[0])


def narrow_for(one: Fewer, found: Sequence[Fewer]) -> Fewer | None:
    """The narrower heads at the same layers that have as nearly as many parameters."""
    known = [f for f in found if f.edit == "narrow" and _layers(f.site) == _layers(one.site)]
    return min(known, key=lambda f: abs(f.parameters - one.parameters), default=None)


def less(one: Sequence[Point], other: Sequence[Point]) -> Mean | None:
    """The difference of two changes, paired by seed; null without a common seed."""
    values = {p.seed: p.value for p in other}
    both = [p.value - values[p.seed] for p in one if p.seed in values]
    return interval(both) if both else None


def figures(rows: StudyRows) -> Iterable[Figure]:
    """Changes against parameters where several layers are tied, and by layer where single ones are."""
    found = fewer(rows)
    whole = [f for f in found if not place(f.site).single]
    if whole:
        yield _against(rows, whole)
    yield from _by_layer(rows, [f for f in found if place(f.site).single and f.edit == "tie"])


def _against(rows: StudyRows, found: Sequence[Fewer]) -> Figure:
    full = parameters(rows)
    shown: list[tuple[SharedAxis, Sequence[Point]]] = []
    panels = []
    for title, unit, of in (
        ("Validation loss", "nats, valid", [f.loss for f in found]),
        ("Accuracy", "share, valid", [f.accuracy for f in found]),
        ("Train loss", "nats, train", [f.train for f in found]),
    ):
        kept = [(f, points) for f, points in zip(found, of, strict=True) if points]
        if kept:
            axis = around([p.value for _, points in kept for p in with_means(points)], unit, zero=True)
            panels.append(_panel(title, kept, axis, full))
            shown += [(axis, points) for _, points in kept]
    count = "" if full is None else f" The baseline has {words.count(full)}."
    caption = (
        "Difference to the baseline of the same seed against the parameters of the whole model: "
        f"{words.listed([WHAT[edit] for edit in EDITS if any(f.edit == edit for f in found)])}. "
        f"Here {_where(found)}.{count} Marks are means over seeds, bars 95 % intervals. {study_words.seeds(rows)}."
        f"{study_words.from_diverged([p for _, points in shown for p in points])}{cut(shown)}"
    )
    return Figure("tying", study_words.BEYOND, "Three matrices or fewer", caption, tuple(panels), _key(found))


def _where(found: Iterable[Fewer]) -> str:
    return f"at layers {words.listed(list(dict.fromkeys(_layers(f.site) for f in found)))}"


def _look(one: Fewer) -> tuple[str, str]:
    """Shape and colour of a mark."""
    if one.edit == "narrow":
        return "circle", palette.BASELINE
    mark = palette.mark(place(one.site).group)
    return mark.shape, mark.colour


def _key(found: Sequence[Fewer]) -> tuple[LegendEntry, ...]:
    looks = {f.name: _look(f) for f in found}
    return (
        *(LegendEntry(name, colour, shape) for name, (shape, colour) in looks.items()),
        LegendEntry(ZERO.name, palette.BASELINE, None, DASHED),
    )


def _panel(title: str, found: Sequence[tuple[Fewer, Sequence[Point]]], axis: SharedAxis, full: int | None) -> Panel:
    measure = Measure(f"change of {title.lower()}", axis.unit.partition(",")[0], True)
    data, seeds, bars = [], [], []
    strokes: dict[str, list[Stroke]] = {"seeds": [], "bars": [], "main": []}
    series = []
    for one, points in found:
        shape, colour = _look(one)
        row = {"parameters": one.parameters / 1000, "shape": shape, "colour": colour, "name": one.name}
        runs = [
            run._replace(site=f"{one.name} ({words.count(one.parameters)} parameters)")
            for run in of_runs(points, measure)
        ]
        whole = mean_of(runs)
        mean = interval([p.value for p in points])
        data.append(row | {"value": mean.mean})
        strokes["main"].append(Stroke(one.name, whole))
        if mean.low is not None:
            bars.append(row | {"low": mean.low, "high": mean.high})
            strokes["bars"].append(Stroke(one.name))
        if len(runs) > 1:
            seeds += [row | {"value": run.values[0]} for run in runs]
            strokes["seeds"] += [Stroke(one.name, run) for run in runs]
        series += [*runs, whole]
    reach = [row["parameters"] for row in data] + ([full / 1000] if full else [])
    air = 0.08 * (max(reach) - min(reach)) or 1.0
    scale = alt.Scale(domain=[min(reach) - air, max(reach) + air], nice=False, zero=False)
    x = alt.X("parameters:Q", scale=scale, title="thousand parameters", axis=alt.Axis(tickCount=4))
    colour_, shape_ = alt.Color("colour:N", scale=None), alt.Shape("shape:N", scale=None)
    line = chart_of("level0", [{"level": 0.0}]).mark_rule(color=palette.BASELINE, strokeDash=list(DASHED))
    layers = [line.encode(axis.axis("level"))]
    if seeds:
        dots = chart_of("seeds", seeds).mark_point(size=13, strokeWidth=1, opacity=1, filled=False)
        layers.append(dots.encode(x, axis.axis("value"), colour_, shape_))
    if bars:
        ranged = chart_of("bars", bars).mark_rule(strokeWidth=1.6)
        layers.append(ranged.encode(x, axis.axis("low"), alt.Y2("high"), colour_))
    heads = chart_of("main", data).mark_point(size=60, filled=True, opacity=1)
    layers.append(heads.encode(x, axis.axis("value"), colour_, shape_))
    said = "; ".join(f"{row['name']} {row['value']:.3g} with {row['parameters']:.4g} thousand" for row in data)
    drawn = {"level0": (Stroke(ZERO.name),)} | {name: tuple(of) for name, of in strokes.items() if of}
    chart = lay(title, *layers, width=WIDTH, height=HEIGHT)
    return Panel(title, chart, f"{title}: change against parameters, in {axis.unit}. {said}.", tuple(series), drawn)


def _by_layer(rows: StudyRows, found: Sequence[Fewer]) -> Iterable[Figure]:
    panels = []
    for split, of in (("valid", [f.loss for f in found]), ("train", [f.train for f in found])):
        if points := [p for one in of for p in one]:
            title = f"{SPLIT[split].capitalize()} loss"
            noun, axis = (
                Measure(f"change of {title.lower()}", "nats", True),
                axis_of(points, f"nats, {split}", bend=True),
            )
            panels.append(SitePanel(title, points, noun, axis))
    if panels:
        caption = "Difference to the baseline of the same seed when matrices of one layer are one from the first step."
        names = ("tying-layers", study_words.BEYOND, "Fewer matrices in one layer")
        yield site_figure(names, f"{caption} {study_words.seeds(rows)}.", panels)


def findings(rows: StudyRows) -> Iterator[Finding]:
    """What fewer matrices cost, by component and by model; nothing without them."""
    found = fewer(rows)
    if shared := {c: interval(list(values.values())) for c, values in _by_seed(rows).items()}:
        said = words.listed([f"{c} {words.spoken(mean, 'nats')}" for c, mean in shared.items()])
        what = f"{study_words.VALID} when it shares its matrix with one other, mean of two ties"
        values = tuple(Estimate(c, *mean) for c, mean in shared.items())
        compared = paired(_by_seed(rows), study_words.MARGIN)
        order_ = "" if compared is None else compared.words()
        yield Finding(
            "tying",
            f"{what}: {said}{'; ' * bool(order_)}{order_}.",
            "nats",
            values,
            order_,
            SOURCE.key,
            title="Tying",
            what=what,
            per="seed",
            compared=compared,
        )
    whole = [f for f in found if not place(f.site).single]
    if costs := [_cost(one, found, parameters(rows)) for one in whole if one.edit != "narrow"]:
        said = "; ".join(text for text, _ in costs)
        what = f"{study_words.VALID} against three separate matrices, {_where(whole)}"
        values = tuple(value for _, of in costs for value in of)
        yield Finding(
            "matrices", f"{what}: {said}.", "nats", values, "", SOURCE.key, title="Tying", what=what, per="seed"
        )


def _by_seed(rows: StudyRows) -> dict[str, dict[int, float]]:
    """By component and seed the mean over the pairs tied in every layer that hold it."""
    pairs: dict[str, dict[int, list[float]]] = {c: {} for c in ("q", "k", "v")}
    for point in rows.effects("tie", "valid"):
        parts = place(point.site).group.split("+")
        for component in parts if len(parts) == 2 and not place(point.site).single else ():
            pairs[component].setdefault(point.seed, []).append(point.value)
    return {c: {s: sum(x) / len(x) for s, x in by_seed.items()} for c, by_seed in pairs.items() if by_seed}


def _cost(one: Fewer, found: Sequence[Fewer], full: int | None) -> tuple[str, list[Estimate]]:
    """What one model loses against the baseline and against narrower heads: in words, and as numbers."""
    share = "" if not full else f" with {100 * (full - one.parameters) / full:.1f} % fewer parameters"
    mean = interval([p.value for p in one.loss])
    text, values = f"{one.name}{share} {words.spoken(mean, 'nats')}", [Estimate(one.name, *mean)]
    beside = narrow_for(one, found)
    if against := less(one.loss, beside.loss) if beside else None:
        text += f", against narrower heads {words.spoken(against, 'nats')}"
        values.append(Estimate(f"{one.name} minus narrower heads", *against))
    return text, values
