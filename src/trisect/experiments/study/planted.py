"""Which methods find what a world has planted: each method's effects on cells and sites, scored against the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import polars as pl
from markupsafe import Markup

from trisect.core.claim import LEAST_SEEDS
from trisect.core.finding import Estimate, Finding
from trisect.core.printable import percent
from trisect.core.tables import TableRow
from trisect.experiments.study import removal
from trisect.experiments.study.rows import StudyRows
from trisect.measure.recall import auroc
from trisect.papers.roles import READS, SOURCE
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


Effects = Mapping[Case, Mapping[int, float]]  # by seed


class _CaseEffect(NamedTuple):
    """A method's effect in one case over seeds, p of "not above the margin", and whether its own rule finds it (None: no
    test can be made with one seed).
    """

    case: Case
    effect: Mean
    p: float
    found: bool | None


class MethodScore(NamedTuple):
    """How well a method separates what is planted from what is not: AUROC over all cases and seeds, and in each seed; by its
    own rule the share of false cases that it finds and of true ones that it misses (None with one seed).

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
    effects: tuple[_CaseEffect, ...]


def section(rows: StudyRows) -> Iterator[Section]:
    """The section of the page; nothing for a text that has nothing planted."""
    truth = _truth_of(rows)
    if truth is None:
        return
    found, many = scores(rows), words.several(len(rows.seeds), "seed")
    blocks: list[PageBlock] = []
    if len(rows.seeds) < LEAST_SEEDS:
        said = f"A verdict asks for at least {LEAST_SEEDS} seeds; this study has {many}."
        blocks.append(TextBlock(said, "notice"))
    ends = {
        "These separate what is planted from what is not (AUROC above 0.99)": [
            o.title for o in found if o.auroc > 0.99
        ],
        "These do hardly better than guessing, or no better (below 0.75)": [o.title for o in found if o.auroc < BLIND],
    }
    if best := " ".join(f"{start}: {'; '.join(titles)}." for start, titles in ends.items() if titles):
        blocks.append(TextBlock(best))
    blocks += [_methods(found)] if found else []
    blocks += [_interchange(rows)] if rows.measure("interchange_own", "valid") else []
    for over, where in (("cells", "of every cell"), ("sites", "at every site")):
        # ties are at sites of their own
        if own := [one for one in found if one.over == over and one.key != "tie"]:
            cases = [one.case for one in own[0].effects]
            lines = tuple((f"{one.title}, {one.unit}", *(_cell(one, case) for case in cases)) for one in own)
            heads = (Markup("{}{}<small>{}</small>").format(c.site, " ●" * c.carried, c.column) for c in cases)
            caption = f"The effect {where}. {KEY}"
            blocks.append(Table(("Effect", *heads), lines, caption, folded=False, id=f"planted-{over}", wrap=False))
    yield Section(TITLE, (WORLD + truth.words, SCORED), blocks=tuple(blocks), id="planted", short=TITLE)


def findings(rows: StudyRows) -> Iterator[Finding]:
    """Each method's AUROC with its false alarms and misses, then the shares of pairs under interchange."""
    for one in scores(rows):
        each, what = interval(list(one.by_seed.values())), f"AUROC over {one.over}"
        said = f"AUROC {one.auroc:.2f} over {len(one.effects)} {one.over} and {words.several(each.n, 'seed')}"
        if one.false_alarms is not None and one.misses is not None:
            said += f"; false alarms {percent(one.false_alarms)}, misses {percent(one.misses)}"
        values = (
            Estimate("auroc", one.auroc, each.low, each.high, each.n),
            Estimate("false alarms", one.false_alarms),
            Estimate("misses", one.misses),
        )
        own = (f"{said}.", "", values, "", SOURCE.key)
        yield Finding("planted", *own, title=one.title, what=what, groups=(one.key,), per="seed")
    for measure in ("own", "others", "unchanged"):
        if means := by_site(rows.measure(f"interchange_{measure}", "valid")):
            said = ", ".join(f"{site} {percent(mean.mean, 1)}" for site, mean in means.items())
            values = tuple(Estimate(site, *mean) for site, mean in means.items())
            title = f"Interchange, {SHARES.get(measure, 'as another component')}"
            own = (f"{said} of pairs.", "of pairs", values, "", SOURCE.key)
            yield Finding(f"interchange_{measure}", *own, title=title, per="seed", signed=False)


def blind(rows: StudyRows) -> tuple[str, ...]:
    """Methods that do hardly better than guessing where the truth is known; nothing of a text that has nothing planted."""
    return tuple(
        f"{one.title}: AUROC {one.auroc:.2f} over {one.over}, where 0.5 is guessing."
        for one in scores(rows)
        if one.auroc < BLIND and one.key != "control"  # which is to find nothing
    )


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


def _cell(one: MethodScore, case: Case) -> Markup:
    effect: _CaseEffect | None = next((e for e in one.effects if e.case == case), None)
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
    sites = sorted(found["own"], key=lambda site: (site.rpartition("@")[2], "qkv".index(site[0])))

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


def _truth_of(rows: StudyRows) -> Planted | None:
    """What the text of the study has planted; None for a text that has nothing."""
    return TRUTH.get(str((rows.about.get("corpus") or {}).get("name", "")))


def scores(rows: StudyRows) -> tuple[MethodScore, ...]:
    """Every method that has effects in all its cases: those about a label over cells, the others over sites."""
    truth = _truth_of(rows)
    return () if truth is None else (*_over_cells(rows, truth), *_over_sites(rows, truth))


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


def _over_cells(rows: StudyRows, truth: Planted) -> Iterator[MethodScore]:
    """The methods about a label."""
    found: list[tuple[str, str, str, Callable[[str], list[Point]]]] = []  # key, title, unit, points of a column
    for strength in sorted(rows.strengths, reverse=True):
        key = "attack" if strength == 1 else f"attack_{strength:g}"
        of = partial(rows.effects, "attack", "valid", strength=strength)
        found.append((key, f"Attack, λ = {strength:g}", "nats", of))
    for variant, title in VARIANTS.items():
        of = partial(rows.effects, "attack", "valid", variant=variant)
        found.append((variant.replace("+", "_"), f"{title}, λ = 1", "nats", of))
    found += [
        ("leace", "LEACE, beyond random subspaces", "nats", partial(removal.beyond_chance, rows)),
        ("leace_alone", "LEACE alone", "nats", partial(rows.measure, "erase_rise_nats", "valid")),
        ("probe", "Linear probe", "bits", partial(rows.measure, removal.BITS, "valid", subjects=rows.baselines)),
        ("interchange", "Interchange, one attribute", "nats", partial(rows.measure, "interchange_rise_nats", "valid")),
    ]
    cases = [Case(*cell) for cell in truth.cells]
    for key, title, unit, of in found:
        points = {column: of(column) for column in dict.fromkeys(case.column for case in cases)}
        effects = {c: {p.seed: p.value for p in points[c.column] if p.site == c.site} for c in cases}
        if all(effects.values()):
            yield _score(key, title, "cells", unit, effects)


def _over_sites(rows: StudyRows, truth: Planted) -> Iterator[MethodScore]:
    """The methods without a label."""
    kept = rows.measure("interchange_unchanged", "valid")
    pairs = int(rows.sites.filter(pl.col("measure") == "interchange_unchanged")["n"].to_list()[0]) if kept else None
    found = {
        ("rewind", "Rewinding to initial weights", "nats"): rows.rewound("rewind_loss_nats"),
        ("freeze", "Freezing", "nats"): rows.effects("freeze", "valid"),
        ("ablate", "Mean ablation", "nats"): rows.measure("ablate_rise_nats", "valid"),
        ("interchange_whole", "Interchange, another document", "of pairs"): [
            p._replace(value=1 - p.value) for p in kept
        ],
        ("tie", "Tying two matrices", "nats"): rows.effects("tie", "valid"),
    }
    for (key, title, unit), points in found.items():
        cases = [Case(site, "", site in truth.reads) for site in (*truth.reads, *truth.idle)]
        if key == "tie":  # at the layer that reads something can be lost
            sites = sorted({p.site for p in points if p.site.rpartition("@")[2].isdigit()})
            cases = [Case(site, "", site.endswith(f"@{truth.layer}")) for site in sites]
        effects = {case: {p.seed: p.value for p in points if p.site == case.site} for case in cases}
        if all(effects.values()) and len({case.carried for case in cases}) == 2:
            yield _score(key, title, "sites", unit, effects, pairs if key == "interchange_whole" else None)


def _score(key: str, title: str, over: str, unit: str, effects: Effects, pairs: int | None = None) -> MethodScore:
    """A method's score; shares of `pairs` have at least the spread of drawing so many, also where they are all the same."""
    samples = [summary(list(own.values())) for own in effects.values()]
    if pairs is not None:
        samples = [one._replace(spread=max(one.spread, least_spread(float(one.mean), pairs))) for one in samples]
    p = [float(t_test(sample, "above", MARGIN).p_for) for sample in samples]
    tested = all(len(own) > 1 for own in effects.values())
    judged = tuple(
        _CaseEffect(case, interval(list(own.values())), value, bool(corrected < ALPHA) if tested else None)
        for (case, own), value, corrected in zip(effects.items(), p, holm(p), strict=True)
    )

    def score(seeds: Sequence[int]) -> float:
        """AUROC over the cases and those seeds; what rounding alone makes differ counts as the same."""
        values = np.array([round(own[seed], 9) for own in effects.values() for seed in seeds])
        return float(auroc(values, np.array([case.carried for case in effects for _ in seeds])))

    def share(found: Sequence[bool]) -> float | None:
        return sum(found) / len(found) if tested and found else None

    seeds = sorted(set.intersection(*(set(own) for own in effects.values())))
    alarms = share([bool(one.found) for one in judged if not one.case.carried])
    misses = share([not one.found for one in judged if one.case.carried])
    by_seed = {seed: score([seed]) for seed in seeds}
    return MethodScore(key, title, over, unit, score(seeds), by_seed, alarms, misses, judged)
