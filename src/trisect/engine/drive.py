"""The driver's loop: work is given to an engine as slots become free, and files land as they come."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, Protocol, assert_never

from trisect.core.errors import StudyError
from trisect.core.files import inside, replace_file
from trisect.engine.jobs import LOSSES, Content, Done, Engine, Event, Failed, Files, JobOrder, Lost, Said

PATIENCE = 1.0  # seconds that one call waits for events


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


class _Open(NamedTuple):
    work: DrivenJob
    line: int  # where its progress is shown


def drive(works: Iterable[DrivenJob], engine: Engine, show: Show = lambda line, work, share, words: None) -> None:
    """Have every piece of work done, first ready, first given out; an iterable is read as slots become free.

    Raises the first error that a job ended with, and StudyError for a piece of work that was lost again and again; what
    has landed by then stays.
    """
    source, waiting, numbers = iter(works), list[DrivenJob](), 0
    opened: dict[int, _Open] = {}

    def handle(event: Event) -> None:
        work, line = opened[event.job]
        match event.what:
            case Said(share, words, files):
                if files:
                    work.land(files)
                if share is not None:
                    show(line, work, share, words)
            case Done(files):
                work.land(files)
                del opened[event.job]
                work.ended()
                show(line, work, 1.0, "")
            case Failed(error):
                raise error
            case Lost() as lost:
                raise _given_up(work, lost)
            case _:
                assert_never(event.what)

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
            taken = {each.line for each in opened.values()}
            opened[numbers] = _Open(work, next(n for n in range(len(taken) + 1) if n not in taken))
            engine.submit(numbers, work.order)
        if not opened:
            assert not waiting, "work that waits for other work which is not there"
            return
        engine.events(PATIENCE, handle)


def _given_up(work: DrivenJob, lost: Lost) -> StudyError:
    where = f" (on {', '.join(lost.nodes)})" if lost.nodes else ""
    advice = "Look at the memory and the logs of these machines" if where else "With --workers 1 it needs less memory"
    return StudyError(
        f"{lost.words}, {LOSSES} times at '{work.title}'{where}.",
        f"Its last words: {lost.last}",
        f"Call the same command again: it goes on from what is kept. {advice}.",
    )


def land(files: Files, folder: Path, last: Sequence[str] = ()) -> None:
    """Write files below `folder`, each whole or not at all; those that fit a pattern of `last` come last, in that order.

    So a file that says that others are there never comes before them. Raises StudyError where a name leads out of the
    folder, or a file cannot be written.
    """

    def rank(name: str) -> tuple[int, str]:
        return max((i for i, pattern in enumerate(last, start=1) if fnmatchcase(name, pattern)), default=0), name

    def put(content: Content, place: Path) -> None:
        if isinstance(content, Path):
            shutil.move(content, place)
        else:
            place.write_bytes(content)

    for name in sorted(files, key=rank):
        content = files[name]  # a file that is moved was written as durably as its job wanted
        replace_file(
            inside(folder, *name.split("/")),
            lambda scratch, content=content: put(content, scratch),
            durable=isinstance(content, bytes),
        )


def read_content(content: Content) -> bytes:
    """The bytes of a file that was sent home."""
    return content.read_bytes() if isinstance(content, Path) else content
