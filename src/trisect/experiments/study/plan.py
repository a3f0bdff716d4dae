"""Plan: everything that an experiment would run, with ids, sizes, and expected time and disk."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trisect.core import machine
from trisect.core.errors import CorpusError, SpecError, is_installed, need_extra
from trisect.core.files import Json
from trisect.core.machine import Machine
from trisect.core.methods import layers_with_heads
from trisect.core.schema import RUNS, plain
from trisect.core.site import Site
from trisect.core.spec import Design, Ledger, Run
from trisect.experiments.study.ledger import FLEET, Task, evaluations, fleets
from trisect.experiments.study.presets import find_experiments, is_preset, only
from trisect.experiments.study.settings import DesignSource, PlanSettings
from trisect.lab.folder import Folder
from trisect.lab.jobs import clock
from trisect.lm.fleet import count_parameters
from trisect.text.corpus import Corpus, check_windows, sample_steps, steps
from trisect.text.sources import absolute_place, load_text
from trisect.text.worlds import world_of

PRODUCT = 120e9  # float32 operations a second of one core in the larger products
# seconds per token and unit of width, score and logit, fitted to two sizes on one 2.6 GHz core
WIDTH, SCORE, LOGIT = 8e-8, 6e-9, 4e-9
PROBE = 0.5  # seconds of one probe of 20,000 tokens at width 100, fitted once
BASE = 400_000_000  # bytes of a process with PyTorch that has trained nothing yet
ERASED = 30_000  # tokens of one erasure, those it is fitted on with them


def products(run: Run, vocabulary: int) -> float:
    """Operations of one token's products in one forward pass of one run."""
    m, window = run.model, run.training.window
    layer = 8 * m.width**2 + 4 * m.width * m.feedforward + 4 * window * m.width
    return m.layers * layer + 2 * m.width * vocabulary


def token_seconds(run: Run, vocabulary: int, training: bool) -> float:
    """Seconds of one core for one token of one run, forwards and (in training) backwards."""
    m, window = run.model, run.training.window
    rest = m.layers * (WIDTH * m.width + SCORE * m.heads * window) + LOGIT * vocabulary
    whole = 3 * products(run, vocabulary) / PRODUCT + rest
    if not training:
        return whole / 3
    return whole + (run.edit.token_seconds(m.width) if run.edit else 0.0)


def _training_seconds(run: Run, corpus: Corpus) -> float:
    """Seconds of one core for a whole run, evaluated after each epoch."""
    words, train, evaluated = (
        len(corpus.vocabulary),
        len(corpus.splits["train"].tokens),
        _evaluation_tokens(corpus, run),
    )
    epochs, (step, pass_) = run.training.epochs, (token_seconds(run, words, trains) for trains in (True, False))
    return epochs * train * step + (epochs + 1) * evaluated * pass_


def evaluation_seconds(run: Run, vocabulary: int, task: Task, experiment: Design, evaluated: int) -> float:
    """Seconds of one core for an evaluation of a run that covers `evaluated` tokens."""
    token, rewind, points = token_seconds(run, vocabulary, False), experiment.rewind, 0
    if task.kind == "erase":
        draws = experiment.erase.draws if experiment.erase else 0
        return (2 + draws) * ERASED * token
    if task.kind == "probe":
        if (asked := experiment.probe) is None:
            return 0.0
        sites = [site.resolve(run.model.layers, run.model.heads) for site in asked.sites or ()]
        probed = (len(sites) or 3 * run.model.layers) + asked.random_maps * len(layers_with_heads(sites))
        # as many folds as FOLDS, of less text each
        return 2 * PROBE * len(asked.kinds) * probed * run.model.width / 100
    if rewind and task.kind in ("rewind", "midstage"):
        points = rewind.points if rewind.mode == "exact" else min(rewind.points, 20)
        # of train and valid
        evaluated = min(evaluated, 2 * rewind.sample_tokens) if rewind.sample_tokens else evaluated
    points = {"cut": 1, "ablate": 2, "interchange": 3, "midstage": run.training.epochs + 1}.get(task.kind, points)
    return 0.6 * points * evaluated * token  # on average 0.6 of the layers are run again


def memory_bytes(experiment: Design, vocabulary: int, members: int) -> int:
    """About how many bytes one worker process holds while it trains `members` runs side by side.

    Of every member the weights, gradients, moments and initial weights; of a step what the backward pass needs.
    """
    m, t = experiment.model, experiment.training
    positions = t.columns * t.window
    layer = 14 * m.width + 3 * m.feedforward + 3 * m.heads * t.window
    step = 4 * positions * (m.layers * layer + 3 * vocabulary)
    return BASE + members * (5 * 4 * count_parameters(m, vocabulary) + step)


# of one GPU in float32, fitted to what an H200 did in recorded passes (docs/how-to/gpu.md)
GPU_OPERATIONS = 26e12  # operations a second in the products of a fleet, where memory is as much the limit as they are
GPU_STEP = 2.5e-3  # seconds that a step takes however small it is
GPU_ATTACK = 1.2  # times as long under attack


def makespan(jobs: Sequence[float], places: int) -> float:
    """When the last job ends if each is begun, in order, at the first place that is free."""
    ends = [0.0] * places
    for seconds in jobs:
        heapq.heappush(ends, heapq.heappop(ends) + seconds)
    return max(ends)


def gpu_seconds(fleet: Sequence[Run], corpus: Corpus) -> float:
    """Expected seconds of one GPU for the steps of one fleet's training."""
    run, tokens = fleet[0], len(corpus.splits["train"].tokens)
    positions = run.training.columns * run.training.window
    step = GPU_STEP + len(fleet) * 3 * products(run, len(corpus.vocabulary)) * positions / GPU_OPERATIONS
    attacked = any(one.edit is not None and one.edit.column is not None for one in fleet)
    return run.training.epochs * tokens / positions * step * (GPU_ATTACK if attacked else 1.0)


@dataclass(frozen=True)
class Plan:
    """What would be run. Memory is of one worker process, rough; `disk_bytes` is what stays.

    `training` and `evaluation` are the expected seconds of every job on one core, `on_gpu` those of training on one GPU; up to
    `fleet` runs are trained in one job.
    """

    experiments: tuple[Design, ...]
    corpus: Corpus
    runs: tuple[Run, ...]
    parameters: int
    disk_bytes: int
    memory_bytes: int
    fleet: int
    training: tuple[float, ...]
    evaluation: tuple[float, ...]
    on_gpu: tuple[float, ...]
    cores: int
    gpus: int | None = None
    listed: bool = False

    @property
    def train_seconds(self) -> float:
        """Of one core, for all training."""
        return sum(self.training)

    @property
    def rewind_seconds(self) -> float:
        """Of one core, for all evaluations."""
        return sum(self.evaluation)

    def words(self) -> tuple[str, ...]:
        """Text, runs, time, memory and disk; with `listed` every run's id before them."""
        text, jobs = self.corpus, (*self.training, *self.evaluation)
        splits = ", ".join(f"{name} {len(split.tokens):,}" for name, split in text.splits.items())
        parts = f"{clock(self.train_seconds)} training, {clock(self.rewind_seconds)} rewinding"
        lines = [
            *(run.id for run in self.runs if self.listed),
            f"text      {text.name}: {splits} tokens, {len(text.vocabulary):,} types",
            f"runs      {len(self.runs)}, of {self.parameters:,} parameters each",
            f"time      roughly {clock(self.train_seconds + self.rewind_seconds)} of one core ({parts})",
            f"jobs      {len(self.training)} of training (up to {self.fleet} runs in one), {len(self.evaluation)} of evaluation; "
            f"the longest roughly {clock(max(jobs, default=0.0))} of one core",
            f"spread    roughly {clock(makespan(jobs, self.cores))} on {self.cores} core{'s' * (self.cores != 1)}",
        ]
        if self.gpus is not None:
            took, longest = clock(makespan(self.on_gpu, self.gpus)), clock(max(self.on_gpu, default=0.0))
            expected = f"training roughly {took} on {self.gpus} (the longest job {longest}): expected, not measured"
            lines.append(f"GPUs      {expected}")
        lines.append(f"memory    roughly {self.memory_bytes / 1e6:,.0f} MB a worker process")
        return (*lines, f"disk      {self.disk_bytes / 1e6:,.0f} MB")

    def data(self) -> dict[str, Any]:
        """The plan as JSON-ready data."""
        jobs = (*self.training, *self.evaluation)
        spread: dict[str, Json] = {
            "fleet": self.fleet,
            "training": len(self.training),
            "evaluation": len(self.evaluation),
            "longest_core_seconds": max(jobs, default=0.0),
            "cores": self.cores,
            "seconds_on_cores": makespan(jobs, self.cores),
        }
        if self.gpus is not None:
            spread |= {"gpus": self.gpus, "training_seconds_on_gpus": makespan(self.on_gpu, self.gpus)}
        return {
            "experiment": plain(self.experiments[0] if len(self.experiments) == 1 else self.experiments),
            "corpus": {
                "name": self.corpus.name,
                "fingerprint": self.corpus.fingerprint,
                "types": len(self.corpus.vocabulary),
            },
            "parameters": self.parameters,
            "runs": [run.id for run in self.runs],
            "jobs": spread,
            "core_seconds": {"train": self.train_seconds, "rewind": self.rewind_seconds},
            "disk_bytes": self.disk_bytes,
            "memory_bytes": self.memory_bytes,
        }

    def check_machine(self, place: Path) -> None:
        """Raise SpecError where one worker needs more memory than this machine has, or the disk of `place` lacks the space."""
        memory, free = machine.memory_bytes(), machine.free_bytes(place)
        for needed, has, what in (
            (self.memory_bytes, memory, "memory in one worker process"),
            (self.disk_bytes, free, f"disk in {place.absolute()}"),
        ):
            if has is not None and needed > has:
                given = f"This would take roughly {needed / 1e9:,.1f} GB of {what}."
                known = f"This machine has {has / 1e9:,.1f} GB{' free' if what.startswith('disk') else ''}."
                raise SpecError(
                    given, known, "Choose a smaller model, text or study, or give --force to go on all the same."
                )


def reply(settings: PlanSettings) -> Plan:
    """The plan of what the settings ask for; raises TrisectError for what cannot be run, or not on this machine."""
    plan = make_plan(*designs(settings.what), fleet=settings.fleet)
    plan = replace(plan, listed=settings.runs, cores=settings.workers or plan.cores, gpus=settings.gpus)
    if not settings.force:
        plan.check_machine(Path())
    return plan


def designs(source: DesignSource) -> tuple[Design, ...]:
    """A preset, an experiment, or a file's one or several, with some of their settings replaced.

    `epochs` are those of every run, attacks included, `sites` those of every intervention that can be there (an erasure takes
    whole q, k or v); what is not among `only` is left out. Raises SpecError or SiteError.
    """
    found = find_experiments(source.experiment)
    if is_preset(source.experiment) and source.only is None and not is_installed("concept_erasure"):
        found = tuple(replace(one, erase=None) for one in found)  # a preset runs with what is installed
    if source.only is not None:
        found = only(found, source.only)
    return tuple(_change(one, source) for one in found)


def _change(chosen: Design, source: DesignSource) -> Design:
    corpus, epochs, methods = source.corpus, source.epochs, source.only
    if corpus is not None:
        chosen = replace(chosen, text=replace(chosen.text, corpus=absolute_place(corpus)))
    if source.seeds is not None:
        chosen = replace(chosen, seeds=source.seeds)
    if epochs is not None:
        attack = chosen.attack and replace(chosen.attack, epochs=None)
        chosen = replace(chosen, training=replace(chosen.training, epochs=epochs), attack=attack)
    if source.sites:
        places = tuple(s if isinstance(s, Site) else Site.parse(s) for s in source.sites)
        # a tie's sites are combinations: those given are meant for it where nothing else is asked
        placed = ("tie",) if methods == ("tie",) else ("attack", "control", "rewind", "freeze")
        parts = {m: part and replace(part, sites=places) for m in placed for part in [getattr(chosen, m)]}
        whole = tuple(s for s in places if not s.heads and set(s.components) <= {"q", "k", "v"})
        inner = tuple(s for s in places if set(s.components) <= {"q", "k", "v"})
        parts["ablate"] = chosen.ablate and (replace(chosen.ablate, sites=inner) if inner else None)
        parts["interchange"] = chosen.interchange and (replace(chosen.interchange, sites=whole) if whole else None)
        parts["erase"] = chosen.erase and (replace(chosen.erase, sites=whole) if whole else None)
        parts["edits"] = tuple(dict.fromkeys(replace(edit, site=s) for edit in chosen.edits for s in places))
        chosen = replace(chosen, **parts)
    return chosen.resolved()


def make_plan(*experiments: Design, fleet: int | None = None) -> Plan:
    """Everything that the experiments (of one text) would run; reads the text, trains nothing.

    `fleet` is how many runs one job trains side by side, as on a CPU where it is None. Raises TrisectError for what cannot be run.
    """
    text = experiments[0].text
    if any(one.text != text for one in experiments):
        known = "What is run in one folder has one text, one model and one training."
        raise SpecError("The experiments have different texts.", known, "Give them the same text.")
    corpus = load_text(text)
    for one in experiments:  # every label column that is read
        parts = (one.attack, one.control, one.probe, one.erase)
        columns = [label for part in parts if part for label in part.labels]
        for label in (*columns, *(edit.column for edit in one.edits if edit.column is not None)):
            corpus.column(label)
    if any(one.erase for one in experiments):
        need_extra("concept_erasure", "erase", "Erasing a label")
    if any(one.interchange for one in experiments):
        world_of(corpus)
    for one in experiments:
        check_windows(corpus, one.training.window)
        steps(corpus.splits["train"], one.training.columns, one.training.window)
        steps(corpus.splits["valid"], one.training.eval_columns, one.training.window)
    types = np.unique(corpus.splits["train"].tokens)
    if len(types) < 2:
        known = (
            f"All {len(corpus.splits['train'].tokens):,} of its train tokens are {corpus.vocabulary[int(types[0])]!r}."
        )
        raise CorpusError(
            f"The text '{corpus.name}' has one word type.", known, "Give another text, or a smaller min_count."
        )
    runs = tuple(dict.fromkeys(islice((r for one in experiments for r in one.runs(corpus.fingerprint)), RUNS + 1)))
    if len(runs) > RUNS:
        known = f"One study holds up to {RUNS:,}."
        raise SpecError(
            f"More than {RUNS:,} runs are asked for.", known, "Name fewer seeds, sites, labels or strengths."
        )
    words = len(corpus.vocabulary)
    seconds = [task.seconds for task in _evaluation_tasks(experiments, corpus) if task.kind != "cut"]
    # every run's final weights stay, and the baselines' in-projections of every epoch
    disk = 4 * sum(count_parameters(run.model, words) for run in runs)
    for model, epochs in ((run.model, run.training.epochs) for run in runs if run.edit is None):
        disk += 4 * (epochs + 1) * model.layers * 3 * model.width * (model.width + 1)
    members = fleet or FLEET["cpu"]
    teams = fleets(runs, members)
    return Plan(
        experiments,
        corpus,
        runs,
        count_parameters(experiments[0].model, words),
        disk,
        max(memory_bytes(one, words, min(members, len(runs))) for one in experiments),
        members,
        tuple(sum(_training_seconds(run, corpus) for run in team) for team in teams),
        tuple(seconds),
        tuple(gpu_seconds(team, corpus) for team in teams),
        Machine().cores(),
    )


def _evaluation_tokens(corpus: Corpus, run: Run) -> int:
    """About how many tokens each evaluation covers."""
    training = run.training
    windows = len(sample_steps(corpus.splits["train"], training.columns, training.window, training.train_sample))
    return windows * training.columns * training.window + len(corpus.splits["valid"].tokens)


def make_tasks(plan: Plan, folder: Folder, ledger: Ledger) -> list[Task]:
    """Every piece of work of the plan that is not done: fleets in the ledger's order, then evaluations."""
    by_id, tasks = {run.id: run for run in plan.runs}, list[Task]()
    for fleet in ledger.fleets:
        if wanted := [by_id[i] for i in fleet if i in by_id]:
            cost = sum(_training_seconds(run, plan.corpus) for run in wanted) * len(fleet) / len(wanted)
            tasks.append(Task("train", fleet, seconds=cost))
    tasks += _evaluation_tasks(plan.experiments, plan.corpus)
    pending = [task for task in tasks if not task.is_done(folder)]
    retrained = {run for task in pending if task.kind == "train" for run in task.runs}
    return [task for task in tasks if task in pending or (task.kind != "train" and task.runs[0] in retrained)]


def _evaluation_tasks(experiments: Sequence[Design], corpus: Corpus) -> list[Task]:
    """What is asked of each trained run: attention cut, sites rewound, labels probed and erased; each once."""
    words = len(corpus.vocabulary)
    return [
        replace(task, seconds=evaluation_seconds(run, words, task, design, _evaluation_tokens(corpus, run)))
        for task, (design, run) in evaluations(experiments, corpus.fingerprint).items()
    ]
