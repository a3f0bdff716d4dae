"""Effect sizes seed by seed: at the final epoch, at the best validation epoch, at matched train loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from trisect.claims.evidence import Evidence, LossCurve, TrainedRun
from trisect.core.claim import (
    AboveUnigram,
    Combination,
    CurveDistance,
    Effect,
    LearnedFraction,
    LossChange,
    RewindChange,
    RewindRise,
    SiteMean,
)

When = Literal["final", "best_valid", "matched_train"]


class EffectReading(NamedTuple):
    """One seed's effect, and the ids of the runs that it was read from."""

    value: float
    runs: frozenset[str]


class LossPair(NamedTuple):
    """The loss of an edited run and of its baseline in nats, and the loss at initialisation."""

    edited: float
    baseline: float
    initial: float
    runs: frozenset[str]


def read(
    effect: Effect, evidence: Evidence, seed: int, when: When = "final", variant: str = "plain"
) -> EffectReading | None:
    """The effect in one seed, or null where some run or measure of it is missing or does not have that reading.

    `variant` reads attacks of that variant (a control) in the place of plain ones.
    """
    if isinstance(effect, Combination):
        readings = [read(leaf, evidence, seed, when, variant) for _, leaf in effect.terms]
        weights = [weight for weight, _ in effect.terms]
        return _join(readings, lambda values: float(np.dot(weights, values)))
    if isinstance(effect, LossChange):
        return _loss_change(effect, evidence, seed, when, variant)
    if isinstance(effect, LearnedFraction):
        return _learned(effect, evidence, seed, when, variant)
    if when != "final":
        return None
    if isinstance(effect, CurveDistance):
        return _curve_distance(effect, evidence, seed, variant)
    if isinstance(effect, (RewindRise, RewindChange)):
        return _rewind_rise(effect, evidence, seed)
    assert isinstance(effect, SiteMean), "a statistic of one model has no seeds"
    return _site_mean(effect, evidence, seed)


def above_unigram(effect: Effect, evidence: Evidence, seed: int) -> EffectReading | None:
    """(L_unigram − L) / (L_unigram − L_baseline) of a learned fraction's runs; null for every other effect, and for itself."""
    if not isinstance(effect, LearnedFraction) or isinstance(effect, AboveUnigram):
        return None
    own = AboveUnigram(effect.label, effect.sites, effect.split)
    return _learned(own, evidence, seed, "final", "plain")


def _loss_change(effect: LossChange, evidence: Evidence, seed: int, when: When, variant: str) -> EffectReading | None:
    def change(pair: LossPair) -> EffectReading:
        value = pair.edited - pair.baseline
        return EffectReading(abs(value) if effect.absolute else value, pair.runs)

    kind = variant if effect.edit == "attack" else "plain"
    pairs = _pairs(evidence, seed, effect.edit, effect.label, effect.sites, effect.split, when, kind)
    return _mean(None if pair is None else change(pair) for pair in pairs)


def _learned(effect: LearnedFraction, evidence: Evidence, seed: int, when: When, variant: str) -> EffectReading | None:
    if when == "matched_train":
        return None  # where both came down to the same train loss, both learned the same: a fraction of about 1
    pairs = _pairs(evidence, seed, "attack", effect.label, effect.sites, effect.split, when, variant)
    words_alone = evidence.measured(seed, None, "unigram_loss_nats", effect.split)
    above = isinstance(effect, AboveUnigram)
    return _mean(_fraction(pair, words_alone if above else None if pair is None else pair.initial) for pair in pairs)


def _fraction(pair: LossPair | None, start: float | None) -> EffectReading | None:
    """How far from `start` to the baseline the edited run came; null where the baseline itself came nowhere."""
    if pair is None or start is None or start <= pair.baseline:
        return None
    return EffectReading((start - pair.edited) / (start - pair.baseline), pair.runs)


def _pairs(
    evidence: Evidence,
    seed: int,
    edit: str,
    label: str | None,
    sites: Sequence[str],
    split: str,
    when: When,
    variant: str,
) -> list[LossPair | None]:
    base = evidence.baseline(seed)
    edited = (evidence.run(seed, edit, label, site, variant) for site in sites)
    return [_pair(run, base, split, when) for run in edited]


def _pair(edited: TrainedRun | None, base: TrainedRun | None, split: str, when: When) -> LossPair | None:
    """Both losses on `split`; the baseline is read no later than the last epoch of the edited run."""
    if edited is None or base is None or not {"train", "valid"} <= edited.curves.keys() & base.curves.keys():
        return None
    last = len(edited.curves[split]) - 1
    if len(base.curves[split]) <= last:
        return None
    (train, valid), (base_train, base_valid) = (
        (run.curves["train"][: last + 1], run.curves["valid"][: last + 1]) for run in (edited, base)
    )
    mine, other = (train, base_train) if split == "train" else (valid, base_valid)
    runs = frozenset((edited.run, base.run))
    if when == "final":
        return LossPair(mine[-1], other[-1], other[0], runs)
    if when == "best_valid":
        return LossPair(mine[_best(valid)], other[_best(base_valid)], other[0], runs)
    if split == "train":
        return None
    level = max(train[-1], base_train[-1])
    return LossPair(at_level(train, valid, level), at_level(base_train, base_valid, level), other[0], runs)


def _best(valid: LossCurve) -> int:
    """The trained epoch with the lowest validation loss, the first of several."""
    return 1 + int(np.argmin(valid[1:]))


def at_level(train: LossCurve, valid: LossCurve, level: float) -> float:
    """The validation loss where the train curve first comes down to `level`, linear between epochs."""
    reached = int(np.flatnonzero(train <= level)[0])
    if reached == 0:
        return float(valid[0])
    before = reached - 1
    share = (train[before] - level) / (train[before] - train[reached])
    return float(valid[before] + share * (valid[reached] - valid[before]))


def _curve_distance(effect: CurveDistance, evidence: Evidence, seed: int, variant: str) -> EffectReading | None:
    def distance(layer: int, label: str) -> EffectReading | None:
        runs = [evidence.run(seed, "attack", label, f"{c}@{layer}", variant) for c in effect.pair]
        curves = [run.curves[effect.split] for run in runs if run is not None and effect.split in run.curves]
        if len(curves) < 2 or len(curves[0]) != len(curves[1]):
            return None
        x, y = (_stretched(c) for c in curves) if effect.standardised else curves
        return EffectReading(float(np.mean(np.abs(x - y)[1:])), frozenset(run.run for run in runs if run is not None))

    return _mean(distance(layer, label) for layer, label in product(effect.layers, effect.labels))


def _stretched(curve: LossCurve) -> LossCurve:
    """The curve between 0 (its lowest) and 1 (its highest); a flat one never came down, so it is 1 throughout."""
    low, high = curve.min(), curve.max()
    return (curve - low) / (high - low) if high > low else np.ones_like(curve)


def _site_mean(effect: SiteMean, evidence: Evidence, seed: int) -> EffectReading | None:
    def one(site: str) -> EffectReading | None:
        value = evidence.measured(seed, site, effect.measure, effect.split)
        base = evidence.baseline(seed)
        if value is None or base is None:
            return None
        return EffectReading(abs(value) if effect.absolute else value, frozenset((base.run,)))

    return _mean(one(site) for site in effect.sites)


def _rewind_rise(effect: RewindRise | RewindChange, evidence: Evidence, seed: int) -> EffectReading | None:
    base = evidence.baseline(seed)
    if base is None or not {effect.split, "train"} <= base.curves.keys():
        return None
    final = base.curves[effect.split][-1]
    scale = 1.0 if isinstance(effect, RewindChange) else base.curves["train"][-1]

    def one(site: str) -> EffectReading | None:
        loss = evidence.measured(seed, site, "rewind_loss_nats", effect.split, 0.0)
        return None if loss is None else EffectReading((loss - final) / scale, frozenset((base.run,)))

    return _mean(one(site) for site in effect.sites)


def _mean(readings: Iterable[EffectReading | None]) -> EffectReading | None:
    return _join(list(readings), lambda values: float(np.mean(values)))


def _join(readings: Sequence[EffectReading | None], combine: Callable[[list[float]], float]) -> EffectReading | None:
    """One EffectReading of several, or null when any of them is missing."""
    whole = [reading for reading in readings if reading is not None]
    if len(whole) < len(readings) or not whole:
        return None
    return EffectReading(combine([r.value for r in whole]), frozenset().union(*(r.runs for r in whole)))
