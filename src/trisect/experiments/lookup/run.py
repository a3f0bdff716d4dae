"""Lookup: small language models trained until they look up what followed a word before, and what q, k and v do at every checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from trisect.core.files import read_json
from trisect.core.machine import Machine
from trisect.core.tables import frame
from trisect.engine.start import choose_device
from trisect.experiments.lookup.rows import LookupNumbers, judge_lookups
from trisect.experiments.lookup.settings import EMBEDDED_DATA, RECIPES, LookupFacts, LookupRecipe, LookupSettings
from trisect.experiments.lookup.training import LookupJob, train
from trisect.lab.command import command_of
from trisect.lab.experiment import Experiment, Measured
from trisect.lab.recipes import changes_of, choose_recipe
from trisect.lab.run_folder import DELETE, ResumePlan
from trisect.lab.training import ModelJob, TrainingWork
from trisect.papers.lookup import SOURCE
from trisect.text.windows import TrainingText, open_training_text


def prepare(settings: LookupSettings, machine: Machine, patch: Experiment[Any, Any]) -> LookupWork:
    """The device, the recipe, and the text that is learnt from, for models that are patched by an experiment; raises TrisectError."""
    device, embedded = choose_device(machine), str(settings.corpus) == EMBEDDED_DATA
    recipe = choose_recipe(RECIPES, settings.recipe, embedded, settings.settings)
    text = open_training_text(settings.corpus, settings.reader)
    return LookupWork(settings, recipe, text, device, module=type(patch).__module__)


@dataclass(frozen=True)
class LookupWork(TrainingWork[LookupSettings, LookupRecipe, TrainingText, LookupFacts]):
    """Language models to be trained; they lie in models/seed-N, their checkpoints in models/seed-N-step-M."""

    module: str = ""
    kind = "lookup study"
    plan_file, data_file = "lookup.json", "text.json"
    folders = ("lookups", "figures")
    model_pattern = "models/seed-[0-9]+(-step-[0-9]+)?"

    def jobs(self, home: Path, seeds: Sequence[int]) -> list[ModelJob]:
        """A model for each seed."""
        asked = [LookupJob(seed, self.recipe, self.device, self.settings.pairs, self.module) for seed in seeds]
        return [ModelJob(one.files(home), train, one, home / self.data_file) for one in asked]

    def collect(self, home: Path, plan: ResumePlan, jobs: Sequence[ModelJob]) -> Measured[LookupFacts]:
        """The tables, from what every checkpoint of every model gave."""
        text, losses = self.data, []
        found: dict[str, list[Any]] = {"measures": [], "predictions": [], "examples": []}
        for one in jobs:
            body: Any = read_json(one.files.results, DELETE.format(one.files.results))
            for name, rows in found.items():
                rows += body[name]
            losses += one.files.loss_rows("", f"lookup/{one.asked.seed}", "loss_nats")
        different = changes_of(RECIPES, self.recipe)
        corpus = self.settings.corpus if str(self.settings.corpus) == EMBEDDED_DATA else Path(self.settings.corpus).name
        whole = LookupSettings(
            corpus, self.settings.reader, plan.seeds, self.recipe.name, different, self.settings.pairs
        )
        tables = {"measures": frame("measures", found["measures"]), "metrics": frame("metrics", losses)}
        tables |= {
            name: pl.DataFrame(rows, infer_schema_length=None)
            for name, rows in found.items()
            if rows and name not in tables
        }
        bound = {"corpus": text.fingerprint, "seeds": list(plan.seeds)}
        return Measured(
            tables,
            LookupFacts(f"{text.name}, fingerprint {text.fingerprint}", self.recipe.data()),
            text.notes,
            lambda about: judge_lookups(LookupNumbers.of(tables), bound),
            SOURCE.unit,
            seconds=plan.wall_seconds,
            packages=("transformers", "tokenizers"),
            paths={one.title: one.files.model() for one in jobs},
            command=command_of("lookup", whole),
        )
