"""Jobs: functions of a JSON record and files that workers call by name."""

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
from trisect.core.files import Json, complete_files, replace_file, safe_join
from trisect.core.schema import read, to_json_data

PAUSE = 0.2  # seconds between two reports of progress

Content = bytes | Path  # a file's bytes, or on one machine a file that its receiver may move away
Files = Mapping[str, Content]  # by path below the experiment's folder, with '/' between its parts
Emit = Callable[[float, str], None]  # fraction done, and a short message
Value = TypeVar("Value")


class OrderMessage(TypedDict):
    """An order without its files: the function as 'module:name', its record as JSON, names of files, and the home's path."""

    job: str
    request: str
    begins: list[str]
    home: str


@dataclass(frozen=True)
class JobOrder:
    """A job with its inputs, ready to run.

    `request` is the argument of `function`; `needs` are read-only files and folders by the name under which the job fetches them;
    `begins` are files and folders to copy into its scratch folder, by their path below `home`. Errors name the scratch folder
    `home`.
    """

    function: Callable[[Any, JobContext], None]
    request: Any
    home: Path
    needs: Mapping[str, Path] = field(default_factory=dict)
    begins: Mapping[str, Path] = field(default_factory=dict)

    def message(self) -> OrderMessage:
        """The order as a message without its files; floats are preserved bit for bit."""
        name = f"{self.function.__module__}:{self.function.__qualname__}"
        request = json.dumps(to_json_data(self.request), allow_nan=False)
        return {"job": name, "request": request, "begins": list(self.begins), "home": str(self.home)}

    def paths(self) -> dict[str, Path]:
        """Paths on this machine of all files and folders that the job reads."""
        return {name: path.absolute() for name, path in (*self.needs.items(), *self.begins.items())}


@dataclass(frozen=True)
class JobProgress:
    """Progress of a job: the fraction done, a short message, and files that it sends to the driver."""

    share: float | None = None
    words: str = ""
    files: Files = field(default_factory=dict)


class JobContext:
    """A job's environment: its scratch folder, its inputs, progress reports, and files sent to the driver."""

    def __init__(
        self, scratch: Path, paths: Mapping[str, Path], values: dict[str, Any], send: Callable[[JobProgress], None]
    ) -> None:
        self.scratch = scratch
        self._paths, self._values, self._send = paths, values, send
        self._seen: dict[str, tuple[int, int]] = {}
        self._reported = float("-inf")
        self.sent: dict[Path, str] = {}  # links to files that were sent, and their names at the driver

    def fetch(self, name: str) -> Path:
        """The local, read-only file or folder of that name."""
        return self._paths[name]

    def read(self, name: str, load: Callable[[Path], Value]) -> Value:
        """`load(fetch(name))`, cached by each process of an engine for all its jobs."""
        key = f"{load.__module__}.{load.__qualname__} {self.fetch(name)}"
        if key not in self._values:
            self._values[key] = load(self.fetch(name))
        return self._values[key]

    def report(self, share: float, words: str) -> None:
        """Report the fraction done and a short message; sent every 0.2 s at most."""
        if time.monotonic() - self._reported >= PAUSE:
            self._reported = time.monotonic()
            self._send(JobProgress(share, words))

    def send_files(self) -> None:
        """Send new files of the scratch folder to the driver; a job whose worker or driver is lost resumes from them.

        Call it when these files are consistent with one another. Each is sent as a hard link, which later writes do not change.
        """
        files = {}
        for path in complete_files(self.scratch):
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
        """Copy the file or folder of that name into the scratch folder."""
        source, target = self.fetch(name), self.scratch / name
        for path in complete_files(source) if source.is_dir() else [source]:
            place = target / path.relative_to(source) if source.is_dir() else target
            _share(path, place)
            self._seen[place.relative_to(self.scratch).as_posix()] = _mark(place)


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _share(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the disk has no links. Files are replaced, never changed."""

    def link(scratch: Path) -> None:
        try:
            scratch.hardlink_to(source)
        except OSError:  # another disk, or one without links
            shutil.copy2(source, scratch)

    replace_file(target, link, durable=False)


Job = TypeVar("Job", bound=Callable[[Any, JobContext], None])
_declared: dict[str, Callable[[Any, JobContext], None]] = {}


def job(function: Job) -> Job:
    """Declare that engines may call a function of a record, which is sent as JSON, and a JobContext."""
    _declared[f"{function.__module__}:{function.__qualname__}"] = function
    return function


def find_job(name: str) -> Callable[[Any, JobContext], None]:
    """Import a module and return its declared function of that name; raises StudyError if there is none."""
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
    """Run the job of an order's message in its own scratch folder below `folder`; `values` caches what its process has read.

    Complete files of its folder are sent even after an error. In a TrisectError, the scratch folder's path is replaced by the
    job's home.
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
            context.send_files()
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
        context.send_files()
    finally:
        shutil.rmtree(context.scratch, ignore_errors=True)


def failure(error: Exception) -> dict[str, Json]:
    """An error as JSON, never as a pickle: the three parts of a TrisectError, else the traceback."""
    if isinstance(error, TrisectError):
        return {"error": [type(error).__name__, error.problem, error.reason, error.todo]}
    return {"crash": "".join(traceback.format_exception(error))}


def read_failure(message: Mapping[str, Json]) -> Exception | None:
    """The error in a message; None if it has none."""
    if isinstance(error := message.get("error"), list):
        kind, *parts = map(str, error)
        return getattr(errors, kind, TrisectError)(*parts)
    return RuntimeError(message["crash"]) if "crash" in message else None


def write_files(files: Files, folder: Path, last: Sequence[str] = ()) -> None:
    """Write files below `folder` atomically, those that match a pattern of `last` at the end, in that order.

    So a list of files is never written before the files. Raises StudyError if a name leads out of the folder, or a file cannot
    be written.
    """

    def rank(name: str) -> tuple[int, str]:
        return max((i for i, pattern in enumerate(last, start=1) if fnmatchcase(name, pattern)), default=0), name

    def put(content: Content, place: Path) -> None:
        if isinstance(content, Path):
            shutil.move(content, place)
        else:
            place.write_bytes(content)

    for name in sorted(files, key=rank):
        content = files[name]  # a file that is moved has been flushed by its job if needed
        replace_file(
            safe_join(folder, *name.split("/")),
            lambda scratch, content=content: put(content, scratch),
            durable=isinstance(content, bytes),
        )
