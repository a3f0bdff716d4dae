"""The page of all four sources: what was asked and found, then q, k and v by every kind of evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Finding
from trisect.experiments.dissect import evidence
from trisect.papers import SOURCES
from trisect.report import cards
from trisect.report import format as words
from trisect.report.points import Mean
from trisect.report.provenance import provenance, verdict_findings
from trisect.report.sheet import Section, Sheet, Table

if TYPE_CHECKING:
    from trisect.experiments.dissect.settings import DissectFacts, PartFacts

TITLE = "What do query, key and value each do?"
LEDE = (
    "Four sources ask this in four ways. Here each is asked once, on models trained for it on generated text, so that all of "
    "it can be repeated in minutes; every verdict speaks of these models and these texts alone."
)


def page(tables: Mapping[str, pl.DataFrame], about: About[DissectFacts]) -> Sheet:
    """The page from the tables claims and evidence, and what every part found."""
    claims, lines = tables["claims"], evidence.from_table(tables["evidence"])
    counted = words.tally(cards.tally(cards.cards(claims))) if len(claims) else ""
    first = Section("In short", tuple(text for text in (evidence.summary(lines), counted) if text))
    sections = [_section(one, claims) for one in about.facts.parts]
    last = evidence.section(lines, _by_claim(claims), "Figure 1")
    notes = (Section("Notes", about.notes),) if about.notes else ()
    return Sheet(
        TITLE,
        "trisect · four sources, one instrument",
        LEDE,
        (first, *sections, last, *notes),
        provenance(about, ("Models", about.facts.models)),
        tuple(dict.fromkeys(source.citation for source in SOURCES)),
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[DissectFacts]) -> tuple[Finding, ...]:
    """Every claim's verdict, then what the evidence says together."""
    together = evidence.summary(evidence.from_table(tables["evidence"]))
    return (
        *verdict_findings(tables["claims"].filter(pl.col("part").is_null())),
        *([Finding("evidence", together)] if together else []),
    )


def _by_claim(claims: pl.DataFrame) -> dict[str, str]:
    """The verdict of every claim as a whole."""
    return dict(claims.filter(pl.col("part").is_null()).select("claim", "verdict").iter_rows())


def _section(one: PartFacts, claims: pl.DataFrame) -> Section:
    """A part: its question, what it found, its pages, and the verdicts on its claims."""
    links = Markup(", ").join(Markup('<a href="{}">{}</a>').format(place, name) for name, place in one.pages.items())
    places = Markup("Read on: {}.").format(links)
    mine = claims.filter(pl.col("claim").is_in(one.claims))
    said = map(str, one.findings)
    return Section(
        one.title,
        (one.question, *said, *((places,) if one.pages else ())),
        (),
        (_verdicts(mine),) if len(mine) else (),
    )


def _verdicts(claims: pl.DataFrame) -> Table:
    wholes = claims.filter(pl.col("part").is_null())
    rows = [
        (row["claim"], row["sentence"], row["verdict"], _effect(row), row["reason"] or "–")
        for row in wholes.iter_rows(named=True)
    ]
    open_ones = any(row[2] == "inconclusive" for row in rows)
    columns = ("claim", "what the source says", "verdict", "its weakest part", *(("why it is open",) * open_ones))
    caption = "Its claims, each judged by the rule that was fixed before, with the effect of the weakest part (95 %)"
    return Table(columns, tuple(row[: len(columns)] for row in rows), caption, prose=True, folded=False)


def _effect(row: Mapping[str, Any]) -> str:
    if row["effect"] is None:
        return "–"
    return words.spoken(Mean(row["effect"], row["low"], row["high"], row["n"]), row["unit"])
