"""Queries, keys and values with a norm behind their projection: what lies under it is found, and is all that a head reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import tinyhf, zoo
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.trace import NormedMap
from trisect.experiments.similarity.run import describe_omissions, measure_weights
from trisect.hf.hooks.calls import Edits
from trisect.hf.hooks.interface_hook import record_interface
from trisect.hf.load import load
from trisect.hf.verify.examples import example_inputs
from trisect.hf.verify.proof import prove
from trisect.measure import similarity

MODULES = {
    "qwen3": "model.layers.0.self_attn.{}_proj",
    "olmo2": "model.layers.0.self_attn.{}_proj",
    "persimmon": "model.layers.0.self_attn.query_key_value",
}
ROUNDING = 1e-4  # single precision, through a norm and rotary positions


def heads_of(model: Any, name: str, module: str, change: Tensor | None) -> Tensor:
    """What q, k or v of the first layer is at the first position, with something added to what its projection is given."""
    added = model.get_submodule(module).register_forward_pre_hook(
        lambda _m, args: None if change is None else (args[0] + change, *args[1:])
    )
    with added, torch.no_grad(), record_interface(model, Edits()) as calls:
        model(**example_inputs("x", model))
    return getattr(calls[0], name)[0, :, 0]


def directions(of: Tensor) -> Tensor:
    return of / of.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("qwen3", "q"), ("qwen3", "k"), ("olmo2", "q"), ("persimmon", "k")],
)
def test_what_a_head_reads_is_what_the_weights_under_its_norm_read(kind, name):
    """Iff: a change of the input that they do not read leaves the head as it was, and one that they read does not."""
    model = zoo.build(kind)
    under = prove(kind, model).weights[0].projections.normed[name]
    module = MODULES[kind].format(name)
    span = similarity.span(under.weight)
    before = heads_of(model, name, module, None)
    for head in range(len(under.weight)):
        basis = span.basis[head]
        change = torch.randn(basis.shape[0], generator=torch.Generator().manual_seed(head), dtype=torch.float64)
        read = basis @ (basis.T @ change)
        blind, seen = (heads_of(model, name, module, c.float())[head] for c in (change - read, read))
        own = before[head]
        if kind == "olmo2":  # its norm is of all heads together: of one head the direction is its own
            blind, seen, own = (directions(t) for t in (blind, seen, own))
        assert (blind - own).abs().max() < ROUNDING * own.abs().max()
        assert (seen - own).abs().max() > 0.05 * own.abs().max()


def test_a_norm_that_subtracts_the_mean_reads_one_direction_less():
    for kind, lost in (("qwen3", 0), ("persimmon", 1)):
        under = prove(kind, zoo.build(kind)).weights[0].projections.normed["q"]
        assert similarity.span(under.weight).rank.tolist() == [under.weight.shape[2] - lost] * 4


def test_what_a_norm_multiplies_by_zero_is_not_read():
    model = zoo.build("qwen3")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_norm.weight[3] = 0
    under = prove("qwen3", model).weights[0].projections.normed["q"]
    assert not under.weight[:, :, 3].any()
    assert similarity.span(under.weight).rank.tolist() == [15] * 4


def test_a_norm_that_is_none_by_its_name_has_no_rows_under_it():
    """What is scaled in another way than a norm's is not taken for one: here by the position."""
    model = zoo.build("qwen3")
    norm = model.model.layers[0].self_attn.q_norm
    norm.register_forward_hook(lambda _m, _a, out: out * torch.arange(1, out.shape[1] + 1)[None, :, None, None])
    found = prove("qwen3", model).weights
    assert set(found[0].projections.normed) == {"k"}
    assert set(found[1].projections.normed) == {"q", "k"}


def test_similarity_measures_what_is_read_and_says_so():
    projections = [f.projections for f in prove("qwen3", zoo.build("qwen3")).weights]
    found = [m for m in measure_weights(projections) if m.group is None and m.address.layer == 1]
    parts = {name: {m.component for m in found if m.measure == name} for name in {m.measure for m in found}}
    every = {"q-k", "k-v", "q-v"}
    of_spans = ("overlap", "least_angle_degrees", "overlap_among", "overlap_others_above")
    assert parts == dict.fromkeys(of_spans, every) | {"effective_rank": {"v", "v-o"}}
    q = similarity.span(projections[0].normed["q"].weight)
    k = similarity.span(projections[0].normed["k"].weight.repeat_interleave(2, 0))
    (own,) = (m.values for m in found if (m.measure, m.component) == ("overlap", "q-k"))
    assert own == pytest.approx(similarity.angles(q, k).overlap.numpy())
    assert describe_omissions(projections) == tuple(
        "What changes with the norm (cosine, CKA, symmetric share, effective rank) is left out at layer 1, layer 2: "
        f"{name} has a norm behind its projection (rows of model.layers.N.self_attn.{name}_proj, normed in each head), which "
        "leaves alone what the projection reads: overlaps and angles are of that."
        for name in "qk"
    )


def test_weights_under_a_norm_are_looked_at_again():
    """A change through `.data` is no write that PyTorch counts."""
    model = zoo.build("qwen3")
    subject = load(model, tokenizer=tinyhf.tokenizer())
    assert isinstance(subject.projections()[0].normed["q"], NormedMap)
    model.model.layers[1].self_attn.q_proj.weight.data[0] *= 2
    for ask in (subject.projections, lambda: subject.read("w1 w2 w3")):
        with pytest.raises(ModelError, match="q_proj makes is not") as caught:
            ask()
        assert caught.value.problem == "Layer 2 of Qwen3ForCausalLM does not compute what was found on loading."


@pytest.mark.parametrize("name", ["q", "k"])
def test_a_norm_that_makes_something_else_in_a_read_is_seen(name, monkeypatch):
    model: Any = zoo.build("qwen3")
    subject = load(model)
    norm = getattr(model.model.layers[1].self_attn, f"{name}_norm")
    own = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: own(x) * (1 + (x.shape[1] > 9)))
    ids = torch.arange(3, 12)[None]
    assert subject.read({"input_ids": ids}).traces
    with pytest.raises(ModelError, match=f"{name} is more than what model.layers.1.self_attn.{name}_proj makes"):
        subject.read({"input_ids": torch.arange(3, 15)[None]})
