"""Verdicts: readings by hand, the columns of the table, Holm over the source, and every rule that bars a verdict."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from tests.planted import (
    LAYERS,
    ORDER,
    SEEDS,
    TRUTHS,
    attack,
    every,
    freeze,
    judged,
    ladder,
    parts,
    planted,
    rises,
    whole,
    without,
)
from tests.synthetic import FINAL, INIT, UNIGRAM, about, diverged, study_tables, with_curve

from trisect import claims
from trisect.claims import evidence, verdicts
from trisect.claims.reasons import Reason
from trisect.claims.verdicts import TestedPart as OwnPart
from trisect.claims.verdicts import decide
from trisect.core.claim import AboveUnigram, LearnedFraction, LossChange, Part, RewindRise, SiteMean
from trisect.core.tables import SCHEMAS, frame
from trisect.papers import submodules
from trisect.report.format import verdict_lines
from trisect.stats.paired import summary, t_result
from trisect.stats.significance import holm


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


def test_p_holm_is_holm_over_the_claims_that_were_tested():
    table = judged(study_tables(SEEDS, spread=0.1), SEEDS).filter(pl.col("part").is_null())
    assert table["claim"].to_list() == ORDER
    tested = table["verdict"] != "not tested"
    assert table["claim"].filter(~tested).to_list() == ["A-15"]
    assert table["p_holm"].filter(tested).to_list() == pytest.approx(list(holm(table["p"].filter(tested).to_numpy())))
    assert table["p_holm"].filter(~tested).to_list() == [1.0]
    verdict = table["verdict"].to_list()
    assert [v in ("supported", "refuted") for v in verdict] == [p < 0.05 for p in table["p_holm"]]
    assert [r is None for r in table["reason"]] == [v in ("supported", "refuted") for v in verdict]


def test_the_table_has_the_columns_of_its_schema_and_is_the_same_for_the_same_rows_in_any_order():
    tables = planted(TRUTHS["A-1"], seeds=(1, 2, 3))
    table = judged(tables, (1, 2, 3))
    assert dict(table.schema) == dict(pl.Schema(SCHEMAS["claims"]))
    mixed = {name: table.sample(fraction=1.0, shuffle=True, seed=1) for name, table in tables.items()}
    assert judged(mixed, (1, 2, 3)).equals(table)


def test_fewer_than_five_seeds_decide_nothing():
    table = judged(planted(TRUTHS["A-8"], seeds=(1,)), (1,))
    row = whole(table, "A-8")
    assert (row["p"], row["p_holm"], row["verdict"], row["n"]) == (1.0, 1.0, "inconclusive", 1)
    assert row["reason"] == str(Reason("single seed"))
    assert row["seeds_needed"] is None
    assert row["low"] is None
    assert parts(table, "A-8")["p"].null_count() == 4
    assert parts(table, "A-8")["reason"].to_list() == [str(Reason("single seed"))] * 4
    for seeds in ((1, 2), (1, 2, 3, 4)):
        few = whole(judged(planted(TRUTHS["A-8"], seeds=seeds), seeds), "A-8")
        assert (few["p"], few["verdict"]) == (1.0, "inconclusive")
        assert few["reason"] == f"5 seeds are asked for, {len(seeds)} given"
    assert whole(judged(planted(TRUTHS["A-8"], seeds=SEEDS[:5]), SEEDS[:5]), "A-8")["verdict"] == "supported"


def test_no_difference_is_surer_than_that_of_a_baseline_trained_twice():
    """Five seeds that agree to 0.0003 nats: the standard error is 0.005, so 0.012 nats beyond the margin decide nothing, 0.04 do."""
    least = evidence.REPEATED_NATS * 5**0.5
    for beyond, verdict in ((0.012, "inconclusive"), (0.04, "supported")):
        size = 0.02 + beyond
        tables = planted(attack("pos", ["k@1"], -size, size), seeds=SEEDS[:5], spread=0.0003)
        table = judged(without(tables, "freeze"), SEEDS[:5])
        assert whole(table, "A-1")["verdict"] == verdict
        assert parts(table, "A-1")["spread"].to_list() == pytest.approx([least] * 2)
    steps = ladder("midstage", step=0.01) | rises(0.3, 0.005)
    slope = parts(judged(planted(steps, spread=0.0001)), "A-12").filter(pl.col("part").str.contains("slope"))
    least = evidence.REPEATED_NATS * len(SEEDS) ** 0.5
    assert slope["spread"].item() == pytest.approx(0.3 * least)  # weights of 0.2, 0.1, 0, 0.1 and 0.2, halved
    share = parts(judged(planted(rises(0.3, 0.005), spread=0.0001)), "A-10")["spread"][1]
    assert share == pytest.approx(least / FINAL["train"], rel=0.01)


def test_no_spread_is_no_evidence():
    tables = planted(TRUTHS["A-1"], spread=0.0)
    row = whole(judged(tables), "A-1")
    assert (row["p"], row["verdict"], row["reason"]) == (1.0, "inconclusive", str(Reason("no spread", unit="seed")))
    assert row["seeds_needed"] is None
    assert abs(row["effect"]) == pytest.approx(0.3, abs=1e-9)


def test_a_part_without_a_spread_is_not_the_weakest_beside_one_that_speaks_against_the_claim():
    part = Part("x", LossChange("freeze", ("k@1",), "train"), "above", 0.9, "of AUROC", "No reason.")

    def tested(values):
        return OwnPart(part, t_result(summary(values), "above", 0.9, 2, Reason("no spread", unit="seed")), None)

    same, low, high = tested([1.0] * 5), tested([0.2, 0.7, 0.3, 0.6, 0.4]), tested([0.99, 0.98, 0.97, 0.99, 0.98])
    assert decide([(same, low, high)], (verdicts.NOT_MEASURED,))[0].weakest is low
    assert decide([(same, high)], (verdicts.NOT_MEASURED,))[0].weakest is same


@pytest.mark.parametrize(
    ("claim", "slug", "gone"),
    [("A-1", "attack-pos-k@1-", True), ("A-2", "attack-pos-k@3-", True), ("A-1", "attack-pos-k@2-", False)],
)
def test_a_claim_is_not_measured_exactly_when_one_of_its_runs_is_missing(claim, slug, gone):
    row = whole(judged(without(planted(TRUTHS[claim]), slug)), claim)
    if gone:
        assert (row["verdict"], row["reason"], row["n"]) == ("not tested", str(verdicts.NOT_MEASURED), 0)
        assert (row["p"], row["p_holm"], row["effect"]) == (1.0, 1.0, None)
    else:
        assert (row["verdict"], row["n"]) == ("supported", len(SEEDS))


@pytest.mark.parametrize(
    ("kept", "measured"), [("attack", ORDER[:9]), ("freeze", ["A-13", "A-14"]), ("none", [*ORDER[9:12], "A-14"])]
)
def test_a_study_of_one_method_measures_its_claims_and_no_others(kept, measured):
    tables = planted({})
    for other in {"attack", "freeze"} - {kept}:
        tables = without(tables, other)
    if kept != "none":
        site_free = pl.col("site").is_null() | (pl.col("site") == "attn@all")
        tables = {**tables, "sites": tables["sites"].filter(site_free)}
    table = judged(tables)
    found = [claim for claim in ORDER if whole(table, claim)["verdict"] != "not tested"]
    assert found == measured
    if "A-14" in found:  # it is about freezing and rewinding
        assert whole(table, "A-14")["verdict"] == "inconclusive"


def test_a_claim_of_which_a_part_is_missing_can_be_refuted_and_not_supported():
    tables = without(planted(TRUTHS["A-3"]), "attack-pos-k@5")
    row = whole(judged(tables), "A-3")
    assert (row["verdict"], row["effect"], row["n"]) == ("inconclusive", None, len(SEEDS))
    assert row["reason"] == "2 of 4 parts, supported; POS at k@5, fraction above unigram (train) and 1 more not run"
    assert row["p_holm"] < 0.05
    turned = without(planted({key: -size for key, size in TRUTHS["A-3"].items()}), "attack-pos-k@5")
    row = whole(judged(turned), "A-3")
    assert (row["verdict"], row["reason"], row["n"]) == ("refuted", None, len(SEEDS))
    assert row["effect"] in parts(judged(turned), "A-3")["effect"].drop_nulls().to_list()


def test_only_attacks_of_strength_one_enter():
    tables = planted(TRUTHS["A-1"])
    stronger = tables["runs"].with_columns(
        pl.when(pl.col("site") == "k@1").then(pl.col("strength") * 3).otherwise(pl.col("strength")).alias("strength")
    )
    assert whole(judged({**tables, "runs": stronger}), "A-1")["reason"] == str(verdicts.NOT_MEASURED)
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
        known = table.filter(pl.col("reason") != str(verdicts.NOT_MEASURED))
        assert len(known) > 5
        assert set(known["verdict"]) == {"inconclusive"}
        assert set(known["reason"]) == {str(Reason("attention not in use"))}
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
    assert whole(judged(gone), "A-8")["reason"] == str(Reason("attention not checked"))


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
    assert (row["verdict"], row["reason"], row["p"]) == ("inconclusive", str(Reason("baseline diverged")), 1.0)


@pytest.mark.parametrize(("floored", "barred"), [(7, False), (8, True)])
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.usefixtures("quiet")
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
    assert whole(table, "A-11")["verdict"] == "supported"  # by the area; criticality stands beside it


def test_criticality_with_another_epsilon_is_not_the_papers():
    tables, notes = planted(TRUTHS["A-11"]), about(SEEDS)

    def reasons():
        found = parts(claims.judge(tables, notes), "A-11").filter(pl.col("part").str.starts_with("criticality"))
        return set(found["reason"])

    assert reasons() == {None}
    notes["experiment"]["rewind"]["epsilon"] = 0.02
    assert reasons() == {str(Reason("other epsilon"))}
    notes["experiment"]["rewind"] = None
    assert reasons() == {None}


def test_a_diverged_run_enters_with_its_last_finite_loss_clipped_at_initialisation_and_is_counted():
    tables = planted(TRUTHS["A-1"])
    run = tables["runs"].filter(pl.col("run").str.starts_with("attack-pos-k@1-s2-"))["run"].item()
    for last, expected in ((4.5, 4.5), (50.0, INIT["train"])):
        mine = (pl.col("run") == run) & (pl.col("split") == "train") & (pl.col("epoch") == 3)
        blown = pl.when(mine & (pl.col("name") == "loss_nats")).then(last).otherwise(pl.col("value")).alias("value")
        broken = diverged({**tables, "metrics": tables["metrics"].with_columns(blown)}, run, 3)
        held = evidence.gather(broken)
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


TO_UNIGRAM = {split: UNIGRAM[split] - FINAL[split] for split in UNIGRAM}
ALL = {"q": 0.03, "k": 0.031, "v": 0.30}


def with_all_layers(tables, rewound, frozen, spread=0.001):
    """Rows of one component in all layers at once: rises of the train loss at α = 0, and loss changes by freezing."""
    draw, runs, metrics, sites = np.random.default_rng(3), [tables["runs"]], [tables["metrics"]], []
    losses = tables["metrics"].filter(pl.col("name") == "loss_nats", pl.col("split").is_in(["train", "valid"]))
    for base in tables["runs"].filter(edit="none").partition_by("run"):
        curves = losses.filter(run=base["run"][0]).sort("epoch")
        end = curves.filter(split="train")["value"][-1]
        row = {"subject": base["run"][0], "measure": "rewind_loss_nats", "at": 0.0, "split": "train", "n": 10}
        for component in "qkv":
            site, noise = f"{component}@1-5", spread * draw.standard_normal(2)
            sites.append(row | {"site": site, "value": end + rewound[component] + noise[0]})
            name = pl.lit(f"freeze-{site}-s{base['seed'][0]}-aaaaaaaa")
            runs.append(base.with_columns(run=name, edit=pl.lit("freeze"), site=pl.lit(site)))
            shift = float(frozen[component] + noise[1]) * (pl.col("epoch") > 0)
            metrics.append(curves.with_columns(run=name, value=pl.col("value") + shift))
    return {
        "runs": pl.concat(runs),
        "metrics": pl.concat(metrics),
        "sites": pl.concat([tables["sites"], frame("sites", sites)]),
    }


def test_a_model_at_word_frequencies_is_close_to_initialisation():
    sites = every("v")
    effects = {f"attack-dep-{s}/{split}": TO_UNIGRAM[split] + 0.3 for s in sites for split in ("train", "valid")}
    tables = planted(effects)
    row = whole(judged(tables), "A-8")
    assert row["verdict"] == "supported"
    assert row["collapsed"] == len(sites) * len(SEEDS)
    shown = parts(judged(tables), "A-8").filter(~pl.col("decides"))
    assert shown["part"].str.contains("learned fraction").all()


@pytest.mark.parametrize("claim", ["A-2", "A-4", "A-6", "A-8"])
def test_collapsed_attacks_refute_nothing(claim):
    """The attacked model ends at word frequencies, or far above them: its validation loss is no price of a piece of information."""
    sites = {"A-2": ["k@2", "k@3"], "A-4": every("q"), "A-6": every("k"), "A-8": every("v")}[claim]
    label = "pos" if claim in ("A-2", "A-4") else "dep"
    size = -0.6 if claim == "A-8" else 0.3  # below the train loss of word frequencies, as an over-fitted model is
    fell = attack(label, sites, TO_UNIGRAM["train"] + size, TO_UNIGRAM["valid"] + 0.3)
    row = whole(judged(planted(fell)), claim)
    assert (row["verdict"], row["reason"], row["p"]) == ("inconclusive", str(Reason("collapsed")), 1.0)
    assert row["collapsed"] == len(sites) * len(SEEDS)


@pytest.mark.usefixtures("quiet")
def test_contrasts_are_not_read_from_collapsed_attacks():
    fell = {
        f"attack-{label}-{site}/{split}": TO_UNIGRAM[split]
        for label, of in (("dep", "q"), ("pos", "k"))
        for site in every(of)
        for split in ("train", "valid")
    }
    both = judged(planted(fell))
    assert (whole(both, "A-7")["verdict"], whole(both, "A-7")["reason"]) == ("inconclusive", str(Reason("collapsed")))
    assert whole(both, "A-9")["reason"] == str(Reason("collapsed"))
    alive = judged(planted(TRUTHS["A-7"]))
    assert whole(alive, "A-7")["verdict"] == "supported"
    assert whole(alive, "A-7")["collapsed"] == 0


def test_a_run_collapsed_exactly_when_it_never_comes_a_twentieth_of_a_nat_below_the_unigram_loss():
    for short, fell in ((0.049, True), (0.051, False)):
        above = {f"attack-pos-k@1/{split}": TO_UNIGRAM[split] - short for split in ("train", "valid")}
        tables = planted(above, spread=0.0)
        shift = tables["metrics"].filter(
            pl.col("run").str.starts_with("attack-pos-k@1-"),
            pl.col("epoch") == 4,
            pl.col("split") == "valid",
            pl.col("name") == "loss_nats",
        )
        sites = tables["sites"].with_columns(
            pl.when(pl.col("measure") == "unigram_loss_nats")
            .then(float(shift["value"].to_numpy().max()) + short)
            .otherwise(pl.col("value"))
            .alias("value")
        )
        collapsed = evidence.find_collapsed_runs(verdicts.gather({**tables, "sites": sites}, 5))
        names = {run.rpartition("-s")[0] for run in collapsed}
        worst = [run for run in collapsed if run.startswith("attack-pos-k@1-")]
        assert bool(worst) is fell, names


@pytest.mark.parametrize("claim", ["A-10", "A-11", "A-12", "A-13", "A-14"])
@pytest.mark.usefixtures("quiet")
def test_claims_about_rewinding_and_freezing_need_a_site_that_moves_the_loss(claim):
    effects = dict(TRUTHS[claim]) | rises(0.004, 0.002)
    still = judged(planted(effects, spread=0.001))
    assert whole(still, claim)["verdict"] == "inconclusive"
    assert whole(still, claim)["reason"] == str(Reason("at floor"))
    assert whole(judged(planted(TRUTHS[claim])), claim)["verdict"] == "supported"


@pytest.mark.usefixtures("quiet")
def test_mean_ablation_shows_that_a_measure_is_off_its_floor():
    tables = planted(freeze(["k@1", "q@1"], -0.3, 0.3) | freeze(["v@1"], 0.3, 0.3), spread=0.001)
    assert whole(judged(tables), "A-13")["reason"] == str(Reason("at floor"))
    bases = tables["runs"].filter(pl.col("edit") == "none")["run"]
    rows = [
        {"subject": run, "site": "v@1", "measure": "ablate_rise_nats", "split": "train", "value": 0.4, "n": 9}
        for run in bases
    ]
    ablated = {**tables, "sites": frame("sites", [*tables["sites"].to_dicts(), *rows])}
    assert whole(judged(ablated), "A-13")["verdict"] == "supported"
    unknown = {**tables, "sites": tables["sites"].filter(~pl.col("measure").str.starts_with("rewind"))}
    assert whole(judged(unknown), "A-13")["reason"] == str(Reason("floor unknown"))


@pytest.mark.usefixtures("quiet")
def test_all_layers_at_once_supports_and_refutes_the_fifteenth_claim():
    tables = with_all_layers(planted({}), ALL, ALL)
    row = whole(judged(tables), "A-15")
    assert (row["verdict"], row["n"]) == ("supported", len(SEEDS))
    decide = parts(judged(tables), "A-15").filter(pl.col("decides"))
    assert decide["effect"].to_list() == pytest.approx([0.269, 0.27, 0.001] * 2, abs=0.003)
    turned = with_all_layers(planted({}), {"q": 0.3, "k": 0.3, "v": 0.03}, ALL)
    assert whole(judged(turned), "A-15")["verdict"] == "refuted"
    small = with_all_layers(planted({}), dict.fromkeys("qkv", 0.004), ALL)
    assert whole(judged(small), "A-15")["reason"] == str(Reason("at floor"))


def test_what_was_not_collected_is_not_tested_and_not_in_the_family():
    tables = without(planted(TRUTHS["A-1"], spread=0.03), "attack-dep")
    table = judged(tables)
    row, one = whole(table, "A-6"), whole(table, "A-1")
    tested = table.filter(pl.col("part").is_null(), pl.col("verdict") != "not tested", pl.col("claim") != "A-1")
    assert one["p_holm"] == pytest.approx(holm([one["p"], *tested["p"]])[0])
    assert len(tested) == 9
    assert (row["verdict"], row["reason"], row["p"]) == ("not tested", str(verdicts.NOT_MEASURED), 1.0)
    assert whole(table, "A-1")["verdict"] == "supported"
    unused = planted(TRUTHS["A-1"] | {"self_only": 0.0})
    found = judged(without(unused, "attack-dep"))
    assert whole(found, "A-6")["verdict"] == "not tested"
    assert whole(found, "A-1")["reason"] == str(Reason("attention not in use"))


def test_a_verdict_names_the_part_that_speaks_for_it_least_and_its_bound():
    same = {"source": "roles", "claim": "F-1", "effect": 0.0012, "low": -0.0004, "high": 0.0028, "bound": 0.05}
    same |= {"direction": "below", "margin_reason": "Why.", "unit": "of pairs", "n": 5, "decides": True}
    rows = [
        {**same, "sentence": "A query asks.", "verdict": "supported"},
        {**same, "part": "donor's q: answers by v", "effect": 0.0001},
        {**same, "part": "donor's q: answers by k"},
    ]
    ((_, line),) = verdict_lines(frame("claims", rows))
    assert line == (
        "F-1  supported: A query asks. Donor's q: answers by k "
        "0.1\u00a0% of pairs (95\u00a0%: 0.0\u00a0% to 0.3\u00a0%; bound: below 5\u00a0%)"
    )
    ((_, open_line),) = verdict_lines(judged(planted(TRUTHS["A-1"], spread=0.5)).filter(claim="A-1"))
    assert "loss change" in open_line
    assert "; bound: " in open_line


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
