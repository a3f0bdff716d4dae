"""What runs on a cluster's nodes by Ray: a job, what a node says of itself, and the board that the driver reads. Imports ray."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from trisect.engine.depot import Depot
from trisect.engine.failures import failure
from trisect.engine.jobs import Node
from trisect.engine.node import ValueShelf, node_facts, node_folder
from trisect.engine.parcels import pack
from trisect.engine.protocol import Job, Said

# a task is called with JSON text and bytes, and returns bytes; Ray's own handles to other bytes are all that stands beside


@ray.remote(num_cpus=0)
class Board:
    """What jobs say, until the driver takes it; lies on the driver's node and ends with the driver."""

    def __init__(self) -> None:
        self._said: list[bytes] = []
        self._there = asyncio.Event()

    async def say(self, parcel: bytes) -> None:
        """Note a parcel."""
        self._said.append(parcel)
        self._there.set()

    async def wake(self) -> None:
        """Have `take` return at once."""
        self._there.set()

    async def take(self) -> list[bytes]:
        """All parcels, as soon as there is one or `wake` is called."""
        await self._there.wait()
        return await self.drain()

    async def drain(self) -> list[bytes]:
        """All parcels that are there."""
        self._there.clear()
        said, self._said = self._said, []
        return said


@dataclass(frozen=True)
class _Desk:
    """Of one process: its node's jobs, and its values."""

    node: Node
    kept: ValueShelf  # what jobs read: stays for later studies
    begun: ValueShelf  # what jobs go on from: goes with the study


_desks: dict[JobOwner, _Desk] = {}


class JobOwner(NamedTuple):
    """The experiment that a job belongs to, by a hash of where it lies, and which call of it."""

    own: str
    call: str

    def folder(self) -> Path:
        """Where its jobs work on this node."""
        return node_folder() / "jobs" / f"{self.own}-{self.call}"


def _desk(whose: JobOwner, depot: Depot | None) -> _Desk:
    if whose not in _desks:
        jobs = whose.folder()
        shelves = ValueShelf(node_folder() / "values", depot), ValueShelf(jobs / "values", depot)
        _desks[whose] = _Desk(Node(jobs / "scratch"), *shelves)
    return _desks[whose]


@ray.remote(num_cpus=1, max_retries=0)
def perform(errand: str, values: Mapping[str, ray.ObjectRef], board: Any) -> bytes:
    """Do a job; `values` are Ray's handles to parcels by hash. Files under way go to the board, the last ones are returned."""
    asked = json.loads(errand)
    number, whose, node = asked["number"], JobOwner(asked["own"], asked["call"]), asked["node"]
    depot = Depot(asked["scratch"], whose.own) if asked["scratch"] is not None else None

    def send(said: Said) -> None:
        words = {"number": number, "share": said.share, "words": said.words, "node": node}
        ticket = board.say.remote(pack(words, said.files, depot))
        if said.files:
            ray.get(ticket)  # it is there before the job goes on, and so before it ends
            _unlink(said.files.values())

    try:
        job, desk = Job(**asked["job"] | {"begins": tuple(asked["job"]["begins"])}), _desk(whose, depot)
        refs = {
            name: (desk.begun if name in job.begins else desk.kept).find(key, lambda key=key: ray.get(values[key]))
            for name, key in asked["refs"].items()
        }
        files = desk.node.perform(job, refs, send)
        parcel = pack({"done": True}, files, depot)
        _unlink(files.values())
    except RayError:
        raise  # what it was to read went with another node: the job is lost
    except Exception as error:
        return pack(failure(error), {})
    return parcel


def _unlink(contents: Any) -> None:
    for content in contents:
        if isinstance(content, Path):
            content.unlink(missing_ok=True)


@ray.remote(num_cpus=0, max_retries=0)
def describe(own: str, call: str) -> bytes:
    """What a node says of itself; what ended calls of the experiment left there is removed."""
    mine = JobOwner(own, call).folder()
    for folder in mine.parent.glob(f"{own}-*"):
        if folder != mine:
            shutil.rmtree(folder, ignore_errors=True)
    facts = node_facts()
    return pack({"versions": dict(facts.versions), "processor": facts.processor}, {})


@ray.remote(num_cpus=0, max_retries=0)
def sweep(own: str, call: str) -> None:
    """Remove what the jobs of a call left on a node."""
    shutil.rmtree(JobOwner(own, call).folder(), ignore_errors=True)
