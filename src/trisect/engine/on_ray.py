"""The engine `ray`: jobs as Ray tasks, files in Ray's object store, messages in Ray's queue. Imports ray.

A task has no retries of Ray's, which would repeat it with its first arguments: a lost job begins again from what has landed
since, which the driver does for all engines.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ray
from filelock import FileLock
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trisect.core.errors import StudyError
from trisect.core.files import complete_files
from trisect.core.machine import code_hash, versions
from trisect.engine.drive import LOSSES, JobEnd, JobLoss, OnEvent
from trisect.engine.jobs import JobOrder, JobProgress, OrderMessage, failure, read_failure, run_job

POLL = 0.02  # seconds between two looks for messages
MAX_SECONDS_ALONE = 600.0  # seconds without any node before a command stops; it goes on later from what is kept
RERUN_ADVICE = "run the same command again: it goes on from what is kept."
SWEEPING = 10.0  # seconds that closing waits for nodes
_VALUES: dict[str, object] = {}  # what jobs have read in this process of a node


def _node_versions() -> dict[str, str]:
    """Versions of everything that a number depends on, with a hash of our code, which must be equal on all nodes."""
    return versions("ray") | {"code": code_hash()}


# On the nodes. What travels are texts, numbers and bytes, and Ray's handles to bytes; errors travel as JSON.


@ray.remote(num_cpus=1, max_retries=0)
def _perform(
    attempt: tuple[int, str],
    engine: str,
    queue: Any,
    expected: Mapping[str, str],
    order: OrderMessage,
    needs: dict[str, ObjectRef],
    begins: dict[str, ObjectRef],
) -> None:
    """Run a job; its messages go through the queue on the driver's machine, which is not lost with the node."""

    def tell(**message: Any) -> None:
        item = (attempt, {"node": socket.gethostname(), **message})
        ray.get(queue.actor.put.options(max_task_retries=LOSSES).remote(item))

    def send(progress: JobProgress) -> None:  # files have arrived before the job goes on, and so before it ends
        sent = {name: path for name, path in progress.files.items() if isinstance(path, Path)}
        content = {name: path.read_bytes() for name, path in sent.items()}
        tell(share=progress.share, words=progress.words, files=content)
        for path in sent.values():
            path.unlink()

    versions = _node_versions()
    if different := sorted({*versions.items()} ^ {*expected.items()}):
        names = dict.fromkeys(name for name, _ in different)
        words = ", ".join(f"{name} {versions.get(name)} (here {expected.get(name)})" for name in names)
        reason = "Numbers of other versions are not those of this machine."
        todo = f"Have the same trisect and packages on every node, and {RERUN_ADVICE}"
        tell(**failure(StudyError(f"The node {socket.gethostname()} has {words}.", reason, todo)))
        return
    tell(share=None, words="", files={})  # where it is, should it be lost
    folder = _node_folder(engine)
    job_folder = folder / attempt[1]
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        paths = {name: _place(ref, folder / "values" / ref.hex()) for name, ref in needs.items()}
        paths |= {name: _place(ref, job_folder / ref.hex()) for name, ref in begins.items()}
        run_job(order, paths, folder / "scratch", _VALUES, send)
    except RayError:
        raise  # the machine with the driver is out of reach
    except Exception as error:
        tell(**failure(error))
    else:
        tell(done=True)
    finally:
        shutil.rmtree(job_folder, ignore_errors=True)


def _place(ref: ObjectRef, place: Path) -> Path:
    """The file or folder as written to this node's disk, shared by its processes."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.exists():
            scratch, files = place.with_name(f"{place.name}-{secrets.token_hex(4)}"), ray.get(ref)
            if not files:
                scratch.mkdir()
            for name, content in files.items():
                target = scratch / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            scratch.rename(place)
    return place


def _node_folder(engine: str) -> Path:
    """The folder of an engine's jobs on this node, with an unguessable name."""
    return Path(tempfile.gettempdir()) / f"trisect-{engine}"


@ray.remote(num_cpus=0, max_retries=0)
def sweep(engine: str) -> None:
    """Remove the files of an engine's jobs on a node."""
    shutil.rmtree(_node_folder(engine), ignore_errors=True)


# On the driver's machine.


@dataclass
class _Open:
    attempt: str
    node: str = "a node that it did not name"


class RayEngine:
    """The driver's side: Ray places each job; at most `workers` at a time (None: no limit)."""

    def __init__(self, workers: int | None, uses_gpus: bool, is_own_cluster: bool) -> None:
        self._workers, self._uses_gpus = workers, uses_gpus
        self._patience = 0.0 if is_own_cluster else MAX_SECONDS_ALONE
        self._name, self._versions = secrets.token_hex(8), _node_versions()
        strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": strategy})
        self._open: dict[int, _Open] = {}
        self._refs: dict[ObjectRef, tuple[int, str]] = {}  # their number and attempt
        self._put_once = cache(_put)
        self._seen = time.monotonic()
        self._look()

    def _look(self) -> None:
        """Count the capacity of nodes for jobs; raises StudyError if there has been none for long."""
        nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
        self._cores, self._gpus = (int(sum(n.get(kind, 0) for n in nodes)) for kind in ("CPU", "GPU"))
        if self._cores and (self._gpus or not self._uses_gpus):
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen >= self._patience:
            node = "node with a GPU" if self._uses_gpus else "node with a processor core for jobs"
            reason, todo = f"There has been none for {self._patience:.0f} seconds.", "Add a node (ray start)"
            raise StudyError(f"The cluster has no {node}.", reason, f"{todo}, and {RERUN_ADVICE}")

    def slots(self) -> int:
        """The number of jobs for which nodes have room; it changes in `events`."""
        room = min(self._cores, self._gpus) if self._uses_gpus else self._cores
        return room if self._workers is None else min(room, self._workers)

    def submit(self, number: int, order: JobOrder) -> None:
        """Submit a job to Ray."""
        needs = {name: self._put_once(path) for name, path in order.needs.items()}
        begins = {name: _put(path) for name, path in order.begins.items()}
        attempt = (number, secrets.token_hex(8))
        arguments = (attempt, self._name, self._queue, self._versions, order.message(), needs, begins)
        self._open[number] = _Open(attempt[1])
        self._refs[_perform.options(num_gpus=int(self._uses_gpus)).remote(*arguments)] = attempt

    def events(self, timeout: float, on_event: OnEvent) -> None:
        """Handle messages and ends of jobs, waiting for the next one."""
        deadline = time.monotonic() + timeout
        try:
            while True:
                refs = list(self._refs)
                ended = ray.wait(refs, num_returns=len(refs), timeout=0)[0] if refs else []
                count = self._queue.qsize()  # after that: what an ended job said is there
                if ended or count or time.monotonic() >= deadline:
                    break
                time.sleep(POLL)
            messages = self._queue.get_nowait_batch(count)
        except RayError as error:
            todo = f"Look at the memory of this machine, and {RERUN_ADVICE}"
            raise StudyError("Ray ended on this machine.", f"{type(error).__name__}: {error}", todo) from error
        for (number, attempt), message in messages:
            job = self._open.get(number)
            if job is not None and job.attempt == attempt:  # else it has ended, or was begun again since
                job.node = message["node"]
                self._take(number, job, message, on_event)
        for ref in ended:
            number, attempt = self._refs.pop(ref)
            try:
                ray.get(ref)
            except RayError as error:
                job = self._open.get(number)
                if job is None or job.attempt != attempt:
                    continue
                del self._open[number]
                if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
                    on_event(number, JobEnd(RuntimeError(str(error))))
                else:
                    words, last = "A job's process, or its node, ended unexpectedly", " ".join(str(error).split())[:300]
                    on_event(number, JobLoss(words, f"{type(error).__name__}: {last}", job.node))
        self._look()

    def _take(self, number: int, job: _Open, message: dict[str, Any], on_event: OnEvent) -> None:
        if "files" in message:
            words = f"{message['words']} on {job.node}" if message["words"] else ""
            on_event(number, JobProgress(message["share"], words, message["files"]))
            return
        del self._open[number]
        on_event(number, JobEnd(read_failure(message)))

    def close(self) -> None:
        """End all jobs, and remove their files on the nodes."""
        with suppress(Exception):
            for ref in self._refs:
                ray.cancel(ref, force=True)
            nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
            sweeps = [sweep.options(scheduling_strategy=at).remote(self._name) for at in places]
            ray.wait(sweeps, num_returns=len(sweeps), timeout=SWEEPING)


def _put(path: Path) -> ObjectRef:
    """Put a file or folder into Ray's object store, from which each node gets it at most once."""
    files = {"": path} if path.is_file() else {p.relative_to(path).as_posix(): p for p in complete_files(path)}
    return ray.put({name: file.read_bytes() for name, file in files.items()})
