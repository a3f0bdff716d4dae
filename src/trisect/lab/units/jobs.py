"""Measuring one of several models, as a job in another process or on another machine."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import polars as pl
import torch
from typing_extensions import TypedDict

from trisect.core.errors import SpecError
from trisect.core.files import Json, read_record, replace_file, write_json
from trisect.core.finding import About, Finding
from trisect.core.machine import Machine, processor
from trisect.core.schema import Group, record, settings_of
from trisect.core.site import Site
from trisect.core.subject import InputSample, TextOrPair, Texts
from trisect.core.tables import write_table
from trisect.engine.drive import JobWork
from trisect.engine.jobs import Files, JobContext, JobOrder, job, write_files
from trisect.lab.experiment import Experiment, RunContext, UnitFacts
from trisect.lab.folder import Folder
from trisect.lab.inputs import ModelSource, ModelWorkers, TextSource
from trisect.lab.records import command, conclusion, draw_page, note_invented, read_about, record_of
from trisect.lab.run_folder import DELETE_IT_ADVICE, RunFolder, is_study, read_tables
from trisect.lab.subject import at_revision, for_texts, is_study_model
from trisect.report.sheet import write_page
from trisect.text.hub import is_hub
from trisect.text.worlds import is_built_in

UNIT = "unit.json"  # beside one model's tables, record and page
TEXTS = "texts"
COMPARED_FACTS = ("texts", "tokens", "words", "pairs")  # facts that models are compared by
HERE = "In this process (without --workers and --engine) it can be given."
S = TypeVar("S")


class _UnitData(TypedDict):
    """The record beside a model's tables; `hardware` is the processor and its number of threads, or the GPU."""

    subject: str
    fingerprint: str
    family: str | None
    packages: list[str]
    page: str
    hardware: str


class UnitMeasured(NamedTuple):
    """The result of one model."""

    facts: UnitFacts
    tables: Mapping[str, pl.DataFrame]
    findings: tuple[Finding, ...]
    about: About[Any]
    family: str | None
    packages: tuple[str, ...]


def measure_unit(experiment: Experiment[Any, Any], settings: Any, context: RunContext, place: str = "") -> UnitMeasured:
    """Measure one model of a context, with its page, which will be at `place` below the page of all."""
    began = time.monotonic()
    context.folder.mkdir(parents=True, exist_ok=True)
    measured = context.measure(experiment, settings)
    measured = measured if is_study_model(context.subject) else note_invented(measured, settings)
    words = command(experiment.name, settings, context.subjects, context.given_texts)
    about, tables = conclusion(experiment, measured, words, time.monotonic() - began)
    page = write_page(context.folder, draw_page(experiment, tables, about)).name
    findings, subject = tuple(experiment.findings(tables, about)), context.subject
    facts = _unit_facts(subject.name, subject.fingerprint, f"{place}/{page}" if place else page, about, findings)
    return UnitMeasured(facts, tables, findings, about, measured.family, measured.packages)


def write_unit(experiment: Experiment[Any, Any], settings: Any, context: RunContext, hardware: str) -> None:
    """Measure the model of a context and write everything to its folder, for `read_unit`."""
    done, folder = measure_unit(experiment, settings, context), context.folder
    for name, table in done.tables.items():
        write_table(folder / "tables", name, table)
    write_json(folder / experiment.record, record_of(done.about))
    unit: _UnitData = {
        "subject": done.facts.name,
        "fingerprint": done.facts.fingerprint,
        "family": done.family,
        "packages": list(done.packages),
        "page": done.facts.page,
        "hardware": hardware,
    }
    write_json(folder / UNIT, unit)


def read_unit_data(folder: Path) -> _UnitData:
    """Read the record beside the tables of a unit's folder; raises DamagedFileError if it is unreadable."""
    return read_record(folder / UNIT, DELETE_IT_ADVICE, _UnitData)


def read_unit(experiment: Experiment[Any, Any], folder: Path, place: str) -> UnitMeasured:
    """Read the result of `write_unit` from a folder; its page will be at `place`."""
    about, tables, unit = read_about(experiment, folder), read_tables(folder), read_unit_data(folder)
    findings = tuple(experiment.findings(tables, about))
    facts = _unit_facts(unit["subject"], unit["fingerprint"], f"{place}/{unit['page']}", about, findings)
    return UnitMeasured(facts, tables, findings, about, unit["family"], tuple(unit["packages"]))


def _unit_facts(name: str, mark: str, page: str, about: About[Any], findings: Sequence[Finding]) -> UnitFacts:
    shown = ((fact, getattr(about.facts, fact, None)) for fact in COMPARED_FACTS)
    facts = tuple((fact, f"{value:,}") for fact, value in shown if value is not None)
    return UnitFacts(name, mark, page, tuple(map(str, findings)), facts)


def notes_by_model(done: Sequence[UnitMeasured]) -> tuple[str, ...]:
    """Notes that all models share, then others with the models' names."""
    shared = [note for note in done[0].about.notes if all(note in unit.about.notes for unit in done)]
    by_model = [f"{unit.facts.name}: {note}" for unit in done for note in unit.about.notes if note not in shared]
    return tuple(dict.fromkeys((*shared, *by_model)))


# --- settings as JSON


def encode_settings(value: Any, sent: set[Path] | None = None) -> Json:
    """Settings as JSON for `decode_settings`; files and folders of this machine are added to `sent`, unless None.

    Texts and workers are left out: texts travel as a file. Raises SpecError for what only this process can hold.
    """
    if is_dataclass(value) and not isinstance(value, type | Site):
        if isinstance(value, TextSource | ModelWorkers):
            return {"fresh": type(value).__name__}
        places = {
            field.name
            for field in settings_of(type(value))
            if isinstance(field, Group) or field.option.argument or field.has_path
        }
        names = [field.name for field in fields(value)]
        items = {n: encode_settings(getattr(value, n), sent if n in places else None) for n in names}
        return {"settings": items}
    if isinstance(value, Site):
        return {"site": str(value)}
    if isinstance(value, str | Path) and sent is not None and (packed := _transfer(value, sent)) is not None:
        return packed
    if isinstance(value, Path):
        return {"path": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"mapping": {str(name): encode_settings(item, sent) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [encode_settings(item, sent) for item in value]}
    reason = f"Settings go to another process as JSON, and that is {type(value).__name__}."
    raise SpecError(f"{str(value)[:80]!r} was given with --workers or --engine.", reason, HERE)


def _transfer(value: str | Path, sent: set[Path]) -> Json:
    """The place of a file or folder that was sent; None for a text that is no path of this machine."""
    if isinstance(value, str) and (is_built_in(value) or is_hub(value) or not value.strip() or len(value) > 1_000):
        return None
    revision = at_revision(value)
    if revision is not None and Path(revision.base).is_dir():
        place = Path(revision.base).resolve()
        sent.add(place / revision.revision)
        return {"laid": _below_root(place), "behind": f"@{revision.revision}"}
    place = Path(value).resolve()
    if not place.exists():
        return None
    if place.parent.name == "runs" and is_study(study := place.parent.parent):
        sent.add(Folder(study).corpus)  # whose vocabulary a run of it reads
    sent.add(place)
    return {"laid": _below_root(place), "path": isinstance(value, Path)}


def _below_root(place: Path) -> str:
    return place.relative_to(place.anchor).as_posix()


def decode_settings(kind: type[S], data: Json, laid: Path) -> S:
    """The settings from the JSON of `encode_settings`; sent files are below the folder `laid` as below its root."""

    def read(kind: Any, data: Any) -> Any:
        match data:
            case {"settings": dict(items)}:
                groups = {field.name: field.kind for field in settings_of(kind) if isinstance(field, Group)}
                return kind(**{name: read(groups.get(name), item) for name, item in items.items()})
            case {"fresh": _}:
                return kind()
            case {"site": str(text)}:
                return Site.parse(text)
            case {"laid": str(place), **more}:
                return laid / place if more.get("path") else f"{laid / place}{more.get('behind', '')}"
            case {"path": str(text)}:
                return Path(text)
            case {"mapping": dict(items)}:
                return {name: read(None, item) for name, item in items.items()}
            case {"tuple": list(items)}:
                return tuple(read(None, item) for item in items)
            case {"list": list(items)}:
                return [read(None, item) for item in items]
            case _:
                return data

    return read(kind, data)


def arrange_files(parts: Mapping[str, Path], folder: Path) -> None:
    """Place what was sent below a folder as it was below its root, by hard links if possible."""

    def place(source: str | Path, target: str | Path) -> None:
        if not Path(target).exists():  # a study brings its text, and a run of it too
            try:
                os.link(source, target)
            except OSError:  # another disk, or one without links
                shutil.copy2(source, target)

    for path, source in parts.items():
        target = folder / _below_root(Path(path))
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            place(source, target)
        else:
            shutil.copytree(source, target, copy_function=place, dirs_exist_ok=True)


def write_texts(texts: Texts, path: Path) -> None:
    """Write texts to a file: their names, then a line each."""
    head = {name: getattr(texts, name) for name in ("name", "fingerprint", "notes", "options")}
    head["articles"] = texts.articles is not None

    def write(scratch: Path) -> None:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(json.dumps(head) + "\n")
            numbers = iter(()) if texts.articles is None else texts.articles()
            for text in texts.texts():
                body: Any = text
                if isinstance(text, InputSample):
                    body = {"text": text.text, "audio": text.audio, "images": text.images}
                    if not all(isinstance(file, str) for file in (*text.audio, *text.images)):
                        reason = "Another process reads sound and images from their files."
                        raise SpecError("Samples in memory were given with workers.", reason, "Leave --workers out.")
                file.write(json.dumps([body, next(numbers, None)]) + "\n")

    replace_file(path, write, durable=False)


def read_texts(path: Path) -> Texts:
    """The texts of `write_texts`, read from the file at each iteration."""

    def lines() -> Iterator[Any]:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)

    def as_text(body: Any) -> TextOrPair:
        if isinstance(body, dict):
            return InputSample(body["text"], tuple(body["audio"]), tuple(body["images"]))
        return tuple(body) if isinstance(body, list) else body

    head = next(lines())
    articles = (lambda: (article for _, article in islice(lines(), 1, None))) if head["articles"] else None
    notes, options = tuple(head["notes"]), tuple(head["options"])
    texts = lambda: (as_text(body) for body, _ in islice(lines(), 1, None))  # noqa: E731
    return Texts(head["name"], texts, notes, head["fingerprint"], options, articles)


# --- jobs


@record
class _UnitJob:
    """A model to measure: the experiment, its module, settings, and the model's name.

    `laid` are the places at home of what travelled with it, by the name under which it is fetched.
    """

    module: str
    experiment: str
    settings: dict[str, Json]
    called: str
    group: str
    laid: dict[str, str]
    texts: bool


def find_experiment(module: str, name: str) -> Experiment[Any, Any]:
    """The experiment of a name that a module declares."""
    declared = vars(import_module(module)).values()
    return next(value for value in declared if isinstance(value, Experiment) and value.name == name)


@job
def _measure_model(unit: _UnitJob, context: JobContext) -> None:
    """Open a model, measure it alone, and write tables, record and page to the scratch folder."""
    experiment = find_experiment(unit.module, unit.experiment)
    with tempfile.TemporaryDirectory(prefix="trisect-") as laid:
        arrange_files({place: context.fetch(name) for name, place in unit.laid.items()}, Path(laid))
        settings = decode_settings(experiment.settings, unit.settings, Path(laid))
        source: ModelSource = getattr(settings, unit.group)
        context.report(0.0, f"loading {unit.called}")
        subject: Any = source.open()
        if subject.name != unit.called:
            subject = replace(subject, name=unit.called)
        texts = read_texts(context.fetch(TEXTS)) if unit.texts else None
        run = RunContext(context.scratch, Machine(quiet=True), (for_texts(subject, texts),), texts, show=context.report)
        write_unit(experiment, settings, run, hardware(uses_gpu(source)))


def uses_gpu(source: ModelSource) -> bool:
    """Whether a model is opened on a GPU."""
    return torch.cuda.is_available() and (source.device != "cpu" or source.device_map is not None)


def hardware(gpu: bool) -> str:
    """The hardware that sums depend on in their last digits: processor and threads, or GPU."""
    if gpu:
        return torch.cuda.get_device_name()
    return f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, threads: {torch.get_num_threads()}"


@dataclass(frozen=True, eq=False)
class UnitWork(JobWork):
    """A model's measurement as a job; `check` raises if inputs of all models have changed meanwhile.

    `settings` name this model alone, in their field `group`.
    """

    called: str
    key: str
    experiment: Experiment[Any, Any]
    settings: Any
    group: str
    folder: RunFolder
    texts: Path | None
    far: bool
    check: Callable[[], object]

    @property
    def title(self) -> str:
        """Its title in messages and progress lines."""
        return f"{self.experiment.name} {self.called}"

    def order(self) -> JobOrder:
        """The job; for other machines with the files that it needs, checkpoints included."""
        sent = set[Path]() if self.far else None
        settings: Any = encode_settings(self.settings, sent)
        model = getattr(self.settings, self.group).model
        if sent is not None and isinstance(model, str | Path) and (place := Path(model).resolve()).exists():
            checkpoints = (place.parent / name for name in getattr(self.settings, "checkpoints", ()))
            sent |= {folder for folder in checkpoints if (folder / "config.json").is_file()}
        places = {f"part-{i}": place for i, place in enumerate(sorted(sent or ()))}
        laid = {name: str(place) for name, place in places.items()}
        module, has_texts = type(self.experiment).__module__, self.texts is not None
        unit = _UnitJob(module, self.experiment.name, settings, self.called, self.group, laid, has_texts)
        needs = places if self.texts is None else {**places, TEXTS: self.texts}
        return JobOrder(_measure_model, unit, self.folder.path, needs)

    def land(self, files: Files) -> None:
        """Store the model's files; all are sent when it is measured."""
        with self.folder.unit(self.key, self.experiment.name) as place:
            write_files(files, place)
            self.check()
