"""Recall's confidence: whether a model's probabilities separate what it retrieved from what it guessed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import polars as pl

from trisect.experiments.recall.page_numbers import (
    CATEGORIES,
    MODELS,
    SCORES,
    SHORT,
    MeasureRow,
    RecallNumbers,
    cumulative,
    probabilities,
    roc,
    scored,
)
from trisect.experiments.recall.page_panels import (
    PLACES,
    UNIT,
    Path,
    dash,
    keys,
    look,
    path_panel,
    share_words,
    words_for,
)
from trisect.report import format as words
from trisect.report.panels import Figure, LegendEntry
from trisect.report.sheet import Section, Table


def confidence(numbers: RecallNumbers) -> Section | None:
    """Calibration, confidence by category, ranking, and risk against coverage; null without a pretrained model."""
    deep = numbers.deep
    if deep is None:
        return None
    models = [m for m in numbers.models if m != "plain"]
    said = (
        "An answer is retrieved where it is right and the model has met the name; it is guessed where no text has the name. "
        "What is asked here is whether the model's own confidence separates right answers from the others.",
    )
    figures = [
        *_reliability(numbers, models),
        *_distribution(numbers, deep),
        *_ranking(numbers, deep),
        *_risk(numbers, models),
    ]
    tables = tuple(t for t in (_auroc(numbers, models), _thresholds(numbers, models)) if t is not None)
    if not figures and not tables:
        return None
    return Section("Retrieved or guessed?", said, tuple(figures), tables)


def _placed(numbers: RecallNumbers, measure: str, model: str) -> list[MeasureRow]:
    """Rows of a measure that stand at a probability or a share, in its order."""
    found = [row for row in numbers.rows(measure, subject=model) if row["at"] is not None]
    return sorted(found, key=lambda row: row["at"] or 0.0)


def _reliability(numbers: RecallNumbers, models: Sequence[str]) -> Iterable[Figure]:
    panels, total, errors = [], 0, []
    for model in models:
        rows = _placed(numbers, "reliability", model)
        if not rows:
            continue
        points = tuple((r["at"] or 0.0, r["value"]) for r in rows)
        path = Path(SHORT.get(model, model), look(model), points, (), True, tuple((r["low"], r["high"]) for r in rows))
        panels.append(
            path_panel(MODELS.get(model, model).capitalize(), [path], "probability", "share right", UNIT, True)
        )
        total = max(total, sum(r["n"] or 0 for r in rows))
        if error := numbers.number("ece", model):
            errors.append(f"{SHORT.get(model, model)} {words_for(error)}")
    if panels:
        tail = f" Expected calibration error: {'; '.join(errors)}." if errors else ""
        caption = (
            "The answers in bins by the probability that the model gives them; on the dashed line a probability is what it says, below "
            f"it the model is too sure.{tail} n\u00a0=\u00a0{words.several(total, 'answer')} a panel."
        )
        yield Figure("recall-reliability", "", "Is a probability what it says?", caption, tuple(panels))


def _distribution(numbers: RecallNumbers, deep: str) -> Iterable[Figure]:
    answers = numbers.of_model(deep)
    found = {c: probabilities(of) for c in CATEGORIES if len(of := answers.filter(pl.col("category") == c))}
    if not found:
        return
    paths = [Path(c, look(c), tuple(cumulative(v)), dash(i)) for i, (c, v) in enumerate(found.items())]
    middle = "; ".join(
        f"{c} {words.number(median(v), places=PLACES)} (n\u00a0=\u00a0{words.count(len(v))})" for c, v in found.items()
    )
    caption = (
        f"The share of answers whose probability is at most so high, by where the model met the name; "
        f"{MODELS.get(deep, deep)}. The further right a line, the surer. Medians: {middle}, n counting answers."
    )
    panel = path_panel("Confidence by category", paths, "probability of the answer", "share of answers", UNIT)
    yield Figure("recall-confidence", "", "How sure, by category", caption, (panel,), keys({c: c for c in found}))


def _ranking(numbers: RecallNumbers, deep: str) -> Iterable[Figure]:
    answers = numbers.of_model(deep, "valid").drop_nulls("correct")
    marks = [look(c) for c in CATEGORIES]
    paths, key = [], []
    for i, (score, name) in enumerate(SCORES.items()):
        if points := roc(*scored(answers, score)):
            paths.append(Path(name, marks[i], tuple(points), dash(i)))
            key.append(LegendEntry(name, marks[i].colour, marks[i].shape))
    if not paths:
        return
    caption = (
        "Of the answers to the questions held out, the share of right ones that score above a line against that of wrong ones, "
        f"for every line. On the dashed diagonal a score is at chance; {MODELS.get(deep, deep)}. "
        f"n\u00a0=\u00a0{words.several(len(answers), 'answer')}, "
        f"{words.count(sum(answers['correct'].to_list()))} right."
    )
    if area := numbers.number("auroc_probability", deep):
        caption += f" Area under the curve of the probability: {words_for(area)}."
    panel = path_panel("Right against wrong", paths, "share of wrong answers", "share of right answers", UNIT, True)
    yield Figure("recall-ranking", "", "Does confidence separate right from wrong?", caption, (panel,), tuple(key))


def _risk(numbers: RecallNumbers, models: Sequence[str]) -> Iterable[Figure]:
    paths, areas, count = [], [], 0
    for model in models:
        rows = _placed(numbers, "risk", model)
        if rows:
            points = tuple((r["at"] or 0.0, r["value"]) for r in rows)
            paths.append(Path(SHORT.get(model, model), look(model), points))
            count = max(count, *(r["n"] or 0 for r in rows))
        if rows and (area := numbers.number("aurc", model)):
            areas.append(f"{SHORT.get(model, model)} {words_for(area)}")
    if paths:
        tail = f" Area under the curve, lower is better: {'; '.join(areas)}." if areas else ""
        caption = (
            "The share of wrong answers among those given, when only the surest are given and the others held back."
            f"{tail} n\u00a0=\u00a0{words.several(count, 'name')}."
        )
        panel = path_panel("An abstaining model", paths, "share of questions answered", "share wrong", UNIT)
        named = {m: MODELS.get(m, m) for m in models if any(p.look == look(m) for p in paths)}
        yield Figure("recall-risk", "", "Risk and coverage", caption, (panel,), keys(named))


def _auroc(numbers: RecallNumbers, models: Sequence[str]) -> Table | None:
    named = {**SCORES, "answer_string": "the answer string alone (frequency, length, known place)"}
    rows = []
    for score, name in named.items():
        found = [numbers.number(f"auroc_{score}", m) for m in models]
        if any(found):
            rows.append((name, *(words_for(f) for f in found)))
    columns = ("What is ranked by", *(SHORT.get(m, m) for m in models))
    caption = "AUROC: how often a right answer is ranked above a wrong one; 0.5 is chance"
    return Table(columns, tuple(rows), caption) if rows else None


def _thresholds(numbers: RecallNumbers, models: Sequence[str]) -> Table | None:
    rows = []
    for model in models:
        covered = {r["at"] or 0.0: r["value"] for r in _placed(numbers, "threshold_coverage", model)}
        limits = {r["at"]: r["value"] for r in numbers.rows("threshold", subject=model)}
        for risk, share in sorted(covered.items()):
            limit = limits.get(risk)
            said = (
                words.number(limit)
                if limit is not None
                else "another for each seed"
                if share > 0
                else "abstains always"
            )
            rows.append((f"{SHORT.get(model, model)}, at most {100 * risk:g}\u00a0% wrong", said, share_words(share)))
    caption = (
        "Where an abstaining model draws its line, so that with 95 % confidence no more of its answers are wrong: set on the "
        "questions held out about names that it has met, or on all of them where it has met none"
    )
    return Table(("Model and risk", "probability from", "answered"), tuple(rows), caption) if rows else None
