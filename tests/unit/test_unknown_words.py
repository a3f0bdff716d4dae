"""Words that a model of our own does not know: too many are refused, and the others are named wherever a text is read."""

import pytest
from markupsafe import escape
from tests import tiny, tinyhf

import trisect
from trisect.core.errors import ModelError
from trisect.core.subject import NAMED
from trisect.experiments.explore.run import take_picture
from trisect.hf.load import load
from trisect.lm.fleet import initial, layout, views
from trisect.lm.reading import OwnModel
from trisect.measure.intervention import PreparedText

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

WORDS = (*(f"w{i}" for i in range(20)), ".")
KNOWN = "w1 w2 w3 w4 w5 w6 ."


def own(words=WORDS):
    return OwnModel(
        "own", tiny.MODEL, views(initial(tiny.MODEL, len(words), 1)[None], layout(tiny.MODEL, len(words))), words, 12
    )


STRICT, LENIENT = own(), own((*WORDS, "<unk>"))


def tokens_and_notes(model, *texts, size=8):
    batches = list(model.batches(texts, size))
    tokens = [tuple(t for t in row if t) for batch in batches for row in batch.source.tokens]
    return tokens, [note for batch in batches for note in batch.notes]


@pytest.mark.parametrize("text", ["The cat sat on the mat .", "w1 w2 cat", "w1 w2 w3 cat sat .", "cat", "w1 cat"])
def test_a_text_with_more_than_a_quarter_of_unknown_words_is_refused(text):
    for read in (STRICT.read, lambda text: list(STRICT.batches([KNOWN, text]))):
        with pytest.raises(ModelError) as refused:
            read(text)
        assert repr(text) in refused.value.problem
        assert "'cat'" in refused.value.reason
        assert "among the 21 that own knows" in refused.value.reason
        assert "vocabulary" in refused.value.todo


def test_a_text_without_any_word_is_refused():
    for model in (STRICT, LENIENT):
        with pytest.raises(ModelError, match="has no word"):
            list(model.batches([";"]))


def test_up_to_a_quarter_of_a_text_is_left_out_and_every_such_word_is_named():
    tokens, notes = tokens_and_notes(STRICT, KNOWN, "w1 Cat w2 w3", "w1 w2 w3 w4 w5 w6 cat mat")
    assert tokens == [tuple(KNOWN.split()), ("w1", "w2", "w3"), ("w1", "w2", "w3", "w4", "w5", "w6")]
    (note,) = notes
    assert "21 words" in note
    assert "left out: 'cat', 'mat'." in note
    assert tokens_and_notes(STRICT, KNOWN)[1] == []


def test_words_are_read_as_the_unknown_one_where_there_is_one_and_named_as_well():
    tokens, notes = tokens_and_notes(LENIENT, "The cat sat .", "w1 <unk>")
    assert tokens == [("<unk>", "<unk>", "<unk>", "."), ("w1", "<unk>")]
    (note,) = notes
    assert "read as <unk>: 'the', 'cat', 'sat'." in note


def test_a_word_is_named_once_and_of_very_many_the_first():
    texts = [f"x{i} x{i // 2} w1" for i in range(3 * NAMED)]
    notes = list(dict.fromkeys(tokens_and_notes(LENIENT, *texts, size=2)[1]))
    named = [f"'x{i}'" for i in range(3 * NAMED) if any(f"'x{i}'" in note for note in notes)]
    assert named == [f"'x{i}'" for i in range(NAMED)]
    assert sum(note.count("'x5'") for note in notes) == 1
    assert "Other words" in notes[-1]


def test_what_a_pretrained_models_tokenizer_does_not_know_is_named():
    model = load(tinyhf.llama(), tinyhf.tokenizer())
    tokens, notes = tokens_and_notes(model, "w1 cat w2 mat", "w3 [UNK] cat w1 hat", size=1)
    assert tokens[0] == ("[CLS]", "w1", "[UNK]", "w2", "[UNK]", "[SEP]")
    lead = "Read as [UNK], which stands for what the tokenizer does not know"
    assert [note for note in notes if "[UNK]" in note] == [f"{lead}: 'cat', 'mat'.", f"{lead}: 'hat'."]
    assert not tokens_and_notes(model, "w1 w2 .")[1]


def test_what_shows_a_text_names_its_unknown_words(tmp_path):
    text = f"{KNOWN} cat"
    assert any("left out: 'cat'." in note for note in take_picture(STRICT.read(text)).notes)
    assert any("left out: 'cat'." in note for note in PreparedText.of(STRICT, KNOWN, text).notes)
    for found in (
        trisect.norms(STRICT, [text] * 3, out=tmp_path / "norms", quiet=True),
        trisect.ablate(STRICT, [text] * 3, out=tmp_path / "ablate", quiet=True),
        trisect.patch(STRICT, base=text, donor="w1 w2 w3 w4 w5 w7 . dog", out=tmp_path / "patch", quiet=True),
    ):
        assert any("'cat'" in note and "left out" in note for note in found.notes)
    assert escape("left out: 'cat'") in (tmp_path / "norms" / "report.html").read_text(encoding="utf-8")


def test_an_answer_that_is_one_word_only_behind_a_space_is_read_behind_it(tmp_path):
    """Without the space 'w3' and 'w4' are one word, which nobody knows."""
    pairs = [{"base": "w1 w2 w3", "donor": "w1 w5 w3", "answers": {"base": "w4", "donor": "w6"}}]
    found = trisect.patch(STRICT, pair_list=pairs, out=tmp_path, quiet=True)
    assert not any("left out" in note for note in found.notes)
