"""All four sources at one small size, and the page that answers with everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.dissect.settings import RECORD, DissectFacts, DissectSettings
from trisect.lab.experiment import TrainingExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from trisect.core.finding import About, Finding
    from trisect.core.machine import Machine
    from trisect.experiments.dissect.run import DissectWork
    from trisect.report.sheet import Sheet


class Dissect(TrainingExperiment[DissectSettings, DissectFacts]):
    """Run the whole study on embedded data: what q, k and v do, by every method, on one page. Call it again to resume.

    \b
    trisect dissect --out study
    """

    name = "dissect"
    settings = DissectSettings
    facts = DissectFacts
    record = RECORD
    plan = "parts.json"

    def prepare(self, settings: DissectSettings, machine: Machine) -> DissectWork:
        """The work that the settings ask for."""
        from trisect.experiments.dissect.run import prepare

        return prepare(settings, machine)

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[DissectFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.dissect.page import findings

        return findings(tables, about)

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[DissectFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.dissect.page import page

        return page(tables, about)


DISSECT = Dissect()
