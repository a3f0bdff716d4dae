"""Laws of our own models as Subjects: the trace is what the model did, and edits change what they name and no more."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.core.spec import Model
from trisect.core.subject import QKV, Subject
from trisect.core.trace import Address
from trisect.lm.fleet import forward, initial, layout, views
from trisect.lm.reading import OwnModel

WORDS = (*(f"w{i}" for i in range(20)), ".", "<unk>")
REST = ("up.weight", "up.bias", "down.weight", "down.bias", "norm2.weight", "norm2.bias")  # a layer after attention
EXACT = 1e-12  # float64, numbers of order one, a few dozen sums


def own(layers: int = 2, heads: int = 4, seed: int = 1, window: int = 12) -> OwnModel:
    model = Model(width=16, layers=layers, heads=heads, feedforward=8)
    flat = initial(model, len(WORDS), seed).double()
    flat += 0.3 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return OwnModel("own", model, views(flat[None], layout(model, len(WORDS))), WORDS, window)


TEXTS = st.lists(st.lists(st.sampled_from(WORDS[:20]), min_size=1, max_size=30).map(" ".join), min_size=1, max_size=4)


@settings(max_examples=20)
@given(TEXTS, st.sampled_from([1, 2, 4]), st.integers(1, 3))
def test_contributions_and_bias_are_the_modules_output_and_the_block_the_next_layers_input(texts, heads, layers):
    subject = own(layers, heads)
    for batch in subject.batches(texts, 3):
        reading: Any = subject.trace(batch)
        for trace in reading.traces:
            p = trace.projections
            x = trace.block.residual
            for name, w, b in (("q", p.w_q, p.b_q), ("k", p.w_k, p.b_k), ("v", p.w_v, p.b_v)):
                again = torch.einsum("btd,hde->bhte", x, w) + b[:, None]
                assert (again - getattr(trace, name)).abs().max() < EXACT
            assert (trace.weights.sum(-1) - 1).abs().max() < EXACT
            assert (trace.weights @ trace.v - trace.output).abs().max() < EXACT
            out = torch.einsum("bhts,bhse,hed->btd", trace.weights, trace.v, p.w_o) + p.b_o
            normed = torch.nn.functional.layer_norm(
                x + out, x.shape[-1:], trace.block.gamma, trace.block.beta, trace.block.epsilon
            )
            after = [t.block.residual for t in reading.traces if t.layer == trace.layer + 1 and t.block is not None]
            w = {n: subject.parameters[f"layers.{trace.layer}.{n}"][0] for n in REST}
            inner = (normed @ w["up.weight"].T + w["up.bias"]).relu() @ w["down.weight"].T + w["down.bias"]
            ended = torch.nn.functional.layer_norm(normed + inner, x.shape[-1:], w["norm2.weight"], w["norm2.bias"])
            assert len(after) == (trace.layer < layers)
            assert all((ended - x_next).abs().max() < EXACT for x_next in after)


@settings(max_examples=20)
@given(TEXTS)
def test_reading_leaves_the_hidden_states_bit_for_bit(texts):
    subject = own()
    for batch in subject.batches(texts, 4):
        ids = batch.inputs["ids"]
        plain = forward(subject.parameters, ids, subject.model).hidden[0]
        seen = []
        assert torch.equal(subject._pass(ids, {}, {}, seen), plain)
        assert len(seen) == subject.model.layers


@settings(max_examples=10)
@given(TEXTS)
def test_padding_and_company_change_nothing(texts):
    subject = own()
    together = {}
    for batch in subject.batches(texts, 4):
        scores = subject.score(batch)
        together |= {
            row: (t.item(), c.item()) for row, t, c in zip(batch.rows, scores.total, scores.count, strict=True)
        }
    for batch in subject.batches(texts, 1):
        scores = subject.score(batch)
        total, count = together[batch.rows[0]]
        assert scores.count.item() == count
        assert scores.total.item() == pytest.approx(total, abs=1e-10)  # float64; other row counts sum in another order


def test_a_writer_is_heard_at_its_layer_and_nowhere_before_it():
    subject = own(3)
    batch = next(subject.batches(["w1 w2 w3 w4 w5"]))
    clean = subject.score(batch)
    same = subject.score(batch, {Address("plain", 2): lambda parts: parts})
    assert torch.equal(same.total, clean.total)
    for name in ("q", "k", "v"):

        def zero(parts: QKV, name: str = name) -> QKV:
            return parts._replace(**{name: torch.zeros_like(getattr(parts, name))})

        assert not torch.equal(subject.score(batch, {Address("plain", 2): zero}).total, clean.total)


def test_held_weights_take_the_softmaxs_place():
    subject = own(2)
    batch = next(subject.batches(["w1 w2 w3 w4 w5"]))
    clean = subject.trace(batch)
    held = {trace.address: trace.weights for trace in clean.traces}
    assert torch.equal(subject.score(batch, hold=held).total, subject.score(batch).total)

    def zero_q(parts: QKV) -> QKV:
        return parts._replace(q=torch.zeros_like(parts.q))

    silenced = subject.score(batch, {Address("plain", 1): zero_q}, held)
    assert torch.equal(silenced.total, subject.score(batch).total)


def test_windows_tokens_and_unknown_words():
    subject = own(window=4)
    (batch,) = subject.batches(["W1 w2 strange w3, w4 w5 ."], 8)
    assert batch.source.tokens[0] == ("w1", "w2", "<unk>", "w3")
    assert batch.source.tokens[1][:2] == ("<unk>", "w4")
    assert batch.rows == ((0, 0), (0, 4))
    assert "cut into windows" in batch.notes[0]
    assert isinstance(subject, Subject)
    assert subject.shape.describe() == "The model has layers 1, 2 with 4 heads."
