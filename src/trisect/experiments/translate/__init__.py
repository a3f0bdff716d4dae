"""Small encoder-decoders trained to translate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trisect.core.finding import About, Estimate, Finding
from trisect.experiments.translate.settings import TranslateFacts, TranslateSettings
from trisect.lab.experiment import Tables, TrainingExperiment

if TYPE_CHECKING:
    from trisect.core.machine import Machine
    from trisect.experiments.translate.run import TranslateWork

SHOWN = 3  # translations of each model


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

    def findings(self, tables: Tables, about: About[TranslateFacts]) -> Sequence[Finding]:
        """Of each model its last losses and accuracies, and a few translations of pairs that it did not learn from."""
        from trisect.report.format import number

        found = []
        for run in tables["metrics"]["run"].unique(maintain_order=True):
            mine, title = tables["metrics"].filter(run=run), f"seed-{run.rpartition('/')[2]}"
            last = mine.filter(epoch=mine["epoch"].max()).drop_nulls("value")
            for row in last.sort("split", "name").iter_rows(named=True):
                unit = "nats" if row["name"].endswith("nats") else ""
                what = f"{row['name'].removesuffix('_nats').replace('_', ' ')} on {row['split']}"
                said = f"{what} {number(row['value'])}{f' {unit}' if unit else ''}."
                value = Estimate(row["split"], row["value"], n=1)
                found.append(Finding(row["name"], said, unit, (value,), title=title, what=what))
            shown = tables["translations"].filter(run=run).sort("pair").head(SHOWN)
            for row in shown.iter_rows(named=True):
                said = f"{row['source']}  →  {row['made']}  (the text has: {row['target']})"
                found.append(Finding("translation", said, title=title))
        return found


TRANSLATE = Translate()
