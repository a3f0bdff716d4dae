"""All four sources at one small size, and the page that answers with everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trisect.core.finding import About, Finding
from trisect.experiments.dissect.settings import RECORD, DissectFacts, DissectSettings
from trisect.lab.experiment import Tables, TrainingExperiment

if TYPE_CHECKING:
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

    def findings(self, tables: Tables, about: About[DissectFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.dissect.page import findings

        return findings(tables, about)

    def page(self, tables: Tables, about: About[DissectFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.dissect.page import page

        return page(tables, about)


DISSECT = Dissect()
