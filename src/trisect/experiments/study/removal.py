"""What probes still find of an attacked label, there and elsewhere, what erasing it costs, and models with fewer matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import altair as alt
import polars as pl

from trisect.core.finding import Estimate, Finding
from trisect.core.methods import input_site, reads_head
from trisect.core.site import Site
from trisect.experiments.study.rows import StudyRows, averaged, minus, over_seeds, sort_labels
from trisect.experiments.study.words import (
    BEYOND,
    MARGIN,
    SPLIT,
    VALID,
    extremes,
    finding,
    fitted,
    from_collapsed,
    from_diverged,
    label_name,
    seeds,
)
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
    heat,
    lay,
    marks,
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
BITS = "probe_linear_bits"
SAME = 1e-6  # nats: rounding of a mean over thousands of tokens


def removal_figures(rows: StudyRows) -> Iterable[Figure]:
    """For each label: probes at the attacked sites, where the information went, and erasure."""
    for label in sort_labels(rows.sites["label"]):
        for kind, name in product(PROBES, NOUNS):
            yield from _probed(rows, label, kind, name)
        yield from _elsewhere(rows, label)
        yield from _erasure(rows, label)


def attacked_there(rows: StudyRows, label: str, measure: str, variant: str = "plain") -> list[Point]:
    """A probe's number at the very site that was attacked, after the attack."""
    attacked = rows.runs.filter(rows.chosen("attack", label, variant=variant)).select("run", "site").rows()
    found = {(p.run, p.site): p for p in rows.measure(measure, "valid", label, [run for run, _ in attacked])}
    return [found[key] for key in attacked if key in found]


def removed(rows: StudyRows, label: str, measure: str, variant: str = "plain") -> list[Point]:
    """What an attack took from a probe at its own site: the baseline's number less the attacked run's, paired by seed."""
    before = rows.measure(measure, "valid", label, rows.baselines)
    return minus(attacked_there(rows, label, measure, variant), before, times=-1)


def _probed(rows: StudyRows, label: str, kind: str, name: str) -> Iterable[Figure]:
    """Bits or accuracy of one kind of probe: the baseline's sites, and the sites that were attacked."""
    measure, unit, noun = f"probe_{kind}_{name}", "bits" if name == "bits" else "share", label_name(label)
    found = {"Baseline": rows.measure(measure, "valid", label, rows.baselines)}
    found |= {title: attacked_there(rows, label, measure, variant) for variant, title in AFTER.items()}
    found = {title: points for title, points in found.items() if points}
    if len(found) < 2:
        return
    chance = rows.measure("probe_majority", "valid", label) if name == "accuracy" else []
    level = GUESSING._replace(value=interval([p.value for p in chance]).mean) if chance else GUESSING
    axis = axis_of([p for points in found.values() for p in points], unit, False, more=[level.value])
    panels = [
        SitePanel(title, points, Measure(f"{title}: {PROBES[kind]}, {name}", unit), axis, (level,))
        for title, points in found.items()
    ]
    caption = (
        f"{NOUNS[name]} of {noun} of the next word, by a fresh {PROBES[kind]} on held-out tokens, {fitted(rows, 'probe', label)}; "
        f"guessing {GUESSED[name]}. An adversary that was fooled proves nothing: only what fresh probes no longer find was removed. "
        f"{seeds(rows)}. In the baseline q, k and v of a layer are maps of one input, so that a linear probe finds in each what it "
        "finds in the others."
    )
    if lost := removed(rows, label, measure):
        if read := rows.readable(lost):
            caption += f" What the attack took from its own site: {extremes(read, unit)}"
        caption += from_collapsed(rows, lost)
    title = f"What is left of {noun} at the attacked site, by a {PROBES[kind]}: {name}"
    yield site_figure((f"removed-{words.slug(label)}-{kind}-{name}", BEYOND, title), caption, panels)


def _elsewhere(rows: StudyRows, label: str) -> Iterable[Figure]:
    """The change of every site's bits by the attacked site: blue-violet where it fell, orange where it rose."""
    attacked = dict(rows.runs.filter(rows.chosen("attack", label)).select("run", "site").rows())
    changes: dict[str, dict[tuple[str, str], list[float]]] = {}  # by attacked and probed site, one a seed
    for kind, noun in PROBES.items():
        before = rows.measure(f"probe_{kind}_bits", "valid", label, rows.baselines)
        after = rows.measure(f"probe_{kind}_bits", "valid", label, list(attacked))
        for p in minus(after, before):
            changes.setdefault(f"By a {noun}", {}).setdefault((attacked[p.run], p.site), []).append(p.value)
    if not changes:
        return
    most = max(abs(interval(v).mean) for of in changes.values() for v in of.values()) or 1.0
    caption = (
        f"Change of the bits that a fresh probe finds of {label_name(label)}, against the baseline of the same seed: "
        "the row is the attacked site, the column the probed one; the diagonal is the attacked site itself. An attack also trains "
        f"the layers under its site, so that sites there change too. Mean over seeds, the same colours in every panel. {seeds(rows)}."
    )
    names = (f"removed-{words.slug(label)}-elsewhere", BEYOND, f"Where {label_name(label)} went")
    panels = tuple(_matrix(title, of, most) for title, of in changes.items())
    yield Figure(*names, caption, panels, (), (-most, most, "bits"), stops=render.DIVERGING)


def _matrix(title: str, changes: Mapping[tuple[str, str], Sequence[float]], most: float) -> Panel:
    """One cell for each attacked and each probed site, coloured by the mean change."""

    def down_order(site: str) -> tuple[object, ...]:  # q at every layer, then k, then v, then the rest
        single, depth, layers, several, rank, group = order(site)
        return several, rank, group, single, depth, layers

    down, across = (sorted({key[i] for key in changes}, key=down_order) for i in (0, 1))
    look = {"ticks": False, "domain": False, "labelFontSize": 11, "labelOverlap": False}
    scales = [alt.Scale(domain=of, paddingInner=0.06) for of in (across, down)]
    x = alt.X("probed:O", sort=across, scale=scales[0], title="probed", axis=alt.Axis(labelAngle=-90, **look))
    axis = alt.Axis(minExtent=0, titleY=-3, **look)  # the title below the numbers of the legend
    y = alt.Y("attacked:O", sort=down, scale=scales[1], title="attacked", axis=axis)
    means = {key: interval(values).mean for key, values in changes.items()}
    cells = [{"attacked": a, "probed": p, "value": value} for (a, p), value in means.items()]
    size = (max(PANEL_WIDTH / 2, CELL * len(across)), max(40.0, CELL * len(down)))
    chart = heat(title, cells, x, (y,), (-most, most), "bits", size, render.DIVERGING)
    wholes = []
    for (a, p), values in changes.items():
        points = [Point(f"{p} after attack at {a}", i, value) for i, value in enumerate(values, 1)]
        wholes.append(mean_of(of_runs(points, Measure("change of bits", "bits", True))))
    (least, low), (top, high) = (find(means.items(), key=lambda of: of[1]) for find in (min, max))
    said = (
        f"{title}: heat map of {len(down)} attacked by {len(across)} probed sites, in bits. Lowest {low:.3g} at {least[1]} "
        f"after an attack at {least[0]}, highest {high:.3g} at {top[1]} after an attack at {top[0]}."
    )
    return Panel(title, chart, said, tuple(wholes), {"cells": tuple(Stroke("", one) for one in wholes)})


def erased(rows: StudyRows, label: str) -> tuple[list[Point], list[Point]]:
    """Rise of the validation loss by erasing a label at a site, and by the random subspaces, their mean over draws."""
    draws = rows.measure("erase_random_rise_nats", "valid", label)
    chance = averaged(draws, lambda p: (p.site, p.run)).values()
    return rows.measure("erase_rise_nats", "valid", label), [p._replace(diverged=False) for p in chance]


def beyond_chance(rows: StudyRows, label: str) -> list[Point]:
    """Rise by erasing the label less the mean rise by random subspaces of equal rank, by seed.

    A site where the label takes every direction is left out: any subspace is then the same, and nothing can be beyond it.
    """
    draws: dict[tuple[str, str], list[float]] = {}
    for p in rows.measure("erase_random_rise_nats", "valid", label):
        draws.setdefault((p.site, p.run), []).append(p.value)
    whole = {key for key, values in draws.items() if len(values) > 1 and max(values) - min(values) < SAME}
    return [p for p in minus(*erased(rows, label), "site", "run") if (p.site, p.run) not in whole]


def _erasure(rows: StudyRows, label: str) -> Iterable[Figure]:
    rise, chance = erased(rows, label)
    if not rise:
        return
    caption = (
        "Rise of the trained baseline's validation loss when everything that a linear probe could use of "
        f"{label_name(label)} is erased at one site (LEACE), and when random subspaces of the same rank are, "
        f"{fitted(rows, 'erase', label)}. {seeds(rows)}. Erasing the label: {extremes(rise, 'nats')}"
    )
    if ranks := [round(p.value) for split in ("train", "valid") for p in rows.measure("erase_rank", split, label)]:
        taken = " to ".join(str(n) for n in sorted({min(ranks), max(ranks)}))
        caption += (
            f" Directions removed from a site: {taken}; where these are all that it has, nothing can be beyond chance."
        )
    if beyond := beyond_chance(rows, label):
        caption += f" Beyond random subspaces: {extremes(beyond, 'nats')}"
    axis, noun = axis_of([*rise, *chance], "nats, valid", bend=True), "rise of the validation loss"
    panels = [change_panel("The label's subspace", rise, "valid", noun, axis)]
    panels += [change_panel("Random subspaces", chance, "valid", noun, axis)] if chance else []
    names = (f"erasure-{words.slug(label)}", BEYOND, f"Erasing {label_name(label)} from the trained baseline")
    yield site_figure(names, caption, panels)


def removal_findings(rows: StudyRows) -> Iterator[Finding]:
    """For each label what a linear probe no longer finds where it was attacked, and what erasing it costs."""
    for label in rows.labels:
        noun, site = label_name(label), "that a linear probe loses at the"
        if lost := removed(rows, label, "probe_linear_accuracy"):
            said, what = f"accuracy on {noun} {site} attacked site,", f"accuracy {site} site itself"
            yield finding(rows, "probe", "Removed", said, lost, "of the tokens", what, label, ranks=False)
        if lost := removed(rows, label, BITS):
            sites = {p.site for p in rows.readable(lost) or lost}
            before = rows.measure(BITS, "valid", label, rows.baselines)
            share = words.number(interval([p.value for p in before if p.site in sites]).mean)
            said = f"bits of {noun} that a linear probe no longer finds at the attacked site (of {share}),"
            what = "bits that a linear probe no longer finds at the site itself"
            yield finding(rows, "information", "Removed", said, lost, "bits", what, label, ranks=False)
        if rise := beyond_chance(rows, label):
            said = f"rise of the validation loss by erasing {noun} linearly, beyond random subspaces of equal rank,"
            what = "rise of the validation loss by LEACE, minus that by random subspaces"
            yield finding(rows, "erasure", "Erasure", said, rise, "nats", what, label, ranks=True)


OWN, OTHERS, MAPS = "Heads of the attacked site", "Other heads of the layer", "Random maps"


def in_heads(rows: StudyRows, label: str, kind: str = "linear", subjects: Sequence[str] | None = None) -> list[Point]:
    """Bits that probes find in single heads, their mean over each component and layer, as that component's site."""
    points = rows.measure(f"probe_{kind}_bits", "valid", label, subjects)
    means = averaged(points, lambda p: (p.run, site) if (site := _component(p.site)) else None)
    return [p._replace(site=site) for (_, site), p in means.items()]


def in_maps(rows: StudyRows, label: str, kind: str = "linear", subjects: Sequence[str] | None = None) -> list[Point]:
    """Bits that probes find in random maps of a layer's input, their mean over draws, at q, k and v of the layer."""
    points = rows.measure(f"probe_{kind}_random_bits", "valid", label, subjects)
    return list(averaged(points, lambda p: (p.run, p.site)).values())


def _component(name: str) -> str | None:
    """The whole component of a single head's site; None for other sites."""
    site = Site.parse(name)
    single = len(site.components) == len(site.layers or ()) == len(site.heads or ()) == 1
    return str(Site(site.components, site.layers)) if reads_head(site) and single else None


def lost(rows: StudyRows, label: str, kind: str = "linear", variant: str = "plain") -> dict[str, list[Point]]:
    """Bits that attacks took, at the attacked sites: from their own heads, from their layer's others, and from random maps.

    They are those of the same seed's baseline less those of the attacked model.
    """
    attacked = rows.runs.filter(rows.chosen("attack", label, variant=variant)).select("run", "site").rows()
    sites = {run: Site.parse(name) for run, name in attacked}

    def bits(subjects: Sequence[str]) -> list[Point]:
        heads = [p for p in rows.measure(f"probe_{kind}_bits", "valid", label, subjects) if _component(p.site)]
        return [*heads, *in_maps(rows, label, kind, subjects)]

    def whose(p: Point) -> tuple[str, str] | None:
        site, one = sites[p.run], Site.parse(p.site)
        layers = set(site.layers or ())
        if not set(site.components) <= set("qkv") or not set(one.layers or ()) <= layers:
            return None
        if p.site in {str(input_site(n)) for n in layers}:
            return p.run, MAPS
        heads = set(site.heads or one.heads or ())
        own = set(one.components) <= set(site.components) and set(one.heads or ()) <= heads
        return p.run, OWN if own else OTHERS

    taken = averaged(minus(bits(list(sites)), bits(rows.baselines), times=-1), whose)
    found: dict[str, list[Point]] = {OWN: [], OTHERS: [], MAPS: []}
    for run, name in attacked:
        for group, points in found.items():
            if (run, group) in taken:
                points.append(taken[run, group]._replace(site=name, diverged=False))
    return found


def head_figures(rows: StudyRows) -> Iterable[Figure]:
    """For each label and kind of probe: heads and random maps before the attacks, and what they lose to them."""
    for label, kind in product(sort_labels(rows.sites["label"]), PROBES):
        heads, maps = (of(rows, label, kind, rows.baselines) for of in (in_heads, in_maps))
        if not heads:
            continue
        noun, name = label_name(label), f"removed-{words.slug(label)}-{kind}-heads"
        bits = f"V-information of {noun} of the next word, by a fresh {PROBES[kind]} on held-out tokens, {fitted(rows, 'probe', label)}"
        beside = "Random maps of the layer's input, as wide as a head, show what any map of that width holds."
        if not maps:
            beside = "Without random maps of the same input (random_maps of a probe) it is not known what any map of a head's width holds."
        caption = f"{bits}, in one head of the baseline: mean over the heads of a component and layer. {beside} "
        caption += f"{seeds(rows)}. Of heads: {extremes(heads, 'bits')}"
        title = f"What single heads hold of {noun}, by a {PROBES[kind]}"
        yield _bits_figure((name, BEYOND, title), caption, {"Heads": heads, MAPS: maps}, "bits", ())
        taken = {variant: lost(rows, label, kind, variant) for variant in AFTER}
        taken = {variant: found for variant, found in taken.items() if found[OWN]}
        shown = {
            group if variant == "plain" else f"{group}: {AFTER[variant].lower()}": points
            for variant, found in taken.items()
            for group, points in found.items()
        }
        caption = (
            f"{bits}, in one head: what an attack takes from the heads of its own site, from other heads of q, k and v of "
            f"its layer, which read the same, and from random maps of it. {seeds(rows)}."
        )
        for variant, found in taken.items():
            gaps = {g.lower(): minus(rows.readable(found[OWN]), found[g], "run", "site") for g in (OTHERS, MAPS)}
            said = [f"less those of {g} {words.spoken(over_seeds(gap), 'bits')}" for g, gap in gaps.items() if gap]
            if said:
                caption += f" {AFTER[variant]}: bits lost by heads of the attacked site {', '.join(said)}."
        if taken:
            caption += from_collapsed(rows, [p for points in shown.values() for p in points])
            title = f"What single heads lose of {noun}, by a {PROBES[kind]}"
            yield _bits_figure((f"{name}-lost", BEYOND, title), caption, shown, "bits removed", (ZERO,))


def _bits_figure(
    names: tuple[str, str, str], caption: str, shown: Mapping[str, Sequence[Point]], unit: str, levels: Sequence[Level]
) -> Figure:
    """One panel for each that has points, on the same axis."""
    axis = around([p.value for points in shown.values() for p in with_means(points)], unit, zero=bool(levels))
    panels = [SitePanel(n, ps, Measure(n, "bits", bool(levels)), axis, levels) for n, ps in shown.items() if ps]
    return site_figure(names, caption, panels)


EDITS = ("tie", "identity", "narrow")
WHAT = {
    "tie": "matrices that are one from the first step",
    "identity": "the identity in the place of a matrix",
    "narrow": "separate matrices in narrower heads (grey) that have as nearly as many parameters",
}
CHANGES = {  # of what a figure shows: split, metric and unit
    "Validation loss": ("valid", "loss_nats", "nats, valid"),
    "Accuracy": ("valid", "accuracy", "share, valid"),
    "Train loss": ("train", "loss_nats", "nats, train"),
}


class Fewer(NamedTuple):
    """Models of one kind with fewer parameters: the edit, where, how many, and each seed's changes by what CHANGES names."""

    edit: str
    site: str
    parameters: int
    changes: Mapping[str, list[Point]]

    @property
    def loss(self) -> list[Point]:
        """Each seed's change of the validation loss."""
        return self.changes["Validation loss"]

    @property
    def name(self) -> str:
        """Such as `Q=K`, `V is the identity`, `narrower heads`."""
        parts = place(self.site).group.upper().split("+")
        return {"tie": "=".join(parts), "identity": f"{parts[0]} the identity", "narrow": "narrower heads"}[self.edit]

    @property
    def mark(self) -> render.Mark:
        """Shape and colour of its mark."""
        narrow = render.Mark(render.BASELINE, "circle")
        return narrow if self.edit == "narrow" else render.mark(place(self.site).group)


def fewer(rows: StudyRows) -> list[Fewer]:
    """Every kind of model with fewer parameters that the study has, by layers, then as it stands in EDITS."""
    runs = rows.runs.filter(pl.col("edit").is_in(EDITS) & pl.col("parameters").is_not_null())
    ids: dict[tuple[str, str, int], set[str]] = {}
    for run, edit, site, parameters in runs.select("run", "edit", "site", "parameters").iter_rows():
        ids.setdefault((edit, site, parameters), set()).add(run)
    effects = {
        (edit, title): rows.effects(edit, split, name=name)
        for edit in EDITS
        for title, (split, name, _) in CHANGES.items()
    }
    found = [
        Fewer(*key, {title: [p for p in effects[key[0], title] if p.run in own] for title in CHANGES})
        for key, own in ids.items()
    ]

    def rank(one: Fewer) -> tuple[object, ...]:
        at = place(one.site)
        return at.single, at.layers, EDITS.index(one.edit), -one.parameters, one.site

    return sorted((one for one in found if one.loss), key=rank)


def parameters(rows: StudyRows) -> int | None:
    """How many parameters the baseline has."""
    found = rows.runs.filter(pl.col("edit") == "none")["parameters"].drop_nulls()
    return None if found.is_empty() else int(found[0])


def against_narrow(one: Fewer, found: Sequence[Fewer]) -> Mean | None:
    """The loss less that of the narrower heads at the same layers with as nearly as many parameters, paired by seed.

    Null without such, or without a common seed.
    """
    known = [f for f in found if f.edit == "narrow" and place(f.site).layers == place(one.site).layers]
    beside = min(known, key=lambda f: abs(f.parameters - one.parameters), default=None)
    gaps = minus(one.loss, beside.loss, "seed") if beside else []
    return interval([p.value for p in gaps]) if gaps else None


def tying_figures(rows: StudyRows) -> Iterable[Figure]:
    """Changes against parameters where several layers are tied, and by layer where single ones are."""
    found = fewer(rows)
    if whole := [one for one in found if not place(one.site).single]:
        yield _by_parameters(rows, whole)
    single, panels = [one for one in found if place(one.site).single and one.edit == "tie"], []
    for split in ("valid", "train"):
        title = f"{SPLIT[split].capitalize()} loss"
        if points := [p for one in single for p in one.changes[title]]:
            axis = axis_of(points, f"nats, {split}", bend=True)
            panels.append(SitePanel(title, points, Measure(f"change of {title.lower()}", "nats", True), axis))
    if panels:
        caption = "Difference to the baseline of the same seed when matrices of one layer are one from the first step."
        yield site_figure(("tying-layers", BEYOND, "Fewer matrices in one layer"), f"{caption} {seeds(rows)}.", panels)


def _by_parameters(rows: StudyRows, found: Sequence[Fewer]) -> Figure:
    full = parameters(rows)
    shown: list[tuple[SharedAxis, Sequence[Point]]] = []
    panels = []
    for title, (_, _, unit) in CHANGES.items():
        kept = [(one, points) for one in found if (points := one.changes[title])]
        if kept:
            axis = around([p.value for _, points in kept for p in with_means(points)], unit, zero=True)
            panels.append(_parameter_panel(title, kept, axis, full))
            shown += [(axis, points) for _, points in kept]
    count = "" if full is None else f" The baseline has {words.count(full)}."
    caption = (
        "Difference to the baseline of the same seed against the parameters of the whole model: "
        f"{words.listed([WHAT[edit] for edit in EDITS if any(f.edit == edit for f in found)])}. "
        f"Here {_where(found)}.{count} Marks are means over seeds, bars 95 % intervals. {seeds(rows)}."
        f"{from_diverged([p for _, points in shown for p in points])}{cut(shown)}"
    )
    key = [LegendEntry(name, *mark) for name, mark in {one.name: one.mark for one in found}.items()]
    key.append(LegendEntry(ZERO.name, render.BASELINE, None, ZERO.dash))
    return Figure("tying", BEYOND, "Three matrices or fewer", caption, tuple(panels), tuple(key))


def _where(found: Iterable[Fewer]) -> str:
    return f"at layers {words.listed(list(dict.fromkeys(place(f.site).layers for f in found)))}"


def _parameter_panel(
    title: str, found: Sequence[tuple[Fewer, Sequence[Point]]], axis: SharedAxis, full: int | None
) -> Panel:
    """The mean and 95 % interval of every kind of model, each seed's point beside it; x is its parameters."""
    measure = Measure(f"change of {title.lower()}", axis.unit.partition(",")[0], True)
    data, small, series = [], [], []
    strokes: dict[str, list[Stroke]] = {"level0": [Stroke(ZERO.name)], "seeds": [], "bars": [], "main": []}
    for one, points in found:
        site = f"{one.name} ({words.count(one.parameters)} parameters)"
        runs = [run._replace(site=site) for run in of_runs(points, measure)]
        row, whole = {"parameters": one.parameters / 1000, "group": one.name}, mean_of(runs)
        mean = interval([p.value for p in points])
        data.append(row | {"value": mean.mean, "low": mean.low, "high": mean.high})
        strokes["main"].append(Stroke(one.name, whole))
        strokes["bars"] += [Stroke(one.name)] if mean.low is not None else []
        if len(runs) > 1:
            small += [row | {"value": run.values[0]} for run in runs]
            strokes["seeds"] += [Stroke(one.name, run) for run in runs]
        series += [*runs, whole]
    reach = [row["parameters"] for row in data] + ([full / 1000] if full else [])
    air = 0.08 * (max(reach) - min(reach)) or 1.0
    scale = alt.Scale(domain=[min(reach) - air, max(reach) + air], nice=False, zero=False)
    x = alt.X("parameters:Q", scale=scale, title="thousand parameters", axis=alt.Axis(tickCount=4))
    looks = {one.name: one.mark for one, _ in found}
    chart = lay(title, *marks(data, axis, x, looks, None, (ZERO,), small), width=PANEL_WIDTH, height=HEIGHT)
    said = "; ".join(f"{row['group']} {row['value']:.3g} with {row['parameters']:.4g} thousand" for row in data)
    drawn = {name: tuple(of) for name, of in strokes.items() if of}
    return Panel(title, chart, f"{title}: change against parameters, in {axis.unit}. {said}.", tuple(series), drawn)


def tying_findings(rows: StudyRows) -> Iterator[Finding]:
    """What fewer matrices cost, by component and by model; nothing without them."""
    found = fewer(rows)
    shared: dict[
        str, dict[int, float]
    ] = {}  # by component and seed, mean over the pairs tied in every layer that hold it
    ties = [p for p in rows.effects("tie", "valid") if not place(p.site).single]
    pairs = [(p, place(p.site).group.split("+")) for p in ties if place(p.site).group.count("+") == 1]
    for component in "qkv":
        if own := averaged((p for p, parts in pairs if component in parts), lambda p: p.seed):
            shared[component] = {seed: p.value for seed, p in own.items()}
    if shared:
        values = tuple(Estimate(c, *interval(list(of.values()))) for c, of in shared.items())
        said = words.listed([f"{c} {words.spoken(interval(list(of.values())), 'nats')}" for c, of in shared.items()])
        what = f"{VALID} when it shares its matrix with one other, mean of two ties"
        compared = paired(shared, MARGIN)
        order_ = "" if compared is None else compared.words()
        said = f"{what}: {said}{'; ' * bool(order_)}{order_}."
        own = (said, "nats", values, order_, SOURCE.key)
        yield Finding("tying", *own, title="Tying", what=what, per="seed", compared=compared)
    whole, full = [f for f in found if not place(f.site).single], parameters(rows)
    texts, costs = [], []
    for one in whole:
        if one.edit == "narrow":
            continue
        mean, against = interval([p.value for p in one.loss]), against_narrow(one, found)
        share = f" with {100 * (full - one.parameters) / full:.1f} % fewer parameters" if full else ""
        texts.append(f"{one.name}{share} {words.spoken(mean, 'nats')}")
        costs.append(Estimate(one.name, *mean))
        if against is not None:
            texts[-1] += f", against narrower heads {words.spoken(against, 'nats')}"
            costs.append(Estimate(f"{one.name} minus narrower heads", *against))
    if costs:
        what = f"{VALID} against three separate matrices, {_where(whole)}"
        own = (f"{what}: {'; '.join(texts)}.", "nats", tuple(costs), "", SOURCE.key)
        yield Finding("matrices", *own, title="Tying", what=what, per="seed")
