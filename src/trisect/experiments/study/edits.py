"""Edits that have no figures of their own: what each does to the losses, by site."""

from __future__ import annotations

from collections.abc import Iterable

from trisect.core.edits import kind_of
from trisect.experiments.study import words as study_words
from trisect.experiments.study.curves import SPLIT
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.panels import Figure
from trisect.report.parts import change_panel, site_figure
from trisect.report.points import Point


def figures(rows: StudyRows) -> Iterable[Figure]:
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
