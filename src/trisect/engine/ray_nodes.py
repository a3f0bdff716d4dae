"""The nodes of a Ray cluster: which are there, which may get jobs, how many at once, and what they are called."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trisect.core.errors import StudyError
from trisect.engine.node import node_facts
from trisect.engine.parcels import unpack

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

LOOK = 1.0  # seconds between two looks at which nodes are there
ASKS = 5  # times that a node is asked which fails to answer, though Ray says that it is there
START = 120.0  # seconds that a start waits for a node that may get jobs
ALONE = 600.0  # seconds without any node before a study stops; it goes on later from what is kept


def at(node: str) -> NodeAffinitySchedulingStrategy:
    """On that node and no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


@dataclass
class _State:
    """A node; `answer` is Ray's handle to what it says of itself, while that is awaited; `asks` counts
    questions since the last answer; `refused` says what is wrong with it.
    """

    name: str
    room: int
    alive: bool = True
    gone: str = ""
    answer: ObjectRef | None = None
    asks: int = 0
    good: bool = False
    refused: str = ""

    def open(self) -> bool:
        """Whether it is not known yet if it may get jobs."""
        return self.alive and not self.good and not self.refused


class RayNodes:
    """A node gets jobs once it has said that its versions are ours, and again after a job of it was lost."""

    def __init__(self, own: str, call: str, gpus: bool, per_gpu: int) -> None:
        import ray
        from ray import exceptions

        self._ray, self._errors, self._own, self._call, self._gpus, self._per_gpu = (
            ray,
            exceptions,
            own,
            call,
            gpus,
            per_gpu,
        )
        self._states: dict[str, _State] = {}
        self._looked = self._some = float("-inf")
        self._started = False
        self._mine = node_facts()
        self.mine: str = ray.get_runtime_context().get_node_id()
        self.look()

    def look(self) -> None:
        """See which nodes are there, and take their answers; raises StudyError where there has been none for long."""
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            for found in self._ray.nodes():
                self._see(found)
        self._take_answers()
        if self.room() or self.asked():
            self._some = time.monotonic()
        elif self._started and time.monotonic() - self._some > ALONE:
            raise self._nobody(f"There has been none for {ALONE:.0f} seconds")

    def _see(self, found: Mapping[str, Any]) -> None:
        node, resources = found["NodeID"], found.get("Resources", {})
        room = int(resources.get("CPU", 0))
        if self._gpus:
            room = min(room, int(resources.get("GPU", 0)) * self._per_gpu)
        state = self._states.get(node)
        if state is None:
            name = found["NodeManagerHostname"]
            if any(other.name == name for other in self._states.values()):
                name = f"{name}-{node[:6]}"
            state = self._states[node] = _State(name, room, alive=False)
            if found["Alive"] and room:
                state.alive = True
                self._ask(node)
        elif state.alive and not found["Alive"]:
            state.alive = state.good = False
            state.gone = found.get("DeathReasonMessage") or "Ray says no more of it."
        elif state.open() and state.answer is None:
            self._ask(node)

    def _ask(self, node: str) -> None:
        state = self._states[node]
        state.good = False
        state.asks += 1
        state.answer = self._describe(node)

    def _describe(self, node: str) -> ObjectRef:
        from trisect.engine import ray_node

        return ray_node.describe.options(scheduling_strategy=at(node)).remote(self._own, self._call)

    def _take_answers(self) -> None:
        for state in self._states.values():
            if state.answer is None or not self._ray.wait([state.answer], timeout=0)[0]:
                continue
            answer, state.answer = state.answer, None
            try:
                words: Any = unpack(self._ray.get(answer)).words
            except self._errors.RayTaskError as error:
                state.refused = f"could not say its versions: {str(error).strip().splitlines()[-1]}"
            except self._errors.RayError as error:
                # it is going, which Ray says soon, or its process ended: it is asked again
                if state.asks >= ASKS:
                    last = (str(error).strip().splitlines() or ["it gives no reason"])[0]
                    state.refused = f"failed to answer {ASKS} times: {type(error).__name__}: {last}"
            else:
                state.asks = 0
                different = self._differences(words["versions"])
                state.refused = different and f"has {different}"
                state.good = not different
            if state.refused and self._started:
                warnings.warn(f"The node {state.name} gets no jobs: it {state.refused}.", stacklevel=2)

    def _differences(self, versions: Mapping[str, str]) -> str:
        ours = self._mine.versions
        names = [name for name in sorted({*ours, *versions}) if ours.get(name) != versions.get(name)]
        return ", ".join(f"{name} {versions.get(name)} (here {ours.get(name)})" for name in names)

    def wait_for_one(self, patience: float) -> None:
        """Until a node may get jobs and all that are there have answered; raises StudyError where none may, and where there
        is none for `patience` seconds.
        """
        began = time.monotonic()
        while (waited := time.monotonic() - began) <= START:
            asked = self.asked()
            if (
                not asked
                and not any(s.open() for s in self._states.values())
                and (self.room() or self.refused() or waited > patience)
            ):
                break
            self._ray.wait(asked, timeout=LOOK) if asked else time.sleep(LOOK)
            self.look()
        if refused := self.refused():
            differ = all(words.startswith("has ") for words in refused.values())
            raise StudyError(
                f"{len(refused)} of {len(self._states)} nodes {'differ from this machine' if differ else 'cannot be used'}.",
                "; ".join(f"{name} {words}" for name, words in refused.items()),
                "Have the same trisect and packages on every node, or leave these nodes out of the cluster.",
            )
        if not self.room():
            raise self._nobody("It has none")
        self._started = True

    def _nobody(self, known: str) -> StudyError:
        what = "a node with a GPU" if self._gpus else "a node with a processor core for jobs"
        return StudyError(
            f"The cluster has no {what.removeprefix('a ')}.",
            f"{known}.",
            "Add a node (ray start --address HOST:PORT) and call the same command again: it goes on from what is kept.",
        )

    def refused(self) -> Mapping[str, str]:
        """Nodes that get no jobs, and why."""
        return {s.name: s.refused for s in self._states.values() if s.alive and s.refused}

    def asked(self) -> list[ObjectRef]:
        """Handles to answers that are awaited of nodes that are there."""
        return [s.answer for s in self._states.values() if s.alive and s.answer is not None]

    def room(self) -> int:
        """How many jobs the good nodes hold at once."""
        return sum(s.room for s in self._states.values() if s.good)

    def with_room(self, taken: Counter[str]) -> str | None:
        """The good node with the most room beside the jobs that it has; null where none has any."""
        free = {node: s.room - taken[node] for node, s in self._states.items() if s.good}
        best = max(free, key=lambda node: free[node], default=None)
        return best if best is not None and free[best] > 0 else None

    def there(self) -> list[str]:
        """Good nodes."""
        return [node for node, s in self._states.items() if s.good]

    def doubt(self, node: str) -> None:
        """A job of it was lost: it gets no other before it has answered again."""
        self._looked = float("-inf")
        if self._states[node].alive:
            self._ask(node)

    def gone(self, node: str) -> str | None:
        """Why a node is not there any more; null where it is."""
        state = self._states[node]
        return None if state.alive else state.gone or "Ray says no more of it."

    def name(self, node: str) -> str:
        """Its machine's name."""
        return self._states[node].name
