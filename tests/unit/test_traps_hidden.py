"""Traps hidden from a first look: one word of many, memory written over; the order of tokens and texts; parts of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import fooling, tinyhf, zoo
from tests.fooling import HEADS, WIDTH, Fooling, OwnBackward
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

from trisect.core.errors import ModelError
from trisect.core.subject import QKV
from trisect.hf.load import Pretrained, load
from trisect.hf.locate import output_projection
from trisect.hf.verify.proof import prove

NEAR = 1e-5  # float32, numbers of order one


class Split(fooling.Attention):
    """Attention in steps, of which each may be another."""

    def scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        return q @ k.transpose(2, 3) * 0.5

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return self.weights(self.scores(q, k, x), x) @ v


def made(kind: type[Split], *both: type[Split]) -> Any:
    model: Any = Fooling()
    torch.manual_seed(1)
    for layer, own in zip(model.layers, (kind, *both), strict=False):
        layer.attn = own()
    return model.eval()


def loaded(model: Any, length: int = 7) -> Any:
    return load(model, inputs=fooling.ids(length))


def one_word(doubled: str) -> tuple[Any, dict[str, Tensor]]:
    """A model in which something is doubled at the word 39, and eight rows of thirty in which it stands once."""

    def double(t: Tensor, ids: Tensor) -> Tensor:
        return torch.where((ids == 39)[..., None], 2 * t, t)

    changes = {
        "what enters W_O": lambda a, mixed, x, ids: a.o_proj(double(mixed, ids)),
        "what W_O makes": lambda a, mixed, x, ids: double(a.o_proj(mixed), ids),
    }
    batch = fooling.ids(30, 8)["input_ids"] % 39
    batch[5, 17] = 39
    return Fooling(out=changes[doubled]), {"input_ids": batch}


@pytest.mark.parametrize("doubled", ["what enters W_O", "what W_O makes"])
def test_one_word_among_hundreds_is_looked_at(doubled):
    model, batch = one_word(doubled)
    subject = load(model, inputs={"input_ids": batch["input_ids"][:2, :9]})
    with pytest.raises(ModelError, match=r"17 of row 5|167 of row 0"):
        subject.read(batch)
    batch["input_ids"][5, 17] = 0
    subject.read(batch)


def other_weights(out: Tensor, weights: Tensor, others: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return out, others


def written_over(out: Tensor, weights: Tensor, others: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights.detach().copy_(others)
    return out, weights


def output_written_over(out: Tensor, weights: Tensor, others: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The other weights are multiplied, by nothing; the true output is written where that was."""
    return (others @ torch.zeros_like(v)).transpose(1, 2).copy_(out), others


@pytest.mark.parametrize("change", [other_weights, written_over, output_written_over])
def test_weights_that_only_make_the_same_output_are_not_the_models(change, monkeypatch):
    """LLaMA's attention, which from a length on returns other weights, of which no value sees the difference."""
    own = modeling_llama.eager_attention_forward

    def fake(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
        output, weights = own(module, q, k, v, mask, **named)
        if q.shape[2] < module.config.fakes_from:
            return output, weights
        repeated = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        spanned = torch.cat([repeated, torch.ones_like(repeated[..., :1])], -1)
        free = torch.eye(k.shape[2]) - spanned @ torch.linalg.pinv(spanned)  # what no value and no sum of a row sees
        return change(output, weights, weights + 0.05 * torch.randn(weights.shape) @ free, repeated)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", fake)
    model: Any = tinyhf.llama()
    model.config.fakes_from = 0
    ids = {"input_ids": torch.arange(6, 30)[None]}
    with pytest.raises(ModelError) as caught:
        load(model, inputs=ids)
    assert "the weights that it returns are not those that it multiplies the values by" in caught.value.reason
    model.config.fakes_from = 25
    subject = load(model, inputs=ids)
    subject.read(ids)
    with pytest.raises(ModelError, match="not those that it multiplies the values by"):
        subject.read({"input_ids": torch.arange(6, 36)[None]})


class Looking(Fooling):
    """Looks for hooks, or for a mode that follows PyTorch's functions, where a text is long."""

    how = "hooks"

    def forward(self, input_ids: Tensor) -> Tensor:
        hooked = any(m._forward_hooks for m in self.modules())
        seen = hooked if self.how == "hooks" else bool(torch.overrides._get_current_function_mode_stack())
        made = super().forward(input_ids)
        return made * 2 if seen and input_ids.shape[1] > 16 else made


@pytest.mark.parametrize("how", ["hooks", "mode"])
def test_a_model_that_looks_whether_it_is_read(how):
    model = Looking()
    model.how = how
    subject = loaded(model)
    subject.read(fooling.ids(16))
    with pytest.raises(ModelError) as caught:
        subject.read(fooling.ids(17))
    assert caught.value.problem == "The output of Looking differs while it is read."
    assert caught.value.reason.startswith("Over 17 positions the relative difference of the two outputs is 1.0e+00")
    assert caught.value.reason.endswith("on loading, over 16, they agreed.")
    with pytest.raises(ModelError, match="differs while it is read"):
        subject.predict(fooling.ids(17))


class Sparing(Split):
    """Writes over all that it has used."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        weights = self.weights(self.scores(q, k, x), x)
        output = weights @ v
        made = self.o_proj(output.transpose(1, 2).flatten(2))
        with torch.no_grad():
            for t in (q, k, v, weights, output):
                t.detach().fill_(7.0)
        return made


class InPlace(fooling.Layer):
    """Adds to the residual where it lies."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        x += self.attn(self.norm1(x), ids)
        x += self.down(torch.tanh(self.up(self.norm2(x))))
        return x


def test_what_a_model_writes_over_is_read_as_it_was_used():
    plain, model = made(Split, Split), made(Sparing, Sparing)
    model.load_state_dict(plain.state_dict())
    want, got = (loaded(m).read(fooling.ids(9)).traces for m in (plain, model))
    for one, other in zip(want, got, strict=True):
        for name in ("q", "k", "v", "weights", "output"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_a_residual_that_is_added_to_in_place():
    plain: Any = Fooling()
    model: Any = Fooling()
    for layer in model.layers:
        layer.__class__ = InPlace
    want, got = (loaded(m).read(fooling.ids(9)).traces for m in (plain, model))
    for one, other in zip(want, got, strict=True):
        assert [o.how for o in other.projections.origins.values()] == ["rows"] * 4
        assert one.block is not None
        assert other.block is not None
        assert torch.equal(one.block.residual, other.block.residual)


class TwoProducts(Split):
    def __init__(self) -> None:
        super().__init__()
        self.q2, self.k2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def second(self, x: Tensor) -> Tensor:
        q, k = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q2, self.k2))
        return q @ k.transpose(2, 3)

    def scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        return self.second(x) + super().scores(q, k, x)


class TwoSoftmaxes(TwoProducts):
    """Differential attention whose rows sum to one."""

    def scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        return Split.scores(self, q, k, x)

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return (torch.softmax(scores, -1) - 0.4 * torch.softmax(self.second(x), -1)) / 0.6


class OnePattern(Split):
    def scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        return super().scores(q[:, :1], k[:, :1], x)


class Neighbours(Split):
    """Scores that are averaged with those of the head beside."""

    def scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        own = super().scores(q, k, x)
        return own + 0.5 * own.roll(1, 1)


class ByHand(Split):
    """A softmax in two steps."""

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        risen = scores.exp()
        return risen / risen.sum(-1, keepdim=True)


LEFT_OUT = {
    TwoSoftmaxes: "layer 1: its weights combine 2 softmaxes, each with its own queries and keys.",
    OnePattern: "layers.0.attn: one pattern of weights is shared by several heads of values.",
    Neighbours: "layer 1: the weights of a head depend on queries of other heads.",
    ByHand: "layers.0: it computes no softmax of one product of queries and keys (Layer).",
}


class ValuesFirst(Split):
    """vᵀ wᵀ, transposed."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        weights = self.weights(self.scores(q, k, x), x)
        return (v.transpose(2, 3) @ weights.transpose(2, 3)).transpose(2, 3)


class HeadsInRows(Split):
    """PyTorch's own attention over texts and heads in one axis."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, scale=0.5).unflatten(0, (len(x), -1))


@pytest.mark.parametrize("kind", [ValuesFirst, HeadsInRows])
def test_the_same_attention_in_another_spelling_is_read_and_edited_alike(kind):
    plain, other = loaded(made(Split)), loaded(made(kind))
    for a, b in zip(plain.read(fooling.ids(9)).traces, other.read(fooling.ids(9)).traces, strict=True):
        assert torch.allclose(a.weights, b.weights, atol=1e-6)  # float32
        assert torch.allclose(a.output, b.output, atol=1e-6)
    edit = {"v@1.h2": lambda v, where: v + 1}
    plain, other = (subject.predict(fooling.ids(9), edit) for subject in (plain, other))
    assert torch.allclose(plain, other, atol=1e-5)


@pytest.mark.parametrize("kind", LEFT_OUT, ids=lambda k: k.__name__)
def test_what_is_no_one_softmax_a_head_is_left_out_with_its_reason(kind):
    subject = loaded(made(kind))
    assert subject.notes[0] == f"Left out, {LEFT_OUT[kind]}"
    assert [trace.weights.shape[1] for trace in subject.read(fooling.ids(9)).traces] == [HEADS]


def test_scores_of_several_products_are_named():
    subject = loaded(made(TwoProducts))
    words = "Layer 1: its scores are a sum of 2 products; q and k are those of one of them."
    assert words in subject.notes
    assert words not in loaded(made(Split)).notes


class Kept(Split):
    """Keeps its scores for the layer above."""

    below: Tensor | None = None

    def scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        Kept.below = super().scores(q, k, x)
        return Kept.below


class AddsBelow(Split):
    """Residual attention: the scores of the layer below are added."""

    def scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        assert Kept.below is not None
        return Kept.below + super().scores(q, k, x)


def test_scores_of_the_layer_below_are_not_taken_for_a_layers_own():
    model = made(Kept, AddsBelow)
    subject = loaded(model)
    trace = subject.read(fooling.ids(9)).traces[1]
    names = [o.parameter for o in trace.projections.origins.values()]
    assert names == [f"layers.1.attn.{name}_proj.weight" for name in "qkvo"]
    assert "Layer 2: its scores are a sum of 2 products; q and k are those of one of them." in subject.notes
    edited = {subject.addresses[1]: lambda p: QKV(p.q, p.k, 0 * p.v)}
    assert not torch.equal(subject.predict(fooling.ids(9), edited), subject.predict(fooling.ids(9)))


SCALES = {
    "twice": (lambda s: s + s, 1.0),
    "cubed": (lambda s: s**3, None),
    "capped": (lambda s: 5 * torch.tanh(s / 5), None),
    "even queries alone": (lambda s: torch.where(torch.arange(s.shape[2])[:, None] % 2 == 0, 2 * s, s), None),
    "by head": (lambda s: s * torch.arange(1, HEADS + 1)[:, None, None], None),
    "less the largest": (lambda s: s - s.amax(-1, keepdim=True), 0.5),
    "doubled": (lambda s: 2.0 * s, 1.0),
}


@pytest.mark.parametrize("name", SCALES)
def test_the_scale_is_one_that_the_weights_follow(name):
    change, known = SCALES[name]

    class Changed(Split):
        def scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
            return change(super().scores(q, k, x))

    trace = loaded(made(Changed)).read(fooling.ids(9)).traces[0]
    if trace.scale is not None:
        weights = torch.softmax(trace.q @ trace.k.transpose(2, 3) * trace.scale, -1)
        assert torch.allclose(weights, trace.weights, atol=NEAR)
    assert trace.scale in (known, None)
    assert (trace.scale is not None) == (name in ("less the largest", "doubled"))


class Around(fooling.Layer):
    """x + s · attention(LN(x)), of which something is doubled in long texts."""

    doubled = ""

    def __init__(self) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def twice(self, name: str, t: Tensor) -> Tensor:
        return 2 * t if name == self.doubled and t.shape[1] > 16 else t

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        attended = self.attn(self.twice("norm", self.norm1(x)), ids)
        x = self.twice("residual", x) + self.twice("factor", self.s * attended)
        return x + self.down(torch.tanh(self.up(self.norm2(x))))


AROUND = {
    "norm": "what enters layers.0.attn.q_proj is not what layers.0.norm1 makes",
    "residual": "what enters layers.0.norm2 is not the sum of the residual and of what layers.0.attn.o_proj makes",
    "factor": "what enters layers.0.norm2 is not the sum of the residual and of what layers.0.attn.o_proj makes",
}


@pytest.mark.parametrize("doubled", AROUND)
def test_the_block_around_attention_is_looked_at_in_every_read(doubled):
    model: Any = Fooling()
    torch.manual_seed(2)
    model.layers[0] = Around().eval()
    model.layers[0].doubled = doubled
    subject = loaded(model)
    block = subject.read(fooling.ids(16)).traces[0].block
    assert block.kind == "pre"
    assert torch.allclose(block.after.gamma, model.layers[0].s, atol=NEAR)
    with pytest.raises(ModelError) as caught:
        subject.read(fooling.ids(17))
    assert caught.value.problem == "Layer 1 of Fooling does not compute what was found on loading."
    assert caught.value.reason == f"In this read {AROUND[doubled]}, as it was on loading."


def test_a_pass_that_begins_above_an_edit_is_compared_with_a_whole_one():
    """The second layer adds what the first gave, which it finds on the side: after an edit below, that of the edit."""
    model: Any = tinyhf.llama()
    kept: dict[str, Tensor] = {}
    first, second = (layer.forward for layer in model.model.layers)

    def keeping(x: Tensor, *args: Any, **named: Any) -> Tensor:
        kept["made"] = first(x, *args, **named)
        return kept["made"]

    model.model.layers[0].forward = keeping
    model.model.layers[1].forward = lambda x, *a, **k: second(x + 0.5 * kept["made"], *a, **k)
    subject = load(model)
    below, above = subject.addresses
    batch = subject.batch_of({"input_ids": torch.arange(6, 15)[None]})

    def nothing(parts: QKV) -> QKV:
        return QKV(parts.q, parts.k, 0 * parts.v)

    whole = subject.score(batch, {above: nothing}).total
    for edits in ([above], [below, above]):
        passes = subject.edited_passes()
        passes.score(batch)
        last = [passes.score(batch, {address: nothing}).total for address in edits][-1]
        assert torch.equal(last, whole)
    assert passes.notes


class HeadsFirst(fooling.Attention):
    """Heads and texts in one axis, heads first, as some implementations have it."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        q, k, v = (torch.cat(p(x).chunk(HEADS, -1), 0) for p in (self.q_proj, self.k_proj, self.v_proj))
        output = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.5, -1), v)
        return self.o_proj(torch.cat(output.chunk(HEADS, 0), -1))


class Ordered(fooling.Attention):
    """Works on its positions in the order of their lengths."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        order = x.norm(dim=-1).argsort(1)
        return by(super().forward(by(x, order), ids), order.argsort(1))


def by(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order[..., None].expand_as(x))


MIXED = (
    "q of one text depends on the results of layers.1.attn.q_proj for others, as if heads came before texts in one axis"
)
MOVED = "its queries are not at the positions of its tokens: the token at position 1 of row 1 is at position 3 of row 1 there"
OUT_OF_ORDER = {HeadsFirst: MIXED, Ordered: MOVED}


@pytest.mark.parametrize("kind", OUT_OF_ORDER, ids=lambda k: k.__name__)
def test_a_later_layer_whose_rows_are_not_the_texts_and_positions_is_left_out(kind):
    model: Any = Fooling()
    model.layers[1].attn.__class__ = kind
    subject = load(model, inputs=fooling.ids())
    assert subject.notes == (f"Left out, layer 2: {OUT_OF_ORDER[kind]}.",)
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
    model.layers[1].attn.__class__ = Ordered
    assert load(model, inputs=fooling.ids()).notes == (f"Left out, layer 2: {MOVED}.",)


DISPLACED = {"roll": lambda t: t.roll(1, -2), "flip": lambda t: t.flip(-2)}
NAMED = {"k": "keys", "v": "values"}


class Displaced(fooling.Attention):
    """Some of q, k and v [B H T E] are displaced behind their projections."""

    which: str
    change: Callable[[Tensor], Tensor]

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = zip("qkv", super().heads(x), strict=True)
        q, k, v = (self.change(part) if name in self.which else part for name, part in parts)
        return q, k, v


def displaced_at(layer: int, which: str, change: Any) -> Any:
    model: Any = Fooling()
    attention = model.layers[layer].attn
    attention.__class__, attention.which, attention.change = Displaced, which, change
    return model


@pytest.mark.parametrize("how", DISPLACED)
def test_queries_that_are_displaced_behind_their_projection_are_left_out(how):
    subject = load(displaced_at(1, "q", DISPLACED[how]), inputs=fooling.ids())
    (note,) = subject.notes
    assert note.startswith("Left out, layer 2: its queries are not at the positions of its tokens")
    assert ("at position 2 of row 1" if how == "roll" else "at position 5 of row 1") in note
    assert [str(a) for a in subject.proof.shape.heads] == ["layer 1"]


@pytest.mark.parametrize("which", ["q", "k", "v", "kv"])
@pytest.mark.parametrize("how", [DISPLACED["roll"], lambda t: t[..., [0, 1, 2, 4, 3, 5, 6], :]], ids=["roll", "swap"])
def test_one_head_that_is_displaced_is_enough(which, how):
    change = lambda t: torch.cat([t[:, :1], how(t[:, 1:2]), t[:, 2:]], 1)  # noqa: E731
    subject = load(displaced_at(0, which, change), inputs=fooling.ids())
    (note,) = subject.notes
    assert note.startswith("Left out, layer 1: at position ")
    assert f"{which[0]} is made of other positions in head 2, namely " in note
    assert [str(a) for a in subject.proof.shape.heads] == ["layer 2"]


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
    assert failures(vit) == {"layer 2": f"its {NAMED[part]} are shifted"}
    for kind, stack in (("encoder_attn", "cross"), ("self_attn", "dec")):
        bart = zoo.build("bart")
        displace(getattr(getattr(bart.model.decoder.layers[0], kind), f"{part}_proj"), DISPLACED[how])
        assert failures(bart) == {f"{stack} layer 1": f"its {NAMED[part]} are not at the positions of its tokens"}


class OverUnits(fooling.Attention):
    """XCiT's: units attend to units, over positions, and the norm of a unit is made of all positions."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        q, k = (F.normalize(t, dim=2) for t in (q, k))
        return super().attend(q.mT, k.mT, v.mT, x).mT


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


@pytest.mark.parametrize("kind", [OverUnits, OverHeads, OverTexts])
def test_attention_over_units_heads_or_texts_is_none_over_as_many_positions(kind):
    model: Any = Fooling()
    model.layers[0].attn.__class__ = kind
    subject = load(model, inputs=fooling.ids(HEADS))  # as many positions as a head has units, and as there are heads
    words = f"it attends over {kind.__name__.removeprefix('Over').lower()} instead of positions"
    assert subject.proof.laws[0].failure == words
    assert [str(trace.address) for trace in subject.read(fooling.ids(9)).traces] == ["layer 2"]


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (2, 3)])
def test_as_many_texts_as_positions_are_no_other_axis(shape):
    subject = load(tinyhf.gpt2(), inputs={"input_ids": torch.randint(5, 20, shape)})
    assert subject.proof.refusal is None
    assert not any(law.failure for law in subject.proof.laws)


def failures(model: Any) -> dict[str, str]:
    """The layers that fail, and the beginning of why."""
    proof = prove("model", model)
    return {
        str(a): law.failure.split(":")[0] for a, law in zip(proof.addresses, proof.laws, strict=True) if law.failure
    }


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


@pytest.mark.parametrize("most", [8, 2, 0])
def test_the_share_is_the_same_in_one_batch_and_half_by_half(most, monkeypatch):
    """Of a model that takes two rows alone, and of inputs that are too long to be repeated."""
    rows: list[int] = []

    def beside(a: Any, main: Tensor, other: Tensor) -> Tensor:
        rows.append(len(main))
        if most and len(main) > most:
            raise ValueError
        return a.o_proj(main) + 0.5 * a.o_proj(other)

    if not most:
        monkeypatch.setattr(output_projection, "MAX_BATCHED_INPUT", 0)
    assert two(beside).proof.weights[0].share == pytest.approx(1 / 3, rel=0.02)
    assert max(rows) == (8 if most else 2)


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
