"""What breaks when q, k or v of a site is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trisect.core.finding import ALIKE, About, Finding
from trisect.experiments.ablate.settings import AblateFacts, AblateSettings
from trisect.lab.experiment import Experiment, LayerMeasure, Measured, RunContext, Tables

if TYPE_CHECKING:
    from trisect.report.sheet import Sheet


class AblateModel(Experiment[AblateSettings, AblateFacts]):
    """Measure what changes when queries, keys or values are ablated: replaced by zero, a mean, or another text's.

    \b
    trisect ablate MODEL --corpus wikitext-2 --sites q@all v@all --per head
    """

    name = "ablate"
    settings = AblateSettings
    facts = AblateFacts
    out = "ablate-{model}"
    record = "ablation.json"
    by_layer = (
        LayerMeasure("loss_change_nats", "change of the loss", "nats", margin=ALIKE, finding="mean_change"),
        LayerMeasure(
            "output_change", "change of the output", "share", signed=False, margin=ALIKE, finding="mean_change"
        ),
    )

    def measure(self, settings: AblateSettings, context: RunContext) -> Measured[AblateFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.ablate.run import measure

        return measure(settings, context)

    def findings(self, tables: Tables, about: About[AblateFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.ablate.page import findings

        return findings(tables, about)

    def page(self, tables: Tables, about: About[AblateFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.ablate.page import page

        return page(tables, about)


ABLATE = AblateModel()
