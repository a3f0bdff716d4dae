"""Laws of the norms: fast forms equal the naive sums, parts add up to the module's output, padding counts for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.traces import cast, random_projections, random_trace
from torch import Tensor

from trisect.core.errors import ModelError, SpecError
from trisect.core.trace import Address, Origin, Trace
from trisect.measure import norms

EXACT = 1e-12  # float64: sums of at most a few hundred products of numbers of order one

shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "texts": st.integers(1, 3),
        "queries": st.integers(1, 7),
        "heads": st.sampled_from([1, 2, 4, 6]),
        "groups": st.sampled_from([None, 1, 2]),
        "inner": st.integers(1, 5),
        "width": st.sampled_from([2, 3, 8, 13]),
        "bias": st.booleans(),
    }
)


def made(shape: dict, **more) -> Any:
    shape = dict(shape)
    if shape["groups"] is not None and shape["heads"] % shape["groups"]:
        shape["groups"] = None
    return random_trace(**shape, **more)


def pieces(trace: Trace) -> Tensor:
    """a^h_ij f_h(x_j) as [B H T S D], written out."""
    f = torch.einsum("bhse,hed->bhsd", trace.values, trace.w_o)
    return trace.weights[..., None] * f[:, :, None]


def real(trace: Trace) -> Tensor:
    return trace.query_real[:, :, None] & trace.key_real[:, None]


@settings(max_examples=40)
@given(shape=shapes, causal=st.booleans())
def test_fast_forms_equal_the_naive_sums(shape, causal):
    trace = made(shape, causal=causal)
    vectors = pieces(trace)
    f = torch.einsum("bhse,hed->bhsd", trace.values, trace.w_o)
    torch.testing.assert_close(norms.transformed_norms(trace), f.norm(dim=-1), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(norms.head_norms(trace), vectors.norm(dim=-1), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(norms.summed_norms(trace), vectors.sum(1).norm(dim=-1), rtol=EXACT, atol=EXACT)
    transformed, layer = norms.transformed_and_layer_norms(trace)
    torch.testing.assert_close(transformed, f.norm(dim=-1), rtol=EXACT, atol=EXACT)
    assert torch.equal(layer, norms.summed_norms(trace))


@settings(max_examples=15)
@given(shape=shapes, keys=st.integers(1, 6))
def test_cross_attention_is_the_same_sum(shape, keys):
    trace = made(shape, keys=keys)
    torch.testing.assert_close(norms.summed_norms(trace), pieces(trace).sum(1).norm(dim=-1), rtol=EXACT, atol=EXACT)
    ratio = norms.mixing_ratio(trace)
    assert torch.equal(ratio, torch.ones_like(ratio))


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_positions_change_nothing(monkeypatch, causal):
    trace = random_trace(queries=9, causal=causal, padding=2, block="post")
    residual = lambda: norms.layer_contributions(trace, residual=True)  # noqa: E731
    ask = lambda: (norms.summed_norms(trace), *norms.attention_sums(trace), *norms.contributions(trace), residual())  # noqa: E731
    whole = ask()
    for name in ("BLOCK_NUMBERS", "BLOCK_QUERIES", "QR_NUMBERS"):
        monkeypatch.setattr(norms, name, 2)
    spans = list(norms._block_spans(trace.weights))
    assert len(spans) == 5 * len(trace.weights)
    assert any(keys.stop == 2 for _, _, keys in spans) if causal else all(keys.stop > 6 for _, _, keys in spans)
    torch.testing.assert_close(ask(), whole, rtol=EXACT, atol=EXACT)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), padding=st.integers(1, 3))
def test_padding_counts_for_nothing(seed, padding):
    trace = random_trace(seed, queries=5, padding=padding)
    alone = random_trace(seed, queries=5)
    for found in (norms.summed_norms(trace), norms.head_norms(trace).sum(1), norms.norms(trace)):
        assert not found[~real(trace)].any()
        assert found[real(trace)].all()
    assert not norms.transformed_norms(trace)[-1, :, -padding:].any()
    assert not norms.transformed_and_layer_norms(trace)[0][-1, :, -padding:].any()
    assert not norms.mixing_ratio(trace)[-1, -padding:].any()
    torch.testing.assert_close(norms.summed_norms(trace)[0], norms.summed_norms(alone)[0], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("ratio", [1e-1, 1e-2, 1e-3])
def test_single_precision_holds_where_heads_cancel(ratio):
    """Heads in opposing pairs leave `ratio` of their lengths; the inputs themselves are good to 6e-8 of that."""
    trace = cast(cancelling(ratio), torch.float32)
    exact = cast(trace, torch.float64)
    vectors = pieces(exact)
    want = vectors.sum(1).norm(dim=-1)
    left = (want / vectors.norm(dim=-1).sum(1)).median()
    assert left < 3 * ratio  # they do cancel
    error = ((norms.summed_norms(trace).double() - want).abs() / want).max()
    assert error < 3e-6 / ratio  # single precision's 6e-8 over the ratio, times the sums of a few dozen products
    gram = torch.einsum("bhse,hed->bshd", trace.values, trace.w_o)
    squared = torch.einsum("bhts,bshg,bgts->bts", trace.weights, gram @ gram.mT, trace.weights)
    worse = ((squared.clamp_min(0).sqrt().double() - want).abs() / want).max()
    if ratio <= 1e-3:
        assert worse > 10 * error  # the form that squares the condition


def cancelling(ratio: float) -> Trace:
    trace = random_trace(3, heads=4, queries=12, width=32, inner=8)
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    even, noise = normal(8, 32), ratio * normal(4, 8, 32)
    signs = torch.tensor([1.0, -1, 1, -1], dtype=torch.float64)[:, None, None]
    same = trace.v[:, :1].expand_as(trace.v) * (1 + 0.1 * ratio * normal(*trace.v.shape))
    weights = trace.weights[:, :1].expand_as(trace.weights) * (1 + 0.1 * ratio * normal(*trace.weights.shape))
    projections = replace(trace.projections, w_o=signs * even + noise)
    return replace(trace, v=same, weights=weights, output=weights @ same, projections=projections)


@settings(max_examples=30)
@given(shape=shapes, kind=st.sampled_from(norms.KINDS), around=st.sampled_from(["pre", "post"]), centred=st.booleans())
def test_block_norms_and_mixing_equal_the_naive_sums(shape, kind, around, centred):
    trace = made(shape, block=around, centred=centred)
    vectors = naive_block(trace, kind)
    here = torch.eye(vectors.shape[1], dtype=torch.bool)[None, :, :, None]
    own, context = (vectors * here).sum(2), (vectors * ~here).sum(2)
    torch.testing.assert_close(norms.norms(trace, kind), vectors.norm(dim=-1), rtol=1e-11, atol=1e-11)
    found = norms.mixing_parts(trace, kind)
    torch.testing.assert_close(found.self_part, own, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.context, context, rtol=1e-11, atol=1e-11)
    a, b = context.norm(dim=-1), own.norm(dim=-1)
    torch.testing.assert_close(norms.mixing_ratio(trace, kind), a / (a + b), rtol=1e-11, atol=1e-11)


def naive_block(trace: Any, kind: str) -> Tensor:
    """F_ij as [B T S D], by the definition; 1e-11 is allowed since a variance of few numbers divides it."""
    vectors, around = pieces(trace).sum(1), trace.block
    if kind == "attention":
        return vectors
    vectors = vectors + torch.diag_embed(around.residual.movedim(2, 1)).movedim(1, 3)
    if kind == "residual" or around.kind == "pre":
        return vectors
    entering = vectors.sum(2) + (0 if trace.projections.b_o is None else trace.projections.b_o)
    if around.centred:
        vectors = vectors - vectors.mean(-1, keepdim=True)
        entering = entering - entering.mean(-1, keepdim=True)
    deviation = (entering.square().mean(-1) + around.epsilon).sqrt()
    return vectors * around.gamma / deviation[:, :, None, None]


@settings(max_examples=20)
@given(shape=shapes, centred=st.booleans())
def test_parts_add_up_to_the_post_norm_blocks_output(shape, centred):
    trace = made(shape, block="post", centred=centred)
    around, b_o = trace.block, trace.projections.b_o
    shift = torch.zeros(around.gamma.shape, dtype=torch.float64) if b_o is None else b_o
    entering = torch.einsum("bhte,hed->btd", trace.output, trace.w_o) + shift + around.residual
    spread = entering.var(-1, unbiased=False) if centred else entering.square().mean(-1)
    root = (spread + around.epsilon).sqrt()[..., None]
    mean = entering.mean(-1, keepdim=True) if centred else 0
    want = (entering - mean) / root * around.gamma
    bias = (shift - shift.mean() if centred else shift) * around.gamma / root
    found = norms.mixing_parts(trace, "full")
    # of two numbers the deviation may be 1 / 300
    torch.testing.assert_close(found.self_part + found.context + bias, want, rtol=1e-10, atol=1e-10)


@settings(max_examples=20)
@given(shape=shapes)
def test_contributions_and_the_bias_equal_the_modules_output(shape):
    trace = made(shape)
    found, b_o = norms.mixing_parts(trace), trace.projections.b_o
    assert (b_o is not None) == shape["bias"]
    together = trace.output.transpose(1, 2).flatten(2)  # heads side by side, as the module projects them
    module = torch.nn.functional.linear(together, trace.w_o.flatten(0, 1).T, b_o)
    bias = 0 if b_o is None else b_o
    torch.testing.assert_close(found.self_part + found.context + bias, module, rtol=EXACT, atol=EXACT)


def test_mixing_by_weights_is_one_less_the_own_weight():
    trace = random_trace(padding=1)
    own = 1 - torch.diagonal(trace.weights, dim1=2, dim2=3).mean(1)
    want = own.masked_fill(~trace.query_real, 0)
    torch.testing.assert_close(norms.mixing_by_weights(trace), want, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(norms.mixing_by_weights(trace, "full"), want / 2, rtol=EXACT, atol=EXACT)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), groups=st.sampled_from([None, 2]), bias=st.booleans())
def test_expansion_rate_is_frobenius_of_the_written_out_map(seed, groups, bias):
    made: Any = random_projections(seed, groups=groups, bias=bias)
    values = made.w_v.repeat_interleave(made.w_o.shape[0] // made.w_v.shape[0], 0)
    zeros = torch.zeros(made.w_o.shape[0], made.w_o.shape[1], dtype=torch.float64)
    shifts = zeros if made.b_v is None else made.b_v.repeat_interleave(len(values) // made.w_v.shape[0], 0)
    heads = torch.cat([values, shifts[:, None]], 1) @ made.w_o
    whole = heads.sum(0)
    if made.b_o is not None:
        whole[-1] += made.b_o
    whole = torch.cat([whole, torch.eye(11, dtype=torch.float64)[:, -1:]], 1)
    found = norms.expansion_rate(made)
    assert found.layer == pytest.approx(float(torch.linalg.matrix_norm(whole)) / 11**0.5, rel=EXACT)
    torch.testing.assert_close(found.heads, torch.linalg.matrix_norm(heads) / 11**0.5, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("around", ["pre", "post"])
def test_the_layers_input_is_what_values_are_projected_from(around):
    trace: Any = random_trace(block=around)
    x = norms.layer_input(trace)
    v = torch.einsum("btd,hde->bhte", x, trace.w_v) + trace.projections.b_v[:, None]
    torch.testing.assert_close(v, trace.v, rtol=EXACT, atol=EXACT)
    assert norms.layer_input(random_trace()) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(dtype):
    trace = cast(random_trace(), dtype)
    exact = pieces(cast(trace, torch.float64)).sum(1).norm(dim=-1)
    found = norms.summed_norms(trace)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6)  # single precision on the same inputs


TRACE = random_trace(address=Address("enc", 2))
GATED = replace(TRACE.projections, w_o=None, origins={"o": Origin("gated", "a gate multiplies it first")})
MIXED = replace(TRACE.projections, w_v=None, origins={"v": Origin("mixed", "two sources")})


@pytest.mark.parametrize(
    ("call", "error", "known"),
    [
        (
            lambda: norms.summed_norms(replace(TRACE, projections=GATED)),
            ModelError,
            "enc layer 2.*a gate multiplies it first",
        ),
        (
            lambda: norms.transformed_norms(replace(TRACE, projections=replace(GATED, origins={}))),
            ModelError,
            "The proof found no output projection",
        ),
        (lambda: norms.expansion_rate(MIXED), ModelError, "enc layer 2.*two sources"),
        (lambda: norms.norms(TRACE, "full"), ModelError, "'full'.*enc layer 2.*'attention'"),
        (lambda: norms.norms(TRACE, "whole"), SpecError, "'whole'.*attention, residual, full, feed-forward"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(call, error, known):
    with pytest.raises(error, match=f"(?s){known}"):
        call()


@settings(max_examples=40)
@given(shape=shapes, causal=st.booleans(), padding=st.integers(0, 2))
def test_contribution_weights_sum_to_one_and_are_the_definition(shape, causal, padding):
    trace = made(shape, causal=causal, padding=min(padding, shape["queries"] - 1))
    heads, layer = norms.contributions(trace)
    for received, each in zip(norms.attention_sums(trace), (heads, layer), strict=False):
        assert torch.allclose(received, each.sum(-2), rtol=1e-9, atol=1e-9)
    f = pieces(trace) * real(trace)[:, None, ..., None]
    for found, parts in ((heads, f), (layer, f.sum(1))):
        whole = parts.sum(-2, keepdim=True)
        size = whole.square().sum(-1)
        assert torch.allclose(found * size, (parts * whole).sum(-1), rtol=1e-9, atol=1e-12)
        some = trace.query_real if found.dim() == 3 else trace.query_real[:, None].expand(found.shape[:3])
        sound = some & (size[..., 0] > 1e-6)  # where the parts cancel, rounding is divided by next to nothing
        assert torch.allclose(found.sum(-1)[sound], torch.ones(int(sound.sum()), dtype=found.dtype), atol=1e-8)
        assert not found[~real(trace) if found.dim() == 3 else ~real(trace)[:, None].expand(found.shape)].any()


@pytest.mark.parametrize("block", ["pre", "post"])
def test_with_the_residual_contributions_still_sum_to_one_and_rollout_steps_are_shares(block):
    trace = random_trace(3, block=block, padding=1)
    shares = norms.layer_contributions(trace, residual=True).sum(-1)
    assert torch.allclose(shares[trace.query_real], torch.ones(int(trace.query_real.sum()), dtype=shares.dtype))
    for kind in ("weight", "norm", "contribution"):
        step = norms.rollout_step(trace, kind)
        assert (step >= 0).all()
        assert torch.allclose(step.sum(-1), trace.query_real.double())
        assert not step[~real(trace)].any()
    alone = replace(trace, weights=torch.zeros_like(trace.weights))  # what attention adds nothing to is its own
    for kind in ("weight", "norm", "contribution"):
        eye = torch.diag_embed(trace.query_real.double())
        assert torch.allclose(norms.rollout_step(alone, kind), eye)
