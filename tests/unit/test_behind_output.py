"""Norms and factors behind W_O: they are found, and the parts of what attention adds sum to what is really added."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import tinyhf, zoo
from tests.traces import random_trace
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.trace import Trace
from trisect.hf.load import load
from trisect.hf.verify.examples import example_inputs
from trisect.measure import norms

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
    whole = (stream.itself + stream.context + norms.effective_bias(trace)) - trace.block.residual
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
    stream = whole.itself + whole.context + norms.effective_bias(trace)
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
