"""Probes of attacked labels at and beyond the attacked sites, the cost of erasing them, and models with fewer matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import polars as pl

from trisect.core.finding import Estimate, Finding
from trisect.core.methods import input_site, reads_head
from trisect.core.site import Site
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows, average, minus, over_seeds, sort_labels
from trisect.experiments.study.words import BEYOND, SPLIT, VALID, Method, extremes, label_name, seeds
from trisect.papers.tying import SOURCE
from trisect.report import alt, charts, render
from trisect.report import format as words
from trisect.report.format import Mean, Point, compare_by_seed, interval, order, site_position
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
GUESSING = charts.Level("guessing", 0.0)
BITS = "probe_linear_bits"
RISE = "rise of the validation loss"
LOSS_TOLERANCE = 1e-6  # nats: rounding of a mean over thousands of tokens
SITE_HEADS, OTHER_HEADS, MAPS = "Heads of the attacked site", "Other heads of the layer", "Random maps"


def removal_figures(rows: StudyRows) -> Iterator[charts.Figure]:
    """For each label: probes at the attacked sites, changes elsewhere, and erasure."""
    for label in sort_labels(rows.sites["label"]):
        for kind, name in product(PROBES, NOUNS):
            yield from _probe_figures(rows, label, kind, name)
        yield from _elsewhere(rows, label)
        yield from _erasure(rows, label)


def _attacks(rows: StudyRows, label: str, variant: str = "plain") -> dict[str, str]:
    """The site of each attack on the label."""
    return dict(rows.runs.filter(rows.select("attack", label, variant=variant)).select("run", "site").rows())


def _after_attack(rows: StudyRows, label: str, measure: str, variant: str = "plain") -> list[Point]:
    """A probe's number at the attacked site, after the attack."""
    attacks = _attacks(rows, label, variant)
    points = {(p.run, p.site): p for p in rows.measure(measure, "valid", label, list(attacks))}
    return [points[key] for key in attacks.items() if key in points]


def _information_loss(rows: StudyRows, label: str, measure: str) -> list[Point]:
    """The loss of a probe's number by an attack at its own site: the baseline's less the attacked run's, paired by seed."""
    return minus(_after_attack(rows, label, measure), rows.measure(measure, "valid", label, rows.baselines), times=-1)


def _probe_figures(rows: StudyRows, label: str, kind: str, name: str) -> Iterator[charts.Figure]:
    """Bits or accuracy of one kind of probe: at the baseline's sites, and at attacked sites."""
    fit = study_words.fit_words(rows, "probe", label)
    measure, unit, noun = f"probe_{kind}_{name}", "bits" if name == "bits" else "share", label_name(label)
    shown = {"Baseline": rows.measure(measure, "valid", label, rows.baselines)}
    shown |= {title: _after_attack(rows, label, measure, variant) for variant, title in AFTER.items()}
    shown = {title: points for title, points in shown.items() if points}
    if len(shown) < 2:
        return
    chance = rows.measure("probe_majority", "valid", label) if name == "accuracy" else []
    level = GUESSING._replace(value=interval([p.value for p in chance]).mean) if chance else GUESSING
    axis = axis_of([p for points in shown.values() for p in points], unit, False, more=[level.value])
    caption = (
        f"{NOUNS[name]} of {noun} of the next word, by a fresh {PROBES[kind]} on held-out tokens, {fit}; "
        f"guessing {GUESSED[name]}. An adversary that was fooled proves nothing: only what fresh probes no longer find was removed. "
        f"{seeds(rows)}. In the baseline q, k and v of a layer are maps of one input, so that a linear probe finds in each what it "
        "finds in the others."
    )
    lost = _information_loss(rows, label, measure)
    if readable := rows.readable(lost):
        caption += f" What the attack took from its own site: {extremes(readable, unit)}"
    caption += study_words.collapse_words(rows, lost)
    title = f"What is left of {noun} at the attacked site, by a {PROBES[kind]}: {name}"
    panels = site_panels(shown, f"{PROBES[kind]}, {name}", unit, signed=False, levels=(level,), axis=axis)
    yield site_figure((f"removed-{words.slug(label)}-{kind}-{name}", BEYOND, title), caption, panels)


def _elsewhere(rows: StudyRows, label: str) -> Iterator[charts.Figure]:
    """The change of every site's bits by attacked site: blue-violet for falls, orange for rises."""
    attacks = _attacks(rows, label)
    cells: list[tuple[str, str, str, float, bool]] = []

    def by_component(pair: tuple[str, str]) -> list[tuple[object, ...]]:
        """A sort key: q at every layer, then k, v, and the rest; by attacked site, then by probed one."""
        return [(*order(site)[3:], *order(site)[:3]) for site in pair]

    for kind, noun in PROBES.items():
        before = rows.measure(f"probe_{kind}_bits", "valid", label, rows.baselines)
        after = rows.measure(f"probe_{kind}_bits", "valid", label, list(attacks))
        means = average(minus(after, before), lambda p: (attacks[p.run], p.site))
        cells += [(f"By a {noun}", *pair, means[pair].value, False) for pair in sorted(means, key=by_component)]
    if cells:
        caption = (
            f"Change of the bits that a fresh probe finds of {label_name(label)}, against the baseline of the same seed: "
            "the row is the attacked site, the column the probed one; the diagonal is the attacked site itself. An attack also trains "
            f"the layers under its site, so that sites there change too. Mean over seeds, the same colours in every panel. {seeds(rows)}."
        )
        names = (f"removed-{words.slug(label)}-elsewhere", BEYOND, f"Where {label_name(label)} went")
        yield label_maps(names, caption, cells, "bits", "attacked")


def _random_rises(rows: StudyRows, label: str) -> tuple[list[Point], set[tuple[str, str]]]:
    """Rises of the validation loss by random subspaces, mean over draws; and sites and runs with identical draws.

    There the label takes every direction: any subspace is then the same, and nothing can be beyond it.
    """
    points = rows.measure("erase_random_rise_nats", "valid", label)
    draws: dict[tuple[str, str], list[float]] = {}
    for p in points:
        draws.setdefault((p.site, p.run), []).append(p.value)
    same = {key for key, values in draws.items() if len(values) > 1 and max(values) - min(values) < LOSS_TOLERANCE}
    return [p._replace(diverged=False) for p in average(points, lambda p: (p.site, p.run)).values()], same


def beyond_chance(rows: StudyRows, label: str) -> list[Point]:
    """Rise by erasing the label less the mean rise by random subspaces of equal rank, by seed."""
    chance, same = _random_rises(rows, label)
    rise = rows.measure("erase_rise_nats", "valid", label)
    return [p for p in minus(rise, chance, "site", "run") if (p.site, p.run) not in same]


def _erasure(rows: StudyRows, label: str) -> Iterator[charts.Figure]:
    rise = rows.measure("erase_rise_nats", "valid", label)
    if not rise:
        return
    caption = (
        "Rise of the trained baseline's validation loss when everything that a linear probe could use of "
        f"{label_name(label)} is erased at one site (LEACE), and when random subspaces of the same rank are, "
        f"{study_words.fit_words(rows, 'erase', label)}. {seeds(rows)}. Erasing the label: {extremes(rise, 'nats')}"
    )
    if ranks := [round(p.value) for split in ("train", "valid") for p in rows.measure("erase_rank", split, label)]:
        span = " to ".join(str(n) for n in sorted({min(ranks), max(ranks)}))
        caption += (
            f" Directions removed from a site: {span}; where these are all that it has, nothing can be beyond chance."
        )
    if beyond := beyond_chance(rows, label):
        caption += f" Beyond random subspaces: {extremes(beyond, 'nats')}"
    shown = {"The label's subspace": rise, "Random subspaces": _random_rises(rows, label)[0]}
    names = (f"erasure-{words.slug(label)}", BEYOND, f"Erasing {label_name(label)} from the trained baseline")
    yield site_figure(names, caption, site_panels(shown, RISE))


def removal_findings(rows: StudyRows) -> Iterator[Finding]:
    """For each label, what a linear probe no longer finds at the attacked site, and the cost of erasing it."""
    for label in rows.labels:
        noun = label_name(label)
        accuracy, bits = (_information_loss(rows, label, name) for name in ("probe_linear_accuracy", BITS))
        sites = {p.site for p in rows.readable(bits) or bits}
        before = [p.value for p in rows.measure(BITS, "valid", label, rows.baselines) if p.site in sites]
        share = words.number(interval(before).mean) if bits else ""
        beyond, rise = beyond_chance(rows, label), f"{RISE} by LEACE, minus that by random subspaces"
        spoken = (
            ("Removed", "of the tokens", accuracy, "probe", "accuracy that a linear probe loses at the site itself"),
            ("Removed", "bits", bits, "information", "bits that a linear probe no longer finds at the site itself"),
            ("Erasure", "nats", beyond, "erasure", rise),
        )
        starts = (
            f"accuracy on {noun} that a linear probe loses at the attacked site,",
            f"bits of {noun} that a linear probe no longer finds at the attacked site (of {share}),",
            f"{RISE} by erasing {noun} linearly, beyond random subspaces of equal rank,",
        )
        for (title, unit, points, measure, quantity), start in zip(spoken, starts, strict=True):
            if points:
                method = Method(measure, title, unit, points, measure, noun, quantity, start, label, title == "Erasure")
                yield study_words.finding(rows, method)


def in_heads(rows: StudyRows, label: str, kind: str, subjects: Sequence[str]) -> list[Point]:
    """Bits of probes in single heads, mean over each component and layer, as that component's site."""
    points = rows.measure(f"probe_{kind}_bits", "valid", label, subjects)
    means = average(points, lambda p: (p.run, site) if (site := _component(p.site)) else None)
    return [p._replace(site=site) for (_, site), p in means.items()]


def in_maps(rows: StudyRows, label: str, kind: str, subjects: Sequence[str]) -> list[Point]:
    """Bits of probes in random maps of a layer's input, mean over draws, at q, k and v of the layer."""
    points = rows.measure(f"probe_{kind}_random_bits", "valid", label, subjects)
    return list(average(points, lambda p: (p.run, p.site)).values())


def _component(name: str) -> str | None:
    """The whole component of a single head's site; None for others."""
    site = Site.parse(name)
    single = len(site.components) == len(site.layers or ()) == len(site.heads or ()) == 1
    return str(Site(site.components, site.layers)) if reads_head(site) and single else None


def information_loss_in_heads(
    rows: StudyRows, label: str, kind: str = "linear", variant: str = "plain"
) -> dict[str, list[Point]]:
    """Bits removed by attacks: from heads of the attacked site, other heads of the layer, and random maps."""
    attacks = _attacks(rows, label, variant)

    def bits(subjects: Sequence[str]) -> list[Point]:
        heads = [p for p in rows.measure(f"probe_{kind}_bits", "valid", label, subjects) if _component(p.site)]
        return [*heads, *in_maps(rows, label, kind, subjects)]

    def group_of(p: Point) -> tuple[str, str] | None:
        attacked, probed = Site.parse(attacks[p.run]), Site.parse(p.site)
        layers = set(attacked.layers or ())
        if not set(attacked.components) <= set("qkv") or not set(probed.layers or ()) <= layers:
            return None
        if p.site in {str(input_site(n)) for n in layers}:
            return p.run, MAPS
        heads = set(attacked.heads or probed.heads or ())
        inside = set(probed.components) <= set(attacked.components) and set(probed.heads or ()) <= heads
        return p.run, SITE_HEADS if inside else OTHER_HEADS

    losses = average(minus(bits(list(attacks)), bits(rows.baselines), times=-1), group_of)
    groups: dict[str, list[Point]] = {SITE_HEADS: [], OTHER_HEADS: [], MAPS: []}
    for group, points in groups.items():
        at = {run: losses[run, group] for run in attacks if (run, group) in losses}
        points += [point._replace(site=attacks[run], diverged=False) for run, point in at.items()]
    return groups


def head_figures(rows: StudyRows) -> Iterator[charts.Figure]:
    """For each label and kind of probe: heads and random maps before the attacks, and their losses."""
    for label, kind in product(sort_labels(rows.sites["label"]), PROBES):
        heads, maps = (estimate(rows, label, kind, rows.baselines) for estimate in (in_heads, in_maps))
        if not heads:
            continue
        fit = study_words.fit_words(rows, "probe", label)
        noun, name = label_name(label), f"removed-{words.slug(label)}-{kind}-heads"
        bits = f"V-information of {noun} of the next word, by a fresh {PROBES[kind]} on held-out tokens, {fit}"
        remark = "Random maps of the layer's input, as wide as a head, show what any map of that width holds."
        if not maps:
            remark = "Without random maps of the same input (random_maps of a probe) it is not known what any map of a head's width holds."
        caption = f"{bits}, in one head of the baseline: mean over the heads of a component and layer. {remark} "
        caption += f"{seeds(rows)}. Of heads: {extremes(heads, 'bits')}"
        names = (name, BEYOND, f"What single heads hold of {noun}, by a {PROBES[kind]}")
        panels = site_panels({"Heads": heads, MAPS: maps}, "bits", "bits", signed=False, levels=())
        yield site_figure(names, caption, panels)
        losses = {variant: information_loss_in_heads(rows, label, kind, variant) for variant in AFTER}
        losses = {variant: groups for variant, groups in losses.items() if groups[SITE_HEADS]}
        if not losses:
            continue
        shown = {
            group if variant == "plain" else f"{group}: {AFTER[variant].lower()}": points
            for variant, groups in losses.items()
            for group, points in groups.items()
        }
        caption = (
            f"{bits}, in one head: what an attack takes from the heads of its own site, from other heads of q, k and v of "
            f"its layer, which read the same, and from random maps of it. {seeds(rows)}."
        )
        for variant, groups in losses.items():
            gaps = {
                g.lower(): minus(rows.readable(groups[SITE_HEADS]), groups[g], "run", "site")
                for g in (OTHER_HEADS, MAPS)
            }
            less = [f"less those of {g} {words.mean_words(over_seeds(gap), 'bits')}" for g, gap in gaps.items() if gap]
            if less:
                caption += f" {AFTER[variant]}: bits lost by heads of the attacked site {', '.join(less)}."
        all_points = [p for points in shown.values() for p in points]
        caption += study_words.collapse_words(rows, all_points)
        names = (f"{name}-lost", BEYOND, f"What single heads lose of {noun}, by a {PROBES[kind]}")
        panels = site_panels(shown, "bits removed", "bits", axis=axis_of(all_points, "bits removed"))
        yield site_figure(names, caption, panels)


EDIT_WORDS = {
    "tie": "matrices that are one from the first step",
    "identity": "the identity in the place of a matrix",
    "narrow": "separate matrices in narrower heads (grey) that have as nearly as many parameters",
}
CHANGES = {  # of what a figure shows: split, metric and unit
    "Validation loss": ("valid", "loss_nats", "nats, valid"),
    "Accuracy": ("valid", "accuracy", "share, valid"),
    "Train loss": ("train", "loss_nats", "nats, train"),
}


class _SmallerModel(NamedTuple):
    """Models of one kind with fewer parameters: edit, layers, number, and each seed's changes by the names of CHANGES."""

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
        """Its name, such as `Q=K`, `V is the identity`, `narrower heads`."""
        parts = site_position(self.site).group.upper().split("+")
        return {"tie": "=".join(parts), "identity": f"{parts[0]} the identity", "narrow": "narrower heads"}[self.edit]


def _smaller_models(rows: StudyRows) -> list[_SmallerModel]:
    """All kinds of models with fewer parameters in the study, by layers, then in the order of WHAT."""
    changes = {
        title: [p for edit in EDIT_WORDS for p in rows.effects(edit, split, name=name)]
        for title, (split, name, _) in CHANGES.items()
    }
    runs = rows.runs.filter(pl.col("edit").is_in(list(EDIT_WORDS)) & pl.col("parameters").is_not_null())
    models = []
    for (edit, site, parameters), same in runs.group_by("edit", "site", "parameters"):
        ids = set(same["run"])
        changed = {title: [p for p in points if p.run in ids] for title, points in changes.items()}
        models.append(_SmallerModel(str(edit), str(site), int(str(parameters)), changed))

    def rank(model: _SmallerModel) -> tuple[object, ...]:
        at = site_position(model.site)
        return at.single, at.layers, list(EDIT_WORDS).index(model.edit), -model.parameters, model.site

    return sorted((model for model in models if model.loss), key=rank)


def _baseline_parameters(rows: StudyRows) -> int | None:
    """The baseline's number of parameters."""
    counts = rows.runs.filter(pl.col("edit") == "none")["parameters"].drop_nulls().to_list()
    return counts[0] if counts else None


def against_narrow(model: _SmallerModel, models: Sequence[_SmallerModel]) -> Mean | None:
    """The loss less that of narrower heads at the same layers, nearest in parameters, by seed; None without."""
    layers = site_position(model.site).layers
    narrow = (m for m in models if m.edit == "narrow" and site_position(m.site).layers == layers)
    nearest = min(narrow, key=lambda m: abs(m.parameters - model.parameters), default=None)
    gaps = minus(model.loss, nearest.loss, "seed") if nearest else []
    return interval([p.value for p in gaps]) if gaps else None


def tying_figures(rows: StudyRows) -> Iterator[charts.Figure]:
    """Changes against parameters for ties in several layers, and by layer for ties in single ones."""
    models, full = _smaller_models(rows), _baseline_parameters(rows)
    deep = [model for model in models if not site_position(model.site).single]
    marks = {m.name: render.mark(site_position(m.site).group) for m in deep}
    marks |= {m.name: render.Mark(render.BASELINE, "circle") for m in deep if m.edit == "narrow"}
    shown: list[tuple[charts.SharedAxis, Sequence[Point]]] = []
    panels = []
    for title, (_, _, unit) in CHANGES.items():
        numbers = [(model, points) for model in deep if (points := model.changes[title])]
        if numbers:
            axis = charts.axis_for([p.value for _, points in numbers for p in with_means(points)], unit, zero=True)
            panels.append(_parameter_panel(title, numbers, axis, full, marks))
            shown += [(axis, points) for _, points in numbers]
    if deep:
        count = "" if full is None else f" The baseline has {words.count(full)}."
        kinds = words.join_words([text for edit, text in EDIT_WORDS.items() if any(m.edit == edit for m in deep)])
        caption = (
            f"Difference to the baseline of the same seed against the parameters of the whole model: {kinds}. "
            f"Here {_layers_of(deep)}.{count} Marks are means over seeds, bars 95 % intervals. {seeds(rows)}."
            f"{study_words.divergence_words([p for _, points in shown for p in points])}{cut(shown)}"
        )
        key = [charts.LegendEntry(name, *mark) for name, mark in marks.items()]
        key.append(charts.LegendEntry(charts.ZERO.name, render.BASELINE, None, charts.ZERO.dash))
        yield charts.Figure("tying", BEYOND, "Sharing matrices", caption, tuple(panels), tuple(key))
    ties = [model for model in models if site_position(model.site).single and model.edit == "tie"]
    by_layer = []
    for split, noun in reversed(SPLIT.items()):
        title = f"{noun.capitalize()} loss"
        points = {title: [p for tie in ties for p in tie.changes[title]]}
        by_layer += site_panels(points, "change", f"nats, {split}", shared=False)
    if by_layer:
        caption = (
            "Difference to the baseline of the same seed when matrices of one layer are one from the first step. "
            f"{seeds(rows)}."
        )
        yield site_figure(("tying-layers", BEYOND, "Fewer matrices in one layer"), caption, by_layer)


def _layers_of(models: Sequence[_SmallerModel]) -> str:
    return f"at layers {words.join_words(list(dict.fromkeys(site_position(model.site).layers for model in models)))}"


def _parameter_panel(
    title: str,
    numbers: Sequence[tuple[_SmallerModel, Sequence[Point]]],
    axis: charts.SharedAxis,
    full: int | None,
    looks: Mapping[str, render.Mark],
) -> charts.Panel:
    """Mean and 95 % interval of every kind of model, with each seed's point, over the number of parameters."""
    measure = charts.Measure(f"change of {title.lower()}", axis.unit.partition(",")[0], True)
    data, small, series = [], [], []
    strokes = {"level0": [charts.Stroke(charts.ZERO.name)], "seeds": [], "bars": [], "main": []}
    for model, points in numbers:
        name, mean = model.name, interval([p.value for p in points])
        site = f"{name} ({words.count(model.parameters)} parameters)"
        runs = [run._replace(site=site) for run in charts.of_runs(points, measure)]
        row, line = {"parameters": model.parameters / 1000, "group": name}, charts.mean_of(runs)
        data.append(row | {"value": mean.mean, "low": mean.low, "high": mean.high})
        strokes["main"].append(charts.Stroke(name, line))
        strokes["bars"] += [charts.Stroke(name)] if mean.low is not None else []
        if len(runs) > 1:
            small += [row | {"value": run.values[0]} for run in runs]
            strokes["seeds"] += [charts.Stroke(name, run) for run in runs]
        series += [*runs, line]
    span = [row["parameters"] for row in data] + ([full / 1000] if full else [])
    air = 0.08 * (max(span) - min(span)) or 1.0
    scale = alt.Scale(domain=[min(span) - air, max(span) + air], nice=False, zero=False)
    x = alt.X("parameters:Q", scale=scale, title="thousand parameters", axis=alt.Axis(tickCount=4))
    layers = charts.marks(data, axis, x, {m.name: looks[m.name] for m, _ in numbers}, None, (charts.ZERO,), small)
    chart = charts.overlay(title, *layers)
    values = "; ".join(f"{row['group']} {row['value']:.3g} with {row['parameters']:.4g} thousand" for row in data)
    text = f"{title}: change against parameters, in {axis.unit}. {values}."
    lines = {name: tuple(items) for name, items in strokes.items() if items}
    return charts.Panel(title, chart, text, tuple(series), lines)


def tying_findings(rows: StudyRows) -> Iterator[Finding]:
    """The cost of fewer matrices, by component and by model; empty without such models."""
    models, full = _smaller_models(rows), _baseline_parameters(rows)
    # by component and seed, mean over the pairs tied in every layer that hold it
    shared: dict[str, dict[int, float]] = {}
    ties = [(p, site_position(p.site)) for p in rows.effects("tie", "valid")]
    pairs = [(p, at.group) for p, at in ties if not at.single and at.group.count("+") == 1]
    for component in "qkv":
        if by_seed := average((p for p, group in pairs if component in group.split("+")), lambda p: p.seed):
            shared[component] = {seed: p.value for seed, p in by_seed.items()}
    if shared:
        means = {c: interval(list(by_seed.values())) for c, by_seed in shared.items()}
        quantity = f"{VALID} when it shares its matrix with one other, mean of two ties"
        compared = compare_by_seed(shared, study_words.MARGIN)
        ranking = "" if compared is None else compared.words()
        texts = words.join_words([f"{c} {words.mean_words(mean, 'nats')}" for c, mean in means.items()])
        text = f"{quantity}: {texts}{'; ' * bool(ranking)}{ranking}."
        costs = tuple(Estimate(c, *mean) for c, mean in means.items())
        parts = ("tying", text, "nats", costs, ranking, SOURCE.key)
        yield Finding(*parts, title="Tying", what=quantity, per="seed", compared=compared)
    models = [model for model in models if not site_position(model.site).single]
    texts, costs = list[str](), list[Estimate]()
    for model in models:
        if model.edit == "narrow":
            continue
        mean, against = interval([p.value for p in model.loss]), against_narrow(model, models)
        share = f" with {100 * (full - model.parameters) / full:.1f} % fewer parameters" if full else ""
        texts.append(f"{model.name}{share} {words.mean_words(mean, 'nats')}")
        costs.append(Estimate(model.name, *mean))
        if against is not None:
            texts[-1] += f", against narrower heads {words.mean_words(against, 'nats')}"
            costs.append(Estimate(f"{model.name} minus narrower heads", *against))
    if costs:
        quantity = f"{VALID} against three separate matrices, {_layers_of(models)}"
        parts = ("matrices", f"{quantity}: {'; '.join(texts)}.", "nats", tuple(costs), "", SOURCE.key)
        yield Finding(*parts, title="Tying", what=quantity, per="seed")
