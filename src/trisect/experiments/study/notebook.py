"""A study in short, as a notebook shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl
from markupsafe import Markup

from trisect.claims import preconditions
from trisect.core.study_data import StudyAbout
from trisect.experiments.study import facts
from trisect.experiments.study.rows import StudyRows
from trisect.report import cards
from trisect.report import format as words
from trisect.report.notebook import ROW, _framed


def study(tables: Mapping[str, pl.DataFrame], about: StudyAbout, report: Path) -> str:
    """A study in short: experiment, text, model, runs, the checks before any verdict, verdicts, and where its page is."""
    rows = StudyRows.of(tables, about)
    said, name = facts.study(rows), (about.get("experiment") or {}).get("name", "study")
    checks = [
        Markup("{}: {} ({}){}").format(
            "holds" if c.ok else "does not hold", c.name, _measured(c.effect), Markup("<br>")
        )
        for c in preconditions({key: tables[key] for key in ("runs", "metrics", "sites")})
    ]
    lines = {
        "Text": said["corpus"],
        "Model": said["model"],
        "Seeds": said["seeds"],
        "Runs": said["runs"],
        "Before any verdict": Markup("").join(checks),
        "Verdicts": words.tally(cards.tally(cards.cards(rows.claims))),
        "Report": Markup("<code>{}</code>").format(report),
    }
    body = Markup("").join(ROW.format(name=key, said=value) for key, value in lines.items())
    return _framed(Markup("<p><b>Study {}</b></p><table>{}</table>").format(name, body))


def _measured(effect: float | None) -> str:
    return "not measured" if effect is None else f"{words.number(effect, True)} nats"
