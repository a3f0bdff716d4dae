"""Which machines a command uses, and that a cluster is used with a token alone; what travels between machines."""

import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from trisect.core.errors import SpecError, StudyError
from trisect.core.files import digest_place
from trisect.core.machine import Machine
from trisect.engine.jobs import failure, read_failure
from trisect.engine.ray_connect import ADDRESS, MODE, check_token, cluster_address, jobs_per_gpu
from trisect.engine.start import open_engine


def test_a_places_hash_is_of_its_names_and_bytes(tmp_path):
    value = tmp_path / "value"
    (value / "deep").mkdir(parents=True)
    (value / "a").write_bytes(b"1\n2")
    (value / "deep" / "b").write_bytes(b"")
    (value / ".half").write_bytes(b"not yet")
    first = digest_place(value)
    shutil.copytree(value, tmp_path / "again")
    assert digest_place(tmp_path / "again") == first
    (value / ".half").write_bytes(b"more")
    assert digest_place(value) == first
    found = {first, digest_place(value / "a")}
    (value / "a").write_bytes(b"1\n3")
    found |= {digest_place(value), digest_place(value / "a")}
    (value / "a").rename(value / "c")
    assert len(found | {digest_place(value)}) == 5


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


OPEN = ("The cluster at h:1 asks for no token.", "It let a wrong one in", "Stop it")
SILENT = ("Ray at h:1 cannot be reached.", "ConnectionError: timed out", "ray status")


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [(0, "", OPEN), (1, "x\nray.exceptions.AuthenticationError: no", None), (1, "x\ntimed out", SILENT)],
)
def test_a_cluster_that_lets_a_wrong_token_in_or_says_nothing_is_refused(code, said, words, monkeypatch):
    shown = []

    def answer(command, env, **how):
        shown.append(env["RAY_AUTH_TOKEN"])
        return subprocess.CompletedProcess(command, code, b"", said.encode())

    monkeypatch.setattr("subprocess.run", answer)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    if words is None:
        check_token("h:1")
    else:
        with pytest.raises(StudyError) as caught:
            check_token("h:1")
        found = (caught.value.problem, caught.value.reason, caught.value.todo)
        assert all(word in text for word, text in zip(words, found, strict=True))
    assert shown != ["right"]


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


@pytest.mark.parametrize(
    ("workers", "gpus", "jobs"),
    [(None, 8, 1), (None, 1, 1), (4, 8, 1), (8, 8, 1), (12, 8, 2), (16, 8, 2), (17, 8, 3), (3, 1, 3), (5, 0, 1)],
)
def test_jobs_share_a_gpu_where_more_are_asked_for_than_there_are(workers, gpus, jobs):
    assert jobs_per_gpu(workers, gpus) == jobs


def test_ray_is_imported_by_those_who_ask_for_it_alone():
    code = "import sys, trisect.engine.start; print([m for m in ('ray', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
