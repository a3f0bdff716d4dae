"""Unlisted: results that lie without the list of what their run wrote, such as a copy of tables and record beside an article."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import read_json
from trisect.core.tables import read_table, run_of_table

STATEMENT = "experiment.json"  # which anybody may write, and has no checksum
AGAIN = "Copy it again from the folder that the command wrote, or run that command again."


def has_tables(folder: Path) -> bool:
    """Whether a folder holds tables, and is not a model's."""
    return any((folder / "tables").glob("*.parquet")) and not (folder / "config.json").exists()


def tables_of(folder: Path) -> dict[str, pl.DataFrame]:
    """The tables that a command other than a study left, by name; raises DamagedFileError for one that cannot be read.

    They are made of no other file, so that none may be deleted.
    """
    return {
        path.stem: read_table(path.parent, path.stem, AGAIN) for path in sorted((folder / "tables").glob("*.parquet"))
    }


def check_tables(folder: Path) -> list[StudyError]:
    """An error for each table and record that is damaged, and for tables of different runs; the only files with a checksum inside."""
    found, runs = list[StudyError](), dict[str, Path]()
    for path in sorted(p for p in folder.glob("*.json") if p.name != STATEMENT):
        try:
            read_json(path, AGAIN)
        except DamagedFileError as error:
            found.append(error)
    for path in sorted((folder / "tables").glob("*.parquet")):
        try:
            read_table(path.parent, path.stem, AGAIN)
        except DamagedFileError as error:
            found.append(error)
            continue
        if of := run_of_table(path.read_bytes()):
            runs.setdefault(of, path)
    first, *others = runs.items() or [("", folder)]
    for of, path in others:
        words = f"It is a table of run {of[:8]}, and {first[1].name} is of run {first[0][:8]}."
        found.append(DamagedFileError(f"{path} belongs to another run.", words, AGAIN))
    return found
