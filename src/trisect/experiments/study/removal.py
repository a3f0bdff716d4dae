"""What probes still find of an attacked label, there and elsewhere, and what erasing it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import altair as alt
import polars as pl

from trisect.core.finding import Finding
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report import palette
from trisect.report.chart_data import Measure, Stroke, mean_of, of_runs
from trisect.report.panels import WIDTH, Figure, Level, Panel, heat
from trisect.report.parts import SitePanel, axis_of, change_panel, site_figure
from trisect.report.points import Point, interval, order

PROBES = {"linear": "linear probe", "mlp": "probe with a hidden layer"}
NOUNS = {"bits": "V-information", "accuracy": "Accuracy"}
GUESSED = {"bits": "by the labels' frequencies finds nothing", "accuracy": "always names the commonest"}
AFTER = {
    "plain": "Attacked there",
    "bounded": "Bounded attack there",
    "site": "Gradient limited to this projection",
    "bounded+site": "Bounded, gradient limited to this projection",
}
CELL = 15.0
GUESSING = Level("guessing", 0.0)
SAME = 1e-6  # nats: rounding of a mean over thousands of tokens


def figures(rows: StudyRows) -> Iterable[Figure]:
    """For each label: probes at the attacked sites, where the information went, and erasure."""
    for label in probed_labels(rows):
        for kind, name in product(PROBES, NOUNS):
            yield from _own(rows, label, kind, name)
        yield from _elsewhere(rows, label)
        yield from _erasure(rows, label)


def probed_labels(rows: StudyRows) -> list[str]:
    """The labels of which `sites` has measures, part of speech and dependency relation first."""
    labels = rows.sites["label"].drop_nulls().unique().to_list()
    return sorted(labels, key=lambda name: ({"pos": 0, "dep": 1}.get(name, 2), name))


def baselines(rows: StudyRows) -> list[str]:
    """The runs that nothing was done to."""
    return rows.runs.filter(pl.col("edit") == "none")["run"].to_list()


def own(rows: StudyRows, label: str, measure: str, variant: str = "plain") -> list[Point]:
    """A probe's number at the very site that was attacked, after the attack."""
    attacked = rows.runs.filter(rows.chosen("attack", label, variant=variant)).select("run", "site").rows()
    found = {(p.run, p.site): p for p in rows.measure(measure, "valid", label, [run for run, _ in attacked])}
    return [found[key] for key in attacked if key in found]


def removed(rows: StudyRows, label: str, measure: str, variant: str = "plain") -> list[Point]:
    """What an attack took from a probe at its own site: the baseline's number less the attacked run's, paired by seed."""
    before = {(p.seed, p.site): p.value for p in rows.measure(measure, "valid", label, baselines(rows))}
    return [
        p._replace(value=before[p.seed, p.site] - p.value)
        for p in own(rows, label, measure, variant)
        if (p.seed, p.site) in before
    ]


def _own(rows: StudyRows, label: str, kind: str, name: str) -> Iterable[Figure]:
    """Bits or accuracy of one kind of probe: the baseline's sites, and the sites that were attacked."""
    measure = f"probe_{kind}_{name}"
    found = {"Baseline": rows.measure(measure, "valid", label, baselines(rows))}
    found |= {title: own(rows, label, measure, variant) for variant, title in AFTER.items()}
    found = {title: points for title, points in found.items() if points}
    if len(found) < 2:
        return
    unit = {"bits": "bits", "accuracy": "share"}[name]
    chance = rows.measure("probe_majority", "valid", label) if name == "accuracy" else []
    level = GUESSING._replace(value=interval([p.value for p in chance]).mean) if chance else GUESSING
    every = [p for points in found.values() for p in points]
    axis = axis_of(every, unit, False, more=[level.value])
    panels = [
        SitePanel(title, points, Measure(f"{title}: {PROBES[kind]}, {name}", unit), axis, (level,))
        for title, points in found.items()
    ]
    caption = (
        f"{NOUNS[name]} of {study_words.label_name(label)} of the next word, by a fresh {PROBES[kind]} on held-out tokens, "
        f"{study_words.fitted(rows, 'probe', label)}; guessing {GUESSED[name]}. An adversary that was fooled proves nothing: only what "
        f"fresh probes no longer find was removed. {study_words.seeds(rows)}. In the baseline q, k and v of a layer are maps of one "
        "input, so that a linear probe finds in each what it finds in the others."
    )
    if lost := removed(rows, label, measure):
        if read := rows.readable(lost):
            caption += f" What the attack took from its own site: {study_words.extremes(read, unit)}"
        caption += study_words.from_collapsed(rows, lost)
    title = f"What is left of {study_words.label_name(label)} at the attacked site, by a {PROBES[kind]}: {name}"
    figure = f"removed-{words.slug(label)}-{kind}-{name}"
    yield site_figure((figure, study_words.BEYOND, title), caption, panels)


def _elsewhere(rows: StudyRows, label: str) -> Iterable[Figure]:
    """The change of every site's bits by the attacked site: blue-violet where it fell, orange where it rose."""
    panels = []
    changes = {kind: _changes(rows, label, f"probe_{kind}_bits") for kind in PROBES}
    changes = {kind: found for kind, found in changes.items() if found}
    most = max((abs(interval(v).mean) for of in changes.values() for v in of.values()), default=0.0) or 1.0
    for kind, found in changes.items():
        panels.append(_matrix(f"By a {PROBES[kind]}", found, most))
    if not panels:
        return
    caption = (
        f"Change of the bits that a fresh probe finds of {study_words.label_name(label)}, against the baseline of the same seed: "
        "the row is the attacked site, the column the probed one; the diagonal is the attacked site itself. An attack also trains "
        f"the layers under its site, so that sites there change too. Mean over seeds, the same colours in every panel. "
        f"{study_words.seeds(rows)}."
    )
    ramp = (-most, most, "bits")
    title = f"Where {study_words.label_name(label)} went"
    name = f"removed-{words.slug(label)}-elsewhere"
    yield Figure(name, study_words.BEYOND, title, caption, tuple(panels), (), ramp, stops=palette.DIVERGING)


def _changes(rows: StudyRows, label: str, measure: str) -> dict[tuple[str, str], list[float]]:
    """Attacked site, probed site -> one change a seed."""
    before = {(p.seed, p.site): p.value for p in rows.measure(measure, "valid", label, baselines(rows))}
    attacked = dict(rows.runs.filter(rows.chosen("attack", label)).select("run", "site").rows())
    found: dict[tuple[str, str], list[float]] = {}
    for point in rows.measure(measure, "valid", label, list(attacked)):
        if (point.seed, point.site) in before:
            change = point.value - before[point.seed, point.site]
            found.setdefault((attacked[point.run], point.site), []).append(change)
    return found


def _matrix(title: str, changes: Mapping[tuple[str, str], Sequence[float]], most: float) -> Panel:
    """One cell for each attacked and each probed site, coloured by the mean change."""
    down = sorted({site for site, _ in changes}, key=down_order)
    across = sorted({site for _, site in changes}, key=down_order)
    means = {key: interval(values).mean for key, values in changes.items()}
    rows = [{"attacked": a, "probed": p, "value": value} for (a, p), value in means.items()]
    axis = alt.Axis(ticks=False, domain=False, labelFontSize=11, labelAngle=-90, labelOverlap=False)
    x = alt.X("probed:O", sort=across, scale=alt.Scale(domain=across, paddingInner=0.06), title="probed", axis=axis)
    down_axis = alt.Axis(ticks=False, domain=False, labelFontSize=11, labelOverlap=False, minExtent=0)
    down_axis.titleY = -3  # below the numbers of the legend
    y = alt.Y(
        "attacked:O", sort=down, scale=alt.Scale(domain=down, paddingInner=0.06), title="attacked", axis=down_axis
    )
    size = (max(WIDTH / 2, CELL * len(across)), max(40.0, CELL * len(down)))
    chart = heat(title, rows, x, (y,), (-most, most), "bits", size, palette.DIVERGING)
    measure = Measure("change of bits", "bits", True)
    runs = {
        key: of_runs(
            [Point(f"{key[1]} after attack at {key[0]}", i, v) for i, v in enumerate(changes[key], 1)], measure
        )
        for key in means
    }
    wholes = [mean_of(runs[key]) for key in means]
    least, top = min(means, key=lambda k: means[k]), max(means, key=lambda k: means[k])
    said = (
        f"{title}: heat map of {len(down)} attacked by {len(across)} probed sites, in bits. Lowest {means[least]:.3g} at {least[1]} "
        f"after an attack at {least[0]}, highest {means[top]:.3g} at {top[1]} after an attack at {top[0]}."
    )
    return Panel(title, chart, said, tuple(wholes), {"cells": tuple(Stroke("", one) for one in wholes)})


def down_order(site: str) -> tuple[object, ...]:
    """Sort key: q at every layer, then k, then v, then the rest."""
    single, depth, layers, several, rank, group = order(site)
    return several, rank, group, single, depth, layers


def erased(rows: StudyRows, label: str) -> tuple[list[Point], list[Point]]:
    """Rise of the validation loss by erasing a label at a site, and by the random subspaces, their mean over draws."""
    rise = rows.measure("erase_rise_nats", "valid", label)
    draws: dict[tuple[str, int, str], list[float]] = {}
    for p in rows.measure("erase_random_rise_nats", "valid", label):
        draws.setdefault((p.site, p.seed, p.run), []).append(p.value)
    chance = [Point(site, seed, sum(v) / len(v), None, False, run) for (site, seed, run), v in draws.items()]
    return rise, chance


def beyond_chance(rows: StudyRows, label: str) -> list[Point]:
    """Rise by erasing the label less the mean rise by random subspaces of equal rank, by seed.

    A site where the label takes every direction is left out: any subspace is then the same, and nothing can be beyond it.
    """
    rise, chance = erased(rows, label)
    known = {(p.site, p.run): p.value for p in chance}
    whole = _taken_whole(rows, label)
    kept = [p for p in rise if (p.site, p.run) in known and (p.site, p.run) not in whole]
    return [p._replace(value=p.value - known[p.site, p.run]) for p in kept]


def _taken_whole(rows: StudyRows, label: str) -> set[tuple[str, str]]:
    """(site, run) where several random subspaces do the very same: there was no direction to choose."""
    draws: dict[tuple[str, str], list[float]] = {}
    for p in rows.measure("erase_random_rise_nats", "valid", label):
        draws.setdefault((p.site, p.run), []).append(p.value)
    return {key for key, values in draws.items() if len(values) > 1 and max(values) - min(values) < SAME}


def _erasure(rows: StudyRows, label: str) -> Iterable[Figure]:
    rise, chance = erased(rows, label)
    if not rise:
        return
    found = {"The label's subspace": rise} | ({"Random subspaces": chance} if chance else {})
    caption = (
        "Rise of the trained baseline's validation loss when everything that a linear probe could use of "
        f"{study_words.label_name(label)} is erased at one site (LEACE), and when random subspaces of the same rank are, "
        f"{study_words.fitted(rows, 'erase', label)}. {study_words.seeds(rows)}. Erasing the label: {study_words.extremes(rise, 'nats')}"
    )
    if ranks := [round(p.value) for split in ("train", "valid") for p in rows.measure("erase_rank", split, label)]:
        taken = " to ".join(str(n) for n in sorted({min(ranks), max(ranks)}))
        caption += (
            f" Directions removed from a site: {taken}; where these are all that it has, nothing can be beyond chance."
        )
    beyond = beyond_chance(rows, label)
    if beyond:
        caption += f" Beyond random subspaces: {study_words.extremes(beyond, 'nats')}"
    axis = axis_of([*rise, *chance], "nats, valid", bend=True)
    panels = [change_panel(n, ps, "valid", "rise of the validation loss", axis) for n, ps in found.items()]
    title = f"Erasing {study_words.label_name(label)} from the trained baseline"
    yield site_figure((f"erasure-{words.slug(label)}", study_words.BEYOND, title), caption, panels)


def findings(rows: StudyRows) -> Iterator[Finding]:
    """For each label what a linear probe no longer finds where it was attacked, and what erasing it costs."""
    for label in rows.labels:
        noun, site = study_words.label_name(label), "that a linear probe loses at the"
        if lost := removed(rows, label, "probe_linear_accuracy"):
            said, what = f"accuracy on {noun} {site} attacked site,", f"accuracy {site} site itself"
            yield study_words.finding(rows, "probe", "Removed", said, lost, "of the tokens", what, label, ranks=False)
        if lost := removed(rows, label, "probe_linear_bits"):
            before = rows.measure("probe_linear_bits", "valid", label, baselines(rows))
            sites = {p.site for p in rows.readable(lost) or lost}
            share = words.number(interval([p.value for p in before if p.site in sites]).mean)
            said = f"bits of {noun} that a linear probe no longer finds at the attacked site (of {share}),"
            what = "bits that a linear probe no longer finds at the site itself"
            yield study_words.finding(rows, "information", "Removed", said, lost, "bits", what, label, ranks=False)
        if rise := beyond_chance(rows, label):
            said = f"rise of the validation loss by erasing {noun} linearly, beyond random subspaces of equal rank,"
            what = "rise of the validation loss by LEACE, minus that by random subspaces"
            yield study_words.finding(rows, "erasure", "Erasure", said, rise, "nats", what, label, ranks=True)
