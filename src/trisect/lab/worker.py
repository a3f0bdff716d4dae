"""A worker process: `python -m trisect.lab.worker FOLDER DEVICE PRECISION`, tasks in on one pipe, events out on another."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import torch

from trisect.engine import serve
from trisect.lab.folder import Folder
from trisect.lab.tasks import Emit, Task, execute
from trisect.lm.products import fast_products
from trisect.text.corpus import Corpus

PAUSE = 0.2  # seconds between two progress events


def read_task(data: dict[str, Any]) -> Task:
    """The Task that travelled as JSON."""
    return Task(data["kind"], tuple(data["runs"]), data["site"], data["seconds"], data["label"])


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


def main(path: str, device: str, precision: str) -> None:
    """Serve tasks of the study in `path` until standard input ends."""
    torch.set_num_threads(1)
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to standard error, never between the events
    folder = Folder(Path(path))
    runs, corpus = folder.read_ledger()["runs"], Corpus.load(folder.corpus)
    with fast_products():
        serve(
            lambda data, emit: execute(read_task(data), folder, runs, corpus, device, throttled(emit), precision),
            lines_in(),
            events,
        )


if __name__ == "__main__":
    main(*sys.argv[1:4])
