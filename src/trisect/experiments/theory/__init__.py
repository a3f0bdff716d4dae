"""Attention worked by hand: eight constructions and their laws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.theory.settings import TheoryFacts, TheorySettings
from trisect.lab.experiment import Experiment, PageModule

if TYPE_CHECKING:
    from trisect.lab.experiment import Measured, RunContext


class Theory(Experiment[TheorySettings, TheoryFacts]):
    """Compute eight hand-built constructions of attention, compare them with closed forms, and make an interactive page.

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

    def page_module(self) -> PageModule[TheoryFacts]:
        """Findings and page."""
        from trisect.experiments.theory import page

        return page


THEORY = Theory()
