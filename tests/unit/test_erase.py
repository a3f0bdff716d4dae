"""Erasing labels from a given model: which texts and positions, what it writes, what it says, and what it refuses."""

import shutil

import polars as pl
import pytest
import torch
from markupsafe import escape
from tests import tiny, tinyhf
from tests.pages import foreign

import trisect
from trisect.core.errors import CorpusError, ModelError, SiteError, SpecError
from trisect.core.subject import QKV
from trisect.core.trace import Address
from trisect.experiments.erase import ERASE
from trisect.lab.driver import render
from trisect.lab.passes import fit_erasers, gather, make_writer, plan_edits, scatter
from trisect.lab.subject import load
from trisect.lab.word_labels import WordLabels, owners
from trisect.lm.fleet import initial, layout, views
from trisect.lm.reading import OwnModel
from trisect.measure.probes import LabelMoments
from trisect.text.sources import Labelled, _locate_words, open_labels

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

WORDS = tiny.corpus().vocabulary
FLAT = initial(tiny.MODEL, len(WORDS), 1).double()
FLAT += 0.4 * torch.randn(FLAT.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
OWN = OwnModel("a <b>model</b>", tiny.MODEL, dict(views(FLAT[None], layout(tiny.MODEL, len(WORDS)))), WORDS, 12)
FEW = {"draws": 2, "limit": 6, "tokens": 400, "quiet": True}


def treebank(folder, sentences=30, documents=False):
    """Sentences of the tiny tokenizer's words; a word's class is its number's remainder. A document is a sentence twice."""
    for split in ("train", "dev", "test"):
        lines = []
        for j in range(sentences):
            i = j // 2 if documents else j
            lines += [f"# newdoc id = {i}"] if documents and j % 2 == 0 else []
            words = [f"w{(7 * i + 3 * k + len(split)) % 40}" for k in range(4 + i % 5)] + ["."]
            lines.append(f"# text = {' '.join(words[:-1])}{words[-1]}")
            for n, word in enumerate(words, 1):
                tag = "P" if word == "." else "ABC"[int(word[1:]) % 3]
                lines.append(f"{n}\t{word}\t_\t{tag}\t_\t_\t0\tx\t_\t_")
            lines.append("")
        folder.mkdir(exist_ok=True)
        (folder / f"{split}.conllu").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    out = tmp_path_factory.mktemp("own")
    return trisect.erase(OWN, "embedded", labels=["pos", "dep"], sites=["k@2", "q+v@1"], out=out, **FEW)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return load(tinyhf.save(tinyhf.bert(), folder)), treebank(folder / "bank")


def test_texts_of_one_document_are_resampled_together(bert, tmp_path):
    model, _ = bert
    found = {}
    for name in ("apart", "together"):
        bank = treebank(tmp_path / name, 24, True)
        if name == "apart":
            for file in bank.iterdir():
                file.write_text(file.read_text().replace("# newdoc", "# none"))
        asked = FEW | {"limit": 24, "out": tmp_path / f"{name}-out"}
        found[name] = trisect.erase(model, bank, labels=["pos"], sites=["v@1"], **asked)
    apart, together = (
        found[name].tables["measures"].filter(measure="erase_excess_nats").row(0, named=True) for name in found
    )
    assert together["value"] == pytest.approx(apart["value"], abs=1e-9)
    assert together["high"] - together["low"] > 1.15 * (apart["high"] - apart["low"])
    assert (apart["n"], together["n"]) == (24, 12)
    assert "Texts of one article are resampled together: 12 articles." in found["together"].notes
    assert "bootstrap over 12 articles (24 texts)" in found["together"].report.read_text()


def test_what_was_done_is_noted_and_can_be_repeated(own):
    assert own.about.command == (
        "trisect erase STUDY --corpus embedded --labels pos,dep --limit 6 --sites 'k@2 q+v@1' --draws 2"
    )
    facts = own.about.facts
    assert (facts.whose, facts.per, facts.seed, facts.sites) == ("next", "layer", 0, ("k@2", "q+v@1"))
    assert facts.fitted >= 400
    assert any(note.startswith("A position carries the label of the piece after it") for note in own.notes)
    assert own.notes[-1] == "Only the first 6 texts are read."
    assert facts.fingerprint == OWN.fingerprint
    assert "concept-erasure" in own.about.versions


def test_the_page_says_it_and_the_same_rows_give_the_same_bytes(own, tmp_path):
    text = own.report.read_text()
    assert "<script" not in foreign(text)
    assert "a &lt;b&gt;model&lt;/b&gt;" in text
    assert str(escape(own.findings[0].words)) in text
    assert "With fewer than 30 texts such intervals are too narrow" in text
    for name in ("erasure-pos", "erasure-dep"):
        assert (own.folder / "figures" / f"{name}.svg").exists()
    shutil.copytree(own.folder, tmp_path / "again", ignore=lambda *_: ["report.html", "figures"])
    again = render(ERASE, tmp_path / "again")
    assert again.report.read_bytes() == own.report.read_bytes()
    assert (again.findings, again.about) == (own.findings, own.about)


def test_a_pretrained_model_is_erased_at_words_and_its_special_tokens_are_left_alone(bert, tmp_path):
    model, bank = bert
    result = trisect.erase(model, bank, sites=["v@2"], per="head", draws=1, out=tmp_path, quiet=True, tokens=100)
    rows = result.tables["measures"].filter(pl.col("measure") == "erase_rank")
    assert rows["head"].to_list() == [1, 2, 3, 4]
    assert set(rows["value"]) == {3.0}
    text = result.report.read_text()
    assert "hidden from it" in text
    assert "the label of the word that it belongs to" in text
    assert "v@2.h4" in text


def test_only_words_are_erased_and_what_is_left_there_is_no_longer_linear(bert):
    model, bank = bert
    texts = open_labels(bank, "train")
    marker = WordLabels(model, {"pos": {name: i for i, name in enumerate("ABCP")}}, False)
    (edit,) = plan_edits(model.shape, ["k@2"], "layer")
    (place,) = fit_erasers(marker, texts, [edit], 10_000, 4, 1, 0, lambda n: None)
    before, after, left = LabelMoments(32, 4), LabelMoments(32, 4), 0
    for batch in marker.batches(texts.texts(), 4):
        kept: list[QKV] = []

        def note(parts, batch=batch, kept=kept):
            kept.extend((parts, make_writer(batch, edit, place.erasers[0])(parts)))
            return kept[1]

        with torch.no_grad():
            model.score(batch, {edit.address: note})
        y = marker.at(batch, edit.address, "k", "pos")
        x, erased = (gather(edit, parts) for parts in kept)
        before.add(x[y >= 0], y[y >= 0])
        after.add(erased[y >= 0], y[y >= 0])
        special = batch.source.special
        left += int(special.sum())
        assert torch.equal(x[special], erased[special])
        assert torch.equal(kept[0].q, kept[1].q)
        assert torch.equal(kept[0].v, kept[1].v)
    assert left > 0
    assert place.fitted == before.count
    assert before.linear_share() > 0.1
    assert after.linear_share() < 1e-8  # what is given back is float32


def test_every_piece_carries_its_words_label_or_that_of_the_next_piece(bert):
    model, bank = bert
    texts = open_labels(bank, "test")
    numbers = {name: i for i, name in enumerate("ABCP")}
    for ahead in (False, True):
        marker = WordLabels(model, {"pos": numbers}, ahead)
        one = next(texts.texts())
        (batch,) = marker.batches([one], 4)
        found = marker.at(batch, Address("plain", 1), "v", "pos")[0].tolist()
        classes = [numbers[name or ""] for name in one.labels["pos"]]
        wanted = [*classes[1:], -1] if ahead else classes
        assert found == [-1, *wanted, -1]  # [CLS] and [SEP] carry none
        assert one.text.endswith(".")
        assert " ." not in one.text


def test_long_texts_keep_their_labels_from_window_to_window():
    words = tuple(WORDS[5 + i % 30] for i in range(30))
    one = _locate_words("", words, {"pos": tuple("AB"[i % 2] for i in range(30))})
    marker = WordLabels(OWN, {"pos": {"A": 0, "B": 1}}, True)
    found = []
    for batch in marker.batches([one], 1):
        real = batch.source.real[0]
        found += marker.at(batch, Address("plain", 2), "q", "pos")[0][real].tolist()
    assert found == [(i + 1) % 2 for i in range(29)] + [-1]


def test_a_piece_belongs_to_the_word_it_shares_most_with():
    words = [(0, 2), (2, 5), (6, 10)]
    assert owners([(0, 1), (1, 5), (5, 8), (5, 6), (8, 10), (10, 12), (3, 3)], words) == [0, 1, 2, -1, 2, -1, -1]


def test_what_is_gathered_is_scattered_back():
    draw = torch.Generator().manual_seed(0)
    parts = QKV(*(torch.randn(2, h, 5, 3, generator=draw) for h in (4, 2, 2)))
    for spelt in ("q@1", "k+v@1", "q@1.h2,4"):
        (edit,) = plan_edits(load_shape(), [spelt], "layer")
        x = gather(edit, parts)
        back = scatter(edit, parts, x)
        assert all(torch.equal(a, b) for a, b in zip(parts, back, strict=True))
        gone = scatter(edit, parts, torch.zeros_like(x))
        kept = {"q@1": "kv", "k+v@1": "q", "q@1.h2,4": "kv"}[spelt]
        assert all(torch.equal(getattr(gone, c), getattr(parts, c)) for c in kept)
        assert float(gather(edit, gone).abs().max()) == 0
    assert torch.equal(scatter(edit, parts, x * 0).q[:, [0, 2]], parts.q[:, [0, 2]])


def load_shape():
    from trisect.core.subject import Heads, Shape

    return Shape({Address("plain", 1): Heads(4, 2), Address("cross", 1): Heads(4, 4)})


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"labels": []}, SpecError, "No label was given."),
        ({"labels": ["morph"]}, CorpusError, "embedded, train has no label column 'morph'."),
        ({"whose": "last"}, SpecError, "whose is 'last'."),
        ({"tokens": 1}, SpecError, "tokens is 1."),
        ({"sites": ["q@9"]}, SiteError, "The site 'q@9' lies outside the model"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, given, error, says):
    with pytest.raises(error) as caught:
        trisect.erase(OWN, "embedded", **({"out": tmp_path, **FEW} | given))
    assert caught.value.problem.startswith(says)
    assert caught.value.reason
    assert caught.value.todo


def test_texts_without_labels_or_with_one_class_are_refused(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("some words .\n")
    with pytest.raises(CorpusError, match="carry no labels"):
        open_labels(tmp_path, "test")
    bank = treebank(tmp_path / "bank")
    with pytest.raises(CorpusError, match="'dep' of bank, train has fewer than two classes") as caught:
        trisect.erase(OWN, bank, labels="dep", out=tmp_path / "out", **FEW)
    assert caught.value.reason == "Its words carry 'x' alone."
    with pytest.raises(CorpusError, match="bank, train has no label column 'tag'"):
        trisect.erase(OWN, bank, labels="tag", out=tmp_path / "out", **FEW)


def test_queries_and_keys_of_different_texts_are_not_joined():
    from trisect.experiments.erase.run import refuse_two_sides

    with pytest.raises(SiteError) as caught:
        refuse_two_sides(plan_edits(load_shape(), ["cross.q+k@1"], "layer"))
    assert caught.value.problem == "The site 'cross.q+k@1' joins them."
    refuse_two_sides(plan_edits(load_shape(), ["cross.k+v@1", "q+k@1"], "layer"))


def test_a_tokenizer_that_does_not_say_where_pieces_stand_is_refused(bert):
    from dataclasses import replace

    from trisect.hf.load import piece_spans

    model, _ = bert
    with pytest.raises(ModelError) as caught:
        piece_spans(replace(model, tokenizer=None), "w1")
    assert caught.value.problem == f"{model.name} comes with no tokenizer."
    assert piece_spans(model, "w1 w22.") == [(0, 2), (3, 6), (6, 7)]


def test_labels_of_a_corpus_folder_are_names_or_nothing(tmp_path):
    tiny.corpus().save(tmp_path / "folder")
    one = next(open_labels(tmp_path / "folder", "valid").texts())
    assert isinstance(one, Labelled)
    words = [one.text[a:b] for a, b in one.spans]
    assert words == [WORDS[i] for i in tiny.corpus().splits["valid"].tokens[: len(words)]]
    names = tiny.corpus().labels["pos"]
    ids = tiny.corpus().splits["valid"].labels["pos"][: len(words)]
    assert one.labels["pos"] == tuple(names[i] if i >= 0 else None for i in ids)
