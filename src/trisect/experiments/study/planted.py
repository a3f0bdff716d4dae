"""Which methods find what a world has planted: each method's effects on cells and sites, scored against the truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from markupsafe import Markup

from trisect.core.finding import Estimate, Finding
from trisect.core.printable import percent
from trisect.core.tables import TableRow
from trisect.experiments.study import removal
from trisect.experiments.study.rows import StudyRows
from trisect.measure.recall import auroc
from trisect.papers.roles import LEAST, READS, SOURCE
from trisect.report import format as words
from trisect.report.format import Mean, Point, by_site, interval
from trisect.report.sheet import BLIND, PageBlock, Section, Table, TextBlock
from trisect.stats.paired import summary, t_test
from trisect.stats.shares import least_spread
from trisect.stats.tested import ALPHA, holm
from trisect.text.planted import TRUTH, Planted

MARGIN = 0.02  # nats, as everywhere; of bits and of shares of pairs as well
TITLE = "Which methods can tell?"


SHARES = {
    "own": "own prediction",
    "as_q": "as q",
    "as_k": "as k",
    "as_v": "as v",
    "unchanged": "unchanged",
}


WORLD = "This study's text is a world whose truth is known. "


SCORED = (
    "Each method is scored as if the text were language. A method about a label has cells, a component with an attribute, some of "
    "them true; one without a label has q, k and v of the layer that reads, and those of the idle one, where nothing can be found. AUROC "
    "is the probability that a true case has the larger effect than a false one, over all seeds: 1 is perfect, 0.5 is guessing. By its "
    f"own rule a method finds a case where its effect is above {MARGIN:g} (one-sided t test over seeds, Holm over the method's cases, "
    "p < 0.05)."
)


KEY = "● marks what is planted, ✓ what the method finds by its own rule. Means over seeds with their 95 % intervals."


def section(rows: StudyRows) -> Iterator[Section]:
    """The section of the page; nothing for a text that has nothing planted."""
    truth = truth_of(rows)
    if truth is None:
        return
    found = scores(rows)
    blocks: list[PageBlock] = []
    if len(rows.seeds) < LEAST:
        few = words.several(len(rows.seeds), "seed")
        blocks.append(
            TextBlock(f"The claims on planted roles ask for at least {LEAST} seeds; this study has {few}.", "notice")
        )
    blocks += [TextBlock(said) for said in (_best(found),) if said]
    blocks += [_methods(found)] if found else []
    blocks += [_interchange(rows)] if rows.measure("interchange_own", "valid") else []
    for over in ("cells", "sites"):
        blocks += [_cases(own, over)] if (own := [one for one in found if one.over == over]) else []
    yield Section(TITLE, (WORLD + truth.words, SCORED), blocks=tuple(blocks), id="planted", short=TITLE)


def findings(rows: StudyRows) -> Iterator[Finding]:
    """Each method's AUROC with its false alarms and misses, then the shares of pairs under interchange."""
    for one in scores(rows):
        each = interval(list(one.by_seed.values()))
        said = f"AUROC {one.auroc:.2f} over {len(one.effects)} {one.over} and {words.several(each.n, 'seed')}"
        if one.false_alarms is not None and one.misses is not None:
            said += f"; false alarms {percent(one.false_alarms)}, misses {percent(one.misses)}"
        values = (
            Estimate("auroc", one.auroc, each.low, each.high, each.n),
            Estimate("false alarms", one.false_alarms),
            Estimate("misses", one.misses),
        )
        what = f"AUROC over {one.over}"
        yield Finding(
            "planted", f"{said}.", "", values, "", SOURCE.key, title=one.title, what=what, groups=(one.key,), per="seed"
        )
    for measure in ("own", "others", "unchanged"):
        means = by_site(rows.measure(f"interchange_{measure}", "valid"))
        if not means:
            continue
        said = ", ".join(f"{site} {percent(mean.mean, 1)}" for site, mean in means.items())
        values = tuple(Estimate(site, *mean) for site, mean in means.items())
        title = f"Interchange, {SHARES.get(measure, 'as another component')}"
        name = f"interchange_{measure}"
        yield Finding(
            name, f"{said} of pairs.", "of pairs", values, "", SOURCE.key, title=title, per="seed", signed=False
        )


def blind(rows: StudyRows) -> tuple[str, ...]:
    """Methods that do hardly better than guessing where the truth is known; nothing of a text that has nothing planted."""
    return tuple(
        f"{one.title}: AUROC {one.auroc:.2f} over {one.over}, where 0.5 is guessing."
        for one in scores(rows)
        if one.auroc < BLIND and one.key != "control"  # which is to find nothing
    )


def _best(found: Sequence[MethodScore]) -> str:
    """Which methods find almost everything, and which hardly do better than guessing."""
    ends = (
        (
            "These separate what is planted from what is not (AUROC above 0.99)",
            [one for one in found if one.auroc > 0.99],
        ),
        (
            "These do hardly better than guessing, or no better (below 0.75)",
            [one for one in found if one.auroc < BLIND],
        ),
    )
    return " ".join(f"{start}: {'; '.join(one.title for one in own)}." for start, own in ends if own)


def _methods(found: Sequence[MethodScore]) -> Table:
    def row(one: MethodScore) -> tuple[str, ...]:
        low, high = min(one.by_seed.values()), max(one.by_seed.values())
        each = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
        return one.title, one.over, f"{one.auroc:.2f}", each, _percent(one.false_alarms), _percent(one.misses)

    seeds = words.several(max(len(one.by_seed) for one in found), "seed")
    columns = ("Method", "Over", "AUROC", "In each seed", "False alarms", "Misses")
    caption = f"How well each method finds what is planted. {seeds}."
    return Table(columns, tuple(map(row, found)), caption, folded=False, id="planted-methods", wrap=False)


def _percent(share: float | None, decimals: int = 0) -> str:
    return "–" if share is None else percent(share, decimals)


def _cases(found: Sequence[MethodScore], over: str) -> Table:
    """Every method's effect in every cell, or at every site."""
    found = [one for one in found if one.key != "tie"]  # at sites of its own
    cases = [one.case for one in found[0].effects] if found else []
    rows = tuple((f"{one.title}, {one.unit}", *(_cell(one, case) for case in cases)) for one in found)
    columns = (
        "Effect",
        *(Markup("{}{}<small>{}</small>").format(case.site, " ●" * case.carried, case.column) for case in cases),
    )
    where = "of every cell" if over == "cells" else "at every site"
    caption = f"The effect {where}. {KEY}"
    return Table(columns, rows, caption, folded=False, id=f"planted-{over}", wrap=False)


def _cell(one: MethodScore, case: Case) -> Markup:
    effect: CaseEffect | None = next((e for e in one.effects if e.case == case), None)
    if effect is None:
        return Markup("–")
    ends = [end for end in (effect.effect.low, effect.effect.high) if end is not None]
    mean, *both = (words.number(v, True, 2 if abs(v) >= 0.1 else 3) for v in (effect.effect.mean, *ends))
    said = Markup("{}{}").format(mean, " ✓" * bool(effect.found))
    return said + Markup("<small>{} to</small><small>{}</small>").format(*both) if both else said


def _interchange(rows: StudyRows) -> Table:
    """Whose answer comes when q, k or v of a site is the donor's."""
    found = {name: by_site(rows.measure(f"interchange_{name}", "valid")) for name in SHARES}
    counted = rows.sites.filter(pl.col("measure") == "interchange_own")["n"].max()
    sites = sorted(found["own"], key=lambda site: (site.rpartition("@")[2], "qkv".index(site[0])), reverse=False)

    def pairs(mean: Mean | None) -> str:
        return _percent(None if mean is None else mean.mean, 1)

    body = tuple((site, *(pairs(found[name].get(site)) for name in SHARES)) for site in sites)
    caption = (
        f"Interchange (activation patching): one of q, k and v comes from another document, and the model goes on. Shares of "
        f"{counted} pairs a seed, all of whose four answers differ: the answer that this component predicts, those of the others, "
        "or the document's own. q predicts the answer to the other question, k the value at the place where the other document "
        "has the key, v the other document's value."
    )
    return Table(("Site", *SHARES.values()), body, caption, folded=False, id="planted-interchange", wrap=False)


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
    # at the layer that reads something can be lost
    tied = [Case(site, "", site.endswith(f"@{truth.layer}")) for site in sorted({p.site for p in ties})]
    yield Judged("tie", "Tying two matrices", "nats", _grouped(tied, ties))


def _columns(truth: Planted) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cell.column for cell in truth.cells))


def _of_cells(truth: Planted, points: Mapping[str, Sequence[Point]]) -> Effects:
    cases = [Case(*cell) for cell in truth.cells]
    found = {case: {p.seed: p.value for p in points[case.column] if p.site == case.site} for case in cases}
    return found if all(found.values()) else {}


def _of_sites(truth: Planted, points: Sequence[Point]) -> Effects:
    return _grouped([Case(site, "", site in truth.reads) for site in (*truth.reads, *truth.idle)], points)


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
