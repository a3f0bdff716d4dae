"""The front page of a dissection: questions and answers, then q, k and v by every kind of evidence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Comparison, Finding
from trisect.experiments.lookup.page import LookupNumbers, answer_sections, answer_sentence
from trisect.papers import SOURCES
from trisect.report import cards, sheet
from trisect.report import format as words
from trisect.report.format import Mean

if TYPE_CHECKING:
    from trisect.experiments.dissect.settings import DissectFacts, PartFacts


SOURCE = {
    "submodules": "Xie and Jiang",
    "recall": "CS 224N, assignment 5",
    "norms": "Kobayashi et al.",
    "alignment": "Kobayashi et al.",
    "matrices": "Stricker's question",
    "tying": "Stricker's question",
    "": "no source",
}
COMPONENTS = ("q", "k", "v")
LINK = Markup('<a href="{}">{}</a>')
EVIDENCE = {
    "line": pl.Int64,
    **dict.fromkeys(("kind", "name", "source", "what", "unit", "component"), pl.String),
    **dict.fromkeys(("value", "low", "high"), pl.Float64),
    "n": pl.Int64,
    "per": pl.String,
    "signed": pl.Boolean,
    "compared": pl.String,  # what the numbers say of each other as JSON, None where they are not to be ranked
    **dict.fromkeys(("claims", "words", "link"), pl.String),
}


class Line(NamedTuple):
    """A kind of evidence with numbers (`means`) for q, k and v, where they were measured.

    `kind` says what was measured in a word, `source` is the key of the source that asks (empty for what no source asks), `what`
    the number in words, as in `POS, change of the validation loss, mean over layers`. `per` is what varies behind the intervals
    (seed, text, head), one of n in each Mean. A `signed` number is a difference. `compared` is what paired differences say of
    the three; where it is None, as with one number for q and k together or none that can rank, the line is shown and not counted.
    `claims` are those that speak of it; `words` is what else is to be said; `link` is where the numbers stand, a page or
    a place on this one; empty is nowhere. `name` is what readers know the kind by, the kind itself where it is empty.
    """

    kind: str
    source: str
    what: str
    unit: str
    means: Mapping[str, Mean]
    per: str = "seed"
    signed: bool = True
    claims: tuple[str, ...] = ()
    words: str = ""
    link: str = ""
    compared: Comparison | None = None
    name: str = ""

    @classmethod
    def of(cls, finding: Finding, name: str = "", claims: tuple[str, ...] = (), words: str = "") -> Line | None:
        """The line for values named q, k or v, or q+k, which is of both and ranks nothing; None if there are none."""
        values = [e for e in finding.values if e.mean is not None]
        parts = {c: Mean(e.mean or 0.0, e.low, e.high, e.n or 0) for e in values for c in e.name.split("+")}
        means = {c: parts[c] for c in COMPONENTS if c in parts}
        compared = None if any("+" in e.name for e in values) else finding.compared
        about = (finding.measure, finding.source, finding.what, finding.unit)
        return cls(*about, means, finding.per, finding.signed, claims, words, "", compared, name) if means else None

    @property
    def title(self) -> str:
        """The kind's name for readers."""
        return self.name or self.kind.capitalize()

    @property
    def largest(self) -> str:
        """The comparison in words: `v largest`, `v and k above q`, `alike within 0.02`, `too uncertain: …`, or a dash."""
        return "–" if self.compared is None else self.compared.words(self.per)


def as_table(lines: Sequence[Line]) -> pl.DataFrame:
    """Lines as a tidy table: a row for each number of q, k and v."""
    rows = [
        (
            *(number, line.kind, line.name, line.source, line.what, line.unit, c, *mean),
            *(line.per, line.signed, json.dumps(line.compared.data(), sort_keys=True) if line.compared else None),
            *(" ".join(line.claims), line.words, line.link),
        )
        for number, line in enumerate(lines, start=1)
        for c, mean in line.means.items()
    ]
    return pl.DataFrame(rows, schema=EVIDENCE, orient="row")


def from_table(evidence: pl.DataFrame) -> list[Line]:
    """The lines of such a table, grouped by kind; kinds and lines keep their order."""
    lines = []
    for _, rows in evidence.group_by("line", maintain_order=True):
        row = rows.row(0, named=True)
        numbers = rows.select("component", "value", "low", "high", "n").iter_rows()
        row["means"] = {component: Mean(*ends) for component, *ends in numbers}
        row["claims"] = tuple(row["claims"].split())
        row["compared"] = None if row["compared"] is None else Comparison.from_data(json.loads(row["compared"]))
        lines.append(Line(**{name: row[name] for name in Line._fields}))
    kinds = list(dict.fromkeys(line.kind for line in lines))
    return sorted(lines, key=lambda line: kinds.index(line.kind))


def summary(lines: Sequence[Line]) -> str:
    """How often q, k and v are largest, over all comparisons; empty if there are none."""
    titles: dict[str, Counter[str]] = {}  # by what the lines of these titles say
    for line in lines:
        if line.compared is not None:
            result = "too uncertain to say" if line.compared.kind == "uncertain" else line.largest
            titles.setdefault(result, Counter())[line.title.lower()] += 1
    if not titles:
        return ""
    parts = []
    for result, counts in titles.items():
        names = ", ".join(title if n == 1 else f"{title} × {n}" for title, n in counts.items())
        parts.append(f"{counts.total()}: {result} ({names})")
    total = words.quantity(sum(counts.total() for counts in titles.values()), "comparison")
    return f"Of {total} of q, k and v by paired differences, {words.join_words(parts)}."


def _row(line: Line, verdicts: Mapping[str, str]) -> tuple[str, ...]:
    """A line as a table row: its three numbers with intervals, which is largest, and the verdicts of its claims."""
    name: str = LINK.format(line.link, line.title) if line.link else line.title
    sizes = sorted({mean.n for mean in line.means.values()})
    # with one unit there is no interval to look for, so that the number of units always stands beside the unit
    sample = f"; n\u00a0=\u00a0{words.join_words([words.count(n) for n in sizes])} {line.per}{'s' * (sizes != [1])}"
    quantity = f"{line.what}, {line.unit}{sample * bool(sizes)}"
    places = words.decimals([mean.mean for mean in line.means.values()])
    cells: dict[str, str] = dict.fromkeys(COMPONENTS, "–")
    for component, mean in line.means.items():
        value, ends = words.number(mean.mean, line.signed, places), words.ends(mean, line.signed, places)
        cells[component] = value if mean.low is None else Markup("{}<small>{}</small>").format(value, ends)
    judged = ", ".join(f"{claim} {verdicts[claim]}" for claim in line.claims if claim in verdicts)
    remarks = "; ".join(filter(None, (judged, line.words))) or "–"
    return name, SOURCE.get(line.source, line.source), quantity, *cells.values(), line.largest, remarks


def _line_titles(lines: Sequence[Line]) -> list[str]:
    """A short name for each line: its kind, and if several are of one kind, the label or a number."""
    labels = {t: {x.what.partition(",")[0] for x in lines if x.title == t} for t in {x.title for x in lines}}
    names = [f"{x.title}, {x.what.partition(',')[0]}" if len(labels[x.title]) > 1 else x.title for x in lines]
    return [f"{n} ({names[: i + 1].count(n)})" if names.count(n) > 1 else n for i, n in enumerate(names)]


def section(lines: Sequence[Line], verdicts: Mapping[str, str]) -> sheet.Section:
    """Sentence and table of the lines, as a section of the page."""
    rule = (
        "Which of q, k and v is largest is asked by paired differences over the same seeds, corrected over the three pairs (Holm); alike "
        "means that two one-sided tests put every difference within the margin. How much of a label is there at whole width, and attacks "
        "that reach the layers below, rank nothing. Lines are of different units and models, so they are counted and not added up."
    )
    columns = ("evidence", "asked by", "what the number is", "q", "k", "v", "largest", "verdicts")
    caption = "q, k and v by every kind of evidence: means with 95 % intervals, and over how many seeds, texts or heads"
    table = sheet.Table(columns, tuple(_row(line, verdicts) for line in lines), caption, prose=True, folded=False)
    texts = tuple(filter(None, (summary(lines), rule)))
    return sheet.Section("Query, key and value together", texts, (), (table,))


OPEN_VERDICTS = ("inconclusive", "not tested")  # verdicts
TITLE = "What do query, key and value each do?"
LEDE = "Models that learnt to look up in generated text, beside controls; then four sources' questions, asked of models trained for it."
NOT_FORMED = (
    "In {} no induction head formed in the time that was there, so that they do not look up, and the answer is open here; the project's "
    "results have five that did."
)
# what the same intervention finds where the roles are planted
CALIBRATION = Markup(
    "Calibration: in {}, which one layer solves, the answer that each predicts comes in these shares of pairs: {}."
)
EXPLORE = 'trisect explore MODEL "some words" --out page.html'
# What decides the claims of a source that stay open at this size.
DECIDING_COMMANDS = {
    "submodules": "trisect study wikitext2-small --corpus CORPUS",
    "tying": "trisect study wikitext2-small --corpus CORPUS --only tie",
    "lookup": "trisect lookup --corpus CORPUS --seeds 5",
    "roles": "trisect study roles",
    "profile": "trisect profile MODEL... --corpus TREEBANK (five models or more, or one of many layers)",
    "recall": "trisect recall --seeds 8",
    "norms": "trisect norms MODEL --corpus CORPUS",
    "alignment": "trisect align MODEL... --source FILE --target FILE --gold FILE",
    "matrices": "trisect similarity MODEL --corpus CORPUS",
}


def page(tables: Mapping[str, pl.DataFrame], about: About[DissectFacts]) -> sheet.Sheet:
    """The page from the tables claims and evidence, and what every part found."""
    claims, lines = tables["claims"], from_table(tables["evidence"])
    return sheet.Sheet(
        TITLE,
        "trisect · the answer, and four sources",
        LEDE,
        (
            *_first_screen(about, tables, lines),
            *(_section(part, claims) for part in about.facts.parts),
            section(lines, _by_claim(claims)),
            *sheet.present(sheet.notes_section(about)),
        ),
        sheet.provenance(about, ("Models", about.facts.models)),
        tuple(dict.fromkeys(source.citation for source in SOURCES)),
        answer_sentence(LookupNumbers.of(tables)),
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[DissectFacts]) -> tuple[Finding, ...]:
    """The verdicts of all claims, then the evidence together."""
    evidence = summary(from_table(tables["evidence"]))
    lookup = [finding for part in about.facts.parts if part.name == "lookup" for finding in part.findings]
    return (
        *sheet.answers_of(lookup),
        *sheet.verdict_findings(tables["claims"].filter(pl.col("part").is_null())),
        *([Finding("evidence", evidence)] if evidence else []),
    )


def _first_screen(
    about: About[DissectFacts], tables: Mapping[str, pl.DataFrame], lines: Sequence[Line]
) -> tuple[sheet.Section, ...]:
    """The first screen: the answer, how certain it is, what could not be distinguished, and what would decide it."""
    claims = tables["claims"]
    also = {"all_layers": "{}", "profile": "Kept and dropped, {}", "largest_logit_change": "In a model that recalls"}
    more, blind = [], []
    for finding in (finding for part in about.facts.parts for finding in part.findings):
        if finding.measure in also:
            title = also[finding.measure].format(finding.title)
            more.append(Markup("<small><strong>{}.</strong> {}</small>").format(title, finding.words))
        elif finding.measure == "planted" and finding.groups != ("control",):
            auroc = finding.values[0].mean
            if auroc is not None and auroc < sheet.BLIND:
                blind.append(f"{finding.title}: AUROC {auroc:.2f}, where 0.5 is guessing.")
    titles = zip(_line_titles(lines), lines, strict=True)
    compared = (Finding(line.kind, "", title=title, per=line.per, compared=line.compared) for title, line in titles)
    unlike = sheet.open_section(compared, blind)
    # what the answer rests on: its own claim, all claims counted, and the comparisons of q, k and v
    sentences = _by_claim(claims)
    fixed = (
        "Claim G-1, that each of q, k and v shifts the answer toward its own prediction by a nat more than toward any other, was fixed "
        "before these data and asks for five models"
    )
    rests = [f"{fixed}: {sentences['G-1']}."] if "G-1" in sentences else []
    rests += [words.tally(cards.tally(cards.cards(claims)))] if len(claims) else []
    whole_claims = claims.filter(pl.col("part").is_null() & pl.col("verdict").is_in(OPEN_VERDICTS))
    commands = tuple(
        (Markup("<code>{}</code>").format(DECIDING_COMMANDS[source]), ", ".join(rows["claim"]))
        for (source,), rows in whole_claims.group_by("source", maintain_order=True)
        if str(source) in DECIDING_COMMANDS
    )
    columns = ("Command", "Claims that are open here")
    deciding = [sheet.Table(columns, commands, "What decides it", prose=True, folded=False)] * bool(commands)
    return (
        _answer(about.facts, LookupNumbers.of(tables), more),
        sheet.sure([*rests, *filter(None, (summary(lines),))]),
        replace(unlike, blocks=(*unlike.blocks, *deciding)),
    )


def _answer(facts: DissectFacts, numbers: LookupNumbers, more: Sequence[Markup]) -> sheet.Section:
    """A worked pair, what q, k and v each say beside the controls, what writes them, and the calibration."""
    parts = {part.name: part for part in facts.parts}
    blocks: list[sheet.PageBlock] = []
    if numbers.formed:
        first, *rest = answer_sections(numbers)
        blocks += [*map(sheet.Picture, first.figures), *first.tables, *first.blocks, *rest]
    else:
        blocks.append(sheet.TextBlock(NOT_FORMED.format(words.quantity(len(numbers.seeds), "model")), "notice"))
    lookup = [str(f) for f in parts["lookup"].findings if f.measure != "answer"] if "lookup" in parts else []
    formed = f"{' '.join(lookup[:1])} {facts.lookup and f'Each is a model of {facts.lookup}.'}"
    texts = [*more]
    roles = parts.get("roles")
    answers = [answer for answer in sheet.answers_of(roles.findings) if answer.unit == "of pairs"] if roles else []
    if roles and answers:
        shares = [f"{answer.groups[0]} {words.share(answer.values[0].mean or 0.0)}" for answer in answers]
        place = LINK.format(next(iter(roles.pages.values()), ""), "a synthetic task with known roles")
        texts.insert(0, CALIBRATION.format(place, words.join_words(shares)))
    pages = {name: place for part in facts.parts for name, place in part.pages.items()}
    steps = [
        (pages.get("theory"), "attention worked by hand"),
        (facts.explorer, "a sentence inside a model that was just trained, head by head"),
        (facts.tutorial, "one head, step by step"),
    ]
    links = [LINK.format(place, title) for place, title in steps if place is not None]
    links += [Markup("your own: <code>{}</code>").format(EXPLORE)] * (facts.explorer is not None)
    texts.append(Markup("See it at work: {}.").format(Markup("; ").join(links)))
    also = tuple(map(sheet.TextBlock, texts))
    blocks.append(sheet.Section("What else says so, and where to see it at work", (formed,), blocks=also))
    definitions = (sheet.Facts(sheet.DEFINITIONS),)
    blocks.append(sheet.Section("What are query, key and value?", (sheet.INTRODUCTION,), blocks=definitions))
    return sheet.Section("The answer", blocks=tuple(blocks), id="short-answer")


def _by_claim(claims: pl.DataFrame) -> dict[str, str]:
    """The verdict of every claim as a whole."""
    return dict(claims.filter(pl.col("part").is_null()).select("claim", "verdict").iter_rows())


def _section(part: PartFacts, claims: pl.DataFrame) -> sheet.Section:
    """A part as a section: its question, findings, pages, and verdicts."""
    links = Markup(", ").join(LINK.format(place, name) for name, place in part.pages.items())
    places = (Markup("Read on: {}.").format(links),) * bool(part.pages)
    texts = (str(finding) for finding in part.findings if part.name != "lookup" or finding.measure != "answer")
    judged = claims.filter(pl.col("claim").is_in(part.claims))
    rows = [
        (row["claim"], row["sentence"], row["verdict"], weakest or "–", words.why_open(row) or "–")
        for row, weakest in words.weakest_parts(judged)
    ]
    columns = ("claim", "what the source says", "verdict", "the part nearest its threshold", "why it is open")
    if not any(row[2] in OPEN_VERDICTS for row in rows):
        columns = columns[:-1]
    caption = "Its claims, each judged by the rule that was fixed before, with the effect of the weakest part (95 %)"
    table = sheet.Table(columns, tuple(row[: len(columns)] for row in rows), caption, prose=True, folded=False)
    return sheet.Section(part.title, (part.question, *texts, *places), (), (table,) if len(judged) else ())
