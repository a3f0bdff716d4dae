"""Run an experiment's jobs on an engine, and show progress in the terminal."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from trisect.core.errors import on_step, report_step
from trisect.core.machine import Machine
from trisect.core.printable import percent
from trisect.engine.drive import JobWork, Show, drive
from trisect.engine.start import open_engine

SCRATCH = ".trisect-jobs"  # in an experiment's own folder, so that files move home without being copied
MIN_SHARE = 0.02  # of the whole, below which its pace is not known yet
# share of the whole, and seconds, before the time left is shown: earlier guesses are off by far
STEADY_SHARE, STEADY_SECONDS = 0.05, 10.0


@dataclass
class Pace:
    """Progress over several parts with expected seconds, and the remaining time at the present pace."""

    costs: Mapping[str, float]
    clock: Callable[[], float] = time.monotonic
    done: float = 0.0  # expected seconds of the parts that have ended
    ended: int = 0
    left_out: float = 0.0  # expected seconds of the parts that were there already
    now: str = ""
    share: float = 0.0  # of the part under way that is done
    step: tuple[float, float] = (0.0, 1.0)  # which share of it is the step under way: from where, and how much
    began: float = field(default=-1.0)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def begin(self, name: str) -> None:
        """Begin a part of one step."""
        self.now, self.share, self.step = name, 0.0, (0.0, 1.0)

    def begin_step(self, start: float, size: float) -> None:
        """Begin a step of the part, with its share."""
        self.step, self.share = (start, size), start

    def move(self, share: float) -> None:
        """Set the share of the current step that is done."""
        self.share = self.step[0] + self.step[1] * share

    def end(self, fresh: bool = True) -> None:
        """End the current part; one that is not `fresh` was finished before, and does not count for the pace."""
        cost = self.costs[self.now]
        self.done, self.left_out = (self.done + cost, self.left_out) if fresh else (self.done, self.left_out + cost)
        self.ended, self.now, self.share = self.ended + 1, "", 0.0

    def fraction(self) -> float:
        """The share of this call's work that is done."""
        total = sum(self.costs.values()) - self.left_out
        return min(1.0, (self.done + self.share * self.costs.get(self.now, 0.0)) / total) if total > 0 else 1.0

    def seconds_left(self) -> float:
        """The remaining seconds: as expected at first, then at the present pace."""
        share, total = self.fraction(), sum(self.costs.values()) - self.left_out
        return (1 - share) * (total if share < MIN_SHARE else (self.clock() - self.began) / share)

    def words(self) -> str:
        """In a few words."""
        progress = f"{percent(self.fraction())}  {self.ended} of {len(self.costs)} parts"
        return progress + remaining_words(self.seconds_left(), self.fraction(), self.clock() - self.began)


class _Words(ProgressColumn):
    """A line's percentage, if it has one, and its words, which may be computed when drawn."""

    def render(self, task: Task) -> Text:
        words: str | Callable[[], str] = task.fields["words"]
        share = "" if task.total is None or callable(words) else f"{task.percentage:>3.0f}\u00a0%  "
        return Text(share + (words() if callable(words) else words))


class _Screen:
    """The live display; its first line, with the elapsed time, is shown while there is no other."""

    def __init__(self, progress: Progress, title: str) -> None:
        self.progress, self.open = progress, 0
        self.first = self.line(title, None)
        self.pace: Pace | None = None
        self.overall: TaskID | None = None

    def line(
        self, title: str, total: float | None, words: str | Callable[[], str] = "", visible: bool = True
    ) -> TaskID:
        """Add a line."""
        return self.progress.add_task(Text(title).plain, total=total, words=words, visible=visible)

    @contextmanager
    def lines(self, titles: Sequence[str], total: float | None, hidden: int = 0) -> Iterator[list[TaskID]]:
        """Add lines in a context, with a number of hidden ones."""
        self.open += 1
        self.progress.update(self.first, visible=False)
        new = [self.line(title, total) for title in titles]
        new += [self.line("", 1.0, visible=False) for _ in range(hidden)]
        try:
            yield new
        finally:
            self.progress.refresh()  # what was said last is seen, however short it was
            for line in new:
                self.progress.remove_task(line)
            self.open -= 1
            self.progress.update(self.first, visible=not self.open)

    def update(self, share: float) -> None:
        """Update the progress of the first line."""
        if self.pace is not None and self.overall is not None:
            self.pace.move(share)
            self.progress.update(self.overall, completed=self.pace.fraction())


_SCREEN: ContextVar[_Screen | None] = ContextVar("screen", default=None)


@contextmanager
def screen(title: str, quiet: bool = False, line: Callable[[str], object] | None = None) -> Iterator[_Screen | None]:
    """The live display on standard error, while the context lasts; one that is open already is used. None where it is to
    be quiet or there is no terminal; steps that begin are then given to `line`.
    """
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        with on_step(line) if line is not None and not quiet else nullcontext():
            yield None
        return
    if (opened := _SCREEN.get()) is not None:
        yield opened
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), _Words(), TimeElapsedColumn())
    # standard output stays as it is: the thread that tracks runs replaces it for a while too, and whoever puts back last
    # what the other had put there would leave it dead
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, refresh_per_second=4) as progress:
        shown = _Screen(progress, title)
        token = _SCREEN.set(shown)
        try:
            with on_step(lambda words: progress.update(shown.first, description=Text(words).plain)):
                yield shown
        finally:
            _SCREEN.reset(token)


@contextmanager
def track_jobs(title: str, costs: Mapping[str, float], quiet: bool) -> Iterator[Pace]:
    """A line over several parts with the time that is left; other lines come and go below it. Yields what is to be
    updated as parts begin and end.
    """
    pace = Pace(costs)
    with screen(title, quiet) as shown:
        if shown is None:
            yield pace
            return
        with shown.lines((title,), 1.0) as (line,):
            shown.progress.update(line, words=pace.words)
            shown.pace, shown.overall = pace, line
            try:
                yield pace
            finally:
                shown.pace = shown.overall = None


@contextmanager
def part(pace: Pace, name: str, title: str, quiet: bool) -> Iterator[None]:
    """A line with the elapsed time of one part while it runs; without a terminal it is a step that begins."""
    pace.begin(name)
    with screen(title, quiet) as shown:
        if shown is None:
            if not quiet:
                report_step(f"{title} ({pace.ended + 1} of {len(pace.costs)} parts) …")
            yield
            return
        shown.update(0.0)
        with shown.lines((f"  {title}",), None):
            yield


@contextmanager
def live(tasks: Sequence[JobWork], workers: int, quiet: bool) -> Iterator[Show]:
    """Show progress on standard error in a context; yields the function to call at each step."""
    with screen("", quiet) as shown:
        if shown is None:
            yield lambda worker, task, share, words: None
            return
        expected, began = sum(t.seconds for t in tasks), time.monotonic()
        shares: dict[JobWork, float] = {}
        with shown.lines(("  tasks",), expected, hidden=max(1, workers)) as lines:
            total = lines[0]

            def note(worker: int, task: JobWork, share: float, words: str) -> None:
                shares[task] = share
                done = sum(t.seconds * s for t, s in shares.items())
                left = (time.monotonic() - began) * (expected - done) / done if done else 0.0
                ended = f"{sum(s >= 1 for s in shares.values())} of {len(tasks)} tasks"
                words_left = ended + remaining_words(
                    left, done / expected if expected else 1.0, time.monotonic() - began
                )
                shown.progress.update(total, completed=done, words=words_left)
                title = Text(task.title).plain
                while worker + 1 >= len(lines):  # nodes may join
                    lines.append(shown.line("", 1.0, visible=False))
                shown.progress.update(
                    lines[worker + 1], description=f"    {title}", completed=share, words=words, visible=True
                )
                shown.update(done / expected if expected else 0.0)

            yield note


def remaining_words(seconds: float, share: float, elapsed: float) -> str:
    """The remaining time at the end of a line; empty until the pace is steady."""
    return f", about {clock(seconds)} left" if share >= STEADY_SHARE and elapsed >= STEADY_SECONDS else ""


def clock(seconds: float) -> str:
    """Seconds as a short text such as 45 s, 12 min or 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def bar(title: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, called with (done, total); silent if `quiet`.

    Without a terminal it is a step that begins.
    """
    with screen(title, quiet) as shown:
        if shown is None:
            if not quiet:
                report_step(f"{title[:1].upper()}{title[1:]} …")
            yield lambda done, total: None
            return
        with shown.lines((f"  {title}",), None) as (line,):

            def step(done: int, total: int) -> None:
                shown.progress.update(line, completed=done, total=total)
                shown.update(done / total if total else 0.0)

            yield step


def run_jobs(works: Sequence[JobWork], machine: Machine, device: str, folder: Path) -> None:
    """Run all unfinished work of the experiment in `folder`; raises as `drive` does."""
    scratch = folder / SCRATCH
    if not works:
        shutil.rmtree(scratch, ignore_errors=True)
        return
    with (
        open_engine(machine, device, scratch, len(works)) as engine,
        live(works, engine.slots(), machine.quiet) as show,
    ):
        drive(works, engine, show)
