"""The engine `ray` where nodes go, join late, are cut off or differ; the same bits as on one machine all the time."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import tiny
from tests.contract.test_engines import begun, ends
from tests.jobs import Walk, Walking, folder_of_files
from tests.ray_cluster import PATHS, STORE
from tests.studies import assert_same, no_page  # noqa: F401

import trisect
from trisect.core.errors import StudyError
from trisect.core.machine import Machine
from trisect.engine.drive import LOSSES, drive
from trisect.engine.ray_connect import ADDRESS
from trisect.engine.start import open_engine
from trisect.experiments.study.run import StudyWork

pytestmark = pytest.mark.ray


def open_ray(folder: Path):
    return open_engine(Machine(engine="ray"), "cpu", folder)


@pytest.fixture
def nodes(cluster, monkeypatch):
    """The cluster, which has its two nodes again afterwards."""
    monkeypatch.setenv(ADDRESS, cluster.address)
    yield cluster
    for number in range(2 - len(cluster.nodes)):
        cluster.add(f"n{os.urandom(3).hex()}{number}")


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_node_that_goes_in_the_middle_loses_nothing_that_landed(how, nodes, home, tmp_path, marks):
    works, hit = [Walking(Walk("w", 9, str(marks), holds_at=4), home), Walking(Walk("other", 3), home)], []

    def show(line, work, share, words):
        if work is works[0] and share == 4 / 9 and not hit:
            hit.append(nodes.name_of(begun(marks, "w")[0][0]))
            getattr(nodes, how)(hit[0])

    with open_ray(tmp_path / "scratch") as engine:
        drive(works, engine, show)
    assert [at for _, at in begun(marks, "w")] == [0, 4]
    assert (home / "ends/w.json").read_text() == ends(9)
    if how == "cut":
        nodes.kill(hit[0])


def test_jobs_wait_where_all_nodes_are_gone_and_go_on_at_one_that_joins_late(nodes, home, tmp_path, marks):
    works, hit = [Walking(Walk(f"w{i}", 5, str(marks), holds_at=2), home) for i in range(2)], []

    def show(line, work, share, words):
        if share == 2 / 5 and not hit and len(list(marks.iterdir())) == 2:
            hit.extend(nodes.nodes)
            for name in hit:
                nodes.kill(name)
            nodes.add("late")

    with open_ray(tmp_path / "scratch") as engine:
        assert engine.slots() == 2
        drive(works, engine, show)
        assert engine.slots() == 1
    for i in range(2):
        [_, again] = begun(marks, f"w{i}")
        assert (home / f"ends/w{i}.json").read_text() == ends(5)
        assert again[1] in (1, 2)  # what had landed when the nodes went


def test_a_job_that_is_lost_again_and_again_is_named_with_its_nodes(nodes, home, tmp_path, marks):
    with pytest.raises(StudyError) as caught, open_ray(tmp_path / "s") as engine:
        drive([Walking(Walk("w", 9, str(marks), dies_at=(1, 2, 3, 4)), home)], engine)
    assert f"{LOSSES} times at 'walk w' (on " in caught.value.problem
    assert [at for _, at in begun(marks, "w")] == [0, 1, 2]
    assert "goes on from what is kept" in caught.value.todo


def test_a_node_with_other_code_is_refused_by_name(nodes, home, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(Path(PATHS.partition(os.pathsep)[0]), other)
    with (other / "trisect/engine/drive.py").open("a") as file:
        file.write("# changed\n")
    nodes.add("different", PYTHONPATH=os.pathsep.join([str(other), PATHS]))
    works = [Walking(Walk(f"w{i}", 30), home) for i in range(6)]
    with open_ray(tmp_path / "s") as engine, pytest.raises(StudyError) as refused:
        drive(works, engine)
    assert re.match(r"The node \S+ has code [0-9a-f]{8} \(here [0-9a-f]{8}\)", refused.value.problem)
    assert "on every node" in refused.value.todo
    nodes.kill("different")


def test_a_study_on_two_nodes_of_which_one_dies_has_the_same_tables(nodes, tmp_path, monkeypatch):
    here = trisect.study(tiny.EXPERIMENT, out=tmp_path / "here", workers=0, quiet=True)
    hit, original = [], StudyWork.land

    def land(self, files):
        original(self, files)
        if not hit:
            hit.append(next(iter(nodes.nodes)))
            nodes.kill(hit[0])

    monkeypatch.setattr(StudyWork, "land", land)
    far = trisect.study(tiny.EXPERIMENT, out=tmp_path / "ray", engine="ray", quiet=True)
    assert hit
    assert_same(here, far)
    assert not [p for p in folder_of_files(tmp_path / "ray") if p.startswith("fleets/")]


def test_clusters_of_ones_own_one_after_the_other_listen_on_loopback_alone_and_say_nothing(home, tmp_path):
    code = (
        "import sys; from pathlib import Path; from tests.jobs import *; from trisect.engine.drive import drive\n"
        "import psutil; from trisect.engine.start import open_engine\n"
        "from trisect.core.machine import Machine\n"
        "for name in ('w', 'again'):\n"
        f"  with open_engine(Machine(engine='ray', workers=1), 'cpu', Path({str(tmp_path / 'scratch')!r})) as engine:\n"
        f"    drive([Walking(Walk(name, 3), Path({str(home)!r}))], engine)\n"
        "    team = [psutil.Process(), *psutil.Process().children(recursive=True)]\n"
        "    open_ = {c.laddr.ip.removeprefix('::ffff:') for p in team for c in p.net_connections() if c.status == 'LISTEN'}\n"
        "    print(open_)\n"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": PATHS}
    clean["RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES"] = str(STORE)
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "{'127.0.0.1'}\n" * 2
    assert [(home / f"ends/{name}.json").read_text() for name in ("w", "again")] == [ends(3)] * 2
    assert not (tmp_path / "scratch").exists()
