"""The terminal while a study runs: one live line a worker and one for the whole; silent where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text


class Timed(Protocol):
    """What a line is about: a name, and the expected cost on one core, in seconds or against the others."""

    @property
    def title(self) -> str:
        """What the line calls it."""
        ...

    @property
    def seconds(self) -> float:
        """What it takes."""
        ...


class ProgressUpdate(Protocol):
    """Called with the worker, the task, the share of it done, and a few words."""

    def __call__(self, worker: int, task: Any, share: float, words: str) -> None:
        """Take note of where a task is."""
        ...


@contextmanager
def live(tasks: Sequence[Timed], workers: int, quiet: bool) -> Iterator[ProgressUpdate]:
    """Show progress on standard error while the context lasts; yields what is to be told of each step."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda worker, task, share, words: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[words]}"),
    )
    whole, began = sum(t.seconds for t in tasks), time.monotonic()
    shares: dict[Timed, float] = {}
    # standard output stays as it is: the thread that tracks runs replaces it for a while too, and whoever puts back last
    # what the other had put there would leave it dead
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
        total = progress.add_task("study", total=whole, words="")
        lines = [progress.add_task("", total=1.0, words="", visible=False) for _ in range(max(1, workers))]

        def told(worker: int, task: Timed, share: float, words: str) -> None:
            shares[task] = share
            done = sum(t.seconds * s for t, s in shares.items())
            left = (time.monotonic() - began) * (whole - done) / done if done else 0.0
            words_left = f"{sum(s >= 1 for s in shares.values())} of {len(tasks)} tasks, about {clock(left)} left"
            progress.update(total, completed=done, words=words_left)
            title = Text(task.title).plain
            progress.update(lines[worker], description=f"  {title}", completed=share, words=words, visible=True)

        yield told


def clock(seconds: float) -> str:
    """Seconds as a short text such as 45 s, 12 min or 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def bar(title: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, told of (done, total); silent where it is to be `quiet` or there is no terminal."""
    console = Console(stderr=True)
    with Progress(console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        line = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(line, completed=done, total=total)
