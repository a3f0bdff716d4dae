"""Train one translation model, from random weights to its losses; each step is done once and kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import TypedDict

from trisect.core.files import inside, read_json_list, read_record, write_json
from trisect.core.schema import record
from trisect.core.tables import NewRow
from trisect.engine.drive import land
from trisect.engine.jobs import Emit, Files, JobDesk, JobOrder, job
from trisect.experiments.translate.settings import ROWS, TranslationRecipe
from trisect.hf.small.gpt import Practice, is_model, save
from trisect.hf.small.translator import Translator, encode, learn_tokenizer, make_model
from trisect.lm.matmul import fast_products, one_thread
from trisect.text.bitext import Bitext, BitextData, read_bitext

SCORED = ("valid", "test")
SHOWN = 8  # translations that are kept to look at
SCORING = 0.03  # of the time that a model takes


@dataclass(frozen=True)
class Apprentice:
    """One model of an experiment: a seed of its weights, its order of pairs and its dropout."""

    seed: int

    @property
    def title(self) -> str:
        """What a progress line, and a folder, calls it."""
        return f"seed-{self.seed}"

    @property
    def seconds(self) -> float:
        """What it takes, against others."""
        return 1.0


@dataclass(frozen=True)
class TranslationFolder:
    """Where the files of a translation experiment lie."""

    path: Path

    @property
    def plan(self) -> Path:
        """The recipe, the seeds, and what they learn from."""
        return self.path / "translation.json"

    @property
    def bitext(self) -> Path:
        """The pairs, as every worker reads them."""
        return self.path / "bitext.json"

    def model(self, one: Apprentice) -> Path:
        """A trained model, an ordinary Hugging Face folder."""
        return inside(self.path, one.title)

    def kept(self, one: Apprentice, epoch: int) -> Path:
        """The model as it was after an epoch before the last, a folder of the same kind."""
        return inside(self.path, f"{one.title}-epoch-{epoch}")

    def state(self, one: Apprentice) -> Path:
        """Where an unfinished training goes on from."""
        return inside(self.path, "state", f"{one.title}.safetensors")

    def losses(self, one: Apprentice) -> Path:
        """The loss of every epoch."""
        return inside(self.path, "losses", f"{one.title}.json")

    def scores(self, one: Apprentice) -> Path:
        """Loss and accuracy on pairs that it did not learn from, and a few translations."""
        return inside(self.path, "scores", f"{one.title}.json")

    def is_done(self, one: Apprentice) -> bool:
        """Whether all that a model leaves behind is there."""
        return is_model(self.model(one)) and self.losses(one).exists() and self.scores(one).exists()

    def own(self) -> list[Path]:
        """Every folder that a translation experiment writes into."""
        models = [
            path for path in sorted(self.path.glob("seed-*")) if re.fullmatch("seed-[0-9]+(-epoch-[0-9]+)?", path.name)
        ]
        return [self.path, *(self.path / name for name in ("losses", "pairs", "scores", "state", "tables")), *models]


@record
class TranslationJob:
    """A model to be trained, as a worker reads it."""

    seed: int
    recipe: TranslationRecipe
    device: str
    keep: int | None = None


@job
def teach(asked: TranslationJob, desk: JobDesk) -> None:
    """Train and score a model; its files lie in the scratch folder as they lie in the experiment's."""

    def emit(share: float, words: str) -> None:
        desk.keep()
        desk.say(share, words)

    bitext, recipe = desk.read("bitext", _open_bitext), asked.recipe
    with one_thread(), fast_products():
        take(asked, TranslationFolder(desk.scratch), recipe, bitext, emit)


def _open_bitext(path: Path) -> Bitext:
    return read_bitext(read_record(path, "Call the same command again: it writes the file again.", BitextData))


def take(
    asked: TranslationJob, place: TranslationFolder, recipe: TranslationRecipe, bitext: Bitext, emit: Emit
) -> None:
    """Do of a model what is not done yet: train, score. What is done is on the disk, whole."""
    one = Apprentice(asked.seed)
    if not (is_model(place.model(one)) and place.losses(one).exists()):
        _train(asked, place, recipe, bitext, emit)
    if not place.scores(one).exists():
        emit(1 - SCORING, "scoring")
        translator = Translator.open(place.model(one), asked.device)
        short = {name: [pair for pair in getattr(bitext, name) if pair.longest <= recipe.longest] for name in SCORED}
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
        write_json(place.scores(one), {"scores": rows, "translations": texts})


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


def epochs_kept(keep: int | None, epochs: int) -> range:
    """The epochs before the last whose models are kept, where every so many are; null keeps none."""
    return range(keep, epochs, keep) if keep else range(0)


def metric_rows(one: Apprentice, place: TranslationFolder, todo: str) -> list[NewRow]:
    """Rows of the table `metrics` of one model: its loss in training, smoothed, by epoch, and its scores after the last."""
    losses = read_json_list(place.losses(one), todo)
    kept = {"run": f"translation/{one.seed}", "epoch": len(losses)}
    rows = [
        {**kept, "epoch": epoch, "split": "train", "name": "smoothed_loss_nats", "value": loss}
        for epoch, loss in enumerate(losses, start=1)
    ]
    return rows + [{**kept, **row} for row in read_record(place.scores(one), todo, ScoresData)["scores"]]


def translation_rows(one: Apprentice, place: TranslationFolder, todo: str) -> list[NewRow]:
    """Rows of the table `translations` of one model: pairs that it did not learn from, with what it makes of the source."""
    shown = read_record(place.scores(one), todo, ScoresData)["translations"]
    run = f"translation/{one.seed}"
    return [
        {"run": run, "pair": i, "source": row["source"], "target": row["target"], "made": row["made"]}
        for i, row in enumerate(shown, start=1)
    ]


def _train(
    asked: TranslationJob, place: TranslationFolder, recipe: TranslationRecipe, bitext: Bitext, emit: Emit
) -> None:
    """From random weights to a model in its folder; the tokenizer is the same for every seed."""
    one = Apprentice(asked.seed)
    pairs = bitext.training_pairs(recipe.longest)
    tokenizer = learn_tokenizer((side for pair in pairs for side in pair.sides), recipe.pieces)
    rows = encode([pair.sides for pair in pairs], tokenizer)
    model = make_model(recipe.architecture(), tokenizer, one.seed).to(asked.device)
    schedule, padding = recipe.schedule(len(rows)), tokenizer.pad_token_id
    practice = Practice(lambda number, draw: rows, schedule, ROWS, padding, one.seed, recipe.lecture(padding))

    def note(epoch: int, loss: float) -> None:
        if epoch in epochs_kept(asked.keep, recipe.epochs):
            save(model, tokenizer, place.kept(one, epoch))
        emit((1 - SCORING) * epoch / recipe.epochs, f"epoch {epoch} of {recipe.epochs}, {loss:.3f} nats")

    losses = practice.run(model, place.state(one), note)
    write_json(place.losses(one), list(losses))
    save(model, tokenizer, place.model(one))
    place.state(one).unlink(missing_ok=True)


ORDER = ("*/config.json", "scores/*")  # what says that a model is finished comes after all else of it


@dataclass(frozen=True)
class ApprenticeWork:
    """One model; models wait for nothing."""

    one: Apprentice
    place: TranslationFolder
    recipe: TranslationRecipe
    device: str
    keep: int | None = None

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        return self.one.title

    @property
    def seconds(self) -> float:
        """What it takes, against others."""
        return self.one.seconds

    def ready(self) -> bool:
        """Always."""
        return True

    def order(self) -> JobOrder:
        """It goes on from the model that is trained, else from the training under way."""
        trained = [self.place.model(self.one), self.place.losses(self.one)]
        state = self.place.state(self.one)
        there = trained if is_model(trained[0]) and trained[1].exists() else [state] if state.exists() else []
        return JobOrder(
            teach,
            TranslationJob(self.one.seed, self.recipe, self.device, self.keep),
            self.place.path,
            needs={"bitext": self.place.bitext},
            begins={str(path.relative_to(self.place.path)): path for path in there},
        )

    def land(self, files: Files) -> None:
        """Put files into the experiment's folder."""
        land(files, self.place.path, ORDER)

    def ended(self) -> None:
        """What an unfinished training goes on from is of no use any more."""
        self.place.state(self.one).unlink(missing_ok=True)
