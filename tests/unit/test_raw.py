"""Raw texts: what counts as one, and what is refused."""

import pytest

from trisect.core.errors import CorpusError
from trisect.text.sources import as_texts, first_texts, open_corpus, open_texts


def put(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


def test_a_corpus_without_paragraphs_is_cut_at_full_stops():
    texts = open_texts("embedded", "valid")
    found = [str(text) for text in texts.texts()]
    words = " ".join(found).split()
    corpus = open_corpus("embedded")
    assert words == [corpus.vocabulary[i] for i in corpus.splits["valid"].tokens]
    assert all(text.endswith(" .") or len(text.split()) == 128 for text in found[:-1])


def test_the_fingerprint_is_of_the_texts(tmp_path):
    one = put(tmp_path / "a", train__txt="x\n", valid__txt="y\n", test__txt="z\n")
    two = put(tmp_path / "b", train__txt="other\n", valid__txt="y\n", test__txt="z\n")
    assert open_texts(one).fingerprint == open_texts(two).fingerprint
    assert open_texts(one, "train").fingerprint != open_texts(two, "train").fingerprint
    assert as_texts(["a"]).fingerprint != as_texts(["b"]).fingerprint


def test_the_first_few():
    few = first_texts(as_texts(["a", "b", "c"]), 2)
    assert list(few.texts()) == ["a", "b"]
    assert few.notes == ("Only the first 2 texts are read.",)


def test_texts_that_were_given_again_are_counted_and_said():
    again = as_texts(["a", "b", "a", ("a", "b"), "a"])
    assert list(again.texts()) == ["a", "b", "a", ("a", "b"), "a"]
    assert again.notes == ("2 of 5 texts repeat an earlier one; each counts as often as it was given.",)
    assert as_texts(["a", "b"]).notes == ()


@pytest.mark.parametrize(
    ("call", "given", "known"),
    [
        (lambda folder: as_texts([]), "No text was given.", "At least one is needed."),
        (lambda folder: as_texts(["a", " \n"]), "Text 2 is ' \\n'.", "A text has at least one character that is not white space."),
        (lambda folder: open_texts(folder, "tset"), "Unknown split 'tset'; did you mean 'test'?", "Splits are train, valid, test."),
        (lambda folder: open_texts(folder, "test"), "p has no test split.", "It has train, valid."),
        (lambda folder: first_texts(as_texts(["a"]), 0), "A limit of 0 texts.", "At least one is needed."),
        (lambda folder: open_texts(folder / "no"), "There is no file or folder {}/no.", "A corpus is a folder with a text file for each of train and valid, such as train.txt and valid.txt; commands that train nothing also take a single file, with its --reader, such as plain."),  # noqa: E501
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, call, given, known):
    folder = put(tmp_path / "p", train__txt="a\n", valid__txt="b\n")
    with pytest.raises(CorpusError) as error:
        call(folder)
    assert error.value.problem == given.format(folder)
    assert error.value.reason == known
