"""The driver's loop: work is given out to an engine, files land as they come, and what is lost is given out again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, assert_never

from trisect.core.errors import StudyError
from trisect.core.machine import LOSSES
from trisect.engine.jobs import JobFunction, statement
from trisect.engine.protocol import Done, Engine, Event, Failed, Files, Job, Lost, Ref, Said

PATIENCE = 1.0  # seconds that one call waits for events


@dataclass(frozen=True)
class JobOrder:
    """What one piece of work is as a job, at the time at which it is given out.

    `asked` is the statement that `function` takes; `needs` are files and folders that never change, by the name under
    which the job fetches them; `begins` are files and folders that lie in its scratch folder, by their path below `home`.
    """

    function: JobFunction[Any]
    asked: Any
    home: Path
    needs: Mapping[str, Path] = field(default_factory=dict)
    begins: Mapping[str, Path] = field(default_factory=dict)
    gpus: float = 0


class DrivenJob(Protocol):
    """A piece of work as the driver sees it."""

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        ...

    def ready(self) -> bool:
        """Whether all that it builds on is there; it may change when other work has ended."""
        ...

    def order(self) -> JobOrder:
        """It as a job, going on from what has landed of it."""
        ...

    def land(self, files: Files) -> None:
        """Put files that it sent home where they belong."""
        ...

    def ended(self) -> None:
        """Take note that all of it has landed."""
        ...


Show = Callable[[int, Any, float, str], None]  # of a progress line's number: the work, the share done, and a few words


def drive(
    works: Iterable[DrivenJob],
    engine: Engine,
    show: Show = lambda line, work, share, words: None,
    losses: int = LOSSES,
) -> None:
    """Have every piece of work done, first ready, first given out; an iterable is read as slots become free.

    Raises the first error that a job ended with, and StudyError for a piece of work that was lost `losses` times; what has
    landed by then stays.
    """
    driver = _Driver(engine, show, losses)
    source, waiting = iter(works), list[DrivenJob]()
    while True:
        while driver.free() > 0 or not driver.open:  # where no node is there yet, one piece waits for it
            work = next((w for w in waiting if w.ready()), None)
            if work is not None:
                waiting.remove(work)
            elif (work := next(source, None)) is None:
                break
            elif not work.ready():
                waiting.append(work)
                continue
            driver.give(work)
        if not driver.open:
            assert not waiting, "work that waits for other work which is not there"
            return
        engine.events(PATIENCE, driver.handle)


class _Open(NamedTuple):
    work: DrivenJob
    line: int  # where its progress is shown
    losses: tuple[Lost, ...]


class _Driver:
    """What is given out to an engine, and what is done about each of its events."""

    def __init__(self, engine: Engine, show: Show, losses: int) -> None:
        self.engine, self.show, self.losses = engine, show, losses
        self.open: dict[int, _Open] = {}
        self._numbers = 0
        self._put: dict[Path, Ref] = {}

    def free(self) -> int:
        return self.engine.slots() - len(self.open)

    def give(self, work: DrivenJob, losses: tuple[Lost, ...] = ()) -> None:
        order = work.order()
        for path in order.needs.values():
            if path not in self._put:
                self._put[path] = self.engine.put(path)
        refs = {name: self._put[path] for name, path in order.needs.items()}
        refs |= {name: self.engine.put(path) for name, path in order.begins.items()}
        job = Job(order.function.name, statement(order.asked), tuple(order.begins), str(order.home))
        self._numbers += 1
        taken = {each.line for each in self.open.values()}
        self.open[self._numbers] = _Open(work, next(n for n in range(len(taken) + 1) if n not in taken), losses)
        self.engine.submit(self._numbers, job, refs, gpus=order.gpus)

    def handle(self, event: Event) -> None:
        work, line, losses = self.open[event.job]
        match event.what:
            case Said(share, words, files, node):
                if files:
                    work.land(files)
                if share is not None:
                    self.show(line, work, share, " on ".join(filter(None, (words, node))))
            case Done(files):
                work.land(files)
                del self.open[event.job]
                work.ended()
                self.show(line, work, 1.0, "")
            case Failed(error):
                raise error
            case Lost() as lost:
                del self.open[event.job]
                if len(losses) + 1 >= self.losses:
                    raise _given_up(work, (*losses, lost))
                self.give(work, (*losses, lost))
            case _:
                assert_never(event.what)


def _given_up(work: DrivenJob, losses: tuple[Lost, ...]) -> StudyError:
    last, nodes = losses[-1], ", ".join(lost.node for lost in losses if lost.node)
    advice = "Look at the memory and the logs of these machines" if nodes else "With --workers 1 it needs less memory"
    return StudyError(
        f"{last.words}, {len(losses)} times at '{work.title}'{f' (on {nodes})' if nodes else ''}.",
        f"Its last words: {last.last}",
        f"Call the same command again: it goes on from what is kept. {advice}.",
    )
