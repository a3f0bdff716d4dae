"""Every figure of the report, drawn from the tables: the answer, the sources' figures 3 to 12, and extras."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from trisect.report import palette, words
from trisect.report.panels import Figure, Frame, Line, Panel, around, curve_panel, heat_panel, site_panel
from trisect.report.rows import Point, Rows, by_site, order, place

LOSS, SHARE = "nats per token", "share of tokens"
NUMBERS = {("pos", "train"): 3, ("pos", "valid"): 4, ("dep", "train"): 5, ("dep", "valid"): 6}
SPLIT = {"train": "train", "valid": "validation"}
LOST = ", and the bold line stops where the first seed is lost."
CUT = " Curves are cut above the loss at initialisation."


def draw(tables: Mapping[str, pl.DataFrame], about: Mapping[str, Any]) -> dict[str, alt.ConcatChart]:
    """Charts by name: `answer`, `fig03-attack-pos-train`, …; those without rows are left out.

    `tables` holds runs, metrics, sites and claims by the schemas of core.tables; `about` is the study's description.
    """
    return {figure.name: figure.chart() for figure in collect(Rows.of(tables, about))}


def collect(rows: Rows) -> list[Figure]:
    """Every figure that the rows can fill, in the order of the page."""
    makers: list[Callable[[Rows], Iterable[Figure]]] = [
        _answer, _attacks, _baseline, _heat, _criticality, _midstage, _freezing, _adversary, _strengths,
    ]  # fmt: skip
    return [figure for maker in makers for figure in maker(rows)]


def _seeds(rows: Rows) -> str:
    return f"n\u00a0=\u00a0{words.several(len(rows.seeds), 'seed')}"


def _cut(shown: Iterable[tuple[Frame, Sequence[Point]]]) -> str:
    """How many ends of intervals lie beyond the frames of their panels, as the end of a caption."""
    ends = sum(f.outside(v for v in m[1:3] if v is not None) for f, points in shown for m in by_site(points).values())
    if not ends:
        return ""
    return f" {words.several(ends, 'end')} of intervals {'reaches' if ends == 1 else 'reach'} beyond the frame."


def _groups(points: Iterable[Point]) -> list[str]:
    return sorted({place(p.site).group for p in points}, key=lambda g: order(f"{g}@1"))


def _component_key(points: Iterable[Point], zero: bool) -> tuple[tuple[str, str], ...]:
    return tuple((g, g) for g in _groups(points)) + ((("baseline", "baseline"),) if zero else ())


def _answer(rows: Rows) -> Iterable[Figure]:
    items = words.methods(rows)
    if not items:
        return
    frames: dict[str, Frame] = {}
    for kind in dict.fromkeys(item[0] for item in items):
        values = [p.value for item in items if item[0] == kind for p in _with_means(item[3])]
        if kind == "criticality":
            frames[kind] = Frame("α", -0.04, 1.04)
        else:
            unit = "nats, valid" if kind in ("attack", "freeze") else "nats, train"
            frames[kind] = around(values, unit, zero=True, bend=True)
    panels = tuple(
        site_panel(title, points, frames[kind], zero=kind != "criticality") for kind, title, _, points in items
    )
    bent = [title for kind, title, _, _ in items if frames[kind].linear is not None]
    points = [p for item in items for p in item[3]]
    marks = "Marks are the one seed's values."
    if len(rows.seeds) > 1:
        marks = "Marks are means over seeds, bars 95 % intervals (Student t), small open marks single seeds."
    caption = (
        f"What happens when one site is edited; the horizontal axis is the layer. {marks} Attack and freezing: difference "
        "of the validation loss to the baseline of the same seed, at the last epoch. Criticality, areas: on the train split."
        f"{words.attacked(rows)} {_seeds(rows)}, {words.several(len({p.site for p in points}), 'site')}."
        f"{words.from_diverged(points)}"
    )
    if bent:
        caption += f" The axis of {words.listed(bent)} is linear near zero and logarithmic beyond, since effects differ so much in size."
    caption += _cut((frames[kind], found) for kind, _, _, found in items)
    yield Figure("answer", "", "The answer in one picture", caption, panels, _component_key(points, True))


def _with_means(points: Sequence[Point]) -> list[Point]:
    extra = [Point(s, 0, v) for s, m in by_site(points).items() for v in (m.low, m.high) if v is not None]
    span = [p.value for p in points]
    room = 2.0 * (max(span) - min(span)) if span else 0.0
    return [*points, *(p for p in extra if min(span) - room <= p.value <= max(span) + room)]


def depth_share(rows: Rows) -> Callable[[str], float]:
    """How deep a site lies, from 0 (layer 1) to 1 (the deepest layer of the study)."""
    depths = [place(s).depth for s in rows.edited]
    deepest = max([d for d in depths if d != math.inf], default=1.0)
    return lambda site: 0.5 if place(site).depth == math.inf else (place(site).depth - 1) / max(1.0, deepest - 1)


def _curve_panels(
    rows: Rows, points: Sequence[Point], other: Line | None, axis: Frame, meet: bool = False
) -> tuple[Panel, ...]:
    share = depth_share(rows)
    panels = []
    for group in _groups(points):
        lines = [other] if other else []
        sites = sorted({p.site for p in points if place(p.site).group == group}, key=order)
        for position, site in enumerate(sites):
            here = place(site)
            name = f"layer {here.layers}" if here.single else f"layers {here.layers}"
            mine = tuple(p for p in points if p.site == site)
            dash = () if here.single else (8, 2)
            colour, shape = palette.layer_colour(share(site)), palette.layer_shape(position)
            lines.append(Line(name, colour, dash, mine, shape))
        panels.append(curve_panel(words.GROUP.get(group, group), lines, axis, meet=meet))
    return tuple(panels)


def _against_baseline(rows: Rows, edit: str, split: str, label: str | None) -> tuple[tuple[Panel, ...], str] | None:
    """Loss curves of one experiment against the baseline, a panel per component, and the end of the caption."""
    points, base = rows.curves(edit, split, label=label), rows.curves("none", split)
    if not points:
        return None
    last = max(p.at or 0 for p in points)
    base = [p for p in base if (p.at or 0) <= last]
    start = [p.value for p in base if p.at == 0]
    axis = around([p.value for p in (*points, *base)], LOSS, most=max(start) if start else math.inf)
    other = Line("baseline", palette.BASELINE, (5, 3), tuple(base)) if base else None
    runs = {(p.site, p.seed) for p in points}
    gone = {(p.site, p.seed) for p in points if p.diverged}
    effects = rows.effects(edit, split, label)
    tail = f" Against the baseline, at the last epoch: {words.extremes(effects, 'nats')}" if effects else ""
    tail += f" {_seeds(rows)}, {words.several(len(runs), 'run')} at {words.several(len({s for s, _ in runs}), 'site')}"
    tail += f"; {len(gone)} diverged{LOST}" if gone else "."
    lost = {p.seed for p in base if p.diverged}
    tail += f" The baseline diverged in {words.several(len(lost), 'seed')}." if lost else ""
    if any(p.value > axis.high for p in (*points, *base)):
        tail += CUT
    return _curve_panels(rows, points, other, axis), tail


def _attacks(rows: Rows) -> Iterable[Figure]:
    for label in rows.labels:
        for split in ("train", "valid"):
            made = _against_baseline(rows, "attack", split, label)
            if made is None:
                continue
            number = NUMBERS.get((label, split))
            stem = f"fig{number:02d}-" if number else ""
            title = f"Attack on {words.label_name(label)}: {SPLIT[split]} loss"
            caption = f"Loss per epoch while an adversary at one site is fought with λ = {rows.strength:g}.{made[1]}"
            numbered = f"Figure {number}" if number else "Beyond the paper"
            yield Figure(f"{stem}attack-{words.slug(label)}-{split}", numbered, title, caption, made[0])


def _freezing(rows: Rows) -> Iterable[Figure]:
    for number, split in ((11, "train"), (12, "valid")):
        made = _against_baseline(rows, "freeze", split, None)
        if made is not None:
            caption = f"Loss per epoch while one site keeps its initial weights.{made[1]}"
            yield Figure(
                f"fig{number}-freeze-{split}", f"Figure {number}", f"Freezing: {SPLIT[split]} loss", caption, made[0]
            )


def _baseline(rows: Rows) -> Iterable[Figure]:
    looks = (
        ("train", "train", palette.INK, ()),
        ("valid", "validation", palette.INK, (7, 3)),
        ("train_running", "in training", palette.SOFT, (2, 2)),
    )
    panels = []
    runs = rows.runs.filter(pl.col("edit") == "none")
    lost, over = runs.filter(pl.col("status") == "diverged").height, False
    for name, title, unit in (("loss_nats", "Loss", LOSS), ("accuracy", "Accuracy", SHARE)):
        lines = [Line(n, c, d, tuple(rows.curves("none", split, name))) for split, n, c, d in looks]
        lines = [line for line in lines if line.points]
        last = max((p.at or 0 for line in lines for p in line.points), default=0)
        if name == "loss_nats" and lines:
            flat = tuple(
                p._replace(at=at) for p in rows.measure("unigram_loss_nats", "valid") for at in (0.0, float(last))
            )
            lines += [Line("unigram", palette.OTHER.colour, (1, 3), flat)] if flat else []
        if lines:
            values = [p.value for line in lines for p in line.points]
            start = [p.value for line in lines for p in line.points if p.at == 0]
            axis = around(values, unit, most=max(start) if lost and start and name == "loss_nats" else math.inf)
            over |= axis.outside(values) > 0
            panels.append(curve_panel(title, lines, axis))
    if panels:
        caption = (
            "The baseline, which nothing was done to. 'train' and 'validation' are measured in evaluation mode, "
            "'in training' with dropout; 'unigram' is what word frequencies alone reach on the validation split. "
            f"{_seeds(rows)}, {words.several(runs.height, 'run')}"
        )
        caption += f"; {lost} diverged{LOST}" if lost else "."
        caption += CUT if over else ""
        yield Figure("fig07-baseline", "Figure 7", "The baseline's curves", caption, tuple(panels))


def _heat(rows: Rows) -> Iterable[Figure]:
    points = rows.measure("rewind_loss_nats", "train")
    if not points:
        return
    means: dict[tuple[str, float | None], list[float]] = {}
    for p in points:
        means.setdefault((p.site, p.at), []).append(p.value)
    values = [sum(v) / len(v) for v in means.values()]
    low, high = min(values), max(values)
    panels = tuple(
        heat_panel(words.GROUP.get(g, g), [p for p in points if place(p.site).group == g], low, high, LOSS)
        for g in _groups(points)
    )
    caption = (
        "Train loss with one site's weights on the straight line between their initial (α = 0) and final (α = 1) values, all else "
        f"final; mean over seeds, the same colours in every panel. {_seeds(rows)}, {len({p.at for p in points})} values of α, "
        f"{words.several(len({p.site for p in points}), 'site')}."
    )
    start = [p for p in points if p.at == 0]
    if start:
        caption += f" Loss at α = 0: {words.extremes(start, 'nats', False)}"
    yield Figure("fig08-rewind-heat", "Figure 8", "Convex rewinding", caption, panels, (), (low, high, LOSS))


def _criticality(rows: Rows) -> Iterable[Figure]:
    last, first = rows.measure("criticality", "train"), rows.measure("criticality_first", "train")
    if not last:
        return
    unit = Frame("α", -0.04, 1.04)
    panels, shown = [site_panel("Criticality", last, unit, zero=False)], [(unit, last)]
    early = {(p.site, p.seed): p.value for p in first}
    differ = sorted({p.site for p in last if early.get((p.site, p.seed), p.value) != p.value}, key=order)
    if differ:
        panels.append(site_panel("The other reading", first, unit, zero=False))
        shown.append((unit, first))
    epsilon = ((rows.about.get("experiment") or {}).get("rewind") or {}).get("epsilon", 0.01)
    caption = (
        f"The smallest α from which on the train loss stays within {100 * epsilon:g} % of the final loss: "
        f"{words.extremes(last, '', False)} {_seeds(rows)}. "
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
        axis = around([p.value for p in _with_means(area)], "nats", zero=True)
        panels.append(site_panel("Area", area, axis))
        shown.append((axis, area))
        caption += " The area, the mean rise of the train loss over α, needs no tolerance."
    caption += _cut(shown)
    yield Figure(
        "fig09-criticality",
        "Figure 9",
        "Criticality of every site",
        caption,
        tuple(panels),
        _component_key(last, bool(area)),
    )


def _midstage(rows: Rows) -> Iterable[Figure]:
    points = rows.measure("midstage_loss_nats", "train")
    if not points:
        return
    final = rows.last("none", "train", "loss_nats")
    ends = (0.0, max(p.at or 0.0 for p in points))
    flat = tuple(p._replace(at=at) for p in final for at in ends)
    start = [p.value for p in rows.curves("none", "train") if p.at == 0]
    axis = around([p.value for p in (*points, *final)], LOSS, most=max(start) if start else math.inf)
    panels = _curve_panels(rows, points, Line("final", palette.BASELINE, (5, 3), flat) if flat else None, axis, True)
    caption = (
        "Train loss of the final model when one site's weights are those of an earlier epoch; grey and dashed is the final loss. "
        f"{_seeds(rows)}, {words.several(len({p.site for p in points}), 'site')}."
    )
    zero = [p for p in points if p.at == 0]
    if zero:
        caption += f" With the initial weights: {words.extremes(zero, 'nats', False)}"
    caption += CUT if any(p.value > axis.high for p in points) else ""
    yield Figure("fig10-midstage", "Figure 10", "Rewinding to mid-stage weights", caption, panels)


def _adversary(rows: Rows) -> Iterable[Figure]:
    found = [(label, rows.last("attack", "valid", "adversary_accuracy", label)) for label in rows.labels]
    found = [(label, points) for label, points in found if points]
    if not found:
        return
    axis = Frame(SHARE, 0.0, 1.0)
    panels = tuple(
        site_panel(f"Predicting {words.label_name(label)}", points, axis, zero=False) for label, points in found
    )
    caption = (
        "How often the adversary names the label of the next word rightly at the last epoch, on the validation split: what the attack left "
        f"for this adversary to find, which is not all that is there.{words.attacked(rows)} {_seeds(rows)}."
    )
    points = [p for _, ps in found for p in ps]
    caption += _cut((axis, ps) for _, ps in found)
    yield Figure(
        "adversary", "Beyond the paper", "The adversary's accuracy", caption, panels, _component_key(points, False)
    )


def _strengths(rows: Rows) -> Iterable[Figure]:
    if len(rows.strengths) < 2:
        return
    for label in rows.labels:
        found = [(s, rows.effects("attack", "valid", label, s)) for s in rows.strengths]
        found = [(s, points) for s, points in found if points]
        points = [p for _, ps in found for p in ps]
        if not points:
            continue
        axis = around([p.value for p in points], "nats, valid", zero=True, bend=True)
        panels = tuple(site_panel(f"λ = {s:g}", ps, axis) for s, ps in found)
        caption = (
            "Difference of the validation loss to the baseline of the same seed, at the last epoch, "
            f"by strength of the attack. {_seeds(rows)}.{_cut((axis, ps) for _, ps in found)}"
        )
        title = f"Attack on {words.label_name(label)} by strength"
        yield Figure(
            f"attack-{words.slug(label)}-strengths",
            "Beyond the paper",
            title,
            caption,
            panels,
            _component_key(points, True),
        )
