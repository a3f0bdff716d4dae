"""The worker's side of the pipes, and which engine a machine gets."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.jobs import Walk, read_start, walk

from trisect.core.machine import Machine
from trisect.engine import processes
from trisect.engine.drive import JobEnd
from trisect.engine.jobs import JobContext, JobOrder, JobProgress
from trisect.engine.processes import Processes, free_gpu, serve
from trisect.engine.start import Here, open_engine, worker_count


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


def test_a_worker_ends_when_its_input_does():
    code = (
        "from trisect.engine.processes import lines_in\nlines = lines_in()\nprint(next(lines), flush=True)\nnext(lines)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == b"b'one\\n'"
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


def test_what_a_library_prints_stands_never_between_the_events():
    code = "from trisect.engine import processes as p; p.serve = lambda _, events: (print('noise'), events.write(b'event')); p.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, stdin=subprocess.DEVNULL, check=True)
    assert (done.stdout, done.stderr) == (b"event", b"noise\n")


def test_nothing_heavy_is_imported_before_a_job_asks_for_it():
    code = "import sys, trisect.engine.processes; print([m for m in ('torch', 'polars', 'spacy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


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
    kept = processes._KEPT.get()
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
    monkeypatch.delenv(processes.VISIBLE, raising=False)
    if visible:
        monkeypatch.setenv(processes.VISIBLE, visible)
    code = (
        f"import os, sys; sys.stdin.readline(); print(os.environ['{processes.VISIBLE}'], file=sys.stderr); sys.exit(3)"
    )
    monkeypatch.setattr(processes, "COMMAND", ("-c", code))
    lost = []
    engine = Processes(2, tmp_path / "a", gpus=2)
    for number in (0, 1):
        engine.submit(number, ordered(tmp_path))
    while len(lost) < 2:
        engine.events(60.0, lambda number, event: lost.append((number, getattr(event, "last", None))))
    engine.close()
    assert sorted(lost) == list(enumerate(seen))
