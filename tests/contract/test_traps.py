"""Traps of reading attention beside those that the zoo has; projections right at the first look; what changes as it is read."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import fooling, tinyhf, zoo
from tests.fooling import HEADS, WIDTH, Fooling
from torch import Tensor, nn
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel

from trisect.core.errors import ModelError
from trisect.core.subject import QKV
from trisect.hf.batches import first_tensor
from trisect.hf.forward import run_forward
from trisect.hf.hooks.calls import Edits
from trisect.hf.hooks.interface_hook import record_interface
from trisect.hf.hooks.product_hook import record_products
from trisect.hf.load import load
from trisect.hf.verify.examples import example_inputs
from trisect.hf.verify.proof import Proof, prove


def read(model: Any, inputs: Any, hook: Any = record_interface) -> tuple[Any, list[Any]]:
    with torch.no_grad(), hook(model, Edits()) as calls:
        answer = first_tensor(model(**inputs))
    return answer, list(calls)


def plain(model, inputs):
    with torch.no_grad():
        return first_tensor(model(**inputs))


def test_gpt2_with_upcast_attention_goes_round_the_interface():
    config = GPT2Config(vocab_size=120, n_embd=32, n_layer=2, n_head=4, reorder_and_upcast_attn=True)
    model = zoo.sharpen(GPT2LMHeadModel(config))
    model.set_attn_implementation("eager")
    assert read(model, example_inputs("gpt2", model))[1] == []
    proof = prove("gpt2", model)
    assert proof.refusal is None
    assert proof.words == "product"
    assert [r["verdict"] for r in proof.rows()] == ["verified"] * 2


def test_sinks_half_precision_and_dropout():
    """Rows sum to less with sinks, roughly to one in bfloat16, and to anything after dropout, which is refused."""
    proof = prove("gpt_oss", zoo.build("gpt_oss"))
    assert proof.refusal is None
    assert all(law.sink and law.rows > 0.01 for law in proof.laws)
    proof = prove("llama", zoo.build("llama").bfloat16())
    assert proof.refusal is None
    assert all(not law.sink for law in proof.laws)
    assert any(law.rows > 1e-4 for law in proof.laws)
    model = zoo.build("llama", attention_dropout=0.5).train()
    torch.manual_seed(0)
    _, calls = read(model, example_inputs("llama", model))
    assert (calls[0].weights.sum(-1) - 1).abs().max() > 0.1


def test_gradient_checkpointing_is_recorded_once():
    """The layers are computed again in the backward pass, which is not a forward pass."""
    model = zoo.build("llama").train()
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # renamed between 5.1 and 5.23
        model.gradient_checkpointing_enable()
    inputs = example_inputs("llama", model)
    with record_products(model) as calls:
        model(**inputs, labels=inputs["input_ids"], use_cache=False).loss.backward()
    assert len(calls) == 2
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


def test_a_slice_of_a_fused_matrix_and_the_order_inside_it_are_found():
    """CodeGen has q, v, k; GPT-NeoX and BLOOM a head's q, k, v side by side; thirds would be wrong, and say nothing."""
    starts = {}
    for name in ("codegen", "gpt_neox", "bloom", "gpt2"):
        found: Any = prove(name, zoo.build(name)).weights[0].projections
        starts[name] = [found.origins[n].rows[:2, 0].tolist() for n in "qkv"]
    assert starts["gpt_neox"] == starts["bloom"] == [[0, 24], [8, 32], [16, 40]]
    assert starts["gpt2"] == [[0, 8], [32, 40], [64, 72]]
    assert found.origins["k"].transposed
    assert found.origins["k"].rows.flatten().tolist() == list(range(zoo.WIDTH, 2 * zoo.WIDTH))
    assert starts["codegen"] == [[0, 24], [16, 40], [8, 32]]
    model = zoo.build("gpt_neox")
    _, calls = read(model, example_inputs("gpt_neox", model))
    fused = model.get_submodule("gpt_neox.layers.0.attention.query_key_value")
    caught = []
    handle = fused.register_forward_hook(lambda _m, _a, out: caught.append(out))
    plain(model, example_inputs("gpt_neox", model))
    handle.remove()
    thirds = caught[0].chunk(3, -1)[2].unflatten(-1, (4, 8)).transpose(1, 2)
    assert (thirds - calls[0].v).abs().max() > 1


def test_everything_is_restored_also_after_an_error():
    model = zoo.build("t5")
    inputs = example_inputs("t5", model)
    before = AttentionInterface.get_interface, model.config._attn_implementation
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    answer = plain(model, inputs)
    for hook in (record_interface, record_products):
        try:
            with hook(model, Edits()):
                model(**{n: t[:, :0] for n, t in inputs.items()}, labels="nothing")
        except (AttributeError, RuntimeError, ValueError, TypeError, IndexError):
            pass
        assert (AttentionInterface.get_interface, model.config._attn_implementation) == before
        assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == hooks
        assert torch.equal(plain(model, inputs), answer)
        assert len(read(model, inputs, hook)[1]) == 6


def test_generation_is_read_token_by_token():
    """With a cache, keys and values grow while one query is asked at a time."""
    model = zoo.build("llama")
    ids = example_inputs("llama", model)["input_ids"]
    with torch.no_grad(), record_products(model) as calls:
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
    lengths = [(c.q.shape[2], c.k.shape[2]) for c in calls[::2]]
    assert lengths == [(7, 7), (1, 8), (1, 9)]
    assert [c.order for c in calls] == [0, 1] * 3


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


LONG = {  # changes in texts of more than 16 tokens
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


def test_a_model_is_run_once_to_be_read():
    one = load(tinyhf.bert(), tinyhf.tokenizer())
    passes = []
    handle = one.model.register_forward_pre_hook(lambda _m, _a: passes.append(1))
    one.read({"input_ids": torch.arange(7, 12)[None]})
    one.read("w1 w2 w3")
    handle.remove()
    assert len(passes) == 2


def test_scoring_keeps_no_calls():
    one = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    kept, edits = [], Edits({0: lambda parts: QKV(parts.q, parts.k, 0 * parts.v)})
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


def origins(model, length=7):
    proof = prove("fooling", model, fooling.ids(length))
    assert proof.refusal is None
    return proof.weights[0].projections


def with_parts(model: Any, **made: nn.Module) -> Any:
    for name, module in made.items():
        setattr(model.attention, name, module)
    return model


def test_a_map_that_the_output_enters_twice_is_not_w_o():
    """o(m) + o(relu(m)): by its name there is one map."""

    def twice(attention, mixed, x, ids):
        return attention.o_proj(mixed) + attention.o_proj(torch.relu(mixed))

    found = origins(Fooling(out=twice))
    assert found.w_o is None
    assert "2 times" in found.origins["o"].words


def test_a_norm_of_what_the_map_makes_alone_excuses_no_change():
    """o(m) · σ(LN(o(m))), and LN(o(m)) without anything besides: neither is LN(x + attention(x))."""

    def gated(attention, mixed, x, ids):
        made = attention.o_proj(mixed)
        return made * torch.sigmoid(attention.norm(made))

    def normed(attention, mixed, x, ids):
        return attention.norm(attention.o_proj(mixed))

    for change in (gated, normed):
        found = origins(with_parts(Fooling(out=change), norm=nn.LayerNorm(WIDTH)))
        assert found.w_o is None, change
        assert "changed before" in found.origins["o"].words


def test_of_several_tensors_that_a_module_gives_on_the_one_with_the_maps_result_is_looked_at():
    """The weights come first; what comes second is twice what W_O makes."""

    class Pair(nn.Module):
        def __init__(self, attention: Any, factor: float) -> None:
            super().__init__()
            self.o_proj, self.inner, self.factor = attention.o_proj, attention, factor

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = self.inner(x, ids)
            return made.mean(), self.factor * self.o_proj(made)

    class Second(nn.Module):
        def __init__(self, pair: nn.Module) -> None:
            super().__init__()
            self.pair = pair

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return self.pair(x, ids)[1]

    for factor, how in ((1.0, "rows"), (2.0, "mixed")):
        model: Any = Fooling(out=lambda attention, mixed, x, ids: mixed)
        model.layers[0].attn = Second(Pair(model.attention, factor))
        assert origins(model).origins["o"].how == how


def low_rank_first(attention, mixed, x, ids):
    """A LoRA around o whose low-rank half is called before it."""
    low = attention.up(attention.down(mixed))
    return attention.o_proj(mixed) + low


def auxiliary_head(attention, mixed, x, ids):
    attention.seen = attention.aux(mixed)
    return attention.o_proj(mixed)


def by_token_type(attention, mixed, x, ids):
    return torch.where((ids < 20)[..., None], attention.o_proj(mixed), attention.other(mixed))


DOWN, UP, SQUARE = (WIDTH, 4), (4, WIDTH), (WIDTH, WIDTH)
SEVERAL: dict[str, tuple[Any, dict[str, tuple[int, int]]]] = {
    "low rank first": (low_rank_first, {"down": DOWN, "up": UP}),
    "low rank after": (lambda a, mixed, x, ids: a.o_proj(mixed) + a.up(a.down(mixed)), {"down": DOWN, "up": UP}),
    "gate": (lambda a, mixed, x, ids: a.o_proj(mixed) * torch.sigmoid(a.gate(mixed)), {"gate": SQUARE}),
    "auxiliary head": (auxiliary_head, {"aux": SQUARE}),
    "by token type": (by_token_type, {"other": SQUARE}),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_an_output_that_enters_several_maps_has_no_one_w_o(name):
    out, shapes = SEVERAL[name]
    made = dict(zip(shapes, fooling.parts(*shapes.values()), strict=True))
    found = origins(with_parts(Fooling(out=out), **made))
    first = next(iter(shapes))
    assert found.w_o is None
    assert found.origins["o"].how == "mixed"
    for name in ("layers.0.attn.o_proj", f"layers.0.attn.{first}"):
        assert name in found.origins["o"].words


def test_an_output_that_is_also_added_as_it_is():
    found = origins(Fooling(out=lambda a, mixed, x, ids: a.o_proj(mixed) + mixed))
    assert found.w_o is None
    words = "the output enters layers.0.attn.o_proj, layers.0.up, layers.1.attn.q_proj and 4 more"
    assert words in found.origins["o"].words


def test_a_factor_after_w_o():
    model = Fooling(out=lambda a, mixed, x, ids: a.o_proj(mixed) * torch.sigmoid(a.gate(x)))
    found = origins(with_parts(model, gate=fooling.parts(SQUARE)[0]))
    assert found.w_o is None
    words = "the result of layers.0.attn.o_proj is changed before layers.0.attn returns it"
    assert found.origins["o"].words == words


def convolve(k):
    """Primer: a depthwise convolution over time, of width three."""
    kernel = torch.tensor([0.5, 0.3, 0.2])
    padded = nn.functional.pad(k, (0, 0, 2, 0))
    return sum(w * padded[:, 2 - i : padded.shape[1] - i] for i, w in enumerate(kernel))


def shift(k):
    return torch.cat([k[:, :1], k[:, :-1]], 1)


def placed(q, first=0.0):
    places = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3))
    places[0] *= first
    return q + places[: q.shape[1]]


def by_log(q):
    return q * (1 + torch.arange(q.shape[1])).add(torch.e - 1).log()[:, None]


TOGETHER = "at position 1 {} is computed from positions 0 and 1 of"
CHANGES: dict[str, tuple[Any, str]] = {
    "convolve": (convolve, TOGETHER),
    "cumulated": (lambda q: q.cumsum(1), TOGETHER),
    "placed": (placed, "at position 1 {} is more than the result of"),
    "placed throughout": (lambda q: placed(q, 1.0), "at position 1 {} is more than the result of"),
    "by log": (by_log, "at position 1 {} is 1.31 times the result of"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("part", "qkv")
def test_what_depends_on_the_position_is_named(name, part):
    change, words = CHANGES[name]
    found = origins(Fooling(**{part: change}))
    origin = found.origins[part]
    assert getattr(found, f"w_{part}") is None
    assert origin.how != "rows"
    if part != "v":
        assert origin.how == "mixed"
        assert words.format(part) in origin.words
        assert f"layers.0.attn.{part}_proj" in origin.words
        assert [found.origins[n].how for n in "qkvo" if n != part] == ["rows"] * 3


def test_a_shift_before_the_projection_is_part_of_what_enters_it():
    """W_Q is right for what it is given; the block around, which is given to others, is not claimed."""
    proof = prove("fooling", Fooling(inside=shift), fooling.ids())
    found = proof.weights[0]
    assert [found.projections.origins[n].how for n in "qkvo"] == ["rows"] * 4
    assert found.around is None


def test_what_depends_on_the_position_is_named_where_models_are_checked():
    one = load(Fooling(q=by_log), inputs=fooling.ids())
    assert "Layer 1, q: at position 1 q is 1.31 times the result of" in one.notes[0]
    assert [row["verdict"] for row in one.proof.rows()] == ["verified, q mixed", "verified"]
    assert one.notes[0] in one.read(fooling.ids(9)).notes
    assert one.projections()[0].w_q is None


@pytest.mark.parametrize("between", [4, WIDTH])
def test_of_maps_one_behind_the_other_neither_is_w_o(between):
    """o(b(a(output))): a alone, of low rank or square, would be the wrong matrix."""
    model: Any = zoo.build("llama")
    for layer in model.model.layers:
        own = layer.self_attn.o_proj
        first, second = nn.Linear(own.in_features, between, False), nn.Linear(between, own.in_features, False)
        layer.self_attn.o_proj = nn.Sequential(first, second, own)
    found = load(zoo.sharpen(model)).proof.weights[0].projections
    assert found.w_o is None
    words = "the result of model.layers.0.self_attn.o_proj.0 enters model.layers.0.self_attn.o_proj.1 before"
    assert found.origins["o"].words.startswith(words)


class Chosen(fooling.Attention):
    """Attention of the queries with the largest scores, whose outputs are put back where those queries are: Informer's."""

    count = 99

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        sharpest = (q @ k.transpose(2, 3)).amax(-1).topk(min(self.count, x.shape[1])).indices[..., None]
        chosen = q.gather(2, sharpest.expand(-1, -1, -1, q.shape[-1]))
        made = torch.softmax(chosen @ k.transpose(2, 3), -1) @ v
        return v.mean(2, keepdim=True).expand_as(v).scatter(2, sharpest.expand(-1, -1, -1, v.shape[-1]), made)


def proof_with_first(attention: Callable[[], nn.Module]) -> Proof:
    """The proof of a model whose first layer attends in another way."""
    model: Any = Fooling()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model.layers[0].attn = attention()
    proof = prove("fooling", model.eval(), fooling.ids())
    assert proof.refusal is None
    return proof


@pytest.mark.parametrize("count", [99, 4])
def test_rows_that_are_not_in_the_order_of_positions_are_refused(count, monkeypatch):
    """Weights of queries that are chosen by their scores: row t is no position's that anyone could name."""
    monkeypatch.setattr(Chosen, "count", count)
    proof = proof_with_first(Chosen)
    assert "its rows are not in the order of positions: the result of row " in proof.laws[0].failure
    assert proof.laws[1].failure == ""
    assert [str(a) for a in proof.shape.heads] == [str(proof.addresses[1])]


class Relative(fooling.Attention):
    """Scores and values by distance, from one table for all texts and heads (as VITS has it), beside those of words."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = (nn.Parameter(torch.randn(1, 7, WIDTH // HEADS)) for _ in range(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) + torch.matmul(q, self.keys.transpose(1, 2)), -1)
        made = torch.bmm(weights, v) + torch.matmul(weights, self.values)
        return made.unflatten(0, (-1, HEADS))


def test_a_product_with_one_table_for_all_texts_is_no_product_of_queries_and_keys():
    proof = proof_with_first(Relative)
    assert proof.laws[0].failure == ""
    found = proof.weights[0].projections
    assert [found.origins[n].how for n in "qkvo"] == ["rows", "rows", "rows", "unknown"]
    assert "the output is changed before it enters" in found.origins["o"].words
