"""RunFolder: a folder of results, kept to one process, written whole or not at all, and gone on in where a call stopped."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import polars as pl
from filelock import FileLock, Timeout
from typing_extensions import TypedDict

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import (
    Json,
    digest,
    digest_file,
    is_name,
    is_scratch,
    read_any_json,
    read_json,
    read_record,
    remove_scratch,
    write_json,
)
from trisect.core.tables import read_table, run_of_table

MANIFEST = "manifest.json"  # of which run a folder's files are, and a checksum of each; written last of all
STATEMENT = "experiment.json"  # an experiment as a user states it, which anybody may write, and has no checksum
LONGEST_STATEMENT = 1_000_000  # bytes; a ledger may be longer
OPENED = (".html", "corpus.json")  # what is opened first: gone before a run lands, there when all else is
GONE = ("is missing.", "was altered.")  # what is said of a file that is listed, and not as it was left
UNIT = ".unit-"  # how the name of a finished unit's folder begins, until all units are there
DELETE = "Delete {} and call the same command again: what is missing is made again."
MOVE = "Move {} away and call the same command again: the plan cannot be made from the rest."
AGAIN = "Delete it and call the same command again: what is missing is made again."
COPY_AGAIN = "Copy it again from the folder that the command wrote, or run that command again."
WRITABLE = "Choose a folder that can be written, with --out."
ELSEWHERE = "Choose another folder with --out."
_MADE = re.compile(
    r"\.(run|unit)\.[0-9]+-[0-9a-f]{8}\.trisect-part|\.unit-[0-9a-f]{32}"
)  # folders that are ours by name


class _ManifestData(TypedDict):
    """A run's list of files: of which experiment, which run, and a checksum of each (empty: it has one of its own)."""

    experiment: str
    run: str
    files: dict[str, str]


@dataclass(frozen=True)
class RunFolder:
    """A folder that a command writes its results into.

    `lock` keeps others out; what is written in a `stage` lands by `commit`, all of it or nothing; `unit` keeps one finished
    piece of the whole under a key of what was asked and on what, and `resume` finds it in a later call.
    """

    path: Path

    # --- whose it is

    @property
    def has_run(self) -> bool:
        """Whether it holds a finished run's list of files."""
        return (self.path / MANIFEST).is_file()

    def manifest(self) -> _ManifestData:
        """Which experiment and run its files are of, with their checksums; raises DamagedFileError where that is not said."""
        path = self.path / MANIFEST
        todo = f"Delete {path} and call the same command again."
        body = read_record(path, todo, _ManifestData)
        texts = all(isinstance(body[name], str) for name in ("experiment", "run"))
        inside = all(
            name and not name.startswith("/") and all(is_name(part) for part in PurePosixPath(name).parts)
            for name in body["files"]
        )
        if not (texts and inside and all(isinstance(mark, str) for mark in body["files"].values())):
            raise DamagedFileError(f"{path} is no list of a run's files.", "It names files that no run writes.", todo)
        return body

    def find_manifest(self) -> _ManifestData | None:
        """The same; None where there is no list of a run's files, or none of ours."""
        try:
            return self.manifest() if self.has_run else None
        except DamagedFileError:
            return None

    @property
    def latest(self) -> Path | None:
        """Where its run lies: here, or staged whole where it has not landed to its end; None where there is none."""
        places = (*self._ours(".run.*.trisect-part"), self.path)  # half of a run has no list of its files
        return next((place for place in places if RunFolder(place).find_manifest() is not None), None)

    @property
    def command(self) -> str:
        """The experiment whose run lies there (`latest`); empty where there is none."""
        return "" if (place := self.latest) is None else RunFolder(place).manifest()["experiment"]

    def check_command(self, command: str) -> bool:
        """Whether it holds a run or units of that command; raises StudyError where it is a study's or another's."""
        problem = f"{self.path} was given for results of 'trisect {command}'."
        if is_study(self.path):
            raise StudyError(problem, "A study lies there, and its report and tables would be written over.", ELSEWHERE)
        if (finished := self.command) and finished != command:
            raise StudyError(problem, f"It holds results of 'trisect {finished}'.", ELSEWHERE)
        if (begun := self.units_command) and begun != command:
            reason = f"It holds the beginning of 'trisect {begun}', which was stopped before its end or still runs."
            todo = "Call that command again: it goes on from there; or choose another folder with --out."
            raise StudyError(problem, reason, todo)
        return bool(finished or begun)

    def check_empty(self, holds: str) -> None:
        """Raise StudyError where anything lies in the folder, our lock, scratch files and units left aside."""
        paths = list(self.path.iterdir()) if self.path.is_dir() else []
        paths = [p for p in paths if not is_scratch(p.name) and not (_MADE.fullmatch(p.name) and p.is_dir())]
        names = sorted(p.name for p in paths if p.name != ".lock" or not p.is_file() or p.stat().st_size)
        if names:
            reason, todo = f"There is {', '.join(names[:5])}.", "Choose an empty or a new folder with --out."
            raise StudyError(f"{self.path} is not empty, and holds no {holds}.", reason, todo)

    # --- lock

    @contextmanager
    def lock(
        self, check: Callable[[], object] = lambda: None, folders: Callable[[], Iterable[Path]] = tuple
    ) -> Iterator[None]:
        """Keep the folder to oneself; raises StudyError while another process has it.

        `check` raises what refuses the folder: before anything is made there, and once more under the lock, since
        another process may have come first. `folders` lists those in which scratch files of killed processes are then
        removed. After an error the lock file and the folders that were made for it are gone where nothing else came.
        """
        new: list[Path] = []
        try:
            check()
            new = [place for place in (self.path, *self.path.parents) if not place.exists()]
            with _acquire(self.path):
                check()
                remove_scratch(folders())
                yield
        except BaseException as error:
            for place in new:
                with suppress(OSError):  # something lies in it
                    place.rmdir()
            if isinstance(error, PermissionError):
                raise _unwritable(self.path, error) from error
            raise

    # --- stage and commit; the folder has to be locked

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """An empty folder inside this one, on the same disk, for the files of one run; gone afterwards but where landing broke off.

        What a call before had staged is landed first where it was whole, else removed.
        """
        self.recover()
        stage = self._new("run")
        try:
            yield stage
        finally:
            if not RunFolder(stage).has_run:  # else it was whole, and the next call lands the rest of it
                shutil.rmtree(stage, ignore_errors=True)

    def commit(self, stage: Path, experiment: str, run: str, unsigned: str = "") -> None:
        """Move everything that was staged into the folder, in place of what the run before left there; nothing of others goes.

        `unsigned` is a file that later calls write again (a record with a checksum of its own). Raises StudyError.
        """
        _list_files(stage, experiment, run, unsigned)
        _move(stage, self.path)

    def recover(self) -> None:
        """Land what a killed process had staged whole, and remove what it had not."""
        for stage in self._ours(".run.*.trisect-part"):
            if RunFolder(stage).find_manifest() is not None:
                _move(stage, self.path)
            shutil.rmtree(stage, ignore_errors=True)
        for scratch in self._ours(".unit.*.trisect-part"):
            shutil.rmtree(scratch, ignore_errors=True)

    def _new(self, kind: str) -> Path:
        place = self.path / f".{kind}.{os.getpid()}-{secrets.token_hex(4)}.trisect-part"
        place.mkdir(parents=True)
        return place

    def _ours(self, pattern: str) -> list[Path]:
        """Folders inside that this class made, in this process or another."""
        places = sorted(self.path.glob(pattern)) if self.path.is_dir() else []
        return [place for place in places if _MADE.fullmatch(place.name) and place.is_dir() and not place.is_symlink()]

    # --- units of a command that goes on; the folder has to be locked

    def place(self, key: str) -> Path:
        """Where the unit with that key lies when it is finished."""
        return self.path / f"{UNIT}{key}"

    def resume(self, key: str) -> Path | None:
        """The folder of the finished unit with that key; None where there is none, or where it is not whole: it is then removed."""
        place = self.place(key)
        if not place.exists():
            return None
        with suppress(DamagedFileError):
            if RunFolder(place).manifest()["run"] == key and not RunFolder(place).check():
                return place
        shutil.rmtree(place)
        return None

    @contextmanager
    def unit(self, key: str, command: str) -> Iterator[Path]:
        """An empty folder for one unit's files, which are kept under its key, all or none, when the context ends without an error."""
        with self.scratch() as place:
            yield place
            _list_files(place, command, key)
            place.replace(self.place(key))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder inside this one, gone afterwards; after a kill the next call removes it."""
        place = self._new("unit")
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @property
    def units(self) -> list[Path]:
        """The folders of its finished units, of whichever keys."""
        return self._ours(f"{UNIT}*")

    @property
    def units_command(self) -> str:
        """The command whose units it keeps; empty where there are none."""
        return next(filter(None, (RunFolder(place).command for place in self.units)), "")

    def remove_units(self) -> None:
        """Remove what was kept: all of it has landed."""
        for place in self.units:
            shutil.rmtree(place, ignore_errors=True)

    # --- check

    def check(self, again: str = "Call the same command again: it writes all of them.") -> list[StudyError]:
        """An error for each file of the run that is gone, altered, or of another run; none where all is as it was left."""
        manifest, errors = self.manifest(), list[StudyError]()
        reason = f"It is not what 'trisect {manifest['experiment']}' wrote (run {manifest['run'][:8]})."
        for name, mark in sorted(manifest["files"].items()):
            path = self.path / name
            if not path.is_file():
                errors.append(DamagedFileError(f"{path} {GONE[0]}", reason.replace("not ", "part of ", 1), again))
                continue
            of = run_of_table(path.read_bytes()) if path.suffix == ".parquet" else None
            if of is not None and of != manifest["run"]:
                words = f"It is a table of run {of[:8]}, and this folder holds run {manifest['run'][:8]}."
                errors.append(DamagedFileError(f"{path} belongs to another run.", words, again))
            elif mark and digest_file(path) != mark:
                errors.append(DamagedFileError(f"{path} {GONE[1]}", reason, again))
        for path in sorted((self.path / "tables").glob("*.parquet")):
            if path.relative_to(self.path).as_posix() not in manifest["files"]:
                words = f"Run {manifest['run'][:8]} of 'trisect {manifest['experiment']}' wrote no such table."
                errors.append(DamagedFileError(f"{path} is not of this run.", words, f"Move {path} elsewhere."))
        return errors


@contextmanager
def _acquire(folder: Path) -> Iterator[None]:
    """The folder, made where it is missing, with its lock, which goes again with an error if it was not there."""
    path = folder / ".lock"
    fresh = not path.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        todo = "Choose a folder that can be made, with --out."
        raise StudyError(f"The folder {folder} cannot be made.", f"The system says: {error}", todo) from error
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        todo = "Wait for it to end, or choose another folder with --out."
        raise StudyError(f"{folder} is in use.", "Another process writes its results there.", todo) from error
    except (OSError, NotImplementedError) as error:  # a disk without room for one more file, or without locks
        raise _unwritable(folder, error) from error
    try:
        yield
    except BaseException:
        if fresh:
            path.unlink(missing_ok=True)  # while it is held: whoever waits for it sees that it is gone
        raise
    finally:
        lock.release()


def _unwritable(folder: Path, error: Exception) -> StudyError:
    return StudyError(f"{folder} cannot be written.", f"The system says: {error}", WRITABLE)


def _move(stage: Path, folder: Path) -> None:
    """Rename file by file: what is opened first goes first and comes last, so that none ever stands beside files of another run."""
    files, old = RunFolder(stage).manifest()["files"], dict[str, str]()
    with suppress(DamagedFileError):
        old = RunFolder(folder).manifest()["files"]
    for name in {n: None for n in (*old, *files) if n.endswith(OPENED)}:
        if (stage / name).exists() or (name not in files and _is_as_written(folder / name, old[name])):
            (folder / name).unlink(missing_ok=True)
    for name in sorted(files, key=lambda n: n.endswith(OPENED)):
        if (stage / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).replace(folder / name)
    for name in old.keys() - files.keys():
        path = folder / name
        if _is_as_written(path, old[name]):
            path.unlink()
            with suppress(OSError):
                path.parent.rmdir()
    (stage / MANIFEST).replace(folder / MANIFEST)  # from here on the run is this folder's
    shutil.rmtree(stage, ignore_errors=True)


class ResumePlan(NamedTuple):
    """What is trained in a folder over several calls: what it was begun with, all seeds, and the seconds that calls worked."""

    begun: Mapping[str, Json]
    seeds: tuple[int, ...] = ()
    wall_seconds: float = 0.0

    def data(self) -> dict[str, Json]:
        """As its file holds it."""
        return {**self.begun, "seeds": list(self.seeds), "wall_seconds": self.wall_seconds}


class _CallsData(TypedDict):
    """What a plan's file holds of its calls, beside what it was begun with."""

    seeds: list[int]
    wall_seconds: float


def join_plan(path: Path, kind: str, begun: Mapping[str, Json], seeds: Sequence[int]) -> ResumePlan:
    """The plan at `path` with these seeds added, or a new one; writes nothing.

    `kind` is what the folder holds, in words, such as 'recall experiment'. Raises StudyError where the folder holds something
    else, or was begun with something else than `begun`, DamagedFileError where the plan cannot be read.
    """
    if not path.exists():
        RunFolder(path.parent).check_empty(kind)
        return ResumePlan(begun, tuple(sorted(set(seeds))))
    todo = MOVE.format(path.parent)
    calls, old = read_record(path, todo, _CallsData), read_json(path, todo)
    if differing := [_difference(name, old.get(name), begun[name]) for name in begun if old.get(name) != begun[name]]:
        todo = "Give what it was begun with, or choose another folder with --out."
        raise StudyError(f"{path.parent} belongs to another {kind}.", f"{'; '.join(differing)}.", todo)
    return ResumePlan(begun, tuple(sorted({*calls["seeds"], *seeds})), calls["wall_seconds"])


def _difference(name: str, old: Json, new: Json) -> str:
    """In words, how a plan that is there differs from one that is asked for."""
    if isinstance(old, dict) and isinstance(new, dict):
        return ", ".join(f"{key}: {old.get(key)} there, {new[key]} here" for key in new if old.get(key) != new[key])
    return f"{name}: {old} there, {new} here"


def follow_plan(path: Path, plan: ResumePlan, left: int, do: Callable[[], object]) -> ResumePlan:
    """Do what is left of the plan at `path`, and add the seconds, also those of a call that is interrupted.

    `left` says how much that is: a call that finds everything done adds none.
    """
    began = time.monotonic()
    try:
        do()
    finally:
        plan = plan._replace(wall_seconds=plan.wall_seconds + (time.monotonic() - began if left else 0.0))
        with suppress(StudyError):  # on a full disk the first file that found it so is the one to name
            write_json(path, plan.data())
    return plan


def run_mark(experiment: str, command: str, facts: Mapping[str, object]) -> str:
    """32 hex digits of what a run is of: its experiment, command and facts; seconds aside, so that a repeat has the same."""
    return digest(json.dumps([experiment, command, _timeless(facts)], sort_keys=True, default=str))


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _timeless(v) for k, v in value.items() if not str(k).endswith("seconds")}
    return [_timeless(item) for item in value] if isinstance(value, list | tuple) else value


def _list_files(place: Path, experiment: str, run: str, unsigned: str = "") -> None:
    """Write the list of all files in a folder that is not theirs yet: from here on they are whole."""
    paths = sorted(path for path in place.rglob("*") if path.is_file() and not is_scratch(path.name))
    files = {path.relative_to(place).as_posix(): digest_file(path) for path in paths}
    files |= {unsigned: ""} if unsigned in files else {}
    write_json(place / MANIFEST, {"experiment": experiment, "run": run, "files": files})


def _is_as_written(path: Path, mark: str) -> bool:
    """Whether a file is as a run left it: what somebody has changed since is theirs."""
    return path.is_file() and digest_file(path) == mark


def has_tables(folder: Path) -> bool:
    """Whether a folder holds tables, and is not a model's."""
    return any((folder / "tables").glob("*.parquet")) and not (folder / "config.json").exists()


def read_tables(folder: Path) -> dict[str, pl.DataFrame]:
    """The tables that a command other than a study left, by name; raises DamagedFileError for one that cannot be read.

    They are made of no other file, so that none may be deleted.
    """
    paths = sorted((folder / "tables").glob("*.parquet"))
    return {path.stem: read_table(path.parent, path.stem, COPY_AGAIN) for path in paths}


def check_files(
    folder: Path, todo: str = COPY_AGAIN, plans: Collection[str] = (), apart: Collection[Path] = ()
) -> list[StudyError]:
    """An error for each file below a folder that has a checksum of its own and not the content for it, and for tables of other
    runs than those beside them; of runs and units that lie there whole, for whatever was not left so. `todo` says what to do about
    the path that is put into it; `plans` are names of files without which a command could not go on. Folders `apart` are left out.
    """
    errors, listed = list[StudyError](), set[Path]()
    inside = (p for p in sorted(folder.rglob("*")) if not any(above in apart for above in p.parents))
    paths = [p for p in inside if not any(map(is_scratch, p.relative_to(folder).parts))]
    for path in (p for p in paths if p.name == MANIFEST):
        try:
            listed |= {path, *(path.parent / name for name in RunFolder(path.parent).manifest()["files"])}
            errors += RunFolder(path.parent).check()
        except DamagedFileError:
            pass  # it has a checksum of its own
    runs = dict[Path, tuple[Path, str]]()
    for path in (p for p in paths if p.suffix in (".json", ".parquet") and p not in listed and p.is_file()):
        again = MOVE.format(path.parent) if path.name in plans else todo.format(path)
        try:
            if path.suffix == ".parquet":
                read_table(path.parent, path.stem, again)
                if of := run_of_table(path.read_bytes()):
                    first, mark = runs.setdefault(path.parent, (path, of))
                    if mark != of:
                        words = f"It is a table of run {of[:8]}, and {first.name} is of run {mark[:8]}."
                        raise DamagedFileError(f"{path} belongs to another run.", words, again)
            elif path.name in plans:
                read_json(path, again)
            elif path.name != STATEMENT:
                with path.open("rb") as file:
                    begins = file.read(16)
                if not begins or b'"body"' in begins:  # written with a checksum, whatever has become of it since
                    read_any_json(path, again)
        except DamagedFileError as error:
            errors.append(error)
    return errors


def is_study(place: Path) -> bool:
    """Whether a folder is a study's: its ledger, or the ledger's copy, is there.

    A statement of an experiment that a user has called study.json is no ledger; what is damaged is one until it is seen to be none.
    """
    ledger = place / "study.json"
    if (place / "study.copy.json").exists() or not ledger.exists():
        return (place / "study.copy.json").exists()
    try:  # a statement is an object of JSON that was never written with a checksum
        with ledger.open("rb") as file:
            begins = file.read(LONGEST_STATEMENT + 1)
        body = json.loads(begins) if len(begins) <= LONGEST_STATEMENT and b'"body"' not in begins else None
    except (OSError, ValueError, RecursionError):
        return True
    return not (isinstance(body, dict) and body and not {"body", "checksum"} & body.keys())


def check_place(out: str | Path, file: bool = False) -> None:
    """Raise StudyError where nothing could be written at `out`, before anything is computed; leaves no trace.

    It is a folder, or a place for one; with `file` it may be a file as well.
    """
    place = Path(out)
    if not str(out).strip():
        raise StudyError("The place for results is empty.", "It is a folder.", "Leave --out out, or name a folder.")
    if place.exists() and not place.is_dir() and not file:
        raise StudyError(f"{place} is a file.", "Results lie in a folder.", WRITABLE)
    nearest = next((path for path in (place, *place.absolute().parents) if path.is_dir()), Path())
    above = next((path for path in place.absolute().parents if path.exists()), nearest)
    if not above.is_dir():
        raise StudyError(f"The folder {place} cannot be made.", f"{above} is a file.", WRITABLE)
    scratch = nearest / f".place.{os.getpid()}-{secrets.token_hex(4)}.trisect-part"
    try:
        scratch.touch()
    except OSError as error:
        reason = f"The system says of {nearest}: {error.strerror or error}."
        raise StudyError(f"{place} cannot be written.", reason, WRITABLE) from error
    finally:
        with suppress(OSError):
            scratch.unlink()
