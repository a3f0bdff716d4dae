"""`trisect study quick` as a whole: minutes, and where they go.

python bench/whole.py
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import polars as pl

import trisect
from trisect.core.files import read_json
from trisect.core.machine import Machine


def parts(folder: Path) -> list[tuple[str, float, int]]:
    """(part, core-seconds, how many) of what a finished study's runs and evaluations say of themselves."""
    runs = pl.read_parquet(folder / "tables" / "runs.parquet")
    groups = runs.group_by("edit").agg(pl.col("wall_seconds").sum(), pl.len()).sort("edit")
    found = [(f"training: {edit}", seconds, count) for edit, seconds, count in groups.iter_rows()]
    spent: dict[str, list[float]] = {}
    for path in sorted((folder / "evaluations").rglob("*.json")):
        spent.setdefault(path.name.split("-")[0], []).append(float(read_json(path, "")["wall_seconds"]))
    return found + [(f"evaluation: {kind}", sum(each), len(each)) for kind, each in sorted(spent.items())]


def rows() -> list[dict[str, object]]:
    """The table's row; there is no plain way of a whole study to be measured against."""
    workers = Machine().cores()
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        trisect.study("quick", out=Path(scratch) / "study", quiet=True)
        wall = time.perf_counter() - began
        found = parts(Path(scratch) / "study")
        began = time.perf_counter()
        trisect.study("quick", out=Path(scratch) / "study", quiet=True)
        again = time.perf_counter() - began
    notes = [f"{name}: {seconds / 60:.2f} core-minutes in {count}" for name, seconds, count in found]
    rest = wall - sum(seconds for _, seconds, _ in found) / workers - again
    notes += [
        f"reading, judging, drawing and writing the report: {again / 60:.2f} minutes (the same command on a finished study)",
        f"starting and waiting: {rest / 60:.2f} minutes",
    ]
    return [
        {
            "what": f"`trisect study quick` from start to end, {workers} workers",
            "plain": "",
            "ours": f"{wall / 60:.1f} minutes",
            "ratio": None,
            "notes": notes,
        }
    ]


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1))
