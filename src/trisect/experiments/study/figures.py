"""Every figure of the report, drawn from the tables: the answer, the sources' figures 3 to 12, and extras."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import altair as alt
import polars as pl

from trisect.core.study_data import StudyAbout
from trisect.experiments.study import beyond, controls, curves, dose, edits, heads, removal, tying
from trisect.experiments.study import words as study_words
from trisect.experiments.study.curves import LOSS, SHARE
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.axes import SharedAxis, around
from trisect.report.chart_data import Measure
from trisect.report.panels import ZERO, Figure, Level, heat_panel
from trisect.report.parts import SitePanel, axis_of, groups_of, site_figure, with_means
from trisect.report.points import interval, order, place

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
        _answer, curves.attacks, curves.baseline, _heat, _criticality, curves.midstage, curves.freezing, _adversary, _strengths,
        beyond.combinations, beyond.heads, controls.figures, dose.figures, removal.figures, heads.figures, tying.figures, edits.figures,
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
