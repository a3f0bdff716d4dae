"""The engine `ray` on two hosts, each a network namespace, whose link is cut without a word."""

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.contract.test_engines import begun, ends, wait_until
from tests.ray_cluster import PATHS, SETTINGS, SOON, STORE, end

from trisect.core.errors import is_installed
from trisect.engine.ray_connect import LOOPBACK

pytestmark = pytest.mark.ray

HOSTS = ("10.77.0.1", "10.77.0.2")
HEAD = """
import json, os, sys, threading
from pathlib import Path
import ray._private.node, ray._private.parameter
from tests.jobs import *
from trisect.engine.drive import drive
from trisect.engine.start import open_engine
from trisect.core.machine import Machine
address, store, soon, home, marks = json.loads(sys.argv[1])
node = ray._private.node.Node(ray._private.parameter.RayParams(
    num_cpus=1, object_store_memory=store, _system_config=soon, include_dashboard=False, node_ip_address=address,
    gcs_server_port=6399, min_worker_port=0, max_worker_port=0), head=True, shutdown_at_exit=True, spawn_reaper=True)
print("the head is up", flush=True)
sys.stdin.readline()  # the other host has joined
works = [Walking(Walk(f"w{i}", 9, marks, holds_at=4), Path(home)) for i in range(2)]
os.environ["RAY_ADDRESS"] = f"{address}:6399"
with open_engine(Machine(engine="ray", workers=2), "cpu", Path(home).parent / "scratch") as engine:
    drive(works, engine)
"""


@contextmanager
def namespace() -> Iterator[int]:
    """A network namespace of its own, by the number of a process in it; skips where none may be made."""
    try:
        held = subprocess.Popen(["unshare", "--net", "sleep", "600"], stderr=subprocess.DEVNULL)
    except OSError:
        pytest.skip("needs the command unshare")
    try:
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: held.poll() is not None or os.readlink(f"/proc/{held.pid}/ns/net") != own, 20)
        if held.poll() is not None:
            pytest.skip("needs the right to make network namespaces")
        yield held.pid
    finally:
        held.kill()
        held.wait()


def enter(process: int, *words: str) -> list[str]:
    return ["nsenter", "--target", str(process), "--net", *words]


def ip(process: int, *words: str) -> None:
    subprocess.run(enter(process, "ip", *words), check=True)


def test_a_link_that_is_cut_in_the_middle_loses_nothing_that_landed(tmp_path):
    if not is_installed("ray"):
        pytest.skip("needs trisect[ray]")
    home, marks = tmp_path / "home", tmp_path / "marks"
    for folder in (home, marks):
        folder.mkdir()
    (home / "start.txt").write_text("0.123456789")
    shared = os.environ | SETTINGS | {"RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": PATHS}
    for name in LOOPBACK:
        shared.pop(name)
    with ExitStack() as stack:
        # Ray's sockets need short paths
        own = [
            stack.enter_context(tempfile.TemporaryDirectory(prefix="cut-", ignore_cleanup_errors=True)) for _ in HOSTS
        ]
        first, second = (stack.enter_context(namespace()) for _ in HOSTS)
        ip(first, "link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", str(second))
        for process, device, address in ((first, "va", HOSTS[0]), (second, "vb", HOSTS[1])):
            ip(process, "link", "set", "lo", "up")
            ip(process, "addr", "add", f"{address}/24", "dev", device)
            ip(process, "link", "set", device, "up")
        asked = f'["{HOSTS[0]}", {STORE}, {str(dict(SOON)).replace(chr(39), chr(34))}, "{home}", "{marks}"]'
        with (tmp_path / "head").open("w") as said:
            head = subprocess.Popen(
                enter(first, sys.executable, "-c", HEAD, asked),
                env=shared | {"TMPDIR": own[0]},
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                text=True,
            )
        stack.enter_context(head)
        stack.callback(head.kill)
        wait_until(lambda: head.poll() is not None or "the head is up" in (tmp_path / "head").read_text())
        start = [str(Path(sys.executable).with_name("ray")), "start", "--address", f"{HOSTS[0]}:6399"]
        start += ["--num-cpus", "1", "--object-store-memory", str(STORE), "--node-ip-address", HOSTS[1], "--block"]
        with (tmp_path / "node").open("w") as said:
            node = subprocess.Popen(enter(second, *start), env=shared | {"TMPDIR": own[1]}, stdout=said, stderr=said)
        stack.enter_context(node)
        stack.callback(end, node.pid)
        assert head.poll() is None, (tmp_path / "head").read_text()
        wait_until(lambda: node.poll() is not None or "Ray runtime started" in (tmp_path / "node").read_text())
        assert head.stdin is not None
        head.stdin.write("joined\n")
        head.stdin.flush()
        wait_until(lambda: head.poll() is not None or all((home / f"steps/w{i}-4.txt").exists() for i in range(2)))
        assert head.poll() is None, (tmp_path / "head").read_text()
        ip(first, "link", "set", "va", "down")
        (marks / "go").touch()  # the job beside the driver goes on to its end
        wait_until(lambda: head.poll() is not None, 240)
        assert (head.returncode, (tmp_path / "head").read_text()) == (0, "the head is up\n")
    assert sorted([at for _, at in begun(marks, f"w{i}")] for i in range(2)) == [[0], [0, 4]]
    assert [(home / f"ends/w{i}.json").read_text() for i in range(2)] == [ends(9)] * 2
