"""JSON that a person or another program wrote, read strictly: no key twice, no NaN, bounded in size and depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from trisect.core.bounds import JSON_BYTES

Json: TypeAlias = JsonValue


def parse(text: str, strict: bool = True) -> Json:
    """The value that a text is; raises ValueError, with what is wrong in words, for all that is no plain JSON.

    One that is not `strict` is as other programs write it: with NaN, and the last value of a key that stands twice.
    """
    try:
        if not strict:
            return json.loads(text)
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("Its lists and objects stand too deep inside one another.") from None


def read(path: Path, strict: bool = True) -> Json:
    """The value in a file; raises OSError where it cannot be read, ValueError as `parse` and for a file that is too large."""
    if (size := path.stat().st_size) > JSON_BYTES:
        raise ValueError(f"It has {size:,} bytes; up to {JSON_BYTES:,} are read.")
    with path.open("rb") as file:  # a device or a pipe says nothing of its size
        content = file.read(JSON_BYTES + 1)
    if len(content) > JSON_BYTES:
        raise ValueError(f"It has more than {JSON_BYTES:,} bytes, which are not read.")
    return parse(content.decode("utf-8-sig"), strict)


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        met: set[str] = set()
        twice = next(name for name, _ in pairs if name in met or met.add(name))
        raise ValueError(
            f"The key {twice[:60]!r} is given twice in one object, so that one of its values would be ignored."
        )
    return found


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is no number of JSON.")
