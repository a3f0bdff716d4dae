"""Narrow and exact products, recorded passes, sums of repeated rows: laws on a CPU too, so that the code for GPUs is run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.elsewhere import elsewhere, moved
from torch.utils._python_dispatch import TorchDispatchMode

from trisect.lm import matmul as products
from trisect.lm.loss import NarrowDecoder, loss_and_gradients, token_scores, workspace
from trisect.lm.matmul import _sum_repeats, add_at
from trisect.lm.replay import CudaGraph, Replay
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus, Split

CORPUS = tiny.corpus()
CALM = [r for r in tiny.runs() if r.edit is None or r.edit.kind == "freeze"]
ATTACKED = [r for r in tiny.runs() if r.edit is not None and r.edit.kind == "attack"]


class Again:
    """Records by remembering the work itself."""

    def __init__(self, spoil=1.0):
        self.spoil, self.calls = spoil, 0
        self.trainer: Trainer | None = None

    def record(self, work, draw):
        said = work()

        def replay():
            self.calls += 1
            for kept, found in zip(said, work(), strict=True):
                kept.copy_(found)
            if self.trainer is not None:
                self.trainer.gradient.mul_(self.spoil)

        return replay, said


class Refusing:
    def record(self, work, draw):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def stepped(trainer, steps):
    return [trainer.step() for _ in range(steps)]


def masked_trainer(corpus=CORPUS, runs=ATTACKED, **more):
    """As on a GPU: tokens without a label are weighted by 0, not left out."""
    trainer = Trainer(runs, corpus, **more)
    for group in tiny.attackers_of(trainer):
        group.masked = True
    return trainer


def thinned(few=()):
    """The corpus with labels of two thirds of its tokens; stretches `few` have none at all."""
    split = CORPUS.splits["train"]
    kept = np.random.default_rng(5).random(len(split.tokens)) < 2 / 3
    for stretch in few:
        kept[stretch] = False
    labels = {column: np.where(kept, own, -1).astype(np.int16) for column, own in split.labels.items()}
    made = {"train": Split(split.tokens, labels), "valid": CORPUS.splits["valid"]}
    return Corpus.make("thinned", CORPUS.vocabulary, CORPUS.labels, made)


@pytest.mark.parametrize("runs", [CALM, ATTACKED], ids=["calm", "attacked"])
def test_a_replayed_fleet_trains_bit_for_bit_as_an_eager_one_through_short_windows_and_other_labels(runs):
    corpus, recorder = thinned(), Again()
    eager, replayed = masked_trainer(corpus, runs), masked_trainer(corpus, runs, recorder=recorder)
    count = 6
    eager.steps_done = replayed.steps_done = eager.steps_per_epoch - 3  # the last window is shorter
    for one, other in zip(stepped(eager, count), stepped(replayed, count), strict=True):
        assert torch.equal(one.loss, other.loss)
        assert {slot: {n: float(v) for n, v in own.items()} for slot, own in one.notes.items()} == {
            slot: {n: float(v) for n, v in own.items()} for slot, own in other.notes.items()
        }
    assert replayed.replay is not None
    assert replayed.replay.usable, replayed.replay.reason
    assert recorder.calls == count  # one more in the check, one less for the short window
    assert torch.equal(eager.flat, replayed.flat)
    for a, b in zip(tiny.attackers_of(eager), tiny.attackers_of(replayed), strict=True):
        assert all(torch.equal(a.state()[name], b.state()[name]) for name in a.state())
        assert float(a.state()["optimizer.step"]) == count


@pytest.mark.parametrize("runs", [CALM, ATTACKED], ids=["calm", "attacked"])
def test_where_a_recording_fails_or_differs_training_is_eager_and_attackers_are_put_back(runs):
    again = Again(1.01)
    eager, failing, spoiled = (masked_trainer(runs=runs, recorder=r) for r in (None, Refusing(), again))
    again.trainer = spoiled
    for trainer in (eager, failing, spoiled):
        stepped(trainer, 3)
    for other, reason in ((failing, "operation not permitted when stream is capturing"), (spoiled, "by 1.0e-02")):
        assert isinstance(other.replay, Replay)
        assert not other.replay.usable
        assert reason in other.replay.reason
        assert torch.equal(eager.flat, other.flat)
        for a, b in zip(tiny.attackers_of(eager), tiny.attackers_of(other), strict=True):
            assert all(torch.equal(a.state()[name], b.state()[name]) for name in a.state())


def test_a_window_with_one_label_or_none_is_not_replayed_and_its_attackers_stand_still():
    each = len(CORPUS.splits["train"].tokens) // tiny.TRAINING.columns
    corpus = thinned([slice(start, start + 40) for start in range(0, 6 * each, each)])
    trainer = masked_trainer(corpus, recorder=Again())
    before = [group.flat.clone() for group in tiny.attackers_of(trainer)]
    assert stepped(trainer, 2)[1].notes == {}
    assert trainer.replay is None
    assert all(torch.equal(a, g.flat) for a, g in zip(before, tiny.attackers_of(trainer), strict=True))


def test_attackers_that_leave_tokens_out_are_never_recorded():
    trainer = Trainer(ATTACKED, CORPUS, recorder=Refusing())
    trainer.step()
    assert trainer.replay is None


class Shapes(TorchDispatchMode):
    """Every operation with the shapes of what it makes."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        several = found if isinstance(found, (tuple, list)) else [found]
        self.seen.append((str(func), [tuple(t.shape) for t in several if isinstance(t, torch.Tensor)]))
        return found


@pytest.mark.parametrize("masked", [True, False])
def test_masked_attackers_do_the_same_operations_on_the_same_shapes_whatever_is_labelled(masked):
    trainer = Trainer(ATTACKED, thinned())
    for group in tiny.attackers_of(trainer):
        group.masked = masked
    trainer.step()
    seen = []
    for window in (1, 2):
        piece = trainer.windows[window]
        with Shapes() as shapes:
            trainer._backward(piece)
        seen.append(shapes.seen)
    assert (seen[0] == seen[1]) is masked


@pytest.mark.parametrize("aim", ["wrong", "prior"])
def test_masked_attackers_are_those_that_leave_tokens_out_to_rounding(aim):
    made = [Trainer(ATTACKED, CORPUS, dtype=torch.float64) for _ in range(2)]
    for one, other in zip(*map(tiny.attackers_of, made), strict=True):
        one._aim = other._aim = aim
        other.masked = True
        draw = torch.Generator().manual_seed(3)
        for _ in range(15):
            x = torch.randn(len(one.slots), one.read.width, 60, generator=draw, dtype=torch.float64)
            y = torch.randint(-4, len(CORPUS.column("pos")), (60,), generator=draw).clamp_min(-1)
            seen = [group.learn(x, y) for group in (one, other)]
            pushed = [group.gradient(x, y) for group in (one, other)]
            for a, b in (*zip(*seen, strict=True), pushed):
                torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
            assert not pushed[1][..., y < 0].any()
        for name, value in one.state().items():
            torch.testing.assert_close(other.state()[name], value, rtol=1e-12, atol=1e-12)


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
@pytest.mark.parametrize("runs", [CALM, ATTACKED, CALM + ATTACKED], ids=["calm", "attacked", "both"])
def test_on_an_accelerator_a_recorded_graph_trains_as_eager_steps_do(runs):
    corpus = thinned()
    eager, replayed = Trainer(runs, corpus, "cuda"), Trainer(runs, corpus, "cuda", recorder=CudaGraph())
    stepped(eager, 5)
    stepped(replayed, 5)
    assert replayed.replay is not None
    assert replayed.replay.usable, replayed.replay.reason
    torch.testing.assert_close(eager.flat, replayed.flat, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("products", [None, torch.bfloat16])
def test_on_an_accelerator_the_same_steps_have_the_same_bits(products):
    one, other = (Trainer(CALM + ATTACKED, CORPUS, "cuda", products=products) for _ in range(2))
    stepped(one, 10)
    stepped(other, 10)
    assert torch.equal(one.flat, other.flat)


@settings(max_examples=60, deadline=None)
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


def drawn(members: int, places: int, words: int, wide: int | None, seed: int) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    shape = () if wide is None else (wide,)
    at = torch.randint(0, words, (places,), generator=draw)
    return at, torch.randn(members, places, *shape, generator=draw), torch.randn(members, words, *shape, generator=draw)


CASES = given(
    members=st.integers(1, 3),
    places=st.integers(1, 40),
    words=st.integers(1, 30),
    wide=st.none() | st.integers(1, 4),
    seed=st.integers(0, 1000),
)


@settings(max_examples=50, deadline=None)
@CASES
def test_off_the_cpu_rows_are_added_as_on_it(members, places, words, wide, seed):
    at, rows, table = drawn(members, places, words, wide, seed)
    want = table.clone().double().index_add_(1, at, rows.double(), alpha=-0.5)
    there = moved(table)
    with elsewhere() as mode:
        found = add_at(there, moved(at), moved(rows), -0.5)
        assert mode.left == mode.looks == 0
        torch.testing.assert_close(found.cpu().double(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(add_at(table.clone(), at, rows, -0.5), table.index_add_(1, at, rows, alpha=-0.5))


@settings(max_examples=50, deadline=None)
@CASES
def test_what_is_added_has_the_same_bits_in_any_order(members, places, words, wide, seed):
    at, rows, table = drawn(members, places, words, wide, seed)
    order = torch.randperm(places, generator=torch.Generator().manual_seed(seed + 1))
    own = _sum_repeats(at, rows)
    one = table.clone().index_add_(1, at, own)
    assert torch.equal(one, table.clone().index_add_(1, at[order], own[:, order]))
    for place in at.unique():
        filled = own[:, at == place].reshape(members, int((at == place).sum()), -1).ne(0).any(2)
        assert int(filled.sum(1).max()) <= 1


def test_rows_added_as_they_come_have_other_bits_in_another_order():
    at, rows, table = drawn(1, 40, 2, 3, 0)
    order = torch.arange(39, -1, -1)
    one, other = table.clone().index_add_(1, at, rows), table.clone().index_add_(1, at[order], rows[:, order])
    assert not torch.equal(one, other)


def test_the_faster_product_is_taken_only_where_it_proves_itself(monkeypatch):
    before = torch.get_float32_matmul_precision()
    for error, expected in ((1e-7, "medium"), (3e-3, "highest")):
        monkeypatch.setattr(products, "_error", lambda _, error=error: error)
        with products.fast_products() as chosen:
            assert chosen == expected
            assert torch.get_float32_matmul_precision() == expected
        assert torch.get_float32_matmul_precision() == before


def test_the_check_measures_a_real_product():
    with products.fast_products():
        assert products._error("highest") < products.TOLERANCE
