"""A world that must look up, in real text: models are trained until induction heads form, and patched at every checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.lookup.settings import LookupFacts, LookupSettings
from trisect.lab.experiment import TrainingExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from trisect.core.finding import About, Finding
    from trisect.core.machine import Machine
    from trisect.experiments.lookup.run import LookupWork
    from trisect.report.sheet import Sheet


class LookupStudy(TrainingExperiment[LookupSettings, LookupFacts]):
    """Train small language models until they look up what followed a word before; what do q, k and v do meanwhile? Call it again to
    resume.

    \b
    trisect lookup --corpus wikitext-2 --out lookup
    trisect lookup --corpus wikitext-2 --recipe deep --seeds 3
    """

    name = "lookup"
    settings = LookupSettings
    facts = LookupFacts
    plan = "lookup.json"
    makes = "models"

    def prepare(self, settings: LookupSettings, machine: Machine) -> LookupWork:
        """The work that the settings ask for."""
        from trisect.experiments.lookup.run import prepare

        return prepare(settings, machine)

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[LookupFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.lookup.page import findings

        return findings(tables, about)

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[LookupFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.lookup.page import page

        return page(tables, about)


LOOKUP = LookupStudy()
