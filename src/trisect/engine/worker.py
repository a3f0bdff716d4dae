"""A worker process, `python -m trisect.engine.worker`: jobs in as JSON lines on one pipe, events out on another."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Queue
from typing import IO, Any

from trisect.engine.failures import failure
from trisect.engine.jobs import Node
from trisect.engine.protocol import Files, Job, Said


def serve(lines: Iterable[bytes], out: IO[bytes]) -> None:
    """Do one job a line of `lines`, and write on `out` how each goes."""
    nodes: dict[str, Node] = {}

    def write(**message: Any) -> None:
        out.write(json.dumps(message).encode() + b"\n")
        out.flush()

    for line in lines:
        order = json.loads(line)
        if order["folder"] not in nodes:  # of another stage: what the one before has read is not needed any more
            nodes.clear()
        node = nodes.setdefault(order["folder"], Node(Path(order["folder"])))
        refs = {name: Path(path) for name, path in order["refs"].items()}
        job = Job(**order["job"] | {"begins": tuple(order["job"]["begins"])})

        def send(said: Said) -> None:
            write(share=said.share, words=said.words, files=_paths(said.files))

        try:
            files = node.perform(job, refs, send)
        except Exception as error:
            write(**failure(error))
        else:
            write(done=_paths(files))


def _paths(files: Files) -> dict[str, str]:
    return {name: str(content) for name, content in files.items() if isinstance(content, Path)}


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


def main() -> None:
    """Serve jobs until standard input ends."""
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to standard error, never between the events
    serve(lines_in(), events)


if __name__ == "__main__":
    main()
