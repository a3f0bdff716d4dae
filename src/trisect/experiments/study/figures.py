"""Every figure of the report, drawn from the tables: the answer, the sources' figures 3 to 12, and extras."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import altair as alt
import polars as pl

from trisect.claims.verdicts import CONTROLS
from trisect.core.finding import Estimate, Finding
from trisect.core.study_data import StudyAbout
from trisect.experiments.study import curves, removal
from trisect.experiments.study import words as study_words
from trisect.experiments.study.curves import LOSS, SHARE, SPLIT
from trisect.experiments.study.removal import baselines
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.cards import NAMES, tallied, tally_survival
from trisect.report.charts import ZERO, Figure, Level, Measure, SharedAxis, around, heat_panel
from trisect.report.format import Mean, Point, interval, order, place
from trisect.report.measures import SitePanel, axis_of, change_panel, groups_of, site_figure, with_means

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


def control_findings(rows: StudyRows) -> Iterator[Finding]:
    """What is left of attacks when each control is subtracted, by label; then which claims survive each control."""
    for label in rows.controlled:
        found = _beside(rows, label, "valid")
        for control, points in _differences(rows, found).items():
            yield _left(label, control, points, study_words.from_collapsed(rows, _both(found, control), paired=True))
        for control in _unread(rows, found):
            noun, less = study_words.label_name(label), f"{study_words.VALID}, minus that by {WITH[control]}"
            said = f"{noun}, {less}: {study_words.NOTHING}{study_words.from_collapsed(rows, _both(found, control), paired=True)}"
            yield Finding("control", said, "nats", title="Controls", what=f"{noun}, {less}", groups=(label, control))
    for control, sorts in tally_survival(rows.controls).items():
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


def control_figures(rows: StudyRows) -> Iterable[Figure]:
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


BITS = "probe_linear_bits"
CONTROL_BITS = "probe_linear_control_bits"
HALF = 0.5  # of the bits that the baseline has: where attacks are compared that have no control


class Dose(NamedTuple):
    """One run under attack: the bits that a fresh probe no longer finds at its site, and the rise of the validation loss."""

    bits: float
    nats: float


DoseCurves = Mapping[tuple[str, int], Sequence[Dose]]  # site and seed -> doses, fewest bits first


def doses(rows: StudyRows, label: str, variant: str = "plain") -> DoseCurves:
    """Every strength of one kind of attack by site and seed; collapsed and diverged runs and what removed nothing are left out.

    The bits are those of the label that was attacked: of a control, of the label that each word type drew by chance.
    """
    measure = CONTROL_BITS if "control" in variant.split("+") else BITS
    before = {(p.site, p.seed): p.value for p in rows.measure(measure, "valid", label, baselines(rows))}
    after = {(p.site, p.run): p.value for p in rows.measure(measure, "valid", label)}
    found: dict[tuple[str, int], list[Dose]] = {}
    for strength in rows.strengths_of(variant):
        for point in rows.effects("attack", "valid", label, strength, variant=variant):
            key, left = (point.site, point.seed), after.get((point.site, point.run))
            if left is None or key not in before or point.diverged or point.run in rows.collapsed:
                continue
            if before[key] - left > 0:
                found.setdefault(key, []).append(Dose(before[key] - left, point.value))
    return {key: sorted(of) for key, of in found.items()}


def cost_at(curve: Sequence[Dose], bits: float) -> float | None:
    """The rise of the loss where so many bits are removed: linear between doses, from nothing at 0; null beyond the last."""
    last = Dose(0.0, 0.0)
    for dose in curve:
        if dose.bits >= bits:
            share = (bits - last.bits) / (dose.bits - last.bits) if dose.bits > last.bits else 1.0
            return last.nats + share * (dose.nats - last.nats)
        last = dose
    return None


class Reached(NamedTuple):
    """The sites that every seed has, and how many sites were attacked: a mean over others would be over unlike sites."""

    points: list[Point]
    sites: int

    @property
    def words(self) -> str:
        """At how many of the attacked sites every seed has the number."""
        return f"{len({p.site for p in self.points})} of {words.several(self.sites, 'site')}"


def against_control(rows: StudyRows, label: str, variant: str = "plain") -> Reached:
    """Attack minus control labels at equal bits removed: in each seed at the most bits that both of them remove there."""
    attack, control = (
        doses(rows, label, variant),
        doses(rows, label, "control" if variant == "plain" else f"control+{variant}"),
    )
    return _in_every_seed(rows, label, variant, _compared(attack, control))


def at_half(rows: StudyRows, label: str, variant: str = "plain") -> Reached:
    """The rise of the loss where half of the bits that the baseline has at the site are removed."""
    before = {(p.site, p.seed): p.value for p in rows.measure(BITS, "valid", label, baselines(rows))}
    found = {key: cost_at(curve, HALF * before[key]) for key, curve in doses(rows, label, variant).items()}
    points = [Point(site, seed, cost) for (site, seed), cost in sorted(found.items()) if cost is not None]
    return _in_every_seed(rows, label, variant, points)


def _in_every_seed(rows: StudyRows, label: str, variant: str, points: Sequence[Point]) -> Reached:
    """Only sites where no attacked seed is missing: else seeds would be means over different layers."""
    attacked: dict[str, set[int]] = {}
    for strength in rows.strengths_of(variant):
        for point in rows.effects("attack", "valid", label, strength, variant=variant):
            attacked.setdefault(point.site, set()).add(point.seed)
    has = {site: {p.seed for p in points if p.site == site} for site in attacked}
    return Reached([p for p in points if has.get(p.site) == attacked.get(p.site)], len(attacked))


def _compared(attack: DoseCurves, control: DoseCurves) -> list[Point]:
    found = []
    for key in sorted(set(attack) & set(control)):
        bits = min(attack[key][-1].bits, control[key][-1].bits)
        own, other = (cost_at(of[key], bits) for of in (attack, control))
        if own is not None and other is not None:
            found.append(Point(*key, own - other))
    return found


def dose_figures(rows: StudyRows) -> Iterable[Figure]:
    """For each label that was attacked and probed: the cost of half its bits, and attack minus control at equal bits."""
    for label in rows.labels:
        panels = {
            "Half of the bits removed": at_half(rows, label),
            "Attack minus control": against_control(rows, label),
        }
        found = {title: one.points for title, one in panels.items() if one.points}
        if not found:
            continue
        reached = "; ".join(f"{title}: every seed at {one.words}" for title, one in panels.items())
        noun, measured = study_words.label_name(label), "change of the validation loss"
        caption = (
            f"Attacks on {noun} compared at equal bits removed, not at equal λ. Bits are what a fresh linear probe no longer finds at the "
            "attacked site on held-out tokens; between the strengths that were run the loss is interpolated, from no change at 0 bits. "
            "Half of the bits: of those that the baseline of the same seed has there. Attack minus control: the control removes as "
            "many bits of labels that each word type drew by chance, in each seed the most that both remove. Collapsed runs are left "
            f"out, and so are sites that some seed does not reach ({reached}). {study_words.seeds(rows)}."
        )
        names = (f"attack-{words.slug(label)}-dose", study_words.BEYOND, f"Attacks on {noun} at equal bits removed")
        yield site_figure(names, caption, [change_panel(t, ps, "valid", measured) for t, ps in found.items()])


def dose_findings(rows: StudyRows) -> Iterator[Finding]:
    """For each label the attack minus its control, where both remove as much."""
    for label in rows.labels:
        reached = against_control(rows, label)
        if points := reached.points:
            noun = study_words.label_name(label)
            said = f"attack on {noun} minus its control labels at equal bits removed ({reached.words}), change of the validation loss,"
            what = "change of the validation loss, attack minus control labels at equal bits removed"
            yield study_words.finding(rows, "dose", "Equal bits", said, points, "nats", what, label, ranks=False)


MEASURES = {
    "attack": lambda title: Measure(f"{title}: change of validation loss", "nats", True),
    "freeze": lambda title: Measure(f"{title}: change of validation loss", "nats", True),
    "ablate": lambda title: Measure(f"{title}: rise of validation loss", "nats", True),
    "criticality": lambda title: Measure(title, "α"),
    "area": lambda title: Measure(f"{title}: mean rise of train loss", "nats", True),
}


def draw(tables: Mapping[str, pl.DataFrame], about: StudyAbout) -> dict[str, alt.ConcatChart]:
    """Charts by name: `answer`, `fig03-attack-pos-train`, …; those without rows are left out.

    `tables` holds runs, metrics, sites and claims by the schemas of core.tables; `about` is the study's description.
    """
    return {figure.name: figure.chart() for figure in collect(StudyRows.of(tables, about))}


def collect(rows: StudyRows) -> list[Figure]:
    """Every figure that the rows can fill, in the order of the page."""
    makers: list[Callable[[StudyRows], Iterable[Figure]]] = [
        _answer, curves.attacks, curves.baseline, _heat, _criticality, curves.midstage, curves.freezing, _adversary, _strengths,
        curves.combinations,
        curves.heads,
        control_figures,
        dose_figures,
        removal.removal_figures,
        removal.head_figures,
        removal.tying_figures,
        curves.edit_figures,
    ]  # fmt: skip
    return [figure for maker in makers for figure in maker(rows)]


def _answer(rows: StudyRows) -> Iterable[Figure]:
    items = study_words.methods(rows)
    if not items:
        return
    frames: dict[str, SharedAxis] = {}
    for kind in dict.fromkeys(item.kind for item in items):
        values = [p.value for item in items if item.kind == kind for p in with_means(item.points)]
        if kind == "criticality":
            frames[kind] = SharedAxis("α", -0.04, 1.04)
        else:
            unit = "nats, valid" if kind in study_words.SIGNED else "nats, train"
            frames[kind] = around(values, unit, zero=True, bend=True)
    panels = [
        SitePanel(
            one.title,
            one.points,
            MEASURES[one.kind](one.title),
            frames[one.kind],
            (ZERO,) * (one.kind != "criticality"),
        )
        for one in items
    ]
    bent = [one.title for one in items if frames[one.kind].linear is not None]
    points = [p for item in items for p in item.points]
    marks = "Marks are the one seed's values."
    if len(rows.seeds) > 1:
        marks = "Marks are means over seeds, bars 95 % intervals (Student t), small open marks single seeds."
    caption = (
        f"What happens when one site is edited; the horizontal axis is the layer. {marks} Attack and freezing: difference "
        "of the validation loss to the baseline of the same seed, at the last epoch; mean ablation: rise of the baseline's own. "
        "Criticality, areas: on the train split."
        f"{study_words.attacked(rows)} {study_words.seeds(rows)}, {words.several(len({p.site for p in points}), 'site')}."
        f"{study_words.from_collapsed(rows, points)}{study_words.from_diverged(points)}"
    )
    if bent:
        caption += f" The axis of {words.listed(bent)} is linear near zero and logarithmic beyond, since effects differ so much in size."
    yield site_figure(("answer", "", "The answer in one picture"), caption, panels)


def _heat(rows: StudyRows) -> Iterable[Figure]:
    points = rows.measure("rewind_loss_nats", "train")
    if not points:
        return
    means: dict[tuple[str, float | None], list[float]] = {}
    for p in points:
        means.setdefault((p.site, p.at), []).append(p.value)
    values = [sum(v) / len(v) for v in means.values()]
    low, high = min(values), max(values)
    panels = tuple(
        heat_panel(
            words.GROUP.get(g, g),
            [p for p in points if place(p.site).group == g],
            low,
            high,
            Measure("train loss", LOSS),
        )
        for g in groups_of(points)
    )
    caption = (
        "Train loss with one site's weights on the straight line between their initial (α = 0) and final (α = 1) values, all else "
        f"final; mean over seeds, the same colours in every panel. {study_words.seeds(rows)}, {len({p.at for p in points})} values of α, "
        f"{words.several(len({p.site for p in points}), 'site')}."
    )
    start = [p for p in points if p.at == 0]
    if start:
        caption += f" Loss at α = 0: {study_words.extremes(start, 'nats', False)}"
    yield Figure("fig08-rewind-heat", "Figure 8", "Convex rewinding", caption, panels, (), (low, high, LOSS), at="α")


def _criticality(rows: StudyRows) -> Iterable[Figure]:
    last, first = rows.measure("criticality", "train"), rows.measure("criticality_first", "train")
    if not last:
        return
    unit = SharedAxis("α", -0.04, 1.04)
    panels = [SitePanel("Criticality", last, MEASURES["criticality"]("Criticality"), unit, ())]
    early = {(p.site, p.seed): p.value for p in first}
    differ = sorted({p.site for p in last if early.get((p.site, p.seed), p.value) != p.value}, key=order)
    if differ:
        other = "The other reading"
        panels.append(SitePanel(other, first, MEASURES["criticality"](other), unit, ()))
    epsilon = ((rows.about.get("experiment") or {}).get("rewind") or {}).get("epsilon", 0.01)
    caption = (
        f"The smallest α from which on the train loss stays within {100 * epsilon:g} % of the final loss: "
        f"{study_words.extremes(last, '', False)} {study_words.seeds(rows)}. "
    )
    if not first:
        caption += "The other reading, the smallest α that is within the tolerance at all, was not measured."
    elif differ:
        caption += (
            f"The other reading, the smallest α that is within the tolerance at all, differs at {words.listed(differ)}."
        )
    else:
        caption += (
            "The other reading, the smallest α that is within the tolerance at all, gives the same numbers everywhere."
        )
    area = rows.measure("rewind_area", "train")
    if area:
        panels.append(SitePanel("Area", area, MEASURES["area"]("Area"), axis_of(area, "nats")))
        caption += " The area, the mean rise of the train loss over α, needs no tolerance."
    yield site_figure(("fig09-criticality", "Figure 9", "Criticality of every site"), caption, panels)


def _adversary(rows: StudyRows) -> Iterable[Figure]:
    found = [(label, rows.last("attack", "valid", "adversary_accuracy", label)) for label in rows.labels]
    found = [(label, points) for label, points in found if points]
    if not found:
        return
    axis = SharedAxis(SHARE, 0.0, 1.0)
    nouns = {label: study_words.label_name(label) for label, _ in found}
    panels = [
        SitePanel(
            f"Predicting {nouns[label]}",
            points,
            Measure(f"adversary's accuracy on {nouns[label]}", SHARE),
            axis,
            _majority(rows, label),
        )
        for label, points in found
    ]
    caption = (
        "How often the adversary names the label of the next word rightly at the last epoch, on the validation split: what the attack left "
        f"for this adversary to find, which is not all that is there.{study_words.attacked(rows)} {study_words.seeds(rows)}."
    )
    yield site_figure(("adversary", study_words.BEYOND, "The adversary's accuracy"), caption, panels)


def _majority(rows: StudyRows, label: str) -> tuple[Level, ...]:
    """How often the commonest label is right on the validation split, as a level to compare with; empty without rows."""
    found = rows.measure(f"majority_accuracy_{label}", "valid")
    if not found and len(rows.labels) == 1:
        found = rows.measure("majority_accuracy", "valid")
    return (Level("commonest label", interval([p.value for p in found]).mean),) if found else ()


def _strengths(rows: StudyRows) -> Iterable[Figure]:
    if len(rows.strengths) < 2:
        return
    for label in rows.labels:
        found = [(s, rows.effects("attack", "valid", label, s)) for s in rows.strengths]
        found = [(s, points) for s, points in found if points]
        points = [p for _, ps in found for p in ps]
        if not points:
            continue
        axis = around([p.value for p in points], "nats, valid", zero=True, bend=True)
        name = f"Attack on {study_words.label_name(label)}"
        panels = [SitePanel(f"λ = {s:g}", ps, MEASURES["attack"](f"{name}, λ = {s:g}"), axis) for s, ps in found]
        caption = (
            "Difference of the validation loss to the baseline of the same seed, at the last epoch, "
            f"by strength of the attack. {study_words.seeds(rows)}.{study_words.from_collapsed(rows, points)}"
        )
        names = (f"attack-{words.slug(label)}-strengths", study_words.BEYOND, f"{name} by strength")
        yield site_figure(names, caption, panels)
