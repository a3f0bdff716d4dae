"""Measures take one layer at a time: what was read of a layer is gone before the next is met."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import tinyhf
from tests.raw import write_splits
from transformers import BertConfig, BertModel

import trisect
from trisect.core.errors import ModelError
from trisect.core.machine import Machine
from trisect.core.subject import Texts
from trisect.core.trace import Address, Projections, Trace
from trisect.experiments.patch import run
from trisect.experiments.profile import run as profile
from trisect.experiments.similarity.run import read_scores
from trisect.hf.load import load
from trisect.lab.experiment import RunContext
from trisect.measure import patching

TEXTS = ["w1 w2 w3 , w4 w5 .", "w6 w7 w8 w9", "w7 w8 w9 w10 w11 w12", "w3 w4 w1"]


def subject():
    return load(tinyhf.bert(), tinyhf.tokenizer())


def test_each_layer_is_that_of_a_whole_reading_and_let_go_before_the_next_is_met():
    one = subject()
    batch = next(one.batches(TEXTS))
    seen: list[Trace] = []
    one.each(batch, seen.append)
    for trace, whole in zip(seen, one.trace(batch).traces, strict=True):
        assert trace.address == whole.address
        for name in ("q", "k", "v", "weights", "output", "query_real", "key_real"):
            assert torch.equal(getattr(trace, name), getattr(whole, name))
        assert trace.block is not None
        assert whole.block is not None
        assert torch.equal(trace.block.residual, whole.block.residual)
    assert alive_before_the_next(lambda see: one.each(batch, see)) == [0, 0]
    assert alive_before_the_next(lambda see: [see(trace) for trace in one.trace(batch).traces]) == [0, 1]


def alive_before_the_next(look: Callable[[Callable[[Trace], object]], object]) -> list[int]:
    """How many layers' weights are still held when the next layer is met."""
    met: list[weakref.ref[torch.Tensor]] = []
    counts: list[int] = []

    def see(trace: Trace) -> None:
        counts.append(sum(ref() is not None for ref in met))
        met.append(weakref.ref(trace.weights))

    look(see)
    return counts


@pytest.fixture
def unread(monkeypatch):
    """A model that nobody may ask for a Reading, which holds all layers at once."""
    one = subject()

    def never(*_):
        raise AssertionError("a whole Reading was asked for")

    monkeypatch.setattr(type(one), "trace", never)
    return one


def test_norms_and_scores_hold_no_whole_reading(unread, tmp_path):
    assert trisect.norms(unread, TEXTS, out=tmp_path / "norms", quiet=True).tables["measures"].height > 0
    context = RunContext(tmp_path, Machine(quiet=True), (unread,))
    read = read_scores(context, Texts("four", lambda: iter(TEXTS)), 2, {})
    assert [str(address) for address in read] == ["layer 1", "layer 2"]


def test_a_profile_holds_no_whole_reading_and_no_weights(unread, monkeypatch, tmp_path):
    """A copy of every layer's weights would be a fifth of a large model's."""
    copies: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    copied, score = Projections.copy_to, profile.score_layer

    def copy(own: Projections, device: torch.device, copies_all: bool = True) -> Projections:
        made = copied(own, device, copies_all)
        if made.w_v is not None and made.w_v is not own.w_v:
            copies.append(weakref.ref(made.w_v))
        return made

    def scored(*given: Any) -> Any:
        alive.append(sum(ref() is not None for ref in copies))
        return score(*given)

    monkeypatch.setattr(Projections, "copy_to", copy)
    monkeypatch.setattr(profile, "score_layer", scored)
    lines = (f"w{i} w{i + 1} , w{(3 * i) % 40} w{(7 * i) % 40} ." for i in range(38))
    texts = write_splits(tmp_path / "texts", "\n".join(lines))
    result = trisect.profile(unread, texts, labels=("word",), words=150, out=tmp_path / "out", quiet=True)
    assert result.tables["measures"].height > 0
    assert alive == [0, 0]


def test_weights_are_held_no_longer_than_a_layer_and_refused_when_they_change_meanwhile():
    one = subject()
    held: list[weakref.ref[torch.Tensor]] = []
    counts = []
    for projections in one.projections():
        assert projections.w_q is not None
        counts.append(sum(ref() is not None for ref in held))
        held.append(weakref.ref(projections.w_q))
    assert len(one.projections()) == len(held) == 2
    assert counts[-1] == 0
    assert [p.address for p in one.projections()[:1]] == [one.projections()[0].address]
    layers = iter(one.projections())
    next(layers)
    with torch.no_grad():
        next(p for p in one.model.parameters() if p.dim() == 2).add_(1.0)
    with pytest.raises(ModelError, match=r"(?s)have changed since it was loaded.*Load it again"):
        next(layers)


@pytest.mark.parametrize("how", ["denoise", "both"])
def test_patches_are_the_same_whether_another_texts_parts_are_held_together_or_layer_by_layer(
    how, monkeypatch, tmp_path
):
    held: list[int] = []

    def record(*given: Any) -> Any:
        found = patching.record(*given)
        held.append(len(found.parts))
        return found

    monkeypatch.setattr(run, "record", record)

    def patched(room: int) -> list[float]:
        monkeypatch.setattr(run, "ROOM", room)
        found = trisect.patch(
            subject(), pair_list=[("w1 w2 w3", "w4 w5 w6")], how=how, out=tmp_path / str(room), quiet=True
        )
        return found.tables["measures"]["value"].to_list()

    together = patched(2**30)
    assert max(held) == 2
    held.clear()
    assert patched(1) == together
    assert max(held) == 1


def test_outputs_are_compared_row_by_row_and_kept_of_the_unedited_pass_alone():
    one = load(
        BertModel(BertConfig(vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2)),
        tinyhf.tokenizer(),
    )
    assert one.objective == "output"
    batch = next(one.batches(TEXTS))
    clean = one.score(batch)
    edited = one.score(batch, {Address("plain", 1): lambda parts: parts._replace(v=2 * parts.v)}, None, clean)
    assert clean.output is not None
    assert edited.output is None
    new = one.outputs(batch, {Address("plain", 1): lambda parts: parts._replace(v=2 * parts.v)}).double()
    old = clean.output.double()
    whole = ((new - old).square().sum(-1) / old.square().sum(-1)).masked_fill(~batch.source.real, 0.0).sum(1)
    assert edited.total.tolist() == pytest.approx(whole.tolist())
