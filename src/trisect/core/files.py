"""Files: atomic writes, strict JSON, and names."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trisect.core.errors import (
    DISK_FULL_ERRORS,
    DamagedFileError,
    StudyError,
    TrisectError,
    check_access,
    find_os_error,
)
from trisect.core.schema import MAX_JSON_BYTES, read

if TYPE_CHECKING:
    from pydantic import JsonValue as Json
else:
    Json = Any  # values are parsed JSON: to check a recursive type at run time would find nothing


def parse(text: str, strict: bool = True) -> Json:
    """Parse JSON strictly; raises ValueError, with the reason, for text that is not plain JSON.

    Unless `strict`, NaN is accepted, and of duplicate keys the last one counts: other programs write such files.
    """
    try:
        if not strict:
            return json.loads(text)
        return json.loads(text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("Its lists and objects are nested too deeply.") from None


def read_strict(path: Path, strict: bool = True) -> Json:
    """Read a JSON file; raises OSError if it is unreadable, ValueError as `parse` and for a file that is too large."""
    if (size := path.stat().st_size) > MAX_JSON_BYTES:
        raise ValueError(f"It has {size:,} bytes; up to {MAX_JSON_BYTES:,} are read.")
    with path.open("rb") as file:  # devices and pipes report a size of 0
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"It has more than {MAX_JSON_BYTES:,} bytes, which are not read.")
    return parse(content.decode("utf-8-sig"), strict)


def _reject_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(
            f"The key {twice[:60]!r} is given twice in one object, so that one of its values would be ignored."
        )
    return values


def _reject_constant(name: str) -> Json:
    raise ValueError(f"{name} is no number of JSON.")


D = TypeVar("D")


def canonical(value: object) -> str:
    """The canonical JSON text of a value: sorted keys, no spaces, no NaN; it is hashed into ids."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def digest(text: str | bytes, size: int = 16) -> str:
    """BLAKE2b of a text or bytes, `size` bytes long, in hex."""
    return hashlib.blake2b(text.encode() if isinstance(text, str) else text, digest_size=size).hexdigest()


def digest_file(path: Path, size: int = 16) -> str:
    """The digest of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=size)).hexdigest()


def complete_files(folder: Path) -> Iterator[Path]:
    """All complete files below a folder; incomplete ones, and folders without results, begin with a dot."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return (path for path in paths if not any(name.startswith(".") for name in path.relative_to(folder).parts))


def digest_path(path: Path) -> str:
    """A hash of the bytes and names of a file or a folder's files, and of which of the two it is."""
    files = [path] if path.is_file() else list(complete_files(path))
    return digest(canonical([path.is_file(), [[p.relative_to(path).as_posix(), digest_file(p)] for p in files]]))


MAX_NAME_BYTES = 220  # bytes of a file's name: the limit of file systems less the part that a scratch file's name adds
_SCRATCH = re.compile(r"\..+\.[0-9]+-[0-9a-f]{8}\.trisect-part", re.DOTALL)


def is_file_name(text: str) -> bool:
    """Whether a text can be the name of one file or folder: no separator, nothing unprintable, no leading dot."""
    plain = text.isprintable() and not text.startswith(".") and "/" not in text and "\\" not in text
    return bool(text) and plain and len(text.encode()) <= MAX_NAME_BYTES


def file_name(text: str) -> str:
    """The text itself if it is a valid file name, else a name with its hash, distinct for distinct texts."""
    return text if is_file_name(text) else f"id-{digest(text.encode('utf-8', 'surrogatepass'), 8)}"


def safe_join(folder: Path, *names: str) -> Path:
    """A path below a folder; raises StudyError if a name could lead out of it."""
    for name in names:
        if not is_file_name(name):
            reason = f"A name there is 1 to {MAX_NAME_BYTES} bytes without '/', '\\' or control characters, and does not begin with a dot."
            raise StudyError(f"{name!r} cannot be a file's name in {folder}.", reason, "Use another name.")
    return folder.joinpath(*names)


def is_scratch(name: str) -> bool:
    """Whether a file's name is that of an incomplete file of trisect."""
    return bool(_SCRATCH.fullmatch(name))


def remove_scratch(folders: Iterable[Path]) -> None:
    """Remove incomplete files of killed processes from the given folders: no subfolders, no other files."""
    for folder in folders:
        if not folder.is_dir():
            continue
        for path in [Path(entry) for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]:
            if is_scratch(path.name):
                path.unlink(missing_ok=True)  # its own process may be removing it as well


def replace_file(path: Path, write: Callable[[Path], object], durable: bool = True) -> None:
    """Let `write` fill a scratch file beside `path`, then rename it to `path`.

    `durable` also waits until the bytes are on the disk. Raises StudyError if the disk is full or the path
    cannot be written; an old file is then unchanged, and the scratch file is removed.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.trisect-part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(scratch)
        if durable:
            with scratch.open("rb+") as handle:
                os.fsync(handle.fileno())
        scratch.replace(path)
    except Exception as raised:
        if (error := find_os_error(raised)) is None:
            raise
        # NumPy's error for a short write has no errno
        full = error.errno in DISK_FULL_ERRORS or any(
            words in str(error) for words in ("No space left", "requested and")
        )
        raise StudyError(
            f"{path} could not be written.",
            "The disk is full." if full else f"The system says: {error}",
            "Free some space and run the same command again: it resumes from the last complete file."
            if full
            else "Choose a folder that can be written, or repair this one, and run the same command again.",
        ) from raised
    finally:
        with suppress(OSError):
            scratch.unlink()


def write_json(path: Path, body: object) -> None:
    """Write `body` with its checksum atomically. Floats are preserved bit for bit."""
    text = json.dumps({"body": body, "checksum": digest(canonical(body))}, indent=1, sort_keys=True, allow_nan=False)
    replace_file(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))


def read_json(path: Path, todo: str) -> dict[str, Json]:
    """Read an object of `write_json`; raises DamagedFileError with the advice `todo` if it has changed.

    Values are not validated: `read_record` and `as_record` do that.
    """
    body = _read_body(path, todo)
    if not isinstance(body, dict):
        raise DamagedFileError(f"{path} is damaged.", f"It holds a {type(body).__name__}, not an object.", todo)
    return body


def read_record(path: Path, todo: str, kind: type[D]) -> D:
    """Read an object of `write_json` as a record (see `as_record`)."""
    return as_record(read_json(path, todo), path, todo, kind)


def as_record(body: object, path: Path, todo: str, kind: type[D]) -> D:
    """Convert an object read from `path` to a TypedDict or dataclass; raises DamagedFileError if it does not fit."""
    try:
        value = read(kind, body, path)
    except TrisectError as error:
        reason = f"It is not a {kind.__name__}: {error.problem} {error.reason}"
        raise DamagedFileError(f"{path} is damaged.", reason, todo) from error
    return body if isinstance(value, dict) else value  # pyright: ignore[reportReturnType]


def read_json_list(path: Path, todo: str) -> list[Json]:
    """Read a list of `write_json`; raises DamagedFileError as `read_json` does."""
    body = _read_body(path, todo)
    if not isinstance(body, list):
        raise DamagedFileError(f"{path} is damaged.", f"It holds a {type(body).__name__}, not a list.", todo)
    return body


def _read_body(path: Path, todo: str) -> Json:
    """Read any value of `write_json`; raises DamagedFileError as `read_json` does."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        body, checksum = document["body"], document["checksum"]
        actual = digest(canonical(body))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        check_access(path, error)
        raise DamagedFileError(f"{path} cannot be read.", f"{type(error).__name__}: {error}", todo) from error
    if actual != checksum:
        raise DamagedFileError(f"{path} is damaged.", "Its content does not match its checksum.", todo)
    return body
