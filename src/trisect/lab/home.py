"""Home of a page: the front page of the dissection that its folder is a part of."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trisect.core import json_text

NOTED = "parts.json"  # beside the front page: the steps that have begun, by their folders
STAGED = ".trisect-part"  # how the name of a stage ends, which lies inside the folder that it lands in
FRONT = "report.html"
DEEPEST = 3  # folders below the front page that a part's page may lie in


def home_of(folder: Path) -> str:
    """The way from a page in `folder`, or staged there, to its front page; empty where the folder is no part of a dissection."""
    place = folder.absolute()
    place = place.parent if place.name.endswith(STAGED) else place
    for depth, above in enumerate(tuple(place.parents)[:DEEPEST], start=1):
        with suppress(OSError, ValueError):
            noted = json_text.read(above / NOTED)
            steps = noted.get("steps") if isinstance(noted, dict) else None
            if isinstance(steps, dict) and place.relative_to(above).as_posix() in steps:
                return "../" * depth + FRONT
    return ""
