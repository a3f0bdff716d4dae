"""The engine `here`: jobs in this process, one after the other, in the order in which they were given."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from trisect.engine.jobs import Node
from trisect.engine.protocol import Done, Event, Failed, Job, Ref


class Here:
    """Runs a job within `events`; anything but an Exception, say an interruption, passes through."""

    def __init__(self, folder: Path) -> None:
        self._node = Node(folder)
        self._open: deque[tuple[int, Job, dict[str, Path]]] = deque()

    def put(self, value: Path) -> Ref:
        """The path itself."""
        return Ref(str(value.absolute()))

    def slots(self) -> int:
        """One."""
        return 1

    def submit(self, number: int, job: Job, refs: Mapping[str, Ref], cores: int = 1, gpus: float = 0) -> None:
        """Note the job; what it needs is all of this process."""
        self._open.append((number, job, {name: Path(ref.key) for name, ref in refs.items()}))

    def events(self, timeout: float, tell: Callable[[Event], None]) -> None:
        """Run the next job to its end."""
        if not self._open:
            return
        number, job, refs = self._open.popleft()
        try:
            files = self._node.perform(job, refs, lambda said: tell(Event(number, said)))
        except Exception as error:
            tell(Event(number, Failed(error)))
        else:
            tell(Event(number, Done(files)))

    def close(self) -> None:
        """Remove what jobs left."""
        self._open.clear()
        shutil.rmtree(self._node.folder, ignore_errors=True)
