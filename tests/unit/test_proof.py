"""The proof: what it finds in models made to be found out, what it says, and what it refuses."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import fooling, zoo
from torch import nn
from transformers.pytorch_utils import Conv1D

from trisect.core.errors import ModelError
from trisect.core.subject import Heads
from trisect.core.trace import Address
from trisect.hf.hooks.calls import Call, Edits, ProductMemo, replace_forwards
from trisect.hf.hooks.product_hook import find_pieces, following, record_products
from trisect.hf.load import load, sampled_laws
from trisect.hf.locate.affine import Affine, affine_of
from trisect.hf.verify.examples import example_inputs
from trisect.hf.verify.proof import check_law, prove

X = {"x": torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))}


class Simple(nn.Module):
    """Two heads of three, with whatever goes wrong given as functions of scores, weights, output."""

    def __init__(self, scores=lambda s: s, weights=lambda w: w, output=lambda o, x: o, norm=None, project=nn.Linear):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (project(12, 6) for _ in range(3))
        self.o = nn.Linear(6, 12)
        self.norm = norm or nn.Identity()
        self.on_scores, self.on_weights, self.on_output = scores, weights, output
        self.eval()

    def forward(self, x):
        q, k, v = (m(x).unflatten(-1, (2, 3)).transpose(1, 2) for m in (self.q, self.k, self.v))
        weights = self.on_weights(torch.softmax(self.on_scores(self.norm(q) @ k.transpose(2, 3)), -1))
        return self.o(self.on_output((weights @ v).transpose(1, 2).flatten(2), x))


class Attends(nn.Module):
    """A layer that stands where a model has its attention."""

    def __init__(self, layer: Any):
        super().__init__()
        self.layer: Any = layer
        self.head = nn.Linear(12, 4)
        self.eval()

    def forward(self, x):
        return self.head(x + self.layer(x))


def proved(layer):
    return prove("mine", Attends(layer), X)


def test_a_plain_layer_passes():
    proof = proved(Simple())
    assert proof.refusal is None
    (row,) = proof.rows()
    assert row["layer"] == "layer 1"
    assert row["module"] == "layer"
    assert row["hook"] == "product"
    assert row["cause"] == "q k v"
    assert row["verdict"] == "verified"
    assert all(row[n].startswith("rows (") for n in "qkvo")
    assert proof.shape.heads == {Address("plain", 1): Heads(2, 2)}
    assert proof.notes() == ()


def test_weights_that_do_not_sum_to_one_are_a_verdict():
    proof = proved(Simple(weights=lambda w: 2 * w))
    assert proof.refusal is not None
    assert str(proof.refusal).startswith("mine does not pass verification.")
    assert "layer 1: rows of weights sum to 1 only within 1.0e+00; no layer passes." in str(proof.refusal)
    assert "Choose a model with softmax attention" in str(proof.refusal)
    assert proof.rows()[0]["verdict"].startswith("not verified: rows of weights sum to 1 only within")
    assert not proof.weights[0].valid
    assert proof.shape.heads == {}


@pytest.mark.parametrize(
    ("layer", "parts"),
    [(Simple(output=lambda o, x: 0 * o), "q, k, v"), (Simple(scores=lambda s: 0 * s), "q, k")],
    ids=["an answer that is not used", "scores that forget their keys"],
)
def test_what_is_not_used_has_no_cause(layer, parts):
    assert f"writes to {parts} do not reach the output" in str(proved(layer).refusal)


def test_a_saturated_softmax_still_has_a_cause():
    """Where all weight lies on one key no small write shows; the opposite does."""
    proof = proved(Simple(scores=lambda s: 1e4 * s))
    assert proof.refusal is None
    assert proof.laws[0].cause == (True, True, True)


def test_weights_between_equal_values_still_have_a_cause():
    """Where every value is 0, as for words that a constructed model does not read, no weights could change the answer."""
    model = Simple()
    for parameter in model.v.parameters():
        nn.init.zeros_(parameter)
    proof = prove("zero values", model, X)
    assert proof.laws[0].cause == (True, True, True)
    assert not proof.laws[0].failure


def test_a_model_without_attention():
    model = nn.Sequential(nn.Linear(12, 12), nn.Softmax(-1))
    proof = prove("mine", model, {"input": X["x"]})
    assert str(proof.refusal).splitlines()[0] == "mine has no attention that can be read."
    assert "Sequential makes no softmax of a product of queries and keys" in str(proof.refusal)
    assert proof.rows() == ()


class Noise(nn.Module):
    """Dropout that no evaluation mode turns off."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


def test_randomness_is_refused():
    model = Attends(Simple())
    model.layer = nn.Sequential(model.layer, Noise())
    with pytest.raises(ModelError, match="answers the same inputs in two ways"):
        prove("mine", model, X)


def test_weights_that_change_from_pass_to_pass_are_refused():
    """Also if PyTorch counts no write to them."""
    model = Attends(Simple())

    def drift(head, *_):
        head.weight.data.mul_(1.01)

    model.head.register_forward_hook(drift)
    with pytest.raises(ModelError, match="answers the same inputs in two ways"):
        prove("mine", model, X)


@pytest.mark.parametrize("model", [nn.Linear(12, 6), Conv1D(6, 12)], ids=["Linear", "Conv1D"])
def test_products_from_memory_are_those_that_were_computed(model):
    """Bit for bit, for an input or for its rows, with their gradient; and computed again after a write, or when asked for."""
    memo, x = ProductMemo(model), X["x"].clone().requires_grad_()
    plain, mixed = model(x), torch.cat([X["x"][1:].flip(1), torch.ones(1, 5, 12)])
    expected = torch.autograd.grad(plain[0, 1, 2:4].sum(), x)[0]
    with replace_forwards(memo.forwards):
        assert torch.equal(model(x), plain)
        assert torch.allclose(torch.autograd.grad(model(x)[0, 1, 2:4].sum(), x)[0], expected, rtol=1e-6)
        model.weight.data[0, 1] += 1  # nobody sees one number: what follows shows what is from memory
        assert torch.equal(model(x), plain)
        with memo.by_rows():
            assert torch.equal(model(mixed)[0], plain[1].flip(0))
        with memo.suspended():
            assert not torch.equal(model(x), plain)
        with torch.no_grad():
            model.weight.mul_(1)
        assert not torch.equal(model(x), plain)
        before = model(x)
        model.weight.data.mul_(2)  # PyTorch does not count this
        assert not torch.equal(model(x), before)
    memo.close()
    assert not memo.forwards


def test_a_second_mixing_through_a_map_that_the_whole_model_holds_is_seen():
    def mix_twice(attention, mixed, x, ids):
        return attention.o_proj(mixed) + attention.other(x.roll(1, 1))

    model = fooling.Fooling(out=mix_twice)
    layers: Any = model.layers
    model.shared = nn.Linear(fooling.WIDTH, fooling.WIDTH)
    layers[0].attn.other = model.shared
    del model._modules["layers"]
    model.layers = layers  # behind it, so that its name is of the whole model
    shares = [found.share for found in prove("mine", model.eval(), fooling.ids()).weights]
    assert shares[0] < 0.5
    assert shares[1] == 1


class Pooled(fooling.Fooling):
    """Its head pools the tokens that rank above the text's mean: there are none if all are alike."""

    def __init__(self):
        super().__init__()
        self.rank = nn.Linear(fooling.WIDTH, 1)

    def forward(self, input_ids):
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for layer in self.layers:
            x = layer(x, input_ids)
        ranks = self.rank(x)[..., 0]
        above = ranks > ranks.mean(1, keepdim=True) + 1e-5
        return self.head(torch.stack([row[here].amax(0) for row, here in zip(x, above, strict=True)]))


class Rounding(fooling.Attention):
    """Scores are rounded, though not their derivative."""

    def attend(self, q, k, v, x):
        scores = q @ k.transpose(2, 3) * (fooling.WIDTH // fooling.HEADS) ** -0.5
        return torch.softmax(scores + ((8 * scores).round() / 8 - scores).detach(), -1) @ v


def test_rounded_scores_are_seen_whatever_the_models_head_makes_of_its_rows():
    model = Pooled().eval()
    attention: Any = model.layers[0].attn
    attention.__class__ = Rounding
    assert [law.scaled for law in prove("mine", model, fooling.ids()).laws] == [False, True]


def test_every_read_runs_the_whole_model():
    model, ran = fooling.Fooling().eval(), []
    subject = load(model, inputs=fooling.ids())
    batch = subject.batch_of(fooling.ids())
    hooks = [
        model.register_forward_pre_hook(lambda *_: ran.append(1)),
        model.register_forward_hook(lambda *_: ran.append(-1)),
    ]
    with sampled_laws(subject):
        for _ in range(12):
            subject.each(batch, lambda _trace: None)
    assert len(ran) >= 24
    assert sum(ran) == 0
    for hook in hooks:
        hook.remove()


class Summed(nn.Module):
    """Every dimension is the sum of those before it."""

    def forward(self, q):
        return q.cumsum(-1)


def test_what_is_not_a_selection_is_named():
    cases = {"normed": Simple(norm=nn.LayerNorm(3)), "mixed": Simple(norm=Summed()), "unknown": Simple(norm=nn.Tanh())}
    assert proved(cases["normed"]).weights[0].projections.origins["q"].words == "rows of layer.q, normed in each head"
    for how, layer in cases.items():
        found = proved(layer).weights[0].projections
        assert found.origins["q"].how == how
        assert found.w_q is None
        assert found.w_k is not None
    assert "q is made of layer.q, but no selection" in proved(cases["mixed"]).notes()[0]
    assert "q looks like rows of layer.q, but recomputed from them it is off by" in proved(cases["unknown"]).notes()[0]
    normed = proved(cases["normed"]).weights[0].projections.origins["q"]
    assert normed.rows is not None
    assert normed.rows.tolist() == [[0, 1, 2], [3, 4, 5]]
    notes = proved(cases["normed"]).notes()
    assert notes == ("Layer 1, q: rows of layer.q, normed in each head.",)


def test_a_gate_and_a_change_before_the_output_are_named():
    gated: Any = Simple()
    gated.gate = nn.Linear(12, 6)
    gated.on_output = lambda o, x: o * torch.sigmoid(gated.gate(x))
    origin = proved(gated).weights[0].projections.origins["o"]
    assert origin.how == "gated"
    assert "layer.gate" in origin.words
    squashed = proved(Simple(output=lambda o, x: torch.tanh(o))).weights[0].projections.origins["o"]
    assert squashed.how == "unknown"
    assert squashed.words == "the output is changed before it enters layer.o"


def test_a_permuted_and_widened_input_of_the_output_is_found():
    order = [4, 2, 0, 5, 3, 1]
    layer = Simple(output=lambda o, x: torch.cat([x, o[..., order]], -1))
    layer.o = nn.Linear(18, 12)
    found = proved(layer).weights[0].projections
    origin = found.origins["o"]
    assert origin.rows is not None
    assert origin.rows.flatten().tolist() == [12 + order.index(i) for i in range(6)]
    assert origin.words == "columns of layer.o, whose other 12 inputs are not attention's"
    assert origin.residual is not None
    assert origin.residual < 1e-6  # float32


def test_a_factor_of_its_own_for_each_dimension_is_in_the_weights():
    factors = torch.tensor([1.0, 2.0, 3.0])

    class Scaled(nn.Module):
        def forward(self, q):
            return q * factors

    layer = Simple(norm=Scaled())
    found = proved(layer).weights[0].projections
    assert found.w_q is not None
    expected = layer.q.weight.detach().T.unflatten(1, (2, 3)).transpose(0, 1) * factors
    assert torch.allclose(found.w_q, expected, rtol=1e-5)
    assert "each dimension times a factor of its own" in found.origins["q"].words


class Adapted(nn.Module):
    """A projection that is a linear map and a low-rank one, as adapters make it."""

    def __init__(self, inside, outside):
        super().__init__()
        self.in_features, self.out_features = inside, outside
        self.base_layer = nn.Linear(inside, outside)
        self.down, self.up = nn.Linear(inside, 2, bias=False), nn.Linear(2, outside, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


class Quantised(nn.Module):
    """A projection whose weight is stored in bytes."""

    def __init__(self, inside, outside):
        super().__init__()
        self.in_features, self.out_features = inside, outside
        self.register_buffer("weight", torch.randint(-128, 127, (outside, inside), dtype=torch.int8))
        self.register_buffer("bias", torch.randn(outside))

    def forward(self, x):
        return F.linear(x, self.get_buffer("weight").to(x.dtype) / 128, self.get_buffer("bias"))


@pytest.mark.parametrize("kind", [Adapted, Quantised])
def test_other_affine_modules_are_found_by_feeding_them_zero_and_one(kind):
    layer = Simple(project=kind)
    found = proved(layer).weights[0].projections
    for name, t in (("q", found.w_q), ("k", found.w_k), ("v", found.w_v)):
        origin = found.origins[name]
        assert origin.how == "rows", origin.words
        assert origin.parameter is None
        module = getattr(layer, name)
        zero = module(torch.zeros(12))
        expected = (module(torch.eye(12)) - zero).detach().unflatten(1, (2, 3)).transpose(0, 1)
        assert t is not None
        assert torch.allclose(t, expected, atol=1e-5)


def test_affine_weights_are_out_by_in():
    module = nn.Conv1d(4, 6, 1, groups=2)
    affine = affine_of("m", module, 4, torch.zeros(1))
    assert isinstance(affine, Affine)
    x = torch.randn(1, 4, 5)
    made = affine.weight @ x[0] + (0 if affine.bias is None else affine.bias[:, None])
    assert torch.allclose(made, module(x)[0], atol=1e-6)
    assert affine.parameter == "m.weight"


def test_a_law_is_a_law_of_every_row():
    draw = torch.Generator().manual_seed(0)
    v = torch.randn(1, 2, 4, 3, generator=draw, dtype=torch.float64)
    weights = torch.softmax(torch.randn(1, 4, 4, 4, generator=draw, dtype=torch.float64), -1)
    output = weights @ v.repeat_interleave(2, 1)
    yes = (True, True, True)

    def law(weights, output, sink=False):
        return check_law(Call("m", 0, output, v, v, weights, output, None), yes, sink)

    assert law(weights, output).failure == ""
    off = weights.clone()
    off[0, 3, 2] *= 0.9
    right = off @ v.repeat_interleave(2, 1)
    assert law(off, right).failure == "rows of weights sum to 1 only within 1.0e-01"
    assert law(off, right, sink=True).failure == ""
    assert "weights times v miss the output by" in law(off, output, sink=True).failure
    assert "rows of weights" in law(off * 2, right * 2, sink=True).failure
    asleep = weights.clone()
    asleep[0, :, 1] = 0
    assert law(asleep, asleep @ v.repeat_interleave(2, 1)).failure == ""
    assert "rows of weights" in law(0 * weights, 0 * output).failure
    assert check_law(Call("m", 0, v, v, v, None, v, None), yes).failure != ""


def test_a_call_that_is_not_there_cannot_be_written_to():
    model = Attends(Simple())
    with pytest.raises(ModelError) as caught, record_products(model, Edits(write={3: lambda p: p})):
        model(**X)
    assert "q, k and v of call 3 of Attends cannot be replaced." in str(caught.value)
    assert "Its forward pass has 1 attention calls, counted from 0." in str(caught.value)
    assert "Replace them at other layers." in str(caught.value)


class Late(Simple):
    """Attention that makes its values only after its weights."""

    def forward(self, x):
        q, k = (m(x).unflatten(-1, (2, 3)).transpose(1, 2) for m in (self.q, self.k))
        weights = torch.softmax(q @ k.transpose(2, 3), -1)
        v = self.v(x).unflatten(-1, (2, 3)).transpose(1, 2)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


def test_values_that_come_too_late_are_read_but_not_written():
    model = Attends(Late())
    late = pytest.raises(ModelError, match="The values of 'layer' are made only after its scores")
    with late, record_products(model, Edits(write={0: lambda p: p})):
        model(**X)
    with record_products(model) as calls:
        model(**X)
    assert len(calls) == 1


def test_random_numbers_are_drawn_as_if_nobody_had_looked():
    """To write, a pass is rehearsed; dropout afterwards is that of a model that ran once."""
    model = Attends(Simple()).train()
    model.layer = nn.Sequential(nn.Dropout(0.5), model.layer)
    torch.manual_seed(3)
    once = model(**X)
    torch.manual_seed(3)
    with record_products(model, Edits(write={0: lambda p: p})):
        again = model(**X)
    assert torch.equal(once, again)


def test_attention_in_pieces_has_no_weights_outside_its_window():
    model = zoo.build("longformer")
    proof = prove("longformer", model)
    inputs = example_inputs("longformer", model)
    with torch.no_grad(), proof.hook(model, Edits()) as calls:
        model(**inputs)
    weights = calls[0].weights
    assert weights is not None
    apart = (torch.arange(8)[:, None] - torch.arange(8)).abs()
    assert weights[..., apart > 2].abs().max() == 0
    assert (weights[..., apart <= 2] > 0).float().mean() > 0.5
    assert not calls[0].output.requires_grad


def test_pieces_need_a_linear_value_and_a_query_in_its_place():
    model = Attends(Simple())
    with torch.no_grad(), following(model) as follower:
        model(**X)
    assert follower.unread == []
    assert find_pieces(model, X, follower.unread) == ()


def test_torchs_own_attention_is_read_by_its_own_hand():
    """`scaled_dot_product_attention` gives no weights; its weights are what it makes of the identity."""

    class Direct(Simple):
        def forward(self, x):
            q, k, v = (m(x).unflatten(-1, (2, 3)).transpose(1, 2) for m in (self.q, self.k, self.v))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7)
            return self.o(o.transpose(1, 2).flatten(2))

    model = Attends(Direct())
    with torch.no_grad(), record_products(model) as calls:
        model(**X)
    (call,) = calls
    mask = torch.full((5, 5), float("-inf")).triu(1)
    expected = torch.softmax(call.q @ call.k.transpose(2, 3) * 0.7 + mask, -1)
    assert call.weights is not None
    assert torch.allclose(call.weights, expected, atol=1e-6)  # float32
    assert call.scale == 0.7
    held = torch.eye(5).expand(2, 2, 5, 5)
    with torch.no_grad(), record_products(model, Edits(hold={0: held})) as calls:
        model(**X)
    assert torch.equal(calls[0].output, calls[0].v)
    assert prove("mine", model, X).refusal is None
