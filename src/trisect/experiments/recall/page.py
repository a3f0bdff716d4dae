"""The page of recall: what pretraining adds, what was retrieved and what was invented, and what q, k and v contribute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.core.tables import SCHEMAS, frame
from trisect.papers.recall import SOURCE
from trisect.report import alt, render
from trisect.report import format as words
from trisect.report.charts import (
    PANEL_WIDTH,
    Figure,
    LegendEntry,
    Level,
    Panel,
    SharedAxis,
    axis_for,
    chart_of,
    marks,
    overlay,
)
from trisect.report.format import HasInterval, number_words
from trisect.report.measures import Bar, MeasuredValue, Measures, layer_figure
from trisect.report.render import Mark
from trisect.report.sheet import Section, Sheet, Table, notes_section, present, provenance, verdict_findings

if TYPE_CHECKING:
    from trisect.experiments.recall.settings import RecallFacts

CurvePoint = tuple[float, float]
Share = tuple[str, str, MeasuredValue, Sequence[float]]  # its column, its group, the number, and every seed's own
MODELS = {
    "plain": "fine-tuned only",
    "pretrained": "pretrained, then fine-tuned",
    "left-out": "pretrained with names left out, then fine-tuned",
}
SHORT_NAMES = {"plain": "fine-tuned only", "pretrained": "pretrained", "left-out": "names left out"}
BASELINE = "baseline"
COLUMNS = {  # where a model met a name, and the same as the name of a column
    "pretraining and fine-tuning": "pretraining\nand\nfine-tuning",
    "pretraining only": "pretraining\nonly",
    "fine-tuning only": "fine-tuning\nonly",
    "neither": "in no\ntext",
}
SCORES = {
    "probability": "probability of the answer",
    "mean_log_probability": "mean log-probability of a character",
    "entropy": "entropy of the next character (low first)",
    "margin": "smallest margin over the runner-up",
}
RETRIEVED = "retrieved"  # the kind of answer that only pretraining can have given
KINDS = {RETRIEVED: "retrieved", "wrong": "wrong", "taught": "taught", "made up": "guessed"}  # in tables, and shown
SURVIVAL = {"survival": ("their mean over the questions", "by the mean"), "survival_zero": ("0", "by 0")}
MATCH_WORDS = {"n-grams": "character n-grams", "last name": "same last name", "representation": "model's own vectors"}
# Neither colour nor shape of q, k or v, each of which stands for itself alone.
ORANGE, PURPLE, SKY = Mark("#E69F00", "diamond"), Mark("#7B4EA3", "triangle-left"), Mark("#56B4E9", "cross")
PINK, GREY = Mark("#CC79A7", "triangle-down"), Mark(render.BASELINE, "circle")
MARKS: dict[str, Mark] = {"plain": ORANGE, "pretrained": PURPLE, "left-out": SKY, "observed": PINK, "by chance": GREY}
PUBLISHED_COLOUR = render.SOFT
UNIT = SharedAxis("share", -0.03, 1.03)
SQUARE = 190
PLACES = 3  # of a share that is not in per cent
COLUMN, SLOT = 74, 17  # pixels of a column with one group, and of each of the slots of one with several
AUROC_SCOPE = (
    "B-2 and B-3 are about an AUROC, and two-sided about one half. In B-2 a regression ranks answers about names that it was "
    "not fitted on. A value well above one half means that right answers can be distinguished from wrong ones; one well below "
    "means that the regression fails on names held out, as what it learnt of the others does not carry over, not that answers "
    "can be distinguished."
)
REFERENCES = (
    "Stanford CS 224N, assignment 5: Self-Attention, Transformers, and Pretraining. 2021.",
    "Colin Raffel et al. Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer. JMLR 2020.",
    "Chuan Guo, Geoff Pleiss, Yu Sun, Kilian Weinberger. On Calibration of Modern Neural Networks. ICML 2017.",
    "Yonatan Geifman, Ran El-Yaniv. Selective Classification for Deep Neural Networks. NeurIPS 2017.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)


@dataclass(frozen=True, eq=False)
class RecallNumbers:
    """The tables answers, measures and claims, and every seed."""

    answers: pl.DataFrame
    measures: Measures
    claims: pl.DataFrame
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame]) -> RecallNumbers:
        """Index the tables; a missing one counts as empty. Without answers, runs named MODEL/STAGE/SEED tell the seeds."""
        names = ("answers", "measures", "claims")
        answers, measures, claims = (tables[n] if n in tables else frame(n, ()) for n in names)
        measures = Measures.of(measures.sort(list(SCHEMAS["measures"]), nulls_last=True))
        runs = tables["metrics"]["run"] if "metrics" in tables else ()
        seeds = set(answers["seed"]) or {int(run.rpartition("/")[2]) for run in runs}
        return cls(answers, measures, claims, tuple(sorted(seeds)))

    @property
    def models(self) -> list[str]:
        """The models that answered, without pretraining first; if answers are missing, those of the measures."""
        names = set(self.answers["model"].to_list()) or set(self.measures.distinct("subject"))
        return [model for model in MODELS if model in names]

    @property
    def deep(self) -> str | None:
        """The model whose retrieved answers are analysed: the one with names left out, else the pretrained one."""
        return next((m for m in ("left-out", "pretrained") if m in self.models), None)

    def number(self, measure: str, model: str, group: str | None = None) -> MeasuredValue | None:
        """One number of a model."""
        return next(iter(self.measures.where(measure, subject=model, group=group)), None)

    def by_model(self, measure: str, models: Iterable[str]) -> str:
        """A number of each model, in words."""
        return "; ".join(f"{SHORT_NAMES[m]} {words_for(n)}" for m in models if (n := self.number(measure, m)))

    def curves(self, measure: str, models: Sequence[str]) -> dict[str, list[MeasuredValue]]:
        """By model, the rows of a measure that depends on a probability or a share, in order."""
        rows = {m: [r for r in self.measures.where(measure, subject=m) if r.at is not None] for m in models}
        return {m: sorted(sources, key=lambda row: row.at or 0.0) for m, sources in rows.items() if sources}

    def shares(self, model: str, category: str | None = None) -> list[float]:
        """Every seed's share of right answers to the valid questions, or to questions about names of a category."""
        which = {"split": "valid"} if category is None else {"category": category}
        by_seed = self.answers.filter(model=model, **which).drop_nulls("correct").group_by("seed")
        return by_seed.agg(pl.col("correct").mean()).sort("seed")["correct"].to_list()


def page(tables: Mapping[str, pl.DataFrame], about: About[RecallFacts]) -> Sheet:
    """The page; sections without data are left out, and equal rows give equal bytes."""
    numbers, facts = RecallNumbers.of(tables), about.facts
    resampled = "names and seeds."
    if len(numbers.seeds) < 2:
        resampled = "names. There is one seed, so that they speak of these trained models alone."
    scope = [f"Intervals and p-values are from resampling {resampled}"]
    if "B-2" in numbers.claims["claim"].to_list():
        scope.append(AUROC_SCOPE)
    verdicts = Section("Results of the claims", tuple(scope), cards=numbers.claims)
    sections = present(
        _accuracy(numbers, facts),
        verdicts if len(numbers.claims) else None,
        _confidence(numbers),
        _unseen(numbers),
        _survival(numbers),
        notes_section(about),
    )
    names, corpus = numbers.answers["name"].n_unique(), facts.corpus.partition(", fingerprint")[0]
    many = f" · {words.quantity(names, 'name')}" * bool(names)
    lede = f"{corpus}{many} · {words.quantity(len(numbers.seeds), 'seed')}"
    how = (
        ("Texts and questions", facts.corpus),
        ("Seeds", ", ".join(map(str, numbers.seeds))),
        ("Settings", ", ".join(f"{name} {value}" for name, value in sorted(facts.settings.items()))),
    )
    made_by = provenance(about, *(fact for fact in how if fact[1]))
    title = "What does pretraining add, and what does the model invent?"
    shares = [
        f"{words.share(n.value)} (models that were {MODELS[m]})"
        for m in numbers.models
        if (n := numbers.number("accuracy", m))
    ]
    answer = f"Right answers to questions held out from fine-tuning: {'; '.join(shares)}." * bool(shares)
    return Sheet(title, "trisect · birth places", lede, sections, made_by, REFERENCES, answer)


def findings(tables: Mapping[str, pl.DataFrame], about: About[RecallFacts]) -> tuple[Finding, ...]:
    """Right answers with and without pretraining, the share that survives without q, k or v, and every claim with its parts."""
    numbers = RecallNumbers.of(tables)
    results = [_right(numbers)]
    by_component = numbers.measures.where("survival", subject=numbers.deep, group=RETRIEVED).by("component")
    values = []
    for c in "qkv":
        if rows := [row for row in by_component.get(c, ()) if row.layer is not None]:
            values.append(Estimate(c, fmean(row.value for row in rows), n=max(row.n or 0 for row in rows)))
    if values:
        quantity = "retrieved answers that stay when one layer's is replaced by its mean, mean over layers"
        shares = words.join_words([f"{value.name} {words.share(value.mean or 0.0)}" for value in values])
        text = f"{quantity.capitalize()}: {shares}."
        more = {"source": SOURCE.key, "what": quantity, "per": "name", "signed": False}
        results.append(Finding("survival", text, "of the answers", tuple(values), **more))
    claims = numbers.claims.filter(pl.col("part").is_null()).iter_rows(named=True)
    for finding, row in zip(verdict_findings(numbers.claims), claims, strict=True):
        remark = f" ({reason})" if (reason := words.why_open(row)) else ""
        # numbers are said with parts, each with its own places
        results.append(replace(finding, words=f"{row['claim']}  {row['verdict']}: {row['sentence']}{remark}"))
        for part in numbers.claims.filter("decides", pl.col("part").is_not_null(), claim=row["claim"]).to_dicts():
            effect = Estimate(*(part[key] for key in ("part", "effect", "low", "high", "n")))
            effects = () if effect.mean is None else (effect,)
            text = f"{part['sentence']}: {words_for(effect, True) if effects else 'not measured'}"
            reference = {key: part[key] for key in ("source", "claim", "verdict", "part")}
            results.append(Finding("part", text, part["unit"] or "", effects, **reference, per="name"))
    return tuple(results)


def _right(numbers: RecallNumbers) -> Finding:
    """The shares of right answers in one sentence."""
    by_model = {m: number for m in numbers.models if (number := numbers.number("accuracy", m))}
    base = numbers.number("accuracy", BASELINE)
    values = (*(n.estimate(m) for m, n in by_model.items()), *([base.estimate(BASELINE)] if base else []))
    quantity, text = "right answers to questions held out", "No question has a known answer."
    if by_model:
        shares = "; ".join(f"{MODELS[m]} {words_for(number, share=True)}" for m, number in by_model.items())
        tail = f"; always answering the commonest place {words_for(base, share=True)}" if base else ""
        text = f"{quantity.capitalize()}: {shares}{tail}."
    more = {"source": SOURCE.key, "what": quantity, "per": "name", "signed": False}
    return Finding("accuracy", text, "of the answers", values if by_model else (), **more)


def _accuracy(numbers: RecallNumbers, facts: RecallFacts) -> Section:
    """Right answers by model beside published ones, and by whether the model has read the name."""
    text = (
        "The question is 'Where was … born?', the answer a place, and there is no text to look it up in: what the model does not "
        "remember, it guesses. Fine-tuning shows how such questions are answered; texts about held-out people occur "
        "only in pretraining.",
        str(_right(numbers)),
        *([facts.part] if facts.part else []),
    )
    held_out, met, lines = list[Share](), list[Share](), []
    for category, name in ((None, ""), *COLUMNS.items()):
        for m in numbers.models:
            if (row := numbers.number("accuracy", m, category)) is None:
                continue
            seeds = numbers.shares(m, category)
            if category is None:
                held_out.append((SHORT_NAMES[m], m, row, seeds))
            else:
                met.append((name, m, row, seeds))
                lines.append((f"{category}: {SHORT_NAMES[m]}", *words.cells(row, text=words.share), words.count(row.n)))
    tables = []
    if lines:
        columns = ("Name occurred in, by model", "right", "95 %", "names")
        tables.append(Table(columns, tuple(lines), "Right answers by where the name occurred in training"))
    if facts.references:
        caption = "Published results on the same questions"
        if facts.part:
            caption = "Published results of models trained on all of the data"
        reached = (
            (source, *(" or ".join(map(words.share, pair)) or "–" for pair in both))
            for source, *both in facts.references
        )
        tables.append(Table(("Source", "without pretraining", "with"), tuple(reached), caption))
    title = "Does pretraining let it answer?"
    if not held_out:
        return Section(title, text, (), tuple(tables))
    others = {
        SHORT_NAMES["plain"]: [share for _, without, _ in facts.references for share in without],
        SHORT_NAMES["pretrained"]: [share for _, _, pretrained in facts.references for share in pretrained],
    }
    base = numbers.number("accuracy", BASELINE)
    levels = {"baseline: always the commonest place": base.value} if base else {}
    panels = [_share_panel("Held-out questions", held_out, levels, others)]
    if met:
        panels.append(_share_panel("By where the name occurred in training", met, levels))
    n, seeds = words.sample(max(row.n or 0 for _, _, row, _ in held_out), "name"), len(numbers.seeds)
    caption = (
        "Share of answers that are the right place (exact match). Bars are 95 % intervals. Held-out questions: "
        f"{n}{f', {seeds} seeds, small marks are single seeds' if seeds > 1 else ''}."
    )
    key = [*_keys(numbers.models), *(LegendEntry(name, render.BASELINE, None, (5, 3)) for name in levels)]
    if any(others.values()):
        data = "of models trained on all of the data" if facts.part else "on the same questions"
        caption += f" Grey points: published results {data}."
        label = "published results, all of the data" if facts.part else "published results, same questions"
        key.append(LegendEntry(label, PUBLISHED_COLOUR, "circle"))
    figure = Figure("recall-accuracy", "", "Right answers", caption, tuple(panels), tuple(key))
    return Section(title, text, (figure,), tuple(tables))


def _confidence(numbers: RecallNumbers) -> Section | None:
    """Whether probabilities separate what was retrieved from what was guessed; None without a pretrained model."""
    if numbers.deep is None:
        return None
    models = [m for m in numbers.models if m != "plain"]
    text = (
        "An answer is retrieved where it is right and its name occurred in training; it is guessed where the name is in no text. "
        "Does the model's own confidence separate right answers from the others?",
    )
    figures, tables = present(_reliability(numbers, models), _risk(numbers, models)), []
    scores = {**SCORES, "answer_string": "the answer string alone (frequency, length, known place)"}
    aurocs = {name: [numbers.number(f"auroc_{score}", m) for m in models] for score, name in scores.items()}
    if rows := tuple((name, *map(words_for, cells)) for name, cells in aurocs.items() if any(cells)):
        caption = "AUROC: how often a right answer is ranked above a wrong one; 0.5 is chance"
        tables.append(Table(("What is ranked by", *(SHORT_NAMES[m] for m in models)), rows, caption))
    lines = []
    for model, points in numbers.curves("threshold_coverage", models).items():
        limits = numbers.measures.where("threshold", subject=model).first("at")
        for row in points:
            line = "differs by seed" if row.value > 0 else "abstains always"
            line = words.number(limits[row.at].value) if row.at in limits else line
            name = f"{SHORT_NAMES[model]}, at most {100 * (row.at or 0.0):g}\u00a0% wrong"
            lines.append((name, line, words.share(row.value)))
    if lines:
        caption = (
            "The probability below which a model abstains, so that with 95 % confidence no more of its answers are wrong; set on "
            "held-out questions about names that occurred in training, or on all of them if none did"
        )
        tables.append(Table(("Model and risk", "probability from", "answered"), tuple(lines), caption))
    return Section("Retrieved or guessed?", text, figures, tuple(tables)) if figures or tables else None


def _reliability(numbers: RecallNumbers, models: Sequence[str]) -> Figure | None:
    panels, total, curves = [], 0, numbers.curves("reliability", models)
    for m, rows in curves.items():
        points = {SHORT_NAMES[m]: (MARKS[m], [(r.at or 0.0, r.value) for r in rows])}
        axes = ("probability", "share right")
        panels.append(_path_panel(MODELS[m].capitalize(), points, *axes, diagonal=True, ends=rows))
        total = max(total, sum(row.n or 0 for row in rows))
    errors = numbers.by_model("ece", curves)
    tail = f" Expected calibration error: {errors}." if errors else ""
    caption = (
        "The answers in bins by the probability that the model gives them; on the dashed line a probability is what it says, below "
        f"it the model is too sure.{tail} {words.sample(total, 'answer')} a panel."
    )
    title = "Is a probability what it says?"
    return Figure("recall-reliability", "", title, caption, tuple(panels)) if panels else None


def _risk(numbers: RecallNumbers, models: Sequence[str]) -> Figure | None:
    curves = numbers.curves("risk", models)
    if not curves:
        return None
    areas, count = numbers.by_model("aurc", curves), max(row.n or 0 for rows in curves.values() for row in rows)
    caption = (
        "The share of wrong answers among those given, when only the surest are given and the others held back."
        f"{f' Area under the curve, lower is better: {areas}.' if areas else ''} {words.sample(count, 'name')}."
    )
    paths = {SHORT_NAMES[m]: (MARKS[m], [(r.at or 0.0, r.value) for r in rows]) for m, rows in curves.items()}
    panel = _path_panel("An abstaining model", paths, "share of questions answered", "share wrong")
    return Figure("recall-risk", "", "Risk and coverage", caption, (panel,), _keys(curves))


def _unseen(numbers: RecallNumbers) -> Section | None:
    """How often a guess is the place of the nearest known name, against chance; None if not measured."""
    deep, shares, cells = numbers.deep, list[Share](), []
    rows = numbers.measures.where("match", subject=deep).first("group")
    if not rows or deep is None:
        return None
    for group, name in MATCH_WORDS.items():
        if (row := rows.get(group)) is None:
            continue
        expected, excess, p = (numbers.number(f"match_{m}", deep, group) for m in ("expected", "excess", "p"))
        column = name.replace(" ", "\n", 1)
        shares += [(column, "observed", row, ()), *([(column, "by chance", expected, ())] if expected else [])]
        by_chance = words.share(expected.value) if expected else "–"
        line = (name, words.count(row.n), words.share(row.value), by_chance, words_for(excess, True))
        cells.append((*line, words.p_value(p.value if p else None)))
    text = (
        "Asked of a name that no text has, the model still writes a place. If it goes by how names look, that place is more often the "
        "one of the most similar known name than chance would have it: chance being the same places dealt out among the names again.",
    )
    caption = (
        f"Share of unseen names whose answer is the place of the nearest known name, for each way to say what is near, and the same by "
        f"chance; {MODELS[deep]}. Above chance by {'; '.join(f'{c[0]} {c[4]}' for c in cells)}. "
        f"n\u00a0=\u00a0{'; '.join(f'{c[0]} {c[1]}' for c in cells)} names."
    )
    panel = _share_panel("Follows the nearest name", shares)
    key = _keys(("observed", "by chance"))
    figure = Figure("recall-unseen", "", "Guesses about unseen names", caption, (panel,), key)
    columns = ("Nearest by", "n", "match", "by chance", "excess", "p")
    table = Table(columns, tuple(cells), "Matches of n names against chance, p from permutations")
    return Section("Names it never saw", text, (figure,), (table,))


def _survival(numbers: RecallNumbers) -> Section | None:
    """The share that survives with a layer's q, k or v replaced; None if not measured."""
    figures, lines = [], []
    for measure, (replacement, shortly) in SURVIVAL.items():
        rows = numbers.measures.where(measure)
        for row in rows:
            name = f"{SHORT_NAMES[row.subject]}, {KINDS[row.group or '']}: {row.component}@{row.layer}, {shortly}"
            lines.append((name, *words.cells(row, text=words.share), words.count(row.n)))
        model = numbers.deep or numbers.models[0] if rows else ""
        groups = rows.where(subject=model).by("group")
        panels: dict[str, list[Bar]] = {}
        counts, least = [], []
        for group, kind in KINDS.items():
            if of_kind := sorted(groups.get(group, ()), key=lambda row: row.layer or 0):
                panels[kind.capitalize()] = [row.bar for row in of_kind]
                counts.append(f"{kind} {words.count(max(row.n or 0 for row in of_kind))}")
                fewest = min(of_kind, key=lambda row: row.value)
                least.append(f"{kind} {words.share(fewest.value)} at {fewest.site}")
        if not panels:
            continue
        caption = (
            "Share of answers that stay exactly the same when the queries, keys or values of one layer are replaced by "
            f"{replacement}. Fewest stay: {'; '.join(least)}. Bars are 95 % intervals over names; "
            f"{MODELS[model]}. n\u00a0=\u00a0{'; '.join(counts)}."
        )
        title = f"What survives without q, k or v (replaced by {replacement})"
        names = (f"recall-{measure.replace('_', '-')}", "", title)
        figures.append(layer_figure(names, caption, panels, zero="", axes=dict.fromkeys(panels, UNIT)))
    if not lines:
        return None
    text = (
        "If an answer is retrieved through what attention reads in one layer, it changes when that layer's queries, keys or values say "
        "nothing of this question. An answer that is guessed need not depend on them in the same way.",
        "Retrieved: right about a name met in pretraining alone, so that nothing but that text can have held it. Wrong: another place "
        "for such a name. Taught: right about a name that fine-tuning asked about. Guessed: about a name met in no text.",
    )
    columns = ("Model, kind of answer and replacement", "the same", "95 %", "names")
    table = Table(columns, tuple(lines), "Every replacement, in every model")
    return Section("What do q, k and v contribute?", text, tuple(figures), (table,))


def words_for(number: HasInterval | None, signed: bool = False, share: bool = False) -> str:
    """A number with its interval, as in `23.0 % (95 %: 19.1 % to 27.0 %)` or `0.230 (95 %: 0.191 to 0.270)`."""
    if number is None:
        return "–"
    return number_words(number, signed, words.share if share else lambda value: words.number(value, signed, PLACES))


def _keys(names: Iterable[str]) -> tuple[LegendEntry, ...]:
    """A legend of marks: models, or observation and chance."""
    return tuple(LegendEntry(MODELS.get(name, name), MARKS[name].colour, MARKS[name].shape) for name in names)


def _share_panel(
    title: str,
    shares: Sequence[Share],
    levels: Mapping[str, float] | None = None,
    others: Mapping[str, Sequence[float]] | None = None,
) -> Panel:
    """Shares in columns, with 95 % intervals and every seed's point beside its mean, on an axis from 0.

    `levels` are dashed lines, by name; `others` are numbers of others in a column, small and grey. A line break in the
    name of a column is one.
    """
    columns = list(dict.fromkeys(column for column, *_ in shares))
    groups = list(dict.fromkeys(group for _, group, *_ in shares))
    single, levels = len(shares) == len(columns), levels or {}
    other_rows = [{"column": c, "value": v} for c, values in (others or {}).items() for v in values]
    values = [*levels.values(), *(v for values in (others or {}).values() for v in values)]
    rows, dots = [], []
    for column, group, number, seeds in shares:
        row, slot = {"column": column, "group": group}, "" if single else group
        rows.append(row | {"slot": slot, "value": number.mean, "low": number.low, "high": number.high})
        dots += [row | {"slot": f"{slot} seeds", "value": v} for v in seeds if len(seeds) > 1]
        values += [*seeds, *(e for e in (number.mean, number.low, number.high) if e is not None)]
    axis = axis_for(values, "share", zero=True)
    axis = axis._replace(high=min(axis.high, 1.03), low=axis.low if min(values) < 0 else 0.0)
    slots = [slot for group in ([""] if single else groups) for slot in (group, f"{group} seeds")]
    side = alt.Axis(labelExpr="split(datum.label, '\\n')", labelLimit=220)
    x = alt.X("column:N", sort=columns, scale=alt.Scale(domain=columns, paddingInner=0.3), title=None, axis=side)
    grey = chart_of("others", other_rows).mark_point(
        size=26, shape="circle", filled=True, color=PUBLISHED_COLOUR, opacity=1
    )
    behind = [grey.encode(x, axis.axis("value"))] if other_rows else []
    lines = [Level(name, level) for name, level in levels.items()]
    layers = marks(rows, axis, x, {g: MARKS[g] for g in groups}, slots, lines, dots, behind)
    wide = max(PANEL_WIDTH, (COLUMN if single else SLOT * len(slots)) * len(columns))
    text = "; ".join(f"{r['column']}, {r['group']} {r['value']:.3g}".replace("\n", " ") for r in rows)
    text = f"{title}: shares. {text}." + "".join(f" {name} {value:.3g}." for name, value in levels.items())
    return Panel(title, overlay(title, *layers, width=wide), text, (), {})


def _path_panel(
    title: str,
    paths: Mapping[str, tuple[Mark, Sequence[CurvePoint]]],
    x_title: str,
    y_title: str,
    diagonal: bool = False,
    ends: Sequence[HasInterval] = (),
) -> Panel:
    """Lines over a share from 0 to 1, by name; `diagonal` draws the line of equality.

    With the `ends` of intervals, of a single line, every point has a mark, else a few of each line.
    """
    ticks = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], tickCount=40, format="~g")
    x = alt.X("x:Q", scale=alt.Scale(domain=[-0.03, 1.03], nice=False, clamp=True), title=x_title, axis=ticks)
    y = UNIT._replace(unit=y_title)
    colour, shape = alt.Color("colour:N", scale=None), alt.Shape("shape:N", scale=None)
    layers: list[alt.Chart] = []
    if diagonal:
        corners = [{"x": 0.0, "y": 0.0}, {"x": 1.0, "y": 1.0}]
        line = chart_of("level0", corners).mark_line(color=render.BASELINE, strokeDash=[5, 3], strokeWidth=1)
        layers.append(line.encode(x, y.axis("y")))
    rows, marked, ranged = [], [], []
    for number, (name, (mark, points)) in enumerate(paths.items()):
        look = {"line": f"{number}", "name": name, "colour": mark.colour, "shape": mark.shape}
        line = [look | {"x": a, "y": b, "order": i} for i, (a, b) in enumerate(points)]
        rows += line
        step = max(1, len(line[1:-1]) // 4)  # a few points of a long line carry its mark, other ones for each line
        marked += line if ends else line[1:-1][number * step // 4 :: step][:4]
        pairs = zip(line, ends, strict=True) if ends else ()
        ranged += [row | {"low": e.low, "high": e.high} for row, e in pairs if e.low is not None and e.high is not None]
    if ranged:
        bars = chart_of("bars", ranged).mark_rule(strokeWidth=1.2)
        layers.append(bars.encode(x, y.axis("low"), alt.Y2("high"), colour))
    curves = chart_of("main", rows).mark_line(strokeWidth=1.8)
    layers.append(curves.encode(x, y.axis("y"), colour, alt.Detail("line:N"), alt.Order("order:Q")))
    dots = chart_of("dots", marked).mark_point(size=38, filled=True, opacity=1)
    layers.append(dots.encode(x, y.axis("y"), colour, shape))
    text = "; ".join(
        "{} from ({:.2f}, {:.2f}) to ({:.2f}, {:.2f})".format(name, *points[0], *points[-1])
        for name, (_, points) in paths.items()
    )
    alternative = f"{title}: {y_title} over {x_title}. {text}."
    return Panel(title, overlay(title, *layers, width=SQUARE + 30, height=SQUARE), alternative, (), {})
