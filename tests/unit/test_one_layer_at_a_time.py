"""Measures take one layer at a time: what was read of a layer is gone before the next is met."""

import weakref
from collections.abc import Callable

import pytest
import torch
from tests import tinyhf

import trisect
from trisect.core.subject import Texts
from trisect.core.trace import Trace
from trisect.experiments.similarity.run import _read as read_scores
from trisect.hf.load import load

TEXTS = ["w1 w2 w3 , w4 w5 .", "w6 w7 w8 w9", "w7 w8 w9 w10 w11 w12", "w3 w4 w1"]


def subject():
    return load(tinyhf.bert(), tinyhf.tokenizer())


def test_each_layer_is_the_one_of_a_whole_reading():
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


def alive_before_the_next(look: Callable[[Callable[[Trace], object]], object]) -> list[int]:
    """How many layers' weights are still held when the next layer is met."""
    met: list[weakref.ref[torch.Tensor]] = []
    counts: list[int] = []

    def see(trace: Trace) -> None:
        counts.append(sum(ref() is not None for ref in met))
        met.append(weakref.ref(trace.weights))

    look(see)
    return counts


def test_a_layer_is_let_go_before_the_next_is_met():
    one = subject()
    batch = next(one.batches(TEXTS))
    assert alive_before_the_next(lambda see: one.each(batch, see)) == [0, 0]
    assert alive_before_the_next(lambda see: [see(trace) for trace in one.trace(batch).traces]) == [0, 1]


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
    read = read_scores(unread, Texts("four", lambda: iter(TEXTS)), 2, {}, lambda *_: None)
    assert [str(address) for address in read] == ["layer 1", "layer 2"]


def test_a_profile_holds_no_whole_reading(unread, tmp_path):
    (tmp_path / "texts").mkdir()
    for split in ("train", "valid", "test"):
        lines = (f"w{i} w{i + 1} , w{(3 * i) % 40} w{(7 * i) % 40} ." for i in range(38))
        (tmp_path / "texts" / f"{split}.txt").write_text("\n".join(lines))
    result = trisect.profile(unread, tmp_path / "texts", labels=("word",), words=150, out=tmp_path / "out", quiet=True)
    assert result.tables["measures"].height > 0
