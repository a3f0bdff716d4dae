"""The worker's side: lines of standard input, and progress events at most so often."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import Queue

Emit = Callable[[float, str], None]  # share done, and a few words on where it is
PAUSE = 0.2  # seconds between two progress events


def throttled(emit: Emit) -> Emit:
    """Pass on at most one event each PAUSE."""
    last = [0.0]

    def sparing(share: float, words: str) -> None:
        if time.monotonic() - last[0] >= PAUSE:
            last[0] = time.monotonic()
            emit(share, words)

    return sparing


def lines_in() -> Iterator[bytes]:
    """Lines of standard input; when it ends, so does this process at once, whatever it is doing."""
    waiting: Queue[bytes] = Queue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield waiting.get()
