"""What so many units can decide: the smallest p within reach, by brute force, and the fewest units and draws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats as scipy_stats

from trisect.claims.models import LEAST
from trisect.experiments.align.settings import DRAWS as ALIGN_DRAWS
from trisect.experiments.norms.run import DRAWS as NORMS_DRAWS
from trisect.experiments.profile.settings import FEWEST as MAPS
from trisect.experiments.recall.rows import DRAWS as RECALL_DRAWS
from trisect.experiments.similarity.run import PAIRS, Nulls
from trisect.experiments.similarity.settings import FEWEST as MATRICES
from trisect.papers import SOURCES, matrices
from trisect.stats.bootstrap import DRAWS, _percentile_test
from trisect.stats.describe import ORDERS
from trisect.stats.null import Null, permutation_p
from trisect.stats.paired import Sample
from trisect.stats.reach import fewest_counts, fewest_draws, is_decided, smallest_p
from trisect.stats.tested import holm, two_sided

SIZES = (6, 12, 66, 96, 144, 384, 1000)  # heads, texts or names
RESAMPLED = {
    "norms": NORMS_DRAWS,
    "recall": RECALL_DRAWS,
    "matrices": DRAWS,
    "profile": DRAWS,
    "alignment": ALIGN_DRAWS,
    "speech": DRAWS,
}


def bootstrap_p(values: np.ndarray, draws: int) -> float:
    """The two-sided p of a mean over few groups, by drawing them."""
    picks = np.random.default_rng(0).integers(len(values), size=(draws, len(values)))
    return float(two_sided(_percentile_test(values[picks].mean(1), len(values), "above", 0.0)))


@pytest.mark.parametrize("groups", [2, 3, 4, 5, 12])
@pytest.mark.parametrize("draws", [300, 2000, 10_000])
def test_no_effect_is_large_enough_to_get_below_the_smallest_p_of_a_bootstrap(groups, draws):
    least = smallest_p("bootstrap", groups, draws)
    for effect in (1.0, 10.0, 1e6):
        assert bootstrap_p(effect + np.linspace(-0.5, 0.5, groups), draws) == pytest.approx(least, rel=1e-12)
        assert bootstrap_p(-effect + np.linspace(-0.5, 0.5, groups), draws) == pytest.approx(least, rel=1e-12)
    mixed = bootstrap_p(np.array([-1.0, *np.linspace(1, 2, groups - 1)]), draws)
    assert mixed > least if groups < 12 else mixed == least  # of 12 groups one alone turns no mean round


def test_three_groups_reach_009_as_the_definitions_say():
    assert smallest_p("bootstrap", 3, 10_000) == pytest.approx(0.09, abs=0.005)
    assert smallest_p("bootstrap", 3, 10_000) > 0.05
    assert smallest_p("bootstrap", 4, 10_000) < 0.05


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_the_smallest_p_of_all_orders_is_found_by_trying_all_of_them(n):
    x = np.arange(float(n))
    rhos = [float(np.corrcoef(x, np.array(order))[0, 1]) for order in itertools.permutations(x)]
    two = float(np.mean([abs(rho) >= 1 - 1e-12 for rho in rhos]))
    assert smallest_p("permutation", n, draws=10**9) == pytest.approx(two)


@pytest.mark.parametrize("draws", [99, 2000])
def test_random_orders_reach_one_in_their_number_and_one_more(draws):
    """Forty names that agree with their own neighbours alone: no random pairing agrees as often."""
    found = permutation_p(np.eye(40), np.random.default_rng(0), draws)
    assert 2 * found == smallest_p("permutation", 40, draws) == 2 / (draws + 1)


@pytest.mark.parametrize("method", ["bootstrap", "permutation"])
def test_one_unit_decides_nothing_and_more_units_reach_further(method):
    assert smallest_p(method, 0) == smallest_p(method, 1) == 1.0
    reached = [smallest_p(method, n) for n in range(1, 60)]
    assert reached == sorted(reached, reverse=True)
    assert all(0 <= p <= 1 for p in reached)


def test_where_draws_are_too_few_no_number_of_units_will_do():
    for method in ("bootstrap", "permutation"):
        assert smallest_p(method, 1000, 300) > 0.05 / 14
        assert smallest_p(method, 1000, 10_000) < 0.05 / 14


@pytest.mark.parametrize("tests", [1, 6, 864])
def test_the_fewest_draws_let_one_test_survive_and_one_less_do_not(tests):
    def survives(draws: int) -> bool:
        p = Null.of(np.linspace(0, 1, draws)).beyond(np.array([2.0]))[0]
        return bool(holm([p, *[1.0] * (tests - 1)])[0] < 0.05)

    draws = fewest_draws(tests)
    assert survives(draws)
    assert not survives(draws - 1)
    assert fewest_draws(tests, spare=1.25) == int(1.25 * 2 * tests / 0.05)


def test_the_fewest_counts_are_the_first_of_those_given():
    part = (Sample(np.array(40.0), np.array(0.1), np.array(1.0)), "above", 0.0)
    counts = np.array([30.0, 100.0, 1000.0, 10_000.0])
    found = fewest_counts([part], counts, 3)
    assert found == 1000
    for n in (100, 1000):
        p = 2 * scipy_stats.t.sf(0.1 * n**0.5, n - 1)
        assert (p < 0.05 / 3) == (n >= found)
    assert fewest_counts([part], counts[:2], 3) is None


def test_every_source_that_draws_is_one_of_these():
    assert {source.key for source in SOURCES if source.unit not in ("seed", "trained model")} == set(RESAMPLED)


@pytest.mark.parametrize("n", [LEAST, *(n for n in SIZES if n > LEAST)])
@pytest.mark.parametrize(
    "source", [source for source in SOURCES if source.key in RESAMPLED], ids=lambda source: source.key
)
def test_resampling_reaches_either_verdict_in_every_family(source, n):
    """The least p, times the parts that a refutation is corrected for, times the claims of the family."""
    tests = max(len(claim.deciding()) for claim in source.claims) * len(source.claims)
    assert tests * smallest_p("bootstrap", n, RESAMPLED[source.key]) < 0.05


@pytest.mark.parametrize(
    "source", [source for source in SOURCES if source.key in RESAMPLED], ids=lambda source: source.key
)
def test_random_orders_reach_either_verdict_in_every_family(source):
    tests = max(len(claim.deciding()) for claim in source.claims) * len(source.claims)
    assert tests * 2 / (ORDERS + 1) < 0.05


@pytest.mark.parametrize("heads", SIZES)
def test_random_matrices_reach_either_verdict_in_every_family(heads):
    """With and without biases, for three pairs; head by head in a claim, of which the weakest decides."""
    for kind, tests in (("subspaces", 2 * len(PAIRS)), ("forms", len(PAIRS)), ("ranks", 1), ("products", 1)):
        assert 2 * tests * heads / (1 + max(MATRICES, Nulls(0, 0, heads).count(kind))) < 0.05, kind
    corrections, draws = (
        2 * heads * len(matrices.CLAIMS[0].deciding()) * len(matrices.CLAIMS),
        Nulls(0, 0, heads).count(),
    )
    assert corrections / (1 + draws) < 0.05
    assert not is_decided(1 / (1 + draws), draws, corrections)  # the least p there is is no verdict
    assert is_decided(1 / (1 + 4 * draws), 4 * draws, corrections)


@pytest.mark.parametrize("heads", SIZES)
def test_random_maps_of_a_profile_have_no_least_p(heads):
    null = Null.of(np.random.default_rng(0).normal(0.5, 0.01, MAPS))
    p = null.t_p(np.array([0.58]))[0]  # eight standard deviations off
    assert holm([p, *[1.0] * (3 * heads - 1)])[0] < 0.05
