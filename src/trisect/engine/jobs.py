"""Jobs: functions of JSON and files that are run by name, and how a process runs one."""

from __future__ import annotations

import inspect
import json
import re
import secrets
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from trisect.core import errors
from trisect.core.errors import StudyError, TrisectError
from trisect.core.files import Json, inside, replace_file, whole_files
from trisect.core.schema import plain, read

PAUSE = 0.2  # seconds between two reports of how far a job is

Content = bytes | Path  # a file's bytes, or on one machine a file that its receiver may move away
Files = Mapping[str, Content]  # by path below the experiment's folder, with '/' between its parts
Emit = Callable[[float, str], None]  # the share that is done, and a few words
Value = TypeVar("Value")


class OrderMessage(TypedDict):
    """An order without its files: the function as 'module:name', its record as JSON, names of files, and the home's path."""

    job: str
    request: str
    begins: list[str]
    home: str


@dataclass(frozen=True)
class JobOrder:
    """A job at the time at which it begins.

    `request` is the record that `function` takes; `needs` are files and folders that never change, by the name under which
    the job fetches them; `begins` are files and folders that lie in its scratch folder, by their path below `home`, as
    which messages of errors name that folder.
    """

    function: Callable[[Any, JobContext], None]
    request: Any
    home: Path
    needs: Mapping[str, Path] = field(default_factory=dict)
    begins: Mapping[str, Path] = field(default_factory=dict)

    def message(self) -> OrderMessage:
        """What is sent of it beside files; floats come back bit for bit."""
        name = f"{self.function.__module__}:{self.function.__qualname__}"
        request = json.dumps(plain(self.request), allow_nan=False)
        return {"job": name, "request": request, "begins": list(self.begins), "home": str(self.home)}

    def paths(self) -> dict[str, Path]:
        """All files and folders that the job reads, where they lie on this machine."""
        return {name: path.absolute() for name, path in (*self.needs.items(), *self.begins.items())}


@dataclass(frozen=True)
class JobProgress:
    """A job is under way: the share that is done, a few words, and files that it sends home."""

    share: float | None = None
    words: str = ""
    files: Files = field(default_factory=dict)


class JobContext:
    """What a job works with: its scratch folder, what it needs, and a way to report and to send files home."""

    def __init__(
        self, scratch: Path, paths: Mapping[str, Path], values: dict[str, Any], send: Callable[[JobProgress], None]
    ) -> None:
        self.scratch = scratch
        self._paths, self._values, self._send = paths, values, send
        self._seen: dict[str, tuple[int, int]] = {}
        self._reported = float("-inf")
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
        if time.monotonic() - self._reported >= PAUSE:
            self._reported = time.monotonic()
            self._send(JobProgress(share, words))

    def keep(self) -> None:
        """Send home what is new in the scratch folder: what a job goes on from when its worker, or the driver, is lost.

        To be called where these files agree with one another. Each travels under a second name that stays as it is.
        """
        files = {}
        for path in whole_files(self.scratch):
            name, mark = path.relative_to(self.scratch).as_posix(), _mark(path)
            if self._seen.get(name) != mark:
                second = self.scratch.with_name(f"kept-{len(self.sent)}")
                self.sent[second] = name
                _share(path, second)
                self._seen[name] = mark
                files[name] = second
        if files:
            self._send(JobProgress(files=files))

    def begin(self, name: str) -> None:
        """Have the file or folder of that name lie in the scratch folder."""
        source, target = self.fetch(name), self.scratch / name
        for path in whole_files(source) if source.is_dir() else [source]:
            place = target / path.relative_to(source) if source.is_dir() else target
            _share(path, place)
            self._seen[place.relative_to(self.scratch).as_posix()] = _mark(place)


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


Job = TypeVar("Job", bound=Callable[[Any, JobContext], None])
_declared: dict[str, Callable[[Any, JobContext], None]] = {}


def job(function: Job) -> Job:
    """Declare that engines may call a function of a record, which travels as JSON, and a JobContext."""
    _declared[f"{function.__module__}:{function.__qualname__}"] = function
    return function


def find_job(name: str) -> Callable[[Any, JobContext], None]:
    """The declared function of that name, its module imported; raises StudyError for any other."""
    module, _, function = name.partition(":")
    try:
        import_module(module)
        return _declared[name]
    except (ImportError, ValueError, KeyError) as error:
        reason = (
            f"{type(error).__name__}: {error}" if isinstance(error, ImportError) else f"{module} declares no such job."
        )
        todo = f"Declare {function or 'it'} with @job in an importable module, and install that for the workers too."
        raise StudyError(f"The job {name!r} cannot be run.", reason, todo) from error


def run_job(
    message: OrderMessage,
    paths: Mapping[str, Path],
    folder: Path,
    values: dict[str, object],
    send: Callable[[JobProgress], None],
) -> None:
    """Run the job of an order's message in a scratch folder of its own below `folder`; `values` are what its process has read.

    However it ends, what lies whole in its folder is sent. In a TrisectError that leaves here the scratch folder's path is
    replaced by the job's home.
    """
    place = folder / f"job-{secrets.token_hex(6)}"
    context = JobContext(place / "work", paths, values, send)
    try:
        for name in message["begins"]:
            context.begin(name)
        function = find_job(message["job"])
        kind = next(iter(inspect.signature(function, eval_str=True).parameters.values())).annotation
        function(read(kind, json.loads(message["request"]), message["job"]), context)
    except BaseException as error:
        with suppress(TrisectError):  # the first error is the one to report
            context.keep()
        if isinstance(error, TrisectError):  # names files as they are called at home
            home = message["home"]
            moved = {**{second: f"{home}/{name}" for second, name in context.sent.items()}, context.scratch: home}
            for path, name in moved.items():
                pattern = re.compile(re.escape(str(path)) + r"\b")
                error.problem, error.reason, error.todo = error.args = tuple(
                    pattern.sub(lambda _, name=name: name, part) for part in (error.problem, error.reason, error.todo)
                )
        raise
    else:
        context.keep()
    finally:
        shutil.rmtree(context.scratch, ignore_errors=True)


def failure(error: Exception) -> dict[str, Json]:
    """An error as JSON, never as a pickle: the three parts of one of ours, else where it was raised."""
    if isinstance(error, TrisectError):
        return {"error": [type(error).__name__, error.problem, error.reason, error.todo]}
    return {"crash": "".join(traceback.format_exception(error))}


def read_failure(message: Mapping[str, Json]) -> Exception | None:
    """The error that a message is about; None where it is about none."""
    if isinstance(error := message.get("error"), list):
        kind, *parts = map(str, error)
        return getattr(errors, kind, TrisectError)(*parts)
    return RuntimeError(message["crash"]) if "crash" in message else None


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
