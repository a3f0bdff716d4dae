"""Plan: everything that an experiment would run, with ids, sizes, and expected time and disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from typing_extensions import TypedDict

from trisect.core.bounds import RUNS
from trisect.core.errors import CorpusError, SpecError
from trisect.core.extras import need_extra, there
from trisect.core.json_text import Json
from trisect.core.site import Site
from trisect.core.spec import Design, Rewind, Run, plain
from trisect.core.study_data import CorpusData, DesignData, LedgerData
from trisect.experiments.study.estimate import (
    disk_bytes,
    listening_seconds,
    memory_bytes,
    rewinding_seconds,
    training_seconds,
)
from trisect.experiments.study.ledger import FLEET, asked_of
from trisect.experiments.study.presets import find_experiments, is_preset, only
from trisect.experiments.study.settings import DesignSource, PlanSettings
from trisect.experiments.study.spread import Spread, spread_of
from trisect.experiments.study.tasks import Task, is_done
from trisect.lab import machine
from trisect.lab.folder import Folder
from trisect.lab.live import clock
from trisect.lm.fleet import size
from trisect.text.corpus import Corpus, check_windows, sample_steps, steps
from trisect.text.sources import load_text, whole_place
from trisect.text.worlds import world_of


class PlanData(TypedDict):
    """A plan as JSON-ready data: the statement, or several, that `trisect study` takes; seconds are of one core."""

    experiment: DesignData | list[DesignData]
    corpus: CorpusData
    parameters: int
    runs: list[str]
    jobs: dict[str, Json]
    core_seconds: dict[str, float]
    disk_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Plan:
    """What would be run. Seconds are of one core, memory is of one worker process, both rough; `disk_bytes` is what stays."""

    experiments: tuple[Design, ...]
    corpus: Corpus
    runs: tuple[Run, ...]
    parameters: int
    train_seconds: float
    rewind_seconds: float
    disk_bytes: int
    memory_bytes: int
    spread: Spread
    listed: bool = False

    def words(self) -> tuple[str, ...]:
        """Text, runs, time, memory and disk; with `listed` every run's id before them."""
        text, total = self.corpus, self.train_seconds + self.rewind_seconds
        splits = ", ".join(f"{name} {len(split.tokens):,}" for name, split in text.splits.items())
        parts = f"{clock(self.train_seconds)} training, {clock(self.rewind_seconds)} rewinding"
        return (
            *(run.id for run in self.runs if self.listed),
            f"text      {text.name}: {splits} tokens, {len(text.vocabulary):,} types",
            f"runs      {len(self.runs)}, of {self.parameters:,} parameters each",
            f"time      roughly {clock(total)} of one core ({parts})",
            *self.spread.words(),
            f"memory    roughly {self.memory_bytes / 1e6:,.0f} MB a worker process",
            f"disk      {self.disk_bytes / 1e6:,.0f} MB",
        )

    def data(self) -> PlanData:
        """The plan as JSON-ready data."""
        return {
            "experiment": plain(self.experiments[0] if len(self.experiments) == 1 else self.experiments),
            "corpus": {
                "name": self.corpus.name,
                "fingerprint": self.corpus.fingerprint,
                "types": len(self.corpus.vocabulary),
            },
            "parameters": self.parameters,
            "runs": [run.id for run in self.runs],
            "jobs": self.spread.data(),
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
    plan = replace(make_plan(*designs(settings.what), fleet=settings.fleet), listed=settings.runs)
    cores = settings.workers or plan.spread.cores
    plan = replace(plan, spread=plan.spread._replace(cores=cores, gpus=settings.gpus))
    if not settings.force:
        plan.check_machine(Path())
    return plan


def designs(source: DesignSource) -> tuple[Design, ...]:
    """The one statement that is meant, or several; raises SpecError or SiteError."""
    own = source.sites or None
    return choose(source.experiment, source.corpus, source.seeds, source.epochs, own, source.only)


def choose(
    what: str | Path | Design,
    corpus: str | Path | None = None,
    seeds: int | tuple[int, ...] | None = None,
    epochs: int | None = None,
    sites: tuple[Site | str, ...] | None = None,
    methods: tuple[str, ...] | None = None,
) -> tuple[Design, ...]:
    """A preset, an experiment, or a file's one or several, with some of their settings replaced.

    `seeds` is a number of seeds (1 to N) or the seeds themselves; `epochs` is that of every run, attacks included;
    `sites` those of every intervention that can be there (an erasure takes whole q, k or v); `methods`
    leaves the others out. Raises SpecError or SiteError.
    """
    if isinstance(seeds, int):
        if isinstance(seeds, bool) or not 1 <= seeds <= 10_000:
            raise SpecError(
                f"seeds is {seeds!r}.",
                "It is a number of seeds, 1 or more (at most 10,000), or the seeds themselves.",
                "Use for example 5.",
            )
        seeds = tuple(range(1, seeds + 1))
    found = find_experiments(what)
    if is_preset(what) and methods is None and not there("concept_erasure"):
        found = tuple(replace(one, erase=None) for one in found)  # a preset runs with what is installed
    return tuple(_changed(one, corpus, seeds, epochs, sites, methods) for one in found)


def _changed(
    chosen: Design,
    corpus: str | Path | None,
    seeds: tuple[int, ...] | None,
    epochs: int | None,
    sites: tuple[Site | str, ...] | None,
    methods: tuple[str, ...] | None,
) -> Design:
    if corpus is not None:
        chosen = replace(chosen, text=replace(chosen.text, corpus=whole_place(corpus)))
    if seeds is not None:
        chosen = replace(chosen, seeds=tuple(seeds))
    if epochs is not None:
        attack = chosen.attack and replace(chosen.attack, epochs=None)
        chosen = replace(chosen, training=replace(chosen.training, epochs=epochs), attack=attack)
    if methods is not None:
        chosen = only(chosen, tuple(methods))
    if sites is not None:
        places = tuple(s if isinstance(s, Site) else Site.parse(s) for s in sites)
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

    `fleet` is how many runs one job trains side by side, as on a CPU where it is null. Raises TrisectError for what cannot be run.
    """
    text = experiments[0].text
    if any(one.text != text for one in experiments):
        known = "What is run in one folder has one text, one model and one training."
        raise SpecError("The experiments have different texts.", known, "Give them the same text.")
    corpus = load_text(text)
    for label in dict.fromkeys(label for one in experiments for label in _labels(one)):
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
    words, train = len(corpus.vocabulary), len(corpus.splits["train"].tokens)
    evaluations = [task.seconds for task in _evaluation_tasks(experiments, corpus) if task.kind != "cut"]
    trained = {run: training_seconds(run, words, train, evaluated_tokens(corpus, run)) for run in runs}
    members = fleet or FLEET["cpu"]
    return Plan(
        experiments,
        corpus,
        runs,
        size(experiments[0].model, words),
        sum(trained.values()),
        sum(evaluations),
        disk_bytes(list(runs), words),
        max(memory_bytes(one, words, min(members, len(runs))) for one in experiments),
        spread_of(runs, trained, evaluations, corpus, members),
    )


def _labels(experiment: Design) -> list[str]:
    """Every label column that the experiment reads."""
    parts = (experiment.attack, experiment.control, experiment.probe, experiment.erase)
    asked = [label for part in parts if part for label in part.labels]
    return asked + [edit.column for edit in experiment.edits if edit.column is not None]


def evaluated_tokens(corpus: Corpus, run: Run) -> int:
    """About how many tokens each evaluation covers."""
    training = run.training
    windows = len(sample_steps(corpus.splits["train"], training.columns, training.window, training.train_sample))
    return windows * training.columns * training.window + len(corpus.splits["valid"].tokens)


def make_tasks(plan: Plan, folder: Folder, ledger: LedgerData) -> list[Task]:
    """Every piece of work of the plan that is not done: fleets in the ledger's order, then evaluations."""
    by_id, words = {run.id: run for run in plan.runs}, len(plan.corpus.vocabulary)
    train, evaluated = len(plan.corpus.splits["train"].tokens), evaluated_tokens(plan.corpus, plan.runs[0])
    tasks = []
    for fleet in ledger["fleets"]:
        wanted = [by_id[i] for i in fleet if i in by_id]
        cost = sum(training_seconds(run, words, train, evaluated) for run in wanted) * len(fleet) / max(1, len(wanted))
        tasks += [Task("train", tuple(fleet), seconds=cost)] if wanted else []
    tasks += _evaluation_tasks(plan.experiments, plan.corpus)
    pending = [task for task in tasks if not is_done(task, folder)]
    retrained = {run for task in pending if task.kind == "train" for run in task.runs}
    return [task for task in tasks if task in pending or (task.kind != "train" and task.runs[0] in retrained)]


def _evaluation_tasks(experiments: Sequence[Design], corpus: Corpus) -> list[Task]:
    """What is asked of each trained run: attention cut, sites rewound, labels probed and erased; each once."""
    words, found = len(corpus.vocabulary), {}
    for one in experiments:
        fitted = one.resolved()
        for run in fitted.runs(corpus.fingerprint):
            for asked in asked_of(fitted, run):
                points = {"cut": 1, "ablate": 2, "interchange": 3, "midstage": run.training.epochs + 1}.get(
                    asked.kind, _evaluations(one.rewind)
                )
                tokens, sample = evaluated_tokens(corpus, run), one.rewind and one.rewind.sample_tokens
                if sample and asked.kind not in ("cut", "ablate", "interchange"):
                    tokens = min(tokens, 2 * sample)  # of train and of valid
                seconds = rewinding_seconds(run, words, tokens, points)
                if asked.kind in ("probe", "erase"):
                    seconds = listening_seconds(run, words, asked.kind, one)
                found.setdefault(asked, Task(asked.kind, (run.id,), asked.site, seconds, asked.label))
    return list(found.values())


def _evaluations(rewind: Rewind | None) -> int:
    """About how many points of a site's rewinding curve are evaluated."""
    return 0 if rewind is None else rewind.points if rewind.mode == "exact" else min(rewind.points, 20)
