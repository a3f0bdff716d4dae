"""Synthetic tasks with known roles: documents, labels, donors, and that only answers are predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import numpy as np
import pytest

from trisect.core.errors import CorpusError
from trisect.core.spec import Text
from trisect.text.corpus import Corpus, Documents, Split, batch, check_windows, sample_steps, steps, unigram_loss
from trisect.text.sources import absolute_place, load_text, open_corpus
from trisect.text.worlds import INDUCTION, ROLES, Roles, World, world_of

# what changes with a column in the induction world: a question's word before is the last value; keys stand before values
ALONG = {
    "question.before": {"question.before", "value.own"},
    "value.own": {"value.own", "question.before"},
    "value.before": {"value.before", "key.own"},
    "key.own": {"value.before", "key.own"},
}
SMALL: Roles = replace(ROLES, items=3, keys=4, values=5, rests=2)


class Item(TypedDict):
    a: str
    b: str
    c: str


def item(word: str) -> Item:
    """a, b and c of an item's word, as digits."""
    bare = word.removeprefix("find-")
    return {"a": bare[1], "b": bare[3], "c": bare[5]}


def answer(words: list[str], question: str) -> str:
    """The b of the item that has the question's a."""
    (found,) = (item(word)["b"] for word in words if item(word)["a"] == item(question)["a"])
    return f"b{found}"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return SMALL.corpus({"train": 40, "valid": 11})


def documents(corpus: Corpus, split: str) -> list[list[str]]:
    words = [corpus.vocabulary[i] for i in corpus.splits[split].tokens]
    return [words[i : i + 5] for i in range(0, len(words), 5)]


def test_the_answer_is_the_b_of_the_item_that_has_the_asked_a(corpus: Corpus):
    assert corpus.documents == Documents(5, tuple(corpus.labels))
    for *items, question, last in documents(corpus, "train"):
        assert question.startswith("find-")
        assert len({item(word)["a"] for word in items}) == 3
        assert last == answer(items, question)


def test_documents_are_drawn_again_in_every_split_and_are_the_same_every_time(corpus: Corpus):
    assert documents(corpus, "valid") != documents(corpus, "train")[:11]
    assert SMALL.corpus({"train": 40, "valid": 11}).fingerprint == corpus.fingerprint
    assert SMALL.corpus({"train": 40, "valid": 11}, seed=1).fingerprint != corpus.fingerprint
    assert replace(SMALL, rests=3).corpus({"train": 40, "valid": 11}).fingerprint != corpus.fingerprint


def test_labels_speak_of_the_word_that_is_read_items_and_questions_apart(corpus: Corpus):
    window = batch(corpus.splits["train"], 4, 5, 1, tuple(corpus.labels))
    for row in range(4):
        for place in range(5):
            word = corpus.vocabulary[window.inputs[row, place]]
            for column, ids in window.labels.items():
                of, name = column.split(".")
                wanted = of == ("item" if place < 3 else "question") and place < 4
                shown = corpus.labels[column][ids[row, place]] if ids[row, place] >= 0 else None
                assert shown == (f"{name}{item(word)[name]}" if wanted else None)  # type: ignore[literal-required]


@pytest.mark.parametrize("columns", [1, 3, 4])
def test_only_answers_are_scored_and_windows_are_documents(corpus: Corpus, columns: int):
    part = corpus.splits["train"]
    count = steps(part, columns, 5)
    assert count == 40 // columns
    for step in range(count):
        window = batch(part, columns, 5, step)
        assert window.scored is not None
        marked = [corpus.vocabulary[i] for i in window.targets[window.scored]]
        assert len(marked) == columns
        for words, last in zip(window.inputs, marked, strict=True):
            *items, question = [corpus.vocabulary[i] for i in words[:4]]
            assert last == answer(items, question)
    assert all(batch(part, columns, 5, i).inputs.shape[1] == 5 for i in sample_steps(part, columns, 5, 20))


def test_running_text_is_scored_throughout():
    part = Split(np.arange(20, dtype=np.int32), {"l": np.zeros(20, np.int16)})
    window = batch(part, 2, 4, 0, ("l",))
    assert window.scored is None


def test_word_frequencies_are_those_of_answers(corpus: Corpus):
    answers = corpus.splits["valid"].tokens[4::5]
    train = np.bincount(corpus.splits["train"].tokens[4::5], minlength=len(corpus.vocabulary)) + 1
    assert unigram_loss(corpus, answers) == pytest.approx(-np.log(train / train.sum())[answers].mean())
    assert unigram_loss(corpus, answers) < np.log(len(corpus.vocabulary)) - 1


def test_documents_survive_the_disk_and_belong_to_the_fingerprint(corpus: Corpus, tmp_path):
    kept = Corpus.load(corpus.save(tmp_path / "corpus"))
    assert (kept.fingerprint, kept.documents) == (corpus.fingerprint, corpus.documents)
    bare = {name: Split(part.tokens, part.labels) for name, part in corpus.splits.items()}
    running = Corpus.make(corpus.name, corpus.vocabulary, corpus.labels, bare)
    assert running.fingerprint != corpus.fingerprint
    assert "documents" not in (running.save(tmp_path / "running") / "corpus.json").read_text(encoding="utf-8")


def test_a_cut_keeps_documents_whole(corpus: Corpus):
    cut = corpus.cut(Text("roles", train_tokens=24, valid_tokens=15))
    assert cut.documents == corpus.documents
    assert steps(cut.splits["train"], 2, 5) == 2


def test_windows_that_cut_documents_are_refused(corpus: Corpus):
    check_windows(corpus, 5)
    with pytest.raises(CorpusError) as caught:
        check_windows(corpus, 6)
    for words in ("The window is 6 tokens.", "A document of 'roles' has 5 tokens", "Use a window of 5."):
        assert words in str(caught.value)
    with pytest.raises(CorpusError, match=r"(?s)50 columns need at least 250 tokens: a document of 5 in each"):
        steps(corpus.splits["train"], 50, 5)


def test_the_four_answers_of_a_pair_are_different_and_follow_from_the_words():
    pairs = SMALL.pairs(30, seed=2)
    assert (len(pairs.base), len(pairs.donor)) == (30, 30)
    for i, (base, donor) in enumerate(zip(pairs.base, pairs.donor, strict=True)):
        (*items, question), (*others, other) = base, donor
        place = next(n for n, word in enumerate(items) if item(word)["a"] == item(question)["a"])
        same = next(n for n, word in enumerate(others) if item(word)["a"] == item(question)["a"])
        predicted = {name: words[i] for name, words in pairs.predicted.items()}
        assert pairs.unchanged[i] == answer(items, question)
        assert predicted == {
            "q": answer(items, other),
            "k": f"b{item(items[same])['b']}",
            "v": f"b{item(others[place])['b']}",
        }
        assert len({pairs.unchanged[i], *predicted.values()}) == 4
    assert SMALL.pairs(30, seed=3).base != pairs.base


def test_induction_answers_with_what_came_after_the_key():
    made = replace(INDUCTION, items=3, keys=4, values=5).corpus({"train": 30, "valid": 9})
    assert made.documents is not None
    words = [made.vocabulary[i] for i in made.splits["train"].tokens]
    window = batch(made.splits["train"], 1, 8, 0, tuple(made.labels))
    for start in range(0, len(words), 8):
        *text, question, last = words[start : start + 8]
        assert last == text[text.index(question) + 1]
        assert text.count(question) == 1
    for column, ids in window.labels.items():
        of, name = column.split(".")
        for place in range(8):
            stands = {"key": place in (0, 2, 4), "value": place in (1, 3, 5), "question": place == 6}[of]
            shown = words[place - (name == "before")] if stands else None
            assert (made.labels[column][ids[0, place]] if ids[0, place] >= 0 else None) == shown


@pytest.mark.parametrize("world", [SMALL, INDUCTION], ids=lambda one: one.name)
def test_near_donors_differ_in_what_the_label_speaks_of_alone(world: World):
    ids = {word: i for i, word in enumerate(world.vocabulary)}
    draws = world.draw(20, np.random.default_rng(5))
    for column in world.columns:
        other = world.change(draws, column, np.random.default_rng(6))
        before, after = ({n: column.read(one) for n, column in world.columns.items()} for one in (draws, other))
        assert (before[column] != after[column]).any(1).all()
        same = [name for name in world.columns if np.array_equal(before[name], after[name])]
        assert set(same) == set(world.columns) - ALONG.get(column, {column})
        pairs = world.near_pairs(20, 5, column)
        assert all(word in ids for text in (*pairs.base, *pairs.donor) for word in text)
        assert len(set(pairs.unchanged) - {*world.vocabulary}) == 0


def test_a_world_is_a_text_by_its_name():
    assert absolute_place("roles") == "roles"
    corpus = load_text(Text("roles"))
    assert world_of(corpus) is ROLES
    assert set(corpus.vocabulary) == set(ROLES.vocabulary)
    with pytest.raises(CorpusError, match=r"(?s)asked for in the text 'embedded'.*documents of roles, induction"):
        world_of(open_corpus("embedded"))
