"""RunFolder: a folder of results that is locked by one process, written atomically, and resumed after an interruption."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import polars as pl
from filelock import FileLock, Timeout
from typing_extensions import TypedDict

from trisect.core.errors import DamagedFileError, StudyError, TrisectError
from trisect.core.files import (
    Json,
    digest,
    digest_file,
    is_file_name,
    is_scratch,
    read_json,
    read_record,
    remove_scratch,
    write_json,
)
from trisect.core.tables import read_table, run_of_table

MANIFEST = "manifest.json"  # the run of a folder's files and their checksums; written last
STATEMENT = "experiment.json"  # an experiment as written by a user, without a checksum
LONGEST_STATEMENT = 1_000_000  # bytes; a ledger may be longer
ENTRY_FILES = (".html", "corpus.json")  # entry points: removed before a new run's files are written, and written last
CHANGE_MESSAGES = ("is missing.", "was altered.")  # messages about listed files that have changed
DISSECTION_PARTS = "parts.json"  # beside a dissection's page: the steps that have begun, by their folders
UNIT = ".unit-"  # prefix of the folders of finished units, until all are finished
DELETE_ADVICE = "Delete {} and run the same command again: it computes what is missing."
MOVE_ADVICE = "Move {} away and run the same command again: the plan cannot be recovered from the other files."
DELETE_IT_ADVICE = "Delete it and run the same command again: it computes what is missing."
COPY_AGAIN = "Copy it again from the folder that the command wrote, or run that command again."
WRITABLE = "Choose a folder that can be written, with --out."
FOLDER_ADVICE = "Choose another folder with --out."
# names of scratch and unit folders
_SCRATCH_NAMES = re.compile(r"\.(run|unit)\.[0-9]+-[0-9a-f]{8}\.trisect-part|\.unit-[0-9a-f]{32}")


class _ManifestData(TypedDict):
    """A run's manifest: experiment, run, and each file's checksum (empty if the file contains its own)."""

    experiment: str
    run: str
    files: dict[str, str]


@dataclass(frozen=True)
class RunFolder:
    """A command's folder of results.

    `lock` excludes other processes; `commit` moves the files of a `stage` here, all or none; `unit` stores the files of one
    finished unit under a key of its settings and inputs, and `resume` returns them in a later call.
    """

    path: Path

    # --- manifest

    @property
    def has_run(self) -> bool:
        """Whether the folder has the manifest of a finished run."""
        return (self.path / MANIFEST).is_file()

    def manifest(self) -> _ManifestData:
        """Experiment, run and checksums of its files; raises DamagedFileError if the manifest is missing or damaged."""
        path = self.path / MANIFEST
        todo = f"Delete {path} and run the same command again."
        body = read_record(path, todo, _ManifestData)
        inside = all(
            name and not name.startswith("/") and all(is_file_name(part) for part in PurePosixPath(name).parts)
            for name in body["files"]
        )
        if not inside:
            raise DamagedFileError(f"{path} is not the manifest of a run.", "It names files that no run writes.", todo)
        return body

    def find_manifest(self) -> _ManifestData | None:
        """The manifest; None if it is missing or damaged."""
        try:
            return self.manifest() if self.has_run else None
        except DamagedFileError:
            return None

    @property
    def latest(self) -> Path | None:
        """The folder of its run: this one, or a complete stage that is not moved yet; None if there is none."""
        places = (*self._ours(".run.*.trisect-part"), self.path)  # incomplete runs have no manifest
        return next((place for place in places if RunFolder(place).find_manifest() is not None), None)

    @property
    def command(self) -> str:
        """The experiment of its run (`latest`); empty if there is none."""
        return "" if (place := self.latest) is None else RunFolder(place).manifest()["experiment"]

    def check_command(self, command: str) -> bool:
        """Whether it has a run or units of that command; raises StudyError if it has those of a study or another command."""
        problem = f"{self.path} was given for results of 'trisect {command}'."
        if is_study(self.path):
            raise StudyError(
                problem, "It is the folder of a study, whose report and tables would be overwritten.", FOLDER_ADVICE
            )
        if (finished := self.command) and finished != command:
            raise StudyError(problem, f"It holds results of 'trisect {finished}'.", FOLDER_ADVICE)
        if (request := self.units_command) and request != command:
            reason = f"It has partial results of 'trisect {request}', which was interrupted or is running."
            todo = "Call that command again to resume it, or choose another folder with --out."
            raise StudyError(problem, reason, todo)
        return bool(finished or request)

    def check_empty(self, holds: str) -> None:
        """Raise StudyError if the folder has any file but the lock, scratch files and units."""
        paths = list(self.path.iterdir()) if self.path.is_dir() else []
        paths = [p for p in paths if not is_scratch(p.name) and not (_SCRATCH_NAMES.fullmatch(p.name) and p.is_dir())]
        names = sorted(p.name for p in paths if p.name != ".lock" or not p.is_file() or p.stat().st_size)
        if names:
            reason, todo = f"There is {', '.join(names[:5])}.", "Choose an empty or a new folder with --out."
            raise StudyError(f"{self.path} is not empty, and holds no {holds}.", reason, todo)

    # --- lock

    @contextmanager
    def lock(
        self, check: Callable[[], object] = lambda: None, folders: Callable[[], Iterable[Path]] = tuple
    ) -> Iterator[None]:
        """Lock the folder; raises StudyError while another process has it.

        `check` raises if the folder cannot be used: it is called before anything is created, and again under the lock, since
        another process may have been first. Scratch files of killed processes are then removed in `folders`. After an error
        the lock file and the created folders are removed, unless they have other files.
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
                with suppress(OSError):  # it is not empty
                    place.rmdir()
            if isinstance(error, PermissionError):
                raise _unwritable(self.path, error) from error
            raise

    # --- stage and commit; the folder has to be locked

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """An empty folder inside this one for the files of one run; removed afterwards, unless moving its files was interrupted.

        A complete stage of an earlier call is moved first, an incomplete one removed.
        """
        self.recover()
        stage = self._new("run")
        try:
            yield stage
        finally:
            if not RunFolder(stage).has_run:  # else it is complete, and the next call moves the rest
                shutil.rmtree(stage, ignore_errors=True)

    def commit(self, stage: Path, experiment: str, run: str, unsigned: str = "") -> None:
        """Move all staged files into the folder, and remove those of the run before; other files are left alone.

        `unsigned` is a file that later calls write again (a record that contains its checksum). Raises StudyError.
        """
        _list_files(stage, experiment, run, unsigned)
        _move(stage, self.path)

    def recover(self) -> None:
        """Move the files of complete stages of killed processes, and remove incomplete ones."""
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
        """Folders inside that were created by this class, in any process."""
        places = sorted(self.path.glob(pattern)) if self.path.is_dir() else []
        return [
            place
            for place in places
            if _SCRATCH_NAMES.fullmatch(place.name) and place.is_dir() and not place.is_symlink()
        ]

    # --- units of a command that can be resumed; the folder has to be locked

    def unit_folder(self, key: str) -> Path:
        """The folder of a finished unit with that key."""
        return self.path / f"{UNIT}{key}"

    def resume(self, key: str) -> Path | None:
        """The folder of the finished unit with that key; None if there is none, or if it is damaged, which removes it."""
        place = self.unit_folder(key)
        if not place.exists():
            return None
        with suppress(DamagedFileError):
            if RunFolder(place).manifest()["run"] == key and not RunFolder(place).check():
                return place
        shutil.rmtree(place)
        return None

    @contextmanager
    def unit(self, key: str, command: str) -> Iterator[Path]:
        """An empty folder for one unit's files, which are stored under its key if the context ends without an error."""
        with self.scratch() as place:
            yield place
            _list_files(place, command, key)
            place.replace(self.unit_folder(key))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder inside this one, removed afterwards; after a kill, the next call removes it."""
        place = self._new("unit")
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @property
    def units(self) -> list[Path]:
        """The folders of all finished units."""
        return self._ours(f"{UNIT}*")

    @property
    def units_command(self) -> str:
        """The command of its units; empty if there are none."""
        return next(filter(None, (RunFolder(place).command for place in self.units)), "")

    # --- check

    def check(self, again: str = "Run the same command again: it writes all of them.") -> list[StudyError]:
        """An error for each file of the run that is missing, changed, or from another run; one for a damaged manifest."""
        try:
            manifest, errors = self.manifest(), list[StudyError]()
        except DamagedFileError as error:
            return [error]
        reason = f"It is not what 'trisect {manifest['experiment']}' wrote (run {manifest['run'][:8]})."
        for name, mark in sorted(manifest["files"].items()):
            path = self.path / name
            if not path.is_file():
                errors.append(
                    DamagedFileError(f"{path} {CHANGE_MESSAGES[0]}", reason.replace("not ", "part of ", 1), again)
                )
                continue
            run_of_file = run_of_table(path.read_bytes()) if path.suffix == ".parquet" else None
            if run_of_file is not None and run_of_file != manifest["run"]:
                words = f"It is a table of run {run_of_file[:8]}, and this folder has run {manifest['run'][:8]}."
                errors.append(DamagedFileError(f"{path} belongs to another run.", words, again))
            elif mark and digest_file(path) != mark:
                errors.append(DamagedFileError(f"{path} {CHANGE_MESSAGES[1]}", reason, again))
        for path in sorted((self.path / "tables").glob("*.parquet")):
            if path.relative_to(self.path).as_posix() not in manifest["files"]:
                words = f"Run {manifest['run'][:8]} of 'trisect {manifest['experiment']}' wrote no such table."
                errors.append(DamagedFileError(f"{path} is not of this run.", words, f"Move {path} elsewhere."))
        return errors


@contextmanager
def _acquire(folder: Path) -> Iterator[None]:
    """Create a folder if needed, and lock it; after an error, a lock file that was created is removed."""
    path = folder / ".lock"
    fresh = not path.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        todo = "Choose another folder with --out."
        raise StudyError(f"The folder {folder} cannot be created.", f"The system says: {error}", todo) from error
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        todo = "Wait for it to end, or choose another folder with --out."
        raise StudyError(f"{folder} is in use.", "Another process writes its results there.", todo) from error
    except (OSError, NotImplementedError) as error:  # a full disk, or one without locks
        raise _unwritable(folder, error) from error
    try:
        yield
    except BaseException:
        if fresh:
            path.unlink(missing_ok=True)  # under the lock, so that waiting processes see that it is removed
        raise
    finally:
        lock.release()


def _unwritable(folder: Path, error: Exception) -> StudyError:
    return StudyError(f"{folder} cannot be written.", f"The system says: {error}", WRITABLE)


def _move(stage: Path, folder: Path) -> None:
    """Rename file by file; entry points are removed first and written last, so that none is ever beside files of another run."""
    files, old = RunFolder(stage).manifest()["files"], dict[str, str]()
    with suppress(DamagedFileError):
        old = RunFolder(folder).manifest()["files"]
    for name in {n: None for n in (*old, *files) if n.endswith(ENTRY_FILES)}:
        if (stage / name).exists() or (name not in files and _is_as_written(folder / name, old[name])):
            (folder / name).unlink(missing_ok=True)
    for name in sorted(files, key=lambda n: n.endswith(ENTRY_FILES)):
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
    """Training in a folder over several calls: its settings (`begun`), all seeds, and the total seconds of all calls."""

    request: Mapping[str, Json]
    seeds: tuple[int, ...] = ()
    wall_seconds: float = 0.0

    def data(self) -> dict[str, Json]:
        """The content of its file."""
        return {**self.request, "seeds": list(self.seeds), "wall_seconds": self.wall_seconds}


class _CallsData(TypedDict):
    """Fields of a plan's file beside its settings."""

    seeds: list[int]
    wall_seconds: float


def join_plan(path: Path, kind: str, request: Mapping[str, Json], seeds: Sequence[int]) -> ResumePlan:
    """The plan at `path` with these seeds added, or a new one; writes nothing.

    `kind` is the folder's content in words, such as 'recall experiment'. Raises StudyError if the folder has other content or
    other settings than `request`, DamagedFileError if the plan cannot be read.
    """
    if not path.exists():
        RunFolder(path.parent).check_empty(kind)
        return ResumePlan(request, tuple(sorted(set(seeds))))
    todo = MOVE_ADVICE.format(path.parent)
    calls, old = read_record(path, todo, _CallsData), read_json(path, todo)
    if differing := [
        _difference(name, old.get(name), request[name]) for name in request if old.get(name) != request[name]
    ]:
        todo = "Give the settings that it was started with, or choose another folder with --out."
        raise StudyError(f"{path.parent} belongs to another {kind}.", f"{'; '.join(differing)}.", todo)
    return ResumePlan(request, tuple(sorted({*calls["seeds"], *seeds})), calls["wall_seconds"])


def unfinished_plan(folder: Path) -> str:
    """The file name of a plan of `join_plan`, or of a dissection's parts, in a folder without a finished run; empty if there is none."""
    paths = sorted(folder.glob("*.json")) if not RunFolder(folder).has_run else []
    for path in paths:
        if path.name == DISSECTION_PARTS:
            return path.name
        with suppress(TrisectError, OSError):
            if (
                path.stat().st_size < LONGEST_STATEMENT
                and _CallsData.__annotations__.keys() <= read_json(path, "").keys()
            ):
                return path.name
    return ""


def _difference(name: str, old: Json, new: Json) -> str:
    """The difference between a setting of the stored plan and the requested one, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        return ", ".join(f"{key}: {old.get(key)} there, {new[key]} here" for key in new if old.get(key) != new[key])
    return f"{name}: {old} there, {new} here"


def run_plan(path: Path, plan: ResumePlan, left: int, do: Callable[[], object]) -> ResumePlan:
    """Call `do` and add its seconds to the plan at `path`, even if it is interrupted.

    `left` is the number of jobs; without any, no seconds are added.
    """
    began = time.monotonic()
    try:
        do()
    finally:
        plan = plan._replace(wall_seconds=plan.wall_seconds + (time.monotonic() - began if left else 0.0))
        with suppress(StudyError):  # on a full disk, the first error is the one to report
            write_json(path, plan.data())
    return plan


def run_mark(experiment: str, command: str, facts: Mapping[str, object]) -> str:
    """A hash of a run's experiment, command and facts, without seconds: repeated runs have the same."""
    return digest(json.dumps([experiment, command, _timeless(facts)], sort_keys=True, default=str))


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _timeless(v) for k, v in value.items() if not str(k).endswith("seconds")}
    return [_timeless(item) for item in value] if isinstance(value, list | tuple) else value


def _list_files(place: Path, experiment: str, run: str, unsigned: str = "") -> None:
    """Write the manifest of a stage, which makes it complete."""
    paths = sorted(path for path in place.rglob("*") if path.is_file() and not is_scratch(path.name))
    files = {path.relative_to(place).as_posix(): digest_file(path) for path in paths}
    files |= {unsigned: ""} if unsigned in files else {}
    write_json(place / MANIFEST, {"experiment": experiment, "run": run, "files": files})


def _is_as_written(path: Path, mark: str) -> bool:
    """Whether a file is unchanged since the run; changed files belong to the user."""
    return path.is_file() and digest_file(path) == mark


def has_tables(folder: Path) -> bool:
    """Whether a folder has tables, and is not a model's."""
    return any((folder / "tables").glob("*.parquet")) and not (folder / "config.json").exists()


def read_tables(folder: Path) -> dict[str, pl.DataFrame]:
    """Tables of a command other than a study, by name; raises DamagedFileError for one that cannot be read.

    They cannot be computed from other files, so that none may be deleted.
    """
    paths = sorted((folder / "tables").glob("*.parquet"))
    return {path.stem: read_table(path.parent, path.stem, COPY_AGAIN) for path in paths}


def is_study(place: Path) -> bool:
    """Whether a folder is a study's: it has a ledger, or the ledger's copy.

    A user's statement of an experiment in a file study.json is not a ledger; a damaged file counts as one.
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


def check_output_path(out: str | Path, file: bool = False) -> None:
    """Raise StudyError if `out` cannot be written, before anything is computed; creates no files.

    `out` is a folder, which need not exist; with `file` it may be a file as well.
    """
    place = Path(out)
    if not str(out).strip():
        raise StudyError(
            "The path for results is empty.", "It has to be a folder.", "Leave --out out, or name a folder."
        )
    if place.exists() and not place.is_dir() and not file:
        raise StudyError(f"{place} is a file.", "Results are written to a folder.", WRITABLE)
    nearest = next((path for path in (place, *place.absolute().parents) if path.is_dir()), Path())
    above = next((path for path in place.absolute().parents if path.exists()), nearest)
    if not above.is_dir():
        raise StudyError(f"The folder {place} cannot be created.", f"{above} is a file.", WRITABLE)
    scratch = nearest / f".place.{os.getpid()}-{secrets.token_hex(4)}.trisect-part"
    try:
        scratch.touch()
    except OSError as error:
        reason = f"The system says of {nearest}: {error.strerror or error}."
        raise StudyError(f"{place} cannot be written.", reason, WRITABLE) from error
    finally:
        with suppress(OSError):
            scratch.unlink()
