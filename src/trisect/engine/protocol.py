"""The engine protocol: what any place that runs jobs can do, and what it reports of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

Content = bytes | Path  # a file's bytes, or on one machine a file that its receiver may move away
Files = Mapping[str, Content]  # by path below the experiment's folder, with '/' between its parts


@dataclass(frozen=True)
class Ref:
    """What `put` gave: the name under which an engine finds a value again."""

    key: str


@dataclass(frozen=True)
class Job:
    """A pure function of JSON and bytes: what to call, with which statement, and what lies in its scratch folder.

    `function` is 'module:name' of a function declared by `jobs.job`; `statement` is JSON text; `begins` are those names
    of the refs whose files lie in the scratch folder when it begins, under these names; in messages of errors the
    scratch folder is called `home`.
    """

    function: str
    statement: str
    begins: tuple[str, ...]
    home: str


@dataclass(frozen=True)
class Said:
    """A job is under way: the share of it that is done, a few words, files that it sends home, and where there are several
    machines the name of the one that it runs on.
    """

    share: float | None = None
    words: str = ""
    files: Files = field(default_factory=dict)
    node: str = ""


@dataclass(frozen=True)
class Done:
    """A job has ended: the files that it had not sent home yet."""

    files: Files


@dataclass(frozen=True)
class Failed:
    """A job ended with an error, which would come again if it were given out again."""

    error: Exception


@dataclass(frozen=True)
class Lost:
    """A job's worker is gone: how that shows, its last words, and where there are several machines the name of its own. It
    may be given out again.
    """

    words: str
    last: str
    node: str = ""


class Event(NamedTuple):
    """What happened to the job of that number."""

    job: int
    what: Said | Done | Failed | Lost


class Engine(Protocol):
    """Runs jobs that are given by number; events of one job come in order, of several as they happen."""

    def put(self, value: Path) -> Ref:
        """Make a file or a folder, which does not change meanwhile, readable for jobs; it travels to a node at most once."""
        ...

    def slots(self) -> int:
        """How many jobs to keep open now; it may change as nodes come and go."""
        ...

    def submit(self, number: int, job: Job, refs: Mapping[str, Ref], cores: int = 1, gpus: float = 0) -> None:
        """Begin a job, which needs so many cores and so much of a GPU; raises StudyError where that cannot be."""
        ...

    def events(self, timeout: float, tell: Callable[[Event], None]) -> None:
        """Call `tell` with each event, in this thread; return after some events or `timeout` seconds.

        An engine without processes of its own runs a job here and calls `tell` while the job runs.
        """
        ...

    def close(self) -> None:
        """End all workers and remove what they left on their nodes."""
        ...
