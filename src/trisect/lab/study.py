"""Study: run an experiment to its end, from wherever it stopped, and hold what it found."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import torch

from trisect.core.errors import CorpusError, DamagedFileError, SpecError
from trisect.core.files import read_json, replace_file, write_json
from trisect.core.spec import Experiment, Machine
from trisect.engine import Event, run_tasks
from trisect.lab.collect import collect, read_tables
from trisect.lab.folder import Folder, join_ledger
from trisect.lab.live import live
from trisect.lab.plan import Plan, make_plan, make_tasks
from trisect.lab.tasks import Task, execute
from trisect.lab.versions import versions
from trisect.lm.products import fast_products, one_thread
from trisect.text.corpus import Corpus

if TYPE_CHECKING:
    import altair as alt

EXPERIMENT = "experiment.json"
MEND = "Delete it and call 'trisect study' again: finished runs are kept."


@dataclass(frozen=True)
class Study:
    """A study on disk: its tables by name, its figures by name, and the path of its report."""

    folder: Path

    @property
    def report(self) -> Path:
        """The page; open it in a browser."""
        return self.folder / "report.html"

    @cached_property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """Polars frames: runs, metrics, sites, claims. Raises DamagedFileError where one cannot be read."""
        return read_tables(Folder(self.folder))

    @cached_property
    def figures(self) -> Mapping[str, alt.ConcatChart]:
        """The report's figures as Altair charts, which a notebook shows."""
        from trisect.report import figures

        return figures.draw(dict(self.tables), _about(Folder(self.folder)))


@dataclass(frozen=True)
class _Piece:
    """A task as the engine sees it: it may start once the runs it builds on are finished."""

    task: Task
    folder: Folder

    def data(self) -> dict[str, Any]:
        return {
            "kind": self.task.kind,
            "runs": list(self.task.runs),
            "site": self.task.site,
            "seconds": self.task.seconds,
        }

    def ready(self) -> bool:
        return self.task.kind == "train" or self.folder.run(self.task.runs[0]).exists()


def run_study(experiment: Experiment, out: Path, machine: Machine) -> Study:
    """Run all that is not done yet of an experiment in `out`, then write tables, figures and report.

    Interrupted at any moment it goes on from the last finished epoch when called again, and ends with the same
    tables. Raises StudyError when `out` is in use, belongs to another study, or cannot be written.
    """
    began, device = time.monotonic(), choose_device(machine)
    plan = make_plan(experiment)
    folder = Folder(out)
    with folder.locked():
        ledger = join_ledger(folder, experiment, plan.runs)
        _note(folder, plan, device, ledger["experiment"], 0.0)
        corpus = _keep_corpus(folder, plan)
        tasks = make_tasks(plan, folder, ledger)
        try:
            _run(tasks, folder, ledger, corpus, device, machine)
        finally:
            _note(folder, plan, device, ledger["experiment"], time.monotonic() - began)
        return _render(folder)


def render_report(out: Path) -> Study:
    """Make tables, figures and report anew from what a study has finished; trains nothing."""
    folder = Folder(out)
    folder.read_ledger()
    with folder.locked():
        return _render(folder)


def choose_device(machine: Machine) -> str:
    """cpu or cuda; raises SpecError when cuda is asked for and there is none."""
    have = torch.cuda.is_available()
    if machine.device == "cuda" and not have:
        raise SpecError(
            "The device 'cuda' was asked for.", "PyTorch finds no CUDA device here.", "Use --device cpu, or auto."
        )
    return "cuda" if have and machine.device != "cpu" else "cpu"


def _run(
    tasks: list[Task], folder: Folder, ledger: dict[str, Any], corpus: Corpus, device: str, machine: Machine
) -> None:
    workers = machine.workers if machine.workers is not None else (1 if device == "cuda" else machine.cores())
    with live(tasks, workers, machine.quiet) as told:
        if workers == 0:
            with one_thread(), fast_products():
                for task in tasks:
                    execute(task, folder, ledger["runs"], corpus, device, lambda s, w, t=task: told(0, t, s, w))
                    told(0, task, 1.0, "")
        elif tasks:
            command = ("-m", "trisect.lab.worker", str(folder.path), device)

            def heard(event: Event) -> None:
                told(event.worker, tasks[event.task], event.share, event.words)

            run_tasks([_Piece(task, folder) for task in tasks], command, workers, heard)


def _keep_corpus(folder: Folder, plan: Plan) -> Corpus:
    try:
        kept = Corpus.load(folder.corpus)
        if kept.fingerprint == plan.corpus.fingerprint:
            return kept
    except (DamagedFileError, CorpusError):
        pass  # not there yet, or no longer whole: written below
    plan.corpus.save(folder.corpus)
    return Corpus.load(folder.corpus)


def _note(folder: Folder, plan: Plan, device: str, experiment: dict[str, Any], seconds: float) -> None:
    """What the report says of text and machine (seconds add up over calls), and the experiment as study takes it."""
    content = json.dumps(experiment, indent=1, ensure_ascii=False) + "\n"
    replace_file(folder.path / EXPERIMENT, lambda scratch: scratch.write_text(content, encoding="utf-8"))
    path = folder.path / "about.json"
    before = read_json(path, MEND)["wall_seconds"] if path.exists() else 0.0
    corpus = plan.corpus
    write_json(
        path,
        {
            "corpus": {
                "name": corpus.name,
                "fingerprint": corpus.fingerprint,
                "types": len(corpus.vocabulary),
                "splits": {name: len(split.tokens) for name, split in corpus.splits.items()},
                "labels": {name: list(classes) for name, classes in corpus.labels.items()},
                "notes": list(corpus.notes),
            },
            "device": device,
            "command": f"trisect study {EXPERIMENT} --out again",
            "wall_seconds": before + seconds,
        },
    )


def _about(folder: Folder) -> dict[str, Any]:
    ledger = folder.read_ledger()
    return read_json(folder.path / "about.json", MEND) | {"experiment": ledger["experiment"], "versions": versions()}


def _render(folder: Folder) -> Study:
    from trisect.report import page

    about = _about(folder)
    tables = collect(folder, about)
    page.write(folder.path, tables, about)
    return Study(folder.path)
