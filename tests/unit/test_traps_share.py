"""Traps of parts: what is read of a layer is some of its attention, its positions are no axis, or its rows are of unlike length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import fooling, zoo
from tests.fooling import HEADS, WIDTH, Fooling, OwnBackward
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.hf.load import Pretrained, load

Sum = Callable[[Any, Tensor, Tensor], Tensor]
SMALL = 0.05


class TwoAttentions(fooling.Attention):
    """A main one whose softmax is spelt with logsumexp, which no hook looks for, and another beside it that all see."""

    adds: Sum

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        scores = q @ k.transpose(2, 3) * 0.5
        main = torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ v
        beside = torch.softmax(k @ q.transpose(2, 3) * 0.5, -1) @ v
        return self.adds(*(t.transpose(1, 2).flatten(2) for t in (main, beside)))


SUMS: dict[str, tuple[Sum, float]] = {
    "before W_O": (lambda a, main, beside: a.o_proj(main + SMALL * beside), SMALL / (1 + SMALL)),
    "behind W_O": (lambda a, main, beside: a.o_proj(main) + SMALL * a.o_proj(beside), SMALL / (1 + SMALL)),
    "behind a W_O of its own": (lambda a, main, beside: a.v_proj(main) + a.o_proj(beside), 0.5),
    "where its gradient is another": (
        lambda a, main, beside: OwnBackward.apply(a.o_proj(beside)) + a.v_proj(main),
        0.6,
    ),
    "where the main one has no gradient": (lambda a, main, beside: a.o_proj(beside) + a.o_proj(main).detach(), 0.5),
}


def two(adds: Sum) -> Pretrained:
    model: Any = Fooling()
    model.layers[0].attn.__class__, model.layers[0].attn.adds = TwoAttentions, adds.__get__(model.layers[0].attn)
    return load(model, inputs=fooling.ids())


@pytest.mark.parametrize("name", SUMS)
def test_a_part_of_a_layers_attention_is_called_that_with_its_share(name):
    adds, share = SUMS[name]
    subject = two(adds)
    first, second = subject.proof.weights
    assert first.share == pytest.approx(share, rel=0.25)  # both weigh the same values
    assert second.share == 1
    words = f"part of the layer's output, {100 * first.share:.2g} %"
    assert f"Layer 1: {words}." in subject.notes
    assert subject.proof.rows()[0]["verdict"].endswith(words)
    assert subject.read(fooling.ids(9)).notes == subject.notes


@pytest.mark.parametrize(
    "out",
    [
        lambda a, o, x, ids: x + a.o_proj(o),
        lambda a, o, x, ids: torch.sigmoid(x) * a.o_proj(o),
        lambda a, o, x, ids: OwnBackward.apply(a.o_proj(o)),
    ],
)
def test_what_is_made_of_each_position_alone_is_no_other_attention(out):
    assert [found.share for found in load(Fooling(out=out), inputs=fooling.ids()).proof.weights] == [1, 1]


def test_what_one_position_gives_one_other_beside_attention_is_no_attention():
    first_to_last = lambda a, o, x, ids: a.o_proj(o) + F.pad(a.v_proj(x[:, :1]), (0, 0, x.shape[1] - 1, 0))  # noqa: E731
    first, second = load(Fooling(out=first_to_last), inputs=fooling.ids()).proof.weights
    assert 0.1 < first.share < 0.9
    assert second.share == 1


def test_a_layer_with_convolutions_beside_its_heads():
    """ConvBERT's: what enters W_O is made of both."""
    (note, *_) = load(zoo.build("convbert")).notes
    assert "part of the layer's output, " in note


class Jagged(Fooling):
    """Attends to rows of unlike length as one nested tensor."""

    def forward(self, input_ids: Tensor) -> Tensor:
        rows: Any = torch.nested.nested_tensor([self.words(row) for row in input_ids], layout=torch.jagged)
        for layer in self.layers:
            own: Any = layer.attn
            parts = (p(rows).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (own.q_proj, own.k_proj, own.v_proj))
            made = F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(len(input_ids), -1, WIDTH)
            rows = rows + own.o_proj(made)
        return self.head(rows).to_padded_tensor(0.0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_name():
    with pytest.raises(ModelError, match="nested \\(jagged\\) tensors: pad them"):
        load(Jagged(), inputs=fooling.ids())
    subject = load(Fooling(), inputs=fooling.ids())
    for layout in (torch.jagged, torch.strided):
        rows = torch.nested.nested_tensor([torch.arange(5), torch.arange(3)], layout=layout)
        with pytest.raises(ModelError, match="The input 'input_ids' is a nested tensor"):
            subject.read({"input_ids": rows})
        with pytest.raises(ModelError, match="The input 'input_ids' is a nested tensor"):
            load(Fooling(), inputs={"input_ids": rows})
