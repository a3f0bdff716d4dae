"""Attribution patching: exact where the model is linear behind attention, the largest estimates patched, and what is refused."""

import json
from typing import Any

import pytest
import torch
from tests import interchanged, tinyhf
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import trisect
from trisect.core.errors import ModelError, SpecError
from trisect.experiments.patch.page import page
from trisect.measure.patching import _raise_each, _shift_weights

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


def test_the_page_and_the_json_have_exact_effects_and_rank_correlations(tmp_path, capsys):
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
    with pytest.raises(SpecError, match="By gradient, with path direct"):
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


def test_the_page_is_drawn_from_its_tables(tmp_path):
    model = trisect.load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    done = trisect.patch(
        model, base=BASE, donor=DONOR, sites=["v@2.h1"], by="gradient", out=tmp_path / "out", quiet=True
    )
    assert done.attributions is not None
    assert len(done.attributions) == 5
    assert page(done.tables, done.about).sections[0].title == "The largest estimates"
