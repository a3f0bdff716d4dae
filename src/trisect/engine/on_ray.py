"""The engine `ray`: jobs on the nodes of a Ray cluster, which may come and go. Imports ray when it is opened."""

from __future__ import annotations

import json
import secrets
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trisect.core.errors import StudyError
from trisect.engine.depot import Depot
from trisect.engine.failures import read_failure
from trisect.engine.parcels import Parcel, fingerprint, pack_value, stored_in, unpack
from trisect.engine.protocol import Content, Done, Event, Failed, Files, Job, Lost, Ref, Said
from trisect.engine.ray_connect import connected
from trisect.engine.ray_nodes import START, RayNodes, at
from trisect.engine.ray_owner import Owner

if TYPE_CHECKING:
    from ray import ObjectRef

SWEEPING = 10.0  # seconds that closing waits for nodes


@dataclass(frozen=True)
class RayPlace:
    """Which cluster, and how it is used: at most `workers` jobs at once, `per_gpu` on one GPU."""

    address: str | None = None
    workers: int | None = None
    cores: int = 1  # of a cluster of one's own
    gpus: bool = False
    per_gpu: int = 1
    scratch: str | None = None
    store_bytes: int | None = None


class _Order(NamedTuple):
    """A job as it was given to the engine, with the hashes of what it reads."""

    number: int
    job: Job
    keys: Mapping[str, str]
    gpus: float


class _Given(NamedTuple):
    """A job that is with a node, and Ray's handle to what it will return."""

    order: _Order
    ref: ObjectRef
    node: str


class RayEngine:
    """The driver's side: it alone decides which node gets a job, so that it knows whose jobs go with a node."""

    def __init__(self, place: RayPlace, owner: Owner) -> None:
        self.place, self.folder, self._owner = place, owner.folder, owner
        self._own, self._call = owner.mark, secrets.token_hex(4)
        self._depot = Depot(place.scratch, self._own) if place.scratch is not None else None
        self._values = _Values(self._depot)
        self._open: dict[int, _Given] = {}
        self._waiting: deque[_Order] = deque()
        self._used = set[str]()  # nodes where something of this call may lie
        self._fetched = 0
        self._stack = ExitStack()
        try:
            owner.keep()
            if self._depot is not None:
                self._depot.check()
            self._stack.enter_context(connected(place.address, place.cores, place.store_bytes))
            self._start()
        except BaseException:
            self._stack.close()
            if not owner.kept:  # else something of a call before may lie on nodes
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _start(self) -> None:
        import ray
        from ray import exceptions

        from trisect.engine import ray_node

        self._ray, self._there, self._errors = ray, ray_node, exceptions
        self._nodes = RayNodes(self._own, self._call, self.place.gpus, self.place.per_gpu)
        self._board: Any = ray_node.Board.options(scheduling_strategy=at(self._nodes.mine)).remote()
        self._take = self._board.take.remote()
        self._nodes.wait_for_one(0.0 if self.place.address is None else START)  # nodes may be on their way

    def put(self, value: Path) -> Ref:
        """Its hash: it travels when a job on a node without it asks for it."""
        return Ref(self._values.note(value))

    def slots(self) -> int:
        """As many as there is room for on nodes that are there and have our versions; it changes in `events`."""
        room = self._nodes.room()
        return room if self.place.workers is None else min(room, self.place.workers)

    def submit(self, number: int, job: Job, refs: Mapping[str, Ref], cores: int = 1, gpus: float = 0) -> None:
        """Give a job to the node with the most room, or to the first that has any."""
        self._waiting.append(_Order(number, job, {name: ref.key for name, ref in refs.items()}, gpus))
        self._give_out()

    def _give_out(self) -> None:
        while self._waiting:
            node = self._nodes.with_room(Counter(given.node for given in self._open.values()))
            if node is None:
                return
            self._give(self._waiting.popleft(), node)

    def _give(self, order: _Order, node: str) -> None:
        self._used.add(node)
        errand = {"number": order.number, "own": self._own, "call": self._call, "scratch": self.place.scratch}
        errand |= {"node": self._nodes.name(node), "job": asdict(order.job), "refs": dict(order.keys)}
        options: dict[str, Any] = {"scheduling_strategy": at(node)}
        options |= {"num_gpus": order.gpus / self.place.per_gpu} if order.gpus else {}
        values = {key: self._values.take(key) for key in set(order.keys.values())}
        ref = self._there.perform.options(**options).remote(json.dumps(errand), values, self._board)
        self._open[order.number] = _Given(order, ref, node)

    def events(self, timeout: float, tell: Callable[[Event], None]) -> None:
        """Take what jobs said and what came of them, waiting until there is something; jobs of nodes that are gone are lost."""
        self._nodes.look()
        self._give_out()
        refs = {given.ref: number for number, given in self._open.items()}
        self._ray.wait([*refs, self._take, *self._nodes.asked()], num_returns=1, timeout=timeout)
        ended = self._ray.wait(list(refs), num_returns=len(refs), timeout=0)[0] if refs else []
        for event in self._said(bool(ended)):
            tell(event)
        for ref in ended:
            self._end(refs[ref], tell)
        for number, given in list(self._open.items()):
            if (gone := self._nodes.gone(given.node)) is not None:
                self._lose(number, "The node of a job is gone", gone, tell)

    def _said(self, all_of_it: bool) -> Iterator[Event]:
        """What jobs said; `all_of_it` waits for that of jobs that have ended."""
        if all_of_it:
            self._board.wake.remote()
        elif not self._ray.wait([self._take], timeout=0)[0]:
            return
        parcels = self._ray.get(self._take)
        if all_of_it:  # that take may have been answered before the jobs' last words
            parcels += self._ray.get(self._board.drain.remote())
        self._take = self._board.take.remote()
        for parcel in parcels:
            found = unpack(parcel)
            words: Any = found.words
            if words["number"] in self._open:
                yield Event(words["number"], Said(words["share"], words["words"], self._files(found), words["node"]))

    def _end(self, number: int, tell: Callable[[Event], None]) -> None:
        """Take what a job returned, or what became of it."""
        errors = self._errors
        try:
            found = unpack(self._ray.get(self._open[number].ref))
        except errors.TaskUnschedulableError:  # the node went before the job began
            self._waiting.appendleft(self._close(number).order)
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayError):
                self._lose(number, "What a job was to read is gone", _last(error.cause), tell)
            else:
                self._close(number)
                tell(Event(number, Failed(RuntimeError(str(error)))))
        except errors.RayError as error:
            self._lose(number, "A job's process, or its node, ended unexpectedly", _last(error), tell)
        else:
            self._close(number)
            tell(Event(number, read_failure(found.words) or Done(self._files(found))))

    def _lose(self, number: int, words: str, last: str, tell: Callable[[Event], None]) -> None:
        given = self._close(number)
        self._nodes.doubt(given.node)
        tell(Event(number, Lost(words, last, self._nodes.name(given.node))))

    def _close(self, number: int) -> _Given:
        given = self._open.pop(number)
        for key in set(given.order.keys.values()):
            self._values.leave(key)
        return given

    def _files(self, parcel: Parcel) -> Files:
        """Files that came home; those that went by the depot lie in the driver's own folder."""
        files: dict[str, Content] = dict(parcel.files)
        for name, key in parcel.stored.items():
            assert self._depot is not None
            self._fetched += 1
            place = self.folder / f"fetched-{self._fetched}"
            place.parent.mkdir(parents=True, exist_ok=True)
            self._depot.fetch(key, place)
            self._depot.remove(key)
            files[name] = place
        return files

    def close(self) -> None:
        """End all jobs, remove what they left on the nodes that are there, and leave the cluster."""
        with suppress(Exception):
            for given in self._open.values():
                self._ray.cancel(given.ref, force=True)
            self._sweep()
        left = bool(self._used)  # on nodes that are gone: where they come back, the next call removes it
        try:
            if self._depot is not None:
                self._depot.sweep()
        except Exception:  # whatever fsspec's file systems raise
            left = True
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if left:
            with suppress(StudyError):
                self._owner.keep()

    def _sweep(self) -> None:
        """Remove what the call left on the nodes that are there."""
        sweeping = {
            self._there.sweep.options(scheduling_strategy=at(node)).remote(self._own, self._call): node
            for node in self._nodes.there()
        }
        for ref in self._ray.wait(list(sweeping), num_returns=len(sweeping), timeout=SWEEPING)[0]:
            with suppress(self._errors.RayError):
                self._ray.get(ref)
                self._used.discard(sweeping[ref])


class _Values:
    """What jobs read, by the hash of its bytes: where it lies, and while a job that reads it is open Ray's handle to a parcel."""

    def __init__(self, depot: Depot | None) -> None:
        self._depot = depot
        self._paths: dict[str, Path] = {}
        self._held: dict[str, tuple[ObjectRef, list[str]]] = {}
        self._uses: Counter[str] = Counter()

    def note(self, value: Path) -> str:
        """Its hash."""
        key = fingerprint(value)
        self._paths[key] = value
        return key

    def take(self, key: str) -> ObjectRef:
        """A handle for one more job."""
        import ray

        if key not in self._held:
            parcel = pack_value(self._paths[key], self._depot)
            self._held[key] = ray.put(parcel), stored_in(parcel)
        self._uses[key] += 1
        return self._held[key][0]

    def leave(self, key: str) -> None:
        """One job less; without any the parcel goes."""
        self._uses[key] -= 1
        if not self._uses[key]:
            _, stored = self._held.pop(key)
            for name in stored:
                assert self._depot is not None
                self._depot.remove(name)


def _last(error: Exception) -> str:
    words = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(words)[:300]}" if words else type(error).__name__
