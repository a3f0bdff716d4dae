"""All figures of the report, from the tables: the answer, the sources' figures 3 to 12, and more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from trisect.claims.verdicts import CONTROLS
from trisect.core.edits import kind_of
from trisect.core.finding import Estimate, Finding
from trisect.core.site import Site
from trisect.experiments.study import removal
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import ATTACKED, PLAIN, StudyRows, average, minus, over_seeds, sort_labels
from trisect.experiments.study.words import BEYOND, SPLIT, VALID, Method, extremes, label_name, seeds
from trisect.report import charts, render
from trisect.report import format as words
from trisect.report.cards import NAMES, survival_sentence, tally_survival
from trisect.report.format import Point, by_site, interval, order, quantity, side, site_position
from trisect.report.maps import grid
from trisect.report.measures import SitePanel, axis_of, groups_of, site_figure, site_panels, with_means

LOSS, SHARE = "nats per token", "share of tokens"
ALPHA = charts.SharedAxis("α", -0.04, 1.04)
NUMBERS: dict[tuple[str | None, str], int] = {  # of figures by label, which freezing has none of
    ("pos", "train"): 3,
    ("pos", "valid"): 4,
    ("dep", "train"): 5,
    ("dep", "valid"): 6,
    (None, "train"): 11,
    (None, "valid"): 12,
}
LOST_SEEDS_WORDS = ", and the bold line stops where the first seed is lost."
CUT_CURVES_WORDS = " Curves are cut above the loss at initialisation."


def collect(rows: StudyRows) -> list[charts.Figure]:
    """Every figure that has rows, in the order of the page."""
    attack = f"Loss per epoch while an adversary at one site is fought with λ = {rows.strength or 0:g}."
    return [
        *_answer(rows),
        *_training_curves(rows, "attack", rows.labels, attack),
        *_baseline(rows),
        *_heat(rows),
        *_criticality(rows),
        *_midstage(rows),
        *_training_curves(rows, "freeze", [None], "Loss per epoch while one site keeps its initial weights."),
        *_adversary(rows),
        *_strengths(rows),
        *_combinations(rows),
        *_heads(rows),
        *control_figures(rows),
        *_doses(rows),
        *removal.removal_figures(rows),
        *removal.head_figures(rows),
        *removal.tying_figures(rows),
        *_edits(rows),
    ]


def depth_colours(rows: StudyRows, dark: bool = False) -> dict[str, str]:
    """Colours of edited sites by layer, from layer 1 to the deepest layer of the study."""
    depths = {site: site_position(site).depth for site in rows.edit_sites}
    deepest = max([depth for depth in depths.values() if depth != math.inf], default=1.0)
    shares = {s: 0.5 if depth == math.inf else (depth - 1) / max(1.0, deepest - 1) for s, depth in depths.items()}
    return {site: render.layer_colour(share, dark=dark) for site, share in shares.items()}


class _Curves(NamedTuple):
    """The curves of an experiment by site, with the baseline's, on one axis."""

    edited: tuple[charts.Series, ...]
    baseline: charts.CurveLine | None
    axis: charts.SharedAxis
    collapsed: frozenset[str] = frozenset()  # sites where every run collapsed: drawn grey


def _arrange(rows: StudyRows, curves: _Curves, list_names: bool = False) -> tuple[charts.FigureView, charts.FigureView]:
    """The same curves with a panel per component, and with a panel per layer."""
    colours, sites = depth_colours(rows), sorted({s.site for s in curves.edited}, key=order)
    depths = list(dict.fromkeys(site_position(s).layers for s in sorted(sites, key=lambda s: order(s)[:3])))
    groups = groups_of(Point(site, 0, 0.0) for site in sites)

    def layer(site: str) -> str:
        return f"{'layer' if site_position(site).single else 'layers'} {site_position(site).layers}"

    def line(site: str, by: str) -> charts.CurveLine:
        position, series = site_position(site), tuple(s for s in curves.edited if s.site == site)
        mark, dash, name = render.mark(position.group), (), position.group
        if by == "component":
            mark = render.Mark(colours[site], render.layer_shape(depths.index(position.layers)))
            dash, name = () if position.single else (8, 2), layer(site)
        colour = render.BASELINE if site in curves.collapsed else mark.colour
        return charts.CurveLine(name, colour, dash, series, mark.shape)

    def view(by: str, panels: Mapping[str, list[str]]) -> charts.FigureView:
        lines = {title: [line(site, by) for site in members] for title, members in panels.items()}
        first = [curves.baseline] if curves.baseline else []
        shown = (
            charts.curve_panel(title, [*first, *rest], curves.axis, list_names=list_names)
            for title, rest in lines.items()
        )
        return charts.FigureView(by, tuple(shown), _keys([*itertools.chain(*lines.values()), *first]))

    layers = [[s for s in sites if site_position(s).layers == depth] for depth in depths]
    return (
        view("component", {words.GROUP.get(g, g): [s for s in sites if site_position(s).group == g] for g in groups}),
        view("layer", {layer(members[0]): members for members in layers}),
    )


def _keys(lines: Iterable[charts.CurveLine]) -> tuple[charts.LegendEntry, ...]:
    """Distinct names, in order of appearance."""
    return tuple({line.name: line.key for line in lines}.values())


def _curve_figure(names: tuple[str, str, str], caption: str, views: Sequence[charts.FigureView]) -> charts.Figure:
    """Curves over epochs, with several arrangements."""
    first, *others = views
    return charts.Figure(*names, caption, first.panels, first.legend, None, "epoch", first.name, tuple(others))


def _against(rows: StudyRows, edit: str, split: str, labels: Sequence[str | None]) -> dict[str | None, _Curves]:
    """Loss curves of one experiment by label beside the baseline's, on one axis; labels without rows are left out."""
    measure = charts.Measure(f"{SPLIT[split]} loss", LOSS)
    points_of = {label: points for label in labels if (points := rows.curves(edit, split, label=label))}
    last = max((p.at or 0 for points in points_of.values() for p in points), default=0)
    base = [p for p in rows.curves("none", split) if (p.at or 0) <= last]
    values = [p.value for points in (*points_of.values(), base) for p in points]
    axis = charts.axis_for(values, LOSS, ceiling=max((p.value for p in base if p.at == 0), default=math.inf))
    runs = tuple(charts.of_runs(base, measure))
    other = charts.CurveLine("baseline", render.BASELINE, (5, 3), runs) if runs else None
    curves = {}
    for label, points in points_of.items():
        alive = {p.site for p in points if p.run not in rows.collapses}
        collapsed = frozenset({p.site for p in points} - alive)
        curves[label] = _Curves(tuple(charts.of_runs(points, measure)), other, axis, collapsed)
    return curves


def _training_curves(rows: StudyRows, edit: str, labels: Sequence[str | None], start: str) -> Iterator[charts.Figure]:
    """Loss curves of one experiment by label; the first label's can be shown beside the others'."""
    for label in labels:
        for split, noun in SPLIT.items():
            curves = _against(rows, edit, split, [label]).get(label)
            if curves is None:
                continue
            views = [*_arrange(rows, curves)]
            if label == labels[0] and len(labels) > 1:  # a panel per component and label, all on one axis
                beside = {base: _arrange(rows, every)[0] for base, every in _against(rows, edit, split, labels).items()}
                named = [(label_name(base or ""), panel) for base, view in beside.items() for panel in view.panels]
                panels = [panel.with_title(f"{panel.title}, {name}") for name, panel in named]
                views.append(charts.FigureView("label", tuple(panels), beside[label].legend))
            runs, base = {(s.site, s.seed) for s in curves.edited}, curves.baseline.series if curves.baseline else ()
            effects = rows.readable(rows.effects(edit, split, label))
            caption = start
            caption += f" Against the baseline, at the last epoch: {extremes(effects, 'nats')}" if effects else ""
            caption += f" {seeds(rows)}, {quantity(len(runs), 'run')} at {quantity(len({s for s, _ in runs}), 'site')}"
            diverged = len({(s.site, s.seed) for s in curves.edited if s.diverged})
            caption += f"; {diverged} diverged{LOST_SEEDS_WORDS}" if diverged else "."
            if fell := len({s.run for s in curves.edited} & rows.collapses):
                caption += f" {quantity(fell, 'run')} collapsed, that is, never fell clearly below the unigram loss"
                caption += "; nothing is read from sites where one did"
                caption += "; sites where all did are grey." if curves.collapsed else "."
            if lost := len({s.seed for s in base if s.diverged}):
                caption += f" The baseline diverged in {quantity(lost, 'seed')}."
            caption += (
                CUT_CURVES_WORDS if any(v > curves.axis.high for s in (*curves.edited, *base) for v in s.values) else ""
            )
            number = NUMBERS.get((label, split))
            parts = (f"fig{number:02d}" if number else "", edit, words.slug(label) if label else "", split)
            title = f"{'Freezing' if label is None else f'Attack on {label_name(label)}'}: {noun} loss"
            names = ("-".join(filter(None, parts)), f"Figure {number}" if number else BEYOND, title)
            yield _curve_figure(names, caption, views)


def _baseline(rows: StudyRows) -> Iterator[charts.Figure]:
    """Figure 7, with the loss of word frequencies alone."""
    looks = (
        ("train", "train", render.INK, ()),
        ("valid", "validation", render.INK, (7, 3)),
        ("train_running", "in training", render.SOFT, (2, 2)),
    )
    panels: list[charts.Panel] = []
    shown: list[charts.CurveLine] = []
    runs = rows.runs.filter(pl.col("edit") == "none")
    lost, over = runs.filter(pl.col("status") == "diverged").height, False
    for name, title, unit in (("loss_nats", "Loss", LOSS), ("accuracy", "Accuracy", SHARE)):
        lines = []
        for split, line, colour, dash in looks:
            noun = " ".join((title.lower(), line) if line == "in training" else (line, title.lower()))
            if series := tuple(charts.of_runs(rows.curves("none", split, name), charts.Measure(noun, unit))):
                lines.append(charts.CurveLine(line, colour, dash, series))
        if not lines:
            continue
        ceiling = math.inf
        if name == "loss_nats":
            start = [s.values[0] for line in lines for s in line.series if s.at[0] == 0]
            ceiling = max(start) if lost and start else ceiling
            last = max(line.last for line in lines)
            unigram = [p._replace(at=at) for p in rows.measure("unigram_loss_nats", "valid") for at in (0.0, last)]
            if series := tuple(charts.of_runs(unigram, charts.Measure("unigram loss, validation", unit))):
                lines.append(charts.CurveLine("unigram", render.OTHER_MARK.colour, (1, 3), series))
        values = [v for line in lines for s in line.series for v in s.values]
        axis = charts.axis_for(values, unit, ceiling=ceiling)
        over |= axis.outside(values) > 0
        panels.append(charts.curve_panel(title, lines, axis))
        shown += lines
    if panels:
        caption = (
            "The baseline, which nothing was done to. 'train' and 'validation' are measured in evaluation mode, "
            "'in training' with dropout; 'unigram' is what word frequencies alone reach on the validation split. "
            f"{seeds(rows)}, {quantity(runs.height, 'run')}{f'; {lost} diverged{LOST_SEEDS_WORDS}' if lost else '.'}"
            f"{CUT_CURVES_WORDS if over else ''}"
        )
        names = ("fig07-baseline", "Figure 7", "The baseline's curves")
        yield charts.Figure(*names, caption, tuple(panels), _keys(shown), at="epoch")


def _midstage(rows: StudyRows) -> Iterator[charts.Figure]:
    """Figure 10."""
    points = rows.measure("midstage_loss_nats", "train")
    if not points:
        return
    final = rows.last("none", "train", "loss_nats")
    level = [p._replace(at=at) for p in final for at in (0.0, max(p.at or 0.0 for p in points))]
    flat = charts.of_runs(level, charts.Measure("final train loss", LOSS))
    ceiling = max((p.value for p in rows.curves("none", "train") if p.at == 0), default=math.inf)
    axis = charts.axis_for([p.value for p in (*points, *final)], LOSS, ceiling=ceiling)
    other = charts.CurveLine("final", render.BASELINE, (5, 3), tuple(flat)) if flat else None
    series = tuple(charts.of_runs(points, charts.Measure("train loss with that epoch's weights", LOSS)))
    caption = (
        "Train loss of the final model when one site's weights are those of an earlier epoch; grey and dashed is the final loss. "
        f"{seeds(rows)}, {quantity(len({p.site for p in points}), 'site')}."
    )
    if zero := [p for p in points if p.at == 0]:
        caption += f" With the initial weights: {extremes(zero, 'nats', False)}"
    caption += CUT_CURVES_WORDS if any(p.value > axis.high for p in points) else ""
    names = ("fig10-midstage", "Figure 10", "Rewinding to mid-stage weights")
    yield _curve_figure(names, caption, _arrange(rows, _Curves(series, other, axis), list_names=True))


def _answer(rows: StudyRows) -> Iterator[charts.Figure]:
    """All methods in one picture."""
    items = study_words.methods(rows)
    if not items:
        return
    axes: dict[str, charts.SharedAxis] = {"criticality": ALPHA}
    for kind in {item.kind for item in items} - {"criticality"}:
        values = [p.value for item in items if item.kind == kind for p in with_means(item.points)]
        axes[kind] = charts.axis_for(values, f"nats, {'train' if kind == 'area' else 'valid'}", zero=True, bend=True)
    nouns = {"area": "mean rise of train loss", "ablate": "rise of validation loss"}
    panels = []
    for item in items:
        measure, levels = charts.Measure(item.title, "α"), ()
        if item.kind != "criticality":
            noun, levels = nouns.get(item.kind, "change of validation loss"), (charts.ZERO,)
            measure = charts.Measure(f"{item.title}: {noun}", "nats", True)
        panels.append(SitePanel(item.title, item.points, measure, axes[item.kind], levels))
    points = [p for item in items for p in item.points]
    marks = "Marks are the one seed's values."
    if len(rows.seeds) > 1:
        marks = "Marks are means over seeds, bars 95 % intervals (Student t), small open marks single seeds."
    caption = (
        f"What happens when one site is edited; the horizontal axis is the layer. {marks} Attack and freezing: difference "
        "of the validation loss to the baseline of the same seed, at the last epoch; mean ablation: rise of the baseline's own. "
        f"Criticality, areas: on the train split.{study_words.attack_words(rows)} {seeds(rows)}, "
        f"{quantity(len({p.site for p in points}), 'site')}."
        f"{study_words.collapse_words(rows, points)}{study_words.divergence_words(points)}"
    )
    if bent := words.join_words([item.title for item in items if axes[item.kind].linear is not None] or [""]):
        caption += (
            f" The axis of {bent} is linear near zero and logarithmic beyond, since effects differ so much in size."
        )
    yield site_figure(("answer", "", "Summary figure"), caption, panels)


def _heat(rows: StudyRows) -> Iterator[charts.Figure]:
    """Figure 8."""
    points = rows.measure("rewind_loss_nats", "train")
    if not points:
        return
    means = [p.value for p in average(points, lambda p: (p.site, p.at)).values()]
    low, high, measure = min(means), max(means), charts.Measure("train loss", LOSS)
    cells = {g: [p for p in points if site_position(p.site).group == g] for g in groups_of(points)}
    panels = tuple(charts.heat_panel(words.GROUP.get(g, g), heat, low, high, measure) for g, heat in cells.items())
    caption = (
        "Train loss with one site's weights on the straight line between their initial (α = 0) and final (α = 1) values, all else "
        f"final; mean over seeds, the same colours in every panel. {seeds(rows)}, {len({p.at for p in points})} values of α, "
        f"{quantity(len({p.site for p in points}), 'site')}."
    )
    if start := [p for p in points if p.at == 0]:
        caption += f" Loss at α = 0: {extremes(start, 'nats', False)}"
    yield charts.Figure(
        "fig08-rewind-heat", "Figure 8", "Convex rewinding", caption, panels, (), (low, high, LOSS), at="α"
    )


def _criticality(rows: StudyRows) -> Iterator[charts.Figure]:
    """Figure 9."""
    last, first = rows.measure("criticality", "train"), rows.measure("criticality_first", "train")
    if not last:
        return
    early = {(p.site, p.seed): p.value for p in first}
    differ = sorted({p.site for p in last if early.get((p.site, p.seed), p.value) != p.value}, key=order)
    shown = {"Criticality": last} | ({"The other reading": first} if differ else {})
    panels = [SitePanel(title, points, charts.Measure(title, "α"), ALPHA, ()) for title, points in shown.items()]
    other = "gives the same numbers everywhere" if first else "was not measured"
    epsilon = rows.statement("rewind").get("epsilon", 0.01)
    caption = (
        f"The smallest α from which on the train loss stays within {100 * epsilon:g} % of the final loss: "
        f"{extremes(last, '', False)} {seeds(rows)}. The other reading, the smallest α that is within the tolerance at all, "
        f"{f'differs at {words.join_words(differ)}' if differ else other}."
    )
    if area := rows.measure("rewind_area", "train"):
        measure = charts.Measure("Area: mean rise of train loss", "nats", True)
        panels.append(SitePanel("Area", area, measure, axis_of(area, "nats")))
        caption += " The area, the mean rise of the train loss over α, needs no tolerance."
    yield site_figure(("fig09-criticality", "Figure 9", "Criticality of every site"), caption, panels)


def _adversary(rows: StudyRows) -> Iterator[charts.Figure]:
    panels, axis = [], charts.SharedAxis(SHARE, 0.0, 1.0)
    for label in rows.labels:
        if points := rows.last("attack", "valid", "adversary_accuracy", label):
            # how often the commonest label is right
            common = rows.measure(f"majority_accuracy_{label}", "valid")
            if not common and len(rows.labels) == 1:
                common = rows.measure("majority_accuracy", "valid")
            levels = (charts.Level("commonest label", interval([p.value for p in common]).mean),) if common else ()
            measure = charts.Measure(f"adversary's accuracy on {label_name(label)}", SHARE)
            panels.append(SitePanel(f"Predicting {label_name(label)}", points, measure, axis, levels))
    if panels:
        caption = (
            "How often the adversary names the label of the next word rightly at the last epoch, on the validation split: what the attack "
            f"left for this adversary to find, which is not all that is there.{study_words.attack_words(rows)} {seeds(rows)}."
        )
        yield site_figure(("adversary", BEYOND, "The adversary's accuracy"), caption, panels)


def _strengths(rows: StudyRows) -> Iterator[charts.Figure]:
    for label in rows.labels if len(rows.strengths) > 1 else ():
        effects = {f"λ = {s:g}": rows.effects("attack", "valid", label, s) for s in rows.strengths}
        name, points = f"Attack on {label_name(label)}", list(itertools.chain(*effects.values()))
        if points:
            caption = (
                "Difference of the validation loss to the baseline of the same seed, at the last epoch, "
                f"by strength of the attack. {seeds(rows)}.{study_words.collapse_words(rows, points)}"
            )
            names = (f"attack-{words.slug(label)}-strengths", BEYOND, f"{name} by strength")
            yield site_figure(names, caption, site_panels(effects, f"{name}, change of validation loss"))


def together(points: Sequence[Point]) -> list[Point]:
    """For every site of several parts, its number less the sum of its parts' numbers, if all of these were measured.

    Above 0 the parts stand in for each other: taking both costs more than each taken alone.
    """
    single, gaps = {(p.site, p.seed): p for p in points}, []
    for point in points:
        parts = [single.get((str(part), point.seed)) for part in Site.parse(point.site).parts()]
        singles = [p for p in parts if p is not None]
        if len(parts) > 1 and len(singles) == len(parts):
            lost = point.diverged or any(p.diverged for p in singles)
            gaps.append(point._replace(value=point.value - sum(p.value for p in singles), diverged=lost))
    return gaps


def _combinations(rows: StudyRows) -> Iterator[charts.Figure]:
    """Sites of several parts against the sum of single effects, for every method with both."""
    attacks = {label: rows.effects("attack", "valid", label) for label in rows.labels}
    effects = {f"Attack on {label_name(label)}": rows.readable(points) for label, points in attacks.items()}
    effects["Freezing"] = rows.effects("freeze", "valid")
    effects["Mean ablation"] = rows.measure("ablate_rise_nats", "valid")
    effects["Rewinding area"] = rows.measure("rewind_area", "train")
    gaps = {title: points for title, alone in effects.items() if (points := together(alone))}
    if not gaps:
        return
    counts = []
    for title, points in gaps.items():
        sides = [side(mean) for mean in by_site(points).values()]
        above, below = sides.count(1), sides.count(-1)
        counts.append(
            f"{title}: of {quantity(len(sides), 'site')}, {above} clear above and {below} clear below the sum"
        )
    caption = (
        "The effect at several components or layers at once minus the sum of the effects at each of them alone, in the same seed. "
        "Above the line they stand in for each other when only one is changed; below it, the second adds little to the first. Attack, "
        f"freezing and ablation: validation loss; rewinding: train loss. {seeds(rows)}. {'; '.join(counts)} (95 % intervals, not "
        f"corrected for how many).{study_words.divergence_words([p for points in gaps.values() for p in points])}"
    )
    levels = (charts.ZERO._replace(name="the sum"),)
    panels = site_panels(gaps, "together minus the sum of the parts", "nats", False, levels=levels)
    yield site_figure(("combinations", BEYOND, "Together against the sum of the parts"), caption, panels)


def _heads(rows: StudyRows) -> Iterator[charts.Figure]:
    """Maps of layers by heads, one for each method applied to single heads."""
    single, change = rows.heads, "change of the validation loss"
    if single is None:
        return
    attacks = [(label, single.effects("attack", "valid", label)) for label in single.labels]
    shown = [
        (f"attack-{words.slug(label)}", f"Attack on {label_name(label)}", points, change) for label, points in attacks
    ]
    shown.append(("freeze", "Freezing", single.effects("freeze", "valid"), change))
    areas = single.measure("rewind_area", "train")
    shown.append(("rewind", "Rewinding area", areas, "mean rise of the train loss"))
    for name, title, points, noun in shown:
        cells: dict[str, list[tuple[int, int, float]]] = {}
        clear: dict[str, set[tuple[int, int]]] = {}
        readable, means = by_site(rows.readable(points)), []
        for place, effect in by_site(points).items():
            site, group = Site.parse(place), site_position(place).group
            if len(site.layers or ()) != 1 or len(site.heads or ()) != 1:
                continue
            panel, spot = words.GROUP.get(group, group), ((site.layers or (0,))[0], (site.heads or (0,))[0])
            cells.setdefault(panel, []).append((*spot, effect.mean))
            if place in readable:
                means.append(effect.mean)
                clear.setdefault(panel, set()).update([spot] if side(effect) else [])
        if cells:
            mean = f"Mean over these heads {words.number(interval(means).mean, True)}. " if means else ""
            caption = (
                f"The {noun} when one head of one component is edited, nats; a dot where the 95 % interval leaves 0 out. {mean}"
                f"The same colours in every panel, {seeds(rows)}.{study_words.collapse_words(rows, points)}"
            )
            names = (f"heads-{name}", BEYOND, f"{title}, by head")
            yield grid(*names, caption, cells, "nats", True, None, clear)


def _edits(rows: StudyRows) -> Iterator[charts.Figure]:
    """A figure for each kind of edit: both losses of each setting, less the baseline's of the same seed."""
    for kind in rows.runs["edit"].unique(maintain_order=True):
        panels: list[SitePanel] = []
        for split, noun in SPLIT.items() if kind != "none" and not kind_of(kind).has_own_figures else ():
            # by what their runs' names say before the site: the kind and its settings
            settings: dict[str, list[Point]] = {}
            for point in rows.effects(kind, split):
                name = point.run.rsplit("-", 2)[0].removesuffix(f"-{point.site}")
                settings.setdefault(f"{name}: {noun} loss", []).append(point)
            panels = site_panels(settings, "change", f"nats, {split}", shared=False) + panels  # validation first
        if panels:
            caption = (
                f"Difference to the baseline of the same seed, at the last epoch, of runs with the edit {kind}. "
                f"{seeds(rows)}.{study_words.divergence_words([p for panel in panels for p in panel.points])}"
            )
            yield site_figure((f"edit-{words.slug(kind)}", BEYOND, kind_of(kind).title), caption, panels)


CONTROL_WORDS = {  # each control in a few words, and what it does
    "control": ("control labels", "Control labels are drawn by chance, one for each word type."),
    "bounded": (
        "the bounded attack",
        "The bounded attack pushes the adversary's output towards the label prior, so that its loss has a floor.",
    ),
    "site": (
        "the attack that reaches one projection",
        "Gradient limited to this projection: the attack trains no weights but the site's own projection.",
    ),
    "bounded+site": (
        "the bounded attack that reaches one projection",
        "One attack is both: bounded, with its gradient limited to this projection.",
    ),
}


def _beside(rows: StudyRows, split: str) -> Iterator[tuple[str, dict[str, list[Point]]]]:
    """Effects by variant, plain and with each control, at sites with a control, for each label that has any."""
    for label in sort_labels(rows.runs.filter(ATTACKED & ~PLAIN)["label"]):
        controls = {c: points for c in CONTROLS if (points := rows.effects("attack", split, label, variant=c))}
        sites = {p.site for points in controls.values() for p in points}
        plain = [p for p in rows.effects("attack", split, label) if p.site in sites]
        yield label, ({"plain": plain} if plain else {}) | controls


def _less_controls(rows: StudyRows, effects: Mapping[str, Sequence[Point]]) -> dict[str, list[Point]]:
    """The attack less each control at the same sites and seeds, in layers where no run of either collapsed."""
    plain = effects.get("plain", ())
    both = {control: points for control, points in effects.items() if control != "plain" and minus(points, plain)}
    return {c: minus(rows.comparable(ps), rows.comparable(plain), times=-1) for c, ps in both.items()}


def control_findings(rows: StudyRows) -> Iterator[Finding]:
    """Attacks less each control, by label; then the claims that survive each control."""
    for label, effects in _beside(rows, "valid"):
        for control, points in _less_controls(rows, effects).items():
            text = quantity = f"{label_name(label)}, {VALID}, minus that by {CONTROL_WORDS[control][0]}"
            numbers: tuple[Estimate, ...] = ()
            if points:
                layers = words.join_words(sorted({site_position(p.site).layers for p in points}))
                over = over_seeds(points)
                numbers = (*study_words.estimates(points), Estimate("all", *over))
                text += f", mean over the same sites: {words.mean_words(over, 'nats')}."
                quantity += f", at layer{'s' * (' ' in layers)} {layers}, mean over layers"
            else:
                text += f": {study_words.NOT_READ}"
            text += study_words.collapse_words(rows, [*effects["plain"], *effects[control]], paired=True)
            groups = (label, control)
            yield Finding("control", text, "nats", numbers, title="Controls", what=quantity, groups=groups, per="seed")
    for control, sorts in tally_survival(rows.controls).items():
        counts = tuple(Estimate(reading, len(claims)) for reading, claims in sorts.items())
        text = f"whether claims about attacks survive. {survival_sentence(control, sorts)}"
        yield Finding("survival", text, "claims", counts, title="Controls", groups=(control,))


def control_figures(rows: StudyRows) -> Iterator[charts.Figure]:
    """Sites with controls, attacked plainly and with each control, on both splits."""
    every_split = [(split, *beside) for split in ("valid", "train") for beside in _beside(rows, split)]
    for split, label, effects in every_split:
        if len(effects) < 2:
            continue
        every, noun = [p for points in effects.values() for p in points], f"change of {SPLIT[split]} loss"
        less = "; ".join(
            f"{NAMES[control].lower()} {words.mean_words(over_seeds(points), 'nats') if points else 'not read'}"
            for control, points in _less_controls(rows, effects).items()
        )
        caption = (
            f"Difference of the {SPLIT[split]} loss to the baseline of the same seed, at the last epoch, when {label_name(label)} of "
            f"the next word is attacked, and with each control. {' '.join(CONTROL_WORDS[c][1] for c in CONTROLS if c in effects)} "
            f"{seeds(rows)}, {quantity(len({p.site for p in every}), 'site')}."
            f"{f' Attack minus control, mean over sites: {less}.' * bool(less)}"
        )
        test = rows.select("attack", label, variant="control") & (pl.col("name") == "control_distance")
        if differences := rows.metrics.filter(test)["value"].to_list():
            caption += f" Control labels and labels are at most {words.number(max(differences))} apart in total variation, over tokens."
        caption += study_words.collapse_words(rows, every, paired=True) + study_words.divergence_words(every)
        title = f"Attack on {label_name(label)} and its controls: {SPLIT[split]} loss"
        shown = {{"plain": "Attack", **NAMES}[control]: points for control, points in effects.items()}
        names = (f"controls-{words.slug(label)}-{split}", BEYOND, title)
        yield site_figure(names, caption, site_panels(shown, noun, f"nats, {split}"))


HALF, AGAINST = "Half of the bits removed", "Attack minus control"


def _at_equal_bits(rows: StudyRows, label: str) -> dict[str, tuple[list[Point], str]]:
    """The rise of the loss at which half of the baseline's bits are removed, and attack minus control labels at equal bits.

    Bits are those of the label that was attacked that a fresh probe no longer finds there: of a control, of the label that each
    word type drew by chance. The loss is linear between the strengths that were run, from nothing at 0; equal bits are in each
    seed the most that both remove there. Only sites where no attacked seed is missing, else seeds would be means over different
    layers; with how many these are. Collapsed and diverged runs and what removed nothing are left out.
    """
    before: dict[str, dict[tuple[str, int], float]] = {}
    doses: dict[str, dict[tuple[str, int], list[tuple[float, float]]]] = {"plain": {}, "control": {}}
    for variant, curves in doses.items():
        measure = "probe_linear_control_bits" if variant == "control" else removal.BITS
        before[variant] = {(p.site, p.seed): p.value for p in rows.measure(measure, "valid", label, rows.baselines)}
        after = {(p.site, p.run): p.value for p in rows.measure(measure, "valid", label)}
        for strength in rows.strengths_of(variant):
            for point in rows.effects("attack", "valid", label, strength, variant=variant):
                key, left = (point.site, point.seed), after.get((point.site, point.run))
                if left is None or key not in before[variant] or point.diverged or point.run in rows.collapses:
                    continue
                if (removed := before[variant][key] - left) > 0:
                    curves.setdefault(key, []).append((removed, point.value))

    def cost(variant: str, key: tuple[str, int], bits: float) -> float:
        removed, costs = zip((0.0, 0.0), *sorted(doses[variant][key]), strict=True)
        return float(np.interp(bits, removed, costs))

    costs = {HALF: list[Point](), AGAINST: list[Point]()}
    for key, curve in sorted(doses["plain"].items()):
        last_at, half = max(curve)[0], 0.5 * before["plain"][key]
        if half <= last_at:
            costs[HALF].append(Point(*key, cost("plain", key, half)))
        if key in doses["control"]:
            equal = min(last_at, max(doses["control"][key])[0])
            costs[AGAINST].append(Point(*key, cost("plain", key, equal) - cost("control", key, equal)))
    attacked: dict[str, set[int]] = {}
    for strength in rows.strengths:
        for point in rows.effects("attack", "valid", label, strength):
            attacked.setdefault(point.site, set()).add(point.seed)
    complete = {}
    for title, points in costs.items():
        sites = {site for site, seeds in attacked.items() if seeds == {p.seed for p in points if p.site == site}}
        counted = f"{len(sites)} of {quantity(len(attacked), 'site')}"
        complete[title] = [p for p in points if p.site in sites], counted
    return complete


def _doses(rows: StudyRows) -> Iterator[charts.Figure]:
    """For each label that was attacked and probed: the cost of half its bits, and the attack minus control labels at equal bits."""
    for label in rows.labels:
        shown = _at_equal_bits(rows, label)
        panels = site_panels({title: points for title, (points, _) in shown.items()}, VALID, shared=False)
        if not panels:
            continue
        reached = "; ".join(f"{title}: every seed at {sites}" for title, (_, sites) in shown.items())
        caption = (
            f"Attacks on {label_name(label)} compared at equal bits removed, not at equal λ. Bits are what a fresh linear probe no longer "
            "finds at the attacked site on held-out tokens; between the strengths that were run the loss is interpolated, from no change "
            "at 0 bits. Half of the bits: of those that the baseline of the same seed has there. Attack minus control: the control removes "
            "as many bits of labels that each word type drew by chance, in each seed the most that both remove. Collapsed runs are left "
            f"out, and so are sites that some seed does not reach ({reached}). {seeds(rows)}."
        )
        names = (f"attack-{words.slug(label)}-dose", BEYOND, f"Attacks on {label_name(label)} at equal bits removed")
        yield site_figure(names, caption, panels)


def dose_findings(rows: StudyRows) -> Iterator[Finding]:
    """For each label, the attack minus the one with control labels at equal bits removed."""
    for label in rows.labels:
        points, sites = _at_equal_bits(rows, label)[AGAINST]
        if points:
            noun, quantity = label_name(label), f"{VALID}, attack minus control labels at equal bits removed"
            start = f"attack on {noun} minus its control labels at equal bits removed ({sites}), {VALID},"
            method = Method("dose", "Equal bits", "nats", points, "dose", noun, quantity, start, label, ranks=False)
            yield study_words.finding(rows, method)
