"""Small encoder-decoders trained to translate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.translate.settings import TranslateFacts, TranslateSettings
from trisect.lab.experiment import TrainingExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from trisect.core.finding import About, Finding
    from trisect.core.machine import Machine
    from trisect.experiments.translate.run import TranslateWork


class Translate(TrainingExperiment[TranslateSettings, TranslateFacts]):
    """Train small translation models, one per seed, for 'trisect align'. Call it again to resume.

    \b
    trisect translate-train --out translation
    trisect translate-train --source train.en --target train.fr --seeds 3
    """

    name = "translate-train"
    settings = TranslateSettings
    facts = TranslateFacts
    plan = "translation.json"
    makes = "models"
    paged = False

    def prepare(self, settings: TranslateSettings, machine: Machine) -> TranslateWork:
        """The work that the settings ask for."""
        from trisect.experiments.translate.run import prepare

        return prepare(settings, machine)

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[TranslateFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.translate.page import findings

        return findings(tables, about)


TRANSLATE = Translate()
