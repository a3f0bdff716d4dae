"""Rewinding q, k and v between published checkpoints of one model."""

from __future__ import annotations

from trisect.core.errors import SpecError
from trisect.experiments.checkpoints.settings import RewindFacts, RewindSettings
from trisect.lab.experiment import Experiment, Measured, PageModule, RunContext


class RewindCheckpoints(Experiment[RewindSettings, RewindFacts]):
    """Rewind q, k or v to earlier published checkpoints of one model: criticality without training.

    Checkpoints are revisions on a hub, or sub-folders of a local folder.

    \b
    trisect rewind EleutherAI/pythia-70m --initial step0 --final step143000 --stages step512,step4000 --corpus DIR
    trisect rewind lookup/models --initial seed-1-step-0 --final seed-1 --corpus embedded --limit 40
    """

    name = "rewind"
    settings = RewindSettings
    facts = RewindFacts
    out = "rewind-{model}"
    record = "checkpoints.json"

    def check(self, settings: RewindSettings) -> None:
        """Raise SpecError if an intermediate revision is also the first or the last, which would count twice in means."""
        ends = {settings.initial, settings.final}
        if name := next((name for name in settings.stages if name in ends), None):
            reason = f"The revisions are {', '.join(settings.revisions)}, the initial one first and the final one last."
            raise SpecError(f"The revision {name!r} was given twice.", reason, "Name every revision once.")

    def measure(self, settings: RewindSettings, context: RunContext) -> Measured[RewindFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.checkpoints.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[RewindFacts]:
        """Findings and page."""
        from trisect.experiments.checkpoints import page

        return page


REWIND = RewindCheckpoints()
