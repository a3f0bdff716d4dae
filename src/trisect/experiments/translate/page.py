"""What translation models were found to do: their scores, and a few translations; they have no page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.report import format as words

if TYPE_CHECKING:
    from trisect.experiments.translate.settings import TranslateFacts

SHOWN = 3  # translations of each model


def findings(tables: Mapping[str, pl.DataFrame], about: About[TranslateFacts]) -> tuple[Finding, ...]:
    """Of each model its last losses and accuracies, and a few translations of pairs that it did not learn from."""
    runs = tables["metrics"]["run"].unique(maintain_order=True).to_list()
    return tuple(one for run in runs for one in (*_scores(tables["metrics"], run), *_shown(tables, run)))


def _scores(metrics: pl.DataFrame, run: str) -> Iterator[Finding]:
    """A model's scores after its last epoch, by split."""
    mine = metrics.filter(run=run)
    last = mine.filter(pl.col("epoch") == mine["epoch"].max()).drop_nulls("value")
    title = f"seed-{run.rpartition('/')[2]}"
    for row in last.sort("split", "name").iter_rows(named=True):
        unit = "nats" if row["name"].endswith("nats") else ""
        what = f"{row['name'].removesuffix('_nats').replace('_', ' ')} on {row['split']}"
        said = f"{what} {words.number(row['value'])}{f' {unit}' if unit else ''}."
        yield Finding(row["name"], said, unit, (Estimate(row["split"], row["value"], n=1),), title=title, what=what)


def _shown(tables: Mapping[str, pl.DataFrame], run: str) -> Iterator[Finding]:
    """A model's first translations; none in a folder of an earlier version."""
    if "translations" not in tables:
        return
    title = f"seed-{run.rpartition('/')[2]}"
    for row in tables["translations"].filter(run=run).sort("pair").head(SHOWN).iter_rows(named=True):
        said = f"{row['source']}  →  {row['made']}  (the text has: {row['target']})"
        yield Finding("translation", said, title=title)
