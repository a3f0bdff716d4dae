"""Practice: batches in pieces are batches, a training that was stopped is one that was not, rates are those defined."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.core.errors import DamagedFileError, SpecError, StudyError
from trisect.hf import practice as rooms
from trisect.hf.practice import Practice, Schedule
from trisect.hf.small import Architecture, make_model, make_tokenizer
from trisect.text.corruption import IGNORED, Example, question_example

TOKENIZER = make_tokenizer(tuple("abcdefgh"), 24)
SCHEDULE = Schedule(4, 8, 1e-2, 100, 4 * 20 * 24)


def model(dropout=0.0, seed=3):
    return make_model(Architecture("gpt2", 1, 2, 8, 24, dropout), TOKENIZER, seed)


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
    losses = practice().run(whole, tmp_path / "a.safetensors")
    monkeypatch.setattr(rooms, "SAVED_EVERY", -1.0)

    def stop(epoch, loss):
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        practice().run(stopped, tmp_path / "b.safetensors", stop)
    seen = []
    assert practice().run(again, tmp_path / "b.safetensors", lambda epoch, loss: seen.append(epoch)) == losses
    assert seen == [3, 4]
    assert torch.equal(flat(whole), flat(again))
    assert not torch.equal(flat(whole), flat(model(dropout)))


def test_other_settings_do_not_go_on_from_it(tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "SAVED_EVERY", -1.0)
    state = tmp_path / "s.safetensors"
    practice().run(model(), state)
    with pytest.raises(StudyError, match="is of another training"):
        practice(replace(SCHEDULE, rate=2e-2)).run(model(), state)
    with pytest.raises(StudyError, match="this training then begins anew"):
        practice(seed=6).run(model(), state)
    state.write_bytes(state.read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match="cannot be read"):
        practice().run(model(), state)


@settings(deadline=None, max_examples=10)
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
            patch.setattr(rooms, "PIECES", pieces)
            patch.setattr(rooms, "LEAST", least)
            module = model().double()
            optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
            total, predicted = practice()._step(module, optimizer, batch)
        found.append((flat(module), total, predicted))
    # float64: sums in another order
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-9, atol=1e-11)
    assert math.isclose(found[0][1], found[1][1], rel_tol=1e-9, abs_tol=1e-12)
    assert found[0][2] == found[1][2] == sum(label != IGNORED for row in batch for label in row.labels)


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
    losses = Practice(lambda number, draw: rows, Schedule(200, 6, 3e-2, 10, 200 * 6 * 24), 24, 0, 1).run(
        model(), tmp_path / "s"
    )
    assert losses[0] > 1.5
    assert losses[-1] < 0.2
