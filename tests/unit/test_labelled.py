"""Labelled sentences of a treebank: the text that is read, where its words stand in it, and which labels stand there."""

import unicodedata

import pytest
from tests import tiny

from trisect.core.trace import Address
from trisect.lab.word_labels import WordLabels, owners
from trisect.lm.fleet import initial, layout, views
from trisect.lm.reading import OwnModel
from trisect.text.labels import make_labeller
from trisect.text.pairs import PASSAGE, induction_words
from trisect.text.sources import open_labels, open_texts

MARKET = [
    ("1", "Je", "PRON", 2),
    ("2", "viens", "VERB", 0),
    ("3-4", "du"),
    ("3", "de", "ADP", 5),
    ("4", "le", "DET", 5),
]
MARKET += [("5", "marché", "NOUN", 2), ("6", ".", "PUNCT", 2)]
SAID = "Je viens du marché."
WORDS = tiny.corpus().vocabulary


def sentence(rows, said=None, glued=()):
    """Rows of a sentence (id, form and for words part of speech and head); after those of `glued` no space follows."""
    lines = [] if said is None else [f"# text = {said}"]
    for number, form, *word in rows:
        pos, head = word or ("_", "_")
        space = "SpaceAfter=No" if number in glued else "_"
        lines.append(f"{number}\t{form}\t_\t{pos}\t_\t_\t{head}\tdep\t_\t{space}")
    return "\n".join(lines) + "\n\n"


def bank(folder, *sentences):
    folder.mkdir(exist_ok=True)
    for split in ("train", "dev", "test"):
        (folder / f"{split}.conllu").write_text("".join(sentences), encoding="utf-8")
    return folder


def found(folder, *sentences):
    texts = open_labels(bank(folder, *sentences), "test")
    return list(texts.texts()), " ".join(texts.notes)


def shown(one):
    return [one.text[a:b] for a, b in one.spans]


@pytest.mark.parametrize("text", ["NFC", "NFD"])
@pytest.mark.parametrize("forms", ["NFC", "NFD"])
def test_words_of_a_multiword_token_share_its_place_in_the_text_line(tmp_path, text, forms):
    said = unicodedata.normalize(text, SAID)
    rows = [(number, unicodedata.normalize(forms, form), *rest) for number, form, *rest in MARKET]
    ((one,), notes) = found(tmp_path, sentence(rows, said))
    assert one.text == said
    assert [unicodedata.normalize("NFC", word) for word in shown(one)] == ["Je", "viens", "du", "du", "marché", "."]
    assert one.spans[2:4] == ((9, 11), (9, 11))
    assert one.labels["pos"] == ("PRON", "VERB", "ADP", "DET", "NOUN", "PUNCT")
    assert one.heads == (2, 0, 5, 5, 2, 2)
    assert "1 of 6 words" in notes
    assert "does not hold" not in notes


def test_words_that_make_up_their_token_have_places_of_their_own(tmp_path):
    rows = [("1-2", "Don't"), ("1", "Do", "AUX", 3), ("2", "n't", "PART", 3), ("3", "go", "VERB", 0), ("3.1", "x")]
    ((one,), notes) = found(tmp_path, sentence(rows, "Don't go"))
    assert (shown(one), one.spans[:2]) == (["Do", "n't", "go"], ((0, 2), (2, 5)))
    assert "written as one" not in notes


def test_a_sentence_whose_text_line_is_another_is_its_tokens_joined_and_counted(tmp_path):
    texts, notes = found(tmp_path, sentence(MARKET, "Il pleut."), sentence(MARKET, SAID))
    assert [one.text for one in texts] == ["Je viens du marché .", SAID]
    assert shown(texts[0]) == ["Je", "viens", "du", "du", "marché", "."]
    assert "In 1 of 2 sentences" in notes


@pytest.mark.parametrize("spelling", ["#text = ", "# text=", "#text=", "#  text  =  "])
def test_the_text_line_may_be_spelt_with_other_spaces(tmp_path, spelling):
    body = sentence(MARKET, SAID).replace("# text = ", f"# text_en = I come.\n{spelling}")
    ((one,), _) = found(tmp_path, body)
    assert one.text == SAID


def test_without_a_text_line_tokens_stand_apart_where_a_space_follows(tmp_path):
    """Inside a multiword token the words' own marks say nothing."""
    ((one,), notes) = found(tmp_path, sentence(MARKET, glued=("5", "3")))
    assert one.text == SAID
    assert shown(one) == ["Je", "viens", "du", "du", "marché", "."]
    assert "does not hold" not in notes
    assert list(open_texts(tmp_path).texts()) == [SAID]


def test_pieces_of_a_multiword_token_belong_to_its_first_word():
    words = [(0, 2), (3, 8), (9, 11), (9, 11), (12, 18)]
    assert owners([(0, 2), (2, 8), (8, 11), (9, 10), (10, 11), (11, 15), (15, 18)], words) == [0, 1, 2, 2, 2, 4, 4]


@pytest.fixture(scope="module")
def own():
    parameters = dict(views(initial(tiny.MODEL, len(WORDS), 1)[None], layout(tiny.MODEL, len(WORDS))))
    return OwnModel("own", tiny.MODEL, parameters, WORDS, 12)


def read_by(model, texts):
    """The class at each position of a text's words in a model of our own, and the word that is read at each."""
    marker = WordLabels(model, {"pos": {name: i for i, name in enumerate("ABCD")}}, ahead=False)
    (batch,) = marker.batches(texts.texts(), 4)
    labels = marker.at(batch, Address("plain", 1), "v", "pos")[0].tolist()
    return batch.source.tokens[0], labels, [(position, word) for _, position, _, word in marker.words(batch, last=True)]


def test_labels_after_a_multiword_token_stay_with_their_words_in_a_model_of_our_own(own, tmp_path):
    a, b, c, d = [word for word in WORDS[5:] if word.isalpha()][:4]
    rows = [("1", a, "A", 0), ("2-3", b), ("2", c, "B", 1), ("3", d, "C", 1), ("4", c, "D", 1)]
    texts = open_labels(bank(tmp_path, sentence(rows, f"{a} {b} {c}")), "test")
    assert read_by(own, texts) == ((a, b, c), [0, 1, 3], [(0, 0), (1, 1), (2, 3)])


def test_labels_after_words_that_a_model_of_our_own_reads_as_one_stay_with_their_words(own, tmp_path):
    a, b = [word for word in WORDS[5:] if word.isalpha()][:2]
    rows = [("1", "well", "A", 3), ("2", "-", "B", 1), ("3", a, "C", 0), ("4", b, "D", 3)]
    texts = open_labels(bank(tmp_path, sentence(rows, f"well-{a} {b}")), "test")
    assert read_by(own, texts) == (("<unk>", b), [0, 3], [(0, 0), (1, 3)])


def test_labels_of_neighbours_positions_and_frequencies_are_of_what_is_written(tmp_path):
    texts = open_labels(bank(tmp_path, sentence(MARKET, SAID)), "test")
    names = make_labeller(texts, ("word", "position", "frequency", "pos", "previous", "next", "head"), None)(
        next(texts.texts())
    )
    assert names["word"] == ("je", "viens", "du", "du", "marché", ".")
    assert names["frequency"] == ("1",) * 6
    assert names["position"] == ("1–3", "1–3", "1–3", "1–3", "4–6", "4–6")
    first = [0, 1, 2, 4, 5]  # the words whose labels the pieces carry
    assert [names["pos"][i] for i in first] == ["PRON", "VERB", "ADP", "NOUN", "PUNCT"]
    assert [names["previous"][i] for i in first] == ["start", "PRON", "VERB", "ADP", "NOUN"]
    assert [names["next"][i] for i in first] == ["VERB", "ADP", "NOUN", "PUNCT", "end"]
    assert [names["head"][i] for i in first] == ["VERB", "root", "NOUN", "VERB", "VERB"]


def test_passages_hold_a_multiword_token_once(tmp_path, monkeypatch):
    rows = [*MARKET[:-1], *((str(i), "mot", "NOUN", 2) for i in range(6, PASSAGE + 2))]
    texts = open_labels(bank(tmp_path, sentence(rows)), "test")
    monkeypatch.setattr("trisect.text.pairs.MIN_WORDS", 1)
    usable = induction_words(lambda asked: [tuple(map(hash, text.split())) for text in asked], texts)
    assert usable.words.count("du") == 1
    assert usable.passages == (("Je", "viens", "du", "marché", *["mot"] * (PASSAGE - 4)),)
