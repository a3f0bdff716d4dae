"""What a model loses when a label is erased linearly from q, k or v (LEACE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trisect.core.finding import ALIKE, About, Finding
from trisect.experiments.erase.settings import EraseFacts, EraseSettings
from trisect.lab.experiment import Experiment, LayerMeasure, Measured, RunContext, Tables

if TYPE_CHECKING:
    from trisect.report.sheet import Sheet


class EraseLabels(Experiment[EraseSettings, EraseFacts]):
    """Erase a label linearly (LEACE) from queries, keys or values, and measure the change of the loss.

    \b
    trisect erase MODEL --corpus ud-english-ewt --labels pos --sites k@all
    """

    name = "erase"
    settings = EraseSettings
    facts = EraseFacts
    out = "erase-{model}"
    record = "erasure.json"
    by_layer = (
        LayerMeasure("erase_excess_nats", "rise beyond random subspaces", "nats", margin=ALIKE),
        LayerMeasure("erase_excess_share", "change beyond random subspaces", "share", margin=ALIKE),
    )

    def check(self, settings: EraseSettings) -> None:
        """Raise TrisectError for settings that are wrong whatever the model is."""
        from trisect.experiments.erase.run import check

        check(settings)

    def reads_text(self, settings: object, texts: object) -> bool:
        """Always: words with labels or links."""
        return True

    def measure(self, settings: EraseSettings, context: RunContext) -> Measured[EraseFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.erase.run import measure

        return measure(settings, context)

    def findings(self, tables: Tables, about: About[EraseFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.erase.page import findings

        return findings(tables, about)

    def page(self, tables: Tables, about: About[EraseFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.erase.page import page

        return page(tables, about)


ERASE = EraseLabels()
