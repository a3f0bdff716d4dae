"""Run or resume a training study, join studies of other seeds, and check the files of a study's folder."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from trisect import claims
from trisect.claims.verdicts import judge_controls
from trisect.core.errors import CorpusError, DamagedFileError, SpecError, StudyError
from trisect.core.files import read_json, read_record, replace_file, write_json
from trisect.core.finding import About
from trisect.core.machine import Machine, versions
from trisect.core.schema import to_json_data
from trisect.core.spec import CorpusData, Design, Ledger, StudyAbout
from trisect.core.tables import SCHEMAS, STUDY_TABLES, TableRow, frame, read_table
from trisect.engine.drive import JobWork
from trisect.engine.jobs import Files, JobOrder, write_files
from trisect.engine.start import choose_device
from trisect.experiments.study.plan import (
    FLEET,
    Plan,
    Task,
    designs,
    fleet_name,
    join_ledger,
    make_plan,
    make_tasks,
    repeating,
)
from trisect.experiments.study.planted import score_rows
from trisect.experiments.study.rows import StudyRows, describe_study
from trisect.experiments.study.settings import DesignSource, StudyFacts, StudySettings
from trisect.experiments.study.tasks import EvaluationData, StudyJob, execute
from trisect.lab.driver import conclude, describe
from trisect.lab.experiment import Experiment, Measured, Result, RunContext
from trisect.lab.folder import Folder, epoch_weights, read_run, weights
from trisect.lab.jobs import run_jobs
from trisect.lab.records import read_about_file, record_of
from trisect.lab.run_folder import STATEMENT, RunFolder, is_study
from trisect.lm.matmul import STEP_REVISION
from trisect.lm.snapshots import read_snapshot
from trisect.text.corpus import Corpus

T = TypeVar("T")
ABOUT = "about.json"
RUN_OF = {"runs": "run", "metrics": "run", "sites": "subject"}  # tables that are no verdicts: which column names a run
METRIC: tuple[str, ...] = ("epoch", "split", "name", "value")


@dataclass(frozen=True)
class _EndedStudy:
    """A finished study: folder, record, tables other than verdicts, and statement."""

    place: Path
    about: About[StudyFacts]
    tables: dict[str, pl.DataFrame]
    design: Design

    @classmethod
    def read(cls, place: Path) -> _EndedStudy:
        """Read a study from its folder; raises StudyError if it is unfinished, or its seeds have different runs."""
        todo, ended = "Join a study that has ended, as it was written.", f"{place} holds no study that has ended."
        if not (place / ABOUT).is_file():
            raise StudyError(ended, f"There is no {ABOUT} in it.", todo)
        about = read_about_file("study", StudyFacts, place / ABOUT, todo)
        if about.facts.experiment is None:
            raise StudyError(ended, f"Its {ABOUT} names no experiment.", todo)
        tables = {name: read_table(place / "tables", name) for name in RUN_OF}
        runs, seeds = tables["runs"], sorted(about.facts.experiment.seeds)
        if (ran := sorted(runs["seed"].unique())) != seeds:
            raise StudyError(ended, f"Stated are seeds {seeds}, run were {ran}.", todo)
        edits = ("edit", "site", "label", "strength", "variant")
        if len({frozenset(rows.select(edits).rows()) for _, rows in runs.group_by("seed")}) > 1:
            raise StudyError(f"{place} holds several designs.", "Not every seed has the same runs.", todo)
        return cls(place, about, tables, about.facts.experiment)

    @property
    def key(self) -> Mapping[str, object]:
        """What must be equal: the design except seeds and name, the text, the rules and the kind of device."""
        facts, names = self.about.facts, {field.name for field in fields(self.design)} - {"seeds", "name"}
        return {
            **{name: getattr(self.design, name) for name in names},
            **{name: sorted(self.tables["runs"][name].unique()) for name in ("revision", "device", "claims_hash")},
            "text": replace(self.design.text, corpus=None),
            "corpus": facts.corpus.get("fingerprint"),
            "precision": facts.precision,
        }


@dataclass(frozen=True)
class JoinedStudy:
    """Studies of other seeds to be joined in a folder of its own; their folders are not changed.

    Its tables have their rows in the order of a study of all these seeds.
    """

    design: Design
    about: About[StudyFacts]
    tables: dict[str, pl.DataFrame]
    places: Sequence[Path]

    @classmethod
    def prepare(cls, settings: StudySettings) -> JoinedStudy:
        """Prepare joining the studies of the settings; raises TrisectError if they do not fit."""
        if settings.what != DesignSource():
            raise SpecError(
                "--join was given with settings of a study.",
                "Studies that were trained are joined as they are: they say themselves what was run.",
                "Leave these out.",
            )
        places = [Path(place) for place in settings.join]
        if len(places) < 2:
            raise SpecError("One study was given to be joined.", "One is joined with others.", "Give two or more.")
        first, *others = studies = [_EndedStudy.read(place) for place in places]
        seeds, ours = dict.fromkeys(first.design.seeds, first.place), first.key
        for other in others:
            key = other.key
            if differs := sorted(name for name in ours.keys() | key.keys() if ours.get(name) != key.get(name)):
                another = f"{other.place} is another study than {first.place}."
                raise StudyError(another, f"They differ in {', '.join(differs)}.", "Join seeds of one design.")
            if twice := sorted(seeds.keys() & set(other.design.seeds)):
                owner = f"{seeds[twice[0]]} has seed {', '.join(map(str, twice))}."
                raise StudyError(f"{other.place} has seeds that are already there.", owner, "Join other seeds.")
            seeds |= dict.fromkeys(other.design.seeds, other.place)
        tables = {
            name: pl.concat([study.tables[name] for study in studies]).sort(list(SCHEMAS[name]), nulls_last=True)
            for name in RUN_OF
        }
        design = replace(first.design, seeds=tuple(sorted(seeds)))
        seconds = sum(study.about.facts.wall_seconds for study in studies)
        facts = replace(first.about.facts, experiment=design, wall_seconds=seconds)
        about = replace(first.about, facts=facts, seconds=seconds)
        return cls(design, about, tables | judge(tables, describe_study(about)), places)

    @property
    def name(self) -> str:
        """The design's name."""
        return f"{self.design.name}-joined"

    def check(self, folder: Path) -> None:
        """Raise StudyError if the folder has another study, or anything but a joined study."""
        if folder.resolve() in [place.resolve() for place in self.places]:
            raise StudyError(
                f"{folder} is one of the studies to be joined.",
                "What is made of it lies in a folder of its own.",
                "Choose another with --out.",
            )
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
        if not RunFolder(folder).check_command("study") and not names <= {".lock", STATEMENT}:
            RunFolder(folder).check_empty("study that was joined")

    def folders_of(self, folder: Path) -> list[Path]:
        """The folder itself."""
        return [folder]

    def measure(self, context: RunContext) -> Measured[StudyFacts]:
        """All tables, with verdicts; the statement is beside them."""
        text, about = json.dumps(to_json_data(self.design), indent=1) + "\n", self.about
        replace_file(context.folder / STATEMENT, lambda scratch: scratch.write_text(text, encoding="utf-8"))
        return Measured(
            self.tables, about.facts, about.notes, seconds=about.seconds, packages=(), command=about.command
        )


def judge(tables: Mapping[str, pl.DataFrame], about: StudyAbout) -> dict[str, pl.DataFrame]:
    """The verdicts on the claims, and those left beside controls."""
    return {"claims": claims.judge(tables, about), "controls": judge_controls(tables, about)}


def check_study(out: Path) -> list[StudyError]:
    """An error for each damaged file of a study, with the file to delete; empty if all are intact.

    Figures, report and experiment.json are not read: each call writes them again. Raises StudyError where there is no
    study or it is in use, DamagedFileError where its ledger is damaged, since that says what else there is.
    """
    folder, errors = Folder(out), list[StudyError]()
    ledger = folder.read_ledger()
    again = "and call 'trisect study' again: "

    def attempt(read: Callable[..., T], *args: object) -> T | None:
        try:
            return read(*args)
        except StudyError as error:
            errors.append(error)
            return None

    with folder.lock():
        if folder.copy.exists():
            attempt(read_json, folder.copy, f"Delete {folder.copy} {again}it is written again.")
        if (folder.path / ABOUT).exists():
            attempt(read_study_about, folder)
        if folder.corpus.exists():
            try:
                Corpus.load(folder.corpus)
            except (CorpusError, DamagedFileError) as error:
                todo = f"Delete {folder.corpus} {again}it is written again."
                errors.append(DamagedFileError(error.problem, error.reason, todo))
        for run, statement in ledger.runs.items():
            stored: Sequence[str] = [f"epochs/{path.name}" for path in sorted(folder.epochs(run).glob("*.safetensors"))]
            if folder.run(run).exists():  # a finished run's own files must be there
                finished = attempt(read_run, folder, run)
                attempt(weights, folder, run, "final.safetensors", "cpu")
                stored = ()
                if statement.edit is None and finished is not None and finished.status == "finished":
                    stored = attempt(epoch_weights, folder, run, statement.training.epochs) or ()
            for file in stored:  # of a run in training, what it has kept so far is not written again
                attempt(weights, folder, run, file, "cpu")
        for fleet in ledger.fleets:
            if (path := folder.checkpoint(fleet_name(fleet))).exists():
                attempt(read_snapshot, path, f"Delete {path} {again}this fleet then starts again.")
        for path in sorted((folder.path / "evaluations").glob("*/*.json")):
            attempt(read_json, path, _evaluation_advice(path))
        for name in STUDY_TABLES:
            if (folder.tables / f"{name}.parquet").exists():
                attempt(read_table, folder.tables, name)
    return errors


def count_left(out: Path) -> tuple[int, int]:
    """The number of unfinished runs of a study, and of all runs; raises as `check_study` does."""
    folder = Folder(out)
    runs = folder.read_ledger().runs
    return sum(not folder.run(run).exists() for run in runs), len(runs)


def _evaluation_advice(path: Path) -> str:
    """The advice for a damaged evaluation."""
    return f"Delete {path} and call 'trisect study' again: only this is then done again."


def _add_numerics(numerics: set[str], folder: Folder, runs: Iterable[str]) -> None:
    """Note what trained these runs beside what trained others; raises StudyError where the study has two then."""
    numerics |= {read_run(folder, run).numerics for run in runs if folder.run(run).exists()}
    if len(numerics) > 1:
        raise StudyError(
            f"Runs of {folder.path} were trained in two ways.",
            f"They are: {'; '.join(sorted(numerics))}. The runs of a study are compared with one another.",
            "Delete the folders of those runs that are to be trained again, and use machines of one kind.",
        )


# after a baseline's epochs come a checkpoint, and what says that a run is finished
ORDER = ("fleets/*", "runs/*/run.json")


@dataclass(frozen=True, eq=False)
class StudyWork(JobWork):
    """One task of a study; all share the runs still `untrained`, and the `numerics` that trained the others."""

    task: Task
    folder: Folder
    ledger: Ledger
    device: str
    precision: str
    untrained: set[str]
    numerics: set[str]

    @property
    def title(self) -> str:
        """Its title in messages and progress lines."""
        return self.task.title

    @property
    def seconds(self) -> float:
        """Its expected cost on one core."""
        return self.task.seconds

    def ready(self) -> bool:
        """Whether its run is trained, for an evaluation."""
        return self.task.kind == "train" or self.task.runs[0] not in self.untrained

    def order(self) -> JobOrder:
        """The order of the job: training resumes from the fleet's checkpoint, an evaluation reads a finished run."""
        task, folder = self.task, self.folder
        runs = tuple(self.ledger.runs[run] for run in task.runs)
        path = folder.run(task.runs[0]).parent
        if task.kind == "train":
            path = folder.checkpoint(fleet_name(task.runs))
            baselines = [run for run in runs if run.edit is None]
            # one that was there before its baseline's folder was deleted
            if any(not (folder.epochs(run.id) / "0000.safetensors").exists() for run in baselines):
                path.unlink(missing_ok=True)
        begins, numerics = {self._name(path): path} if path.exists() else {}, next(iter(self.numerics), None)
        job = (task.kind, runs, task.site, task.label, self.ledger.experiment, self.device, self.precision, numerics)
        return JobOrder(execute, StudyJob(*job), folder.path, {"corpus": folder.corpus}, begins)

    def _name(self, path: Path) -> str:
        """The name of a file or folder of the study in jobs."""
        return path.relative_to(self.folder.path).as_posix()

    def land(self, files: Files) -> None:
        """Move files into the study's folder; evaluations of a run that is trained again are removed.

        An evaluation may send home its run's files as well, where the disk gives them other numbers: they are the same.
        """
        for run in self.task.runs if self.task.kind == "train" else ():
            if self._name(self.folder.run(run)) in files:
                shutil.rmtree(self.folder.evaluations(run), ignore_errors=True)
        write_files(files, self.folder.path, ORDER)

    def finish(self) -> None:
        """Remove a fleet's checkpoint, which is no longer needed."""
        if self.task.kind == "train":
            self.folder.checkpoint(fleet_name(self.task.runs)).unlink(missing_ok=True)
            self.untrained.difference_update(self.task.runs)
            _add_numerics(self.numerics, self.folder, self.task.runs)


@dataclass(frozen=True)
class PreparedStudy:
    """A study that can be run: everything that it asks for, and where. Interrupted at any moment it goes on from the last
    finished epoch, and ends with the same tables.
    """

    plan: Plan
    device: str
    machine: Machine
    force: bool = False

    @classmethod
    def prepare(cls, settings: StudySettings, machine: Machine) -> PreparedStudy:
        """Prepare the study of the settings; raises TrisectError if it cannot be run.

        Narrow products are refused in `quick`, and warned of where effects are asked for that they may hide.
        """
        device, plan, precision = choose_device(machine), make_plan(*designs(settings.what)), machine.precision
        if precision != "float32":
            if any(design.name == "quick" for design in plan.experiments):
                raise SpecError(
                    f"The precision {precision!r} was asked for in 'quick'.",
                    "At its size large products are a small part of a step, and its effects are small beside what rounding moves.",
                    "Leave --precision out.",
                )
            if any(design.freeze or design.rewind or design.tie for design in plan.experiments):
                warnings.warn(
                    f"{precision} products moved effects of freezing by more than their spread over seeds where that was measured "
                    "(docs/explanation/precision.md): compare effects of hundredths of a nat in float32.",
                    stacklevel=2,
                )
        return cls(plan, device, machine, settings.how.force)

    @property
    def name(self) -> str:
        """The design's name."""
        return self.plan.experiments[0].name

    def check(self, folder: Path) -> None:
        """Raise where the folder is not this study's, an earlier revision of the training step began it and runs are left to
        train, or what it goes on from is damaged.
        """
        study, plan = Folder(folder), self.plan
        ledger = self._join_ledger(study, write=False)
        left = sum(len(task.runs) for task in make_tasks(plan, study, ledger) if task.kind == "train")
        if left and ledger.step != STEP_REVISION:
            raise StudyError(
                f"{folder} belongs to a study that revision {ledger.step} of the training step began.",
                f"{left} of its runs are not trained yet, this version trains with revision {STEP_REVISION}, whose last bits differ, and "
                "the runs of a study are compared with one another.",
                "Go on with the version of trisect that began it, or choose another folder with --out; what is finished can "
                "be reported and evaluated.",
            )
        if (folder / ABOUT).exists():
            read_study_about(study)
        if not self.force and not is_study(folder):
            plan.check_machine(folder)

    def _join_ledger(self, folder: Folder, write: bool = True) -> Ledger:
        plan, machine = self.plan, self.machine
        state = (plan.corpus.fingerprint, self.device, machine.precision, machine.fleet)
        return join_ledger(folder, plan.experiments, *state, write=write)

    def folders_of(self, folder: Path) -> list[Path]:
        """All folders that the study writes."""
        return Folder(folder).folders()

    def measure(self, context: RunContext) -> Measured[StudyFacts]:
        """Run all unfinished tasks; raises StudyError if the folder is not writable."""
        plan, device, machine, folder = self.plan, self.device, self.machine, Folder(context.folder)
        began = time.monotonic()
        ledger = self._join_ledger(folder)
        _note(folder, plan, device, ledger, 0.0)
        try:
            same = Corpus.load(folder.corpus).fingerprint == plan.corpus.fingerprint
        except (DamagedFileError, CorpusError):  # not there yet, or damaged
            same = False
        if not same:
            plan.corpus.save(folder.corpus)  # where jobs map it
        for fleet in ledger.fleets:  # left where a process ended before it could
            if Task("train", fleet).is_done(folder):
                folder.checkpoint(fleet_name(fleet)).unlink(missing_ok=True)
        try:
            # once more what has gone in the meantime: a finished file that somebody deleted
            for again in (False, True):
                tasks, numerics = make_tasks(plan, folder, ledger), set[str]()
                untrained = {run for task in tasks if task.kind == "train" for run in task.runs}
                if untrained:
                    _add_numerics(numerics, folder, ledger.runs)
                works = [StudyWork(t, folder, ledger, device, machine.precision, untrained, numerics) for t in tasks]
                if works or not again:
                    run_jobs(works, machine, device, folder.path)
        except BaseException:
            with suppress(StudyError):  # on a full disk the first file that found it so is the one to name
                _note(folder, plan, device, ledger, time.monotonic() - began)
            raise
        _note(folder, plan, device, ledger, time.monotonic() - began)
        results = _read_results(folder)
        # tables are made of the files that are there
        lost = [p for task in make_tasks(plan, folder, ledger) for p in task.files(folder) if not p.exists()]
        if lost:
            raise StudyError(
                f"{lost[0]} is not there any more" + (f", nor are {len(lost) - 1} files like it." if lost[1:] else "."),
                "It was finished, and disappeared while the study was running.",
                "Find out what deletes it, then call 'trisect study' again: only what is missing is done.",
            )
        return results


def _read_results(folder: Folder) -> Measured[StudyFacts]:
    """The tables of a study's finished runs, with their record; trains nothing."""
    about = read_study_about(folder)
    described, corpus = describe_study(about), about.facts.corpus.get("name", "")
    runs, metrics, sites = list[TableRow](), list[TableRow](), list[TableRow]()
    for run in folder.read_ledger().runs:
        if not folder.run(run).exists():
            continue
        body = read_run(folder, run)
        spec, edit = body.spec, body.spec.edit
        same = ("status", "diverged_step", "parameters", "device", "wall_seconds", "claims_hash", "revision")
        runs.append(
            {
                "run": run,
                "edit": edit.kind if edit else "none",
                "site": str(edit.site) if edit else None,
                **{name: edit.setting(name) if edit else None for name in ("label", "strength", "variant")},
                "seed": spec.seed,
                "epochs": spec.training.epochs,
                "corpus": f"{corpus}:{spec.corpus}",
                "versions": json.dumps(body.versions, sort_keys=True),
                **{name: getattr(body, name) for name in same},
            }
        )
        metrics += [{"run": run, **dict(zip(METRIC, row, strict=True))} for row in body.metrics]
        for path in sorted(folder.evaluations(run).glob("*.json")):
            rows = read_record(path, _evaluation_advice(path), EvaluationData).get("rows", ())
            sites += [{"subject": run} | row for row in rows if row["value"] is not None]
    tables = {"runs": frame("runs", runs), "metrics": frame("metrics", metrics), "sites": frame("sites", sites)}
    if scored := score_rows(StudyRows.of(tables, described)):
        tables["sites"] = pl.concat([tables["sites"], frame("sites", scored)])
    tables |= judge(tables, described)
    return Measured(tables, about.facts, seconds=about.facts.wall_seconds, packages=(), command=about.command)


def render_report(study: Experiment[Any, StudyFacts], out: Path) -> Result[StudyFacts]:
    """Make tables, figures, report and README.md again from a study's finished runs; trains nothing."""
    folder = Folder(out)
    with folder.lock(lambda: read_study_about(folder)):
        return describe(study, conclude(study, _read_results(folder), out, "", 0.0))


def _note(folder: Folder, plan: Plan, device: str, ledger: Ledger, seconds: float) -> None:
    """What the report says of text and machine (seconds add up over calls), and the experiment as study takes it."""
    content = json.dumps(to_json_data(repeating(ledger)), indent=1) + "\n"
    replace_file(folder.path / STATEMENT, lambda scratch: scratch.write_text(content, encoding="utf-8"))
    path, corpus = folder.path / ABOUT, plan.corpus
    seconds += read_study_about(folder).seconds if path.exists() else 0.0
    text: CorpusData = {
        "name": corpus.name,
        "fingerprint": corpus.fingerprint,
        "types": len(corpus.vocabulary),
        "splits": {name: len(split.tokens) for name, split in corpus.splits.items()},
        "labels": {name: list(classes) for name, classes in corpus.labels.items()},
        "notes": list(corpus.notes),
    }
    command = f"trisect study {STATEMENT} --out again"
    command += f" --precision {ledger.precision}" if ledger.precision != "float32" else ""
    command += f" --fleet {ledger.fleet}" if ledger.fleet not in FLEET.values() else ""
    facts = StudyFacts(text, device, ledger.precision, seconds, ledger.experiment)
    write_json(path, record_of(About("study", command, seconds, (), {}, None, facts)))


def read_study_about(folder: Folder) -> About[StudyFacts]:
    """The record of a study's tables; raises StudyError if there is no study, DamagedFileError naming the file to delete."""
    experiment = folder.read_ledger().experiment
    path = folder.path / ABOUT
    todo = f"Delete {path} and call 'trisect study' again: finished runs are kept."
    noted = read_about_file("study", StudyFacts, path, todo)
    return replace(noted, versions=versions(), facts=replace(noted.facts, experiment=experiment))
