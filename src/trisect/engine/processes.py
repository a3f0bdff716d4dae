"""The engine `processes`: jobs in one-thread worker processes on this machine."""

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
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from trisect.core.errors import StudyError
from trisect.engine.failures import read_failure
from trisect.engine.protocol import Done, Event, Failed, Files, Job, Lost, Ref, Said

COMMAND = ("-P", "-W", "ignore", "-m", "trisect.engine.worker")  # what Python runs in each of them

Message = dict[str, Any] | None  # a line of a worker; null when there will be no more
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
    """Starts a worker where there is none for a job, and another where one has died; they end when this process does."""

    def __init__(self, workers: int, folder: Path) -> None:
        self._workers, self._folder = workers, folder
        self._team: list[_Worker] = []
        self._lines: Lines = queue.Queue()

    def put(self, value: Path) -> Ref:
        """The path itself: workers read the same disk."""
        return Ref(str(value.absolute()))

    def slots(self) -> int:
        """As many as there may be workers."""
        return self._workers

    def submit(self, number: int, job: Job, refs: Mapping[str, Ref], cores: int = 1, gpus: float = 0) -> None:
        """Give a job to a worker that has none; each has one core, and shares the GPU. Raises StudyError without memory."""
        worker = next((w for w in self._team if w.job is None), None)
        if worker is None:
            assert len(self._team) < self._workers, "more jobs than slots"
            worker = self._idle() or _Worker(self._lines, len(self._team) + 1)
            self._team.append(worker)
        paths = {name: ref.key for name, ref in refs.items()}
        worker.give(number, {"job": asdict(job), "refs": paths, "folder": str(self._folder.absolute())})

    def _idle(self) -> _Worker | None:
        """A worker that an engine before this one left; null where there is none that lives."""
        idle = _IDLE.get()
        while idle:
            worker = idle.pop()
            if worker.move(self._lines):
                return worker
            worker.stop()
        return None

    def events(self, timeout: float, tell: Callable[[Event], None]) -> None:
        """Wait for a line of a worker, then take all that there are."""
        with contextlib.suppress(queue.Empty):
            self._take(*self._lines.get(timeout=timeout), tell)
            while True:
                self._take(*self._lines.get_nowait(), tell)

    def _take(self, worker: _Worker, message: Message, tell: Callable[[Event], None]) -> None:
        number = worker.job
        if message is None:
            if worker in self._team:
                self._team.remove(worker)
                lost = worker.lost()
                worker.stop()
                if number is not None:
                    tell(Event(number, lost))
        elif number is not None:
            what = _read(message)
            if not isinstance(what, Said):
                worker.job = None
            tell(Event(number, what))

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

    def __init__(self, lines: Lines, number: int) -> None:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=os.environ | one_thread | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1"},
                start_new_session=True,  # so that Ctrl-C reaches us alone, and we end the workers
            )
        except OSError as error:
            raise StudyError(
                f"Worker process {number} could not be started.",
                f"The system says: {error}",
                f"Free some memory, or space in {tempfile.gettempdir()}, or use --workers 0: everything in one process.",
            ) from error
        self.job: int | None = None
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
