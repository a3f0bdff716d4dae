"""A study, and its workers, that note what they are doing where a kill cannot take it away.

python bench/reliability/watched.py NOTES is such a worker.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Note:
    """The words of what is going on, in a mapped file named by this process's id."""

    def __init__(self, folder: Path, role: str) -> None:
        path = folder / f"{role}-{os.getpid()}"
        path.write_bytes(b" " * 64)
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 64)
        self.words = ""
        self.say("starting")

    def say(self, words: str) -> None:
        """Replace the words."""
        self.words = words
        self.map[:] = words.encode()[:64].ljust(64)

    def around(self, place: Any, name: str, words: str | Callable[..., str]) -> None:
        """Have a function say those words while it runs."""
        inner = getattr(place, name)

        def noted(*args: Any, **named: Any) -> Any:
            before = self.words
            self.say(words if isinstance(words, str) else words(*args))
            try:
                return inner(*args, **named)
            finally:
                self.say(before)

        setattr(place, name, noted)


def watch(note: Note) -> None:
    """Wrap what a study consists of."""
    from common import kind

    import trisect.experiments.study.page
    from trisect.core import files, tables
    from trisect.engine import jobs, landing
    from trisect.experiments.study import run as study
    from trisect.experiments.study import tasks
    from trisect.lm import snapshots, train
    from trisect.text import arrays

    note.say("between two steps")
    note.around(study, "make_plan", "reading the text")
    note.around(study, "_keep_corpus", "keeping the text")
    note.around(train.Trainer, "step", "training step")
    note.around(train.Trainer, "evaluate", "evaluation after an epoch")
    note.around(tasks, "_evaluate", "rewinding")
    note.around(study, "collect", "making tables")
    note.around(trisect.experiments.study.page, "page", "drawing the report")
    for place in (files, tables, study, snapshots, arrays, jobs, landing, trisect.experiments.study.page):
        note.around(place, "replace_file", lambda path, *rest: f"writing {kind(Path(*path.parts[-3:]))}")


def prepare(notes: Path) -> None:
    """Watch this process as the parent of a study, its workers too."""
    note = Note(notes, "parent")
    watch(note)
    from trisect.engine import processes

    processes.COMMAND = (__file__, str(notes))


def main(notes: str) -> None:
    """Be a worker, noting what it does."""
    note = Note(Path(notes), "worker")
    watch(note)
    from trisect.engine.worker import main as serve

    serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
