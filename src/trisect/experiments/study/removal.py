"""What probes still find of an attacked label, there and elsewhere, and what erasing it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import NamedTuple

import altair as alt
import polars as pl

from trisect.core.finding import Estimate, Finding
from trisect.core.methods import input_site, reads_head
from trisect.core.site import Site
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows
from trisect.papers.tying import SOURCE
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import (
    HEIGHT,
    PANEL_WIDTH,
    ZERO,
    Figure,
    LegendEntry,
    Level,
    Measure,
    Panel,
    SharedAxis,
    Stroke,
    around,
    chart_of,
    heat,
    lay,
    mean_of,
    of_runs,
)
from trisect.report.format import Mean, Point, interval, order, paired, place
from trisect.report.measures import SitePanel, axis_of, change_panel, cut, site_figure, with_means

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


def removal_figures(rows: StudyRows) -> Iterable[Figure]:
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
    yield Figure(name, study_words.BEYOND, title, caption, tuple(panels), (), ramp, stops=render.DIVERGING)


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
    size = (max(PANEL_WIDTH / 2, CELL * len(across)), max(40.0, CELL * len(down)))
    chart = heat(title, rows, x, (y,), (-most, most), "bits", size, render.DIVERGING)
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


def removal_findings(rows: StudyRows) -> Iterator[Finding]:
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


OWN, OTHERS, MAPS = "Heads of the attacked site", "Other heads of the layer", "Random maps"


class BitsLost(NamedTuple):
    """Bits that attacks took, at the attacked sites: from their own heads, from their layer's others, and from random maps."""

    own: list[Point]
    others: list[Point]
    maps: list[Point]

    @property
    def named(self) -> dict[str, list[Point]]:
        """Those of which there are any, by what lost them."""
        return {name: points for name, points in zip((OWN, OTHERS, MAPS), self, strict=True) if points}


def held(rows: StudyRows, label: str, kind: str = "linear", subjects: Sequence[str] | None = None) -> list[Point]:
    """Bits that probes find in single heads, their mean over each component and layer, as that component's site."""
    return _means(rows.measure(f"probe_{kind}_bits", "valid", label, subjects), _component)


def held_by_maps(
    rows: StudyRows, label: str, kind: str = "linear", subjects: Sequence[str] | None = None
) -> list[Point]:
    """Bits that probes find in random maps of a layer's input, their mean over draws, at q, k and v of the layer."""
    return _means(rows.measure(f"probe_{kind}_random_bits", "valid", label, subjects), lambda site: site)


def lost(rows: StudyRows, label: str, kind: str = "linear", variant: str = "plain") -> BitsLost:
    """What each attack takes: the bits of the same seed's baseline less those of the attacked model."""
    before = {(p.seed, p.site): p.value for p in _each(rows, label, kind, baselines(rows))}
    attacked = rows.runs.filter(rows.chosen("attack", label, variant=variant)).select("run", "site", "seed").rows()
    runs = [run for run, _, _ in attacked]
    taken: dict[str, dict[str, float]] = {}
    for p in _each(rows, label, kind, runs):
        if (p.seed, p.site) in before:
            taken.setdefault(p.run, {})[p.site] = before[p.seed, p.site] - p.value
    found = BitsLost([], [], [])
    for run, name, seed in attacked:
        site, of = Site.parse(name), taken.get(run, {})
        if not set(site.components) <= set("qkv"):
            continue
        for points, those in zip(found, _compared(site, of), strict=True):
            if those:
                points.append(Point(name, seed, fmean(of[one] for one in those), None, False, run))
    return found


def _each(rows: StudyRows, label: str, kind: str, subjects: Sequence[str]) -> list[Point]:
    """Bits of every single head, and of random maps their mean."""
    heads = [p for p in rows.measure(f"probe_{kind}_bits", "valid", label, subjects) if _component(p.site)]
    return [*heads, *held_by_maps(rows, label, kind, subjects)]


def head_figures(rows: StudyRows) -> Iterable[Figure]:
    """For each label and kind of probe: heads and random maps before the attacks, and what they lose to them."""
    for label in probed_labels(rows):
        for kind, noun in PROBES.items():
            heads = held(rows, label, kind, baselines(rows))
            if not heads:
                continue
            maps = held_by_maps(rows, label, kind, baselines(rows))
            yield _before(rows, label, kind, noun, heads, maps)
            taken = {variant: lost(rows, label, kind, variant) for variant in AFTER}
            if taken := {variant: found for variant, found in taken.items() if found.own}:
                yield _after(rows, label, kind, noun, taken)


def _before(rows: StudyRows, label: str, kind: str, noun: str, heads: Sequence[Point], maps: Sequence[Point]) -> Figure:
    shown = {"Heads": heads} | ({MAPS: maps} if maps else {})
    caption = f"{_bits(rows, label, noun)}, in one head of the baseline: mean over the heads of a component and layer. {_beside(maps)}"
    caption += f"{study_words.seeds(rows)}. Of heads: {study_words.extremes(heads, 'bits')}"
    title = f"What single heads hold of {study_words.label_name(label)}, by a {noun}"
    return _figure((_name(label, kind, "heads"), study_words.BEYOND, title), caption, shown, "bits", ())


def _after(rows: StudyRows, label: str, kind: str, noun: str, taken: Mapping[str, BitsLost]) -> Figure:
    shown = {
        name if variant == "plain" else f"{name}: {AFTER[variant].lower()}": points
        for variant, found in taken.items()
        for name, points in found.named.items()
    }
    every = [p for points in shown.values() for p in points]
    caption = (
        f"{_bits(rows, label, noun)}, in one head: what an attack takes from the heads of its own site, from other heads of q, k and v of "
        f"its layer, which read the same, and from random maps of it. {study_words.seeds(rows)}."
    )
    for variant, found in taken.items():
        beside = ((OTHERS.lower(), found.others), (MAPS.lower(), found.maps))
        own = rows.readable(found.own)
        said = [f"less those of {name} {gap}" for name, points in beside if (gap := _gap(own, points))]
        if said:
            caption += f" {AFTER[variant]}: bits lost by heads of the attacked site {', '.join(said)}."
    caption += study_words.from_collapsed(rows, every)
    title = f"What single heads lose of {study_words.label_name(label)}, by a {noun}"
    return _figure(
        (_name(label, kind, "heads-lost"), study_words.BEYOND, title), caption, shown, "bits removed", (ZERO,)
    )


def _figure(
    names: tuple[str, str, str], caption: str, shown: Mapping[str, Sequence[Point]], unit: str, levels: Sequence[Level]
) -> Figure:
    """One panel each, on the same axis."""
    axis = around([p.value for points in shown.values() for p in with_means(points)], unit, zero=bool(levels))
    panels = [SitePanel(n, ps, Measure(n, "bits", bool(levels)), axis, levels) for n, ps in shown.items()]
    return site_figure(names, caption, panels)


def _bits(rows: StudyRows, label: str, noun: str) -> str:
    said = f"V-information of {study_words.label_name(label)} of the next word, by a fresh {noun} on held-out tokens"
    return f"{said}, {study_words.fitted(rows, 'probe', label)}"


def _beside(maps: Sequence[Point]) -> str:
    if not maps:
        return "Without random maps of the same input (random_maps of a probe) it is not known what any map of a head's width holds. "
    return "Random maps of the layer's input, as wide as a head, show what any map of that width holds. "


def _gap(own: Sequence[Point], others: Sequence[Point]) -> str:
    """The mean over sites of the difference, with its interval over seeds."""
    beside = {(p.run, p.site): p.value for p in others}
    gaps: dict[int, list[float]] = {}
    for p in own:
        if (p.run, p.site) in beside:
            gaps.setdefault(p.seed, []).append(p.value - beside[p.run, p.site])
    return words.spoken(interval([fmean(values) for values in gaps.values()]), "bits") if gaps else ""


def _name(label: str, kind: str, what: str) -> str:
    return f"removed-{words.slug(label)}-{kind}-{what}"


def _component(name: str) -> str | None:
    """The whole component of a single head's site; null for other sites."""
    site = Site.parse(name)
    single = len(site.components) == len(site.layers or ()) == len(site.heads or ()) == 1
    return str(Site(site.components, site.layers)) if reads_head(site) and single else None


def _compared(site: Site, known: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Of the known sites the attacked heads, all other heads of the attacked layers, and the layers' random maps."""
    maps = {str(input_site(n)) for n in site.layers or ()}
    own, others = list[str](), list[str]()
    for name in known:
        one = Site.parse(name)
        if name in maps or not set(one.layers or ()) <= set(site.layers or ()):
            continue
        mine = set(one.components) <= set(site.components) and set(one.heads or ()) <= set(
            site.heads or one.heads or ()
        )
        (own if mine else others).append(name)
    return own, others, [name for name in known if name in maps]


def _means(points: Iterable[Point], whose: Callable[[str], str | None]) -> list[Point]:
    """The points' means by run and by the site that `whose` makes of theirs."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if site := whose(point.site):
            found.setdefault((point.run, site), []).append(point)
    return [of[0]._replace(site=site, value=fmean(p.value for p in of), at=None) for (_, site), of in found.items()]


EDITS = ("tie", "identity", "narrow")
DASHED = (5, 3)
WHAT = {
    "tie": "matrices that are one from the first step",
    "identity": "the identity in the place of a matrix",
    "narrow": "separate matrices in narrower heads (grey) that have as nearly as many parameters",
}


class Fewer(NamedTuple):
    """Models of one kind with fewer parameters: the edit, where, how many, and each seed's change against its baseline."""

    edit: str
    site: str
    parameters: int
    loss: tuple[Point, ...]
    train: tuple[Point, ...]
    accuracy: tuple[Point, ...]

    @property
    def name(self) -> str:
        """Such as `Q=K`, `V is the identity`, `narrower heads`."""
        return named(self.edit, self.site)


def named(edit: str, site: str) -> str:
    """An edit of matrices in words."""
    parts = place(site).group.upper().split("+")
    return {"tie": "=".join(parts), "identity": f"{parts[0]} the identity", "narrow": "narrower heads"}[edit]


def fewer(rows: StudyRows) -> list[Fewer]:
    """Every kind of model with fewer parameters that the study has, by layers, then as it stands in EDITS."""
    runs = rows.runs.filter(pl.col("edit").is_in(EDITS) & pl.col("parameters").is_not_null())
    ids: dict[tuple[str, str, int], set[str]] = {}
    for run, edit, site, parameters in runs.select("run", "edit", "site", "parameters").iter_rows():
        ids.setdefault((edit, site, parameters), set()).add(run)
    effects = {
        (edit, split, name): rows.effects(edit, split, name=name)
        for edit in EDITS
        for split, name in (("valid", "loss_nats"), ("train", "loss_nats"), ("valid", "accuracy"))
    }

    def mine(key: tuple[str, str, int], split: str, name: str = "loss_nats") -> tuple[Point, ...]:
        return tuple(p for p in effects[key[0], split, name] if p.run in ids[key])

    found = [Fewer(*key, mine(key, "valid"), mine(key, "train"), mine(key, "valid", "accuracy")) for key in ids]
    rank = {edit: i for i, edit in enumerate(EDITS)}

    def key(one: Fewer) -> tuple[object, ...]:
        return place(one.site).single, _layers(one.site), rank[one.edit], -one.parameters, one.site

    return sorted((f for f in found if f.loss), key=key)


def _layers(site: str) -> str:
    return place(site).layers


def parameters(rows: StudyRows) -> int | None:
    """How many parameters the baseline has."""
    found = rows.runs.filter(pl.col("edit") == "none")["parameters"].drop_nulls()
    return None if found.is_empty() else int(found[0])


def narrow_for(one: Fewer, found: Sequence[Fewer]) -> Fewer | None:
    """The narrower heads at the same layers that have as nearly as many parameters."""
    known = [f for f in found if f.edit == "narrow" and _layers(f.site) == _layers(one.site)]
    return min(known, key=lambda f: abs(f.parameters - one.parameters), default=None)


def less(one: Sequence[Point], other: Sequence[Point]) -> Mean | None:
    """The difference of two changes, paired by seed; null without a common seed."""
    values = {p.seed: p.value for p in other}
    both = [p.value - values[p.seed] for p in one if p.seed in values]
    return interval(both) if both else None


def tying_figures(rows: StudyRows) -> Iterable[Figure]:
    """Changes against parameters where several layers are tied, and by layer where single ones are."""
    found = fewer(rows)
    whole = [f for f in found if not place(f.site).single]
    if whole:
        yield _against(rows, whole)
    yield from _by_layer(rows, [f for f in found if place(f.site).single and f.edit == "tie"])


def _against(rows: StudyRows, found: Sequence[Fewer]) -> Figure:
    full = parameters(rows)
    shown: list[tuple[SharedAxis, Sequence[Point]]] = []
    panels = []
    for title, unit, of in (
        ("Validation loss", "nats, valid", [f.loss for f in found]),
        ("Accuracy", "share, valid", [f.accuracy for f in found]),
        ("Train loss", "nats, train", [f.train for f in found]),
    ):
        kept = [(f, points) for f, points in zip(found, of, strict=True) if points]
        if kept:
            axis = around([p.value for _, points in kept for p in with_means(points)], unit, zero=True)
            panels.append(_panel(title, kept, axis, full))
            shown += [(axis, points) for _, points in kept]
    count = "" if full is None else f" The baseline has {words.count(full)}."
    caption = (
        "Difference to the baseline of the same seed against the parameters of the whole model: "
        f"{words.listed([WHAT[edit] for edit in EDITS if any(f.edit == edit for f in found)])}. "
        f"Here {_where(found)}.{count} Marks are means over seeds, bars 95 % intervals. {study_words.seeds(rows)}."
        f"{study_words.from_diverged([p for _, points in shown for p in points])}{cut(shown)}"
    )
    return Figure("tying", study_words.BEYOND, "Three matrices or fewer", caption, tuple(panels), _key(found))


def _where(found: Iterable[Fewer]) -> str:
    return f"at layers {words.listed(list(dict.fromkeys(_layers(f.site) for f in found)))}"


def _look(one: Fewer) -> tuple[str, str]:
    """Shape and colour of a mark."""
    if one.edit == "narrow":
        return "circle", render.BASELINE
    mark = render.mark(place(one.site).group)
    return mark.shape, mark.colour


def _key(found: Sequence[Fewer]) -> tuple[LegendEntry, ...]:
    looks = {f.name: _look(f) for f in found}
    return (
        *(LegendEntry(name, colour, shape) for name, (shape, colour) in looks.items()),
        LegendEntry(ZERO.name, render.BASELINE, None, DASHED),
    )


def _panel(title: str, found: Sequence[tuple[Fewer, Sequence[Point]]], axis: SharedAxis, full: int | None) -> Panel:
    measure = Measure(f"change of {title.lower()}", axis.unit.partition(",")[0], True)
    data, seeds, bars = [], [], []
    strokes: dict[str, list[Stroke]] = {"seeds": [], "bars": [], "main": []}
    series = []
    for one, points in found:
        shape, colour = _look(one)
        row = {"parameters": one.parameters / 1000, "shape": shape, "colour": colour, "name": one.name}
        runs = [
            run._replace(site=f"{one.name} ({words.count(one.parameters)} parameters)")
            for run in of_runs(points, measure)
        ]
        whole = mean_of(runs)
        mean = interval([p.value for p in points])
        data.append(row | {"value": mean.mean})
        strokes["main"].append(Stroke(one.name, whole))
        if mean.low is not None:
            bars.append(row | {"low": mean.low, "high": mean.high})
            strokes["bars"].append(Stroke(one.name))
        if len(runs) > 1:
            seeds += [row | {"value": run.values[0]} for run in runs]
            strokes["seeds"] += [Stroke(one.name, run) for run in runs]
        series += [*runs, whole]
    reach = [row["parameters"] for row in data] + ([full / 1000] if full else [])
    air = 0.08 * (max(reach) - min(reach)) or 1.0
    scale = alt.Scale(domain=[min(reach) - air, max(reach) + air], nice=False, zero=False)
    x = alt.X("parameters:Q", scale=scale, title="thousand parameters", axis=alt.Axis(tickCount=4))
    colour_, shape_ = alt.Color("colour:N", scale=None), alt.Shape("shape:N", scale=None)
    line = chart_of("level0", [{"level": 0.0}]).mark_rule(color=render.BASELINE, strokeDash=list(DASHED))
    layers = [line.encode(axis.axis("level"))]
    if seeds:
        dots = chart_of("seeds", seeds).mark_point(size=13, strokeWidth=1, opacity=1, filled=False)
        layers.append(dots.encode(x, axis.axis("value"), colour_, shape_))
    if bars:
        ranged = chart_of("bars", bars).mark_rule(strokeWidth=1.6)
        layers.append(ranged.encode(x, axis.axis("low"), alt.Y2("high"), colour_))
    heads = chart_of("main", data).mark_point(size=60, filled=True, opacity=1)
    layers.append(heads.encode(x, axis.axis("value"), colour_, shape_))
    said = "; ".join(f"{row['name']} {row['value']:.3g} with {row['parameters']:.4g} thousand" for row in data)
    drawn = {"level0": (Stroke(ZERO.name),)} | {name: tuple(of) for name, of in strokes.items() if of}
    chart = lay(title, *layers, width=PANEL_WIDTH, height=HEIGHT)
    return Panel(title, chart, f"{title}: change against parameters, in {axis.unit}. {said}.", tuple(series), drawn)


def _by_layer(rows: StudyRows, found: Sequence[Fewer]) -> Iterable[Figure]:
    panels = []
    for split, of in (("valid", [f.loss for f in found]), ("train", [f.train for f in found])):
        if points := [p for one in of for p in one]:
            title = f"{study_words.SPLIT[split].capitalize()} loss"
            noun, axis = (
                Measure(f"change of {title.lower()}", "nats", True),
                axis_of(points, f"nats, {split}", bend=True),
            )
            panels.append(SitePanel(title, points, noun, axis))
    if panels:
        caption = "Difference to the baseline of the same seed when matrices of one layer are one from the first step."
        names = ("tying-layers", study_words.BEYOND, "Fewer matrices in one layer")
        yield site_figure(names, f"{caption} {study_words.seeds(rows)}.", panels)


def tying_findings(rows: StudyRows) -> Iterator[Finding]:
    """What fewer matrices cost, by component and by model; nothing without them."""
    found = fewer(rows)
    if shared := {c: interval(list(values.values())) for c, values in _by_seed(rows).items()}:
        said = words.listed([f"{c} {words.spoken(mean, 'nats')}" for c, mean in shared.items()])
        what = f"{study_words.VALID} when it shares its matrix with one other, mean of two ties"
        values = tuple(Estimate(c, *mean) for c, mean in shared.items())
        compared = paired(_by_seed(rows), study_words.MARGIN)
        order_ = "" if compared is None else compared.words()
        yield Finding(
            "tying",
            f"{what}: {said}{'; ' * bool(order_)}{order_}.",
            "nats",
            values,
            order_,
            SOURCE.key,
            title="Tying",
            what=what,
            per="seed",
            compared=compared,
        )
    whole = [f for f in found if not place(f.site).single]
    if costs := [_cost(one, found, parameters(rows)) for one in whole if one.edit != "narrow"]:
        said = "; ".join(text for text, _ in costs)
        what = f"{study_words.VALID} against three separate matrices, {_where(whole)}"
        values = tuple(value for _, of in costs for value in of)
        yield Finding(
            "matrices", f"{what}: {said}.", "nats", values, "", SOURCE.key, title="Tying", what=what, per="seed"
        )


def _by_seed(rows: StudyRows) -> dict[str, dict[int, float]]:
    """By component and seed the mean over the pairs tied in every layer that hold it."""
    pairs: dict[str, dict[int, list[float]]] = {c: {} for c in ("q", "k", "v")}
    for point in rows.effects("tie", "valid"):
        parts = place(point.site).group.split("+")
        for component in parts if len(parts) == 2 and not place(point.site).single else ():
            pairs[component].setdefault(point.seed, []).append(point.value)
    return {c: {s: sum(x) / len(x) for s, x in by_seed.items()} for c, by_seed in pairs.items() if by_seed}


def _cost(one: Fewer, found: Sequence[Fewer], full: int | None) -> tuple[str, list[Estimate]]:
    """What one model loses against the baseline and against narrower heads: in words, and as numbers."""
    share = "" if not full else f" with {100 * (full - one.parameters) / full:.1f} % fewer parameters"
    mean = interval([p.value for p in one.loss])
    text, values = f"{one.name}{share} {words.spoken(mean, 'nats')}", [Estimate(one.name, *mean)]
    beside = narrow_for(one, found)
    if against := less(one.loss, beside.loss) if beside else None:
        text += f", against narrower heads {words.spoken(against, 'nats')}"
        values.append(Estimate(f"{one.name} minus narrower heads", *against))
    return text, values
