"""Plain PyTorch modules: read as they compute, with PyTorch's fast path and compiled code aside, and put back as they were."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import zoo
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import QKV
from trisect.hf.hooks.calls import unwrap_model
from trisect.hf.load import load

NEAR = 2e-6


class Attending(nn.Module):
    """One nn.MultiheadAttention, and a map of what it gives."""

    def __init__(self, batch_first: bool, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=batch_first)
        self.out, self.need_weights = nn.Linear(16, 3), need_weights

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x, x, x, need_weights=self.need_weights)[0])


class Fused(nn.Module):
    """Causal attention by `F.scaled_dot_product_attention` in a module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o, self.out = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x + self.o(y.transpose(1, 2).flatten(2)))


def sharp(model: nn.Module) -> Any:
    torch.manual_seed(0)
    return zoo.sharpen(model)


def encoder(batch_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)


def whole(batch_first: bool) -> nn.Module:
    with warnings.catch_warnings(action="ignore"):  # it offers nested tensors, which it then does not use
        return nn.Transformer(16, 2, 2, 2, 32, batch_first=batch_first)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["weights", "no weights", "encoder"])
def test_torchs_own_attention_is_read_and_answers_the_same(kind, batch_first):
    model = sharp(encoder(batch_first) if kind == "encoder" else Attending(batch_first, kind == "weights"))
    x = torch.randn((2, 5, 16) if batch_first else (5, 2, 16), generator=torch.Generator().manual_seed(1))
    name = "src" if kind == "encoder" else "x"
    with torch.no_grad():
        before = model(x)
    fast = torch.backends.mha.get_fastpath_enabled()
    subject = load(model, inputs={name: x})
    reading = subject.read({name: x})
    with torch.no_grad():
        assert torch.equal(model(x), before)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert (subject.predict({name: x}) - before).abs().max() <= NEAR * before.abs().max()
    layers = 2 if kind == "encoder" else 1
    assert len(reading.traces) == layers
    for trace in reading.traces:
        own = (x if batch_first else x.transpose(0, 1)) if trace.layer == 1 else None
        assert trace.weights.shape[::2] == (2, 5)
        assert trace.w_q is not None
        assert trace.w_v is not None
        assert trace.w_o is not None
        if own is not None:
            b = trace.projections.b_v
            assert b is not None
            v = torch.einsum("bsd,kde->bkse", own, trace.w_v) + b[:, None]
            assert torch.allclose(v, trace.v, atol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_whole_transformer_is_read_call_by_call(batch_first):
    model = sharp(whole(batch_first))
    draw = torch.Generator().manual_seed(1)
    src, tgt = torch.randn(2, 7, 16, generator=draw), torch.randn(2, 5, 16, generator=draw)
    inputs = {"src": src, "tgt": tgt} if batch_first else {"src": src.transpose(0, 1), "tgt": tgt.transpose(0, 1)}
    subject = load(model, inputs=inputs)
    reading = subject.read(inputs)
    assert [tuple(t.weights.shape[2:]) for t in reading.traces] == [(7, 7)] * 2 + [(5, 5), (5, 7)] * 2
    assert all(found.projections.w_o is not None for found in subject.proof.weights)


def test_a_causal_module_of_ones_own_is_read_and_written_to_with_an_example_of_its_inputs():
    model = sharp(Fused())
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    subject = load(model, inputs={"x": x})
    trace = subject.read({"x": x}).traces[0]
    assert trace.weights.triu(1).abs().max() == 0
    assert trace.w_q is not None
    address = subject.addresses[0]
    nothing = subject.predict({"x": x}, write={address: lambda p: QKV(p.q, p.k, torch.zeros_like(p.v))})
    with torch.no_grad():
        assert torch.allclose(nothing, model.out(x + model.o.bias), atol=1e-5)
    with pytest.raises(ModelError) as caught:
        load(Fused())
    assert "Fused cannot be tried out" in str(caught.value)
    assert "load(model, inputs={...}), of x" in str(caught.value)


@pytest.mark.parametrize("part", ["whole", "layer", "method"])
def test_compiled_models_are_read_as_what_they_were_compiled_from(part):
    ids = {"input_ids": torch.arange(6, 13)[None]}
    plain = load(zoo.build("gptj")).read(ids)
    model: Any = zoo.build("gptj")
    if part == "layer":
        model.transformer.h[0] = torch.compile(model.transformer.h[0], backend="eager")
    elif part == "method":
        model.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    subject = load(model)
    assert subject.objective == "causal"
    read = subject.read(ids)
    assert len(read.traces) == len(plain.traces)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(read.traces, plain.traces, strict=True))


class Wrapped(nn.Module):
    """What PEFT puts around a model, as far as it shows."""

    def __init__(self, model: nn.Module, prompts: bool) -> None:
        super().__init__()
        self.model, self.peft_config = model, {"default": None}
        self.active_peft_config = type("Config", (), {"is_prompt_learning": prompts})()

    def get_base_model(self) -> nn.Module:
        return self.model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class LowRank(nn.Linear):
    """A projection with an adapter of low rank inside, as LoRA makes them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features, False)
        self.base_layer = base
        self.a, self.b = nn.Linear(base.in_features, 2, False), nn.Linear(2, base.out_features, False)

    def forward(self, input: Tensor) -> Tensor:
        return self.base_layer(input) + self.b(self.a(input))


def test_a_model_inside_peft_is_read_with_its_adapters_and_one_with_prompts_is_refused():
    model = zoo.build("llama")
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
    zoo.sharpen(model)
    ids = {"input_ids": torch.arange(6, 13)[None]}
    subject = load(Wrapped(model, False))
    assert subject.objective == "causal"
    found = subject.read(ids).traces[0]
    adapted = model.model.layers[0].self_attn.q_proj
    whole = adapted.base_layer.weight + adapted.b.weight @ adapted.a.weight
    assert found.w_q is not None
    assert torch.allclose(found.w_q.transpose(1, 2).flatten(0, 1), whole.detach(), atol=1e-4)
    with pytest.raises(ModelError, match=r"learned prompts before its inputs"):
        load(Wrapped(model, True))
    assert unwrap_model(model) is model
