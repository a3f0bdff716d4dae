"""Translation: small encoder-decoders trained on a bitext, several seeds side by side, from pairs of files to folders of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trisect.core.errors import CorpusError, SpecError
from trisect.core.files import read_json
from trisect.core.machine import Machine
from trisect.core.tables import frame
from trisect.engine.start import choose_device
from trisect.experiments.translate.settings import (
    EMBEDDED_DATA,
    RECIPES,
    TranslateFacts,
    TranslateSettings,
    TranslationRecipe,
)
from trisect.experiments.translate.training import TranslationJob, train
from trisect.hf.small.gpt import is_model
from trisect.lab.command import command_of
from trisect.lab.experiment import Measured
from trisect.lab.recipes import changes_of, choose_recipe
from trisect.lab.run_folder import DELETE, ResumePlan
from trisect.lab.training import ModelJob, TrainingWork
from trisect.text.bitext import SIDES, Bitext, SentencePair, open_bitext, write_lines, write_links
from trisect.text.generated import bitext_corpus

PAIRS = "pairs"  # the folder where the embedded bitext's own files go


def prepare(settings: TranslateSettings, machine: Machine) -> TranslateWork:
    """The device, the recipe, and the bitext with the train pairs that are learnt from; raises TrisectError.

    `data` is 'embedded' or a folder as text.bitext.open_bitext reads it; two files, source and target, stand in its place.
    """
    device, where = choose_device(machine), _where(settings)
    embedded = where == EMBEDDED_DATA
    recipe = choose_recipe(RECIPES, settings.recipe, embedded, settings.settings)
    bitext = bitext_corpus() if embedded else open_bitext(where)
    pairs = bitext.training_pairs(recipe.longest)
    if not pairs:
        known = f"The {len(bitext.train):,} train pairs are longer, or are in valid or test."
        raise CorpusError(f"No train pair of at most {recipe.longest} words.", known, "Give a larger --set longest=.")
    note = (
        f"Learnt from are {len(pairs):,} different train pairs of at most {recipe.longest} words a side, "
        f"of {len(bitext.train):,} train pairs in all."
    )
    bitext = replace(bitext, train=pairs, notes=(*bitext.notes, note))
    return TranslateWork(settings, recipe, bitext, device)


def _where(settings: TranslateSettings) -> str | Path | tuple[str | Path, str | Path]:
    """Where sentences come from: 'embedded', a folder, or two files."""
    data, source, target = settings.data, settings.source, settings.target
    if source is not None and target is not None and data is None:
        return source, target
    if source is not None or target is not None:
        known = "Sentences come from --data, or from --source and --target together."
        given = ", ".join(f"--{n} {v}" for n, v in (("data", data), ("source", source), ("target", target)) if v)
        raise SpecError(f"{given} was given.", known, "Give one or the other.")
    return EMBEDDED_DATA if data is None or str(data) == EMBEDDED_DATA else data


class TranslateWork(TrainingWork[TranslateSettings, TranslationRecipe, Bitext, TranslateFacts]):
    """Translation models to be trained; they lie in folders seed-N."""

    kind = "translation experiment"
    plan_file, data_file = "translation.json", "bitext.json"
    folders = (PAIRS, "scores")
    model_pattern = "seed-[0-9]+(-epoch-[0-9]+)?"

    def jobs(self, home: Path, seeds: Sequence[int]) -> list[ModelJob]:
        """A model for each seed."""
        asked = [TranslationJob(seed, self.recipe, self.device, self.settings.keep) for seed in seeds]
        return [ModelJob(one.files(home), train, one, home / self.data_file) for one in asked]

    def collect(self, home: Path, plan: ResumePlan, jobs: Sequence[ModelJob]) -> Measured[TranslateFacts]:
        """Losses and scores of every model, and a few translations of pairs that it did not learn from."""
        settings, bitext = self.settings, self.data
        if _where(settings) == EMBEDDED_DATA:  # as files that others read; links are counted from 0
            for split, name in (("train", "train"), ("valid", "trial"), ("test", "test")):
                pairs: tuple[SentencePair, ...] = getattr(bitext, split)
                for side, end in enumerate(SIDES):
                    write_lines(home / PAIRS / f"{name}.{end}", [" ".join(pair.sides[side]) for pair in pairs])
                links = [(pair.sure or (), pair.possible or ()) for pair in pairs]
                write_links(home / PAIRS / f"{name}.pharaoh", links, base=0)
        metrics, translations, versions = [], [], {}
        for one in jobs:
            run, results = {"run": f"translation/{one.asked.seed}"}, one.files.results
            losses = one.files.loss_rows("", run["run"], "smoothed_loss_nats")
            body: Any = read_json(results, DELETE.format(results))
            metrics += [*losses, *(run | {"epoch": len(losses)} | row for row in body["scores"])]
            translations += [run | {"pair": i} | row for i, row in enumerate(body["translations"], start=1)]
            versions |= {path.name: path for path in map(one.files.model, one.asked.versions.values())}
        absent = [name for name, path in versions.items() if not is_model(path)]
        note = f"Not kept, since these epochs were trained without 'keep': {', '.join(absent)}."
        models = {one.title: one.files.model() for one in jobs}
        # the settings that repeat all calls; folders and files go by their own names, not by where they lie
        data, source, target = (
            None if path is None or str(path) == EMBEDDED_DATA else Path(path).resolve().name
            for path in (settings.data, settings.source, settings.target)
        )
        different = changes_of(RECIPES, self.recipe)
        whole = TranslateSettings(data, source, target, plan.seeds, self.recipe.name, different, settings.keep)
        return Measured(
            {"metrics": frame("metrics", metrics), "translations": frame("translations", translations)},
            TranslateFacts(f"{bitext.name}, fingerprint {bitext.fingerprint}", self.recipe.data()),
            (*bitext.notes, *(note,) * bool(absent)),
            seconds=plan.wall_seconds,
            packages=("transformers", "tokenizers"),
            paths=models | {name: path for name, path in versions.items() if name not in absent},
            command=command_of("translate-train", whole),
        )
