"""Score which methods find what a world has planted, against a truth that no method reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from markupsafe import Markup

from trisect.core.claim import MIN_SEEDS
from trisect.core.finding import Estimate, Finding
from trisect.core.printable import percent
from trisect.core.tables import TableRow
from trisect.experiments.study import removal
from trisect.experiments.study.rows import StudyRows
from trisect.measure.recall import auroc
from trisect.papers.roles import READS, SOURCE
from trisect.report import format as words
from trisect.report.format import Mean, Point, by_site, interval
from trisect.report.sheet import BLIND, PageBlock, Section, Table, TextBlock, present
from trisect.stats.paired import summary, t_test
from trisect.stats.shares import least_spread
from trisect.stats.significance import ALPHA, holm

MARGIN = 0.02  # nats, as everywhere; of bits and of shares of pairs as well
TITLE = "Which methods find the known roles?"
SHARES = {"own": "own prediction", "as_q": "as q", "as_k": "as k", "as_v": "as v", "unchanged": "unchanged"}
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


class _Case(NamedTuple):
    """A cell or site that a method judges: its place, the label column (empty: none), and whether something is planted there."""

    site: str
    column: str
    carried: bool


class Planted(NamedTuple):
    """A world: its description, its cells, the layer that reads, and sites where every effect is a false alarm."""

    words: str
    cells: tuple[_Case, ...]
    layer: int
    idle: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """q, k and v of the reading layer."""
        return tuple(f"{component}@{self.layer}" for component in "qkv")


def _cells(layer: int, columns: dict[str, tuple[str, ...]], carried: dict[str, str]) -> tuple[_Case, ...]:
    """Every component with each column; `carried` names the column that it has to carry."""
    return tuple(
        _Case(f"{component}@{layer}", column, column == carried[component])
        for component, labels in columns.items()
        for column in labels
    )


_QUESTION_TOKENS, _ITEM_TOKENS = (tuple(f"{token}.{name}" for name in "abc") for token in ("question", "item"))
_QUESTION, _VALUE = (tuple(f"{token}.{name}" for name in ("own", "before")) for token in ("question", "value"))


TRUTH: dict[str, Planted] = {
    "roles": Planted(
        "A document is four items and a question, and only the answer is predicted. An item is one word with three attributes, as "
        "in a3b1c6; the question names an a; the answer is the b of the item that has it; c is for nothing. So at the layer that "
        "reads, layer 2, the query must carry the a that is asked for, the key the item's a, the value the item's b, and none of "
        "them needs anything else. Layer 1 is idle: its attention adds nothing, in training or after.",
        _cells(
            2,
            {"q": _QUESTION_TOKENS, "k": _ITEM_TOKENS, "v": _ITEM_TOKENS},
            {"q": "question.a", "k": "item.a", "v": "item.b"},
        ),
        2,
        ("q@1", "k@1", "v@1"),
    ),
    "induction": Planted(
        "A document is four keys, each with a value after it, and one of the keys again; only the answer is predicted, the value "
        "that came after that key. So at the layer that reads, layer 2, the query must carry its own word, the key the word "
        "before it, the value its own word; and at layer 1, which hands each key on to the value after it, the value must "
        "carry the key's own word. Layer 3 is idle: its attention adds nothing, in training or after.",
        (
            *_cells(
                2,
                {"q": _QUESTION, "k": _VALUE, "v": _VALUE},
                {"q": "question.own", "k": "value.before", "v": "value.own"},
            ),
            _Case("v@1", "key.own", True),
            _Case("v@1", "value.own", False),
        ),
        2,
        ("q@3", "k@3", "v@3"),
    ),
}


class _CaseEffect(NamedTuple):
    """A method's effect in a case, p of “not above the margin”, and whether it finds it (None with one seed)."""

    case: _Case
    effect: Mean
    p: float
    detected: bool | None


class _MethodScore(NamedTuple):
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
    """The page's section; None for a text without planted roles."""
    truth = TRUTH.get(str(rows.corpus.get("name")))
    if truth is None:
        return
    methods, many = scores(rows), words.quantity(len(rows.seeds), "seed")
    blocks: list[PageBlock] = []
    if len(rows.seeds) < MIN_SEEDS:
        blocks.append(TextBlock(f"A verdict asks for at least {MIN_SEEDS} seeds; this study has {many}.", "notice"))
    groups = {
        "These separate what is planted from what is not (AUROC above 0.99)": lambda auroc: auroc > 0.99,
        "These do hardly better than guessing, or no better (below 0.75)": lambda auroc: auroc < BLIND,
    }
    titles = {start: [m.title for m in methods if test(m.auroc)] for start, test in groups.items()}
    if best := " ".join(f"{start}: {'; '.join(group)}." for start, group in titles.items() if group):
        blocks.append(TextBlock(best))
    look: dict[str, Any] = {"folded": False, "wrap": False}
    if methods:
        body = []
        for method in methods:
            each = " to ".join(dict.fromkeys(f"{end(method.by_seed.values()):.2f}" for end in (min, max)))
            rates = (_percent(method.false_alarms), _percent(method.misses))
            body.append((method.title, method.over, f"{method.auroc:.2f}", each, *rates))
        counted = words.quantity(max(len(method.by_seed) for method in methods), "seed")
        columns = ("Method", "Over", "AUROC", "In each seed", "False alarms", "Misses")
        caption = f"How well each method finds what is planted. {counted}."
        blocks.append(Table(columns, tuple(body), caption, id="planted-methods", **look))
    shares = {name: by_site(rows.measure(f"interchange_{name}", "valid")) for name in SHARES}
    if sites := sorted(shares["own"], key=lambda site: (site.rpartition("@")[2], "qkv".index(site[0]))):
        means = {site: [shares[name].get(site) for name in SHARES] for site in sites}
        body = [(site, *(_percent(mean and mean.mean, 1) for mean in row)) for site, row in means.items()]
        pairs = rows.sites.filter(pl.col("measure") == "interchange_own")["n"].max()
        caption = (
            f"Interchange (activation patching): one of q, k and v comes from another document, and the model goes on. Shares of "
            f"{pairs} pairs a seed, all of whose four answers differ: the answer that this component predicts, those of the others, "
            "or the document's own. q predicts the answer to the other question, k the value at the place where the other document "
            "has the key, v the other document's value."
        )
        blocks.append(Table(("Site", *SHARES.values()), tuple(body), caption, id="planted-interchange", **look))
    for over, where in (("cells", "of every cell"), ("sites", "at every site")):
        # ties are at sites of their own
        if judged := [method for method in methods if method.over == over and method.key != "tie"]:
            cases = [effect.case for effect in judged[0].effects]
            lines = tuple((f"{m.title}, {m.unit}", *(_cell(m, case) for case in cases)) for m in judged)
            heads = (Markup("{}{}<small>{}</small>").format(c.site, " ●" * c.carried, c.column) for c in cases)
            blocks.append(Table(("Effect", *heads), lines, f"The effect {where}. {KEY}", id=f"planted-{over}", **look))
    yield Section(TITLE, (WORLD + truth.words, SCORED), blocks=tuple(blocks), id="planted")


def _percent(share: float | None, decimals: int = 0) -> str:
    return "–" if share is None else percent(share, decimals)


def _cell(method: _MethodScore, case: _Case) -> Markup:
    effect: _CaseEffect | None = next((e for e in method.effects if e.case == case), None)
    if effect is None:
        return Markup("–")
    ends = [end for end in (effect.effect.low, effect.effect.high) if end is not None]
    mean, *both = (words.number(v, True, 2 if abs(v) >= 0.1 else 3) for v in (effect.effect.mean, *ends))
    shown = Markup("{}{}").format(mean, " ✓" * bool(effect.detected))
    return shown + Markup("<small>{} to</small><small>{}</small>").format(*both) if both else shown


def findings(rows: StudyRows) -> Iterator[Finding]:
    """Each method's AUROC with false alarms and misses, then the shares of pairs under interchange."""
    for method in scores(rows):
        each, quantity = interval(list(method.by_seed.values())), f"AUROC over {method.over}"
        text = f"AUROC {method.auroc:.2f} over {len(method.effects)} {method.over} and {words.quantity(each.n, 'seed')}"
        if method.false_alarms is not None and method.misses is not None:
            text += f"; false alarms {percent(method.false_alarms)}, misses {percent(method.misses)}"
        values = (
            Estimate("auroc", method.auroc, each.low, each.high, each.n),
            Estimate("false alarms", method.false_alarms),
            Estimate("misses", method.misses),
        )
        parts = ("planted", f"{text}.", "", values, "", SOURCE.key)
        yield Finding(*parts, title=method.title, what=quantity, groups=(method.key,), per="seed")
    for measure in ("own", "others", "unchanged"):
        if means := by_site(rows.measure(f"interchange_{measure}", "valid")):
            text = ", ".join(f"{site} {percent(mean.mean, 1)}" for site, mean in means.items())
            values = tuple(Estimate(site, *mean) for site, mean in means.items())
            title = f"Interchange, {SHARES.get(measure, 'as another component')}"
            parts = (f"interchange_{measure}", f"{text} of pairs.", "of pairs", values, "", SOURCE.key)
            yield Finding(*parts, title=title, per="seed", signed=False)


def score_rows(rows: StudyRows) -> list[TableRow]:
    """Each method's AUROC by seed, as rows of the table `sites` about the seed's baseline."""
    runs = dict(rows.runs.filter(pl.col("edit") == "none").select("seed", "run").iter_rows())
    shared = {"site": READS, "split": "valid"}
    return [
        shared | {"subject": runs[seed], "measure": f"auroc_{method.key}", "value": value, "n": len(method.effects)}
        for method in scores(rows)
        for seed, value in method.by_seed.items()
        if seed in runs
    ]


def scores(rows: StudyRows) -> tuple[_MethodScore, ...]:
    """All methods with effects in all their cases: those about a label over cells, others over sites."""
    if (truth := TRUTH.get(str(rows.corpus.get("name")))) is None:
        return ()
    methods: list[tuple[str, str, str, Callable[[str], list[Point]]]] = []  # key, title, unit, points of a column
    for strength in sorted(rows.strengths, reverse=True):
        key = "attack" if strength == 1 else f"attack_{strength:g}"
        effects = partial(rows.effects, "attack", "valid", strength=strength)
        methods.append((key, f"Attack, λ = {strength:g}", "nats", effects))
    for variant, title in VARIANTS.items():
        effects = partial(rows.effects, "attack", "valid", variant=variant)
        methods.append((variant.replace("+", "_"), f"{title}, λ = 1", "nats", effects))
    methods += [
        ("leace", "LEACE, beyond random subspaces", "nats", partial(removal.beyond_chance, rows)),
        ("leace_alone", "LEACE alone", "nats", partial(rows.measure, "erase_rise_nats", "valid")),
        ("probe", "Linear probe", "bits", partial(rows.measure, removal.BITS, "valid", subjects=rows.baselines)),
        ("interchange", "Interchange, one attribute", "nats", partial(rows.measure, "interchange_rise_nats", "valid")),
    ]
    cells = list(truth.cells)
    columns = list(dict.fromkeys(case.column for case in cells))
    judged = [
        _score(key, title, "cells", unit, cells, {column: points(column) for column in columns})
        for key, title, unit, points in methods
    ]
    ties = rows.effects("tie", "valid")
    # where the layer that reads is tied something can be lost
    tied = sorted({p.site for p in ties if p.site.rpartition("@")[2].isdigit()})
    tie_cases = [_Case(site, "", site.endswith(f"@{truth.layer}")) for site in tied]
    cases = [_Case(site, "", site in truth.reads) for site in (*truth.reads, *truth.idle)]
    moved = [p._replace(value=1 - p.value) for p in rows.measure("interchange_unchanged", "valid")]
    pairs = rows.sites.filter(pl.col("measure") == "interchange_unchanged")["n"].to_list()
    for key, title, points in (
        ("rewind", "Rewinding to initial weights", rows.rewound("rewind_loss_nats")),
        ("freeze", "Freezing", rows.effects("freeze", "valid")),
        ("ablate", "Mean ablation", rows.measure("ablate_rise_nats", "valid")),
        ("interchange_whole", "Interchange, another document", moved),
        ("tie", "Tying two matrices", ties),
    ):
        of_pairs, sites = key == "interchange_whole", tie_cases if key == "tie" else cases
        if len({case.carried for case in sites}) == 2:
            unit, many = ("of pairs", next(iter(pairs), None)) if of_pairs else ("nats", None)
            judged.append(_score(key, title, "sites", unit, sites, {"": points}, many))
    return present(*judged)


def _score(
    key: str,
    title: str,
    over: str,
    unit: str,
    cases: Sequence[_Case],
    points: Mapping[str, Sequence[Point]],
    pairs: int | None = None,
) -> _MethodScore | None:
    """A method's score from its points by column; None if a case has no effect.

    Shares of `pairs` have at least the spread of drawing so many, also where they are all the same.
    """
    by_case = [{p.seed: p.value for p in points[c.column] if p.site == c.site} for c in cases]
    if not all(by_case):
        return None
    samples = [summary(list(values.values())) for values in by_case]
    if pairs is not None:
        samples = [s._replace(spread=max(s.spread, least_spread(float(s.mean), pairs))) for s in samples]
    p = [float(t_test(sample, "above", MARGIN).p_for) for sample in samples]
    tested = all(len(values) > 1 for values in by_case)
    effects = tuple(
        _CaseEffect(case, interval(list(values.values())), p_value, bool(corrected < ALPHA) if tested else None)
        for case, values, p_value, corrected in zip(cases, by_case, p, holm(p), strict=True)
    )

    def score(seeds: Sequence[int]) -> float:
        """AUROC over the cases and seeds; values that differ by rounding alone count as ties."""
        values = np.array([round(by_seed[seed], 9) for by_seed in by_case for seed in seeds])
        return float(auroc(values, np.array([case.carried for case in cases for _ in seeds])))

    def rate(detected: Sequence[bool]) -> float | None:
        return sum(detected) / len(detected) if tested and detected else None

    seeds = sorted(set[int].intersection(*map(set, by_case)))
    alarms = rate([bool(effect.detected) for effect in effects if not effect.case.carried])
    misses = rate([not effect.detected for effect in effects if effect.case.carried])
    by_seed = {seed: score([seed]) for seed in seeds}
    return _MethodScore(key, title, over, unit, score(seeds), by_seed, alarms, misses, effects)
