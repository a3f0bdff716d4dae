"""Every figure of the report, drawn from the tables: the answer, the sources' figures 3 to 12, and extras."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import altair as alt
import polars as pl

from trisect.claims.verdicts import CONTROLS
from trisect.core.edits import kind_of
from trisect.core.finding import Estimate, Finding
from trisect.core.site import Site
from trisect.core.study_data import StudyAbout
from trisect.experiments.study import removal
from trisect.experiments.study import words as study_words
from trisect.experiments.study.removal import baselines
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report import render
from trisect.report.cards import NAMES, tallied, tally_survival
from trisect.report.charts import (
    ZERO,
    CurveLine,
    Figure,
    FigureView,
    LegendEntry,
    Level,
    Measure,
    Panel,
    Series,
    SharedAxis,
    around,
    curve_panel,
    heat_panel,
    of_runs,
)
from trisect.report.format import Mean, Point, by_site, interval, order, place, side
from trisect.report.maps import grid
from trisect.report.measures import SitePanel, axis_of, change_panel, groups_of, site_figure, with_means

LOSS, SHARE = "nats per token", "share of tokens"
NUMBERS = {("pos", "train"): 3, ("pos", "valid"): 4, ("dep", "train"): 5, ("dep", "valid"): 6}
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


def _arranged(rows: StudyRows, curves: Curves, meet: bool = False) -> tuple[FigureView, FigureView]:
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
        return FigureView(name, drawn, _keys([*(one for _, mine in lines for one in mine), *first]))

    components = [(words.GROUP.get(g, g), [s for s in sites if place(s).group == g]) for g in groups]
    layers = [(_layer(mine[0]), mine) for depth in deep if (mine := [s for s in sites if place(s).layers == depth])]
    return view(BY_COMPONENT, components, by_layer), view(BY_LAYER, layers, by_component)


def _layer(site: str) -> str:
    return f"{'layer' if place(site).single else 'layers'} {place(site).layers}"


def _keys(lines: Iterable[CurveLine]) -> tuple[LegendEntry, ...]:
    """Each name once, in the order of appearance."""
    return tuple({line.name: line.key for line in lines}.values())


def _against(rows: StudyRows, edit: str, split: str, labels: Sequence[str | None]) -> list[tuple[list[Point], Curves]]:
    """Loss curves of one experiment with each label beside the baseline's, on one axis; those without rows are left out."""
    measure = Measure(f"{study_words.SPLIT[split]} loss", LOSS)
    kept = [points for label in labels if (points := rows.curves(edit, split, label=label))]
    last = max((p.at or 0 for points in kept for p in points), default=0)
    base = [p for p in rows.curves("none", split) if (p.at or 0) <= last]
    start = [p.value for p in base if p.at == 0]
    values = [p.value for points in (*kept, base) for p in points]
    axis = around(values, LOSS, most=max(start) if start else math.inf)
    other = CurveLine("baseline", render.BASELINE, (5, 3), tuple(of_runs(base, measure))) if base else None
    alive = [{p.site for p in ps if p.run not in rows.collapsed} for ps in kept]
    return [
        (ps, Curves(tuple(of_runs(ps, measure)), other, axis, frozenset({p.site for p in ps} - own)))
        for ps, own in zip(kept, alive, strict=True)
    ]


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


def _attacks(rows: StudyRows) -> Iterable[Figure]:
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
            views = _arranged(rows, curves)
            if label == first_label and len(rows.labels) > 1:
                views = (*views, *_by_label(rows, split))
            caption = f"Loss per epoch while an adversary at one site is fought with λ = {rows.strength:g}."
            caption += _caption(rows, "attack", split, label, points, curves)
            title = f"Attack on {study_words.label_name(label)}: {study_words.SPLIT[split]} loss"
            name = f"{stem}attack-{words.slug(label)}-{split}"
            yield _curves((name, f"Figure {number}" if number else study_words.BEYOND, title), caption, views)


def _curves(names: tuple[str, str, str], caption: str, views: Sequence[FigureView]) -> Figure:
    """Curves over epochs, in the first arrangement and the others."""
    first, *others = views
    return Figure(*names, caption, first.panels, first.key, at="epoch", view=first.name, others=tuple(others))


def _by_label(rows: StudyRows, split: str) -> list[FigureView]:
    """A panel per component and label, all on one axis."""
    found = _against(rows, "attack", split, rows.labels)
    views = [_arranged(rows, curves)[0] for _, curves in found]
    names = [study_words.label_name(label) for label in rows.labels if rows.curves("attack", split, label=label)]
    beside = [p.titled(f"{p.title}, {name}") for v, name in zip(views, names, strict=True) for p in v.panels]
    return [FigureView(BY_LABEL, tuple(beside), views[0].key)]


def _freezing(rows: StudyRows) -> Iterable[Figure]:
    """Figures 11 and 12."""
    for number, split in ((11, "train"), (12, "valid")):
        for points, curves in _against(rows, "freeze", split, [None]):
            caption = "Loss per epoch while one site keeps its initial weights."
            caption += _caption(rows, "freeze", split, None, points, curves)
            names = (f"fig{number}-freeze-{split}", f"Figure {number}", f"Freezing: {study_words.SPLIT[split]} loss")
            yield _curves(names, caption, _arranged(rows, curves))


def _baseline(rows: StudyRows) -> Iterable[Figure]:
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
            "fig07-baseline", "Figure 7", "The baseline's curves", caption, tuple(panels), _keys(shown), at="epoch"
        )


def _midstage(rows: StudyRows) -> Iterable[Figure]:
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
    views = _arranged(rows, Curves(tuple(of_runs(points, measure)), other, axis), meet=True)
    caption = (
        "Train loss of the final model when one site's weights are those of an earlier epoch; grey and dashed is the final loss. "
        f"{study_words.seeds(rows)}, {words.several(len({p.site for p in points}), 'site')}."
    )
    zero = [p for p in points if p.at == 0]
    if zero:
        caption += f" With the initial weights: {study_words.extremes(zero, 'nats', False)}"
    caption += CUT if any(p.value > axis.high for p in points) else ""
    yield _curves(("fig10-midstage", "Figure 10", "Rewinding to mid-stage weights"), caption, views)


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


def _combinations(rows: StudyRows) -> Iterable[Figure]:
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


def _heads(rows: StudyRows) -> Iterable[Figure]:
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


def _edit_figures(rows: StudyRows) -> Iterable[Figure]:
    """A figure for each kind, both losses of each of its settings, as differences to the baseline of the same seed."""
    found = [kind for kind in rows.runs["edit"].unique(maintain_order=True) if kind != "none"]
    for kind in (kind for kind in found if not kind_of(kind).own_page):
        panels = [
            change_panel(f"{name}: {study_words.SPLIT[split]} loss", points, split, "change")
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


HOW = {
    "control": "Control labels are drawn by chance, one for each word type.",
    "bounded": "The bounded attack pushes the adversary's output towards the label prior, so that its loss has a floor.",
    "site": "Gradient limited to this projection: the attack trains no weights but the site's own projection.",
    "bounded+site": "One attack is both: bounded, with its gradient limited to this projection.",
}
WITH = {
    "control": "control labels",
    "bounded": "the bounded attack",
    "site": "the attack that reaches one projection",
    "bounded+site": "the bounded attack that reaches one projection",
}


def control_findings(rows: StudyRows) -> Iterator[Finding]:
    """What is left of attacks when each control is subtracted, by label; then which claims survive each control."""
    for label in rows.controlled:
        found = _beside(rows, label, "valid")
        for control, points in _differences(rows, found).items():
            yield _left(label, control, points, study_words.from_collapsed(rows, _both(found, control), paired=True))
        for control in _unread(rows, found):
            noun, less = study_words.label_name(label), f"{study_words.VALID}, minus that by {WITH[control]}"
            said = f"{noun}, {less}: {study_words.NOTHING}{study_words.from_collapsed(rows, _both(found, control), paired=True)}"
            yield Finding("control", said, "nats", title="Controls", what=f"{noun}, {less}", groups=(label, control))
    for control, sorts in tally_survival(rows.controls).items():
        counts = tuple(Estimate(reading, len(found)) for reading, found in sorts.items())
        said = f"whether claims about attacks survive. {tallied(control, sorts)}"
        yield Finding("survival", said, "claims", counts, title="Controls", groups=(control,))


def _left(label: str, control: str, points: Sequence[Point], fell: str) -> Finding:
    """The attack on one label less one control, by component and over all sites that have both."""
    noun, over = study_words.label_name(label), _over_sites(points)
    layers = words.listed(sorted({place(p.site).layers for p in points}))
    less = f"{study_words.VALID}, minus that by {WITH[control]}"
    return Finding(
        "control",
        f"{noun}, {less}, mean over the same sites: {words.spoken(over, 'nats')}.{fell}",
        "nats",
        (*study_words.estimates(points), Estimate("all", *over)),
        "",
        title="Controls",
        what=f"{noun}, {less}, at layer{'s' * (' ' in layers)} {layers}, mean over layers",
        groups=(label, control),
        per="seed",
    )


def control_figures(rows: StudyRows) -> Iterable[Figure]:
    """The sites that have controls, attacked plainly and with each control, on both splits."""
    for label in rows.controlled:
        for split in ("valid", "train"):
            found = _beside(rows, label, split)
            if len(found) > 1:
                yield _figure(rows, label, split, found)


def _beside(rows: StudyRows, label: str, split: str) -> dict[str, list[Point]]:
    """Effects by the panel's title: the plain attack at the sites that have a control, and every control."""
    controls = {NAMES[c]: rows.effects("attack", split, label, variant=c) for c in CONTROLS}
    controls = {name: points for name, points in controls.items() if points}
    sites = {p.site for points in controls.values() for p in points}
    plain = [p for p in rows.effects("attack", split, label) if p.site in sites]
    return ({"Attack": plain} if plain else {}) | controls


def _figure(rows: StudyRows, label: str, split: str, found: Mapping[str, Sequence[Point]]) -> Figure:
    every = [p for points in found.values() for p in points]
    axis = axis_of(every, f"nats, {split}", bend=True)
    noun = f"change of {study_words.SPLIT[split]} loss"
    less = _less(rows, found)
    less = f" Attack minus control, mean over sites: {less}." if less else ""
    how = " ".join(HOW[c] for c in CONTROLS if NAMES[c] in found)
    caption = (
        f"Difference of the {study_words.SPLIT[split]} loss to the baseline of the same seed, at the last epoch, when "
        f"{study_words.label_name(label)} of the next word is attacked, and with each control. {how} {study_words.seeds(rows)}, "
        f"{words.several(len({p.site for p in every}), 'site')}.{less}{_distance(rows, label)}"
        f"{study_words.from_collapsed(rows, every, paired=True)}{study_words.from_diverged(every)}"
    )
    title = f"Attack on {study_words.label_name(label)} and its controls: {study_words.SPLIT[split]} loss"
    name = f"controls-{words.slug(label)}-{split}"
    panels = [change_panel(n, ps, split, noun, axis) for n, ps in found.items()]
    return site_figure((name, study_words.BEYOND, title), caption, panels)


def _differences(rows: StudyRows, found: Mapping[str, Sequence[Point]]) -> dict[str, list[Point]]:
    """The attack less each control, paired by site and seed, of the layers where no run of either collapsed."""
    plain = {(p.site, p.seed): p.value for p in rows.comparable(found.get("Attack", ()))}
    less = {
        control: [p._replace(value=plain[p.site, p.seed] - p.value) for p in points if (p.site, p.seed) in plain]
        for control in CONTROLS
        if (points := rows.comparable(found.get(NAMES[control], ())))
    }
    return {control: points for control, points in less.items() if points}


def _both(found: Mapping[str, Sequence[Point]], control: str) -> list[Point]:
    """The attack's points and a control's."""
    return [*found.get("Attack", ()), *found.get(NAMES[control], ())]


def _unread(rows: StudyRows, found: Mapping[str, Sequence[Point]]) -> list[str]:
    """The controls that have sites with the attack, and none where no run of either collapsed."""
    attacked, compared = {(p.site, p.seed) for p in found.get("Attack", ())}, _differences(rows, found)
    return [
        control
        for control in CONTROLS
        if control not in compared and any((p.site, p.seed) in attacked for p in found.get(NAMES[control], ()))
    ]


def _over_sites(points: Sequence[Point]) -> Mean:
    """The mean over sites within each seed, then over seeds."""
    seeds: dict[int, list[float]] = {}
    for point in points:
        seeds.setdefault(point.seed, []).append(point.value)
    return interval([sum(values) / len(values) for values in seeds.values()])


def _less(rows: StudyRows, found: Mapping[str, Sequence[Point]]) -> str:
    """The attack less each control in words, mean over the sites that have both."""
    said = [
        f"{NAMES[control].lower()} {words.spoken(_over_sites(points), 'nats')}"
        for control, points in _differences(rows, found).items()
    ]
    return "; ".join([*said, *(f"{NAMES[control].lower()} not read" for control in _unread(rows, found))])


def _distance(rows: StudyRows, label: str) -> str:
    """How far the control labels' distribution over tokens is from the labels' own."""
    test = rows.chosen("attack", label, variant="control") & (pl.col("name") == "control_distance")
    found = rows.metrics.filter(test)["value"].to_list()
    if not found:
        return ""
    return f" Control labels and labels are at most {words.number(max(found))} apart in total variation, over tokens."


BITS = "probe_linear_bits"
CONTROL_BITS = "probe_linear_control_bits"
HALF = 0.5  # of the bits that the baseline has: where attacks are compared that have no control


class Dose(NamedTuple):
    """One run under attack: the bits that a fresh probe no longer finds at its site, and the rise of the validation loss."""

    bits: float
    nats: float


DoseCurves = Mapping[tuple[str, int], Sequence[Dose]]  # site and seed -> doses, fewest bits first


def doses(rows: StudyRows, label: str, variant: str = "plain") -> DoseCurves:
    """Every strength of one kind of attack by site and seed; collapsed and diverged runs and what removed nothing are left out.

    The bits are those of the label that was attacked: of a control, of the label that each word type drew by chance.
    """
    measure = CONTROL_BITS if "control" in variant.split("+") else BITS
    before = {(p.site, p.seed): p.value for p in rows.measure(measure, "valid", label, baselines(rows))}
    after = {(p.site, p.run): p.value for p in rows.measure(measure, "valid", label)}
    found: dict[tuple[str, int], list[Dose]] = {}
    for strength in rows.strengths_of(variant):
        for point in rows.effects("attack", "valid", label, strength, variant=variant):
            key, left = (point.site, point.seed), after.get((point.site, point.run))
            if left is None or key not in before or point.diverged or point.run in rows.collapsed:
                continue
            if before[key] - left > 0:
                found.setdefault(key, []).append(Dose(before[key] - left, point.value))
    return {key: sorted(of) for key, of in found.items()}


def cost_at(curve: Sequence[Dose], bits: float) -> float | None:
    """The rise of the loss where so many bits are removed: linear between doses, from nothing at 0; null beyond the last."""
    last = Dose(0.0, 0.0)
    for dose in curve:
        if dose.bits >= bits:
            share = (bits - last.bits) / (dose.bits - last.bits) if dose.bits > last.bits else 1.0
            return last.nats + share * (dose.nats - last.nats)
        last = dose
    return None


class Reached(NamedTuple):
    """The sites that every seed has, and how many sites were attacked: a mean over others would be over unlike sites."""

    points: list[Point]
    sites: int

    @property
    def words(self) -> str:
        """At how many of the attacked sites every seed has the number."""
        return f"{len({p.site for p in self.points})} of {words.several(self.sites, 'site')}"


def against_control(rows: StudyRows, label: str, variant: str = "plain") -> Reached:
    """Attack minus control labels at equal bits removed: in each seed at the most bits that both of them remove there."""
    attack, control = (
        doses(rows, label, variant),
        doses(rows, label, "control" if variant == "plain" else f"control+{variant}"),
    )
    return _in_every_seed(rows, label, variant, _compared(attack, control))


def at_half(rows: StudyRows, label: str, variant: str = "plain") -> Reached:
    """The rise of the loss where half of the bits that the baseline has at the site are removed."""
    before = {(p.site, p.seed): p.value for p in rows.measure(BITS, "valid", label, baselines(rows))}
    found = {key: cost_at(curve, HALF * before[key]) for key, curve in doses(rows, label, variant).items()}
    points = [Point(site, seed, cost) for (site, seed), cost in sorted(found.items()) if cost is not None]
    return _in_every_seed(rows, label, variant, points)


def _in_every_seed(rows: StudyRows, label: str, variant: str, points: Sequence[Point]) -> Reached:
    """Only sites where no attacked seed is missing: else seeds would be means over different layers."""
    attacked: dict[str, set[int]] = {}
    for strength in rows.strengths_of(variant):
        for point in rows.effects("attack", "valid", label, strength, variant=variant):
            attacked.setdefault(point.site, set()).add(point.seed)
    has = {site: {p.seed for p in points if p.site == site} for site in attacked}
    return Reached([p for p in points if has.get(p.site) == attacked.get(p.site)], len(attacked))


def _compared(attack: DoseCurves, control: DoseCurves) -> list[Point]:
    found = []
    for key in sorted(set(attack) & set(control)):
        bits = min(attack[key][-1].bits, control[key][-1].bits)
        own, other = (cost_at(of[key], bits) for of in (attack, control))
        if own is not None and other is not None:
            found.append(Point(*key, own - other))
    return found


def dose_figures(rows: StudyRows) -> Iterable[Figure]:
    """For each label that was attacked and probed: the cost of half its bits, and attack minus control at equal bits."""
    for label in rows.labels:
        panels = {
            "Half of the bits removed": at_half(rows, label),
            "Attack minus control": against_control(rows, label),
        }
        found = {title: one.points for title, one in panels.items() if one.points}
        if not found:
            continue
        reached = "; ".join(f"{title}: every seed at {one.words}" for title, one in panels.items())
        noun, measured = study_words.label_name(label), "change of the validation loss"
        caption = (
            f"Attacks on {noun} compared at equal bits removed, not at equal λ. Bits are what a fresh linear probe no longer finds at the "
            "attacked site on held-out tokens; between the strengths that were run the loss is interpolated, from no change at 0 bits. "
            "Half of the bits: of those that the baseline of the same seed has there. Attack minus control: the control removes as "
            "many bits of labels that each word type drew by chance, in each seed the most that both remove. Collapsed runs are left "
            f"out, and so are sites that some seed does not reach ({reached}). {study_words.seeds(rows)}."
        )
        names = (f"attack-{words.slug(label)}-dose", study_words.BEYOND, f"Attacks on {noun} at equal bits removed")
        yield site_figure(names, caption, [change_panel(t, ps, "valid", measured) for t, ps in found.items()])


def dose_findings(rows: StudyRows) -> Iterator[Finding]:
    """For each label the attack minus its control, where both remove as much."""
    for label in rows.labels:
        reached = against_control(rows, label)
        if points := reached.points:
            noun = study_words.label_name(label)
            said = f"attack on {noun} minus its control labels at equal bits removed ({reached.words}), change of the validation loss,"
            what = "change of the validation loss, attack minus control labels at equal bits removed"
            yield study_words.finding(rows, "dose", "Equal bits", said, points, "nats", what, label, ranks=False)


MEASURES = {
    "attack": lambda title: Measure(f"{title}: change of validation loss", "nats", True),
    "freeze": lambda title: Measure(f"{title}: change of validation loss", "nats", True),
    "ablate": lambda title: Measure(f"{title}: rise of validation loss", "nats", True),
    "criticality": lambda title: Measure(title, "α"),
    "area": lambda title: Measure(f"{title}: mean rise of train loss", "nats", True),
}


def draw(tables: Mapping[str, pl.DataFrame], about: StudyAbout) -> dict[str, alt.ConcatChart]:
    """Charts by name: `answer`, `fig03-attack-pos-train`, …; those without rows are left out.

    `tables` holds runs, metrics, sites and claims by the schemas of core.tables; `about` is the study's description.
    """
    return {figure.name: figure.chart() for figure in collect(StudyRows.of(tables, about))}


def collect(rows: StudyRows) -> list[Figure]:
    """Every figure that the rows can fill, in the order of the page."""
    makers: list[Callable[[StudyRows], Iterable[Figure]]] = [
        _answer, _attacks, _baseline, _heat, _criticality, _midstage, _freezing, _adversary, _strengths, _combinations,
        _heads, control_figures, dose_figures, removal.removal_figures, removal.head_figures, removal.tying_figures,
        _edit_figures,
    ]  # fmt: skip
    return [figure for maker in makers for figure in maker(rows)]


def _answer(rows: StudyRows) -> Iterable[Figure]:
    items = study_words.methods(rows)
    if not items:
        return
    frames: dict[str, SharedAxis] = {}
    for kind in dict.fromkeys(item.kind for item in items):
        values = [p.value for item in items if item.kind == kind for p in with_means(item.points)]
        if kind == "criticality":
            frames[kind] = SharedAxis("α", -0.04, 1.04)
        else:
            unit = "nats, valid" if kind in study_words.SIGNED else "nats, train"
            frames[kind] = around(values, unit, zero=True, bend=True)
    panels = [
        SitePanel(
            one.title,
            one.points,
            MEASURES[one.kind](one.title),
            frames[one.kind],
            (ZERO,) * (one.kind != "criticality"),
        )
        for one in items
    ]
    bent = [one.title for one in items if frames[one.kind].linear is not None]
    points = [p for item in items for p in item.points]
    marks = "Marks are the one seed's values."
    if len(rows.seeds) > 1:
        marks = "Marks are means over seeds, bars 95 % intervals (Student t), small open marks single seeds."
    caption = (
        f"What happens when one site is edited; the horizontal axis is the layer. {marks} Attack and freezing: difference "
        "of the validation loss to the baseline of the same seed, at the last epoch; mean ablation: rise of the baseline's own. "
        "Criticality, areas: on the train split."
        f"{study_words.attacked(rows)} {study_words.seeds(rows)}, {words.several(len({p.site for p in points}), 'site')}."
        f"{study_words.from_collapsed(rows, points)}{study_words.from_diverged(points)}"
    )
    if bent:
        caption += f" The axis of {words.listed(bent)} is linear near zero and logarithmic beyond, since effects differ so much in size."
    yield site_figure(("answer", "", "The answer in one picture"), caption, panels)


def _heat(rows: StudyRows) -> Iterable[Figure]:
    points = rows.measure("rewind_loss_nats", "train")
    if not points:
        return
    means: dict[tuple[str, float | None], list[float]] = {}
    for p in points:
        means.setdefault((p.site, p.at), []).append(p.value)
    values = [sum(v) / len(v) for v in means.values()]
    low, high = min(values), max(values)
    panels = tuple(
        heat_panel(
            words.GROUP.get(g, g),
            [p for p in points if place(p.site).group == g],
            low,
            high,
            Measure("train loss", LOSS),
        )
        for g in groups_of(points)
    )
    caption = (
        "Train loss with one site's weights on the straight line between their initial (α = 0) and final (α = 1) values, all else "
        f"final; mean over seeds, the same colours in every panel. {study_words.seeds(rows)}, {len({p.at for p in points})} values of α, "
        f"{words.several(len({p.site for p in points}), 'site')}."
    )
    start = [p for p in points if p.at == 0]
    if start:
        caption += f" Loss at α = 0: {study_words.extremes(start, 'nats', False)}"
    yield Figure("fig08-rewind-heat", "Figure 8", "Convex rewinding", caption, panels, (), (low, high, LOSS), at="α")


def _criticality(rows: StudyRows) -> Iterable[Figure]:
    last, first = rows.measure("criticality", "train"), rows.measure("criticality_first", "train")
    if not last:
        return
    unit = SharedAxis("α", -0.04, 1.04)
    panels = [SitePanel("Criticality", last, MEASURES["criticality"]("Criticality"), unit, ())]
    early = {(p.site, p.seed): p.value for p in first}
    differ = sorted({p.site for p in last if early.get((p.site, p.seed), p.value) != p.value}, key=order)
    if differ:
        other = "The other reading"
        panels.append(SitePanel(other, first, MEASURES["criticality"](other), unit, ()))
    epsilon = ((rows.about.get("experiment") or {}).get("rewind") or {}).get("epsilon", 0.01)
    caption = (
        f"The smallest α from which on the train loss stays within {100 * epsilon:g} % of the final loss: "
        f"{study_words.extremes(last, '', False)} {study_words.seeds(rows)}. "
    )
    if not first:
        caption += "The other reading, the smallest α that is within the tolerance at all, was not measured."
    elif differ:
        caption += (
            f"The other reading, the smallest α that is within the tolerance at all, differs at {words.listed(differ)}."
        )
    else:
        caption += (
            "The other reading, the smallest α that is within the tolerance at all, gives the same numbers everywhere."
        )
    area = rows.measure("rewind_area", "train")
    if area:
        panels.append(SitePanel("Area", area, MEASURES["area"]("Area"), axis_of(area, "nats")))
        caption += " The area, the mean rise of the train loss over α, needs no tolerance."
    yield site_figure(("fig09-criticality", "Figure 9", "Criticality of every site"), caption, panels)


def _adversary(rows: StudyRows) -> Iterable[Figure]:
    found = [(label, rows.last("attack", "valid", "adversary_accuracy", label)) for label in rows.labels]
    found = [(label, points) for label, points in found if points]
    if not found:
        return
    axis = SharedAxis(SHARE, 0.0, 1.0)
    nouns = {label: study_words.label_name(label) for label, _ in found}
    panels = [
        SitePanel(
            f"Predicting {nouns[label]}",
            points,
            Measure(f"adversary's accuracy on {nouns[label]}", SHARE),
            axis,
            _majority(rows, label),
        )
        for label, points in found
    ]
    caption = (
        "How often the adversary names the label of the next word rightly at the last epoch, on the validation split: what the attack left "
        f"for this adversary to find, which is not all that is there.{study_words.attacked(rows)} {study_words.seeds(rows)}."
    )
    yield site_figure(("adversary", study_words.BEYOND, "The adversary's accuracy"), caption, panels)


def _majority(rows: StudyRows, label: str) -> tuple[Level, ...]:
    """How often the commonest label is right on the validation split, as a level to compare with; empty without rows."""
    found = rows.measure(f"majority_accuracy_{label}", "valid")
    if not found and len(rows.labels) == 1:
        found = rows.measure("majority_accuracy", "valid")
    return (Level("commonest label", interval([p.value for p in found]).mean),) if found else ()


def _strengths(rows: StudyRows) -> Iterable[Figure]:
    if len(rows.strengths) < 2:
        return
    for label in rows.labels:
        found = [(s, rows.effects("attack", "valid", label, s)) for s in rows.strengths]
        found = [(s, points) for s, points in found if points]
        points = [p for _, ps in found for p in ps]
        if not points:
            continue
        axis = around([p.value for p in points], "nats, valid", zero=True, bend=True)
        name = f"Attack on {study_words.label_name(label)}"
        panels = [SitePanel(f"λ = {s:g}", ps, MEASURES["attack"](f"{name}, λ = {s:g}"), axis) for s, ps in found]
        caption = (
            "Difference of the validation loss to the baseline of the same seed, at the last epoch, "
            f"by strength of the attack. {study_words.seeds(rows)}.{study_words.from_collapsed(rows, points)}"
        )
        names = (f"attack-{words.slug(label)}-strengths", study_words.BEYOND, f"{name} by strength")
        yield site_figure(names, caption, panels)
