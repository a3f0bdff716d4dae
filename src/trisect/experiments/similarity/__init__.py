"""How alike W_Q, W_K and W_V are, head by head, against random matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.similarity.settings import SimilarityFacts, SimilaritySettings
from trisect.lab.experiment import Experiment, LayerMeasure, PageModule

if TYPE_CHECKING:
    from trisect.lab.experiment import Measured, RunContext


class Similarity(Experiment[SimilaritySettings, SimilarityFacts]):
    """Measure how alike a model's W_Q, W_K and W_V are, head by head, against random matrices.

    \b
    trisect similarity study --out similarity
    """

    name = "similarity"
    settings = SimilaritySettings
    facts = SimilarityFacts
    source = "matrices"
    out = "similarity-{model}"
    record = "similarity.json"
    by_layer = (LayerMeasure("overlap", "overlap of what is read", "share", signed=False),)

    def measure(self, settings: SimilaritySettings, context: RunContext) -> Measured[SimilarityFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.similarity.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[SimilarityFacts]:
        """Findings and page."""
        from trisect.experiments.similarity import page

        return page


SIMILARITY = Similarity()
