"""The engine `processes`: jobs in single-threaded worker processes on this machine; run as a module, a worker."""

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
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from trisect.core.errors import StudyError
from trisect.engine.drive import JobEnd, JobLoss, OnEvent
from trisect.engine.jobs import JobOrder, JobProgress, failure, read_failure, run_job

COMMAND = ("-P", "-W", "ignore", "-m", "trisect.engine.processes")  # what Python runs in each of them
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

Lines = queue.Queue[tuple["_Worker", dict[str, Any] | None]]  # what workers write; None when there will be no more
_IDLE_WORKERS: ContextVar[tuple[Lines, list[_Worker]] | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def reuse_workers() -> Iterator[None]:
    """Context in which closed engines leave idle workers to the next; all of them end with it."""
    if _IDLE_WORKERS.get() is not None:
        yield
        return
    idle: list[_Worker] = []
    token = _IDLE_WORKERS.set((queue.Queue(), idle))
    try:
        yield
    finally:
        _IDLE_WORKERS.reset(token)
        for worker in idle:
            worker.stop()


class Processes:
    """Starts a worker for a job if there is none, and another one if it dies; workers end with this process.

    With GPUs each worker sees one of them, which those that see it share.
    """

    def __init__(self, workers: int, folder: Path, gpus: int = 0) -> None:
        self._workers, self._folder, self._gpus = workers, folder, gpus
        self._team: list[_Worker] = []
        self._lines, self._idle = _IDLE_WORKERS.get() or (queue.Queue(), None)

    def slots(self) -> int:
        """The largest number of workers."""
        return self._workers

    def submit(self, number: int, order: JobOrder) -> None:
        """Submit a job to a free worker. Raises StudyError without memory."""
        worker = next((w for w in self._team if w.job is None), None)
        if worker is None:
            assert len(self._team) < self._workers, "more jobs than slots"
            gpu = free_gpu([w.gpu for w in self._team], self._gpus)
            while (worker := next((w for w in self._idle or () if w.gpu == gpu), None)) is not None:
                assert self._idle is not None
                self._idle.remove(worker)
                if worker.process.poll() is None:
                    break
                worker.stop()
            worker = worker or _Worker(self._lines, len(self._team) + 1, gpu)
            self._team.append(worker)
        paths = {name: str(path) for name, path in order.paths().items()}
        worker.give(number, {"order": order.message(), "paths": paths, "folder": str(self._folder.absolute())})

    def events(self, timeout: float, on_event: OnEvent) -> None:
        """Wait for a worker's line, then handle all lines."""
        with contextlib.suppress(queue.Empty):
            worker, message = self._lines.get(timeout=timeout)
            while True:
                self._take(worker, message, on_event)
                worker, message = self._lines.get_nowait()

    def _take(self, worker: _Worker, message: dict[str, Any] | None, on_event: OnEvent) -> None:
        number = worker.job
        if message is None:
            if worker in self._team:
                self._team.remove(worker)
                loss = worker.loss()
                worker.stop()
                if number is not None:
                    on_event(number, loss)
        elif number is not None:
            if "files" in message:
                files = {name: Path(path) for name, path in message["files"].items()}
                on_event(number, JobProgress(message["share"], message["words"], files))
            else:
                worker.job = None
                on_event(number, JobEnd(read_failure(message)))

    def close(self) -> None:
        """Kill the workers, except idle ones for the next engine, and remove their files."""
        for worker in self._team:
            if self._idle is not None and worker.job is None:
                self._idle.append(worker)
            else:
                worker.stop()
        self._team.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def free_gpu(seen: list[int | None], gpus: int) -> int | None:
    """The GPU, from 0, that the fewest workers use; None without GPUs."""
    return min(range(gpus), key=seen.count) if gpus else None


class _Worker:
    """A worker process, with a thread that forwards its lines; `job` is the number of its job."""

    def __init__(self, lines: Lines, number: int, gpu: int | None = None) -> None:
        variables = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
        if gpu is not None:
            variables[VISIBLE_DEVICES] = (
                os.environ[VISIBLE_DEVICES].split(",")[gpu] if os.environ.get(VISIBLE_DEVICES) else str(gpu)
            )
        paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
            self.process = subprocess.Popen(
                [sys.executable, *COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=os.environ | variables | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1"},
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
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()

    def _listen(self, lines: Lines) -> None:
        assert self.process.stdout
        with contextlib.suppress(ValueError):  # a line that is no event: the worker is given up
            for line in self.process.stdout:
                message = json.loads(line)
                if not isinstance(message, dict):
                    break
                lines.put((self, message))
        lines.put((self, None))

    def give(self, number: int, order: dict[str, Any]) -> None:
        assert self.process.stdin
        self.job = number
        with contextlib.suppress(BrokenPipeError):  # its death is on its way through the other pipe
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def loss(self) -> JobLoss:
        try:
            code: int | str = self.process.wait(2)
        except subprocess.TimeoutExpired:  # alive, but what it writes is no event
            self.process.kill()
            code = "none: it wrote a line that is no event"
        self._complaints.seek(0)
        last = self._complaints.read().decode(errors="replace").strip().splitlines()[-3:]
        none = "none; if the machine ran out of memory, the system ended it."
        return JobLoss(f"A worker process ended unexpectedly (exit status {code})", " | ".join(last) or none)

    def stop(self) -> None:
        self.process.kill()
        with contextlib.suppress(OSError), self.process:  # which closes its pipes, and waits
            pass
        self._complaints.close()


# what a worker process runs: jobs in as JSON lines on one pipe, events out on another


def serve(lines: Iterable[bytes], out: IO[bytes]) -> None:
    """Run a job per line of `lines`, and report on `out`."""
    stage, values = "", dict[str, object]()

    def write(**message: Any) -> None:
        out.write(json.dumps(message).encode() + b"\n")
        out.flush()

    def send(progress: JobProgress) -> None:
        files = {name: str(path) for name, path in progress.files.items()}
        write(share=progress.share, words=progress.words, files=files)

    for line in lines:
        item = json.loads(line)
        if item["folder"] != stage:  # what the stage before has read is not needed any more
            stage, values = item["folder"], {}
        paths = {name: Path(path) for name, path in item["paths"].items()}
        try:
            run_job(item["order"], paths, Path(stage), values, send)
        except Exception as error:
            write(**failure(error))
        else:
            write(done=True)


def lines_in() -> Iterator[bytes]:
    """Lines of standard input; at its end this process exits at once."""
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
