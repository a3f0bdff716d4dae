"""Look-up in real text: train models until induction heads form, and patch q, k and v at every checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trisect.experiments.lookup.settings import LookupFacts, LookupSettings
from trisect.lab.experiment import Experiment, PageModule, TrainingExperiment

if TYPE_CHECKING:
    from trisect.core.machine import Machine
    from trisect.experiments.lookup.run import LookupWork


class LookupStudy(TrainingExperiment[LookupSettings, LookupFacts]):
    """Train small language models until they look up what followed a word before; measure what q, k and v do, and which part writes them.

    Call it again to resume.

    \b
    trisect lookup --corpus wikitext-2 --recipe deep --seeds 3
    trisect lookup --corpus embedded --out lookup
    """

    name = "lookup"
    settings = LookupSettings
    facts = LookupFacts
    makes = "models"

    def __init__(self, patch: Experiment[Any, Any], *compose: Experiment[Any, Any]) -> None:
        """Take the experiment that patches, and optionally the one that patches paths."""
        self.experiments = (patch, *compose)

    def prepare(self, settings: LookupSettings, machine: Machine) -> LookupWork:
        """Prepare the work of the settings."""
        from trisect.experiments.lookup.run import prepare

        return prepare(settings, machine, self.experiments)

    def page_module(self) -> PageModule[LookupFacts]:
        """Findings and page."""
        from trisect.experiments.lookup import page

        return page
