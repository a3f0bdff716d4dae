"""Laws of attention by hand: every construction keeps its law in its domain, samples keep the closed forms, proofs hold."""

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special, stats
from tests.constructed import apart_of, odds_of, variances_of

from trisect import theory
from trisect.theory import helpers, solver
from trisect.theory.constructions import KeyDraws, self_attention

ROUND = 1e-12  # of the size of what is compared: a few hundred roundings of float64
MANY = 20_000
RANDOM = (theory.random_keys_one_head, theory.random_keys_two_heads)
STRETCHED = (theory.stretched_key_one_head, theory.stretched_key_two_heads)

betas = st.floats(0.05, 30.0)
counts = st.integers(2, 12)
seeds = st.integers(0, 2**32 - 1)
laws_of = settings(max_examples=40)
sampled = settings(max_examples=8)


def vectors(seed, n, d):
    return np.random.default_rng(seed).standard_normal((n, d))


def plain_attention(result):
    """What attention gives for the result's inputs, by SciPy: a row of weights and an output for each query."""
    weights = special.softmax(result.inputs["queries"] @ result.inputs["keys"].T, axis=1)
    return weights, weights @ result.inputs["values"]


# --- softmax and deviations ---


@given(seeds, counts, st.floats(-1e6, 1e6))
@laws_of
def test_only_gaps_between_logits_matter_and_order_does_not(seed, n, shift):
    logits = 3 * vectors(seed, 1, n)[0]
    weights = helpers.attention_weights(logits)
    order = np.random.default_rng(seed).permutation(n)
    assert weights.sum() == pytest.approx(1.0, rel=ROUND)
    np.testing.assert_allclose(helpers.attention_weights(logits[order]), weights[order], rtol=ROUND)
    # a shift of 1e6 leaves logits good to 1e-10
    np.testing.assert_allclose(helpers.attention_weights(logits + shift), weights, rtol=1e-8)


@given(seeds, st.integers(2, 8), st.data())
@laws_of
def test_deviations_are_those_from_an_even_mean_over_the_wanted(seed, n, data):
    wanted = data.draw(st.sets(st.integers(0, n - 1), min_size=1))
    weights = helpers.attention_weights(4 * vectors(seed, 3, n))
    even = np.zeros(n)
    even[list(wanted)] = 1 / len(wanted)
    np.testing.assert_allclose(helpers.deviations(weights, sorted(wanted)), weights - even, atol=1e-15)


# --- constructions 1 and 2 ---


@given(betas, counts, st.integers(0, 20), seeds)
@laws_of
def test_copying_stays_within_its_bound_for_any_values(beta, n, more, seed):
    d = n + more
    for target in (1, n):
        values = vectors(seed, n, d)
        found = theory.copying(
            beta=beta, dim=d, keys=n, target=target, values=values, generator=np.random.default_rng(seed)
        )
        weights, outputs = plain_attention(found)
        np.testing.assert_allclose(found.weights, weights[0], rtol=1e-11)  # logits of 30 are good to about 1e-14
        np.testing.assert_allclose(found.computed, outputs[0], atol=1e-12)
        off = np.linalg.norm(found.computed - values[target - 1])
        assert found.error == pytest.approx(off, abs=1e-13)
        assert found.error <= found.expected * (1 + 1e-11)
        if n == 2:
            assert found.error == pytest.approx(found.expected, rel=1e-11)


@given(betas, counts, st.integers(0, 20), seeds)
@laws_of
def test_the_mean_of_two_has_its_closed_form_for_any_values(beta, n, more, seed):
    values = vectors(seed, n, n + more)
    found = theory.average(beta=beta, dim=n + more, keys=n, values=values, generator=np.random.default_rng(seed))
    weight = math.exp(beta) / (n - 2 + 2 * math.exp(beta))
    np.testing.assert_allclose(found.weights[:2], weight, rtol=1e-11)
    np.testing.assert_allclose(found.computed, plain_attention(found)[1][0], atol=1e-12)
    assert found.error == pytest.approx(np.linalg.norm(found.computed - values[:2].mean(0)), abs=1e-13)
    # the keys' own rounding moves α_a − α_b by about β times 1e-16
    assert found.error == pytest.approx(found.expected, rel=1e-10, abs=1e-12)


@given(st.floats(1.0, 25.0), st.integers(3, 12), st.sampled_from([theory.copying, theory.average]))
@laws_of
def test_errors_of_fixed_keys_fall_by_at_most_e_to_the_gap_and_in_the_end_by_that(beta, n, make):
    near, far = (make(beta=b, keys=n).error for b in (beta, beta + 2))
    assert math.exp(-2) * (1 - 1e-6) <= far / near < 1
    if beta > math.log(100 * n):
        assert far / near == pytest.approx(math.exp(-2), rel=0.011)  # the others' weight at β is below 1 %


@given(betas, st.integers(3, 8), st.integers(0, 30), seeds)
@laws_of
def test_neither_the_dimension_nor_the_position_of_the_frame_matters(beta, n, more, seed):
    for make in (theory.copying, theory.average):
        one = make(beta=beta, dim=n, keys=n)
        other = make(beta=beta, dim=n + more, keys=n, generator=np.random.default_rng(seed))
        assert other.error == pytest.approx(one.error, rel=1e-10, abs=1e-13)


# --- constructions 3 and 5: random keys ---


@given(st.floats(0.2, 12.0), st.integers(2, 12), st.sampled_from([0.0, 1e-6, 1e-4, 1e-3]), seeds)
@sampled
def test_random_keys_have_the_root_mean_square_of_their_law(beta, n, variance, seed):
    values = vectors(seed, n, n)
    for make in RANDOM:
        found = make(beta=beta, dim=n, keys=n, variance=variance, samples=MANY, values=values)
        # first order in β√α, at most 0.4, where e^β is not large: 3 %; of 20,000 samples' own error: 2 %
        assert found.error == pytest.approx(found.expected, rel=0.05 if variance else 1e-9, abs=1e-13)


@given(st.floats(0.05, 200.0), st.sampled_from([1e-6, 1e-3, 0.1, 2.0]))
@sampled
def test_with_two_keys_the_law_of_one_head_holds_at_any_variance(beta, variance):
    found = theory.random_keys_one_head(beta=beta, dim=2, keys=2, variance=variance, samples=MANY)
    assert found.error == pytest.approx(found.expected, rel=0.03)  # five standard errors of 20,000 samples


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_two_keys_and_two_heads_at_a_small_beta_differ_by_the_noise_alone(beta):
    found = theory.random_keys_two_heads(beta=beta, dim=2, keys=2, variance=1e-4, samples=MANY)
    exact = theory.random_keys_two_heads(beta=beta, dim=2, keys=2, variance=0.0, samples=2)
    assert exact.error < 1e-15  # the heads' misses cancel
    assert found.error == pytest.approx(found.expected, rel=0.025)  # five standard errors


@pytest.mark.parametrize("make", STRETCHED)
@pytest.mark.parametrize(("beta", "small"), [(0.5, 1e-4), (5.0, 1e-4), (50.0, 1e-4), (5000.0, 1e-6)])
def test_the_stretched_law_ends_with_the_variance_at_any_beta(make, beta, small):
    # where β√α ≫ 1 the largest of the others' noises counts: a share of √α of the spread, and 100,000 samples see 1e-4
    near, far = (make(beta=beta, variance=variance, samples=100_000) for variance in (small, 0.3))
    assert near.error < near.expected
    assert far.error > 5 * far.expected


@given(st.sampled_from([1e-5, 1e-4, 1e-3]), st.integers(3, 10))
@sampled
def test_one_head_falls_and_rises_again_where_two_heads_keep_falling(variance, n):
    grid = np.geomspace(1.0, 40.0, 8)
    one, two = (
        np.array([make(beta=b, dim=n, keys=n, variance=variance, samples=2_000).error for b in grid]) for make in RANDOM
    )
    least = int(np.argmin(one))
    assert 0 < least < len(grid) - 1
    assert (np.diff(one)[:least] < 0).all()
    assert (np.diff(one)[least:] > 0).all()
    assert (np.diff(two) < 0).all()
    assert two[-1] < 1e-3 * one[-1]


@pytest.mark.parametrize("make", [*RANDOM, *STRETCHED])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_log_odds_keep_their_closed_form_and_no_other(make, seed):
    """Kolmogorov–Smirnov; the seeds are fixed, so that a pass stays a pass."""
    wide = {"variance": 0.01} if make in RANDOM else {}
    found = make(beta=4.0, keys=6, samples=100_000, generator=np.random.default_rng(seed), **wide)
    odds = odds_of(found)
    assert odds.distance < odds.bound
    assert odds.distance == pytest.approx(stats.kstest(odds.weights, odds.cdf).statistic, abs=1e-9)
    # the samples tell the law from one with a spread 3 % larger, another mean, or more keys
    assert odds._replace(law_spread=1.03 * odds.law_spread).distance > odds.bound
    assert odds._replace(law_mean=odds.law_mean + 0.1 * odds.law_spread).distance > odds.bound
    if make in STRETCHED:
        assert found.error == odds.distance
        more = odds_of(make(beta=4.0, keys=20, dim=20, samples=2))
        assert odds._replace(law_mean=more.law_mean).distance > odds.bound


@given(st.floats(0.1, 1e3), counts)
@laws_of
def test_the_stretched_weight_is_that_of_the_closed_form_sample_by_sample(beta, n):
    g = np.random.default_rng(3).standard_normal(50)
    gamma = 1 + g * math.sqrt(0.5)
    draws = KeyDraws(g, np.zeros((50, n, 2)))
    one, two = (make(beta=beta, dim=n, keys=n, draws=draws) for make in STRETCHED)
    rest = np.logaddexp(beta, math.log(n - 2) if n > 2 else -np.inf)
    np.testing.assert_allclose(odds_of(one).samples, beta * gamma - rest, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(odds_of(two).samples, beta * gamma - math.log(n - 1), rtol=1e-9, atol=1e-9)
    assert apart_of(two).samples.tolist() == np.flatnonzero(gamma < 0).tolist()
    if n == 2:
        np.testing.assert_allclose(odds_of(one).weights, special.expit(beta * (gamma - 1)), atol=1e-9)


@pytest.mark.parametrize("make", [*RANDOM, *STRETCHED])
def test_logits_drawn_alone_are_those_of_whole_keys(make):
    """Keys in all their dimensions, drawn by their covariances: the same weights in distribution."""
    n, d, alpha, samples = 5, 9, 0.05, 8_000
    found = make(beta=2.0, dim=d, keys=n, variance=alpha, samples=samples)
    draw, mu = np.random.default_rng(11), found.inputs["keys"]
    covariances = [alpha * np.eye(d) for _ in range(n)]
    if make in STRETCHED:
        covariances[0] = covariances[0] + 0.5 * np.outer(mu[0], mu[0])
    keys = np.stack(
        [draw.multivariate_normal(m, c, samples, method="cholesky") for m, c in zip(mu, covariances, strict=True)], 1
    )
    logits = keys @ found.inputs["queries"][0]
    weights = special.softmax(logits, axis=1)
    rest = weights[:, 1] if make in RANDOM else 1 - weights[:, 0]
    compared: Any = stats.ks_2samp(weights[:, 0] / (weights[:, 0] + rest), odds_of(found).weights)
    assert compared.pvalue > 1e-3
    heads = found.inputs["queries"]
    outputs = special.softmax(keys @ heads.T, axis=1).mean(-1) @ found.inputs["values"]
    # means of 8,000 samples of numbers below 1: five standard errors are below 0.03
    np.testing.assert_allclose(outputs.mean(0), found.computed, atol=0.03)
    target = found.inputs["values"][:2].mean(0)
    if make in RANDOM:
        assert np.sqrt(((outputs - target) ** 2).sum(1).mean()) == pytest.approx(found.error, rel=0.03)
    else:
        assert np.mean(logits[:, 0] < 0) > 0.01
        varies = outputs.var(0).sum()
        assert found.variances is None or varies == pytest.approx(found.variances.two, rel=0.1)


# --- constructions 4 and 6: a stretched key ---


@given(st.floats(0.05, 300.0), st.integers(2, 12), seeds)
@sampled
def test_variances_and_means_under_a_stretch_are_the_closed_forms(beta, n, seed):
    values = vectors(seed, n, n)
    found = theory.stretched_key_two_heads(beta=beta, dim=n, keys=n, samples=MANY, values=values)
    v = variances_of(found)
    # five standard errors of a variance from 20,000 samples of a skewed weight
    assert v.one == pytest.approx(v.one_law, rel=0.12)
    assert v.two == pytest.approx(v.two_law, rel=0.12)
    np.testing.assert_allclose(found.computed, found.predicted, atol=6 * math.sqrt(v.two_law / MANY))
    one = theory.stretched_key_one_head(beta=beta, dim=n, keys=n, samples=MANY, values=values)
    np.testing.assert_allclose(one.computed, one.predicted, atol=6 * math.sqrt(v.one_law / MANY))


@given(st.floats(0.02, 400.0), st.integers(2, 40))
@laws_of
def test_closed_forms_are_the_moments_of_a_logit_normal_weight(beta, n):
    values, draws = np.eye(n), KeyDraws(np.zeros(2), np.zeros((2, n, 2)))
    found = theory.stretched_key_two_heads(beta=beta, dim=n, keys=n, draws=draws, values=values)
    # an even grid of quantiles is good to a share of its step, where σ is steep against it
    z = special.ndtri((np.arange(40_000) + 0.5) / 40_000)
    first = special.expit(odds_of(found).law_mean + beta * math.sqrt(0.5) * z)
    rest = np.mean(values[1:], axis=0)
    assert variances_of(found).two_law == pytest.approx(first.var() * ((values[0] - rest) ** 2).sum() / 4, abs=1e-4)
    elsewhere = (1 - special.expit(beta - math.log(n - 1))) / (n - 1)  # of head 2, on a
    assert found.predicted[0] == pytest.approx((first.mean() + elsewhere) / 2, abs=1e-4)
    two = theory.random_keys_one_head(
        beta=beta, dim=2, keys=2, variance=0.01, draws=KeyDraws(np.zeros(2), np.zeros((2, 2, 2)))
    )
    # c = ½(v_a + v_b) + (w − ½)(v_a − v_b)
    assert two.expected == pytest.approx(math.sqrt(2 * ((special.expit(0.2 * beta * z) - 0.5) ** 2).mean()), abs=1e-4)


@given(st.floats(0.02, 1e4), st.integers(2, 60))
@laws_of
def test_two_heads_vary_less_than_one_for_orthonormal_values(beta, n):
    draws = KeyDraws(np.random.default_rng(n).standard_normal(200), np.zeros((200, n, 2)))
    v = variances_of(theory.stretched_key_two_heads(beta=beta, dim=n, keys=n, draws=draws))
    assert 0 < v.two_law < v.one_law
    assert v.two < v.one
    assert v.two_kept < v.one_kept


@given(st.floats(6.0, 50.0), st.integers(4, 12))
@laws_of
def test_the_comparison_turns_round_where_the_two_values_nearly_coincide(beta, n):
    values = np.eye(n)
    values[1] = values[0] + 0.01 * values[1]
    v = variances_of(theory.stretched_key_two_heads(beta=beta, dim=n, keys=n, samples=4_000, values=values))
    assert v.two > v.one
    assert v.two_law > v.one_law


@pytest.mark.parametrize("seed", [0, 1])
def test_the_share_set_apart_is_that_of_the_normal_law(seed):
    found = theory.stretched_key_two_heads(samples=100_000, generator=np.random.default_rng(seed))
    share = special.ndtr(-math.sqrt(2))
    assert apart_of(found).law_share == pytest.approx(share, rel=1e-12)
    assert apart_of(found).law_share == pytest.approx(0.0786, abs=1e-4)
    assert abs(apart_of(found).share - share) < 4 * math.sqrt(share * (1 - share) / 100_000)
    assert variances_of(found).two_kept < variances_of(found).two


def test_blocks_change_nothing_and_memory_does_not_grow_with_the_keys(monkeypatch):
    draw = np.random.default_rng(5)
    draws = KeyDraws(draw.standard_normal(300), draw.standard_normal((300, 4, 2)))
    whole = theory.stretched_key_two_heads(draws=draws, keys=4, variance=0.01)
    monkeypatch.setattr("trisect.theory.constructions.BLOCK", 56)  # seven samples at once
    pieces = theory.stretched_key_two_heads(draws=draws, keys=4, variance=0.01)
    assert (odds_of(whole).samples == odds_of(pieces).samples).all()
    assert apart_of(whole).samples.tolist() == apart_of(pieces).samples.tolist()
    np.testing.assert_allclose(variances_of(pieces), variances_of(whole), rtol=1e-9)
    np.testing.assert_allclose(pieces.weights, whole.weights, rtol=1e-12)
    monkeypatch.undo()
    tracemalloc.start()
    try:
        theory.random_keys_two_heads(samples=8_000, keys=400, dim=400)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 35e6  # all logits at once would be 8,000 · 400 · 2 · 8 bytes = 51 MB, and as much for every step


# --- constructions 7 and 8: words ---

adds = st.floats(-20.0, 20.0)


@given(st.floats(0.3, 6.0), st.integers(4, 20), adds, adds, seeds)
@laws_of
def test_words_alone_take_themselves_whatever_is_added(beta, dim, add_c, add_d, seed):
    found = theory.identity_attention(
        beta=beta, dim=dim, add_c=add_c, add_d=add_d, generator=np.random.default_rng(seed)
    )
    u, x = found.inputs["letters"], found.inputs["keys"]
    np.testing.assert_allclose(u @ u.T, beta**2 * np.eye(4), atol=1e-12 * beta**2)
    np.testing.assert_allclose(x[1], u[0] + add_c * u[2] + add_d * u[3], atol=1e-13 * beta * 40)
    # logits of up to 3e4 are good to about 1e-11
    assert found.error == pytest.approx(found.expected, rel=1e-8, abs=1e-14)
    gaps = found.logits[1] - np.delete(found.logits, 1)
    assert (gaps >= 0.75 * beta**2 * (1 - 1e-9) - 1e-9).all()
    off = np.linalg.norm(found.computed - u[1]) / beta
    # of c_2 − u_b, in units of β, the parts along u_a and u_b are α_22 and −α_22, and α_22 ≥ 1 / (1 + 2e^{−¾β²})
    assert off >= math.sqrt(2) / (1 + 2 * math.exp(-0.75 * beta**2)) * (1 - 1e-9)
    assert off >= math.sqrt(2) * found.weights[1] * (1 - 1e-9)
    if beta >= 1:
        assert found.weights[1] > 0.5
    alone = theory.identity_attention(beta=beta, dim=dim)
    assert alone.error == pytest.approx(2 * math.sqrt(2.5) / (2 + math.exp(beta**2)), rel=1e-8)


@given(st.floats(0.2, 2.2), st.integers(4, 20), seeds)
@laws_of
def test_the_matrices_give_the_wanted_outputs(beta, dim, seed):
    found = theory.key_query_value(beta=beta, dim=dim, generator=np.random.default_rng(seed))
    u = found.inputs["letters"]
    np.testing.assert_allclose(found.predicted, [u[1] - u[2], u[1]])
    sizes = np.linalg.norm(found.computed - found.predicted, axis=1) / beta
    other = 2 / (2 + math.exp(beta**6))
    np.testing.assert_allclose(sizes, [math.sqrt(1.25) * other, math.sqrt(0.5) * other], rtol=1e-9, atol=1e-14)
    assert found.error == pytest.approx(math.sqrt(1.25) * other, rel=1e-9)
    assert found.expected == pytest.approx(found.error, rel=1e-9)


@given(st.floats(1.5, 3.0), st.integers(4, 12), seeds)
@laws_of
def test_keys_and_queries_are_not_interchangeable(beta, dim, seed):
    found = theory.key_query_value(beta=beta, dim=dim, generator=np.random.default_rng(seed))
    u, words = found.inputs["letters"], found.inputs["words"]
    query, key, value = (found.inputs[name] for name in "QKV")
    right, swapped = self_attention(words, query, key, value), self_attention(words, key, query, value)
    third = (2 * u[1] - u[2]) / 3
    # the losing words take at most 2 e^{−β⁶}, 2.3e-5 at β = 1.5
    np.testing.assert_allclose(swapped.outputs[:2], [0 * third, third], atol=3e-5 * beta)
    np.testing.assert_allclose(right.outputs[:2], [u[1] - u[2], u[1]], atol=3e-5 * beta)
    assert np.linalg.norm(right.outputs[:2] - swapped.outputs[:2], axis=1).min() > 0.4 * beta
    seeds_own = self_attention(words, value, key, value)
    np.testing.assert_allclose(seeds_own.outputs[:2], [third, third], atol=1e-12 * beta)


# --- the solver ---


def worst(outputs, wanted):
    asked = ~np.isnan(wanted).any(1)
    return np.linalg.norm((outputs - wanted)[asked], axis=1).max()


def by_hand(words, found: Any):
    weights = special.softmax((words @ found.query.T) @ (words @ found.key.T).T, axis=1)
    return weights @ (words @ found.value.T)


@given(seeds, st.integers(1, 7), st.integers(0, 5), st.integers(1, 6), st.floats(0.05, 30.0))
@laws_of
def test_independent_words_get_any_outputs_in_closed_form(seed, n, more, width, beta):
    words, wanted = vectors(seed, n, n + more), vectors(seed + 1, n, width)
    assume(np.linalg.cond(words) < 1e6)
    found = theory.solve(words, wanted, beta=beta)
    assert (found.status, found.how) == ("solved", "closed form")
    # 1e-16 times the condition numbers of the words and of the weights, up to n / (e^β − 1)
    np.testing.assert_allclose(by_hand(words, found), wanted, atol=1e-6)
    assert found.residual == pytest.approx(worst(by_hand(words, found), wanted), abs=1e-9)


@given(seeds, st.integers(1, 4), st.integers(1, 3))
@laws_of
def test_words_that_repeat_with_the_same_wish_are_one_word(seed, n, copies):
    words, wanted = vectors(seed, n, n + 1), vectors(seed + 1, n, 3)
    assume(np.linalg.cond(words) < 1e6)
    again = np.random.default_rng(seed).integers(n, size=copies)
    found = theory.solve(np.vstack([words, words[again]]), np.vstack([wanted, wanted[again]]))
    assert (found.status, found.how) == ("solved", "closed form")
    assert found.outputs is not None
    np.testing.assert_allclose(found.outputs[:n], wanted, atol=1e-8)


@given(seeds, st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.data())
@laws_of
def test_what_some_matrices_can_do_is_never_called_impossible(seed, n, dim, width, data):
    """Words with repetitions, zeros and dependence, small whole numbers so that they are exact."""
    rows = st.lists(st.integers(-2, 2), min_size=dim, max_size=dim)
    words = np.array(data.draw(st.lists(rows, min_size=n, max_size=n)), dtype=float)
    draw = np.random.default_rng(seed)
    query, key, value = *draw.standard_normal((2, dim, dim)), draw.standard_normal((width, dim))
    outputs = self_attention(words, query, key, value).outputs
    hidden = outputs.copy()
    hidden[draw.random(n) < 0.3] = np.nan
    # values that cancel leave their rounding in the outputs, and no matrices may give exactly that
    rounding = 1e-14 * np.abs(words @ value.T).max()
    for wanted in (outputs, hidden):
        proved = solver.certificate(words, wanted)
        assert proved is None or proved[1] < rounding


@given(seeds, st.integers(2, 5), st.integers(1, 4), st.data())
@laws_of
def test_no_matrices_come_nearer_than_a_certificate_allows(seed, n, dim, data):
    rows = st.lists(st.integers(-1, 1), min_size=dim, max_size=dim)
    words = np.array(data.draw(st.lists(rows, min_size=n, max_size=n)), dtype=float)
    draw = np.random.default_rng(seed)
    wanted = draw.integers(-2, 3, (n, 2)).astype(float)
    proved = solver.certificate(words, wanted)
    assume(proved is not None)
    assert proved is not None
    found = theory.solve(words, wanted)
    assert (found.status, found.bound, found.value) == ("impossible", proved[1], None)
    assert found.proof
    for scale in (0.3, 1.0, 5.0):
        query, key = scale * draw.standard_normal((2, dim, dim))
        mixed = self_attention(words, query, key, np.eye(dim)).outputs
        value = np.linalg.lstsq(mixed, wanted, rcond=None)[0].T
        assert worst(mixed @ value.T, wanted) >= proved[1] * (1 - 1e-9)


@given(seeds, st.integers(1, 4), st.integers(1, 4))
@laws_of
def test_equal_words_with_unequal_wishes_are_impossible(seed, dim, width):
    words, wanted = vectors(seed, 3, dim), vectors(seed + 1, 3, width)
    words[2] = words[0]
    found = theory.solve(words, wanted)
    assert found.status == "impossible"
    assert found.bound >= np.linalg.norm(wanted[0] - wanted[2]) / 2 * (1 - ROUND)


@given(seeds, st.integers(2, 5), st.integers(0, 3))
@laws_of
def test_a_zero_word_makes_independent_wishes_impossible(seed, n, more):
    words, wanted = vectors(seed, n, n + more), vectors(seed + 1, n, n)
    words[0] = 0.0
    found = theory.solve(words, wanted)
    assert found.status == "impossible"
    free = wanted.copy()
    free[0] = np.nan
    assert solver.certificate(words, free) is None  # it was the zero word's wish that made it so
