"""What single heads hold of a label, and lose to an attack on it, beside random maps of what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from trisect.core.methods import reads_head
from trisect.core.site import Site
from trisect.experiments.study import words as study_words
from trisect.experiments.study.probing import input_site
from trisect.experiments.study.removal import AFTER, PROBES, baselines, probed_labels
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.axes import around
from trisect.report.chart_data import Measure
from trisect.report.panels import ZERO, Figure, Panel, site_panel
from trisect.report.parts import component_key, cut, with_means
from trisect.report.points import Point, interval

OWN, OTHERS, MAPS = "Heads of the attacked site", "Heads of the other two", "Random maps"


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
    before = {(p.seed, p.site): p.value for p in _both(rows, label, kind, baselines(rows))}
    attacked = rows.runs.filter(rows.chosen("attack", label, variant=variant)).select("run", "site", "seed").rows()
    runs = [run for run, _, _ in attacked]
    after = _both(rows, label, kind, runs)
    taken = {(p.run, p.site): before[p.seed, p.site] - p.value for p in after if (p.seed, p.site) in before}
    found = BitsLost([], [], [])
    for run, name, seed in attacked:
        site = Site.parse(name)
        for points, sites in zip(found, _compared(site), strict=True):
            values = [taken[run, other] for other in sites if (run, other) in taken]
            if values and len(values) == len(sites):
                points.append(Point(name, seed, fmean(values), None, False, run))
    return found


def _both(rows: StudyRows, label: str, kind: str, subjects: Sequence[str]) -> list[Point]:
    return [*held(rows, label, kind, subjects), *held_by_maps(rows, label, kind, subjects)]


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
    panels, hidden = _panels(shown, "bits", zero=False)
    caption = f"{_bits(rows, label, noun)}, in one head of the baseline: mean over the heads of a component and layer. {_beside(maps)}"
    caption += f"{study_words.seeds(rows)}. Of heads: {study_words.extremes(heads, 'bits')}{hidden}"
    title = f"What single heads hold of {study_words.label_name(label)}, by a {noun}"
    return Figure(
        _name(label, kind, "heads"), "Beyond the paper", title, caption, panels, component_key([*heads, *maps])
    )


def _after(rows: StudyRows, label: str, kind: str, noun: str, taken: Mapping[str, BitsLost]) -> Figure:
    shown = {
        name if variant == "plain" else f"{name}: {AFTER[variant].lower()}": points
        for variant, found in taken.items()
        for name, points in found.named.items()
    }
    panels, hidden = _panels(shown, "bits removed", zero=True)
    every = [p for points in shown.values() for p in points]
    caption = (
        f"{_bits(rows, label, noun)}, in one head: what an attack takes from the heads of its own site, from those of the other two "
        f"components of the layer, which read the same, and from random maps of it. {study_words.seeds(rows)}."
    )
    for variant, found in taken.items():
        beside = ((OTHERS.lower(), found.others), (MAPS.lower(), found.maps))
        own = rows.readable(found.own)
        said = [f"than {name} by {_gap(own, points)}" for name, points in beside if own and points]
        if said:
            caption += f" {AFTER[variant]}: heads of the attacked site lose more {', '.join(said)}."
    caption += study_words.from_collapsed(rows, every) + hidden
    title = f"What single heads lose of {study_words.label_name(label)}, by a {noun}"
    return Figure(
        _name(label, kind, "heads-lost"), "Beyond the paper", title, caption, panels, component_key(every, ZERO)
    )


def _panels(shown: Mapping[str, Sequence[Point]], unit: str, zero: bool) -> tuple[tuple[Panel, ...], str]:
    """One panel each, on the same axis, and a sentence on what the axis does not show."""
    axis = around([p.value for points in shown.values() for p in with_means(points)], unit, zero=zero)
    levels = (ZERO,) if zero else ()
    made = (site_panel(name, points, axis, levels, Measure(name, "bits", zero)) for name, points in shown.items())
    return tuple(made), cut((axis, points) for points in shown.values())


def _bits(rows: StudyRows, label: str, noun: str) -> str:
    said = f"V-information of {study_words.label_name(label)} of the next word, by a fresh {noun} on held-out tokens"
    return f"{said}, {study_words.fitted(rows, 'probe', label)}"


def _beside(maps: Sequence[Point]) -> str:
    if not maps:
        return "Without random maps of the same input nothing says how much of it is a head's own choice (random_maps of a probe). "
    return "Random maps of what enters the layer to as many numbers say what a head holds that chose nothing. "


def _gap(own: Sequence[Point], others: Sequence[Point]) -> str:
    """The mean over sites of the difference, with its interval over seeds."""
    beside = {(p.run, p.site): p.value for p in others}
    gaps: dict[int, list[float]] = {}
    for p in own:
        if (p.run, p.site) in beside:
            gaps.setdefault(p.seed, []).append(p.value - beside[p.run, p.site])
    return words.spoken(interval([fmean(values) for values in gaps.values()]), "bits")


def _name(label: str, kind: str, what: str) -> str:
    return f"removed-{words.slug(label)}-{kind}-{what}"


def _component(name: str) -> str | None:
    """The whole component of a single head's site; null for other sites."""
    site = Site.parse(name)
    single = len(site.components) == len(site.layers or ()) == len(site.heads or ()) == 1
    return str(Site(site.components, site.layers)) if reads_head(site) and single else None


def _compared(site: Site) -> tuple[list[str], list[str], list[str]]:
    """The sites of an attacked site's own components, of the others of its layers, and of the layers' random maps."""
    layers = site.layers or ()
    own = [str(Site((c,), (n,))) for n in layers for c in site.components]
    others = [str(Site((c,), (n,))) for n in layers for c in "qkv" if c not in site.components]
    return own, others, [str(input_site(n)) for n in layers]


def _means(points: Iterable[Point], whose: Callable[[str], str | None]) -> list[Point]:
    """The points' means by run and by the site that `whose` makes of theirs."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if site := whose(point.site):
            found.setdefault((point.run, site), []).append(point)
    return [of[0]._replace(site=site, value=fmean(p.value for p in of), at=None) for (_, site), of in found.items()]
