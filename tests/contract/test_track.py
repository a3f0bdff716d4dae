"""Tracking: what each tracker holds is the metrics table, once, and a tracker's failure costs the study nothing."""

import importlib.util
import json
import math
import shutil
import struct
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import polars as pl
import pytest
from rich.console import Console
from rich.file_proxy import FileProxy
from tests import tiny
from tests.raw import read_json

import trisect
from trisect.core.errors import DamagedFileError, SpecError
from trisect.experiments.study import track
from trisect.experiments.study.tasks import Task
from trisect.lab.folder import Folder
from trisect.lab.live import live
from trisect.lm import train
from trisect.report.sheet import Sheet

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, rewind=None)
MORE = replace(SMALL, seeds=(1, 2))


@pytest.fixture(autouse=True)
def _no_page(monkeypatch):
    """The page has tests of its own."""
    monkeypatch.setattr("trisect.experiments.study.page.page", lambda tables, about: Sheet("t", "k", "l", ()))


def run(out, tracker, experiment=SMALL):
    return trisect.study(experiment, out=out, workers=0, quiet=True, track=tracker)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The study without a tracker, to be copied and gone on with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trisect.experiments.study.page.page", lambda tables, about: Sheet("t", "k", "l", ()))
        return run(tmp_path_factory.mktemp("whole") / "study", None)


@pytest.fixture
def out(whole, tmp_path):
    return shutil.copytree(whole.folder, tmp_path / "study")


def table(study):
    """(run, epoch, split/name) and value of every row of `metrics`."""
    rows = study.tables["metrics"].drop_nulls("value").iter_rows(named=True)
    return {(r["run"], r["epoch"], f"{r['split']}/{r['name']}"): r["value"] for r in rows}


def logged(out, tracker):
    return read_json(out / "track" / f"{tracker}.json", "")["runs"]


@pytest.fixture
def received(monkeypatch):
    """A tracker that notes what it is given, in the place of TensorBoard's."""
    records = []
    monkeypatch.setitem(track.TRACKERS, "tensorboard", records.append)
    return records


def test_every_finished_run_is_logged_once_with_the_values_of_the_table(received, tmp_path):
    done = trisect.study(SMALL, out=tmp_path / "study", workers=1, quiet=True, track="tensorboard")
    assert [r.run for r in received] == logged(tmp_path / "study", "tensorboard")
    assert sorted(r.run for r in received) == sorted(done.tables["runs"]["run"])
    found = {(r.run, e, n): v for r in received for e, values in r.epochs.items() for n, v in values.items()}
    assert found == table(done)
    specs = {
        r.run: json.loads((done.folder / "runs" / r.run / "run.json").read_text())["body"]["spec"] for r in received
    }
    assert all(r.config["seed"] == 1 and r.config | specs[r.run] == r.config for r in received)
    assert {r.status["status"] for r in received} == {"finished"}
    assert {r.study for r in received} == {"tiny"}
    run(tmp_path / "study", "tensorboard")
    assert len(received) == done.tables["runs"].height


def test_runs_that_finished_without_a_tracker_are_logged_first_and_new_ones_after(received, out, whole):
    before = set(whole.tables["runs"]["run"])
    done = run(out, "tensorboard", MORE)
    assert {r.run for r in received[: len(before)]} == before
    assert len(received) == len({r.run for r in received}) == done.tables["runs"].height > len(before)


def test_a_stopped_study_goes_on_and_logs_each_run_once(received, tmp_path, monkeypatch):
    step, count = train.Trainer.step, [0]

    def stopping(self):
        count[0] += 1
        if count[0] == 40:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(train.Trainer, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "study", "tensorboard", MORE)
    monkeypatch.setattr(train.Trainer, "step", step)
    done = run(tmp_path / "study", "tensorboard", MORE)
    assert sorted(r.run for r in received) == sorted(done.tables["runs"]["run"])
    assert len({r.key.rsplit("-", 1)[1] for r in received}) == 1  # one mark for one folder, over all calls


def test_a_failure_is_said_once_and_costs_the_study_nothing(out, whole, monkeypatch, capsys):
    calls = []

    def failing(record):
        calls.append(record.run)
        if len(calls) == 3:
            raise OSError("the server is gone")

    monkeypatch.setitem(track.TRACKERS, "wandb", failing)
    done = run(out, "wandb")
    assert table(done) == table(whole)
    said = capsys.readouterr().err
    assert said == (
        "trisect: tracking by wandb stopped: OSError: the server is gone\n"
        "  The study goes on. Its tables lack nothing.\n"
        "  Call it again with --track wandb: what was not logged is logged then.\n"
    )
    assert logged(out, "wandb") == calls[:2]
    run(out, "wandb")
    assert calls[3:] == [
        calls[2],
        *[r for r in json.loads((out / "study.json").read_text())["body"]["runs"] if r not in calls[:3]],
    ]
    assert len(logged(out, "wandb")) == whole.tables["runs"].height


def test_standard_output_outlives_a_tracker_at_work_while_a_live_line_comes_and_goes(out, whole, monkeypatch, capsys):
    """Both would replace it: what the one had put there must not be what the other puts back."""
    monkeypatch.setattr("trisect.lab.live.Console", partial(Console, force_terminal=True))
    before, begun, go_on = (sys.stdout, sys.stderr), threading.Event(), threading.Event()

    def slow(record):
        print("not for standard output")
        begun.set()
        assert go_on.wait(120)
        raise OSError("the server is gone")

    monkeypatch.setitem(track.TRACKERS, "wandb", slow)
    task = Task("train", tuple(whole.tables["runs"]["run"]))
    with track.tracking("wandb", Folder(out), "tiny", task.runs):
        assert begun.wait(60)
        with live([task], 1, quiet=False) as note:
            note(0, task, 0.5, "epoch 1")
            assert not isinstance(sys.stdout, FileProxy)
            go_on.set()
            end = time.monotonic() + 120
            while sys.stdout is not before[0]:
                assert time.monotonic() < end
                time.sleep(0.001)
    assert (sys.stdout, sys.stderr) == before
    print("what was found")
    said = capsys.readouterr()
    assert said.out == "what was found\n"
    assert "tracking by wandb stopped: OSError: the server is gone" in said.err
    assert "epoch 1" in said.err


def test_what_a_run_that_diverged_lacks_is_not_logged(out, received):
    path = next((out / "runs").glob("freeze*")) / "run.json"
    body = read_json(path, "")
    body["status"], body["metrics"][-1][3] = "diverged", None
    from trisect.core.files import write_json

    write_json(path, body)
    log = track._Log("tensorboard", Folder(out), "tiny")
    log.add([path.parent.name])
    [record] = received
    assert record.status["status"] == "diverged"
    assert sum(map(len, record.epochs.values())) == len(body["metrics"]) - 1


def test_refusals_come_before_anything_is_made(tmp_path, monkeypatch):
    with pytest.raises(SpecError) as caught:
        run(tmp_path / "study", "mlflow")
    assert caught.value.given == "Unknown tracker 'mlflow'."
    assert caught.value.known == "Trackers are wandb, trackio, tensorboard."
    assert caught.value.todo == "Use one of them."
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "trackio" else find(name))
    with pytest.raises(SpecError) as caught:
        run(tmp_path / "study", "trackio")
    assert caught.value.given == "Tracking by trackio is asked for, but trackio is not there."
    assert caught.value.known == "Trackers are optional extras."
    assert caught.value.todo == "Install it: pip install 'trisect[trackio]'"
    monkeypatch.undo()
    monkeypatch.setattr(importlib, "import_module", lambda name: 1 / 0)
    with pytest.raises(SpecError) as caught:
        run(tmp_path / "study", "wandb")
    assert caught.value.given == "Tracking by wandb is asked for, but wandb does not work."
    assert caught.value.known == "Importing it says: ZeroDivisionError: division by zero"
    assert not (tmp_path / "study").exists()


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    from trisect.core.extras import there

    (tmp_path / "nothing_like_it").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not there("nothing_like_it")
    assert there("polars")


def test_a_damaged_list_is_named(out):
    (out / "track").mkdir()
    (out / "track" / "wandb.json").write_text('{"body": 1')
    with pytest.raises(DamagedFileError) as caught:
        run(out, "wandb")
    again = "call 'trisect study' again with --track wandb"
    assert caught.value.todo == f"Delete {out / 'track'} and {again}: every run is then logged again."
    assert caught.value.given == f"{out / 'track' / 'wandb.json'} cannot be read."


def test_tensorboard_holds_the_metrics_table(out, whole):
    pytest.importorskip("tensorboard", reason="the optional extra trisect[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    half = out / "track" / "tensorboard" / whole.tables["runs"]["run"][0]
    half.mkdir(parents=True)
    (half / "events.out.tfevents.0.half").write_bytes(b"half of an event file")
    for _ in range(2):
        run(out, "tensorboard")
    found, texts = {}, {}
    for folder in (out / "track" / "tensorboard").iterdir():
        events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
        events.Reload()
        assert len(list(folder.iterdir())) == 1
        for tag in events.Tags()["tensors"]:
            for event in events.Tensors(tag):
                if tag.endswith("/text_summary"):
                    texts[folder.name, tag] = event.tensor_proto.string_val[0].decode()
                else:
                    assert (folder.name, event.step, tag) not in found
                    found[folder.name, event.step, tag] = float(make_ndarray(event.tensor_proto))
    assert found == table(whole)
    for run_id in whole.tables["runs"]["run"]:
        config = texts[run_id, "config/text_summary"].removeprefix("```json\n").removesuffix("\n```")
        assert json.loads(config)["run"] == run_id
        assert '"status": "finished"' in texts[run_id, "status/text_summary"]


def wandb_records(path):
    """The records of an offline run: a log in LevelDB's format behind a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), 7, b""
    while at < len(content):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
            record.ParseFromString(whole)
            whole = b""
            yield record


def test_wandb_holds_the_metrics_table_offline(out, whole, monkeypatch):
    pytest.importorskip("wandb", reason="the optional extra trisect[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    chosen = whole.tables["runs"]["run"][0]
    log = track._Log("wandb", Folder(out), "tiny")
    log.add([chosen])
    log.kept["runs"].clear()  # as if the process had ended before it noted the run
    log.add([chosen])
    track._Log("wandb", Folder(out), "tiny").add([chosen])
    [file] = (out / "track" / "wandb").glob("offline-run-*/*.wandb")
    found, summary = {}, {}
    for record in wandb_records(file):
        items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        found |= {(chosen, items["_step"], n): v for n, v in items.items() if not n.startswith("_")}
        summary |= {i.key: json.loads(i.value_json) for i in record.summary.update}
        if record.HasField("run"):
            assert (record.run.display_name, record.run.run_group, record.run.project) == (chosen, "tiny", "trisect")
            config = {u.key: json.loads(u.value_json) for u in record.run.config.update}
            assert config["run"] == chosen
            assert config["training"]["epochs"] == tiny.TRAINING.epochs
    assert found == {key: value for key, value in table(whole).items() if key[0] == chosen}
    assert summary["status"] == "finished"


def test_trackio_holds_the_metrics_table(out, whole, tmp_path, monkeypatch):
    trackio = pytest.importorskip("trackio", reason="the optional extra trisect[trackio]")
    from trackio import sqlite_storage

    for module in (trackio, trackio.utils, sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    log = track._Log("trackio", Folder(out), "tiny")
    first, second = whole.tables["runs"]["run"][:2]
    log.add([first])
    log.kept["runs"].clear()  # as if the process had ended before it noted the run
    log.add([first, second])
    names = {f"{run}-{log.kept['mark']}": run for run in (first, second)}
    runs = list(trackio.Api().runs("trisect"))
    assert sorted(r.name for r in runs) == sorted(
        "".join(c if c.isalnum() or c in "-._" else "_" for c in n) for n in names
    )
    found = {}
    for kept in runs:
        config = kept.config
        assert config is not None
        assert config["status"]["status"] == "finished"
        for row in sqlite_storage.SQLiteStorage.get_logs("trisect", kept.name, run_id=kept.id):
            for name, value in row.items():
                if "/" in name:
                    assert (config["run"], row["step"], name) not in found
                    found[config["run"], row["step"], name] = value
    expected = {key: value for key, value in table(whole).items() if key[0] in (first, second)}
    assert found == expected
    assert all(math.isfinite(v) for v in found.values())
    assert pl.Series(list(found.values())).len() > 10
