"""What probes still find of an attacked label, there and elsewhere, what erasing it costs, and models with fewer matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import altair as alt
import polars as pl

from trisect.core.finding import Estimate, Finding
from trisect.core.methods import input_site, reads_head
from trisect.core.site import Site
from trisect.experiments.study.rows import StudyRows, average, minus, over_seeds, sort_labels
from trisect.experiments.study.words import (
    BEYOND,
    MARGIN,
    SPLIT,
    VALID,
    collapse_words,
    divergence_words,
    extremes,
    finding,
    fit_words,
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
    marks,
    mean_of,
    of_runs,
    overlay,
)
from trisect.report.format import Mean, Point, compare_by_seed, interval, order, place
from trisect.report.maps import label_maps
from trisect.report.measures import axis_of, cut, site_figure, site_panels, with_means

PROBES = {"linear": "linear probe", "mlp": "probe with a hidden layer"}
NOUNS = {"bits": "V-information", "accuracy": "Accuracy"}
GUESSED = {"bits": "by the labels' frequencies finds nothing", "accuracy": "always names the commonest"}
AFTER = {
    "plain": "Attacked there",
    "bounded": "Bounded attack there",
    "site": "Gradient limited to this projection",
    "bounded+site": "Bounded, gradient limited to this projection",
}
GUESSING = Level("guessing", 0.0)
BITS = "probe_linear_bits"
SAME = 1e-6  # nats: rounding of a mean over thousands of tokens
OWN, OTHERS, MAPS = "Heads of the attacked site", "Other heads of the layer", "Random maps"


def removal_figures(rows: StudyRows) -> Iterator[Figure]:
    """For each label: probes at the attacked sites, where the information went, and erasure."""
    for label in sort_labels(rows.sites["label"]):
        for kind, name in product(PROBES, NOUNS):
            yield from _probe_figures(rows, label, kind, name)
        yield from _elsewhere(rows, label)
        yield from _erasure(rows, label)


def after_attack(rows: StudyRows, label: str, measure: str, variant: str = "plain") -> list[Point]:
    """A probe's number at the very site that was attacked, after the attack."""
    attacks = rows.runs.filter(rows.select("attack", label, variant=variant)).select("run", "site").rows()
    points = {(p.run, p.site): p for p in rows.measure(measure, "valid", label, [run for run, _ in attacks])}
    return [points[key] for key in attacks if key in points]


def information_loss(rows: StudyRows, label: str, measure: str, variant: str = "plain") -> list[Point]:
    """What an attack took from a probe at its own site: the baseline's number less the attacked run's, paired by seed."""
    before = rows.measure(measure, "valid", label, rows.baselines)
    return minus(after_attack(rows, label, measure, variant), before, times=-1)


def _probe_figures(rows: StudyRows, label: str, kind: str, name: str) -> Iterator[Figure]:
    """Bits or accuracy of one kind of probe: the baseline's sites, and the sites that were attacked."""
    measure, unit, noun = f"probe_{kind}_{name}", "bits" if name == "bits" else "share", label_name(label)
    shown = {"Baseline": rows.measure(measure, "valid", label, rows.baselines)}
    shown |= {title: after_attack(rows, label, measure, variant) for variant, title in AFTER.items()}
    shown = {title: points for title, points in shown.items() if points}
    if len(shown) < 2:
        return
    chance = rows.measure("probe_majority", "valid", label) if name == "accuracy" else []
    level = GUESSING._replace(value=interval([p.value for p in chance]).mean) if chance else GUESSING
    axis = axis_of([p for points in shown.values() for p in points], unit, False, more=[level.value])
    caption = (
        f"{NOUNS[name]} of {noun} of the next word, by a fresh {PROBES[kind]} on held-out tokens, {fit_words(rows, 'probe', label)}; "
        f"guessing {GUESSED[name]}. An adversary that was fooled proves nothing: only what fresh probes no longer find was removed. "
        f"{seeds(rows)}. In the baseline q, k and v of a layer are maps of one input, so that a linear probe finds in each what it "
        "finds in the others."
    )
    if lost := information_loss(rows, label, measure):
        if read := rows.readable(lost):
            caption += f" What the attack took from its own site: {extremes(read, unit)}"
        caption += collapse_words(rows, lost)
    title = f"What is left of {noun} at the attacked site, by a {PROBES[kind]}: {name}"
    panels = site_panels(shown, f"{PROBES[kind]}, {name}", unit, signed=False, levels=(level,), axis=axis)
    yield site_figure((f"removed-{words.slug(label)}-{kind}-{name}", BEYOND, title), caption, panels)


def _elsewhere(rows: StudyRows, label: str) -> Iterator[Figure]:
    """The change of every site's bits by the attacked site: blue-violet where it fell, orange where it rose."""
    attacks = dict(rows.runs.filter(rows.select("attack", label)).select("run", "site").rows())
    cells: list[tuple[str, str, str, float, bool]] = []
    for kind, noun in PROBES.items():
        before = rows.measure(f"probe_{kind}_bits", "valid", label, rows.baselines)
        after = rows.measure(f"probe_{kind}_bits", "valid", label, list(attacks))
        means = average(minus(after, before), lambda p: (attacks[p.run], p.site))
        for attacked, probed in sorted(means, key=lambda pair: tuple(map(_down_order, pair))):
            cells.append((f"By a {noun}", attacked, probed, means[attacked, probed].value, False))
    if cells:
        caption = (
            f"Change of the bits that a fresh probe finds of {label_name(label)}, against the baseline of the same seed: "
            "the row is the attacked site, the column the probed one; the diagonal is the attacked site itself. An attack also trains "
            f"the layers under its site, so that sites there change too. Mean over seeds, the same colours in every panel. {seeds(rows)}."
        )
        names = (f"removed-{words.slug(label)}-elsewhere", BEYOND, f"Where {label_name(label)} went")
        yield label_maps(names, caption, cells, "bits", "attacked")


def _down_order(site: str) -> tuple[object, ...]:
    """q at every layer, then k, then v, then the rest."""
    single, depth, layers, several, rank, group = order(site)
    return several, rank, group, single, depth, layers


def _random_rises(rows: StudyRows, label: str) -> tuple[list[Point], set[tuple[str, str]]]:
    """Rises of the validation loss by random subspaces, their mean over draws; and the sites and runs whose draws are all alike.

    There the label takes every direction: any subspace is then the same, and nothing can be beyond it.
    """
    points = rows.measure("erase_random_rise_nats", "valid", label)
    draws: dict[tuple[str, str], list[float]] = {}
    for p in points:
        draws.setdefault((p.site, p.run), []).append(p.value)
    whole = {key for key, values in draws.items() if len(values) > 1 and max(values) - min(values) < SAME}
    return [p._replace(diverged=False) for p in average(points, lambda p: (p.site, p.run)).values()], whole


def beyond_chance(rows: StudyRows, label: str) -> list[Point]:
    """Rise by erasing the label less the mean rise by random subspaces of equal rank, by seed."""
    chance, whole = _random_rises(rows, label)
    rise = rows.measure("erase_rise_nats", "valid", label)
    return [p for p in minus(rise, chance, "site", "run") if (p.site, p.run) not in whole]


def _erasure(rows: StudyRows, label: str) -> Iterator[Figure]:
    rise = rows.measure("erase_rise_nats", "valid", label)
    if not rise:
        return
    caption = (
        "Rise of the trained baseline's validation loss when everything that a linear probe could use of "
        f"{label_name(label)} is erased at one site (LEACE), and when random subspaces of the same rank are, "
        f"{fit_words(rows, 'erase', label)}. {seeds(rows)}. Erasing the label: {extremes(rise, 'nats')}"
    )
    if ranks := [round(p.value) for split in ("train", "valid") for p in rows.measure("erase_rank", split, label)]:
        taken = " to ".join(str(n) for n in sorted({min(ranks), max(ranks)}))
        caption += (
            f" Directions removed from a site: {taken}; where these are all that it has, nothing can be beyond chance."
        )
    if beyond := beyond_chance(rows, label):
        caption += f" Beyond random subspaces: {extremes(beyond, 'nats')}"
    shown = {"The label's subspace": rise, "Random subspaces": _random_rises(rows, label)[0]}
    names = (f"erasure-{words.slug(label)}", BEYOND, f"Erasing {label_name(label)} from the trained baseline")
    yield site_figure(names, caption, site_panels(shown, "rise of the validation loss"))


def removal_findings(rows: StudyRows) -> Iterator[Finding]:
    """For each label what a linear probe no longer finds where it was attacked, and what erasing it costs."""
    for label in rows.labels:
        noun, site = label_name(label), "that a linear probe loses at the"
        if lost := information_loss(rows, label, "probe_linear_accuracy"):
            start, what = f"accuracy on {noun} {site} attacked site,", f"accuracy {site} site itself"
            yield finding(rows, "probe", "Removed", start, lost, "of the tokens", what, label, ranks=False)
        if lost := information_loss(rows, label, BITS):
            sites = {p.site for p in rows.readable(lost) or lost}
            before = rows.measure(BITS, "valid", label, rows.baselines)
            share = words.number(interval([p.value for p in before if p.site in sites]).mean)
            start = f"bits of {noun} that a linear probe no longer finds at the attacked site (of {share}),"
            what = "bits that a linear probe no longer finds at the site itself"
            yield finding(rows, "information", "Removed", start, lost, "bits", what, label, ranks=False)
        if rise := beyond_chance(rows, label):
            start = f"rise of the validation loss by erasing {noun} linearly, beyond random subspaces of equal rank,"
            what = "rise of the validation loss by LEACE, minus that by random subspaces"
            yield finding(rows, "erasure", "Erasure", start, rise, "nats", what, label, ranks=True)


def in_heads(rows: StudyRows, label: str, kind: str = "linear", subjects: Sequence[str] | None = None) -> list[Point]:
    """Bits that probes find in single heads, their mean over each component and layer, as that component's site."""
    points = rows.measure(f"probe_{kind}_bits", "valid", label, subjects)
    means = average(points, lambda p: (p.run, site) if (site := _component(p.site)) else None)
    return [p._replace(site=site) for (_, site), p in means.items()]


def in_maps(rows: StudyRows, label: str, kind: str = "linear", subjects: Sequence[str] | None = None) -> list[Point]:
    """Bits that probes find in random maps of a layer's input, their mean over draws, at q, k and v of the layer."""
    points = rows.measure(f"probe_{kind}_random_bits", "valid", label, subjects)
    return list(average(points, lambda p: (p.run, p.site)).values())


def _component(name: str) -> str | None:
    """The whole component of a single head's site; None for other sites."""
    site = Site.parse(name)
    single = len(site.components) == len(site.layers or ()) == len(site.heads or ()) == 1
    return str(Site(site.components, site.layers)) if reads_head(site) and single else None


def information_loss_in_heads(
    rows: StudyRows, label: str, kind: str = "linear", variant: str = "plain"
) -> dict[str, list[Point]]:
    """Bits that attacks took, at the attacked sites: from their own heads, from their layer's others, and from random maps.

    They are those of the same seed's baseline less those of the attacked model.
    """
    attacks = dict(rows.runs.filter(rows.select("attack", label, variant=variant)).select("run", "site").rows())
    sites = {run: Site.parse(name) for run, name in attacks.items()}

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

    taken = average(minus(bits(list(sites)), bits(rows.baselines), times=-1), whose)
    return {
        group: [
            taken[run, group]._replace(site=name, diverged=False)
            for run, name in attacks.items()
            if (run, group) in taken
        ]
        for group in (OWN, OTHERS, MAPS)
    }


def head_figures(rows: StudyRows) -> Iterator[Figure]:
    """For each label and kind of probe: heads and random maps before the attacks, and what they lose to them."""
    for label, kind in product(sort_labels(rows.sites["label"]), PROBES):
        heads, maps = (of(rows, label, kind, rows.baselines) for of in (in_heads, in_maps))
        if not heads:
            continue
        noun, name = label_name(label), f"removed-{words.slug(label)}-{kind}-heads"
        bits = f"V-information of {noun} of the next word, by a fresh {PROBES[kind]} on held-out tokens, {fit_words(rows, 'probe', label)}"
        beside = "Random maps of the layer's input, as wide as a head, show what any map of that width holds."
        if not maps:
            beside = "Without random maps of the same input (random_maps of a probe) it is not known what any map of a head's width holds."
        caption = f"{bits}, in one head of the baseline: mean over the heads of a component and layer. {beside} "
        caption += f"{seeds(rows)}. Of heads: {extremes(heads, 'bits')}"
        names = (name, BEYOND, f"What single heads hold of {noun}, by a {PROBES[kind]}")
        panels = site_panels({"Heads": heads, MAPS: maps}, "bits", "bits", signed=False, levels=())
        yield site_figure(names, caption, panels)
        taken = {variant: information_loss_in_heads(rows, label, kind, variant) for variant in AFTER}
        taken = {variant: groups for variant, groups in taken.items() if groups[OWN]}
        if not taken:
            continue
        shown = {
            group if variant == "plain" else f"{group}: {AFTER[variant].lower()}": points
            for variant, groups in taken.items()
            for group, points in groups.items()
        }
        caption = (
            f"{bits}, in one head: what an attack takes from the heads of its own site, from other heads of q, k and v of "
            f"its layer, which read the same, and from random maps of it. {seeds(rows)}."
        )
        for variant, groups in taken.items():
            gaps = {g.lower(): minus(rows.readable(groups[OWN]), groups[g], "run", "site") for g in (OTHERS, MAPS)}
            less = [f"less those of {g} {words.mean_words(over_seeds(gap), 'bits')}" for g, gap in gaps.items() if gap]
            if less:
                caption += f" {AFTER[variant]}: bits lost by heads of the attacked site {', '.join(less)}."
        caption += collapse_words(rows, [p for points in shown.values() for p in points])
        names = (f"{name}-lost", BEYOND, f"What single heads lose of {noun}, by a {PROBES[kind]}")
        axis = axis_of([p for points in shown.values() for p in points], "bits removed")
        yield site_figure(names, caption, site_panels(shown, "bits removed", "bits", axis=axis))


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


class SmallerModel(NamedTuple):
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


def smaller_models(rows: StudyRows) -> list[SmallerModel]:
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
    models = [
        SmallerModel(*key, {title: [p for p in effects[key[0], title] if p.run in own] for title in CHANGES})
        for key, own in ids.items()
    ]

    def rank(one: SmallerModel) -> tuple[object, ...]:
        at = place(one.site)
        return at.single, at.layers, EDITS.index(one.edit), -one.parameters, one.site

    return sorted((one for one in models if one.loss), key=rank)


def _baseline_parameters(rows: StudyRows) -> int | None:
    """How many parameters the baseline has."""
    counts = rows.runs.filter(pl.col("edit") == "none")["parameters"].drop_nulls()
    return None if counts.is_empty() else int(counts[0])


def against_narrow(one: SmallerModel, models: Sequence[SmallerModel]) -> Mean | None:
    """The loss less that of the narrower heads at the same layers with as nearly as many parameters, paired by seed.

    None without such, or without a common seed.
    """
    narrow = [f for f in models if f.edit == "narrow" and place(f.site).layers == place(one.site).layers]
    beside = min(narrow, key=lambda f: abs(f.parameters - one.parameters), default=None)
    gaps = minus(one.loss, beside.loss, "seed") if beside else []
    return interval([p.value for p in gaps]) if gaps else None


def tying_figures(rows: StudyRows) -> Iterator[Figure]:
    """Changes against parameters where several layers are tied, and by layer where single ones are."""
    models = smaller_models(rows)
    if whole := [one for one in models if not place(one.site).single]:
        yield _by_parameters(rows, whole)
    single = [one for one in models if place(one.site).single and one.edit == "tie"]
    panels = []
    for split, noun in reversed(SPLIT.items()):
        title = f"{noun.capitalize()} loss"
        points = {title: [p for one in single for p in one.changes[title]]}
        panels += site_panels(points, "change", f"nats, {split}", shared=False)
    if panels:
        caption = "Difference to the baseline of the same seed when matrices of one layer are one from the first step."
        yield site_figure(
            ("tying-layers", BEYOND, "SmallerModel matrices in one layer"), f"{caption} {seeds(rows)}.", panels
        )


def _by_parameters(rows: StudyRows, models: Sequence[SmallerModel]) -> Figure:
    full = _baseline_parameters(rows)
    shown: list[tuple[SharedAxis, Sequence[Point]]] = []
    panels = []
    for title, (_, _, unit) in CHANGES.items():
        numbers = [(one, points) for one in models if (points := one.changes[title])]
        if numbers:
            axis = around([p.value for _, points in numbers for p in with_means(points)], unit, zero=True)
            panels.append(_parameter_panel(title, numbers, axis, full))
            shown += [(axis, points) for _, points in numbers]
    count = "" if full is None else f" The baseline has {words.count(full)}."
    caption = (
        "Difference to the baseline of the same seed against the parameters of the whole model: "
        f"{words.join_words([WHAT[edit] for edit in EDITS if any(f.edit == edit for f in models)])}. "
        f"Here {_layers_of(models)}.{count} Marks are means over seeds, bars 95 % intervals. {seeds(rows)}."
        f"{divergence_words([p for _, points in shown for p in points])}{cut(shown)}"
    )
    key = [LegendEntry(name, *mark) for name, mark in {one.name: one.mark for one in models}.items()]
    key.append(LegendEntry(ZERO.name, render.BASELINE, None, ZERO.dash))
    return Figure("tying", BEYOND, "Three matrices or fewer", caption, tuple(panels), tuple(key))


def _layers_of(models: Sequence[SmallerModel]) -> str:
    return f"at layers {words.join_words(list(dict.fromkeys(place(one.site).layers for one in models)))}"


def _parameter_panel(
    title: str, numbers: Sequence[tuple[SmallerModel, Sequence[Point]]], axis: SharedAxis, full: int | None
) -> Panel:
    """The mean and 95 % interval of every kind of model, each seed's point beside it; x is its parameters."""
    measure = Measure(f"change of {title.lower()}", axis.unit.partition(",")[0], True)
    data, small, series = [], [], []
    strokes: dict[str, list[Stroke]] = {"level0": [Stroke(ZERO.name)], "seeds": [], "bars": [], "main": []}
    for one, points in numbers:
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
    looks = {one.name: one.mark for one, _ in numbers}
    chart = overlay(title, *marks(data, axis, x, looks, None, (ZERO,), small), width=PANEL_WIDTH, height=HEIGHT)
    said = "; ".join(f"{row['group']} {row['value']:.3g} with {row['parameters']:.4g} thousand" for row in data)
    drawn = {name: tuple(of) for name, of in strokes.items() if of}
    return Panel(title, chart, f"{title}: change against parameters, in {axis.unit}. {said}.", tuple(series), drawn)


def tying_findings(rows: StudyRows) -> Iterator[Finding]:
    """What fewer matrices cost, by component and by model; nothing without them."""
    models, full = smaller_models(rows), _baseline_parameters(rows)
    shared: dict[
        str, dict[int, float]
    ] = {}  # by component and seed, mean over the pairs tied in every layer that hold it
    ties = [p for p in rows.effects("tie", "valid") if not place(p.site).single]
    pairs = [(p, place(p.site).group.split("+")) for p in ties if place(p.site).group.count("+") == 1]
    for component in "qkv":
        if own := average((p for p, parts in pairs if component in parts), lambda p: p.seed):
            shared[component] = {seed: p.value for seed, p in own.items()}
    if shared:
        means = {c: interval(list(of.values())) for c, of in shared.items()}
        what = f"{VALID} when it shares its matrix with one other, mean of two ties"
        compared = compare_by_seed(shared, MARGIN)
        ranking = "" if compared is None else compared.words()
        costs = words.join_words([f"{c} {words.mean_words(mean, 'nats')}" for c, mean in means.items()])
        text = f"{what}: {costs}{'; ' * bool(ranking)}{ranking}."
        own = (text, "nats", tuple(Estimate(c, *mean) for c, mean in means.items()), ranking, SOURCE.key)
        yield Finding("tying", *own, title="Tying", what=what, per="seed", compared=compared)
    whole = [one for one in models if not place(one.site).single]
    texts, costs = list[str](), list[Estimate]()
    for one in whole:
        if one.edit == "narrow":
            continue
        mean, against = interval([p.value for p in one.loss]), against_narrow(one, models)
        share = f" with {100 * (full - one.parameters) / full:.1f} % fewer parameters" if full else ""
        texts.append(f"{one.name}{share} {words.mean_words(mean, 'nats')}")
        costs.append(Estimate(one.name, *mean))
        if against is not None:
            texts[-1] += f", against narrower heads {words.mean_words(against, 'nats')}"
            costs.append(Estimate(f"{one.name} minus narrower heads", *against))
    if costs:
        what = f"{VALID} against three separate matrices, {_layers_of(whole)}"
        own = (f"{what}: {'; '.join(texts)}.", "nats", tuple(costs), "", SOURCE.key)
        yield Finding("matrices", *own, title="Tying", what=what, per="seed")
