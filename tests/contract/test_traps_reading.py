"""What was right on loading and is not any more when it is read: every read looks at its own batch."""

from typing import Any

import pytest
import torch
from tests import fooling, tinyhf, zoo
from tests.fooling import WIDTH, Fooling
from torch import nn

from trisect.core.errors import ModelError
from trisect.core.subject import Parts
from trisect.core.trace import Address
from trisect.hf.forward import run_forward
from trisect.hf.hooks.calls import Edits
from trisect.hf.load import load

DENSE = "bert.encoder.layer.0.attention.output.dense"


def refused(one, given, known, inputs=None):
    with pytest.raises(ModelError) as error:
        one.read(fooling.ids(9) if inputs is None else inputs)
    assert error.value.problem == given
    assert known in error.value.reason
    assert "load(model, inputs=...)" in error.value.todo


def said(model, layer="Layer 1"):
    return f"{layer} of {type(model).__name__} does not compute what was found on loading."


def loaded(**changes):
    model = Fooling(**changes)
    return model, load(model, inputs=fooling.ids())


OUT, V = "layers.0.attn.o_proj", "layers.0.attn.v_proj"
MAPS = {  # changes of maps after loading, and what is said of them
    "W_V": (lambda a: a.v_proj.weight.data.mul_(1.5), f"what {V} makes is not x Wᵀ + b"),
    "W_O": (lambda a: a.o_proj.weight.data.mul_(1.01), f"what {OUT} makes is not x Wᵀ + b"),
    "another map": (
        lambda a: setattr(a, "k_proj", nn.Linear(WIDTH, WIDTH)),
        "what layers.0.attn.k_proj makes is not x Wᵀ + b",
    ),
    "permuted": (lambda a: setattr(a.o_proj.weight, "data", a.o_proj.weight.data.flip(1)), f"what {OUT} makes is not"),
    "hook on W_O": (
        lambda a: a.o_proj.register_forward_hook(lambda _m, _a, out: out * 2),
        f"what {OUT} makes is not x Wᵀ + b",
    ),
}
STALE = {
    **MAPS,
    "bias": (lambda a: a.q_proj.bias.data.add_(0.3), "what layers.0.attn.q_proj makes is not x Wᵀ + b"),
    "hook before W_O": (
        lambda a: a.o_proj.register_forward_pre_hook(lambda _m, args: (args[0] * 2,)),
        f"weights times v are not what enters {OUT}",
    ),
    "hook on W_V": (
        lambda a: a.v_proj.register_forward_hook(lambda _m, _a, out: out + 1),
        f"what {V} makes is not x Wᵀ + b",
    ),
    "hook on attention": (
        lambda a: a.register_forward_hook(lambda _m, _a, out: 0.5 * out),
        f"layers.0.attn does not give on what {OUT} makes",
    ),
}


@pytest.mark.parametrize("name", STALE)
def test_what_changed_since_loading_is_refused(name):
    (change, known), (model, one) = STALE[name], loaded()
    one.read(fooling.ids(9))
    change(model.attention)
    refused(one, said(model), known)


@pytest.mark.parametrize("name", MAPS)
def test_weights_that_are_asked_for_without_a_read_are_looked_at_too(name):
    model, one = loaded()
    assert len(one.projections()) == 2
    MAPS[name][0](model.attention)
    with pytest.raises(ModelError) as error:
        one.projections()
    assert error.value.problem == said(model)


class Adapter(nn.Module):
    """A map with an adapter that can be switched off, as adapters are."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.on = base, True
        self.in_features, self.out_features = base.in_features, base.out_features
        self.down, self.up = fooling.parts((WIDTH, 4), (4, WIDTH))

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x)) if self.on else self.base_layer(x)


@pytest.mark.parametrize("part", ["q_proj", "o_proj"])
def test_an_adapter_that_is_switched_off(part):
    model = Fooling()
    adapter = Adapter(getattr(model.attention, part))
    setattr(model.attention, part, adapter)
    one = load(model, inputs=fooling.ids())
    assert one.projections()[0].w_o is not None
    one.read(fooling.ids(9))
    adapter.on = False
    refused(one, said(model), f"what layers.0.attn.{part} makes is not x Wᵀ + b")


def doubled_in_place(attention, mixed, x, ids):
    made = attention.o_proj(mixed)
    if x.shape[1] > 16:
        made *= 2
    return made


def rare_words(attention, mixed, x, ids):
    made = attention.o_proj(mixed)
    return torch.where((ids == 39)[..., None], 2 * made, made)


LONG = {  # changes in texts of more than 16 tokens
    "v": ({"v": lambda v: v * (1 + (v.shape[1] > 16))}, f"v is not what {V} makes"),
    "q": (
        {"q": lambda q: q + (q.shape[1] > 16) * torch.arange(q.shape[1])[:, None]},
        "q is not what layers.0.attn.q_proj makes",
    ),
    "another W_O": (
        {"out": lambda a, mixed, x, ids: (a.o_proj if x.shape[1] <= 16 else a.other)(mixed)},
        f"the output does not enter {OUT}",
    ),
    "a factor behind W_O": (
        {"out": lambda a, mixed, x, ids: a.o_proj(mixed) * (1 + (x.shape[1] > 16))},
        f"layers.0.attn does not give on what {OUT} makes",
    ),
    "a factor in place": ({"out": doubled_in_place}, f"layers.0.attn does not give on what {OUT} makes"),
    "a factor before W_O": (
        {"out": lambda a, mixed, x, ids: a.o_proj(mixed * (1 + (x.shape[1] > 16)))},
        f"weights times v are not what enters {OUT}",
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_laws_that_held_for_few_tokens(name):
    changes, known = LONG[name]
    model = Fooling(**changes)
    model.attention.other = nn.Linear(WIDTH, WIDTH)
    one = load(model, inputs=fooling.ids())
    one.read(fooling.ids(16))
    refused(one, said(model), known, fooling.ids(17))


def test_a_factor_for_one_word_alone():
    """Only what is read is checked: a text without that word is read as it is computed."""
    model, common = Fooling(out=rare_words), {"input_ids": torch.arange(7)[None] + 1}
    one = load(model, inputs=common)
    one.read(common)
    rare = {"input_ids": torch.tensor([[1, 2, 39, 3]])}
    refused(one, said(model), f"layers.0.attn does not give on what {OUT} makes", rare)
    with pytest.raises(ModelError, match="at position 2 of row 0"):
        one.read(rare)


def test_the_scale_is_that_of_the_call():
    _, one = loaded(scale=lambda length: 0.5 if length <= 16 else 0.25)
    assert one.read(fooling.ids(9)).traces[0].scale == 0.5
    long = one.read(fooling.ids(20)).traces[0]
    assert long.scale == 0.25
    weights = torch.softmax(0.25 * long.q @ long.k.transpose(2, 3), -1)
    assert torch.allclose(weights, long.weights, atol=1e-6)  # float32


class Swapped(Fooling):
    """Layers that are used in another order for long texts."""

    def forward(self, input_ids):
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for layer in self.layers if input_ids.shape[1] <= 16 else reversed(self.layers):
            x = layer(x, input_ids)
        return self.head(x)


def test_calls_are_matched_by_module_as_well_as_by_order():
    one = load(Swapped(), inputs=fooling.ids())
    with pytest.raises(ModelError) as error:
        one.read(fooling.ids(20))
    assert error.value.problem == "Attention call 0 of Swapped, counted from 0, was made by 'layers.1.attn'."
    assert error.value.reason == "On loading it was made by 'layers.0.attn'."


def test_half_precision_is_no_change():
    ids = fooling.ids(30, 3)
    for kind in (torch.bfloat16, torch.float16, torch.float64):
        one = load(tinyhf.llama().to(kind))
        assert len(one.read(ids).traces) == len(one.projections()) == 2


def test_a_callers_cache_is_read_once_and_stays_as_it_was():
    model = tinyhf.llama()
    one = load(model, tinyhf.tokenizer(False))
    ids = torch.arange(7, 16)[None]
    with torch.no_grad():
        cache = model(ids[:, :8], use_cache=True).past_key_values
        answer = model(ids).logits[:, -1]
    given = {"input_ids": ids[:, 8:], "past_key_values": cache}
    for _ in range(2):
        reading = one.read(given)
        assert [trace.k.shape[2] for trace in reading.traces] == [9, 9]
        assert [trace.q.shape[2] for trace in reading.traces] == [1, 1]
        assert cache.get_seq_length() == 8
    same = {address: lambda parts: parts for address in one.addresses}
    edited = one.predict(given, same).logits[:, -1]
    assert (edited - answer).abs().max() <= 1e-5 * answer.abs().max()  # float32, with a cache and without
    assert cache.get_seq_length() == 8


def test_a_model_is_run_once_to_be_read(monkeypatch):
    one = load(tinyhf.bert(), tinyhf.tokenizer())
    passes = []
    handle = one.model.register_forward_pre_hook(lambda _m, _a: passes.append(1))
    one.read({"input_ids": torch.arange(7, 12)[None]})
    one.read("w1 w2 w3")
    handle.remove()
    assert len(passes) == 2


def test_scoring_keeps_no_calls():
    one = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    kept, edits = [], Edits({0: lambda parts: Parts(parts.q, parts.k, 0 * parts.v)})
    for call in run_forward(one._with_proof, {"input_ids": torch.arange(7, 12)[None]}, edits)[0]:
        kept += [call.q, call.k, call.v, call.output, call.weights]
    assert all(t is None or t.is_meta for t in kept)


def test_xlnet_is_read():
    """Its maps are parameters without a module; the block around is met there."""
    one = load(zoo.build("xlnet"))
    reading = one.read({"input_ids": torch.arange(10, 20).view(2, 5)})
    for trace in reading.traces:
        assert trace.block is not None
        assert trace.block.kind == "post"
        assert trace.w_v is not None
        made = torch.einsum("btd,hde->bhte", trace.block.residual, trace.w_v)
        assert torch.allclose(made, trace.v, atol=1e-4)  # float32, numbers of order ten
    with torch.no_grad():
        one.model.get_parameter("transformer.layer.1.rel_attn.v").data.mul_(1.5)
    refused(one, said(one.model, "Layer 2"), "transformer.layer.1.rel_attn.v makes is not x Wᵀ + b", fooling.ids(9))


def test_a_bert_whose_output_is_doubled_by_a_hook():
    model = tinyhf.bert()
    one = load(model, tinyhf.tokenizer())
    double: Any = lambda _m, _a, out: 2 * out  # noqa: E731
    handle = model.get_submodule(DENSE).register_forward_hook(double)
    with pytest.raises(ModelError, match=f"what {DENSE} makes is not"):
        one.read("w1 w2 w3")
    handle.remove()
    assert Address("plain", 1) in {trace.address for trace in one.read("w1 w2 w3").traces}
