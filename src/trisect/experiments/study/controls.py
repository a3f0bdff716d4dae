"""Controls on the page: attacked sites beside the same sites attacked in another way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from trisect.claims.controls import CONTROLS
from trisect.experiments.study import words as study_words
from trisect.experiments.study.curves import SPLIT
from trisect.experiments.study.rows import Rows
from trisect.report import format as words
from trisect.report.frames import around
from trisect.report.marks import Measure
from trisect.report.panels import ZERO, Figure, site_panel
from trisect.report.parts import component_key, cut, with_means
from trisect.report.points import Point, interval
from trisect.report.survival import NAMES, tally

HOW = {
    "control": "Control labels are drawn by chance, one for each word type.",
    "bounded": "The bounded attack pushes the adversary's output towards the label prior, so that its loss has a floor.",
    "site": "Reach of the site alone: the attack trains no weights but the site's own projection.",
    "bounded+site": "One attack is both: bounded, and with the reach of the site alone.",
}


def finding(rows: Rows) -> tuple[tuple[str, str], ...]:
    """What is left of attacks when their controls are taken off, and which claims survive; empty without controls."""
    said = []
    for label in rows.controlled:
        less = _less(_beside(rows, label, "valid"))
        if less:
            start = (
                f"{study_words.label_name(label)}, change of the validation loss by the attack less that by its control"
            )
            said.append(f"{start}, mean over the same sites: {less}.")
    claims = tally(rows.controls)
    if claims:
        said.append(f"Whether claims about attacks survive: {' '.join(claims)}")
    return (("Controls", " ".join(said)),) if said else ()


def figures(rows: Rows) -> Iterable[Figure]:
    """The sites that have controls, attacked plainly and with each control, on both splits."""
    for label in rows.controlled:
        for split in ("valid", "train"):
            found = _beside(rows, label, split)
            if len(found) > 1:
                yield _figure(rows, label, split, found)


def _beside(rows: Rows, label: str, split: str) -> dict[str, list[Point]]:
    """Effects by the panel's title: the plain attack at the sites that have a control, and every control."""
    controls = {NAMES[c]: rows.effects("attack", split, label, variant=c) for c in CONTROLS}
    controls = {name: points for name, points in controls.items() if points}
    sites = {p.site for points in controls.values() for p in points}
    plain = [p for p in rows.effects("attack", split, label) if p.site in sites]
    return ({"Attack": plain} if plain else {}) | controls


def _figure(rows: Rows, label: str, split: str, found: Mapping[str, Sequence[Point]]) -> Figure:
    every = [p for points in found.values() for p in points]
    axis = around([p.value for p in with_means(every)], f"nats, {split}", zero=True, bend=True)
    noun = f"change of {SPLIT[split]} loss"
    panels = tuple(site_panel(n, ps, axis, (ZERO,), Measure(f"{n}: {noun}", "nats", True)) for n, ps in found.items())
    less = _less(found)
    less = f" Attack less control, mean over these sites: {less}." if less else ""
    how = " ".join(HOW[c] for c in CONTROLS if NAMES[c] in found)
    caption = (
        f"Difference of the {SPLIT[split]} loss to the baseline of the same seed, at the last epoch, when {study_words.label_name(label)} "
        f"of the next word is attacked, and with each control. {how} {study_words.seeds(rows)}, "
        f"{words.several(len({p.site for p in every}), 'site')}.{less}{_distance(rows, label)}"
        f"{study_words.from_diverged(every)}{cut((axis, ps) for ps in found.values())}"
    )
    title = f"Attack on {study_words.label_name(label)} and its controls: {SPLIT[split]} loss"
    name = f"controls-{words.slug(label)}-{split}"
    return Figure(name, "Beyond the paper", title, caption, panels, component_key(every, ZERO))


def _less(found: Mapping[str, Sequence[Point]]) -> str:
    """The attack less each control, paired by site and seed, mean over the sites that have both."""
    plain = {(p.site, p.seed): p.value for p in found.get("Attack", ())}
    said = []
    for name, other in found.items():
        less: dict[int, list[float]] = {}
        for p in other if name != "Attack" else ():
            if (p.site, p.seed) in plain:
                less.setdefault(p.seed, []).append(plain[p.site, p.seed] - p.value)
        if less:
            difference = interval([sum(values) / len(values) for values in less.values()])
            said.append(f"{name.lower()} {words.spoken(difference, 'nats')}")
    return "; ".join(said)


def _distance(rows: Rows, label: str) -> str:
    """How far the control labels' distribution over tokens is from the labels' own."""
    test = rows.chosen("attack", label, variant="control") & (pl.col("name") == "control_distance")
    found = rows.metrics.filter(test)["value"].to_list()
    if not found:
        return ""
    return f" Control labels and labels are at most {words.number(max(found))} apart in total variation, over tokens."
