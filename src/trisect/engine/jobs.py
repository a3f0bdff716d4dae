"""Jobs: pure functions of JSON and files that are run by name, and the protocol of the engines that run them."""

from __future__ import annotations

import inspect
import json
import re
import secrets
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from trisect.core import errors
from trisect.core.errors import StudyError, TrisectError
from trisect.core.files import Json, replace_file, whole_files
from trisect.core.schema import plain, read

LOSSES = 3  # times that one job is lost with its process or its machine before it is given up
PAUSE = 0.2  # seconds between two reports of how far a job is

Content = bytes | Path  # a file's bytes, or on one machine a file that its receiver may move away
Files = Mapping[str, Content]  # by path below the experiment's folder, with '/' between its parts
Emit = Callable[[float, str], None]  # the share that is done, and a few words
Asked = TypeVar("Asked")
Value = TypeVar("Value")


@dataclass(frozen=True)
class JobOrder:
    """What one piece of work is as a job, at the time at which it begins.

    `asked` is the statement that `function` takes; `needs` are files and folders that never change, by the name under
    which the job fetches them; `begins` are files and folders that lie in its scratch folder, by their path below `home`,
    as which messages of errors name that folder.
    """

    function: JobFunction[Any]
    asked: Any
    home: Path
    needs: Mapping[str, Path] = field(default_factory=dict)
    begins: Mapping[str, Path] = field(default_factory=dict)

    def call(self) -> JobCall:
        """What is sent to the process that performs it, beside files."""
        return JobCall(self.function.name, statement(self.asked), tuple(self.begins), str(self.home))

    def paths(self) -> dict[str, Path]:
        """All that it reads, where it lies on this machine."""
        return {name: path.absolute() for name, path in (*self.needs.items(), *self.begins.items())}


class JobCall(NamedTuple):
    """The same as JSON-ready data: 'module:name' of a function declared by `job`, its statement as JSON text, and names."""

    function: str
    statement: str
    begins: tuple[str, ...]
    home: str


@dataclass(frozen=True)
class Said:
    """A job is under way: the share of it that is done, a few words, and files that it sends home."""

    share: float | None = None
    words: str = ""
    files: Files = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """A job has ended: the files that it had not sent home yet."""

    files: Files


@dataclass(frozen=True)
class Failed:
    """A job ended with an error, which would come again if it were begun again."""

    error: Exception


@dataclass(frozen=True)
class Lost:
    """A job was lost with its process LOSSES times, and is given up: how that shows, last words, and the names of machines."""

    words: str
    last: str
    nodes: tuple[str, ...] = ()


class Event(NamedTuple):
    """What happened to the job of that number."""

    job: int
    what: Said | Done | Failed | Lost


class Engine(Protocol):
    """Runs jobs that are given by number; events of one job come in order, of several as they happen."""

    def slots(self) -> int:
        """How many jobs to keep open now; it may change as machines come and go."""
        ...

    def submit(self, number: int, order: Callable[[], JobOrder]) -> None:
        """Take a job; `order` is called whenever it begins, the first time and after a loss, and says what it goes on from."""
        ...

    def events(self, timeout: float, on_event: Callable[[Event], None]) -> None:
        """Call `on_event` with each event, in this thread; return after some events or `timeout` seconds.

        An engine without processes of its own runs a job here and calls `on_event` while the job runs.
        """
        ...

    def close(self) -> None:
        """End all workers and remove what they left."""
        ...


class JobDesk:
    """What a job works with: its scratch folder, what it needs, and a way to report and to send files home."""

    def __init__(
        self, scratch: Path, paths: Mapping[str, Path], values: dict[str, Any], send: Callable[[Said], None]
    ) -> None:
        self.scratch = scratch
        self._paths, self._values, self._send = paths, values, send
        self._seen: dict[str, tuple[int, int]] = {}
        self._said = float("-inf")
        self.sent: dict[Path, str] = {}  # second names of files that went home, and what they are called there

    def fetch(self, name: str) -> Path:
        """The file or folder of that name, on this machine's disk, to be read only."""
        return self._paths[name]

    def read(self, name: str, load: Callable[[Path], Value]) -> Value:
        """What `load` makes of `fetch(name)`; made once by each process of an engine, then shared by its jobs."""
        key = f"{load.__module__}.{load.__qualname__} {self.fetch(name)}"
        if key not in self._values:
            self._values[key] = load(self.fetch(name))
        return self._values[key]

    def say(self, share: float, words: str) -> None:
        """Report the share that is done, and a few words; passed on every 0.2 s at most."""
        if time.monotonic() - self._said >= PAUSE:
            self._said = time.monotonic()
            self._send(Said(share, words))

    def keep(self) -> None:
        """Send home what is new in the scratch folder: what a job goes on from when its worker, or the driver, is lost.

        To be called where these files agree with one another.
        """
        if files := self.fresh():
            self._send(Said(files=files))

    def begin(self, name: str) -> None:
        """Have the file or folder of that name lie in the scratch folder."""
        source, target = self.fetch(name), self.scratch / name
        for path in whole_files(source) if source.is_dir() else [source]:
            place = target / path.relative_to(source) if source.is_dir() else target
            _share(path, place)
            self._seen[place.relative_to(self.scratch).as_posix()] = _mark(place)

    def fresh(self) -> Files:
        """Files of the scratch folder that were not sent home yet, each under a name of its own that stays as it is."""
        found = {}
        for path in whole_files(self.scratch):
            name, mark = path.relative_to(self.scratch).as_posix(), _mark(path)
            if self._seen.get(name) != mark:
                second = self.scratch.with_name(f"kept-{len(self.sent)}")
                self.sent[second] = name
                _share(path, second)
                self._seen[name] = mark
                found[name] = second
        return found


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _share(source: Path, target: Path) -> None:
    """A second name for a file: no bytes are copied where the disk allows that. Files are replaced, never changed."""

    def link(scratch: Path) -> None:
        try:
            scratch.hardlink_to(source)
        except OSError:  # another disk, or one without links
            shutil.copy2(source, scratch)

    replace_file(target, link, durable=False)


@dataclass(frozen=True)
class JobFunction(Generic[Asked]):
    """A function of a record, which travels as JSON, and a JobDesk, that engines may call by its name."""

    name: str
    asked: type[Asked]
    call: Callable[[Asked, JobDesk], None]

    def run(self, statement: str, desk: JobDesk) -> None:
        """Call it with what the JSON text states."""
        self.call(read(self.asked, json.loads(statement), self.name), desk)


_declared: dict[str, JobFunction[Any]] = {}


def job(function: Callable[[Asked, JobDesk], None]) -> JobFunction[Asked]:
    """Declare that engines may call a function of a record."""
    name = f"{function.__module__}:{function.__qualname__}"
    asked: Any = next(iter(inspect.signature(function, eval_str=True).parameters.values())).annotation
    _declared[name] = declared = JobFunction(name, asked, function)
    return declared


def find_job(name: str) -> JobFunction[Any]:
    """The declared function of that name, its module imported; raises StudyError for any other."""
    module, _, function = name.partition(":")
    try:
        import_module(module)
        return _declared[name]
    except (ImportError, ValueError, KeyError) as error:
        known = (
            f"{type(error).__name__}: {error}" if isinstance(error, ImportError) else f"{module} declares no such job."
        )
        todo = f"Declare {function or 'it'} with @job in an importable module, and install that for the workers too."
        raise StudyError(f"The job {name!r} cannot be run.", known, todo) from error


def statement(asked: Any) -> str:
    """A record as the JSON text that a job is called with; floats come back bit for bit."""
    return json.dumps(plain(asked), allow_nan=False)


def failure(error: Exception) -> dict[str, Json]:
    """An error as JSON, never as a pickle: the three parts of one of ours, else where it was raised."""
    if isinstance(error, TrisectError):
        return {"error": [type(error).__name__, error.given, error.known, error.todo]}
    return {"crash": "".join(traceback.format_exception(error))}


def read_failure(message: Mapping[str, Json]) -> Failed | None:
    """The error that a message is about; None where it is about none."""
    said = message.get("error")
    if isinstance(said, list):
        kind, *parts = map(str, said)
        return Failed(getattr(errors, kind, TrisectError)(*parts))
    return Failed(RuntimeError(message["crash"])) if "crash" in message else None


@dataclass(frozen=True)
class Node:
    """Where jobs of one process work: a folder on its own disk, and what its jobs have read and share."""

    folder: Path
    values: dict[str, object] = field(default_factory=dict)
    # folders of earlier jobs, empty when all that was in them has landed
    left: list[Path] = field(default_factory=list)

    def perform(self, call: JobCall, paths: Mapping[str, Path], send: Callable[[Said], None]) -> Files:
        """Run one job in a scratch folder of its own; returns the files that it has not sent yet.

        However it ends, what lies whole in its folder is sent. In a TrisectError that leaves here the scratch folder's
        path is replaced by the job's home.
        """
        for old in self.left.copy():
            with suppress(OSError):
                old.rmdir()
                self.left.remove(old)
        place = self.folder / f"job-{secrets.token_hex(6)}"
        self.left.append(place)
        desk = JobDesk(place / "work", paths, self.values, send)
        try:
            for name in call.begins:
                desk.begin(name)
            find_job(call.function).run(call.statement, desk)
            return desk.fresh()
        except BaseException as error:
            with suppress(TrisectError):  # the first error is the one to report
                desk.keep()
            if isinstance(error, TrisectError):
                _call_home(error, desk, call.home)
            raise
        finally:
            shutil.rmtree(place / "work", ignore_errors=True)


def _call_home(error: TrisectError, desk: JobDesk, home: str) -> None:
    """Have an error name files as they are called at home."""
    for place, name in [*((second, f"{home}/{name}") for second, name in desk.sent.items()), (desk.scratch, home)]:
        inside = re.compile(re.escape(str(place)) + r"\b")
        error.given, error.known, error.todo = error.args = tuple(
            inside.sub(lambda _, name=name: name, part) for part in (error.given, error.known, error.todo)
        )
