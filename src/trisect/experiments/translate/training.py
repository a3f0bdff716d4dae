"""Train one translation model, from random weights to its losses; each step is done once and kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import TypedDict

from trisect.core.files import inside, read_json_list, read_record, write_json
from trisect.core.schema import record
from trisect.engine.drive import land
from trisect.engine.jobs import Emit, Files, JobDesk, JobOrder, job
from trisect.experiments.translate.settings import ROWS, TranslationRecipe
from trisect.hf.small.gpt import Practice, is_model, save
from trisect.hf.small.translator import Translator, encode, learn_tokenizer, make_model
from trisect.lm.matmul import fast_products, one_thread
from trisect.text.bitext import Bitext

SCORED = ("valid", "test")
SHOWN = 8  # translations that are kept to look at
SCORING = 0.03  # of the time that a model takes
TrainingRows = list[Mapping[str, object]]
ORDER = ("*/config.json", "scores/*")  # what says that a model is finished comes after all else of it


@dataclass(frozen=True)
class TranslationFolder:
    """Where the files of a translation experiment lie; a model goes by the seed of its weights, order of pairs and dropout."""

    path: Path

    @property
    def plan(self) -> Path:
        """The recipe, the seeds, and what they learn from."""
        return self.path / "translation.json"

    @property
    def bitext(self) -> Path:
        """The pairs, as every worker reads them."""
        return self.path / "bitext.json"

    def model(self, seed: int) -> Path:
        """A trained model, an ordinary Hugging Face folder."""
        return inside(self.path, f"seed-{seed}")

    def kept(self, seed: int, epoch: int) -> Path:
        """The model as it was after an epoch before the last, a folder of the same kind."""
        return inside(self.path, f"seed-{seed}-epoch-{epoch}")

    def state(self, seed: int) -> Path:
        """Where an unfinished training goes on from."""
        return inside(self.path, "state", f"seed-{seed}.safetensors")

    def losses(self, seed: int) -> Path:
        """The loss of every epoch."""
        return inside(self.path, "losses", f"seed-{seed}.json")

    def scores(self, seed: int) -> Path:
        """Loss and accuracy on pairs that it did not learn from, and a few translations."""
        return inside(self.path, "scores", f"seed-{seed}.json")

    def is_trained(self, seed: int) -> bool:
        """Whether the model and its losses are there."""
        return is_model(self.model(seed)) and self.losses(seed).exists()

    def own(self) -> list[Path]:
        """Every folder that a translation experiment writes into."""
        models = [
            path for path in sorted(self.path.glob("seed-*")) if re.fullmatch("seed-[0-9]+(-epoch-[0-9]+)?", path.name)
        ]
        return [self.path, *(self.path / name for name in ("losses", "pairs", "scores", "state", "tables")), *models]


class ScoreRow(TypedDict):
    """A score of a trained model on pairs that it did not learn from."""

    split: str
    name: str
    value: float


class TranslationRow(TypedDict):
    """A pair that it did not learn from, and what it makes of the source."""

    source: str
    target: str
    made: str


class ScoresData(TypedDict):
    """What a model's file of scores holds."""

    scores: list[ScoreRow]
    translations: list[TranslationRow]


@record
class TranslationJob:
    """A model to be trained, as a worker reads it."""

    seed: int
    recipe: TranslationRecipe
    device: str
    keep: int | None = None


@job
def train(asked: TranslationJob, desk: JobDesk) -> None:
    """Train and score a model, as far as it is not done yet; its files lie in the scratch folder as in the experiment's."""

    def open_bitext(path: Path) -> Bitext:
        return read_record(path, "Call the same command again: it writes the file again.", Bitext)

    def emit(share: float, words: str) -> None:
        desk.keep()
        desk.say(share, words)

    bitext, place = desk.read("bitext", open_bitext), TranslationFolder(desk.scratch)
    with one_thread(), fast_products():
        if not place.is_trained(asked.seed):
            _train(asked, place, bitext, emit)
        if not place.scores(asked.seed).exists():
            emit(1 - SCORING, "scoring")
            _score(asked, place, bitext)


def _train(asked: TranslationJob, place: TranslationFolder, bitext: Bitext, emit: Emit) -> None:
    """From random weights to a model in its folder; the tokenizer is the same for every seed."""
    seed, recipe = asked.seed, asked.recipe
    pairs = bitext.training_pairs(recipe.longest)
    tokenizer = learn_tokenizer((side for pair in pairs for side in pair.sides), recipe.pieces)
    rows = encode([pair.sides for pair in pairs], tokenizer)
    model = make_model(recipe.architecture(), tokenizer, seed).to(asked.device)
    schedule, padding = recipe.schedule(len(rows)), tokenizer.pad_token_id
    practice = Practice(lambda number, draw: rows, schedule, ROWS, padding, seed, recipe.lecture(padding))

    def note(epoch: int, loss: float) -> None:
        if epoch in epochs_kept(asked.keep, recipe.epochs):
            save(model, tokenizer, place.kept(seed, epoch))
        emit((1 - SCORING) * epoch / recipe.epochs, f"epoch {epoch} of {recipe.epochs}, {loss:.3f} nats")

    losses = practice.run(model, place.state(seed), note)
    write_json(place.losses(seed), list(losses))
    save(model, tokenizer, place.model(seed))
    place.state(seed).unlink(missing_ok=True)


def _score(asked: TranslationJob, place: TranslationFolder, bitext: Bitext) -> None:
    """The scores of a trained model by split, and a few translations."""
    translator, longest = Translator.open(place.model(asked.seed), asked.device), asked.recipe.longest
    short = {name: [pair for pair in getattr(bitext, name) if pair.longest <= longest] for name in SCORED}
    rows = [
        {"split": name, "name": measure, "value": value}
        for name, pairs in short.items()
        if pairs
        for measure, value in translator.score([pair.sides for pair in pairs])._asdict().items()
    ]
    shown = next((pairs[:SHOWN] for name in reversed(SCORED) if (pairs := short[name])), [])
    made = translator.translate([pair.source for pair in shown])
    texts = [
        {"source": " ".join(pair.source), "target": " ".join(pair.target), "made": text}
        for pair, text in zip(shown, made, strict=True)
    ]
    write_json(place.scores(asked.seed), {"scores": rows, "translations": texts})


def epochs_kept(keep: int | None, epochs: int) -> range:
    """The epochs before the last whose models are kept, where every so many are; null keeps none."""
    return range(keep, epochs, keep) if keep else range(0)


def result_rows(seed: int, place: TranslationFolder, todo: str) -> tuple[TrainingRows, TrainingRows]:
    """TrainingRows of the tables `metrics` and `translations` of one model.

    They are its loss in training, smoothed, by epoch, and its scores after the last; and pairs that it did not learn from, with
    what it makes of the source.
    """
    losses = read_json_list(place.losses(seed), todo)
    scores = read_record(place.scores(seed), todo, ScoresData)
    run = {"run": f"translation/{seed}"}
    smoothed = {**run, "split": "train", "name": "smoothed_loss_nats"}
    metrics: TrainingRows = [{**smoothed, "epoch": epoch, "value": loss} for epoch, loss in enumerate(losses, start=1)]
    metrics += [{**run, "epoch": len(losses), **row} for row in scores["scores"]]
    return metrics, [{**run, "pair": i, **row} for i, row in enumerate(scores["translations"], start=1)]


@dataclass(frozen=True)
class TranslationWork:
    """One model; models wait for nothing."""

    asked: TranslationJob
    place: TranslationFolder
    seconds: float = 1.0  # what it takes, against others

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        return f"seed-{self.asked.seed}"

    def ready(self) -> bool:
        """Always."""
        return True

    def order(self) -> JobOrder:
        """It goes on from the model that is trained, else from the training under way."""
        place, seed = self.place, self.asked.seed
        trained, state = [place.model(seed), place.losses(seed)], place.state(seed)
        there = trained if place.is_trained(seed) else [state] if state.exists() else []
        return JobOrder(
            train,
            self.asked,
            place.path,
            needs={"bitext": place.bitext},
            begins={str(path.relative_to(place.path)): path for path in there},
        )

    def land(self, files: Files) -> None:
        """Put files into the experiment's folder."""
        land(files, self.place.path, ORDER)

    def ended(self) -> None:
        """What an unfinished training goes on from is of no use any more."""
        self.place.state(self.asked.seed).unlink(missing_ok=True)
