"""What a model loses when a label is erased linearly from q, k or v (LEACE)."""

from __future__ import annotations

from trisect.core.finding import EQUIVALENCE_MARGIN
from trisect.experiments.erase.settings import EraseFacts, EraseSettings
from trisect.lab.experiment import Experiment, LayerMeasure, Measured, PageModule, RunContext


class _Erase(Experiment[EraseSettings, EraseFacts]):
    """Erase a label linearly (LEACE) from queries, keys or values, and measure the change of the loss.

    \b
    trisect erase study --corpus embedded --labels pos --sites k@all
    """

    name = "erase"
    settings = EraseSettings
    facts = EraseFacts
    out = "erase-{model}"
    record = "erasure.json"
    is_of_words = True
    by_layer = (
        LayerMeasure("erase_excess_nats", "rise beyond random subspaces", "nats", margin=EQUIVALENCE_MARGIN),
        LayerMeasure("erase_excess_share", "change beyond random subspaces", "share", margin=EQUIVALENCE_MARGIN),
    )

    def check(self, settings: EraseSettings) -> None:
        """Raise TrisectError for settings that are wrong whatever the model is."""
        from trisect.experiments.erase.run import check

        check(settings)

    def measure(self, settings: EraseSettings, context: RunContext) -> Measured[EraseFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.erase.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[EraseFacts]:
        """Findings and page."""
        from trisect.experiments.erase import page

        return page


ERASE = _Erase()
