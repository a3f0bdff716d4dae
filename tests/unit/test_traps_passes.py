"""Traps of passes: state that layers hand on, activation checkpoints, inference mode, and weights made of other weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpoints
from tests import fooling, tinyhf
from tests.fooling import HEADS, Fooling
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, weight_norm
from torch.utils.checkpoint import checkpoint

from trisect.core.errors import ModelError, SiteError
from trisect.core.subject import SiteTarget
from trisect.core.trace import Address
from trisect.hf.files.checkpoints import cuts_of
from trisect.hf.hooks.calls import without_recompute
from trisect.hf.hooks.product_hook import MIXED, REMIXED
from trisect.hf.load import load
from trisect.hf.verify.sources import EnteredFloats

NEAR = 1e-5  # float32, numbers of order one


class Handing(fooling.Attention):
    """Keeps its keys and values for the layers above, which have none of their own."""

    own = True

    def forward(self, x: Tensor, ids: Any) -> Tensor:
        q, k, v = self.heads(x)
        if self.own:
            ids[0] |= {"k": k, "v": v}
        output = self.attend(q, ids[0]["k"], ids[0]["v"], x)
        return self.o_proj(output.transpose(1, 2).flatten(2))


class Handed(Fooling):
    """Its layers are given a dictionary in a list, in which one leaves what the next takes out."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        held: list[dict[str, Tensor]] = [{}]
        for layer in self.layers:
            x = layer(x, held)
        return self.head(x)


def loaded(model: Any) -> Any:
    return load(model, inputs=fooling.ids())


def test_what_a_layer_leaves_for_a_later_one_is_there():
    model: Any = Handed()
    for layer in model.layers:
        layer.attn.__class__ = Handing
    model.layers[1].attn.own = False
    first, second = loaded(model).read(fooling.ids(9)).traces
    assert torch.equal(first.k, second.k)
    assert torch.equal(first.v, second.v)
    assert second.projections.origins["v"].parameter == "layers.0.attn.v_proj.weight"
    assert second.stack == "plain"


def test_a_list_that_is_given_twice_is_as_it_was_afterwards():
    own = torch.ones(2, 3)
    twice: list[Any] = [own]
    twice.append(twice)
    entered = EnteredFloats()
    made = entered.enter("layer", (twice, twice), {"held": twice})
    assert made is not None
    assert len(entered.leaves) == 1
    assert made[0][0] is made[1]["held"] is twice
    assert twice[0] is not own
    entered.leave("layer")
    assert twice[0] is own


def test_checkpoints_are_torchs_own_again_when_the_last_of_two_threads_is_done():
    own = checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction
    first, second = without_recompute(), without_recompute()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert checkpoints.CheckpointFunction is not own[1]
    second.__exit__(None, None, None)
    assert (checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction) == own


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints_that_are_always_on(reentrant):
    class Again(fooling.Layer):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            return checkpoint(super().forward, x, ids, use_reentrant=reentrant)  # pyright: ignore[reportReturnType]

    plain: Any = Fooling()
    model: Any = Fooling()
    for layer in model.layers:
        layer.__class__ = Again
    want, got = (loaded(m).read(fooling.ids(9)).traces for m in (plain, model))
    for one, other in zip(want, got, strict=True):
        assert [o.how for o in other.projections.origins.values()] == ["rows"] * 4
        assert torch.equal(one.q, other.q)
        assert other.block is not None


def test_inference_mode():
    model: Any = Fooling()
    with torch.inference_mode():
        trace = loaded(model).read(fooling.ids(9)).traces[0]
        made: Any = Fooling()
    assert trace.projections.origins["q"].how == "rows"
    with pytest.raises(ModelError) as caught:
        loaded(made)
    assert caught.value.problem == "words.weight of Fooling was made in inference mode."


def test_a_tensor_that_a_model_kept_from_inference_mode_is_the_reason_given():
    model: Any = Fooling(out=lambda attention, mixed, x, ids: attention.o_proj(mixed) * kept_from[0])
    with torch.inference_mode():
        kept_from = [torch.ones(1)]
    with pytest.raises(ModelError) as caught:
        loaded(model)
    assert caught.value.problem == "Fooling keeps a tensor that was made in inference mode."


def masked(module: nn.Module) -> None:
    prune.random_unstructured(module, "weight", 0.5)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("change", [weight_norm, parametrizations.weight_norm, masked])
def test_weights_that_are_made_of_others_have_no_name_of_their_own(change):
    model: Any = Fooling()
    for part in (model.attention.q_proj, model.attention.o_proj):
        change(part)
    subject = loaded(model)
    trace = subject.read(fooling.ids(9)).traces[0]
    origins = trace.projections.origins
    assert [o.how for o in origins.values()] == ["rows"] * 4
    assert [o.parameter for o in origins.values()] == [None, *(f"layers.0.attn.{n}_proj.weight" for n in "kv"), None]
    own = model.attention.q_proj.weight.detach().unflatten(0, (HEADS, -1)).transpose(1, 2)
    assert torch.allclose(trace.w_q, own, atol=NEAR)
    with pytest.raises(SiteError, match="cannot be rewound"):
        cuts_of(SiteTarget(Address("plain", 1), "q", None), trace.projections)
    next(p for n, p in model.attention.q_proj.named_parameters() if "weight" in n).data.mul_(1.5)
    with pytest.raises(ModelError, match=r"changed since it was loaded|does not compute"):
        subject.projections()


def test_a_weight_that_is_used_by_its_module_and_without():
    """W_O is the transpose of W_V: what the module multiplies by it is no use of the bare weight."""
    model: Any = Fooling(out=lambda attention, mixed, x, ids: F.linear(mixed, attention.v_proj.weight.T))
    subject = loaded(model)
    trace = subject.read(fooling.ids(9)).traces[0]
    expected = trace.output.transpose(1, 2).flatten(2) @ model.attention.v_proj.weight
    assert torch.allclose(torch.einsum("bhte,hed->btd", trace.output, trace.w_o), expected, atol=NEAR)


class Unfollowed(Fooling):
    """Inference code: its forward switches gradients off."""

    @torch.no_grad()
    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids)


def test_gradients_that_a_model_switches_off_are_the_reason_given():
    trace = loaded(Unfollowed()).read(fooling.ids(9)).traces[0]
    words = [o.words for o in trace.projections.origins.values()]
    off = "where the model switches gradients off, by which its map would be found"
    assert words == [f"q is made {off}", f"k is made {off}", f"v is made {off}", f"the output goes on {off}"]
    assert trace.w_v is None


class Moving(Fooling):
    """Gives its layers the tokens in another order, and puts the answer back."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(self.moved(input_ids))

    def moved(self, ids: Tensor) -> Tensor:
        return ids


MOVED = {
    "turned": (lambda ids: ids.flip(1), "position 5 of row 1"),
    "rows turned": (lambda ids: ids.flip(0), "position 1 of row 0"),
    "shifted": (lambda ids: ids.roll(1, 1), "position 2 of row 1"),
}


@pytest.mark.parametrize("how", MOVED)
def test_tokens_that_a_model_moves_by_itself_are_not_those_of_its_positions(how):
    model: Any = Moving()
    assert loaded(model).read(fooling.ids(9)).source.ids.equal(fooling.ids(9)["input_ids"])
    model.moved, place = MOVED[how]
    with pytest.raises(ModelError) as caught:
        loaded(model)
    assert caught.value.problem == "Moving does not read its tokens where they are given."
    words = f"position 1 of row 1, counted from 0, changes what attention is given at {place}."
    assert caught.value.reason.endswith(words)


def by_parity(ids: Tensor) -> Tensor:
    return ids.gather(1, (ids % 2).argsort(dim=1, stable=True))


SORTED = {
    "rising": lambda ids: ids.sort(1).values,
    "falling": lambda ids: ids.sort(1, descending=True).values,
    "by parity": by_parity,
    "smallest first": lambda ids: torch.stack([row.roll(-int(row.argmin())) for row in ids]),
}


@pytest.mark.parametrize("how", SORTED)
def test_tokens_that_a_model_sorts_are_found_whatever_the_order_of_the_example(how):
    model: Any = Moving()
    example = {"input_ids": SORTED[how](fooling.ids()["input_ids"])}
    assert load(model, inputs=example).proof.refusal is None
    model.moved = SORTED[how]
    with pytest.raises(ModelError, match="Two tokens of row 1 change places"):
        load(model, inputs=example)


def test_tokens_that_are_alike_to_a_model_say_nothing_of_their_order():
    model: Any = Fooling()
    with torch.no_grad():
        model.words.weight[2:] = model.words.weight[2]
    assert load(model, inputs={"input_ids": torch.tensor([[5, 0, 1, 9, 7, 12, 4]])}).proof.refusal is None


def test_a_model_that_does_not_run_with_other_tokens_is_still_read():
    class Strict(Fooling):
        """Gives up where its tokens are not those that it knows, as where tokens stand for images."""

        def forward(self, input_ids: Tensor) -> Tensor:
            assert torch.equal(input_ids, known), "unknown tokens"
            return super().forward(input_ids)

    known = fooling.ids()["input_ids"]
    subject = loaded(Strict())
    assert len(subject.read(fooling.ids()).traces) == len(subject.addresses)


def test_one_module_at_two_places_is_two_layers_unless_a_cache_mixes_them():
    model: Any = Fooling()
    model.layers[1].attn = model.layers[0].attn
    subject = loaded(model)
    assert [str(a) for a in subject.addresses] == ["layer 1", "layer 2"]
    assert subject.notes == ("Layers 1–2 share one set of weights.",)
    model = tinyhf.gpt2()
    model.transformer.h[1] = model.transformer.h[0]
    with pytest.raises(ModelError) as caught:
        loaded(model)
    assert caught.value.problem == "GPT2LMHeadModel computes something else with a cache than without."
    assert caught.value.reason.startswith("Its module 'transformer.h.0.attn' attends 2 times in a pass, and the cache")
    model.config.use_cache = False
    first, second = loaded(model).read(fooling.ids(9)).traces
    assert first.weights.shape == second.weights.shape == (2, tinyhf.HEADS, 9, 9)
    assert not torch.equal(first.q, second.q)


def test_autocast_that_is_on_in_a_read_alone_is_the_reason_given():
    model = tinyhf.gpt2()
    with torch.autocast("cpu", torch.bfloat16):
        inside = loaded(model)
        assert len(inside.read(fooling.ids(9)).traces) == 2
        with torch.autocast("cpu", enabled=False):
            outside = loaded(model)
        with pytest.raises(ModelError) as caught:
            outside.read(fooling.ids(9))
    assert caught.value.problem == "GPT2LMHeadModel is run inside torch.autocast, in bfloat16."
    assert caught.value.reason == "It was verified outside torch.autocast: its numbers round otherwise there."
    assert caught.value.todo == "Load it and read it both inside torch.autocast, or both outside."
    with pytest.raises(ModelError, match=r"is run outside torch\.autocast"):
        inside.predict(fooling.ids())


class Talking(fooling.Attention):
    """Heads that are mixed by a linear map, before the softmax or behind it."""

    behind, by_sum = False, False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        scores = q @ k.transpose(2, 3) * 0.5
        return (self.mixed(torch.softmax(scores, -1)) if self.behind else torch.softmax(self.mixed(scores), -1)) @ v

    def mixed(self, given: Tensor) -> Tensor:
        mix = self.q_proj.weight[:HEADS, :HEADS]
        if self.by_sum:
            return torch.einsum("bhts,gh->bgts", given, mix)
        return F.linear(given.permute(0, 2, 3, 1), mix).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("behind", "by_sum"), [(False, False), (False, True), (True, False)])
def test_heads_that_are_mixed_by_a_map_are_the_reason_given(behind, by_sum):
    model: Any = Fooling()
    attention = model.attention
    attention.__class__, attention.behind, attention.by_sum = Talking, behind, by_sum
    assert loaded(model).notes == (f"Left out, layers.0.attn: {REMIXED if behind else MIXED}.",)
