"""Lookup: small language models trained until they look up what followed a word before, and what q, k and v do at every checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Int
from torch import nn

from trisect.core.files import Json, read_json, write_json
from trisect.core.machine import Machine
from trisect.core.schema import record
from trisect.core.tables import NewRow, frame
from trisect.engine.jobs import Emit, JobContext, job
from trisect.engine.start import choose_device
from trisect.experiments.lookup.page import LookupNumbers, judge_lookups
from trisect.experiments.lookup.settings import EMBEDDED_DATA, RECIPES, LookupFacts, LookupRecipe, LookupSettings
from trisect.hf.files.fetch import OwnTokenizer
from trisect.hf.small.gpt import Practice, is_model, load_weights, save
from trisect.hf.small.lookup import InductionMeasure, learn_tokenizer, make_model, measure_induction
from trisect.lab.experiment import Experiment, Measured, RunContext, Tables
from trisect.lab.inputs import ModelSource, changes_of, choose_recipe
from trisect.lab.records import command
from trisect.lab.run_folder import DELETE_ADVICE, ResumePlan
from trisect.lab.training import ModelFiles, ModelJob, TrainingWork, begin
from trisect.lab.units.jobs import find_experiment
from trisect.lm.matmul import fast_products, one_thread
from trisect.papers.lookup import SOURCE
from trisect.text.birth_places import Example
from trisect.text.pairs import TextPair, TrainingText, draw_lookups, open_training_text, repeat_rows

MEASURING = 0.4  # share of a model's time
COMPONENTS = ("q", "k", "v", "k+v")
TABLES = ("measures", "predictions", "examples", "paths", "shifts")
PAIRS_NOTE = (
    "Each model has its own pairs, drawn by its seed, so that intervals over models are over pairs too. Windows of real text have no "
    "known labels, so that there are no controls by the subspace of a label or random subspaces of its rank."
)
WINDOWS = 48  # windows of the valid split for the loss


@record
class _LookupJob:
    """A model to train: the seed of weights, rows and pairs, and the number of pairs patched at each checkpoint.

    `modules` declare the experiment that patches, and optionally that of paths.
    """

    seed: int
    recipe: LookupRecipe
    device: str
    pairs: int
    modules: tuple[str, ...]
    edit: str = ""  # none: the plain model

    def files(self, home: Path) -> ModelFiles:
        """The paths of its files; results of checkpoints have a folder for each number of pairs."""
        title = f"{self.edit}-seed-{self.seed}" if self.edit else f"seed-{self.seed}"
        return ModelFiles(home, title, f"pairs-{self.pairs}", models=("models",))

    def versions(self) -> dict[int, str]:
        """Names of the checkpoints by step; that of the last is empty."""
        steps = range(0, self.recipe.checkpoints * self.recipe.steps, self.recipe.steps)
        return {step: f"step-{step}" for step in steps} | {self.recipe.checkpoints * self.recipe.steps: ""}


@job
def train(request: _LookupJob, context: JobContext) -> None:
    """Train and measure a model unless its files exist; paths in the scratch folder are those in the experiment's."""
    (text, emit), files = begin(context, TrainingText), request.files(context.scratch)
    with one_thread(), fast_products():
        tokenizer = learn_tokenizer(text.train, request.recipe.pieces, request.recipe.block)
        shape = request.recipe.architecture()
        model = make_model(shape, tokenizer, request.seed, request.edit).to(request.device)
        ids = _text_ids(text.valid, tokenizer)
        # before training, since a text with too few questions raises
        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        pairs = draw_lookups(ids, pieces, request.recipe.block - 1, request.pairs, request.seed)
        if not files.is_complete:
            _train(request, files, _text_ids(text.train, tokenizer), model, tokenizer, emit)
        if not files.results.exists():
            # what an edit ties has matrices of its own in the files
            model = make_model(shape, tokenizer, request.seed).to(request.device)
            write_json(files.results, _measure(request, files, ids, pairs, model, emit))


def _train(
    request: _LookupJob,
    files: ModelFiles,
    ids: Int[np.ndarray, " N"],
    model: nn.Module,
    tokenizer: OwnTokenizer,
    emit: Emit,
) -> None:
    """Train a model from random weights; write it and its checkpoints."""
    recipe, versions = request.recipe, request.versions()
    if not is_model(files.model(versions[0])):
        save(model, tokenizer, files.model(versions[0]))

    def rows(number: int, draw: np.random.Generator) -> list[Example]:
        segments = recipe.repeats, recipe.shortest, recipe.longest
        sequences = repeat_rows(ids, recipe.steps * recipe.batch, recipe.block + 1, draw, *segments).tolist()
        return [Example(tuple(row[:-1]), tuple(row[1:])) for row in sequences]

    def report(epoch: int, epochs: int, loss: float) -> None:
        if version := versions[epoch * recipe.steps]:
            save(model, tokenizer, files.model(version))
        emit((1 - MEASURING) * epoch / epochs, f"step {epoch * recipe.steps}, {loss:.3f} nats")

    padding = tokenizer.pad_token_id
    practice = Practice(rows, recipe.schedule(), recipe.block, padding, request.seed, pieces=1)
    files.train(practice, model, tokenizer, "", report)


def _text_ids(lines: tuple[str, ...], tokenizer: OwnTokenizer) -> Int[np.ndarray, " N"]:
    """Token ids of all lines, concatenated."""
    rows = tokenizer(list(lines), add_special_tokens=False, verbose=False)["input_ids"]
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64)


def _measure(
    request: _LookupJob,
    files: ModelFiles,
    ids: Int[np.ndarray, " N"],
    pairs: tuple[TextPair, ...],
    model: nn.Module,
    emit: Emit,
) -> dict[str, Json]:
    """Rows of all tables for every checkpoint: attention, losses, answers with q, k or v of another window, and the parts that write
    these; of an edited model answers at the last checkpoint alone.

    The patched layer has the best induction head of the last checkpoint; it is never the first.
    """
    versions, block, records = request.versions(), request.recipe.block, {name: list[NewRow]() for name in TABLES}
    windows = torch.from_numpy(ids[: len(ids) // block * block].reshape(-1, block)[:WINDOWS])
    pieces = torch.from_numpy(np.unique(ids))
    looks = InductionMeasure(0.0, 0.0, 0.0, ())
    for step, version in versions.items():
        load_weights(model, files.model(version))
        looks = measure_induction(model.eval(), windows, pieces)
        named: NewRow = {"subject": files.title, "stack": "plain", "at": float(step)}
        records["measures"] += [
            named | {"measure": f"{name}_nats", "value": getattr(looks, name)} for name in ("text", "first", "second")
        ]
        records["measures"] += [
            named | {"layer": head.layer, "head": head.head, "measure": name, "value": getattr(head, name)}
            for head in looks.heads
            for name in ("previous", "induction")  # weight on the previous token, and on the one after an earlier copy
        ]
    layer = max((head for head in looks.heads if head.layer > 1), key=lambda head: head.induction).layer
    patch, *rest = map(find_experiment, request.modules, ("patch", "compose"))
    if request.edit:
        versions, rest = dict(list(versions.items())[-1:]), []
    for number, (step, version) in enumerate(versions.items()):
        emit(1 - MEASURING * (1 - number / len(versions)), f"measuring step {step}")
        source = ModelSource(str(files.model(version)), device=request.device)
        context = RunContext(files.home, Machine(quiet=True), (source.open(),), show=lambda share, words: None)
        same = {"pair_list": pairs, "batch": len(pairs)}
        sites = tuple(f"{component}@{layer}" for component in COMPONENTS)
        tables = patch.measure(patch.settings(source, sites=sites, positions="all", **same), context).tables
        for compose in rest:
            paths = compose.measure(compose.settings(source, into=f"q+k+v@{layer}", **same), context).tables
            tables = {**tables, "paths": paths["paths"], "shifts": paths["shifts"]}
        named = {"seed": request.seed, "edit": request.edit, "step": step}
        records["examples"] = [named | row for row in _examples(tables)]  # of the last checkpoint alone
        for name in ("predictions", "paths", "shifts"):
            records[name] += [named | row for row in (tables[name].to_dicts() if name in tables else ())]
    return {name: [dict(row) for row in rows] for name, rows in records.items()}


def _examples(tables: Tables) -> Iterator[NewRow]:
    """The texts and answers of each pair, with the answers under a donor's q, k or v."""
    pairs = {row["pair"]: row for row in tables["pairs"].to_dicts()}
    for row in tables["interchanges"].filter(pl.col("component").is_in(list("qkv"))).to_dicts():
        pair = pairs[row["pair"]]
        columns = ("base", "donor", "own_base", "own_donor", *(f"answer_{n}" for n in ("base", "q", "k", "v", "donor")))
        where = {name: row[name] for name in ("pair", "layer", "component", "came", "answer")}
        yield where | {name: pair[name] for name in columns}


def prepare(settings: LookupSettings, machine: Machine, parts: Sequence[Experiment[Any, Any]]) -> LookupWork:
    """The work of a study: device, recipe, training text and the `parts` that patch; raises TrisectError."""
    device, embedded = choose_device(machine), str(settings.corpus) == EMBEDDED_DATA
    recipe = choose_recipe(RECIPES, settings.recipe, embedded, settings.settings)
    text = open_training_text(settings.corpus, settings.reader)
    modules = tuple(type(experiment).__module__ for experiment in parts)
    return LookupWork(settings, recipe, text, device, modules=modules)


@dataclass(frozen=True)
class LookupWork(TrainingWork[LookupSettings, LookupRecipe, TrainingText, LookupFacts]):
    """Language models to train, in models/seed-N, with checkpoints in models/seed-N-step-M."""

    modules: tuple[str, ...] = ()
    kind = "lookup study"
    plan_file, data_file = "lookup.json", "text.json"
    folders = ("figures",)
    model_pattern = "models/((tie|freeze)-[qkv+]+-)?seed-[0-9]+(-step-[0-9]+)?|pairs-[0-9]+"

    def jobs(self, home: Path, seeds: Sequence[int]) -> list[ModelJob]:
        """A model for each seed, and one with each edit."""
        same = self.recipe, self.device, self.settings.pairs, self.modules
        requests = [_LookupJob(seed, *same, edit) for seed in seeds for edit in ("", *self.settings.edits)]
        return [ModelJob(request.files(home), train, request, home / self.data_file) for request in requests]

    def collect(self, home: Path, plan: ResumePlan, jobs: Sequence[ModelJob]) -> Measured[LookupFacts]:
        """The tables, from the results of every model's checkpoints."""
        text, losses = self.data, []
        records: dict[str, list[Any]] = {name: [] for name in TABLES}
        for model in jobs:
            body: Any = read_json(model.files.results, DELETE_ADVICE.format(model.files.results))
            for name, rows in records.items():
                rows += [{"edit": "", **row} if name != "measures" else row for row in body[name]]
            run = f"lookup/{model.title.removeprefix('seed-')}"
            losses += model.files.loss_rows("", run, "loss_nats")
        there = {path.name.rpartition("-seed-")[0] for path in (home / "models").glob("*-seed-*")}
        left_out = [
            f"Models with {edit} are in the folder, and are not shown without --edit {edit}."
            for edit in sorted(there - set(self.settings.edits))
        ]
        recipe, different, corpus = self.recipe.name, changes_of(RECIPES, self.recipe), self.settings.corpus
        corpus = corpus if str(corpus) == EMBEDDED_DATA else Path(corpus).name
        settings = replace(self.settings, corpus=corpus, seeds=plan.seeds, recipe=recipe, settings=different)
        tables = {"measures": frame("measures", records["measures"]), "metrics": frame("metrics", losses)}
        tables |= {
            name: pl.DataFrame(rows, infer_schema_length=None)
            for name, rows in records.items()
            if rows and name not in tables
        }
        bound = {"corpus": text.fingerprint, "seeds": list(plan.seeds)}
        return Measured(
            tables,
            LookupFacts(f"{text.name}, fingerprint {text.fingerprint}", self.recipe.data()),
            (*text.notes, PAIRS_NOTE, *left_out),
            lambda about: judge_lookups(LookupNumbers.of(tables), bound),
            SOURCE.unit,
            seconds=plan.wall_seconds,
            packages=("transformers", "tokenizers"),
            paths={model.title: model.files.model() for model in jobs},
            command=command("lookup", settings),
        )
