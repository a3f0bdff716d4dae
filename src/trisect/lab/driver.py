"""The driver: one run of any experiment, from settings to page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from trisect.core.errors import DamagedFileError, StudyError, translate_system_errors
from trisect.core.files import Json, inside, read_json, write_json
from trisect.core.finding import About
from trisect.core.machine import Machine
from trisect.core.subject import Subject, Texts
from trisect.core.tables import write_table
from trisect.lab.command import command, groups_of, plain_command, question_of
from trisect.lab.experiment import Experiment, Measured, Result, RunContext, TrainingExperiment, Work
from trisect.lab.inputs import ModelSource, ModelsSource, ModelWorkers, TextSource, Workers
from trisect.lab.records import conclusion, draw_page, note_invented, read_about, record_of
from trisect.lab.run_folder import COPY_AGAIN, GONE, RunFolder, check_place, has_tables, is_study, read_tables, run_mark
from trisect.lab.subject import check_there, for_texts, is_study_model
from trisect.lab.units.run import OverModels, SeveralModels, check_workers, several_models
from trisect.report.readme import readme, remove_readme, write_readme
from trisect.report.sheet import Document, Sheet, StudyLink, write_document, write_page

BEGINS = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'  # as every page of ours
DEEPEST = 4  # folders below a study's or a run's own that its files lie in
TODO = "Choose another name with --out."


def _begins(command: str) -> str:
    return f'{BEGINS}<meta name="generator" content="trisect {command}">\n'


def check_page(path: Path, command: str, part: bool = False) -> None:
    """Raise StudyError for a file that this command did not write, and for a place among the files of a study or a run.

    A page that is `part` of a dissection lies among its files.
    """
    place, given = path.absolute(), f"{path} was given for a page of 'trisect {command}'."
    for above in tuple(place.parents)[:DEEPEST]:
        manifest = RunFolder(above).find_manifest()
        if manifest is not None and place.relative_to(above).as_posix() in manifest["files"]:
            known = f"It is a file of a run of 'trisect {manifest['experiment']}', which lies in {above}."
            raise StudyError(given, known, TODO)
        if (is_study(above) or manifest is not None) and not part:
            known = f"A study or a run lies in {above}, and its folder holds its own files alone."
            raise StudyError(given, known, TODO)
    if not path.is_file():
        return
    begins = _begins(command).encode()
    with path.open("rb") as file:
        own = file.read(len(begins)) == begins
    if not own:
        known = f"'trisect {command}' did not write it, or a version before 0.2.0 did; it would be written over."
        raise StudyError(f"{path} is there already.", known, "Choose another name with --out, or move it elsewhere.")


# What a page raises over tables that lack a table or column that it reads, or rows, or a value in one.
MISSING = (KeyError, pl.exceptions.ColumnNotFoundError)
UNREADABLE = (*MISSING, IndexError, StopIteration, TypeError, ValueError, ArithmeticError, pl.exceptions.PolarsError)
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
    several, links = several_models(settings), tuple(links)
    if several is None:
        check_workers(settings)
    one: Any = experiment if several is None else OverModels(experiment, several)
    if out is not None:  # what can be known before a model is loaded
        check_place(out, bool(one.single))
        if one.single:
            check_page(_page_at(one, Path(out)), one.name, bool(links))
        elif not isinstance(one, TrainingExperiment):
            free_folder(one, Path(out))
    one.check(settings)
    models = _models(settings, several)
    own = all(is_study_model(model) for _, model in models)
    texts = next((group.open(own) for group in groups_of(settings) if isinstance(group, TextSource)), None)
    for source, model in models if one.reads_text(settings, texts) else ():
        check_there(model, **source.fetch_options(), text=True)
    subjects = () if several else _open_subjects(settings, texts)  # several are opened later, one after the other
    machine, began = _machine(settings, quiet), time.monotonic()
    if isinstance(one, TrainingExperiment):
        work = one.prepare(settings, machine)
        place = _place(one, settings, out, subjects, work.name)
        with RunFolder(place).lock(lambda: work.check(place), lambda: work.own(place)):
            RunFolder(place).recover()
            measured = work.measure(RunContext(place, machine, subjects, texts))
            words = measured.command or command(one.name, settings, subjects, texts)
            return conclude(one, measured, place, words, time.monotonic() - began, links)
    place = _place(one, settings, out, subjects)
    words = command(one.name, settings, subjects, texts, () if several is None else several.words)
    if one.single:
        check_page(_page_at(one, place), one.name, bool(links))
        measured = RunContext(_parent(place), machine, subjects, texts).measure(one, settings)
        return conclude(one, measured, place, words, time.monotonic() - began, links)  # a page is written at once
    marks = [model.fingerprint for model in subjects] if several is None else several.fingerprints
    asked = question_of(words, settings, marks, texts)
    check = partial(free_folder, one, place, None if is_part else asked)
    with RunFolder(place).lock(check), RunFolder(place).stage() as stage:
        measured = RunContext(stage, machine, subjects, texts, one.of, place).measure(one, settings)
        measured = measured if own else note_invented(measured, settings)
        done = conclude(one, measured, place, words, time.monotonic() - began, links, stage, asked)
        RunFolder(place).remove_units()
        return done


def _models(settings: Any, several: SeveralModels | None) -> list[tuple[ModelSource | ModelsSource, Any]]:
    """The models that the settings name, each with how it is opened."""
    found = list[tuple[ModelSource | ModelsSource, Any]]()
    for group in groups_of(settings):
        if isinstance(group, ModelSource | ModelsSource):
            named = (group.model,) if isinstance(group, ModelSource) else group.models
            found += [(group, model) for model in (named if several is None else several.models)]
    return found


def _open_subjects(settings: Any, texts: Texts | None) -> tuple[Subject, ...]:
    """The models that the settings name, each verified for what is to be read."""
    opened = [group.open() for group in groups_of(settings) if isinstance(group, ModelSource | ModelsSource)]
    return tuple(for_texts(one, texts) for of in opened for one in (of if isinstance(of, tuple) else (of,)))


def prepare_work(experiment: Experiment[S, F], settings: S, quiet: bool = False) -> Work[F]:
    """The work that `run` does with the same arguments, for an experiment that trains; raises TrisectError, changes nothing."""
    assert isinstance(experiment, TrainingExperiment), experiment.name
    return experiment.prepare(settings, _machine(settings, quiet))


def _machine(settings: Any, quiet: bool) -> Machine:
    """The machine that the settings name."""
    groups = (group for group in groups_of(settings) if isinstance(group, Workers | ModelWorkers))
    return next((group.machine(quiet) for group in groups), Machine(quiet=quiet))


def render(experiment: Experiment[S, F], folder: Path) -> Result[F]:
    """Make the page and figures again from the tables and the record of a folder; measures nothing.

    Where the folder holds a run's list of files, they land as a run's do, and the list names the new ones. Raises
    StudyError where something that the page is made from is missing, altered, or not what this version's page reads.
    """
    if not RunFolder(folder).has_run:
        return _redrawn(experiment, folder, folder)
    with RunFolder(folder).lock(lambda: _check_sources(folder)), RunFolder(folder).stage() as stage:
        run, files = RunFolder(folder).manifest()["run"], RunFolder(folder).manifest()["files"]
        for name in (one for one in files if not _is_page_or_figure(one)):
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, stage / name)
        done = _redrawn(experiment, folder, stage)
        RunFolder(folder).commit(stage, experiment.name, run, experiment.record)
        return replace(done, folder=folder, report=_from(done.report, stage, folder))


def _is_page_or_figure(name: str) -> bool:
    """Whether a file of a run is its own page or figure, which are made from the rest."""
    return name.startswith("figures/") or (name.endswith(".html") and "/" not in name)


def _check_sources(folder: Path) -> None:
    """Raise where what a page is made from is not as the run left it; pages and figures may be gone or altered."""
    drawn = {
        f"{folder / name} {said}"
        for name in RunFolder(folder).manifest()["files"]
        if _is_page_or_figure(name)
        for said in GONE
    }
    if wrong := [error for error in RunFolder(folder).check() if error.given not in drawn]:
        raise wrong[0]


def _redrawn(experiment: Experiment[S, F], folder: Path, place: Path) -> Result[F]:
    """The result with its page written to `place`, from what lies in the folder."""
    about = read_about(experiment, folder)
    tables = read_tables(folder)
    try:
        return _make_result(experiment, place, tables, about, {}, _read_links(folder / experiment.record))
    except UNREADABLE as error:
        made = about.versions.get("trisect", "an earlier version")
        given = f"The tables in {folder / 'tables'} do not make the page of 'trisect {experiment.name}'."
        said = (str(error).splitlines() or ["rows that are not there"])[0]
        reads = f"reads {said} too" if isinstance(error, MISSING) else f"cannot be made of them ({said})"
        known = f"They were written by trisect {made}, and this version's page {reads}."
        todo = f"Run it again: {about.command}" if about.command else "Run the command again."
        raise StudyError(given, known, todo) from error


def read(experiment: Experiment[S, F], folder: Path, paths: Mapping[str, Path]) -> Result[F]:
    """What a run left in its folder, from its tables and its record; writes nothing. `paths` are what it made besides.

    Raises StudyError where something is missing or damaged.
    """
    if RunFolder(folder).has_run and (wrong := RunFolder(folder).check()):
        raise wrong[0]
    about, report = read_about(experiment, folder), folder / experiment.record
    if experiment.paged:
        report = next((path for path in sorted(folder.glob("*.html"))), folder / "report.html")
    if missing := [path for path in (report, *paths.values()) if not path.exists()]:
        raise StudyError(f"{missing[0]} is missing.", f"It was made by 'trisect {experiment.name}'.", "Call it again.")
    tables = read_tables(folder)
    found = tuple(experiment.findings(tables, about))
    return experiment.returns(folder, tables, report, found, about, paths, experiment.paged, experiment.makes)


# what a record's question says of a run, and how a difference in it is named
PARTS = {"models": "a model with other weights", "texts": "other texts", "files": "other files", "data": "other data"}


def free_folder(experiment: Experiment[Any, Any], out: Path, asked: Mapping[str, Json] | None = None) -> None:
    """Raise StudyError for a folder of a study, of another experiment, of another question (`asked`), or of anything else.

    The answer to the same question is replaced whole.
    """
    folder = RunFolder(out)
    if not folder.check_command(experiment.name):
        folder.check_empty(f"results of 'trisect {experiment.name}'")
    if asked is None or folder.latest is None:
        return
    staged = folder.latest / experiment.record
    try:
        body = read_json(staged if staged.exists() else out / experiment.record, "")
    except DamagedFileError:  # gone or altered: the same command again is what repairs it
        return
    noted = body.get("asked", {"command": body.get("command")})
    assert isinstance(noted, dict)
    differ = [f"'{noted['command']}'"] if plain_command(noted["command"]) != plain_command(asked["command"]) else []
    differ += [words for name, words in PARTS.items() if name in noted and noted[name] != asked[name]]
    if differ:
        given = f"{out} was given for results of '{asked['command']}'."
        known = f"It holds results of {' and of '.join(differ)}, which would be written over."
        raise StudyError(given, known, "Choose another folder with --out, or remove this one.")


def _place(
    experiment: Experiment[Any, Any],
    settings: Any,
    out: str | Path | None,
    subjects: tuple[Subject, ...],
    name: str = "",
) -> Path:
    """The folder; its default is named by the work, by the model that was opened, or by one that the experiment opens itself."""
    if out is not None:
        return Path(out)
    model = subjects[0].name if subjects else str(getattr(settings, "model", ""))
    if isinstance(experiment, OverModels) and experiment.models is not None:
        model = experiment.models.title
    model = model.strip("/").split("/")[-1]
    where = experiment.out or experiment.name
    return inside(Path(), where.format(model=model, name=name))


def conclude(
    experiment: Experiment[S, F],
    measured: Measured[F],
    place: Path,
    words: str,
    seconds: float,
    links: tuple[StudyLink, ...] = (),
    stage: Path | None = None,
    asked: Mapping[str, Json] | None = None,
) -> Result[F]:
    """Write everything that a run leaves, from what it measured: tables, record, figures and page, all of them or none.

    `links` stand above its page; where none are given, those that the run before had. `stage` is where measuring has put files
    already; None is an empty one. `asked` is the question that the record notes (`question_of`).
    """
    about, tables = conclusion(experiment, measured, words, seconds)
    if experiment.single:
        return _make_result(experiment, place, tables, about, measured.paths, links)
    links = links or measured.links or _read_links(place / experiment.record)
    with nullcontext(stage) if stage is not None else RunFolder(place).stage() as stage:
        body = record_of(about)
        mark = run_mark(experiment.name, about.command, body)
        for name, table in tables.items():
            write_table(stage / "tables", name, table, mark)
        noted = {"links": [astuple(link) for link in links]} if links else {}
        noted |= {} if asked is None else {"asked": asked}
        write_json(stage / experiment.record, body | {"run": mark} | noted)
        done = _make_result(experiment, stage, tables, about, measured.paths, links)
        RunFolder(place).commit(stage, experiment.name, mark, experiment.record)
        remove_readme(place)
        paths = {name: _from(path, stage, place) for name, path in done.paths.items()}
        return replace(done, folder=place, report=_from(done.report, stage, place), paths=paths)


def _read_links(record: Path) -> tuple[StudyLink, ...]:
    """The links that a run noted of its page; none where there is no record that can be read."""
    with suppress(DamagedFileError):
        noted: Any = read_json(record, "").get("links", ()) if record.is_file() else ()
        return tuple(StudyLink(title, href, here, tuple(map(tuple, models))) for title, href, here, models in noted)
    return ()


def _from(path: Path, stage: Path, place: Path) -> Path:
    """Where a file lies that was staged."""
    return place / path.relative_to(stage) if path.is_relative_to(stage) else path


def _make_result(
    experiment: Experiment[S, F],
    place: Path,
    tables: Mapping[str, pl.DataFrame],
    about: About[F],
    paths: Mapping[str, Path],
    links: tuple[StudyLink, ...],
) -> Result[F]:
    """The result, with its page written where the experiment has one."""
    answer = ""
    if not experiment.paged:
        report = place / experiment.record
    else:
        page = draw_page(experiment, tables, about, links)
        if experiment.single:
            assert isinstance(page, Document), "a sheet lies in a folder, with its figures"
            path = _page_at(experiment, place)
            check_page(path, experiment.name, bool(links))  # once more: measuring may have lasted
            assert page.html.startswith(BEGINS), "a page that begins otherwise would not be known again"
            report = write_document(path, replace(page, html=page.html.replace(BEGINS, _begins(experiment.name), 1)))
        else:
            report = write_page(place, page)
        answer = page.answer if isinstance(page, Sheet) else ""
    found = tuple(experiment.findings(tables, about))
    made = (report.parent, tables, report, found, about, paths, experiment.paged, experiment.makes)
    return experiment.returns(*made, str(answer))


def _page_at(experiment: Experiment[Any, Any], place: Path) -> Path:
    """Where a single page lies: as `place`, or under its own name in that folder."""
    return place / experiment.single if _parent(place) == place else place


def _parent(place: Path) -> Path:
    """The folder of a page: `place` itself where it is one, or has no ending as a page has."""
    return place if place.is_dir() or not (place.suffix or place.is_file()) else place.parent


def rebuild(experiments: Sequence[Experiment[Any, Any]], folder: Path) -> Result[Any]:
    """Make page, figures and README.md of a folder again; its list of files says whose they are, or its record. Raises StudyError."""
    one = _find_experiment(experiments, folder)
    record = folder / one.record
    body = read_json(record, f"Delete {record} and call 'trisect {one.name}' again.")
    if {"units", "what", "models"} <= body.keys() and body["what"] == one.name:
        one = OverModels(one, None)
    return describe(one, render(one, folder))


def describe(experiment: Experiment[S, F], done: Result[F]) -> Result[F]:
    """The same result, with a README.md beside its page, where none lies that was written by hand."""
    page = experiment.page(done.tables, done.about)
    if isinstance(page, Sheet):
        write_readme(done.folder, readme(page, done.about, done.findings, done.tables))
    return done


def _find_experiment(experiments: Sequence[Experiment[Any, Any]], folder: Path) -> Experiment[Any, Any]:
    """The experiment that left a folder; raises StudyError where none did, or one that has no page."""
    if folder.is_file():
        known = "A page is rebuilt from tables, which lie in a folder."
        todo = f"Name the folder of {folder.name}, or call the command that wrote it again."
        raise StudyError(f"{folder} is a file.", known, todo)
    name = (
        RunFolder(folder).manifest()["experiment"]
        if RunFolder(folder).has_run
        else next(_record_names(experiments, folder), None)
    )
    if name is None:
        for record in sorted({folder / one.record for one in experiments} if has_tables(folder) else ()):
            if record.is_file():
                read_json(record, COPY_AGAIN)  # raises where it was altered
        known = "There is no study.json in it, and no manifest.json or record, such as about.json, of another command."
        todo = "Name a folder that a command wrote, which is what it was given as --out."
        if (folder / "experiment.json").is_file():
            todo = f"Run its experiment again: trisect study {folder / 'experiment.json'} --out FOLDER."
        raise StudyError(f"{folder} holds no study, and no other results.", known, todo)
    found = next((one for one in experiments if one.name == name and one.paged and not one.single), None)
    if found is None:
        known = "That leaves no page to be made from tables."
        raise StudyError(f"{folder} holds results of 'trisect {name}'.", known, "Name the folder of another command.")
    if not any((folder / "tables").glob("*.parquet")):
        known = f"A page of 'trisect {name}' is made from them."
        raise StudyError(f"There are no tables in {folder}.", known, "Name a folder that has them, or run it again.")
    return found


def _record_names(experiments: Sequence[Experiment[Any, Any]], folder: Path) -> Iterator[str]:
    """Which commands a folder's records name: those that wrote them, where they are experiments' own."""
    for one in experiments:
        with suppress(DamagedFileError):  # altered, or another program's
            record = folder / one.record
            words = str(read_json(record, "").get("command", "")).split() if record.is_file() else []
            if words[:2] == ["trisect", one.name]:
                yield one.name
