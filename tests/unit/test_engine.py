"""Which machines and which engine a command uses, the pipes of workers, and what trained a run, to the bit."""

import io
import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny
from tests.jobs import Walk, read_start, walk

from trisect.core.errors import SpecError, StudyError
from trisect.core.files import digest_path, write_json
from trisect.core.machine import Machine
from trisect.core.spec import to_json_data
from trisect.engine import processes
from trisect.engine.drive import JobEnd
from trisect.engine.jobs import JobContext, JobOrder, JobProgress, failure, read_failure
from trisect.engine.processes import Processes, free_gpu, serve
from trisect.engine.ray_connect import ADDRESS, MODE, cluster_address
from trisect.engine.start import Here, choose_device, open_engine, worker_count
from trisect.experiments.study import tasks
from trisect.experiments.study.run import PreparedStudy, _add_numerics
from trisect.experiments.study.settings import DesignSource, StudySettings
from trisect.experiments.study.tasks import StudyJob
from trisect.lab.folder import Folder
from trisect.lm.matmul import STEP_REVISION, check_numerics, numerics


def order(tmp_path, **more):
    (tmp_path / "start.txt").write_text("0.5")
    call, paths = ordered(tmp_path, **more).message(), {"start": str(tmp_path / "start.txt")}
    return json.dumps({"order": call, "paths": paths, "folder": str(tmp_path / "scratch")}).encode()


def ordered(tmp_path, **more):
    return JobOrder(walk, Walk("w", 1, **more), Path("home"), {"start": tmp_path / "start.txt"})


def test_a_worker_answers_line_by_line_and_goes_on_after_an_error(tmp_path):
    out = io.BytesIO()
    jobs = [order(tmp_path), order(tmp_path, ends="refused"), order(tmp_path, ends="by a bug"), order(tmp_path)]
    serve(jobs, out)
    said = [json.loads(line) for line in out.getvalue().splitlines()]
    ended = [message for message in said if "files" not in message]
    assert [list(message) for message in ended] == [["done"], ["error"], ["crash"], ["done"]]
    assert ended[1]["error"] == ["CorpusError", "home/state/w.json is wrong.", "known", "todo"]
    assert "ValueError: a bug" in ended[2]["crash"]
    files, words, last = said[:3]
    assert list(last["files"]) == ["ends/w.json"]
    assert (files["share"], set(files["files"])) == (None, {"state/w.json", "steps/w-1.txt"})
    assert (words["share"], words["files"]) == (1.0, {})


def test_what_a_library_prints_stands_never_between_the_events():
    code = "from trisect.engine import processes as p; p.serve = lambda _, events: (print('noise'), events.write(b'event')); p.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, stdin=subprocess.DEVNULL, check=True)
    assert (done.stdout, done.stderr) == (b"event", b"noise\n")


def test_a_desk_sends_a_file_once_until_it_changes_and_no_half_written_one(tmp_path):
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "b").write_text("b")
    sent: list[JobProgress] = []
    context = JobContext(tmp_path / "work", {"start": tmp_path / "start"}, {}, sent.append)
    context.begin("start")
    assert (context.scratch / "start/b").stat().st_ino == (tmp_path / "start" / "b").stat().st_ino
    context.send_files()
    assert sent == []  # what it began with is known at home
    (context.scratch / "a").write_text("1")
    (context.scratch / ".a.part").write_text("half")
    context.send_files()
    context.send_files()
    (context.scratch / "a").unlink()
    (context.scratch / "a").write_text("2")
    context.send_files()
    assert [{name: path.read_text() for name, path in said.files.items()} for said in sent] == [{"a": "1"}, {"a": "2"}]  # pyright: ignore[reportAttributeAccessIssue]


def test_progress_is_passed_on_now_and_then(tmp_path, monkeypatch):
    now, sent = [10.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    context = JobContext(tmp_path, {}, {}, sent.append)
    for step in range(10):
        now[0] = 10 + step / 8
        context.report(step / 16, "")
    assert [said.share for said in sent] == [0, 2 / 16, 4 / 16, 6 / 16, 8 / 16]


def test_a_value_is_made_once_by_each_process(tmp_path):
    (tmp_path / "x").write_text("0.25")
    values = {}
    first, second = (JobContext(tmp_path / str(i), {"x": tmp_path / "x"}, values, lambda said: None) for i in range(2))
    assert first.read("x", read_start) is second.read("x", read_start)


@pytest.mark.parametrize(("workers", "kind"), [(0, Here), (1, Processes), (3, Processes)])
def test_no_workers_are_the_engine_here(workers, kind, tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "left by a killed process").write_text("x")
    with open_engine(Machine(workers=workers), "cpu", tmp_path / "jobs") as engine:
        assert isinstance(engine, kind)
        assert engine.slots() == max(1, workers)
        assert not (tmp_path / "jobs").exists()


def test_workers_are_one_a_core_and_one_for_each_gpu():
    assert worker_count(Machine(), "cpu") == Machine().cores()
    assert [worker_count(Machine(), "cuda", gpus) for gpus in (1, 8)] == [1, 8]
    assert worker_count(Machine(engine="here"), "cpu") == 0
    assert [worker_count(Machine(workers=n), device) for n in (0, 3) for device in ("cpu", "cuda")] == [0, 0, 3, 3]


def _walked(tmp_path, name: str) -> tuple[int, dict[str, str]]:
    """Two jobs on an engine of its own: how many processes were started, and what came of them."""
    started, done, files = list[object](), list[object](), dict[str, str]()
    own = processes._Worker.__init__
    (tmp_path / "start.txt").write_text("0.5")

    def take(number, event):
        if isinstance(event, JobProgress):
            files.update((f"{number} {path}", Path(str(content)).read_text()) for path, content in event.files.items())
        else:
            assert event == JobEnd()
            done.append(number)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processes._Worker, "__init__", lambda *given: (started.append(given), own(*given))[1])
        engine = Processes(1, tmp_path / name)
        for number in (1, 2):
            engine.submit(number, ordered(tmp_path))
            while len(done) < number:
                engine.events(60.0, take)
        engine.close()
    return len(started), files


def _kept() -> list[processes._Worker]:
    kept = processes._IDLE_WORKERS.get()
    assert kept
    return kept[1]


@pytest.fixture
def jobs_of_the_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_a_worker_serves_one_engine_after_the_other_while_it_is_kept(tmp_path, jobs_of_the_tests):
    with processes.reuse_workers():
        first, one = _walked(tmp_path, "a")
        (worker,) = _kept()
        with processes.reuse_workers():  # as in a study that is a part of a dissection
            again, other = _walked(tmp_path, "b")
        assert (first, again) == (1, 0)
        assert one == other
        assert worker.process.poll() is None
        worker.process.kill()  # one that has ended is not used
        worker.process.wait()
        assert _walked(tmp_path, "c") == (1, one)
        assert worker not in (_kept())
        (worker,) = _kept()
    assert worker.process.poll() is not None
    assert [_walked(tmp_path, name)[0] for name in "de"] == [1, 1]


def test_a_worker_that_has_a_job_is_not_kept(tmp_path, jobs_of_the_tests):
    with processes.reuse_workers():
        engine = Processes(1, tmp_path / "a")
        (tmp_path / "start.txt").write_text("0.5")
        engine.submit(1, ordered(tmp_path))
        engine.close()
        assert _kept() == []


def test_workers_take_the_gpus_in_turn_and_a_new_one_that_of_the_worker_that_died():
    taken = list[int | None]()
    for _ in range(5):
        taken.append(free_gpu(taken, 4))
    assert taken == [0, 1, 2, 3, 0]
    assert free_gpu([0, 1, 3], 4) == 2
    assert free_gpu([None], 0) is None


@pytest.mark.parametrize(("visible", "seen"), [(None, ["0", "1"]), ("4,GPU-7", ["4", "GPU-7"])])
def test_each_worker_sees_one_gpu_of_those_that_this_process_sees(visible, seen, tmp_path, monkeypatch):
    monkeypatch.delenv(processes.VISIBLE_DEVICES, raising=False)
    if visible:
        monkeypatch.setenv(processes.VISIBLE_DEVICES, visible)
    code = f"import os, sys; sys.stdin.readline(); print(os.environ['{processes.VISIBLE_DEVICES}'], file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(processes, "COMMAND", ("-c", code))
    lost = []
    engine = Processes(2, tmp_path / "a", gpus=2)
    for number in (0, 1):
        engine.submit(number, ordered(tmp_path))
    while len(lost) < 2:
        engine.events(60.0, lambda number, event: lost.append((number, getattr(event, "last", None))))
    engine.close()
    assert sorted(lost) == list(enumerate(seen))


def test_a_places_hash_is_of_its_names_and_bytes(tmp_path):
    value = tmp_path / "value"
    (value / "deep").mkdir(parents=True)
    (value / "a").write_bytes(b"1\n2")
    (value / "deep" / "b").write_bytes(b"")
    (value / ".half").write_bytes(b"not yet")
    first = digest_path(value)
    shutil.copytree(value, tmp_path / "again")
    assert digest_path(tmp_path / "again") == first
    (value / ".half").write_bytes(b"more")
    assert digest_path(value) == first
    found = {first, digest_path(value / "a")}
    (value / "a").write_bytes(b"1\n3")
    found |= {digest_path(value), digest_path(value / "a")}
    (value / "a").rename(value / "c")
    assert len(found | {digest_path(value)}) == 5


def test_errors_travel_as_json_and_come_out_as_they_were():
    error = read_failure(failure(SpecError("given", "known", "todo")))
    assert error is not None
    assert (type(error), error.args) == (SpecError, ("given", "known", "todo"))
    assert "ValueError: a bug" in str(read_failure(failure(ValueError("a bug"))))
    assert read_failure({"share": 0.5}) is None


def test_a_cluster_is_the_one_of_the_environment_and_is_refused_without_a_token(monkeypatch):
    monkeypatch.delenv(MODE, raising=False)
    for nothing in ("", "local"):
        monkeypatch.setenv(ADDRESS, nothing)
        assert cluster_address() is None
    monkeypatch.setenv(ADDRESS, "head:6379")
    with pytest.raises(StudyError) as caught:
        cluster_address()
    assert "head:6379" in caught.value.problem
    assert f"{MODE} is None" in caught.value.reason
    assert "firewall" in caught.value.todo
    monkeypatch.setenv(MODE, "token")
    assert cluster_address() == "head:6379"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"engine": "dask"}, "engine is 'dask'"),
        ({"engine": "ray", "workers": 0}, "--engine ray and --workers 0 were both given"),
        ({"engine": "here", "workers": 2}, "--engine here and --workers 2 were both given"),
        ({"fleet": 0}, "fleet is 0"),
    ],
)
def test_a_machine_that_contradicts_itself_is_refused(given, words):
    with pytest.raises(SpecError, match=words):
        Machine(**given)


@pytest.mark.parametrize(("workers", "cores"), [(None, Machine().cores()), (1, 1), (500, Machine().cores())])
def test_a_cluster_of_ones_own_has_the_cores_that_a_machine_is_asked_for(workers, cores, tmp_path, monkeypatch):
    """Connecting is as far as this goes."""
    asked = []

    @contextmanager
    def connect(*given):
        asked.append(given)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("trisect.engine.start.open_ray", connect)
    with pytest.raises(KeyboardInterrupt), open_engine(Machine(engine="ray", workers=workers), "cpu", tmp_path / "s"):
        pass
    assert asked == [(cores, 0)]


ONEDNN, OTHER = "step 2, float32 products by oneDNN (medium)", "step 2, float32 products by MKL (highest)"


def test_what_trains_a_run_names_step_precision_library_setting_and_device(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Abacus 9")
    narrow = f"step {STEP_REVISION}, bfloat16 (revision 2) products"
    assert numerics("cpu", "float32", "medium") == f"step {STEP_REVISION}, float32 products by oneDNN (medium) on AVX2"
    assert numerics("cpu", "bfloat16", "highest") == f"{narrow} by oneDNN (highest) on AVX2"
    assert numerics("cuda", "bfloat16", "highest") == f"{narrow} by cuBLAS (highest) on Abacus 9"
    for said, library in (
        ("Intel(R) oneAPI Math Kernel Library Version 2024.2", "MKL"),
        ("BLAS_INFO=open, BUILD_TYPE=Release", "OpenBLAS"),
        ("BLAS_INFO=accelerate", "Accelerate"),
        ("", "BLAS"),
    ):
        monkeypatch.setattr(torch.__config__, "show", lambda said=said: said)
        assert (
            numerics("cpu", "float32", "highest")
            == f"step {STEP_REVISION}, float32 products by {library} (highest) on AVX2"
        )


def test_a_node_without_narrow_products_refuses_to_train_with_them(monkeypatch):
    monkeypatch.setattr("trisect.engine.start.has_bfloat16", lambda: False)
    asked: Any = StudyJob("train", (), "", "", tiny.EXPERIMENT, "cpu", "bfloat16")
    nothing: Any = None
    with pytest.raises(SpecError) as error:
        tasks._train(asked, nothing, nothing, nothing, "highest")
    assert error.value.problem == "The precision 'bfloat16' was asked for on the CPU."
    assert choose_device(Machine("cpu", precision="bfloat16", engine="ray")) == "cpu"  # the driver trains nothing


def test_narrow_products_are_refused_in_quick_and_warned_of_where_effects_are_small(monkeypatch):
    monkeypatch.setattr("trisect.engine.start.has_bfloat16", lambda: True)
    narrow = Machine("cpu", precision="bfloat16")

    def prepare(experiment, machine=narrow):
        return PreparedStudy.prepare(StudySettings(DesignSource(experiment)), machine)

    prepare("quick", Machine("cpu"))
    with pytest.raises(SpecError, match=r"(?s)'bfloat16' .*in 'quick'.*Leave --precision out"):
        prepare("quick")
    with pytest.warns(UserWarning, match="bfloat16 products moved effects of freezing by more than their spread"):
        prepare(tiny.EXPERIMENT)
    prepare(replace(tiny.EXPERIMENT, freeze=None, rewind=None))  # a warning would be an error here


def test_narrow_products_need_a_processor_that_has_them(monkeypatch):
    asked = Machine("cpu", precision="bfloat16")
    monkeypatch.setattr("trisect.engine.start.has_bfloat16", lambda: True)
    assert choose_device(asked) == "cpu"
    monkeypatch.setattr("trisect.engine.start.has_bfloat16", lambda: False)
    with pytest.raises(SpecError, match=r"(?s)'bfloat16' .*on the CPU.*AVX-512 or AMX.*--device cuda"):
        choose_device(asked)


def test_a_study_is_never_trained_by_two_libraries():
    check_numerics(None, OTHER)
    check_numerics(ONEDNN, ONEDNN)
    with pytest.raises(StudyError) as error:
        check_numerics(ONEDNN, OTHER)
    assert ONEDNN in error.value.problem
    assert OTHER in error.value.reason


def finished(folder, run, how):
    record = {
        "spec": to_json_data(tiny.runs()[0]),
        "status": "finished",
        "diverged_step": None,
        "parameters": 1,
        "versions": {},
        "claims_hash": "",
        "revision": 1,
        "device": "cpu",
        "precision": "float32",
        "products": "medium",
        "numerics": how,
        "processor": "",
        "recorded": False,
        "wall_seconds": 1.0,
        "metrics": [],
    }
    write_json(folder.run(run), record)


def test_runs_that_two_machines_trained_in_two_ways_stop_the_study(tmp_path):
    folder, known = Folder(tmp_path), set[str]()
    _add_numerics(known, folder, ("a-1-0", "b-1-0"))
    assert known == set()
    finished(folder, "a-1-0", ONEDNN)
    _add_numerics(known, folder, ("a-1-0", "b-1-0"))
    assert known == {ONEDNN}
    finished(folder, "b-1-0", OTHER)
    with pytest.raises(StudyError, match="trained in two ways") as error:
        _add_numerics(known, folder, ["b-1-0"])
    assert ONEDNN in error.value.reason
    assert OTHER in error.value.reason
