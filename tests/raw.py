"""JSON files read for a look into them, or to be changed for the worse: of no type, unlike what the package reads."""

from pathlib import Path
from typing import Any

from trisect.core import files


def read_json(path: Path, todo: str = "") -> Any:
    """The object of a file that `write_json` wrote."""
    return files.read_json(path, todo)
