"""Recall's page: what pretraining adds, what was retrieved and what made up, and where q, k and v come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl

from trisect.experiments.recall.page_confidence import confidence
from trisect.experiments.recall.page_guesses import examples, survival, unseen
from trisect.experiments.recall.page_numbers import BASELINE, CATEGORIES, MODELS, SHORT, STAGES, Curve, Number, Numbers
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
from trisect.report import format as words
from trisect.report import palette
from trisect.report.panels import Figure, Key
from trisect.report.sheet import Section, Sheet, Table, write_sheet

COLUMNS = {
    "pretraining and fine-tuning": "pretraining\nand fine-tuning",
    "pretraining only": "pretraining\nonly",
    "fine-tuning only": "fine-tuning\nonly",
}
Others = tuple[str, Sequence[float], Sequence[float]]  # a source, its shares without pretraining, and with it
REFERENCES = (
    "Stanford CS 224N, assignment 5: Self-Attention, Transformers, and Pretraining. 2021.",
    "Colin Raffel et al. Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer. JMLR 2020.",
    "Chuan Guo, Geoff Pleiss, Yu Sun, Kilian Weinberger. On Calibration of Modern Neural Networks. ICML 2017.",
    "Yonatan Geifman, Ran El-Yaniv. Selective Classification for Deep Neural Networks. NeurIPS 2017.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)


def write(out: Path, tables: Mapping[str, pl.DataFrame], about: Mapping[str, Any]) -> Path:
    """Write `out/report.html` and its figures from the tables answers, measures, metrics and claims; the page's path.

    `about` has `corpus`, `command` and `versions`, and may have `settings` (by name), `seconds`, `claims_hash`, `references`
    (source, shares without pretraining, shares with it: none, one or several), `part` (what was cut of the data, a sentence that
    then stands beside all references), `examples` and `notes`. The same rows give the same bytes.
    Raises StudyError when the folder cannot be written.
    """
    return write_sheet(out, make_sheet(tables, about))


def make_sheet(tables: Mapping[str, pl.DataFrame], about: Mapping[str, Any]) -> Sheet:
    """The page as data; what was not measured leaves no section."""
    numbers = Numbers.of(tables)
    sections = [
        _accuracy(numbers, about),
        Section("What the claims say here", _scope(numbers), cards=numbers.claims) if len(numbers.claims) else None,
        _learning(numbers),
        confidence(numbers),
        unseen(numbers),
        survival(numbers),
        examples(numbers) if about.get("examples") else None,
        Section("Notes", tuple(about["notes"])) if about.get("notes") else None,
    ]
    names = len(set(numbers.answers["name"].to_list()))
    lede = f"{about['corpus']} · {words.several(names, 'name')} · {words.several(len(numbers.seeds), 'seed')}"
    kept = [section for section in sections if section is not None]
    title = "What does pretraining add, and what does the model make up?"
    return Sheet(title, "trisect · birth places", lede, tuple(_numbered(kept)), _facts(numbers, about), REFERENCES)


def findings(tables: Mapping[str, pl.DataFrame], about: Mapping[str, Any]) -> tuple[str, ...]:
    """What a terminal shows: how many are right with and without pretraining, and a line for each claim."""
    numbers = Numbers.of(tables)
    said = [_right(numbers)]
    parts = numbers.claims.filter(pl.col("part").is_not_null() & pl.col("decides")).to_dicts()
    for row in numbers.claims.filter(pl.col("part").is_null()).iter_rows(named=True):
        why = f" ({row['reason']})" if row["reason"] else ""
        said.append(f"{row['claim']}  {row['verdict']}: {row['sentence']}{why}")
        said += [f"     {_part(part)}" for part in parts if part["claim"] == row["claim"]]
    return tuple(said)


def _part(row: Mapping[str, Any]) -> str:
    """What a deciding part says, and what was found."""
    if row["effect"] is None:
        return f"{row['sentence']}: not measured"
    return f"{row['sentence']}: {words_for(Number(row['effect'], row['low'], row['high']), True)}"


def _numbered(sections: Sequence[Section]) -> Iterable[Section]:
    """Figures counted through the whole page."""
    number = 0
    for section in sections:
        figures = [replace(f, number=f"Figure {number + i}") for i, f in enumerate(section.figures, start=1)]
        number += len(figures)
        yield replace(section, figures=tuple(figures))


def _scope(numbers: Numbers) -> tuple[str, ...]:
    several = len(numbers.seeds) > 1
    drawn = "names and seeds" if several else "names"
    tail = "" if several else " There is one seed, so that they speak of these trained models alone."
    said = f"Intervals and p-values are from drawing {drawn} anew.{tail}"
    if "B-2" not in numbers.claims["claim"].to_list():
        return (said,)
    return (
        said,
        "B-2 and B-3 are about an AUROC, and two-sided about one half. In B-2 a regression ranks answers about names that it was "
        "not fitted on. A value well above one half means that right answers can be told from wrong ones; one well below means that "
        "the regression fails on names held out, as what it learnt of the others does not carry over, not that answers can be told apart.",
    )


def _right(numbers: Numbers) -> str:
    """The shares of right answers in one sentence."""
    said = [
        f"{MODELS.get(m, m)} {words_for(found, percent=True)}"
        for m in numbers.models
        if (found := numbers.number("accuracy", m))
    ]
    base = numbers.number("accuracy", BASELINE)
    place = f"'{numbers.commonest}'" if numbers.commonest else "the commonest place"
    tail = f"; always answering {place} {words_for(base, percent=True)}" if base else ""
    return (
        f"Right answers to questions held out: {'; '.join(said)}{tail}." if said else "No question has a known answer."
    )


def _accuracy(numbers: Numbers, about: Mapping[str, Any]) -> Section:
    said = (
        "The question is 'Where was … born?', the answer a place, and there is no text to look it up in: what the model does not "
        "remember, it makes up. Fine-tuning shows how such questions are answered; the texts that tell of the people held out "
        "are read in pretraining alone.",
        _right(numbers),
    )
    references = [(str(source), without, pretrained) for source, without, pretrained in about.get("references") or ()]
    part = str(about.get("part") or "")
    whole = [_share(numbers, m, None, SHORT.get(m, m)) for m in numbers.models]
    met = [_share(numbers, m, c, COLUMNS.get(c, c)) for c in CATEGORIES for m in numbers.models]
    whole, met = ([share for share in shares if share.number] for shares in (whole, met))
    tables = [*_by_category(numbers), *_others(references, part)]
    figures = (_right_figure(numbers, whole, met, references, part),) if whole else ()
    said += (part,) if part else ()
    return Section("Does pretraining let it answer?", said, figures, tuple(tables))


def _share(numbers: Numbers, model: str, category: str | None, column: str) -> Share:
    seeds = tuple(share for _, share in numbers.shares(model, category))
    return Share(column, model, numbers.number("accuracy", model, category), seeds)


def _right_figure(
    numbers: Numbers, whole: Sequence[Share], met: Sequence[Share], references: Sequence[Others], part: str
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
    key += [Key(name, palette.BASELINE, None, (5, 3)) for name in levels]
    told = "others, from all of the data" if part else "others, on the same questions"
    key += [Key(told, OTHERS, "circle")] if beside else []
    return Figure("recall-accuracy", "", "Right answers", caption, tuple(panels), tuple(key))


def _by_category(numbers: Numbers) -> Iterable[Table]:
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


def _others(references: Sequence[Others], part: str) -> tuple[Table, ...]:
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


def _learning(numbers: Numbers) -> Section | None:
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
    return Section("How it was learned", (), (Figure("recall-loss", "", "Losses", caption, tuple(panels), key),))


def _ends(curves: Sequence[Curve]) -> str:
    """The mean loss of the last epoch, by model."""
    last = {m: [c.values[-1] for c in curves if c.model == m] for m in dict.fromkeys(c.model for c in curves)}
    return words.listed([f"{words.number(fmean(values))} ({SHORT.get(m, m)})" for m, values in last.items()])


def _facts(numbers: Numbers, about: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    settings = ", ".join(f"{name} {value}" for name, value in (about.get("settings") or {}).items())
    facts = [
        ("Command", about["command"]),
        ("Texts and questions", about["corpus"]),
        ("Seeds", ", ".join(map(str, numbers.seeds))),
        ("Settings", settings),
        ("Time", f"{words.number(about['seconds'] / 60, places=1)} min" if about.get("seconds") else ""),
        ("Claims", f"hash {about['claims_hash']}" if about.get("claims_hash") else ""),
        ("Made by", ", ".join(f"{name} {version}" for name, version in sorted(about["versions"].items()))),
    ]
    return tuple(fact for fact in facts if fact[1])
