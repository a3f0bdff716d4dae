"""Traps of values: NaN at positions that are real, bare parameters changed without a word, and outputs written over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import tinyhf, zoo
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

from trisect.core.errors import ModelError
from trisect.hf.load import load


def spoil(model: nn.Module, module: str, row: int, position: int) -> None:
    """Make one position of what a module gives no number, from now on."""

    def hook(_module: nn.Module, _args: object, out: torch.Tensor) -> torch.Tensor:
        made = out.clone()
        made[row, position] = torch.nan
        return made

    model.get_submodule(module).register_forward_hook(hook)


@pytest.mark.parametrize(
    ("part", "layer"),
    [("layers.0.self_attn.q_proj", "Layer 1"), ("layers.1.self_attn.v_proj", "Layer 2"), ("layers.0.mlp", "Layer 2")],
)
def test_a_real_position_that_is_no_number_is_refused(part, layer):
    model = zoo.build("llama")
    subject = load(model, tokenizer=tinyhf.tokenizer())
    spoil(model, f"model.{part}", 0, 1)
    with pytest.raises(ModelError) as caught:
        subject.read("w1 w2 w3 w4")
    assert caught.value.problem == f"{layer} of LlamaForCausalLM gives no numbers."
    assert caught.value.reason == "In this read there is NaN or infinity at position 1 of row 0, which is no padding."
    assert caught.value.todo.startswith("Read it in a wider precision")


def test_padding_that_is_no_number_is_read_and_only_where_the_mask_has_it():
    """Iff: the same position is refused as soon as the mask says that it is real. In the last layer, where nothing attends to it."""
    model = zoo.build("bert")
    subject = load(model, tokenizer=tinyhf.tokenizer())
    spoil(model, "bert.encoder.layer.1.attention.self.query", 1, 3)
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    reading = subject.read({"input_ids": ids, "attention_mask": mask})
    assert bool(reading.layer(2).q[1, :, 3].isnan().all())
    with pytest.raises(ModelError, match="position 3 of row 1"):
        subject.read({"input_ids": ids, "attention_mask": torch.ones_like(mask)})
    with pytest.raises(ModelError, match="which is no padding"):
        subject.read({"input_ids": ids})


def test_a_bare_parameter_that_changed_is_seen_without_a_read():
    """XLNet multiplies by parameters that belong to no module of their own, which nothing can be fed to."""
    for part in ("q", "o"):
        model = zoo.build("xlnet")
        subject = load(model, tokenizer=tinyhf.tokenizer())
        assert len(subject.projections()) == 2
        model.get_parameter(f"transformer.layer.1.rel_attn.{part}").data[0, 0] *= 1.5
        with pytest.raises(ModelError) as caught:
            subject.projections()
        assert caught.value.problem == "Layer 2 of XLNetLMHeadModel does not compute what was found on loading."
        assert caught.value.reason == f"In this read transformer.layer.1.rel_attn.{part} is not what it was on loading."


def test_rows_of_a_parameter_of_pytorchs_own_attention_are_seen_without_a_read():
    torch.manual_seed(0)
    module = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    subject = load(module, inputs={"src": torch.randn(2, 5, 16)})
    assert len(subject.projections()) == 1
    module.self_attn.in_proj_weight.data[20, 3] += 0.5
    with pytest.raises(ModelError, match="in_proj_weight is not what it was on loading"):
        subject.projections()


def test_an_output_that_is_written_over_is_not_what_the_weights_made(monkeypatch):
    """Weights of which no value sees the difference are multiplied, by nothing; the true output is written where that was."""
    own = modeling_llama.eager_attention_forward

    def fake(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
        output, weights = own(module, q, k, v, mask, **named)
        repeated = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        spanned = torch.cat([repeated, torch.ones_like(repeated[..., :1])], -1)
        free = torch.eye(k.shape[2]) - spanned @ torch.linalg.pinv(spanned)
        others = weights + 0.05 * torch.randn(weights.shape) @ free
        made = others @ torch.zeros_like(repeated)
        return made.transpose(1, 2).copy_(output), others

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", fake)
    with pytest.raises(ModelError, match="not those that it multiplies the values by"):
        load(tinyhf.llama(), inputs={"input_ids": torch.arange(6, 30)[None]})
