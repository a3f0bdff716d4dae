"""Laws of streaming: what is added in pieces equals what is computed at once, and draws equal drawing the texts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import rankdata
from tests.traces import random_trace

from trisect.measure import sums as spread
from trisect.measure.norms import contributions, head_norms, mixing_ratio, norms, transformed_norms
from trisect.measure.sums import (
    CATEGORIES,
    LayerTally,
    PooledTally,
    Ranks,
    Sums,
    TokenFacts,
    TokenNorms,
    find_sinks,
    frequency_ranks,
    group_of,
    moments,
)
from trisect.stats.bootstrap import resample_counts
from trisect.stats.describe import variation


def spearman(x: object, y: object) -> float:
    return float(np.asarray(stats.spearmanr(np.asarray(x), np.asarray(y)))[0])


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, 39), max_size=4))
def test_sums_do_not_depend_on_batches_and_draws_are_of_whole_texts(seed, cuts):
    values = normal(seed, 40, 3)
    whole = Sums(50, 3)
    edges = [0, *sorted(set(cuts)), 40]
    for start, stop in itertools.pairwise(edges):
        whole.add(torch.arange(start, stop), values[start:stop])
    np.testing.assert_allclose(whole.total(40), values.numpy().sum(0), rtol=1e-12, atol=1e-12)
    times = resample_counts(np.random.default_rng(seed), 40, 5)
    assert (times.sum(1) == 40).all()
    chosen = [np.repeat(np.arange(40), row.astype(int)) for row in times]
    want = [values.numpy()[c].sum(0) for c in chosen]
    np.testing.assert_allclose(whole.resample(times), want, rtol=1e-12, atol=1e-12)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000))
def test_variation_is_the_standard_deviation_over_the_mean(seed):
    values, real = normal(seed, 4, 2, 9).abs(), torch.ones(4, 1, 9, dtype=torch.bool)
    real[1, :, 5:] = False
    found = variation(moments(values, real).sum(0).numpy())
    for series in range(2):
        kept = values[:, series][real[:, 0]].numpy()
        assert found[series] == pytest.approx(
            kept.std() / kept.mean(), rel=1e-10
        )  # a difference of two sums of squares
    assert np.isnan(variation(np.zeros((2, 3)))).all()


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), values=st.integers(2, 60), size=st.integers(3, 200))
def test_rank_correlation_is_exact_while_there_are_fewer_values_than_bins(seed, values, size):
    draw = np.random.default_rng(seed)
    x, y = draw.integers(values, size=(2, 1, size)).astype(float)
    ranks = Ranks(bins=64)
    ranks.add(torch.from_numpy(x), torch.from_numpy(y), torch.zeros(size, dtype=torch.long))
    found = ranks.estimate().value[0]
    if min(len(set(x[0])), len(set(y[0]))) < 2:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(spearman(x[0], y[0]), abs=1e-12)


@pytest.mark.parametrize(("bins", "series", "shift", "room"), [
    (64, 1, 0, 0.001), (64, 1, 1, 0.001), (64, 1, 2, 0.003), (32, 12, 0, 0.003), (32, 12, 1, 0.005), (32, 12, 2, 0.015),
])  # fmt: skip
@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.7])
def test_bins_move_a_rank_correlation_by_less_than_they_say(rho, bins, series, shift, room):
    """Far more pairs than fix the bins, and the later ones lie as far as `shift` standard deviations off."""
    many = 2 * spread.MAX_WAITING_PAIRS // (series if series == 1 else 6)
    one, other = normal(1, series, many), normal(2, series, many)
    off = torch.linspace(0, shift, many, dtype=torch.float64)
    x, y = one + off, rho * one + (1 - rho**2) ** 0.5 * other + off
    ranks = Ranks(series, bins=bins)
    for some in torch.arange(many).split(500):
        ranks.add(x[:, some], y[:, some], torch.zeros(len(some), dtype=torch.long))
    found = ranks.estimate().value
    assert max(abs(found[s] - spearman(x[s], y[s])) for s in range(series)) < room


def test_series_share_the_room_in_which_their_pairs_wait():
    ranks, few = Ranks(series=12), -(-spread.MAX_WAITING_PAIRS // 12)
    pairs = normal(0, 12, few)
    ranks.add(pairs[:, 1:], pairs[:, 1:], torch.zeros(few - 1, dtype=torch.long))
    assert ranks._edges is None
    ranks.add(pairs[:, :1], pairs[:, :1], torch.zeros(1, dtype=torch.long))
    assert ranks._edges is not None


@pytest.mark.parametrize(("values", "pairs"), [(6, 60), (16, 400)])  # joint counts: most of the 256 empty, and few
def test_rank_correlations_of_draws_are_those_of_the_drawn_texts(values, pairs):
    draw = np.random.default_rng(0)
    x, y = draw.integers(values, size=(2, 3, pairs)).astype(float)
    group = torch.arange(pairs) % 6
    ranks = Ranks(series=3, groups=6, bins=16)
    for some in torch.arange(pairs).split(7):
        ranks.add(torch.from_numpy(x)[:, some], torch.from_numpy(y)[:, some], group[some])
    times = resample_counts(np.random.default_rng(3), 6, 8)
    found = ranks.estimate(times)
    filled = (ranks.counts.reshape(3, 6, -1).sum(1) > 0).double().mean(1)
    assert (filled < 0.5).all() if values == 6 else (filled > 0.5).all()
    assert found.draws.shape == (8, 3)
    for row, line in zip(times.astype(int), found.draws, strict=True):
        taken = np.concatenate([np.flatnonzero(group.numpy() == g) for g in range(6) for _ in range(row[g])])
        want = [spearman(x[s, taken], y[s, taken]) for s in range(3)]
        np.testing.assert_allclose(line, want, atol=1e-12)


def test_frequency_ranks_are_of_the_types_that_were_met():
    found = frequency_ranks(np.array([0, 5, 2, 5, 1])).numpy()
    np.testing.assert_array_equal(found, [np.nan, 1.5, 3, 1.5, 4])


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), causal=st.booleans(), block=st.sampled_from(["pre", "post"]))
def test_a_layers_tally_equals_the_sums_written_out(seed, causal, block):
    trace = random_trace(seed, texts=3, queries=6, padding=2, causal=causal, block=block)
    draw = torch.Generator().manual_seed(seed)
    category = torch.randint(len(CATEGORIES), (3, 6), generator=draw)
    rank = torch.randint(1, 9, (3, 6), generator=draw).double().masked_fill(~trace.key_real, torch.nan)
    special = torch.rand(3, 6, generator=draw) < 0.3
    word = torch.rand(3, 6, generator=draw) < 0.8
    whose = TokenFacts(category, rank, special, word, torch.arange(3), torch.arange(3))
    layer, model = LayerTally(4, "full"), PooledTally()
    seen = layer.add(trace, whose, model)
    model.add_frequency([seen], whose)
    real, rows = trace.key_real.numpy(), slice(0, 3)
    weights = (trace.weights * trace.query_real[:, None, :, None]).numpy()
    lengths = transformed_norms(trace).numpy()
    allowed = (weights > 0).any(1)
    received = weights.sum(2) / np.maximum(1, allowed.sum(1))[:, None]
    np.testing.assert_allclose(seen.a.numpy(), received, rtol=1e-12, atol=1e-12)
    assert not seen.a.numpy()[~np.broadcast_to(real[:, None], received.shape)].any()
    for c in range(len(CATEGORIES)):
        mine = (category.numpy() == c) & real
        given_ = np.einsum("bhts,bs->bh", weights, mine)
        by_norm = np.einsum("bhts,bs->bh", head_norms(trace).numpy(), mine)
        attention = np.einsum("bts,bs->b", norms(trace).numpy(), mine)
        full = np.einsum("bts,bs->b", norms(trace, "full").numpy(), mine)
        np.testing.assert_allclose(layer.head_sums.rows[rows, 0, :, c], given_, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(layer.head_sums.rows[rows, 1, :, c], by_norm, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(layer.sums.rows[rows, 0, c], given_.mean(1), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(layer.sums.rows[rows, 1, c], attention, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(layer.sums.rows[rows, 2, c], full, rtol=1e-11, atol=1e-11)
        np.testing.assert_array_equal(layer.tokens.rows[rows, c], mine.sum(1))
        pairs = (allowed & mine[:, None] & trace.query_real.numpy()[:, :, None]).nonzero()
        a = np.stack([weights[b, :, i, j] for b, i, j in zip(*pairs, strict=True)] or [np.zeros(4)])
        f = np.stack([lengths[b, :, j] for b, i, j in zip(*pairs, strict=True)] or [np.zeros(4)])
        if len(pairs[0]) > 2:
            want = spearman(a.T.astype(np.float32).ravel(), f.T.astype(np.float32).ravel())
            found = model.cancel[c].estimate().value[0]
            assert found == pytest.approx(want, abs=0.02)  # 64 bins of up to 288 pairs
    np.testing.assert_allclose(layer.mixing.rows[rows, 1], mixing_ratio(trace, "full").sum(1), rtol=1e-11, atol=1e-11)
    np.testing.assert_array_equal(layer.queries.rows[rows], trace.query_real.sum(1))
    counted = np.isfinite(rank.numpy())
    want = spearman(rank.numpy()[counted], lengths.mean(1).astype(np.float32)[counted])
    assert model.frequency["f"].estimate().value[0] == pytest.approx(want, abs=1e-12)
    counted &= ~special.numpy()
    if counted.sum() > 3:
        want = spearman(rank.numpy()[counted], lengths.mean(1).astype(np.float32)[counted])
        assert model.words["f"].estimate().value[0] == pytest.approx(want, abs=1e-12)
    x = layer.x.total(3)
    assert x[0] == real.sum()
    placed: list[np.ndarray] = []
    for row in range(3):
        mine = np.isfinite(rank.numpy()[row]) & word.numpy()[row]
        if mine.sum() >= 3:
            both = np.stack([rank.numpy()[row, mine], lengths.mean(1)[row, mine]])
            placed.append((rankdata(both, axis=1) - 0.5) / mine.sum())
    if placed:
        want = spearman(*np.concatenate(placed, 1).astype(np.float32))
        assert model.within["f"].estimate().value[0] == pytest.approx(want, abs=1e-12)


def test_texts_of_unlike_length_confound_a_pooled_rank_correlation_and_not_one_within_texts():
    """Weights are 1 / length in every text, and long texts hold rare words: pooled they go together, within texts nothing does."""
    draw = torch.Generator().manual_seed(0)
    pooled, within = [], PooledTally()
    for text in range(200):
        length = 4 + text % 40
        a = torch.rand(1, 1, length, generator=draw) * 0.01 + 1 / length
        rank = torch.rand(1, length, generator=draw).double() * 100 + 10 * length
        ones = torch.ones(1, length, dtype=torch.bool)
        whose = TokenFacts(ones.long(), rank, ~ones, ones, torch.tensor([text]), torch.tensor([text % 64]))
        within.add_frequency([TokenNorms(a, a, a * a)], whose)
        pooled.append(np.stack([rank[0].numpy(), a[0, 0].numpy()]))
    assert spearman(*np.concatenate(pooled, 1)) < -0.7
    assert within.frequency["a"].estimate().value[0] < -0.7
    assert abs(within.within["a"].estimate().value[0]) < 0.05


@given(texts=st.integers(1, 600), groups=st.integers(1, 256))
def test_groups_of_texts_follow_one_another_and_are_as_large(texts, groups):
    found = group_of(torch.arange(texts), texts, groups).numpy()
    counts = np.bincount(found)
    assert (np.diff(found) >= 0).all()
    assert len(counts) == min(texts, groups)
    assert counts.max() - counts.min() <= 1


def test_a_sink_its_weight_its_share_of_the_output_and_a_dormant_head_as_worked_by_hand():
    """Head 1 of four gives half its weight to token 1 of ten, the others look evenly; head 2's values are next to nothing."""
    plain = random_trace(texts=2, queries=10)
    weights = torch.full((2, 4, 10, 10), 0.1, dtype=torch.float64)
    weights[:, 0] = 0.5 / 9
    weights[:, 0, :, 0] = 0.5
    v = plain.v.clone()
    v[:, 1] *= 1e-3
    trace = replace(plain, weights=weights, v=v, output=weights @ v)
    ones = torch.ones(2, 10, dtype=torch.bool)
    whose = TokenFacts(
        torch.full((2, 10), 4), torch.full((2, 10), torch.nan), ~ones, ones, torch.arange(2), torch.arange(2)
    )
    whose.category[:, 0] = 2
    layer = LayerTally(4, "attention")
    layer.add(trace, whose, PooledTally())
    expected = torch.zeros(2, 4, 10, dtype=torch.bool)
    expected[:, 0, 0] = True
    assert torch.equal(find_sinks(trace), expected)
    heads, whole = contributions(trace)
    counts = layer.sinks.rows[:2]
    assert counts[..., 0].tolist() == [[1.0] * 4] * 2
    assert counts[..., 1].tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2
    assert counts[:, 0, 2] == pytest.approx(0.5)
    assert counts[:, 0, 3] == pytest.approx(heads[:, 0, :, 0].mean(1).numpy())
    f = transformed_norms(trace)[:, 0]
    assert counts[:, 0, [4, 6]].tolist() == [[1.0, 9.0]] * 2
    assert counts[:, 0, 5] == pytest.approx(f[:, 0].numpy())
    assert counts[:, 0, 7] == pytest.approx(f[:, 1:].sum(1).numpy())
    assert counts[:, 1, 8].tolist() == [1.0, 1.0]
    assert layer.sink_kinds.rows[:2, 2].tolist() == [1.0, 1.0]
    assert layer.contributions.rows[:2, 0].sum(-1) == pytest.approx(10.0)  # one for each query
    assert layer.contributions.rows[:2, 0, 2] == pytest.approx(whole[:, :, 0].sum(1).numpy())
    short = replace(trace, query_real=torch.arange(10)[None] < torch.tensor([[7], [10]]))
    assert find_sinks(short).any((1, 2)).tolist() == [False, True]
