"""What single heads hold of a label, and lose to an attack on it, beside random maps of what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from trisect.core.methods import input_site, reads_head
from trisect.core.site import Site
from trisect.experiments.study import words as study_words
from trisect.experiments.study.removal import AFTER, PROBES, baselines, probed_labels
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.axes import around
from trisect.report.chart_data import Measure
from trisect.report.panels import ZERO, Figure, Level
from trisect.report.parts import SitePanel, site_figure, with_means
from trisect.report.points import Point, interval

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


def figures(rows: StudyRows) -> Iterable[Figure]:
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
