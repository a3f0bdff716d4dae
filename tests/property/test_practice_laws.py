"""Practice: batches in pieces are batches, a training that was stopped is one that was not, rates are those defined."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.core.errors import DamagedFileError, SpecError, StudyError
from trisect.hf.small import gpt
from trisect.hf.small.gpt import GptShape, Practice, Schedule, make_model, make_tokenizer
from trisect.text.birth_places import IGNORED, Example, question_example

TOKENIZER = make_tokenizer(tuple("abcdefgh"), 24)
SCHEDULE = Schedule(4, 8, 1e-2, 100, 4 * 20 * 24)


def model(dropout=0.0, seed=3):
    return make_model(GptShape("gpt2", 1, 2, 8, 24, dropout), TOKENIZER, seed)


def examples(number, draw):
    return [
        question_example(
            [int(i) for i in draw.integers(3, 11, 4 + i % 7)], [int(i) for i in draw.integers(3, 11, 3)], 1
        )
        for i in range(20)
    ]


def practice(schedule=SCHEDULE, seed=5):
    return Practice(examples, schedule, 24, 0, seed)


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_training_that_was_stopped_ends_as_one_that_was_not(tmp_path, monkeypatch, dropout):
    whole, stopped, again = model(dropout), model(dropout), model(dropout)
    losses = practice().run(whole, tmp_path / "a.pt")
    monkeypatch.setattr(gpt, "SAVED_EVERY", -1.0)

    def stop(epoch, loss):
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        practice().run(stopped, tmp_path / "b.pt", stop)
    seen = []
    assert practice().run(again, tmp_path / "b.pt", lambda epoch, loss: seen.append(epoch)) == losses
    assert seen == [4]  # the state of an epoch is kept before the epoch is reported
    assert torch.equal(flat(whole), flat(again))
    assert not torch.equal(flat(whole), flat(model(dropout)))


def test_other_settings_do_not_go_on_from_it(tmp_path, monkeypatch):
    monkeypatch.setattr(gpt, "SAVED_EVERY", -1.0)
    state = tmp_path / "s.pt"
    practice().run(model(), state)
    with pytest.raises(StudyError, match="is of another training"):
        practice(replace(SCHEDULE, rate=2e-2)).run(model(), state)
    with pytest.raises(StudyError, match="this training then starts from the beginning"):
        practice(seed=6).run(model(), state)
    state.write_bytes(state.read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match="cannot be read"):
        practice().run(model(), state)


@settings(max_examples=10)
@given(st.integers(0, 1_000), st.integers(1, 30))
def test_a_batch_in_pieces_is_the_batch(seed, rows):
    draw = np.random.default_rng(seed)
    batch = [
        Example(
            tuple(int(i) for i in draw.integers(3, 11, n)),
            tuple(int(i) if draw.random() < 0.7 else IGNORED for i in draw.integers(3, 11, n)),
        )
        for n in draw.integers(1, 20, rows)
    ]
    found = []
    for pieces, least in ((1, 1), (5, 2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpt, "PIECES", pieces)
            patch.setattr(gpt, "MIN_ROWS", least)
            module = model().double()
            optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
            total, predicted = practice()._step(module, optimizer, batch)
        found.append((flat(module), total, predicted))
    # float64: sums in another order
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-9, atol=1e-11)
    assert math.isclose(found[0][1], found[1][1], rel_tol=1e-9, abs_tol=1e-12)
    assert found[0][2] == found[1][2] == sum(label != IGNORED for row in batch for label in row.labels)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_weights_decay_on_the_matrices_of_linear_maps_alone(kind):
    """Without a gradient AdamW moves nothing by itself: what shrinks is what decays."""
    module = make_model(GptShape(kind, 1, 2, 8, 24, 0.0), TOKENIZER, 3).double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1.0)  # biases, too, have something to lose
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = gpt._optimizer(module, replace(SCHEDULE, rate=0.5, weight_decay=0.2))
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moved = {name: (p.detach() / before[name]) for name, p in module.named_parameters()}
    maps = {"c_attn", "c_proj", "c_fc", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    found = set()
    for name, ratio in moved.items():
        *_, owner, own = name.split(".")
        decays = own == "weight" and owner in maps
        found.add(decays)
        torch.testing.assert_close(ratio, torch.full_like(ratio, 1 - 0.5 * 0.2 if decays else 1.0), rtol=1e-12, atol=0)
    assert found == {True, False}


def by_hand(module, schedule, rates, betas, clip):
    """AdamW written out: Loshchilov & Hutter 2019, algorithm 2, of gradients clipped by their norm together."""
    decayed = {id(p) for g in gpt._optimizer(module, schedule).param_groups if g["weight_decay"] for p in g["params"]}
    moments, norms = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in module.parameters()}, []
    for step, rate in enumerate(rates, start=1):
        rows = examples(step, np.random.default_rng([5, step]))
        losses = [
            torch.nn.functional.cross_entropy(
                module(input_ids=torch.tensor([row.ids])).logits[0], torch.tensor(row.labels), reduction="sum"
            )
            for row in rows
        ]
        many = sum(label != IGNORED for row in rows for label in row.labels)
        gradients = torch.autograd.grad(torch.stack(losses).sum() / many, list(moments))
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in gradients)))
        for (p, (m, v)), g in zip(moments.items(), gradients, strict=True):
            g = g * min(1.0, clip / (norms[-1] + 1e-6))  # as PyTorch keeps its division from zero
            m.mul_(betas[0]).add_((1 - betas[0]) * g)
            v.mul_(betas[1]).add_((1 - betas[1]) * g * g)
            away = (m / (1 - betas[0] ** step)) / ((v / (1 - betas[1] ** step)).sqrt() + 1e-8)
            with torch.no_grad():
                p.sub_(rate * ((schedule.weight_decay if id(p) in decayed else 0.0) * p + away))
    return flat(module), norms


def test_the_loop_is_clipped_adamw_at_the_rates_of_the_schedule(tmp_path):
    """Three steps of 480 tokens: half the rate at half of the warm-up, all of it at its end, half of it half-way down."""
    schedule = Schedule(3, 20, 1e-2, 960, 1920, 0.1, 0.3, (0.8, 0.9), 0.05)
    module = model().double()
    Practice(examples, schedule, 24, 0, 5).run(module, tmp_path / "s")
    rates = [5e-3, 1e-2, 5e-3]
    want, norms = by_hand(model().double(), schedule, rates, (0.8, 0.9), 0.05)
    assert min(norms) > 0.05
    # float64: sums in another order, and a division by the root of squares of small gradients
    torch.testing.assert_close(flat(module), want, rtol=1e-6, atol=1e-8)
    for others in ((rates, (0.9, 0.9), 0.05), (rates, (0.8, 0.99), 0.05), (rates, (0.8, 0.9), 1e9)):
        far, _ = by_hand(model().double(), schedule, *others)
        assert (far - want).abs().max() > 1e-4
    slower, _ = by_hand(model().double(), schedule, [5e-3, 1e-2, 1e-2], (0.8, 0.9), 0.05)
    assert (slower - want).abs().max() > 1e-4


def test_every_step_has_the_rate_after_its_tokens(tmp_path, monkeypatch):
    """Twenty rows in batches of 8: three steps an epoch, the last of them, short as it is, counted as a whole batch."""
    seen = []

    def note(self, model, optimizer, batch):
        seen.append({group["lr"] for group in optimizer.param_groups})
        return 1.0, 1

    monkeypatch.setattr(Practice, "_step", note)
    practice().run(model(), tmp_path / "s")
    want = [{SCHEDULE.rate_at(step * 8 * 24)} for step in range(1, 4 * 3 + 1)]
    assert seen == want
    assert len({rate for rates in seen for rate in rates}) > 6


@given(st.floats(1e-5, 1.0), st.integers(1, 10**6), st.integers(1, 50), st.integers(0, 10**9))
def test_the_rate_rises_then_falls_to_its_floor(rate, warmup, factor, tokens):
    schedule = Schedule(1, 1, rate, 2 * warmup, 2 * warmup * (1 + factor))
    assert schedule.rate_at(2 * warmup) == pytest.approx(rate)
    assert schedule.rate_at(warmup) == pytest.approx(rate / 2)
    assert schedule.rate_at(warmup * (2 + factor)) == pytest.approx(rate / 2)
    assert schedule.rate_at(9 * warmup * (1 + factor)) == pytest.approx(0.1 * rate)
    assert 0 <= schedule.rate_at(tokens) <= rate * (1 + 1e-12)


@pytest.mark.parametrize("name", ["epochs", "batch", "rate", "decay_tokens", "clip"])
def test_a_schedule_without_a_step_is_refused(name):
    with pytest.raises(SpecError, match=f"A schedule with {name} 0"):
        replace(SCHEDULE, **{name: 0 * getattr(SCHEDULE, name)})


def test_it_learns(tmp_path):
    rows = [question_example([3 + i, 4], [5 + i % 3], 1) for i in range(6)]
    practised = Practice(lambda number, draw: rows, Schedule(200, 6, 3e-2, 10, 200 * 6 * 24), 24, 0, 1)
    losses = practised.run(model(), tmp_path / "s")
    assert losses[0] > 1.5
    assert losses[-1] < 0.2
