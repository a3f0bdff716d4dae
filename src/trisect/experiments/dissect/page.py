"""The page of all four sources: what was asked and found, then q, k and v by every kind of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from markupsafe import Markup

from trisect.core.finding import Finding
from trisect.core.tables import frame
from trisect.experiments.dissect import evidence as together
from trisect.experiments.dissect.evidence import Line
from trisect.report import cards
from trisect.report import format as words
from trisect.report.points import Mean
from trisect.report.sheet import Section, Sheet, Table, write_sheet

TITLE = "What do query, key and value each do?"
LEDE = (
    "Four sources ask this in four ways. Here each is asked once, on models trained for it on generated text, so that all of "
    "it can be repeated in minutes; every verdict speaks of these models and these texts alone."
)


EVIDENCE = {
    "kind": pl.String,
    "source": pl.String,
    "what": pl.String,
    "unit": pl.String,
    "component": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,
    "per": pl.String,
}


class SourceFindings(NamedTuple):
    """One source as it was asked: its question, what was found, its claims' rows, and the pages to read on.

    `links` are (what, place on disk relative to the page).
    """

    title: str
    question: str
    findings: tuple[Finding, ...]
    claims: pl.DataFrame | None
    links: tuple[tuple[str, str], ...]


def write(out: Path, asked: Sequence[SourceFindings], lines: Sequence[Line], about: Mapping[str, Any]) -> Path:
    """Write `out/report.html` and its figure; returns the page's path. The same rows give the same bytes."""
    return write_sheet(out, sheet(asked, lines, about))


def sheet(asked: Sequence[SourceFindings], lines: Sequence[Line], about: Mapping[str, Any]) -> Sheet:
    """The page as plain data."""
    counted = words.tally(cards.tally(cards.cards(everything))) if len(everything := all_claims(asked)) else ""
    first = Section("In short", tuple(text for text in (together.summary(lines), counted) if text))
    facts = (
        ("Command", about["command"]),
        ("Seconds", f"{about['seconds']:.0f} in all, over every call"),
        ("Models", about["models"]),
        ("Software", ", ".join(f"{name} {version}" for name, version in about["versions"].items())),
    )
    return Sheet(
        TITLE,
        "trisect · four sources, one instrument",
        LEDE,
        (first, *map(_section, asked), together.section(lines, "Figure 1")),
        facts,
        tuple(about["citations"]),
    )


def findings(asked: Sequence[SourceFindings], lines: Sequence[Line]) -> tuple[str, ...]:
    """A few lines for a terminal: every claim's verdict, then what the evidence says together."""
    said = [f"{row['claim']:<5} {row['verdict']:<13} {row['sentence']}" for row in wholes(asked)]
    return (*said, *filter(None, (together.summary(lines),)))


def wholes(asked: Sequence[SourceFindings]) -> list[dict[str, Any]]:
    """The row of every claim as a whole."""
    return [row for row in all_claims(asked).iter_rows(named=True) if row["part"] is None]


def evidence(lines: Sequence[Line]) -> pl.DataFrame:
    """The lines as a tidy table: a row for each number of q, k and v."""
    rows = [
        (line.kind, line.source, line.what, line.unit, c, mean.mean, mean.low, mean.high, mean.n, line.per)
        for line in together.ordered(lines)
        for c, mean in line.means.items()
    ]
    return pl.DataFrame(rows, schema=EVIDENCE, orient="row")


def all_claims(asked: Sequence[SourceFindings]) -> pl.DataFrame:
    """The rows of every source's claims, one table."""
    tables = [one.claims for one in asked if one.claims is not None]
    return pl.concat(tables) if tables else frame("claims", ())


def _section(one: SourceFindings) -> Section:
    places = Markup("Read on: {}.").format(
        Markup(", ").join(Markup('<a href="{}">{}</a>').format(place, name) for name, place in one.links)
    )
    tables = () if one.claims is None else (_verdicts(one.claims),)
    said = [str(found) for found in one.findings if found.claim is None]  # verdicts and their parts stand in the table
    return Section(one.title, (one.question, *said, *((places,) if one.links else ())), (), tables)


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
