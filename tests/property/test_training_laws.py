"""Laws of training: each member is a torch model, members never mix; narrow and exact products, recorded passes, and sums."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from bench.plain import names, plain_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.elsewhere import elsewhere, moved
from torch.utils._python_dispatch import TorchDispatchMode

from trisect.core.spec import Model, Run
from trisect.lm import matmul as products
from trisect.lm.fleet import Dropout, causal, forward, generator, initial, layout, views
from trisect.lm.loss import NarrowDecoder, loss_and_gradients, token_scores, workspace
from trisect.lm.matmul import _sum_repeats, add_at
from trisect.lm.replay import CudaGraph, Replay
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus, Split

CORPUS = tiny.corpus()
RUNS = tiny.runs()


def trained(runs: list[Run], steps: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    trainer = Trainer(runs, CORPUS, dtype=dtype)
    for _ in range(steps):
        trainer.step()
    return trainer.flat


def with_training(runs: list[Run], **changes: object) -> list[Run]:
    return [replace(r, training=replace(r.training, **changes)) for r in runs]


@pytest.fixture
def attackers():
    """A group of attackers."""
    trainer = Trainer([r for r in RUNS if r.edit and r.edit.kind == "attack"], CORPUS, dtype=torch.float64)
    return tiny.attackers_of(trainer)[0]


def test_batch_statistics_are_updated_by_the_attackers_own_pass_and_not_by_the_models(attackers):
    x = torch.randn(len(attackers.slots), attackers.places["1.weight"].shape[1], 30, dtype=torch.float64)
    y = torch.arange(30) % len(CORPUS.column("pos"))
    mean, flat = attackers.mean.clone(), attackers.flat.clone()
    attackers.gradient(x, y)
    attackers.judge(x, y)
    assert torch.equal(attackers.mean, mean)
    assert torch.equal(attackers.flat, flat)
    attackers.learn(x, y)
    assert not torch.equal(attackers.mean, mean)
    assert not torch.equal(attackers.flat, flat)


def test_tokens_without_a_label_teach_the_attacker_nothing(attackers):
    x = torch.randn(len(attackers.slots), attackers.places["1.weight"].shape[1], 30, dtype=torch.float64)
    y = torch.arange(30) % 3
    y[10:] = -1
    changed = x.clone()
    changed[..., 10:] = 7.0
    assert torch.equal(attackers.gradient(x, y)[..., :10], attackers.gradient(changed, y)[..., :10])
    assert torch.equal(attackers.gradient(x, y)[..., 10:], torch.zeros_like(x[..., 10:]))
    assert attackers.learn(x, torch.full_like(y, -1)) is None
    assert torch.equal(attackers.gradient(x, torch.full_like(y, -1)), torch.zeros_like(x))


def test_an_attacker_learns_what_the_representation_holds_and_the_push_unlearns_it():
    trainer = Trainer([r for r in RUNS if r.edit and r.edit.kind == "attack"][:1], CORPUS, dtype=torch.float64)
    group = tiny.attackers_of(trainer)[0]
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (200,), generator=draw)
    x = torch.randn(1, 8, 200, generator=draw, dtype=torch.float64) * 0.1
    x[0, 0] += y * 2.0
    for _ in range(150):
        group.learn(x, y)
    loss, correct = group.judge(x, y)
    assert float(correct.double().mean()) > 0.95
    pushed = x - 400 * group.gradient(x, y)  # downhill on −λ·CE
    assert float(group.judge(pushed, y)[0].mean()) > float(loss.mean())


def test_a_member_that_diverges_is_buried_and_leaves_the_others_alone():
    base = next(r for r in RUNS if r.edit is None)
    frozen = next(r for r in RUNS if r.edit and r.edit.kind == "freeze")
    trainer, clean = (Trainer([base, frozen], CORPUS, dtype=torch.float64) for _ in range(2))
    for t in (trainer, clean):
        t.step()
    trainer.flat[1, trainer.places["layers.1.up.weight"].start] = float("nan")
    poisoned = trainer.flat[1].clone()
    for t in (trainer, clean):
        t.step()
        t.step()
    assert trainer.dead == {1: 2}
    assert torch.equal(trainer.flat[0], clean.flat[0])
    assert torch.equal(trainer.flat[1].isnan(), poisoned.isnan())
    assert clean.dead == {}


def test_initial_weights_are_drawn_as_the_source_says():
    model, vocabulary = Model(40, 2, 5, 30, 0.1), 500
    p = views(initial(model, vocabulary, 3)[None], layout(model, vocabulary))
    bounds = {"embed.weight": 0.1, "decoder.weight": 0.1, "layers.1.in.weight": (6 / 160) ** 0.5}
    bounds |= {"layers.2.out.weight": 40**-0.5, "layers.1.up.weight": 40**-0.5, "layers.1.down.weight": 30**-0.5}
    for name, bound in bounds.items():
        assert 0.97 * bound < float(p[name].abs().max()) <= bound, name
        assert float(p[name].std()) == pytest.approx(bound / 3**0.5, rel=0.06)
    for name, value in p.items():
        if name.endswith("bias"):
            assert not value.any(), name
        elif "norm" in name:
            assert (value == 1).all(), name
    assert not torch.equal(initial(model, vocabulary, 3), initial(model, vocabulary, 4))


def test_the_rate_warms_up_by_step_and_decays_by_epoch():
    base = next(r for r in RUNS if r.edit is None)
    trainer = Trainer(with_training([base], rate=0.5, warmup=4, decay=0.5), CORPUS)
    optimizer, rates = trainer.descent.optimizer, []
    assert optimizer is not None
    for _ in range(2 * trainer.steps_per_epoch + 1):
        trainer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:5] == [0.125, 0.25, 0.375, 0.5, 0.5]
    assert rates[trainer.steps_per_epoch] == 0.25
    assert rates[2 * trainer.steps_per_epoch] == 0.125


def test_the_dead_stay_dead_after_a_snapshot(tmp_path):
    runs = RUNS[:2]
    trainer, again = Trainer(runs, CORPUS), Trainer(runs, CORPUS)
    trainer.step()
    trainer.flat[1, 0] = float("nan")
    trainer.step()
    trainer.save(tmp_path / "x", {"epoch": 1})
    assert again.load(tmp_path / "x") == {"epoch": 1}
    assert again.dead == trainer.dead == {1: 2}
    for t in (trainer, again):
        t.step()
    assert torch.equal(trainer.flat[0], again.flat[0])


def test_a_member_whose_evaluation_is_no_number_has_diverged():
    from trisect.lm.train import _record

    trainer = Trainer(RUNS[:2], CORPUS)
    rows = [[], []]
    _record(rows, 1, trainer, {0: [("train", "loss_nats", 3.0)], 1: [("train", "loss_nats", float("inf"))]})
    assert rows == [[(1, "train", "loss_nats", 3.0)], []]
    assert set(trainer.dead) == {1}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_an_accelerator_a_snapshot_goes_on_as_if_never_stopped(tmp_path):
    trainer, again = Trainer(RUNS, CORPUS, "cuda"), Trainer(RUNS, CORPUS, "cuda")
    trainer.step()
    trainer.save(tmp_path / "x", None)
    again.load(tmp_path / "x")
    for t in (trainer, again):
        t.step()
    torch.testing.assert_close(trainer.flat, again.flat, rtol=1e-4, atol=1e-5)


def test_dropout_masks_are_shared_by_members_and_a_function_of_seed_and_step():
    x = torch.ones(3, 4, 50, 8)
    a, b = Dropout(0.2, generator("dropout", 1, 5)), Dropout(0.2, generator("dropout", 1, 5))
    one = a(x)
    assert torch.equal(one[0], one[2])
    assert torch.equal(one[:1], b(x[:1]))
    assert not torch.equal(one, a(x))
    assert not torch.equal(one, Dropout(0.2, generator("dropout", 1, 6))(x))
    assert not torch.equal(one, Dropout(0.2, generator("dropout", 2, 5))(x))
    # 8,000 draws of share 0.2: five standard deviations are 0.022
    many = Dropout(0.2, generator("dropout", 3, 0))(torch.ones(1, 8_000))
    assert float((many == 0).double().mean()) == pytest.approx(0.2, abs=0.023)
    assert float(many.max()) == pytest.approx(1.25, abs=1e-4)
    assert torch.equal(Dropout(0.0, generator("dropout", 1, 1))(x), x)


@settings(max_examples=12)
@given(
    heads=st.integers(1, 3),
    each=st.sampled_from([2, 4, 6]),
    layers=st.integers(1, 3),
    inner=st.integers(1, 9),
    members=st.integers(1, 3),
    length=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_each_member_agrees_with_torch_encoder_in_logits_and_all_gradients(
    heads, each, layers, inner, members, length, seed
):
    model, vocabulary = Model(heads * each, layers, heads, inner, 0.0), 7
    places = layout(model, vocabulary)
    draw = torch.Generator().manual_seed(seed)
    flat = torch.stack([initial(model, vocabulary, seed + i).double() for i in range(members)])
    flat += 0.3 * torch.randn(flat.shape, generator=draw, dtype=torch.float64)  # biases and norms off their start
    x, y = (torch.randint(vocabulary, (2, length), generator=draw) for _ in range(2))
    leaves = {n: v.detach().requires_grad_() for n, v in views(flat, places).items()}
    passed = forward(leaves, x, model)
    scores, found = loss_and_gradients(
        passed.hidden.detach().flatten(1, 2),
        leaves["decoder.weight"].detach(),
        leaves["decoder.bias"].detach(),
        y.flatten(),
    )
    body = [n for n in places if not n.startswith("decoder")]
    of_hidden = found.hidden.view_as(passed.hidden)
    of_body = torch.autograd.grad(passed.hidden, [leaves[n] for n in body], of_hidden)
    gradients = dict(zip(body, of_body, strict=True))
    gradients |= {"decoder.weight": found.weight, "decoder.bias": found.bias}
    for i in range(members):
        reference = plain_of(model, vocabulary, {n: v[i].detach() for n, v in leaves.items()})
        logits = reference(x)
        ours = passed.hidden[i] @ leaves["decoder.weight"][i].T + leaves["decoder.bias"][i]
        torch.testing.assert_close(ours, logits, rtol=1e-10, atol=1e-10)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        assert float(scores.loss[i].mean()) == pytest.approx(loss.item(), abs=1e-10)
        assert torch.equal(scores.correct[i], logits.flatten(0, 1).argmax(-1) == y.flatten())
        theirs = dict(reference.named_parameters())
        assert len(theirs) == len(gradients)
        for ours_name, their_name in names(model, vocabulary).items():
            torch.testing.assert_close(gradients[ours_name][i], theirs[their_name].grad, rtol=1e-10, atol=1e-10)


@settings(max_examples=20)
@given(
    members=st.integers(1, 3),
    rows=st.integers(1, 9),
    vocabulary=st.integers(2, 9),
    block=st.integers(1, 60),
    shared=st.booleans(),
)
def test_blocks_of_any_size_give_the_same_scores(members, rows, vocabulary, block, shared, monkeypatch_block):
    draw = torch.Generator().manual_seed(rows)
    h = torch.randn(members, rows, 4, generator=draw, dtype=torch.float64)
    w = torch.randn(1 if shared else members, vocabulary, 4, generator=draw, dtype=torch.float64)
    b = torch.randn(w.shape[0], vocabulary, generator=draw, dtype=torch.float64)
    y = torch.randint(vocabulary, (rows,), generator=draw)
    with monkeypatch_block(block):
        scores = token_scores(h, w, b, y)
    z = h @ w.transpose(1, 2) + b[:, None]
    torch.testing.assert_close(scores.loss, z.logsumexp(-1) - z[:, torch.arange(rows), y], rtol=1e-12, atol=1e-12)
    assert torch.equal(scores.correct, z.argmax(-1) == y)


def test_causal_mask_hides_exactly_the_future():
    model = Model(8, 2, 2, 8, 0.0)
    flat = initial(model, 11, 0).double()[None]
    p = views(flat, layout(model, 11))
    x = torch.tensor([[1, 2, 3, 4, 5]])
    changed = x.clone()
    changed[0, 3] = 9
    one, other = forward(p, x, model).hidden, forward(p, changed, model).hidden
    assert torch.equal(one[:, :, :3], other[:, :, :3])
    assert not torch.allclose(one[:, :, 3:], other[:, :, 3:])
    assert causal(3, torch.float64, "cpu").tolist()[1] == [0.0, 0.0, -math.inf]


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


@settings(max_examples=60)
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


@settings(max_examples=50)
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


@settings(max_examples=50)
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


def test_the_faster_product_is_taken_only_where_it_proves_itself(monkeypatch):
    before = torch.get_float32_matmul_precision()
    for error, expected in ((1e-7, "medium"), (3e-3, "highest")):
        monkeypatch.setattr(products, "_relative_error", lambda _, error=error: error)
        with products.fast_products() as chosen:
            assert chosen == expected
            assert torch.get_float32_matmul_precision() == expected
        assert torch.get_float32_matmul_precision() == before


def test_the_check_measures_a_real_product():
    with products.fast_products():
        assert products._relative_error("highest") < products.TOLERANCE
