"""Narrow products and recorded passes: laws that hold on a CPU too, so that the code for GPUs is run everywhere."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from trisect.lm.loss import loss_and_gradients, token_scores, workspace
from trisect.lm.narrow import NarrowDecoder
from trisect.lm.replay import CudaGraph, Replay
from trisect.lm.train import Trainer

CORPUS = tiny.corpus()
CALM = [r for r in tiny.runs() if r.edit is None or r.edit.kind == "freeze"]
ATTACKED = [r for r in tiny.runs() if r.edit is not None and r.edit.kind == "attack"]


class Again:
    """Records by remembering the work itself."""

    def __init__(self, spoil=1.0):
        self.spoil, self.calls = spoil, 0
        self.trainer: Trainer | None = None

    def record(self, work, draw):
        scores = work()

        def replay():
            self.calls += 1
            found = work()
            scores.loss.copy_(found.loss)
            scores.correct.copy_(found.correct)
            if self.trainer is not None:
                self.trainer.gradient.mul_(self.spoil)

        return replay, scores


class Refusing:
    def record(self, work, draw):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def stepped(trainer, steps):
    return [trainer.step() for _ in range(steps)]


def test_a_replayed_fleet_trains_bit_for_bit_as_an_eager_one_through_short_windows_and_epochs():
    recorder = Again()
    eager, replayed = Trainer(CALM, CORPUS), Trainer(CALM, CORPUS, recorder=recorder)
    count = eager.steps_per_epoch + 2
    for (a, b, _), (c, d, _) in zip(stepped(eager, count), stepped(replayed, count), strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
    assert torch.equal(eager.flat, replayed.flat)
    assert replayed.replay is not None
    assert replayed.replay.usable
    assert recorder.calls >= count - 1  # one more in the check, one less for each window of another shape


def test_a_replay_that_is_not_the_same_is_given_up_and_training_is_eager():
    recorder = Again(1.01)
    eager, spoiled = Trainer(CALM, CORPUS), Trainer(CALM, CORPUS, recorder=recorder)
    recorder.trainer = spoiled
    stepped(eager, 3)
    stepped(spoiled, 3)
    assert isinstance(spoiled.replay, Replay)
    assert not spoiled.replay.usable
    assert spoiled.replay.reason == "a replayed gradient differs from an eager one by 1.0e-02"
    assert torch.equal(eager.flat, spoiled.flat)


def test_what_cannot_be_recorded_is_trained_eagerly_and_says_why():
    eager, refused = Trainer(CALM, CORPUS), Trainer(CALM, CORPUS, recorder=Refusing())
    stepped(eager, 3)
    stepped(refused, 3)
    assert refused.replay is not None
    assert refused.replay.reason == "it could not be recorded (operation not permitted when stream is capturing)"
    assert torch.equal(eager.flat, refused.flat)


def test_a_fleet_with_attackers_is_never_recorded():
    trainer = Trainer(ATTACKED, CORPUS, recorder=Refusing())
    trainer.step()
    assert trainer.replay is None


def test_narrow_products_move_a_gradient_by_their_rounding_and_no_more():
    wide, narrow = (Trainer(CALM + ATTACKED, CORPUS, products=p) for p in (None, torch.bfloat16))
    for trainer in (wide, narrow):
        trainer.training = replace(trainer.training, clip=1e9)
        trainer.step()
    error = (narrow.gradient - wide.gradient).norm(dim=1) / wide.gradient.norm(dim=1)
    # bfloat16 keeps 8 bits: 4e-3 a factor; some tens of products lie one behind the other
    assert float(error[: len(CALM)].max()) < 0.05
    assert float(error.min()) > 1e-5
    assert narrow.flat.dtype == torch.float32


def test_evaluation_is_never_narrow():
    wide, narrow = Trainer(CALM, CORPUS), Trainer(CALM, CORPUS, products=torch.bfloat16)
    assert wide.evaluate() == narrow.evaluate()


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("block", [40, 4_000])
def test_narrow_decoder_products_agree_with_wide_ones_in_blocks_of_any_size(block, members, monkeypatch_block):
    draw = torch.Generator().manual_seed(1)
    h, w, b = (torch.randn(members, *s, generator=draw) for s in ((9, 8), (17, 8), (17,)))
    y = torch.randint(0, 17, (9,), generator=draw)
    scores, wide = loss_and_gradients(h, w, b, y)
    narrow_decoder, into = NarrowDecoder(torch.bfloat16), (torch.full_like(w, 7.0), torch.full_like(b, 7.0))
    with monkeypatch_block(block):
        narrow_decoder(h, w, b, y, into)
        near, narrow = narrow_decoder(h, w, b, y, into)  # in room that was used before
    torch.testing.assert_close(near.loss, scores.loss, rtol=0.02, atol=0.05)
    for a, c in zip(narrow, wide, strict=True):
        assert a.dtype == torch.float32
        assert float((a - c).norm() / c.norm()) < 0.02
        assert not torch.equal(a, c)


def test_the_gold_words_part_of_a_narrow_gradient_keeps_full_precision():
    """Where p is next to nothing everywhere, what is left is the gold words' part: exact to float32."""
    draw = torch.Generator().manual_seed(2)
    h, w = torch.randn(1, 6, 8, generator=draw), 1e-3 * torch.randn(1, 4_000, 8, generator=draw)
    b, y = torch.zeros(1, 4_000), torch.arange(6)
    into = torch.empty_like(w), torch.empty_like(b)
    _, found = NarrowDecoder(torch.bfloat16)(h, w, b, y, into)
    _, exact = loss_and_gradients(h.double(), w.double(), b.double(), y)
    for a, c in zip(found, exact, strict=True):
        assert float((a - c).norm() / c.norm()) < 5e-4  # all in bfloat16 would be off by 2e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_an_accelerator_a_recorded_graph_trains_as_eager_steps_do():
    eager, replayed = Trainer(CALM, CORPUS, "cuda"), Trainer(CALM, CORPUS, "cuda", recorder=CudaGraph())
    stepped(eager, 5)
    stepped(replayed, 5)
    assert replayed.replay is not None
    assert replayed.replay.usable, replayed.replay.reason
    torch.testing.assert_close(eager.flat, replayed.flat, rtol=1e-3, atol=1e-4)


@settings(max_examples=150, deadline=None)
@given(
    members=st.integers(1, 4),
    rows=st.integers(1, 40),
    vocabulary=st.integers(2, 60),
    block=st.integers(1, 3_000),
    fewer=st.integers(0, 20),
)
def test_room_for_one_block_is_enough_for_all_and_changes_nothing(
    members, rows, vocabulary, block, fewer, monkeypatch_block
):
    draw = torch.Generator().manual_seed(rows * vocabulary)
    w, b = (
        torch.randn(*s, generator=draw, dtype=torch.float64) for s in ((members, vocabulary, 3), (members, vocabulary))
    )
    h = torch.randn(members, max(1, rows - fewer), 3, generator=draw, dtype=torch.float64)
    y = torch.randint(0, vocabulary, (h.shape[1],), generator=draw)
    free, expected = loss_and_gradients(h, w, b, y)
    with monkeypatch_block(block):
        work = workspace(members * rows, vocabulary, h)
        assert work.numel() <= max(2 * block, vocabulary)
        seen = token_scores(h, w, b, y, work)
        scores, found = loss_and_gradients(h, w, b, y, None, work)
    for one in (seen, scores):
        torch.testing.assert_close(one.loss, free.loss, rtol=1e-12, atol=1e-12)
        assert torch.equal(one.correct, free.correct)
    for a, c in zip(found, expected, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-12, atol=1e-12)
