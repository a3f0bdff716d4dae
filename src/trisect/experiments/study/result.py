"""Study: what a training study left, with its figures and verdicts; read from its folder when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trisect.core.errors import TrisectError
from trisect.core.finding import About, Finding
from trisect.core.json_text import Json
from trisect.lab.experiment import Result

if TYPE_CHECKING:
    import altair as alt
    import polars as pl

    from trisect.experiments.study.settings import StudyFacts
    from trisect.report.notebook import StudyVerdicts


class Study(Result["StudyFacts"]):
    """A study on disk: its tables by name, its figures by name, its verdicts, and the path of its report."""

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
    ) -> None:
        folder = Path(folder)
        known = {"folder": folder, "report": report or folder / "report.html", "paths": paths or {}}
        given = {"tables": tables, "findings": findings, "about": about}
        self.__dict__.update(known, paged=paged, makes=makes, **{k: v for k, v in given.items() if v is not None})

    def __repr__(self) -> str:
        return f"Study(folder={self.folder!r})"

    @cached_property
    def tables(self) -> Mapping[str, pl.DataFrame]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Polars frames: runs, metrics, sites, claims. Raises DamagedFileError where one cannot be read."""
        from trisect.experiments.study.collect import read_tables
        from trisect.lab.folder import Folder

        return read_tables(Folder(self.folder))

    @cached_property
    def about(self) -> About[StudyFacts]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where the tables are from; raises StudyError where there is no study, DamagedFileError where it cannot be read."""
        from trisect.experiments.study.run import read_study_about
        from trisect.lab.folder import Folder

        return read_study_about(Folder(self.folder))

    @cached_property
    def findings(self) -> tuple[Finding, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Every claim's verdict, then what was found."""
        from trisect.experiments.study import page

        return page.findings(self.tables, self.about)

    @cached_property
    def figures(self) -> Mapping[str, alt.ConcatChart]:
        """The report's figures as Altair charts; a notebook shows them as SVG, without a network."""
        from trisect.experiments.study import figures
        from trisect.experiments.study.rows import described
        from trisect.report import notebook

        drawn = figures.draw(dict(self.tables), described(self.about))
        return {name: notebook.chart(chart) for name, chart in drawn.items()}

    @cached_property
    def verdicts(self) -> StudyVerdicts:
        """What the study says of each claim, by its name: study.verdicts["A-1"]; in a notebook a card each."""
        from trisect.report import notebook

        return notebook.verdicts(self.tables["claims"])

    def data(self) -> dict[str, Json]:
        """The study as JSON-ready data: besides its findings, how many runs ended how, and every claim's verdict."""
        found = super().data()
        found["runs"] = dict(self.tables["runs"]["status"].value_counts().iter_rows())
        claims = self.tables["claims"].iter_rows(named=True)
        found["verdicts"] = {row["claim"]: row["verdict"] for row in claims if row["part"] is None}
        return found

    def _repr_html_(self) -> str:
        from trisect.experiments.study import notebook as study_notebook
        from trisect.experiments.study.rows import described
        from trisect.report import notebook

        try:
            return study_notebook.study(self.tables, described(self.about), self.report)
        except TrisectError as error:
            return notebook.trouble(error)
