"""Two models side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trisect.core.finding import About, Finding
from trisect.experiments.compare.settings import CompareFacts, CompareSettings
from trisect.lab.experiment import Experiment, Measured, RunContext, Tables

if TYPE_CHECKING:
    from trisect.report.sheet import Sheet


class Compare(Experiment[CompareSettings, CompareFacts]):
    """Put two models side by side: norms, similarity, ablation, profiles, interchange, with paired differences.

    \b
    trisect compare MODEL OTHER --corpus wikitext-2
    """

    name = "compare"
    settings = CompareSettings
    facts = CompareFacts
    out = "compare-{model}"
    record = "compare.json"

    def __init__(self, of: tuple[Experiment[Any, Any], ...] = ()) -> None:
        self.of = of

    def check(self, settings: CompareSettings) -> None:
        """Raise TrisectError for settings that are wrong for any of the experiments that are compared."""
        from trisect.experiments.compare.run import check

        check(settings, self.of)

    def measure(self, settings: CompareSettings, context: RunContext) -> Measured[CompareFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.compare.run import measure

        return measure(settings, context)

    def findings(self, tables: Tables, about: About[CompareFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.compare.page import findings

        return findings(tables, about)

    def page(self, tables: Tables, about: About[CompareFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.compare.page import page

        return page(tables, about)
