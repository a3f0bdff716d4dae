"""Mean ablation of sites of a trained baseline: what replaces a component, and what the loss rises by."""

import pytest
import torch
from tests import tiny

from trisect.core.errors import SpecError
from trisect.core.methods import ALL_LAYERS, Ablate
from trisect.core.site import Site
from trisect.experiments.study.tasks import ablate, ablate_mean
from trisect.lm.feed import evaluation_pieces
from trisect.lm.fleet import forward, initial, layout, views


@pytest.fixture(scope="module")
def model():
    """Random weights made large enough that attention is far from uniform, and what is evaluated."""
    corpus = tiny.corpus()
    flat = initial(tiny.MODEL, len(corpus.vocabulary), 1).double()
    weights = {
        n: v[0] * (3.0 if ".in.weight" in n else 1.0)
        for n, v in views(flat[None], layout(tiny.MODEL, len(corpus.vocabulary))).items()
    }
    pieces = {s: evaluation_pieces(corpus, tiny.TRAINING, s, (), "cpu") for s in ("train", "valid")}
    return weights, pieces


def kept(weights, piece, n):
    return forward({k: v[None] for k, v in weights.items()}, piece.inputs, tiny.MODEL, blocks=[("qkv", n)]).blocks[
        "qkv", n
    ][0]


def test_the_ablated_component_is_its_mean_at_every_token_and_the_others_are_untouched(model):
    weights, pieces = model
    piece = pieces["train"][0]
    changed = ablate_mean(weights, tiny.MODEL, Site.parse("k@2").resolve(2, 2), [piece])
    before, after = kept(weights, piece, 2), kept(changed, piece, 2)
    width = tiny.MODEL.width
    own = slice(width, 2 * width)
    assert before[..., own].std(dim=(0, 1)).min() > 0.01
    torch.testing.assert_close(after[..., own], before[..., own].mean((0, 1)).expand_as(after[..., own]))
    torch.testing.assert_close(after[..., :width], before[..., :width], rtol=0, atol=0)
    torch.testing.assert_close(after[..., 2 * width :], before[..., 2 * width :], rtol=0, atol=0)


def test_a_head_is_ablated_alone(model):
    weights, pieces = model
    piece, each = pieces["train"][0], tiny.MODEL.width // tiny.MODEL.heads
    changed = ablate_mean(weights, tiny.MODEL, Site.parse("v@1.h2").resolve(2, 2), [piece])
    before, after = kept(weights, piece, 1), kept(changed, piece, 1)
    start = 2 * tiny.MODEL.width
    torch.testing.assert_close(after[..., : start + each], before[..., : start + each], rtol=0, atol=0)
    assert after[..., start + each :].std(dim=(0, 1)).max() < 1e-12


def test_mean_keys_make_attention_uniform_as_queries_of_zero_do(model):
    weights, pieces = model
    by_mean = ablate_mean(weights, tiny.MODEL, Site.parse("k@1").resolve(2, 2), pieces["train"])
    by_zero = dict(weights)
    for kind in ("weight", "bias"):
        by_zero[f"layers.1.in.{kind}"] = weights[f"layers.1.in.{kind}"].clone()
        by_zero[f"layers.1.in.{kind}"][: tiny.MODEL.width] = 0.0
    piece = pieces["valid"][0]
    hidden = [
        forward({k: v[None] for k, v in some.items()}, piece.inputs, tiny.MODEL).hidden
        for some in (by_mean, by_zero, weights)
    ]
    torch.testing.assert_close(hidden[0], hidden[1])
    assert (hidden[0] - hidden[2]).abs().max() > 1e-3


def test_rows_hold_the_rise_on_both_splits_with_its_interval(model):
    weights, pieces = model
    site = Site.parse("q+k+v@all").resolve(2, 2)
    rows = {(row.measure, row.split): row for row in ablate(weights, tiny.MODEL, site, pieces)}
    assert set(rows) == {(f"ablate_rise_{end}nats", s) for end in ("", "low_", "high_") for s in ("train", "valid")}
    for split in ("train", "valid"):
        low, rise, high = (rows[f"ablate_rise_{end}nats", split].value for end in ("low_", "", "high_"))
        assert low is not None
        assert rise is not None
        assert high is not None
        assert low < rise < high
    nothing = ablate(ablate_mean(weights, tiny.MODEL, site, pieces["train"]), tiny.MODEL, site, pieces)
    assert all(abs(row.value or 0.0) < 1e-9 for row in nothing if row.measure == "ablate_rise_nats")


def test_only_q_k_and_v_can_be_ablated():
    assert Ablate().sites[-len(ALL_LAYERS) :] == ALL_LAYERS
    with pytest.raises(SpecError, match=r"ablate at 'ffn@1' is not possible in a study"):
        tiny.replace(tiny.EXPERIMENT, ablate=Ablate((Site.parse("ffn@1"),))).resolved()
