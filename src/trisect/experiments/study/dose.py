"""Attacks by dose: what they cost beside the bits that they remove, and beside their control at equal bits (science A4, r2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from trisect.core.finding import Finding
from trisect.experiments.study import words as study_words
from trisect.experiments.study.removal import baselines
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.panels import Figure
from trisect.report.parts import change_panel, site_figure
from trisect.report.points import Point

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


def figures(rows: StudyRows) -> Iterable[Figure]:
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


def findings(rows: StudyRows) -> Iterator[Finding]:
    """For each label the attack minus its control, where both remove as much."""
    for label in rows.labels:
        reached = against_control(rows, label)
        if points := reached.points:
            noun = study_words.label_name(label)
            said = f"attack on {noun} minus its control labels at equal bits removed ({reached.words}), change of the validation loss,"
            what = "change of the validation loss, attack minus control labels at equal bits removed"
            yield study_words.finding(rows, "dose", "Equal bits", said, points, "nats", what, label, ranks=False)
