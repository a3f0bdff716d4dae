"""Quantised models: read by the weights and the rounding that they compute with, which is stated; other rounding is no rows."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import zoo
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from trisect.core.errors import ModelError
from trisect.hf.load import load

IDS = {"input_ids": torch.arange(6, 13)[None]}


def dynamic(kind: str, per_channel: bool = False) -> Any:
    """A model of the zoo in PyTorch's dynamic int8."""
    from torch.ao.quantization import quantize_dynamic
    from torch.ao.quantization.qconfig import default_dynamic_qconfig, per_channel_dynamic_qconfig

    chosen = per_channel_dynamic_qconfig if per_channel else default_dynamic_qconfig
    with warnings.catch_warnings(action="ignore"):  # it is to be replaced by torchao, says PyTorch
        return quantize_dynamic(zoo.build(kind), {nn.Linear: chosen})


class Eight(nn.Module):
    """bitsandbytes' 8-bit map as far as it shows: rows of codes with a step each, and inputs rounded position by position."""

    def __init__(self, base: nn.Linear, limit: float, levels: float = 127.0) -> None:
        super().__init__()
        self.in_features, self.out_features, self.levels = base.in_features, base.out_features, levels
        self.state, self.bias = SimpleNamespace(threshold=limit), base.bias
        self.steps = base.weight.detach().abs().amax(1, keepdim=True) / 127
        self.codes = (base.weight.detach() / self.steps).round().to(torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        half = flat.half()
        large = half.abs() >= self.state.threshold if self.state.threshold else torch.zeros_like(half, dtype=torch.bool)
        kept = large.any(0)
        step = half.masked_fill(large, 0).abs().amax(1, keepdim=True).float().clamp_min(1e-30) / self.levels
        rounded = torch.where(kept, flat, (half / step).round() * step)
        return F.linear(rounded, self.codes * self.steps, self.bias).view(*x.shape[:-1], -1)


class Linear8bitLt(Eight):
    """The name that bitsandbytes' module has."""


class Linear4bit(nn.Module):
    """bitsandbytes' 4-bit map as far as it shows: codes in bytes, which are numbers only when they are multiplied."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.compute_dtype = base.in_features, base.out_features, torch.float16
        self.bias, self.step = base.bias, base.weight.detach().abs().max() / 7
        self.weight = nn.Parameter((base.weight.detach() / self.step).round().to(torch.int8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():  # no derivative, as of the kernel for processors
            made = F.linear(x.half(), self.weight.half() * self.step.half())
        return made.to(x.dtype) + (0 if self.bias is None else self.bias)


def replaced(kind: str, make: Any) -> Any:
    """A model of the zoo whose layers' linear maps are others."""
    model = zoo.build(kind)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and "head" not in name and "decoder" not in name:
                setattr(module, name, make(child))
    return model


@pytest.mark.parametrize(("kind", "per_channel"), [("bert", False), ("llama", True)])
def test_dynamic_int8_is_read_as_it_computes_and_its_rounding_is_stated(kind, per_channel):
    model = dynamic(kind, per_channel)
    with torch.no_grad():
        before = model(**IDS).logits
    subject = load(model)
    trace = subject.read(IDS).traces[0]
    with torch.no_grad():
        assert torch.equal(model(**IDS).logits, before)
    origins = trace.projections.origins
    assert [origins[n].how for n in "qkvo"] == ["rows"] * 4
    assert all((origins[n].residual or 0) < 1e-5 for n in "qkvo")
    assert origins["v"].words.endswith("of 8-bit integers, with inputs rounded to 7 bits of each call's range")
    names = {"bert": "bert.encoder.layer.0.attention.self.value", "llama": "model.layers.0.self_attn.v_proj"}
    own = model.get_submodule(names[kind])
    assert trace.w_v is not None
    assert torch.allclose(trace.w_v.transpose(1, 2).flatten(0, 1), own.weight().dequantize(), atol=1e-6)
    (note,) = subject.notes
    assert "8-bit integers" in note
    lost = max(f.projections.origins["o"].rounding or 0 for f in subject.proof.weights)
    assert f"W_O's own rounding moves what it makes by up to {lost:.1e}" in note
    assert f"the answer by {subject.proof.rounding.answer:.1e}" in note
    assert subject.proof.rounding.answer > 1e-3
    assert subject.fingerprint == load(model).fingerprint


def test_the_rounding_that_is_stated_is_what_rounding_takes():
    model = dynamic("bert")
    found, entered = load(model, inputs=IDS).proof.weights[0].projections.origins["v"], []
    own = model.bert.encoder.layer[0].attention.self.value
    handle = own.register_forward_hook(lambda _m, args, out: entered.append((args[0], out)))
    with torch.no_grad():
        model(**IDS)
    handle.remove()
    x, y = entered[0]
    exact = x @ own.weight().dequantize().T + own.bias().detach()
    assert found.rounding == pytest.approx(float((exact - y).abs().max() / y.abs().max()), rel=1e-3)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])  # qwen3 norms its queries and keys
def test_what_rounding_moves_counts_what_the_layers_below_moved(kind):
    """Only feed-forward maps are quantised: the first layer stays, and the second moves though its own maps round nothing."""
    model, exact = dynamic(kind), dynamic(kind)
    for layer, other, plain in zip(model.model.layers, exact.model.layers, zoo.build(kind).model.layers, strict=True):
        layer.self_attn = other.self_attn = plain.self_attn
        for name, own in list(other.mlp.named_children()):
            if hasattr(own, "_packed_params"):
                setattr(other.mlp, name, nn.Linear(own.in_features, own.out_features, own.bias() is not None))
                getattr(other.mlp, name).weight.data = own.weight().dequantize()
    model.lm_head = exact.lm_head = zoo.build(kind).lm_head
    subject = load(model, inputs=IDS)
    (was, made) = (one.read(IDS).traces[1] for one in (subject, load(exact, inputs=IDS)))
    shares = [float((getattr(made, n) - (w := getattr(was, n))).abs().max() / w.abs().max()) for n in "qkv"]
    first, second = subject.proof.rounding.parts
    assert first == (0.0, 0.0, 0.0)
    assert second == pytest.approx(shares, rel=1e-2)
    assert min(second) > 1e-3
    q, k, v = second
    assert f"q by up to {q:.1e} of its largest number in a layer, k by {k:.1e}, v by {v:.1e}" in subject.notes[-1]
    assert "W_O's own rounding" not in subject.notes[-1]


def test_int8_weights_that_are_others_by_now_are_refused():
    model = dynamic("llama")
    subject, other = load(model), dynamic("llama")
    v = model.model.layers[1].self_attn.v_proj
    v.set_weight_bias(other.model.layers[0].self_attn.v_proj.weight(), v.bias())
    assert subject.fingerprint != load(other).fingerprint
    for look in (lambda: subject.read(IDS), subject.projections):
        with pytest.raises(ModelError) as caught:
            look()
        assert "Layer 2 of LlamaForCausalLM does not compute what was found on loading." in str(caught.value)


@pytest.mark.parametrize("limit", [0.0, 3.0])
def test_8_bit_maps_like_bitsandbytes_are_read_with_their_rounding(limit):
    model = replaced("llama", lambda base: Linear8bitLt(base, limit))
    subject = load(model)
    subject.read(IDS)
    found = subject.proof.weights[0].projections
    for name in "qkvo":
        assert found.origins[name].how == "rows"
        assert 1e-4 < (found.origins[name].rounding or 0) < 5e-2
    own = model.model.layers[0].self_attn.o_proj
    assert found.w_o is not None
    assert torch.allclose(found.w_o.flatten(0, 1).T, own.codes * own.steps, atol=1e-2 * float(own.steps.max()))
    assert "rounded to 8 bits at every position" in subject.notes[0]


def test_tensors_or_rounding_that_give_away_no_rows_are_not_taken_for_rows():
    """Four bits in place of eight: what it makes is not its weights times what enters, and no weights are given."""
    model = replaced("llama", lambda base: Linear8bitLt(base, 0.0, levels=7.0))
    found = load(model, proof=False).proof.weights[0].projections
    assert {found.origins[n].how for n in "qkvo"} == {"unknown"}
    assert found.w_v is None or found.origins["v"].parameter is None
    assert "recomputed from them it is off by" in found.origins["v"].words
    model = zoo.build("llama")
    weight = model.model.layers[0].self_attn.k_proj.weight.detach()
    model.model.layers[0].self_attn.k_proj.weight = nn.Parameter(TwoTensor(weight, weight.clone()))
    with pytest.raises(
        ModelError, match=r"layers\.0\.self_attn\.k_proj\.weight of LlamaForCausalLM is a torch TwoTensor"
    ):
        load(model)


def test_4_bit_maps_like_bitsandbytes_are_read_though_they_have_no_derivative():
    model = replaced("llama", Linear4bit)
    subject = load(model)
    subject.read(IDS)
    assert all(law.cause == (True, True, True) for law in subject.proof.laws)
    found, own = subject.proof.weights[1].projections, model.model.layers[1].self_attn.v_proj
    assert found.w_v is not None
    whole = own.weight.float() * own.step
    assert torch.allclose(found.w_v.transpose(1, 2).flatten(0, 1), whole, rtol=2e-3, atol=2e-3)
    (note,) = subject.notes
    assert note == "Maps of it are quantised: 4-bit numbers. Weights are those that it multiplies by, not those before."
