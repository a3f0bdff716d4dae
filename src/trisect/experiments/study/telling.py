"""Which methods find what is planted? Sentences and tables on how well each finds what a world has planted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
from markupsafe import Markup

from trisect.core.finding import Estimate, Finding
from trisect.core.printable import percent
from trisect.experiments.study.planted import MARGIN, Case, CaseEffect, MethodScore, scores, truth_of
from trisect.experiments.study.rows import StudyRows
from trisect.papers.roles import LEAST, SOURCE
from trisect.report import format as words
from trisect.report.format import Mean, by_site, interval
from trisect.report.sheet import BLIND, PageBlock, Section, Table, TextBlock

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
    columns = ("Effect", *(_headed(case) for case in cases))
    where = "of every cell" if over == "cells" else "at every site"
    caption = f"The effect {where}. {KEY}"
    return Table(columns, rows, caption, folded=False, id=f"planted-{over}", wrap=False)


def _headed(case: Case) -> Markup:
    return Markup("{}{}<small>{}</small>").format(case.site, " ●" * case.carried, case.column)


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
