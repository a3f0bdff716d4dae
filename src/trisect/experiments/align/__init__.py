"""Word alignment from attention, by weight, norm and contribution."""

from __future__ import annotations

from trisect.experiments.align.settings import AlignFacts, AlignSettings
from trisect.lab.experiment import Experiment, Measured, PageModule, RunContext


class Align(Experiment[AlignSettings, AlignFacts]):
    """Align words by cross-attention, or within one text by self-attention: by weight, norm and contribution, scored against gold.

    Several models are one that was trained with several seeds.

    \b
    trisect align translation/seed-1 translation/seed-2 --source test.en --target test.fr --gold test.talp
    trisect align rxnmapper --source reactions.txt --marker ">>"
    trisect align translation/seed-1 --source translation/pairs/test.source --target translation/pairs/test.target
    """

    name = "align"
    settings = AlignSettings
    facts = AlignFacts
    source = "alignment"
    record = "align.json"
    is_of_words = True

    def check(self, settings: AlignSettings) -> None:
        """Raise CorpusError if the sentence pairs cannot be read, or their files do not match."""
        from trisect.experiments.align.run import read_bitext

        if settings.bitext is None:
            read_bitext(settings)

    def measure(self, settings: AlignSettings, context: RunContext) -> Measured[AlignFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.align.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[AlignFacts]:
        """Findings and page."""
        from trisect.experiments.align import page

        return page


ALIGN = Align()
