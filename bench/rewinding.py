"""Adaptive against exact rewinding of the `quick` baseline: largest differences, evaluations, seconds.

python bench/rewinding.py
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import polars as pl

import trisect
from trisect.core.spec import Rewind
from trisect.papers.presets import find_experiment


def main() -> None:
    """Run one seed's rewinding both ways and compare every row."""
    base = replace(find_experiment("quick"), seeds=(1,), attack=None, freeze=None)
    sites = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("adaptive", "exact"):
            began = time.perf_counter()
            study = trisect.study(replace(base, rewind=Rewind(mode=mode)), out=Path(folder) / mode, quiet=True)
            sites[mode] = study.tables["sites"]
            print(f"{mode:<10}{time.perf_counter() - began:6.1f} s in all, training included")
    keys = ["subject", "site", "measure", "at", "split"]
    both = sites["adaptive"].join(sites["exact"], on=keys, suffix="_exact", nulls_equal=True)
    difference = both.with_columns(difference=(pl.col("value") - pl.col("value_exact")).abs())
    largest = difference.group_by("measure").agg(pl.col("difference").max()).sort("measure")
    for name, value in largest.filter(pl.col("measure") != "rewind_evaluations").rows():
        print(f"{name:<22}{value:.1e}")
    spent = sites["adaptive"].filter(pl.col("measure") == "rewind_evaluations")["value"]
    print(f"evaluations a curve   {spent.min():.0f} to {spent.max():.0f} instead of 101")


if __name__ == "__main__":
    main()
