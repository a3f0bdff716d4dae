"""The residual stream as a sum of writers, direct logit attribution and the logit lens: laws, and models that are refused."""

import zlib
from functools import cache
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from tests import tinyhf, zoo

import trisect
from trisect.core.errors import CorpusError, ModelError, SiteError, SpecError
from trisect.core.trace import WrittenStream
from trisect.experiments.explore import run
from trisect.experiments.explore.page import pack
from trisect.experiments.explore.run import take_picture, with_logits
from trisect.hf.locate.blocks import find_unembedding
from trisect.hf.small.gpt import GptShape, make_model
from trisect.measure.logits import direct_table, head_tokens

TEXT = "w1 w2 w3 w9 w8 w7 w2"
ROUNDING = 1e-9  # float64 sums of a few hundred terms
KINDS = {
    "gpt2": tinyhf.gpt2,
    "llama": tinyhf.llama,
    "own": lambda: make_model(GptShape(layers=2, width=32, heads=4, block=16), tinyhf.tokenizer(), 0),
    "gptj": lambda: zoo.build(
        "gptj"
    ),  # attention beside the feed-forward block, a bias of its logits; rotates in float32
    "cohere": lambda: zoo.build("cohere"),  # logits times a factor
    "bloom": lambda: zoo.build("bloom"),  # adds the residual inside its modules
    "opt": lambda: zoo.build("opt"),  # its feed-forward block has one axis for rows and positions
    "olmo": lambda: zoo.build("olmo"),  # a norm that does not say its ε
}


@cache
def load(kind: str) -> Any:
    return trisect.load(KINDS[kind]().double().eval(), tokenizer=tinyhf.tokenizer(False))


def stream_of(model: Any) -> WrittenStream:
    stream = trisect.read(model, TEXT, stream=True).stream
    assert stream is not None
    return stream


def logits_of(model: Any) -> torch.Tensor:
    """Those of the module itself."""
    with torch.no_grad():
        return model.model(**model.tokenizer(TEXT, return_tensors="pt")).logits[0]


def whole(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("source").is_null())


@pytest.mark.parametrize("kind", KINDS)
def test_writers_sum_to_the_stream_and_its_logits_are_the_models(kind):
    model = load(kind)
    stream = stream_of(model)
    made = torch.stack(list(stream.written.values())).sum(0)
    torch.testing.assert_close(made, stream.output, rtol=0, atol=1e-6)
    below = sum(stream.written[writer] for writer in stream.written if writer.layer < 2)
    torch.testing.assert_close(below, stream.inputs[2], rtol=0, atol=1e-6)
    trace = stream.traces[2]
    assert trace.w_o is not None
    torch.testing.assert_close(stream["2.h3"], trace.output[:, 2] @ trace.w_o[2], rtol=0, atol=ROUNDING)
    with pytest.raises(SiteError, match=r"2\.h9"):
        stream["2.h9"]


def test_a_reading_is_saved_with_its_stream(tmp_path):
    reading = trisect.read(load("gpt2"), TEXT, stream=True)
    assert reading.stream is not None
    assert repr(reading.stream) == "<WrittenStream [1, 7, 32]: 14 writers, 'embedding' to '2.bias'>"
    saved = load_file(reading.save(tmp_path / "reading.safetensors"))
    assert torch.equal(saved["stream.2.h3"], reading.stream["2.h3"])
    assert torch.equal(saved["layer 1.q"], reading.traces[0].q)


@pytest.mark.parametrize("kind", KINDS)
def test_attributions_sum_to_the_logit_and_those_of_sources_to_their_head(kind):
    model, logits = load(kind), logits_of(load(kind))
    table = trisect.direct_logits(model, TEXT, token="w5", place=4)
    assert whole(table)["logit"].sum() == pytest.approx(float(logits[4, 12]), abs=1e-5)
    assert set(table["token"]) == {"w5"}
    heads = table.filter(pl.col("source").is_not_null()).group_by("writer").agg(pl.col("logit").sum())
    both = heads.join(whole(table), on="writer")
    assert len(both) == len(heads) == 8
    assert both["logit"].to_list() == pytest.approx(both["logit_right"].to_list(), abs=ROUNDING)
    apart = trisect.direct_logits(model, TEXT, token="w5", against=3, place=4)
    assert whole(apart)["logit"].sum() == pytest.approx(float(logits[4, 12] - logits[4, 3]), abs=1e-5)


def test_one_source_by_hand():
    """γ, the norm's scale and W_U of a Llama, at the last position, for its own prediction."""
    model = load("llama")
    trace, stream = model.read(TEXT)["attn@1"], stream_of(model)
    number = int(logits_of(model)[-1].argmax())
    value = trace.weights[0, 1, -1, 2] * trace.values[0, 1, 2] @ trace.w_o[1]
    norm, size = model.model.model.norm, stream.output[0, -1].square().mean()
    direction = (norm.weight * model.model.lm_head.weight[number]).detach()
    wanted = value @ direction / (size + norm.variance_epsilon).sqrt()
    row = trisect.direct_logits(model, TEXT).row(
        by_predicate=(pl.col("writer") == "1.h2") & (pl.col("source") == 2), named=True
    )
    assert row["logit"] == pytest.approx(float(wanted), abs=1e-6)
    assert row["source_token"] == "w3"
    assert row["token"] == model.token(number)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_lens_is_the_models_own_norm_and_map_of_its_hidden_states(kind):
    model, logits = load(kind), logits_of(load(kind))
    table = trisect.logit_lens(model, TEXT, top=3)
    ids = model.tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        hidden = model.model(**ids, output_hidden_states=True).hidden_states
        end = model.model.transformer.ln_f if kind == "gpt2" else model.model.model.norm
        wanted = {n: model.model.lm_head(end(hidden[n]))[0].softmax(-1) for n in (0, 1)} | {2: logits.softmax(-1)}
    assert len(table) == 3 * len(logits) * 3
    for row in table.iter_rows(named=True):
        there = wanted[row["layer"]][row["position"]]
        best = there.topk(3)
        assert row["probability"] == pytest.approx(float(best.values[row["rank"] - 1]), abs=1e-6)
        assert row["prediction"] == model.token(int(best.indices[row["rank"] - 1]))
        last = wanted[2][row["position"]]
        assert row["kl_nats"] == pytest.approx(float((last * (last.log() - there.log())).sum()), abs=1e-6)


def test_the_tokens_of_a_head_are_those_that_its_attribution_raises_and_lowers_most():
    model = load("gpt2")
    (batch,) = model.batches([TEXT])
    stream = stream_of(model)
    found = find_unembedding(model, model.model, batch)
    numbers, values = list(head_tokens(stream, found, 5, 2))[1]
    assert numbers.shape == values.shape == (2, 4, 4)
    every = [
        whole(direct_table(stream, found, TEXT.split(), str, 5, n)).filter(pl.col("writer") == "2.h3")["logit"][0]
        for n in range(len(tinyhf.VOCABULARY))
    ]
    order = sorted(range(len(every)), key=lambda n: every[n])
    assert numbers[0, 2].tolist() == [order[-1], order[-2], order[0], order[1]]
    assert float(values[0, 2, 0]) == pytest.approx(every[order[-1]] - sum(every) / len(every), abs=1e-5)


REFUSED = {
    "bert": (tinyhf.bert, "do not add up"),  # norms behind the sums
    "bart": (tinyhf.bart, "do not add up"),
    "xlm": (lambda: zoo.build("xlm"), "do not add up"),  # no module for its blocks
    "gemma2": (lambda: zoo.build("gemma2"), "do not add up"),  # norms behind attention
    "headless": (lambda: tinyhf.gpt2().get_submodule("transformer"), "hidden states"),
    "modernbert": (lambda: zoo.build("modernbert"), "cannot be split into contributions"),  # a map more behind the norm
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_models_are_refused_by_name(kind):
    made = REFUSED[kind][0]()
    model = trisect.load(made, tokenizer=tinyhf.tokenizer())
    for call in (trisect.direct_logits, trisect.logit_lens):
        with pytest.raises(ModelError, match=type(made).__name__) as caught:
            call(model, TEXT)
        assert REFUSED[kind][1] in str(caught.value)
        assert caught.value.todo


def test_bad_input_is_named():
    model, direct_logits, logit_lens = load("gpt2"), cast(Any, trisect.direct_logits), cast(Any, trisect.logit_lens)
    for token, words in (("w1 w2", "'w1', 'w2'"), ("word", "UNK"), (4000, "4000"), (-1, "-1"), (1.5, "1.5")):
        with pytest.raises(SpecError, match=words):
            direct_logits(model, TEXT, token=token)
    assert direct_logits(model, TEXT, token=np.int64(5))["token"][0] == model.token(5)
    with pytest.raises(CorpusError, match=r"Position 1\.5 was given"):
        direct_logits(model, TEXT, place=1.5)
    for top in (0, 2.5):
        with pytest.raises(SpecError, match=f"top={top}"):
            logit_lens(model, TEXT, top=top)
    with pytest.raises(SpecError, match="Gradients and the stream"):
        trisect.read(model, TEXT, grad=True, stream=True)


def test_the_explorer_holds_what_each_head_says_and_the_lens(monkeypatch):
    model = load("llama")
    (batch,) = model.batches([TEXT])
    reading = model.trace(batch)
    picture = with_logits(take_picture(reading), model, batch, reading)
    assert picture.logits is not None
    packed = pack(picture)
    about: Any = packed.manifest["logits"]
    positions, tokens, likely = about["shape"]
    count, lens = 2 * 4 * positions * tokens, 3 * positions * likely
    assert (about["first"], positions, tokens, likely) == (0, 7, 8, 3)
    raw = zlib.decompress(packed.chunks[5], -15)
    words = [about["tokens"][n] for n in np.frombuffer(raw, "<i4", count + lens)]
    values = np.frombuffer(raw, "<f4", offset=4 * (count + lens))
    assert len(values) == len(words)
    at = 4 * positions * tokens + (6 * 4 + 1) * tokens  # layer 2, position 6, head 2
    first = whole(trisect.direct_logits(model, TEXT, token=words[at])).filter(pl.col("writer") == "2.h2")["logit"][0]
    least = whole(trisect.direct_logits(model, TEXT, token=words[at + 4])).filter(pl.col("writer") == "2.h2")["logit"][
        0
    ]
    assert values[at] - values[at + 4] == pytest.approx(first - least, rel=2e-3)
    table = trisect.logit_lens(model, TEXT, top=3)
    assert words[count:] == table["prediction"].to_list()
    assert values[count:] == pytest.approx(table["probability"].to_numpy(), rel=1e-3)
    monkeypatch.setattr(run, "MAX_LOGIT_ROWS", 3 * 8)  # of a long text the last positions
    last = with_logits(take_picture(reading), model, batch, reading).logits
    assert last is not None
    assert (last.first, last.heads[1].shape, last.lens.shape) == (4, (3, 4, 8), (3, 3, 3))
    assert [last.tokens[n] for n in last.heads[1][2, 1]] == words[at : at + 8]


def test_the_explorer_says_why_it_cannot():
    model = trisect.load(tinyhf.bert(), tokenizer=tinyhf.tokenizer())
    (batch,) = model.batches([TEXT])
    reading = model.trace(batch)
    picture = with_logits(take_picture(reading), model, batch, reading)
    assert picture.logits is None
    assert "do not add up" in picture.notes[-1]
