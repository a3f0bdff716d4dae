"""The claim about fewer matrices: judged where something is tied, beside narrower heads with as many parameters."""

from __future__ import annotations

import polars as pl
import pytest
from tests.controlled import SEEDS, everywhere, judged, made

from trisect import claims
from trisect.claims import evidence as room
from trisect.claims.evidence import read
from trisect.claims.reasons import Reason
from trisect.core.claim import LossChange
from trisect.core.tables import frame
from trisect.papers import matrices, tying

SITES = tuple(tying.TIES.values())
COSTS = {f"tie-{s.replace('all', '1-5')}": cost for s, cost in zip(SITES, (0.4, 0.1, 0.2, 0.3), strict=True)}
COSTLY = {key: value for slug, cost in COSTS.items() for key, value in everywhere(slug, cost, cost).items()}
NARROW = everywhere("narrow7-q+k+v@1-5", 0.05, 0.05) | everywhere("narrow5-q+k+v@1-5", 0.15, 0.15)


def tied(effects, rise=0.3):
    """A study with ties, in which rewinding q, k and v in all layers raises the train loss by that much, or was not done."""
    tables, about = made(effects)
    if rise is None:
        return tables, about
    train = tables["metrics"].filter(pl.col("name") == "loss_nats", pl.col("split") == "train").sort("epoch")
    ends = train.group_by("run", maintain_order=True).last()
    bases = tables["runs"].filter(pl.col("edit") == "none")["run"].implode()
    added = [
        {"subject": run, "site": "q+k+v@1-5", "measure": "rewind_loss_nats", "at": 0.0, "split": "train", "n": 9}
        | {"value": value + rise}
        for run, value in ends.filter(pl.col("run").is_in(bases)).select("run", "value").iter_rows()
    ]
    return judged({**tables, "sites": frame("sites", [*tables["sites"].to_dicts(), *added])}, about), about


@pytest.fixture(scope="module")
def study():
    return tied(COSTLY | NARROW)


def rows_of(table):
    return table.filter(pl.col("source") == "tying")


def test_the_claim_is_of_another_family_than_those_about_one_models_heads():
    assert tying.SOURCE.citation == matrices.SOURCE.citation
    assert (tying.SOURCE.unit, matrices.SOURCE.unit) == ("seed", "head")
    assert [part.effect for part in tying.CLAIMS[0].deciding()] == [LossChange("tie", (s,), "valid") for s in SITES]


def test_planted_costs_support_it_and_no_cost_refutes_it(study):
    whole = rows_of(study[0]["claims"]).filter(pl.col("part").is_null()).row(0, named=True)
    assert (whole["claim"], whole["verdict"]) == ("D-2", "supported")
    assert whole["n"] == len(SEEDS)
    assert whole["p_holm"] == whole["p"]  # D-1 and D-3 are about given models, and not tested here
    turned, _ = tied({key: -value for key, value in COSTLY.items()})
    assert rows_of(turned["claims"])["verdict"].drop_nulls().to_list() == ["refuted"]


@pytest.mark.parametrize(
    ("rise", "verdict", "reason"),
    [
        (None, "inconclusive", str(Reason("floor unknown"))),
        (0.015, "inconclusive", str(Reason("at floor"))),
        (0.3, "supported", None),
    ],
)
def test_a_measure_at_its_floor_decides_nothing(rise, verdict, reason):
    """Rewound in all layers, the tied components have to move the train loss."""
    tables, _ = tied(COSTLY, rise)
    whole = rows_of(tables["claims"]).filter(pl.col("part").is_null()).row(0, named=True)
    assert (whole["verdict"], whole["reason"]) == (verdict, reason)


def test_one_tie_that_costs_nothing_refutes_the_whole(study, quiet):
    tables, _ = tied(COSTLY | everywhere("tie-q+k@1-5", 0.0, 0.0))
    assert rows_of(tables["claims"])["verdict"].drop_nulls().to_list() == ["refuted"]


def test_a_study_without_ties_is_not_asked(study):
    tables, about = study
    kept = tables["runs"].filter(~pl.col("edit").is_in(["tie", "identity"]))
    assert rows_of(judged({**tables, "runs": kept}, about)["claims"]).is_empty()


def test_a_tie_is_compared_with_narrower_heads_of_as_many_parameters(study):
    shown = rows_of(study[0]["claims"]).filter(pl.col("part").str.contains("less narrower"))
    assert not shown["decides"].any()
    found = dict(shown.select("part", "effect").iter_rows())
    name = "{} in all layers less narrower heads with as many parameters, valid loss change"
    # three in one leave as many as heads of five of ten dimensions, two in one as heads of seven
    for tie, cost in (("Q=K=V", 0.4 - 0.15), ("Q=K", 0.1 - 0.05), ("Q the identity", 0.0 - 0.05)):
        assert found[name.format(tie)] == pytest.approx(cost, abs=0.01)


def test_all_layers_are_counted_out_and_fewer_are_not_all(study):
    tables, _ = study
    effect = LossChange("tie", ("q+k@all",), "valid")
    assert read(effect, room.gather(tables, 5), 1) is not None
    assert read(effect, room.gather(tables, 6), 1) is None
    assert read(effect, room.gather(tables), 1) is None  # not known how many there are
    assert read(LossChange("tie", ("q+k@1-5",), "valid"), room.gather(tables), 1) is not None
    assert room.count_layers("v@all.h2", 3) == "v@1-3.h2"


def test_what_is_tied_or_narrower_is_no_baseline(study):
    held = room.gather(study[0], 5)
    base = held.baseline(1)
    assert base is not None
    assert base.run.startswith("baseline-")
    assert {run.run.split("-")[0] for run in held.narrow[1, "1-5"]} == {"narrow5", "narrow7"}
    assert held.run(1, "narrow", None, "q+k@2") is None


def test_it_is_listed_before_there_are_data():
    assert "D-2" in [row["claim"] for row in claims.listing("seed")]
    assert claims.CLAIMS["tying"] == tying.SOURCE.claims
