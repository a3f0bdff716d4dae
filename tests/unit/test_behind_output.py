"""Norms and factors behind W_O, the feed-forward block, and q, k and v: found, and the parts sum to what is added."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests import tinyhf, zoo
from tests.property.test_own_model_laws import WORDS, own
from tests.traces import random_trace
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.trace import FeedForward, NormedMap, ResidualBlock, Trace
from trisect.experiments.similarity.run import describe_omissions, measure_weights
from trisect.hf.hooks.calls import Edits
from trisect.hf.hooks.interface_hook import record_interface
from trisect.hf.load import load
from trisect.hf.verify.examples import example_inputs
from trisect.hf.verify.proof import prove
from trisect.measure import norms, similarity
from trisect.measure.norms import ACTIVATIONS, activation

ROUNDING = 1e-4  # single precision, of the largest part
EXACT = 1e-12
# kind, what is changed in its configuration, the block's kind, the module whose result is added (or: what is given to two modules)
KINDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "gemma2": ({}, "pre", "model.layers.0.post_attention_layernorm"),
    "olmo2": ({}, "bare", "model.layers.0.post_attention_layernorm"),
    "glm4": ({}, "pre", "model.layers.0.post_self_attn_layernorm"),
    "dinov2": ({"layerscale_value": 0.3}, "pre", "layer.0.layer_scale1"),
    "granite": ({"residual_multiplier": 0.22}, "pre", ""),
}


def parts_of(trace: Trace) -> Tensor:
    """Every position's part of what is added to every other: [B T S D], written out."""
    scale = norms.query_scale(trace)
    f = torch.einsum("bhse,hed->bhsd", trace.values, norms.effective_projection(trace))
    parts = (trace.weights[..., None] * f[:, :, None]).sum(1)
    return parts if scale is None else parts * scale[..., None, None]


def really_added(model: Any, module: str, inputs: dict[str, Tensor]) -> Tensor:
    """What is added to the residual stream in the first layer, as the model computes it."""
    seen: dict[str, Tensor] = {}
    if module:
        name = next(n for n, _ in model.named_modules() if n.endswith(module))
        hook = model.get_submodule(name).register_forward_hook(lambda _m, _a, out: seen.update(added=out))
        with hook, torch.no_grad():
            model(**inputs)
        return seen["added"]
    first, second = (model.model.layers[0].get_submodule(f"{n}_layernorm") for n in ("input", "post_attention"))
    before = first.register_forward_pre_hook(lambda _m, a: seen.update(before=a[0]))
    after = second.register_forward_pre_hook(lambda _m, a: seen.update(after=a[0]))
    with before, after, torch.no_grad():
        model(**inputs)
    return seen["after"] - seen["before"]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_sum_to_what_is_added(kind):
    options, block, module = KINDS[kind]
    model = zoo.build(kind, **options)
    inputs = example_inputs(kind, model)
    trace = load(model, inputs=inputs).read(inputs).traces[0]
    assert trace.block is not None
    assert trace.block.kind == block
    assert trace.block.after is not None
    assert trace.w_o is not None
    parts, added = parts_of(trace), really_added(model, module, inputs)
    off = (parts.sum(2) + norms.effective_bias(trace) - added).abs().max()
    assert off < ROUNDING * parts.abs().max()
    assert (
        trace.output.transpose(1, 2).flatten(2) @ trace.w_o.flatten(0, 1) - added
    ).abs().max() > 0.1 * added.abs().max()
    torch.testing.assert_close(norms.summed_norms(trace), parts.norm(dim=-1), rtol=ROUNDING, atol=ROUNDING)
    # a pre-norm's residual, and the layer's own: x + parts is what the stream holds next
    stream = norms.mixing_parts(trace, "residual")
    whole = (stream.self_part + stream.context + norms.effective_bias(trace)) - trace.block.residual
    assert (whole - added).abs().max() < ROUNDING * parts.abs().max()


def test_without_a_norm_or_factor_there_is_none():
    for kind in ("llama", "gpt2", "bert", "modernbert"):
        model = zoo.build(kind)
        inputs = example_inputs(kind, model)
        for trace in load(model, inputs=inputs).read(inputs).traces:
            assert trace.block is not None
            assert trace.block.after is None


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("epsilon", [1e-5, None])
@pytest.mark.parametrize("block", ["pre", "post", "bare"])
def test_fast_forms_are_the_sums_behind_a_norm_too(block, epsilon, centred):
    trace = random_trace(3, block=block, after=(epsilon, centred), padding=2)
    real = trace.query_real[:, :, None] & trace.key_real[:, None]
    parts = parts_of(trace).masked_fill(~real[..., None], 0.0)
    torch.testing.assert_close(norms.summed_norms(trace), parts.norm(dim=-1), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(norms.transformed_and_layer_norms(trace)[1], norms.summed_norms(trace), rtol=0, atol=0)
    torch.testing.assert_close(norms.norms(trace), parts.norm(dim=-1), rtol=EXACT, atol=EXACT)
    y = norms.attention_output(trace)
    after = trace.block.after if trace.block is not None else None
    assert after is not None
    if epsilon is not None:
        y = y - y.mean(-1, keepdim=True) if centred else y
        y = y / (y.square().mean(-1, keepdim=True) + epsilon).sqrt()
    elif centred:
        y = y - y.mean(-1, keepdim=True)
    want = y * after.gamma + (0.0 if after.beta is None else after.beta)
    found = parts_of(trace).sum(2) + norms.effective_bias(trace)
    torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-11)
    whole = norms.mixing_parts(trace, "residual")
    assert trace.block is not None
    stream = whole.self_part + whole.context + norms.effective_bias(trace)
    torch.testing.assert_close(
        stream[trace.query_real], (want + trace.block.residual)[trace.query_real], rtol=1e-11, atol=1e-11
    )


def test_a_norm_behind_the_output_is_looked_at_in_every_read():
    model = zoo.build("olmo2")
    subject = load(model, tokenizer=tinyhf.tokenizer())
    subject.read("w1 w2 w3")
    model.model.layers[1].post_attention_layernorm.weight.data.mul_(1.5)
    with pytest.raises(ModelError) as caught:
        subject.read("w1 w2 w3")
    assert caught.value.problem == "Layer 2 of Olmo2ForCausalLM does not compute what was found on loading."
    assert caught.value.reason.startswith(
        "In this read what model.layers.1.post_attention_layernorm makes of the output of W_O"
    )


def test_what_is_added_beside_a_large_residual_is_still_looked_at():
    """A factor of ½ on what is added, beside a residual so large that the sum alone would not show it."""
    model = zoo.build("granite", residual_multiplier=0.5)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1e6)
    inputs = example_inputs("granite", model)
    trace = load(model, inputs=inputs).read(inputs).traces[0]
    assert trace.block is not None
    assert trace.block.after is not None
    torch.testing.assert_close(trace.block.after.gamma, torch.full((32,), 0.5))


ROUNDING = 2e-4  # single precision through three norms, of the largest number
# kind, the module that gives what the layer gives, and what is found: the activation, a gate, norms before, behind, after
FEED_FORWARD_KINDS = {
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


@pytest.mark.parametrize("kind", FEED_FORWARD_KINDS)
def test_parts_and_biases_sum_to_what_the_layer_gives(kind):
    layer, found = FEED_FORWARD_KINDS[kind]
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
        torch.testing.assert_close(both.self_part[row], own, rtol=ROUNDING, atol=ROUNDING)
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
    monkeypatch.setattr(norms, "MAX_NUMBERS", 1)
    torch.testing.assert_close(norms.feed_forward_norms(trace), whole)


@pytest.mark.parametrize("name", ACTIVATIONS)
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


MODULES = {
    "qwen3": "model.layers.0.self_attn.{}_proj",
    "olmo2": "model.layers.0.self_attn.{}_proj",
    "persimmon": "model.layers.0.self_attn.query_key_value",
}


def heads_of(model: Any, name: str, module: str, change: Tensor | None) -> Tensor:
    """What q, k or v of the first layer is at the first position, with something added to what its projection is given."""
    added = model.get_submodule(module).register_forward_pre_hook(
        lambda _m, args: None if change is None else (args[0] + change, *args[1:])
    )
    with added, torch.no_grad(), record_interface(model, Edits()) as calls:
        model(**example_inputs("x", model))
    return getattr(calls[0], name)[0, :, 0]


def directions(of: Tensor) -> Tensor:
    return of / of.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize(("kind", "name"), [("qwen3", "q"), ("qwen3", "k"), ("olmo2", "q"), ("persimmon", "k")])
def test_what_a_head_reads_is_what_the_weights_under_its_norm_read(kind, name):
    """Iff: a change of the input that they do not read leaves the head as it was, and one that they read does not."""
    model = zoo.build(kind)
    under = prove(kind, model).weights[0].projections.normed[name]
    module = MODULES[kind].format(name)
    span = similarity.span(under.weight)
    before = heads_of(model, name, module, None)
    for head in range(len(under.weight)):
        basis = span.basis[head]
        change = torch.randn(basis.shape[0], generator=torch.Generator().manual_seed(head), dtype=torch.float64)
        read = basis @ (basis.T @ change)
        blind, seen = (heads_of(model, name, module, c.float())[head] for c in (change - read, read))
        own = before[head]
        if kind == "olmo2":  # its norm is of all heads together: of one head the direction is its own
            blind, seen, own = (directions(t) for t in (blind, seen, own))
        assert (blind - own).abs().max() < ROUNDING * own.abs().max()
        assert (seen - own).abs().max() > 0.05 * own.abs().max()


def test_what_a_norm_multiplies_by_zero_is_not_read():
    model = zoo.build("qwen3")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_norm.weight[3] = 0
    under = prove("qwen3", model).weights[0].projections.normed["q"]
    assert not under.weight[:, :, 3].any()
    assert similarity.span(under.weight).rank.tolist() == [15] * 4


def test_a_norm_that_is_none_by_its_name_has_no_rows_under_it():
    """What is scaled in another way than a norm's is not taken for one: here by the position."""
    model = zoo.build("qwen3")
    norm = model.model.layers[0].self_attn.q_norm
    norm.register_forward_hook(lambda _m, _a, out: out * torch.arange(1, out.shape[1] + 1)[None, :, None, None])
    found = prove("qwen3", model).weights
    assert set(found[0].projections.normed) == {"k"}
    assert set(found[1].projections.normed) == {"q", "k"}


def test_similarity_measures_what_is_read_and_says_so():
    projections = [f.projections for f in prove("qwen3", zoo.build("qwen3")).weights]
    found = [m for m in measure_weights(projections) if m.group is None and m.address.layer == 1]
    parts = {name: {m.component for m in found if m.measure == name} for name in {m.measure for m in found}}
    every = {"q-k", "k-v", "q-v"}
    of_spans = ("overlap", "least_angle_degrees", "overlap_among", "overlap_others_above")
    assert parts == dict.fromkeys(of_spans, every) | {"effective_rank": {"v", "v-o"}}
    q = similarity.span(projections[0].normed["q"].weight)
    k = similarity.span(projections[0].normed["k"].weight.repeat_interleave(2, 0))
    (own,) = (m.values for m in found if (m.measure, m.component) == ("overlap", "q-k"))
    assert own == pytest.approx(similarity.angles(q, k).overlap.numpy())
    assert describe_omissions(projections) == tuple(
        "What changes with the norm (cosine, CKA, symmetric share, effective rank) is left out at layer 1, layer 2: "
        f"{name} has a norm behind its projection (rows of model.layers.N.self_attn.{name}_proj, normed in each head), which "
        "leaves alone what the projection reads: overlaps and angles are of that."
        for name in "qk"
    )


def test_weights_under_a_norm_are_looked_at_again():
    """A change through `.data` is no write that PyTorch counts."""
    model = zoo.build("qwen3")
    subject = load(model, tokenizer=tinyhf.tokenizer())
    assert isinstance(subject.projections()[0].normed["q"], NormedMap)
    model.model.layers[1].self_attn.q_proj.weight.data[0] *= 2
    for ask in (subject.projections, lambda: subject.read("w1 w2 w3")):
        with pytest.raises(ModelError, match="q_proj makes is not") as caught:
            ask()
        assert caught.value.problem == "Layer 2 of Qwen3ForCausalLM does not compute what was found on loading."


@pytest.mark.parametrize("name", ["q", "k"])
def test_a_norm_that_makes_something_else_in_a_read_is_seen(name, monkeypatch):
    model: Any = zoo.build("qwen3")
    subject = load(model)
    norm = getattr(model.model.layers[1].self_attn, f"{name}_norm")
    own = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: own(x) * (1 + (x.shape[1] > 9)))
    ids = torch.arange(3, 12)[None]
    assert subject.read({"input_ids": ids}).traces
    with pytest.raises(ModelError, match=f"{name} is more than what model.layers.1.self_attn.{name}_proj makes"):
        subject.read({"input_ids": torch.arange(3, 15)[None]})
