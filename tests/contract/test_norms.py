"""The norm analysis as a whole: streamed numbers against those of all texts at once, rows, claims, page, and refusals."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.stats
import torch
from tests import tinyhf, zoo
from tests.property.test_own_model_laws import WORDS, own
from tests.raw import read_json, write_splits
from tests.tinyhf import VOCABULARY

import trisect
from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.subject import Texts
from trisect.core.tables import read_table
from trisect.core.trace import Address, Origin
from trisect.experiments.norms import NORMS, page
from trisect.experiments.norms import run as lab
from trisect.experiments.norms.run import StackTally, TextDraws
from trisect.experiments.norms.settings import NormsFacts
from trisect.hf.load import load
from trisect.lab.driver import read_about
from trisect.lab.experiment import Result
from trisect.measure.norms import head_norms, summed_norms, transformed_norms
from trisect.measure.norms import norms as block_norms
from trisect.measure.sums import GROUPS, LAYER_GROUPS, QUERIES, LayerTally, Sums
from trisect.papers import norms as paper
from trisect.report.sheet import write_page
from trisect.stats.bootstrap import DrawnEstimate, percentile_interval
from trisect.text.sources import first_texts, open_texts

NASTY = "<script>alert(1)</script>"


def given(n: int, seed: int = 0, name: str = NASTY) -> Texts:
    draw = random.Random(seed)
    texts = [" ".join(draw.choices((*VOCABULARY[5:], *".,.,"), k=draw.randint(2, 14))) for _ in range(n)]
    return Texts(name, lambda: iter(texts))


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    """Intervals of fewer draws: a quarter of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "DRAWS", 1_000)
        yield


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Any:
    return load(tinyhf.save(tinyhf.bert(), tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def done(bert, tmp_path_factory) -> Result[NormsFacts]:
    return trisect.norms(bert, given(33), out=tmp_path_factory.mktemp("norms"), block="full", quiet=True)


@pytest.fixture(scope="module")
def plain(bert, tmp_path_factory) -> Result[NormsFacts]:
    """The same of attention alone."""
    return trisect.norms(bert, given(33), out=tmp_path_factory.mktemp("attention"), quiet=True)


def value(
    table: pl.DataFrame, measure: str, group: str | None = None, layer: int | None = None, head: int | None = None
):
    fixed = {"measure": measure, "group": group, "layer": layer, "head": head}
    wanted = [pl.col(k).is_null() if v is None else pl.col(k) == v for k, v in fixed.items()]
    return table.filter(*wanted).row(0, named=True)


def test_streamed_numbers_are_those_of_all_texts_at_once(bert, done, plain):
    """Single precision and other batches: 1e-5 of numbers of order one."""
    table = done.tables["measures"]
    one = next(iter(bert.batches(given(33).texts(), 33)))
    with torch.no_grad():
        trace = bert.trace(one).traces[1]
    f = transformed_norms(trace)[:, 2][trace.key_real].double()
    spread = float(f.std(unbiased=False) / f.mean())
    assert value(table, "cv_f", layer=2, head=3)["value"] == pytest.approx(spread, rel=1e-5)
    queries = trace.query_real.sum()
    sep = torch.tensor([[token == "[SEP]" for token in row] for row in one.source.tokens])
    weight = (trace.weights[:, 0] * trace.query_real[..., None] * sep[:, None]).sum() / queries
    assert value(table, "weight_sum", "sep", 2, 1)["value"] == pytest.approx(float(weight), rel=1e-5)
    attention, summed = plain.tables["measures"], summed_norms(trace)
    share = (summed * sep[:, None]).sum() / summed.sum()
    assert value(attention, "norm_share", "sep", 2)["value"] == pytest.approx(float(share), rel=1e-5)
    assert "block_share" not in attention["measure"]
    whole = block_norms(trace, "full")
    of_block = (whole * sep[:, None]).sum() / whole.sum()
    assert value(table, "block_share", "sep", 2)["value"] == pytest.approx(float(of_block), rel=1e-5)
    assert abs(float(of_block - share)) > 1e-4  # a hundred times the tolerance


def test_claims_are_about_attention_whatever_block_is_shown(bert, plain, tmp_path):
    """All but `runs`, which names the block."""
    other = trisect.norms(bert, given(33), out=tmp_path, block="feed-forward", quiet=True)
    same = plain.tables["claims"].select(pl.exclude("runs"))
    assert same.equals(other.tables["claims"].select(pl.exclude("runs")))
    assert plain.tables["claims"]["effect"][2] is not None
    own = value(other.tables["measures"], "norm_share", "other")
    assert own == value(plain.tables["measures"], "norm_share", "other")
    assert own["value"] != value(other.tables["measures"], "block_share", "other")["value"]


def test_shares_add_up_claims_bind_the_model_and_the_page_is_made_from_the_tables_alone(done, bert, tmp_path):
    table = done.tables["measures"]
    for kind in ("weight_share", "norm_share"):
        sums = table.filter(measure=kind).group_by("layer").agg(pl.col("value").sum())["value"]
        np.testing.assert_allclose(sums.to_list(), 1, rtol=1e-6)
    ranged = table.filter(pl.col("low").is_not_null())
    assert len(ranged) > 100
    assert (ranged["low"] <= ranged["high"]).all()
    inside = (ranged["low"] <= ranged["value"]) & (ranged["value"] <= ranged["high"])
    assert float(inside.cast(pl.Float64).mean() or 0) > 0.97  # type: ignore[arg-type]
    rolled = pl.col("measure") == "rollout_gradient"  # of texts that are long enough alone
    assert set(table.filter(~rolled)["n"].drop_nulls()) == {33}
    assert table.filter(rolled)["n"].is_between(2, 33).all()
    assert value(table, "expansion_rate", layer=1)["low"] is None
    wholes = done.tables["claims"].filter(pl.col("part").is_null())
    assert wholes["claim"].to_list() == ["C-1", "C-2", "C-3", "C-4"]
    assert set(wholes["n"]) == {33}
    assert wholes["effect"][0] == pytest.approx(value(done.tables["measures"], "cv_f")["value"])
    assert {json.loads(runs)["fingerprint"] for runs in wholes["runs"]} == {bert.fingerprint}
    assert wholes["reason"][2].startswith("1 of 2 parts, ")  # two layers have no correlation over layers
    assert paper.QUERIES == QUERIES
    said = f"at most {QUERIES} evenly spaced queries"
    assert said in done.report.read_text(encoding="utf-8")
    pairs = next(p for c in paper.CLAIMS if c.id == "C-3" for p in c.parts)
    assert said.capitalize() in pairs.reason
    again = {name: read_table(done.folder / "tables", name) for name in ("measures", "claims")}
    sheet = page.page(again, read_about(NORMS, done.folder))
    assert write_page(tmp_path, sheet).read_bytes() == done.report.read_bytes()
    text = done.report.read_text(encoding="utf-8")
    assert NASTY not in text
    assert "&lt;script&gt;" in text
    for name in ("shares", "dispersion", "cancelling", "frequency", "mixing"):
        assert (done.folder / "figures" / f"{name}.svg").exists()
        assert (done.folder / "figures" / f"{name}.png").exists()
    verdicts = [(one.claim, one.verdict) for one in done.findings if one.claim]
    assert len(verdicts) == 4
    assert ("C-1", "supported") in verdicts


def test_batches_change_no_value_and_seeds_only_intervals(bert, done, tmp_path):
    found = trisect.norms(bert, given(33), out=tmp_path / "a", block="full", batch=5, seed=1, quiet=True)
    other = found.tables["measures"]
    keys = ["stack", "layer", "head", "measure", "group"]
    both = done.tables["measures"].join(other, on=keys, nulls_equal=True, suffix="_b")
    assert len(both) == len(other) == len(done.tables["measures"])
    known = both.filter(pl.col("value").is_not_null())
    ranked = pl.col("measure").str.starts_with("spearman")
    # Rank correlations of few pairs meet other ties where single precision rounds otherwise.
    for found, room in ((known.filter(~ranked), 1e-5), (known.filter(ranked), 0.02)):
        np.testing.assert_allclose(found["value"].to_numpy(), found["value_b"].to_numpy(), rtol=1e-4, atol=room)
    assert (known["low"].drop_nulls() != known["low_b"].drop_nulls()).any()


def test_few_texts_decide_nothing_and_one_has_no_intervals(bert, tmp_path):
    few = trisect.norms(bert, given(6), out=tmp_path / "six", quiet=True)
    wholes = few.tables["claims"].filter(pl.col("part").is_null())
    assert set(wholes["verdict"]) <= {"inconclusive", "not tested"}
    assert wholes["reason"][0] == "6 texts; below 30, resampling decides nothing"
    table = trisect.norms(bert, given(1), out=tmp_path / "one", quiet=True).tables["measures"]
    assert table["low"].null_count() == len(table)
    assert value(table, "cv_f")["value"] > 0


def test_decoders_have_a_first_token_and_say_what_they_lack(tmp_path):
    subject: Any = load(tinyhf.save(tinyhf.llama(), tmp_path / "model", specials=False))
    found = trisect.norms(subject, given(8), out=tmp_path / "out", block="residual", quiet=True)
    assert "No special token stands inside or after a text here: there is no category [SEP]." in found.notes
    assert "No special token opens a text here: there is no category [CLS]." in found.notes
    groups = set(found.tables["measures"].filter(measure="weight_share")["group"])
    assert groups == {"first", "punctuation", "other"}
    assert found.tables["claims"].filter(claim="C-3")["reason"][0] == "not measured on this model"
    claim = found.tables["claims"].filter(claim="C-2")
    for place, group in ((0, "punctuation"), (3, "first")):
        weight, norm = (value(found.tables["measures"], f"{kind}_share", group)["value"] for kind in ("weight", "norm"))
        assert claim["effect"][place] == pytest.approx(weight - norm)
    assert claim["decides"].to_list() == [True, True, False, False]


def test_a_decoder_that_puts_a_special_token_first_is_not_said_to_have_none(tmp_path):
    subject: Any = load(tinyhf.save(tinyhf.gpt2(), tmp_path / "model"))
    notes = trisect.norms(subject, given(1), out=tmp_path / "out", quiet=True).notes
    opened = "A text opens with [CLS] here, which is counted as its first token: there is no category [CLS]."
    assert [note for note in notes if "opens" in note] == [opened]


def test_without_special_tokens_and_punctuation_c_2_is_not_measured(tmp_path):
    subject: Any = load(tinyhf.save(tinyhf.gpt2(), tmp_path / "model", specials=False))
    words = [" ".join(random.Random(i).choices([w for w in VOCABULARY if w.startswith("w")], k=9)) for i in range(32)]
    found = trisect.norms(subject, Texts("words", lambda: iter(words)), out=tmp_path / "out", quiet=True)
    assert set(found.tables["measures"]["group"].drop_nulls()) >= {"first", "other"}
    claim = found.tables["claims"].filter(claim="C-2")
    reason = "not measured on this model"
    assert claim["reason"].to_list() == [reason, reason, reason, None]
    assert claim["effect"][3] is not None
    heads = found.tables["measures"].filter(measure="cv_f")["head"].drop_nulls()
    assert set(heads) == {1, 2, 3, 4}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["CC(C)=O.[BH4-]>>CC(C)O", "c1ccccc1Br.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1"] * 16, "no words with spaces"),
        (["M K T A Y I A K ."] * 32, "no words with spaces"),
        (["w1 w2 w3 w4 ."] * 32, ""),
        (["我去北京。我去北京。我去北京。"] * 32, ""),
        (["1 2 3 4"] * 32, "no words with spaces"),
        ([("M K T A Y I A K .", "M K T")] * 32, "no words with spaces"),
        ("embedded", "an invented language"),
    ],
)
def test_claims_about_language_are_not_judged_on_what_is_none_and_the_page_says_so(bert, tmp_path, texts, why):
    paired = load(tinyhf.bart(), tinyhf.tokenizer()) if isinstance(texts[0], tuple) else None
    found = trisect.norms(paired or bert, texts, limit=32, out=tmp_path, quiet=True)
    whole = {row["claim"]: row for row in found.tables["claims"].filter(pl.col("part").is_null()).to_dicts()}
    for claim in ("C-2", "C-4"):
        assert not why or (whole[claim]["verdict"], whole[claim]["effect"]) == ("not tested", None)
    assert why or whole["C-2"]["effect"] is not None
    assert whole["C-1"]["effect"] is not None
    assert any("speak of a language" in note and why in note for note in found.notes) == bool(why)
    assert ("C-2 and C-4 speak of a language" in found.report.read_text("utf-8")) == bool(why)


def test_our_own_models_and_encoder_decoders_have_rows_of_every_stack_and_layer(tmp_path):
    subject: Any = load(tinyhf.save(tinyhf.bart(), tmp_path / "model"))
    found = trisect.norms(subject, given(5), out=tmp_path / "out", quiet=True)
    table = found.tables["measures"]
    assert set(table["stack"]) == {"enc", "dec", "cross"}
    assert not len(table.filter(stack="cross", measure="mixing_ratio"))
    subject: Any = own(layers=3)
    texts = [" ".join(random.Random(i).choices(WORDS[:20], k=9)) for i in range(30)]
    found = trisect.norms(subject, Texts("own", lambda: iter(texts)), out=tmp_path / "own", block="full", quiet=True)
    assert set(found.tables["measures"]["layer"].drop_nulls()) == {1, 2, 3}
    assert set(found.tables["claims"]["n"]) == {30}
    assert value(found.tables["measures"], "mixing_ratio", "norm", 3)["value"] > 0


def test_memory_does_not_grow_with_the_texts(bert):
    def size(n: int) -> int:
        tallies = {"plain": StackTally("plain", {Address("plain", i): LayerTally(4, "attention") for i in (1, 2)})}
        counted = lab.Counted(n, n, torch.ones(len(VOCABULARY), dtype=torch.float64), ())
        for one in bert.batches(given(n).texts(), 8):
            lab._read(bert, one, tallies, counted, {})
        ranks = [r for layer in tallies["plain"].layers.values() for r in (*layer.cancel, *layer.head_cancel)]
        assert all(r._size < 40_000 for r in ranks)
        return sum(r.counts.numel() for r in ranks) + sum(
            v.rows.nbytes
            for layer in tallies["plain"].layers.values()
            for v in vars(layer).values()
            if isinstance(v, Sums)
        )

    assert size(4) == size(40)


def test_a_layer_without_a_plain_output_is_left_out_and_what_cannot_be_measured_is_refused_by_name(
    bert, tmp_path, monkeypatch
):
    first, second = bert.projections()
    gated = replace(first, w_o=None, origins={"o": Origin("gated", "a gate multiplies it")})
    monkeypatch.setattr(type(bert), "projections", lambda _: (gated, second))
    found = trisect.norms(bert, given(3), out=tmp_path / "found", quiet=True)
    assert "Left out, layer 1: a gate multiplies it." in found.notes
    assert set(found.tables["measures"]["layer"].drop_nulls()) == {2}
    with pytest.raises(SpecError, match="block is 'ffn'"):
        trisect.norms(bert, given(2), out=tmp_path / "out", block="ffn")
    monkeypatch.setattr(type(bert), "batches", lambda *_: iter(()))
    with pytest.raises(CorpusError, match="There is no text in 'empty'"):
        trisect.norms(bert, given(0, name="empty"), out=tmp_path / "out")
    monkeypatch.setattr(type(bert), "projections", lambda _: (gated, replace(second, w_o=None, origins=gated.origins)))
    with pytest.raises(ModelError, match="The output projection of layer 1 is not known per head"):
        trisect.norms(bert, given(2), out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["found"]


def test_a_layer_that_failed_its_proof_is_left_out(tmp_path, monkeypatch):
    subject: Any = load(zoo.build("prophetnet"), proof=True, tokenizer=tinyhf.tokenizer())
    texts = Texts("two", lambda: iter(["w1 w2 w3 .", "w4 w5 w1"]))
    every = tuple(found.projections for found in subject.proof.weights)
    assert Address("dec", 2) in {p.address for p in every} - set(subject.shape.heads)
    monkeypatch.setattr(type(subject), "projections", lambda _: every)
    found = trisect.norms(subject, texts, out=tmp_path / "out", quiet=True)
    layers = found.tables["measures"].select("stack", "layer").drop_nulls().unique()
    assert set(layers.iter_rows()) == {(a.stack, a.layer) for a in subject.shape.heads}
    monkeypatch.setattr(type(subject), "projections", lambda _: every[:0])
    with pytest.raises(ModelError, match="no attention layer whose norms can be computed") as error:
        trisect.norms(subject, texts, out=tmp_path / "none", quiet=True)
    assert error.value.reason == subject.shape.describe()


def test_a_verdict_is_bound_to_texts_block_and_command(bert, tmp_path):
    subject = replace(bert, options=("MODEL", "--window", "64"))
    texts = replace(given(3, name="some"), fingerprint="feed", options=("--texts", "a b.txt"))
    found = trisect.norms(subject, texts, out=tmp_path, block="full", seed=5, quiet=True)
    about = read_json(tmp_path / "norms.json", "")
    assert about["corpus_fingerprint"] == "feed"
    assert about["command"] == "trisect norms MODEL --window 64 --texts 'a b.txt' --block full --seed 5"
    wanted = {"subject": bert.name, "fingerprint": bert.fingerprint, "corpus": "some", "corpus_fingerprint": "feed"}
    for runs in found.tables["claims"]["runs"]:
        assert json.loads(runs) == wanted | {"texts": 3, "block": "full", "seed": 5}


def test_degrees_of_freedom_are_of_the_groups_that_were_drawn():
    many, draws = 10_000, np.random.default_rng(0).normal(size=(4000, 1))
    drawn = TextDraws(many, 0, many)
    one = DrawnEstimate(np.zeros(1), draws)
    for fewer, groups in ((False, GROUPS), (True, LAYER_GROUPS)):
        row = drawn.row(one, (0,), fewer=fewer)
        assert (row["low"], row["high"]) == tuple(float(end) for end in percentile_interval(draws[:, 0], groups))
        assert row["n"] == many
    assert TextDraws(40, 0, 40).row(one, (0,), fewer=True)["low"] == float(percentile_interval(draws[:, 0], 40)[0])


def test_texts_of_one_article_are_resampled_together(bert, tmp_path):
    """Every article is one text over and over, so that texts as units would say far too much."""
    distinct, times = list(given(12, 5).texts()), 4
    many = [text for text in distinct for _ in range(times)]
    marked = Texts("marked", lambda: iter(many), articles=lambda: (i // times for i in range(len(many))))
    found = [
        trisect.norms(bert, texts, out=tmp_path / texts.name, quiet=True)
        for texts in (marked, Texts("unknown", lambda: iter(many)))
    ]
    rows = [
        one.tables["measures"].filter(pl.col("layer").is_null(), measure="weight_share", group="cls").row(0, named=True)
        for one in found
    ]
    wide, narrow = (row["high"] - row["low"] for row in rows)
    assert narrow < 0.6 * wide
    assert [row["n"] for row in rows] == [48, 48]
    assert "Texts of one article are resampled together: 12 articles." in found[0].report.read_text(encoding="utf-8")


def rho(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation, by scipy."""
    found: Any = scipy.stats.spearmanr(x, y)
    return float(found.statistic)


def test_the_fall_over_layers_is_tested_over_all_orders_of_the_layers(tmp_path):
    """C-3's second part: p is the share of the 720 orders of six layers with as low a rank correlation, not one of resampled texts."""
    six = load(tinyhf.save(tinyhf.bert(layers=6), tmp_path / "six"))
    tables = trisect.norms(six, given(33), out=tmp_path / "out", quiet=True).tables
    means = [
        [value(tables["measures"], name, "sep", layer)["value"] for layer in range(1, 7)]
        for name in ("mean_a", "mean_f")
    ]
    weights, lengths = means
    own, *orders = (rho(weights, order) for order in (lengths, *itertools.permutations(lengths)))
    below, above = np.mean(np.array(orders) <= own + 1e-9), np.mean(np.array(orders) >= own - 1e-9)
    row = tables["claims"].filter(pl.col("part").str.contains("over layers of mean a")).row(0, named=True)
    assert row["effect"] == pytest.approx(own)
    assert row["p"] < 1
    assert (row["n"], row["p"]) == (6, pytest.approx(min(1.0, 2 * min(below, above))))


def test_headings_of_wikitext_mark_articles(tmp_path):
    lines = [" = A = ", " one . ", "", " = = past = = ", " two . ", " = B = ", " three . "]
    texts = open_texts(write_splits(tmp_path, "\n".join(lines) + "\n"), "test")
    assert texts.articles is not None
    assert list(texts.articles()) == [0, 0, 1]
    few = first_texts(texts, 2)
    assert few.articles is not None
    assert list(few.articles()) == [0, 0]


def test_what_lies_behind_w_o_is_measured_with_it_and_said(tmp_path):
    """Every query's parts are scaled by a factor of its own: shares by norm are of what is really added."""
    subject = load(zoo.build("olmo2"), tokenizer=tinyhf.tokenizer())
    found = trisect.norms(subject, given(12), out=tmp_path, quiet=True)
    said = [n for n in found.notes if "behind W_O" in n]
    assert len(said) == 1
    assert "layer 1, layer 2" in said[0]
    assert said[0] in found.report.read_text(encoding="utf-8")
    one = next(iter(subject.batches(given(12).texts(), 12)))
    with torch.no_grad():
        trace = subject.trace(one).traces[0]
    added, plain = (
        made[:, 1] * trace.query_real[..., None] * trace.key_real[:, None]
        for made in (head_norms(trace), trace.weights * transformed_norms(trace)[:, :, None])
    )
    first = torch.tensor([[i == 0 for i in range(len(row))] for row in one.source.tokens])
    sums = [float((made * first[:, None]).sum() / trace.query_real.sum()) for made in (added, plain)]
    assert value(found.tables["measures"], "norm_sum", "first", 1, 2)["value"] == pytest.approx(sums[0], rel=1e-5)
    assert abs(sums[0] / sums[1] - 1) > 0.01
    asked = (trace.weights > 0).any(1) & trace.query_real[..., None]
    received = added.sum(1) / asked.sum(1).clamp_min(1)
    of_tokens = received[trace.key_real].double()
    want = float(of_tokens.std(unbiased=False) / of_tokens.mean())
    assert value(found.tables["measures"], "cv_af", layer=1, head=2)["value"] == pytest.approx(want, rel=1e-4)
