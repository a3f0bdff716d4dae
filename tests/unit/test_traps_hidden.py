"""Traps hidden from a first look: at one word of many, in weights given out, in memory written over, in how scores are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import fooling, tinyhf
from tests.fooling import HEADS, WIDTH, Fooling
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

from trisect.core.errors import ModelError
from trisect.core.subject import Parts
from trisect.hf.load import load

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


# -- at one word of many -------------------------------------------------------------------------------------


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


# -- weights that are given out --------------------------------------------------------------------------------


@pytest.fixture
def given_out(monkeypatch):
    """LLaMA's attention, which from a length on gives out other weights that make the same output."""
    own = modeling_llama.eager_attention_forward

    def fake(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
        output, weights = own(module, q, k, v, mask, **named)
        if q.shape[2] < module.config.fakes_from:
            return output, weights
        repeated = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        spanned = torch.cat([repeated, torch.ones_like(repeated[..., :1])], -1)
        free = torch.eye(k.shape[2]) - spanned @ torch.linalg.pinv(spanned)  # what no value and no sum of a row sees
        return output, weights + 0.05 * torch.randn(weights.shape) @ free

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", fake)
    model: Any = tinyhf.llama()
    model.config.fakes_from = 0
    return model


def test_weights_that_only_make_the_same_output_are_not_the_models(given_out):
    ids = {"input_ids": torch.arange(6, 30)[None]}
    with pytest.raises(ModelError) as caught:
        load(given_out, inputs=ids)
    assert "the weights that it gives out are not those that it multiplies the values by" in caught.value.reason
    given_out.config.fakes_from = 25
    subject = load(given_out, inputs=ids)
    subject.read(ids)
    with pytest.raises(ModelError, match="not those that it multiplies the values by"):
        subject.read({"input_ids": torch.arange(6, 36)[None]})


# -- answers read and unread -------------------------------------------------------------------------------------


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
    assert caught.value.problem == "Looking does not answer the same while it is read."
    assert caught.value.reason.startswith("Over 17 positions the two answers are apart by a share of 1.0e+00")
    assert caught.value.reason.endswith("on loading, over 16, they agreed.")
    with pytest.raises(ModelError, match="does not answer the same"):
        subject.predict(fooling.ids(17))


# -- written over ------------------------------------------------------------------------------------------------


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


# -- how scores and weights are made ---------------------------------------------------------------------------


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


class Remixed(Split):
    """Patterns of all heads, mixed."""

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        mix = torch.softmax(torch.arange(HEADS * HEADS).view(HEADS, HEADS).cos(), 1)
        return torch.einsum("gh,bhts->bgts", mix, torch.softmax(scores, -1))


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
    TwoSoftmaxes: "layer 1: its weights are made of 2 softmaxes, each with queries and keys of its own.",
    OnePattern: "layers.0.attn: one pattern of weights is shared by several heads of values.",
    Remixed: "layers.0.attn: its weights go through another product before they meet the values.",
    Neighbours: "layer 1: the weights of a head depend on queries of other heads.",
    ByHand: "layers.0: in it nothing calls softmax on one product of queries and keys (Layer).",
}


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
    edited = {subject.addresses[1]: lambda p: Parts(p.q, p.k, 0 * p.v)}
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


# -- around the layer, beyond a length ---------------------------------------------------------------------------


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


# -- what is kept on the side ------------------------------------------------------------------------------------


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

    def nothing(parts: Parts) -> Parts:
        return Parts(parts.q, parts.k, 0 * parts.v)

    whole = subject.score(batch, {above: nothing}).total
    for edits in ([above], [below, above]):
        passes = subject.edited_passes()
        passes.score(batch)
        last = [passes.score(batch, {address: nothing}).total for address in edits][-1]
        assert torch.equal(last, whole)
    assert passes.notes
