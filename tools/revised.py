"""Judge a committed study by the rules of today and write tables/claims_revised.parquet: python tools/revised.py results/wikitext2-small

Prints each claim's verdict under the revision that its runs were made under, and under today's. Nothing else is changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl

from trisect import claims
from trisect.core.tables import read_table, write_table

KEPT = ("runs", "metrics", "sites")


def revised(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The claims as they were judged, and as they are judged today."""
    tables = {name: read_table(folder / "tables", name) for name in (*KEPT, "claims")}
    stated = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    about = {"experiment": stated[0] if isinstance(stated, list) else stated}
    return tables["claims"], claims.judge({name: tables[name] for name in KEPT}, about, claims.REVISION)


def lines(first: pl.DataFrame, today: pl.DataFrame) -> list[str]:
    """A Markdown table: claim, sentence, both verdicts, and the reason of today's where it is one."""
    before = dict(first.filter(pl.col("part").is_null()).select("claim", "verdict").iter_rows())
    found = ["| claim | the source says | revision 1 | revision 2 | why |", "| --- | --- | --- | --- | --- |"]
    for row in today.filter(pl.col("part").is_null()).iter_rows(named=True):
        why = row["reason"] or (f"{row['collapsed']} of its runs collapsed" if row["collapsed"] else "")
        verdicts = f"{before.get(row['claim'], '–')} | {row['verdict']}"
        found.append(f"| {row['claim']} | {row['sentence'].rstrip('.')} | {verdicts} | {why} |")
    return found


def main() -> None:
    """Write the table of today's verdicts and print both."""
    folder = Path(sys.argv[1])
    first, today = revised(folder)
    write_table(folder / "tables", "claims_revised", today)
    print("\n".join(lines(first, today)))


if __name__ == "__main__":
    main()
