"""The page of a study, made from its tables and description alone: the answer, the verdicts, and the figures behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from trisect.claims import Check, claims_hash, listing, preconditions
from trisect.core.finding import About, Finding
from trisect.experiments.study import figures, planted
from trisect.experiments.study import findings as study_findings
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows, describe_study
from trisect.report import cards, sheet
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import Mean

if TYPE_CHECKING:
    from trisect.experiments.study.settings import StudyFacts

TITLE = "What do query, key and value each do?"
SHORT = "Each component's mean over layers, with its 95 % interval over seeds where there are several; 0 is no change."


def page(tables: Mapping[str, pl.DataFrame], about: About[StudyFacts]) -> sheet.Sheet:
    """The page from the tables runs, metrics, sites, claims and controls."""
    rows = StudyRows.of(tables, describe_study(about))
    return make_sheet(tables, rows, figures.collect(rows))


def make_sheet(tables: Mapping[str, pl.DataFrame], rows: StudyRows, drawn: Sequence[Figure]) -> sheet.Sheet:
    """The page as plain data, with these figures."""
    said, found = study_words.study(rows), study_findings.collect(rows)
    name = (rows.about.get("experiment") or {}).get("name", "study")
    checks = preconditions({name: tables.get(name, getattr(rows, name)) for name in ("runs", "metrics", "sites")})
    groups: dict[str, list[Figure]] = {"answer": [], "figures": [], **{group: [] for group in GROUPS}}
    for one in drawn:
        named = (group for group, (starts, *_) in GROUPS.items() if one.name.startswith(starts))
        groups["answer" if one.name == "answer" else next(named, "figures")].append(one)
    # the paper's figures, with the check of figure 8 below it
    thin = "thin lines are single seeds, bold lines their mean, and " if len(rows.seeds) > 1 else ""
    text = (
        "Numbered as in the paper. Losses are in nats per token; losses called train and validation are measured in evaluation "
        f"mode. In curves there is one panel per component, and one colour and shape per layer; {thin}grey and dashed is the "
        "baseline (in figure 10, its final loss)."
    )
    if gone := study_words.missing_methods(rows):
        text += f" Not part of this study, and so not drawn: {words.join_words(gone)}."
    blocks: list[sheet.PageBlock] = []
    exact = study_words.exactness(rows)
    for picture in _pictures(groups["figures"], OPENED):
        blocks.append(picture)
        if picture.figure.ramp and exact is not None:
            sentence, columns, cells = exact
            table = tuple((site, *own) for site, own in cells)
            title, label = "How exact is figure 8?", "Evaluations and disagreement by site"
            more = (title, False, True, label, (sentence,), "exactness", False)
            blocks.append(sheet.Table(_heads(columns), table, *more))
    sections = (
        *study_findings.sections(rows, checks, found),
        *planted.section(rows),
        _attention(checks),
        _answer(rows, next(iter(groups["answer"]), None), found),
        *_verdicts(rows, said),
        sheet.Section("The figures behind it", (text,), blocks=tuple(blocks), id="figures"),
        *(
            sheet.Section(title, (question,), blocks=tuple(_pictures(groups[group], SHOWN)), id=group)
            for group, (_, title, question) in GROUPS.items()
            if groups[group]
        ),
        _reproduce(rows, said),
    )
    # style rules that give each layer's colour its lighter twin on a dark background
    light, dark = figures.depth_colours(rows), figures.depth_colours(rows, dark=True)
    rules = [
        f'  .view [stroke="{a}"] {{ stroke: {b}; }}\n  .view [fill="{a}"] {{ fill: {b}; }}'
        for a, b in sorted({light[site]: dark[site] for site in light}.items())
    ]
    return sheet.Sheet(
        TITLE,
        f"trisect · {name}",
        f"{said['model']} · {said['corpus']} · {said['budget']}",
        sections,
        references=(*dict.fromkeys(str(part["citation"]) for part in listing("seed")), *REFERENCES),
        answer=study_findings.answer_sentence(rows),
        style=("\n@media screen and (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}\n"),
    )


def _pictures(drawn: Sequence[Figure], shown: int) -> list[sheet.Picture]:
    """The figures of a section, folded after the first where they are many."""
    return [sheet.Picture(figure, folded=len(drawn) > MANY and n >= shown) for n, figure in enumerate(drawn)]


def _attention(checks: Sequence[Check]) -> sheet.Section:
    """The preconditions of every verdict."""
    start = (
        "Yes, by both checks that come before any verdict."
        if all(check.ok for check in checks)
        else "Not by these checks: one of them fails or was not measured, so every verdict below is inconclusive by rule."
    )
    text = f"{start} Both are read on the validation split, and every seed must pass."
    items = []
    for check in checks:
        said = "not measured"
        if check.effect is not None:
            said = words.mean_words(Mean(check.effect, check.low, check.high, check.n), "nats")
        numbers = f"Mean difference: {said}; margin {check.margin:g} nats."
        items.append(sheet.Requirement(check.ok, check.name, check.sentence, numbers))
    blocks = (sheet.Requirements(tuple(items)),)
    return sheet.Section("Is attention in use at all?", (text,), blocks=blocks, id="attention")


def _answer(rows: StudyRows, figure: Figure | None, found: Sequence[Finding]) -> sheet.Section:
    """All methods in one picture, in sentences, and as a table."""
    blocks: list[sheet.PageBlock] = [sheet.TextBlock("No intervention has rows yet, so there is nothing to draw.")]
    if figure is not None:
        lead, drawn = (
            study_words.lead(rows),
            sheet.small_multiples("in-short-by-method", "Method by method", SHORT, found),
        )
        in_words = sheet.sentences(found, "Method by method, in words")
        rule = (
            "These sentences are made from the numbers by rule. Extremes are named without a test; what is tested stands in the "
            "verdicts."
        )
        blocks = [sheet.Picture(figure), *([sheet.TextBlock(lead)] if lead else [])]
        blocks += [sheet.Picture(drawn)] if drawn is not None else []
        blocks += [in_words, sheet.TextBlock(rule, "quiet")] if in_words is not None else []
        columns, cells = study_words.numbers(rows)
        body = tuple((site, *(_small(*pair) for pair in own)) for site, own in cells)
        label = "Means and intervals by site"
        blocks.append(sheet.Table(_heads(columns), body, "The same as a table", folded=True, label=label, wrap=False))
    return sheet.Section("The answer in one picture", blocks=tuple(blocks), id="answer-section")


def _heads(columns: study_words.Columns) -> tuple[str, ...]:
    return "Site", *(_small(title, unit, always=True) for title, unit in columns)


def _small(text: str, below: str, always: bool = False) -> Markup:
    """A cell with a smaller line below it."""
    return Markup("{}<small>{}</small>").format(text, below) if below or always else Markup("{}").format(text)


HOW_TO_READ = (
    "How to read the drawings: the dot is the mean over seeds, the thick line its 95 % interval, the thin line the interval at "
    "the level of the whole family, an arrow a line that goes on; a small triangle above is the mean at each run's own best "
    "validation epoch, one below at matched train loss. The tinted side is the claimed one, up to its bound (solid); the dashed "
    "line is zero: no difference, or, for a learned fraction, nothing learned (1 is as much as the baseline learned). Parts with "
    "the same unit share a scale within a card."
)


def _verdicts(rows: StudyRows, said: Mapping[str, str]) -> Iterable[sheet.Section]:
    """The claims as cards; nothing without them."""
    found = cards.cards(rows.claims, rows.controls)
    if not found:
        return
    who = "sources say" if rows.claims["source"].n_unique() > 1 else "paper says"
    rule = (
        "A claim holds when all of its deciding parts do. Each part is one number per seed, mostly "
        "a difference to the baseline of that seed, tested against a margin that was fixed before there were data; the claims of "
        "one source share one correction (Holm). Only that corrected p decides."
    )
    changed = (
        "The claims have changed since these runs were made: they carry the hash "
        f"{', '.join(study_words.claims_hashes(rows))}, and the verdicts below are by {claims_hash()}."
    )
    blocks = (
        *([sheet.TextBlock(changed, "notice")] if study_words.has_other_claims(rows) else []),
        sheet.TextBlock(words.tally(cards.tally(found))),
        sheet.Strip(rows.claims),
        sheet.Section(
            "Claim by claim",
            (rule, HOW_TO_READ),
            blocks=(
                sheet.Verdicts(rows.claims, f"{said['corpus']} · {said['model']} · {said['budget']}", rows.controls),
            ),
        ),
    )
    title = f"What the {who}, and what was found here"
    yield sheet.Section(title, blocks=blocks, id="verdicts", shown=True)


def _reproduce(rows: StudyRows, said: Mapping[str, str]) -> sheet.Section:
    """The command, what made the runs, and the whole statement of the study."""
    command, notes = rows.about.get("command"), tuple((rows.about.get("corpus") or {}).get("notes") or ())
    start = Markup(
        "<code>experiment.json</code> beside this page holds the whole experiment; "
        "<code>trisect study experiment.json --out OUT</code> runs it.{}"
    ).format(" This study:" if command else "")
    places = Markup(
        "The rows are in <code>tables/</code> and every figure is in <code>figures/</code>, beside this page. "
        "<code>trisect report</code> draws the page again from the rows, byte for byte."
    )
    facts = {"Seeds": said["seeds"], "Runs": said["runs"], **study_words.provenance(rows)}
    blocks = (
        *([sheet.Code(command)] if command else []),
        sheet.Facts(tuple(facts.items())),
        sheet.TextBlock(places),
        *([sheet.Bullets(notes, "Notes about the corpus")] if notes else []),
    )
    return sheet.Section("How to reproduce", (start,), blocks=blocks, id="reproduce")


REFERENCES = (
    "Ashish Vaswani et al. Attention Is All You Need. NeurIPS 2017.",
    "Stephen Merity et al. Pointer Sentinel Mixture Models (WikiText-2). ICLR 2017.",
    "Chiyuan Zhang, Samy Bengio, Yoram Singer. Are All Layers Created Equal? JMLR 2022.",
    "Niladri Chatterji, Behnam Neyshabur, Hanie Sedghi. The Intriguing Role of Module Criticality in the Generalization of Deep "
    "Networks. ICLR 2020.",
    "John Hewitt, Percy Liang. Designing and Interpreting Probes with Control Tasks. EMNLP 2019.",
    "Yilun Xu et al. A Theory of Usable Information Under Computational Constraints. ICLR 2020.",
    "Nora Belrose et al. LEACE: Perfect Linear Concept Erasure in Closed Form. NeurIPS 2023.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)


# Figures that are not the paper's, by how their names begin, the section's title and what it asks.
GROUPS = {
    "controls": (
        ("controls-", "removed-", "erasure-"),
        "Is it the label, or the attack?",
        "An attack may hurt because of what it removes, or because it is an attack. Controls attack the same sites in another way; "
        "fresh probes say what was really removed, and erasure takes the label out of the trained baseline at once.",
    ),
    "tying": (
        ("tying",),
        "Three matrices or fewer",
        "A fourth experiment: what a model loses when queries, keys and values share a matrix from the first step, against separate "
        "matrices with as many parameters.",
    ),
    "future": (
        ("combinations", "heads-"),
        "Beyond single submodules",
        "What the paper leaves to future work: components together against the sum of their effects, and single heads.",
    ),
}
MANY, SHOWN, OPENED = 8, 2, 4  # figures of a section, and how many of so many are open in it and among the paper's
