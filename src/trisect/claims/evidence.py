"""Evidence from a study's tables: runs by seed and edit, preconditions, floors, and effect sizes seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trisect.claims.reasons import Reason
from trisect.core.claim import (
    AboveUnigram,
    Claim,
    Combination,
    CurveDistance,
    Effect,
    Leaf,
    LearnedFraction,
    LossChange,
    RewindChange,
    RewindRise,
    SiteMean,
    Statistic,
)
from trisect.core.site import Site
from trisect.stats.paired import summary, t_interval
from trisect.stats.significance import nan_to_none

LossCurve = NDArray[np.float64]


class _EditedRun(NamedTuple):
    """The key of a run: seed, edit (none, attack, freeze, tie, identity), label, site, and an attack's variant."""

    seed: int
    edit: str = "none"
    label: str | None = None
    site: str | None = None
    variant: str = "plain"


class _TrainedRun(NamedTuple):
    """A trained run, with the loss curve of each split in nats, from epoch 0 to the last."""

    run: str
    diverged: bool
    curves: Mapping[str, LossCurve]
    parameters: int | None = None


# a number of the table `sites`: subject, site, measure, split, at
_Spot = tuple[str, str | None, str, str, float | None]


@dataclass(frozen=True)
class Evidence:
    """The rows of a study, indexed. Attacks of a strength other than 1 are left out.

    `narrow` holds the models with narrower heads, by seed and by the layers where they are so; `layers` is how many the
    model has, or None where that is not known.
    """

    seeds: tuple[int, ...]
    trained: Mapping[_EditedRun, _TrainedRun]
    spots: Mapping[_Spot, float]
    narrow: Mapping[tuple[int, str], tuple[_TrainedRun, ...]] = field(default_factory=dict)
    layers: int | None = None

    def baseline(self, seed: int) -> _TrainedRun | None:
        """The unedited run of that seed."""
        return self.trained.get(_EditedRun(seed))

    def run(self, seed: int, edit: str, label: str | None, site: str, variant: str = "plain") -> _TrainedRun | None:
        """The run of that edit; a site at `all` layers equals one that names every layer.

        `narrow` at the site of a tie or an identity is the model with separate matrices in narrower heads, at the same
        layers, that has as nearly as many parameters.
        """
        if edit != "narrow":
            return self.trained.get(_EditedRun(seed, edit, label, count_layers(site, self.layers), variant))
        site = count_layers(site, self.layers)
        fewer = self.trained.get(_EditedRun(seed, "tie", None, site)) or self.trained.get(
            _EditedRun(seed, "identity", None, site)
        )
        if fewer is None or fewer.parameters is None:
            return None
        parameters = fewer.parameters
        narrower = self.narrow.get((seed, site.rpartition("@")[2]), ())
        return min(narrower, key=lambda run: abs((run.parameters or 0) - parameters), default=None)

    def measured(self, seed: int, site: str | None, measure: str, split: str, at: float | None = None) -> float | None:
        """A number of the table `sites` for that seed's baseline, or None."""
        base = self.baseline(seed)
        if base is None:
            return None
        value = self.spots.get((base.run, site, measure, split, at))
        if value is None and site is not None:  # `all` as it was asked, or counted out
            value = self.spots.get((base.run, count_layers(site, self.layers), measure, split, at))
        return value


@cache
def count_layers(site: str, layers: int | None) -> str:
    """A site with `all` replaced by that many layers."""
    parsed = Site.parse(site)
    if parsed.layers is not None or layers is None:
        return str(parsed)
    return str(Site(parsed.components, tuple(range(1, layers + 1)), parsed.heads, parsed.stack, parsed.pre))


def gather(tables: Mapping[str, pl.DataFrame], layers: int | None = None) -> Evidence:
    """The Evidence in the tables `runs`, `metrics` and `sites` of a model with so many layers."""
    runs = tables["runs"].filter(pl.col("strength").is_null() | (pl.col("strength") == 1)).sort("epochs", "run")
    losses = tables["metrics"].filter(
        pl.col("name") == "loss_nats", pl.col("split").is_in(["train", "valid"]), pl.col("value").is_finite()
    )
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for name, epoch, split, value in losses.select("run", "epoch", "split", "value").iter_rows():
        curves.setdefault((name, split), {})[epoch] = value
    trained: dict[_EditedRun, _TrainedRun] = {}
    narrow: dict[tuple[int, str], list[_TrainedRun]] = {}
    for row in runs.iter_rows(named=True):
        diverged = row["status"] == "diverged"
        by_split = {
            split: _complete_curve(curves.get((row["run"], split)), row["epochs"], diverged)
            for split in ("train", "valid")
        }
        complete = {split: curve for split, curve in by_split.items() if curve is not None}
        site = None if row["site"] is None else count_layers(row["site"], layers)
        run = _TrainedRun(row["run"], diverged, complete, row["parameters"])
        if row["edit"] == "narrow":
            narrow.setdefault((row["seed"], (site or "").rpartition("@")[2]), []).append(run)
        else:
            trained[_EditedRun(row["seed"], row["edit"], row["label"], site, row["variant"] or "plain")] = run
    seeds = tuple(sorted({key.seed for key in trained}))
    clipped = {key: _clip(run, trained.get(_EditedRun(key.seed))) for key, run in trained.items()}
    beside = {key: tuple(_clip(run, trained.get(_EditedRun(key[0]))) for run in runs) for key, runs in narrow.items()}
    # claims read numbers that have neither `at` nor label, and the rewound losses at α = 0
    start = (pl.col("measure") == "rewind_loss_nats") & (pl.col("at") == 0.0)
    sites = tables["sites"].filter(
        pl.col("at").is_null() | start, pl.col("value").is_finite(), pl.col("label").is_null()
    )
    rows = sites.select("subject", "site", "measure", "split", "at", "value").iter_rows()
    return Evidence(seeds, clipped, {(subject, *where): value for subject, *where, value in rows}, beside, layers)


def _complete_curve(points: Mapping[int, float] | None, epochs: int, diverged: bool) -> LossCurve | None:
    """The curve of epochs 0 to `epochs`; a diverged run keeps its last finite loss; None if rows are missing."""
    if not points or 0 not in points:
        return None
    have = 1 + max(points)
    if len(points) != have or have > epochs + 1 or (have < epochs + 1 and not diverged):
        return None
    values = [points[epoch] for epoch in range(have)]
    return np.array(values + values[-1:] * (epochs + 1 - have), dtype=float)


def _clip(trained: _TrainedRun, baseline: _TrainedRun | None) -> _TrainedRun:
    """Limit the losses of a diverged run (the baseline too) to the loss at initialisation, which all runs share."""
    if not trained.diverged:
        return trained
    start = trained if baseline is None else baseline
    curves = {
        split: np.minimum(curve, start.curves[split][0] if split in start.curves else curve[0])
        for split, curve in trained.curves.items()
    }
    return trained._replace(curves=curves)


LEARNED_NATS = 0.05  # how far below the unigram loss a run has to come to have learned anything
MARGIN = 0.02
REPEATED_NATS = 0.005  # between two trainings of one baseline, as seen between two fleets


def find_collapsed_runs(evidence: Evidence) -> frozenset[str]:
    """Edited runs whose validation loss never falls LEARNED_NATS below the unigram loss (definitions A4, collapse)."""
    return frozenset(
        run.run
        for key, run in evidence.trained.items()
        if key.edit != "none"
        and "valid" in run.curves
        and (words := evidence.measured(key.seed, None, "unigram_loss_nats", "valid")) is not None
        and not run.curves["valid"].min() <= words - LEARNED_NATS
    )


def off_floor(claim: Claim, evidence: Evidence) -> Reason | None:
    """Why a claim's measure cannot be read; None if some site of it changes the loss at full dose (definitions A8).

    Full dose is rewinding to α = 0 or mean ablation, train loss, mean over seeds; it has to exceed the margin of 0.02 nats
    and three times the spread of a baseline that is trained twice.
    """
    leaves = [leaf for part in claim.deciding() for leaf in part.leaves()]
    sites = {
        s for leaf in leaves if isinstance(leaf, (LossChange, SiteMean, RewindRise, RewindChange)) for s in leaf.sites
    }
    moves: list[float] = []
    for site in sites:
        rewound, ablated = [], []
        for seed in evidence.seeds:
            base = evidence.baseline(seed)
            loss = evidence.measured(seed, site, "rewind_loss_nats", "train", 0.0)
            if loss is not None and base is not None and "train" in base.curves:
                rewound.append(loss - base.curves["train"][-1])
            if (rise := evidence.measured(seed, site, "ablate_rise_nats", "train")) is not None:
                ablated.append(rise)
        moves += [abs(float(sum(values) / len(values))) for values in (rewound, ablated) if values]
    if not moves:
        return Reason("floor unknown")
    return None if max(moves) > max(MARGIN, 3 * REPEATED_NATS) else Reason("at floor")


def is_attack(leaf: Leaf) -> bool:
    """Whether an effect is read from attacked runs."""
    return isinstance(leaf, (LearnedFraction, CurveDistance)) or (
        isinstance(leaf, LossChange) and leaf.edit == "attack"
    )


@dataclass(frozen=True)
class Check:
    """One check: mean effect over seeds in nats, its 95 % interval, and whether every seed exceeds the margin.

    `sentence` says what is required and in which seeds it was not found; `diverged` are seeds whose baseline diverged.
    """

    name: str
    sentence: str
    effect: float | None
    low: float | None
    high: float | None
    margin: float
    ok: bool
    n: int
    diverged: tuple[int, ...] = ()


def preconditions(tables: Mapping[str, pl.DataFrame]) -> tuple[Check, ...]:
    """Both checks on the validation split; one that was not measured in every seed is not ok."""
    return checks(gather(tables))


def checks(evidence: Evidence) -> tuple[Check, ...]:
    """Both checks from collected evidence: a loss exceeds the baseline's final validation loss by a margin.

    A baseline that diverged is no model to ask about, so its seed fails whatever its losses are.
    """
    unigrams = "Required: in every seed the baseline's final validation loss is below that of the train split's word frequencies."
    attention = (
        "Required: in every seed, letting each position see only itself costs the baseline "
        f"more than {MARGIN:g} nats on validation."
    )
    done: list[Check] = []
    for name, required, site, measure, margin in (
        ("the baseline beats the unigram loss", unigrams, None, "unigram_loss_nats", 0.0),
        ("attention is in use", attention, "attn@all", "self_only_loss_nats", MARGIN),
    ):
        bases = {seed: base for seed in evidence.seeds if (base := evidence.baseline(seed)) is not None}
        gains = {
            seed: loss - base.curves["valid"][-1]
            for seed, base in bases.items()
            if "valid" in base.curves and (loss := evidence.measured(seed, site, measure, "valid")) is not None
        }
        diverged = tuple(seed for seed, base in bases.items() if base.diverged)
        short = [seed for seed, gain in gains.items() if not gain > margin and seed not in diverged]
        missing = [seed for seed in evidence.seeds if seed not in gains and seed not in diverged]
        failures = [
            f"{words} seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}."
            for words, seeds in (
                ("The baseline diverged in", diverged),
                ("Not so in", short),
                ("Not measured in", missing),
            )
            if seeds
        ]
        ok = bool(evidence.seeds) and not failures
        sentence = " ".join([required, *(failures or (["Found so in every seed."] if ok else ["Not measured."]))])
        sample = summary(list(gains.values()))
        low, high = (nan_to_none(x) for x in t_interval(sample))
        done.append(Check(name, sentence, nan_to_none(sample.mean), low, high, margin, ok, len(gains), diverged))
    return tuple(done)


When = Literal["final", "best_valid", "matched_train"]


class EffectReading(NamedTuple):
    """One seed's effect, the ids of its runs, and the difference between two trainings of the same run, in its unit."""

    value: float
    runs: frozenset[str]
    noise: float = 0.0


def read(
    effect: Effect, evidence: Evidence, seed: int, when: When = "final", variant: str = "plain"
) -> EffectReading | None:
    """The effect in one seed; None if a run or measure of it is missing.

    `variant` reads attacks of that variant (a control) in the place of plain ones.
    """
    if isinstance(effect, Combination):
        weights, leaves = zip(*effect.terms, strict=True)
        return _join([read(leaf, evidence, seed, when, variant) for leaf in leaves], weights)
    if isinstance(effect, (LossChange, LearnedFraction)):
        # a change of the loss, or how far from the start to the baseline the edited run came: no fraction where both came
        # down to the same train loss, and so learned the same, nor where the baseline itself came nowhere
        edit = effect.edit if isinstance(effect, LossChange) else "attack"
        if isinstance(effect, LearnedFraction) and when == "matched_train":
            return None
        words_alone = evidence.measured(seed, None, "unigram_loss_nats", effect.split)

        def read_site(site: str) -> EffectReading | None:
            run = evidence.run(seed, edit, effect.label, site, variant if edit == "attack" else "plain")
            pair = _loss_pair(run, evidence.baseline(seed), effect.split, when)
            if pair is None:
                return None
            edited, baseline, initial, runs = pair
            if isinstance(effect, LossChange):
                change = edited - baseline
                return EffectReading(abs(change) if effect.absolute else change, runs, REPEATED_NATS)
            start = words_alone if isinstance(effect, AboveUnigram) else initial
            if start is None or start <= baseline:
                return None
            return EffectReading((start - edited) / (start - baseline), runs, REPEATED_NATS / (start - baseline))

        return _join([read_site(site) for site in effect.sites])
    assert not isinstance(effect, Statistic), "a statistic of one model has no seeds"
    return None if when != "final" else _read_measures(effect, evidence, seed, variant)


def _loss_pair(
    edited: _TrainedRun | None, base: _TrainedRun | None, split: str, when: When
) -> tuple[float, float, float, frozenset[str]] | None:
    """Losses on `split` of the edited run, of its baseline and at initialisation in nats, and the ids of both runs.

    The baseline is read no later than the last epoch of the edited run.
    """
    if edited is None or base is None or not {"train", "valid"} <= edited.curves.keys() & base.curves.keys():
        return None
    last = len(edited.curves[split]) - 1
    if len(base.curves[split]) <= last:
        return None
    (train, valid), (base_train, base_valid) = (
        (run.curves["train"][: last + 1], run.curves["valid"][: last + 1]) for run in (edited, base)
    )
    this_curve, other = (train, base_train) if split == "train" else (valid, base_valid)
    runs = frozenset((edited.run, base.run))
    if when == "final":
        return (this_curve[-1], other[-1], other[0], runs)
    if when == "best_valid":
        # the trained epoch with the lowest validation loss, the first of several
        best, base_best = (1 + int(np.argmin(curve[1:])) for curve in (valid, base_valid))
        return (this_curve[best], other[base_best], other[0], runs)
    if split == "train":
        return None
    level = max(train[-1], base_train[-1])
    return (_at_level(train, valid, level), _at_level(base_train, base_valid, level), other[0], runs)


def _at_level(train: LossCurve, valid: LossCurve, level: float) -> float:
    """The validation loss where the train curve first comes down to `level`, linear between epochs."""
    reached = int(np.flatnonzero(train <= level)[0])
    if reached == 0:
        return float(valid[0])
    before = reached - 1
    share = (train[before] - level) / (train[before] - train[reached])
    return float(valid[before] + share * (valid[reached] - valid[before]))


def _read_measures(
    effect: CurveDistance | SiteMean | RewindRise | RewindChange, evidence: Evidence, seed: int, variant: str
) -> EffectReading | None:
    """A distance of curves, or a measure at sites of the baseline."""
    base = evidence.baseline(seed)

    def distance(layer: int, label: str, curves_of: CurveDistance) -> EffectReading | None:
        runs = [evidence.run(seed, "attack", label, f"{c}@{layer}", variant) for c in curves_of.pair]
        curves = [run.curves[effect.split] for run in runs if run is not None and effect.split in run.curves]
        if len(curves) < 2 or len(curves[0]) != len(curves[1]):
            return None
        noise = REPEATED_NATS
        if curves_of.standardised:  # between 0 (the lowest) and 1; a flat one never came down, so it is 1 throughout
            ends = [(curve.min(), curve.max()) for curve in curves]
            noise /= max((high - low for low, high in ends), default=0.0) or 1.0
            curves = [
                (curve - low) / (high - low) if high > low else np.ones_like(curve)
                for curve, (low, high) in zip(curves, ends, strict=True)
            ]
        x, y = curves
        used_runs = frozenset(run.run for run in runs if run is not None)
        return EffectReading(float(np.mean(np.abs(x - y)[1:])), used_runs, noise)

    if isinstance(effect, CurveDistance):
        return _join([distance(layer, label, effect) for layer, label in product(effect.layers, effect.labels)])
    if base is None:
        return None
    ids, noise = frozenset((base.run,)), REPEATED_NATS
    if isinstance(effect, SiteMean):
        noise *= effect.measure.endswith("_area")  # other measures of sites are no losses
        values = [evidence.measured(seed, site, effect.measure, effect.split) for site in effect.sites]
        shown = [abs(v) if effect.absolute and v is not None else v for v in values]
    elif {effect.split, "train"} <= base.curves.keys():
        scale = 1.0 if isinstance(effect, RewindChange) else base.curves["train"][-1]
        losses = [evidence.measured(seed, site, "rewind_loss_nats", effect.split, 0.0) for site in effect.sites]
        shown = [None if loss is None else (loss - base.curves[effect.split][-1]) / scale for loss in losses]
        noise /= scale
    else:
        return None
    return _join([None if value is None else EffectReading(value, ids, noise) for value in shown])


def _join(readings: Sequence[EffectReading | None], weights: Sequence[float] | None = None) -> EffectReading | None:
    """The mean of several readings, or their sum by `weights`; None if one is missing."""
    complete = [reading for reading in readings if reading is not None]
    if len(complete) < len(readings) or not complete:
        return None
    runs = frozenset[str]().union(*(r.runs for r in complete))
    values, noises = [r.value for r in complete], [r.noise for r in complete]
    if weights is None:
        return EffectReading(float(np.mean(values)), runs, float(np.mean(noises)))
    # REPEATED_NATS is already that of a difference of two runs
    noise = sum(abs(weight) * noise for weight, noise in zip(weights, noises, strict=True)) / 2
    return EffectReading(float(np.dot(weights, values)), runs, noise)
