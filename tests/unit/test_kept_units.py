"""A command over several models that was stopped: finished models are kept, used again where they are the same, gone at the end."""

from __future__ import annotations

import errno
import gc
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from click.testing import CliRunner
from pydantic import Field

import trisect
from trisect.cli import main
from trisect.core.errors import ModelError, SpecError, StudyError
from trisect.core.files import digest, write_json
from trisect.core.finding import Estimate, Finding
from trisect.core.schema import MAX_INT, Option, record
from trisect.core.subject import Texts
from trisect.core.tables import frame
from trisect.engine.drive import drive
from trisect.engine.start import Here
from trisect.lab import driver, records, subject
from trisect.lab.experiment import Experiment, Measured
from trisect.lab.inputs import Models, ModelSource, ModelWorkers, TextSource, Units
from trisect.lab.run_folder import MANIFEST, RunFolder
from trisect.lab.units import jobs as units_jobs
from trisect.lab.units import page as units_page
from trisect.lab.units import run as units_run
from trisect.lab.units.jobs import UnitWork
from trisect.report.sheet import Document

FILES_MARK = subject.files_mark


@record
class WeighSettings:
    """What is weighed."""

    source: Models
    read: TextSource | None = None
    grams: Annotated[int, Field(description="How many.", le=MAX_INT)] = 3
    corpus: Annotated[str | Path, Field(description="A text.")] | None = None
    checkpoints: Annotated[tuple[str, ...], Field(description="Stones before."), Option(many="commas")] = ()
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)


@dataclass(frozen=True)
class WeighFacts:
    """What was weighed."""

    subject: str
    grams: int


@dataclass(frozen=True)
class Stone:
    """A model as far as this needs one."""

    name: str
    fingerprint: str
    options: tuple[str, ...] = ("MODEL",)


measured: list[str] = []


def measure(settings, context):
    stone, texts = context.subject, context.given_texts
    measured.append(stone.name)
    value = float(len(stone.fingerprint) * settings.grams + (0 if texts is None else sum(map(len, texts.texts()))))
    with context.progress("weighing") as step:
        step(1, 2)
    rows = [{"subject": stone.name, "measure": "grams", "value": value, "n": 1}]
    return Measured({"measures": frame("measures", rows)}, WeighFacts(stone.name, settings.grams), ("A stone.",))


def findings(tables, about):
    value = tables["measures"]["value"][0] if "value" in tables["measures"].columns else None
    return (Finding("grams", f"{value} g.", "g", (Estimate("weight", value),)),)


def page(tables, about):
    return Document("report.html", str(tables["measures"]["value"].to_list()))


class Weigh(Experiment[WeighSettings, WeighFacts]):
    """Weigh a stone."""

    settings = WeighSettings
    facts = WeighFacts
    out = "weigh-{model}"
    record = "weigh.json"

    def __init__(self, name="weigh"):
        self.name = name

    def measure(self, settings, context):
        return measure(settings, context)

    def findings(self, tables, about):
        return findings(tables, about)

    def page(self, tables, about):
        return page(tables, about)


WEIGH = Weigh()


@pytest.fixture(autouse=True)
def stones(tmp_path, monkeypatch):
    """Folders that hold a stone each, opened by reading it."""
    measured.clear()
    for number in (1, 2, 3):
        place = tmp_path / "stones" / f"stone{number}"
        place.mkdir(parents=True)
        (place / "config.json").write_text("x" * number)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # these two are most of the time
    monkeypatch.setattr(units_run, "name_before", lambda model: getattr(model, "name", None) or Path(model).name)
    monkeypatch.setattr(units_run, "files_mark", _mark)
    monkeypatch.setattr(subject, "files_mark", _mark)
    monkeypatch.setattr(units_run, "check_exists", lambda model, **options: None)
    monkeypatch.setattr(driver, "check_exists", lambda model, **options: None)
    monkeypatch.setattr(ModelSource, "open", lambda source: _stone(Path(source.model)))
    monkeypatch.setattr(units_page, "page", _plain_page)  # its figures take seconds


def _mark(model, *options):
    return (Path(model) / "config.json").read_text() if isinstance(model, str | Path) else ""


def _plain_page(tables, about):
    return Document("report.html", f"{tables['over_models'].rows()} {about.notes}")


def _stone(place: Path) -> Any:
    return Stone(place.name, (place / "config.json").read_text())


def asked(tmp_path: Path, *names: str, **named: Any) -> WeighSettings:
    places = tuple(str(tmp_path / "stones" / name) for name in names or ("stone1", "stone2", "stone3"))
    return WeighSettings(ModelSource(places), **{"units": "models", **named})


def left(out: Path) -> dict[str, bytes]:
    """Everything that a run left but for seconds and its manifest, which holds checksums of them."""
    found = {p.relative_to(out).as_posix(): p for p in sorted(out.rglob("*")) if p.is_file()}
    timed = (".lock", "manifest.json", "weigh.json")
    return {name: path.read_bytes() for name, path in found.items() if name not in timed}


def weigh(settings: WeighSettings, out: Path) -> None:
    driver.run(WEIGH, settings, out, quiet=True)


def stop_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """End a run as Ctrl-C does, before its next file after so many would be there."""
    own, done = Path.replace, [0]

    def counted(self, target):
        done[0] += 1
        if done[0] > writes:
            raise KeyboardInterrupt
        return own(self, target)

    monkeypatch.setattr(Path, "replace", counted)


def test_stopped_before_any_file_a_run_ends_with_the_same_files(tmp_path):
    two = asked(tmp_path, "stone1", "stone2")
    weigh(two, tmp_path / "whole")
    whole, writes, again = left(tmp_path / "whole"), 0, list[int]()
    assert sum("models/" in name and name.endswith(".html") for name in whole) == 2
    while True:
        with pytest.MonkeyPatch.context() as patched:
            stop_after(patched, writes)
            try:
                weigh(two, tmp_path / f"out{writes}")
                break
            except KeyboardInterrupt:
                pass
        measured.clear()
        weigh(two, tmp_path / f"out{writes}")
        assert left(tmp_path / f"out{writes}") == whole
        again.append(len(measured))
        writes += 1
    assert again[0] == 2
    assert again == sorted(again, reverse=True)
    assert set(again) == {0, 1, 2}


def stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: WeighSettings | None = None, **named: Any
) -> Path:
    """A folder in which two of three models are finished."""
    own, number = units_run.write_unit, [0]

    def third_stops(*given):
        number[0] += 1
        if number[0] == 3:
            raise KeyboardInterrupt
        own(*given)

    with monkeypatch.context() as patched:
        patched.setattr(units_run, "write_unit", third_stops)
        with pytest.raises(KeyboardInterrupt):
            weigh(settings or asked(tmp_path, **named), tmp_path / "out")
    measured.clear()
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ("nothing", "3"),
        ("weights", "13"),
        ("a kept table", "13"),
        ("a setting", "123"),
        ("the texts", "123"),
        ("the code", "123"),
        ("the lists of units", "123"),
        ("checkpoints: none", "3"),
        ("checkpoints: files", "123"),
        ("checkpoints: an adapter", "123"),  # a model whose files nobody can mark
        ("commit: the same", "3"),
        ("commit: another", "123"),
        ("commit: unknown", "123"),
        ("files of a dataset", "123"),
    ],
)
def test_only_what_is_the_same_is_used_again(tmp_path, monkeypatch, change, again):
    kind, _, what = change.partition(": ")
    earlier, data = tmp_path / "stones" / "earlier" / "config.json", tmp_path / "texts" / "train.txt"
    for path in (earlier, data):
        path.parent.mkdir()
        path.write_text("z")
    commits = ["" if what == "unknown" else "1"]
    monkeypatch.setattr(records, "revision_of", lambda where: commits[-1])
    named: dict[str, Any] = {
        "checkpoints": {"checkpoints": ("earlier", "stone1")},
        "commit": {"corpus": "hf:someone/texts"},
        "files of a dataset": {"corpus": f"hf:{data.parent}"},
    }.get(kind, {})
    out, settings = stopped(tmp_path, monkeypatch, **named), asked(tmp_path, **named)
    units = {json.loads((u / "unit.json").read_text())["body"]["subject"]: u for u in RunFolder(out).units}
    assert sorted(units) == ["stone1", "stone2"]
    match change:
        case "weights":
            (tmp_path / "stones" / "stone1" / "config.json").write_text("y")
        case "a kept table":
            table = units["stone1"] / "tables" / "measures.parquet"
            table.write_bytes(table.read_bytes()[:-1])
        case "a setting":
            settings = replace(settings, grams=4)
        case "the texts":
            settings = replace(settings, read=TextSource(["a text"]))
        case "the code":
            monkeypatch.setattr(units_run, "code_hash", lambda: "other")
        case "the lists of units":
            for unit in units.values():
                (unit / MANIFEST).write_text("{")
        case "checkpoints: files" | "checkpoints: an adapter":
            earlier.write_text("other" if what == "files" else "")
        case "commit: another":
            commits.append("2")
        case "files of a dataset":
            data.write_text("b")
    weigh(settings, out)
    assert measured == [f"stone{n}" for n in again]
    assert not RunFolder(out).units


@pytest.mark.parametrize("change", ["none", "another key", "content", "a file", "the list"])
def test_a_unit_is_there_whole_and_under_its_own_key_or_gone(tmp_path, change):
    folder, key = RunFolder(tmp_path), digest("asked")
    with folder.unit(key, "weigh") as place:
        (place / "x").write_text("x")
    (unit,) = folder.units
    match change:
        case "another key":
            other = unit.rename(folder.unit_folder(digest("other")))
            assert folder.resume(key) is None
            key, unit = digest("other"), other
        case "content":
            (unit / "x").write_text("y")
        case "a file":
            (unit / "x").unlink()
        case "the list":
            (unit / MANIFEST).write_text("{")
    assert folder.resume(key) == (unit if change == "none" else None)
    assert unit.exists() == (change == "none")


def test_what_a_killed_call_had_half_written_goes_and_a_list_in_it_makes_no_run(tmp_path):
    """Killed between the list of a unit's files and its rename: no file of it lands as a run of the folder."""
    half = tmp_path / "out" / ".unit.77-0123abcd.trisect-part"
    (half / "tables").mkdir(parents=True)
    write_json(half / MANIFEST, {"experiment": "weigh", "run": "0" * 32, "files": {}})
    RunFolder(tmp_path / "out").check_empty("results")
    assert (RunFolder(tmp_path / "out").command, RunFolder(tmp_path / "out").units) == ("", [])
    with RunFolder(tmp_path / "out").stage():
        pass
    assert list((tmp_path / "out").iterdir()) == []


def test_revisions_beside_a_folder_are_known_by_all_of_their_files(tmp_path, monkeypatch):
    monkeypatch.setattr(subject, "files_mark", FILES_MARK)
    places = [str(tmp_path / "stones" / f"stone{i}") for i in (1, 2)]
    named = ("stone2", "stone3")
    first = subject.checkpoints_mark(places[0], named)
    assert len(first) == 32
    assert subject.checkpoints_mark(places[1], named) == first != subject.checkpoints_mark(places[0], named[:1])
    (tmp_path / "stones" / "stone3" / "model.safetensors").write_text("other")
    assert subject.checkpoints_mark(places[0], named) != first
    (tmp_path / "stones" / "stone3" / "adapter_config.json").write_text("{}")
    assert subject.checkpoints_mark(places[0], named) == ""
    with pytest.raises(ModelError, match="has no revision 'stone9'"):
        subject.checkpoints_mark(places[0], ("stone9",))


def test_epochs_of_a_study_are_known_by_their_files(tmp_path, monkeypatch):
    run, kept = SimpleNamespace(id="run", training=SimpleNamespace(epochs=1)), tmp_path / "run" / "epochs"
    kept.mkdir(parents=True)
    study = SimpleNamespace(run=lambda name: tmp_path / name / "run.json")
    monkeypatch.setattr(subject, "_find_study", lambda *given: (study, None))
    monkeypatch.setattr(subject, "_find_run", lambda *given: run)
    monkeypatch.setattr(subject, "epoch_weights", lambda *given: ["epochs/0", "epochs/1"])
    marks = list[str]()
    for text in ("a", "a", "b"):
        for number in (0, 1):
            (kept / str(number)).write_text(text)
        marks.append(subject.checkpoints_mark("study", ("0",)))
    assert marks[0] == marks[1] != marks[2]


def test_a_file_that_changes_between_two_models_is_met(tmp_path, monkeypatch):
    """Each model reads it for itself: the first would be of another than the second."""
    (tmp_path / "texts").mkdir()
    path = tmp_path / "texts" / "train.txt"
    path.write_text("a")
    own = units_run.write_unit

    def edit(*given):
        path.write_text("b" if measured else "a")
        own(*given)

    with monkeypatch.context() as patched:
        patched.setattr(units_run, "write_unit", edit)
        with pytest.raises(StudyError) as caught:
            weigh(asked(tmp_path, corpus=tmp_path / "texts"), tmp_path / "out")
    assert caught.value.problem.startswith(f"{tmp_path / 'texts'} was changed")
    assert measured == ["stone1", "stone2"]
    measured.clear()
    path.write_text("a")  # the second, of which nobody knows what it read, is not used
    weigh(asked(tmp_path, corpus=tmp_path / "texts"), tmp_path / "out")
    assert measured == ["stone2", "stone3"]


def test_a_model_more_takes_what_is_kept(tmp_path, monkeypatch):
    out = stopped(tmp_path, monkeypatch)
    weigh(asked(tmp_path, "stone2", "stone1"), out)
    assert measured == []
    with pytest.raises(StudyError, match="other weights"):
        weigh(asked(tmp_path, "stone1", "stone2"), out)
    weigh(asked(tmp_path, "stone2", "stone1"), out)
    assert measured == ["stone2", "stone1"]  # nothing is kept of a run that ended


@pytest.mark.parametrize("other", ["device", "device_map", "workers", "relative paths"])
def test_the_same_question_takes_the_place_of_the_first_whatever_machine_answers_it(tmp_path, monkeypatch, other):
    (tmp_path / "texts").mkdir()
    monkeypatch.setattr(units_run, "run_jobs", lambda works, machine, device, folder: drive(works, Here(folder)))
    again = settings = asked(tmp_path, corpus=tmp_path / "texts")
    weigh(settings, tmp_path / "out")
    match other:
        case "device" | "device_map":
            again = replace(settings, source=replace(settings.source, **{other: "cpu"}))
        case "workers":
            again = replace(settings, machine=ModelWorkers(2))
        case _:
            monkeypatch.chdir(tmp_path)
            again = asked(Path(), corpus=Path("texts"))
    measured.clear()
    weigh(again, tmp_path / "out")
    assert measured == ["stone1", "stone2", "stone3"]
    with pytest.raises(StudyError, match="--grams 4"):
        weigh(replace(again, grams=4), tmp_path / "out")
    (tmp_path / "texts" / "more").write_text("a")
    with pytest.raises(StudyError, match="other files"):
        weigh(again, tmp_path / "out")


def test_a_folder_with_models_of_another_command_is_refused(tmp_path, monkeypatch):
    out = stopped(tmp_path, monkeypatch)
    other = Weigh("lift")
    with pytest.raises(StudyError) as caught:
        driver.run(other, asked(tmp_path), out, quiet=True)
    assert caught.value.problem.startswith(str(out))
    assert "'trisect weigh'" in caught.value.reason
    assert not measured
    weigh(asked(tmp_path), out)
    assert measured == ["stone3"]


def test_check_says_what_a_stopped_command_left_and_how_to_go_on(tmp_path, monkeypatch):
    out = stopped(tmp_path, monkeypatch)
    done = CliRunner().invoke(main, ["check", str(out), "--quiet"])
    assert done.exit_code == 0
    assert f"{out} has partial results of 'trisect weigh'" in done.output
    table = next(out.glob(".unit-*/tables/measures.parquet"))
    table.write_bytes(table.read_bytes()[:-1])
    (error,) = trisect.check(out)
    assert error.problem == f"{table} was altered."
    assert CliRunner().invoke(main, ["check", str(out), "--quiet"]).exit_code == 2


def test_nothing_stays_where_nothing_was_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(units_run, "write_unit", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        weigh(asked(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_full_from_the_start_leaves_nothing(tmp_path, monkeypatch):
    def full(self, *given):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(StudyError, match="The disk is full"):
            weigh(asked(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_models_in_memory_are_measured_again(tmp_path, monkeypatch):
    class Opened(Stone):
        objective = shape = notes = None

        def projections(self): ...
        def batches(self): ...
        def trace(self): ...
        def each(self): ...
        def score(self): ...

    monkeypatch.setattr(ModelSource, "open", lambda source: source.model)
    stones = tuple(Opened(name, name) for name in ("a", "b", "c"))
    settings = WeighSettings(ModelSource(stones), units="models")
    stopped(tmp_path, monkeypatch, settings)
    weigh(settings, tmp_path / "out")
    assert measured == ["a", "b", "c"]
    with pytest.raises(SpecError) as caught:
        weigh(replace(settings, machine=ModelWorkers(2)), tmp_path / "other")
    assert caught.value.problem == "--workers 2 was given with a, which is in memory."


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_as_jobs_the_same_files_come_of_it(tmp_path, monkeypatch, engine):
    """As JSON and files, for other machines with what lies on this one's disk."""
    texts = TextSource(["a text", "another\ud800"[:7]])
    weigh(asked(tmp_path, read=texts), tmp_path / "here")
    gone = tmp_path / "stones"

    def jobs(works, machine, device, folder):
        assert machine.engine == engine
        if engine == "ray":  # another machine finds nothing of this one's disk
            for work in works:
                order = work.order()
                assert str(gone) not in json.dumps(order.request.settings)
        drive(works, Here(folder / ".jobs"))

    monkeypatch.setattr(units_run, "run_jobs", jobs)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    measured.clear()
    weigh(asked(tmp_path, read=texts, machine=ModelWorkers(engine=engine)), tmp_path / "away")
    assert measured == ["stone1", "stone2", "stone3"]
    assert left(tmp_path / "away") == left(tmp_path / "here")


def test_workers_are_for_several_models(tmp_path):
    one = WeighSettings(ModelSource(str(tmp_path / "stones" / "stone1")), machine=ModelWorkers(2))
    with pytest.raises(SpecError, match=r"^--workers 2 was given\.\n.*one is named"):
        weigh(one, tmp_path / "out")


def test_settings_come_back_as_they_were(tmp_path):
    from trisect.experiments.ablate.settings import AblateSettings
    from trisect.experiments.patch.settings import PatchSettings

    ablate = AblateSettings(ModelSource("a/b", window=7), TextSource(), sites=("q@1", "v@2.h1"), how="zero", hold=True)
    pairs = [("a", "b"), {"base": ("s", "t"), "answers": {"base": "x"}}]
    patch = PatchSettings(ModelSource(Path("there")), pair_list=pairs, how="both")
    for settings in (ablate, patch):
        data = json.loads(json.dumps(units_jobs.encode_settings(settings)))
        assert units_jobs.decode_settings(type(settings), data, tmp_path) == settings
    with pytest.raises(SpecError, match=r"(?s)'<object.* was given with --workers or --engine.*that is object"):
        units_jobs.encode_settings(replace(patch, pair_list=object()))


def test_what_travels_keeps_its_name_and_words_that_are_none_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero").mkdir()  # no setting but a place is one
    model = tmp_path / "stones"
    given = replace(asked(tmp_path), source=ModelSource(f"{model}@stone2"), units=None)
    sent = set[Path]()
    data = units_jobs.encode_settings(given, sent)
    assert sent == {model / "stone2"}
    laid = tmp_path / "laid"
    units_jobs.arrange_files({str(place): place for place in sent}, laid)
    found = units_jobs.decode_settings(WeighSettings, data, laid)
    there = laid / model.relative_to("/")
    assert found.source.model == f"{there}@stone2"
    assert (there / "stone2/config.json").read_text() == "xx"
    assert units_jobs.encode_settings("zero") == "zero"


def test_checkpoints_beside_a_model_lie_beside_it_where_it_travels_to(tmp_path):
    from trisect.experiments.profile import PROFILE
    from trisect.experiments.profile.settings import ProfileSettings

    for name in ("first", "middle", "last"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text(name)
    source = ModelSource(str(tmp_path / "runs" / "last"))
    given = ProfileSettings(source, "embedded", checkpoints=("first", "gone", "last"))
    work = UnitWork("last", "key", PROFILE, given, "source", RunFolder(tmp_path), None, True, lambda: None)
    order = work.order()
    laid = {place: Path(order.needs[name]) for name, place in order.request.laid.items()}
    units_jobs.arrange_files(laid, tmp_path / "laid")
    found = units_jobs.decode_settings(ProfileSettings, order.request.settings, tmp_path / "laid")
    there = Path(found.source.model)
    assert there == tmp_path / "laid" / (tmp_path / "runs/last").relative_to("/")
    assert found.checkpoints == given.checkpoints
    assert {p.name: (p / "config.json").read_text() for p in there.parent.iterdir()} == {
        "first": "first",
        "last": "last",
    }
    near = replace(work, far=False).order()  # a process of this machine finds them where they lie
    assert near.request.laid == {}


def test_texts_come_back_as_they_were(tmp_path):
    texts = [("a source", "a target"), ("b", "c")]
    articles = [0, None]
    given = Texts("name", lambda: iter(texts), ("note",), "mark", ("--corpus", "x"), lambda: iter(articles))
    units_jobs.write_texts(given, tmp_path / "texts")
    found = units_jobs.read_texts(tmp_path / "texts")
    assert (found.name, found.notes, found.fingerprint, found.options) == ("name", ("note",), "mark", ("--corpus", "x"))
    for _ in range(2):
        assert list(found.texts()) == texts
        assert found.articles is not None
        assert list(found.articles()) == articles
    plain = replace(given, texts=lambda: iter(["x"]), articles=None)
    units_jobs.write_texts(plain, tmp_path / "texts")
    again = units_jobs.read_texts(tmp_path / "texts")
    assert (list(again.texts()), again.articles) == (["x"], None)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("owner/model@step1", ("owner/model", "step1")), ("model@", None), ("@step1", None), ("model", None)],
)
def test_a_revision_has_a_name_on_both_sides(name, parts):
    revision = subject.at_revision(name)
    assert (revision if revision is None else (revision.base, revision.revision)) == parts
