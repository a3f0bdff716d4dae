"""Study: run an experiment to its end, from wherever it stopped, and hold what it found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from trisect.core.errors import CorpusError, DamagedFileError, StudyError, TrisectError
from trisect.core.files import read_json, replace_file, write_json
from trisect.core.spec import Design, Machine
from trisect.engine.devices import choose_device
from trisect.experiments.study import notebook as study_notebook
from trisect.experiments.study.collect import collect, read_tables
from trisect.experiments.study.ledger import extended_ledger, join_ledger, repeating
from trisect.experiments.study.plan import Plan, make_plan, make_tasks
from trisect.experiments.study.tasks import Task, fleet_name, is_done
from trisect.experiments.study.track import check_tracker, log_path, read_logged, tracking
from trisect.experiments.study.work import StudyWork
from trisect.lab.folder import Folder
from trisect.lab.jobs import run_jobs
from trisect.lab.versions import versions
from trisect.text.corpus import Corpus

if TYPE_CHECKING:
    import altair as alt

    from trisect.report.notebook import StudyVerdicts

EXPERIMENT = "experiment.json"


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
        """The report's figures as Altair charts; a notebook shows them as SVG, without a network."""
        from trisect.experiments.study import figures
        from trisect.report import notebook

        drawn = figures.draw(dict(self.tables), _about(Folder(self.folder)))
        return {name: notebook.chart(chart) for name, chart in drawn.items()}

    @cached_property
    def verdicts(self) -> StudyVerdicts:
        """What the study says of each claim, by its name: study.verdicts["A-1"]; in a notebook a card each."""
        from trisect.report import notebook

        return notebook.verdicts(self.tables["claims"])

    def _repr_html_(self) -> str:
        from trisect.report import notebook

        try:
            return study_notebook.study(self.tables, _about(Folder(self.folder)), self.report)
        except TrisectError as error:
            return notebook.trouble(error)


def run_study(experiments: Sequence[Design], out: Path, machine: Machine) -> Study:
    """Run all that is not done yet of one or more experiments in `out`, then write tables, figures and report.

    Interrupted at any moment it goes on from the last finished epoch when called again, and ends with the same
    tables. Raises StudyError when `out` is in use, belongs to another study or precision, or cannot be written.
    """
    began, device = time.monotonic(), choose_device(machine)
    check_tracker(machine.track)
    plan = make_plan(*experiments)
    folder = Folder(out)
    with folder.locked(lambda: _check(folder, plan, device, machine), folder.own):
        ledger = join_ledger(folder, plan.experiments, plan.corpus.fingerprint, device, machine.precision)
        _note(folder, plan, device, ledger, 0.0)
        _keep_corpus(folder, plan)
        _sweep(folder, ledger)
        tasks = make_tasks(plan, folder, ledger)
        try:
            with tracking(machine.track, folder, ledger["experiment"]["name"], ledger["runs"]) as track:
                _run(tasks, folder, ledger, device, machine, track)
        except BaseException:
            with suppress(StudyError):  # on a full disk the first file that found it so is the one to name
                _note(folder, plan, device, ledger, time.monotonic() - began)
            raise
        _note(folder, plan, device, ledger, time.monotonic() - began)
        return _render(folder)


def render_report(out: Path) -> Study:
    """Make tables, figures and report anew from what a study has finished; trains nothing."""
    folder = Folder(out)
    with folder.locked(lambda: _about(folder)):
        return _render(folder)


def check_study_folder(experiments: Sequence[Design], out: Path, machine: Machine) -> None:
    """Raise what `run_study` would with the same arguments before it runs anything; changes nothing."""
    device = choose_device(machine)
    check_tracker(machine.track)
    _check(Folder(out), make_plan(*experiments), device, machine)


def _check(folder: Folder, plan: Plan, device: str, machine: Machine) -> None:
    """Raise where the folder is not this study's, or what it goes on from is damaged."""
    extended_ledger(folder, plan.experiments, plan.corpus.fingerprint, device, machine.precision)
    if (folder.path / "about.json").exists():
        read_about(folder)
    if machine.track is not None and (logged := log_path(folder, machine.track)).exists():
        read_logged(logged)


def _run(
    tasks: list[Task],
    folder: Folder,
    ledger: dict[str, Any],
    device: str,
    machine: Machine,
    track: Callable[[Sequence[str]], None],
) -> None:
    untrained = {run for task in tasks if task.kind == "train" for run in task.runs}
    run_jobs(
        [StudyWork(task, folder, ledger, device, machine.precision, untrained, track) for task in tasks],
        machine,
        device,
        folder.path,
    )


def _sweep(folder: Folder, ledger: dict[str, Any]) -> None:
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


def _note(folder: Folder, plan: Plan, device: str, ledger: dict[str, Any], seconds: float) -> None:
    """What the report says of text and machine (seconds add up over calls), and the experiment as study takes it."""
    content = json.dumps(repeating(ledger), indent=1) + "\n"
    replace_file(folder.path / EXPERIMENT, lambda scratch: scratch.write_text(content, encoding="utf-8"))
    path = folder.path / "about.json"
    before = read_about(folder)["wall_seconds"] if path.exists() else 0.0
    corpus, narrow = plan.corpus, ledger["precision"] != "float32"
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
            "precision": ledger["precision"],
            "command": f"trisect study {EXPERIMENT} --out again"
            + (f" --precision {ledger['precision']}" if narrow else ""),
            "wall_seconds": before + seconds,
        },
    )


def read_about(folder: Folder) -> dict[str, Any]:
    """What was noted of text and machine; raises DamagedFileError naming what to delete."""
    path = folder.path / "about.json"
    return read_json(path, f"Delete {path} and call 'trisect study' again: finished runs are kept.")


def _about(folder: Folder) -> dict[str, Any]:
    ledger = folder.read_ledger()
    return read_about(folder) | {"experiment": ledger["experiment"], "versions": versions()}


def _render(folder: Folder) -> Study:
    from trisect.experiments.study import page

    about = _about(folder)
    tables = collect(folder, about)
    page.write(folder.path, tables, about)
    return Study(folder.path)
