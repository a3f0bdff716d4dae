"""Laws of similarity: closed forms of identical, orthogonal and turned maps, what a change of basis leaves alone, scores."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.traces import random_projections, random_trace

from trisect.core.trace import Trace
from trisect.measure import similarity

EXACT = 1e-10  # float64 and well-conditioned matrices: a few hundred roundings
few = settings(max_examples=25, deadline=None)

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


def test_an_antisymmetric_score_has_no_symmetric_part():
    q = torch.eye(2).double()[None]
    k = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]]).double()
    assert similarity.symmetric_share(q, k).tolist() == [0.0]


@few
@given(st.integers(0, 10**6), sizes)
def test_a_change_of_basis_leaves_the_head_alone(seed, size):
    q, k = maps(seed, 3, *size), maps(seed + 1, 3, *size)
    g = bases(seed + 2, 3, size[1])
    q2, k2 = q @ g, k @ torch.linalg.inv(g).mT
    for a, b in ((between(q, k), between(q2, k2)), (between(q, q2), between(q, q))):
        assert torch.allclose(a.overlap, b.overlap, atol=EXACT)
    assert torch.allclose(similarity.symmetric_share(q, k), similarity.symmetric_share(q2, k2), atol=EXACT)
    assert np.allclose(similarity.product_rank(q, k), similarity.product_rank(q2, k2), atol=1e-8)


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


@pytest.mark.parametrize(("rank", "expected"), [(1, 1.0), (3, 3.0), (5, 5.0)])
def test_effective_rank_counts_equal_directions(rank, expected):
    values = torch.cat([torch.ones(rank), torch.zeros(5 - rank)]).double()
    w = torch.linalg.qr(maps(0, 1, 9, 5)).Q * values
    assert abs(float(similarity.effective_rank(w)[0]) - expected) < EXACT
    found = similarity.span(w)
    assert found.rank.tolist() == [rank]


def test_spans_of_different_rank_compare_the_smaller_with_the_larger():
    w = torch.linalg.qr(maps(0, 1, 9, 5)).Q
    inside = w * torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]).double()
    assert abs(float(between(w, inside).overlap[0]) - 1.0) < EXACT
    assert math.isnan(float(between(w, 0 * w).overlap[0]))
    assert math.isnan(similarity.effective_rank(0 * w)[0])


def test_a_bias_is_one_more_row():
    p = random_projections(3)
    assert p.w_q is not None
    assert p.b_q is not None
    x = maps(4, 1, 5, 10)[0]
    one = torch.cat([x, torch.ones(5, 1).double()], 1)
    assert torch.allclose(one @ similarity.affine(p.w_q, p.b_q), x @ p.w_q + p.b_q[:, None], atol=EXACT)
    assert torch.allclose(one @ similarity.affine(p.w_q, None), x @ p.w_q, atol=EXACT)


def changed(trace, **fields):
    return Trace(**(vars(trace) | fields))


@few
@given(st.integers(0, 10**6), st.integers(0, 3))
def test_scores_agree_with_every_pair_counted_by_hand(seed, padding):
    trace = random_trace(seed, texts=2, queries=6, heads=4, groups=2, padding=padding)
    for row in range(2):
        n = int(trace.query_real[row].sum())
        score = similarity.score_row(trace, row)
        assert score is not None
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
        for name, sums in zip(similarity.SUMS, score.sums, strict=True):
            assert torch.allclose(sums, torch.as_tensor(by_hand[name]).double(), atol=1e-9), name


def test_a_symmetric_score_is_found_equal_to_its_reverse():
    trace = random_trace(1, queries=7)
    same = similarity.score_row(changed(trace, k=trace.q), 0)
    assert same is not None
    sums = dict(zip(similarity.SUMS, same.sums, strict=True))
    assert sums["unequal"].tolist() == [0.0] * 4
    assert torch.allclose(sums["product"], sums["square"], atol=EXACT)
    other = similarity.score_row(trace, 0)
    assert other is not None
    assert other.sums[0].tolist() == [float(other.pairs)] * 4


def test_blocks_of_heads_leave_no_trace(monkeypatch):
    trace = random_trace(2, queries=5, heads=6)
    whole = similarity.score_row(trace, 0)
    monkeypatch.setattr(similarity, "_TOGETHER", 1)
    parts = similarity.score_row(trace, 0)
    assert whole is not None
    assert parts is not None
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
        found = moments.cka(one, other)
        assert found is not None
        assert torch.allclose(found, grams[0] / (grams[1] * grams[2]).sqrt(), atol=1e-8)


def test_cka_of_cross_attention_leaves_queries_out():
    moments = similarity.PartMoments()
    moments.add(random_trace(0, queries=4, keys=6))
    assert moments.cka("q", "k") is None
    assert moments.cka("k", "v") is not None
