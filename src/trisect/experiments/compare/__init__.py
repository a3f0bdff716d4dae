"""Two models side by side."""

from __future__ import annotations

from typing import Any

from trisect.experiments.compare.settings import CompareFacts, CompareSettings
from trisect.lab.experiment import Experiment, Measured, PageModule, RunContext


class Compare(Experiment[CompareSettings, CompareFacts]):
    """Put two models side by side: norms, similarity, ablation, profiles, interchange, with paired differences.

    \b
    trisect compare lookup/models/seed-1 lookup/models/seed-2 --corpus embedded --limit 40
    """

    name = "compare"
    settings = CompareSettings
    facts = CompareFacts
    out = "compare-{model}"
    record = "compare.json"

    def __init__(self, experiments: tuple[Experiment[Any, Any], ...] = ()) -> None:
        self.experiments = experiments

    def check(self, settings: CompareSettings) -> None:
        """Raise TrisectError for settings that are wrong for any of the experiments that are compared."""
        from trisect.experiments.compare.run import check

        check(settings, self.experiments)

    def measure(self, settings: CompareSettings, context: RunContext) -> Measured[CompareFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.compare.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[CompareFacts]:
        """Findings and page."""
        from trisect.experiments.compare import page

        return page
