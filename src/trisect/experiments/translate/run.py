"""Train small encoder-decoders on a bitext, several seeds side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trisect.core.errors import CorpusError, SpecError
from trisect.core.files import read_json, write_json
from trisect.core.machine import Machine
from trisect.core.schema import record
from trisect.core.tables import frame
from trisect.engine.jobs import JobContext, job
from trisect.engine.start import choose_device
from trisect.experiments.translate.settings import (
    EMBEDDED_DATA,
    RECIPES,
    TranslateFacts,
    TranslateSettings,
    TranslationRecipe,
)
from trisect.hf.small.gpt import Practice, is_model, save
from trisect.hf.small.translator import TranslationLoss, Translator, encode, learn_tokenizer, make_model
from trisect.lab.experiment import Measured
from trisect.lab.inputs import changes_of, choose_recipe
from trisect.lab.records import command
from trisect.lab.run_folder import DELETE_ADVICE, ResumePlan
from trisect.lab.training import ModelFiles, ModelJob, TrainingWork, begin
from trisect.lm.matmul import fast_products, one_thread
from trisect.text.bitext import SIDES, Bitext, SentencePair, open_bitext, write_lines, write_links
from trisect.text.generated import bitext_corpus

SCORED = ("valid", "test")
EXAMPLE_TRANSLATIONS = 8  # translations that are kept to look at
SCORING = 0.03  # of the time that a model takes


@record
class _TranslationJob:
    """A model to train, with the seed of weights, order of pairs and dropout; after every `keep` epochs a version is stored."""

    seed: int
    recipe: TranslationRecipe
    device: str
    keep: int | None = None

    def files(self, home: Path) -> ModelFiles:
        """The paths of its files."""
        return ModelFiles(home, f"seed-{self.seed}", "scores")

    @property
    def versions(self) -> dict[int, str]:
        """Epochs before the last whose models are stored, with the names of those versions."""
        epochs = range(self.keep, self.recipe.epochs, self.keep) if self.keep else ()
        return {epoch: f"epoch-{epoch}" for epoch in epochs}


@job
def train(spec: _TranslationJob, context: JobContext) -> None:
    """Train and score a model, unless its files exist; paths in the scratch folder are those in the experiment's."""
    (bitext, emit), files = begin(context, Bitext), spec.files(context.scratch)
    with one_thread(), fast_products():
        if not files.is_complete:
            _train(spec, files, bitext, emit)
        if not files.results.exists():
            emit(1 - SCORING, "scoring")
            # the scores of a trained model by split, and a few translations
            translator, longest = Translator.open(files.model(), spec.device), spec.recipe.longest
            scores, shown = [], list[SentencePair]()
            for split in SCORED:
                if pairs := [pair for pair in getattr(bitext, split) if pair.longest <= longest]:
                    values = translator.score([pair.sides for pair in pairs])._asdict()
                    scores += [{"split": split, "name": name, "value": value} for name, value in values.items()]
                    shown = pairs[:EXAMPLE_TRANSLATIONS]
            texts = translator.translate([pair.source for pair in shown])
            translations = [
                {"source": " ".join(pair.source), "target": " ".join(pair.target), "made": text}
                for pair, text in zip(shown, texts, strict=True)
            ]
            write_json(files.results, {"scores": scores, "translations": translations})


def _train(spec: _TranslationJob, files: ModelFiles, bitext: Bitext, emit: Callable[[float, str], None]) -> None:
    """Train from random weights to a model in its folder; all seeds share the tokenizer."""
    seed, recipe = spec.seed, spec.recipe
    pairs = bitext.training_pairs(recipe.longest)
    tokenizer = learn_tokenizer((side for pair in pairs for side in pair.sides), recipe.pieces)
    rows = encode([pair.sides for pair in pairs], tokenizer)
    model = make_model(recipe.architecture(), tokenizer, seed).to(spec.device)
    padding = tokenizer.pad_token_id
    objective, schedule = TranslationLoss(padding, recipe.smoothing), recipe.schedule(len(rows))
    # a schedule counts pairs here, whatever their length, as rows of one token
    practice = Practice(lambda number, draw: rows, schedule, 1, padding, seed, objective)

    def report(epoch: int, epochs: int, loss: float) -> None:
        if epoch in spec.versions:
            save(model, tokenizer, files.model(spec.versions[epoch]))
        emit((1 - SCORING) * epoch / epochs, f"epoch {epoch} of {epochs}, {loss:.3f} nats")

    files.train(practice, model, tokenizer, "", report)


PAIRS = "pairs"  # the folder where the embedded bitext's own files go


def prepare(settings: TranslateSettings, machine: Machine) -> TranslateWork:
    """Prepare the device, the recipe, the bitext and its train pairs; raises TrisectError.

    `data` is 'embedded' or a folder as text.bitext.open_bitext reads it; two files, source and target, stand in its place.
    """
    device, where = choose_device(machine), _where(settings)
    embedded = where == EMBEDDED_DATA
    recipe = choose_recipe(RECIPES, settings.recipe, embedded, settings.settings)
    bitext = bitext_corpus() if embedded else open_bitext(where)
    pairs = bitext.training_pairs(recipe.longest)
    if not pairs:
        reason = f"The {len(bitext.train):,} train pairs are longer, or are in valid or test."
        raise CorpusError(f"No train pair of at most {recipe.longest} words.", reason, "Give a larger --set longest=.")
    note = (
        f"Learnt from are {len(pairs):,} different train pairs of at most {recipe.longest} words a side, "
        f"of {len(bitext.train):,} train pairs in all."
    )
    bitext = replace(bitext, train=pairs, notes=(*bitext.notes, note))
    return TranslateWork(settings, recipe, bitext, device)


def _where(settings: TranslateSettings) -> str | Path | tuple[str | Path, str | Path]:
    """The source of sentences: 'embedded', a folder, or two files."""
    data, source, target = settings.data, settings.source, settings.target
    if source is not None and target is not None and data is None:
        return source, target
    if source is not None or target is not None:
        reason = "Sentences come from --data, or from --source and --target together."
        options = ", ".join(f"--{n} {v}" for n, v in (("data", data), ("source", source), ("target", target)) if v)
        raise SpecError(f"{options} was given.", reason, "Give one or the other.")
    return EMBEDDED_DATA if data is None or str(data) == EMBEDDED_DATA else data


class TranslateWork(TrainingWork[TranslateSettings, TranslationRecipe, Bitext, TranslateFacts]):
    """Translation models to train, in folders seed-N."""

    kind = "translation experiment"
    plan_file, data_file = "translation.json", "bitext.json"
    folders = (PAIRS, "scores")
    model_pattern = "seed-[0-9]+(-epoch-[0-9]+)?"

    def jobs(self, home: Path, seeds: Sequence[int]) -> list[ModelJob]:
        """A model for each seed."""
        specs = [_TranslationJob(seed, self.recipe, self.device, self.settings.keep) for seed in seeds]
        return [ModelJob(spec.files(home), train, spec, home / self.data_file) for spec in specs]

    def collect(self, home: Path, plan: ResumePlan, jobs: Sequence[ModelJob]) -> Measured[TranslateFacts]:
        """Losses and scores of every model, and a few translations of held-out pairs."""
        settings, bitext = self.settings, self.data
        if _where(settings) == EMBEDDED_DATA:  # as files that others read; links are counted from 0
            for split, name in (("train", "train"), ("valid", "trial"), ("test", "test")):
                pairs: tuple[SentencePair, ...] = getattr(bitext, split)
                for side, end in enumerate(SIDES):
                    write_lines(home / PAIRS / f"{name}.{end}", [" ".join(pair.sides[side]) for pair in pairs])
                links = [(pair.sure or (), pair.possible or ()) for pair in pairs]
                write_links(home / PAIRS / f"{name}.pharaoh", links, base=0)
        metrics, translations, versions = [], [], {}
        for spec, files in ((work.request, work.files) for work in jobs):
            run = {"run": f"translation/{spec.seed}"}
            losses = files.loss_rows("", run["run"], "smoothed_loss_nats")
            body: Any = read_json(files.results, DELETE_ADVICE.format(files.results))
            metrics += [*losses, *(run | {"epoch": len(losses)} | row for row in body["scores"])]
            translations += [run | {"pair": i} | row for i, row in enumerate(body["translations"], start=1)]
            versions |= {path.name: path for path in map(files.model, spec.versions.values())}
        absent = [name for name, path in versions.items() if not is_model(path)]
        note = f"Not kept, since these epochs were trained without 'keep': {', '.join(absent)}."
        models = {work.title: work.files.model() for work in jobs}
        # the settings that repeat all calls; folders and files go by their own names, not by where they lie
        paths = (settings.data, settings.source, settings.target)
        data, source, target = (None if p is None or str(p) == EMBEDDED_DATA else Path(p).resolve().name for p in paths)
        different = changes_of(RECIPES, self.recipe)
        settings = TranslateSettings(data, source, target, plan.seeds, self.recipe.name, different, settings.keep)
        return Measured(
            {"metrics": frame("metrics", metrics), "translations": frame("translations", translations)},
            TranslateFacts(f"{bitext.name}, fingerprint {bitext.fingerprint}", self.recipe.data()),
            (*bitext.notes, *(note,) * bool(absent)),
            seconds=plan.wall_seconds,
            packages=("transformers", "tokenizers"),
            paths=models | {name: path for name, path in versions.items() if name not in absent},
            command=command("translate-train", settings),
        )
