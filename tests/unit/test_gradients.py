"""Gradients at q, k and v: equal to finite differences; attribution patching: exact where the model is linear behind attention."""

import json
from typing import Any

import pytest
import torch
from tests import interchanged, tinyhf, zoo
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import trisect
from trisect.core.errors import ModelError, SpecError
from trisect.core.subject import Texts
from trisect.core.trace import Address
from trisect.experiments.norms import run
from trisect.hf.load import input_gradients, load
from trisect.measure.patching import _raise_each, _shift_weights

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


pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

WORDS = len(tinyhf.VOCABULARY)
BASE, DONOR = "w1 w2 w3 w4 w5", "w9 w8 w7 w6 w11"


class Nothing(nn.Module):
    """A feed-forward network that adds nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros_like(x)


def linear_behind_attention(grouped: bool) -> Any:
    """A layer whose attention reaches the logits by linear maps alone."""
    torch.manual_seed(3)
    if grouped:
        model: Any = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=16, max_position_embeddings=24,
            )
        )  # fmt: skip
        model.model.norm, layers = nn.Identity(), model.model.layers
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=1, n_head=4, n_positions=24))
        model.transformer.ln_f, layers = nn.Identity(), model.transformer.h
    layers[0].mlp = Nothing()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return trisect.load(model.eval(), tinyhf.tokenizer(False))


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("component", ["q", "k", "v"])
def test_estimates_are_what_patching_gives_where_the_model_is_linear_behind_attention(grouped, component, tmp_path):
    model = linear_behind_attention(grouped)
    sites = [f"{component}@all"]
    done = trisect.patch(model, base=BASE, donor=DONOR, sites=sites, by="gradient", out=tmp_path / "out", quiet=True)
    table = done.attributions
    assert table is not None
    shown = table.head(20)
    assert shown["exact"].to_list() == pytest.approx(shown["estimate"].to_list(), abs=2e-4)
    assert max(map(abs, shown["exact"].to_list())) > 0.01
    plain = shown["gradient"].to_list()
    assert (plain == pytest.approx(shown["exact"].to_list(), abs=2e-4)) == (component == "v")


def test_the_exact_effect_is_that_of_one_head_at_one_position(tmp_path):
    model: Any = trisect.load(tinyhf.llama(), tinyhf.tokenizer(False))
    done = trisect.patch(model, base=BASE, donor=DONOR, by="gradient", out=tmp_path / "out", quiet=True)
    assert done.attributions is not None
    assert done.attributions["exact"].is_not_null().sum() == 20
    assert len(done.attributions) == 2 * (4 + 2 + 2) * 5
    base, donor = (next(model.batches([text])) for text in (BASE, DONOR))
    source = model.trace(donor)
    before, other = (model.outputs(batch)[0, -1] for batch in (base, donor))
    ids = int(before.argmax()), int(other.argmax())
    way = [float(one[ids[0]] - one[ids[1]]) for one in (before, other)]
    for row in done.attributions.head(5).iter_rows(named=True):
        trace, at = source.traces[row["layer"] - 1], row["position"] - 1

        def put(tensor: Tensor, _where: Any, row: Any = row, trace: Any = trace, at: int = at) -> Tensor:
            tensor[:, 0, at] = getattr(trace, row["component"])[:, row["head"] - 1, at]
            return tensor

        site = f"{row['component']}@{row['layer']}.h{row['head']}"
        made = model.predict(base.inputs, {site: put}).logits[0, -1]
        assert (way[0] - float(made[ids[0]] - made[ids[1]])) / (way[0] - way[1]) == pytest.approx(
            row["exact"], abs=1e-4
        )


def test_the_page_and_the_json_have_exact_effects_and_rank_correlations(tmp_path):
    pairs = [
        {"base": b.text, "donor": d.text, "answers": interchanged.predicted(b, d)} for b, d in interchanged.facts(6)
    ]
    model = trisect.load(interchanged.recaller(), tokenizer=interchanged.tokenizer())
    done = trisect.patch(model, pair_list=pairs, by="gradient", out=tmp_path / "out", quiet=True)
    data: Any = json.loads(json.dumps(done.data()))["attributions"]
    assert set(data["rank_correlation"]) == {"attribution", "gradient"}
    assert -1 <= data["rank_correlation"]["attribution"] <= 1
    assert len(data["largest"]) == 20
    assert all(row["low"] <= row["exact"] <= row["high"] and row["n"] <= 6 for row in data["largest"])
    text = done.report.read_text()
    assert "The largest estimates" in text
    assert "rank correlation" in text
    assert "Kramár" in text
    assert "per head and position" in text
    assert done.sites == ()
    assert trisect.patch(model, pair_list=pairs, sites="v@2", out=tmp_path / "two", quiet=True).attributions is None


def test_weights_after_a_shift_are_those_of_the_raised_scores():
    draw = torch.Generator().manual_seed(0)
    scores, more = (4 * torch.randn(3, 5, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    scores[..., 5:] = -torch.inf
    raised = _shift_weights(scores.softmax(-1), more)
    torch.testing.assert_close(raised, (scores + more).softmax(-1))
    sink = torch.full((3, 5, 1), 0.5, dtype=torch.float64)
    with_sink = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    wanted = torch.cat([scores + more, sink], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(_shift_weights(with_sink, more), wanted, rtol=1e-3, atol=1e-3)
    far = _shift_weights(scores.softmax(-1), more - 800)
    torch.testing.assert_close(far, raised)
    assert _shift_weights(torch.zeros(2, 3), torch.ones(2, 3)).eq(0).all()


def test_one_raised_score_moves_what_it_does_where_weights_are_near_one():
    draw = torch.Generator().manual_seed(0)
    scores, more, reach = (torch.randn(3, 5, 7, generator=draw, dtype=torch.float64) for _ in range(3))
    scores, more = 20 * scores, 40 * more
    scores[..., 5:] = -torch.inf
    weights = scores.float().softmax(-1).double()  # as models give them: many are 1 to rounding
    assert (weights == 1).any()
    moves = _raise_each(weights, more, reach)
    for at in range(7):
        raised = scores.clone()
        raised[..., at] += more[..., at]
        wanted = ((raised.softmax(-1) - scores.softmax(-1)) * reach).sum(-1)
        torch.testing.assert_close(moves[..., at], wanted, rtol=1e-4, atol=1e-5)
    alone = torch.eye(7, dtype=torch.float64)[:1]
    assert _raise_each(alone, -900 * alone, alone).eq(0).all()
    sink = torch.full((1, 1), 0.25, dtype=torch.float64)
    wanted = (0.25 * 3 / (0.25 * 3 + 0.75) - 0.25) * 2
    assert float(_raise_each(sink, torch.tensor(3.0).double().log() + 0 * sink, 2 + 0 * sink)) == pytest.approx(wanted)


def test_what_cannot_be_estimated_is_refused(tmp_path):
    model = trisect.load(tinyhf.llama(), tinyhf.tokenizer(False))
    with pytest.raises(SpecError, match="given with path 'direct'"):
        trisect.patch(model, base=BASE, donor=DONOR, by="gradient", path="direct", out=tmp_path / "a", quiet=True)
    with pytest.raises(SpecError, match="same length"):
        trisect.patch(
            model,
            base=BASE,
            donor="w1 w2",
            sites=["v@1"],
            by="gradient",
            positions="last",
            out=tmp_path / "b",
            quiet=True,
        )
    encoder = trisect.load(tinyhf.bert(head=False), tinyhf.tokenizer())
    with pytest.raises(ModelError, match="predicts tokens"):
        trisect.patch(encoder, base=BASE, donor=DONOR, by="gradient", out=tmp_path / "c", quiet=True)
