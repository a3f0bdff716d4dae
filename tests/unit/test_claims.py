"""Claims: what they are, their hash, and what the tables say of each where the truth is planted or turned."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest
from tests.planted import SEEDS, TRUTHS, TURNED, attack, judged, parts, planted, whole
from tests.synthetic import about

from trisect import claims
from trisect.claims.reasons import UNDECIDED
from trisect.core.claim import CurveDistance, LossChange, Part, Source, Statistic
from trisect.core.files import canonical
from trisect.core.site import Site
from trisect.papers import SOURCES, submodules


def test_every_part_has_a_name_of_its_own_a_reason_and_sites_that_parse():
    for claim in submodules.CLAIMS:
        assert len({part.name for part in claim.parts}) == len(claim.parts)
        for part in claim.parts:
            assert part.reason.endswith(".")
            assert part.margin == abs(part.bound) >= 0
            for leaf in part.leaves():
                for site in () if isinstance(leaf, (CurveDistance, Statistic)) else leaf.sites:
                    assert str(Site.parse(site)) == site


def test_listing_is_plain_and_in_the_order_of_the_table():
    assert json.loads(canonical(claims.listing())) == claims.listing()
    listed = [row for row in claims.listing("seed") if row["source"] == "submodules"]
    table = claims.judge(planted({}, seeds=(1, 2)), about((1, 2)))
    shown = table.filter(pl.col("part").is_not_null())
    for column in ("source", "claim", "part", "sentence", "direction", "bound", "margin", "unit", "decides"):
        assert shown[column].to_list() == [row[column] for row in listed]
    assert shown["margin_reason"].to_list() == [row["reason"] for row in listed]


def _changed(fields) -> tuple[Source, ...]:
    first = submodules.CLAIMS[0]
    part = replace(first.parts[0], **fields)
    return (replace(SOURCES[0], claims=(replace(first, parts=(part, *first.parts[1:])), *submodules.CLAIMS[1:])),)


@pytest.mark.parametrize(
    "fields",
    [
        {"bound": -0.03},
        {"reason": "Another."},
        {"direction": "above"},
        {"decides": False},
        {"effect": LossChange("attack", ("k@1",), "train", "dep")},
    ],
)
def test_the_hash_changes_with_any_part_margin_or_reason(fields, monkeypatch):
    before = claims.claims_hash()
    assert before == claims.claims_hash()
    assert len(before) == 16
    monkeypatch.setattr(claims, "SOURCES", _changed(fields))
    assert claims.claims_hash() != before


def test_a_part_within_nothing_is_refused():
    with pytest.raises(AssertionError):
        Part("x", LossChange("freeze", ("k@1",), "train"), "within", 0.0, "nats", "No reason.")
    with pytest.raises(AssertionError):
        Part("x", LossChange("freeze", ("k@1",), "train"), "beside", 0.0, "nats", "No reason.")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("claim", TRUTHS)
def test_each_claim_is_supported_where_it_is_planted_and_refuted_where_it_is_turned(claim):
    truth = TRUTHS[claim]
    turned = TURNED.get(claim, {key: -size for key, size in truth.items()})
    row = whole(judged(planted(truth)), claim)
    assert (row["verdict"], row["reason"], row["n"]) == ("supported", None, len(SEEDS))
    row = whole(judged(planted(turned)), claim)
    assert (row["verdict"], row["reason"], row["seeds_needed"]) == ("refuted", None, None)


@pytest.mark.usefixtures("quiet")
def test_without_effects_no_claim_of_an_effect_is_supported():
    table = judged(planted({}))
    found = {claim: whole(table, claim)["verdict"] for claim in TRUTHS}
    assert found.pop("A-7") == "supported"  # nothing differs from nothing
    assert "supported" not in found.values()


def test_one_failing_part_refutes_and_one_undecided_part_leaves_open():
    truth = TRUTHS["A-13"]
    assert whole(judged(planted({**truth, "freeze-v@5/valid": 0.3})), "A-13")["verdict"] == "refuted"
    edge = judged(planted({**truth, "freeze-v@5/valid": 0.02}))
    row = whole(edge, "A-13")
    assert (row["verdict"], row["reason"]) == ("inconclusive", str(UNDECIDED))
    weakest = parts(edge, "A-13").filter(pl.col("part") == "freeze v@5, valid loss change").row(0, named=True)
    for column in ("effect", "low", "high", "low_family", "high_family", "bound", "spread", "effect_best_valid"):
        assert row[column] == weakest[column]


def test_secondary_parts_are_shown_and_do_not_decide():
    contrary = TRUTHS["A-4"] | attack("pos", ["q@3"], -0.5, 0.5) | attack("pos", ["q@1"], 2.0, -2.0)
    table = judged(planted(contrary))
    assert whole(table, "A-4")["verdict"] == "supported"
    shown = parts(table, "A-4")
    assert shown["decides"].to_list() == [True] * 2 + [False] * 10
    assert shown.filter(pl.col("part").str.contains("q@3, train"))["effect"].item() < -0.4
