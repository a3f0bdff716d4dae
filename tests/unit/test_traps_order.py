"""Traps of order: layers that see their positions or texts in another order than the tokens, and texts that are mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import fooling, tinyhf, zoo
from tests.fooling import HEADS, Fooling
from torch import Tensor
from transformers.models.florence2.configuration_florence2 import Florence2VisionConfig
from transformers.models.florence2.modeling_florence2 import Florence2VisionBackbone

from trisect.hf.load import load
from trisect.hf.verify.proof import prove


class HeadsFirst(fooling.Attention):
    """Heads and texts in one axis, heads first, as some implementations have it."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        q, k, v = (torch.cat(p(x).chunk(HEADS, -1), 0) for p in (self.q_proj, self.k_proj, self.v_proj))
        output = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.5, -1), v)
        return self.o_proj(torch.cat(output.chunk(HEADS, 0), -1))


class OtherTexts(fooling.Attention):
    """Sees the keys and values of the text beside."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return super().attend(q, k.roll(1, 0), v.roll(1, 0), x)


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
    "of one text is made of what layers.1.attn.{0}_proj makes of others, as where heads come before texts in one axis"
)
MOVED = "its queries are not at the positions of its tokens: the token at position 1 of row 1 is at position {} there"
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


class Marked(Fooling):
    """Takes only texts that begin with their mark, which in another order they do not."""

    def forward(self, input_ids: Tensor) -> Tensor:
        if not bool(input_ids[:, 0].eq(fooling.ids()["input_ids"][:, 0]).all()):
            raise ValueError("a text begins with its mark")
        return super().forward(input_ids)


def test_positions_are_looked_at_in_a_model_that_takes_its_tokens_in_no_other_order():
    model: Any = Marked()
    assert load(model, inputs=fooling.ids()).notes == ()
    model.layers[1].attn.__class__ = Turned
    assert load(model, inputs=fooling.ids()).notes == (f"Left out, layer 2: {LEFT_OUT[Turned]}.",)


def convolve(t: Tensor) -> Tensor:
    """Primer's depthwise convolution: a position is made of itself and of those before."""
    return t + 0.5 * t.roll(1, -2)


DISPLACED = {"roll": lambda t: t.roll(1, -2), "flip": lambda t: t.flip(-2)}
NAMED = {"q": "queries", "k": "keys", "v": "values"}


class Displaced(fooling.Attention):
    """Some of q, k and v [B H T E] are displaced behind their projections."""

    which, change = "", staticmethod(convolve)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = zip("qkv", super().heads(x), strict=True)
        q, k, v = (self.change(part) if name in self.which else part for name, part in parts)
        return q, k, v


def displaced_at(layer: int, which: str, change: Any) -> Any:
    model: Any = Fooling()
    attention = model.layers[layer].attn
    attention.__class__, attention.which, attention.change = Displaced, which, change
    return model


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("which", ["q", "k", "v", "kv"])
@pytest.mark.parametrize("how", DISPLACED)
def test_queries_keys_and_values_that_are_displaced_behind_their_projections_are_left_out(layer, which, how):
    subject = load(displaced_at(layer, which, DISPLACED[how]), inputs=fooling.ids())
    (note,) = subject.notes
    assert note.startswith(f"Left out, layer {layer + 1}: its {NAMED[which[0]]} are not at the positions of its tokens")
    assert ("at position 2 of row 1" if how == "roll" else "at position 5 of row 1") in note
    assert [str(a) for a in subject.proof.shape.heads] == [f"layer {2 - layer}"]


@pytest.mark.parametrize("which", ["q", "k", "v", "kv"])
@pytest.mark.parametrize("how", [DISPLACED["roll"], lambda t: t[..., [0, 1, 2, 4, 3, 5, 6], :]], ids=["roll", "swap"])
def test_one_head_that_is_displaced_is_enough(which, how):
    change = lambda t: torch.cat([t[:, :1], how(t[:, 1:2]), t[:, 2:]], 1)  # noqa: E731
    subject = load(displaced_at(0, which, change), inputs=fooling.ids())
    (note,) = subject.notes
    assert note.startswith("Left out, layer 1: at position ")
    assert f"{which[0]} is made of other positions in head 2, namely " in note
    assert [str(a) for a in subject.proof.shape.heads] == ["layer 2"]


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_what_a_convolution_makes_is_at_its_own_position(which):
    subject = load(displaced_at(0, which, convolve), inputs=fooling.ids())
    (note,) = subject.notes
    assert note == f"Layer 1, {which}: {which} is put together from 2 positions of layers.0.attn.{which}_proj."
    assert len(subject.read(fooling.ids(9)).traces) == 2


def displace(module: Any, change: Any) -> None:
    """What a map makes [B T D] is displaced along T."""
    module.register_forward_hook(lambda _m, _a, out: change(out))


@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize("how", DISPLACED)
def test_displaced_keys_and_values_are_left_out_where_no_tokens_say_so(part, how):
    """Patches of an image, an encoder's keys and values in cross-attention, and a decoder's own."""
    vit = zoo.build("vit")
    layers = [m for n, m in vit.named_modules() if n.endswith({"k": ("k_proj", "key"), "v": ("v_proj", "value")}[part])]
    displace(layers[1], DISPLACED[how])
    assert failures(vit) == {"layer 2": f"its {NAMED[part]} are displaced"}
    for kind, stack in (("encoder_attn", "cross"), ("self_attn", "dec")):
        bart = zoo.build("bart")
        displace(getattr(getattr(bart.model.decoder.layers[0], kind), f"{part}_proj"), DISPLACED[how])
        assert failures(bart) == {f"{stack} layer 1": f"its {NAMED[part]} are not at the positions of its tokens"}


class OverUnits(fooling.Attention):
    """XCiT's: units attend to units, over positions."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return super().attend(q.mT, k.mT, v.mT, x).mT


class OverNormedUnits(OverUnits):
    """XCiT's as it is, where the norm of a unit is made of all positions."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return super().attend(F.normalize(q, dim=2), F.normalize(k, dim=2), v, x)


class OverTexts(fooling.Attention):
    """Texts and positions are swapped, so that the texts at a position attend to each other."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        q, k, v = (t.transpose(0, 2) for t in (q, k, v))
        return super().attend(q, k, v, x).transpose(0, 2)


class OverHeads(fooling.Attention):
    """Heads and positions are not swapped, so that the heads of a position attend to each other."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return super().attend(q, k, v, x).transpose(1, 2)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("length", [HEADS, 7])  # as many positions as a head has units, and as there are heads
@pytest.mark.parametrize("kind", [OverUnits, OverNormedUnits, OverHeads, OverTexts])
def test_attention_over_units_heads_or_texts_is_none_over_positions(kind, length, layer):
    model: Any = Fooling()
    model.layers[layer].attn.__class__ = kind
    subject = load(model, inputs=fooling.ids(length))
    other = kind.__name__.removeprefix("Over").removeprefix("Normed").lower()
    words = f"it attends over {other} where positions are looked for: its rows are no positions"
    assert [law.failure for law in subject.proof.laws][layer] == words
    assert [str(trace.address) for trace in subject.read(fooling.ids(9)).traces] == [f"layer {2 - layer}"]


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (2, 3)])
def test_as_many_texts_as_positions_are_no_other_axis(shape):
    subject = load(tinyhf.gpt2(), inputs={"input_ids": torch.randint(5, 20, shape)})
    assert subject.proof.refusal is None
    assert not any(law.failure for law in subject.proof.laws)


def test_the_channel_attention_of_a_model_of_transformers_is_left_out():
    """Half of the layers of Florence-2's vision backbone (DaViT)."""
    sizes = {"depths": (1, 1), "embed_dim": (16, 32), "num_heads": (2, 4), "num_groups": (2, 4), "drop_path_rate": 0.0}
    edges = {"patch_size": (3, 3), "patch_stride": (2, 2), "patch_padding": (1, 1), "patch_prenorm": (False, True)}
    model = Florence2VisionBackbone(Florence2VisionConfig(**sizes, **edges, window_size=4, projection_dim=16))
    proof = prove("m", model.eval(), {"hidden_states": torch.randn(2, 3, 32, 32)})
    verdicts = {row["module"].split(".")[-1]: row["verdict"].split(":")[0] for row in proof.rows()}
    assert verdicts["channel_attn"] == "not verified"
    assert verdicts["window_attn"].startswith("verified")


def failures(model: Any) -> dict[str, str]:
    """The layers that fail, and the beginning of why."""
    proof = prove("model", model)
    return {
        str(a): law.failure.split(":")[0] for a, law in zip(proof.addresses, proof.laws, strict=True) if law.failure
    }
