"""Profiles of models: which words and labels, what is read where positions turn, checkpoints, what it writes and says, and errors."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from markupsafe import escape
from tests import tiny, tinyhf, zoo
from tests.raw import call, write_splits
from tests.studies import no_page  # noqa: F401
from tests.unit.test_erase import OWN
from torch import Tensor
from transformers import AutoModelForCausalLM

import trisect
from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.tables import frame
from trisect.core.trace import Address, Trace
from trisect.experiments.profile import PROFILE
from trisect.experiments.profile.page import ProfileNumbers, checkpoint_findings
from trisect.experiments.profile.reading import (
    COMPONENTS,
    StoredWords,
    _groups,
    component_vectors,
    is_plain,
    is_rotated,
    layer_input,
    read_words,
    weights_of,
)
from trisect.experiments.profile.run import relabel
from trisect.experiments.profile.settings import ProfileSettings
from trisect.lab.driver import render
from trisect.lab.folder import Folder
from trisect.lab.inputs import ModelSource
from trisect.lab.subject import load, read_epochs
from trisect.lab.word_labels import WordTexts
from trisect.lm.reading import OwnModel
from trisect.measure.profile import MapScores, WordClasses
from trisect.text.labels import USUAL_LABELS, WordLabeller, _position_bin, frequent_classes, make_labeller
from trisect.text.sources import Labelled, open_labels

LABELS = ("position", "pos", "dep")


def treebank(folder, sentences=150):
    """Documents of ten sentences; a word's class is its number's remainder by three, and its head the word before."""
    lines = []
    for i in range(sentences):
        words = [f"w{(7 * i + 3 * j + i * j) % 40}" for j in range(4 + i % 7)] + ["."]
        lines += ["# newdoc id = a"] * (i % 10 == 0)
        lines.append(f"# text = {' '.join(words[:-1])}{words[-1]}")
        for n, word in enumerate(words, 1):
            tag = "P" if word == "." else "ABC"[int(word[1:]) % 3]
            lines.append(f"{n}\t{word}\t_\t{tag}\t_\t_\t{n - 1}\t{'x' if n % 2 else 'y'}\t_\t_")
        lines.append("")
    return write_splits(folder, "\n".join(lines) + "\n", "conllu")


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    return treebank(tmp_path_factory.mktemp("bank"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return load(tinyhf.save(tinyhf.bert(), tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def found(bert, bank, tmp_path_factory):
    return trisect.profile(
        bert, bank, labels=LABELS, per="head", out=tmp_path_factory.mktemp("out") / "profile", quiet=True
    )


def whole(trace: Trace) -> Tensor:
    """What a layer takes in, where that is known."""
    x = layer_input(trace)
    assert x is not None
    return x


def table(found: Any, name: str) -> list[dict[str, Any]]:
    """The rows of a profile for programs, as a program reads them."""
    return json.loads(json.dumps(getattr(found, name)))


def read(subject, bank, **named):
    settings = ProfileSettings(ModelSource(subject), bank, **named)
    texts = open_labels(bank, "train", bare=True)
    return read_words(subject, texts, make_labeller(texts, settings.labels, settings.limit), settings, lambda *_: None)


def test_figures_are_there_and_the_same_rows_give_the_same_bytes(found, tmp_path):
    assert {"profile.svg", "profile-layers.svg", "profile-heads-pos.svg"} <= {
        p.name for p in found.folder.glob("figures/*")
    }
    corpus = found.about.command.split()[4]
    assert found.about.command == f"trisect profile MODEL --corpus {corpus} --labels position,pos,dep --per head"
    assert found.about.facts.groups == 15
    claims = found.tables["claims"].filter(pl.col("part").is_null())  # of few layers there is no verdict
    assert dict(claims.select("claim", "verdict").iter_rows()) == {"F-2": "inconclusive", "F-3": "inconclusive"}
    assert set(claims["reason"]) == {"3 layers are asked for, 2 given", "3 layers are asked for, 1 given"}
    shutil.copytree(found.folder, tmp_path / "again", ignore=lambda *_: ["report.html", "figures"])
    again = render(PROFILE, tmp_path / "again")
    assert again.report.read_bytes() == found.report.read_bytes()
    assert (again.findings, again.about) == (found.findings, found.about)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_what_is_kept_is_what_the_layer_reads_and_what_its_weights_make_of_it(name, bank, tmp_path):
    subject = load(tinyhf.save(getattr(tinyhf, name)(), tmp_path / "model"))
    got = read(subject, bank, labels=("pos",), limit=60, words=500)
    layer = got.layers[Address("plain", 2)]
    marker, rows, last = WordTexts(subject), {c: [] for c in ("x", *COMPONENTS)}, name != "bert"
    texts = open_labels(bank, "train").texts()
    for batch in marker.batches((next(texts) for _ in range(got.texts)), 16, scored=False):
        trace = next(t for t in subject.trace(batch).traces if t.address == Address("plain", 2))
        for row, position, *_ in marker.words(batch, last):
            rows["x"].append(whole(trace)[row, position])
            for c in COMPONENTS:
                rows[c].append(component_vectors(trace, c)[row, position].flatten())
    rows = {c: torch.stack(found) for c, found in rows.items()}
    stored = layer.inputs["q"]
    taken = torch.from_numpy(stored.finish().astype(np.float32)) * stored.scale + stored.shift
    assert taken == pytest.approx(rows["x"], rel=0, abs=0.01 * float(rows["x"].abs().max()))
    assert not layer.as_used
    for c in COMPONENTS:
        made = weights_of(layer.weights(), c)
        assert made is not None
        w, b = made
        kept = torch.einsum("nd,pde->npe", rows["x"], w) + b
        there, near = rows[c].view(kept.shape), 0.02 * float(rows[c].abs().max())
        # rotary position embeddings rotate q and k of llama after its weights have made them
        assert (kept == pytest.approx(there, rel=0, abs=near)) == (name != "llama" or c == "v")
        assert kept.norm(dim=-1) == pytest.approx(there.norm(dim=-1), rel=0, abs=near)
    assert any("q, k are read as their weights make them" in note for note in got.notes) == (name == "llama")
    trace = subject.trace(next(iter(subject.batches(["w1 w2 w3 w4 w5 ."])))).traces[0]
    turned = [name == "llama", name == "llama", False]
    assert [is_rotated(trace, c, whole(trace)) for c in COMPONENTS] == turned
    assert [not is_plain(trace, c, whole(trace)) for c in COMPONENTS] == turned


def test_queries_behind_a_norm_are_read_as_attention_used_them_and_give_no_verdict(bank, tmp_path):
    model = zoo.build("qwen3", vocab_size=len(tinyhf.VOCABULARY), bos_token_id=2, eos_token_id=3, pad_token_id=0)
    subject = load(tinyhf.save(model, tmp_path / "model"))
    layer = read(subject, bank, labels=("pos",), limit=60, words=500).layers[Address("plain", 1)]
    trace = subject.trace(next(iter(subject.batches(["w1 w2 w3 w4 w5 ."])))).traces[0]
    assert [is_rotated(trace, c, whole(trace)) for c in COMPONENTS] == [False, False, False]
    assert set(layer.as_used) == {"q", "k"}
    found = trisect.profile(
        subject, bank, labels=["position", "pos"], limit=60, words=500, out=tmp_path / "out", quiet=True
    )
    assert any("q, k are read as attention used them" in note for note in found.notes)
    claims = {row["claim"]: row for row in found.tables["claims"].filter(pl.col("part").is_null()).to_dicts()}
    assert {claim["verdict"] for claim in claims.values()} == {"inconclusive"}
    assert claims["F-2"]["reason"].startswith("1 of 3 parts, supported; position: ")
    assert found.about.facts.as_used == ("q", "k")
    assert "queries keep" not in "".join(f.words for f in found.findings if f.measure == "profile_answer")
    assert all("this may not be by their weights" in f.words for f in found.findings if f.measure == "profile")
    assert "Of q and k, read as attention used them, this may not be by their weights." in found.report.read_text()
    # a claim whose label was not asked for is not measured either
    found = trisect.profile(subject, bank, labels=["position"], limit=60, words=500, out=tmp_path / "one", quiet=True)
    claims = found.tables["claims"].filter(pl.col("part").is_null())
    assert dict(claims.select("claim", "reason").iter_rows())["F-3"] == "not measured on this model"


def rotary(kind: str, folder: Path, **settings: Any) -> Any:
    """A model with rotary positions and as random weights as it is born with, saved and loaded."""
    ids = {"vocab_size": len(tinyhf.VOCABULARY), "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    config = zoo.build(kind, max_position_embeddings=tinyhf.LONGEST, intermediate_size=32, **ids, **settings).config
    torch.manual_seed(0)
    return load(tinyhf.save(AutoModelForCausalLM.from_config(config).eval(), folder / "model"))


def test_queries_that_are_rotated_and_scaled_for_longer_texts_are_read_before_it(bank, tmp_path):
    scaled = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 8}
    subject = rotary("llama", tmp_path, attention_bias=True, rope_parameters=scaled)
    trace = subject.trace(next(iter(subject.batches(["w1 w2 w3 w4 w5 ."])))).traces[1]
    made = weights_of(trace.projections, "q")
    assert made is not None
    lengths = (torch.einsum("btd,pde->btpe", whole(trace), made[0]) + made[1]).norm(dim=-1)
    assert float((component_vectors(trace, "q").norm(dim=-1) / lengths).mean()) > 1.05
    assert [is_rotated(trace, c, whole(trace)) for c in COMPONENTS] == [True, True, False]


def test_what_rotary_positions_put_into_queries_is_not_what_an_untrained_model_keeps(bank, tmp_path):
    wide = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8}
    subject = rotary("llama", tmp_path, **wide)
    found = trisect.profile(subject, bank, labels=["position"], out=tmp_path / "out", quiet=True)
    claim = found.tables["claims"].filter(claim="F-2").filter(pl.col("part").is_null() | pl.col("decides"))
    assert claim["verdict"][0] != "supported"  # queries and keys as they are rotated would support it
    assert (claim.filter(pl.col("part").str.starts_with("position"))["effect"].abs() < 0.02).all()


def test_layers_without_rotary_positions_are_not_said_to_be_rotated(bank, tmp_path):
    subject = rotary(
        "smollm3", tmp_path, num_hidden_layers=3, layer_types=["full_attention"] * 3, no_rope_layers=[1, 0, 1]
    )
    got = read(subject, bank, labels=("pos",), limit=60, words=500)
    (said,) = (note for note in got.notes if "rotary" in note)
    assert said.startswith(
        "q, k of layer 1, layer 3 are read as their weights make them of the layer's input, before rotary"
    )


def test_queries_share_their_own_key_head_and_fewer_articles_than_folds_are_a_fold_each(bank, tmp_path, bert):
    subject = load(tinyhf.save(tinyhf.llama(), tmp_path / "model"))
    found = trisect.profile(subject, bank, labels=["pos"], limit=60, out=tmp_path / "out", quiet=True)
    (row,) = (r for r in table(found, "layers") if r["layer"] == 1)
    assert (row["differences"]["q-v"]["n"], row["gains"]["q"]["n"], row["gains"]["v"]["n"]) == (2, 4, 2)
    found = trisect.profile(bert, bank, labels=["pos"], limit=30, out=tmp_path / "few", quiet=True)
    assert (found.about.facts.groups, found.about.facts.folds) == (3, 3)


def test_a_raw_text_has_words_and_its_articles_or_runs_of_texts_are_groups_and_rare_classes_one(bert, tmp_path):
    lines = []
    for i in range(60):
        lines += [f" = Title {i} = ", " = = Part = = "] * (i % 6 == 0)
        lines.append(" ".join(f"w{(i * j + 3 * j) % 40}" for j in range(8)) + " <unk> .")
    got = read(bert, write_splits(tmp_path, "\n".join(lines) + "\n"))
    assert [label.name for label in got.sides[0].labels] == ["word", "position", "frequency"]
    assert len(got.sides[0].groups) == 60 * 8  # eight words; <unk> with the full stop that is joined to it is left out
    assert len(set(got.sides[0].groups.tolist())) == 10
    assert _groups([0, 0, 1, 2], 3, 2, [3, 3, 3, 4]).tolist() == [3, 3, 3, 4]
    assert _groups(range(400), 400, 5, [None] * 400).tolist() == [i // 20 for i in range(400)]
    assert _groups(range(30), 30, 5).tolist() == [i // 3 for i in range(30)]
    names = ["a"] * 30 + ["b"] * 25 + ["c"] * 5 + [None] * 9 + ["d"]
    assert frequent_classes(names, 100, 20) == ("a", "b", "(other)")
    assert frequent_classes(names, 1, 20) == ("a", "(other)")
    assert frequent_classes(names[:55], 100, 20) == ("a", "b")


def test_labels_of_a_text_and_heads_that_are_unknown_where_a_sentence_lacks_one(bank, tmp_path):
    texts = open_labels(bank, "train", bare=True)
    one = next(texts.texts())
    assert make_labeller(texts, None, None).labels == USUAL_LABELS
    label = make_labeller(texts, ("word", "position", "pos", "previous", "next", "head", "next.dep"), None)
    names = label(one)
    tags = one.labels["pos"]
    assert names["word"] == tuple(one.text[a:b].lower() for a, b in one.spans)
    assert names["position"] == ("1–3", "1–3", "1–3", "4–6", "4–6")
    assert names["previous"] == ("start", *tags[:-1])
    assert names["next"] == (*tags[1:], "end")
    assert names["head"] == ("root", *tags[:-1])
    assert names["next.dep"] == (*one.labels["dep"][1:], "end")
    counts = make_labeller(texts, None, 3).counts  # of lower-case words
    assert counts == Counter(one.text[a:b].lower() for one in islice(texts.texts(), 3) for a, b in one.spans)
    bank = treebank(tmp_path / "bank")
    path = bank / "train.conllu"
    path.write_text(path.read_text().replace("\t0\tx", "\t_\tx", 1))
    texts = open_labels(bank, "train")
    kept = list(texts.texts())
    assert (kept[0].heads, kept[1].heads) == ((), (0, 1, 2, 3, 4, 5))
    assert make_labeller(texts, ("head",), None)(kept[0])["head"] == (None,) * 5
    assert (kept[0].article, kept[9].article, kept[10].article) == (0, 0, 1)


def test_bins_of_frequency_are_powers_of_two_and_those_of_positions_three_words_wide():
    for count, bin in ((1, "1"), (2, "2–3"), (3, "2–3"), (4, "4–7"), (1000, "512–1023")):
        label = WordLabeller(("frequency",), Counter({"a": count}))
        assert label(Labelled("a", ((0, 1),), {})) == {"frequency": (bin,)}
    bins = ["1–3", "1–3", "4–6", "19–21", "22 on", "22 on"]
    assert [_position_bin(place) for place in (0, 2, 3, 20, 21, 90)] == bins


def test_one_place_a_word_its_first_piece_or_its_last(bert):
    marker = WordTexts(bert)
    one = Labelled("w1 w2w3 w4 .", ((0, 2), (3, 7), (8, 10), (11, 12)), {})
    (batch,) = marker.batches([one], 4, scored=False)
    places = marker.words(batch, False)
    assert [word for *_, word in places] == [0, 1, 2, 3]
    assert [position for _, position, *_ in places] == [1, 2, 3, 4]  # after [CLS]; the tokenizer leaves w2w3 whole


def test_stored_words_come_back_in_half_precision():
    rows = torch.randn(50, 6, generator=torch.Generator().manual_seed(1)) * torch.tensor([1, 10, 0.1, 1, 0, 1e4]) + 500
    stored = StoredWords.like(rows[:10])
    stored.add(rows[:20])
    stored.add(rows[20:])
    back = torch.from_numpy(stored.finish().astype(np.float32)) * stored.scale + stored.shift
    assert back == pytest.approx(rows, rel=2e-3, abs=0.05)
    # what is stored lies on disk, and is mapped: memory does not grow with it
    assert isinstance(stored.finish(), np.memmap)
    assert stored.finish().dtype == np.float16


def test_scores_of_one_head_alone_are_tested_by_random_maps():
    from trisect.experiments.profile.statistics import LayerScores, mean_over_model, mean_over_random

    draws = np.random.default_rng(0).normal(0.5, 0.01, (200, 1))
    null, one = MapScores(draws, draws), MapScores(np.array([[0.6]]), np.array([[0.6]]))
    heads, random = dict.fromkeys("qkv", one), dict.fromkeys("qkv", null)
    scores = LayerScores(Address("plain", 1), heads, random, heads)
    test = mean_over_random(scores, "q", 0)
    assert test == mean_over_model([scores], "q", 0)
    assert (test.n, test.p < 1e-10) == (1, True)
    assert test.ends.low < test.value == pytest.approx(0.1, abs=0.005)


def test_a_head_that_layers_share_is_one_head(bank, tmp_path):
    """ALBERT's layers read other vectors by one set of matrices: a mean over heads is of as many as the weights hold."""
    subject = load(tinyhf.save(zoo.build("albert"), tmp_path / "model"))
    made = trisect.profile(subject, bank, labels=["position"], words=400, out=tmp_path / "out", quiet=True)
    gains = made.tables["measures"].filter(measure="profile_gain", component="q").sort("layer")
    layers, heads = len(subject.shape.heads), next(iter(subject.shape.heads.values())).query
    assert layers > 1
    assert gains["n"].to_list() == [heads] * (1 + layers)  # without a layer, and of each
    assert gains["value"][0] == pytest.approx(gains["value"][1:].mean())
    pair = made.tables["measures"].filter(pl.col("layer").is_null(), measure="profile_difference", component="q-v")
    assert pair["n"].to_list() == [heads]
    claims = made.tables["claims"].filter(pl.col("sentence").str.contains("position"), claim="F-2")
    assert set(claims["n"]) == {1}  # the unit is a layer, and all of them are one
    assert f"Layers 1–{layers} share one set of weights." in made.notes
    assert f"{heads} heads, met at {layers * heads} places" in made.report.read_text()


def test_what_cannot_be_asked_is_refused(bert, bank, tmp_path):
    cases: list[tuple[type[Exception], dict[str, Any], str]] = [
        (CorpusError, {"labels": ["entity"]}, "has no label 'entity'.*word, position, frequency, pos, dep, previous"),
        (SpecError, {"draws": 50}, "With fewer than 200"),
        (CorpusError, {"labels": ["pos"], "limit": 10}, "Too little of .* Read more of it"),
        (CorpusError, {"labels": ["tag"]}, "has no label 'tag'.*word, position, frequency, pos, dep, previous"),
    ]
    for error, options, words in cases:
        with pytest.raises(error, match=f"(?s){words}"):
            trisect.profile(bert, bank, **options, out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out" / "report.html").exists()


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    """A model of our own with MLP probes and the causal twin."""
    asked = {"labels": ["position", "pos"], "words": 900, "mlp": True, "causal": 8, "quiet": True}
    return trisect.profile(OWN, "embedded", out=tmp_path_factory.mktemp("more") / "out", **asked)


def test_mlp_probes_are_compared_and_the_causal_twin_erases_each_label_at_each_layer(more):
    assert {row["layer"] for row in table(more, "layers")} == {1, 2}
    assert any("read at its last piece" in note for note in more.notes)
    (said,) = (f for f in more.findings if f.measure == "profile_mlp")
    rows = more.tables["measures"]
    checked = rows.filter(pl.col("measure").is_in(["profile_mlp", "profile_mlp_random"]))
    assert checked.height == 2 * 2 * 2 * 3
    assert checked["value"].is_between(0, 1).all()
    n = said.values[0].n
    assert f"MLP probes put it on the same side in {round((said.values[0].mean or 0) * n)} of {n} case" in said.words
    assert str(escape(said.words)) in more.report.read_text()
    rows = more.tables["measures"].filter(measure="erase_excess_nats")
    there = {(r["layer"], r["component"], r["group"]) for r in rows.iter_rows(named=True)}
    assert there == {(n, c, la) for n in (1, 2) for c in COMPONENTS for la in ("position", "pos")}
    facts = more.about.facts
    assert (facts.causal_corpus, facts.causal_texts, facts.unit) == ("embedded, test", 8, "nats")
    said = [f for f in more.findings if f.measure == "profile_erased"]
    assert [f.groups for f in said] == [("position",), ("pos",)]
    for finding in said:
        most = rows.filter(group=finding.groups[0], component="q")["value"].max()
        assert finding.values[0].mean == most
        assert finding.values[0].name.startswith("q@")
    assert (more.folder / "figures" / "profile-causal.svg").exists()


def test_head_by_head_the_causal_twin_is_of_single_heads_too_and_adds_nothing_to_the_layers(more, tmp_path):
    asked = {"labels": ["pos"], "words": 900, "causal": 8, "quiet": True, "per": "head"}
    found = trisect.profile(OWN, "embedded", out=tmp_path / "out", **asked)
    rows = found.tables["measures"].filter(measure="erase_excess_nats")
    alone = rows.filter(pl.col("head").is_not_null())
    heads = {p.address: len(p.w_q) for p in OWN.projections() if p.w_q is not None}
    assert {(r["layer"], r["head"], r["component"]) for r in alone.iter_rows(named=True)} == {
        (a.layer, h, c) for a, n in heads.items() for h in range(1, n + 1) for c in COMPONENTS
    }
    layers = rows.filter(pl.col("head").is_null()).sort("layer", "component")
    before = more.tables["measures"].filter(measure="erase_excess_nats", group="pos").sort("layer", "component")
    assert layers["value"].to_list() == pytest.approx(before["value"].to_list())
    (said,) = (f for f in found.findings if f.measure == "profile_erased_head")
    for value in said.values:
        most = alone.filter(component=value.name[0])["value"].max()
        assert value.mean == pytest.approx(most)
        assert ".h" in value.name
    assert str(escape(said.words)) in found.report.read_text()
    assert not [f for f in more.findings if f.measure == "profile_erased_head"]


def test_classes_that_a_profile_folds_are_folded_where_they_are_erased(bank):
    texts = open_labels(bank, "train")
    label = make_labeller(texts, ("word", "pos"), None)
    classes = {"word": ("w1", "(other)"), "pos": ("A", "(other)")}
    kept = [WordClasses(name, of, np.zeros(1, int)) for name, of in classes.items()]
    made = relabel(texts, label, kept)
    assert made.columns == ("word", "pos")
    one, own = next(made.texts()), next(texts.texts())
    assert one.labels["pos"] == tuple("A" if tag == "A" else "(other)" for tag in own.labels["pos"])
    assert set(one.labels["word"]) <= {"w1", "(other)"}


DESIGN = replace(tiny.EXPERIMENT, seeds=(1,), attack=None)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studied") / "study"
    trisect.study(DESIGN, out=folder, workers=0, quiet=True)
    return folder


def test_epochs_hold_what_training_made_from_its_start_to_its_end(study):
    final = load(study)
    assert isinstance(final, OwnModel)
    epochs = read_epochs(final, study)
    assert len(epochs) == DESIGN.training.epochs + 1
    weights = [e.parameters["layers.1.in.weight"] for e in epochs]
    assert torch.equal(weights[-1], final.parameters["layers.1.in.weight"])
    assert not torch.equal(weights[0], weights[1])
    assert all(torch.equal(e.parameters["decoder.weight"], final.parameters["decoder.weight"]) for e in epochs)
    runs = Folder(study).read_ledger().runs
    edited = study / "runs" / next(name for name, spec in runs.items() if spec.edit is not None)
    run = load(edited)
    assert isinstance(run, OwnModel)
    with pytest.raises(ModelError, match=r"The weights of every epoch are kept of baselines alone\."):
        read_epochs(run, edited)


def test_a_profile_over_all_epochs_ends_with_the_model_itself(study, tmp_path):
    words = ("profile", study, "--corpus", "embedded", "--labels", "position,pos", "--words", 800)
    done = call(*words, "--checkpoints", "all", "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert {(row["layer"], row["label"]) for row in data["layers"]} == {(n, x) for n in (1, 2) for x in LABELS[:2]}
    said = [r for r in data["records"] if r["measure"] == "profile_checkpoints"]
    assert [r["groups"] for r in said] == [["position"], ["pos"]]
    found = render(PROFILE, tmp_path / "out")
    assert found.about.facts.checkpoints == ("0", "1", "2")
    numbers = ProfileNumbers.of(found.tables["measures"], ("position", "pos"))
    for spot in numbers.spots:
        for c in COMPONENTS:
            last = numbers.stage(2, c, "pos", spot.layer)
            assert last.value == pytest.approx(numbers.gain("pos", c, spot).mean, abs=1e-12)
    assert (found.folder / "figures" / "profile-checkpoints.svg").exists()


def test_revisions_are_read_each_as_a_whole(tmp_path):
    bank = treebank(tmp_path / "bank", 60)
    for name, seed in (("step0", 1), ("step1", 2)):
        tinyhf.save(tinyhf.gpt2(seed), tmp_path / "steps" / name, False)
    places = [tmp_path / "steps" / name for name in ("step0", "step1")]
    named = {"labels": ["pos"], "quiet": True}
    both = trisect.profile(places[1], bank, checkpoints=["step0", "step1"], out=tmp_path / "both", **named)
    alone = trisect.profile(places[0], bank, out=tmp_path / "alone", **named)
    numbers, other = (ProfileNumbers.of(one.tables["measures"]) for one in (both, alone))
    for c in COMPONENTS:
        assert numbers.stage(0, c, "pos").value == pytest.approx(other.gain("pos", c).mean, abs=1e-12)
        assert numbers.stage(1, c, "pos").value == pytest.approx(numbers.gain("pos", c).mean, abs=1e-12)


def test_since_when_is_said_by_rule():
    lows = {"q": (-0.05, 0.01, 0.02), "k": (0.01, -0.05, 0.02), "v": (-0.05, -0.2, -0.3)}
    of = {"subject": "m", "stack": "plain", "measure": "profile_stage_gain", "group": "position", "n": 12}
    rows = (
        of | {"component": c, "at": float(at), "value": low + 0.05, "low": low, "high": low + 0.1}
        for c, three in lows.items()
        for at, low in enumerate(three)
    )
    numbers = ProfileNumbers.of(frame("measures", rows), ("position",))
    (found,) = checkpoint_findings(numbers, ("0", "5", "10"))
    assert str(found) == (
        "position, last checkpoint: queries keep it from checkpoint 5 on, keys keep it from checkpoint 10 on, "
        "values drop it from checkpoint 5 on."
    )


def test_checkpoints_that_there_are_not(study, tmp_path):
    few = {"labels": ["pos"], "words": 400, "out": tmp_path / "out", "quiet": True}
    place, bank = tinyhf.save(tinyhf.gpt2(), tmp_path / "steps" / "step0", False), treebank(tmp_path / "bank", 60)
    cases: list[tuple[type[Exception], Any, Any, str, str]] = [
        (SpecError, study, "embedded", "7", "There is no epoch '7'.*has epochs 0 to 2.*Use some of them, or 'all'."),
        (SpecError, load(study), "embedded", "all", "Give the study's folder, or a run's."),
        (ModelError, place, bank, "step7", "has no revision 'step7'."),
        (SpecError, load(place), bank, "step0", "Give its name on a hub, or its folder."),
    ]
    for error, model, corpus, name, words in cases:
        with pytest.raises(error, match=f"(?s){words}"):
            trisect.profile(model, corpus, checkpoints=[name], **few)
