"""Which methods find what a world has planted: each method's effects on cells and sites, scored against the truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from trisect.core.tables import TableRow
from trisect.experiments.study import removal
from trisect.experiments.study.rows import StudyRows
from trisect.measure.recall import auroc
from trisect.papers.roles import READS
from trisect.report.format import Mean, Point, interval
from trisect.stats.paired import summary, t_test
from trisect.stats.shares import least_spread
from trisect.stats.tested import ALPHA, holm
from trisect.text.planted import TRUTH, Planted

MARGIN = 0.02  # nats, as everywhere; of bits and of shares of pairs as well
VARIANTS = {
    "bounded": "Bounded attack",
    "site": "Attack confined to the site",
    "bounded+site": "Bounded and confined attack",
    "control": "Attack on control labels",
}


class Case(NamedTuple):
    """A cell or a site that a method judges: where, the label column (empty: none), and whether something is planted."""

    site: str
    column: str
    carried: bool


class CaseEffect(NamedTuple):
    """A method's effect in one case over seeds, p of "not above the margin", and whether its own rule finds it (null: no
    test can be made with one seed).
    """

    case: Case
    effect: Mean
    p: float
    found: bool | None


class MethodScore(NamedTuple):
    """How well a method separates what is planted from what is not: AUROC over all cases and seeds, and in each seed; by its
    own rule the share of false cases that it finds and of true ones that it misses (null with one seed).

    `key` is how its measure is named, `over` is cells or sites.
    """

    key: str
    title: str
    over: str
    unit: str
    auroc: float
    by_seed: Mapping[int, float]
    false_alarms: float | None
    misses: float | None
    effects: tuple[CaseEffect, ...]


Effects = Mapping[Case, Mapping[int, float]]  # by seed


class Judged(NamedTuple):
    """A method by its key and title, with its effects in their unit: empty where one of its cases has none.

    Shares of `pairs` have at least the spread of drawing so many, also where they are the same in every seed.
    """

    key: str
    title: str
    unit: str
    effects: Effects
    pairs: int | None = None


def truth_of(rows: StudyRows) -> Planted | None:
    """What the text of the study has planted; null for a text that has nothing."""
    return TRUTH.get(str((rows.about.get("corpus") or {}).get("name", "")))


def scores(rows: StudyRows) -> tuple[MethodScore, ...]:
    """Every method that has effects in all its cases: those about a label over cells, the others over sites."""
    truth = truth_of(rows)
    if truth is None:
        return ()
    cells, sites = _over_cells(rows, truth), _over_sites(rows, truth)
    found = [(one, "cells") for one in cells] + [(one, "sites") for one in sites]
    return tuple(_score(one, over) for one, over in found if one.effects)


def planted_rows(rows: StudyRows) -> list[TableRow]:
    """Each method's AUROC in each seed, as rows of the table `sites` about the seed's baseline."""
    runs = dict(rows.runs.filter(pl.col("edit") == "none").select("seed", "run").iter_rows())
    return [
        {
            "subject": runs[seed],
            "site": READS,
            "measure": f"auroc_{score.key}",
            "split": "valid",
            "value": value,
            "n": len(score.effects),
        }
        for score in scores(rows)
        for seed, value in score.by_seed.items()
        if seed in runs
    ]


def _over_cells(rows: StudyRows, truth: Planted) -> Iterator[Judged]:
    """Key, title, unit and effects of the methods about a label."""
    for strength in sorted(rows.strengths, reverse=True):
        key = "attack" if strength == 1 else f"attack_{strength:g}"
        own = {c: rows.effects("attack", "valid", c, strength) for c in _columns(truth)}
        yield Judged(key, f"Attack, λ = {strength:g}", "nats", _of_cells(truth, own))
    for variant, title in VARIANTS.items():
        own = {c: rows.effects("attack", "valid", c, None, variant=variant) for c in _columns(truth)}
        yield Judged(variant.replace("+", "_"), f"{title}, λ = 1", "nats", _of_cells(truth, own))
    for key, title, own in (
        ("leace", "LEACE, beyond random subspaces", {c: removal.beyond_chance(rows, c) for c in _columns(truth)}),
        ("leace_alone", "LEACE alone", {c: rows.measure("erase_rise_nats", "valid", c) for c in _columns(truth)}),
    ):
        yield Judged(key, title, "nats", _of_cells(truth, own))
    baselines = removal.baselines(rows)
    own = {c: rows.measure("probe_linear_bits", "valid", c, baselines) for c in _columns(truth)}
    yield Judged("probe", "Linear probe", "bits", _of_cells(truth, own))
    own = {c: rows.measure("interchange_rise_nats", "valid", c) for c in _columns(truth)}
    yield Judged("interchange", "Interchange, one attribute", "nats", _of_cells(truth, own))


def _over_sites(rows: StudyRows, truth: Planted) -> Iterator[Judged]:
    """Key, title, unit and effects of the methods without a label."""
    ends = {(p.site, p.seed): p.value for p in rows.measure("rewind_loss_nats", "valid") if p.at == 1}
    points = rows.measure("rewind_loss_nats", "valid")
    rewound = [
        p._replace(value=p.value - ends[p.site, p.seed]) for p in points if p.at == 0 and (p.site, p.seed) in ends
    ]
    yield Judged("rewind", "Rewinding to initial weights", "nats", _of_sites(truth, rewound))
    yield Judged("freeze", "Freezing", "nats", _of_sites(truth, rows.effects("freeze", "valid")))
    yield Judged("ablate", "Mean ablation", "nats", _of_sites(truth, rows.measure("ablate_rise_nats", "valid")))
    kept = rows.measure("interchange_unchanged", "valid")
    pairs = int(rows.sites.filter(pl.col("measure") == "interchange_unchanged")["n"].to_list()[0]) if kept else None
    changed = [p._replace(value=1 - p.value) for p in kept]
    yield Judged("interchange_whole", "Interchange, another document", "of pairs", _of_sites(truth, changed), pairs)
    ties = [p for p in rows.effects("tie", "valid") if p.site.rpartition("@")[2].isdigit()]
    yield Judged("tie", "Tying two matrices", "nats", _grouped(_tied(truth, ties), ties))


def _columns(truth: Planted) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cell.column for cell in truth.cells))


def _of_cells(truth: Planted, points: Mapping[str, Sequence[Point]]) -> Effects:
    cases = [Case(*cell) for cell in truth.cells]
    found = {case: {p.seed: p.value for p in points[case.column] if p.site == case.site} for case in cases}
    return found if all(found.values()) else {}


def _of_sites(truth: Planted, points: Sequence[Point]) -> Effects:
    return _grouped([Case(site, "", site in truth.reads) for site in (*truth.reads, *truth.idle)], points)


def _tied(truth: Planted, points: Sequence[Point]) -> list[Case]:
    """Sites that are tied: at the layer that reads something can be lost."""
    spelt = sorted({p.site for p in points})
    return [Case(site, "", site.endswith(f"@{truth.layer}")) for site in spelt]


def _grouped(cases: Sequence[Case], points: Sequence[Point]) -> Effects:
    found = {case: {p.seed: p.value for p in points if p.site == case.site} for case in cases}
    kinds_seen = {case.carried for case in cases}
    return found if all(found.values()) and len(kinds_seen) == 2 else {}


def _score(method: Judged, over: str) -> MethodScore:
    effects, samples = method.effects, [summary(list(own.values())) for own in method.effects.values()]
    if method.pairs is not None:
        samples = [one._replace(spread=max(one.spread, least_spread(float(one.mean), method.pairs))) for one in samples]
    seeds = sorted(set.intersection(*(set(own) for own in effects.values())))
    p = [float(t_test(sample, "above", MARGIN).p_for) for sample in samples]
    tested = all(len(own) > 1 for own in effects.values())
    alarms = [bool(value < ALPHA) if tested else None for value in holm(p)]
    judged = tuple(
        CaseEffect(case, interval(list(own.values())), value, alarm)
        for (case, own), value, alarm in zip(effects.items(), p, alarms, strict=True)
    )
    return MethodScore(
        method.key,
        method.title,
        over,
        method.unit,
        _auroc(effects, seeds),
        {seed: _auroc(effects, [seed]) for seed in seeds},
        _share([one.found for one in judged if not one.case.carried]),
        _share([not one.found for one in judged if one.case.carried]) if tested else None,
        judged,
    )


def _auroc(effects: Effects, seeds: Sequence[int]) -> float:
    """AUROC over the cases and those seeds; what rounding alone makes differ counts as the same."""
    values = np.array([round(own[seed], 9) for own in effects.values() for seed in seeds])
    carried = np.array([case.carried for case in effects for _ in seeds])
    return float(auroc(values, carried))


def _share(found: Sequence[bool | None]) -> float | None:
    known = [one for one in found if one is not None]
    return sum(known) / len(known) if known else None
