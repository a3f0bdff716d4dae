"""Run a training study to its end, from wherever it stopped, join studies of other seeds, and check what lies in a study's folder."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from trisect import claims
from trisect.claims.verdicts import judge_controls
from trisect.core.errors import CorpusError, DamagedFileError, SpecError, StudyError
from trisect.core.files import read_json, read_record, replace_file, write_json
from trisect.core.finding import About
from trisect.core.machine import Machine, versions
from trisect.core.methods import Rewind
from trisect.core.schema import plain
from trisect.core.spec import Design, read_experiment
from trisect.core.study_data import CorpusData, FinishedRun, Ledger, StudyAbout
from trisect.core.tables import SCHEMAS, STUDY_TABLES, frame, read_table
from trisect.engine.drive import Work
from trisect.engine.jobs import Files, JobOrder, land
from trisect.engine.start import choose_device
from trisect.experiments.study.ledger import FLEET, extended_ledger, join_ledger, repeating
from trisect.experiments.study.plan import Plan, designs, make_plan, make_tasks
from trisect.experiments.study.planted import planted_rows
from trisect.experiments.study.rows import StudyRows, described
from trisect.experiments.study.settings import DesignSource, StudyFacts, StudySettings
from trisect.experiments.study.tasks import (
    EvaluationData,
    StudyJob,
    Task,
    evaluation_advice,
    execute,
    fleet_name,
    is_done,
    left_by,
)
from trisect.lab.driver import conclude, describe
from trisect.lab.experiment import Experiment, Measured, Result, RunContext
from trisect.lab.folder import Folder, epoch_weights, read_finished, weights
from trisect.lab.jobs import run_jobs
from trisect.lab.records import read_noted, record_of
from trisect.lab.run_folder import STATEMENT, RunFolder, is_study
from trisect.lm.matmul import STEP
from trisect.lm.snapshots import read_snapshot
from trisect.measure.criticality import criticality, mean_difference
from trisect.text.corpus import Corpus

ABOUT = "about.json"
RUN_OF = {"runs": "run", "metrics": "run", "sites": "subject"}  # tables that are no verdicts: which column names a run
EDITS = ["edit", "site", "label", "strength", "variant"]
MEASURES = ["site", "measure", "label", "split"]


@dataclass(frozen=True)
class EndedStudy:
    """What a study that has ended left: where, its record, and the tables that are no verdicts."""

    place: Path
    about: About[StudyFacts]
    tables: dict[str, pl.DataFrame]

    @classmethod
    def read(cls, place: Path) -> EndedStudy:
        """A study from its folder; raises StudyError where there is none that has ended, or its files do not agree."""
        todo, given = "Join a study that has ended, as it was written.", f"{place} holds no study that has ended."
        if not (place / ABOUT).is_file():
            raise StudyError(given, f"There is no {ABOUT} in it.", todo)
        about = read_noted("study", StudyFacts, place / ABOUT, todo)
        if about.facts.experiment is None:
            raise StudyError(given, f"Its {ABOUT} names no experiment.", todo)
        study = cls(place, about, {name: read_table(place / "tables", name) for name in RUN_OF})
        for known in study.faults():
            raise StudyError(f"{place} does not agree with itself.", known, todo)
        return study

    @property
    def design(self) -> Design:
        """Its statement, seeds among the rest."""
        assert self.about.facts.experiment, "a study that has ended says what it was"
        return self.about.facts.experiment

    @property
    def seeds(self) -> list[int]:
        """Its seeds."""
        return list(self.design.seeds)

    def faults(self) -> Iterator[str]:
        """What does not agree: the two statements, the seeds, the runs, or what was measured of each seed."""
        try:
            stated = json.loads((self.place / STATEMENT).read_text(encoding="utf-8"))
            design = None if isinstance(stated, list) else read_experiment(stated, STATEMENT)
        except (OSError, ValueError, SpecError) as error:
            yield f"{STATEMENT} cannot be read ({type(error).__name__}: {error})."
            return
        runs, seed_of = self.tables["runs"], pl.col("seed")
        if design is None:
            yield f"{STATEMENT} holds a list, since not every seed was asked for the same runs."
        elif design != self.design:
            yield f"{STATEMENT} and {ABOUT} state two designs."
        if sorted(runs["seed"].unique()) != sorted(self.seeds):
            yield f"Stated are seeds {self.seeds}, run were {sorted(runs['seed'].unique())}."
        if runs["run"].n_unique() < runs.height:
            yield "Its table of runs has one of them twice."
        for name, column in RUN_OF.items():
            if stray := set(self.tables[name][column]) - set(runs["run"]):
                yield f"Its table {name} is also about {min(stray)}, which is no run of it."
        measured = self.tables["sites"].join(runs.select("seed", "status", subject="run"), on="subject")
        whole = measured.filter((pl.col("status") == "finished").all().over(seed_of))
        for rows, columns in ((runs, EDITS), (whole, MEASURES)):
            sets = {frozenset(of.select(columns).unique().rows()) for _, of in rows.group_by("seed")}
            if len(sets) > 1:
                yield f"Not every seed has the same {'runs' if columns is EDITS else 'measures'}."

    @property
    def key(self) -> Mapping[str, object]:
        """What has to be alike: all that was asked but the seeds and the names, the text, the rules and the kind of device."""
        design = self.design
        asked = {one.name: getattr(design, one.name) for one in fields(design) if one.name not in ("seeds", "name")}
        runs = {name: sorted(self.tables["runs"][name].unique()) for name in ("revision", "device", "claims_hash")}
        facts = self.about.facts
        own = {"corpus": facts.corpus.get("fingerprint"), "precision": facts.precision}
        return asked | runs | {"text": replace(design.text, corpus=None)} | own

    def with_seeds_of(self, other: EndedStudy) -> EndedStudy:
        """Both together, rows in the order of a study of all these seeds; raises StudyError where they are no seeds of one study."""
        ours, theirs = self.key, other.key
        if differs := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
            known = f"They differ in {', '.join(differs)}."
            raise StudyError(f"{other.place} is another study than {self.place}.", known, "Join seeds of one design.")
        if twice := sorted(set(self.seeds) & set(other.seeds)):
            known = f"{self.place} has seed {', '.join(map(str, twice))}."
            raise StudyError(f"{other.place} has seeds that are already there.", known, "Join other seeds.")
        tables = {
            name: pl.concat([table, other.tables[name]]).sort(list(SCHEMAS[name]), nulls_last=True)
            for name, table in self.tables.items()
        }
        experiment = replace(self.design, seeds=tuple(sorted([*self.seeds, *other.seeds])))
        seconds = self.about.facts.wall_seconds + other.about.facts.wall_seconds
        facts = replace(self.about.facts, experiment=experiment, wall_seconds=seconds)
        return replace(self, about=replace(self.about, facts=facts, seconds=seconds), tables=tables)

    def judged(self) -> dict[str, pl.DataFrame]:
        """All tables, with the verdicts over all seeds."""
        said = described(self.about)
        verdicts = {"claims": claims.judge(self.tables, said), "controls": judge_controls(self.tables, said)}
        return {**self.tables, **verdicts}


@dataclass(frozen=True)
class JoinedStudy:
    """Studies of other seeds that become one, in a folder of its own; those that they were stay as they are."""

    whole: EndedStudy
    places: Sequence[Path]

    @classmethod
    def prepare(cls, settings: StudySettings) -> JoinedStudy:
        """The study that is made of those that the settings name; raises TrisectError where they do not fit."""
        if settings.what != DesignSource():
            known = "Studies that were trained are joined as they are: they say themselves what was run."
            raise SpecError("--join was given with settings of a study.", known, "Leave these out.")
        places = [Path(place) for place in settings.join]
        if len(places) < 2:
            raise SpecError("One study was given to be joined.", "One is joined with others.", "Give two or more.")
        whole, *others = map(EndedStudy.read, places)
        for other in others:
            whole = whole.with_seeds_of(other)
        return cls(whole, places)

    @property
    def name(self) -> str:
        """That of the design."""
        return f"{self.whole.design.name}-joined"

    def check(self, folder: Path) -> None:
        """Raise StudyError where another study, or anything but a study that was joined before, lies in the folder."""
        if folder.resolve() in [place.resolve() for place in self.places]:
            known = "What is made of it lies in a folder of its own."
            raise StudyError(f"{folder} is one of the studies to be joined.", known, "Choose another with --out.")
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
        if not RunFolder(folder).check_command("study") and not names <= {".lock", STATEMENT}:
            RunFolder(folder).check_empty("study that was joined")

    def own(self, folder: Path) -> list[Path]:
        """The folder alone."""
        return [folder]

    def measure(self, context: RunContext) -> Measured[StudyFacts]:
        """All tables, verdicts among them; the statement lies beside."""
        text = json.dumps(plain(self.whole.design), indent=1) + "\n"
        replace_file(context.folder / STATEMENT, lambda scratch: scratch.write_text(text, encoding="utf-8"))
        about = self.whole.about
        tables = self.whole.judged()
        return Measured(tables, about.facts, about.notes, seconds=about.seconds, packages=(), command=about.command)


def check_study(out: Path) -> list[StudyError]:
    """An error for each damaged file of a study, saying what to delete; none where all is whole.

    Figures, report and experiment.json are not read: each call writes them again. Raises StudyError where there is no
    study or it is in use, DamagedFileError where its ledger is damaged, since that says what else there is.
    """
    folder, found = Folder(out), []
    ledger = folder.read_ledger()
    with folder.lock():
        for read in _readers(folder, ledger):
            try:
                read()
            except StudyError as error:
                found.append(error)
    return found


def unfinished(out: Path) -> tuple[int, int]:
    """How many runs of a study are not finished, and of how many; raises as `check_study` does."""
    folder = Folder(out)
    runs = folder.read_ledger().runs
    return sum(not folder.run(run).exists() for run in runs), len(runs)


def _readers(folder: Folder, ledger: Ledger) -> Iterator[Callable[[], object]]:
    """Something that reads, for each file that is there; a finished run's own must be there."""
    if folder.copy.exists():
        todo = f"Delete {folder.copy} and call 'trisect study' again: it is written again."
        yield lambda: read_json(folder.copy, todo)
    if (folder.path / ABOUT).exists():
        yield lambda: read_study_about(folder)
    if folder.corpus.exists():
        yield lambda: _corpus(folder)
    for run, statement in ledger.runs.items():
        if folder.run(run).exists():
            yield lambda run=run: read_finished(folder, run)
            yield lambda run=run: weights(folder, run, "final.safetensors", "cpu")
            if statement.edit is None:
                epochs = statement.training.epochs
                yield lambda run=run, epochs=epochs: _epochs(folder, run, epochs)
        else:  # still in training: what it has kept so far is not written again
            for path in sorted(folder.epochs(run).glob("*.safetensors")):
                yield lambda run=run, file=f"epochs/{path.name}": weights(folder, run, file, "cpu")
    for fleet in ledger.fleets:
        if (path := folder.checkpoint(fleet_name(fleet))).exists():
            todo = f"Delete {path} and call 'trisect study' again: this fleet then starts again."
            yield lambda path=path, todo=todo: read_snapshot(path, todo)
    for path in sorted((folder.path / "evaluations").glob("*/*.json")):
        yield lambda path=path: read_json(path, evaluation_advice(path))
    for name in STUDY_TABLES:
        if (folder.tables / f"{name}.parquet").exists():
            yield lambda name=name: read_table(folder.tables, name)


def _corpus(folder: Folder) -> None:
    try:
        Corpus.load(folder.corpus)
    except (CorpusError, DamagedFileError) as error:
        todo = f"Delete {folder.corpus} and call 'trisect study' again: it is written again."
        raise DamagedFileError(error.given, error.known, todo) from error


def _epochs(folder: Folder, run: str, epochs: int) -> None:
    try:
        finished = read_finished(folder, run).status == "finished"
    except StudyError:
        return  # named already
    for file in epoch_weights(folder, run, epochs) if finished else ():
        weights(folder, run, file, "cpu")


CURVES = ("loss_nats", "accuracy", "rise_low_nats", "rise_high_nats")  # the last two where the rows were a sample


def collect(folder: Folder, about: StudyAbout) -> dict[str, pl.DataFrame]:
    """Every table, made from what the study has finished."""
    ledger = folder.read_ledger()
    done = {run: read_finished(folder, run) for run in ledger.runs if folder.run(run).exists()}
    corpus = about.get("corpus", {}).get("name", "")
    tables = {
        "runs": frame("runs", [_run_row(run, body, corpus) for run, body in done.items()]),
        "metrics": frame(
            "metrics",
            [
                {"run": run, "epoch": epoch, "split": split, "name": name, "value": value}
                for run, body in done.items()
                for epoch, split, name, value in body.metrics
            ],
        ),
        "sites": frame("sites", [row for run in done for row in _site_rows(folder, run, ledger.experiment.rewind)]),
    }
    if scored := planted_rows(StudyRows.of(tables, about)):
        tables["sites"] = pl.concat([tables["sites"], frame("sites", scored)])
    tables["claims"] = claims.judge(tables, about)
    tables["controls"] = judge_controls(tables, about)
    return tables


def read_tables(folder: Folder) -> dict[str, pl.DataFrame]:
    """The tables of a study as they lie on disk."""
    return {name: read_table(folder.tables, name) for name in STUDY_TABLES}


def _run_row(run: str, body: FinishedRun, corpus: str) -> dict[str, Any]:
    spec, edit = body.spec, body.spec.edit
    same = ("status", "diverged_step", "parameters", "device", "wall_seconds", "claims_hash", "revision")
    return {
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


def _site_rows(folder: Folder, run: str, how: Rewind | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.evaluations(run).glob("*.json")):
        body = read_record(path, evaluation_advice(path), EvaluationData)
        kind, site = body.get("kind", ""), body.get("site", "")
        if body.get("diverged"):
            continue
        rows += [{"subject": run} | row for row in body.get("rows", ())]
        for split, curve in (("train", body.get("train")), ("valid", body.get("valid"))):
            if curve is None:
                continue
            shared = {"subject": run, "split": split, "n": curve["n"]}
            if kind == "cut":
                rows.append(shared | {"site": site, "measure": "self_only_loss_nats", "value": curve["loss_nats"][0]})
                rows.append(
                    shared | {"site": None, "measure": "unigram_loss_nats", "value": body.get("unigram", {}).get(split)}
                )
                continue
            shared |= {"site": site}
            for name in [n for n in CURVES if n in curve]:
                rows += [
                    shared | {"measure": f"{kind}_{name}", "at": a, "value": v}
                    for a, v in zip(curve["at"], curve[name], strict=True)
                ]
            losses, named = np.array(curve["loss_nats"], dtype=float), dict[str, float | None]()
            if kind == "midstage":
                named["midstage_area"] = mean_difference(losses, losses[-1])
            else:
                assert how, "a site is rewound, and no design asks for it"
                found = criticality(np.array(curve["at"]), losses, how.epsilon)
                named |= {"criticality": found.score, "criticality_first": found.first, "rewind_area": found.area}
            named |= {f"{kind}_{end}": curve.get(end) for end in ("area_low", "area_high")}
            if kind == "rewind":
                named["rewind_check_nats"] = curve.get("check_nats")
                named |= {f"rewind_{name}": body.get(name) for name in ("evaluations", "nodes")}
            rows += [shared | {"measure": measure, "value": value} for measure, value in named.items()]
    return [row for row in rows if row["value"] is not None and np.isfinite(row["value"])]  # missing stays missing


def check_precision(experiments: Sequence[Design], precision: str) -> None:
    """Raise SpecError for narrow products in `quick`; warn where effects are asked for that they may hide."""
    if precision == "float32":
        return
    if any(experiment.name == "quick" for experiment in experiments):
        raise SpecError(
            f"The precision {precision!r} was asked for in 'quick'.",
            "At its size large products are a small part of a step, and its effects are small beside what rounding moves.",
            "Leave --precision out.",
        )
    if any(experiment.freeze or experiment.rewind or experiment.tie for experiment in experiments):
        warnings.warn(
            f"{precision} products moved effects of freezing by more than their spread over seeds where that was measured "
            "(docs/explanation/precision.md): compare effects of hundredths of a nat in float32.",
            stacklevel=2,
        )


def check_step(folder: Folder, ledger: Ledger, tasks: Sequence[Task]) -> None:
    """Raise StudyError where runs are left to train in a study that an earlier revision of the step began."""
    left = sum(len(task.runs) for task in tasks if task.kind == "train")
    if left and ledger.step != STEP:
        raise StudyError(
            f"{folder.path} belongs to a study that revision {ledger.step} of the training step began.",
            f"{left} of its runs are not trained yet, this version trains with revision {STEP}, whose last bits differ, and "
            "the runs of a study are compared with one another.",
            "Go on with the version of trisect that began it, or choose another folder with --out; what is finished can "
            "be reported and evaluated.",
        )


class TrainedSoFar:
    """What trained the runs of a study so far."""

    def __init__(self, folder: Folder, ledger: Ledger) -> None:
        self.folder, self.found = folder, set[str]()
        self.add([run for run in ledger.runs if folder.run(run).exists()])

    @property
    def expected(self) -> str | None:
        """What must train the others; None where nothing is noted yet."""
        return next(iter(self.found), None)

    def add(self, runs: Sequence[str]) -> None:
        """Note what trained these; raises StudyError where the study has two then."""
        self.found |= {read_finished(self.folder, run).numerics for run in runs}
        if len(self.found) > 1:
            raise StudyError(
                f"Runs of {self.folder.path} were trained in two ways.",
                f"They are: {'; '.join(sorted(self.found))}. The runs of a study are compared with one another.",
                "Delete the folders of those runs that are to be trained again, and use machines of one kind.",
            )


# after a baseline's epochs come a checkpoint, and what says that a run is finished
ORDER = ("fleets/*", "runs/*/run.json")


@dataclass(frozen=True, eq=False)
class StudyWork(Work):
    """One task of a study; `untrained` are the runs still to be trained, shared by all, fewer as fleets end; `trained` is what
    trained the others, null where none is left to train.
    """

    task: Task
    folder: Folder
    ledger: Ledger
    device: str
    precision: str
    untrained: set[str]
    trained: TrainedSoFar | None

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        return self.task.title

    @property
    def seconds(self) -> float:
        """Its expected cost on one core."""
        return self.task.seconds

    def ready(self) -> bool:
        """An evaluation waits until its run is trained."""
        return self.task.kind == "train" or self.task.runs[0] not in self.untrained

    def order(self) -> JobOrder:
        """Training goes on from the fleet's checkpoint; an evaluation reads what a finished run left."""
        task, folder = self.task, self.folder
        runs = tuple(self.ledger.runs[run] for run in task.runs)
        paths = self._checkpoint() if task.kind == "train" else [folder.run(task.runs[0]).parent]
        numerics = self.trained.expected if self.trained else None
        asked = (task.kind, runs, task.site, task.label, self.ledger.experiment, self.device, self.precision, numerics)
        begins = {self._name(path): path for path in paths}
        return JobOrder(execute, StudyJob(*asked), folder.path, {"corpus": folder.corpus}, begins)

    def _name(self, path: Path) -> str:
        """What jobs call a file or a folder of the study."""
        return path.relative_to(self.folder.path).as_posix()

    def _checkpoint(self) -> list[Path]:
        """The fleet's checkpoint where there is one; one that was there before its baseline's folder was deleted goes."""
        checkpoint = self.folder.checkpoint(fleet_name(self.task.runs))
        baselines = [run for run in self.task.runs if self.ledger.runs[run].edit is None]
        if any(not (self.folder.epochs(run) / "0000.safetensors").exists() for run in baselines):
            checkpoint.unlink(missing_ok=True)
        return [checkpoint] if checkpoint.exists() else []

    def land(self, files: Files) -> None:
        """Put files into the study's folder; evaluations of a run that is trained again belonged to its old weights.

        An evaluation may send home its run's files as well, where the disk gives them other numbers: they are the same.
        """
        for run in self.task.runs if self.task.kind == "train" else ():
            if self._name(self.folder.run(run)) in files:
                shutil.rmtree(self.folder.evaluations(run), ignore_errors=True)
        land(files, self.folder.path, ORDER)

    def ended(self) -> None:
        """A fleet's checkpoint is of no use any more, and its runs can be evaluated."""
        if self.task.kind == "train":
            self.folder.checkpoint(fleet_name(self.task.runs)).unlink(missing_ok=True)
            self.untrained.difference_update(self.task.runs)
            if self.trained:
                self.trained.add(self.task.runs)


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

    def measure(self, context: RunContext) -> Measured[StudyFacts]:
        """Run all that is not done yet; raises StudyError where the folder cannot be written."""
        plan, device, machine, folder = self.plan, self.device, self.machine, Folder(context.folder)
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
    """Make tables, figures, report and README.md again from what a study has finished; trains nothing."""
    folder = Folder(out)
    with folder.lock(lambda: read_study_about(folder)):
        return describe(study, conclude(study, measured(folder), out, "", 0.0))


def _check(folder: Folder, plan: Plan, device: str, machine: Machine) -> None:
    """Raise where the folder is not this study's, or what it goes on from is damaged."""
    fingerprint = plan.corpus.fingerprint
    _, ledger = extended_ledger(folder, plan.experiments, fingerprint, device, machine.precision, machine.fleet)
    check_step(folder, ledger, make_tasks(plan, folder, ledger))
    if (folder.path / ABOUT).exists():
        read_study_about(folder)


def _run(tasks: list[Task], folder: Folder, ledger: Ledger, device: str, machine: Machine) -> None:
    untrained = {run for task in tasks if task.kind == "train" for run in task.runs}
    trained = TrainedSoFar(folder, ledger) if untrained else None
    run_jobs(
        [StudyWork(task, folder, ledger, device, machine.precision, untrained, trained) for task in tasks],
        machine,
        device,
        folder.path,
    )


def _rounds(plan: Plan, folder: Folder, ledger: Ledger) -> Iterator[list[Task]]:
    """What is not done, then once more what has gone in the meantime: a finished file that somebody deleted."""
    yield make_tasks(plan, folder, ledger)
    if lost := make_tasks(plan, folder, ledger):
        yield lost


def _check_whole(plan: Plan, folder: Folder, ledger: Ledger) -> None:
    """Raise StudyError naming the first file that a finished task has left and that is not there any more."""
    lost = [path for task in make_tasks(plan, folder, ledger) for path in left_by(task, folder) if not path.exists()]
    if lost:
        given = f"{lost[0]} is not there any more" + (f", nor are {len(lost) - 1} files like it." if lost[1:] else ".")
        known = "It was finished, and disappeared while the study was running."
        raise StudyError(
            given, known, "Find out what deletes it, then call 'trisect study' again: only what is missing is done."
        )


def _sweep(folder: Folder, ledger: Ledger) -> None:
    """Remove checkpoints of fleets that are finished: left where a process ended before it could."""
    for fleet in ledger.fleets:
        if is_done(Task("train", fleet), folder):
            folder.checkpoint(fleet_name(fleet)).unlink(missing_ok=True)


def _keep_corpus(folder: Folder, plan: Plan) -> None:
    """Have the text lie in the folder, where jobs map it."""
    try:
        if Corpus.load(folder.corpus).fingerprint == plan.corpus.fingerprint:
            return
    except (DamagedFileError, CorpusError):
        pass  # not there yet, or no longer whole: written below
    plan.corpus.save(folder.corpus)


def _note(folder: Folder, plan: Plan, device: str, ledger: Ledger, seconds: float) -> None:
    """What the report says of text and machine (seconds add up over calls), and the experiment as study takes it."""
    content = json.dumps(plain(repeating(ledger)), indent=1) + "\n"
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
    """Where a study's tables are from; raises StudyError where there is no study, DamagedFileError naming what to delete."""
    experiment = folder.read_ledger().experiment
    path = folder.path / ABOUT
    noted = read_noted(
        "study", StudyFacts, path, f"Delete {path} and call 'trisect study' again: finished runs are kept."
    )
    return replace(noted, versions=versions(), facts=replace(noted.facts, experiment=experiment))
