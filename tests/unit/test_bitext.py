"""Bitexts: what is read from files of links and of sentences, and what is refused, with file and line."""

import re

import pytest

from trisect.core.errors import CorpusError
from trisect.text.bitext import FORM, SentencePair, open_bitext, read_links, read_pairs
from trisect.text.generated import bitext_corpus


def refused(call, *arguments):
    with pytest.raises(CorpusError) as raised:
        call(*arguments)
    return raised.value


@pytest.fixture
def folder(tmp_path):
    files = {
        "train.en": "a house\nthe big dog .\n",
        "train.fr": "une maison\nle gros chien .\n",
        "trial.en": "a b c\n",
        "trial.fr": "x y\n",
        "trial.talp": "1-1 3p2\n",
        "test.en": "a b\nc\n",
        "test.fr": "x y z\nw\n",
        "test.talp": "1-1 2p1 2-3\n\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_folder_gives_three_splits_with_their_links(folder):
    bitext = open_bitext(folder)
    assert bitext.train == (
        SentencePair(("a", "house"), ("une", "maison")),
        SentencePair(("the", "big", "dog", "."), ("le", "gros", "chien", ".")),
    )
    assert bitext.valid == (
        SentencePair(("a", "b", "c"), ("x", "y"), frozenset({(0, 0)}), frozenset({(0, 0), (2, 1)})),
    )
    assert bitext.test[0].sure == {(0, 0), (1, 2)}
    assert bitext.test[0].possible == {(0, 0), (1, 0), (1, 2)}
    assert bitext.test[1].sure == bitext.test[1].possible == frozenset()
    assert bitext.name == folder.name
    assert bitext.notes == (
        "Source is 'en', target 'fr'.",
        "trial.talp counts words from 1: line 1 has an index as large as the sentence (3p2).",
        "test.talp counts words from 1: line 1 has an index as large as the sentence (2p1).",
    )


def test_links_can_be_absent_and_two_files_are_enough(folder):
    for name in ("trial.talp", "test.talp"):
        (folder / name).unlink()
    assert open_bitext(folder).valid[0].sure is None
    both = open_bitext([folder / "train.en", folder / "train.fr"])
    assert both.train == open_bitext(folder).train
    assert (both.valid, both.test, both.name) == ((), (), "train.en and train.fr")


def test_lines_may_end_as_windows_ends_them_and_hold_what_is_no_line_end(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone two\r\nthree\xe2\x80\xa8four\r\n")
    (tmp_path / "b").write_bytes(b"eins zwei\r\ndrei\r\n")
    read = read_pairs(tmp_path / "a", tmp_path / "b")
    assert [pair.source for pair in read.pairs] == [("one", "two"), ("three\u2028four",)]
    assert read.notes == ()
    (tmp_path / "b").write_bytes(b"eins\rzwei\r\ndrei\r\n")
    read = read_pairs(tmp_path / "a", tmp_path / "b")
    assert read.pairs[0].target == ("eins\rzwei",)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("10\u00a0000 euros", ("10\u00a0000", "euros")),
        ("27 \u3000 temple", ("27", "\u3000", "temple")),
        ("a\u2009b\u202f! \x85", ("a\u2009b\u202f!", "\x85")),
        (" a\tb  c\t", ("a", "b", "c")),
    ],
)
def test_words_stand_apart_by_spaces_and_tabs_alone_so_that_links_count_the_words_that_were_linked(
    tmp_path, line, words
):
    (tmp_path / "a").write_text(f"{line}\nx\n", encoding="utf-8")
    (tmp_path / "b").write_text("x\nx\n")
    last = len(words)
    (tmp_path / "g.pharaoh").write_text(f"{last}-1\n1-1\n")
    pair, _ = read_pairs(tmp_path / "a", tmp_path / "b", tmp_path / "g.pharaoh").pairs
    assert pair.source == words
    assert pair.sure == {(last - 1, 0)}
    (tmp_path / "g.pharaoh").write_text("1-1\u00a01-1\n1-1\n", encoding="utf-8")
    assert "is no link" in refused(read_pairs, tmp_path / "a", tmp_path / "b", tmp_path / "g.pharaoh").problem


@pytest.mark.parametrize(
    ("name", "text", "base", "counts", "words"),
    [
        ("g.pharaoh", "0-0\n1p2\n", None, 0, "line 1 has an index 0 (0-0)"),
        ("g.pharaoh", "1-1\n1-3\n", None, 1, "line 2 has an index as large as the sentence (1-3)"),
        ("g.pharaoh", "1-1\n1p1\n", 0, 0, "so it was said, and nothing in it says otherwise"),
        ("g.pharaoh", "1-1\n1p1\n", 1, 1, "so it was said, and nothing in it says otherwise"),
        ("g.talp", "1-1\n1p1\n", None, 1, "so the form says, and nothing in it says otherwise"),
        ("g.talp", "0-0\n1p1\n", None, 0, "line 1 has an index 0 (0-0)"),
        ("g.pharaoh", "\n\n", None, 1, "it has no links"),
    ],
)
def test_what_a_file_counts_from_shows_or_is_said(tmp_path, name, text, base, counts, words):
    (tmp_path / name).write_text(text)
    _, *read = read_links(tmp_path / name, [(3, 3), (4, 3)], base)
    assert tuple(read) == (counts, f"{name} counts words from {counts}: {words}.")


@pytest.mark.parametrize(
    ("name", "text", "lengths", "base", "words"),
    [
        ("g.pharaoh", "1-1 2-2\n", [(4, 4)], None, ("does not show", "--base 0 or --base 1")),
        ("g.pharaoh", "1-1 2-2\n", [(4, 4)], 2, ("A base of 2.",)),
        (
            "g.talp",
            "0-1\n\n2-3\n",
            [(3, 3), (1, 1), (3, 3)],
            None,
            ("line 1 (0-1)", "line 3 (2-3)", "target", "3 words"),
        ),
        ("g.talp", "0-1\n", [(3, 3)], 1, ("from 1", "0-1 in line 1", "give --base 0")),
        ("g.talp", "1-1\n2p4\n", [(3, 3), (2, 3)], None, ("line 2: 2p4", "target", "3 words")),
        ("g.talp", "1-1\n", [(3, 3), (3, 3)], None, ("1 line.", "2 sentence pairs")),
        *(
            ("g.talp", f"1-1\n1-2 {text}\n", [(3, 3), (3, 3)], None, (f"line 2: {text!r} is no link", FORM))
            for text in ("1:1", "a-1", "1-", "-1-2", "1-2-3", "1s2", "1-1234567890", "٣-1")
        ),
    ],
)
def test_links_that_do_not_fit_are_named_with_what_to_do(tmp_path, name, text, lengths, base, words):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    error = str(refused(read_links, path, lengths, base))
    assert all(word in error for word in words), error


def test_sides_that_differ_in_length(folder):
    (folder / "train.en").write_text("a house\n")
    error = refused(open_bitext, folder)
    assert f"{folder / 'train.en'} has 1 line and {folder / 'train.fr'} has 2 lines." == error.problem
    assert f"line 2 of {folder / 'train.fr'}" in error.reason


def test_an_empty_sentence_and_an_empty_file(folder):
    path = folder / "train.fr"
    for blank in (" ", " \u3000\u00a0"):
        path.write_text(f"une maison\n{blank}\n", encoding="utf-8")
        assert f"{path}, line 2, is empty" in refused(open_bitext, folder).problem
    for name in ("train.en", "train.fr"):
        (folder / name).write_text("")
    assert f"{folder / 'train.en'} is empty" in refused(open_bitext, folder).problem


def test_a_file_that_is_not_utf8_or_not_there(folder):
    path = folder / "train.en"
    path.write_bytes(b"a house\nthe b\xe9b\xe9 .\n")
    error = refused(open_bitext, folder)
    assert f"{path}, line 2" in error.problem
    assert "Byte 6 of it" in error.reason
    error = refused(read_pairs, folder / "train.fr", folder / "none")
    assert f"{folder / 'none'}" in error.problem
    assert "test.en, test.fr" in error.reason
    assert f"{folder / 'no'}" in refused(read_pairs, folder / "train.fr", folder / "no" / "none").reason
    assert f"{folder} is no text file" in refused(read_pairs, folder, folder).problem


def test_a_folder_without_two_train_files(folder):
    (folder / "train.de").write_text("ein Haus\nder große Hund .\n", encoding="utf-8")
    error = refused(open_bitext, folder)
    assert error.problem == f"{folder} has 3 train files."
    assert "test.en" in error.reason
    assert refused(open_bitext, folder / "none").problem == f"{folder / 'none'} has 0 train files."
    assert refused(open_bitext, [folder / "train.de"]).problem == "1 file to learn from."


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (20_000, 1, 1)])
def test_an_embedded_bitext_of_impossible_size(sizes):
    error = refused(bitext_corpus, 0, *sizes)
    assert " + ".join(map(str, sizes)) in error.problem
    assert "20,000" in error.reason


def test_the_embedded_pairs_are_words_of_their_own_language():
    """No word of one side is a word of the other, but the full stop: nothing can be aligned by its looks."""
    bitext = bitext_corpus(train=50, valid=5, test=5)
    source, target = ({word for pair in bitext.train for word in pair.sides[side]} for side in (0, 1))
    assert source & target == {"."}
    assert re.fullmatch(r"[0-9a-f]{16}", bitext.fingerprint)


def put(folder, **files):
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def test_lines_that_begin_with_the_pairs_id_are_read_without_it(tmp_path):
    """As SimAlign and its gold are published."""
    files = put(
        tmp_path,
        s="0\tWe agree .\n7\tNo .\n",
        t="0\tWir stimmen zu .\n7\tNein .\n",
        g="0\t0-0 1-1 1p2 2-3\n7\t0-0 1-1\n",
    )
    first, second = read_pairs(*files).pairs
    assert first.sides == (("We", "agree", "."), ("Wir", "stimmen", "zu", "."))
    assert (first.sure, first.possible) == ({(0, 0), (1, 1), (2, 3)}, {(0, 0), (1, 1), (1, 2), (2, 3)})
    assert second.sides == (("No", "."), ("Nein", "."))
    assert "ID" in read_pairs(*files).notes[0]
    for name in "tg":
        wrong = (tmp_path / name).read_text().replace("7\t", "8\t")
        (other,) = put(tmp_path, **{f"{name}2": wrong})
        given = [other if path.name == name else path for path in files]
        assert f"{other}, line 2, is of another pair" in refused(read_pairs, *given).problem


def test_an_id_before_both_sides_of_a_line_is_of_both(tmp_path):
    for mark in ("", "7\t"):
        files = put(tmp_path, p=f"7\tdas Haus ||| {mark}the house\n", g="7\t0-0 1-1\n")
        read = read_pairs(files[0], *files)
        assert read.pairs[0].sides == (("das", "Haus"), ("the", "house"))
        assert read.pairs[0].sure == {(0, 0), (1, 1)}
        assert read.notes[1] == "Lines of p begin with the pair's ID, which is no word of it."
    (gold,) = put(tmp_path, g="8\t0-0 1-1\n")
    assert f"{gold}, line 1, is of another pair" in refused(read_pairs, files[0], *files).problem


def test_ids_of_one_side_alone_are_refused(tmp_path):
    """As words they would shift every link."""
    marked, bare, beside = put(
        tmp_path, s="4\tdas Haus\n5\tein Hund\n", t="the house\na dog\n", p="das Haus ||| 4\tthe house\n"
    )
    for files, name in (((marked, bare), "source"), ((bare, marked), "target"), ((beside, beside), "target")):
        path = beside if beside in files else marked
        error = refused(read_pairs, *files)
        assert error.problem == f"{path}, line 1: its {name} begins with 4 and a tab, as with an ID."
        assert f"({bare if path is marked else beside})" in error.reason
        assert "a space for the tab" in error.todo
    put(tmp_path, s="4 das Haus\n5 ein Hund\n")
    assert read_pairs(marked, bare).pairs[0].source == ("4", "das", "Haus")


@pytest.mark.parametrize(("ids", "right"), [((0, 7), True), (("09", "10"), True), ((10, 2), False), ((3, 3), False)])
def test_links_with_ids_beside_sentences_without_are_in_rising_order(tmp_path, ids, right):
    files = put(tmp_path, s="a b\nc\n", t="x\ny\n", g="{}\t1-0\n{}\t0-0\n".format(*ids))
    if right:
        assert [pair.sure for pair in read_pairs(*files).pairs] == [{(1, 0)}, {(0, 0)}]
    else:
        error = refused(read_pairs, *files)
        assert error.problem == f"{files[2]}, line 2, is out of order."
        assert f"The ID {ids[1]} stands there, after {ids[0]}," in error.reason


def test_one_file_may_hold_both_sides(tmp_path):
    """As fast_align and others read them."""
    (path,) = put(tmp_path, pairs="ein Haus ||| a house\ndas\u00a0Haus\t|||\tthe house\n")
    expected = [(("ein", "Haus"), ("a", "house")), (("das\u00a0Haus",), ("the", "house"))]
    assert [pair.sides for pair in read_pairs(path, path).pairs] == expected
    assert [pair.sides for pair in open_bitext(path).train] == expected
    put(tmp_path, **{"train.de-en": path.read_text(encoding="utf-8")})
    folder = open_bitext(tmp_path)
    assert [pair.sides for pair in folder.train] == expected
    assert folder.notes == ("train.de-en has source ||| target in each line.",)  # one ending names no two languages
    for text, times in (("a ||| b\nc d\n", "0 times"), ("a ||| b\nc ||| d ||| e\n", "2 times")):
        put(tmp_path, pairs=text)
        error = refused(read_pairs, path, path)
        assert f"{path}, line 2, is no pair" in error.problem
        assert times in error.reason
    put(tmp_path, pairs="a ||| b\nc |||\n")
    assert "line 2, is empty" in refused(read_pairs, path, path).problem
    put(tmp_path, pairs="a|||b\n")
    assert read_pairs(path, path).pairs[0].sides == (("a|||b",), ("a|||b",))
    assert refused(open_bitext, path).problem == f"{path} is one file."  # each would be its own translation
