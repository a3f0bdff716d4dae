"""Laws of nulls: drawn through small matrices they are those of the large ones, and p-values under them are uniform."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.traces import random_projections

from trisect.core.trace import Address, Projections
from trisect.experiments.similarity import run
from trisect.measure import similarity
from trisect.stats.describe import EXACT, permutation_spearman
from trisect.stats.null import Null

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
    found = similarity.random_forms(np.random.default_rng(3), dim, left, right, 20_000)
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
        assert alike(single, similarity.effective_rank(one))
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
    whole = similarity.random_forms(np.random.default_rng(9), 5, 2, 2, 2000)
    monkeypatch.setattr(similarity, "_TOGETHER", 96)
    cut = similarity.random_forms(np.random.default_rng(9), 5, 2, 2, 2000)
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
    p = random_projections(0, heads=30, inner=3, width=12, bias=False)
    assert p.w_k is not None
    assert p.w_q is not None
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
    many = permutation_spearman(np.arange(EXACT + 4.0), -np.arange(EXACT + 4.0))
    assert 0 < many.p_for < 1e-4
    assert permutation_spearman(np.arange(4.0), np.ones(4)) == (1.0, 1.0)
    assert permutation_spearman(np.arange(2.0), np.arange(2.0)) == (1.0, 1.0)


def test_p_of_orders_is_uniform_where_nothing_goes_together():
    draw = np.random.default_rng(1)
    p = np.array([float(permutation_spearman(*draw.normal(size=(2, 7))).p_for) for _ in range(400)])
    assert alike(p, np.random.default_rng(2).uniform(size=4000))
