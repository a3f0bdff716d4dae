"""Readings: final epoch, best validation epoch, matched train loss, learned fractions and curve distances by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from tests.planted import LAYERS, planted
from tests.synthetic import UNIGRAM, with_curve

from trisect.claims import evidence
from trisect.core.claim import AboveUnigram, LearnedFraction, LossChange, RewindRise, SiteMean
from trisect.papers import submodules


def test_a_baseline_that_trained_longer_is_read_at_the_attacks_last_epoch():
    tables = planted({}, seeds=(1, 2), epochs=8, spread=0.0)
    longer = [6.0, 5.5, 5.0, 4.5, 4.0, 3.5, 3.4, 3.3, 3.2, 1.0, 0.5]
    base = with_curve(with_curve(tables, "baseline", "train", longer), "baseline", "valid", longer)
    runs = base["runs"].with_columns(
        pl.when(pl.col("edit") == "none").then(10).otherwise(pl.col("epochs")).alias("epochs")
    )
    held = evidence.gather({**base, "runs": runs})
    own = held.trained[evidence._EditedRun(1, "attack", "pos", "k@1")].curves["train"][-1]
    reading = evidence.read(submodules.CLAIMS[0].parts[0].effect, held, 1)
    assert reading is not None
    assert reading.value == pytest.approx(own - 3.2)


def _curves(train, valid, base_train, base_valid):
    tables = planted({}, seeds=(1, 2, 3), epochs=4, spread=0.01)
    for slug, split, values in (
        ("attack-pos-k@1", "train", train),
        ("attack-pos-k@1", "valid", valid),
        ("baseline", "train", base_train),
        ("baseline", "valid", base_valid),
    ):
        tables = with_curve(tables, slug, split, values)
    return evidence.gather(tables)


def test_the_three_readings_worked_by_hand():
    held = _curves([6, 5, 4.5, 4, 3.8], [6, 5.2, 5, 4.9, 4.8], [6, 4, 3, 2, 1], [6, 4.6, 4.9, 5.5, 6.2])
    effect = LossChange("attack", ("k@1",), "valid", "pos")
    found = [evidence.read(effect, held, 1, when) for when in ("final", "best_valid", "matched_train")]
    # matched: level 3.8; the baseline passes it a fifth of the way from epoch 1 (4.0, 4.6) to epoch 2 (3.0, 4.9)
    assert [r and r.value for r in found] == pytest.approx([4.8 - 6.2, 4.8 - 4.6, 4.8 - 4.66])
    train = replace(effect, split="train")
    found = [evidence.read(train, held, 1, when) for when in ("final", "best_valid")]
    assert [r and r.value for r in found] == pytest.approx([2.8, -0.2])
    assert evidence.read(train, held, 1, "matched_train") is None


def test_matched_train_loss_reads_the_earlier_crossing_and_initialisation_itself():
    train, valid = np.array([6.0, 4.0, 4.5, 2.0]), np.array([6.0, 5.0, 5.5, 7.0])
    assert evidence._at_level(train, valid, 4.2) == pytest.approx(5.1)
    assert evidence._at_level(train, valid, 6.5) == 6.0
    assert evidence._at_level(train, valid, 4.0) == 5.0


def test_learned_fractions_from_initialisation_and_from_unigrams():
    held = _curves([6, 5, 5, 5, 5.5], [6, 5, 5, 5, 5], [6, 5, 4, 3, 3], [6, 5, 4, 4, 4])
    effect = LearnedFraction("pos", ("k@1",), "train")
    reading = evidence.read(effect, held, 1)
    assert reading is not None
    assert reading.value == pytest.approx(0.5 / 3)
    above = evidence.read(AboveUnigram("pos", ("k@1",), "train"), held, 1)
    assert above is not None
    assert above.value == pytest.approx((UNIGRAM["train"] - 5.5) / (UNIGRAM["train"] - 3))


def test_a_learned_fraction_of_a_baseline_that_learned_nothing_is_missing():
    held = _curves([6, 5, 5, 5, 5], [6, 5, 5, 5, 5], [6, 6, 6, 6, 6], [6, 6, 6, 6, 6])
    assert evidence.read(LearnedFraction("pos", ("k@1",), "train"), held, 1) is None


def test_curve_distance_worked_by_hand():
    tables = planted({}, seeds=(1, 2), epochs=2)
    flat, steep, halfway = [6, 6, 6], [6, 5, 2], [6, 4, 4]
    for label in ("pos", "dep"):
        for layer in LAYERS:
            for component, curve in (("v", flat), ("k", steep), ("q", halfway)):
                tables = with_curve(tables, f"attack-{label}-{component}@{layer}", "train", curve)
    nine = next(c for c in submodules.CLAIMS if c.id == "A-9").deciding()
    held = evidence.gather(tables)
    found = [r.value for part in nine if (r := evidence.read(part.effect, held, 1)) is not None]
    raw = {"kv": (1 + 4) / 2, "qv": (2 + 2) / 2, "kq": (1 + 2) / 2}
    stretched = {"kv": (0.25 + 1) / 2, "qv": 1.0, "kq": 0.75 / 2}
    expected = [d[pair] - d["kq"] for d in (raw, stretched) for pair in ("kv", "qv")]
    assert found == pytest.approx(expected)


def test_a_rewound_rise_is_a_share_of_that_seeds_own_final_train_loss():
    tables = planted({"rewind-v@2": 0.3, "rewind-v@3": 0.5}, seeds=(1, 2), spread=0.0)
    held = evidence.gather(tables)
    for seed in (1, 2):
        base = held.baseline(seed)
        reading = evidence.read(RewindRise(("v@2", "v@3")), held, seed)
        assert base is not None
        assert reading is not None
        assert reading.value == pytest.approx(0.4 / base.curves["train"][-1])


def test_sizes_are_taken_site_by_site_before_the_mean():
    planted_effects = {"freeze-k@1/train": 0.3, "freeze-q@1/train": -0.3, "rewind-k@1": 0.3, "rewind-q@1": -0.3}
    held = evidence.gather(planted(planted_effects, seeds=(1, 2), spread=0.0))
    change = LossChange("freeze", ("k@1", "q@1"), "train")
    area = SiteMean("rewind_area", ("k@1", "q@1"))
    for effect, size in ((change, 0.3), (area, 0.3 * np.mean(np.linspace(0, 1, 101) ** 2))):
        signed, absolute = (evidence.read(replace(effect, absolute=a), held, 1) for a in (False, True))
        assert [r and r.value for r in (signed, absolute)] == pytest.approx([0.0, size], abs=1e-9)
