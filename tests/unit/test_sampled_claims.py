"""Claims about one model: the rule of all claims on resampled numbers, and what bars a verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.planted import judged, planted

from trisect import claims
from trisect.claims import models
from trisect.claims.models import judge_by_draws
from trisect.claims.reasons import SENTENCES, Reason, read_reason
from trisect.core.claim import REVISION, Claim, Combination, Part, Source, Statistic
from trisect.papers import SOURCES
from trisect.report.cards import cards
from trisect.report.format import why_open
from trisect.stats.bootstrap import _percentile_test, percentile_interval
from trisect.stats.significance import PValues, two_sided

ABOUT = {"subject": "m", "corpus": "c"}


def source(*claims_: Claim) -> Source:
    return Source("norms", "t", "a", "c", claims_, unit="text")


def part(name: str, direction: str = "above", bound: float = 0.0, decides: bool = True) -> Part:
    return Part(name, Statistic(name), direction, bound, "u", "Why.", decides)


def claim(id_: str, *parts: Part) -> Claim:
    return Claim(id_, "Sentence.", "section 1", parts)


def drawn(effect: float, spread: float = 1.0, draws: int = 4000) -> np.ndarray:
    return effect + spread * stats.norm.ppf((np.arange(draws) + 0.5) / draws)


def verdicts(source_: Source, values: dict[str, tuple[float, float]], n: int = 400) -> dict[str, str]:
    """Verdict by claim, where every statistic has an effect and the spread of its draws."""
    replicates = {name: drawn(*v) for name, v in values.items()}
    table = judge_by_draws(source_, replicates, {name: v[0] for name, v in values.items()}, n, ABOUT)
    return {r["claim"]: r["verdict"] for r in table.iter_rows(named=True) if r["part"] is None}


@pytest.mark.parametrize(
    ("direction", "bound", "effect", "verdict"),
    [
        ("above", 0.1, 0.2, "supported"),
        ("above", 0.1, 0.0, "refuted"),
        ("above", 0.1, 0.11, "inconclusive"),
        ("below", -0.1, -0.2, "supported"),
        ("below", -0.1, 0.0, "refuted"),
        ("within", 0.2, 0.0, "supported"),
        ("within", 0.2, -0.4, "refuted"),
        ("within", 0.2, 0.4, "refuted"),
        ("within", 0.2, 0.19, "inconclusive"),
    ],
)
def test_one_part_against_its_bound(direction, bound, effect, verdict):
    assert verdicts(source(claim("X", part("s", direction, bound))), {"s": (effect, 0.02)}) == {"X": verdict}


def test_every_deciding_part_must_hold_and_the_others_do_not_count():
    both = claim("X", part("a"), part("b"))
    one = claim("X", part("a"), part("b", decides=False))
    values = {"a": (1.0, 0.1), "b": (0.01, 0.1)}
    assert verdicts(source(both), values) == {"X": "inconclusive"}
    assert verdicts(source(one), values) == {"X": "supported"}
    assert verdicts(source(both), values | {"b": (-1.0, 0.1)}) == {"X": "refuted"}


def test_a_combination_is_taken_draw_by_draw():
    """Two statistics that vary together: each alone tells nothing, their difference does."""
    shared = np.random.default_rng(0).normal(size=4000)
    replicates = {"a": shared + 0.3, "b": shared}
    difference = Part("d", Combination(((1.0, Statistic("a")), (-1.0, Statistic("b")))), "above", 0.05, "u", "Why.")
    noise = {"a": 0.01 * drawn(0.0)[::-1], "b": 0.0}
    replicates = {name: values + noise[name] for name, values in replicates.items()}
    table = judge_by_draws(source(claim("X", difference)), replicates, {"a": 0.3, "b": 0.0}, 100, ABOUT)
    whole = table.row(0, named=True)
    assert whole["verdict"] == "supported"
    assert whole["effect"] == pytest.approx(0.3)
    assert json.loads(whole["runs"]) == ABOUT


def test_true_nulls_are_refuted_or_supported_no_oftener_than_they_may():
    """Two-sided at 5 %: of 400 samples of 40 skewed values 20 are expected, and 38 or more come once in 10,000 times."""
    draw = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        values = draw.exponential(1.0, 40)
        replicates = draw.multinomial(40, np.full(40, 1 / 40), size=999) @ values / 40
        wrong += float(two_sided(_percentile_test(replicates, 40, "above", 1.0))) < 0.05
    assert wrong < 38


def test_below_thirty_units_nothing_is_decided_and_the_card_says_how_many_would():
    one = source(claim("X", part("s")))
    table = judge_by_draws(one, {"s": drawn(1.0, 0.01)}, {"s": 1.0}, 29, ABOUT)
    whole = table.row(0, named=True)
    assert whole["verdict"] == "inconclusive"
    assert whole["reason"] == "29 texts; below 30, resampling decides nothing"
    assert whole["p_holm"] == 1
    assert whole["seeds_needed"] == 30
    assert str(Reason("few resampled", 1, "head", 30)) == "1 head; below 30, resampling decides nothing"
    assert verdicts(one, {"s": (1.0, 0.01)}, 30) == {"X": "supported"}


@pytest.mark.parametrize("estimates", [{}, {"s": float("nan")}])
def test_what_was_not_measured_is_not_tested_and_not_in_the_family(estimates):
    two = source(claim("X", part("s")), claim("Y", part("t")))
    table = judge_by_draws(two, {"s": drawn(1), "t": drawn(9.0)}, estimates | {"t": 9.0}, 50, ABOUT)
    x, y = (r for r in table.iter_rows(named=True) if r["part"] is None)
    assert (x["verdict"], x["reason"], x["seeds_needed"], x["effect"]) == (
        "not tested",
        "not measured on this model",
        None,
        None,
    )
    assert y["verdict"] == "supported"
    assert y["p_holm"] == y["p"]


def test_draws_that_are_no_number_speak_on_neither_side():
    half = np.where(np.arange(4000) % 2, np.nan, drawn(5.0))
    assert float(_percentile_test(half, 100, "above", 0.0).p_for) > 0.4
    assert float(_percentile_test(-half, 100, "above", 0.0).p_against) > 0.4
    assert np.isnan(percentile_interval(half, 100)[0])


def test_undecided_says_how_many_texts_would_decide():
    table = judge_by_draws(source(claim("X", part("s"))), {"s": drawn(0.1, 0.1)}, {"s": 0.1}, 100, ABOUT)
    needed = table["seeds_needed"][0]
    assert table["reason"][0] == "not decided at the measured spread"
    assert (
        350 < needed < 450
    )  # at z = 1 with 100 texts, z = 1.96 takes 100 · 1.96² = 384; the counts go in steps of 2 %
    assert table["spread"][0] == pytest.approx(1.0, rel=0.01)


def test_studies_judge_only_claims_about_training(monkeypatch):
    units = {s.key: s.unit for s in SOURCES}
    assert units["norms"] == "text"
    assert {units[key] for key in judged(planted({}, seeds=(1, 2)), seeds=(1, 2))["source"]} == {"seed"}
    assert {row["source"] for row in claims.listing("seed")} == {k for k, u in units.items() if u == "seed"}
    assert {row["source"] for row in claims.listing()} == set(units)
    before, own = claims.claims_hash(), claims.claims_hash("text")
    others = tuple(replace(s, claims=s.claims[1:]) if s.unit != "seed" else s for s in SOURCES)
    monkeypatch.setattr(claims, "SOURCES", others)
    assert claims.claims_hash() == before
    assert claims.claims_hash("text") != own


@pytest.mark.parametrize(
    ("values", "n", "said"),
    [
        (drawn(1.0, 0.01), 29, "30"),
        (np.ones(4000), 1, "not known"),
        (drawn(0.0), 29, "not known"),
        (drawn(0.0), 100, "more than 1\u202f000\u202f000"),
    ],
)
def test_texts_needed_in_words(values, n, said):
    effect = 0.0 if abs(values.mean()) < 1e-9 else 1.0
    (card,) = cards(judge_by_draws(source(claim("X", part("s"))), {"s": values}, {"s": effect}, n, ABOUT))
    assert dict(card.facts)["Texts needed"] == said


def test_groups_of_texts_count_for_the_degrees_of_freedom():
    values, one = drawn(0.1, 0.1), source(claim("X", part("s")))
    table = judge_by_draws(one, {"s": values}, {"s": 0.1}, 5000, ABOUT, groups=40)
    whole = table.row(0, named=True)
    assert (whole["low"], whole["high"]) == tuple(float(end) for end in percentile_interval(values, 40))
    assert whole["p"] == pytest.approx(float(two_sided(_percentile_test(values, 40, "above", 0.0))))
    assert whole["n"] == 5000
    assert whole["spread"] == pytest.approx(0.1 * 5000**0.5, rel=0.01)
    few = judge_by_draws(one, {"s": values}, {"s": 0.1}, 40, ABOUT, groups=256)
    assert few["p"].to_list() == table["p"].to_list()


def test_a_number_that_no_draw_moves_has_the_p_of_the_draws():
    """Every draw agrees: p is 1 / (R + 1) made as wide as t, never 0 and never "no spread"."""
    one = source(claim("X", part("s", "below")))
    table = judge_by_draws(one, {"s": np.full(4000, -1.0)}, {"s": -1.0}, 400, ABOUT)
    whole = table.row(0, named=True)
    assert (whole["verdict"], whole["revision"], whole["reason"]) == ("supported", REVISION, None)
    assert 0 < whole["p"] == pytest.approx(2 / 4001, rel=0.2)
    at = judge_by_draws(one, {"s": np.zeros(4000)}, {"s": 0.0}, 400, ABOUT)
    assert at["verdict"][0] == "inconclusive"


def test_a_statistic_with_a_test_of_its_own_is_decided_by_it_where_its_units_can_decide():
    one = source(claim("X", part("s", "below")))

    def judged_by(own: models.UnitTest) -> dict[str, Any]:
        values = {"s": drawn(-1.0, 0.1)}
        return judge_by_draws(one, values, {"s": -1.0}, 400, ABOUT, tests={"s": own}).row(1, named=True)

    six = judged_by(models.UnitTest(PValues(np.asarray(1 / 720), np.ones(())), 6, "layer"))
    assert (six["n"], six["p"], six["reason"]) == (6, pytest.approx(2 / 720), None)
    values = {"s": drawn(-1.0, 0.1)}
    weak = models.UnitTest(PValues(np.asarray(0.175), np.asarray(0.825)), 6, "layer")
    whole = judge_by_draws(one, values, {"s": -1.0}, 400, ABOUT, tests={"s": weak}).row(0, named=True)
    assert (whole["verdict"], whole["seeds_needed"]) == ("inconclusive", None)  # no number of texts would decide it
    assert whole["reason"] == "not decided by a test over 6 layers"
    three = judged_by(models.UnitTest(PValues(np.asarray(1 / 6), np.ones(())), 3, "layer"))
    assert three["reason"].startswith("cannot be decided with 3 layers")


def test_of_a_claim_about_training_the_seeds_that_would_decide_are_counted_and_not_the_names():
    """Six seeds of 300 names each; the old rule counted names, of which a few hundred more looked like enough."""
    one = source(claim("X", part("s")))
    values = {"s": drawn(1.0, 0.45)}
    six = {"s": models.ResampledUnits(300, 6, "name", 6)}
    whole = judge_by_draws(one, values, {"s": 1.0}, 300, ABOUT, groups=6, each=six).row(0, named=True)
    assert (whole["verdict"], whole["reason"], whole["n"]) == ("inconclusive", str(Reason("undecided")), 300)
    # the standard error of n seeds is 0.45 √(6 / n): the fewest at which a t test of n seeds decides
    needed = next(n for n in range(2, 100) if 2 * stats.t.sf(1.0 / (0.45 * (6 / n) ** 0.5), n - 1) < 0.05)
    assert whole["seeds_needed"] == needed
    names = {"s": models.ResampledUnits(300, 6, "name")}
    given = judge_by_draws(one, values, {"s": 1.0}, 300, ABOUT, groups=6, each=names).row(0, named=True)
    assert given["seeds_needed"] > 30  # about one given model units are names


def test_training_asks_for_five_seeds_whatever_their_names_say():
    one = source(claim("X", part("s")))
    for seeds, verdict in ((1, str(Reason("single", unit="seed"))), (4, "5 seeds are asked for, 4 given"), (5, None)):
        each = {"s": models.ResampledUnits(300, 40, "name", seeds)}
        whole = judge_by_draws(one, {"s": drawn(1.0, 0.1)}, {"s": 1.0}, 300, ABOUT, each=each).row(0, named=True)
        assert whole["reason"] == verdict
        assert whole["verdict"] == ("inconclusive" if verdict else "supported")


@pytest.mark.parametrize("kind", SENTENCES)
@pytest.mark.parametrize("unit", ["seed", "model trained alike"])
@pytest.mark.parametrize("have", [1, 12])
def test_a_reason_is_read_back_from_the_sentence_of_a_table(kind, unit, have):
    named = {"have": have, "unit": unit, "need": 30, "detail": "on this model, they say: 3 texts"}
    used = {name: value for name, value in named.items() if f"{{{name}" in SENTENCES[kind]}
    if "units" in SENTENCES[kind] or "have units" in SENTENCES[kind]:
        used["unit"] = unit
    if kind == "single":
        used["unit"] = "seed"
    reason = Reason(kind, **used)
    assert read_reason(str(reason)) == reason


@pytest.mark.parametrize(
    ("source", "over", "said"),
    [
        ("submodules", None, "about 13 seeds needed, 60 run"),
        ("recall", None, "about 13 seeds needed"),  # n counts names
        ("recall", "model", "about 13 models needed, 60 run"),
        ("norms", None, "about 13 texts needed, 60 run"),
    ],
)
def test_units_that_are_needed_are_named_and_stand_beside_units_of_their_kind_alone(source, over, said):
    row = {"source": source, "over": over, "reason": str(Reason("undecided")), "seeds_needed": 13, "n": 60}
    assert why_open(row) == f"too uncertain: {said}"
