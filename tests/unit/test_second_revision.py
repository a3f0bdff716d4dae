"""Rules that bar a verdict: collapse and floors; all layers at once, and what was not tested."""

import numpy as np
import polars as pl
import pytest
from tests.planted import SEEDS, TRUTHS, every, freeze, judged, parts, planted, rises, whole, without
from tests.synthetic import FINAL, UNIGRAM

from trisect.claims import evidence as claims_evidence
from trisect.claims import verdicts
from trisect.core.tables import frame

TO_UNIGRAM = {split: UNIGRAM[split] - FINAL[split] for split in UNIGRAM}
ALL = {"q": 0.03, "k": 0.031, "v": 0.30}


def with_all_layers(tables, rewound, frozen, spread=0.001):
    """Rows of one component in all layers at once: rises of the train loss at α = 0, and loss changes by freezing."""
    draw, runs, metrics, sites = np.random.default_rng(3), [], [], []
    last = {}
    for row in tables["metrics"].filter(pl.col("name") == "loss_nats").iter_rows(named=True):
        last.setdefault((row["run"], row["split"]), {})[row["epoch"]] = row["value"]
    for base in tables["runs"].filter(pl.col("edit") == "none").iter_rows(named=True):
        for component in "qkv":
            site = f"{component}@1-5"
            noise = spread * draw.standard_normal(2)
            if component in rewound:
                end = max(last[base["run"], "train"].items())[1]
                value = end + rewound[component] + noise[0]
                spot = {
                    "subject": base["run"],
                    "site": site,
                    "measure": "rewind_loss_nats",
                    "at": 0.0,
                    "split": "train",
                }
                sites.append(spot | {"value": value, "n": 10})
            if component in frozen:
                name = f"freeze-{site}-s{base['seed']}-aaaaaaaa"
                runs.append({**base, "run": name, "edit": "freeze", "site": site})
                for split in ("train", "valid"):
                    for epoch, value in last[base["run"], split].items():
                        shift = (frozen[component] + noise[1]) * (epoch > 0)
                        metrics.append(
                            {"run": name, "epoch": epoch, "split": split, "name": "loss_nats", "value": value + shift}
                        )
    return {
        "runs": frame("runs", [*tables["runs"].to_dicts(), *runs]),
        "metrics": frame("metrics", [*tables["metrics"].to_dicts(), *metrics]),
        "sites": frame("sites", [*tables["sites"].to_dicts(), *sites]),
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


def test_contrasts_are_not_read_from_collapsed_attacks():
    fell = {
        f"attack-{label}-{site}/{split}": TO_UNIGRAM[split]
        for label, of in (("dep", "q"), ("pos", "k"))
        for site in every(of)
        for split in ("train", "valid")
    }
    both = judged(planted(fell))
    assert (whole(both, "A-7")["verdict"], whole(both, "A-7")["reason"]) == ("inconclusive", verdicts.STOPPED)
    assert whole(both, "A-9")["reason"] == verdicts.STOPPED
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
        evidence = verdicts.gather({**tables, "sites": sites}, 5)
        names = {run.rpartition("-s")[0] for run in claims_evidence.collapsed_runs(evidence)}
        worst = [run for run in claims_evidence.collapsed_runs(evidence) if run.startswith("attack-pos-k@1-")]
        assert bool(worst) is fell, names


@pytest.mark.parametrize("claim", ["A-10", "A-11", "A-12", "A-13", "A-14"])
def test_claims_about_rewinding_and_freezing_need_a_site_that_moves_the_loss(claim):
    effects = dict(TRUTHS[claim]) | rises(0.004, 0.002)
    still = judged(planted(effects, spread=0.001))
    assert whole(still, claim)["verdict"] == "inconclusive"
    assert whole(still, claim)["reason"] == claims_evidence.AT_FLOOR
    assert whole(judged(planted(TRUTHS[claim])), claim)["verdict"] == "supported"


def test_mean_ablation_shows_that_a_measure_is_off_its_floor():
    tables = planted(freeze(["k@1", "q@1"], -0.3, 0.3) | freeze(["v@1"], 0.3, 0.3), spread=0.001)
    assert whole(judged(tables), "A-13")["reason"] == claims_evidence.AT_FLOOR
    bases = tables["runs"].filter(pl.col("edit") == "none")["run"]
    rows = [
        {"subject": run, "site": "v@1", "measure": "ablate_rise_nats", "split": "train", "value": 0.4, "n": 9}
        for run in bases
    ]
    ablated = {**tables, "sites": frame("sites", [*tables["sites"].to_dicts(), *rows])}
    assert whole(judged(ablated), "A-13")["verdict"] == "supported"
    unknown = {**tables, "sites": tables["sites"].filter(~pl.col("measure").str.starts_with("rewind"))}
    assert whole(judged(unknown), "A-13")["reason"] == claims_evidence.FLOOR_UNKNOWN


def test_all_layers_at_once_supports_and_refutes_the_fifteenth_claim():
    tables = with_all_layers(planted({}), ALL, ALL)
    row = whole(judged(tables), "A-15")
    assert (row["verdict"], row["n"]) == ("supported", len(SEEDS))
    decide = parts(judged(tables), "A-15").filter(pl.col("decides"))
    assert decide["effect"].to_list() == pytest.approx([0.269, 0.27, 0.001] * 2, abs=0.003)
    turned = with_all_layers(planted({}), {"q": 0.3, "k": 0.3, "v": 0.03}, ALL)
    assert whole(judged(turned), "A-15")["verdict"] == "refuted"
    small = with_all_layers(planted({}), dict.fromkeys("qkv", 0.004), ALL)
    assert whole(judged(small), "A-15")["reason"] == claims_evidence.AT_FLOOR


def test_what_was_not_collected_is_not_tested_and_stays_in_the_family():
    tables = without(planted(TRUTHS["A-1"]), "attack-dep")
    table = judged(tables)
    row = whole(table, "A-6")
    assert (row["verdict"], row["reason"], row["p"]) == ("not tested", verdicts.NOT_MEASURED, 1.0)
    assert whole(table, "A-1")["verdict"] == "supported"
    unused = planted(TRUTHS["A-1"] | {"self_only": 0.0})
    found = judged(without(unused, "attack-dep"))
    assert whole(found, "A-6")["verdict"] == "not tested"
    assert whole(found, "A-1")["reason"] == verdicts.NOT_IN_USE
