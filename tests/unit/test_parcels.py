"""What travels between machines: bytes that come out as they went in, and values that are checked where they arrive."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trisect.core.errors import SpecError, StudyError
from trisect.core.machine import Machine
from trisect.engine import depot as depots
from trisect.engine import node as nodes
from trisect.engine import ray_connect
from trisect.engine.depot import Depot
from trisect.engine.failures import failure, read_failure
from trisect.engine.node import ValueShelf
from trisect.engine.on_ray import RayPlace
from trisect.engine.parcels import fingerprint, pack, pack_value, place_value, stored_in, unpack, value_in
from trisect.engine.ray_connect import check_address, check_asks
from trisect.engine.ray_owner import find_owner
from trisect.engine.start import crew, open_engine, ray_place

NAMES = st.text("abc/\n 0é", min_size=1)


@given(words=st.dictionaries(NAMES, st.none() | st.integers() | NAMES), files=st.dictionaries(NAMES, st.binary()))
def test_a_parcel_gives_back_what_was_packed(words, files):
    found = unpack(pack(words, files))
    assert (found.words, found.files, found.stored) == (words, files, {})


@pytest.fixture
def value(tmp_path):
    (tmp_path / "value" / "deep").mkdir(parents=True)
    (tmp_path / "value" / "a").write_bytes(b"1\n2")
    (tmp_path / "value" / "deep" / "b").write_bytes(b"")
    (tmp_path / "value" / ".half").write_bytes(b"not yet")
    return tmp_path / "value"


def test_a_values_hash_is_of_its_names_and_bytes(value, tmp_path):
    first = fingerprint(value)
    place_value(pack_value(value), tmp_path / "again")
    assert fingerprint(tmp_path / "again") == first
    (value / ".half").write_bytes(b"more")
    assert fingerprint(value) == first
    found = {first, fingerprint(value / "a")}
    (value / "a").write_bytes(b"1\n3")
    found |= {fingerprint(value), fingerprint(value / "a")}
    (value / "a").rename(value / "c")
    assert len(found | {fingerprint(value)}) == 5


def test_a_value_travels_once_and_again_only_where_it_is_damaged(value, tmp_path):
    fetched, key = [], fingerprint(value)

    def fetch():
        fetched.append(key)
        return pack_value(value)

    for times, spoilt in ((1, False), (1, False), (2, True)):
        if spoilt:
            (tmp_path / "shelf" / key / "a").write_bytes(b"1\n3")
        place = ValueShelf(tmp_path / "shelf", None).find(key, fetch)  # as by another process
        assert (place / "a").read_bytes() == b"1\n2"
        assert len(fetched) == times
    single = ValueShelf(tmp_path / "shelf", None).find(fingerprint(value / "a"), lambda: pack_value(value / "a"))
    assert single.read_bytes() == b"1\n2"


def test_a_value_that_arrives_damaged_is_refused_and_does_not_stay(value, tmp_path):
    key = fingerprint(value)
    (value / "a").write_bytes(b"other")
    with pytest.raises(StudyError, match="arrived damaged") as caught:
        ValueShelf(tmp_path / "shelf", None).find(key, lambda: pack_value(value))
    assert caught.value.known == f"Its bytes do not have the hash {key}."
    assert [p.name for p in (tmp_path / "shelf").iterdir()] == [f"{key}.lock"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ".x"])
def test_no_file_of_a_parcel_leads_out_of_its_folder(name, tmp_path):
    with pytest.raises(StudyError, match="cannot be a file's name"):
        place_value(pack({}, {name: b"x"}), tmp_path / "place")


def test_large_files_go_by_the_depot_and_are_removed_there(value, tmp_path, monkeypatch):
    monkeypatch.setattr("trisect.engine.parcels.LARGE", 1)
    depot = Depot(str(tmp_path / "depot"), "me")
    depot.check()
    parcel = pack_value(value, depot)
    assert set(unpack(parcel).files) == {"deep/b"}
    key = fingerprint(value)
    place_value(parcel, tmp_path / "place", depot)
    assert fingerprint(value_in(tmp_path / "place", key)) == key
    [name] = stored_in(parcel)
    depot.remove(name)
    depot.sweep()
    assert not list((tmp_path / "depot").iterdir())
    with pytest.raises(StudyError, match="cannot be read"):
        depot.fetch(name, tmp_path / "gone")


def test_trying_a_depot_leaves_nothing_and_what_is_gone_already_is_removed(tmp_path):
    depot = Depot(str(tmp_path / "depot"), "me")
    depot.check()
    assert not list((tmp_path / "depot").iterdir())
    depot.remove("never there")


def test_a_depot_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for url in (f"{tmp_path}/file/below", "nothing-known://x"):
        with pytest.raises(StudyError) as caught:
            Depot(url, "me").check()
        assert caught.value.given == f"{url} cannot be written."
        assert "--scratch" in caught.value.todo
    assert depots.LARGE > 1000


def test_errors_travel_as_json_and_come_out_as_they_were():
    error = read_failure(failure(SpecError("given", "known", "todo")))
    assert error is not None
    assert (type(error.error), error.error.args) == (SpecError, ("given", "known", "todo"))
    crash = read_failure(failure(ValueError("a bug")))
    assert crash is not None
    assert "ValueError: a bug" in str(crash.error)
    assert read_failure({"share": 0.5}) is None


def test_a_folder_that_others_may_write_in_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = nodes.node_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(StudyError, match="cannot be used") as caught:
        nodes.node_folder()
    assert "TMPDIR" in caught.value.todo


def test_a_cluster_is_refused_without_a_token(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    check_address(None)
    with pytest.raises(StudyError) as caught:
        check_address("head:6379")
    assert caught.value.given == "--address head:6379 was given without a token."
    assert "RAY_AUTH_MODE is None" in caught.value.known
    assert "firewall" in caught.value.todo
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    check_address("head:6379")


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
        check_asks("h:1")
    else:
        with pytest.raises(StudyError) as caught:
            check_asks("h:1")
        found = (caught.value.given, caught.value.known, caught.value.todo)
        assert all(word in text for word, text in zip(words, found, strict=True))
    assert shown != ["right"]


def test_an_experiments_id_is_its_own_and_lasts_while_something_may_lie_on_nodes(tmp_path, monkeypatch):
    first = find_owner(tmp_path / "a")
    assert (first.kept, find_owner(tmp_path / "a").mark == first.mark) == (False, False)  # as the same path elsewhere
    first.keep()
    assert find_owner(tmp_path / "a") == first._replace(kept=True)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert find_owner(tmp_path / "copy").mark != first.mark
    (tmp_path / "copy" / "owner").write_text("../x")
    assert not find_owner(tmp_path / "copy").kept

    def refuse(address):
        raise StudyError("given", "known", "todo")

    monkeypatch.setattr("trisect.engine.ray_connect.check_address", refuse)
    for name, stays in (("a", True), ("new", False)):
        with pytest.raises(StudyError), open_engine(1, tmp_path / name, RayPlace("h:1")):
            pass
        assert (find_owner(tmp_path / name).kept, (tmp_path / name).exists()) == (stays, stays)
    assert find_owner(tmp_path / "a").mark == first.mark


def test_only_folders_of_processes_that_ran_here_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ray_connect, "_runs", lambda process: process != 7)
    with ray_connect._own_folder() as folder:
        here = Path(folder).name.rsplit("-", 2)[0]
    names = [f"{here}-7-x", f"{here}-8-x", "trisect-ray-other-7-x", "trisect-ray-7-x"]
    for name in names:
        (tmp_path / name).mkdir()
    with ray_connect._own_folder():
        assert not (tmp_path / names[0]).exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names[1:])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"engine": "ray", "scratch": " "}, "--scratch names no place"),
        ({"engine": "dask"}, "Unknown engine 'dask'"),
        ({"address": "auto"}, "--address auto was given without --engine ray"),
        ({"per_gpu": 2, "engine": "processes"}, "--per-gpu 2 was given without --engine ray"),
        ({"scratch": "/x"}, "--scratch /x was given without --engine ray"),
        ({"engine": "ray", "address": "head"}, "'head' is no address"),
        ({"engine": "ray", "address": ":1"}, "':1' is no address"),
        ({"engine": "ray", "workers": 0}, "--engine ray and --workers 0 were both given"),
        ({"engine": "here", "workers": 2}, "--engine here and --workers 2 were both given"),
        ({"losses": 0}, "losses is 0"),
        ({"fleet": 0}, "fleet is 0"),
    ],
)
def test_a_machine_that_contradicts_itself_is_refused(given, words):
    with pytest.raises(SpecError, match=words):
        Machine(**given)


def test_which_cluster_a_machine_asks_for():
    assert crew(Machine(engine="here"), "cpu") == 0
    place = ray_place(Machine(engine="ray", address="h:1", per_gpu=2, workers=5, scratch="s3://x"), "cuda")
    assert (place.address, place.workers, place.gpus, place.per_gpu, place.scratch) == ("h:1", 5, True, 2, "s3://x")
    own = ray_place(Machine(engine="ray"), "cpu")
    assert (own.address, own.workers, own.cores, own.gpus) == (None, None, Machine().cores(), False)


def test_ray_and_fsspec_are_imported_by_those_who_ask_for_them_alone():
    code = "import sys, trisect.engine.start; print([m for m in ('ray', 'fsspec', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
