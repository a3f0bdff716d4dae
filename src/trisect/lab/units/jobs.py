"""The measurement of one of several models as a job: what it is asked, how that travels, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import polars as pl
import torch
from typing_extensions import TypedDict

from trisect.claims import claims_hash
from trisect.core.errors import SpecError
from trisect.core.files import Json, read_record, replace_file, write_json
from trisect.core.finding import About, Finding
from trisect.core.machine import Machine, processor, versions
from trisect.core.schema import Group, Setting, record, settings_of
from trisect.core.site import Site
from trisect.core.subject import Sample, Subject, TextOrPair, Texts
from trisect.core.tables import write_table
from trisect.engine.drive import Work
from trisect.engine.jobs import Files, JobContext, JobOrder, job, land
from trisect.lab.command import command
from trisect.lab.experiment import Experiment, Measured, Replicates, RunContext
from trisect.lab.folder import Folder
from trisect.lab.inputs import ModelSource, ModelWorkers, TextSource
from trisect.lab.records import read_about, record_of
from trisect.lab.run_folder import AGAIN, RunFolder, is_study, read_tables
from trisect.lab.subject import at_revision
from trisect.lab.units.settings import UnitFacts
from trisect.report.sheet import write_page
from trisect.text.hub import is_hub
from trisect.text.worlds import is_built_in

UNIT = "unit.json"  # beside one model's tables, record and page
SHOWN = ("texts", "tokens", "words", "pairs")  # facts that models are compared by


class UnitData(TypedDict):
    """What stands beside one model's tables and record; `made_on` is the processor and how many threads, or the GPU."""

    subject: str
    fingerprint: str
    family: str | None
    packages: list[str]
    page: str
    made_on: str


class UnitMeasured(NamedTuple):
    """What one model gave; `replicates` only where it was measured just now and not read back."""

    facts: UnitFacts
    tables: Mapping[str, pl.DataFrame]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    family: str | None
    packages: tuple[str, ...]
    replicates: Mapping[tuple[str | float | int | bool | None, ...], Replicates]


class _Judged(NamedTuple):
    measured: Measured[Any]
    about: About[Any]
    tables: Mapping[str, pl.DataFrame]
    findings: tuple[Finding, ...]
    page: Path


def measure_unit(
    one: Experiment[Any, Any], settings: Any, context: RunContext, place: str, subject: Subject
) -> UnitMeasured:
    """One model as an experiment measures it, with its own page, at `place` in the folder of the context."""
    own = RunContext(context.folder / place, context.machine, (subject,), context.given_texts, show=context.show)
    done = _measured(one, settings, own)
    facts = _unit_facts(subject.name, subject.fingerprint, f"{place}/{done.page.name}", done.about, done.findings)
    family, packages = done.measured.family, done.measured.packages
    return UnitMeasured(facts, done.tables, done.findings, done.about.notes, family, packages, done.measured.replicates)


def write_unit(one: Experiment[Any, Any], settings: Any, context: RunContext, made_on: str) -> None:
    """Measure the model of a context and leave all of it in its folder, for `read_unit`."""
    done, folder, subject = _measured(one, settings, context), context.folder, context.subject
    for name, table in done.tables.items():
        write_table(folder / "tables", name, table)
    write_json(folder / one.record, record_of(done.about))
    kept: UnitData = {
        "subject": subject.name,
        "fingerprint": subject.fingerprint,
        "family": done.measured.family,
        "packages": list(done.measured.packages),
        "page": done.page.name,
        "made_on": made_on,
    }
    write_json(folder / UNIT, kept)


def read_unit_data(folder: Path) -> UnitData:
    """What stands beside the tables of a unit's folder; raises DamagedFileError where it cannot be read."""
    return read_record(folder / UNIT, AGAIN, UnitData)


def read_unit(one: Experiment[Any, Any], folder: Path, place: str) -> UnitMeasured:
    """What `write_unit` left in a folder; its page will lie at `place`."""
    about, tables, kept = read_about(one, folder), read_tables(folder), read_unit_data(folder)
    found = tuple(one.findings(tables, about))
    facts = _unit_facts(kept["subject"], kept["fingerprint"], f"{place}/{kept['page']}", about, found)
    return UnitMeasured(facts, tables, found, about.notes, kept["family"], tuple(kept["packages"]), {})


def notes_by_model(done: Sequence[UnitMeasured]) -> tuple[str, ...]:
    """What all models' notes say, then what some say, with their names."""
    shared = [note for note in done[0].notes if all(note in of.notes for of in done)]
    own = [f"{of.facts.name}: {note}" for of in done for note in of.notes if note not in shared]
    return tuple(dict.fromkeys((*shared, *own)))


def _measured(one: Experiment[Any, Any], settings: Any, context: RunContext) -> _Judged:
    began = time.monotonic()
    context.folder.mkdir(parents=True, exist_ok=True)
    measured = one.measure(settings, context)
    words = measured.command
    about = About(
        one.name,
        command(one.name, settings, context.subjects, context.given_texts) if words is None else words,
        time.monotonic() - began if measured.seconds is None else measured.seconds,
        measured.notes,
        versions(*measured.packages),
        None if measured.family is None else claims_hash(measured.family),
        measured.facts,
    )
    tables = dict(measured.tables) | ({} if measured.judge is None else {"claims": measured.judge(about)})
    found = tuple(one.findings(tables, about))
    return _Judged(measured, about, tables, found, write_page(context.folder, one.page(tables, about)))


def _unit_facts(name: str, mark: str, page: str, about: About[Any], found: Sequence[Finding]) -> UnitFacts:
    return UnitFacts(name, mark, page, tuple(map(str, found)), tuple(_facts(about.facts)))


def _facts(facts: Any) -> Iterator[tuple[str, str]]:
    """What a model's own facts say that models are compared by."""
    assert is_dataclass(facts)
    for name in SHOWN:
        value = getattr(facts, name, None)
        if value is not None:
            yield name, f"{value:,}"


S = TypeVar("S")
HERE = "In this process (without --workers and --engine) it can be given."


def encoded(value: Any, sent: set[Path] | None = None) -> Json:
    """Settings as JSON, which `decoded` reads; files and folders of this machine go into `sent`, where there is one.

    Texts and workers are left out: texts travel as a file. Raises SpecError for what only this process can hold.
    """
    if is_dataclass(value) and not isinstance(value, type | Site):
        if isinstance(value, TextSource | ModelWorkers):
            return {"fresh": type(value).__name__}
        paths = {one.name for one in settings_of(type(value)) if isinstance(one, Group) or _names_a_place(one)}
        own = {one.name: (getattr(value, one.name), sent if one.name in paths else None) for one in fields(value)}
        return {"settings": {name: encoded(*given) for name, given in own.items()}}
    if isinstance(value, Site):
        return {"site": str(value)}
    if isinstance(value, str | Path) and sent is not None and (packed := _sent(value, sent)) is not None:
        return packed
    if isinstance(value, Path):
        return {"path": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"mapping": {str(name): encoded(item, sent) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [encoded(item, sent) for item in value]}
    known = f"Settings go to another process as JSON, and that is {type(value).__name__}."
    raise SpecError(f"{str(value)[:80]!r} was given with --workers or --engine.", known, HERE)


def _names_a_place(one: Setting) -> bool:
    return one.option.argument or one.has_path


def _sent(value: str | Path, sent: set[Path]) -> Json:
    """Where something of this machine's disk will lie; None for a text that names nothing here."""
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


def beside(model: object, names: Sequence[str]) -> set[Path]:
    """Checkpoints that lie beside a model's folder, and are read with it."""
    folder = Path(model).resolve() if isinstance(model, str | Path) else None
    found = {folder.parent / name for name in names} if folder is not None and folder.exists() else set[Path]()
    return {place for place in found if (place / "config.json").is_file()}


def decoded(kind: type[S], data: Json, laid: Path) -> S:
    """The settings of that class that `encoded` made JSON of; what was sent lies below the folder `laid` as below its root."""
    return _decoded(kind, data, laid)


def _decoded(kind: Any, data: Any, laid: Path) -> Any:
    match data:
        case {"settings": dict(own)}:
            groups = {one.name: one.kind for one in settings_of(kind) if isinstance(one, Group)}
            return kind(**{name: _decoded(groups.get(name), item, laid) for name, item in own.items()})
        case {"fresh": _}:
            return kind()
        case {"site": str(text)}:
            return Site.parse(text)
        case {"laid": str(place), **more}:
            path = laid / place
            return path if more.get("path") else f"{path}{more.get('behind', '')}"
        case {"path": str(text)}:
            return Path(text)
        case {"mapping": dict(own)}:
            return {name: _decoded(None, item, laid) for name, item in own.items()}
        case {"tuple": list(items)}:
            return tuple(_decoded(None, item, laid) for item in items)
        case {"list": list(items)}:
            return [_decoded(None, item, laid) for item in items]
        case _:
            return data


def lay_out(parts: Mapping[str, Path], folder: Path) -> None:
    """Have what was sent lie below a folder as it lay below its root, without a copy where the disk allows that."""
    for place, source in parts.items():
        target = folder / _below_root(Path(place))
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            _second_name(source, target)
        else:
            shutil.copytree(source, target, copy_function=_second_name, dirs_exist_ok=True)


def _second_name(source: str | Path, target: str | Path) -> None:
    if Path(target).exists():  # a study brings its text, and a run of it too
        return
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)


def find_experiment(module: str, name: str) -> Experiment[Any, Any]:
    """The experiment of that name, declared in that module."""
    found = (one for one in vars(import_module(module)).values() if isinstance(one, Experiment) and one.name == name)
    return next(found)


def write_texts(texts: Texts, path: Path) -> None:
    """Texts as a file: what they are called, then a line each."""
    head = {"name": texts.name, "fingerprint": texts.fingerprint}
    head |= {"notes": list(texts.notes), "options": list(texts.options), "articles": texts.articles is not None}

    def write(scratch: Path) -> None:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(json.dumps(head) + "\n")
            numbers = iter(()) if texts.articles is None else texts.articles()
            for text in texts.texts():
                if isinstance(text, Sample) and not all(isinstance(f, str) for f in (*text.audio, *text.images)):
                    known = "Another process reads sound and images from their files."
                    raise SpecError("Samples in memory were given with workers.", known, "Leave --workers out.")
                body = (
                    {"text": text.text, "audio": text.audio, "images": text.images}
                    if isinstance(text, Sample)
                    else text
                )
                file.write(json.dumps([body, next(numbers, None)]) + "\n")

    replace_file(path, write, durable=False)


def read_texts(path: Path) -> Texts:
    """The texts that `write_texts` wrote, read from the file whenever they are gone through."""
    with path.open(encoding="utf-8") as file:
        head = json.loads(file.readline())

    def lines() -> Iterator[Sequence[Any]]:
        with path.open(encoding="utf-8") as file:
            file.readline()
            for line in file:
                yield json.loads(line)

    def texts() -> Iterator[TextOrPair]:
        for text, _ in lines():
            if isinstance(text, dict):
                yield Sample(text["text"], tuple(text["audio"]), tuple(text["images"]))
            else:
                yield tuple(text) if isinstance(text, list) else text

    def articles() -> Iterator[int | None]:
        return (article for _, article in lines())

    notes, options = tuple(head["notes"]), tuple(head["options"])
    return Texts(head["name"], texts, notes, head["fingerprint"], options, articles if head["articles"] else None)


TEXTS = "texts"


@record
class UnitJob:
    """One model to be measured: by which experiment, declared in which module, with which settings, and what it is called.

    `laid` are the places at home of what travelled with it, by the name under which it is fetched.
    """

    module: str
    experiment: str
    settings: dict[str, Json]
    called: str
    group: str
    laid: dict[str, str]
    texts: bool


@job
def measure_model(asked: UnitJob, context: JobContext) -> None:
    """Open a model, measure it as if it were alone, and leave tables, record and page in the scratch folder."""
    one = find_experiment(asked.module, asked.experiment)
    with tempfile.TemporaryDirectory(prefix="trisect-") as laid:
        lay_out({place: context.fetch(name) for name, place in asked.laid.items()}, Path(laid))
        settings = decoded(one.settings, asked.settings, Path(laid))
        source: ModelSource = getattr(settings, asked.group)
        context.say(0.0, f"loading {asked.called}")
        subject: Any = source.open()
        if subject.name != asked.called:
            subject = replace(subject, name=asked.called)
        texts = read_texts(context.fetch(TEXTS)) if asked.texts else None
        run = RunContext(context.scratch, Machine(quiet=True), (subject,), texts, show=context.say)
        write_unit(one, settings, run, made_on(uses_gpu(source)))


def uses_gpu(source: ModelSource) -> bool:
    """Whether a model is opened on a GPU."""
    return torch.cuda.is_available() and (source.device != "cpu" or source.device_map is not None)


def made_on(gpu: bool, threads: int | None = None) -> str:
    """What sums are computed by: the processor and the threads (null: of this process), or the GPU; last digits follow from it."""
    if gpu:
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads() if threads is None else threads
    return f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, threads: {threads}"


@dataclass(frozen=True, eq=False)
class AskedUnit:
    """One of several models: its number from 1, how it is opened, what it is called, and where its page will lie."""

    number: int
    source: ModelSource
    called: str
    page: str


@dataclass(frozen=True, eq=False)
class UnitWork(Work):
    """One model's measurement, as the driver gives it out; `check` raises where what all models read was changed meanwhile."""

    unit: AskedUnit
    key: str
    one: Experiment[Any, Any]
    settings: Any
    group: str
    folder: RunFolder
    texts: Path | None
    far: bool
    check: Callable[[], object]

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        return f"{self.one.name} {self.unit.called}"

    def order(self) -> JobOrder:
        """It as a job; on other machines with what lies on this one's disk."""
        sent = set[Path]() if self.far else None
        own = replace(self.settings, **{self.group: self.unit.source}, units=None)
        settings: Any = encoded(own, sent)
        if sent is not None:
            sent |= beside(self.unit.source.model, getattr(own, "checkpoints", ()))
        places = {f"part-{i}": place for i, place in enumerate(sorted(sent or ()))}
        needs, names = dict(places), {name: str(place) for name, place in places.items()}
        asked = UnitJob(
            type(self.one).__module__,
            self.one.name,
            settings,
            self.unit.called,
            self.group,
            names,
            self.texts is not None,
        )
        needs |= {} if self.texts is None else {TEXTS: self.texts}
        return JobOrder(measure_model, asked, self.folder.path, needs)

    def land(self, files: Files) -> None:
        """Keep the model's files: all are sent when it is measured."""
        with self.folder.unit(self.key, self.one.name) as place:
            land(files, place)
            self.check()
