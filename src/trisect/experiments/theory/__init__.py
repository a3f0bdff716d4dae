"""Attention worked by hand: eight constructions and their laws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.theory.settings import TheoryFacts, TheorySettings
from trisect.lab.experiment import Experiment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from trisect.core.finding import About, Finding
    from trisect.lab.experiment import Measured, RunContext
    from trisect.report.sheet import Document


class Theory(Experiment[TheorySettings, TheoryFacts]):
    """Compute eight constructions of attention by hand with their closed forms, and an interactive page of them.

    \b
    trisect theory average stretched_key_two_heads --beta 2,8
    """

    name = "theory"
    settings = TheorySettings
    facts = TheoryFacts
    record = "theory.json"
    function = "theory_page"

    def measure(self, settings: TheorySettings, context: RunContext) -> Measured[TheoryFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.theory.run import measure

        return measure(settings, context)

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[TheoryFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.theory.page import findings

        return findings(tables, about)

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[TheoryFacts]) -> Document:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.theory.page import page

        return page(tables, about)


THEORY = Theory()
