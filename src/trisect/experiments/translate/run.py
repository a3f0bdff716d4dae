"""Translation: small encoder-decoders trained on a bitext, several seeds side by side, from pairs of files to folders of models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from trisect.core.errors import CorpusError, SpecError
from trisect.core.files import write_json
from trisect.core.machine import Machine
from trisect.core.schema import plain
from trisect.core.tables import frame
from trisect.engine.devices import choose_device
from trisect.experiments.translate.settings import (
    EMBEDDED_DATA,
    RECIPES,
    TranslateFacts,
    TranslateSettings,
    TranslationRecipe,
    choose_translation,
)
from trisect.experiments.translate.training import (
    TranslationFolder,
    TranslationJob,
    TranslationWork,
    epochs_kept,
    result_rows,
)
from trisect.hf.small.gpt import is_model
from trisect.lab.command import command_of
from trisect.lab.experiment import Measured, RunContext, changed
from trisect.lab.jobs import run_jobs
from trisect.lab.run_folder import ResumePlan, follow_plan, join_plan
from trisect.text.bitext import SIDES, Bitext, SentencePair, open_bitext, write_lines, write_links
from trisect.text.generated import bitext_corpus

KIND = "translation experiment"
PAIRS = "pairs"  # the folder where the embedded bitext's own files go
AGAIN = "Delete it and call the same command again: what is missing is made again."


def prepare(settings: TranslateSettings, machine: Machine) -> TranslateWork:
    """The device, the recipe, and the bitext with the train pairs that are learnt from; raises TrisectError.

    `data` is 'embedded' or a folder as text.bitext.open_bitext reads it; two files, source and target, stand in its place.
    """
    device, where = choose_device(machine), _where(settings)
    embedded = where == EMBEDDED_DATA
    recipe = choose_translation(settings.recipe, embedded, settings.settings)
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


@dataclass(frozen=True)
class TranslateWork:
    """Models to be trained; interrupted, call it again to resume; with more seeds it is extended."""

    settings: TranslateSettings
    recipe: TranslationRecipe
    bitext: Bitext
    device: str
    name: str = ""

    def check(self, folder: Path) -> None:
        """Raise StudyError where the folder holds something else, or another translation."""
        self._plan(folder)

    def own(self, folder: Path) -> Iterable[Path]:
        """Every folder that a translation writes into."""
        return TranslationFolder(folder).own()

    def measure(self, context: RunContext) -> Measured[TranslateFacts]:
        """Train what is not trained yet, and score it on the pairs that it did not learn from; models lie in seed-N."""
        place, plan, bitext, settings = (
            TranslationFolder(context.folder),
            self._plan(context.folder),
            self.bitext,
            self.settings,
        )
        write_json(place.plan, plan.data())
        write_json(place.bitext, plain(bitext))
        left = [seed for seed in plan.seeds if not (place.is_trained(seed) and place.scores(seed).exists())]
        if _where(settings) == EMBEDDED_DATA:
            _spread(place.path / PAIRS, bitext)
        jobs = (TranslationJob(seed, self.recipe, self.device, settings.keep) for seed in left)
        works = [TranslationWork(one, place) for one in jobs]
        plan = follow_plan(
            place.plan, plan, len(left), lambda: run_jobs(works, context.machine, self.device, place.path)
        )
        rows = [result_rows(seed, place, AGAIN) for seed in plan.seeds]
        tables = {
            name: frame(name, [row for of in rows for row in of[i]])
            for i, name in enumerate(("metrics", "translations"))
        }
        epochs = epochs_kept(settings.keep, self.recipe.epochs)
        kept = {path.name: path for seed in plan.seeds for path in (place.kept(seed, epoch) for epoch in epochs)}
        absent = [name for name, path in kept.items() if not is_model(path)]
        note = f"Not kept, since these epochs were trained without 'keep': {', '.join(absent)}."
        models = {path.name: path for path in map(place.model, plan.seeds)}
        # the settings that repeat all calls; folders and files go by their own names, not by where they lie
        data, source, target = (
            None if path is None or str(path) == EMBEDDED_DATA else Path(path).resolve().name
            for path in (settings.data, settings.source, settings.target)
        )
        different = changed(RECIPES, self.recipe)
        whole = TranslateSettings(data, source, target, plan.seeds, self.recipe.name, different, settings.keep)
        return Measured(
            tables,
            TranslateFacts(f"{bitext.name}, fingerprint {bitext.fingerprint}", self.recipe.data()),
            (*bitext.notes, *(note,) * bool(absent)),
            seconds=plan.wall_seconds,
            packages=("transformers", "tokenizers"),
            paths=models | {name: path for name, path in kept.items() if name not in absent},
            command=command_of("translate-train", whole),
        )

    def _plan(self, folder: Path) -> ResumePlan:
        begun = {"recipe": self.recipe.data(), "bitext": self.bitext.fingerprint, "device": self.device}
        return join_plan(TranslationFolder(folder).plan, KIND, begun, self.settings.seeds)


def _spread(folder: Path, bitext: Bitext) -> None:
    """The embedded bitext as files that others read: train, trial and test sentences, and links counted from 0."""
    for split, name in (("train", "train"), ("valid", "trial"), ("test", "test")):
        pairs: tuple[SentencePair, ...] = getattr(bitext, split)
        for side, end in enumerate(SIDES):
            write_lines(folder / f"{name}.{end}", [" ".join(pair.sides[side]) for pair in pairs])
        write_links(folder / f"{name}.pharaoh", [(pair.sure or (), pair.possible or ()) for pair in pairs], base=0)
