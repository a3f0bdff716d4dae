"""Alignment as a whole: files in, tables, links, page and claim out; several models, pairs without gold, and refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests import tinyhf, zoo
from tests.conftest import leave_undrawn
from tests.raw import read_json

import trisect
from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.tables import read_table
from trisect.experiments.align import ALIGN
from trisect.experiments.align.settings import AlignFacts, AlignSettings
from trisect.hf.load import load
from trisect.lab.driver import render, run
from trisect.lab.experiment import Result
from trisect.lab.inputs import ModelsSource
from trisect.measure.alignment import aer
from trisect.text.bitext import Bitext, SentencePair, read_pairs

NASTY = "<b>w3</b>"
LONG = SentencePair(("w1",) * 40, ("w2",) * 40, frozenset({(0, 0)}), frozenset({(0, 0)}))  # more than a model reads
ATTENDING, IDLE = 1, 2  # heads of `pointing`
DRAWS = 300


def write(folder, name, pairs=34, seed=0, words=(1, 9)):
    """Files of sentence pairs and gold links from 1; one pair is longer than the models read."""
    draw = np.random.default_rng(seed)
    lines = {"src": [], "tgt": [], "talp": []}
    for number in range(pairs):
        sizes = draw.integers(*words, size=2)
        for side, size in zip(("src", "tgt"), sizes, strict=True):
            lines[side].append([f"w{draw.integers(40)}" for _ in range(size)])
        pairs_of = [(int(draw.integers(s)), int(draw.integers(t))) for s, t in [sizes] for _ in range(3)]
        lines["talp"].append([f"{s + 1}{'-p'[i > 0]}{t + 1}" for i, (s, t) in enumerate(dict.fromkeys(pairs_of))])
        if number == 0:
            lines["tgt"][0][0] = NASTY
            lines["talp"][0][0] = f"{sizes[0]}-{sizes[1]}"
    paths = []
    for end, rows in lines.items():
        paths.append(folder / f"{name}.{end}")
        paths[-1].write_text("".join(" ".join(row) + "\n" for row in rows), encoding="utf-8")
    return tuple(paths)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bitext")
    return write(folder, "test"), write(folder, "trial", 6, 1)


@pytest.fixture(scope="module")
def barts():
    return tuple(load(tinyhf.bart(seed), tinyhf.tokenizer()) for seed in (1, 2))


@pytest.fixture(scope="module")
def done(barts, files, tmp_path_factory) -> Result[AlignFacts]:
    test, trial = files
    out = tmp_path_factory.mktemp("align")
    return trisect.align(
        barts, source=test[0], target=test[1], gold=test[2], trial=trial, out=out, quiet=True, draws=DRAWS
    )


def pointing():
    """A BERT of one layer in whose head ATTENDING w10 to w17 and w0 to w7 look at each other, each at the one ten below or above."""
    model: Any = tinyhf.bert(layers=1)
    inner = model.bert.encoder.layer[0].attention.self
    table = model.bert.embeddings.word_embeddings.weight
    with torch.no_grad():
        for weights in (table, model.bert.embeddings.position_embeddings.weight, inner.query.weight, inner.key.weight):
            weights.zero_()
        for parameter in (inner.query.bias, inner.key.bias, *model.bert.embeddings.token_type_embeddings.parameters()):
            parameter.zero_()
        model.bert.embeddings.LayerNorm.weight.fill_(1.0)
        model.bert.embeddings.LayerNorm.bias.zero_()
        first = tinyhf.VOCABULARY.index("w0")
        for i in range(8):
            table[first + i, i] = table[first + 10 + i, 8 + i] = 1.0
            for ask, see in ((i, 8 + i), (8 + i, i)):
                inner.query.weight[i, ask] = inner.key.weight[i, see] = 1.0
    return model


@pytest.fixture(scope="module")
def texts_of_two_parts(tmp_path_factory):
    """Texts w0 … ||| w10 … in which every target word is the translation of the source word ten below, in another order."""
    folder, draw = tmp_path_factory.mktemp("within"), np.random.default_rng(0)
    lines, gold = [], []
    for _ in range(6):
        source, order = draw.permutation(8)[:5], draw.permutation(5)
        lines.append(f"{' '.join(f'w{i}' for i in source)} || {' '.join(f'w{source[i] + 10}' for i in order)}")
        gold.append(" ".join(f"{i}-{place}" for place, i in enumerate(order)))
    for name, rows in (("texts", lines), ("gold.pharaoh", gold)):
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "texts", folder / "gold.pharaoh"


def aligned(model, bitext, out) -> Result[AlignFacts]:
    """Pairs in memory, as other experiments give them."""
    return run(ALIGN, AlignSettings(ModelsSource((model,)), "a", "b", draws=DRAWS, bitext=bitext), out, quiet=True)


NAMES = ("BartForConditionalGeneration (1)", "BartForConditionalGeneration (2)")


def test_it_writes_tables_links_figures_and_a_page_that_is_made_again_from_them(done):
    for name in ("measures", "claims"):
        assert read_table(done.folder / "tables", name).equals(done.tables[name])
    assert (done.folder / "tables" / "links.parquet").exists()
    assert done.report == done.folder / "report.html"
    assert {p.stem for p in (done.folder / "figures").glob("*.svg")} == {"error-rates", "heads", "sentence-pair"}
    text = done.report.read_text(encoding="utf-8")
    about = read_json(done.folder / "align.json", "")
    assert about["pairs"] == 34
    assert about["models"].keys() == set(NAMES)
    assert about["command"].startswith("trisect align MODEL MODEL --source test.src --target test.tgt --gold test.talp")
    assert "--trial trial.src trial.tgt trial.talp" in about["command"]
    assert str(done.folder.parent) not in text
    assert any("test.talp counts words from 1" in note for note in done.notes)
    before = done.report.read_bytes()  # it is made again from what lies in the folder
    again = render(ALIGN, done.folder)
    assert again.report.read_bytes() == before
    assert list(map(str, again.findings)) == list(map(str, done.findings))
    assert again.about.facts.chosen == done.about.facts.chosen


def test_words_stand_on_the_page_as_text(barts, tmp_path, undrawn):
    words = (NASTY, "&amp;", "a'b\"c\\", "w4")
    pair = SentencePair(words, words, frozenset({(0, 0)}), frozenset({(0, 0), (1, 2)}))
    undrawn.undo()
    made = aligned(barts[0], Bitext("one <i>", (), (), (LONG, pair)), tmp_path)
    leave_undrawn(undrawn)
    # the one too long is left out, and this is said
    assert any(note.startswith("1 of 2 sentence pairs have more tokens") for note in made.notes)
    lines = (made.paths["links"] / "awi-weight-layer-1.pharaoh").read_text().split("\n")
    assert (lines[0], lines[1] != "") == ("", True)
    assert made.tables["claims"]["n"][1] == 1
    text = made.report.read_text(encoding="utf-8")
    assert NASTY not in text
    assert "&lt;b&gt;w3&lt;/b&gt;" in text
    assert "a&#39;b" in text or "a'b" in text
    assert "one &lt;i&gt;" in text
    drawn = (tmp_path / "figures" / "sentence-pair.svg").read_text(encoding="utf-8")
    assert drawn.count("&lt;b&gt;w3&lt;/b&gt;") >= 2  # beside both axes
    assert "w4" in drawn


def test_rates_are_those_of_the_links_that_were_written(done, files):
    pairs = read_pairs(*files[0]).pairs
    rows = done.tables["measures"].filter(pl.col("head").is_null(), measure="aer")
    checked = 0
    for number, name in enumerate(NAMES, start=1):
        for one in rows.filter(pl.col("layer").is_not_null(), subject=name).iter_rows(named=True):
            setting, kind = one["group"].split()
            stem = done.paths["links"] / f"model-{number}-{setting}-{kind}-layer-{one['layer']}"
            found = []
            for ending, base in ((".talp", 1), (".pharaoh", 0)):
                lines = stem.with_suffix(ending).read_text(encoding="utf-8").split("\n")[:-1]
                links = ([link.split("-") for link in line.split()] for line in lines)
                found.append([{(int(s) - base, int(t) - base) for s, t in line} for line in links])
            assert found[0] == found[1]
            rate = aer(found[0], [p.sure for p in pairs], [p.possible for p in pairs])
            assert one["value"] == pytest.approx(rate, abs=1e-12)
            own = done.tables["links"].filter(subject=name, setting=setting, kind=kind, layer=one["layer"])
            assert len(own) == sum(map(len, found[0]))
            checked += 1
    assert checked == 2 * 2 * 3 * 3


def test_best_layers_come_from_the_trial_pairs_alone(done, barts, files, tmp_path, pageless):
    """Given as the test set, the trial pairs have their lowest rate at just those layers."""
    trial = files[1]
    chosen = read_json(done.folder / "align.json", "")["chosen"]
    for name, subject in zip(NAMES, barts, strict=True):
        made = trisect.align(
            subject, source=trial[0], target=trial[1], gold=trial[2], out=tmp_path / name, quiet=True, draws=DRAWS
        )
        own = made.tables["measures"]
        for group, layer in chosen[name].items():
            setting, kind = group.lower().split(" by ")
            rates = own.filter(pl.col("head").is_null(), pl.col("layer").is_not_null(), measure="aer")
            rates = rates.filter(group=f"{setting} {kind}").sort("value", "layer")
            assert rates["layer"][0] == layer
    whole = done.tables["measures"].filter(measure="aer_best", subject=NAMES[0])
    assert len(whole) == 6
    layers = {f"{s.upper()} by {k}": at for s, k, at in [(*r["group"].split(), r["at"]) for r in whole.to_dicts()]}
    assert layers == chosen[NAMES[0]]


def test_without_gold_there_are_links_and_no_claim_is_judged(barts, files, tmp_path):
    source, target, _ = files[0]
    made = trisect.align(barts[0], source, target=target, out=tmp_path, limit=5, quiet=True, draws=DRAWS)
    assert set(made.tables["measures"]["measure"]) == {"linked", "agreement"}
    assert made.tables["claims"]["verdict"][0] == "not tested"
    assert "Only the first 5 sentence pairs are read." in made.notes
    assert len((made.paths["links"] / "awo-norm-layer-3.pharaoh").read_text().split("\n")) == 6
    text = made.report.read_text(encoding="utf-8")
    assert "What the claim says here" not in text
    with pytest.raises(SpecError, match="limit is 0"):
        trisect.align(barts[0], source, target=target, out=tmp_path, limit=0, quiet=True)


def test_what_cannot_be_aligned_is_refused(barts, files, tmp_path, pageless):
    (source, target, gold), _ = files

    def align(models, target=target, **named):
        return trisect.align(models, source, target=target, gold=gold, out=tmp_path / "out", quiet=True, **named)

    with pytest.raises(ModelError, match="BertForMaskedLM has no cross-attention"):
        align(load(tinyhf.bert(), tinyhf.tokenizer()))
    with pytest.raises(ModelError, match="No model was given"):
        align(())
    other = load(zoo.build("t5"), tinyhf.tokenizer())
    with pytest.raises(ModelError, match="has other layers or heads than BartForConditionalGeneration"):
        align((barts[0], other))
    with pytest.raises(ModelError, match="No pair of long fits into Bart"):
        aligned(barts[0], Bitext("long", (), (), (LONG,)), tmp_path)
    with pytest.raises(CorpusError, match="none has no test pairs"):
        aligned(barts[0], Bitext("none", (), (), ()), tmp_path)
    short = tmp_path / "short.tgt"
    short.write_text("w1\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"short.tgt has 1 line"):
        align(barts[0], short)
    with pytest.raises(CorpusError, match="was said to count from 0"):
        align(barts[0], base=0)


def test_a_head_that_points_within_one_text_is_the_one_that_aligns(texts_of_two_parts, tmp_path, undrawn):
    """By weight and norm in both directions, without an error; a head that looks everywhere alike is no better than chance."""
    texts, gold = texts_of_two_parts
    subject = load(pointing(), tinyhf.tokenizer())
    made = trisect.align(subject, texts, marker="||", gold=gold, out=tmp_path, quiet=True, draws=DRAWS)
    rows = made.tables["measures"]
    heads = rows.filter(pl.col("head").is_not_null(), measure="aer")
    for way in ("forward", "backward", "sum", "intersection"):
        for kind in ("weight", "norm"):
            rate = {row["head"]: row["value"] for row in heads.filter(group=f"{way} {kind}").iter_rows(named=True)}
            assert rate[ATTENDING] == pytest.approx(0.0, abs=1e-12)
            assert rate[IDLE] > 0.3
            (best,) = rows.filter(measure="aer_head", group=f"{way} {kind}").iter_rows(named=True)
            assert (best["layer"], best["head"], best["value"]) == (1, ATTENDING, pytest.approx(0.0, abs=1e-12))
    assert {"forward contribution", "intersection contribution"} <= set(heads["group"])
    assert "claims" not in made.tables or made.tables["claims"].is_empty()
    assert "AER 0.0\u00a0% by weight, 0.0\u00a0% by norm" in str(made.findings[0])
    spans = tmp_path / "spans"
    lines = texts.read_text(encoding="utf-8").splitlines()
    spans.write_text(
        "".join(f"0-{len(a)} {len(a) + 3}-{len(a) + 3 + len(b)}\n" for a, b in (line.split(" || ") for line in lines))
    )
    again = trisect.align(subject, texts, spans=spans, gold=gold, out=tmp_path / "b", quiet=True, draws=DRAWS)
    assert again.tables["measures"].equals(rows)
    # a model that only looks back makes no links the other way
    subject = load(tinyhf.llama(), tinyhf.tokenizer())
    made = trisect.align(subject, texts, marker="||", gold=gold, out=tmp_path / "c", quiet=True, draws=DRAWS)
    forward, backward, _, intersection = map(str, made.findings)
    assert backward == "Backward, no head that is chosen makes a link: AER is 100\u00a0%"
    assert intersection.startswith("Intersection, no head")
    assert re.search("precision [123]", forward)


def test_texts_without_their_marker_or_with_pieces_of_several_words_are_refused(texts_of_two_parts, tmp_path, pageless):
    texts, _ = texts_of_two_parts
    subject = load(tinyhf.bert(), tinyhf.tokenizer())

    def align(**named):
        return trisect.align(subject, texts, out=tmp_path / "out", quiet=True, **named)

    bad = tmp_path / "spans"
    bad.write_text("0-3 4-900\n" * 6)
    for named, kind, words in (
        ({}, CorpusError, "has no target"),
        ({"marker": ">>"}, CorpusError, "line 1.*stands 0 times"),
        ({"marker": "||", "target": texts}, CorpusError, "--target was given with --marker or --spans"),
        ({"marker": "||", "spans": texts}, CorpusError, "--marker and --spans were both given"),
        ({"marker": "||", "word": "("}, CorpusError, "no regular expression"),
        ({"marker": "||", "word": "[w0-9]"}, ModelError, "spans several words"),
        ({"spans": bad}, CorpusError, "line 1, is '0-3 4-900'"),
    ):
        with pytest.raises(kind, match=f"(?s){words}"):
            align(**named)
