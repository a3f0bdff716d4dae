"""The engine `processes`: jobs in one-thread worker processes on this machine, which this module is when it is run."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from trisect.core.errors import StudyError
from trisect.engine.jobs import (
    LOSSES,
    Done,
    Event,
    Failed,
    Files,
    JobCall,
    JobOrder,
    Lost,
    Node,
    Said,
    failure,
    read_failure,
)

COMMAND = ("-P", "-W", "ignore", "-m", "trisect.engine.processes")  # what Python runs in each of them
VISIBLE = "CUDA_VISIBLE_DEVICES"

Message = dict[str, Any] | None  # a line of a worker; None when there will be no more
Lines = queue.Queue[tuple["_Worker", Message]]
_IDLE: ContextVar[list[_Worker] | None] = ContextVar("idle", default=None)


@contextlib.contextmanager
def kept_workers() -> Iterator[None]:
    """While the context lasts, an engine that closes leaves its idle workers to the next one; all of them end with it."""
    if _IDLE.get() is not None:
        yield
        return
    idle: list[_Worker] = []
    token = _IDLE.set(idle)
    try:
        yield
    finally:
        _IDLE.reset(token)
        for worker in idle:
            worker.stop()


class Processes:
    """Starts a worker where there is none for a job, and another where one has died; they end when this process does.

    With GPUs each worker sees one of them, which those that see it share.
    """

    def __init__(self, workers: int, folder: Path, gpus: int = 0) -> None:
        self._workers, self._folder, self._gpus = workers, folder, gpus
        self._team: list[_Worker] = []
        self._lines: Lines = queue.Queue()
        self._orders: dict[int, Callable[[], JobOrder]] = {}
        self._losses: Counter[int] = Counter()

    def slots(self) -> int:
        """As many as there may be workers."""
        return self._workers

    def submit(self, number: int, order: Callable[[], JobOrder]) -> None:
        """Give a job to a worker that has none. Raises StudyError without memory."""
        self._orders[number] = order
        worker = next((w for w in self._team if w.job is None), None)
        if worker is None:
            assert len(self._team) < self._workers, "more jobs than slots"
            gpu = free_gpu([w.gpu for w in self._team], self._gpus)
            worker = self._idle(gpu) or _Worker(self._lines, len(self._team) + 1, gpu)
            self._team.append(worker)
        asked = order()
        paths = {name: str(path) for name, path in asked.paths().items()}
        worker.give(number, {"job": asked.call()._asdict(), "paths": paths, "folder": str(self._folder.absolute())})

    def _idle(self, gpu: int | None) -> _Worker | None:
        """A worker that an engine before this one left; None where there is none that lives and sees that GPU."""
        idle = _IDLE.get() or []
        while (worker := next((w for w in reversed(idle) if w.gpu == gpu), None)) is not None:
            idle.remove(worker)
            if worker.move(self._lines):
                return worker
            worker.stop()
        return None

    def events(self, timeout: float, on_event: Callable[[Event], None]) -> None:
        """Wait for a line of a worker, then take all that there are."""
        with contextlib.suppress(queue.Empty):
            self._take(*self._lines.get(timeout=timeout), on_event)
            while True:
                self._take(*self._lines.get_nowait(), on_event)

    def _take(self, worker: _Worker, message: Message, on_event: Callable[[Event], None]) -> None:
        number = worker.job
        if message is None:
            if worker in self._team:
                self._team.remove(worker)
                lost = worker.lost()
                worker.stop()
                if number is not None:
                    self._lose(number, lost, on_event)
        elif number is not None:
            what = _read(message)
            if not isinstance(what, Said):
                worker.job = None
            on_event(Event(number, what))

    def _lose(self, number: int, lost: Lost, on_event: Callable[[Event], None]) -> None:
        self._losses[number] += 1
        if self._losses[number] < LOSSES:
            self.submit(number, self._orders[number])
        else:
            on_event(Event(number, lost))

    def close(self) -> None:
        """Kill the workers, but for idle ones that are kept for the next engine, and remove what they left."""
        idle = _IDLE.get()
        for worker in self._team:
            if idle is not None and worker.job is None:
                idle.append(worker)
            else:
                worker.stop()
        self._team.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def free_gpu(taken: list[int | None], gpus: int) -> int | None:
    """The GPU, from 0, that the fewest of those workers see; None where there is none."""
    return min(range(gpus), key=taken.count) if gpus else None


def _read(message: dict[str, Any]) -> Said | Done | Failed:
    if "done" in message:
        return Done(_files(message["done"]))
    if (failed := read_failure(message)) is not None:
        return failed
    return Said(message["share"], message["words"], _files(message["files"]))


def _files(paths: dict[str, str]) -> Files:
    return {name: Path(path) for name, path in paths.items()}


class _Worker:
    """One worker process, with a thread that passes on its lines; `job` is the number of the job that it does."""

    def __init__(self, lines: Lines, number: int, gpu: int | None = None) -> None:
        own = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
        if gpu is not None:
            own[VISIBLE] = os.environ[VISIBLE].split(",")[gpu] if os.environ.get(VISIBLE) else str(gpu)
        paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=os.environ | own | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1"},
                start_new_session=True,  # so that Ctrl-C reaches us alone, and we end the workers
            )
        except OSError as error:
            raise StudyError(
                f"Worker process {number} could not be started.",
                f"The system says: {error}",
                f"Free some memory, or space in {tempfile.gettempdir()}, or use --workers 0: everything in one process.",
            ) from error
        self.job: int | None = None
        self.gpu = gpu
        self._lines, self._ended, self._moving = lines, False, threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout
        with contextlib.suppress(ValueError):  # a line that is no event: the worker is given up
            for line in self._process.stdout:
                message = json.loads(line)
                if not isinstance(message, dict):
                    break
                self._lines.put((self, message))
        with self._moving:
            self._ended = True
            self._lines.put((self, None))

    def move(self, lines: Lines) -> bool:
        """Send what it says to another engine from now on; false where the worker has ended, which only the engine before knew."""
        with self._moving:
            self._lines = lines
            return not self._ended and self._process.poll() is None

    def give(self, number: int, order: dict[str, Any]) -> None:
        assert self._process.stdin
        self.job = number
        with contextlib.suppress(BrokenPipeError):  # its death is on its way through the other pipe
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def lost(self) -> Lost:
        try:
            code: int | str = self._process.wait(2)
        except subprocess.TimeoutExpired:  # alive, but what it writes is no event
            self._process.kill()
            code = "none: it wrote a line that is no event"
        self._complaints.seek(0)
        last = self._complaints.read().decode(errors="replace").strip().splitlines()[-3:]
        none = "none; if the machine ran out of memory, the system ended it."
        return Lost(f"A worker process ended unexpectedly (exit status {code})", " | ".join(last) or none)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()


# what a worker process runs: jobs in as JSON lines on one pipe, events out on another


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
        paths = {name: Path(path) for name, path in order["paths"].items()}

        def send(said: Said) -> None:
            write(share=said.share, words=said.words, files=_names(said.files))

        try:
            files = node.perform(JobCall(**order["job"]), paths, send)
        except Exception as error:
            write(**failure(error))
        else:
            write(done=_names(files))


def _names(files: Files) -> dict[str, str]:
    return {name: str(content) for name, content in files.items() if isinstance(content, Path)}


def lines_in() -> Iterator[bytes]:
    """Lines of standard input; when it ends, so does this process at once, whatever it is doing."""
    waiting: queue.Queue[bytes] = queue.Queue()

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
