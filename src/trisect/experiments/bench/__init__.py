"""RolesBench: which methods find the sites that carry the answer in models built by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.bench.settings import BenchmarkFacts, BenchmarkSettings
from trisect.lab.experiment import Experiment, PageModule

if TYPE_CHECKING:
    from trisect.lab.experiment import Measured, RunContext


class RolesBenchmark(Experiment[BenchmarkSettings, BenchmarkFacts]):
    """Score methods that say which q, k or v matters, on models built by hand whose sites are known.

    A score is a number for a site (q, k or v of a head) and a property of the texts: the larger, the more the property
    reaches the answer there. By construction it does so at a few sites (positive); at the others patching the donor's moves
    the answer by noise at most (negative). AUROC is the probability that a positive scores above a negative, ties
    counting half: 0.5 by chance, 1 for the truth. It is computed over all sites and properties of one model. A world has one model
    for each seed (bases, heads, noise and texts). Means over seeds are reported, with Student's 95 % intervals.

    \b
    trisect bench METHOD.py --worlds "roles induction" --seeds 10
    trisect bench
    """

    name = "bench"
    settings = BenchmarkSettings
    facts = BenchmarkFacts

    def check(self, settings: BenchmarkSettings) -> None:
        """Raise SpecError for unknown methods, files and worlds."""
        from trisect.experiments.bench.run import choose

        choose(settings)

    def measure(self, settings: BenchmarkSettings, context: RunContext) -> Measured[BenchmarkFacts]:
        """Score the methods; raises TrisectError."""
        from trisect.experiments.bench.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[BenchmarkFacts]:
        """Findings and page."""
        from trisect.experiments.bench import page

        return page


BENCHMARK = RolesBenchmark()
