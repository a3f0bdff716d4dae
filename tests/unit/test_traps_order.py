"""Traps of order: layers that see their positions or texts in another order than the tokens, and texts that are mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import fooling
from tests.fooling import HEADS, Fooling
from torch import Tensor

from trisect.hf.load import load


class HeadsFirst(fooling.Attention):
    """Heads and texts in one axis, heads first, as some implementations have it."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        q, k, v = (torch.cat(p(x).chunk(HEADS, -1), 0) for p in (self.q_proj, self.k_proj, self.v_proj))
        output = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.5, -1), v)
        return self.o_proj(torch.cat(output.chunk(HEADS, 0), -1))


class OtherTexts(fooling.Attention):
    """Sees the keys and values of the text beside."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        output = torch.softmax(q @ k.roll(1, 0).transpose(2, 3) * 0.5, -1) @ v.roll(1, 0)
        return self.o_proj(output.transpose(1, 2).flatten(2))


class Turned(fooling.Attention):
    """Works on its positions from the last to the first, and puts what it makes back."""

    axis = 1

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return super().forward(x.flip(self.axis), ids).flip(self.axis)


class TurnedTexts(Turned):
    """The same with texts."""

    axis = 0


class Ordered(fooling.Attention):
    """Works on its positions in the order of their lengths."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        order = x.norm(dim=-1).argsort(1)
        return by(super().forward(by(x, order), ids), order.argsort(1))


def by(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order[..., None].expand_as(x))


MIXED = (
    "of one text is made of what layers.1.attn.{}_proj makes of others, as where heads come before texts in one axis"
)
MOVED = "its positions are not those of its tokens: the token at position 1 of row 1 is at position {} there"
LEFT_OUT = {
    HeadsFirst: f"q {MIXED.format('q')}",
    OtherTexts: f"k {MIXED.format('k')}",
    Turned: MOVED.format("5 of row 1"),
    TurnedTexts: MOVED.format("1 of row 0"),
    Ordered: MOVED.format("3 of row 1"),
}


@pytest.mark.parametrize("kind", LEFT_OUT, ids=lambda k: k.__name__)
def test_a_later_layer_whose_rows_are_not_the_texts_and_positions_is_left_out(kind):
    model: Any = Fooling()
    model.layers[1].attn.__class__ = kind
    subject = load(model, inputs=fooling.ids())
    assert subject.notes == (f"Left out, layer 2: {LEFT_OUT[kind]}.",)
    assert [str(trace.address) for trace in subject.read(fooling.ids(9)).traces] == ["layer 1"]
