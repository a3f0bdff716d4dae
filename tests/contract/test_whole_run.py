"""A folder holds all files of one run or none, tables say whose they are, and what is foreign is refused before computing."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from tests import tinyhf
from tests.jobs import folder_of_files as seen
from tests.raw import call

import trisect
from trisect.core.errors import ModelError, StudyError
from trisect.core.files import digest, write_json
from trisect.core.tables import read_table, run_of_table
from trisect.experiments.norms import NORMS
from trisect.lab import driver
from trisect.lab.run_folder import MANIFEST, RunFolder

WORDS = ["w1 w2 w3 , w4 .", "w5 w6 w7 ."]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return {name: tinyhf.save(tinyhf.gpt2(seed), base / name, False) for name, seed in (("one", 1), ("two", 2))}


@pytest.fixture(scope="module")
def made(models, tmp_path_factory):
    base = tmp_path_factory.mktemp("made")
    for name, place in models.items():
        trisect.norms(place, WORDS, out=base / name, quiet=True)
    return base


@pytest.fixture
def folders(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "made"))


def test_a_run_is_listed_whole_and_has_a_mark_of_its_own(folders, models, tmp_path):
    folder = folders / "one"
    manifest = RunFolder(folder).manifest()
    assert manifest["experiment"] == "norms"
    assert set(manifest["files"]) == set(seen(folder)) - {MANIFEST, ".lock"}
    for path in (folder / "tables").glob("*.parquet"):
        assert run_of_table(path.read_bytes()) == manifest["run"]
        read_table(path.parent, path.stem)
    assert not [name for name in seen(folder) if "trisect-part" in name]
    assert call("check", folder).stdout == "Every listed file is complete, and of one run.\n"
    again = trisect.norms(models["one"], WORDS, out=tmp_path / "again", quiet=True).folder
    marks = [RunFolder(place).manifest()["run"] for place in (folders / "one", again, folders / "two")]
    assert marks[0] == marks[1] != marks[2]
    tables = [seen(place / "tables") for place in (folders / "one", again)]
    assert tables[0] == tables[1]


def test_check_reads_the_runs_below_a_folder_and_no_other_manifest(folders):
    shutil.copytree(folders / "two", folders / "one" / "part")
    (folders / "one" / ".run.1-01234567.trisect-part").mkdir()
    (folders / "one" / ".run.1-01234567.trisect-part" / MANIFEST).write_text("half")
    (folders / "one" / "app").mkdir()
    (folders / "one" / "app" / MANIFEST).write_text('{"name": "app"}')
    assert trisect.check(folders / "one") == []
    (folders / "one" / "part" / MANIFEST).write_text("cut")
    (error,) = trisect.check(folders / "one")
    assert error.problem == f"{folders / 'one' / 'part' / MANIFEST} cannot be read."


def test_a_table_of_another_run_and_a_missing_an_added_and_an_altered_file_are_found(folders):
    shutil.copy(folders / "two" / "tables" / "measures.parquet", folders / "one" / "tables")
    (error,) = RunFolder(folders / "one").check()
    assert error.problem == f"{folders / 'one' / 'tables' / 'measures.parquet'} belongs to another run."
    result = call("check", folders / "one")
    assert result.exit_code == 2
    assert "belongs to another run" in result.stderr
    with pytest.raises(StudyError, match="belongs to another run"):
        driver.read(NORMS, folders / "one", {})
    folder = folders / "two"
    (folder / "report.html").write_text("mine")
    (folder / "tables" / "claims.parquet").unlink()
    shutil.copy(folders / "one" / "tables" / "claims.parquet", folder / "tables" / "extra.parquet")
    said = sorted(e.problem.rpartition("/")[2] for e in RunFolder(folder).check())
    assert said == ["claims.parquet is missing.", "extra.parquet is not of this run.", "report.html was altered."]


def test_the_same_question_again_takes_the_place_of_the_first_as_a_whole_in_python_and_as_a_command(
    folders, models, monkeypatch
):
    folder = folders / "one"
    old = seen(folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "report.html").write_text("altered")
    (folder / "tables" / "measures.parquet").unlink()
    trisect.norms(models["one"], WORDS, out=folder, quiet=True)
    new = seen(folder)
    assert new["notes.txt"] == b"mine"
    assert new["report.html"] != b"altered"
    assert new["tables/measures.parquet"] == old["tables/measures.parquet"]
    assert RunFolder(folder).check() == []
    monkeypatch.chdir(models["one"].parent)
    words = (*(word for text in WORDS for word in ("--text", text)), "--out", folders / "one")
    assert call("norms", "one", *words).exit_code == 0
    refused = call("norms", "two", *words)
    assert (refused.exit_code, "other weights" in refused.stderr) == (2, True)


def test_another_question_is_refused_and_changes_nothing(folders, models, tmp_path):
    ablated = tmp_path / "ablated"
    trisect.ablate(models["one"], WORDS, sites=("q@1",), out=ablated, quiet=True)
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "test.txt").write_text(WORDS[0])
    calls = [
        (trisect.norms, folders / "one", models["two"], WORDS, {}, "a model with other weights"),
        (trisect.norms, folders / "one", models["one"], WORDS[:1], {}, "other texts"),
        (trisect.norms, folders / "one", models["one"], WORDS, {"block": "full"}, "'trisect norms MODEL --text"),
        (trisect.norms, folders / "one", [models["one"], models["two"]], WORDS, {}, "'trisect norms MODEL --text"),
        (trisect.ablate, ablated, models["one"], WORDS, {"sites": ("k@1",)}, "--sites q@1"),
        (trisect.ablate, ablated, models["two"], WORDS, {"sites": ("q@1",)}, "a model with other weights"),
        (trisect.ablate, ablated, models["one"], [*WORDS, "w1 ."], {"sites": ("q@1",)}, "other texts"),
    ]
    for function, folder, model, words, more, differs in calls:
        before = seen(folder)
        with pytest.raises(StudyError) as raised:
            function(model, words, out=folder, quiet=True, **more)
        assert str(folder) in raised.value.problem
        assert " ".join(map(str, model if isinstance(model, list) else [model])) in raised.value.problem
        assert differs in raised.value.reason
        assert "--out" in raised.value.todo
        assert seen(folder) == before
    trisect.ablate(models["one"], WORDS, sites=("q@1",), batch=1, out=ablated, quiet=True)


def test_what_the_run_before_left_goes_but_for_what_somebody_changed(folders):
    folder = folders / "one"
    manifest = json.loads((folder / MANIFEST).read_text())["body"]
    for name in ("figures/old.svg", "figures/changed.svg", "old.html", "changed.html"):
        (folder / name).write_text("old")
        manifest["files"][name] = digest(b"old")
    write_json(folder / MANIFEST, manifest)
    for name in ("figures/changed.svg", "changed.html"):
        (folder / name).write_text("mine now")
    with RunFolder(folder).stage() as stage:
        (stage / "report.html").write_text("new")
        RunFolder(folder).commit(stage, "norms", "0" * 32)
    left = {MANIFEST, NORMS.record, "report.html", "changed.html", "figures/changed.svg"}
    assert set(seen(folder)) - {".lock"} == left


@pytest.mark.parametrize("name", [NORMS.record, MANIFEST])
@pytest.mark.parametrize("content", ["{}", '{"name": "somebody\'s"}', "no JSON"])
def test_a_folder_with_a_file_of_somebody_elses_by_a_name_of_ours_is_left_alone(models, tmp_path, name, content):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / name).write_text(content)
    (tmp_path / "web" / "report.html").write_text("mine")
    before = seen(tmp_path / "web")
    with pytest.raises(StudyError) as raised:
        trisect.norms(models["one"], WORDS, out=tmp_path / "web", quiet=True)
    assert "delete" not in raised.value.todo.lower()
    assert seen(tmp_path / "web") == before


class _KilledError(BaseException):
    pass


def killed_at(monkeypatch, number):
    """The process ends at the rename of that number: nothing after it is done, not even what stands in finally."""
    count = [0]
    real = Path.replace

    def replace(self, target):
        count[0] += 1
        if count[0] == number:
            raise _KilledError
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)


def test_a_run_that_is_killed_while_it_lands_is_landed_whole_by_the_next_call(folders, monkeypatch):
    before, after = seen(folders / "one"), seen(folders / "two")
    renames = len(after) + 2
    for number in range(1, renames + 3):
        folder = folders / f"n{number}"
        shutil.copytree(folders / "one", folder)
        with monkeypatch.context() as patch:
            stage = folder / f".run.{os.getpid()}-0123abcd.trisect-part"
            for name in RunFolder(folders / "two").manifest()["files"]:
                (stage / name).parent.mkdir(parents=True, exist_ok=True)
                (stage / name).write_bytes(after[name])
            killed_at(patch, number)
            with suppress(_KilledError):
                RunFolder(folder).commit(stage, "norms", RunFolder(folders / "two").manifest()["run"], "norms.json")
        there = seen(folder)
        mixed = there.get("tables/measures.parquet") != before["tables/measures.parquet"] and (
            there.get("report.html") == before["report.html"]
        )
        assert not mixed, number  # an old page never stands beside a new table
        RunFolder(folder).recover()
        found = {k: v for k, v in seen(folder).items() if k != MANIFEST}
        assert found in ({k: v for k, v in one.items() if k != MANIFEST} for one in (before, after)), number
        assert RunFolder(folder).check() == []
        assert not [name for name in os.listdir(folder) if name.endswith("trisect-part")]


def test_what_was_staged_by_halves_is_removed_and_a_command_that_fails_leaves_the_run_before(
    folders, models, monkeypatch
):
    before = seen(folders / "one")
    stage = folders / "one" / ".run.77-0123abcd.trisect-part"
    (stage / "tables").mkdir(parents=True)
    (stage / "tables" / "measures.parquet").write_bytes(b"half")
    RunFolder(folders / "one").recover()
    assert seen(folders / "one") == before
    monkeypatch.setattr(driver, "write_page", lambda *_: (_ for _ in ()).throw(StudyError("a", "b", "c")))
    with pytest.raises(StudyError):
        trisect.norms(models["two"], WORDS, out=folders / "one", quiet=True)
    assert seen(folders / "one") == before


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", ".lock"])
def test_a_forged_list_names_nothing_outside(folders, name):
    write_json(folders / "one" / MANIFEST, {"experiment": "norms", "run": "0" * 32, "files": {name: "0"}})
    (error,) = RunFolder(folders / "one").check()
    assert error.problem.endswith("is not the manifest of a run.")


def outs(base: Path) -> dict[str, tuple[object, str]]:
    (base / "file").write_text("mine")
    (base / "foreign").mkdir()
    (base / "foreign" / "notes.txt").write_text("mine")
    return {
        "empty": ("", "The path for results is empty."),
        "blank": (" ", "The path for results is empty."),
        "a file": (base / "file", "is a file."),
        "below a file": (base / "file" / "x" / "y", "cannot be created."),
        "in /proc": ("/proc/trisect-out", "cannot be written."),
        "foreign": (base / "foreign", "is not empty"),
    }


@pytest.mark.parametrize("which", ["empty", "blank", "a file", "below a file", "in /proc", "foreign"])
@pytest.mark.parametrize("command", ["norms", "study"])
def test_a_place_that_cannot_be_is_refused_before_a_model_is_opened(which, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, said = outs(tmp_path)[which]
    before = seen(tmp_path)
    words = ("no/model", "--text", "a") if command == "norms" else ("quick",)
    result = call(command, *words, "--out", out)
    assert result.exit_code == 2
    assert said in result.stderr, result.stderr
    assert seen(tmp_path) == before


def test_a_run_whose_landing_broke_off_is_landed_by_the_next_call_also_where_nothing_was_before(
    models, tmp_path, monkeypatch
):
    folder, real = tmp_path / "o", Path.replace

    def full(self, target):
        if Path(target) == folder / MANIFEST:
            raise OSError(28, "No space left on device", str(self))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StudyError, match="The disk is full"):
        trisect.norms(models["one"], WORDS, out=folder, quiet=True)
    monkeypatch.undo()
    assert not RunFolder(folder).has_run
    assert RunFolder(folder).command == "norms"
    with pytest.raises(StudyError, match="holds results of 'trisect norms'"):
        trisect.ablate(models["one"], WORDS, out=folder, quiet=True)
    with pytest.raises(StudyError, match="other weights"):
        trisect.norms(models["two"], WORDS, out=folder, quiet=True)
    trisect.norms(models["one"], WORDS, out=folder, quiet=True)
    assert RunFolder(folder).check() == []


def test_a_page_is_made_again_from_the_folder_and_is_no_folder(folders):
    folder = folders / "one"
    before, page = seen(folder), folder / "report.html"
    page.write_text("altered")
    shutil.rmtree(folder / "figures", ignore_errors=True)
    done = call("report", folder)
    assert done.stdout.strip() == str(page.resolve())
    assert RunFolder(folder).check() == []
    after = seen(folder)
    assert after.keys() - before.keys() == {"README.md"}
    assert {name for name in before if after[name] != before[name]} <= {MANIFEST}
    assert RunFolder(folder).manifest() == json.loads(before[MANIFEST])["body"]
    done = call("report", folders / "one" / "report.html")
    assert done.exit_code == 2
    assert "is a file." in done.stderr
    assert "lie in a folder" in done.stderr


def test_a_folder_without_a_list_of_files_is_known_by_its_record_and_written_over_by_no_command(folders, models):
    folder = folders / "one"
    page = (folder / "report.html").read_bytes()
    for name in (MANIFEST, "report.html"):
        (folder / name).unlink()
    assert trisect.render(folder).about.experiment == "norms"
    assert (folder / "report.html").read_bytes() == page
    assert not (folder / MANIFEST).exists()
    before = seen(folder)
    for command in ("norms", "ablate"):
        assert call(command, models["two"], "--text", "w1 w2", "--out", folder).exit_code == 2
    assert seen(folder) == before


def altered(folder):
    path = folder / "tables" / "measures.parquet"
    pl.read_parquet(path).with_columns(pl.col("value") * 2).write_parquet(path)


def cut(folder):
    (folder / MANIFEST).unlink()
    (folder / "tables" / "measures.parquet").unlink()


def foreign(folder):
    manifest = json.loads((folder / MANIFEST).read_text())["body"]
    write_json(folder / MANIFEST, manifest | {"experiment": "translate-train"})


def bare(folder):
    (folder / MANIFEST).unlink()
    shutil.rmtree(folder / "tables")


def unlisted(folder):
    """As a copy without its list of files whose table was cut off."""
    (folder / MANIFEST).unlink()
    path = folder / "tables" / "measures.parquet"
    path.write_bytes(path.read_bytes()[:500])


def unrecorded(folder):
    (folder / MANIFEST).unlink()
    (folder / "norms.json").write_text("[]")


@pytest.mark.parametrize(
    ("harm", "given", "known", "todo"),
    [
        (unlisted, "measures.parquet cannot be read.", "does not match its checksum", "Copy it again from the folder"),
        (unrecorded, "norms.json cannot be read.", "TypeError", "Copy it again from the folder"),
        (altered, "measures.parquet was altered.", "is not what 'trisect norms' wrote", "Run the same command again"),
        (cut, "do not make the page of 'trisect norms'.", "this version's page reads", "Run it again: trisect norms"),
        (foreign, "holds results of 'trisect translate-train'.", "leaves no page", "Name the folder of another"),
        (bare, "There are no tables in", "is made from them", "run it again"),
    ],
)
def test_what_no_page_can_be_made_from_is_refused_and_nothing_changes(folders, harm, given, known, todo):
    harm(folders / "one")
    before = seen(folders / "one")
    done = call("report", folders / "one")
    assert done.exit_code == 2
    first, second, third = done.stderr.removeprefix("trisect: ").strip().splitlines()
    assert given in first
    assert known in second
    assert todo in third
    assert seen(folders / "one") == before


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyError("value"), "reads 'value' too."),
        (StopIteration(), "cannot be made of them (rows that are not there)."),
        (IndexError("tuple index out of range"), "cannot be made of them (tuple index out of range)."),
        (TypeError("no number"), "cannot be made of them (no number)."),
    ],
)
def test_tables_that_lack_rows_are_said_to_make_no_page(folders, monkeypatch, raised, said):
    def fails(*_):
        raise raised

    monkeypatch.setattr(driver, "_make_result", fails)
    before = seen(folders / "one")
    with pytest.raises(StudyError, match="do not make the page of 'trisect norms'") as error:
        trisect.render(folders / "one")
    assert error.value.reason.startswith("They were written by trisect")
    assert error.value.reason.endswith(f"this version's page {said}")
    assert error.value.todo.startswith("Run it again: trisect norms")
    assert seen(folders / "one") == before


def test_an_interrupted_dissection_is_named(tmp_path):
    (tmp_path / "parts.json").write_text("{}")
    with pytest.raises(ModelError, match=r"(?s)parts\.json.*interrupted.*same command again"):
        trisect.prove(str(tmp_path))  # what `trisect check` calls
    with pytest.raises(StudyError, match="run the same `trisect dissect` again"):
        trisect.render(tmp_path)
