"""Parcels: JSON and files as one run of bytes, as they travel between machines; reading one runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trisect.core.errors import StudyError
from trisect.core.files import inside
from trisect.core.json_text import Json
from trisect.engine.depot import LARGE, Depot
from trisect.engine.protocol import Files

ALONE = "file"  # what a value that is one file is called in its folder, and what the hash of one ends in


class Parcel(NamedTuple):
    """What stands in a parcel: JSON-ready words, the bytes of small files, and the names in the depot of large ones."""

    words: Mapping[str, Json]
    files: Mapping[str, bytes]
    stored: Mapping[str, str]


def pack(words: Mapping[str, Json], files: Files, depot: Depot | None = None) -> bytes:
    """A parcel: one line of JSON, then the bytes of the files, one after the other."""
    inside, stored = dict[str, bytes](), dict[str, str]()
    for name, content in files.items():
        if depot is not None and isinstance(content, Path) and content.stat().st_size >= LARGE:
            stored[name] = depot.store(content)
        else:
            inside[name] = content.read_bytes() if isinstance(content, Path) else content
    head = {"words": dict(words), "files": [[n, len(data)] for n, data in inside.items()], "stored": stored}
    return b"".join((json.dumps(head, allow_nan=False).encode(), b"\n", *inside.values()))


def unpack(parcel: bytes) -> Parcel:
    """What `pack` packed."""
    line = parcel.index(b"\n")
    head, at, files = json.loads(parcel[:line]), line + 1, dict[str, bytes]()
    for name, size in head["files"]:
        files[name] = parcel[at : at + size]
        at += size
    return Parcel(head["words"], files, head["stored"])


def stored_in(parcel: bytes) -> list[str]:
    """The names in the depot of what belongs to a parcel."""
    return list(json.loads(parcel[: parcel.index(b"\n")])["stored"].values())


def files_of(value: Path) -> dict[str, Path]:
    """The files of a value, by the names that they have below it; half-written ones, whose names begin with a dot, are none."""
    if value.is_file():
        return {ALONE: value}
    found = (path for path in sorted(value.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(value).as_posix(): path for path in found}


def fingerprint(value: Path) -> str:
    """A hash of every byte of a value, of its files' names, and of whether it is one file or a folder."""
    state = hashlib.blake2b(digest_size=16)
    for name, path in files_of(value).items():
        state.update(f"\n{name}\n{path.stat().st_size}\n".encode())
        for block in _blocks(path):
            state.update(block)
    return f"{state.hexdigest()}-{ALONE if value.is_file() else 'folder'}"


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def pack_value(value: Path, depot: Depot | None = None) -> bytes:
    """A file or a folder as a parcel."""
    return pack({}, files_of(value), depot)


def value_in(place: Path, key: str) -> Path:
    """The value of that hash in the folder that it was placed in."""
    return place / ALONE if key.endswith(ALONE) else place


def place_value(parcel: bytes, place: Path, depot: Depot | None = None) -> None:
    """Write what `pack_value` packed into the folder `place`."""
    found = unpack(parcel)
    place.mkdir(parents=True, exist_ok=True)
    for name, content in found.files.items():
        _target(place, name).write_bytes(content)
    for name, key in found.stored.items():
        if depot is None:
            raise StudyError(f"'{name}' was stored elsewhere.", "There is no depot.", "Give --scratch again.")
        depot.fetch(key, _target(place, name))


def _target(place: Path, name: str) -> Path:
    target = inside(place, *name.split("/"))
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
