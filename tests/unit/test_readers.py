"""Readers: WikiText, plain text, CoNLL-U; detection, streaming, and every refusal."""

import numpy as np
import pytest

from trisect.core.errors import CorpusError
from trisect.core.spec import Text
from trisect.text import sources
from trisect.text.corpus import Corpus
from trisect.text.readers import base, detect_reader
from trisect.text.readers.conllu import CONLLU
from trisect.text.readers.english import PLAIN, WIKITEXT, basic_english
from trisect.text.sources import describe, find_source, load_text, open_corpus, read

WIKI = ' \n = The <unk> Title = \n \n He said " no ; " it \'s ( 1 @,@ 000 ) : so<br />what ? \n'


def folder_of(path, files):
    path.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        (path / name).write_text(body, encoding="utf-8")
    return path


def word(number, form="Walk", pos="VERB", dep="root", tag="_", feats="_"):
    return "\t".join([str(number), form, "_", pos, tag, feats, "0", dep, "_", "_"]) + "\n"


def test_basic_english_keeps_case_and_splits_by_the_rules():
    assert basic_english('Don\'t (stop), "Mr." X;Y:Z<BR />now!?') == (
        ["Don", "'", "t", "(", "stop", ")", ",", "Mr", ".", "X", "Y", "Z", "now", "!", "?"]
    )
    assert basic_english(" \t \n") == []


def test_wikitext_is_read_without_empty_lines_or_line_ends(tmp_path):
    corpus = read(folder_of(tmp_path / "wiki", {"train.txt": WIKI, "valid.txt": " a b \n", "test.txt": " b c \n"}))
    tokens = [corpus.vocabulary[i] for i in corpus.splits["train"].tokens]
    expected = "= the <unk> title = he said no it ' s ( 1 @ , @ 000 ) so what ?"
    assert tokens == expected.split()
    assert corpus.name == "wiki"
    assert corpus.splits["train"].tokens.dtype == np.int32
    assert isinstance(corpus.splits["train"].tokens, np.memmap)
    assert "c" in corpus.vocabulary  # the cut, not the reader, leaves out what train lacks
    assert corpus.notes == WIKITEXT.notes


@pytest.mark.parametrize("names", [("train.txt", "valid.txt"), ("wiki.train.tokens", "wiki.valid.tokens")])
def test_wikitext_names(tmp_path, names):
    folder = folder_of(tmp_path, dict.fromkeys(names, WIKI))
    assert detect_reader(folder) is WIKITEXT
    assert list(WIKITEXT.find(folder)) == ["train", "valid"]


@pytest.mark.parametrize("mark", [" = A heading = ", "x <unk> y", "1 @.@ 5"])
def test_text_with_wikitext_marks_is_wikitext_and_else_plain(tmp_path, mark):
    plain = folder_of(tmp_path / "plain", {"train.txt": "a = b\nc @ d\n", "valid.txt": "a b\n"})
    marked = folder_of(tmp_path / "marked", {"train.txt": f"a = b\n{mark}\nc d\n", "valid.txt": "a b\n"})
    assert detect_reader(plain) is PLAIN
    assert detect_reader(marked) is WIKITEXT
    assert find_source(marked, "plain").kind is PLAIN
    assert read(marked, "plain").splits["train"].tokens.tolist() == read(marked).splits["train"].tokens.tolist()


def test_conllu_takes_words_only(tmp_path):
    contraction = word("1-2", "Don't", "_", "_") + word(1, "Do", "AUX", "aux") + word(2, "n't", "PART", "advmod")
    body = "# sent_id = 1\n" + contraction + word(3) + word("3.1", "ghost", "NOUN", "_") + "\n\n"
    body += "# text = x\n" + word(1, "X Y", "_", "nsubj:pass")
    folder = folder_of(tmp_path, {"en_x-ud-train.conllu": body, "en_x-ud-dev.conllu": body.replace("\n", "\r\n")})
    corpus = read(folder)
    assert detect_reader(folder) is CONLLU
    assert corpus.vocabulary == ("do", "n't", "walk", "x y")
    assert corpus.labels == {"pos": ("AUX", "PART", "VERB"), "dep": ("aux", "advmod", "root", "nsubj:pass")}
    for split in ("train", "valid"):
        assert corpus.splits[split].tokens.tolist() == [0, 1, 2, 3]
        assert corpus.splits[split].labels["pos"].tolist() == [0, 1, 2, -1]
        assert corpus.splits[split].labels["dep"].tolist() == [0, 1, 2, 3]
    assert [p.words for p in CONLLU.paragraphs(folder / "en_x-ud-train.conllu")] == [["Do", "n't", "Walk"], ["X Y"]]


def test_conllu_gives_the_fine_grained_tag_where_the_treebank_has_it(tmp_path):
    body = word(1, tag="VBZ") + word(2, "x", "NOUN") + word(3, tag="VBZ")
    tagged = read(folder_of(tmp_path / "tagged", {"train.conllu": body, "dev.conllu": word(1) * 2}))
    assert tagged.labels["tag"] == ("VBZ",)
    assert tagged.splits["train"].labels["tag"].tolist() == [0, -1, 0]
    assert tagged.splits["valid"].labels["tag"].tolist() == [-1, -1]
    assert tagged.notes[-1] == "No word carries a 'morph': the column is left out."
    assert not [note for note in tagged.notes if "'tag'" in note]
    bare = read(folder_of(tmp_path / "bare", {"train.conllu": body.replace("VBZ", "_"), "dev.conllu": word(1) * 2}))
    assert list(bare.labels) == ["pos", "dep"]
    assert bare.notes[-2] == "No word carries a 'tag': the column is left out."


def test_conllu_gives_morphology_whole_and_feature_by_feature(tmp_path):
    train = word(1) + word(2, feats="Number=Sing|Person=3") + "\n" + word(1, feats="Number=Plur") + word(2)
    valid = word(1, feats="Number=Sing|Case=Gen") + word(2)
    corpus = read(folder_of(tmp_path, {"train.conllu": train, "dev.conllu": valid}))
    assert {c: n for c, n in corpus.labels.items() if c.startswith("morph")} == {
        "morph": ("Number=Sing|Person=3", "Number=Plur", "Number=Sing|Case=Gen"),
        "morph.Case": ("Gen",),
        "morph.Number": ("Sing", "Plur"),
        "morph.Person": ("3",),
    }
    found = {s: {c: ids.tolist() for c, ids in part.labels.items()} for s, part in corpus.splits.items()}
    assert found["train"]["morph.Number"] == [-1, 0, 1, -1]
    assert found["train"]["morph"] == [-1, 0, 1, -1]
    assert found["train"]["morph.Case"] == [-1, -1, -1, -1]
    assert found["valid"]["morph.Case"] == [0, -1]
    assert found["valid"]["morph.Person"] == [-1, -1]
    for wrong in ("Number", "Number=", "A=b|", "A=b=c"):
        folder_of(tmp_path, {"train.conllu": word(1, feats=wrong)})
        with pytest.raises(CorpusError) as caught:
            read(tmp_path)
        assert f"line 1: {wrong!r} are no features." in str(caught.value)


def test_conllu_names_the_file_and_line_that_is_no_word(tmp_path):
    folder = folder_of(tmp_path, {"train.conllu": "# x\n" + word(1) + "2\tshort\n", "dev.conllu": word(1)})
    with pytest.raises(CorpusError) as caught:
        read(folder)
    assert caught.value.given == f"{folder / 'train.conllu'}, line 3: '2\\tshort' has 2 columns."
    folder_of(tmp_path, {"train.conllu": "plain words\n"})
    with pytest.raises(CorpusError, match=r"line 1: 'plain words' has 1 column\."):
        read(folder)
    folder_of(tmp_path, {"train.conllu": word("one")})
    with pytest.raises(CorpusError, match=r"line 1: 'one' is not a word's id"):
        read(folder)


def test_a_long_line_comes_in_pieces_with_whole_words(tmp_path, monkeypatch):
    text = " ".join(f"word{i}" for i in range(50))
    folder = folder_of(tmp_path, {"train.txt": text, "valid.txt": text + "\n" + text})
    whole = read(folder)
    monkeypatch.setattr(base, "LINE", 16)
    assert max(len(line) for line in base.lines(folder / "train.txt")) < 32
    assert read(folder).fingerprint == whole.fingerprint


def test_folders_without_what_is_needed(tmp_path):
    (tmp_path / "t.txt").write_text("A text.", encoding="utf-8")
    with pytest.raises(
        CorpusError, match=r"t\.txt is a file\.\n.*train\.txt and valid\.txt\.\n.*; commands with --text"
    ):
        open_corpus(tmp_path / "t.txt")
    (tmp_path / "t.txt").unlink()
    with pytest.raises(CorpusError, match=r"There is no folder .*none"):
        read(tmp_path / "none")
    with pytest.raises(CorpusError, match=r"no train split.\n  Looked for .*train.txt or .*; the folder holds nothing"):
        read(tmp_path)
    folder = folder_of(tmp_path, {"train.txt": "a b", "notes.md": ""})
    with pytest.raises(CorpusError, match=r"no valid split.\n.*the folder holds notes.md, train.txt.\n  Add that file"):
        read(folder)
    folder_of(tmp_path, {"valid.txt": "a", "valid.tokens": "a"})
    with pytest.raises(CorpusError, match=r"several valid files.\n  Found valid.tokens, valid.txt.\n  Keep one"):
        read(folder)


def test_a_text_with_one_token(tmp_path):
    folder = folder_of(tmp_path, {"train.txt": "a\n\n", "valid.txt": "a b"})
    with pytest.raises(CorpusError, match=r"The train split of .* has 1 token"):
        load_text(Text(corpus=str(folder)))


def test_bytes_that_are_not_text(tmp_path):
    folder = folder_of(tmp_path, {"valid.txt": "a b"})
    (folder / "train.txt").write_bytes(b"a b \xff\xfe c")
    with pytest.raises(CorpusError, match=r"train.txt cannot be read.\n.*codec.*\n  Give a readable UTF-8 text file"):
        read(folder)


def test_no_corpus_named():
    with pytest.raises(CorpusError, match=r"names no corpus.\n  Its preset leaves the text.*\n  Name a corpus folder"):
        load_text(Text(corpus=None))


def test_an_unknown_reader(tmp_path):
    with pytest.raises(CorpusError, match=r"Unknown reader 'html'.\n  Readers are conllu, wikitext, plain."):
        read(tmp_path, "html")


def test_too_many_names_for_one_column():
    ids = sources.Ids(2)
    assert (ids["a"], ids["b"], ids["a"]) == (0, 1, 0)
    with pytest.raises(CorpusError, match=r"At most 2 fit; 'c' is one too many"):
        ids["c"]


def test_open_corpus_takes_all_three_kinds(tmp_path):
    folder = folder_of(tmp_path / "raw", {"train.txt": "a b b c", "valid.txt": "b z"})
    saved = open_corpus(folder).save(tmp_path / "saved")
    assert open_corpus(saved).fingerprint == open_corpus(folder).fingerprint
    assert open_corpus("embedded").name == "embedded"
    cut = load_text(Text(corpus=str(saved), min_count=2))
    assert cut.vocabulary == ("<unk>", "b")
    assert cut.splits["valid"].tokens.tolist() == [1, 0]


def test_describe_counts_everything(tmp_path):
    body = "".join(word(i, f"w{i % 5}", ("NOUN", "VERB", "NOUN")[i % 3]) for i in range(1, 45)) + "\n"
    other = word(1, "new", "X") + word(2, "w1", "_") + word(3, "w1") * 10
    seen = describe(read(folder_of(tmp_path, {"train.conllu": body, "dev.conllu": other})))
    assert seen["splits"] == [
        {"split": "train", "tokens": 44, "types": 5, "unknown": 0, "columns": 20, "rows": 2},
        {"split": "valid", "tokens": 12, "types": 2, "unknown": 1, "columns": 10, "rows": 1},
    ]
    assert seen["types"] == 6
    valid = [(r["class"], r["count"]) for r in seen["labels"] if r["split"] == "valid" and r["label"] == "pos"]
    assert valid == [("NOUN", 0), ("VERB", 10), ("X", 1), (None, 1)]
    assert describe(read(tmp_path), {"train": 4})["splits"][0]["rows"] == 11


def test_a_corpus_folder_is_loaded_not_read(tmp_path):
    folder = folder_of(tmp_path, {"train.txt": "a b b c", "valid.txt": "b z"})
    named = open_corpus(folder)
    Corpus.make("renamed", named.vocabulary, named.labels, named.splits).save(folder)
    assert open_corpus(folder).name == "renamed"
    assert open_corpus(folder, "plain").name == folder.name


def test_a_byte_order_mark_is_no_part_of_a_word(tmp_path):
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("\ufeffThe cat sat .\n", encoding="utf-8")
    assert set(read(tmp_path).vocabulary) == {"the", "cat", "sat", "."}
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").unlink()
        rows = "\ufeff# x = 1\n1\tCats\tcat\tNOUN\t_\t_\t0\troot\t_\t_\n2\tsleep\tsleep\tVERB\t_\t_\t1\tdep\t_\t_\n\n"
        (tmp_path / f"{split}.conllu").write_text(rows, encoding="utf-8")
    assert set(read(tmp_path).vocabulary) == {"cats", "sleep"}
