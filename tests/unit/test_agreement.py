"""A model answers read as it does unread; and what is written over after its use is read as it was used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import fooling, tinyhf
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel

from trisect.core.errors import ModelError
from trisect.hf.files.model_errors import ModelOutOfMemoryError
from trisect.hf.hooks.calls import Call
from trisect.hf.load import load
from trisect.hf.verify import agreement, laws
from trisect.hf.verify.agreement import Agreement, relative_error

LONG = {"input_ids": torch.randint(6, 40, (2, 20), generator=torch.Generator().manual_seed(3))}


def test_answers_are_compared_where_no_padding_stands_and_a_part_at_a_time(monkeypatch):
    draw = torch.Generator().manual_seed(1)
    own = torch.randn(3, 5, 7, generator=draw)
    made = own + 0.1 * torch.randn(3, 5, 7, generator=draw)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1] * 5, [1, 1, 0, 0, 0]])
    kept = mask.bool()
    wanted = float((made - own)[kept].norm() / own[kept].norm())
    assert relative_error(made, own, [mask]) == pytest.approx(wanted, rel=1e-6)
    monkeypatch.setattr(agreement, "AT_ONCE", 10)
    assert relative_error(made, own, [mask]) == pytest.approx(wanted, rel=1e-6)
    assert relative_error(torch.where(kept[..., None], own, 9.0), own, [mask]) == 0
    assert relative_error(own, own, [torch.zeros(3, 5)]) == float("inf")
    assert relative_error(torch.full_like(own, float("nan")), own, []) == float("inf")
    hidden = own.clone()
    hidden[..., 0] = -float("inf")
    assert relative_error(hidden, hidden, []) == 0


@pytest.mark.parametrize(("share", "holds"), [(3.9e-3, True), (4.1e-3, False)])
def test_longer_texts_may_round_four_times_as_much_and_are_compared_once(share, holds):
    passes = []

    class Answering(nn.Module):
        def forward(self, input_ids):
            passes.append(input_ids.shape[1])
            return torch.ones(1, input_ids.shape[1], 3)

    own = Agreement(64, 1e-3)

    def confirm(length):
        part = torch.zeros(1, 1, length, 2)
        call = Call("attention", 0, part, part, part, None, part, 1.0)
        inputs = {"input_ids": torch.ones(1, length, dtype=torch.long)}
        own.confirm("the model", Answering(), inputs, [call], (1 + share) * torch.ones(1, length, 3))

    confirm(64)
    assert passes == []
    if not holds:
        with pytest.raises(ModelError, match="differs while it is read"):
            confirm(65)
        return
    confirm(65)
    confirm(65)
    assert (passes, own.longest) == ([65], 65)


def test_a_padded_batch_says_nothing_of_longer_texts():
    model = tinyhf.gpt2()
    own, passes = model.forward, list[int]()
    subject = load(model)

    def turning(*args: Any, **given: Any) -> Any:
        """Every other answer over more than ten positions is turned round."""
        made = own(*args, **given)
        passes.append(int(given["attention_mask"].sum(1).max()))
        if passes[-1] > 10 and len(passes) % 2:
            made.logits = -made.logits
        return made

    model.forward = turning
    subject.read(LONG | {"attention_mask": torch.tensor([[1] * 5 + [0] * 15] * 2)})
    assert passes == [5]  # no more positions than the example had
    with pytest.raises(ModelError, match="differs while it is read"):
        subject.read(LONG | {"attention_mask": torch.ones(2, 20, dtype=torch.long)})
    assert passes == [5, 20, 20]


def test_memory_that_does_not_suffice_for_the_models_own_answer_is_said(monkeypatch):
    subject = load(tinyhf.gpt2())

    def lacking(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(agreement, "relative_error", lacking)
    with pytest.raises(ModelOutOfMemoryError, match="Running"):
        subject.read(LONG)


def test_what_enters_the_maps_may_be_written_over_before_attention_is_called():
    def change(attention: Any, x: Tensor, ids: Tensor) -> Tensor:
        q, k, v = (p(x) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        x.mul_(1.5)
        q, k, v = (t.unflatten(-1, (fooling.HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = torch.softmax(q @ k.transpose(2, 3) * 0.5, -1) @ v
        return attention.o_proj(mixed.transpose(1, 2).flatten(2))

    model: Any = fooling.Fooling()
    for layer in model.layers:
        layer.attn.forward = lambda x, ids, own=layer.attn: change(own, x.clone(), ids)
    subject = load(model, inputs=fooling.ids(7))
    batch = fooling.ids(30)
    reading = subject.read(batch)
    for trace in reading.traces:
        assert_close(trace.weights.sum(-1), torch.ones_like(trace.weights.sum(-1)))
    assert len(reading.traces) == len(model.layers)


def test_rounding_is_wider_where_products_of_float32_may_be_of_fewer_bits():
    single, double = torch.ones(1), torch.ones(1, dtype=torch.float64)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert laws._rounding(single) == laws.ROUNDED_PRODUCTS
        assert laws._rounding(double) == 1e-5
        torch.set_float32_matmul_precision("highest")
        assert laws._rounding(single) == 1e-4
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_wide_heads_are_read_in_any_precision(kind):
    """Rounding grows with the root of a head's width."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=256, vocab_size=50, n_positions=64))
    subject = load(model.eval().to(kind))
    assert len(subject.read({"input_ids": torch.randint(0, 50, (2, 60))}).traces) == 2
