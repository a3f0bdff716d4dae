"""What every engine promises, held against each: the same bits, errors as they were reported, nothing lost with a worker."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests import jobs, tiny
from tests.jobs import TEXT, Far, Walk, Walking, walk
from tests.studies import assert_same, no_page  # noqa: F401

import trisect
from trisect.core.errors import CorpusError, StudyError
from trisect.core.machine import Machine
from trisect.core.methods import Attack, Rewind
from trisect.engine import processes
from trisect.engine.drive import LOSSES, Engine, JobEnd, JobLoss, drive
from trisect.engine.jobs import JobOrder, JobProgress, find_job, write_files
from trisect.engine.ray_connect import ADDRESS
from trisect.engine.start import open_engine

ROOT = Path(__file__).parents[2]


@contextmanager
def open_far(folder: Path) -> Iterator[Engine]:
    engine = Far(folder)
    yield engine
    engine.close()


OPEN = {
    "here": lambda folder: open_engine(Machine(engine="here"), "cpu", folder),
    "processes": lambda folder: open_engine(Machine(workers=2), "cpu", folder),
    "far": open_far,
    "ray": lambda folder: open_engine(Machine(engine="ray", workers=2), "cpu", folder),
}
RAY = pytest.param("ray", marks=pytest.mark.ray)
ENGINES = pytest.mark.parametrize("name", ["here", "processes", "far", RAY])
WITH_WORKERS = pytest.mark.parametrize("name", ["processes", RAY])  # engines whose workers may die
OWN_WORKERS = pytest.mark.parametrize("name", ["processes"])  # engines that start them


@pytest.fixture(autouse=True)
def _path(monkeypatch, request):
    """Workers find the jobs of the tests, and Ray a cluster."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    if request.node.get_closest_marker("ray"):
        monkeypatch.setenv(ADDRESS, request.getfixturevalue("cluster").address)  # as a command finds it


def begun(marks: Path, name: str) -> list[list[int]]:
    """Process and first step of each time that a walk was begun."""
    return [[int(word) for word in line.split()] for line in (marks / name).read_text().splitlines()]


def wait_until(true: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(steps: int) -> str:
    x = 0.123456789
    for _ in range(steps):
        x = 3.9 * x * (1 - x)
    return repr(x)


def ordered(asked: Walk, home: Path) -> JobOrder:
    return JobOrder(walk, asked, home, {"start": home / "start.txt"})


@ENGINES
def test_every_engine_gives_the_same_bits_and_leaves_nothing_else(name, home, tmp_path):
    shown = []
    works = [Walking(Walk(f"w{i}", 20 + i), home) for i in range(3)]
    with OPEN[name](tmp_path / "scratch") as engine:
        drive(works, engine, lambda *seen: shown.append(seen))
    files = jobs.folder_of_files(home)
    assert set(files) == {
        "start.txt",
        *(f"ends/w{i}.json" for i in range(3)),
        *(f"steps/w{i}-{n}.txt" for i in range(3) for n in range(1, 21 + i)),
    }
    assert [files[f"ends/w{i}.json"].decode() for i in range(3)] == [ends(20 + i) for i in range(3)]
    assert {work for _, work, share, _ in shown if share == 1} == set(works)
    assert {words.partition(" on ")[0] for _, _, share, words in shown if share < 1} == {TEXT}
    assert {line for line, *_ in shown} <= set(range(engine.slots()))
    assert not (tmp_path / "scratch" / ("node" if name == "far" else "")).exists()


@ENGINES
def test_work_waits_for_what_it_builds_on_and_events_of_a_job_come_in_order(name, home, tmp_path):
    first, *later = Walking(Walk("first", 3), home), *(Walking(Walk(f"w{i}", 2), home, ("first",)) for i in range(2))
    ended = []
    with OPEN[name](tmp_path / "scratch") as engine:
        drive([*later, first], engine, lambda line, work, share, words: ended.append(work) if share == 1 else None)
    assert ended[0] is first
    assert set(ended[1:]) == set(later)
    found = []
    with OPEN[name](tmp_path / "scratch") as engine:
        engine.submit(7, ordered(Walk("w", 5), home))
        wait_until(lambda: engine.events(0.1, lambda *event: found.append(event)) or (7, JobEnd()) in found)
        assert {number for number, _ in found} == {7}
        assert found[-1] == (7, JobEnd())
        assert all(isinstance(event, JobProgress) for _, event in found[:-1])
        sent = [file for _, event in found[:-1] for file in event.files]
        assert sent == [*(file for n in range(1, 6) for file in ("state/w.json", f"steps/w-{n}.txt")), "ends/w.json"]
        engine.events(0, lambda *event: found.append(event))
    assert found[-1] == (7, JobEnd())


@ENGINES
def test_a_job_that_fails_raises_what_it_reported_and_names_files_as_at_home(name, home, tmp_path):
    with pytest.raises(CorpusError) as caught, OPEN[name](tmp_path / "scratch") as engine:
        drive([Walking(Walk("w", 3, ends="refused"), home)], engine)
    assert caught.value.args == (f"{home}/state/w.json is wrong.", "known", "todo")
    assert (caught.value.problem, caught.value.reason) == caught.value.args[:2]
    assert (home / "state/w.json").exists()  # what it had kept is there


@ENGINES
def test_a_job_that_is_interrupted_goes_on_from_what_it_kept(name, home, tmp_path, marks):
    with pytest.raises((ValueError, RuntimeError), match="a bug"), OPEN[name](tmp_path / "scratch") as engine:
        drive([Walking(Walk("w", 4, str(marks), ends="by a bug"), home)], engine)
    with OPEN[name](tmp_path / "scratch") as engine:
        drive([Walking(Walk("w", 9, str(marks)), home)], engine)
    assert [at for _, at in begun(marks, "w")] == [0, 4]
    assert (home / "ends/w.json").read_text() == ends(9)
    assert not (home / "state/w.json").exists()


def test_an_interruption_passes_through_the_engine_here_and_what_was_kept_has_landed(home, tmp_path):
    with pytest.raises(KeyboardInterrupt), OPEN["here"](tmp_path / "scratch") as engine:
        drive([Walking(Walk("w", 4, ends="interrupted"), home)], engine)
    assert (home / "state/w.json").exists()
    assert not (tmp_path / "scratch").exists()


@WITH_WORKERS
@pytest.mark.parametrize("dies_at", [(4,), (4, 6)])
def test_a_lost_job_goes_on_from_its_checkpoint_to_the_same_bits(name, dies_at, home, tmp_path, marks):
    assert len(dies_at) < LOSSES
    works = [Walking(Walk("w", 9, str(marks), dies_at), home), Walking(Walk("other", 2), home)]
    with OPEN[name](tmp_path / "scratch") as engine:
        drive(works, engine)
    assert [at for _, at in begun(marks, "w")] == [0, *dies_at]
    assert (home / "ends/other.json").read_text() == ends(2)
    assert (home / "ends/w.json").read_text() == ends(9)


@OWN_WORKERS
def test_a_job_that_is_lost_again_and_again_is_named(name, home, tmp_path, monkeypatch):
    dying = "import sys; sys.stdin.readline(); print('out of memory, say', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(processes, "COMMAND", ("-c", dying))
    with pytest.raises(StudyError) as caught, OPEN[name](tmp_path / "scratch") as engine:
        drive([Walking(Walk("w", 1), home)], engine)
    assert caught.value.problem == f"A worker process ended unexpectedly (exit status 3), {LOSSES} times at 'walk w'."
    assert caught.value.reason == "Its last words: out of memory, say"
    assert "--workers 1" in caught.value.todo


@OWN_WORKERS
@pytest.mark.parametrize("line", ["hello", "5"])
def test_a_stray_line_between_the_events_ends_the_worker_and_hangs_nobody(name, line, home, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "COMMAND", ("-c", f"import sys; sys.stdin.readline(); print({line!r})"))
    found = []
    with OPEN[name](tmp_path / "scratch") as engine:
        engine.submit(1, ordered(Walk("w", 1), home))
        wait_until(lambda: engine.events(0.1, lambda *event: found.append(event)) or found)
    assert isinstance(found[0][1], JobLoss)


@WITH_WORKERS
def test_closing_an_engine_ends_its_workers_and_removes_their_scratch(name, home, tmp_path, marks):
    with OPEN[name](tmp_path / "scratch") as engine:
        for i in range(2):
            engine.submit(i, ordered(Walk(f"w{i}", 1, str(marks), ends="never"), home))
        wait_until(
            lambda: (
                engine.events(0.1, lambda number, event: None)
                or (len(list(marks.iterdir())) == 2 and all(begun(marks, f"w{i}") for i in range(2)))
            )
        )
        team = [begun(marks, f"w{i}")[0][0] for i in range(2)]
        assert all(alive(process) for process in team)
    wait_until(lambda: not any(alive(process) for process in team))
    assert not (tmp_path / "scratch").exists()


@WITH_WORKERS
def test_workers_end_with_the_driver(name, home, tmp_path, marks):
    code = (
        "import sys; from pathlib import Path; from tests.jobs import *; from trisect.engine.drive import drive\n"
        "from tests.contract.test_engines import OPEN\n"
        f"with OPEN[{name!r}](Path({str(tmp_path / 'scratch')!r})) as engine:\n"
        f"    drive([Walking(Walk('w', 3, {str(marks)!r}, ends='never'), Path({str(home)!r}))], engine)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    landed = [home / "steps/w-3.txt", home / "state/w.json"]  # steps first
    wait_until(lambda: driver.poll() is not None or all(path.exists() for path in landed))
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    [[worker, _]] = begun(marks, "w")
    wait_until(lambda: not alive(worker))
    assert (home / "state/w.json").exists()


def test_only_declared_jobs_can_be_run():
    assert find_job("tests.jobs:walk") is walk
    for name, known in (
        ("os:getcwd", "os declares no such job."),
        ("tests.jobs:write", "tests.jobs declares no such job."),
        ("no.such.module:f", "ModuleNotFoundError: No module named 'no'"),
        ("", " declares no such job."),
    ):
        with pytest.raises(StudyError) as caught:
            find_job(name)
        assert (caught.value.problem, caught.value.reason) == (f"The job {name!r} cannot be run.", known)
        assert "@job" in caught.value.todo


def test_files_land_in_the_order_asked_for_and_never_outside(tmp_path, monkeypatch):
    landed = []
    put = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (landed.append(target.name), put(self, target))[1])
    (tmp_path / "moved").write_bytes(b"2")
    files = {"a/run.json": b"1", "fleets/x": tmp_path / "moved", "b": b"3", "a/epochs/1": b"4"}
    write_files(files, tmp_path / "out", ("fleets/*", "*/run.json"))
    assert landed == ["1", "b", "x", "run.json"]
    assert not (tmp_path / "moved").exists()
    assert (tmp_path / "out/fleets/x").read_bytes() == b"2"
    for name in ("../x", "/etc/x", "a/../../x", str(tmp_path / "x")):
        with pytest.raises(StudyError, match="cannot be a file's name in"):
            write_files({name: b"x"}, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_a_study_whose_jobs_share_no_disk_with_the_driver_gives_the_same_tables(tmp_path, monkeypatch):
    small = replace(tiny.EXPERIMENT, seeds=(1,), freeze=None, attack=Attack(tiny.SITES[:1], ("pos",)))
    small = replace(small, rewind=Rewind(tiny.SITES[:1], points=5))
    here = trisect.study(small, out=tmp_path / "here", workers=0, quiet=True)
    monkeypatch.setattr("trisect.engine.start.Here", Far)
    far = trisect.study(small, out=tmp_path / "far", workers=0, quiet=True)
    assert_same(here, far)
