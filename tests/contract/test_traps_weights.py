"""Projections that are right at the first look: another W_O beside the true one, q and k that depend on positions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import fooling, zoo
from tests.fooling import HEADS, WIDTH, Fooling
from torch import Tensor, nn

from trisect.hf.load import load
from trisect.hf.verify.proof import Proof, prove
from trisect.hf.verify.sources import SELF, Met, number_layers


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
        assert "changed before it leaves" in found.origins["o"].words


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
    words = (
        "what layers.0.attn.o_proj makes of the output is not what layers.0.attn adds: it is changed before it leaves"
    )
    assert found.origins["o"].words == words


def convolve(k):
    """Primer: a depthwise convolution over time, of width three."""
    kernel = torch.tensor([0.5, 0.3, 0.2])
    padded = nn.functional.pad(k, (0, 0, 2, 0))
    return sum(w * padded[:, 2 - i : padded.shape[1] - i] for i, w in enumerate(kernel))


def shift(k):
    return torch.cat([k[:, :1], k[:, :-1]], 1)


def half_shift(k):
    half = k.shape[-1] // 2
    return torch.cat([k[..., :half], shift(k)[..., half:]], -1)


def placed(q, first=0.0):
    places = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3))
    places[0] *= first
    return q + places[: q.shape[1]]


def by_log(q):
    return q * (1 + torch.arange(q.shape[1])).add(torch.e - 1).log()[:, None]


TOGETHER = "at position 1 {} is put together from positions 0 and 1 of"
CHANGES: dict[str, tuple[Any, str]] = {
    "convolve": (convolve, TOGETHER),
    "cumulated": (lambda q: q.cumsum(1), TOGETHER),
    "shift": (shift, "at position 1 {} is made of position 0 of"),
    "half shift": (
        half_shift,
        "at position 1 {} is made of other positions in head 4, namely 0, of",
    ),
    "roll": (lambda k: k.roll(1, 1), "at position 0 {} is made of position 6 of"),
    "placed": (placed, "at position 1 {} is more than what"),
    "placed throughout": (lambda q: placed(q, 1.0), "at position 1 {} is more than what"),
    "by log": (by_log, "at position 1 {} is 1.31 times what"),
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
    assert "Layer 1, q: at position 1 q is 1.31 times what" in one.notes[0]
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
    words = "what model.layers.0.self_attn.o_proj.0 makes of the output enters model.layers.0.self_attn.o_proj.1 before it leaves"
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
    assert "its rows are not in the order of positions: what row " in proof.laws[0].failure
    assert proof.laws[1].failure == ""
    assert [str(a) for a in proof.shape.heads] == [str(proof.addresses[1])]


def test_towers_whose_layers_take_turns_are_numbered_each_for_itself():
    """BridgeTower's text tower and its cross-modal layers of text run by turns: two lists of layers, two stacks."""
    made = [f"{where}.{n}.self" for n in range(3) for where in ("text_model.layer", "cross_modal_text_layers")]
    met = [Met(module, 0, SELF, 7, 7) for module in made]
    assert number_layers(met, ["text"] * 6) == [(name, n) for n in (1, 2, 3) for name in ("text", "text_modal")]


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
