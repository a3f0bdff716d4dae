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

TRANSLATIONS = 3  # translations of each model


class Translate(TrainingExperiment[TranslateSettings, TranslateFacts]):
    """Train small translation models, one per seed, for 'trisect align'. Call it again to resume.

    \b
    trisect translate-train --source train.en --target train.fr --seeds 3
    trisect translate-train --out translation
    """

    name = "translate-train"
    settings = TranslateSettings
    facts = TranslateFacts
    makes = "models"
    paged = False

    def prepare(self, settings: TranslateSettings, machine: Machine) -> TranslateWork:
        """Prepare the work of the settings."""
        from trisect.experiments.translate.run import prepare

        return prepare(settings, machine)

    def findings(self, tables: Tables, about: About[TranslateFacts]) -> Sequence[Finding]:
        """The last losses and accuracies of each model, and a few translations of held-out pairs."""
        from trisect.report.format import number

        results = []
        for (run,), metrics in tables["metrics"].group_by("run", maintain_order=True):
            title = f"seed-{str(run).rpartition('/')[2]}"
            last = metrics.filter(epoch=metrics["epoch"].max()).drop_nulls("value")
            for row in last.sort("split", "name").to_dicts():
                unit = "nats" if row["name"].endswith("nats") else ""
                quantity = f"{row['name'].removesuffix('_nats').replace('_', ' ')} on {row['split']}"
                text = f"{quantity} {number(row['value'])}{f' {unit}' if unit else ''}."
                value = Estimate(row["split"], row["value"], n=1)
                results.append(Finding(row["name"], text, unit, (value,), title=title, what=quantity))
            for row in tables["translations"].filter(run=run).sort("pair").head(TRANSLATIONS).to_dicts():
                text = f"{row['source']}  →  {row['made']}  (the text has: {row['target']})"
                results.append(Finding("translation", text, title=title))
        return results


TRANSLATE = Translate()
