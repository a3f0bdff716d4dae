"""Attention by hand: results, the source's errors in numbers, refusals, the solver, figures, a run and its page."""

import dataclasses
import json
import math
import re
import shutil
from base64 import b64decode
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.constructed import apart_of, odds_of, variances_of

import trisect
from trisect import theory
from trisect.core.errors import StudyError, TheoryError
from trisect.experiments.theory import THEORY, page
from trisect.experiments.theory.page import base_draws, build, figure
from trisect.experiments.theory.run import SCHEMA
from trisect.lab.driver import render
from trisect.report.charts import Panel
from trisect.theory import CONSTRUCTIONS, KeyDraws
from trisect.theory.constructions import self_attention

NAMES = (
    "copying",
    "average",
    "random_keys_one_head",
    "stretched_key_one_head",
    "random_keys_two_heads",
    "stretched_key_two_heads",
    "identity_attention",
    "key_query_value",
)
SAMPLED = NAMES[2:6]


def rows_of(panel: Panel) -> dict[str, Any]:
    """The rows that each layer of a panel draws."""
    layers: Any = panel.chart.layer
    return {layer.name: json.loads(layer.data.values) for layer in layers}


def small(name):
    return CONSTRUCTIONS[name](**({"samples": 400} if name in SAMPLED else {}))


def refusal(call, *arguments, **named) -> list[str]:
    with pytest.raises(TheoryError) as caught:
        call(*arguments, **named)
    parts = str(caught.value).split("\n  ")
    assert len(parts) == 3
    return parts


@pytest.mark.parametrize("name", NAMES)
def test_a_result_says_what_it_is_and_stays_as_it_is(name):
    found: Any = small(name)
    assert found.name == name
    assert found.question.endswith("?")
    assert found.law
    assert found.domain
    assert found.relation in ("equals", "at most", "near")
    assert np.shape(found.predicted) == np.shape(found.computed)
    assert (found.odds is not None) == (name in SAMPLED)
    assert (found.variances is not None) == (found.apart is not None) == (name == "stretched_key_two_heads")
    np.testing.assert_allclose(np.sum(found.weights, axis=-1), 1.0, rtol=1e-12)
    if found.relation == "at most":
        assert found.error <= found.expected
    else:
        assert found.error == pytest.approx(found.expected, rel=1e-9 if found.relation == "equals" else 0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.error = 0.0  # pyright: ignore[reportAttributeAccessIssue]
    samples = () if found.odds is None else (found.odds.samples,)
    for array in (*found.inputs.values(), found.logits, found.weights, found.predicted, found.computed, *samples):
        assert not array.flags.writeable
    for mapping in (found.settings, found.inputs):
        with pytest.raises(TypeError):
            mapping["beta"] = 1


def test_given_draws_are_used_as_they_are():
    draw = np.random.default_rng(2)
    draws = KeyDraws(draw.standard_normal(3), draw.standard_normal((3, 2, 2)))
    found = theory.random_keys_two_heads(keys=2, dim=2, beta=2.0, variance=0.09, draws=draws)
    assert found.settings["samples"] == 3
    noise = 0.3 * draws.along
    first = 2 * (1 + noise[:, 0, 0] - noise[:, 1, 0])
    second = 2 * (1 + noise[:, 1, 1] - noise[:, 0, 1])
    np.testing.assert_allclose(odds_of(found).samples, first, rtol=1e-12)
    off = (1 / (1 + np.exp(second)) - 1 / (1 + np.exp(first))) / 2  # of the weight on a; the opposite on b
    assert found.error == pytest.approx(math.sqrt(2 * np.mean(off**2)), rel=1e-12)


def shown(name, number):
    return CONSTRUCTIONS[name]().errata[number].shown


def test_a_logit_is_compared_with_exponentials_only_by_mistake():
    found = shown("copying", 0)
    logits = found["logits"]
    assert logits[0] > sum(math.exp(x) for x in logits[1:])  # what the sentence asks for
    assert found["weights"][0] == pytest.approx(0.75, abs=0.001)  # and it is no copy
    assert found["weights"][0] == pytest.approx(1 / (1 + math.exp(-1.1)), rel=1e-12)


def test_other_logits_need_not_go_to_minus_infinity():
    rows = list(shown("copying", 1).values())
    assert len(rows) == 3
    assert all(row == rows[0] for row in rows)
    assert rows[0][0] > 0.9999


def test_the_covariance_is_that_of_the_others():
    (both,) = theory.stretched_key_one_head(samples=10, variance=0.25).errata[0].shown.values()
    assert both == pytest.approx((0.75, 0.25))


def test_the_second_head_returns_a_value():
    found = theory.stretched_key_two_heads(samples=400)
    (weight,) = found.errata[0].shown["mean weight of head 2 on b"]
    assert weight == pytest.approx(math.exp(10) / (math.exp(10) + 7), rel=1e-9)


def test_with_u_d_added_the_word_itself_wins():
    u = theory.identity_attention(beta=3.0).errata[0].shown["c_2 along u_a, u_b, u_c, u_d"]
    assert u == pytest.approx((1, 0, 0, 1), abs=1e-3)  # the others take 2 e^{−9}


def test_neither_the_last_line_nor_the_swap_gives_what_is_wanted():
    equated, swapped = (CONSTRUCTIONS["key_query_value"]().errata[i].shown for i in (0, 1))
    third = (0, 2 / 3, -1 / 3, 0)
    assert [list(rows) for rows in (equated, swapped)] == [[f"c_{i} along u_a, u_b, u_c, u_d" for i in (1, 2)]] * 2
    for row in (*equated.values(), list(swapped.values())[1]):
        assert row == pytest.approx(third, abs=1e-12)
    assert next(iter(swapped.values())) == pytest.approx((0, 0, 0, 0), abs=3e-5)  # 2 e^{−β⁶} at β = 1.5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf])
def test_beta_is_a_positive_number(name, beta):
    assert f"beta {beta}" in refusal(CONSTRUCTIONS[name], beta=beta)[0]


@pytest.mark.parametrize(
    ("call", "size"),
    [
        (lambda: theory.copying(beta=2e300), "2e+300"),
        (lambda: theory.stretched_key_one_head(beta=9e299, samples=100), "2"),
        (lambda: theory.random_keys_two_heads(beta=1.7e308, samples=100), "1.79e+308"),
        (lambda: theory.random_keys_one_head(beta=1e308, variance=1e6, samples=100), ""),
        (lambda: theory.identity_attention(beta=1e150, add_c=9.0), "8.2e+301"),
        (lambda: theory.identity_attention(add_c=1e200), "inf"),
        (lambda: theory.key_query_value(beta=1e51), "1e+306"),
        (lambda: theory.key_query_value(beta=1e60), "inf"),
        (lambda: self_attention(np.array([[1e200]]), *[np.eye(1)] * 3), "inf"),
    ],
)
def test_logits_beyond_the_bound_are_refused_with_the_bound(call, size):
    said = refusal(call)
    assert f"size {size}" in said[0]
    assert "1e+300" in said[1]


@pytest.mark.parametrize("name", ["copying", "average", "random_keys_one_head"])
def test_logits_up_to_the_bound_are_computed(name):
    more = {"samples": 50, "variance": 0.0} if name in SAMPLED else {}
    found = CONSTRUCTIONS[name](beta=5e299, **more)
    assert np.isfinite(found.computed).all()
    assert found.error <= 1.0


@pytest.mark.parametrize("name", NAMES)
def test_a_dimension_too_small_for_orthogonal_vectors_is_refused(name):
    count, given = (8, {"keys": 8}) if name in NAMES[:6] else (4, {})
    assert (
        f"dim {count - 1} was given with {count} orthogonal" in refusal(CONSTRUCTIONS[name], dim=count - 1, **given)[0]
    )
    more = {"samples": 10} if name in SAMPLED else {}
    assert CONSTRUCTIONS[name](dim=count, **given, **more).settings["dim"] == count


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.average(keys=1), ("keys 1", "2 or more", "8")),
        (lambda: theory.copying(target=9), ("target 9", "8 keys", "1 to 8")),
        (lambda: theory.copying(target=0), ("target 0", "8 keys", "1 to 8")),
        (lambda: theory.random_keys_one_head(variance=-1.0), ("variance -1.0", "0 or more", "1e-4")),
        (lambda: theory.random_keys_two_heads(samples=1), ("samples 1", "2 or more", "100000")),
        (
            lambda: theory.random_keys_two_heads(draws=KeyDraws(np.zeros(3), np.zeros((3, 2, 2)))),
            ("shapes (3,) and (3, 2, 2)", "8 keys", "(S,) and (S, 8, 2)"),
        ),
        (lambda: theory.average(values=np.zeros((3, 16))), ("shape (3, 16)", "8 keys in dimension 16", "[8, 16]")),
        (lambda: theory.average(values=np.full((8, 16), np.inf)), ("not finite", "8 keys", "finite numbers")),
        (lambda: theory.identity_attention(add_c=math.nan), ("add_c nan and add_d 0.0", "u_c and u_d", "finite")),
        (lambda: theory.identity_attention(add_d=math.inf), ("add_c 0.0 and add_d inf", "u_c and u_d", "finite")),
        (lambda: theory.key_query_value(beta=1e-60), ("beta 1e-60", "β is a length", "1e-50 to 1e50")),
        (lambda: theory.solve([[1.0]], [[1.0], [2.0]]), ("(1, 1)", "a row for each word", "same N")),
        (lambda: theory.solve([[math.nan]], [[1.0]]), ("not finite", "a whole row of NaN", "the other NaN")),
        (lambda: theory.solve([[1.0]], [[1.0, math.nan]]), ("not finite", "a whole row of NaN", "the other NaN")),
        (lambda: theory.copying(dim=16.0), ("dim 16.0", "a whole number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.average(keys=2.5), ("keys 2.5", "a whole number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.copying(target=1.0), ("target 1.0", "a whole number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.random_keys_one_head(samples=1e5), ("samples 100000.0", "a whole number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.key_query_value(dim="4"), ("dim '4'", "a whole number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.copying(beta="3"), ("beta '3'", "a number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.random_keys_two_heads(variance="0"), ("variance '0'", "a number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.identity_attention(add_c=None), ("add_c None", "a number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.identity_attention(add_d="1"), ("add_d '1'", "a number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.solve([[1.0]], [[1.0]], beta=1j), ("beta 1j", "a number", "")),  # pyright: ignore[reportArgumentType]
        (lambda: theory.average(keys=100_000, dim=100_000), ("dim 100000 was given with 100000", "10,000,000", "")),
        (lambda: theory.identity_attention(dim=100_000), ("dim 100000", "10,000,000", "")),
        (lambda: theory.random_keys_one_head(samples=10**12), ("samples 1000000000000", "100,000,000", "")),
    ],
)
def test_what_cannot_be_built_is_refused_in_three_parts(call, said):
    assert all(wanted in part for wanted, part in zip(said, refusal(call), strict=True))


def test_the_source_s_own_words_are_solved_with_the_third_left_open():
    found = theory.key_query_value(beta=2.0)
    u, words = found.inputs["letters"], found.inputs["words"]
    solved = theory.solve(words, [u[1] - u[2], u[1], np.full(16, np.nan)])
    assert (solved.status, solved.how) == ("solved", "closed form")
    assert solved.outputs is not None
    np.testing.assert_allclose(solved.outputs[:2], [u[1] - u[2], u[1]], atol=1e-12)


def test_what_a_search_finds_is_called_solved_and_what_it_misses_not_found():
    words = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    within = theory.solve(words, self_attention(words, np.eye(2), 2 * np.eye(2), np.eye(2)).outputs)
    assert (within.status, within.how) == ("solved", "search")
    assert within.residual is not None
    assert within.residual < 1e-6
    # a mean of positive weights never reaches its own vertex, and no certificate speaks of that
    missed = theory.solve([[1.0], [2.0]], [[1.0], [5.0]])
    assert (missed.status, missed.how, missed.proof) == ("not found", "search", "")
    assert missed.residual is not None
    assert missed.residual > 0.1


@pytest.mark.parametrize(
    ("words", "wanted", "said", "bound"),
    [
        ([[1, 2], [1, 2], [0, 1]], [[1, 0], [0, 1], [0, 0]], "Words 1 and 2 are equal", math.sqrt(0.5)),
        ([[0, 0]], [[3, 4]], "Here x̄ = 0", 5.0),
        ([[0, 0], [1, 1], [-1, -1]], [[2, 0], [0, 0], [0, 0]], "Word 1 is zero", 2.0),
        (
            [[1, 0], [0, 1], [1, 1]],
            np.eye(3),
            "The words span, up to rounding, a space of dimension 2",
            1 / math.sqrt(3),
        ),
        ([[1, 2], [1, 2]], [[1], [1 + 1e-10]], "Words 1 and 2 are equal", (1 + 1e-10 - 1) / 2),
        (
            [[1e-8, 0], [0, 1e8], [1, 1]],
            np.eye(3),
            "The words span, up to rounding, a space of dimension 2",
            1 / math.sqrt(3),
        ),
    ],
)
def test_a_certificate_says_why_and_by_how_much(words, wanted, said, bound):
    found = theory.solve(words, wanted)
    assert found.status == "impossible"
    assert said in found.proof
    assert found.bound == pytest.approx(bound, rel=1e-12, abs=0)
    assert found.query is found.key is found.value is found.outputs is found.residual is None


def test_a_zero_word_is_not_impossible_by_itself():
    assert theory.solve([[0, 0], [1, 0]], [[1, 0], [1, 0]]).status == "solved"


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_has_two_panels_with_words(name):
    found = small(name)
    drawn = figure(found, theory.sweep(found, [2.0, 10.0]))
    assert len(drawn.panels) == 2
    assert all(panel.alt.startswith(panel.title) for panel in drawn.panels)
    assert all(panel.series == () for panel in drawn.panels)
    assert drawn.caption.startswith("β = ")


def test_the_chart_shows_closed_forms_over_samples():
    found = theory.stretched_key_two_heads(samples=4000)
    first, second = figure(found, theory.sweep(found, [1.0, 10.0])).panels
    layers = rows_of(second)
    assert [row["value"] for row in layers["law"]] == pytest.approx(
        np.diff(odds_of(found).cdf(np.linspace(0, 1, 41))).tolist()
    )
    assert sum(row["high"] - row["low"] for row in layers["bars"]) == pytest.approx(1.0)
    apart = sum(row["high"] - row["low"] for row in layers["bars"] if row["name"] == "q_1·k_a < 0")
    assert apart == pytest.approx(apart_of(found).share)
    curves = rows_of(first)
    assert [row["value"] for row in curves["here"]] == [variances_of(found).one, variances_of(found).two]


def test_where_the_weight_has_no_width_its_log_odds_are_drawn():
    found = theory.random_keys_two_heads(samples=400)
    second = figure(found, theory.sweep(found, [10.0])).panels[1]
    assert "Histogram of the log-odds" in second.alt


def test_errors_of_zero_have_no_place_on_a_logarithmic_axis():
    found = theory.copying(beta=800.0, keys=2)
    assert found.error == 0.0
    assert len(figure(found, theory.sweep(found, [800.0])).panels) == 1


def test_a_sweep_keeps_all_but_beta():
    found = theory.stretched_key_two_heads(samples=300, keys=4, values=np.eye(16)[:4] * 2)
    curve = theory.sweep(found, [1.0, 2.0])
    again = theory.stretched_key_two_heads(beta=2.0, samples=300, keys=4, values=np.eye(16)[:4] * 2)
    assert curve.error[1] == again.error
    assert curve.variances is not None
    law = variances_of(again)
    assert [column[1] for column in curve.variances] == [law.one, law.two, law.one_law, law.two_law]
    assert theory.sweep(theory.key_query_value()).beta[[0, -1]].tolist() == pytest.approx([0.5, 1.9])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("theory")
    names = ("stretched_key_two_heads", "key_query_value")
    return trisect.theory_page(names, beta=(1.0, 2.0), dim=6, keys=3, samples=500, seed=7, out=out, quiet=True)


def test_a_run_writes_a_table_figures_and_the_page(ran):
    rows = pl.read_parquet(ran.folder / "tables" / "theory.parquet")
    assert rows.equals(ran.tables["theory"])
    assert dict(rows.schema) == SCHEMA
    asked = [(name, beta) for name in ("stretched_key_two_heads", "key_query_value") for beta in (1.0, 2.0)]
    assert rows.select("name", "beta").rows() == asked
    assert rows["keys"].to_list() == [3, 3, None, None]
    assert rows["samples"].to_list() == [500, 500, None, None]
    assert rows["dim"].to_list() == [6] * 4
    built = [build(name, {"beta": beta, "dim": 6, "keys": 3, "samples": 500}, 7) for name, beta in asked]
    assert rows["error"].to_list() == [one.error for one in built]
    assert sorted(p.name for p in (ran.folder / "figures").iterdir()) == sorted(
        f"{name}.{kind}" for name in ("stretched_key_two_heads", "key_query_value") for kind in ("png", "svg")
    )
    assert ran.report == ran.folder / "theory.html"
    assert ran.report.read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_the_page_begins_with_how_near_errors_come_to_closed_forms_one_drawing_and_what_was_computed(ran, tmp_path):
    cases = [
        ("equals", 1 + 2e-9, 1.0),
        ("at most", 0.5, 1.0),
        ("at most", 2.0, 1.0),
        ("near", 1.02, 1.0),
        ("equals", 0.0, 0.0),
    ]
    table = pl.DataFrame(cases, schema=["relation", "error", "expected"], orient="row").with_columns(name=pl.lit("x"))
    assert page.answer(table).replace("\u00a0", " ") == (
        "The error equals its closed form to 8 digits in 1 case, "
        "stays below a bound in 1 of 2 cases (at most 200.0 % of it) and is within 2.0 % of an approximate form in 1 case."
    )
    assert ran.answer == page.answer(ran.tables["theory"])  # what the terminal begins with
    assert page.answer(table[-1:]) == "The error is 0 everywhere, as its closed form."
    assert page.answer(table.with_columns(name=pl.lit("copying"))).startswith(
        "With queries, keys and values set by hand, attention copies one value: its error equals"
    )
    first = ran.report.read_text(encoding="utf-8").partition('<section id="attention">')[0]
    assert f'<p class="answer">{page.answer(ran.tables["theory"])}</p>' in first
    assert "2 constructions · β 1 to 2 · 3 keys · 6 dimensions · 500 samples · seed 7 · float64" in first
    for row in ran.tables["theory"].iter_rows(named=True):
        assert f"{row['name'].replace('_', ' ')} {row['error'] / row['expected']:.3g}" in first  # its alternative text
    alone = trisect.theory_page("identity_attention", out=tmp_path, quiet=True).report.read_text(encoding="utf-8")
    assert "1 construction · β 2 · 16 dimensions · seed 0 · float64" in alone


def test_a_run_says_which_settings_did_not_apply_and_its_command(ran):
    assert len(ran.findings) == 4
    assert ran.notes == tuple(f"{name} does not apply to key_query_value." for name in ("keys", "samples"))
    about = json.loads((ran.folder / "theory.json").read_text(encoding="utf-8"))["body"]
    assert about["command"] == (
        "trisect theory stretched_key_two_heads key_query_value --beta 1.0,2.0 --dim 6 --keys 3 --samples 500 --seed 7"
    )


def test_page_and_figures_are_made_again_from_what_lies_in_the_folder(ran, tmp_path):
    shutil.copytree(ran.folder, tmp_path / "t", ignore=shutil.ignore_patterns("figures", "*.html"))
    again = render(THEORY, tmp_path / "t")
    assert again.report.read_bytes() == ran.report.read_bytes()
    assert again.findings == ran.findings
    for path in (ran.folder / "figures").glob("*.svg"):
        assert (tmp_path / "t" / "figures" / path.name).read_bytes() == path.read_bytes()


def test_an_unknown_name_and_a_place_that_cannot_be_written_are_refused(tmp_path):
    said = "".join(refusal(trisect.theory_page, ("copyng",), out=tmp_path / "out"))
    assert all(name in said for name in ("'copyng'", "did you mean 'copying'", *NAMES))
    assert not (tmp_path / "out").exists()
    refusal(trisect.theory_page, ("copying",), beta=(1.0, -1.0), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match=r".*file is a file\."):
        trisect.theory_page(("key_query_value",), out=tmp_path / "file", quiet=True)


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_words_of_other_sizes_are_solved_as_well(size):
    independent = theory.solve(size * np.array([[1, 2, 0], [0, 1, 1]]), np.eye(2))
    assert (independent.status, independent.how) == ("solved", "closed form")
    dependent = theory.solve(size * np.array([[1, 0], [2, 0], [0, 1]]), [[1], [1.5], [1]])
    assert (dependent.status, dependent.how) == ("solved", "search")


def test_where_weights_have_no_inverse_in_floats_the_matrices_are_searched_for():
    found = theory.solve(np.eye(2), [[1.0], [2.0]], beta=1e-17)
    assert (found.status, found.how) == ("solved", "search")


@pytest.mark.parametrize("given", [[[1, 2], [1]], [["a"]], [[1j]], [[None]], "words", [[10**400]]])
def test_what_is_no_table_of_numbers_is_refused(given):
    for name, call in (
        ("inputs", lambda: theory.solve(given, [[1.0]])),
        ("outputs", lambda: theory.solve([[1.0]], given)),
    ):
        assert refusal(call)[0].startswith(f"{name} that are no table of numbers")


def test_numbers_of_numpy_are_numbers():
    found = theory.copying(beta=np.float32(2), dim=np.int64(8))  # pyright: ignore[reportArgumentType]
    assert found.settings == {"beta": 2, "dim": 8, "keys": 8, "target": 1}


@pytest.mark.parametrize(
    ("name", "given", "first", "known"),
    [
        ("average", {"keys": 20}, "keys 20 was given, and no dim", "dim 16 by default"),
        ("copying", {"dim": 4}, "dim 4 was given, and no keys", "keys 8 by default"),
        ("copying", {"keys": 1}, "keys 1 was given", "2 or more"),
    ],
)
def test_a_default_that_leaves_no_room_is_called_a_default(name, given, first, known, tmp_path):
    said = refusal(trisect.theory_page, (name,), out=tmp_path / "out", **given)
    assert first in said[0]
    assert known in said[1]


def test_given_values_stay_the_callers_own():
    values = np.eye(4)
    theory.average(keys=4, dim=4, values=values)
    values[0, 0] = 2.0
    solved = theory.solve(values, np.eye(4))
    assert solved.value is not None
    assert not solved.value.flags.writeable


def test_of_the_mean_of_two_rounding_decides_at_a_very_large_beta():
    found = theory.average(beta=1e17)
    assert found.expected == 0.0
    assert found.error > 0.1
    assert "β up to about 1e14" in found.domain


def test_the_source_s_reasons_that_are_none():
    exact, tilted = theory.average().errata[0].shown.values()
    assert exact == (1.0, 1.0, 1.0)
    assert tilted == pytest.approx((math.exp(0.1), math.e, math.exp(10)))
    first, second = theory.key_query_value(beta=2.0).errata[2].shown.values()
    assert first == pytest.approx((0, 0, 64), abs=1e-12)  # k_3ᵀq_1 = β⁶
    assert second == pytest.approx((64, 0, 0), abs=1e-12)


def test_the_page_holds_its_draws_exactly_and_all_eight_by_name(ran):
    draws, text = base_draws(), ran.report.read_text(encoding="utf-8")
    (encoded,) = re.findall(r"[A-Za-z0-9+/=]{1000,}", text)
    numbers = np.frombuffer(b64decode(encoded), dtype="<f4").astype(np.float64)
    assert (numbers[:2000] == draws.stretch).all()
    assert (numbers[2000:].reshape(2000, 8, 2) == draws.along).all()
    # 34,000 standard normals: their mean is N(0, 1/34000), five standard deviations are 0.03
    assert abs(numbers.mean()) < 0.03
    assert abs(numbers.std() - 1) < 0.02
    assert list(page.constructions()) == list(NAMES)
    for name in NAMES:
        assert text.count(f'data-name="{name}"') == 1
        assert f"\n  {name}: {{\n" in text  # the script knows it


@pytest.mark.parametrize(
    ("plain", "html"),
    [
        ("α_a = e^β / (n − 2)", "α<sub>a</sub> = e<sup>β</sup> / (n − 2)"),
        ("e^{−β⁶} and c_{ab}", "e<sup>−β⁶</sup> and c<sub>ab</sub>"),
        ("logits -990 and word-for-word", "logits −990 and word-for-word"),
        ("<script>a_b</script>", "&lt;script&gt;a<sub>b</sub>&lt;/script&gt;"),
    ],
)
def test_plain_formulas_become_html(plain, html):
    assert page.rich(plain) == html


def test_numbers_in_a_row():
    assert page.figures((0.5, -4.54e-05, 1e-17, 2.5e12)) == "0.5, −4.54·10<sup>−5</sup>, 0, 2.5·10<sup>12</sup>"
