"""Evidence from a study's tables: runs by seed and edit, whole loss curves, measures of sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trisect.core.site import Site

LossCurve = NDArray[np.float64]


class EditedRun(NamedTuple):
    """Which run is meant: its seed, its edit (none, attack, freeze, tie, identity), label, site, and an attack's variant."""

    seed: int
    edit: str = "none"
    label: str | None = None
    site: str | None = None
    variant: str = "plain"


class TrainedRun(NamedTuple):
    """A run that was trained, with the loss curve of each split in nats, epochs 0 to the last."""

    run: str
    diverged: bool
    curves: Mapping[str, LossCurve]
    parameters: int | None = None


class Spot(NamedTuple):
    """Which number of the `sites` table is meant."""

    subject: str
    site: str | None
    measure: str
    split: str
    at: float | None = None


@dataclass(frozen=True)
class Evidence:
    """The rows of a study, found by what they are about. Attacks of a strength other than 1 are left out.

    `narrow` holds the models with narrower heads, by seed and by the layers where they are so; `layers` is how many the
    model has, or null where that is not known.
    """

    seeds: tuple[int, ...]
    trained: Mapping[EditedRun, TrainedRun]
    spots: Mapping[Spot, float]
    narrow: Mapping[tuple[int, str], tuple[TrainedRun, ...]] = field(default_factory=dict)
    layers: int | None = None

    def baseline(self, seed: int) -> TrainedRun | None:
        """The run of that seed that nothing was done to."""
        return self.trained.get(EditedRun(seed))

    def run(self, seed: int, edit: str, label: str | None, site: str, variant: str = "plain") -> TrainedRun | None:
        """The run of that edit, a site at `all` layers being one at every layer that the model has.

        `narrow` at the site of a tie or an identity is the model with separate matrices in narrower heads, at the same
        layers, that has as nearly as many parameters.
        """
        if edit == "narrow":
            return self._narrow(seed, counted(site, self.layers))
        return self.trained.get(EditedRun(seed, edit, label, counted(site, self.layers), variant))

    def _narrow(self, seed: int, site: str) -> TrainedRun | None:
        fewer = self.trained.get(EditedRun(seed, "tie", None, site)) or self.trained.get(
            EditedRun(seed, "identity", None, site)
        )
        known = self.narrow.get((seed, site.rpartition("@")[2]), ())
        if fewer is None or fewer.parameters is None:
            return None
        wanted = fewer.parameters
        return min(known, key=lambda run: abs((run.parameters or 0) - wanted), default=None)

    def measured(self, seed: int, site: str | None, measure: str, split: str, at: float | None = None) -> float | None:
        """A number of the `sites` table about that seed's baseline, or null."""
        base = self.baseline(seed)
        if base is None:
            return None
        found = self.spots.get(Spot(base.run, site, measure, split, at))
        if found is None and site is not None:  # `all` as it was asked, or counted out
            found = self.spots.get(Spot(base.run, counted(site, self.layers), measure, split, at))
        return found


@cache
def counted(site: str, layers: int | None) -> str:
    """A site as spelt where `all` is counted out over that many layers."""
    known = Site.parse(site)
    if known.layers is not None or layers is None:
        return str(known)
    return str(Site(known.components, tuple(range(1, layers + 1)), known.heads, known.stack, known.pre))


def gather(tables: Mapping[str, pl.DataFrame], layers: int | None = None) -> Evidence:
    """The Evidence in the tables `runs`, `metrics` and `sites` of a model with so many layers.

    Tables of earlier versions, which have no `variant` and no `label`, hold attacks that are all plain.
    """
    runs = later(tables["runs"], "variant")
    runs = runs.filter(pl.col("strength").is_null() | (pl.col("strength") == 1)).sort("epochs", "run")
    curves = _curves(tables["metrics"])
    trained: dict[EditedRun, TrainedRun] = {}
    narrow: dict[tuple[int, str], list[TrainedRun]] = {}
    for row in runs.iter_rows(named=True):
        diverged = row["status"] == "diverged"
        mine = {split: _whole(curves.get((row["run"], split)), row["epochs"], diverged) for split in ("train", "valid")}
        whole = {split: curve for split, curve in mine.items() if curve is not None}
        site = None if row["site"] is None else counted(row["site"], layers)
        run = TrainedRun(row["run"], diverged, whole, row.get("parameters"))
        if row["edit"] == "narrow":
            narrow.setdefault((row["seed"], (site or "").rpartition("@")[2]), []).append(run)
        else:
            trained[EditedRun(row["seed"], row["edit"], row["label"], site, row["variant"] or "plain")] = run
    seeds = tuple(sorted({key.seed for key in trained}))
    clipped = {key: _clipped(run, trained.get(EditedRun(key.seed))) for key, run in trained.items()}
    beside = {key: tuple(_clipped(run, trained.get(EditedRun(key[0]))) for run in of) for key, of in narrow.items()}
    return Evidence(seeds, clipped, _spots(later(tables["sites"], "label")), beside, layers)


def later(table: pl.DataFrame, column: str) -> pl.DataFrame:
    """The table with a column of words that came to be later: null throughout where the table lacks it."""
    return table if column in table.columns else table.with_columns(pl.lit(None, pl.String).alias(column))


def _curves(metrics: pl.DataFrame) -> dict[tuple[str, str], dict[int, float]]:
    chosen = metrics.filter(
        (pl.col("name") == "loss_nats") & pl.col("split").is_in(["train", "valid"]) & pl.col("value").is_finite()
    )
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for run, epoch, split, value in chosen.select("run", "epoch", "split", "value").iter_rows():
        curves.setdefault((run, split), {})[epoch] = value
    return curves


def _whole(points: Mapping[int, float] | None, epochs: int, diverged: bool) -> LossCurve | None:
    """The curve of epochs 0 to `epochs`; a diverged run stays at its last finite loss; null where rows are missing."""
    if not points or 0 not in points:
        return None
    have = 1 + max(points)
    if len(points) != have or have > epochs + 1 or (have < epochs + 1 and not diverged):
        return None
    values = [points[epoch] for epoch in range(have)]
    return np.array(values + values[-1:] * (epochs + 1 - have), dtype=float)


def _clipped(trained: TrainedRun, baseline: TrainedRun | None) -> TrainedRun:
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
    """Numbers that have neither `at` nor label, and the rewound losses at α = 0: all that claims read."""
    chosen = sites.filter(
        pl.col("at").is_null() | ((pl.col("measure") == "rewind_loss_nats") & (pl.col("at") == 0.0))
    ).filter(pl.col("value").is_finite() & pl.col("label").is_null())
    rows = chosen.select("subject", "site", "measure", "split", "at", "value").iter_rows()
    return {Spot(subject, site, measure, split, at): value for subject, site, measure, split, at, value in rows}
