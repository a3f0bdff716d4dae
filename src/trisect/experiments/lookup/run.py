"""Lookup: small language models trained until they look up what followed a word before, and what q, k and v do at every checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trisect.core.files import read_json
from trisect.core.machine import Machine
from trisect.core.tables import frame
from trisect.engine.start import choose_device
from trisect.experiments.lookup.settings import EMBEDDED_DATA, RECIPES, LookupFacts, LookupRecipe, LookupSettings
from trisect.experiments.lookup.training import LookupJob, train
from trisect.lab.command import command_of
from trisect.lab.experiment import Measured
from trisect.lab.recipes import changes_of, choose_recipe
from trisect.lab.run_folder import DELETE, ResumePlan
from trisect.lab.training import ModelJob, TrainingWork
from trisect.text.windows import TrainingText, open_training_text


def prepare(settings: LookupSettings, machine: Machine) -> LookupWork:
    """The device, the recipe, and the text that is learnt from; raises TrisectError."""
    device, embedded = choose_device(machine), str(settings.corpus) == EMBEDDED_DATA
    recipe = choose_recipe(RECIPES, settings.recipe, embedded, settings.settings)
    return LookupWork(settings, recipe, open_training_text(settings.corpus, settings.reader), device)


class LookupWork(TrainingWork[LookupSettings, LookupRecipe, TrainingText, LookupFacts]):
    """Language models to be trained; they lie in models/seed-N, their checkpoints in models/seed-N-step-M."""

    kind = "lookup study"
    plan_file, data_file = "lookup.json", "text.json"
    folders = ("lookups", "figures")
    model_pattern = "models/seed-[0-9]+(-step-[0-9]+)?"

    def jobs(self, home: Path, seeds: Sequence[int]) -> list[ModelJob]:
        """A model for each seed."""
        asked = [LookupJob(seed, self.recipe, self.device, self.settings.pairs) for seed in seeds]
        return [ModelJob(one.files(home), train, one, home / self.data_file) for one in asked]

    def collect(self, home: Path, plan: ResumePlan, jobs: Sequence[ModelJob]) -> Measured[LookupFacts]:
        """The tables, from what every checkpoint of every model gave."""
        text, rows, losses = self.data, [], []
        for one in jobs:
            body: Any = read_json(one.files.results, DELETE.format(one.files.results))
            rows += body["measures"]
            losses += one.files.loss_rows("", f"lookup/{one.asked.seed}", "loss_nats")
        different = changes_of(RECIPES, self.recipe)
        corpus = self.settings.corpus if str(self.settings.corpus) == EMBEDDED_DATA else Path(self.settings.corpus).name
        whole = LookupSettings(
            corpus, self.settings.reader, plan.seeds, self.recipe.name, different, self.settings.pairs
        )
        return Measured(
            {"measures": frame("measures", rows), "metrics": frame("metrics", losses)},
            LookupFacts(f"{text.name}, fingerprint {text.fingerprint}", self.recipe.data()),
            text.notes,
            seconds=plan.wall_seconds,
            packages=("transformers", "tokenizers"),
            paths={one.title: one.files.model() for one in jobs},
            command=command_of("lookup", whole),
        )
