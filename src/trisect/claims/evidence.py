"""What a study's tables hold for claims: runs by seed and edit, whole loss curves, measures of sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

Curve = NDArray[np.float64]


class Edited(NamedTuple):
    """Which run is meant: its seed, its edit (none, attack, freeze), label and site."""

    seed: int
    edit: str = "none"
    label: str | None = None
    site: str | None = None


class Trained(NamedTuple):
    """A run that was trained, with the loss curve of each split in nats, epochs 0 to the last."""

    run: str
    diverged: bool
    curves: Mapping[str, Curve]


class Spot(NamedTuple):
    """Which number of the `sites` table is meant."""

    subject: str
    site: str | None
    measure: str
    split: str
    at: float | None = None


@dataclass(frozen=True)
class Evidence:
    """The rows of a study, found by what they are about. Attacks of a strength other than 1 are left out."""

    seeds: tuple[int, ...]
    trained: Mapping[Edited, Trained]
    spots: Mapping[Spot, float]

    def baseline(self, seed: int) -> Trained | None:
        """The run of that seed that nothing was done to."""
        return self.trained.get(Edited(seed))

    def measured(self, seed: int, site: str | None, measure: str, split: str, at: float | None = None) -> float | None:
        """A number of the `sites` table about that seed's baseline, or null."""
        base = self.baseline(seed)
        return None if base is None else self.spots.get(Spot(base.run, site, measure, split, at))


def gather(tables: Mapping[str, pl.DataFrame]) -> Evidence:
    """The Evidence in the tables `runs`, `metrics` and `sites`."""
    runs = tables["runs"].filter(pl.col("strength").is_null() | (pl.col("strength") == 1)).sort("epochs", "run")
    curves = _curves(tables["metrics"])
    trained: dict[Edited, Trained] = {}
    for row in runs.iter_rows(named=True):
        diverged = row["status"] == "diverged"
        mine = {split: _whole(curves.get((row["run"], split)), row["epochs"], diverged) for split in ("train", "valid")}
        whole = {split: curve for split, curve in mine.items() if curve is not None}
        key = Edited(row["seed"], row["edit"], row["label"], row["site"])
        trained[key] = Trained(row["run"], diverged, whole)
    seeds = tuple(sorted({key.seed for key in trained}))
    clipped = {key: _clipped(run, trained.get(Edited(key.seed))) for key, run in trained.items()}
    return Evidence(seeds, clipped, _spots(tables["sites"]))


def _curves(metrics: pl.DataFrame) -> dict[tuple[str, str], dict[int, float]]:
    chosen = metrics.filter(
        (pl.col("name") == "loss_nats") & pl.col("split").is_in(["train", "valid"]) & pl.col("value").is_finite()
    )
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for run, epoch, split, value in chosen.select("run", "epoch", "split", "value").iter_rows():
        curves.setdefault((run, split), {})[epoch] = value
    return curves


def _whole(points: Mapping[int, float] | None, epochs: int, diverged: bool) -> Curve | None:
    """The curve of epochs 0 to `epochs`; a diverged run stays at its last finite loss; null where rows are missing."""
    if not points or 0 not in points:
        return None
    have = 1 + max(points)
    if len(points) != have or have > epochs + 1 or (have < epochs + 1 and not diverged):
        return None
    values = [points[epoch] for epoch in range(have)]
    return np.array(values + values[-1:] * (epochs + 1 - have), dtype=float)


def _clipped(trained: Trained, baseline: Trained | None) -> Trained:
    """A diverged run, the baseline too, enters with losses no higher than at initialisation, which all runs share."""
    if not trained.diverged:
        return trained
    start = trained if baseline is None else baseline
    curves = {
        split: np.minimum(curve, start.curves[split][0] if split in start.curves else curve[0])
        for split, curve in trained.curves.items()
    }
    return trained._replace(curves=curves)


def _spots(sites: pl.DataFrame) -> dict[Spot, float]:
    """Numbers that have no `at`, and the rewound losses at α = 0: all that claims read."""
    chosen = sites.filter(
        pl.col("at").is_null() | ((pl.col("measure") == "rewind_loss_nats") & (pl.col("at") == 0.0))
    ).filter(pl.col("value").is_finite())
    rows = chosen.select("subject", "site", "measure", "split", "at", "value").iter_rows()
    return {Spot(subject, site, measure, split, at): value for subject, site, measure, split, at, value in rows}
