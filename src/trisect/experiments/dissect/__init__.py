"""All four sources at one small size, and the page that answers with everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.dissect.settings import RECORD, DissectFacts, DissectSettings
from trisect.lab.experiment import PageModule, TrainingExperiment

if TYPE_CHECKING:
    from trisect.core.machine import Machine
    from trisect.experiments.dissect.run import DissectWork


class Dissect(TrainingExperiment[DissectSettings, DissectFacts]):
    """Run the whole study on embedded data: what q, k and v do, by every method, on one page. Call it again to resume.

    \b
    trisect dissect --out study
    """

    name = "dissect"
    settings = DissectSettings
    facts = DissectFacts
    record = RECORD

    def prepare(self, settings: DissectSettings, machine: Machine) -> DissectWork:
        """The work that the settings ask for."""
        from trisect.experiments.dissect.run import DissectWork

        return DissectWork.prepare(settings, machine)

    def page_module(self) -> PageModule[DissectFacts]:
        """Findings and page."""
        from trisect.experiments.dissect import page

        return page


DISSECT = Dissect()
