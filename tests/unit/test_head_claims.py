"""Claims about heads: each head against its null, heads resampled, one family, and what cannot be tested."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from trisect.claims.models import (
    NOT_MEASURED,
    HeadsAgainstNull,
    LayerMeans,
    ResampledHeads,
    judge_by_draws,
    judge_heads,
    judge_over_models,
)
from trisect.claims.reasons import Reason
from trisect.core.claim import Claim, Part, Source, Statistic
from trisect.core.tables import SCHEMAS
from trisect.papers import matrices, profile
from trisect.report.cards import cards

ABOUT = {"subject": "a model", "corpus": None}


def part(name="overlap", direction="below", bound=0.05):
    return Part(f"part {name}", Statistic(name), direction, bound, "share", "A reason.")


def source(*claims):
    made = tuple(Claim(f"X-{i}", f"Sentence {i}.", "1", parts) for i, parts in enumerate(claims, 1))
    return Source("x", "Title", "Author", "Citation.", made, unit="head")


def against(effects, p_for, p_against):
    many = np.array(effects, dtype=float)
    p_values = np.array(p_for, dtype=float), np.array(p_against, dtype=float)
    return HeadsAgainstNull(many, *p_values, lambda head, alpha: (many[head] - 5e-4 / alpha, many[head] + 5e-4 / alpha))


def verdicts(table):
    return dict(table.filter(table["part"].is_null()).select("claim", "verdict").iter_rows())


def test_it_holds_only_where_every_head_holds():
    three = against([0.0, 0.01, 0.02], [1e-4, 1e-4, 1e-4], [1, 1, 1])
    assert verdicts(judge_heads(source((part(),)), {"overlap": three}, ABOUT)) == {"X-1": "supported"}
    one_open = against([0.0, 0.01, 0.05], [1e-4, 1e-4, 0.5], [1, 1, 0.5])
    assert verdicts(judge_heads(source((part(),)), {"overlap": one_open}, ABOUT)) == {"X-1": "inconclusive"}
    one_off = against([0.0, 0.01, 0.3], [1e-4, 1e-4, 1], [1, 1, 1e-4])
    table = judge_heads(source((part(),)), {"overlap": one_off}, ABOUT)
    assert verdicts(table) == {"X-1": "refuted"}
    whole, alone = table.row(0, named=True), table.row(1, named=True)
    assert whole["effect"] == alone["effect"] == 0.3
    assert (alone["low"], alone["high"], alone["low_family"]) == pytest.approx((0.29, 0.31, 0.29))
    assert whole["p"] == pytest.approx(2 * 3 * 1e-4)  # two sides, three heads
    assert whole["n"] == 3


def test_claims_of_one_source_are_one_family():
    mild = against([0.3], [1], [0.02])
    assert verdicts(judge_heads(source((part(),)), {"overlap": mild}, ABOUT)) == {"X-1": "refuted"}
    two = judge_heads(source((part(),), (part("other"),)), {"overlap": mild, "other": mild}, ABOUT)
    one = judge_heads(source((part(),), (part("other"),)), {"overlap": mild}, ABOUT)
    assert (one["low_family"][1], two["low_family"][1]) == pytest.approx((0.29, 0.28))  # of what was measured
    assert set(verdicts(two).values()) == {"inconclusive"}
    assert two["p_holm"][0] == pytest.approx(0.08)
    assert two["reason"][0] == "p is 0.04, and 0.08 after Holm's correction over its source's claims"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({}, str(NOT_MEASURED)),
        ({"share": against([], [], [])}, str(Reason("no null"))),
        (
            {"share": ResampledHeads(0.6, np.linspace(0.5, 0.7, 50), 12)},
            "12 heads; below 30, resampling decides nothing",
        ),
        (
            {"share": ResampledHeads(0.6, np.linspace(0.5, 0.7, 50), 1, "text")},
            "1 text; below 30, resampling decides nothing",
        ),
        ({"share": ResampledHeads(float("nan"), np.full(50, np.nan), 40)}, str(NOT_MEASURED)),
    ],
)
def test_what_cannot_be_tested_says_why(found, reason):
    table = judge_heads(source((part("share", "below", 0.95),)), found, ABOUT)
    assert dict(table.schema) == SCHEMAS["claims"]
    assert table["verdict"][0] == ("not tested" if reason == str(NOT_MEASURED) else "inconclusive")
    assert table["reason"].to_list() == [reason, reason]
    assert table["p_holm"][0] == 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (ResampledHeads(0.95, 0.95 + np.linspace(-0.1, 0.1, 2001), 72), "not known"),
        (ResampledHeads(0.6, np.linspace(0.5, 0.7, 50), 12), "not known"),
        (against([0.05], [0.5], [0.5]), "not known"),
        (ResampledHeads(0.6, np.linspace(0.5, 0.7, 2001), 72), "sample size sufficient"),
    ],
)
def test_how_many_heads_would_decide_is_not_invented(given, said):
    table = judge_heads(
        replace(matrices.SOURCE, claims=(Claim("D-3", "S.", "1", (part("s", "below", 0.95),)),)), {"s": given}, ABOUT
    )
    (card,) = cards(table)
    assert dict(card.facts)["Heads needed"] == said


def test_the_rule_is_one_for_heads_and_texts():
    """The same draws of the same numbers: the same verdicts. What rounding made is no spread."""
    draw = np.random.default_rng(3)
    draws = {
        "a": draw.normal(0.6, 0.1, 2000),
        "b": draw.normal(0.4, 0.1, 2000),
        "c": 0.3 + 1e-14 * (np.arange(2000) % 2),
    }
    means = {"a": 0.6, "b": 0.4, "c": 0.3}
    claims = ((part("a", "above", 0.3), part("b", "above", 0.3)), (part("c"), part("missing")), (part("c"),))
    heads = judge_heads(source(*claims), {k: ResampledHeads(means[k], d, 50) for k, d in draws.items()}, ABOUT)
    texts = judge_by_draws(source(*claims), draws, means, 50, ABOUT)
    columns = pl.exclude("seeds_needed", "n")
    assert heads.select(columns).equals(texts.select(columns))
    wholes = heads.filter(pl.col("part").is_null())
    assert wholes["verdict"].to_list()[1:] == ["refuted", "refuted"]
    assert wholes["reason"].to_list()[1:] == [None, None]


@pytest.mark.parametrize(
    ("values", "verdict", "reason"),
    [
        ([0.3, 0.31, 0.29, 0.3, 0.32], "supported", None),
        ([0.0, 0.01, -0.01, 0.0, 0.02], "refuted", None),
        ([0.3, 0.31, 0.29], "supported", None),
        ([0.3, 0.31], "inconclusive", "3 layers are asked for, 2 given"),
        ([0.3] * 6, "inconclusive", str(Reason("no spread", unit="layer"))),
    ],
)
def test_layers_are_the_units_of_a_mean_over_each_layers_heads(values, verdict, reason):
    """However many heads are behind each of them."""
    table = judge_heads(source((part("gain", "above", 0.1),)), {"gain": LayerMeans(np.array(values))}, ABOUT)
    assert (table["verdict"][0], table["n"][0], table["reason"][1]) == (verdict, len(values), reason)


def test_a_claim_of_three_parts_without_its_third_says_so():
    """F-2 of a model whose weights were not held while another text's parts were put in."""
    layers = LayerMeans(np.array([0.3, 0.31, 0.29, 0.3, 0.32, 0.3]))
    found: dict[str, LayerMeans | ResampledHeads] = {"position_q-v": layers, "position_k-v": layers}
    row = judge_heads(profile.SOURCE, found, ABOUT).row(0, named=True)
    assert (row["claim"], row["verdict"]) == ("F-2", "inconclusive")
    assert row["reason"] == "2 of 3 parts, supported; interchange with the pattern held not run"
    held = {"held_share_v": ResampledHeads(1.0, np.ones(4000), 600, "text")}
    whole = judge_heads(profile.SOURCE, found | held, ABOUT)
    assert whole["verdict"][0] == "supported"
    five = judge_over_models([whole] * 4 + [judge_heads(profile.SOURCE, {"position_q-v": layers} | held, ABOUT)], ABOUT)
    assert five.row(0, named=True)["verdict"] == "inconclusive"
    shifted = [
        whole.with_columns(
            effect=pl.when(pl.col("part").str.starts_with("position"))
            .then(pl.col("effect") + i / 100)
            .otherwise("effect")
        )
        for i in range(5)
    ]
    over = judge_over_models(shifted, ABOUT).row(0, named=True)
    assert (over["verdict"], over["n"]) == ("supported", 5)  # the share is 1 in every model, by each one's own test
