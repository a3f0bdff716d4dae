"""Verdicts: the columns of the table, Holm over the source, and every rule that bars a verdict."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from tests.planted import ORDER, SEEDS, TRUTHS, judged, parts, planted, whole, without
from tests.synthetic import FINAL, INIT, UNIGRAM, about, diverged, study_tables, with_curve

from trisect import claims
from trisect.claims import evidence, verdicts
from trisect.claims import evidence as evidence_room
from trisect.claims.verdicts import TestedPart as OwnPart
from trisect.claims.verdicts import decide
from trisect.core.claim import LossChange, Part
from trisect.core.tables import SCHEMAS
from trisect.papers import submodules
from trisect.stats.paired import summary, t_tested
from trisect.stats.tested import holm


def test_the_numbers_of_a_part_are_those_of_the_metrics():
    tables = planted({"attack-pos-k@1/train": -0.1}, seeds=(1, 2, 3), spread=0.05)
    row = parts(judged(tables, (1, 2, 3)), "A-1").row(0, named=True)
    final = tables["metrics"].filter(
        (pl.col("name") == "loss_nats") & (pl.col("split") == "train") & (pl.col("epoch") == 4)
    )
    differences = []
    for seed in (1, 2, 3):
        mine = final.filter(pl.col("run").str.starts_with(f"attack-pos-k@1-s{seed}-"))["value"].item()
        differences.append(mine - final.filter(pl.col("run").str.starts_with(f"baseline-s{seed}-"))["value"].item())
    assert row["effect"] == pytest.approx(np.mean(differences))
    assert row["spread"] == pytest.approx(np.std(differences, ddof=1))
    assert (row["low"] + row["high"]) / 2 == pytest.approx(row["effect"])
    assert row["low_family"] < row["low"] < row["high"] < row["high_family"]
    assert row["p_holm"] is None
    assert row["verdict"] is None
    assert len(json.loads(row["runs"])) == 6


def test_p_holm_is_holm_over_the_fifteen():
    table = judged(study_tables(SEEDS, spread=0.1), SEEDS).filter(pl.col("part").is_null())
    assert table["claim"].to_list() == ORDER
    assert table["p_holm"].to_list() == pytest.approx(list(holm(table["p"].to_numpy())))
    verdict = table["verdict"].to_list()
    assert [v in ("supported", "refuted") for v in verdict] == [p < 0.05 for p in table["p_holm"]]
    assert [r is None for r in table["reason"]] == [v in ("supported", "refuted") for v in verdict]


def test_the_table_has_the_columns_of_its_schema_and_is_the_same_for_the_same_rows_in_any_order():
    tables = planted(TRUTHS["A-1"], seeds=(1, 2, 3))
    table = judged(tables, (1, 2, 3))
    assert dict(table.schema) == dict(pl.Schema(SCHEMAS["claims"]))
    mixed = {name: frame.sample(fraction=1.0, shuffle=True, seed=1) for name, frame in tables.items()}
    assert judged(mixed, (1, 2, 3)).equals(table)


def test_one_seed_decides_nothing_and_two_can_be_tested():
    table = judged(planted(TRUTHS["A-8"], seeds=(1,)), (1,))
    row = whole(table, "A-8")
    assert (row["p"], row["p_holm"], row["verdict"], row["n"]) == (1.0, 1.0, "inconclusive", 1)
    assert row["reason"] == verdicts.ONE_SEED
    assert row["seeds_needed"] is None
    assert row["low"] is None
    assert parts(table, "A-8")["p"].null_count() == 4
    assert parts(table, "A-8")["reason"].to_list() == [verdicts.ONE_SEED] * 4
    two = whole(judged(planted(TRUTHS["A-8"], seeds=(1, 2)), (1, 2)), "A-8")
    assert two["p"] < 1
    assert two["reason"] != verdicts.ONE_SEED


def test_no_spread_is_no_evidence():
    tables = planted(TRUTHS["A-1"], spread=0.0)
    row = whole(judged(tables), "A-1")
    assert (row["p"], row["verdict"], row["reason"]) == (1.0, "inconclusive", verdicts.NO_SPREAD)
    assert row["seeds_needed"] is None
    assert abs(row["effect"]) == pytest.approx(0.3, abs=1e-9)


def test_a_part_without_a_spread_is_not_the_weakest_beside_one_that_speaks_against_the_claim():
    part = Part("x", LossChange("freeze", ("k@1",), "train"), "above", 0.9, "of AUROC", "No reason.")

    def tested(values):
        return OwnPart(part, t_tested(summary(values), "above", 0.9, 2, verdicts.NO_SPREAD), None)

    same, low, high = tested([1.0] * 5), tested([0.2, 0.7, 0.3, 0.6, 0.4]), tested([0.99, 0.98, 0.97, 0.99, 0.98])
    assert decide([(same, low, high)], verdicts.NOT_MEASURED)[0].weakest is low
    assert decide([(same, high)], verdicts.NOT_MEASURED)[0].weakest is same


def test_an_undecided_claim_says_how_many_seeds_would_have_decided_it():
    row = whole(judged(planted(TRUTHS["A-2"], seeds=(1, 2, 3), spread=0.2), (1, 2, 3)), "A-2")
    assert row["verdict"] == "inconclusive"
    assert row["seeds_needed"] > 3
    assert whole(judged(planted(TRUTHS["A-2"])), "A-2")["seeds_needed"] is None


@pytest.mark.parametrize(
    ("claim", "slug", "gone"),
    [("A-1", "attack-pos-k@1-", True), ("A-2", "attack-pos-k@3-", True), ("A-1", "attack-pos-k@2-", False)],
)
def test_a_claim_is_not_measured_exactly_when_one_of_its_runs_is_missing(claim, slug, gone):
    row = whole(judged(without(planted(TRUTHS[claim]), slug)), claim)
    if gone:
        assert (row["verdict"], row["reason"], row["n"]) == ("not tested", verdicts.NOT_MEASURED, 0)
        assert (row["p"], row["p_holm"], row["effect"]) == (1.0, 1.0, None)
    else:
        assert (row["verdict"], row["n"]) == ("supported", len(SEEDS))


@pytest.mark.parametrize(("kept", "measured"), [("attack", ORDER[:9]), ("freeze", ["A-13"]), ("none", ORDER[9:12])])
def test_a_study_of_one_method_measures_its_claims_and_no_others(kept, measured):
    tables = planted({})
    for other in {"attack", "freeze"} - {kept}:
        tables = without(tables, other)
    if kept != "none":
        site_free = pl.col("site").is_null() | (pl.col("site") == "attn@all")
        tables = {**tables, "sites": tables["sites"].filter(site_free)}
    table = judged(tables)
    found = [claim for claim in ORDER if whole(table, claim)["reason"] != verdicts.NOT_MEASURED]
    assert found == measured


def test_a_missing_claim_stays_in_the_family():
    tables = without(planted(TRUTHS["A-1"], spread=0.03), "attack-dep")
    row = whole(judged(tables), "A-1")
    others = judged(tables).filter(pl.col("part").is_null() & (pl.col("claim") != "A-1"))["p"].to_list()
    assert row["p_holm"] == pytest.approx(holm([row["p"], *others])[0])
    assert others.count(1.0) >= 4


def test_fewer_layers_leave_the_claims_about_the_others_unmeasured():
    tables = planted(TRUTHS["A-1"], layers=3)
    table = judged(tables)
    assert whole(table, "A-1")["verdict"] == "supported"
    assert whole(table, "A-3")["reason"] == verdicts.NOT_MEASURED


def test_only_attacks_of_strength_one_enter():
    tables = planted(TRUTHS["A-1"])
    stronger = tables["runs"].with_columns(
        pl.when(pl.col("site") == "k@1").then(pl.col("strength") * 3).otherwise(pl.col("strength")).alias("strength")
    )
    assert whole(judged({**tables, "runs": stronger}), "A-1")["reason"] == verdicts.NOT_MEASURED
    assert whole(judged(tables), "A-1")["reason"] is None


@pytest.mark.parametrize(
    ("cost", "baseline", "in_use"),
    [(0.5, 0.0, True), (0.03, 0.0, True), (0.01, 0.0, False), (-0.5, 0.0, False), (0.5, 2.0, False)],
)
def test_no_verdict_unless_both_preconditions_hold_in_every_seed(cost, baseline, in_use):
    tables = planted({**TRUTHS["A-8"], "self_only": cost}, spread=0.001)
    if baseline:
        shifted = pl.when(pl.col("measure") == "unigram_loss_nats").then(pl.col("value") - baseline)
        tables["sites"] = tables["sites"].with_columns(shifted.otherwise(pl.col("value")).alias("value"))
    checks = claims.preconditions(tables)
    assert [check.margin for check in checks] == [0.0, 0.02]
    assert all(check.ok for check in checks) == in_use
    table = judged(tables).filter(pl.col("part").is_null())
    if in_use:
        assert whole(table, "A-8")["verdict"] == "supported"
    else:
        known = table.filter(pl.col("reason") != verdicts.NOT_MEASURED)
        assert len(known) > 5
        assert set(known["verdict"]) == {"inconclusive"}
        assert set(known["reason"]) == {verdicts.NOT_IN_USE}
        assert table["p"].to_list() == [1.0] * 15


def test_a_precondition_is_about_every_seed_not_about_the_mean():
    tables = planted(TRUTHS["A-8"])
    subject = tables["runs"].filter((pl.col("edit") == "none") & (pl.col("seed") == 3))["run"].item()
    mine = (pl.col("measure") == "self_only_loss_nats") & (pl.col("subject") == subject)
    low = tables["sites"].with_columns(pl.when(mine).then(2.5).otherwise(pl.col("value")).alias("value"))
    checks = claims.preconditions({**tables, "sites": low})
    assert (checks[1].effect or 0.0) > 0.02
    assert [check.ok for check in checks] == [True, False]
    gone = {**tables, "sites": tables["sites"].filter(~mine)}
    assert [(check.ok, check.n) for check in claims.preconditions(gone)] == [(True, 6), (False, 5)]
    assert whole(judged(gone), "A-8")["reason"] == verdicts.NOT_CHECKED


def test_a_baseline_that_diverged_fails_both_preconditions_in_its_seed():
    tables = planted(TRUTHS["A-8"])
    run = tables["runs"].filter((pl.col("edit") == "none") & (pl.col("seed") == 3))["run"].item()
    mine = (pl.col("run") == run) & (pl.col("split") == "valid") & (pl.col("epoch") == 3)
    blown = pl.when(mine & (pl.col("name") == "loss_nats")).then(2.0).otherwise(pl.col("value")).alias("value")
    broken = diverged({**tables, "metrics": tables["metrics"].with_columns(blown)}, run, 3)
    for check in claims.preconditions(broken):  # with a last loss so low that both losses are far above it
        assert (check.ok, check.diverged) == (False, (3,))
        assert check.sentence.endswith("The baseline diverged in seed 3.")
    row = whole(judged(broken), "A-8")
    assert (row["verdict"], row["reason"], row["p"]) == ("inconclusive", verdicts.BASELINE_DIVERGED, 1.0)


def test_a_precondition_says_what_is_required_and_then_what_was_found():
    tables = planted({"self_only": 0.01}, spread=0.0001)
    first, second = claims.preconditions(tables)
    assert first.sentence.startswith("Required: in every seed the baseline's final validation loss is below ")
    assert first.sentence.endswith(" Found so in every seed.")
    assert second.sentence.startswith("Required: in every seed, letting each position see only itself costs ")
    assert second.sentence.endswith(" Not so in seeds 1, 2, 3, 4, 5, 6.")
    empty = {name: frame.clear() for name, frame in tables.items()}
    assert claims.preconditions(empty)[0].sentence.endswith(" Not measured.")
    gone = {**tables, "sites": tables["sites"].filter(pl.col("measure") != "unigram_loss_nats")}
    assert claims.preconditions(gone)[0].sentence.endswith(" Not measured in seeds 1, 2, 3, 4, 5, 6.")


def test_preconditions_give_mean_and_interval():
    check = claims.preconditions(planted({"self_only": 0.5}, spread=0.01))[1]
    assert check.low is not None
    assert check.high is not None
    assert check.low < (check.effect or 0.0) < check.high
    assert check.effect == pytest.approx(0.5, abs=0.02)
    empty = {name: frame.clear() for name, frame in planted({}, seeds=(1,)).items()}
    assert [(c.ok, c.n, c.effect, c.low) for c in claims.preconditions(empty)] == [(False, 0, None, None)] * 2


@pytest.mark.parametrize(("floored", "barred"), [(7, False), (8, True)])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_criticality_is_at_its_floor_when_more_than_half_of_a_contrasts_sites_are(floored, barred, value):
    """The contrast over all 15 sites, its slope: 7 of 15 is not more than half, 8 is."""
    tables = planted(TRUTHS["A-11"])
    chosen = ["q@1", "q@2", "q@3", "k@1", "k@2", "k@3", "v@1", "v@2"][:floored]
    mine = (pl.col("measure") == "criticality") & pl.col("site").is_in(chosen)
    sites = tables["sites"].with_columns(pl.when(mine).then(value).otherwise(pl.col("value")).alias("value"))
    table = judged({**tables, "sites": sites})
    slope = parts(table, "A-11").filter(pl.col("part") == "criticality, slope over layers").row(0, named=True)
    assert (slope["reason"] == "measure at its floor") == barred
    area = parts(table, "A-11").filter(pl.col("part").str.starts_with("rewinding area"))
    assert area["reason"].null_count() == 8
    if barred:
        row = whole(table, "A-11")
        assert (row["verdict"], row["reason"], row["p"]) == ("inconclusive", "measure at its floor", 1.0)


def test_criticality_with_another_epsilon_is_not_the_papers():
    tables, notes = planted(TRUTHS["A-11"]), about(SEEDS)
    assert whole(claims.judge(tables, notes), "A-11")["verdict"] == "supported"
    notes["experiment"]["rewind"]["epsilon"] = 0.02
    assert whole(claims.judge(tables, notes), "A-11")["reason"] == verdicts.OTHER_EPSILON
    notes["experiment"]["rewind"] = None
    assert whole(claims.judge(tables, notes), "A-11")["reason"] is None


def test_a_diverged_run_enters_with_its_last_finite_loss_clipped_at_initialisation_and_is_counted():
    tables = planted(TRUTHS["A-1"])
    run = tables["runs"].filter(pl.col("run").str.starts_with("attack-pos-k@1-s2-"))["run"].item()
    for last, expected in ((4.5, 4.5), (50.0, INIT["train"])):
        mine = (pl.col("run") == run) & (pl.col("split") == "train") & (pl.col("epoch") == 3)
        blown = pl.when(mine & (pl.col("name") == "loss_nats")).then(last).otherwise(pl.col("value")).alias("value")
        broken = diverged({**tables, "metrics": tables["metrics"].with_columns(blown)}, run, 3)
        held = evidence_room.gather(broken)
        reading = evidence.read(submodules.CLAIMS[0].parts[0].effect, held, 2)
        base = held.baseline(2)
        assert base is not None
        assert reading is not None
        assert reading.value == pytest.approx(expected - base.curves["train"][-1])
        table = judged(broken)
        assert whole(table, "A-1")["diverged"] == 1
        assert run in json.loads(whole(table, "A-1")["runs"])
        assert whole(table, "A-2")["diverged"] == 0


def test_a_finished_run_that_lacks_an_epoch_is_missing_not_guessed():
    tables = planted(TRUTHS["A-1"])
    run = tables["runs"].filter(pl.col("run").str.starts_with("attack-pos-k@1-s2-"))["run"].item()
    cut = tables["metrics"].filter(~((pl.col("run") == run) & (pl.col("epoch") > 3)))
    assert whole(judged({**tables, "metrics": cut}), "A-1")["n"] == 5


@pytest.mark.parametrize(("best", "explained"), [(4.9, False), (4.2, True)])
def test_a_gain_that_turns_round_at_the_best_epoch_is_explained_by_early_stopping(best, explained):
    """The attack ends lower on validation; the baseline at its own best epoch was lower still, or was not."""
    tables = planted({}, seeds=(1, 2, 3, 4, 5), epochs=4, spread=0.004)
    for site in ("k@2", "k@3"):
        tables = with_curve(tables, f"attack-pos-{site}", "train", [6, 5, 4.5, 4.2, 4.0])
        tables = with_curve(tables, f"attack-pos-{site}", "valid", [6, 5.2, 5, 4.8, 4.7])
    tables = with_curve(tables, "baseline", "train", [6, 4.1, 3.5, 3.2, 3.0])
    tables = with_curve(tables, "baseline", "valid", [6, best, best + 0.1, best + 0.5, best + 1.0])
    table = judged(tables, (1, 2, 3, 4, 5))
    train, valid = parts(table, "A-2").to_dicts()
    assert valid["effect"] < -0.02
    assert valid["early_stopping"] is explained
    assert (valid["effect_best_valid"] > -0.02) == explained
    assert (train["early_stopping"], train["effect_matched_train"]) == (None, None)
    assert whole(table, "A-2")["early_stopping"] is explained


def test_what_stays_unlearned_is_not_explained_by_early_stopping():
    """At matched train loss an attack that left 5 % above word frequencies has learned as much as the baseline, whatever is true."""
    sizes = {split: 0.95 * (UNIGRAM[split] - FINAL[split]) for split in UNIGRAM}
    effects = {f"attack-dep-v@{layer}/{split}": size for layer in range(1, 6) for split, size in sizes.items()}
    table = judged(planted(effects))
    row = whole(table, "A-8")
    assert row["verdict"] == "supported"
    assert row["effect"] == pytest.approx(0.05, abs=0.02)
    assert row["early_stopping"] is False
    shown = parts(table, "A-8")
    assert shown["effect_matched_train"].null_count() == len(shown) == 4
    assert shown["effect_best_valid"].null_count() == 0


def test_a_claim_without_validation_has_no_early_stopping_flag():
    table = judged(planted(TRUTHS["A-10"]))
    for claim in ("A-7", "A-9", "A-10", "A-11", "A-12"):
        assert whole(table, claim)["early_stopping"] is None
        assert whole(table, claim)["effect_matched_train"] is None
