"""The engine `ray`: jobs on a Ray cluster, whose object store, placement and retries they use. Imports ray."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ray
from filelock import FileLock
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trisect.core.errors import StudyError
from trisect.core.files import inside, whole_files
from trisect.engine.drive import read_content
from trisect.engine.jobs import (
    LOSSES,
    Done,
    Event,
    Failed,
    JobCall,
    JobOrder,
    Lost,
    Node,
    Said,
    failure,
    read_failure,
)
from trisect.engine.ray_connect import RayUse, jobs_per_gpu

LOOK = 1.0  # seconds between two looks at which nodes are there
ALONE = 600.0  # seconds without any node before a command stops; it goes on later from what is kept
SWEEPING = 10.0  # seconds that closing waits for nodes
FILE = ""  # what a value that is one file is called in what travels


# What travels are texts, numbers and bytes, and Ray's handles to bytes; errors travel as JSON.


class JobInputs(NamedTuple):
    """What a job begins with, each time that it does: its call as JSON, and handles to the files that it reads."""

    call: str
    needs: dict[str, ObjectRef]
    begins: dict[str, ObjectRef]


class JobMessage(NamedTuple):
    """What a job says: of which job, in which attempt, files, how far it is, and the node where it only begins."""

    number: int
    attempt: str
    files: Mapping[str, bytes]
    share: float | None = None
    words: str = ""
    begins_on: str = ""


@ray.remote(num_cpus=0)
class Board:
    """Between jobs and the driver, on whose machine it is: what has arrived here is not lost with a job's own."""

    def __init__(self) -> None:
        self._messages: list[JobMessage] = []
        self._there = asyncio.Event()
        self._begun: dict[str, asyncio.Future[JobInputs]] = {}
        self._newest: dict[int, str] = {}

    async def begin(self, number: int, attempt: str, node: str) -> JobInputs:
        """What the driver gives an attempt to do a job, once all that attempts before it have said is in its hands."""
        if attempt not in self._begun:
            self._newest[number] = attempt
            self._begun[attempt] = asyncio.get_running_loop().create_future()
            self._post(JobMessage(number, attempt, {}, begins_on=node))
        try:
            return await self._begun[attempt]
        finally:
            self._begun.pop(attempt, None)

    async def give(self, attempt: str, begun: JobInputs) -> None:
        """Answer `begin`."""
        if attempt in self._begun and not self._begun[attempt].done():
            self._begun[attempt].set_result(begun)

    async def say(self, message: JobMessage) -> bool:
        """Note a message; false where the job was begun again elsewhere, so that nobody waits for this attempt."""
        if self._newest.get(message.number) != message.attempt:
            return False
        self._post(message)
        return True

    def _post(self, message: JobMessage) -> None:
        self._messages.append(message)
        self._there.set()

    async def news(self) -> None:
        """Return as soon as there is a message, or `wake` is called."""
        await self._there.wait()

    async def wake(self) -> None:
        """Have `news` return: a call that is open when Ray ends is complained of."""
        self._there.set()

    async def take(self) -> list[JobMessage]:
        """All messages that are there."""
        self._there.clear()
        messages, self._messages = self._messages, []
        return messages


@ray.remote(num_cpus=1, max_retries=LOSSES - 1)
def perform(
    number: int, engine: str, board: Any, versions: Mapping[str, str], versions_here: Callable[[], Mapping[str, str]]
) -> str:
    """Do a job, going on from what has landed of it; says as JSON how it ended."""
    here = versions_here()
    if different := sorted(name for name in {*here, *versions} if here.get(name) != versions.get(name)):
        words = ", ".join(f"{name} {here.get(name)} (here {versions.get(name)})" for name in different)
        node = ray.get_runtime_context().get_node_id()
        return json.dumps({"node": node, "differs": f"The node {socket.gethostname()} has {words}"})
    attempt = secrets.token_hex(8)
    begun: JobInputs = ray.get(board.begin.remote(number, attempt, socket.gethostname()))
    folder = node_folder(engine)

    def send(said: Said) -> None:
        sent = [path for path in said.files.values() if isinstance(path, Path)]
        files = {name: read_content(content) for name, content in said.files.items()}
        arrived = board.say.remote(JobMessage(number, attempt, files, said.share, said.words))
        if files:  # they have arrived before the job goes on, and so before it ends
            if not ray.get(arrived):
                raise RuntimeError("This job was begun again elsewhere, and goes on there.")
            for path in sent:
                path.unlink()

    own = folder / attempt
    try:
        paths = {name: _placed(ref, folder / "values" / ref.hex()) for name, ref in begun.needs.items()}
        paths |= {name: _placed(ref, own / ref.hex()) for name, ref in begun.begins.items()}
        send(Said(files=_node(folder).perform(JobCall(**json.loads(begun.call)), paths, send)))
    except RayError:
        raise  # the machine with the driver is out of reach: Ray tries again
    except Exception as error:
        return json.dumps(failure(error))
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return "{}"


@cache
def _node(folder: Path) -> Node:
    return Node(folder / "scratch")


def _placed(ref: ObjectRef, place: Path) -> Path:
    """The file or folder that was put, on this node's own disk, where its processes share it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.exists():
            scratch, files = place.with_name(f"{place.name}-{secrets.token_hex(4)}"), ray.get(ref)
            (scratch.parent if FILE in files else scratch).mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                target = inside(scratch, *name.split("/")) if name != FILE else scratch
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            scratch.rename(place)
    return place


@cache
def node_folder(engine: str) -> Path:
    """The folder of one engine's jobs on this node, whose name nobody else can know before it is there."""
    folder = Path(tempfile.gettempdir()) / f"trisect-{engine}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and folder.lstat().st_uid != os.getuid():
        known = "It belongs to somebody else, so that what lies there could be anybody's."
        raise StudyError(f"{folder} cannot be used.", known, "Set TMPDIR to another folder on this node.")
    return folder


@ray.remote(num_cpus=0, max_retries=0)
def sweep(engine: str) -> None:
    """Remove what an engine's jobs left on a node."""
    shutil.rmtree(node_folder(engine), ignore_errors=True)


# On the driver's machine.


class _Open(NamedTuple):
    """A job that is with Ray, the machines on which it began, and handles to what it began with last."""

    order: Callable[[], JobOrder]
    ref: ObjectRef
    nodes: list[str]
    begins: list[ObjectRef]


class RayEngine:
    """The driver's side: Ray finds a place for each job and tries it again where its process or machine is lost; a job asks
    for what it goes on from each time that it begins.
    """

    def __init__(self, use: RayUse, own_cluster: bool) -> None:
        self._use, self._patience = use, 0.0 if own_cluster else ALONE
        self._name = secrets.token_hex(8)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._board: Any = Board.options(scheduling_strategy=here, max_task_retries=LOSSES).remote()
        self._news: ObjectRef = self._board.news.remote()
        self._versions = dict(use.versions())
        self._open: dict[int, _Open] = {}
        self._put: dict[Path, ObjectRef] = {}
        self._left_out: dict[str, str] = {}  # nodes with other software, and how they differ
        self._looked = self._seen = time.monotonic()
        self._look()
        self._per_gpu = jobs_per_gpu(use.workers, self._gpus)

    def _look(self) -> None:
        """See how much there is of the nodes that may get jobs; raises StudyError where there has been none for long."""
        nodes = [n["Resources"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in self._left_out]
        self._looked = time.monotonic()
        self._cores, self._gpus = (int(sum(n.get(kind, 0) for n in nodes)) for kind in ("CPU", "GPU"))
        if self._cores and (self._gpus or not self._use.cuda):
            self._seen = self._looked
        elif self._left_out or self._looked - self._seen >= self._patience:
            what = "node with a GPU" if self._use.cuda else "node with a processor core for jobs"
            known = "; ".join(self._left_out.values()) or f"There has been none for {self._patience:.0f} seconds"
            todo = "Have the same trisect and packages on every node" if self._left_out else "Add a node (ray start)"
            todo = f"{todo}, and call the same command again: it goes on from what is kept."
            raise StudyError(
                f"The cluster has no {what}{' that can be used' * bool(self._left_out)}.", f"{known}.", todo
            )

    def slots(self) -> int:
        """As many as the nodes have room for that are there; it changes in `events`."""
        room = min(self._cores, self._gpus * self._per_gpu) if self._use.cuda else self._cores
        return room if self._use.workers is None else min(room, self._use.workers)

    def submit(self, number: int, order: Callable[[], JobOrder]) -> None:
        """Give a job to Ray."""
        share = 1 / self._per_gpu if self._use.cuda else 0
        options: dict[str, Any] = {"num_gpus": share, "retry_exceptions": [RayError]}
        if self._left_out:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self._left_out)})"}
        asked = (number, self._name, self._board, self._versions, self._use.versions)
        self._open[number] = _Open(order, perform.options(**options).remote(*asked), [], [])

    def events(self, timeout: float, on_event: Callable[[Event], None]) -> None:
        """Take what jobs said and what came of them, waiting until there is something."""
        refs = {job.ref: number for number, job in self._open.items()}
        ready = ray.wait([self._news, *refs], num_returns=1, timeout=timeout)[0]
        ended = ray.wait(list(refs), num_returns=len(refs), timeout=0)[0] if refs else []
        try:
            messages: list[JobMessage] = ray.get(self._board.take.remote()) if ready else []
        except RayError as error:
            todo = "Look at the memory of this machine, and call the same command again: it goes on from what is kept."
            raise StudyError("Ray ended on this machine.", f"{type(error).__name__}: {error}", todo) from error
        if self._news in ready:
            self._news = self._board.news.remote()
        for message in messages:
            if message.number in self._open:
                self._hear(message, on_event)
        for ref in ended:
            self._end(refs[ref], on_event)
        if time.monotonic() - self._looked >= LOOK:
            self._look()

    def _hear(self, message: JobMessage, on_event: Callable[[Event], None]) -> None:
        job = self._open[message.number]
        if message.begins_on:
            order = job.order()
            job.nodes.append(message.begins_on)
            job.begins[:] = map(_put, order.begins.values())
            for path in order.needs.values():
                if path not in self._put:
                    self._put[path] = _put(path)
            needs = {name: self._put[path] for name, path in order.needs.items()}
            begun = JobInputs(
                json.dumps(order.call()._asdict()), needs, dict(zip(order.begins, job.begins, strict=True))
            )
            self._board.give.remote(message.attempt, begun)
            return
        words = f"{message.words} on {job.nodes[-1]}" if message.words else ""
        on_event(Event(message.number, Said(message.share, words, message.files)))

    def _end(self, number: int, on_event: Callable[[Event], None]) -> None:
        """Take what became of a job."""
        job = self._open.pop(number)
        try:
            said = json.loads(ray.get(job.ref))
        except RayError as error:
            if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
                on_event(Event(number, Failed(RuntimeError(str(error)))))
            else:
                last = " ".join(str(error).split())[:300]
                words = "A job's process, or its node, ended unexpectedly"
                on_event(Event(number, Lost(words, f"{type(error).__name__}: {last}", tuple(job.nodes))))
            return
        if "differs" in said:
            if said["node"] not in self._left_out:
                self._left_out[said["node"]] = said["differs"]
                warnings.warn(f"{said['differs']}: it gets no jobs.", stacklevel=2)
            self._look()
            self.submit(number, job.order)
        else:
            on_event(Event(number, read_failure(said) or Done({})))

    def close(self) -> None:
        """End all jobs, and remove what they left on the nodes that are there."""
        with suppress(Exception):
            for job in self._open.values():
                ray.cancel(job.ref, force=True)
            nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            there = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
            sweeps = [sweep.options(scheduling_strategy=at).remote(self._name) for at in there]
            left = [*sweeps, self._board.wake.remote(), self._news]
            ray.wait(left, num_returns=len(left), timeout=SWEEPING)


def _put(path: Path) -> ObjectRef:
    """A file or folder in Ray's object store, from which it travels to a node at most once."""
    files = {FILE: path} if path.is_file() else {p.relative_to(path).as_posix(): p for p in whole_files(path)}
    return ray.put({name: file.read_bytes() for name, file in files.items()})
