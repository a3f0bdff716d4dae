"""Annotating: one label a token, several processes, a corpus whole or not at all, and every refusal."""

import errno
import importlib.util
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trisect
from trisect.core.errors import CorpusError, StudyError
from trisect.lab.annotation import annotate
from trisect.lab.run_folder import RunFolder
from trisect.text import annotate as room
from trisect.text.corpus import Corpus
from trisect.text.sources import find_source, read

spacy = pytest.importorskip("spacy", reason="spaCy is the optional extra trisect[annotate]")

WORDS = {"The": "ADV", "the": "DET", "Unk": "PROPN", "Other": "X", "cat": "NOUN", "sees": "VERB", ".": "PUNCT"}
LINE = ' The cat sees the <unk> ; " nothing " . \n'
TINY = {"@architectures": "spacy.HashEmbedCNN.v2", "width": 16, "depth": 1, "embed_size": 64, "window_size": 1}
TINY |= {"maxout_pieces": 2, "subword_features": False, "pretrained_vectors": None}
ENTITIES = {"label": "ORG", "pattern": [{"ORTH": "Unk"}]}, {"label": "BEAST", "pattern": "The cat"}


def pipeline(folder, parser=True, rules=WORDS, seed=0, tagger=False, entities=()):
    """A parser (and a tagger) that has seen one sentence; parts of speech and entities by lists of words."""
    from spacy.training import Example

    spacy.util.fix_random_seed(seed)
    nlp = spacy.blank("en")
    if parser:
        nlp.add_pipe("parser", config={"model": {"tok2vec": TINY}, "min_action_freq": 1})
    if tagger:
        nlp.add_pipe("tagger", config={"model": {"tok2vec": TINY}})
    text = {
        "heads": [1, 2, 2, 4, 2],
        "deps": ["det", "nsubj", "ROOT", "det", "obj"],
        "tags": ["DT", "NN", "VBZ", "DT", "NN"],
    }
    doc = nlp.make_doc("the cat sees the dog")
    examples = [Example.from_dict(doc, text)]
    nlp.initialize(lambda: examples)
    for _ in range(10 * parser):
        nlp.update(examples)
    if rules:
        ruler = nlp.add_pipe("attribute_ruler")
        for word, pos in rules.items():
            ruler.add([[{"ORTH": word}]], {"POS": pos})  # pyright: ignore[reportAttributeAccessIssue]
    if entities:
        nlp.add_pipe("entity_ruler").add_patterns(entities)  # pyright: ignore[reportAttributeAccessIssue]
    nlp.to_disk(folder)
    return folder


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """Sets all four columns."""
    return pipeline(tmp_path_factory.mktemp("pipeline") / "tiny", tagger=True, entities=ENTITIES)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "text"
    folder.mkdir()
    for split, n in (("train", 20), ("valid", 7), ("test", 3)):
        (folder / f"{split}.txt").write_text("".join(f"{LINE} \n = word{i} = \n" for i in range(n)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def whole(source, tagger, tmp_path_factory):
    """The text annotated in one go, in small pieces, by two processes; and what progress was called with."""
    steps, out = [], tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "PIECE", 40)
        corpus = annotate(source, tagger, out, workers=2, progress=lambda *now: steps.append(now))
    return corpus, steps, out


def test_one_label_a_token_in_a_corpus_that_says_how_it_was_made(whole, source):
    corpus, _, _ = whole
    plain = read(source)
    assert corpus.vocabulary == plain.vocabulary
    for name, split in corpus.splits.items():
        assert split.tokens.tolist() == plain.splits[name].tokens.tolist()
    words = [corpus.vocabulary[i] for i in corpus.splits["train"].tokens[:8]]
    pos = [corpus.labels["pos"][i] if i >= 0 else None for i in corpus.splits["train"].labels["pos"][:8]]
    assert words == ["the", "cat", "sees", "the", "<unk>", "nothing", ".", "="]
    assert pos == ["ADV", "NOUN", "VERB", "DET", None, None, "PUNCT", None]  # the pipeline leaves 'nothing', '=' alone
    unknown = corpus.splits["train"].tokens == corpus.vocabulary.index("<unk>")
    assert ((corpus.splits["train"].labels["dep"] < 0) == unknown).all()
    corpus, steps, out = whole
    assert Corpus.load(out).fingerprint == corpus.fingerprint
    assert corpus.column("pos")
    what = "part of speech, fine-grained tag, dependency relation and entity type"
    tagged = f"The {what} of each token is that of the spaCy pipeline en_pipeline 0.0.0"
    assert corpus.notes[1].startswith(f"{tagged} (spaCy 3.")
    assert corpus.notes[2] == "A token outside every entity has the entity type 'O'."
    assert corpus.notes[3] == "<unk> (10.0\u00a0% of train) was shown to the tagger as 'Unk' and carries no label."
    total = sum(len(split.tokens) for split in corpus.splits.values())
    assert len(steps) > 4
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1] == (total, total)


@pytest.mark.parametrize("column", ["tag", "dep", "ent"])
def test_labels_are_the_pipelines_own(whole, tagger, source, column):
    from spacy.tokens import Doc

    corpus, _, _ = whole
    nlp = spacy.load(tagger)
    expected = []
    for line in (source / "valid.txt").read_text().splitlines():
        words = line.replace('"', "").replace(";", "").replace("<unk>", "Unk").split()
        if words:
            doc = nlp(Doc(nlp.vocab, words=words))
            expected += [{"tag": t.tag_, "dep": t.dep_, "ent": t.ent_type_ or "O"}[column] for t in doc]
    split = corpus.splits["valid"]
    real = split.labels[column] >= 0
    assert (real == (split.tokens != corpus.vocabulary.index("<unk>"))).all()
    found = np.array([corpus.labels[column][i] for i in split.labels[column]])
    assert (found[real] == np.array(expected)[real]).all()
    assert len(set(found[real])) > 1


def test_a_study_may_attack_every_column_and_asks_for_no_more_than_it_needs(whole, source, tmp_path):
    from tests.tiny import MODEL, SITES, TRAINING

    from trisect.core.spec import Attack, Design, Text
    from trisect.experiments.study.plan import make_plan

    def planned(place, *labels):
        asked = Design("t", Text(str(place)), MODEL, TRAINING, (1,), Attack(SITES, labels), None, None)
        return {run.edit.column for run in make_plan(asked).runs if run.edit}

    assert planned(whole[2], "pos", "tag", "dep", "ent") == {"pos", "tag", "dep", "ent"}
    bare = annotate(source, pipeline(tmp_path / "bare"), tmp_path / "out", workers=1).save(tmp_path / "copy")
    assert planned(bare, "pos", "dep") == {"pos", "dep"}
    with pytest.raises(CorpusError, match=r"has no label column 'tag'.\n  It has dep, pos.\n  Use a column"):
        planned(bare, "tag")


def test_tag_and_entity_are_left_out_where_the_pipeline_sets_none_and_one_that_cannot_be_loaded_is_named(
    source, tmp_path
):
    bare = pipeline(tmp_path / "bare")
    made = annotate(source, bare, tmp_path / "out", workers=1)
    assert set(made.labels) == {"pos", "dep"}
    parts = "Its parts are parser, attribute_ruler;"
    assert made.notes[2:4] == (
        f"There is no column 'tag': the pipeline sets no fine-grained tag. {parts} 'tag' needs a tagger.",
        f"There is no column 'ent': the pipeline sets no entity type. {parts} 'ent' needs a named entity recogniser "
        "(or an entity_ruler).",
    )
    with pytest.raises(CorpusError, match=r"(?s)no column 'ent'.*parser, attribute_ruler; 'ent'.*ask for dep alone"):
        annotate(source, bare, tmp_path / "other", workers=1, columns=("dep", "ent"))
    with pytest.raises(CorpusError) as caught:
        annotate(source, "no_such_pipeline", tmp_path / "none", workers=1)
    assert "'no_such_pipeline'" in caught.value.problem
    assert "Can't find model 'no_such_pipeline'" in caught.value.reason
    assert not (tmp_path / "none").exists()


SLOW = """
import os, sys, time
import spacy
from spacy.language import Language
from trisect.core.errors import CorpusError
from trisect.lab.annotation import annotate
from trisect.text import annotate as room
room.PIECE = 40
how, main, code = "", os.getpid(), 0

@Language.component("slow")
def slow(doc):
    if os.getpid() != main:
        print(os.getpid(), flush=True)
        time.sleep(0.2)
        if how == "dies":
            os._exit(9)
        if how == "raises":
            raise ValueError("nothing to say of this")
    return doc

load = spacy.load
def slower(name):
    nlp = load(name)
    nlp.add_pipe("slow", first=True)
    return nlp
spacy.load = slower
for how in sys.argv[1].split():
    try:
        annotate(sys.argv[2], sys.argv[3], sys.argv[4], workers=2)
    except CorpusError as error:
        print(error.problem, error.reason, flush=True)
        code = 2
    except KeyboardInterrupt:
        sys.exit(130)
sys.exit(code)
"""


def is_running(process):
    """Whether a process is there, and not only its entry."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are started anew, without the slow pipeline")
@pytest.mark.parametrize(("how", "code"), [("raises dies", 2), ("interrupted", 130), ("killed", -9)])
def test_however_labelling_ends_nothing_is_left_and_no_process_stays(source, tagger, tmp_path, how, code):
    words = [sys.executable, "-c", SLOW, how, str(source), str(tagger), str(tmp_path / "out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as called:
        assert called.stdout is not None
        others = {int(called.stdout.readline())}
        if how in ("interrupted", "killed"):
            called.send_signal({"interrupted": signal.SIGINT, "killed": signal.SIGKILL}[how])
        said, errors = called.communicate(timeout=60)
    others |= {int(line) for line in said.splitlines() if line.isdigit()}
    assert (called.returncode, errors) == (code, "")
    if how == "raises dies":
        assert "ValueError: nothing to say of this" in said
        assert "The spaCy pipeline did not label the text. It says: BrokenProcessPool" in said
    until = time.monotonic() + 10
    while any(map(is_running, others)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_running, others))
    left = [path.name for path in (tmp_path / "out").iterdir()] if (tmp_path / "out").exists() else []
    assert left == ([".lock"] if how == "killed" else [])
    assert annotate(source, tagger, tmp_path / "out", workers=1).column("pos")


def test_a_finished_corpus_is_not_made_again_and_not_overwritten(whole, source, tagger, tmp_path, monkeypatch):
    corpus, _, made = whole
    out = shutil.copytree(made, tmp_path / "out")
    monkeypatch.setattr(room, "PIECE", 40)
    steps = []
    again = annotate(source, tagger, out, workers=1, progress=lambda *now: steps.append(now))
    assert (again.fingerprint, steps) == (corpus.fingerprint, [])
    with pytest.raises(CorpusError, match=r"already holds another corpus.\n  It differs in placeholder.\n  Choose"):
        annotate(source, tagger, out, placeholder="Other", workers=1)
    for name in ("annotation.json", "manifest.json"):
        (out / name).unlink()
    with pytest.raises(CorpusError, match="It was not made by annotating"):
        annotate(source, tagger, out, workers=1)
    assert Corpus.load(out).fingerprint == corpus.fingerprint


def test_another_pipeline_or_text_is_another_statement_and_changed_files_are_opened_anew(source, tagger, tmp_path):
    """With the same name and version, only the weights tell two pipelines apart."""
    other = pipeline(tmp_path / "tiny", seed=1, tagger=True, entities=ENTITIES)
    first, second = (room.describe_pipeline(str(p), ("pos", "dep")) for p in (tagger, other))
    assert first.pipeline == second.pipeline
    assert first.digest != second.digest
    assert room.describe_pipeline(str(tagger), ("pos", "dep")) == first
    changed = shutil.copytree(source, tmp_path / "text")
    mine = room.label_inputs(find_source(source), "Unk", first)
    assert room.label_inputs(find_source(changed), "Unk", first) == mine
    assert room.label_inputs(find_source(source), "Unk", replace(first, columns=("pos",))) != mine
    (changed / "valid.txt").write_text("a b c")
    assert room.label_inputs(find_source(changed), "Unk", first) != mine
    folder = pipeline(tmp_path / "bare")
    first = annotate(source, folder, tmp_path / "first", workers=1, columns=("pos",))
    pipeline(folder, rules=WORDS | {"cat": "VERB"})
    second = annotate(source, folder, tmp_path / "second", workers=1, columns=("pos",))
    assert "NOUN" in first.labels["pos"]
    assert "NOUN" not in second.labels["pos"]


def test_a_long_paragraph_is_shown_in_pieces(source, tagger, monkeypatch):
    from trisect.text.readers import WIKITEXT

    monkeypatch.setattr(room, "MAX_WORDS", 3)
    pieces = [list(room._pieces(WIKITEXT, part, "Unk")) for part in WIKITEXT.find(source).values()]
    assert [len(found) for found in pieces] == [1, 1, 1]
    assert pieces[0][0][:3] == [["The", "cat", "sees"], ["the", "Unk", "nothing"], ["."]]
    assert sum(len(t) for (texts,) in pieces for t in texts) == 30 * 10


@pytest.mark.parametrize("shadowed", [False, True])
def test_no_spacy_and_a_folder_of_that_name(source, tmp_path, monkeypatch, shadowed):
    if shadowed:
        (tmp_path / "spacy").mkdir()
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        monkeypatch.delitem(sys.modules, "spacy", raising=False)
    else:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CorpusError, match=r"(?s)spaCy is not there.*trisect\[annotate\]"):
        annotate(source, "en_core_web_sm", tmp_path / "out")


@pytest.mark.parametrize(
    ("rules", "columns", "message"),
    [
        (WORDS, None, r"(?s)no column 'dep'.*attribute_ruler; 'dep' needs.*ask for pos alone"),
        ({}, ("pos",), r"(?s)no column 'pos'.*none; 'pos' needs a morphologizer"),
        ({"absent": "X"}, ("pos",), r"no token a part of speech.\n.*'pos' would be empty.\n  Use another"),
    ],
)
def test_a_column_that_a_pipeline_does_not_set_is_refused(source, tmp_path, rules, columns, message):
    bare = pipeline(tmp_path / "bare", parser=False, rules=rules)
    with pytest.raises(CorpusError, match=message):
        annotate(source, bare, tmp_path / "out", workers=1, columns=columns)
    assert not (tmp_path / "out" / "corpus.json").exists()
    if columns is None:
        assert set(annotate(source, bare, tmp_path / "out", workers=1, columns=("pos",)).labels) == {"pos"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"placeholder": "two words"}, r"The placeholder is 'two words'.\n  .*one word.*\n  Use for example Unk"),
        ({"placeholder": ""}, r"The placeholder is ''"),
        ({"workers": 0}, r"0 workers were asked for.\n  One process at least.*\n  Give 1 or more"),
        ({"columns": ("ner",)}, r"'ner' is no column of spaCy.\n  Columns are pos, tag, dep, ent.\n  Ask for some"),
        ({"columns": ()}, r"No columns were asked for"),
        (
            {"columns": ("pos", "dep", "pos")},
            r"columns was given 'pos' twice.\n  columns are 'pos', 'dep', 'pos'.\n  Give each",
        ),
        ({"reader": "html"}, r"Unknown reader 'html'"),
    ],
)
def test_settings_that_make_no_sense(source, tmp_path, given, message):
    with pytest.raises(CorpusError, match=message):
        annotate(source, "unused", tmp_path / "out", **given)


@pytest.mark.parametrize(
    ("out", "said"), [("", "is empty"), ("file", "is a file"), ("file/below", "cannot be created")]
)
def test_a_place_that_cannot_hold_a_corpus_is_refused_before_the_pipeline_is_opened(
    source, tmp_path, monkeypatch, out, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StudyError, match=rf"{said}.*\n.*\n.*--out"):
        annotate(source, "no_such_pipeline", out)
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_left_is_of_one_run_which_check_compares(whole, source, tagger, tmp_path):
    out = shutil.copytree(whole[2], tmp_path / "out")
    assert RunFolder(out).manifest()["experiment"] == "corpus annotate"
    assert set(RunFolder(out).manifest()["files"]) == {p.name for p in out.iterdir()} - {"manifest.json", ".lock"}
    assert trisect.check(out) == []
    (out / "later.txt").write_text("of somebody else")
    array = np.load(out / "train.npy")
    np.save(out / "train.npy", array[::-1].copy())
    (found,) = trisect.check(out)
    assert found.problem == f"{out / 'train.npy'} was altered."
    assert "'trisect corpus annotate'" in found.reason


def test_a_corpus_that_broke_off_while_landing_lands_by_the_next_call(whole, source, tagger, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "PIECE", 40)
    out, replace_ = tmp_path / "out", Path.replace

    def full(self, target):
        if target == out / "test.npy":
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace_(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(StudyError, match="The disk is full"):
            annotate(source, tagger, out, workers=1)
    assert not (out / "corpus.json").exists()
    again = annotate(source, tagger, out, workers=1, progress=lambda *_: pytest.fail("labelled again"))
    assert again.fingerprint == whole[0].fingerprint
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole[2].iterdir())
