"""What every page says of where its numbers are from, and every claim's verdict as a finding."""

from __future__ import annotations

from typing import TypeVar

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.report import format as words
from trisect.report.sheet import Section

F = TypeVar("F")


def provenance(about: About[F], *own: tuple[str, str], timed: bool = True) -> tuple[tuple[str, str], ...]:
    """The facts at a page's end: the command, the experiment's `own`, seconds, claims and software.

    Without `timed` the seconds are left to the record, so that the same call writes the same page.
    """
    seconds = (("Seconds", f"{about.seconds:.0f}"),) if timed and about.seconds >= 1 else ()
    claims = (("Claims", f"hash {about.claims_hash}"),) if about.claims_hash is not None else ()
    made = ", ".join(f"{name} {version}" for name, version in sorted(about.versions.items()))
    return (("Command", about.command), *own, *seconds, *claims, ("Made by", made))


def notes_section(about: About[F]) -> Section | None:
    """The notes of a run; null where there are none."""
    return Section("Notes", tuple(about.notes)) if about.notes else None


def verdict_findings(claims: pl.DataFrame) -> tuple[Finding, ...]:
    """Every claim of a table of claims: its verdict, its effect with its interval, and why if it is inconclusive."""
    return tuple(_verdict(row, line) for row, line in words.verdicts_said(claims))


def _verdict(row: words.ClaimRow, line: str) -> Finding:
    effect = Estimate(row["claim"], row["effect"], row["low"], row["high"], row["n"])
    return Finding(
        "claim",
        line,
        row["unit"] or "",
        (effect,) if row["effect"] is not None else (),
        source=row["source"],
        claim=row["claim"],
        verdict=row["verdict"],
    )
