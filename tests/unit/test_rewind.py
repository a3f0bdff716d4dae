import numpy as np
import pytest
import torch
from tests import tiny

from trisect.core.errors import TrisectError
from trisect.core.site import Site
from trisect.lm import rewind
from trisect.lm.feed import evaluation_pieces
from trisect.lm.fleet import forward, initial, layout, views
from trisect.lm.loss import token_scores
from trisect.lm.rewind import blend, evaluate_variants, self_only_loss
from trisect.measure.criticality import adaptive_curves, criticality, exact_curves, mean_difference

CORPUS = tiny.corpus()
VOCABULARY = len(CORPUS.vocabulary)
PIECES = evaluation_pieces(CORPUS, tiny.TRAINING, "valid", (), "cpu")
PLACES = layout(tiny.MODEL, VOCABULARY)


def parameters(seed):
    flat = initial(tiny.MODEL, VOCABULARY, seed).double()
    flat += 0.2 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return flat


def plain_loss(flat):
    """Mean loss of one model the plain way: all layers, every token."""
    p, total, n = views(flat[None], PLACES), 0.0, 0
    for piece in PIECES:
        hidden = forward(p, piece.inputs, tiny.MODEL).hidden
        total += float(
            token_scores(hidden.flatten(1, 2), p["decoder.weight"], p["decoder.bias"], piece.targets).loss.sum()
        )
        n += piece.targets.numel()
    return total / n


def bare(flat):
    return {n: v[0] for n, v in views(flat[None], PLACES).items()}


def test_blend_is_exact_at_both_ends():
    first, last, name = bare(parameters(1)), bare(parameters(2)), "layers.2.in.weight"
    ends = blend(first, last, [0.0, 1.0]).mix(name, slice(8, 16))
    assert torch.equal(ends[0], first[name][8:16])
    assert torch.equal(ends[1], last[name][8:16])


def test_chunks_of_any_size_give_the_same_curve(monkeypatch):
    first, final, site, alphas = bare(parameters(1)), bare(parameters(2)), Site.parse("q@1"), [i / 6 for i in range(7)]
    shared = {n: v[None] for n, v in final.items()}
    whole = evaluate_variants(shared, tiny.MODEL, PIECES, site, blend(first, final, alphas))
    monkeypatch.setitem(rewind.TOGETHER, "cpu", 1)
    np.testing.assert_allclose(
        evaluate_variants(shared, tiny.MODEL, PIECES, site, blend(first, final, alphas)).loss_nats,
        whole.loss_nats,
        rtol=0,
        atol=1e-12,
    )


def test_self_only_attention_is_what_a_window_of_one_token_sees():
    final = {n: v[None] for n, v in bare(parameters(2)).items()}
    cut = self_only_loss(final, tiny.MODEL, PIECES)
    one = [replace_first(p) for p in PIECES]
    assert cut.loss_nats[0] != pytest.approx(plain_loss(parameters(2)), abs=1e-4)
    assert self_only_loss(final, tiny.MODEL, one).loss_nats[0] == pytest.approx(first_token_loss(one, final), abs=1e-12)


def replace_first(piece):
    width = piece.inputs.shape[1]
    return piece._replace(inputs=piece.inputs[:, :1], targets=piece.targets.view(-1, width)[:, 0])


def first_token_loss(pieces, final):
    losses = []
    for piece in pieces:
        hidden = forward(final, piece.inputs, tiny.MODEL).hidden
        losses.append(
            token_scores(
                hidden.flatten(1, 2), final["decoder.weight"], final["decoder.bias"], piece.targets
            ).loss.flatten()
        )
    return float(torch.cat(losses).mean())


ALPHAS = np.linspace(0, 1, 11)


def test_criticality_is_the_smallest_alpha_from_which_the_loss_stays_within_epsilon():
    losses = np.array([5.0, 4.5, 4.2, 4.05, 4.03, 4.2, 4.039, 4.02, 4.01, 4.0, 4.0])
    found = criticality(ALPHAS, losses, 0.01)
    assert found.score == pytest.approx(0.6)  # at 0.5 it leaves the band again
    assert found.first == pytest.approx(0.4)
    assert found.area == pytest.approx(float(np.mean(losses - 4.0)))


def test_a_site_that_never_matters_has_criticality_0_and_one_that_always_does_has_1():
    assert criticality(ALPHAS, np.full(11, 3.0), 0.01)[:2] == (0.0, 0.0)
    assert criticality(ALPHAS, np.array([9.0] * 10 + [3.0]), 0.01)[:2] == (1.0, 1.0)
    assert criticality(ALPHAS, np.array([np.nan] * 5 + [3.0] * 6), 0.01).score == pytest.approx(0.5)


def test_a_final_loss_of_0_or_that_is_no_number_still_has_a_criticality():
    assert criticality(ALPHAS, np.array([*np.linspace(1, 0.1, 10), 0.0]), 0.01).score == 1.0
    assert criticality(ALPHAS, np.full(11, np.nan), 0.01).score == 1.0


def test_rewinding_that_lowers_the_loss_is_within_epsilon():
    assert criticality(ALPHAS, np.linspace(2.0, 3.0, 11), 0.01).score == 0.0
    assert mean_difference(np.array([1.0, 2.0, 3.0]), 3.0) == -1.0


@pytest.mark.parametrize(("alphas", "losses"), [([0.0], [1.0]), ([0.0, 1.0], [1.0]), ([1.0, 0.0], [1.0, 1.0])])
def test_what_is_no_curve_is_refused(alphas, losses):
    with pytest.raises(TrisectError, match="A rewinding curve has"):
        criticality(np.array(alphas), np.array(losses), 0.01)


GRID = np.arange(101) / 100


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


def test_half_of_one_site_is_not_all_of_it():
    both, one = (Site.parse(s).resolve(2, 2) for s in ("q+k@1", "q@1"))
    first, final = bare(parameters(1)), bare(parameters(2))
    shared = {n: v[None] for n, v in final.items()}
    losses = [
        evaluate_variants(shared, tiny.MODEL, PIECES, s, blend(first, final, [0.0])).loss_nats[0] for s in (both, one)
    ]
    assert abs(losses[0] - losses[1]) > 1e-4
