"""The driver's loop: give jobs to an engine as slots become free, store their files, and restart lost jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

from trisect.core.errors import StudyError
from trisect.engine.jobs import Files, JobOrder, JobProgress

LOSSES = 3  # times that one job is lost with its process or its machine before it is given up
PATIENCE = 1.0  # seconds that one call waits for events


class JobWork(ABC):
    """A piece of work, as the driver uses it."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Its title in messages and progress lines."""

    @property
    def seconds(self) -> float:
        """Its expected cost on one core, in seconds or relative to other pieces."""
        return 1.0

    def ready(self) -> bool:
        """Whether everything that it depends on exists; it may change when other work ends."""
        return True

    @abstractmethod
    def order(self) -> JobOrder:
        """The job, resuming from what it has sent; called at each start."""

    @abstractmethod
    def land(self, files: Files) -> None:
        """Move files that it sent to their places."""

    def finish(self) -> None:  # noqa: B027 (most have nothing to do)
        """Handle its end, when all its files are stored."""


@dataclass(frozen=True)
class JobEnd:
    """The end of a job: success, or an error that would occur again."""

    error: Exception | None = None


@dataclass(frozen=True)
class JobLoss:
    """A job that was lost with its process: symptom, last words, and the machine's name."""

    words: str
    last: str
    node: str = ""


OnEvent = Callable[[int, JobProgress | JobEnd | JobLoss], None]  # what happened to the job of that number


class Engine(Protocol):
    """Runs jobs by number; events of one job come in order, of several as they happen."""

    def slots(self) -> int:
        """The number of jobs to keep running, which may change as machines come and go."""
        ...

    def submit(self, number: int, order: JobOrder) -> None:
        """Submit a job."""

    def events(self, timeout: float, on_event: OnEvent) -> None:
        """Call `on_event` with each event, in this thread; return after some events or `timeout` seconds.

        An engine without processes of its own runs a job here and calls `on_event` while the job runs.
        """

    def close(self) -> None:
        """End all workers and remove what they left."""


Show = Callable[[int, Any, float, str], None]  # of a progress line's number: the work, the share done, and a few words


@dataclass
class _Open:
    work: JobWork
    line: int  # where its progress is shown
    losses: list[str] = field(default_factory=list)  # the machines on which it was lost


def drive(works: Iterable[JobWork], engine: Engine, show: Show = lambda line, work, share, words: None) -> None:
    """Run all pieces of work, in order of readiness; an iterable is read as slots become free.

    A job that is lost begins again from what has landed. Raises the first error that a job ended with, and StudyError for a
    piece of work that was lost again and again; what has landed by then stays.
    """
    source, waiting, numbers = iter(works), list[JobWork](), 0
    opened: dict[int, _Open] = {}

    def handle(number: int, event: JobProgress | JobEnd | JobLoss) -> None:
        work, line, losses = (job := opened[number]).work, job.line, job.losses
        match event:
            case JobProgress(share, words, files):
                if files:
                    work.land(files)
                if share is not None:
                    show(line, work, share, words)
            case JobEnd(error):
                if error is not None:
                    raise error
                del opened[number]
                work.finish()
                show(line, work, 1.0, "")
            case JobLoss(words, last, node):
                losses.append(node)
                if len(losses) < LOSSES:
                    engine.submit(number, work.order())
                    return
                where = f" (on {', '.join(losses)})" if node else ""
                advice = "Look at the memory and the logs of these machines" if node else "Use --workers 1: less memory"
                raise StudyError(
                    f"{words}, {LOSSES} times at '{work.title}'{where}.",
                    f"Its last words: {last}",
                    f"Run the same command again: it goes on from what is kept. {advice}.",
                )
            case _:
                assert_never(event)

    while True:
        while len(opened) < engine.slots() or not opened:  # where no machine is there yet, one piece waits for it
            work = next((w for w in waiting if w.ready()), None)
            if work is not None:
                waiting.remove(work)
            elif (work := next(source, None)) is None:
                break
            elif not work.ready():
                waiting.append(work)
                continue
            numbers += 1
            lines = {job.line for job in opened.values()}
            opened[numbers] = _Open(work, next(n for n in range(len(lines) + 1) if n not in lines))
            engine.submit(numbers, work.order())
        if not opened:
            assert not waiting, "work that waits for other work which is not there"
            return
        engine.events(PATIENCE, handle)
