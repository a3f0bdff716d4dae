"""What breaks when q, k or v of a site is replaced."""

from __future__ import annotations

from trisect.core.finding import EQUIVALENCE_MARGIN
from trisect.experiments.ablate.settings import AblateFacts, AblateSettings
from trisect.lab.experiment import Experiment, LayerMeasure, Measured, PageModule, RunContext


class _Ablate(Experiment[AblateSettings, AblateFacts]):
    """Measure what changes when queries, keys or values are ablated: replaced by zero, a mean, or another text's.

    \b
    trisect ablate study --corpus embedded --sites q@all v@all --per head
    """

    name = "ablate"
    settings = AblateSettings
    facts = AblateFacts
    out = "ablate-{model}"
    record = "ablation.json"
    by_layer = (
        LayerMeasure(
            "loss_change_nats", "change of the loss", "nats", margin=EQUIVALENCE_MARGIN, finding="mean_change"
        ),
        LayerMeasure(
            "output_change",
            "change of the output",
            "share",
            signed=False,
            margin=EQUIVALENCE_MARGIN,
            finding="mean_change",
        ),
    )

    def measure(self, settings: AblateSettings, context: RunContext) -> Measured[AblateFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.ablate.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[AblateFacts]:
        """Findings and page."""
        from trisect.experiments.ablate import page

        return page


ABLATE = _Ablate()
