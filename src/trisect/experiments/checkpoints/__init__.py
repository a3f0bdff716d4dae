"""Rewinding q, k and v between published checkpoints of one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trisect.core.finding import About, Finding
from trisect.experiments.checkpoints.settings import RewindFacts, RewindSettings
from trisect.lab.experiment import Experiment, Measured, RunContext, Tables

if TYPE_CHECKING:
    from trisect.report.sheet import Sheet


class RewindCheckpoints(Experiment[RewindSettings, RewindFacts]):
    """Rewind q, k or v to earlier published checkpoints of one model: criticality without training.

    Checkpoints are revisions on a hub, or sub-folders of a local folder.

    \b
    trisect rewind EleutherAI/pythia-70m --initial step0 --final step143000 --stages step512,step4000 --corpus DIR
    """

    name = "rewind"
    settings = RewindSettings
    facts = RewindFacts
    out = "rewind-{model}"
    record = "checkpoints.json"

    def check(self, settings: RewindSettings) -> None:
        """Raise TrisectError for settings that are wrong whatever the model is."""
        from trisect.experiments.checkpoints.run import check

        check(settings)

    def measure(self, settings: RewindSettings, context: RunContext) -> Measured[RewindFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.checkpoints.run import measure

        return measure(settings, context)

    def findings(self, tables: Tables, about: About[RewindFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.checkpoints.page import findings

        return findings(tables, about)

    def page(self, tables: Tables, about: About[RewindFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.checkpoints.page import page

        return page(tables, about)


REWIND = RewindCheckpoints()
