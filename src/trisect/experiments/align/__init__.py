"""Word alignment from cross-attention, by weight and by norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trisect.core.finding import About, Finding
from trisect.experiments.align.settings import AlignFacts, AlignSettings
from trisect.lab.experiment import Experiment, Measured, RunContext, Tables

if TYPE_CHECKING:
    from trisect.report.sheet import Sheet


class Align(Experiment[AlignSettings, AlignFacts]):
    """Align words by an encoder-decoder's cross-attention, by weight and by norm, and score the alignment against gold.

    Several models are one that was trained with several seeds.

    \b
    trisect align translation/seed-1 translation/seed-2 --source test.en --target test.fr --gold test.talp
    """

    name = "align"
    settings = AlignSettings
    facts = AlignFacts
    source = "alignment"
    record = "align.json"

    def check(self, settings: AlignSettings) -> None:
        """Raise TrisectError for settings that are wrong whatever the model is."""
        from trisect.experiments.align.run import check

        check(settings)

    def reads_text(self, settings: object, texts: object) -> bool:
        """Always: words with labels or links."""
        return True

    def measure(self, settings: AlignSettings, context: RunContext) -> Measured[AlignFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.align.run import measure

        return measure(settings, context)

    def findings(self, tables: Tables, about: About[AlignFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.align.page import findings

        return findings(tables, about)

    def page(self, tables: Tables, about: About[AlignFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.align.page import page

        return page(tables, about)


ALIGN = Align()
