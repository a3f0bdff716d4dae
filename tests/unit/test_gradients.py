"""Gradients at q, k and v: equal to finite differences, of any output, and nothing of the model changes."""

from typing import Any

import pytest
import torch
from tests import tinyhf, zoo

import trisect
from trisect.core.errors import ModelError
from trisect.core.subject import Texts
from trisect.core.trace import Address
from trisect.experiments.norms import run
from trisect.hf.load import input_gradients, load

IDS = torch.tensor([[7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18]])
# scores, softmax or norms of these are computed in float32
STEPS: dict[str, tuple[float, float, float]] = dict.fromkeys(("llama", "gptj", "falcon_new"), (1e-2, 1e-2, 1e-2))
STEP = (1e-5, 1e-5, 1e-7)  # and the errors that are allowed: relative and absolute
KINDS = {
    "gpt2": lambda: tinyhf.gpt2(),
    "llama": lambda: tinyhf.llama(),
    "bart": lambda: tinyhf.bart(),
    "albert": lambda: zoo.build("albert"),
    "roformer": lambda: zoo.build("roformer"),  # without an interface, as the two below
    "gptj": lambda: zoo.build("gptj"),
    "falcon_new": lambda: zoo.build("falcon_new"),
}


def score(output: torch.Tensor) -> torch.Tensor:
    return output[:, -1].log_softmax(-1)[:, 3].sum() + output[:, 1, 5].square().sum()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_finite_differences(kind):
    subject: Any = load(KINDS[kind]().double(), tinyhf.tokenizer())
    inputs = {"input_ids": IDS} | ({"decoder_input_ids": IDS[:, :4]} if kind == "bart" else {})
    step, relative, absolute = STEPS.get(kind, STEP)
    asked = [parameter.requires_grad for parameter in subject.model.parameters()]
    reading = trisect.read(subject, inputs, grad=True)
    assert reading.output is not None
    score(reading.output).backward()
    assert [parameter.requires_grad for parameter in subject.model.parameters()] == asked
    assert all(parameter.grad is None for parameter in subject.model.parameters())
    for trace in reading.traces:
        assert trace.output.grad is not None
        for name in ("q", "k", "v"):
            grad = getattr(trace, name).grad
            assert grad.shape == getattr(trace, name).shape
            direction = torch.randn(grad.shape, generator=torch.Generator().manual_seed(trace.layer)).to(grad)
            site = f"{'' if trace.stack == 'plain' else trace.stack + '.'}{name}@{trace.layer}"
            edits = ({site: lambda t, _w, s=s, d=direction: t + s * d} for s in (step, -step))
            ends = [score(subject.predict(inputs, edit).logits) for edit in edits]
            numeric = float(ends[0] - ends[1]) / (2 * step)
            assert float((grad * direction).sum()) == pytest.approx(numeric, rel=relative, abs=absolute), site


def test_a_reading_with_gradients_is_the_reading(tmp_path):
    subject = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    plain, own = (trisect.read(subject, ["w1 w2 w3 , w4", "w6 w7"], grad=grad) for grad in (False, True))
    assert plain.output is None
    for one, other in zip(plain.traces, own.traces, strict=True):
        for name in ("q", "k", "v", "weights", "output"):
            assert torch.equal(getattr(one, name), getattr(other, name).detach())
    assert own["q@1.h2"].q.shape == plain["q@1.h2"].q.shape
    assert own.save(tmp_path / "own.safetensors").exists()
    assert own.source.tokens == plain.source.tokens


def test_frozen_weights_and_one_text_do():
    model = tinyhf.gpt2().requires_grad_(False)
    reading = trisect.read(load(model, tinyhf.tokenizer(False)), "w1 w2 w3", grad=True)
    assert reading.output is not None
    reading.output.sum().backward()
    assert reading.layer(1).q.grad is not None
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_what_makes_several_batches_is_refused():
    subject: Any = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    with pytest.raises(ModelError, match="one batch"):
        trisect.read(subject, ["w1"] * 1001, grad=True)


def test_edits_are_in_the_graph():
    subject: Any = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    factor = torch.tensor(0.5, requires_grad=True)
    with trisect.edit(subject, {"v@1": lambda tensor, _where: factor * tensor}):
        reading = trisect.read(subject, {"input_ids": IDS}, grad=True)
    assert reading.output is not None
    reading.output[0, -1, 3].backward()
    assert factor.grad is not None
    clean = subject.read({"input_ids": IDS})[Address("plain", 1)]
    torch.testing.assert_close(reading.traces[0].v.detach(), 0.5 * clean.v)


@pytest.mark.parametrize("kind", ["gpt2", "albert"])
def test_gradient_times_input_is_that_of_the_embeddings(kind):
    subject = load(KINDS[kind]().double(), tinyhf.tokenizer())
    batch, places = subject.batch_of({"input_ids": IDS}), torch.tensor([4, 2])
    found = input_gradients(subject, batch, places)
    model: Any = subject.model
    embedded = list[torch.Tensor]()
    stream = model.transformer.drop if kind == "gpt2" else model.albert.encoder.embedding_hidden_mapping_in
    with stream.register_forward_hook(lambda _m, _a, out: embedded.append(out) or out):  # what enters the first layer
        logits = model(IDS).logits
    total = logits[torch.arange(2), places].max(-1).values.sum()
    (gradient,) = torch.autograd.grad(total, embedded)
    assert torch.allclose(found, (gradient * embedded[0]).norm(dim=-1))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_loss_without_sinks_is_that_of_each_text_in_any_batch(monkeypatch):
    """Texts with sinks in unlike layers: what one text's heads hold is no matter of the texts beside it."""

    def first_of_some(trace):
        found = torch.zeros(len(trace.weights), trace.heads, trace.weights.shape[-1], dtype=torch.bool)
        found[trace.query_real.sum(1) % 2 == trace.layer % 2, :, 0] = True
        return found

    monkeypatch.setattr(run, "find_sinks", first_of_some)
    subject = load(tinyhf.llama(), tinyhf.tokenizer())
    lines = [" ".join(f"w{i + size}" for i in range(size)) for size in (8, 13, 9, 10)]
    texts = Texts("made", lambda: iter(lines))
    rows = (run.loss_without_sinks(subject, texts, subject.addresses, size, 0) for size in (1, 4))
    single, whole = ([row["value"] for row in each] for each in rows)
    assert whole == pytest.approx(single, abs=1e-6)
    assert abs(float(single[0] or 0.0)) > 1e-3
