"""Laws of probes: what is planted is found, what is not there is not, and nothing but the information counts."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.measure.probes import KINDS, Examples, majority, prior, probe, whiten

CLASSES, WIDTH = 3, 6
SIZES = (900, 300, 600)  # tokens to fit to, to stop by, to score on


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=drawn(seed), dtype=torch.float64)


def cut(x, y):
    """Representations [S N I] and classes as what to fit to, to stop by and to score on, whitened."""
    edges = [0, SIZES[0], SIZES[0] + SIZES[1], sum(SIZES)]
    parts = [x[:, a:b] for a, b in itertools.pairwise(edges)]
    labels = [y[a:b] for a, b in itertools.pairwise(edges)]
    return [Examples(*part) for part in zip(whiten(*parts), labels, strict=True)]


def found(kind, x, y, seed=0):
    fit, held, test = cut(x, y)
    return probe(kind, fit, held, test, CLASSES, drawn(seed))


LABELS = torch.randint(CLASSES, (sum(SIZES),), generator=drawn(1))
PLANTED = normal(sum(SIZES), WIDTH, seed=2)
PLANTED[:, :CLASSES] += 4 * torch.nn.functional.one_hot(LABELS, CLASSES)
NOISE = normal(sum(SIZES), WIDTH, seed=3)


@pytest.mark.parametrize("kind", KINDS)
def test_planted_labels_are_found_and_noise_gives_none(kind):
    result = found(kind, torch.stack([PLANTED, NOISE]), LABELS)
    assert result.accuracy[0] > 0.95
    assert result.bits[0] > 1.3  # of log2(3) = 1.58
    # three standard deviations of a share of 600 tokens are 0.058; three of the mean loss of a useless probe under 0.05 bits
    assert result.accuracy[1] < 1 / CLASSES + 0.07
    assert abs(result.bits[1]) < 0.05


def test_what_is_not_linear_is_found_by_the_layer_alone():
    x = NOISE.clone()
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long()
    assert found("linear", x[None], y).bits[0] < 0.05
    assert found("mlp", x[None], y).bits[0] > 0.4


@settings(max_examples=5)
@given(st.integers(0, 2**16), st.floats(1e-3, 1e3))
def test_rotation_and_scale_change_nothing_for_a_linear_probe(seed, scale):
    turn = torch.linalg.qr(normal(WIDTH, WIDTH, seed=seed)).Q
    turned = PLANTED @ turn * scale + normal(WIDTH, seed=seed)
    plain, other = found("linear", PLANTED[None], LABELS), found("linear", turned[None], LABELS)
    # the same steps in other coordinates, in float64; line searches can end a step apart
    assert float((plain.bits - other.bits).abs()) < 1e-6
    assert float((plain.accuracy - other.accuracy).abs()) < 1e-6


@settings(max_examples=5)
@given(st.integers(0, 2**16), st.sampled_from(KINDS))
def test_bits_are_at_most_the_entropy_of_the_labels(seed, kind):
    y = (LABELS + (normal(len(LABELS), seed=seed) > 0.5)).clamp_max(CLASSES - 1)
    fit, _, test = cut(NOISE[None], y)
    entropy = float(-prior(fit.y, CLASSES).log()[test.y].mean()) / math.log(2)
    result = found(kind, torch.stack([PLANTED, NOISE]), y)
    assert float(result.bits.max()) <= entropy
    assert float(result.accuracy.min()) >= 0


@pytest.mark.parametrize("kind", KINDS)
def test_sites_do_not_influence_each_other(kind):
    together = found(kind, torch.stack([NOISE, PLANTED]), LABELS)
    alone = found(kind, PLANTED[None], LABELS)
    # products of one site alone or of two round differently, in float64
    assert float((together.bits[1] - alone.bits[0]).abs()) < 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_a_representation_that_never_varies_tells_nothing(kind):
    result = found(kind, torch.full((1, sum(SIZES), WIDTH), 3.0, dtype=torch.float64), LABELS)
    fit, _, test = cut(NOISE[None], LABELS)
    assert float(result.accuracy[0]) == majority(fit.y, test.y, CLASSES)
    # the layer can still move its bias towards what it is stopped by
    assert abs(float(result.bits[0])) < (1e-12 if kind == "linear" else 0.01)


def test_a_prior_is_never_0_and_majority_counts_what_train_has_most_of():
    shares = prior(torch.tensor([1, 1, 2]), 4)
    assert shares.tolist() == pytest.approx([1 / 7, 3 / 7, 2 / 7, 1 / 7])
    assert majority(torch.tensor([1, 1, 2]), torch.tensor([1, 0, 2, 1]), 4) == 0.5


def test_whitened_representations_have_no_mean_and_equal_variance_in_every_direction():
    x = PLANTED @ normal(WIDTH, WIDTH, seed=9) + 5
    white, other = whiten(x[None], x[None, :10])
    assert float(white.mean(1).abs().max()) < 1e-12
    # RIDGE is 1e-4 of the mean variance, and the least of these directions has a hundredth of that mean
    assert float((white[0].T @ white[0] / len(x) - torch.eye(WIDTH)).abs().max()) < 0.02
    assert float((other[0] - white[0, :10]).abs().max()) < 1e-12
