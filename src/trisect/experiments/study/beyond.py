"""Figures beyond the source: components together against the sum of their effects, and single heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trisect.core.site import Site
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.chart_data import Measure
from trisect.report.heatmaps import grid
from trisect.report.panels import ZERO, Figure
from trisect.report.parts import SitePanel, axis_of, site_figure
from trisect.report.points import Point, by_site, interval, order, side


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
