"""Recall's page: what pretraining adds, what was retrieved and what was invented, and where q, k and v come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.experiments.recall.page_confidence import confidence
from trisect.experiments.recall.page_guesses import examples, survival, unseen
from trisect.experiments.recall.page_numbers import (
    BASELINE,
    CATEGORIES,
    MODELS,
    SHORT,
    STAGES,
    Number,
    RecallCurve,
    RecallNumbers,
)
from trisect.experiments.recall.page_panels import (
    OTHERS,
    Share,
    ends_words,
    keys,
    loss_panel,
    share_frame,
    share_panel,
    share_words,
    words_for,
)
from trisect.papers.recall import SOURCE
from trisect.report import format as words
from trisect.report import palette
from trisect.report.panels import Figure, LegendEntry
from trisect.report.provenance import provenance, verdict_findings
from trisect.report.sheet import Section, Sheet, Table

if TYPE_CHECKING:
    from trisect.experiments.recall.settings import RecallFacts, Reference

RETRIEVED = "retrieved"  # the kind of answer that only pretraining can have given
COLUMNS = {
    "pretraining and fine-tuning": "pretraining\nand fine-tuning",
    "pretraining only": "pretraining\nonly",
    "fine-tuning only": "fine-tuning\nonly",
}
REFERENCES = (
    "Stanford CS 224N, assignment 5: Self-Attention, Transformers, and Pretraining. 2021.",
    "Colin Raffel et al. Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer. JMLR 2020.",
    "Chuan Guo, Geoff Pleiss, Yu Sun, Kilian Weinberger. On Calibration of Modern Neural Networks. ICML 2017.",
    "Yonatan Geifman, Ran El-Yaniv. Selective Classification for Deep Neural Networks. NeurIPS 2017.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[RecallFacts]) -> Sheet:
    """The page; what was not measured leaves no section, and the same rows give the same bytes."""
    numbers, facts = RecallNumbers.of(tables), about.facts
    sections = [
        _accuracy(numbers, facts),
        Section("What the claims say here", _scope(numbers), cards=numbers.claims) if len(numbers.claims) else None,
        _learning(numbers),
        confidence(numbers),
        unseen(numbers),
        survival(numbers),
        examples(numbers) if facts.examples else None,
        Section("Notes", about.notes) if about.notes else None,
    ]
    names = len(set(numbers.answers["name"].to_list()))
    known = [words.several(names, "name")] if names else []
    lede = " · ".join([facts.corpus, *known, words.several(len(numbers.seeds), "seed")])
    kept = [section for section in sections if section is not None]
    title = "What does pretraining add, and what does the model invent?"
    own = provenance(about, *_facts(numbers, facts))
    return Sheet(title, "trisect · birth places", lede, tuple(_numbered(kept)), own, REFERENCES)


def findings(tables: Mapping[str, pl.DataFrame], about: About[RecallFacts]) -> tuple[Finding, ...]:
    """How many are right with and without pretraining, what survives without q, k or v, and every claim with its parts."""
    numbers = RecallNumbers.of(tables)
    rows = numbers.claims.to_dicts()
    judged: list[Finding] = []
    for whole in verdict_findings(numbers.claims):
        mine = [row for row in rows if row["claim"] == whole.claim]
        judged += [_whole(whole, row) for row in mine if row["part"] is None]
        judged += [_part(row) for row in mine if row["part"] is not None and row["decides"]]
    return (_right(numbers, about.facts.examples), *filter(None, (_survival(numbers),)), *judged)


def _whole(found: Finding, row: Mapping[str, Any]) -> Finding:
    """A claim's verdict; its numbers are said with its parts, each with its own places."""
    said = words.why_open(dict(row))
    why = f" ({said})" if said else ""
    return replace(found, words=f"{row['claim']}  {row['verdict']}: {row['sentence']}{why}")


def _part(row: Mapping[str, Any]) -> Finding:
    """What a deciding part says, and what was found."""
    found = None if row["effect"] is None else Number(row["effect"], row["low"], row["high"], row["n"])
    said = "not measured" if found is None else words_for(found, True)
    values = () if found is None else (Estimate(row["part"], *found),)
    return Finding(
        "part",
        f"{row['sentence']}: {said}",
        row["unit"] or "",
        values,
        source=row["source"],
        claim=row["claim"],
        verdict=row["verdict"],
        part=row["part"],
        per="name",
    )


def _survival(numbers: RecallNumbers) -> Finding | None:
    """What stays of retrieved answers without q, k or v of one layer; null where it was not measured."""
    rows = [] if numbers.deep is None else numbers.rows("survival", subject=numbers.deep, group=RETRIEVED)
    found = {c: [row for row in rows if row["component"] == c and row["layer"] is not None] for c in "qkv"}
    if not any(found.values()):
        return None
    values = tuple(
        Estimate(c, fmean(row["value"] for row in mine), n=max(row["n"] or 0 for row in mine))
        for c, mine in found.items()
        if mine
    )
    said = words.listed([f"{one.name} {share_words(one.mean or 0.0)}" for one in values])
    return Finding(
        "survival",
        f"Retrieved answers that stay when one layer's is replaced by its mean, mean over layers: {said}.",
        "of the answers",
        values,
        source=SOURCE.key,
        what="retrieved answers that stay when one layer's is replaced by its mean, mean over layers",
        per="name",
        signed=False,
    )


def _numbered(sections: Sequence[Section]) -> Iterable[Section]:
    """Figures counted through the whole page."""
    number = 0
    for section in sections:
        figures = [replace(f, number=f"Figure {number + i}") for i, f in enumerate(section.figures, start=1)]
        number += len(figures)
        yield replace(section, figures=tuple(figures))


def _scope(numbers: RecallNumbers) -> tuple[str, ...]:
    several = len(numbers.seeds) > 1
    drawn = "names and seeds" if several else "names"
    tail = "" if several else " There is one seed, so that they speak of these trained models alone."
    said = f"Intervals and p-values are from resampling {drawn}.{tail}"
    if "B-2" not in numbers.claims["claim"].to_list():
        return (said,)
    return (
        said,
        "B-2 and B-3 are about an AUROC, and two-sided about one half. In B-2 a regression ranks answers about names that it was "
        "not fitted on. A value well above one half means that right answers can be distinguished from wrong ones; one well below "
        "means that the regression fails on names held out, as what it learnt of the others does not carry over, not that answers "
        "can be distinguished.",
    )


def _right(numbers: RecallNumbers, named: bool) -> Finding:
    """The shares of right answers in one sentence; the commonest place is `named` where the page may show answers."""
    found = {m: number for m in numbers.models if (number := numbers.number("accuracy", m))}
    said = [f"{MODELS.get(m, m)} {words_for(number, share=True)}" for m, number in found.items()]
    base = numbers.number("accuracy", BASELINE)
    place = f"'{numbers.commonest}'" if named and numbers.commonest else "the commonest place"
    tail = f"; always answering {place} {words_for(base, share=True)}" if base else ""
    values = [Estimate(m, *number) for m, number in (found | ({BASELINE: base} if base else {})).items()]
    return Finding(
        "accuracy",
        f"Right answers to questions held out: {'; '.join(said)}{tail}." if said else "No question has a known answer.",
        "of the answers",
        tuple(values) if said else (),
        source=SOURCE.key,
        what="right answers to questions held out",
        per="name",
        signed=False,
    )


def _accuracy(numbers: RecallNumbers, facts: RecallFacts) -> Section:
    said = (
        "The question is 'Where was … born?', the answer a place, and there is no text to look it up in: what the model does not "
        "remember, it guesses. Fine-tuning shows how such questions are answered; the texts about the people held out "
        "are read in pretraining alone.",
        str(_right(numbers, facts.examples)),
    )
    references, part = facts.references, facts.part
    whole = [_share(numbers, m, None, SHORT.get(m, m)) for m in numbers.models]
    met = [_share(numbers, m, c, COLUMNS.get(c, c)) for c in CATEGORIES for m in numbers.models]
    whole, met = ([share for share in shares if share.number] for shares in (whole, met))
    tables = [*_by_category(numbers), *_others(references, part)]
    figures = (_right_figure(numbers, whole, met, references, part),) if whole else ()
    said += (part,) if part else ()
    return Section("Does pretraining let it answer?", said, figures, tuple(tables))


def _share(numbers: RecallNumbers, model: str, category: str | None, column: str) -> Share:
    seeds = tuple(share for _, share in numbers.shares(model, category))
    return Share(column, model, numbers.number("accuracy", model, category), seeds)


def _right_figure(
    numbers: RecallNumbers, whole: Sequence[Share], met: Sequence[Share], references: Sequence[Reference], part: str
) -> Figure:
    """Right answers by model, beside what others reached, and by where the model met the name."""
    others = {
        SHORT["plain"]: [share for _, without, _ in references for share in without],
        SHORT["pretrained"]: [share for _, _, pretrained in references for share in pretrained],
    }
    beside = [share for found in others.values() for share in found]
    base = numbers.number("accuracy", BASELINE)
    levels = {"always the commonest place": base.value} if base else {}
    axis = share_frame(whole, [*levels.values(), *beside])
    panels = [share_panel("Questions held out", whole, axis, levels, others)]
    if met:
        panels.append(
            share_panel("By where the model met the name", met, share_frame(met, list(levels.values())), levels)
        )
    several, count = len(numbers.seeds) > 1, max(s.number.n or 0 for s in whole if s.number)
    seeds = f", {words.several(len(numbers.seeds), 'seed')}, small marks are seeds" if several else ""
    caption = (
        "Share of answers that are the right place, letter by letter. Bars are 95 % intervals. Questions held out: "
        f"n\u00a0=\u00a0{words.several(count, 'name')}{seeds}."
    )
    if beside:
        caption += f" Grey points are others'{f', who learnt from all of the data. {part}' if part else ', on the same questions.'}"
    key = [*keys({m: MODELS.get(m, m) for m in numbers.models})]
    key += [LegendEntry(name, palette.BASELINE, None, (5, 3)) for name in levels]
    label = "others, from all of the data" if part else "others, on the same questions"
    key += [LegendEntry(label, OTHERS, "circle")] if beside else []
    return Figure("recall-accuracy", "", "Right answers", caption, tuple(panels), tuple(key))


def _by_category(numbers: RecallNumbers) -> Iterable[Table]:
    """Right answers by where the model met the name, with the number of names."""
    rows = [
        (f"{category}: {SHORT.get(model, model)}", share_words(found.value), ends_words(found), words.count(found.n))
        for category in CATEGORIES
        for model in numbers.models
        if (found := numbers.number("accuracy", model, category))
    ]
    if rows:
        columns = ("Name met in, by model", "right", "95 %", "names")
        yield Table(columns, tuple(rows), "Right answers by where the model met the name")


def _others(references: Sequence[Reference], part: str) -> tuple[Table, ...]:
    """What others reached, and what of their task this run leaves out."""
    if not references:
        return ()
    rows = tuple((source, _versions(without), _versions(pretrained)) for source, without, pretrained in references)
    caption = (
        f"What others reached, who learnt from all of the data. {part}"
        if part
        else "What others reached on the same questions"
    )
    return (Table(("Source", "without pretraining", "with"), rows, caption),)


def _versions(shares: Sequence[float]) -> str:
    return " or ".join(map(share_words, shares)) or "–"


def _learning(numbers: RecallNumbers) -> Section | None:
    curves = [c for c in numbers.curves() if c.name == "loss_nats" and c.split == "train"]
    stages = [(stage, mine) for stage in STAGES if (mine := [c for c in curves if c.stage == stage])]
    if not stages:
        return None
    panels = [loss_panel(stage.capitalize(), mine, SHORT) for stage, mine in stages]
    ends = "; ".join(f"{stage} {_ends(mine)}" for stage, mine in stages)
    models = [m for m in numbers.models if any(c.model == m for c in curves)]
    caption = (
        "Mean loss of a predicted character by epoch, as training saw it. In pretraining every character of a text whose span was "
        f"moved is predicted, in fine-tuning the answer alone. In the last epoch, in nats: {ends}. "
        f"{words.several(len(numbers.seeds), 'seed')}{', thin lines are seeds' if len(numbers.seeds) > 1 else ''}."
    )
    key = keys({m: MODELS.get(m, m) for m in models})
    return Section(
        "How it was learned", (), (Figure("recall-loss", "", "Losses", caption, tuple(panels), key, at="epoch"),)
    )


def _ends(curves: Sequence[RecallCurve]) -> str:
    """The mean loss of the last epoch, by model."""
    last = {m: [c.values[-1] for c in curves if c.model == m] for m in dict.fromkeys(c.model for c in curves)}
    return words.listed([f"{words.number(fmean(values))} ({SHORT.get(m, m)})" for m, values in last.items()])


def _facts(numbers: RecallNumbers, facts: RecallFacts) -> tuple[tuple[str, str], ...]:
    found = (
        ("Texts and questions", facts.corpus),
        ("Seeds", ", ".join(map(str, numbers.seeds))),
        ("Settings", ", ".join(f"{name} {value}" for name, value in sorted(facts.settings.items()))),
    )
    return tuple(fact for fact in found if fact[1])
