"""The driver: one run of any experiment, from settings to page."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import astuple, replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from trisect.core.errors import DamagedFileError, StudyError, translate_system_errors
from trisect.core.files import Json, canonical, digest, read_json, safe_join, write_json
from trisect.core.finding import About
from trisect.core.machine import Machine
from trisect.core.subject import Subject
from trisect.core.tables import write_table
from trisect.lab.experiment import Experiment, Measured, Result, RunContext, TrainingExperiment, Work
from trisect.lab.inputs import ModelSource, ModelsSource, ModelWorkers, TextSource, Workers
from trisect.lab.records import (
    command,
    conclusion,
    draw_page,
    groups_of,
    note_invented,
    plain_command,
    question_of,
    read_about,
    record_of,
)
from trisect.lab.run_folder import (
    CHANGE_MESSAGES,
    COPY_AGAIN,
    DISSECTION_PARTS,
    RunFolder,
    check_output_path,
    has_tables,
    is_study,
    read_tables,
    run_mark,
)
from trisect.lab.subject import MODEL, check_exists, for_texts, is_study_model
from trisect.lab.units.run import OverModels, check_workers, several_models
from trisect.report.readme import readme, remove_readme, write_readme
from trisect.report.sheet import Document, Sheet, StudyLink, write_document, write_page

BEGINS = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'  # as every page of ours
QUESTION = '<meta name="question" content="'  # how the line of a page that marks its question begins
LINES = 6  # at the top of a page, one of which is that line
MAX_DEPTH = 4  # folders below a study's or a run's own that its files lie in
TODO = "Choose another name with --out."
# What a page raises over tables that lack a table or column that it reads, or rows, or a value in one.
MISSING = (KeyError, pl.exceptions.ColumnNotFoundError)
READ_ERRORS = (*MISSING, IndexError, StopIteration, TypeError, ValueError, ArithmeticError, pl.exceptions.PolarsError)
# what a record's question says of a run, and how a difference in it is named
PARTS = {"models": "a model with other weights", "texts": "other texts", "files": "other files", "data": "other data"}
S = TypeVar("S")
F = TypeVar("F")


@translate_system_errors()
def run(
    experiment: Experiment[S, F],
    settings: S,
    out: str | Path | None = None,
    quiet: bool = False,
    links: Sequence[StudyLink] = (),
    is_part: bool = False,
) -> Result[F]:
    """Run an experiment: open its inputs, lock its folder, measure, judge, and write tables, record, figures and page.

    Where the settings name several models it is run over them (`lab.units`). `out` is a folder, or the page of an experiment that
    leaves that alone; the experiment's own default where None. `links` stand above its page. A part of a dissection (`is_part`)
    lies among its files, and takes the place of whatever that part gave before. Raises TrisectError before anything is written
    where settings or inputs are wrong, or where the folder holds the answer to another question.
    """
    over, links = several_models(settings), tuple(links)
    if over is None:
        check_workers(settings)
    else:
        experiment = OverModels(experiment, over)  # pyright: ignore[reportAssignmentType]
    if out is not None:  # what can be known before a model is loaded
        check_output_path(out, bool(experiment.single))
        if experiment.single:
            check_page(_page_at(experiment, Path(out)), experiment.name, bool(links))
        elif not isinstance(experiment, TrainingExperiment):
            free_folder(experiment, Path(out))
    experiment.check(settings)
    sources = [group for group in groups_of(settings) if isinstance(group, ModelSource | ModelsSource)]
    models = [(source, model) for source in sources for model in (_named(source) if over is None else over.models)]
    ours = all(is_study_model(model) for _, model in models)
    texts = next((group.open(ours) for group in groups_of(settings) if isinstance(group, TextSource)), None)
    for source, model in models if experiment.reads_text(settings, texts) else ():
        check_exists(model, **source.fetch_options(), text=True)
    subjects: tuple[Subject, ...] = ()
    # several are opened later, one after the other
    for opened in (source.open() for source in sources if over is None):
        subjects += tuple(for_texts(subject, texts) for subject in (opened if isinstance(opened, tuple) else (opened,)))
    machine, began = _machine(settings, quiet), time.monotonic()
    if isinstance(experiment, TrainingExperiment):
        return _train(experiment, settings, out, RunContext(Path(), machine, subjects, texts), links)
    place = _place(experiment, settings, out, subjects)
    words = command(experiment.name, settings, subjects, texts, () if over is None else over.words)
    marks = [subject.fingerprint for subject in subjects] if over is None else over.fingerprints
    question = question_of(words, settings, marks, texts)
    if experiment.single:
        place = _free_page(place, question) if out is None else place
        check_page(_page_at(experiment, place), experiment.name, bool(links), question)
        measured = RunContext(_parent(place), machine, subjects, texts).measure(experiment, settings)
        # a page is written at once
        return conclude(experiment, measured, place, words, time.monotonic() - began, links, question=question)
    check = partial(free_folder, experiment, place, None if is_part else question, [m for _, m in models])
    with RunFolder(place).lock(check), RunFolder(place).stage() as stage:
        measured = RunContext(stage, machine, subjects, texts, experiment.experiments, place).measure(
            experiment, settings
        )
        measured = measured if ours else note_invented(measured, settings)
        done = conclude(experiment, measured, place, words, time.monotonic() - began, links, stage, question)
        for unit in RunFolder(place).units:
            shutil.rmtree(unit, ignore_errors=True)
        return done


def _train(
    experiment: TrainingExperiment[S, F],
    settings: S,
    out: str | Path | None,
    context: RunContext,
    links: tuple[StudyLink, ...],
) -> Result[F]:
    """Run an experiment that trains, in its folder."""
    work, began = experiment.prepare(settings, context.machine), time.monotonic()
    place = _place(experiment, settings, out, context.subjects, work.name)
    with RunFolder(place).lock(lambda: work.check(place), lambda: work.folders_of(place)):
        RunFolder(place).recover()
        measured = work.measure(replace(context, folder=place))
        words = measured.command or command(experiment.name, settings, context.subjects, context.given_texts)
        return conclude(experiment, measured, place, words, time.monotonic() - began, links)


def _named(source: ModelSource | ModelsSource) -> Sequence[Any]:
    """The models named by a source."""
    return (source.model,) if isinstance(source, ModelSource) else source.models


def prepare_work(experiment: Experiment[S, F], settings: S, quiet: bool = False) -> Work[F]:
    """Prepare the work that `run` would do with these arguments; raises TrisectError, changes nothing."""
    assert isinstance(experiment, TrainingExperiment), experiment.name
    return experiment.prepare(settings, _machine(settings, quiet))


def _machine(settings: Any, quiet: bool) -> Machine:
    """The machine of the settings."""
    groups = (group for group in groups_of(settings) if isinstance(group, Workers | ModelWorkers))
    return next((group.machine(quiet) for group in groups), Machine(quiet=quiet))


# --- where results lie


def _place(
    experiment: Experiment[Any, Any],
    settings: Any,
    out: str | Path | None,
    subjects: tuple[Subject, ...],
    name: str = "",
) -> Path:
    """The folder; its default is named by the work, by the opened models, or by one that the experiment opens itself."""
    if out is not None:
        return Path(out)
    models = [subject.name for subject in subjects] or [str(getattr(settings, "model", ""))]
    if isinstance(experiment, OverModels) and experiment.models is not None:
        models = [experiment.models.title]
    model = "-".join(model.strip("/").split("/")[-1] for model in models)
    return safe_join(Path(), (experiment.out or experiment.name).format(model=model, name=name))


def _page_at(experiment: Experiment[Any, Any], place: Path) -> Path:
    """The path of a single page: `place` itself, or its default name in that folder."""
    return place / experiment.single if _parent(place) == place else place


def _parent(place: Path) -> Path:
    """The folder of a page: `place` itself if it is one, or does not end as a page does."""
    return place if place.is_dir() or not (place.suffix or place.is_file()) else place.parent


def _free_page(place: Path, question: Mapping[str, Json]) -> Path:
    """The default path of a page, numbered if a page of another question has that path."""
    places = chain([place], (place.with_stem(f"{place.stem}-{number}") for number in count(2)))
    return next(path for path in places if _question_at(path) in ("", _question_line(question)))


def check_page(path: Path, command: str, part: bool = False, question: Mapping[str, Json] | None = None) -> None:
    """Raise StudyError for a file that is not this command's, or of another question, and for a place among a run's files.

    A page that is `part` of a dissection lies among its files, and takes the place of whatever that part gave before.
    """
    place, problem = path.absolute(), f"{path} was given for a page of 'trisect {command}'."
    for above in tuple(place.parents)[:MAX_DEPTH]:
        manifest = RunFolder(above).find_manifest()
        if manifest is not None and place.relative_to(above).as_posix() in manifest["files"]:
            reason = f"It is a file of a run of 'trisect {manifest['experiment']}', which lies in {above}."
            raise StudyError(problem, reason, TODO)
        if (is_study(above) or manifest is not None) and not part:
            reason = f"A study or a run lies in {above}, and its folder holds its own files alone."
            raise StudyError(problem, reason, TODO)
    if not path.is_file():
        return
    begins = _begins(command).encode()
    with path.open("rb") as file:
        is_ours = file.read(len(begins)) == begins
    if not is_ours:
        reason = f"'trisect {command}' did not write it, or a version before 0.2.0 did; it would be written over."
        raise StudyError(f"{path} is there already.", reason, "Choose another name with --out, or move it elsewhere.")
    if question is not None and not part and _question_at(path) not in ("", _question_line(question)):
        raise StudyError(problem, "It holds the page of another text or model, which would be written over.", TODO)


def _begins(command: str) -> str:
    return f'{BEGINS}<meta name="generator" content="trisect {command}">\n'


def _question_line(question: Mapping[str, Json] | None) -> str:
    """The line in a page that identifies its question; empty if that is unknown."""
    return f'{QUESTION}{digest(canonical(question), 8)}">\n' if question else ""


def _question_at(path: Path) -> str:
    """That line of the page at a path; empty if it has none."""
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        return next((line for line in islice(file, LINES) if line.startswith(QUESTION)), "")


def free_folder(
    experiment: Experiment[Any, Any],
    out: Path,
    question: Mapping[str, Json] | None = None,
    models: Iterable[object] = (),
) -> None:
    """Raise StudyError if the folder has a study, a run of another experiment or question, or foreign files.

    The answer to the same question is replaced whole. `models` are its own, whose paths the question does not name.
    """
    folder = RunFolder(out)
    if not folder.check_command(experiment.name):
        folder.check_empty(f"results of 'trisect {experiment.name}'")
    if question is None or folder.latest is None:
        return
    staged = folder.latest / experiment.record
    try:
        body = read_json(staged if staged.exists() else out / experiment.record, "")
    except DamagedFileError:  # gone or altered: the same command again is what repairs it
        return
    noted = body.get("asked", {"command": body.get("command")})
    assert isinstance(noted, dict)
    is_same = plain_command(noted["command"]) == plain_command(question["command"])
    differ = [] if is_same else [f"'{noted['command']}'"]
    differ += [words for name, words in PARTS.items() if name in noted and noted[name] != question[name]]
    if differ:
        paths = iter([shlex.quote(str(m)) for m in models if isinstance(m, str | Path) and Path(m).exists()])
        line = re.sub(rf"\b{MODEL}\b", lambda match: next(paths, match[0]), str(question["command"]))
        problem = f"{out} was given for results of '{line}'."
        reason = f"It holds results of {' and of '.join(differ)}, which would be written over."
        raise StudyError(problem, reason, "Choose another folder with --out, or remove this one.")


# --- what a run leaves


def conclude(
    experiment: Experiment[S, F],
    measured: Measured[F],
    place: Path,
    words: str,
    seconds: float,
    links: tuple[StudyLink, ...] = (),
    stage: Path | None = None,
    question: Mapping[str, Json] | None = None,
) -> Result[F]:
    """Write all results of a run (tables, record, figures and page), completely or not at all.

    `links` stand above its page; where none are given, those that the run before had. `stage` is where measuring has put files
    already; None is an empty one. `question` is what the record notes (`question_of`).
    """
    about, tables = conclusion(experiment, measured, words, seconds)
    if experiment.single:
        return _make_result(experiment, place, tables, about, measured.paths, links, question)
    links = links or measured.links or _read_links(place / experiment.record)
    with nullcontext(stage) if stage is not None else RunFolder(place).stage() as stage:
        body = record_of(about)
        mark = run_mark(experiment.name, about.command, body)
        for name, table in tables.items():
            write_table(stage / "tables", name, table, mark)
        noted = {"links": [astuple(link) for link in links]} if links else {}
        noted |= {} if question is None else {"asked": question}
        write_json(stage / experiment.record, body | {"run": mark} | noted)
        done = _make_result(experiment, stage, tables, about, measured.paths, links)
        RunFolder(place).commit(stage, experiment.name, mark, experiment.record)
        remove_readme(place)
        paths = {name: _from(path, stage, place) for name, path in done.paths.items()}
        return replace(done, folder=place, report=_from(done.report, stage, place), paths=paths)


def _read_links(record: Path) -> tuple[StudyLink, ...]:
    """The links of a run's page, from its record; empty if there is none."""
    with suppress(DamagedFileError):
        noted: Any = read_json(record, "").get("links", ()) if record.is_file() else ()
        return tuple(StudyLink(title, href, here, tuple(map(tuple, models))) for title, href, here, models in noted)
    return ()


def _from(path: Path, stage: Path, place: Path) -> Path:
    """The final path of a staged file."""
    return place / path.relative_to(stage) if path.is_relative_to(stage) else path


def _make_result(
    experiment: Experiment[S, F],
    place: Path,
    tables: Mapping[str, pl.DataFrame],
    about: About[F],
    paths: Mapping[str, Path],
    links: tuple[StudyLink, ...],
    question: Mapping[str, Json] | None = None,
) -> Result[F]:
    """The result, with its page written if it has one; a single page stores its question."""
    answer, report = "", place / experiment.record
    if experiment.paged:
        page = draw_page(experiment, tables, about, links)
        if experiment.single:
            assert isinstance(page, Document), "a sheet lies in a folder, with its figures"
            path = _page_at(experiment, place)
            check_page(path, experiment.name, bool(links), question)  # once more: measuring may have lasted
            assert page.html.startswith(BEGINS), "a page that begins otherwise would not be known again"
            begins = _begins(experiment.name) + _question_line(question)
            report = write_document(path, replace(page, html=page.html.replace(BEGINS, begins, 1)))
        else:
            report = write_page(place, page)
        answer = str(page.answer)
    return _result(experiment, report.parent, tables, report, about, paths, answer)


def _result(
    experiment: Experiment[S, F],
    folder: Path,
    tables: Mapping[str, pl.DataFrame],
    report: Path,
    about: About[F],
    paths: Mapping[str, Path],
    answer: str = "",
) -> Result[F]:
    findings = tuple(experiment.findings(tables, about))
    return experiment.returns(
        folder, tables, report, findings, about, paths, experiment.paged, experiment.makes, answer
    )


# --- what a run left, read and drawn again


def read(experiment: Experiment[S, F], folder: Path, paths: Mapping[str, Path]) -> Result[F]:
    """Read a run's result from its tables and record; writes nothing. `paths` are further files of the run.

    Raises StudyError where something is missing or damaged.
    """
    if RunFolder(folder).has_run and (wrong := RunFolder(folder).check()):
        raise wrong[0]
    about, report = read_about(experiment, folder), folder / experiment.record
    if experiment.paged:
        report = next(iter(sorted(folder.glob("*.html"))), folder / "report.html")
    if missing := [path for path in (report, *paths.values()) if not path.exists()]:
        raise StudyError(f"{missing[0]} is missing.", f"It was made by 'trisect {experiment.name}'.", "Call it again.")
    return _result(experiment, folder, read_tables(folder), report, about, paths)


def render(experiment: Experiment[S, F], folder: Path) -> Result[F]:
    """Make page and figures again from a folder's tables and record; measures nothing.

    Where the folder holds a run's list of files, they land as a run's do, and the list names the new ones. Raises
    StudyError where something that the page is made from is missing, altered, or not what this version's page reads.
    """
    if not RunFolder(folder).has_run:
        return _redrawn(experiment, folder, folder)

    def drawn_from() -> list[str]:
        """The run's files except pages and figures, which are made from the others."""
        names = RunFolder(folder).manifest()["files"]
        return [n for n in names if not (n.startswith("figures/") or (n.endswith(".html") and "/" not in n))]

    def check() -> None:  # pages and figures may be gone or altered
        page_files = {*RunFolder(folder).manifest()["files"]} - {*drawn_from()}
        expected = {f"{folder / name} {words}" for name in page_files for words in CHANGE_MESSAGES}
        if wrong := [error for error in RunFolder(folder).check() if error.problem not in expected]:
            raise wrong[0]

    with RunFolder(folder).lock(check), RunFolder(folder).stage() as stage:
        mark = RunFolder(folder).manifest()["run"]
        for name in drawn_from():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, stage / name)
        done = _redrawn(experiment, folder, stage)
        RunFolder(folder).commit(stage, experiment.name, mark, experiment.record)
        return replace(done, folder=folder, report=_from(done.report, stage, folder))


def _redrawn(experiment: Experiment[S, F], folder: Path, place: Path) -> Result[F]:
    """The result with its page written to `place`, from the files of the folder."""
    about, tables = read_about(experiment, folder), read_tables(folder)
    try:
        return _make_result(experiment, place, tables, about, {}, _read_links(folder / experiment.record))
    except READ_ERRORS as error:
        version = about.versions.get("trisect", "an earlier version")
        words = (str(error).splitlines() or ["rows that are not there"])[0]
        reads = f"reads {words} too" if isinstance(error, MISSING) else f"cannot be made of them ({words})"
        raise StudyError(
            f"The tables in {folder / 'tables'} do not make the page of 'trisect {experiment.name}'.",
            f"They were written by trisect {version}, and this version's page {reads}.",
            f"Run it again: {about.command}" if about.command else "Run the command again.",
        ) from error


def rebuild(experiments: Sequence[Experiment[Any, Any]], folder: Path) -> Result[Any]:
    """Make a folder's page, figures and README.md again; its manifest or record names the experiment. Raises StudyError."""
    experiment = _find_experiment(experiments, folder)
    record = folder / experiment.record
    body = read_json(record, f"Delete {record} and call 'trisect {experiment.name}' again.")
    if {"units", "what", "models"} <= body.keys() and body["what"] == experiment.name:
        experiment = OverModels(experiment, None)
    return describe(experiment, render(experiment, folder))


def describe(experiment: Experiment[S, F], done: Result[F]) -> Result[F]:
    """The same result, with a README.md beside its page unless there is a handwritten one."""
    page = experiment.page(done.tables, done.about)
    if isinstance(page, Sheet):
        write_readme(done.folder, readme(page, done.about, done.findings, done.tables))
    return done


def _find_experiment(experiments: Sequence[Experiment[Any, Any]], folder: Path) -> Experiment[Any, Any]:
    """The experiment of a folder; raises StudyError if there is none, or it has no page."""
    if folder.is_file():
        reason = "A page is rebuilt from tables, which lie in a folder."
        todo = f"Name the folder of {folder.name}, or call the command that wrote it again."
        raise StudyError(f"{folder} is a file.", reason, todo)
    name = RunFolder(folder).manifest()["experiment"] if RunFolder(folder).has_run else None
    damaged = None
    for candidate in experiments if name is None else ():
        record = folder / candidate.record
        try:
            words = str(read_json(record, COPY_AGAIN).get("command", "")).split() if record.is_file() else []
        except DamagedFileError as error:  # altered, or another program's
            damaged = damaged or error
            continue
        if words[:2] == ["trisect", candidate.name]:
            name = candidate.name
            break
    if name is None:
        if damaged is not None and has_tables(folder):
            raise damaged
        reason = "There is no study.json in it, and no manifest.json or record, such as about.json, of another command."
        todo = "Name a folder that a command wrote, which is what it was given as --out."
        if (folder / DISSECTION_PARTS).is_file():
            todo = "It is a dissection that was interrupted or is running: run the same `trisect dissect` again."
        if (folder / "experiment.json").is_file():
            todo = f"Run its experiment again: trisect study {folder / 'experiment.json'} --out FOLDER."
        raise StudyError(f"{folder} holds no study, and no other results.", reason, todo)
    experiment = next((e for e in experiments if e.name == name and e.paged and not e.single), None)
    if experiment is None:
        reason = "That leaves no page to be made from tables."
        raise StudyError(f"{folder} holds results of 'trisect {name}'.", reason, "Name the folder of another command.")
    if not any((folder / "tables").glob("*.parquet")):
        reason = f"A page of 'trisect {name}' is made from them."
        raise StudyError(f"There are no tables in {folder}.", reason, "Name a folder that has them, or run it again.")
    return experiment
