"""Controls of attacks: whether an effect survives other attacks of the same sites, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from trisect.claims.evidence import Evidence, gather
from trisect.claims.floors import is_attack
from trisect.claims.readings import read
from trisect.claims.verdicts import asked, barred_everywhere, depth, revision_of
from trisect.core.claim import Combination, CurveDistance, Effect, Leaf, LearnedFraction, LossChange, Part
from trisect.core.methods import VARIANTS
from trisect.core.study_data import StudyAbout
from trisect.core.tables import TableRow, frame
from trisect.papers.submodules import MARGIN
from trisect.stats.paired import Sample, summary, t_interval, t_test
from trisect.stats.tested import ALPHA, number

CONTROLS = (*VARIANTS[1:], "bounded+site")
SURVIVES, NOT, UNDECIDED, NOTHING = "survives", "does not survive", "undecided", "no such effect"
READINGS = (SURVIVES, NOT, UNDECIDED, NOTHING)
# Differences up to this size are none, where a part's own margin is not of that kind.
SAME = {"nats": MARGIN, "of what the baseline learned": 0.10}

LabelledSite = tuple[str, str]  # label and site


class Paired(NamedTuple):
    """A part's effect by seed with plain attacks and with a control, in the seeds that have both."""

    attack: tuple[float, ...]
    control: tuple[float, ...]


def judge_controls(tables: Mapping[str, pl.DataFrame], about: StudyAbout) -> pl.DataFrame:
    """The table `controls`: a row for each deciding part of a claim about attacks and each control that its sites have.

    `difference` is the effect with plain attacks less that with the control, paired by seed. Where only some of a part's sites
    have the control, both effects are of these, and the part's name says so. How a row is read: see `reading`.
    """
    evidence = gather(tables, depth(about))
    barred = barred_everywhere(evidence) is not None
    rows = []
    for source in asked(evidence, revision_of(tables["runs"])):
        for claim in source.claims:
            for part in claim.parts:
                for control in CONTROLS if part.decides else ():
                    found = _row(part, control, evidence, barred)
                    rows += [{"source": source.key, "claim": claim.id, **found}] if found else []
    return frame("controls", rows)


def _row(part: Part, control: str, evidence: Evidence, barred: bool) -> TableRow | None:
    kept = _kept(part, control, evidence)
    if kept is None:
        return None
    effect, where = kept
    paired = _paired(effect, control, evidence)
    if not paired.attack:
        return None
    attack, other = summary(paired.attack), summary(paired.control)
    difference = summary(np.subtract(paired.attack, paired.control))
    low, high = t_interval(difference)
    return {
        "part": part.name + (f" (at {', '.join(where)})" if where else ""),
        "control": control,
        "effect": number(attack.mean),
        "control_effect": number(other.mean),
        "difference": number(difference.mean),
        "low": number(low),
        "high": number(high),
        "n": len(paired.attack),
        "reading": UNDECIDED if barred else reading(part, control, attack, other, difference),
    }


def reading(part: Part, control: str, attack: Sample, other: Sample, difference: Sample) -> str:
    """How a part stands against one control; one of READINGS.

    'no such effect': the mean effect of the attack is not on the claimed side of the part's bound.
    Against control labels, which are not to have the effect, it 'does not survive' where the two are the same within a
    margin (two one-sided tests) or the 95 % interval of the difference lies on the wrong side of 0, and 'survives' where the
    interval lies on the claimed side.
    The bounded attack, that of the site alone and the one that is both remove the label too, so that they are to have it: it 'survives'
    where their own effect lies beyond the part's bound (one-sided test), and 'does not survive' where it lies short of it.
    """
    sign = 1.0 if part.direction == "above" else -1.0
    if not sign * (float(attack.mean) - part.bound) > 0:
        return NOTHING
    match control:
        case "bounded" | "site" | "bounded+site":
            found = t_test(other, part.direction, part.bound)
            return SURVIVES if found.p_for < ALPHA else NOT if found.p_against < ALPHA else UNDECIDED
        case "control":
            pass
        case _:
            raise AssertionError(f"no rule reads the control {control!r}")
    low, high = t_interval(difference)
    near, far = (low, high) if sign > 0 else (-high, -low)
    margin = SAME.get(part.unit)
    same = margin is not None and bool(t_test(difference, "within", margin).p_for < ALPHA)
    if same or far < 0:
        return NOT
    return SURVIVES if near > 0 else UNDECIDED


def _paired(effect: Effect, control: str, evidence: Evidence) -> Paired:
    both = [
        (plain.value, other.value)
        for seed in evidence.seeds
        if (plain := read(effect, evidence, seed)) is not None
        and (other := read(effect, evidence, seed, variant=control)) is not None
    ]
    return Paired(tuple(plain for plain, _ in both), tuple(other for _, other in both))


def _kept(part: Part, control: str, evidence: Evidence) -> tuple[Effect, tuple[str, ...]] | None:
    """The part's effect at those of its sites that have the control, and these sites where they are not all.

    Null where none has it, and for parts that claim no change: a control cannot explain what is not there.
    """
    if part.direction == "within" or not all(is_attack(leaf) for leaf in part.leaves()):
        return None
    have = {
        (key.label or "", key.site or "") for key in evidence.trained if key.edit == "attack" and key.variant == control
    }
    # A contrast between components stays one between the same layers on both sides.
    layers = set.intersection(*({_layer(site) for _, site in _places(leaf) & have} for leaf in part.leaves()))
    terms = part.effect.terms if isinstance(part.effect, Combination) else ((1.0, part.effect),)
    left = [(weight, _at(leaf, have, layers)) for weight, leaf in terms]
    found = tuple((weight, leaf) for weight, leaf in left if leaf is not None)
    if len(found) < len(left):
        return None
    whole = found[0][1] if not isinstance(part.effect, Combination) else Combination(found)
    before, after = (_sites(leaf for _, leaf in of) for of in (terms, found))
    return whole, () if after == before else after


def _places(leaf: Leaf) -> set[LabelledSite]:
    """Every label and site that a leaf about attacks reads."""
    if isinstance(leaf, CurveDistance):
        return {(label, f"{c}@{n}") for label in leaf.labels for c in leaf.pair for n in leaf.layers}
    assert isinstance(leaf, (LossChange, LearnedFraction))
    return {(leaf.label or "", site) for site in leaf.sites}


def _at(leaf: Leaf, have: set[LabelledSite], layers: set[str]) -> Leaf | None:
    """The leaf at the places that it has there and in these layers, or null where nothing is left of it."""
    if isinstance(leaf, CurveDistance):
        labels = tuple(x for x in leaf.labels if any(label == x for label, _ in have))
        whole = [n for n in leaf.layers if str(n) in layers]
        kept = tuple(n for n in whole if all((x, f"{c}@{n}") in have for x in labels for c in leaf.pair))
        return replace(leaf, layers=kept, labels=labels) if kept and labels else None
    assert isinstance(leaf, (LossChange, LearnedFraction))
    sites = tuple(site for site in leaf.sites if (leaf.label or "", site) in have and _layer(site) in layers)
    return replace(leaf, sites=sites) if sites else None


def _layer(site: str) -> str:
    return site.rpartition("@")[2]


def _sites(leaves: Iterable[Leaf]) -> tuple[str, ...]:
    """The sites of several leaves from the first layer upwards, and the labels where a leaf reads more than one."""
    known = list(leaves)
    sites = {site for leaf in known for _, site in _places(leaf)}
    labels = [label.upper() for leaf in known if isinstance(leaf, CurveDistance) for label in leaf.labels]
    return (*sorted(sites, key=lambda s: (_layer(s), "qkv".find(s[0]))), *dict.fromkeys(labels))
