"""Figures of curves: attacks, freezing and mid-stage rewinding layer by layer, and the baseline's own curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import polars as pl

from trisect.core.edits import kind_of
from trisect.core.site import Site
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import (
    ZERO,
    CurveLine,
    Figure,
    FigureView,
    LegendEntry,
    Measure,
    Panel,
    Series,
    SharedAxis,
    around,
    curve_panel,
    of_runs,
)
from trisect.report.format import Point, by_site, interval, order, place, side
from trisect.report.maps import grid
from trisect.report.measures import SitePanel, axis_of, change_panel, site_figure

LOSS, SHARE = "nats per token", "share of tokens"
NUMBERS = {("pos", "train"): 3, ("pos", "valid"): 4, ("dep", "train"): 5, ("dep", "valid"): 6}
SPLIT = {"train": "train", "valid": "validation"}
LOST = ", and the bold line stops where the first seed is lost."
CUT = " Curves are cut above the loss at initialisation."
BY_COMPONENT, BY_LAYER, BY_LABEL = "component", "layer", "label"


class Curves(NamedTuple):
    """The curves of one experiment by site, and the baseline's, with the axis that holds them all."""

    edited: tuple[Series, ...]
    baseline: CurveLine | None
    axis: SharedAxis
    collapsed: frozenset[str] = frozenset()  # sites where every run collapsed: drawn grey


def depth_share(rows: StudyRows) -> Callable[[str], float]:
    """How deep a site lies, from 0 (layer 1) to 1 (the deepest layer of the study)."""
    depths = [place(s).depth for s in rows.edited]
    deepest = max([d for d in depths if d != math.inf], default=1.0)
    return lambda site: 0.5 if place(site).depth == math.inf else (place(site).depth - 1) / max(1.0, deepest - 1)


def arranged(rows: StudyRows, curves: Curves, meet: bool = False) -> tuple[FigureView, FigureView]:
    """The same curves with a panel per component, and with a panel per layer."""
    share = depth_share(rows)
    sites = sorted({s.site for s in curves.edited}, key=order)
    deep = list(dict.fromkeys(place(s).layers for s in sorted(sites, key=lambda s: order(s)[:3])))
    groups = sorted({place(s).group for s in sites}, key=lambda g: order(f"{g}@1"))

    def of(site: str) -> tuple[Series, ...]:
        return tuple(s for s in curves.edited if s.site == site)

    def by_layer(site: str) -> CurveLine:
        here = place(site)
        shape = render.layer_shape(deep.index(here.layers))
        colour = render.BASELINE if site in curves.collapsed else render.layer_colour(share(site))
        return CurveLine(_layer(site), colour, () if here.single else (8, 2), of(site), shape)

    def by_component(site: str) -> CurveLine:
        look = render.mark(place(site).group)
        colour = render.BASELINE if site in curves.collapsed else look.colour
        return CurveLine(place(site).group, colour, (), of(site), look.shape)

    def view(name: str, panels: Sequence[tuple[str, list[str]]], line: Callable[[str], CurveLine]) -> FigureView:
        lines = [(title, [line(site) for site in mine]) for title, mine in panels]
        first = [curves.baseline] if curves.baseline else []
        drawn = tuple(curve_panel(title, [*first, *mine], curves.axis, meet=meet) for title, mine in lines)
        return FigureView(name, drawn, keys([*(one for _, mine in lines for one in mine), *first]))

    components = [(words.GROUP.get(g, g), [s for s in sites if place(s).group == g]) for g in groups]
    layers = [(_layer(mine[0]), mine) for depth in deep if (mine := [s for s in sites if place(s).layers == depth])]
    return view(BY_COMPONENT, components, by_layer), view(BY_LAYER, layers, by_component)


def _layer(site: str) -> str:
    return f"{'layer' if place(site).single else 'layers'} {place(site).layers}"


def keys(lines: Iterable[CurveLine]) -> tuple[LegendEntry, ...]:
    """Each name once, in the order of appearance."""
    return tuple({line.name: line.key for line in lines}.values())


def _against(rows: StudyRows, edit: str, split: str, labels: Sequence[str | None]) -> list[tuple[list[Point], Curves]]:
    """Loss curves of one experiment with each label beside the baseline's, on one axis; those without rows are left out."""
    measure = Measure(f"{SPLIT[split]} loss", LOSS)
    kept = [points for label in labels if (points := rows.curves(edit, split, label=label))]
    last = max((p.at or 0 for points in kept for p in points), default=0)
    base = [p for p in rows.curves("none", split) if (p.at or 0) <= last]
    start = [p.value for p in base if p.at == 0]
    values = [p.value for points in (*kept, base) for p in points]
    axis = around(values, LOSS, most=max(start) if start else math.inf)
    other = CurveLine("baseline", render.BASELINE, (5, 3), tuple(of_runs(base, measure))) if base else None
    return [(ps, Curves(tuple(of_runs(ps, measure)), other, axis, _collapsed(rows, ps))) for ps in kept]


def _collapsed(rows: StudyRows, points: Sequence[Point]) -> frozenset[str]:
    return frozenset({p.site for p in points} - {p.site for p in points if p.run not in rows.collapsed})


def _caption(rows: StudyRows, edit: str, split: str, label: str | None, points: Sequence[Point], curves: Curves) -> str:
    """The end of a caption: extremes, how many seeds and runs, what diverged and what is cut."""
    runs = {(p.site, p.seed) for p in points}
    gone = {(p.site, p.seed) for p in points if p.diverged}
    effects = rows.readable(rows.effects(edit, split, label))
    base = curves.baseline.series if curves.baseline else ()
    tail = f" Against the baseline, at the last epoch: {study_words.extremes(effects, 'nats')}" if effects else ""
    tail += f" {study_words.seeds(rows)}, {words.several(len(runs), 'run')} at {words.several(len({s for s, _ in runs}), 'site')}"
    tail += f"; {len(gone)} diverged{LOST}" if gone else "."
    if fell := len({p.run for p in points} & rows.collapsed):
        tail += f" {words.several(fell, 'run')} collapsed, that is, never fell clearly below the unigram loss"
        tail += "; nothing is read from sites where one did" + (
            "; sites where all did are grey." if curves.collapsed else "."
        )
    lost = {s.seed for s in base if s.diverged}
    tail += f" The baseline diverged in {words.several(len(lost), 'seed')}." if lost else ""
    return tail + (CUT if any(v > curves.axis.high for s in (*curves.edited, *base) for v in s.values) else "")


def attacks(rows: StudyRows) -> Iterable[Figure]:
    """Figures 3 to 6, and the like for other labels; the first label's can be seen beside the others'."""
    first_label = next(iter(rows.labels), None)
    for label in rows.labels:
        for split in ("train", "valid"):
            found = _against(rows, "attack", split, [label])
            if not found:
                continue
            points, curves = found[0]
            number = NUMBERS.get((label, split))
            stem = f"fig{number:02d}-" if number else ""
            views = arranged(rows, curves)
            if label == first_label and len(rows.labels) > 1:
                views = (*views, *_by_label(rows, split))
            caption = f"Loss per epoch while an adversary at one site is fought with λ = {rows.strength:g}."
            caption += _caption(rows, "attack", split, label, points, curves)
            title = f"Attack on {study_words.label_name(label)}: {SPLIT[split]} loss"
            name = f"{stem}attack-{words.slug(label)}-{split}"
            yield _figure((name, f"Figure {number}" if number else study_words.BEYOND, title), caption, views)


def _figure(names: tuple[str, str, str], caption: str, views: Sequence[FigureView]) -> Figure:
    """Curves over epochs, in the first arrangement and the others."""
    first, *others = views
    return Figure(*names, caption, first.panels, first.key, at="epoch", view=first.name, others=tuple(others))


def _by_label(rows: StudyRows, split: str) -> list[FigureView]:
    """A panel per component and label, all on one axis."""
    found = _against(rows, "attack", split, rows.labels)
    views = [arranged(rows, curves)[0] for _, curves in found]
    names = [study_words.label_name(label) for label in rows.labels if rows.curves("attack", split, label=label)]
    beside = [p.titled(f"{p.title}, {name}") for v, name in zip(views, names, strict=True) for p in v.panels]
    return [FigureView(BY_LABEL, tuple(beside), views[0].key)]


def freezing(rows: StudyRows) -> Iterable[Figure]:
    """Figures 11 and 12."""
    for number, split in ((11, "train"), (12, "valid")):
        for points, curves in _against(rows, "freeze", split, [None]):
            caption = "Loss per epoch while one site keeps its initial weights."
            caption += _caption(rows, "freeze", split, None, points, curves)
            names = (f"fig{number}-freeze-{split}", f"Figure {number}", f"Freezing: {SPLIT[split]} loss")
            yield _figure(names, caption, arranged(rows, curves))


def baseline(rows: StudyRows) -> Iterable[Figure]:
    """Figure 7, with the loss of word frequencies alone."""
    looks = (
        ("train", "train", render.INK, ()),
        ("valid", "validation", render.INK, (7, 3)),
        ("train_running", "in training", render.SOFT, (2, 2)),
    )
    panels: list[Panel] = []
    shown: list[CurveLine] = []
    runs = rows.runs.filter(pl.col("edit") == "none")
    lost, over = runs.filter(pl.col("status") == "diverged").height, False
    for name, title, unit in (("loss_nats", "Loss", LOSS), ("accuracy", "Accuracy", SHARE)):
        said = {
            n: Measure(f"{n} {title.lower()}" if n != "in training" else f"{title.lower()} {n}", unit)
            for _, n, *_ in looks
        }
        lines = [
            CurveLine(n, c, d, tuple(of_runs(rows.curves("none", split, name), said[n]))) for split, n, c, d in looks
        ]
        lines = [line for line in lines if line.series]
        start = [s.values[0] for line in lines for s in line.series if s.at[0] == 0]
        if name == "loss_nats" and lines:
            last = max(line.last for line in lines)
            flat = [p._replace(at=at) for p in rows.measure("unigram_loss_nats", "valid") for at in (0.0, last)]
            known = tuple(of_runs(flat, Measure("unigram loss, validation", unit)))
            lines += [CurveLine("unigram", render.OTHER.colour, (1, 3), known)] if known else []
        if lines:
            values = [v for line in lines for s in line.series for v in s.values]
            axis = around(values, unit, most=max(start) if lost and start and name == "loss_nats" else math.inf)
            over |= axis.outside(values) > 0
            panels.append(curve_panel(title, lines, axis))
            shown += lines
    if panels:
        caption = (
            "The baseline, which nothing was done to. 'train' and 'validation' are measured in evaluation mode, "
            "'in training' with dropout; 'unigram' is what word frequencies alone reach on the validation split. "
            f"{study_words.seeds(rows)}, {words.several(runs.height, 'run')}"
        )
        caption += f"; {lost} diverged{LOST}" if lost else "."
        caption += CUT if over else ""
        yield Figure(
            "fig07-baseline", "Figure 7", "The baseline's curves", caption, tuple(panels), keys(shown), at="epoch"
        )


def midstage(rows: StudyRows) -> Iterable[Figure]:
    """Figure 10."""
    points = rows.measure("midstage_loss_nats", "train")
    if not points:
        return
    final = rows.last("none", "train", "loss_nats")
    ends = (0.0, max(p.at or 0.0 for p in points))
    flat = of_runs([p._replace(at=at) for p in final for at in ends], Measure("final train loss", LOSS))
    start = [p.value for p in rows.curves("none", "train") if p.at == 0]
    axis = around([p.value for p in (*points, *final)], LOSS, most=max(start) if start else math.inf)
    other = CurveLine("final", render.BASELINE, (5, 3), tuple(flat)) if flat else None
    measure = Measure("train loss with that epoch's weights", LOSS)
    views = arranged(rows, Curves(tuple(of_runs(points, measure)), other, axis), meet=True)
    caption = (
        "Train loss of the final model when one site's weights are those of an earlier epoch; grey and dashed is the final loss. "
        f"{study_words.seeds(rows)}, {words.several(len({p.site for p in points}), 'site')}."
    )
    zero = [p for p in points if p.at == 0]
    if zero:
        caption += f" With the initial weights: {study_words.extremes(zero, 'nats', False)}"
    caption += CUT if any(p.value > axis.high for p in points) else ""
    yield _figure(("fig10-midstage", "Figure 10", "Rewinding to mid-stage weights"), caption, views)


def together(points: Sequence[Point]) -> list[Point]:
    """For every site of several parts: its number less the sum of its parts' own, where all of these are there.

    Above 0 the parts stand in for each other: taking both costs more than each taken alone.
    """
    single = {(p.site, p.seed): p for p in points}
    found = []
    for point in points:
        parts = [str(part) for part in Site.parse(point.site).parts()]
        alone = [single.get((part, point.seed)) for part in parts]
        known = [p for p in alone if p is not None]
        if len(parts) > 1 and len(known) == len(parts):
            lost = point.diverged or any(p.diverged for p in known)
            found.append(point._replace(value=point.value - sum(p.value for p in known), diverged=lost))
    return found


def combinations(rows: StudyRows) -> Iterable[Figure]:
    """Sites of several parts against the sum of their single effects, for every method that has both."""
    found = {
        f"Attack on {study_words.label_name(label)}": together(rows.readable(rows.effects("attack", "valid", label)))
        for label in rows.labels
    }
    found["Freezing"] = together(rows.effects("freeze", "valid"))
    found["Mean ablation"] = together(rows.measure("ablate_rise_nats", "valid"))
    found["Rewinding area"] = together(rows.measure("rewind_area", "train"))
    found = {title: points for title, points in found.items() if points}
    if not found:
        return
    every = [p for points in found.values() for p in points]
    caption = (
        "The effect at several components or layers at once minus the sum of the effects at each of them alone, in the same seed. "
        "Above the line they stand in for each other when only one is changed; below it, the second adds little to the first. Attack, "
        f"freezing and ablation: validation loss; rewinding: train loss. {study_words.seeds(rows)}. {_tally(found)}"
        f"{study_words.from_diverged(every)}"
    )
    noun, total = "together minus the sum of the parts", (ZERO._replace(name="the sum"),)
    names = ("combinations", study_words.BEYOND, "Together against the sum of the parts")
    panels = [
        SitePanel(t, ps, Measure(f"{t}: {noun}", "nats", True), axis_of(ps, "nats", bend=True), total)
        for t, ps in found.items()
    ]
    yield site_figure(names, caption, panels)


def _tally(found: dict[str, list[Point]]) -> str:
    said = []
    for title, points in found.items():
        means = by_site(points)
        above, below = (sum(side(mean) == way for mean in means.values()) for way in (1, -1))
        said.append(
            f"{title}: of {words.several(len(means), 'site')}, {above} clear above and {below} clear below the sum"
        )
    return "; ".join(said) + " (95 % intervals, not corrected for how many)."


def heads(rows: StudyRows) -> Iterable[Figure]:
    """Maps of layers by heads, one for each method that was done to single heads."""
    single = rows.heads
    if single is None:
        return
    for label in single.labels:
        title = f"Attack on {study_words.label_name(label)}, by head"
        points = single.effects("attack", "valid", label)
        yield from _map(rows, f"heads-attack-{words.slug(label)}", title, points, "change of the validation loss")
    points = single.effects("freeze", "valid")
    yield from _map(rows, "heads-freeze", "Freezing, by head", points, "change of the validation loss")
    points = single.measure("rewind_area", "train")
    yield from _map(rows, "heads-rewind", "Rewinding area, by head", points, "mean rise of the train loss")


def _map(rows: StudyRows, name: str, title: str, points: Sequence[Point], noun: str) -> Iterable[Figure]:
    cells: dict[str, list[tuple[int, int, float]]] = {}
    clear: dict[str, set[tuple[int, int]]] = {}
    read = by_site(rows.readable(points))
    for site, mean in sorted(by_site(points).items(), key=lambda item: order(item[0])):
        known = Site.parse(site)
        if len(known.layers or ()) != 1 or len(known.heads or ()) != 1:
            continue
        group = "+".join(known.components)
        where = (known.layers or (0,))[0], (known.heads or (0,))[0]
        cells.setdefault(words.GROUP.get(group, group), []).append((*where, mean.mean))
        if site in read and side(mean):
            clear.setdefault(words.GROUP.get(group, group), set()).add(where)
    if not cells:
        return
    most = max(abs(value) for of in cells.values() for *_, value in of) or 1.0
    kept = [mean.mean for site, mean in read.items() if (known := Site.parse(site)).heads and len(known.heads) == 1]
    said = f"Mean over these heads {words.number(interval(kept).mean, True)}. " if kept else ""
    caption = (
        f"The {noun} when one head of one component is edited, nats; a dot where the 95 % interval leaves 0 out. {said}"
        f"The same colours in every panel, {study_words.seeds(rows)}.{study_words.from_collapsed(rows, points)}"
    )
    yield grid(name, study_words.BEYOND, title, caption, cells, "nats", True, (-most, most), clear)


def edit_figures(rows: StudyRows) -> Iterable[Figure]:
    """A figure for each kind, both losses of each of its settings, as differences to the baseline of the same seed."""
    found = [kind for kind in rows.runs["edit"].unique(maintain_order=True) if kind != "none"]
    for kind in (kind for kind in found if not kind_of(kind).own_page):
        panels = [
            change_panel(f"{name}: {SPLIT[split]} loss", points, split, "change")
            for split in ("valid", "train")
            for name, points in _by_settings(rows.effects(kind, split)).items()
        ]
        if panels:
            caption = (
                f"Difference to the baseline of the same seed, at the last epoch, of runs with the edit {kind}. "
                f"{study_words.seeds(rows)}.{study_words.from_diverged([p for one in panels for p in one.points])}"
            )
            yield site_figure((f"edit-{words.slug(kind)}", study_words.BEYOND, kind_of(kind).title), caption, panels)


def _by_settings(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Points by what their runs' names say before the site: the kind and its settings."""
    found: dict[str, list[Point]] = {}
    for point in points:
        name = point.run.rsplit("-", 2)[0].removesuffix(f"-{point.site}")
        found.setdefault(name, []).append(point)
    return found
