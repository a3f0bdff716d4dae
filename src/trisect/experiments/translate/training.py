"""Train one translation model, from random weights to its losses, and score it; each step is done once and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trisect.core.files import write_json
from trisect.core.schema import record
from trisect.engine.jobs import JobContext, job
from trisect.experiments.translate.settings import TranslationRecipe
from trisect.hf.small.gpt import Practice, save
from trisect.hf.small.translator import Translating, Translator, encode, learn_tokenizer, make_model
from trisect.lab.training import ModelFiles, begin
from trisect.lm.matmul import fast_products, one_thread
from trisect.text.bitext import Bitext

SCORED = ("valid", "test")
SHOWN = 8  # translations that are kept to look at
SCORING = 0.03  # of the time that a model takes


@record
class TranslationJob:
    """A model to be trained, by the seed of its weights, order of pairs and dropout; of every `keep` epochs a version is kept."""

    seed: int
    recipe: TranslationRecipe
    device: str
    keep: int | None = None

    def files(self, home: Path) -> ModelFiles:
        """Where its files lie."""
        return ModelFiles(home, f"seed-{self.seed}", "scores")

    @property
    def versions(self) -> dict[int, str]:
        """The epochs before the last whose models are kept, by number, and what those versions are called."""
        epochs = range(self.keep, self.recipe.epochs, self.keep) if self.keep else ()
        return {epoch: f"epoch-{epoch}" for epoch in epochs}


@job
def train(asked: TranslationJob, context: JobContext) -> None:
    """Train and score a model, as far as it is not done yet; its files lie in the scratch folder as in the experiment's."""
    (bitext, emit), files = begin(context, Bitext), asked.files(context.scratch)
    with one_thread(), fast_products():
        if not files.is_complete:
            _train(asked, files, bitext, emit)
        if not files.results.exists():
            emit(1 - SCORING, "scoring")
            # the scores of a trained model by split, and a few translations
            translator, longest = Translator.open(files.model(), asked.device), asked.recipe.longest
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
            write_json(files.results, {"scores": rows, "translations": texts})


def _train(asked: TranslationJob, files: ModelFiles, bitext: Bitext, emit: Callable[[float, str], None]) -> None:
    """From random weights to a model in its folder; the tokenizer is the same for every seed."""
    seed, recipe = asked.seed, asked.recipe
    pairs = bitext.training_pairs(recipe.longest)
    tokenizer = learn_tokenizer((side for pair in pairs for side in pair.sides), recipe.pieces)
    rows = encode([pair.sides for pair in pairs], tokenizer)
    model = make_model(recipe.architecture(), tokenizer, seed).to(asked.device)
    padding = tokenizer.pad_token_id
    lecture, schedule = Translating(padding, recipe.smoothing), recipe.schedule(len(rows))
    # a schedule counts pairs here, whatever their length, as rows of one token
    practice = Practice(lambda number, draw: rows, schedule, 1, padding, seed, lecture)

    def report(epoch: int, epochs: int, loss: float) -> None:
        if epoch in asked.versions:
            save(model, tokenizer, files.model(asked.versions[epoch]))
        emit((1 - SCORING) * epoch / epochs, f"epoch {epoch} of {epochs}, {loss:.3f} nats")

    files.train(practice, model, tokenizer, "", report)
