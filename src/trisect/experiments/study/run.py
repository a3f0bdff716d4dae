"""Run a training study to its end, from wherever it stopped, and collect what it found."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trisect.core.errors import CorpusError, DamagedFileError, StudyError
from trisect.core.files import read_record, replace_file, write_json
from trisect.core.finding import About
from trisect.core.machine import Machine
from trisect.core.study_data import LedgerData, NotedStudy
from trisect.engine.devices import choose_device
from trisect.experiments.study.collect import collect
from trisect.experiments.study.join import JoinedStudy
from trisect.experiments.study.ledger import FLEET, extended_ledger, join_ledger, precision_of, repeating, size_of
from trisect.experiments.study.numerics import TrainedSoFar, check_precision, check_step
from trisect.experiments.study.plan import Plan, designs, make_plan, make_tasks
from trisect.experiments.study.rows import described
from trisect.experiments.study.settings import StudyFacts, StudySettings
from trisect.experiments.study.tasks import Task, fleet_name, is_done, left_by
from trisect.experiments.study.work import StudyWork
from trisect.lab.driver import conclude
from trisect.lab.experiment import Bench, Experiment, Measured, Result
from trisect.lab.folder import Folder
from trisect.lab.jobs import run_jobs
from trisect.lab.run_folder import STATEMENT, is_study
from trisect.lab.versions import versions
from trisect.text.corpus import Corpus


@dataclass(frozen=True)
class PreparedStudy:
    """A study that can be run: everything that it asks for, and where. Interrupted at any moment it goes on from the last
    finished epoch, and ends with the same tables.
    """

    plan: Plan
    device: str
    machine: Machine
    force: bool = False

    @property
    def name(self) -> str:
        """That of the design."""
        return self.plan.experiments[0].name

    def check(self, folder: Path) -> None:
        """Raise where the folder is not this study's, or what it goes on from is damaged."""
        _check(Folder(folder), self.plan, self.device, self.machine)
        if not self.force and not is_study(folder):
            self.plan.check_machine(folder)

    def own(self, folder: Path) -> list[Path]:
        """Every folder that the study itself writes into."""
        return Folder(folder).own()

    def measure(self, bench: Bench) -> Measured[StudyFacts]:
        """Run all that is not done yet; raises StudyError where the folder cannot be written."""
        plan, device, machine, folder = self.plan, self.device, self.machine, Folder(bench.folder)
        began = time.monotonic()
        ledger = join_ledger(
            folder, plan.experiments, plan.corpus.fingerprint, device, machine.precision, machine.fleet
        )
        _note(folder, plan, device, ledger, 0.0)
        _keep_corpus(folder, plan)
        _sweep(folder, ledger)
        try:
            for tasks in _rounds(plan, folder, ledger):
                _run(tasks, folder, ledger, device, machine)
        except BaseException:
            with suppress(StudyError):  # on a full disk the first file that found it so is the one to name
                _note(folder, plan, device, ledger, time.monotonic() - began)
            raise
        _note(folder, plan, device, ledger, time.monotonic() - began)
        found = measured(folder)
        _check_whole(plan, folder, ledger)  # tables are made of the files that are there
        return found


def prepare(settings: StudySettings, machine: Machine) -> PreparedStudy | JoinedStudy:
    """The study that the settings ask for; raises TrisectError for what cannot be run, or joined."""
    if settings.join:
        return JoinedStudy.prepare(settings)
    device = choose_device(machine)
    plan = make_plan(*designs(settings.what))
    check_precision(plan.experiments, machine.precision)
    return PreparedStudy(plan, device, machine, settings.how.force)


def measured(folder: Folder) -> Measured[StudyFacts]:
    """The tables of what a study has finished, with where they are from; trains nothing."""
    about = read_study_about(folder)
    tables = collect(folder, described(about))
    return Measured(tables, about.facts, seconds=about.facts.wall_seconds, packages=(), command=about.command)


def render_report(study: Experiment[Any, StudyFacts], out: Path) -> Result[StudyFacts]:
    """Make tables, figures and report again from what a study has finished; trains nothing."""
    folder = Folder(out)
    with folder.lock(lambda: read_study_about(folder)):
        return conclude(study, measured(folder), out, "", 0.0)


def _check(folder: Folder, plan: Plan, device: str, machine: Machine) -> None:
    """Raise where the folder is not this study's, or what it goes on from is damaged."""
    fingerprint = plan.corpus.fingerprint
    _, ledger = extended_ledger(folder, plan.experiments, fingerprint, device, machine.precision, machine.fleet)
    check_step(folder, ledger, make_tasks(plan, folder, ledger))
    if (folder.path / "about.json").exists():
        read_about(folder)


def _run(tasks: list[Task], folder: Folder, ledger: LedgerData, device: str, machine: Machine) -> None:
    untrained = {run for task in tasks if task.kind == "train" for run in task.runs}
    trained = TrainedSoFar(folder, ledger) if untrained else None
    run_jobs(
        [StudyWork(task, folder, ledger, device, machine.precision, untrained, trained) for task in tasks],
        machine,
        device,
        folder.path,
    )


def _rounds(plan: Plan, folder: Folder, ledger: LedgerData) -> Iterator[list[Task]]:
    """What is not done, then once more what has gone in the meantime: a finished file that somebody deleted."""
    yield make_tasks(plan, folder, ledger)
    if lost := make_tasks(plan, folder, ledger):
        yield lost


def _check_whole(plan: Plan, folder: Folder, ledger: LedgerData) -> None:
    """Raise StudyError naming the first file that a finished task has left and that is not there any more."""
    lost = [path for task in make_tasks(plan, folder, ledger) for path in left_by(task, folder) if not path.exists()]
    if lost:
        given = f"{lost[0]} is not there any more" + (f", nor are {len(lost) - 1} files like it." if lost[1:] else ".")
        known = "It was finished, and disappeared while the study was running."
        raise StudyError(
            given, known, "Find out what deletes it, then call 'trisect study' again: only what is missing is done."
        )


def _sweep(folder: Folder, ledger: LedgerData) -> None:
    """Remove checkpoints of fleets that are finished: left where a process ended before it could."""
    for fleet in ledger["fleets"]:
        if is_done(Task("train", tuple(fleet)), folder):
            folder.checkpoint(fleet_name(tuple(fleet))).unlink(missing_ok=True)


def _keep_corpus(folder: Folder, plan: Plan) -> None:
    """Have the text lie in the folder, where jobs map it."""
    try:
        if Corpus.load(folder.corpus).fingerprint == plan.corpus.fingerprint:
            return
    except (DamagedFileError, CorpusError):
        pass  # not there yet, or no longer whole: written below
    plan.corpus.save(folder.corpus)


def _note(folder: Folder, plan: Plan, device: str, ledger: LedgerData, seconds: float) -> None:
    """What the report says of text and machine (seconds add up over calls), and the experiment as study takes it."""
    content = json.dumps(repeating(ledger), indent=1) + "\n"
    replace_file(folder.path / STATEMENT, lambda scratch: scratch.write_text(content, encoding="utf-8"))
    path = folder.path / "about.json"
    before = read_about(folder).get("wall_seconds", 0.0) if path.exists() else 0.0
    corpus, precision = plan.corpus, precision_of(ledger)
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
            "precision": precision,
            "command": f"trisect study {STATEMENT} --out again"
            + (f" --precision {precision}" if precision != "float32" else "")
            + (f" --fleet {size_of(ledger)}" if size_of(ledger) not in FLEET.values() else ""),
            "wall_seconds": before + seconds,
        },
    )


def read_about(folder: Folder) -> NotedStudy:
    """What was noted of text and machine; raises DamagedFileError naming what to delete."""
    path = folder.path / "about.json"
    return read_record(path, f"Delete {path} and call 'trisect study' again: finished runs are kept.", NotedStudy)


def read_study_about(folder: Folder) -> About[StudyFacts]:
    """Where a study's tables are from: its record, and the statement that its ledger holds; raises StudyError."""
    ledger = folder.read_ledger()
    body = read_about(folder)
    facts = StudyFacts(
        body["corpus"],
        body["device"],
        body.get("precision", "float32"),
        body.get("wall_seconds", 0.0),
        ledger["experiment"],
    )
    return About("study", body.get("command", ""), facts.wall_seconds, (), versions(), None, facts)
