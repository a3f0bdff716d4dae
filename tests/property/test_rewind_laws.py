"""Laws of rewinding: many variants at once score as each alone does, curves and criticality, and intervals from sampled rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests import tiny

from trisect.core.errors import TrisectError
from trisect.core.site import Site
from trisect.lm import loss as lm_loss
from trisect.lm import rewind
from trisect.lm.feed import evaluation_pieces
from trisect.lm.fleet import forward, initial, layout, mark, views
from trisect.lm.loss import _span, extend_decoder, token_scores, variant_scores
from trisect.lm.rewind import blend, draw_rows, evaluate_variants, parts_of, self_only_loss, stages
from trisect.measure.criticality import TOLERANCE, adaptive_curves, criticality, exact_curves, mean_difference
from trisect.stats.shares import paired_band

CORPUS = tiny.corpus()
PIECES = evaluation_pieces(CORPUS, tiny.TRAINING, "valid", (), "cpu")
PLACES = layout(tiny.MODEL, len(CORPUS.vocabulary))
GRID = np.arange(101) / 100
BOUND = {torch.float64: 1e-10, torch.float32: 1e-6}  # of mean losses: rounding of sums over hundreds of logits


def parameters(seed, dtype):
    flat = initial(tiny.MODEL, len(CORPUS.vocabulary), seed).double()
    flat += 0.2 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return flat.to(dtype)


def bare(flat):
    return {n: v[0] for n, v in views(flat[None], PLACES).items()}


def plain(flat, pieces=PIECES):
    """Mean loss and accuracy of one model the plain way: every layer, every token, all logits, torch's own loss."""
    p, losses, right = views(flat[None], PLACES), [], []
    for piece in pieces:
        hidden = forward(p, piece.inputs, tiny.MODEL).hidden[0].flatten(0, 1)
        z = torch.nn.functional.linear(hidden, p["decoder.weight"][0], p["decoder.bias"][0])
        losses.append(torch.nn.functional.cross_entropy(z, piece.targets, reduction="none"))
        right.append(z.argmax(-1) == piece.targets)
    return float(torch.cat(losses).double().mean()), float(torch.cat(right).double().mean())


SITES = ["q@1", "k@1", "q+k@2", "q+k+v@1-2", "q@1.h2", "k+v@2.h1", "o@1", "o@2.h1", "attn@2", "ffn@1"]
SITES += ["q+o@1-2.h2", "k+ffn@1-2", "attn+ffn@all"]


@pytest.mark.parametrize(
    ("text", "dtype"), [*((text, torch.float64) for text in SITES), ("v@2", torch.float32), ("q+k@2", torch.float32)]
)
def test_rewinding_anywhere_is_full_evaluation_of_the_edited_weights(text, dtype):
    site, first, last = Site.parse(text).resolve(2, 2), parameters(1, dtype), parameters(2, dtype)
    kept = {n: v for n, v in bare(first).items() if n.split(".")[-2] in parts_of([site], tiny.MODEL)}
    final, pieces, alphas = {n: v[None] for n, v in bare(last).items()}, PIECES[:2], [0.0, 0.37, 0.99, 1.0]
    curve = evaluate_variants(final, tiny.MODEL, pieces, site, blend(kept, bare(last), alphas))
    assert curve.n == sum(p.targets.numel() for p in pieces)
    for i, alpha in enumerate(alphas):
        edited = torch.where(mark(site, tiny.MODEL, PLACES), (1 - alpha) * first + alpha * last, last)
        loss, accuracy = plain(edited, pieces)
        assert curve.loss_nats[i] == pytest.approx(loss, abs=BOUND[dtype])
        assert curve.accuracy[i] == pytest.approx(accuracy, abs=1e-12 if dtype == torch.float64 else 2.1 / curve.n)
    assert len({round(x, 6) for x in curve.loss_nats}) == 4
    assert curve.row_nats.sum(1) / curve.row_tokens.sum() == pytest.approx(curve.loss_nats, abs=1e-12)
    stage = evaluate_variants(final, tiny.MODEL, pieces, site, stages([kept, bare(last)]))
    assert stage.loss_nats == pytest.approx(curve.loss_nats[[0, 3]], abs=BOUND[dtype])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("place", ["q@1", "v@2", "q+k+v@1-2"])
def test_on_an_accelerator_rewinding_finds_what_a_cpu_finds(place):
    site, first, last = Site.parse(place).resolve(2, 2), parameters(1, torch.float64), parameters(2, torch.float64)
    found = []
    for device in ("cpu", "cuda"):
        one, other = bare(first.to(device)), bare(last.to(device))
        pieces = evaluation_pieces(CORPUS, tiny.TRAINING, "valid", (), device)
        final = {n: v[None] for n, v in other.items()}
        found.append(evaluate_variants(final, tiny.MODEL, pieces, site, blend(one, other, GRID.tolist())))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(max_examples=10)
@given(seed=st.integers(0, 999), rank=st.integers(0, 9), scale=st.sampled_from([1e-3, 1.0, 30.0]))
def test_variants_scored_through_their_span_score_as_each_alone(dtype, seed, rank, scale):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    count, tokens, width, words = 40, 7, 16, 300
    h = torch.einsum("nar,nrd->and", normal(tokens, count, rank + 1), normal(tokens, rank + 1, width)) * scale
    h[:, 0] = normal(count, width) * scale  # one token whose variants span everything
    h, w, b = h.to(dtype), normal(words, width).to(dtype), normal(words).to(dtype)
    y = torch.randint(words, (tokens,), generator=draw)
    found = variant_scores(h, extend_decoder(w, b), y)
    alone = token_scores(h.double(), w.double()[None], b.double()[None], y)
    largest = h.double().norm(dim=-1).max() * w.double().norm(dim=-1).max()
    bound = 4 * lm_loss.ROUNDING * torch.finfo(dtype).eps * float(largest)
    assert float((found.loss.double() - alone.loss).abs().max()) <= bound
    assert float((found.correct != alone.correct).double().mean()) <= (0 if dtype == torch.float64 else 0.01)


@settings(max_examples=10)
@given(seed=st.integers(0, 999), rank=st.integers(1, 8))
def test_a_span_is_no_larger_than_the_rank_and_gives_the_variants_back(seed, rank):
    draw = torch.Generator().manual_seed(seed)
    h = torch.randn(5, 30, rank, generator=draw, dtype=torch.float64) @ torch.randn(
        5, rank, 20, generator=draw, dtype=torch.float64
    )
    basis, shares, ranks, enough = _span(h, 12)
    assert enough.all()
    assert (ranks == rank).all()
    torch.testing.assert_close(torch.bmm(shares, basis), h, rtol=0, atol=1e-12 * float(h.abs().max()))
    assert not _span(h, rank - 1)[3].any()


def test_states_beyond_the_safe_range_and_states_that_are_no_numbers_are_scored_the_plain_way():
    h = torch.randn(20, 6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h[:, 1] *= torch.linspace(1, 900, 20, dtype=torch.float64)[:, None]  # one token's logits run over hundreds of nats
    h[3, 2] = torch.nan
    w = torch.randn(200, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y, b = torch.arange(6) * 30, torch.zeros(200, dtype=torch.float64)
    found, alone = variant_scores(h, extend_decoder(w, b), y), token_scores(h, w[None], b[None], y)
    torch.testing.assert_close(found.loss, alone.loss, rtol=1e-11, atol=1e-10, equal_nan=True)
    assert bool(found.loss[3, 2].isnan())
    assert (found.correct == alone.correct).all()


@settings(max_examples=2)
@given(seed=st.integers(0, 99), place=st.sampled_from(["q@1", "v@1", "k@2"]))
def test_adaptive_curves_are_within_their_tolerance_of_exact_ones(seed, place):
    site = Site.parse(place).resolve(2, 2)
    first, last = bare(parameters(seed, torch.float64)), bare(parameters(seed + 100, torch.float64))
    final = {n: v[None] for n, v in last.items()}

    def evaluate(alphas):
        curve = evaluate_variants(final, tiny.MODEL, PIECES[:1], site, blend(first, last, alphas))
        return np.stack([curve.loss_nats, curve.accuracy])

    adaptive, exact = adaptive_curves(evaluate, GRID, 1, 0.01), exact_curves(evaluate, GRID, 1)
    assert np.abs(adaptive.values[0] - exact.values[0]).max() <= TOLERANCE
    assert adaptive.evaluations < 101
    np.testing.assert_allclose(adaptive.values[0][adaptive.exact], exact.values[0][adaptive.exact], rtol=0, atol=1e-12)


def test_a_draw_of_rows_is_a_function_of_its_key_and_grows_by_adding_rows():
    def texts(pieces):
        return [tuple(row) for p in pieces for row in torch.cat([p.inputs, p.targets.view(p.inputs.shape)], 1).tolist()]

    every, some, more = texts(PIECES), *(texts(draw_rows(PIECES, n, 3, "valid")) for n in (100, 200))
    assert texts(draw_rows(PIECES, 100, 3, "valid")) == some
    assert set(some) < set(more) < set(every)
    assert 100 - tiny.TRAINING.window < sum(len(row) // 2 for row in some) < 100 + tiny.TRAINING.window
    assert texts(draw_rows(PIECES, 100, 4, "valid")) != some
    assert texts(draw_rows(PIECES, 100, 3, "train")) != some
    assert sorted(texts(draw_rows(PIECES, 10**9, 3, "valid"))) == sorted(every)
    assert len(texts(draw_rows(PIECES, 2, 3, "valid"))) == 2


POPULATION, TRIALS, POINTS = 600, 1_500, 3


def covered(sample):
    """How often intervals from `sample` of all rows hold the rise of all, at each point and for the area."""
    draw = np.random.default_rng(sample)
    tokens = np.where(draw.random(POPULATION) < 0.1, 20, 35)
    own = draw.normal(size=POPULATION)  # what a row's tokens have in common
    rise = np.stack([a * (0.05 + 0.4 * own + 0.1 * draw.normal(size=POPULATION)) for a in (1.0, 0.5, 0.0)]) * tokens
    sums = rise + tokens * draw.gamma(4, 1, POPULATION)
    true = np.append(rise.sum(1) / tokens.sum(), rise.sum() / POINTS / tokens.sum())
    hits = np.zeros(POINTS + 1)
    for _ in range(TRIALS):
        rows = draw.choice(POPULATION, sample, replace=False)
        band = paired_band(sums[:, rows], tokens[rows], POPULATION)
        low, high = np.append(band.low, band.area_low), np.append(band.high, band.area_high)
        hits += (low - 1e-12 <= true) & (true <= high + 1e-12)
    return hits


@pytest.mark.parametrize("sample", [60, 300])
def test_intervals_of_sampled_rows_hold_the_value_of_all_rows_at_their_nominal_rate(sample):
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], TRIALS, 0.95)
    hits = covered(sample)
    assert hits[2] == TRIALS  # the last point is its own reference: nothing is uncertain
    for i in (0, 1, 3):
        assert low <= hits[i] <= high


def test_a_sample_of_all_rows_leaves_nothing_uncertain_and_one_row_tells_nothing():
    sums, tokens = np.array([[3.0, 5.0], [2.0, 3.5]]), np.array([2, 3])
    whole = paired_band(sums, tokens, 2)
    assert whole.low == pytest.approx(whole.high)
    assert whole.low == pytest.approx([(8.0 - 5.5) / 5, 0.0])
    assert whole.area_low == pytest.approx(0.25)
    assert np.isnan(paired_band(sums[:, :1], tokens[:1], 2).low).all()


def test_pairing_is_what_makes_the_interval_short():
    draw = np.random.default_rng(1)
    level = 35 * draw.gamma(4, 1, 200)
    sums, tokens = np.stack([level + draw.normal(size=200), level]), np.full(200, 35)
    band = paired_band(sums, tokens, 10_000)
    unpaired = 2 * 1.96 * np.sqrt(2) * level.std() / 35 / np.sqrt(200)
    assert band.high[0] - band.low[0] < unpaired / 20


def test_blend_is_exact_at_both_ends():
    first, last, name = bare(parameters(1, torch.float64)), bare(parameters(2, torch.float64)), "layers.2.in.weight"
    ends = blend(first, last, [0.0, 1.0]).mix(name, slice(8, 16))
    assert torch.equal(ends[0], first[name][8:16])
    assert torch.equal(ends[1], last[name][8:16])


def test_chunks_of_any_size_give_the_same_curve(monkeypatch):
    first, final = bare(parameters(1, torch.float64)), bare(parameters(2, torch.float64))
    site, alphas = Site.parse("q@1"), [i / 6 for i in range(7)]
    shared = {n: v[None] for n, v in final.items()}
    whole = evaluate_variants(shared, tiny.MODEL, PIECES, site, blend(first, final, alphas))
    monkeypatch.setitem(rewind.TOKENS_PER_PASS, "cpu", 1)
    cut = evaluate_variants(shared, tiny.MODEL, PIECES, site, blend(first, final, alphas))
    np.testing.assert_allclose(cut.loss_nats, whole.loss_nats, rtol=0, atol=1e-12)


def test_self_only_attention_is_what_a_window_of_one_token_sees():
    final = {n: v[None] for n, v in bare(parameters(2, torch.float64)).items()}
    cut = self_only_loss(final, tiny.MODEL, PIECES)
    one = [p._replace(inputs=p.inputs[:, :1], targets=p.targets.view(-1, p.inputs.shape[1])[:, 0]) for p in PIECES]
    losses = []
    for piece in one:
        hidden = forward(final, piece.inputs, tiny.MODEL).hidden.flatten(1, 2)
        scores = token_scores(hidden, final["decoder.weight"], final["decoder.bias"], piece.targets)
        losses.append(scores.loss.flatten())
    assert cut.loss_nats[0] != pytest.approx(plain(parameters(2, torch.float64))[0], abs=1e-4)
    assert self_only_loss(final, tiny.MODEL, one).loss_nats[0] == pytest.approx(
        float(torch.cat(losses).mean()), abs=1e-12
    )


ALPHAS = np.linspace(0, 1, 11)


def test_criticality_is_the_smallest_alpha_from_which_the_loss_stays_within_epsilon():
    losses = np.array([5.0, 4.5, 4.2, 4.05, 4.03, 4.2, 4.039, 4.02, 4.01, 4.0, 4.0])
    found = criticality(ALPHAS, losses, 0.01)
    assert found.score == pytest.approx(0.6)  # at 0.5 it leaves the band again
    assert found.first == pytest.approx(0.4)
    assert found.area == pytest.approx(float(np.mean(losses - 4.0)))


@pytest.mark.parametrize(
    ("losses", "scores"),
    [
        (np.full(11, 3.0), (0.0, 0.0)),  # a site that never matters
        ([9.0] * 10 + [3.0], (1.0, 1.0)),
        ([np.nan] * 5 + [3.0] * 6, (0.5, 0.5)),
        ([*np.linspace(1, 0.1, 10), 0.0], (1.0, 1.0)),  # a final loss of 0, or that is no number
        (np.full(11, np.nan), (1.0, 1.0)),
        (np.linspace(2.0, 3.0, 11), (0.0, 0.0)),  # rewinding lowers the loss
    ],
)
def test_criticality_of_curves_at_the_edge(losses, scores):
    assert criticality(ALPHAS, np.array(losses), 0.01)[:2] == pytest.approx(scores)
    assert mean_difference(np.array([1.0, 2.0, 3.0]), 3.0) == -1.0


@pytest.mark.parametrize(("alphas", "losses"), [([0.0], [1.0]), ([0.0, 1.0], [1.0]), ([1.0, 0.0], [1.0, 1.0])])
def test_what_is_no_curve_is_refused(alphas, losses):
    with pytest.raises(TrisectError, match="A rewinding curve has"):
        criticality(np.array(alphas), np.array(losses), 0.01)


def counted(functions):
    calls: list[float] = []

    def evaluate(alphas):
        calls.extend(alphas)
        return np.stack([f(np.array(alphas)) for f in functions])

    return evaluate, calls


def test_adaptive_curves_of_a_smooth_loss_agree_with_exact_ones_and_cost_far_less():
    loss = lambda a: 4 + 0.5 * np.exp(-3 * a)  # noqa: E731
    evaluate, calls = counted([loss, lambda a: np.floor(30 * a) / 30])
    found = adaptive_curves(evaluate, GRID, 1, 0.01)
    np.testing.assert_allclose(found.values[0], loss(GRID), atol=1e-3)
    assert found.evaluations == len(calls) == len(set(calls)) < 25
    assert 0 < found.checks[0] < 1e-3
    assert found.nodes == 17
    np.testing.assert_allclose(found.mix @ loss(np.array(found.points)), found.values[0], rtol=0, atol=1e-12)
    exact = exact_curves(evaluate, GRID, 1)
    assert (exact.checks, exact.nodes) == ([0.0], 0)
    assert criticality(GRID, found.values[0], 0.01).score == criticality(GRID, exact.values[0], 0.01).score
    assert exact.exact.all()
    assert exact.evaluations == 101


def test_points_beside_a_crossing_and_the_ends_are_exact():
    loss = lambda a: 4 + 0.3 * (1 - a) ** 2  # noqa: E731
    found = adaptive_curves(counted([loss])[0], GRID, 1, 0.01)
    level = 1.01 * loss(1.0)
    turn = int(np.flatnonzero(np.diff(loss(GRID) >= level))[0])
    assert found.exact[[0, turn, turn + 1, 100]].all()
    assert (found.values[0][found.exact] == loss(GRID[found.exact])).all()
    assert found.exact.sum() < 20


def test_a_curve_that_is_not_smooth_is_evaluated_everywhere():
    rough = lambda a: 4 + 0.1 * np.sin(400 * a)  # noqa: E731
    found = adaptive_curves(counted([rough])[0], GRID, 1, 0.01)
    assert found.exact.all()
    assert (found.values[0] == rough(GRID)).all()
    assert found.evaluations == 101 + 33 - 2  # 0 and 1 are nodes and grid points at once
    assert (found.checks, found.nodes) == ([0.0], 0)
    assert (found.mix @ rough(np.array(found.points)) == found.values[0]).all()


def test_fewer_points_than_nodes_still_work():
    grid = np.arange(3) / 2
    loss = lambda a: 4 - a  # noqa: E731
    np.testing.assert_allclose(adaptive_curves(counted([loss])[0], grid, 1, 0.01).values[0], loss(grid), atol=1e-12)
