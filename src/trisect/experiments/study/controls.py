"""Controls on the page: attacked sites beside the same sites attacked in another way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import polars as pl

from trisect.claims.controls import CONTROLS
from trisect.core.finding import Estimate, Finding
from trisect.experiments.study import words as study_words
from trisect.experiments.study.curves import SPLIT
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.panels import Figure
from trisect.report.parts import axis_of, change_panel, site_figure
from trisect.report.points import Mean, Point, interval, place
from trisect.report.survival import NAMES, tallied, tally

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


def findings(rows: StudyRows) -> Iterator[Finding]:
    """What is left of attacks when each control is subtracted, by label; then which claims survive each control."""
    for label in rows.controlled:
        found = _beside(rows, label, "valid")
        for control, points in _differences(rows, found).items():
            yield _left(label, control, points, study_words.from_collapsed(rows, _both(found, control), paired=True))
        for control in _unread(rows, found):
            noun, less = study_words.label_name(label), f"{study_words.VALID}, minus that by {WITH[control]}"
            said = f"{noun}, {less}: {study_words.NOTHING}{study_words.from_collapsed(rows, _both(found, control), paired=True)}"
            yield Finding("control", said, "nats", title="Controls", what=f"{noun}, {less}", groups=(label, control))
    for control, sorts in tally(rows.controls).items():
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


def figures(rows: StudyRows) -> Iterable[Figure]:
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
    noun = f"change of {SPLIT[split]} loss"
    less = _less(rows, found)
    less = f" Attack minus control, mean over sites: {less}." if less else ""
    how = " ".join(HOW[c] for c in CONTROLS if NAMES[c] in found)
    caption = (
        f"Difference of the {SPLIT[split]} loss to the baseline of the same seed, at the last epoch, when {study_words.label_name(label)} "
        f"of the next word is attacked, and with each control. {how} {study_words.seeds(rows)}, "
        f"{words.several(len({p.site for p in every}), 'site')}.{less}{_distance(rows, label)}"
        f"{study_words.from_collapsed(rows, every, paired=True)}{study_words.from_diverged(every)}"
    )
    title = f"Attack on {study_words.label_name(label)} and its controls: {SPLIT[split]} loss"
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
