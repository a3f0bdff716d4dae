"""Texts into batches: windows, padding, special tokens and their categories, what is hidden from a masked model, losses by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests import tinyhf
from tests.traces import random_side

from trisect.core.errors import ModelError
from trisect.hf.batches import IGNORED, TextBatcher, longest_window, row_scores
from trisect.measure.sums import CATEGORIES, find_categories, strip_markers


def desk(model, specials=True, objective="masked", window=None):
    return TextBatcher.of("tiny", model, tinyhf.tokenizer(specials), objective, window)


def words(n, first=0):
    return " ".join(f"w{i % 40}" for i in range(first, first + n))


def test_every_window_has_its_special_tokens_and_no_word_is_lost():
    text = words(60)
    batches = list(desk(tinyhf.bert()).batches(enumerate(["w1 .", text]), 2, False))
    rows = [
        (row, tokens, real)
        for b in batches
        for row, tokens, real in zip(b.rows, b.source.tokens, b.source.real, strict=True)
    ]
    assert [row for row, _, _ in rows] == [(0, 0), (1, 0), (1, 22), (1, 44)]
    for _, tokens, real in rows:
        own = [t for t, ok in zip(tokens, real.tolist(), strict=True) if ok]
        assert own[0] == "[CLS]"
        assert own[-1] == "[SEP]"
        assert len(own) <= tinyhf.LONGEST
    again = [t for row, tokens, _ in rows if row[0] == 1 for t in tokens if t.startswith("w")]
    assert again == text.split()
    assert any("cut into windows" in note for note in batches[-1].notes)
    assert batches[0].rows[0] == (0, 0)
    for batch in batches:
        special = torch.tensor([[t in (*tinyhf.SPECIALS, "") for t in row] for row in batch.source.tokens])
        assert torch.equal(batch.source.special, special)
        assert torch.equal(batch.inputs["attention_mask"].bool(), batch.source.real)


def test_what_is_hidden_is_a_function_of_the_text_and_never_a_special_token():
    maker = desk(tinyhf.bert())
    (one,) = maker.batches(enumerate([words(20), "w1"]), 8, True)
    (alone, other) = maker.batches(enumerate([words(20), "w1"]), 1, True)
    labels = one.inputs["labels"]
    assert torch.equal(labels[0], alone.inputs["labels"][0])
    assert torch.equal(labels[1, :3], other.inputs["labels"][0])
    hidden = labels != IGNORED
    assert hidden.sum(1).tolist() == [3, 1]  # 15 % of 20, and at least one
    assert not (hidden & one.source.special).any()
    mask = tinyhf.VOCABULARY.index("[MASK]")
    assert (one.inputs["input_ids"][hidden] == mask).all()
    assert one.source.ids is not None
    assert torch.equal(torch.where(hidden, labels, one.inputs["input_ids"]), one.source.ids)
    (plain,) = maker.batches(enumerate([words(20), "w1"]), 8, False)
    assert "labels" not in plain.inputs
    assert plain.inputs["input_ids"].tolist() == one.source.ids.tolist()


def test_losses_are_the_models_own():
    texts = [words(9), words(4, 7), words(1, 3)]
    model, maker = tinyhf.gpt2(), desk(tinyhf.gpt2(), False, "causal")
    (batch,) = maker.batches(enumerate(texts), 8, True)
    with torch.no_grad():
        scores = row_scores(model(**batch.inputs), batch, "causal", None)
        for row, text in enumerate(texts):
            ids = torch.tensor([maker.tokenizer(text)["input_ids"]])
            assert scores.count[row] == ids.shape[1] - 1
            if ids.shape[1] > 1:
                alone = model(ids, labels=ids).loss
                assert scores.total[row] / scores.count[row] == pytest.approx(alone.item(), rel=1e-5)  # float32
        bert, masked = tinyhf.bert(), desk(tinyhf.bert())
        (hidden,) = masked.batches(enumerate(texts[:1]), 8, True)
        found = row_scores(bert(**{n: t for n, t in hidden.inputs.items() if n != "labels"}), hidden, "masked", None)
        assert found.total.sum() / found.count.sum() == pytest.approx(bert(**hidden.inputs).loss.item(), rel=1e-5)


def test_source_and_target_of_an_encoder_decoder():
    model = tinyhf.bart()
    maker = desk(model, True, "seq2seq")
    (batch,) = maker.batches(enumerate([("w1 w2 w3", "w4 w5"), ("w6", "w7 w8 w9")]), 8, True)
    assert batch.target is not None
    assert batch.source.tokens[0] == ("[CLS]", "w1", "w2", "w3", "[SEP]")
    assert batch.target.tokens[0][:4] == ("[SEP]", "[CLS]", "w4", "w5")  # what the decoder is given: shifted by one
    assert batch.queries("cross") is batch.target
    assert batch.keys("cross") is batch.source
    assert batch.queries("enc") is batch.source
    with torch.no_grad():
        scores = row_scores(model(**{n: t for n, t in batch.inputs.items() if n != "labels"}), batch, "seq2seq", None)
        whole = model(**batch.inputs).loss
    assert scores.total.sum() / scores.count.sum() == pytest.approx(whole.item(), rel=1e-5)
    (same,) = maker.batches(enumerate(["w1 w2"]), 8, False)
    assert same.target is not None
    assert same.target.tokens[0][2:] == ("w1", "w2")


def test_a_single_text_for_two_is_said_and_windows_must_match():
    maker = desk(tinyhf.bart(), True, "seq2seq")
    (one,) = maker.batches(enumerate(["w1 w2"]), 8, False)
    assert one.notes == ("A single text was given where the model takes two: it is both source and target.",)
    (two,) = maker.batches(enumerate([("w1", "w2")]), 8, False)
    assert two.notes == ()
    with pytest.raises(ModelError) as error:
        list(maker.batches(enumerate([("w1", words(60))]), 8, False))
    assert error.value.problem == "Text 1 makes 1 windows of source and 3 of target."


@pytest.mark.parametrize(
    ("kind", "positions", "limit", "window"),
    [
        ("roberta", 514, 1024, 512),
        ("roberta", 514, 512, 512),
        ("bert", 512, 10**30, 512),
        ("bert", 512, 128, 128),
        ("t5", None, None, None),
    ],
)
def test_the_longest_window(kind, positions, limit, window):
    config = SimpleNamespace(model_type=kind, max_position_embeddings=positions)
    assert longest_window(config, SimpleNamespace(model_max_length=limit)) == window


def test_a_change_of_the_output_is_relative_and_leaves_padding_out():
    model, maker = tinyhf.bert(head=False), desk(tinyhf.bert(head=False), True, "output")
    (batch,) = maker.batches(enumerate([words(5), "w1"]), 8, True)
    with torch.no_grad():
        made = model(**batch.inputs)
        clean = row_scores(made, batch, "output", None)
        assert clean.total.tolist() == [0.0, 0.0]
        assert clean.count.tolist() == [7.0, 3.0]
        made.last_hidden_state *= 1.5
        twice = row_scores(made, batch, "output", clean)
    assert (twice.total / twice.count).tolist() == pytest.approx([0.25, 0.25], rel=1e-5)  # (1.5 - 1)², float32


@pytest.mark.parametrize(
    ("texts", "given", "known"),
    [
        (["w1", " "], "Text 2 is ' '.", "A text has at least one character that is not white space."),
        ([("w1", "w2")], "Text 1 is ('w1', 'w2').", "tiny takes one text at a time, and no pairs."),
        (["\ud800"], "Text 1 is '\\ud800'.", "It has bytes that are not UTF-8."),
    ],
)
def test_empty_texts_are_refused(texts, given, known):
    with pytest.raises(ModelError) as error:
        list(desk(tinyhf.bert()).batches(enumerate(texts), 8, False))
    assert (error.value.problem, error.value.reason) == (given, known)


def test_what_cannot_be_made_ready():
    with pytest.raises(ModelError) as error:
        list(TextBatcher.of("tiny", tinyhf.gpt2(), None, "causal", None).batches(enumerate(["w1"]), 8, False))
    assert error.value.problem == "A text was given to tiny."
    with pytest.raises(ModelError) as error:
        list(desk(tinyhf.gpt2(), False, "masked").batches(enumerate(["w1 w2"]), 8, True))
    assert error.value.reason == "Its tokenizer has no mask token."
    with pytest.raises(ModelError) as error:
        list(desk(tinyhf.bert(), window=2).batches(enumerate([words(3)]), 8, False))
    assert error.value.problem == "A window of 2 tokens."
    (batch,) = desk(tinyhf.bert(head=False)).batches(enumerate(["w1 w2"]), 8, False)
    with pytest.raises(ModelError) as error, torch.no_grad():
        row_scores(tinyhf.bert(head=False)(input_ids=batch.inputs["input_ids"]), batch, "masked", None)
    assert error.value.problem == "The model's loss cannot be computed."
    assert error.value.todo == "Make the batch with batches(texts, scored=True)."
    (batch,) = desk(tinyhf.bert()).batches(enumerate(["w1 w2"]), 8, True)
    with pytest.raises(ModelError) as error:
        row_scores(torch.zeros(1, 3), batch, "masked", None)
    assert error.value.todo == "Load it with its language-model head."


@pytest.mark.parametrize(
    ("tokens", "special", "causal", "named"),
    [
        ("[CLS] a . [SEP]", "0 3", False, "cls other punctuation sep"),
        ("<s> , </s> -", "0 2", False, "cls punctuation sep other"),
        ("[CLS] a [SEP] b [SEP]", "0 2 4", False, "cls other sep other sep"),
        ("a </s>", "1", False, "other sep"),
        ("<s> a .", "0", True, "first other punctuation"),
        (". a .", "", True, "first other punctuation"),
        ("- a b", "", True, "other first other"),
        ("- [CLS] b", "1", False, "other cls other"),
    ],
)  # "-" is padding
def test_tokens_are_of_their_categories(tokens, special, causal, named):
    row = tuple("" if token == "-" else token for token in tokens.split())
    side = random_side((row,), torch.tensor([[str(i) in special.split() for i in range(len(row))]]))
    assert [CATEGORIES[c] for c in find_categories(side, causal)[0].tolist()] == named.split()


def test_marks_of_a_words_start_are_not_part_of_it():
    assert [strip_markers(t) for t in ("Ġ.", "▁,", "##.", " .", "...", "a.")] == [".", ",", ".", ".", "...", "a."]
