"""Plan: everything that an experiment would run, with ids, sizes, and expected time and disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trisect.core.errors import CorpusError, SpecError
from trisect.core.site import Site
from trisect.core.spec import Experiment, Rewind, Run, plain
from trisect.lab.estimate import disk_bytes, rewinding_seconds, training_seconds
from trisect.lab.folder import Folder, rewound
from trisect.lab.tasks import Task, is_done
from trisect.lm.fleet import size
from trisect.papers.presets import find_experiment, only
from trisect.text.corpus import Corpus, sample_steps, steps
from trisect.text.readers import load_text


@dataclass(frozen=True)
class Plan:
    """What would be run. Seconds are of one core and rough; `disk_bytes` is what stays."""

    experiment: Experiment
    corpus: Corpus
    runs: tuple[Run, ...]
    parameters: int
    train_seconds: float
    rewind_seconds: float
    disk_bytes: int

    def data(self) -> dict[str, Any]:
        """The plan as JSON-ready data."""
        return {
            "experiment": plain(self.experiment),
            "corpus": {
                "name": self.corpus.name,
                "fingerprint": self.corpus.fingerprint,
                "types": len(self.corpus.vocabulary),
            },
            "parameters": self.parameters,
            "runs": [run.id for run in self.runs],
            "core_seconds": {"train": self.train_seconds, "rewind": self.rewind_seconds},
            "disk_bytes": self.disk_bytes,
        }


def choose(
    what: str | Path | Experiment,
    corpus: str | Path | None = None,
    seeds: int | tuple[int, ...] | None = None,
    epochs: int | None = None,
    sites: tuple[Site | str, ...] | None = None,
    methods: tuple[str, ...] | None = None,
) -> Experiment:
    """A preset, file or experiment with some of its settings replaced.

    `seeds` is a number of seeds (1 to N) or the seeds themselves; `epochs` is that of every run, attacks included;
    `sites` those of every intervention; `methods` leaves the others out. Raises SpecError or SiteError.
    """
    chosen = find_experiment(what)
    if corpus is not None:
        chosen = replace(chosen, text=replace(chosen.text, corpus=_place(corpus)))
    if isinstance(seeds, int):
        if isinstance(seeds, bool) or not 1 <= seeds <= 10_000:
            raise SpecError(
                f"seeds is {seeds!r}.",
                "It is a number of seeds, 1 or more (at most 10,000), or the seeds themselves.",
                "Use for example 5.",
            )
        seeds = tuple(range(1, seeds + 1))
    if seeds is not None:
        chosen = replace(chosen, seeds=tuple(seeds))
    if epochs is not None:
        attack = chosen.attack and replace(chosen.attack, epochs=None)
        chosen = replace(chosen, training=replace(chosen.training, epochs=epochs), attack=attack)
    if methods is not None:
        chosen = only(chosen, tuple(methods))
    if sites is not None:
        places = tuple(s if isinstance(s, Site) else Site.parse(s) for s in sites)
        parts = {
            m: part and replace(part, sites=places)
            for m in ("attack", "rewind", "freeze")
            for part in [getattr(chosen, m)]
        }
        chosen = replace(chosen, **parts)
    return chosen.resolved()


def make_plan(experiment: Experiment) -> Plan:
    """Everything the experiment would run; reads the text, trains nothing. Raises TrisectError for what cannot be run."""
    corpus = load_text(experiment.text)
    for label in experiment.attack.labels if experiment.attack else ():
        corpus.column(label)
    training, types = experiment.training, np.unique(corpus.splits["train"].tokens)
    steps(corpus.splits["train"], training.columns, training.window)
    steps(corpus.splits["valid"], training.eval_columns, training.window)
    if len(types) < 2:
        known = (
            f"All {len(corpus.splits['train'].tokens):,} of its train tokens are {corpus.vocabulary[int(types[0])]!r}."
        )
        raise CorpusError(
            f"The text '{corpus.name}' has one word type.", known, "Give another text, or a smaller min_count."
        )
    runs = tuple(experiment.runs(corpus.fingerprint))
    words, baseline = len(corpus.vocabulary), runs[0]
    evaluated = evaluated_tokens(corpus, baseline)
    train = len(corpus.splits["train"].tokens)
    rewind = experiment.rewind
    stages = baseline.training.epochs + 1 if rewind and rewind.midstage else 0
    each = rewinding_seconds(baseline, words, evaluated, _evaluations(rewind) + stages)
    return Plan(
        experiment,
        corpus,
        runs,
        size(experiment.model, words),
        sum(training_seconds(run, words, train, evaluated) for run in runs),
        each * len(experiment.seeds) * (len(rewind.sites) if rewind else 0),
        disk_bytes(list(runs), words),
    )


def evaluated_tokens(corpus: Corpus, run: Run) -> int:
    """About how many tokens each evaluation covers."""
    training = run.training
    windows = len(sample_steps(corpus.splits["train"], training.columns, training.window, training.train_sample))
    return windows * training.columns * training.window + len(corpus.splits["valid"].tokens)


def make_tasks(plan: Plan, folder: Folder, ledger: dict[str, Any]) -> list[Task]:
    """Every piece of work of the plan that is not done: fleets in the ledger's order, then evaluations."""
    by_id, words = {run.id: run for run in plan.runs}, len(plan.corpus.vocabulary)
    train, evaluated = len(plan.corpus.splits["train"].tokens), evaluated_tokens(plan.corpus, plan.runs[0])
    tasks = []
    for fleet in ledger["fleets"]:
        wanted = [by_id[i] for i in fleet if i in by_id]
        cost = sum(training_seconds(run, words, train, evaluated) for run in wanted) * len(fleet) / max(1, len(wanted))
        tasks += [Task("train", tuple(fleet), seconds=cost)] if wanted else []
    for run in plan.runs:
        for kind, site in rewound(plan.experiment) if run.edit is None else ():
            points = {"cut": 1, "midstage": run.training.epochs + 1}.get(kind, _evaluations(plan.experiment.rewind))
            tasks.append(Task(kind, (run.id,), str(site), rewinding_seconds(run, words, evaluated, points)))
    pending = [task for task in tasks if not is_done(task, folder)]
    anew = {run for task in pending if task.kind == "train" for run in task.runs}
    return [task for task in tasks if task in pending or (task.kind != "train" and task.runs[0] in anew)]


def _evaluations(rewind: Rewind | None) -> int:
    """About how many points of a site's rewinding curve are evaluated."""
    return 0 if rewind is None else rewind.points if rewind.mode == "exact" else min(rewind.points, 20)


def _place(corpus: str | Path) -> str:
    """A folder's whole path, so that experiment.json works from anywhere."""
    return str(corpus) if str(corpus) == "embedded" else str(Path(corpus).resolve())
