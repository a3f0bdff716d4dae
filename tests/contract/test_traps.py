"""The twelve traps of reading attention in transformers 5: each was measured, and each is a test."""

import warnings
from typing import Any

import pytest
import torch
from tests import zoo
from torch import nn
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel

from trisect.core.errors import ModelError
from trisect.hf.batches import first_tensor
from trisect.hf.hooks.calls import Edits
from trisect.hf.hooks.interface_hook import record_interface
from trisect.hf.hooks.product_hook import record_products
from trisect.hf.verify.examples import example_inputs
from trisect.hf.verify.proof import prove


def read(model: Any, inputs: Any, hook: Any = record_interface) -> tuple[Any, list[Any]]:
    with torch.no_grad(), hook(model, Edits()) as calls:
        answer = first_tensor(model(**inputs))
    return answer, list(calls)


def plain(model, inputs):
    with torch.no_grad():
        return first_tensor(model(**inputs))


def test_1_the_mask_stays_the_models_own():
    """A causal model read with its mask lost would answer as if it saw the future, and would not complain."""
    for name in ("gpt2", "llama", "mistral", "t5"):
        model = zoo.build(name)
        inputs = example_inputs(name, model)
        answer, calls = read(model, inputs)
        assert (answer - plain(model, inputs)).abs().max() < 1e-5 * answer.abs().max()
        for call in calls:
            if call.weights.shape[2] == call.weights.shape[3] and not call.module.startswith("encoder"):
                assert call.weights.triu(1).abs().max() == 0


def test_2_weights_come_where_output_attentions_gives_none():
    model = zoo.build("bert")
    assert model.config._attn_implementation == "sdpa"
    inputs = example_inputs("bert", model)
    with torch.no_grad():
        assert not model(**inputs, output_attentions=True).attentions
    _, calls = read(model, inputs)
    assert [c.weights.shape for c in calls] == [(2, 4, 7, 7)] * 2
    assert model.config._attn_implementation == "sdpa"


def test_3_a_model_without_the_interface_is_seen_to_have_none():
    """Setting an attention function on it only logs; the number of calls tells, and the other hook reads it."""
    model = zoo.build("gptj")
    _, calls = read(model, example_inputs("gptj", model))
    assert calls == []
    proof = prove("gptj", model)
    assert proof.words == "product"
    assert len(proof.weights) == 2


def test_4_gpt2_with_upcast_attention_goes_round_the_interface():
    config = GPT2Config(**zoo.NAMED_N, reorder_and_upcast_attn=True)
    model = zoo.sharpen(GPT2LMHeadModel(config))
    model.set_attn_implementation("eager")
    assert read(model, example_inputs("gpt2", model))[1] == []
    proof = prove("gpt2", model)
    assert proof.refusal is None
    assert proof.words == "product"
    assert [r["verdict"] for r in proof.rows()] == ["verified"] * 2


def test_5_sinks_half_precision_and_dropout():
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


def test_6_gradient_checkpointing_is_recorded_once():
    """The layers are computed again in the backward pass, which is not a forward pass."""
    model = zoo.build("llama").train()
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # renamed between 5.1 and 5.23
        model.gradient_checkpointing_enable()
    inputs = example_inputs("llama", model)
    with record_products(model) as calls:
        model(**inputs, labels=inputs["input_ids"], use_cache=False).loss.backward()
    assert len(calls) == 2
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


def test_7_hybrid_models_attend_in_few_layers():
    """Addresses come from the modules: the layers of Jamba that do not attend have none."""
    proof = prove("jamba", zoo.build("jamba"))
    assert [str(a) for a in proof.addresses] == ["layer 2"]
    assert proof.shape.layers("plain") == (2,)


def test_8_one_module_for_all_layers():
    """ALBERT's layers share a module: calls are distinguished by their order."""
    model = zoo.build("albert")
    proof = prove("albert", model)
    assert len({f.module for f in proof.weights}) == 1
    assert [str(a) for a in proof.addresses] == ["layer 1", "layer 2"]
    assert "Layers 1–2 share one set of weights." in proof.notes()
    _, calls = read(model, example_inputs("albert", model))
    assert [c.order for c in calls] == [0, 1]
    assert not torch.equal(calls[0].q, calls[1].q)


def test_9_longt5s_encoder_is_not_forgotten():
    """The interface sees its decoder only; the proof sees that, and takes the hook that sees all."""
    model = zoo.build("longt5")
    _, calls = read(model, example_inputs("longt5", model))
    assert len(calls) == 4
    proof = prove("longt5", model)
    assert proof.shape.stacks == ("enc", "dec", "cross")
    assert proof.words == "product"


def test_10_models_that_refuse_sdpa_are_read():
    for name in ("gemma2", "gpt_oss", "switch"):
        model = zoo.build(name)
        assert model.config._attn_implementation == "eager"
        assert prove(name, model).refusal is None


def test_11_a_slice_of_a_fused_matrix_is_found_and_can_be_kept():
    """Weight decay moves a slice whose gradient is masked; writing its rows back after the step keeps it."""
    model = zoo.build("gpt2").train()
    proof = prove("gpt2", model.eval())
    origin = proof.weights[0].projections.origins["k"]
    assert origin.transposed
    assert origin.rows is not None
    weight = model.get_parameter(origin.parameter or "")
    rows, before = origin.rows.flatten(), weight.detach().clone()
    assert rows.tolist() == list(range(zoo.WIDTH, 2 * zoo.WIDTH))
    inputs = example_inputs("gpt2", model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)

    def mask(grad):
        grad = grad.clone()
        grad[:, rows] = 0
        return grad

    handle = weight.register_hook(mask)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    optimizer.step()
    handle.remove()
    assert (weight - before)[:, rows].abs().max() > 0
    with torch.no_grad():
        weight[:, rows] = before[:, rows]
    others = [i for i in range(3 * zoo.WIDTH) if i not in set(rows.tolist())]
    assert torch.equal(weight[:, rows], before[:, rows])
    assert not torch.equal(weight[:, others], before[:, others])


def test_12_the_order_inside_a_fused_matrix_is_found():
    """CodeGen has q, v, k; GPT-NeoX and BLOOM a head's q, k, v side by side; thirds would be wrong, and say nothing."""
    starts = {}
    for name in ("codegen", "gpt_neox", "bloom", "gpt2"):
        found = prove(name, zoo.build(name)).weights[0].projections
        starts[name] = [found.origins[n].rows[:2, 0].tolist() for n in "qkv"]  # type: ignore[index]
    assert starts["gpt_neox"] == starts["bloom"] == [[0, 24], [8, 32], [16, 40]]
    assert starts["gpt2"] == [[0, 8], [32, 40], [64, 72]]
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


def test_a_module_of_anyones_is_read_with_an_example_of_its_inputs():
    """torch's own encoder computes its attention in one piece unless it is asked not to; without inputs nothing is known."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(layer).eval()
    proof = prove("mine", model, {"input": torch.randn(2, 5, 16)})
    assert proof.refusal is None
    assert [f.module for f in proof.weights] == ["0.self_attn"]
    with pytest.raises(ModelError, match=r"load\(model, inputs={\.\.\.}\), of input"):
        prove("mine", model)
