"""Files that are either whole or not there: atomic writes, and JSON that carries its own checksum."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trisect.core.errors import DamagedFileError, StudyError


def canonical(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, no NaN; what gets hashed into ids."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def digest(text: str | bytes, size: int = 16) -> str:
    """BLAKE2b of a text or of bytes, `size` bytes long, in hex."""
    return hashlib.blake2b(text.encode() if isinstance(text, str) else text, digest_size=size).hexdigest()


def replace_file(path: Path, write: Callable[[Path], object], durable: bool = True) -> None:
    """Have `write` fill a scratch file beside `path`, then rename it over `path`.

    `durable` also waits until the bytes are on the disk. Raises StudyError when the disk is full or the place
    cannot be written; the old file, if any, is then untouched and no scratch file stays behind.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(scratch)
        if durable:
            with scratch.open("rb+") as handle:
                os.fsync(handle.fileno())
        scratch.replace(path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or any(
            words in str(error) for words in ("No space left", "requested and")
        )  # NumPy's short write carries no number
        raise StudyError(
            f"{path} could not be written.",
            "The disk is full." if full else f"The system says: {error}",
            "Free some space and call the same command again: it goes on from the last whole file."
            if full
            else "Choose a folder that can be written, or mend this one, and call the same command again.",
        ) from error
    finally:
        with suppress(OSError):
            scratch.unlink()


def write_json(path: Path, body: Any) -> None:
    """Write `body` with its checksum, whole or not at all. Floats come back bit for bit."""
    text = json.dumps({"body": body, "checksum": digest(canonical(body))}, indent=1, sort_keys=True, allow_nan=False)
    replace_file(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))


def read_json(path: Path, todo: str) -> Any:
    """What `write_json` wrote; raises DamagedFileError with the advice `todo` when it is not that any more."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        body, checksum = document["body"], document["checksum"]
        found = digest(canonical(body))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFileError(f"{path} cannot be read.", f"{type(error).__name__}: {error}", todo) from error
    if found != checksum:
        raise DamagedFileError(f"{path} is damaged.", "Its content does not match its checksum.", todo)
    return body
