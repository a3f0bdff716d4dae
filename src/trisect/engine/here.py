"""The engine `here`: jobs in this process, one after the other, in the order in which they were given."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path

from trisect.engine.jobs import Done, Event, Failed, JobOrder, Node


class Here:
    """Runs a job within `events`; anything but an Exception, say an interruption, passes through."""

    def __init__(self, folder: Path) -> None:
        self._node = Node(folder)
        self._open: deque[tuple[int, Callable[[], JobOrder]]] = deque()

    def slots(self) -> int:
        """One."""
        return 1

    def submit(self, number: int, order: Callable[[], JobOrder]) -> None:
        """Note the job."""
        self._open.append((number, order))

    def events(self, timeout: float, on_event: Callable[[Event], None]) -> None:
        """Run the next job to its end."""
        if not self._open:
            return
        number, order = self._open.popleft()
        asked = order()
        try:
            files = self._node.perform(asked.call(), asked.paths(), lambda said: on_event(Event(number, said)))
        except Exception as error:
            on_event(Event(number, Failed(error)))
        else:
            on_event(Event(number, Done(files)))

    def close(self) -> None:
        """Remove what jobs left."""
        self._open.clear()
        shutil.rmtree(self._node.folder, ignore_errors=True)
