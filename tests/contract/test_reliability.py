"""What campaigns of kills, full disks and damaged files found (docs/reliability.md): each defect that it met, held here in seconds."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests import tiny
from tests.jobs import Walk, walk
from tests.raw import call, read_json
from tests.studies import assert_same, no_page, run  # noqa: F401

import trisect
from trisect.core.errors import CorpusError, DamagedFileError, SpecError, StudyError
from trisect.core.files import write_json
from trisect.core.machine import Machine
from trisect.core.spec import Attack, Freeze, Rewind, to_json_data
from trisect.core.tables import frame, read_table, write_table
from trisect.engine.jobs import JobOrder
from trisect.engine.start import open_engine
from trisect.experiments.study.plan import fleet_name, join_ledger, make_plan, repeating
from trisect.experiments.study.presets import find_experiments
from trisect.experiments.study.run import _note
from trisect.lab.folder import Folder
from trisect.lab.jobs import run_jobs
from trisect.text import corpus

REWIND = Rewind(tiny.SITES[:1], points=11, midstage=False)
ONE = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, freeze=Freeze(tiny.SITES[:1]), rewind=REWIND)
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "study", ONE)


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole.folder, tmp_path / "study")
    return Folder(tmp_path / "study")


def baseline(folder):
    return next(run for run, said in folder.read_ledger().runs.items() if said.edit is None)


# --- damaged files


def test_a_file_of_no_number_or_no_python_is_damage_and_no_traceback(tmp_path):
    write_json(tmp_path / "x.json", {"value": 1.2345678901})
    (tmp_path / "x.json").write_text((tmp_path / "x.json").read_text().replace("1.2345678901", "1.2345e78901"))
    with pytest.raises(DamagedFileError, match=r"x\.json cannot be read"):
        read_json(tmp_path / "x.json", "Delete it.")
    corpus._write_array(tmp_path / "x.npy", np.arange(5, dtype=np.int32))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"), }", b")( }"))
    with pytest.raises((tokenize.TokenError, SyntaxError, ValueError)):
        np.load(tmp_path / "x.npy")
    with pytest.raises(DamagedFileError, match=r"x\.npy cannot be read") as caught:
        corpus._read_array(tmp_path / "x.npy", np.int32, 5, "Delete it.")
    assert caught.value.todo == "Delete it."


def test_a_changed_byte_anywhere_in_a_table_is_noticed(tmp_path):
    rows = [{"run": "r", "epoch": e, "split": "train", "name": "loss_nats", "value": e / 7} for e in range(9)]
    table = frame("metrics", rows)
    path = write_table(tmp_path, "metrics", table)
    good, silent = path.read_bytes(), []
    assert pl.read_parquet(path).equals(table)  # an ordinary Parquet file
    for place in range(0, len(good), 5):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        try:
            silent += [] if read_table(tmp_path, "metrics").equals(table) else [place]
        except DamagedFileError as error:
            assert f"Delete {path} and call 'trisect report'" in error.todo  # noqa: PT017 (most raise, not all)
    assert silent == []
    table.write_parquet(path)
    with pytest.raises(DamagedFileError, match="checksum"):  # it has none
        read_table(tmp_path, "metrics")


def test_a_lost_or_damaged_ledger_is_made_again_from_its_copy(whole, copy):
    copy.ledger.write_text(copy.ledger.read_text().replace('"width": 8', '"width": 16', 1))
    with pytest.raises(DamagedFileError, match=r"study\.json is damaged") as caught:
        run(copy.path, ONE)
    assert caught.value.todo.startswith(f"Delete {copy.ledger} and call 'trisect study' again")
    copy.ledger.unlink()
    assert_same(trisect.render(copy.path), whole)
    assert_same(run(copy.path, ONE), whole)
    assert copy.ledger.read_bytes() == copy.copy.read_bytes()
    copy.copy.write_text("")
    assert [str(e.problem) for e in trisect.check(copy.path)] == [f"{copy.copy} cannot be read."]
    copy.copy.unlink()
    assert_same(run(copy.path, ONE), whole)
    assert copy.ledger.read_bytes() == copy.copy.read_bytes()


def test_a_copy_of_the_ledger_that_says_something_else_is_written_again(tmp_path):
    folder, more = Folder(tmp_path), replace(ONE, seeds=(1, 2))
    ledger(tmp_path, [ONE])
    old = folder.copy.read_bytes()
    newer = ledger(tmp_path, [more])
    for content in (old, old[:100], b""):  # as a process leaves it that was killed before it wrote the copy
        folder.copy.write_bytes(content)
        assert ledger(tmp_path, [more]) == newer
        assert folder.copy.read_bytes() == folder.ledger.read_bytes() != old
    folder.ledger.unlink()
    assert folder.read_ledger() == newer


def test_a_study_keeps_its_precision_and_refuses_another(copy):
    said = copy.read_ledger()
    assert said.precision == "float32"
    assert read_json(copy.path / "about.json", "")["precision"] == "float32"
    fingerprint = said.corpus
    with pytest.raises(StudyError) as caught:
        join_ledger(copy, [ONE], fingerprint, "cuda", "bfloat16")
    assert f"{copy.path} belongs to a study trained with float32" in caught.value.problem
    assert "bfloat16" in caught.value.reason
    assert "--precision float32" in caught.value.todo
    assert join_ledger(copy, [ONE], fingerprint) == copy.read_ledger() == said
    write_json(copy.ledger, read_json(copy.ledger, "") | {"precision": "bfloat16"})
    with pytest.raises(StudyError, match="trained with bfloat16 matrix products") as caught:
        run(copy.path, ONE)
    assert caught.value.todo == "Give --precision bfloat16, or choose another folder with --out."
    plan, kept = make_plan(ONE), join_ledger(copy, [ONE], fingerprint, "cuda", "bfloat16")
    _note(copy, plan, "cuda", kept, 0.0)
    noted = read_json(copy.path / "about.json", "")
    assert (noted["precision"], noted["device"]) == ("bfloat16", "cuda")
    assert noted["command"] == "trisect study experiment.json --out again --precision bfloat16"


def victims(folder):
    first = folder.run(baseline(folder)).parent
    return {
        "study.copy.json": folder.copy,
        "about.json": folder.path / "about.json",
        "corpus.json": folder.corpus / "corpus.json",
        "array": folder.corpus / "train.column-1.npy",
        "run.json": first / "run.json",
        "final weights, read by nothing else": next(folder.path.glob("runs/freeze*/final.safetensors")),
        "weights of an epoch": first / "epochs" / "0001.safetensors",
        "evaluation": next(folder.path.glob("evaluations/*/rewind*")),
        "table": folder.tables / "sites.parquet",
    }


def test_check_names_every_kind_of_damaged_file_and_what_to_delete(whole, copy):
    assert trisect.check(copy.path) == []
    said = call("check", copy.path)
    assert (said.exit_code, said.stdout) == (0, "Every listed file is complete, and of one run.\n")
    for kind, path in victims(copy).items():
        good = path.read_bytes()
        path.write_bytes(good[: len(good) // 2])
        found = trisect.check(copy.path)
        assert len(found) == 1, kind
        assert str(path) in found[0].problem
        target = found[0].todo.removeprefix("Delete ").removeprefix("the folder ").partition(" and call")[0]
        assert path.is_relative_to(target), kind
        said = call("check", copy.path)
        assert (said.exit_code, said.stdout, said.stderr) == (2, "", f"trisect: {found[0]}\n")
        path.write_bytes(good)
    shutil.rmtree(copy.epochs(baseline(copy)))
    [found] = trisect.check(copy.path)
    assert f"{baseline(copy)} are incomplete" in found.problem
    assert "0 of 3 epochs" in found.reason
    assert f"Delete the folder {copy.run(baseline(copy)).parent} and call" in found.todo
    assert_same(whole, trisect.Study(copy.path))


def test_check_says_how_many_runs_are_not_finished_and_reads_what_an_unfinished_baseline_kept(copy):
    first = copy.run(baseline(copy))
    first.unlink()
    said = call("check", copy.path)
    assert (said.exit_code, said.stderr) == (0, "")
    assert "1 of 2 runs are not finished" in said.stdout
    assert "Every file that exists is complete." in said.stdout
    epoch = copy.epochs(baseline(copy)) / "0001.safetensors"
    epoch.write_bytes(epoch.read_bytes()[:50])
    [found] = trisect.check(copy.path)
    assert f"{epoch} cannot be read" in found.problem
    assert f"Delete the folder {first.parent} and call" in found.todo


def test_what_a_message_asks_to_delete_is_trained_again_even_where_an_old_checkpoint_is_left(whole, copy):
    fleet = tuple(copy.read_ledger().fleets[0])
    left = copy.checkpoint(fleet_name(fleet))
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"left by a process that was killed before it could remove it")
    run(copy.path, ONE)
    assert not left.exists()
    left.write_bytes(b"the checkpoint of a fleet whose baseline's folder was deleted")
    shutil.rmtree(copy.run(baseline(copy)).parent)
    assert_same(run(copy.path, ONE), whole)


# --- two processes


def test_an_evaluation_waits_for_a_baseline_that_is_trained_again(copy, monkeypatch):
    """Else it would be removed with the old weights, and be missing from the tables."""
    missing = next(copy.path.glob("runs/freeze*/run.json"))
    record, seen = missing.read_bytes(), []
    missing.unlink()

    def look(works, machine, device, folder):
        seen.append([(work.task.kind, work.ready()) for work in works])
        missing.write_bytes(record)
        works[0].finish()
        seen.append([(work.task.kind, work.ready()) for work in works])

    monkeypatch.setattr("trisect.experiments.study.run.run_jobs", look)
    trisect.study(ONE, out=copy.path, workers=2, quiet=True)
    assert seen[0] == [("train", True), ("cut", False), ("rewind", False)]
    assert seen[1] == [("train", True), ("cut", True), ("rewind", True)]


@pytest.mark.parametrize("which", ["evaluations/*/rewind*", "runs/freeze*/run.json"])
def test_a_finished_file_that_disappears_while_the_study_runs_is_computed_again(whole, copy, monkeypatch, which):
    left, gone = next(copy.path.glob("evaluations/*/cut*")), next(copy.path.glob(which))
    left.unlink()
    monkeypatch.setattr("trisect.experiments.study.run.run_jobs", deleting(gone, times=1))
    assert_same(run(copy.path, ONE), whole)
    assert gone.exists()


def test_one_that_disappears_again_and_again_is_named(copy, monkeypatch):
    left, gone = next(copy.path.glob("evaluations/*/cut*")), next(copy.path.glob("evaluations/*/rewind*"))
    left.unlink()
    monkeypatch.setattr("trisect.experiments.study.run.run_jobs", deleting(gone, times=9))
    with pytest.raises(StudyError) as caught:
        run(copy.path, ONE)
    assert f"{gone} is not there any more" in caught.value.problem
    monkeypatch.undo()
    assert trisect.Study(copy.path).tables


def deleting(path, times):
    """Jobs as they are run, and then a finished file is deleted, as often as that."""
    left = [times]

    def run_them(*given):
        run_jobs(*given)
        left[0] -= 1
        if left[0] >= 0:
            path.unlink()

    return run_them


def test_a_worker_or_a_lock_that_cannot_be_had_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: (_ for _ in ()).throw(FULL))
    with open_engine(Machine(workers=1), "cpu", tmp_path / "jobs") as engine, pytest.raises(StudyError) as caught:
        engine.submit(1, JobOrder(walk, Walk("w", 1), tmp_path))
    assert caught.value.problem == "Worker process 1 could not be started."
    assert "No space left" in caught.value.reason
    assert "--workers 0" in caught.value.todo
    monkeypatch.undo()
    monkeypatch.setattr("trisect.lab.run_folder.FileLock.acquire", lambda *_, **__: (_ for _ in ()).throw(FULL))
    with pytest.raises(StudyError, match="cannot be written") as caught:
        run(tmp_path / "study", ONE)
    assert "No space left" in caught.value.reason
    assert "--out" in caught.value.todo


# --- full disks


def test_of_several_files_that_find_the_disk_full_the_first_is_named(tmp_path, monkeypatch):
    count, write = [0], Path.write_bytes

    def full(self, data):
        if "runs" in self.parts:
            monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(FULL))
            raise FULL
        count[0] += 1
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StudyError, match=r"0000\.safetensors could not be written"):
        run(tmp_path / "study", ONE)


def test_a_full_temporary_folder_is_said_also_by_the_last_few_tokens(monkeypatch):
    class Full:
        closed = False

        def write(self, data):
            return len(data)  # it fits the buffer, and shows only when that is written

        def flush(self):
            raise FULL

        def close(self):
            raise FULL

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.close()

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Full())
    grown = corpus.GrowingArray(np.int32)
    grown.append([1, 2, 3])
    with pytest.raises(CorpusError, match="more than 3 tokens could not be kept") as caught:
        grown.finish()
    assert "TMPDIR" in caught.value.todo
    del grown  # and nothing is said of closing it
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: (_ for _ in ()).throw(FULL))
    with pytest.raises(CorpusError, match="more than 0 tokens"):
        corpus.GrowingArray(np.int32)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_standard_output_is_said_and_is_no_traceback():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "trisect.cli", "claims"]
        said = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert said.returncode == 2
    assert re.match(r"trisect: .*\n  .*disk .* is full\.\n  .*\n$", said.stderr)


# --- experiment.json repeats a study


def asked(folder):
    return json.loads((folder / "experiment.json").read_text())


def test_an_unevenly_extended_study_is_repeated_run_for_run_and_to_the_bit(tmp_path):
    other = replace(ONE, seeds=(2,), freeze=None, rewind=Rewind(tiny.SITES[1:2], points=11, midstage=False))
    uneven = run(tmp_path / "uneven", ONE, other)
    assert [each["seeds"] for each in asked(tmp_path / "uneven")] == [[1], [2]]
    assert uneven.tables["runs"].height == 3
    again = trisect.study(tmp_path / "uneven" / "experiment.json", out=tmp_path / "again", workers=0, quiet=True)
    assert_same(again, uneven)
    assert asked(tmp_path / "again") == asked(tmp_path / "uneven")
    planned = trisect.plan(tmp_path / "uneven" / "experiment.json")
    assert {r.id for r in planned.runs} == set(Folder(tmp_path / "uneven").read_ledger().runs)
    assert planned.data()["experiment"] == asked(tmp_path / "uneven")


def ledger(tmp_path, *calls):
    """The ledger after those calls, nothing trained."""
    folder = Folder(tmp_path)
    folder.path.mkdir(parents=True, exist_ok=True)
    return [join_ledger(folder, each, make_plan(*each).corpus.fingerprint) for each in calls][-1]


def test_an_extended_study_is_one_experiment_where_it_is_even_and_keeps_the_fleets_it_had(tmp_path):
    both = replace(ONE, seeds=(1, 2))
    assert repeating(ledger(tmp_path, [ONE], [replace(ONE, seeds=(2,))], [ONE])) == both.resolved()
    more = replace(ONE, freeze=Freeze(tiny.SITES), attack=Attack(tiny.SITES[:1], ("pos",)))
    first = ledger(tmp_path / "a", [ONE], [more], [ONE])
    assert tuple(e.resolved() for e in (ONE, more)) == repeating(first)
    second = ledger(tmp_path / "b", [ONE, more])
    assert second.fleets == first.fleets
    more = replace(ONE, rewind=Rewind(tiny.SITES[:2], points=11, midstage=False))
    assert repeating(ledger(tmp_path / "even", [ONE], [more])) == more.resolved()
    other = replace(more, seeds=(2,), freeze=None)
    assert repeating(ledger(tmp_path / "uneven", [ONE], [other])) == (ONE.resolved(), other.resolved())


def test_a_list_of_experiments_is_read_and_what_is_none_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps([to_json_data(ONE), to_json_data(tiny.EXPERIMENT)]))
    assert find_experiments(path) == (ONE, tiny.EXPERIMENT)
    path.write_text("[]")
    with pytest.raises(SpecError, match="holds no experiment"):
        find_experiments(path)
    path.write_text(json.dumps([to_json_data(ONE), {"nmae": "x"}]))
    with pytest.raises(SpecError, match=r"experiment 2 of .*x\.json has nmae"):
        find_experiments(path)
    with pytest.raises(SpecError, match="The experiments have different texts"):
        make_plan(ONE, replace(ONE, text=replace(ONE.text, train_tokens=999)))
    path.write_text("[" * 100_000)
    with pytest.raises(SpecError, match=r"x\.json is not JSON\.\n  Its lists and objects are nested too deeply"):
        find_experiments(path)
