"""Theory at its limits: the solver on numbers of any size, what is refused before it costs memory, and read-only results."""

import math
from typing import Any

import numpy as np
import pytest

import trisect
from trisect import theory
from trisect.core.errors import SpecError, TheoryError
from trisect.theory import CONSTRUCTIONS
from trisect.theory.solver import rank_bound


def refusal(call) -> list[str]:
    with pytest.raises(TheoryError) as caught:
        call()
    said = str(caught.value).split("\n  ")
    assert len(said) == 3
    return said


# --- the solver ---


@pytest.mark.parametrize(
    ("words", "wanted", "bound"),
    [
        ([[1, 0], [1, 0]], [[1e-200], [-1e-200]], 1e-200),
        ([[1, 0], [1, 0], [0, 1]], [[1e-12], [0], [1e6]], 5e-13),
        ([[1, 2], [1, 2]], [[1], [1 + 1e-10]], (1 + 1e-10 - 1) / 2),
        ([[1, 2], [1, 2]], [[1e200], [-1e200]], 1e200),
        ([[1e-200], [1e-200]], [[1], [2]], 0.5),
        ([[0, 0]], [[3e200, 4e200]], 5e200),
        ([[0], [1e308], [1e308]], [[0], [1], [1]], 0.4),  # x_i / x̄ is 3/2
        ([[0], [1e-300]], [[0], [1e200]], 1e200 / 3),
        (1e200 * np.array([[0, 0], [1, 0], [0, 1]]), [[0, 0], [1, 0], [0, 1]], 1 / math.sqrt(3) / 2.5),
        (1e-200 * np.array([[1, 0], [0, 1], [1, 1]]), 1e200 * np.eye(3), 1e200 / math.sqrt(3)),
    ],
)
def test_what_is_impossible_is_so_at_any_size(words, wanted, bound):
    found = theory.solve(words, wanted)
    assert found.status == "impossible"
    assert found.bound == pytest.approx(bound, rel=1e-12, abs=0)


def test_a_bound_beyond_floats_is_the_largest_float():
    found = theory.solve([[1.0], [1.0]], [[1.7e308, 1.7e308], [-1.7e308, -1.7e308]])
    assert found.bound == np.finfo(float).max


@pytest.mark.parametrize(
    "words",
    [
        np.diag([1e-8, 1e8]),
        [[1, 0], [1, 1e-15]],
        [[1, 0, 3], [1, 1e-15, 3]],
        np.diag([1e-160, 1e160]),
        [[1e-200, 0], [0, 1e-200]],
        [[1e200, 1e200], [-1e200, 1e200]],
    ],
)
def test_independent_words_of_any_size_are_solved_in_closed_form(words):
    found = theory.solve(words, np.eye(2))
    assert (found.status, found.how) == ("solved", "closed form")
    assert found.residual is not None
    assert found.residual < 1e-12


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_dependent_words_of_any_size_are_searched(size):
    found = theory.solve(size * np.array([[1.0, 0], [2, 0], [0, 1]]), [[1], [1.5], [1]])
    assert (found.status, found.how) == ("solved", "search")


def test_where_weights_have_no_inverse_in_floats_there_is_a_search():
    found = theory.solve(np.eye(2), [[1.0], [2.0]], beta=1e-17)
    assert (found.status, found.how) == ("solved", "search")


def test_what_floats_cannot_hold_apart_is_not_called_solved():
    table = np.random.default_rng(0).standard_normal((40, 40))
    wild = table * 10.0 ** np.random.default_rng(1).integers(-300, 300, (40, 40))
    found = theory.solve(wild, np.eye(40))
    assert found.residual is not None
    assert (found.status == "solved") == (found.residual <= 1e-6)


@pytest.mark.parametrize("given", [[[1, 2], [1]], [["a"]], [[1j]], [[None]], "words", [[10**400]]])
def test_what_is_no_table_of_numbers_is_refused(given):
    for name, call in (
        ("inputs", lambda: theory.solve(given, [[1.0]])),
        ("outputs", lambda: theory.solve([[1.0]], given)),
    ):
        assert refusal(call)[0].startswith(f"{name} that are no table of numbers")


def test_matrices_beyond_floats_are_refused():
    said = refusal(lambda: theory.solve([[1e-200, 0], [0, 1e-200]], [[1e200], [1.5]]))
    assert "1e-200" in said[0]
    assert "1e+200" in said[0]


def test_a_rank_is_counted_exactly_where_floats_do_not_find_it_full():
    table = np.array([[1, 1e-30, 0], [1, 0, 0], [0, 0, 1.0], [0, 0, 0], [0, 0, 1]])
    assert rank_bound(table) == 3
    assert rank_bound(np.array([[1.0, 2, 3], [2, 4, 6], [1, 0, 0]])) == 2
    assert rank_bound(np.zeros((2, 3))) == 0
    # 3 to 10³⁰⁰ times its rows and columns: dependent, and beyond floats
    assert rank_bound(np.outer([1e-300, 1.0, 1e300], [1.0, 2.0])) == 1


def test_a_rank_that_would_take_long_is_bounded_by_the_shape(monkeypatch):
    table = np.array([[1.0, 2, 3], [2, 4, 6], [1, 0, 0]])
    monkeypatch.setattr("trisect.theory.solver.WORK", 10)
    assert rank_bound(table) == 3


# --- arguments ---


@pytest.mark.parametrize(
    ("call", "given", "known"),
    [
        (lambda: theory.copying(dim=16.0), "dim 16.0", "a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: theory.average(keys=2.5), "keys 2.5", "a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: theory.copying(target=1.0), "target 1.0", "a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: theory.random_keys_one_head(samples=1e5), "samples 100000.0", "a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: theory.key_query_value(dim="4"), "dim '4'", "a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: theory.copying(beta="3"), "beta '3'", "a number"),  # pyright: ignore[reportArgumentType]
        (lambda: theory.random_keys_two_heads(variance="0"), "variance '0'", "a number"),  # pyright: ignore[reportArgumentType]
        (lambda: theory.identity_attention(add_c=None), "add_c None", "a number"),  # pyright: ignore[reportArgumentType]
        (lambda: theory.identity_attention(add_d="1"), "add_d '1'", "a number"),  # pyright: ignore[reportArgumentType]
        (lambda: theory.solve([[1.0]], [[1.0]], beta=1j), "beta 1j", "a number"),  # pyright: ignore[reportArgumentType]
        (
            lambda: theory.average(keys=100_000, dim=100_000),
            "dim 100000 was given with 100000 orthogonal keys",
            "10,000,000",
        ),
        (lambda: theory.identity_attention(dim=100_000), "dim 100000", "10,000,000"),
        (lambda: theory.random_keys_one_head(samples=10**12), "samples 1000000000000", "100,000,000"),
    ],
)
def test_arguments_of_another_kind_or_too_large_for_memory_are_refused(call, given, known):
    said = refusal(call)
    assert given in said[0]
    assert known in said[1]


def test_numbers_of_numpy_are_numbers():
    found = theory.copying(beta=np.float32(2), dim=np.int64(8))  # pyright: ignore[reportArgumentType]
    assert found.settings == {"beta": 2, "dim": 8, "keys": 8, "target": 1}


def test_a_run_refuses_what_is_no_seed(tmp_path):
    for seed in (-1, 1.5):
        with pytest.raises(SpecError, match=f"seed is {seed}"):
            trisect.theory_page(seed=seed, out=tmp_path / "out")  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "given", "first", "known"),
    [
        ("average", {"keys": 20}, "keys 20 was given, and no dim", "dim 16 by default"),
        ("copying", {"dim": 4}, "dim 4 was given, and no keys", "keys 8 by default"),
        ("copying", {"keys": 1}, "keys 1 was given", "2 or more"),
    ],
)
def test_a_default_that_leaves_no_room_is_called_a_default(name, given, first, known, tmp_path):
    said = refusal(lambda: trisect.theory_page((name,), out=tmp_path / "out", **given))
    assert first in said[0]
    assert known in said[1]


# --- results ---


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_results_are_read_only(name):
    found: Any = CONSTRUCTIONS[name](**({"samples": 50} if "keys" in name or "stretched" in name else {}))
    for array in (*found.inputs.values(), found.logits, found.weights, found.predicted, found.computed):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    for mapping in (found.settings, found.inputs):
        with pytest.raises(TypeError):
            mapping["beta"] = 1
    if found.odds is not None:
        assert not found.odds.samples.flags.writeable


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
