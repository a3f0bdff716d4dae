"""Readers: WikiText, plain text, CoNLL-U; detection, streaming, and every refusal."""

import io
import os
from pathlib import Path

import numpy as np
import pytest

from trisect.core.errors import CorpusError
from trisect.core.spec import Text
from trisect.text import bitext, pairs, readers, sources
from trisect.text import lines as text_lines
from trisect.text.corpus import Corpus
from trisect.text.readers import CONLLU, PLAIN, WIKITEXT, basic_english, detect_reader, detokenise
from trisect.text.sources import describe, find_source, load_text, open_corpus, open_labels, open_texts, read

WIKI = ' \n = The <unk> Title = \n \n He said " no ; " it \'s ( 1 @,@ 000 ) : so<br />what ? \n'


def folder_of(path, files):
    path.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        (path / name).write_text(body, encoding="utf-8")
    return path


def word(number, form="Walk", pos="VERB", dep="root", tag="_", feats="_"):
    return "\t".join([str(number), form, "_", pos, tag, feats, "0", dep, "_", "_"]) + "\n"


COLUMNS = {"form": "FORM", "pos": "UPOS", "tag": "XPOS", "dep": "DEPREL"}


def rows(ids):
    return "".join(word(one, "w") for one in ids.split())


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
    tagged = read(folder_of(tmp_path / "tagged", {"train.conllu": body, "dev.conllu": word(1) + word(2)}))
    assert tagged.labels["tag"] == ("VBZ",)
    assert tagged.splits["train"].labels["tag"].tolist() == [0, -1, 0]
    assert tagged.splits["valid"].labels["tag"].tolist() == [-1, -1]
    assert tagged.notes[-1] == "No word carries a 'morph': the column is left out."
    assert not [note for note in tagged.notes if "'tag'" in note]
    bare = read(
        folder_of(tmp_path / "bare", {"train.conllu": body.replace("VBZ", "_"), "dev.conllu": word(1) + word(2)})
    )
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


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ("# x\n" + word(1) + "2\tshort\n", "line 3: '2\\tshort' has 2 columns."),
        ("plain words\n", "line 1: 'plain words' has 1 column."),
        (word("one"), "line 1: 'one' is not a word's id."),
        *(
            (rows(ids), f"the id is {ids.split()[-1]}.")
            for ids in ("1 3", "2", "0", "1 3-4", "1 2-2", "1-3 1 2-4", "1 2.1", "1 01")
        ),
        *((rows(ids), "ends in a range") for ids in ("1-2 1", "1-2", "1 2-3")),
        *((word(1).replace("\t0\t", f"\t{head}\t"), f" is {head[:40]!r}") for head in ("²", "9" * 5000, "-1", "1")),
        (word(1).replace("\t0\t", "\t3\t"), "the head of 'Walk' is word 3."),
        *((word(1, **{key: ""}), f"line 1: {name} is empty") for key, name in COLUMNS.items()),
        *((word(1, feats=wrong), f"{wrong!r} are no features.") for wrong in ("Number", "Number=", "A=b|", "A=b=c")),
    ],
)
def test_what_is_no_treebank_is_named_by_file_and_line(tmp_path, body, given):
    folder = folder_of(tmp_path, {"train.conllu": body, "dev.conllu": word(1)})
    for read_it in (read, lambda place: open_labels(place, "train")):
        with pytest.raises(CorpusError) as caught:
            read_it(folder)
        assert caught.value.problem.startswith(f"{folder / 'train.conllu'}, ")
        assert given in caught.value.problem


def test_a_long_line_comes_in_pieces_with_whole_words(tmp_path, monkeypatch):
    text = " ".join(f"word{i}" for i in range(50))
    folder = folder_of(tmp_path, {"train.txt": text, "valid.txt": text + "\n" + text})
    whole = read(folder)
    monkeypatch.setattr(readers, "LINE", 16)
    assert max(len(line) for line in readers.lines(folder / "train.txt")) < 32
    assert read(folder).fingerprint == whole.fingerprint
    monkeypatch.setattr(readers, "MAX_CORPUS_LINE_BYTES", len(text) - 1)
    with pytest.raises(CorpusError, match=r"train\.txt, line 1, is too long"):
        read(folder)


def test_folders_without_what_is_needed(tmp_path):
    (tmp_path / "t.txt").write_text("A text.", encoding="utf-8")
    with pytest.raises(
        CorpusError, match=r"t\.txt is a file\.\n.*train\.txt and valid\.txt\.\n.*; commands with --text"
    ):
        open_corpus(tmp_path / "t.txt")
    (tmp_path / "t.txt").unlink()
    with pytest.raises(CorpusError, match=r"There is no file or folder .*none"):
        read(tmp_path / "none")
    with pytest.raises(CorpusError, match=r"no train split.\n  Looked for .*train.txt or .*; the folder holds nothing"):
        read(tmp_path)
    folder = folder_of(tmp_path, {"train.txt": "a b", "notes.md": ""})
    with pytest.raises(CorpusError, match=r"no valid split.\n.*the folder holds notes.md, train.txt.\n  Add that file"):
        read(folder)
    folder_of(tmp_path, {"valid.txt": "a", "valid.tokens": "a"})
    with pytest.raises(CorpusError, match=r"several valid files.\n  Found valid.tokens, valid.txt.\n  Keep one"):
        read(folder)


def test_no_corpus_named():
    with pytest.raises(CorpusError, match=r"names no corpus.\n  Its preset leaves the text.*\n  Name a corpus folder"):
        load_text(Text(corpus=None))


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
    other = word(1, "new", "X") + word(2, "w1", "_") + "".join(word(i, "w1") for i in range(3, 13))
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


def test_heads_are_words_of_the_sentence_or_not_known(tmp_path):
    body = word(1, "a") + word(2, "b")
    for head, heads in (("_", ()), ("2", (2, 0))):  # the last word is one
        folder_of(tmp_path, {"test.conllu": body.replace("\t0\t", f"\t{head}\t", 1)})
        assert [one.heads for one in open_labels(tmp_path, "test").texts()] == [heads]


A_WORD = "{}\t{}\t_\tX\t_\t_\t0\troot\t_\t{}\n"


@pytest.mark.parametrize(
    ("comments", "forms", "text"),
    [
        ("# text = Geh fort\n# text_en = Go away", "Geh fort", "Geh fort"),
        ("# text = Go on\n0.1" + "\t_" * 9, "Go on", "Go on"),
        ("# text = ich esse Việt\u00a0Nam", "ich esse Việt~Nam", "ich esse Việt\u00a0Nam"),
        ("# text = l'e\u0301te\u0301", "l' été", "l'e\u0301te\u0301"),
        ("# text = وقال الرجل\n1-2\tوقال" + "\t_" * 8, "و قال الرجل", "وقال الرجل"),
        ("# text = 我去北京", "我 去 北京", "我去北京"),
        ("# text = Hi 👩\u200d💻!", "Hi 👩\u200d💻 !", "Hi 👩\u200d💻!"),
        ("1-2\tzum" + "\t_" * 7 + "\tGloss=to | SpaceAfter=No", "zu dem .", "zum."),
        ("# text = Go\u2028on", "Go on", "Go\u2028on"),
        ("# text = Go on\r", "Go on\r", "Go on"),
    ],
)
def test_a_sentence_is_read_as_it_is_written(tmp_path, comments, forms, text):
    rows = "".join(A_WORD.format(i, one.replace("~", " "), "_") for i, one in enumerate(forms.rstrip().split(" "), 1))
    rows = f"{comments.rstrip()}\n{rows}\n"
    folder_of(tmp_path, {"test.conllu": rows.replace("\n", "\r\n") if comments.endswith("\r") else rows})
    (sentence,) = open_labels(tmp_path, "test").texts()
    assert sentence.text == text
    joined = "Of 1 texts 1 have no '# text' line: what is read is their tokens, joined."
    assert (joined in open_texts(tmp_path).notes) == ("# text =" not in comments)
    covered = {place for span in sentence.spans for place in range(*span)}
    assert all(place in covered or letter.isspace() for place, letter in enumerate(text))


def test_only_a_line_feed_ends_a_line(tmp_path):
    folder_of(tmp_path, {"train.txt": "a\n", "valid.txt": "a\n", "test.txt": "one\x0ctwo\u2028three\rfour\nfive\r\n"})
    texts = open_texts(tmp_path)
    assert list(texts.texts()) == ["one\x0ctwo\u2028three\rfour", "five"]
    folder_of(tmp_path, {"test.txt": "one\rtwo\r"})
    with pytest.raises(CorpusError, match="carriage returns and no line feed"):
        list(open_texts(tmp_path).texts())


def test_a_treebank_that_is_shared_without_its_words_is_refused(tmp_path):
    folder_of(tmp_path, {"test.conllu": word(1, "_") + "\n" + word(1, "_", "DET") + word(2, "_", "NOUN")})
    with pytest.raises(CorpusError, match=r"before line 5: every word is '_'\.\n.*whose rights.*\n  Get the text"):
        open_labels(tmp_path, "test")
    folder_of(tmp_path, {"test.conllu": word(1, "_") + word(2, "x")})
    assert list(open_texts(tmp_path).texts()) == ["_ x"]  # a word that is an underscore


def test_a_test_file_alone_or_one_file_is_read_for_what_needs_no_more(tmp_path):
    folder_of(tmp_path, {"test.conllu": word(1, "Go") + word(2, "on")})
    for where in (tmp_path, tmp_path / "test.conllu"):
        assert list(open_texts(where).texts()) == ["Go on"]
        assert [one.labels["pos"] for one in open_labels(where, "test").texts()] == [("VERB", "VERB")]
        with pytest.raises(CorpusError, match="has no train split"):
            read(where)
        with pytest.raises(CorpusError, match=r"has no valid split\.\n  It has test\."):
            open_texts(where, "valid")
    (tmp_path / "t.txt").write_text("A line .\n\nAnother .\n", encoding="utf-8")
    assert list(open_texts(tmp_path / "t.txt", reader="plain").texts()) == ["A line .", "Another ."]


PUBLISHED_LINE = (
    " The player 's \" free @-@ kick \" ( in 1 @,@ 000 games ) , he said : it didn 't go 5 % for US $ 2 @.@ 5 . . . "
)


def test_wikitext_is_written_as_one_writes_with_a_count_or_left_as_published(tmp_path):
    folder = folder_of(tmp_path, {"wiki.test.tokens": f" \n = Title = \n \n{PUBLISHED_LINE}\n"})
    joined, left = open_texts(folder), open_texts(folder, reader="wikitext-tokens")
    assert list(joined.texts()) == [
        "The player's \"free-kick\" (in 1,000 games), he said: it didn't go 5% for US $2.5..."
    ]
    assert [note for note in joined.notes if "In 1 texts" in note and "in 15 places" in note]
    assert list(left.texts()) == list(open_texts(folder, published=True).texts()) == [PUBLISHED_LINE.strip()]
    assert not [note for note in left.notes if "in 15 places" in note]
    assert [list(one.articles()) for one in (joined, left) if one.articles is not None] == [[0], [0]]


@pytest.mark.parametrize(
    ("published", "written"),
    [
        ("the players ' wages", "the players' wages"),
        ("called ' the end ' here", "called 'the end' here"),
        ('( the " best " ) [ sic ] !', '(the "best") [sic]!'),
        ("the <unk> , € 5 ; 3 – 4 / x", "the <unk>, €5; 3 – 4 / x"),
        ("a .22 rifle , 2 ", "a .22 rifle, 2"),
        ('one " quote left', 'one " quote left'),
        ("I 'm sure you 've don 't 'til", "I'm sure you've don't 'til"),
    ],
)
def test_what_wikitext_set_apart_is_joined(published, written):
    assert detokenise(published.strip())[0] == written
    assert detokenise(written) == (written, 0)


SPECIAL_FILES = {
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "x"
    SPECIAL_FILES[kind](path)
    calls = [
        lambda: list(readers.lines(path)),
        lambda: pairs.read_pairs(path),
        lambda: bitext.read_pairs(path, path),
        lambda: bitext.read_links(path, [(1, 1)]),
    ]
    for read_it in calls:
        with pytest.raises(CorpusError) as caught:
            read_it()
        assert caught.value.problem == f"{path} is no text file."
        assert f"It is a {kind}" in caught.value.reason


def test_a_text_has_bounds_on_its_bytes_and_its_lines(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_text("ab\n" * 5, encoding="utf-8")
    with text_lines.open_text(path, 2, 15) as file:
        assert len(file.readlines()) == 5
    for longest, most, lines, given in (
        (1, 99, 99, "line 1, is too long"),
        (9, 14, 99, "x is too long"),
        (9, 99, 4, "x is too"),
    ):
        monkeypatch.setattr(text_lines, "MAX_LINES", lines)
        with pytest.raises(CorpusError, match=given), text_lines.open_text(path, longest, most) as file:
            file.readlines()


def test_a_dash_is_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeffun deux\n".encode())))
    assert text_lines.read_lines(Path("-")) == ["un deux"]
    assert text_lines.read_lines(Path("-")) == []


def test_the_sample_is_english_with_labels_that_come_with_trisect(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = open_labels("sample", "test")
    sentences = list(texts.texts())
    assert texts.columns == ("pos", "dep")
    assert texts.options == ("--corpus", "sample", "--split", "test")
    assert len(sentences) == len({one.text for one in sentences}) == 305
    lengths = [len(one.spans) for one in sentences]
    assert (min(lengths), max(lengths)) == (3, 52)
    for one in sentences:
        words = [one.text[a:b] for a, b in one.spans]
        assert "".join(words) == one.text.replace(" ", "")
        assert [i for i, head in enumerate(one.heads) if not head] == [one.labels["dep"].index("root")]
    tags = {name for one in sentences for name in one.labels["pos"]}
    assert ",".join(sorted(filter(None, tags))) == (
        "ADJ,ADP,ADV,AUX,CCONJ,DET,INTJ,NOUN,NUM,PART,PRON,PROPN,PUNCT,SCONJ,VERB"
    )
    with pytest.raises(CorpusError, match="'sample' has no train split"):
        open_corpus("sample")
    with pytest.raises(CorpusError, match="did you mean 'sample'"):
        open_texts("smaple")
