"""What a run leaves lands together or not at all: staged beside, listed with checksums, then renamed, and checked later."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import digest, digest_file, is_name, is_scratch, read_record, write_json
from trisect.core.tables import run_of_table
from trisect.lab.folder import is_study

MANIFEST = "manifest.json"  # of which run a folder's files are, and a checksum of each; moved there last of all
OPENED = (".html", "corpus.json")  # what is opened first: gone before a run lands, there when all else is
GONE = ("is missing.", "was altered.")  # what is said of a file that is listed, and not as it was left
ELSEWHERE = "Choose another folder with --out."
_STAGE = re.compile(r"\.run\.[0-9]+-[0-9a-f]{8}\.trisect-part")


class ManifestData(TypedDict):
    """A run's list of files: of which experiment, which run, and a checksum of each (empty: it has one of its own)."""

    experiment: str
    run: str
    files: dict[str, str]


def run_mark(experiment: str, command: str, facts: Mapping[str, object]) -> str:
    """32 hex digits of what a run is of: its experiment, command and facts; seconds aside, so that a repeat has the same."""
    return digest(json.dumps([experiment, command, _timeless(facts)], sort_keys=True, default=str))


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _timeless(v) for k, v in value.items() if not str(k).endswith("seconds")}
    return [_timeless(item) for item in value] if isinstance(value, list | tuple) else value


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """An empty folder inside `folder`, on the same disk, for the files of one run; gone afterwards but where landing broke off.

    The folder has to be locked. What a call before had staged is landed first where it was whole, else removed.
    """
    finish(folder)
    stage = folder / f".run.{os.getpid()}-{secrets.token_hex(4)}.trisect-part"
    stage.mkdir(parents=True)
    try:
        yield stage
    finally:
        if not has_run(stage):  # else it was whole, and the next call lands the rest of it
            shutil.rmtree(stage, ignore_errors=True)


def land_run(stage: Path, folder: Path, experiment: str, run: str, unsigned: str = "") -> None:
    """Move everything that was staged into the folder, in place of what the run before left there; nothing of others goes.

    `unsigned` is a file that later calls write again (a record with a checksum of its own). Raises StudyError.
    """
    files = {path.relative_to(stage).as_posix(): digest_file(path) for path in _files(stage)}
    files |= {unsigned: ""} if unsigned in files else {}
    write_json(stage / MANIFEST, {"experiment": experiment, "run": run, "files": files})
    _move(stage, folder)


def finish(folder: Path) -> None:
    """Land what a killed process had staged whole, and remove what it had not; the folder has to be locked."""
    for stage in _stages(folder):
        if _staged_by(stage) is not None:
            _move(stage, folder)
        shutil.rmtree(stage, ignore_errors=True)


def landing(folder: Path) -> str | None:
    """The experiment whose run was staged whole in a folder and has not landed to its end; null where there is none."""
    return next((found for stage in _stages(folder) if (found := _staged_by(stage)) is not None), None)


def belongs_to(folder: Path, command: str) -> bool:
    """Whether a folder holds a run of that command, landed or landing; raises StudyError where it is a study's or another's."""
    if is_study(folder):
        known = "A study lies there, and its report.html and tables would be written over."
        raise StudyError(f"{folder} was given for results.", known, ELSEWHERE)
    there = landing(folder)
    with suppress(DamagedFileError):  # a list of files that is not ours, or not any more
        there = there or (read_manifest(folder)["experiment"] if has_run(folder) else None)
    if there is not None and there != command:
        known = f"It holds results of 'trisect {there}'."
        raise StudyError(f"{folder} was given for results.", known, ELSEWHERE)
    return there is not None


def _stages(folder: Path) -> list[Path]:
    found = sorted(folder.glob(".run.*.trisect-part")) if folder.is_dir() else []
    return [one for one in found if _STAGE.fullmatch(one.name) and one.is_dir() and not one.is_symlink()]


def _staged_by(stage: Path) -> str | None:
    """Whose run a stage holds as a whole; null where not all of it had been staged."""
    try:
        return str(read_manifest(stage)["experiment"])
    except DamagedFileError:
        return None


def _move(stage: Path, folder: Path) -> None:
    """Rename file by file: what is opened first goes first and comes last, so that none ever stands beside files of another run."""
    files = read_manifest(stage)["files"]
    try:
        old = read_manifest(folder)["files"]
    except DamagedFileError:
        old = {}
    for name in {n: None for n in (*old, *files) if n.endswith(OPENED)}:
        if (stage / name).exists() or (name not in files and _is_own(folder / name, old[name])):
            (folder / name).unlink(missing_ok=True)
    for name in sorted(files, key=lambda n: n.endswith(OPENED)):
        if (stage / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).replace(folder / name)
    for name in old.keys() - files.keys():
        path = folder / name
        if _is_own(path, old[name]):
            path.unlink()
            with suppress(OSError):
                path.parent.rmdir()
    (stage / MANIFEST).replace(folder / MANIFEST)  # from here on the run is this folder's
    shutil.rmtree(stage, ignore_errors=True)


def _is_own(path: Path, mark: str) -> bool:
    """Whether a file is as a run left it: what somebody has changed since is theirs."""
    return path.is_file() and digest_file(path) == mark


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not is_scratch(path.name))


def has_run(folder: Path) -> bool:
    """Whether a folder holds a finished run's list of files."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> ManifestData:
    """Which experiment and run a folder's files are of, with their checksums; raises DamagedFileError where that is not said."""
    path = folder / MANIFEST
    todo = f"Delete {path} and call the same command again."
    body = read_record(path, todo, ManifestData)
    texts = all(isinstance(body[name], str) for name in ("experiment", "run"))
    if not texts or not all(_inside(name) and isinstance(mark, str) for name, mark in body["files"].items()):
        raise DamagedFileError(f"{path} is no list of a run's files.", "It names files that no run writes.", todo)
    return body


def _inside(name: str) -> bool:
    return bool(name) and all(is_name(part) for part in PurePosixPath(name).parts) and not name.startswith("/")


def check_run(folder: Path, again: str = "Call the same command again: it writes all of them.") -> list[StudyError]:
    """An error for each file of a folder's run that is gone, altered, or of another run; none where all is as it was left."""
    manifest, found = read_manifest(folder), []
    known = f"It is not what 'trisect {manifest['experiment']}' wrote (run {manifest['run'][:8]})."
    for name, mark in sorted(manifest["files"].items()):
        path = folder / name
        if not path.is_file():
            found.append(DamagedFileError(f"{path} {GONE[0]}", known.replace("not ", "part of ", 1), again))
            continue
        of = run_of_table(path.read_bytes()) if path.suffix == ".parquet" else None
        if of is not None and of != manifest["run"]:
            words = f"It is a table of run {of[:8]}, and this folder holds run {manifest['run'][:8]}."
            found.append(DamagedFileError(f"{path} belongs to another run.", words, again))
        elif mark and digest_file(path) != mark:
            found.append(DamagedFileError(f"{path} {GONE[1]}", known, again))
    for path in sorted((folder / "tables").glob("*.parquet")):
        if path.relative_to(folder).as_posix() not in manifest["files"]:
            words = f"Run {manifest['run'][:8]} of 'trisect {manifest['experiment']}' wrote no such table."
            found.append(DamagedFileError(f"{path} is not of this run.", words, f"Move {path} elsewhere."))
    return found
