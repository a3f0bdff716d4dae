"""Print the numbers of docs/explanation/first-source.md from a study's tables: python tools/findings.py results/wikitext2-small

Without a folder docs/what-we-found.md is written, whose numbers are from all tables under results/ (tools/article.py).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import polars as pl

from trisect.core.tables import STUDY_TABLES, read_table

RANGES = {"layer 1": r"@1$", "layers 2 to 5": r"@[2-5]$", "all layers": r"@[1-5]$"}


def signed(value: float) -> tuple[str, str]:
    """A number to three and to four decimals, with its sign."""
    return f"{value:+.3f}", f"{value:+.4f}"


def parts(claims: pl.DataFrame) -> list[tuple[str, str, str]]:
    """(claim, part, effect with its 95 % interval) of every part, to three and to four decimals."""
    found = []
    for row in claims.filter(pl.col("part").is_not_null() & pl.col("low").is_not_null()).iter_rows(named=True):
        for effect, low, high in zip(*(signed(row[c]) for c in ("effect", "low", "high")), strict=True):
            found.append((row["claim"], row["part"], f"{effect} ({low} to {high})"))
    return found


def changes(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Mean over seeds of each run's final loss minus its baseline's: edit, label, site, split, value."""
    last = tables["metrics"].filter(pl.col("name") == "loss_nats").sort("epoch").group_by("run", "split").last()
    losses = last.join(tables["runs"], on="run")
    base = losses.filter(pl.col("edit") == "none").select("seed", "split", pl.col("value").alias("baseline"))
    edited = losses.filter(pl.col("edit") != "none").join(base, on=["seed", "split"])
    change = (pl.col("value") - pl.col("baseline")).alias("change")
    return edited.with_columns(change).group_by("edit", "label", "site", "split").agg(pl.col("change").mean())


def adversaries(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Every attack's final adversary accuracy on validation, seed by seed."""
    named = (pl.col("name") == "adversary_accuracy") & (pl.col("split") == "valid")
    last = tables["metrics"].filter(named).sort("epoch").group_by("run").last()
    return last.join(tables["runs"], on="run").select("label", "site", "value")


def lines(tables: dict[str, pl.DataFrame]) -> list[str]:
    """Everything that the page states as a number."""
    said = [f"{claim}  {part}: {effect}" for claim, part, effect in parts(tables["claims"])]
    again = parts(tables["claims_revised"].filter(pl.col("part").str.contains("above unigram")))
    said += [f"{claim}  {part}, revision 2: {effect}" for claim, part, effect in again]
    for edit, label, split in (("attack", "pos", "train"), ("attack", "dep", "train"), ("attack", "pos", "valid"),
                               ("attack", "dep", "valid"), ("freeze", None, "train"), ("freeze", None, "valid")):  # fmt: skip
        own = changes(tables).filter(
            (pl.col("edit") == edit) & pl.col("label").eq_missing(label) & (pl.col("split") == split)
        )
        for name, pattern in RANGES.items():
            some = own.filter(pl.col("site").str.contains(pattern))["change"]
            if len(some):
                ends = [signed(float(v)) for v in (some.to_numpy().min(), some.to_numpy().max())]
                said.append(
                    f"{edit} {label or ''} {split}, {name}: {' to '.join(e[0] for e in ends)} ({' to '.join(e[1] for e in ends)})"
                )
    for label in ("pos", "dep"):
        for name, pattern in RANGES.items():
            some = adversaries(tables).filter((pl.col("label") == label) & pl.col("site").str.contains(pattern))[
                "value"
            ]
            if len(some):
                ends = some.to_numpy() * 100
                said.append(f"adversary on {label}, {name}: {ends.min():.1f} to {ends.max():.1f} %")
    for measure in ("rewind_area", "criticality"):
        own = tables["sites"].filter((pl.col("measure") == measure) & (pl.col("split") == "train"))
        for row in own.group_by("site").agg(pl.col("value").mean()).sort("value").iter_rows(named=True):
            said.append(f"{measure} {row['site']}: {row['value']:.4f}")
    return said


if __name__ == "__main__":
    if len(sys.argv) == 1:
        runpy.run_path(str(Path(__file__).with_name("article.py")), run_name="__main__")
        sys.exit()
    folder = Path(sys.argv[1]) / "tables"
    print("\n".join(lines({name: read_table(folder, name) for name in STUDY_TABLES})))
