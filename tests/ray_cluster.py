"""A Ray cluster of this machine for tests: a head without room for jobs, and nodes with folders of their own."""

import os
import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trisect.engine.ray_connect import ALWAYS, LOOPBACK, MODE, TOKEN

STORE = 80_000_000  # bytes of each node's object store
SOON: Mapping[str, int] = {  # how soon a node that says nothing counts as gone
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 300,
    "health_check_failure_threshold": 3,
}
ROOT = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT)])  # where nodes find trisect and the tests' jobs
SETTINGS = {**ALWAYS, **LOOPBACK, MODE: "token"}


def end(process: int) -> None:
    """A process with all that it started, at once: alone it would wait for its cluster."""
    import psutil  # where Ray is tested

    team = psutil.Process(process)
    for one in [*team.children(recursive=True), team]:
        one.kill()


@dataclass
class TestCluster:
    """Nodes, each with one core, by their names."""

    __test__ = False
    folder: Path
    nodes: dict[str, Any] = field(default_factory=dict)
    before: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {**SETTINGS, TOKEN: secrets.token_hex(32)}
        self.before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        from ray.cluster_utils import Cluster

        arguments = {
            "num_cpus": 0,
            "object_store_memory": STORE,
            "_system_config": dict(SOON),
            "include_dashboard": False,
        }
        self.cluster = Cluster(initialize_head=True, head_node_args=arguments)
        self.address = str(self.cluster.address)

    def add(self, name: str, **variables: str) -> None:
        """A node with a folder for temporary files of its own."""
        (self.folder / name).mkdir(exist_ok=True)
        variables = {"TMPDIR": str(self.folder / name), "PYTHONPATH": PATHS, **variables}
        self.nodes[name] = self.cluster.add_node(num_cpus=1, object_store_memory=STORE, env_vars=variables)

    def processes(self, name: str) -> list[Any]:
        """Those of a node: its raylet, and its workers, which are children of that."""
        import psutil  # where Ray is tested

        [info] = self.nodes[name].all_processes["raylet"]
        raylet = psutil.Process(info.process.pid)
        return [raylet, *raylet.children(recursive=True)]

    def name_of(self, process: int) -> str:
        """The node that a process belongs to."""
        return next(name for name in self.nodes if process in [one.pid for one in self.processes(name)])

    def cut(self, name: str) -> None:
        """As where its link is cut: nothing is closed, and it answers to nothing."""
        for process in self.processes(name):
            process.send_signal(signal.SIGSTOP)

    def kill(self, name: str) -> None:
        """The whole node at once, also one that is cut."""
        for process in self.processes(name):
            process.kill()
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        for name in list(self.nodes):
            self.kill(name)
        self.cluster.shutdown()
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
