"""Laws of similarity: closed forms, changes of basis, scores; nulls through small matrices, and their p-values."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.traces import random_projections, random_trace

from trisect.core.trace import Address, Projections, Trace
from trisect.experiments.similarity import run
from trisect.measure import similarity
from trisect.stats.describe import MAX_EXACT, permutation_spearman
from trisect.stats.null import Null

EXACT = 1e-10  # float64 and well-conditioned matrices: a few hundred roundings
few = settings(max_examples=25)

sizes = st.tuples(st.integers(2, 12), st.integers(1, 6)).filter(lambda s: s[1] <= s[0])


def maps(seed, heads, width, inner):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(heads, width, inner, generator=draw, dtype=torch.float64)


def bases(seed, heads, inner):
    """Invertible matrices with a condition number of at most 9."""
    return maps(seed, heads, inner, inner) * 0.2 / math.sqrt(inner) + torch.eye(inner, dtype=torch.float64)


def between(left, right):
    return similarity.angles(similarity.span(left), similarity.span(right))


@few
@given(st.integers(0, 10**6), sizes)
def test_a_map_reads_what_it_reads_itself(seed, size):
    w = maps(seed, 3, *size)
    found = between(w, w)
    assert torch.allclose(found.overlap, torch.ones(3, dtype=torch.float64), atol=EXACT)
    assert found.least.max() < 1e-5  # the arc cosine near 1 doubles the digits that rounding takes
    assert torch.allclose(similarity.cosine(w, w), torch.ones(3, dtype=torch.float64), atol=EXACT)
    assert torch.allclose(similarity.symmetric_share(w, w), torch.ones(3, dtype=torch.float64), atol=EXACT)


@few
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_maps_of_orthogonal_parts_share_nothing(seed, inner):
    both = torch.linalg.qr(maps(seed, 2, 2 * inner + 1, 2 * inner)).Q
    left, right = both[..., :inner] @ bases(seed, 2, inner), both[..., inner:] @ bases(seed + 1, 2, inner)
    found = between(left, right)
    assert found.overlap.abs().max() < EXACT
    assert torch.allclose(found.least, torch.full((2,), math.pi / 2, dtype=torch.float64), atol=EXACT)
    assert similarity.white_cka(left, right).abs().max() < EXACT
    # W_Q W_Kᵀ squared is 0, so that half of it is symmetric
    assert torch.allclose(similarity.symmetric_share(left, right), torch.full((2,), 0.5).double(), atol=EXACT)


@few
@given(st.floats(0.01, 1.55), st.integers(2, 6))
def test_a_map_turned_by_an_angle_lies_at_that_angle(angle, width):
    one, other = torch.zeros(1, 2 * width, width).double(), torch.zeros(1, 2 * width, width).double()
    place = torch.arange(width)
    one[0, place, place] = 1.0
    other[0, place, place], other[0, place + width, place] = math.cos(angle), math.sin(angle)
    found = between(one, other)
    assert abs(float(found.least[0]) - angle) < 1e-7
    assert abs(float(found.overlap[0]) - math.cos(angle) ** 2) < EXACT
    assert torch.allclose(found.squares, torch.full_like(found.squares, math.cos(angle) ** 2), atol=EXACT)


def test_a_change_of_basis_moves_what_no_verdict_may_rest_on():
    q, k = maps(0, 1, 8, 3), maps(1, 1, 8, 3)
    g = torch.diag(torch.tensor([5.0, 1.0, 0.2]).double())[None]
    q2, k2 = q @ g, k @ torch.linalg.inv(g).mT
    assert abs(float(similarity.cosine(q, k) - similarity.cosine(q2, k2))) > 0.01
    assert abs(float(similarity.white_cka(q, k) - similarity.white_cka(q2, k2))) > 0.01


@few
@given(st.integers(0, 10**6), sizes, sizes)
def test_small_matrices_give_what_the_large_ones_give(seed, size, other):
    width = max(size[0], other[0])
    q, k = maps(seed, 2, width, size[1]), maps(seed + 1, 2, width, size[1])
    v = maps(seed + 2, 2, width, other[1])
    score = q @ k.mT
    even, odd = (score + score.mT) / 2, (score - score.mT) / 2
    share = even.square().sum((1, 2)) / (even.square().sum((1, 2)) + odd.square().sum((1, 2)))
    assert torch.allclose(similarity.symmetric_share(q, k), share, atol=EXACT)
    projections = [w @ torch.linalg.pinv(w) for w in (q, v)]
    overlap = (projections[0] * projections[1]).sum((1, 2)) / min(size[1], other[1])
    assert torch.allclose(between(q, v).overlap, overlap, atol=1e-7)  # the pseudo-inverse of an ill-conditioned draw
    values = torch.linalg.svdvals(score)
    shares = values / values.sum(1, keepdim=True)
    entropy = -(shares * shares.clamp_min(1e-300).log()).sum(1)
    assert np.allclose(similarity.product_rank(q, k), entropy.exp().numpy(), atol=1e-6)


def test_cka_of_white_inputs_is_that_of_a_sample_of_them():
    q, v = maps(0, 2, 6, 3), maps(1, 2, 6, 4)
    x = torch.linalg.qr(maps(2, 1, 50, 7) - maps(2, 1, 50, 7).mean(1, keepdim=True)).Q[0, :, :6]
    one, other = x @ q, x @ v
    square = (one.mT @ other).square().sum((1, 2))
    sample = square / ((one.mT @ one).square().sum((1, 2)) * (other.mT @ other).square().sum((1, 2))).sqrt()
    assert torch.allclose(similarity.white_cka(q, v), sample, atol=EXACT)


def effective_rank(w):
    return similarity.effective_ranks((similarity.span(w).values ** 2).numpy())


@pytest.mark.parametrize(("rank", "expected"), [(1, 1.0), (3, 3.0), (5, 5.0)])
def test_effective_rank_counts_equal_directions(rank, expected):
    values = torch.cat([torch.ones(rank), torch.zeros(5 - rank)]).double()
    w = torch.linalg.qr(maps(0, 1, 9, 5)).Q * values
    assert abs(float(effective_rank(w)[0]) - expected) < EXACT
    found = similarity.span(w)
    assert found.rank.tolist() == [rank]


def test_spans_of_different_rank_compare_the_smaller_with_the_larger():
    w = torch.linalg.qr(maps(0, 1, 9, 5)).Q
    inside = w * torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]).double()
    assert abs(float(between(w, inside).overlap[0]) - 1.0) < EXACT
    assert math.isnan(float(between(w, 0 * w).overlap[0]))
    assert math.isnan(effective_rank(0 * w)[0])


def test_a_bias_is_one_more_row():
    p: Any = random_projections(3)
    x = maps(4, 1, 5, 10)[0]
    one = torch.cat([x, torch.ones(5, 1).double()], 1)
    assert torch.allclose(one @ similarity.append_bias(p.w_q, p.b_q), x @ p.w_q + p.b_q[:, None], atol=EXACT)
    assert torch.allclose(one @ similarity.append_bias(p.w_q, None), x @ p.w_q, atol=EXACT)


def changed(trace, **fields):
    return Trace(**(vars(trace) | fields))


@few
@given(st.integers(0, 10**6), st.integers(0, 3))
def test_scores_agree_with_every_pair_counted_by_hand(seed, padding):
    trace = random_trace(seed, texts=2, queries=6, heads=4, groups=2, padding=padding)
    for row in range(2):
        n = int(trace.query_real[row].sum())
        score: Any = similarity.score_row(trace, row)
        assert (score.pairs, score.queries) == (n * (n - 1) // 2, n)
        s = (trace.q[row] @ trace.keys[row].mT)[:, :n, :n]
        pairs = [(i, j) for i in range(n) for j in range(i)]
        by_hand = {
            "unequal": sum((s[:, i, j] != s[:, j, i]).double() for i, j in pairs),
            "product": sum(s[:, i, j] * s[:, j, i] for i, j in pairs),
            "square": sum((s[:, i, j] ** 2 + s[:, j, i] ** 2) / 2 for i, j in pairs),
            "total": sum((s[:, i, j] + s[:, j, i]) / 2 for i, j in pairs),
            "first": sum((s[:, i].argmax(1) == i).double() for i in range(n)),
            "ahead": sum((s[:, i] < s[:, i, i, None]).sum(1) / (n - 1) for i in range(n)),
        }
        for name, sums in zip(similarity.SCORE_SUMS, score.sums, strict=True):
            assert torch.allclose(sums, torch.as_tensor(by_hand[name]).double(), atol=1e-9), name


def test_a_symmetric_score_is_found_equal_to_its_reverse():
    trace = random_trace(1, queries=7)
    same: Any = similarity.score_row(changed(trace, k=trace.q), 0)
    sums = dict(zip(similarity.SCORE_SUMS, same.sums, strict=True))
    assert sums["unequal"].tolist() == [0.0] * 4
    assert torch.allclose(sums["product"], sums["square"], atol=EXACT)
    other: Any = similarity.score_row(trace, 0)
    assert other.sums[0].tolist() == [float(other.pairs)] * 4


def test_blocks_of_heads_leave_no_trace(monkeypatch):
    trace = random_trace(2, queries=5, heads=6)
    whole: Any = similarity.score_row(trace, 0)
    monkeypatch.setattr(similarity, "_BLOCK_NUMBERS", 1)
    parts: Any = similarity.score_row(trace, 0)
    assert torch.equal(whole.sums, parts.sums)


def test_scores_need_one_sequence_and_two_tokens():
    assert similarity.score_row(random_trace(0, queries=4, keys=6), 0) is None
    assert similarity.score_row(random_trace(0, queries=4, padding=3), 1) is None
    assert similarity.score_row(random_trace(0, queries=4, padding=3), 0) is not None


@few
@given(st.integers(0, 10**6))
def test_cka_in_parts_is_cka_of_all_real_tokens(seed):
    batches = [random_trace(seed + i, queries=5, heads=4, groups=2, padding=i) for i in range(3)]
    moments = similarity.PartMoments()
    for trace in batches:
        moments.add(trace)

    def kept(pick, real):
        return torch.cat([pick(t).transpose(1, 2)[getattr(t, real)] for t in batches]).transpose(0, 1)

    parts = {"q": kept(lambda t: t.q, "query_real"), "k": kept(lambda t: t.keys, "key_real")}
    parts["v"] = kept(lambda t: t.values, "key_real")
    assert moments.count == parts["q"].shape[1]
    parts = {name: part - part.mean(1, keepdim=True) for name, part in parts.items()}
    for one, other in (("q", "k"), ("k", "v"), ("q", "v"), ("v", "q")):
        a, b = parts[one], parts[other]
        grams = [(x.mT @ y).square().sum((1, 2)) for x, y in ((a, b), (a, a), (b, b))]
        found: Any = moments.cka(one, other)
        assert torch.allclose(found, grams[0] / (grams[1] * grams[2]).sqrt(), atol=1e-8)


def test_cka_of_cross_attention_leaves_queries_out():
    moments = similarity.PartMoments()
    moments.add(random_trace(0, queries=4, keys=6))
    assert moments.cka("q", "k") is None
    assert moments.cka("k", "v") is not None


SAME = 1e-3  # of Kolmogorov and Smirnov's p; the seeds are fixed, so that a pass stays a pass
DIRECT = 3000


def gaussian(seed, dim, width, draws=DIRECT):
    return torch.randn(draws, dim, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alike(one, other):
    found: Any = stats.ks_2samp(np.asarray(one), np.asarray(other))
    return found.pvalue > SAME


@pytest.mark.parametrize(("dim", "left", "right"), [(9, 3, 3), (12, 2, 5), (7, 4, 5), (6, 1, 1), (8, 5, 2), (5, 1, 4)])
def test_random_subspaces_are_those_of_gaussian_matrices(dim, left, right):
    found = similarity.random_subspaces(np.random.default_rng(1), dim, left, right, 20_000)
    direct = similarity.angles(similarity.span(gaussian(1, dim, left)), similarity.span(gaussian(2, dim, right)))
    assert alike(found.overlap, direct.overlap)
    if left + right <= dim:
        assert alike(found.angle, direct.least)
    else:
        assert not found.angle.any()
        assert direct.least.max() < 1e-5


@pytest.mark.parametrize(("dim", "left", "right"), [(768, 64, 64), (384, 32, 32), (10, 7, 6), (3, 1, 2)])
def test_overlaps_have_the_moments_of_the_closed_form(dim, left, right):
    draws = 20_000
    found = similarity.random_subspaces(np.random.default_rng(2), dim, left, right, draws).overlap
    # the first two moments of tr(P Q) for uniformly random projections of ranks `left` and `right`
    mean, size = left * right / dim / min(left, right), min(left, right)
    variance = 2 * left * right * (dim - left) * (dim - right) / (dim**2 * (dim - 1) * (dim + 2))
    spread = float(np.sqrt(variance)) / size
    # five standard errors; of a standard deviation it is near spread / sqrt(2 draws) for tails like a normal's
    assert abs(found.mean() - mean) < 5 * spread / draws**0.5
    assert abs(found.std() / spread - 1) < 5 * 1.5 / (2 * draws) ** 0.5


def test_spans_as_wide_as_the_model_always_overlap():
    found = similarity.random_subspaces(np.random.default_rng(0), 4, 4, 2, 50)
    assert found.overlap.tolist() == [1.0] * 50
    assert np.isnan(Null.of(found.overlap).scores(np.ones(2))).all()


@pytest.mark.parametrize(("dim", "left", "right"), [(9, 3, 3), (6, 2, 4), (3, 5, 5), (4, 1, 1)])
def test_random_forms_are_those_of_gaussian_matrices(dim, left, right):
    found = similarity.random_map_pairs(np.random.default_rng(3), dim, left, right, 20_000)
    one, other = gaussian(3, dim, left), gaussian(4, dim, right)
    assert alike(found.cka, similarity.white_cka(one, other))
    if left == right:
        assert alike(found.symmetric, similarity.symmetric_share(one, other))
    else:
        assert np.isnan(found.symmetric).all()


@pytest.mark.parametrize(("dim", "width"), [(9, 4), (4, 9), (5, 5), (6, 1)])
def test_random_ranks_are_those_of_gaussian_matrices(dim, width):
    one, other = gaussian(5, dim, width), gaussian(6, dim, width)
    single = similarity.random_ranks(np.random.default_rng(5), dim, width, 20_000)
    if min(dim, width) == 1:
        assert (single == 1.0).all()
    else:
        assert alike(single, effective_rank(one))
        product = similarity.random_product_ranks(np.random.default_rng(6), dim, width, 20_000)
        assert alike(product, similarity.product_rank(one, other))


@pytest.mark.parametrize("size", [1, 2, 12])
def test_random_cosines_are_those_of_gaussian_vectors(size):
    found = similarity.random_cosines(np.random.default_rng(7), size, 20_000)
    assert alike(found, similarity.cosine(gaussian(7, size, 1), gaussian(8, size, 1)))


def test_a_p_value_counts_the_matrix_itself_and_ties_on_both_sides():
    null = Null.of(np.array([3.0, 1.0, 2.0, 2.0]))
    values = np.array([0.0, 2.0, 4.0])
    assert null.above(values).tolist() == [1.0, 0.8, 0.2]
    assert null.below(values).tolist() == [0.2, 0.8, 1.0]
    assert null.beyond(values).tolist() == [0.4, 1.0, 0.4]
    assert (null.mean, null.quantile(0.5)) == (2.0, 2.0)


def test_many_blocks_of_draws_are_drawn_like_one(monkeypatch):
    whole = similarity.random_map_pairs(np.random.default_rng(9), 5, 2, 2, 2000)
    monkeypatch.setattr(similarity, "_BLOCK_NUMBERS", 96)
    cut = similarity.random_map_pairs(np.random.default_rng(9), 5, 2, 2, 2000)
    assert len(cut.cka) == len(np.unique(cut.cka)) == 2000
    assert alike(whole.cka, cut.cka)


def test_random_heads_have_uniform_p_values_in_every_measure():
    layers, heads = 20, 40
    found = []
    for n in range(1, layers + 1):
        p = random_projections(n, heads=heads, inner=3, width=12, bias=False, address=Address("plain", n))
        found += run.measure_weights([p])
    rows: list[Any] = run.compare_with_nulls(found, run.Nulls(20_000, 0), lambda *_: None)
    tested = {(r["measure"], r["component"]) for r in rows if r["measure"].endswith("_p")}
    assert {measure for measure, _ in tested} == {
        f"{name}_p" for name in ("overlap", "least_angle_degrees", "cosine", "cka", "symmetric_share", "effective_rank")
    }
    for measure, component in sorted(tested):
        p = [r["value"] for r in rows if (r["measure"], r["component"]) == (measure, component)]
        assert len(p) == layers * heads
        assert stats.kstest(p, "uniform").pvalue > SAME, (measure, component)
    survivors = [r for r in rows if r["measure"].endswith("_p_holm") and r["value"] < 0.05]
    assert not survivors


def test_a_tied_head_is_found_among_random_ones():
    p: Any = random_projections(0, heads=30, inner=3, width=12, bias=False)
    tied = p.w_k.clone()
    tied[4] = p.w_q[4] @ gaussian(1, 3, 3, 1)[0]
    found = run.measure_weights([Projections(p.address, p.origins, p.w_q, tied, p.w_v, p.w_o)])
    rows: list[Any] = run.compare_with_nulls(found, run.Nulls(20_000, 0, 30), lambda *_: None)
    sure = [r for r in rows if r["measure"] == "overlap_p_holm" and r["value"] < 0.05]
    assert {(r["component"], r["head"]) for r in sure} == {("q-k", 5)}


@pytest.mark.parametrize("n", [3, 5, 7])
def test_the_order_of_layers_is_tested_over_every_order(n):
    draw = np.random.default_rng(n)
    x, y = draw.normal(size=(2, n))
    found = permutation_spearman(x, y)
    for p, side in ((found.p_for, "less"), (found.p_against, "greater")):
        every: Any = stats.permutation_test(
            (x,),
            lambda z: np.asarray(stats.spearmanr(z, y))[0],
            permutation_type="pairings",
            n_resamples=100_000,
            alternative=side,
        )
        assert float(p) == pytest.approx(every.pvalue)


def test_a_perfect_order_has_the_smallest_p_and_one_value_none():
    falling = permutation_spearman(np.arange(6.0), -np.arange(6.0))
    assert (float(falling.p_for), float(falling.p_against)) == (pytest.approx(1 / 720), 1.0)
    many = permutation_spearman(np.arange(MAX_EXACT + 4.0), -np.arange(MAX_EXACT + 4.0))
    assert 0 < many.p_for < 1e-4
    assert permutation_spearman(np.arange(4.0), np.ones(4)) == (1.0, 1.0)
    assert permutation_spearman(np.arange(2.0), np.arange(2.0)) == (1.0, 1.0)


def test_p_of_orders_is_uniform_where_nothing_goes_together():
    draw = np.random.default_rng(1)
    p = np.array([float(permutation_spearman(*draw.normal(size=(2, 7))).p_for) for _ in range(400)])
    assert alike(p, np.random.default_rng(2).uniform(size=4000))
