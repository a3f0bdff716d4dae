"""Study: the result of a training study, with figures and verdicts, read from its folder on demand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from trisect.claims import preconditions
from trisect.core.errors import TrisectError
from trisect.core.files import Json
from trisect.core.finding import About, Finding
from trisect.core.spec import StudyAbout
from trisect.core.tables import STUDY_TABLES, read_table
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows, describe_study
from trisect.lab.experiment import Result
from trisect.report import cards, notebook
from trisect.report import format as words
from trisect.report.notebook import ROW, _frame

if TYPE_CHECKING:
    import altair as alt

    from trisect.experiments.study.settings import StudyFacts
    from trisect.report.notebook import StudyVerdicts


class Study(Result["StudyFacts"]):
    """A study on disk: tables, figures and verdicts by name, and the path of its report."""

    def __init__(
        self,
        folder: str | Path,
        tables: Mapping[str, pl.DataFrame] | None = None,
        report: Path | None = None,
        findings: tuple[Finding, ...] | None = None,
        about: About[StudyFacts] | None = None,
        paths: Mapping[str, Path] | None = None,
        paged: bool = True,
        makes: str = "",
        answer: str = "",
    ) -> None:
        folder = Path(folder)
        report, paths = report or folder / "report.html", paths or {}
        self.__dict__.update(folder=folder, report=report, paths=paths, paged=paged, makes=makes, answer=answer)
        read = {"tables": tables, "findings": findings, "about": about}  # from the folder where they are None
        self.__dict__.update({name: value for name, value in read.items() if value is not None})

    def __repr__(self) -> str:
        return f"Study(folder={self.folder!r})"

    @cached_property
    def tables(self) -> Mapping[str, pl.DataFrame]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Polars frames: runs, metrics, sites, claims. Raises DamagedFileError where one cannot be read."""
        return {name: read_table(self.folder / "tables", name) for name in STUDY_TABLES}

    @cached_property
    def about(self) -> About[StudyFacts]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The record of the tables' origin; raises StudyError if there is no study, DamagedFileError if it is unreadable."""
        from trisect.experiments.study.run import read_study_about
        from trisect.lab.folder import Folder

        return read_study_about(Folder(self.folder))

    @cached_property
    def findings(self) -> tuple[Finding, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The verdicts of all claims, then the findings."""
        from trisect.experiments.study.page import with_verdicts

        return with_verdicts(StudyRows.of(self.tables, describe_study(self.about)))

    @cached_property
    def figures(self) -> Mapping[str, alt.ConcatChart]:
        """The report's figures as Altair charts; a notebook shows them as SVG, without a network."""
        from trisect.experiments.study import figures

        rows = StudyRows.of(self.tables, describe_study(self.about))
        return {figure.name: notebook.chart(figure.chart()) for figure in figures.collect(rows)}

    @cached_property
    def verdicts(self) -> StudyVerdicts:
        """Verdicts by claim, as in study.verdicts["A-1"]; in a notebook, a card each."""
        return notebook.verdicts(self.tables["claims"])

    def data(self) -> dict[str, Json]:
        """The study as JSON-ready data: findings, numbers of runs by outcome, and every claim's verdict."""
        data = super().data()
        data["runs"] = dict(self.tables["runs"]["status"].value_counts().iter_rows())
        claims = self.tables["claims"].iter_rows(named=True)
        data["verdicts"] = {row["claim"]: row["verdict"] for row in claims if row["part"] is None}
        return data

    def _repr_html_(self) -> str:
        try:
            return study(self.tables, describe_study(self.about), self.report)
        except TrisectError as error:
            return notebook.error_html(error)


def study(tables: Mapping[str, pl.DataFrame], about: StudyAbout, report: Path) -> str:
    """A study in short: experiment, text, model, runs, the checks before any verdict, verdicts, and where its page is."""
    rows = StudyRows.of(tables, about)
    facts, name = study_words.study(rows), (about.get("experiment") or {}).get("name", "study")
    checks = [
        Markup("{}: {} ({}){}").format(
            "holds" if c.ok else "does not hold",
            c.name,
            "not measured" if c.effect is None else f"{words.number(c.effect, True)} nats",
            Markup("<br>"),
        )
        for c in preconditions({key: tables[key] for key in ("runs", "metrics", "sites")})
    ]
    lines = {
        "Text": facts["corpus"],
        "Model": facts["model"],
        "Seeds": facts["seeds"],
        "Runs": facts["runs"],
        "Before any verdict": Markup("").join(checks),
        "Verdicts": words.tally(cards.tally(cards.cards(rows.claims))),
        "Report": Markup("<code>{}</code>").format(report),
    }
    body = Markup("").join(ROW.format(name=key, said=value) for key, value in lines.items())
    return _frame(Markup("<p><b>Study {}</b></p><table>{}</table>").format(name, body))
