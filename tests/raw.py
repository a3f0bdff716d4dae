"""Files and replies of commands as they are, of no type, unlike what the package reads: to be looked into, or changed."""

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from trisect.cli import main
from trisect.core import files


def read_json(path: Path, todo: str = "") -> Any:
    """The object of a file that `write_json` wrote."""
    return files.read_json(path, todo)


def call(*words: object) -> Any:
    """What the command line answers to these words, called in this process."""
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


def write_splits(folder: Path, text: str, ending: str = "txt") -> Path:
    """A folder of texts whose files train, valid and test hold the same."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.{ending}").write_text(text, encoding="utf-8")
    return folder
