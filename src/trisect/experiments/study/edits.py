"""Edits that have no figures of their own: what each does to the losses, by site."""

from __future__ import annotations

from collections.abc import Iterable

from trisect.core.edits import kind_of
from trisect.experiments.study import words as study_words
from trisect.experiments.study.curves import SPLIT
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.axes import around
from trisect.report.chart_data import Measure
from trisect.report.panels import ZERO, Figure, site_panel
from trisect.report.parts import component_key, cut, with_means
from trisect.report.points import Point


def figures(rows: StudyRows) -> Iterable[Figure]:
    """A figure for each kind, both losses of each of its settings, as differences to the baseline of the same seed."""
    found = [kind for kind in rows.runs["edit"].unique(maintain_order=True) if kind != "none"]
    for kind in (kind for kind in found if not kind_of(kind).own_page):
        panels, shown = [], []
        for split in ("valid", "train"):
            for name, points in _by_settings(rows.effects(kind, split)).items():
                axis = around([p.value for p in with_means(points)], f"nats, {split}", zero=True, bend=True)
                title = f"{name}: {SPLIT[split]} loss"
                panels.append(site_panel(title, points, axis, (ZERO,), Measure(f"{title}: change", "nats", True)))
                shown.append((axis, points))
        if panels:
            every = [p for _, points in shown for p in points]
            what = kind_of(kind).title
            caption = (
                f"Difference to the baseline of the same seed, at the last epoch, of runs with the edit {kind}. "
                f"{study_words.seeds(rows)}.{study_words.from_diverged(every)}{cut(shown)}"
            )
            yield Figure(
                f"edit-{words.slug(kind)}", "Beyond the paper", what, caption, tuple(panels), component_key(every, ZERO)
            )


def _by_settings(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Points by what their runs' names say before the site: the kind and its settings."""
    found: dict[str, list[Point]] = {}
    for point in points:
        name = point.run.rsplit("-", 2)[0].removesuffix(f"-{point.site}")
        found.setdefault(name, []).append(point)
    return found
