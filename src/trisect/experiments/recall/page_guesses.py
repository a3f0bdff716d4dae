"""Recall's guesses: names that no text has, what q, k and v do for an answer, and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from trisect.core.files import digest
from trisect.experiments.recall.page_numbers import (
    MODELS,
    SHORT,
    UNSEEN,
    MeasureRow,
    RecallNumbers,
    number_of,
    probabilities,
)
from trisect.experiments.recall.page_panels import (
    UNIT,
    Share,
    ends_words,
    keys,
    share_frame,
    share_panel,
    share_words,
    words_for,
)
from trisect.report import format as words
from trisect.report.layers import Bar, component_key, layer_panel
from trisect.report.panels import Figure
from trisect.report.sheet import Section, Table

NEAR = {"n-grams": "character n-grams", "last name": "same last name", "representation": "model's own vectors"}
EXAMPLES = 5  # of each kind
SURVIVAL = {"survival": "their mean over the questions", "survival_zero": "0"}
SHORTLY = {"survival": "by the mean", "survival_zero": "by 0"}
KINDS = ("retrieved", "wrong", "taught", "made up")
SHOWN = {"made up": "guessed"}  # in the place of a value that stands in tables
TITLE = "Where do q, k and v come in?"


def unseen(numbers: RecallNumbers) -> Section | None:
    """How often a guess is the place of the nearest known name, against chance; null where it was not measured."""
    deep = numbers.deep
    rows = sorted(numbers.rows("match", subject=deep) if deep else [], key=lambda row: _rank(str(row["group"])))
    if not rows or deep is None:
        return None
    shares, cells = [], []
    for row in rows:
        kind = str(row["group"])
        name = NEAR.get(kind, kind)
        expected, excess, p = (numbers.number(f"match_{m}", deep, kind) for m in ("expected", "excess", "p"))
        shares.append(Share(name.replace(" ", "\n", 1), "observed", number_of(row)))
        shares += [Share(name.replace(" ", "\n", 1), "by chance", expected)] if expected else []
        chance = "–" if p is None else "< 0.001" if p.value < 0.001 else words.number(p.value)
        by_chance = share_words(expected.value) if expected else "–"
        cells.append(
            (name, words.count(row["n"]), share_words(row["value"]), by_chance, words_for(excess, True), chance)
        )
    said = (
        "Asked of a name that no text has, the model still writes a place. If it goes by how names look, that place is more often the "
        "one of the most similar known name than chance would have it: chance being the same places dealt out among the names again.",
    )
    caption = (
        f"Share of unseen names whose answer is the place of the nearest known name, for each way to say what is near, and the same by "
        f"chance; {MODELS.get(deep, deep)}. Above chance by {'; '.join(f'{c[0]} {c[4]}' for c in cells)}. "
        f"n\u00a0=\u00a0{'; '.join(f'{c[0]} {c[1]}' for c in cells)} names."
    )
    panel = share_panel("Follows the nearest name", shares, share_frame(shares))
    key = keys({"observed": "observed", "by chance": "by chance"})
    figure = Figure("recall-unseen", "", "Guesses about unseen names", caption, (panel,), key)
    columns = ("Nearest by", "n", "match", "by chance", "excess", "p")
    table = Table(columns, tuple(cells), "Matches of n names against chance, p from permutations")
    return Section("Names it never saw", said, (figure,), (table,))


def _rank(kind: str) -> int:
    return list(NEAR).index(kind) if kind in NEAR else len(NEAR)


def survival(numbers: RecallNumbers) -> Section | None:
    """What survives where a layer's q, k or v are replaced; null where it was not measured."""
    found = {measure: numbers.rows(measure) for measure in SURVIVAL}
    figures = [
        _survival(measure, [row for row in rows if row["subject"] == model])
        for measure, rows in found.items()
        for model in [numbers.deep or numbers.models[0]]
        if any(row["subject"] == model for row in rows)
    ]
    cells = [
        (
            f"{SHORT.get(row['subject'], row['subject'])}, {SHOWN.get(row['group'] or '', row['group'])}: "
            f"{row['component']}@{row['layer']}, {SHORTLY[measure]}",
            share_words(row["value"]),
            ends_words(number_of(row)),
            words.count(row["n"]),
        )
        for measure, rows in found.items()
        for row in rows
    ]
    if not cells:
        return None
    said = (
        "If an answer is retrieved through what attention reads in one layer, it changes when that layer's queries, keys or values say "
        "nothing of this question. An answer that is guessed need not depend on them in the same way.",
        "Retrieved: right about a name met in pretraining alone, so that nothing but that text can have held it. Wrong: another place "
        "for such a name. Taught: right about a name that fine-tuning asked about. Guessed: about a name met in no text.",
    )
    columns = ("Model, kind of answer and replacement", "the same", "95 %", "names")
    return Section(TITLE, said, tuple(figures), (Table(columns, tuple(cells), "Every replacement, in every model"),))


def _survival(measure: str, rows: Sequence[MeasureRow]) -> Figure:
    """A panel for each kind of answer, of one model."""
    model, by = rows[0]["subject"], SURVIVAL[measure]
    kinds = [k for k in dict.fromkeys((*KINDS, *(r["group"] for r in rows))) if any(r["group"] == k for r in rows)]
    panels, counts, least = [], [], []
    for group in kinds:
        mine, kind = (
            sorted((r for r in rows if r["group"] == group), key=lambda r: r["layer"] or 0),
            SHOWN.get(group or "", group),
        )
        panels.append(layer_panel(str(kind).capitalize(), _bars(mine), UNIT, zero=False))
        counts.append(f"{kind} {words.count(max(r['n'] or 0 for r in mine))}")
        fewest = min(mine, key=lambda r: r["value"])
        least.append(f"{kind} {share_words(fewest['value'])} at {fewest['component']}@{fewest['layer']}")
    caption = (
        "Share of answers that stay the same, letter by letter, when the queries, keys or values of one layer are replaced by "
        f"{by}. Fewest stay: {'; '.join(least)}. Bars are 95 % intervals over names; "
        f"{MODELS.get(model, model)}. n\u00a0=\u00a0{'; '.join(counts)}."
    )
    name = f"recall-{measure.replace('_', '-')}"
    title = f"What survives without q, k or v (replaced by {by})"
    return Figure(name, "", title, caption, tuple(panels), component_key(_bars(rows))[:-1])


def _bars(rows: Sequence[MeasureRow]) -> list[Bar]:
    return [Bar(str(r["component"]), str(r["layer"]), r["value"], r["low"], r["high"]) for r in rows]


def examples(numbers: RecallNumbers) -> Section | None:
    """A few answers of each kind, mixed; what they were stands in a table of its own."""
    deep = numbers.deep
    if deep is None:
        return None
    answers = numbers.of_model(deep).filter(pl.col("seed") == numbers.seeds[0])
    held = answers.filter(pl.col("split") == "valid")
    right = held.filter(pl.col("correct") & (pl.col("category") != UNSEEN))
    wrong = held.filter(~pl.col("correct") & (pl.col("category") != UNSEEN))
    unseen = answers.filter(pl.col("category") == UNSEEN)
    rows: list[dict[str, Any]] = []
    for kind, of in (("retrieved", right), ("wrong", wrong), ("guessed: in no text", unseen)):
        picked = sorted(of.iter_rows(named=True), key=lambda r: digest(r["name"]))[:EXAMPLES]
        rows += [{**row, "kind": kind} for row in picked]
    if not rows:
        return None
    rows.sort(key=lambda r: digest(f"shown {r['name']}"))
    asked = [
        (f"{i}. {r['question']}", r["answer"] or "–", share_words(probabilities(pl.DataFrame([r]))[0]))
        for i, r in enumerate(rows, start=1)
    ]
    answers = [(f"{i}. {r['name']}", r["kind"], r["gold"] or "–") for i, r in enumerate(rows, start=1)]
    said = "Which of these answers did the model know? The first table has them as they come, the second says what they were."
    tables = (
        Table(("Question", "answer", "probability"), tuple(asked), "Questions and answers"),
        Table(("Name", "the answer was", "right place"), tuple(answers), "What they were"),
    )
    return Section("Which are retrieved, which are guessed?", (said,), (), tables)
