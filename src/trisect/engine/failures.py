"""How a job's error travels: as JSON, never as a pickle."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from trisect.core import errors
from trisect.core.errors import TrisectError
from trisect.core.json_text import Json
from trisect.engine.protocol import Failed


def failure(error: Exception) -> dict[str, Json]:
    """A message about an error: the three parts of one of ours, else where it was raised."""
    if isinstance(error, TrisectError):
        return {"error": [type(error).__name__, error.given, error.known, error.todo]}
    return {"crash": "".join(traceback.format_exception(error))}


def read_failure(message: Mapping[str, Json]) -> Failed | None:
    """The error that a message is about; null where it is about none."""
    said = message.get("error")
    if isinstance(said, list):
        kind, *parts = map(str, said)
        return Failed(getattr(errors, kind, TrisectError)(*parts))
    if "crash" in message:
        return Failed(RuntimeError(message["crash"]))
    return None
