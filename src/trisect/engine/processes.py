"""Where tasks run: in this process, or in one-thread worker processes that share a study's folder."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, NamedTuple, Protocol

from trisect.core import errors
from trisect.core.errors import StudyError, TrisectError


class Work(Protocol):
    """What the engine needs to know of a task: JSON-ready data, and whether it may start yet."""

    def data(self) -> dict[str, Any]:
        """The task as a worker reads it."""
        ...

    def ready(self) -> bool:
        """Whether everything it builds on is there."""
        ...


class Event(NamedTuple):
    """Something a worker said: the task's index, the share done, and a few words; `done` when it has ended."""

    worker: int
    task: int
    share: float
    words: str
    done: bool


def run_tasks(tasks: Sequence[Work], command: Sequence[str], workers: int, told: Callable[[Event], None]) -> None:
    """Run every task, at most `workers` at a time, each in a process started by `command`; first ready, first run.

    A worker reads one JSON task a line and answers with JSON events. It ends when its input does, also when this
    process dies. Raises the first TrisectError a worker reports, and StudyError when a worker dies or cannot be
    started; all others are then stopped, and what they had written stays.
    """
    said: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    team: list[_Worker] = []
    try:
        for number in range(min(workers, len(tasks))):
            team.append(_Worker(number, command, said))
        waiting, idle, running = list(range(len(tasks))), list(range(len(team))), {}
        while waiting or running:
            for index in [i for i in waiting if tasks[i].ready()][: len(idle)]:
                waiting.remove(index)
                worker = idle.pop(0)
                running[worker] = index
                team[worker].give(tasks[index].data())
            assert running, "tasks that wait for one another"
            worker, message = said.get()
            if message is None or "error" in message or "crash" in message:
                raise team[worker].failure(message)
            done = bool(message["done"])
            told(Event(worker, running[worker], float(message["share"]), str(message["words"]), done))
            if done:
                del running[worker]
                idle.append(worker)
    finally:
        for each in team:
            each.stop()


class _Worker:
    """One worker process, with a thread that passes on what it says."""

    def __init__(
        self, number: int, command: Sequence[str], said: queue.Queue[tuple[int, dict[str, Any] | None]]
    ) -> None:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        try:
            self.complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.complaints,
                env=os.environ | one_thread,
                start_new_session=True,  # so that Ctrl-C reaches us alone, and we end the workers
            )
        except OSError as error:
            raise StudyError(
                f"Worker process {number + 1} could not be started.",
                f"The system says: {error}",
                f"Free some memory, or space in {tempfile.gettempdir()}, or use --workers 0: everything in one process.",
            ) from error
        self.number, self.said = number, said
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout
        with contextlib.suppress(ValueError):  # a line that is no event: the worker is given up
            for line in self.process.stdout:
                self.said.put((self.number, json.loads(line)))
        self.said.put((self.number, None))

    def give(self, task: dict[str, Any]) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(task).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # its death is on its way through the other pipe

    def failure(self, message: dict[str, Any] | None) -> Exception:
        if message is not None and "error" in message:
            kind, *parts = message["error"]
            return getattr(errors, kind, TrisectError)(*parts)
        if message is not None:
            return RuntimeError(message["crash"])
        try:
            code: int | str = self.process.wait(2)
        except subprocess.TimeoutExpired:  # alive, but not saying what a worker says
            self.process.kill()
            code = "none: it spoke out of turn"
        self.complaints.seek(0)
        last = self.complaints.read().decode(errors="replace").strip().splitlines()[-3:]
        return StudyError(
            f"A worker process ended unexpectedly (exit status {code}).",
            "Its last words: " + (" | ".join(last) or "none; if the machine ran out of memory, the system ended it."),
            "Call the same command again: it goes on from the last finished epoch. With --workers 1 it needs less memory.",
        )

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.complaints):
            try:
                if stream:
                    stream.close()
            except OSError:
                continue


def serve(
    do: Callable[[dict[str, Any], Callable[[float, str], None]], None], lines: Iterable[bytes], out: IO[bytes]
) -> None:
    """A worker's side: do one task a line of `lines`, and say on `out` how each goes."""

    def say(**message: Any) -> None:
        out.write(json.dumps(message).encode() + b"\n")
        out.flush()

    for line in lines:
        try:
            do(json.loads(line), lambda share, words: say(share=share, words=words, done=False))
        except TrisectError as error:
            say(error=[type(error).__name__, error.given, error.known, error.todo])
            return
        except Exception:
            import traceback

            say(crash=traceback.format_exc())
            return
        say(share=1.0, words="", done=True)
