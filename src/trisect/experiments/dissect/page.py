"""The page of all four sources: what was asked and found, then q, k and v by every kind of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Finding
from trisect.experiments.dissect import evidence
from trisect.experiments.dissect.evidence import Line
from trisect.papers import SOURCES
from trisect.report import cards
from trisect.report import format as words
from trisect.report.opening import BLIND, answered, opening, picture_of, sure, undecided
from trisect.report.points import Mean
from trisect.report.provenance import provenance, verdict_findings
from trisect.report.sheet import Section, Sheet, Table

if TYPE_CHECKING:
    from trisect.experiments.dissect.settings import DissectFacts, PartFacts

TITLE = "What do query, key and value each do?"
LEDE = (
    "Answered first where the truth is known, then asked in the ways of four sources on models that were trained for it on "
    "generated text, so that all of it can be repeated in minutes; every verdict speaks of these models and these texts alone."
)
# What decides the claims of a source that stay open at this size.
DECIDES = {
    "submodules": "trisect study wikitext2-small --corpus CORPUS",
    "tying": "trisect study wikitext2-small --corpus CORPUS --only tie",
    "roles": "trisect study roles",
    "profile": "trisect profile MODEL --corpus TREEBANK (F-3: 30 or more heads in the last third of its layers)",
    "recall": "trisect recall --seeds 5",
    "norms": "trisect norms MODEL --corpus CORPUS",
    "alignment": "trisect align MODEL... --source FILE --target FILE --gold FILE",
    "matrices": "trisect similarity MODEL --corpus CORPUS",
}


def page(tables: Mapping[str, pl.DataFrame], about: About[DissectFacts]) -> Sheet:
    """The page from the tables claims and evidence, and what every part found."""
    claims, lines = tables["claims"], evidence.from_table(tables["evidence"])
    sections = [_section(one, claims) for one in about.facts.parts]
    last = evidence.section(lines, _by_claim(claims), "Figure 1")
    notes = (Section("Notes", about.notes),) if about.notes else ()
    return Sheet(
        TITLE,
        "trisect · the answer, and four sources",
        LEDE,
        (*_first_screen(about, claims, lines), *sections, last, *notes),
        provenance(about, ("Models", about.facts.models)),
        tuple(dict.fromkeys(source.citation for source in SOURCES)),
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[DissectFacts]) -> tuple[Finding, ...]:
    """Every claim's verdict, then what the evidence says together."""
    together = evidence.summary(evidence.from_table(tables["evidence"]))
    answers = answered(one for part in about.facts.parts if part.name == "roles" for one in part.findings)
    return (
        *answers,
        *verdict_findings(tables["claims"].filter(pl.col("part").is_null())),
        *([Finding("evidence", together)] if together else []),
    )


def _first_screen(about: About[DissectFacts], claims: pl.DataFrame, lines: Sequence[Line]) -> tuple[Section, ...]:
    """The answer in three sentences and one picture; how sure it is; what could not be distinguished, and what would decide it."""
    every = [one for part in about.facts.parts for one in part.findings]
    planted = next((part for part in about.facts.parts if part.name == "roles"), None)
    answers = answered(planted.findings) if planted else ()
    caption = (
        "Which answer comes when one of q, k and v is another text's, in the world with planted roles: its own prediction, another "
        "component's, or the answer as it was. The three predict different answers, so that it shows which of them does what. Means "
        "over models, 95 % intervals."
    )
    picture = picture_of(answers, caption, caption)
    beside = [one for one in every if one.measure in ("all_layers", "profile", "largest_logit_change")]
    more = tuple(_also(one) for one in beside)
    blind = [
        f"{one.title}: AUROC {one.values[0].mean:.2f}, where 0.5 is guessing."
        for one in every
        if one.measure == "planted"
        and one.groups != ("control",)
        and one.values[0].mean is not None
        and one.values[0].mean < BLIND
    ]
    named = zip(evidence.line_titles(evidence.ordered(lines)), evidence.ordered(lines), strict=True)
    unlike = undecided(
        (Finding(line.kind, "", title=title, per=line.per, compared=line.compared) for title, line in named), blind
    )
    return (
        opening(answers, picture, (*more, _look_on(about.facts))),
        sure(_sure(claims, lines)),
        replace(unlike, blocks=(*unlike.blocks, *_deciding(claims))),
    )


def _look_on(facts: DissectFacts) -> Markup:
    """Where to see it at work: the page of attention by hand, one's own text in a trained model, and the tutorial."""
    pages = {name: place for part in facts.parts for name, place in part.pages.items()}
    link = Markup('<a href="{}">{}</a>').format
    steps = (
        (pages.get("theory"), "attention worked by hand"),
        (facts.explorer, "a sentence inside a model that was just trained, head by head"),
        (facts.tutorial, "one head, step by step"),
    )
    parts = [link(place, words) for place, words in steps if place is not None]
    if facts.explorer is not None:
        parts.append(
            Markup("your own: {}").format(
                Markup("<code>{}</code>").format('trisect explore MODEL "some words" --out page.html')
            )
        )
    return Markup("See it at work: {}.").format(Markup("; ").join(parts))


def _also(one: Finding) -> Markup:
    """What a finding adds to the answer, in small: on a language model, or on one that recalls."""
    name = {"profile": f"Kept and dropped, {one.title}", "largest_logit_change": "In a model that recalls"}.get(
        one.measure, one.title
    )
    return Markup("<small><strong>{}.</strong> {}</small>").format(name, one.words)


def _sure(claims: pl.DataFrame, lines: Sequence[Line]) -> list[str]:
    """What the answer rests on: its own claim, all claims counted, and how lines of evidence compare q, k and v."""
    by = _by_claim(claims)
    fixed = "Claim F-1, that each does this and nothing else, was fixed before these data"
    said = [f"{fixed}: {by['F-1']}."] if "F-1" in by else []
    said += [words.tally(cards.tally(cards.cards(claims)))] if len(claims) else []
    return [*said, *filter(None, (evidence.summary(lines),))]


def _deciding(claims: pl.DataFrame) -> tuple[Table, ...]:
    """The commands that decide what is open at this size."""
    wholes = claims.filter(pl.col("part").is_null() & pl.col("verdict").is_in(["inconclusive", "not tested"]))
    rows = tuple(
        (Markup("<code>{}</code>").format(DECIDES[source]), ", ".join(own["claim"]))
        for (source,), own in wholes.group_by("source", maintain_order=True)
        if str(source) in DECIDES
    )
    if not rows:
        return ()
    return (Table(("Command", "Claims that are open here"), rows, "What decides it", prose=True, folded=False),)


def _by_claim(claims: pl.DataFrame) -> dict[str, str]:
    """The verdict of every claim as a whole."""
    return dict(claims.filter(pl.col("part").is_null()).select("claim", "verdict").iter_rows())


def _section(one: PartFacts, claims: pl.DataFrame) -> Section:
    """A part: its question, what it found, its pages, and the verdicts on its claims."""
    links = Markup(", ").join(Markup('<a href="{}">{}</a>').format(place, name) for name, place in one.pages.items())
    places = Markup("Read on: {}.").format(links)
    mine = claims.filter(pl.col("claim").is_in(one.claims))
    said = (str(found) for found in one.findings if found.measure != "answer")
    return Section(
        one.title,
        (one.question, *said, *((places,) if one.pages else ())),
        (),
        (_verdicts(mine),) if len(mine) else (),
    )


def _verdicts(claims: pl.DataFrame) -> Table:
    wholes = claims.filter(pl.col("part").is_null())
    rows = [
        (row["claim"], row["sentence"], row["verdict"], _effect(row), words.why_open(row) or "–")
        for row in wholes.iter_rows(named=True)
    ]
    open_ones = any(row[2] in ("inconclusive", "not tested") for row in rows)
    columns = ("claim", "what the source says", "verdict", "its weakest part", *(("why it is open",) * open_ones))
    caption = "Its claims, each judged by the rule that was fixed before, with the effect of the weakest part (95 %)"
    return Table(columns, tuple(row[: len(columns)] for row in rows), caption, prose=True, folded=False)


def _effect(row: Mapping[str, Any]) -> str:
    if row["effect"] is None:
        return "–"
    return words.spoken(Mean(row["effect"], row["low"], row["high"], row["n"]), row["unit"])
