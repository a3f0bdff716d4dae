"""How alike W_Q, W_K and W_V are, head by head, against random matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.similarity.settings import SimilarityFacts, SimilaritySettings
from trisect.lab.experiment import Experiment, LayerMeasure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from trisect.core.finding import About, Finding
    from trisect.lab.experiment import Measured, RunContext
    from trisect.report.sheet import Sheet


class Similarity(Experiment[SimilaritySettings, SimilarityFacts]):
    """Measure how alike a model's W_Q, W_K and W_V are, head by head, against random matrices.

    \b
    trisect similarity MODEL --out similarity
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

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[SimilarityFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.similarity.page import findings

        return findings(tables, about)

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[SimilarityFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.similarity.page import page

        return page(tables, about)


SIMILARITY = Similarity()
