"""Train one model that learns to look up, keep its checkpoints, and measure each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl
import torch
from jaxtyping import Int
from torch import nn

from trisect.core.files import Json, write_json
from trisect.core.machine import Machine
from trisect.core.schema import record
from trisect.core.tables import NewRow
from trisect.engine.jobs import Emit, JobContext, job
from trisect.experiments.lookup.settings import LookupRecipe
from trisect.hf.files.fetch import OwnTokenizer
from trisect.hf.small.gpt import Practice, is_model, load_weights, save
from trisect.hf.small.lookup import InductionMeasure, learn_tokenizer, make_model, measure_induction
from trisect.lab.experiment import RunContext, Tables
from trisect.lab.inputs import ModelSource
from trisect.lab.training import ModelFiles, begin
from trisect.lab.units.jobs import find_experiment
from trisect.lm.matmul import fast_products, one_thread
from trisect.text.birth_places import Example
from trisect.text.windows import TrainingText, draw_lookups, repeat_rows

MEASURING = 0.4  # of the time that a model takes
SITES = ("q@all", "k@all", "v@all", "k+v@all")
WINDOWS = 48  # of the valid text that the loss is of


@record
class LookupJob:
    """A model to be trained, by the seed of its weights and rows; each of its checkpoints is patched with so many pairs.

    `module` declares the experiment that patches.
    """

    seed: int
    recipe: LookupRecipe
    device: str
    pairs: int
    module: str

    def files(self, home: Path) -> ModelFiles:
        """Where its files lie."""
        return ModelFiles(home, f"seed-{self.seed}", "lookups", models=("models",))

    def versions(self) -> dict[int, str]:
        """What the model is called after so many steps; the last has no name of its own."""
        steps = range(0, self.recipe.checkpoints * self.recipe.steps, self.recipe.steps)
        return {step: f"step-{step}" for step in steps} | {self.recipe.checkpoints * self.recipe.steps: ""}


@job
def train(asked: LookupJob, context: JobContext) -> None:
    """Train and measure a model, as far as it is not done yet; its files lie in the scratch folder as in the experiment's."""
    (text, emit), files = begin(context, TrainingText), asked.files(context.scratch)
    with one_thread(), fast_products():
        tokenizer = learn_tokenizer(text.train, asked.recipe.pieces, asked.recipe.block)
        model = make_model(asked.recipe.architecture(), tokenizer, asked.seed).to(asked.device)
        if not files.is_complete:
            _train(asked, files, text_ids(text.train, tokenizer), model, tokenizer, emit)
        if not files.results.exists():
            write_json(files.results, _measure(asked, files, text_ids(text.valid, tokenizer), model, tokenizer, emit))


def _train(
    asked: LookupJob,
    files: ModelFiles,
    ids: Int[np.ndarray, " N"],
    model: nn.Module,
    tokenizer: OwnTokenizer,
    emit: Emit,
) -> None:
    """From random weights to a model in its folder, with its checkpoints beside it."""
    recipe, versions = asked.recipe, asked.versions()
    if not is_model(files.model(versions[0])):
        save(model, tokenizer, files.model(versions[0]))

    def rows(number: int, draw: np.random.Generator) -> list[Example]:
        segments = recipe.repeats, recipe.shortest, recipe.longest
        found = repeat_rows(ids, recipe.steps * recipe.batch, recipe.block + 1, draw, *segments).tolist()
        return [Example(tuple(row[:-1]), tuple(row[1:])) for row in found]

    def report(epoch: int, epochs: int, loss: float) -> None:
        if version := versions[epoch * recipe.steps]:
            save(model, tokenizer, files.model(version))
        emit((1 - MEASURING) * epoch / epochs, f"step {epoch * recipe.steps}, {loss:.3f} nats")

    padding = tokenizer.pad_token_id
    practice = Practice(rows, recipe.schedule(), recipe.block, padding, asked.seed, pieces=1)
    files.train(practice, model, tokenizer, "", report)


def text_ids(lines: tuple[str, ...], tokenizer: OwnTokenizer) -> Int[np.ndarray, " N"]:
    """The ids of all lines, one after the other."""
    rows = tokenizer(list(lines), add_special_tokens=False, verbose=False)["input_ids"]
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64)


def _measure(
    asked: LookupJob,
    files: ModelFiles,
    ids: Int[np.ndarray, " N"],
    model: nn.Module,
    tokenizer: OwnTokenizer,
    emit: Emit,
) -> dict[str, Json]:
    """What every checkpoint attends to, how well it predicts, and what it answers with q, k or v of another window, as rows of tables."""
    versions, block, rows = asked.versions(), asked.recipe.block, list[NewRow]()
    patch, predictions, examples = find_experiment(asked.module, "patch"), list[NewRow](), list[NewRow]()
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    pairs = draw_lookups(ids, pieces, block - 1, asked.pairs, 0)
    windows = torch.from_numpy(ids[: len(ids) // block * block].reshape(-1, block)[:WINDOWS])
    for number, (step, version) in enumerate(versions.items()):
        emit(1 - MEASURING * (1 - number / len(versions)), f"measuring step {step}")
        load_weights(model, files.model(version))
        named: NewRow = {"subject": files.title, "stack": "plain", "at": float(step)}
        rows += [named | row for row in _looking_back(measure_induction(model.eval(), windows))]
        source = ModelSource(str(files.model(version)), device=asked.device)
        settings = patch.settings(source, sites=SITES, given=pairs, positions="all", batch=len(pairs))
        context = RunContext(files.home, Machine(quiet=True), (source.open(),), show=lambda share, words: None)
        tables = patch.measure(settings, context).tables
        named = {"seed": asked.seed, "step": step}
        predictions += [named | row for row in tables["predictions"].to_dicts()]
        examples = [named | row for row in _examples(tables)]  # of the last checkpoint alone
    kept: dict[str, list[NewRow]] = {"measures": rows, "predictions": predictions, "examples": examples}
    return {name: [dict(row) for row in of] for name, of in kept.items()}


def _examples(tables: Tables) -> Iterator[NewRow]:
    """Each pair's texts and answers, and what came when q, k or v of a layer were the donor's."""
    pairs = {row["pair"]: row for row in tables["pairs"].to_dicts()}
    for row in tables["interchanges"].filter(pl.col("component").is_in(list("qkv"))).to_dicts():
        pair = pairs[row["pair"]]
        answers = {name: pair[f"answer_{name}"] for name in ("base", "q", "k", "v", "donor")}
        own = {f"own_{name}": pair[f"own_{name}"] for name in ("base", "donor")}
        where = {name: row[name] for name in ("pair", "layer", "component", "came", "answer")}
        yield {
            **where,
            "base": pair["base"],
            "donor": pair["donor"],
            **own,
            **{f"answer_{n}": a for n, a in answers.items()},
        }


def _looking_back(found: InductionMeasure) -> Iterator[NewRow]:
    """Losses, and of each head the weight on the piece before and on the one after an earlier copy."""
    for name in ("text", "first", "second"):
        yield {"measure": f"{name}_nats", "value": getattr(found, name)}
    for head in found.heads:
        for name in ("previous", "induction"):
            yield {"layer": head.layer, "head": head.head, "measure": name, "value": getattr(head, name)}
