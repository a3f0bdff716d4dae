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
    n = len(rows.seeds)
    return f"n\u00a0=\u00a0{words.several(n, 'seed')}" + ("" if n > 1 else ": no intervals")


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
    caption = (
        "What happens when one site is edited; the horizontal axis is the layer. Marks are means over seeds, bars 95 % "
        "intervals (Student t), small open marks single seeds. Attack and freezing: difference of the validation loss "
        "to the baseline of the same seed, at the last epoch. Criticality, areas: on the train split. "
        f"{_seeds(rows)}, {words.several(len({p.site for i in items for p in i[3]}), 'site')}."
    )
    if bent:
        caption += f" The axis of {words.listed(bent)} is linear near zero and logarithmic beyond, since effects differ so much in size."
    cut = sum(
        frames[k].outside(v for v in m[1:3] if v is not None) for k, _, _, ps in items for m in by_site(ps).values()
    )
    if cut:
        caption += f" {words.several(cut, 'end')} of intervals {'reaches' if cut == 1 else 'reach'} beyond the frame."
    points = [p for item in items for p in item[3]]
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


def _curve_panels(rows: Rows, points: Sequence[Point], other: Line | None, axis: Frame) -> tuple[Panel, ...]:
    share = depth_share(rows)
    panels = []
    for group in _groups(points):
        lines = [other] if other else []
        for site in sorted({p.site for p in points if place(p.site).group == group}, key=order):
            here = place(site)
            name = f"layer {here.layers}" if here.single else f"layers {here.layers}"
            mine = tuple(p for p in points if p.site == site)
            lines.append(Line(name, palette.layer_colour(share(site)), () if here.single else (8, 2), mine))
        panels.append(curve_panel(words.GROUP.get(group, group), lines, axis))
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
    tail += f"; {len(gone)} diverged, and the bold line stops where the first seed is lost." if gone else "."
    if any(p.value > axis.high for p in points):
        tail += " Curves are cut above the loss at initialisation."
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
        ("valid", "validation", palette.BASELINE, (5, 3)),
        ("train_running", "in training", palette.SOFT, (2, 2)),
    )
    panels = []
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
            panels.append(curve_panel(title, lines, around([p.value for line in lines for p in line.points], unit)))
    if panels:
        caption = (
            "The baseline, which nothing was done to. 'train' and 'validation' are measured in evaluation mode, "
            "'in training' with dropout; 'unigram' is what word frequencies alone reach on the validation split. "
            f"{_seeds(rows)}."
        )
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
    panels = [site_panel("Criticality", last, unit, zero=False)]
    early = {(p.site, p.seed): p.value for p in first}
    differ = sorted({p.site for p in last if early.get((p.site, p.seed), p.value) != p.value}, key=order)
    if differ:
        panels.append(site_panel("The other reading", first, unit, zero=False))
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
        panels.append(site_panel("Area", area, around([p.value for p in _with_means(area)], "nats", zero=True)))
        caption += " The area, the mean rise of the train loss over α, needs no tolerance."
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
    panels = _curve_panels(rows, points, Line("final", palette.BASELINE, (5, 3), flat) if flat else None, axis)
    caption = (
        "Train loss of the final model when one site's weights are those of an earlier epoch; grey and dashed is the final loss. "
        f"{_seeds(rows)}, {words.several(len({p.site for p in points}), 'site')}."
    )
    zero = [p for p in points if p.at == 0]
    if zero:
        caption += f" With the initial weights: {words.extremes(zero, 'nats', False)}"
    yield Figure("fig10-midstage", "Figure 10", "Rewinding to mid-stage weights", caption, panels)


def _adversary(rows: Rows) -> Iterable[Figure]:
    found = [(label, rows.last("attack", "valid", "adversary_accuracy", label)) for label in rows.labels]
    found = [(label, points) for label, points in found if points]
    if not found:
        return
    values = [p.value for _, points in found for p in _with_means(points)]
    axis = around(values, SHARE)
    panels = tuple(
        site_panel(f"Predicting {words.label_name(label)}", points, axis, zero=False) for label, points in found
    )
    caption = (
        "How often the adversary names the label of the next word rightly at the last epoch, on the validation split: what the attack left "
        f"for this adversary to find, which is not all that is there. {_seeds(rows)}."
    )
    points = [p for _, ps in found for p in ps]
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
            f"by strength of the attack. {_seeds(rows)}."
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
