"""Norms behind the feed-forward block: parts sum to what the layer gives, and are exact where the block is linear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests import tinyhf, zoo
from tests.property.test_own_model_laws import WORDS, own
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.trace import FeedForward, ResidualBlock, Trace
from trisect.hf.load import load
from trisect.hf.verify.examples import example_inputs
from trisect.measure import norms
from trisect.measure.norms import NAMES, activation

ROUNDING = 2e-4  # single precision through three norms, of the largest number
# kind, the module that gives what the layer gives, and what is found: the activation, a gate, norms before, behind, after
KINDS = {
    "gpt2": ("transformer.h.0", ("gelu_tanh", False, True, False, False)),
    "bert": ("bert.encoder.layer.0", ("gelu", False, False, False, True)),
    "llama": ("model.layers.0", ("silu", True, True, False, False)),
    "gemma2": ("model.layers.0", ("gelu_tanh", True, True, True, False)),
    "olmo2": ("model.layers.0", ("silu", True, False, True, False)),
    "phi3": ("model.layers.0", ("silu", True, True, False, False)),
}


def read(kind: str, layer: str, **options: Any) -> tuple[Trace, Tensor]:
    """The first layer's trace, and what that layer gives on."""
    model, seen = zoo.build(kind, **options), list[Any]()
    inputs = example_inputs(kind, model)
    trace = load(model, inputs=inputs).read(inputs).traces[0]
    with model.get_submodule(layer).register_forward_hook(lambda _m, _a, out: seen.append(out)), torch.no_grad():
        model(**inputs)
    return trace, seen[0][0] if isinstance(seen[0], tuple) else seen[0]


def block_of(trace: Trace) -> tuple[ResidualBlock, FeedForward]:
    assert trace.block is not None
    assert trace.block.forward is not None
    return trace.block, trace.block.forward


@pytest.mark.parametrize("kind", KINDS)
def test_parts_and_biases_sum_to_what_the_layer_gives(kind):
    layer, found = KINDS[kind]
    trace, gives = read(kind, layer)
    f = block_of(trace)[1]
    assert (
        f.activation,
        f.gate is not None,
        *(n is not None for n in (f.input_norm, f.output_norm, f.sum_norm)),
    ) == found
    for row in range(len(gives)):
        every = torch.arange(gives.shape[1])
        parts = norms.feed_forward_parts(trace, row, every)
        assert (parts.sum(1) - gives[row]).abs().max() < ROUNDING * parts.abs().max()
        both = norms.feed_forward_mixing(trace)
        own = parts[every, every]
        torch.testing.assert_close(both.itself[row], own, rtol=ROUNDING, atol=ROUNDING)
        torch.testing.assert_close(both.context[row], parts[:, :-1].sum(1) - own, rtol=ROUNDING, atol=ROUNDING)
        torch.testing.assert_close(norms.feed_forward_norms(trace)[row], parts[:, :-1].norm(dim=-1))
        ratio = own.norm(dim=-1), (parts[:, :-1].sum(1) - own).norm(dim=-1)
        torch.testing.assert_close(
            norms.mixing_ratio(trace, "feed-forward")[row], ratio[1] / sum(ratio), rtol=1e-3, atol=1e-4
        )


def test_our_own_models_have_the_same_parts():
    subject = own(layers=2)
    first, second = subject.read([" ".join(WORDS[3:11])]).traces
    assert second.block is not None
    parts = norms.feed_forward_parts(first, 0, torch.arange(8))
    torch.testing.assert_close(parts.sum(1), second.block.residual[0], rtol=1e-12, atol=1e-12)


def test_a_linear_block_is_exact():
    """Integrated gradients of a linear map are the map: z + W₂ W₁ (z − mean) γ / σ of every part."""
    trace, _ = read("gpt2", "transformer.h.0", activation_function="linear")
    block, f = block_of(trace)
    assert f.activation == "linear"
    assert f.input_norm is not None
    assert trace.w_o is not None
    z = torch.einsum("bhts,bhsd->btsd", trace.weights, trace.values @ trace.w_o)
    index = torch.arange(z.shape[1])
    z[:, index, index] += block.residual
    whole = z.sum(2) + norms.effective_bias(trace)
    spread = (whole.var(-1, unbiased=False) + (f.input_norm.epsilon or 0.0)).rsqrt()[:, :, None, None]
    centred = (z - z.mean(-1, keepdim=True)) * f.input_norm.gamma * spread
    want = z + centred @ f.inner.T @ f.outer.T
    torch.testing.assert_close(norms.feed_forward_norms(trace), want.norm(dim=-1), rtol=ROUNDING, atol=ROUNDING)


def test_a_block_that_adds_nothing_leaves_what_was_there():
    trace, _ = read("llama", "model.layers.0")
    block, f = block_of(trace)
    empty = replace(trace, block=replace(block, forward=replace(f, outer=torch.zeros_like(f.outer))))
    torch.testing.assert_close(
        norms.feed_forward_norms(empty), norms.norms(trace, "residual"), rtol=ROUNDING, atol=ROUNDING
    )
    assert (norms.feed_forward_norms(trace) / norms.norms(trace, "residual").clamp_min(1e-9) - 1).abs().max() > 0.1
    assert torch.equal(norms.norms(trace, "feed-forward"), norms.feed_forward_norms(trace))


def test_blocks_of_queries_change_nothing(monkeypatch):
    trace, _ = read("gpt2", "transformer.h.0")
    whole = norms.feed_forward_norms(trace)
    monkeypatch.setattr(norms, "ROOM", 1)
    torch.testing.assert_close(norms.feed_forward_norms(trace), whole)


@pytest.mark.parametrize("name", NAMES)
def test_slopes_are_integrals_along_the_straight_path(name):
    """Against 20,000 steps of the gradient; ReLU's kink lies at the path's end."""
    draw = torch.Generator().manual_seed(0)
    a, b = 4 * torch.randn(2, 40, generator=draw, dtype=torch.float64)
    a[:2] = torch.tensor([1e-5, -1e-5])
    at = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    path = at[:, None] * a
    plain = norms.slope(name, path).mean(0)
    torch.testing.assert_close(norms._mean_slope(name, a), plain, rtol=1e-6, atol=1e-6)
    first, second = norms._gate_slopes(name, a, b)
    torch.testing.assert_close(first, (norms.slope(name, path) * at[:, None]).mean(0) * b, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(second, activation(name)(path).mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(first * a + second * b, activation(name)(a) * b, rtol=1e-9, atol=1e-9)


def test_a_layer_without_such_a_block_is_refused_by_name():
    model = zoo.build("mixtral")
    inputs = example_inputs("mixtral", model)
    trace = load(model, inputs=inputs).read(inputs).traces[0]
    for ask in (norms.feed_forward_norms, norms.feed_forward_mixing):
        with pytest.raises(ModelError) as caught:
            ask(trace)
        assert "'feed-forward'" in caught.value.problem
        assert "layer 1" in caught.value.problem


def test_its_maps_are_looked_at_in_every_read():
    model = zoo.build("llama")
    subject = load(model, tokenizer=tinyhf.tokenizer())
    subject.read("w1 w2 w3")
    model.model.layers[1].mlp.down_proj.weight.data[3] *= 2
    with pytest.raises(ModelError, match=r"mlp\.down_proj makes is not x Wᵀ") as caught:
        subject.read("w1 w2 w3")
    assert caught.value.problem == "Layer 2 of LlamaForCausalLM does not compute what was found on loading."


@pytest.mark.parametrize(
    ("kind", "place"), [("llama", "model.layers.1.mlp.act_fn"), ("gpt2", "transformer.h.1.mlp.act")]
)
def test_what_stands_between_its_maps_is_looked_at_in_every_read(kind, place, monkeypatch):
    model = zoo.build(kind)
    subject, part = load(model), model.get_submodule(place)
    own = part.forward
    monkeypatch.setattr(part, "forward", lambda x: own(x) * (1 + (x.shape[1] > 9)))
    assert subject.read({"input_ids": torch.arange(3, 12)[None]}).traces
    with pytest.raises(ModelError, match=r"what enters .*mlp\..*proj is not what was found before it on loading"):
        subject.read({"input_ids": torch.arange(3, 15)[None]})
