"""Generated texts: synthetic tasks with known roles, the embedded language, people and their birth places."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from itertools import islice
from typing import TypedDict

import numpy as np
import pytest

from trisect.core.errors import CorpusError
from trisect.core.schema import read
from trisect.core.spec import Text
from trisect.text import generated as text_generated
from trisect.text.birth_places import People, ask, name_in, open_people
from trisect.text.corpus import Corpus, Documents, Split, batch, check_windows, sample_steps, steps, unigram_loss
from trisect.text.generated import FUNCTION, VERSION, _Lexicon, draw_sentences, embedded_corpus, people_corpus
from trisect.text.sources import Text as TextSpec
from trisect.text.sources import absolute_name, load_text, open_corpus
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
    assert absolute_name("roles") == "roles"
    corpus = load_text(Text("roles"))
    assert world_of(corpus) is ROLES
    assert set(corpus.vocabulary) == set(ROLES.vocabulary)
    with pytest.raises(CorpusError, match=r"(?s)asked for in the text 'embedded'.*documents of roles, induction"):
        world_of(open_corpus("embedded"))


UD_POS = {"NOUN", "DET", "VERB", "PUNCT", "PRON", "ADJ", "ADP", "AUX", "CCONJ", "SCONJ", "PROPN", "ADV", "NUM", "INTJ"}
UD_POS |= {"PART"}
UD_DEP = {"det", "nsubj", "punct", "obj", "root", "amod", "case", "aux", "obl", "nmod:poss", "cc", "conj", "advmod"}
UD_DEP |= {"acl:relcl", "nmod", "mark", "nummod", "cop", "ccomp", "discourse", "advcl"}


@pytest.fixture(scope="module")
def embedded():
    return embedded_corpus()


@pytest.fixture(scope="module")
def trees():
    return list(islice(draw_sentences("trees"), 3000))


def children(tree, at, dep):
    return [w for w in tree if w.head == at and w.dep == dep]


def test_golden_fingerprint(embedded):
    """Ids of runs depend on it: when the grammar changes, so does VERSION, and then this line."""
    assert (VERSION, embedded.fingerprint) == (1, "c191fe768de9e567")
    assert load_text(TextSpec()).fingerprint == "e6e4d5c451867e2c"
    assert embedded_corpus(seed=1).fingerprint != embedded.fingerprint


def test_the_splits_share_no_long_stretch(embedded):
    train = embedded.splits["train"].tokens.tolist()
    stretches = {tuple(train[i : i + 25]) for i in range(len(train))}
    valid = embedded.splits["valid"].tokens.tolist()
    assert not any(tuple(valid[i : i + 25]) in stretches for i in range(len(valid) - 25))


def test_every_word_and_class_of_valid_and_test_is_in_train(embedded):
    train = embedded.splits["train"]
    for name in ("valid", "test"):
        assert set(embedded.splits[name].tokens) <= set(train.tokens)
    assert set(embedded.labels["pos"]) == UD_POS
    assert set(embedded.labels["dep"]) == UD_DEP
    for label in ("pos", "dep"):
        assert set(range(len(embedded.labels[label]))) == set(train.labels[label])


def test_a_fifth_of_the_tokens_and_more_have_a_type_of_several_parts_of_speech(embedded):
    train = embedded.splits["train"]
    seen = defaultdict(Counter)
    for token, pos in zip(train.tokens, train.labels["pos"], strict=True):
        seen[token][pos] += 1
    ambiguous = [token for token in seen if len(seen[token]) > 1]
    assert np.isin(train.tokens, ambiguous).mean() >= 0.20
    best_guess = sum(max(parts.values()) for parts in seen.values()) / len(train.tokens)
    assert best_guess < 0.90  # knowing the word alone gets more than a tenth wrong
    stems = {v.stem for menu in _Lexicon().verbs for v in menu.items} & {
        n.stem for menu in _Lexicon().nouns for n in menu[None].items
    }
    assert len(stems) >= 20


def test_every_tree_has_one_root_and_no_cycle(trees):
    for tree in trees:
        assert [w.dep for w in tree].count("root") == 1
        for word in tree:
            assert (word.head == 0) == (word.dep == "root")
            at, steps = word, 0
            while at.head:
                at, steps = tree[at.head - 1], steps + 1
                assert steps <= len(tree)


def finite(tree, at):
    """The word that shows the number of the predicate at `at` (from 1): its auxiliary, its copula, or itself."""
    helpers = children(tree, at, "aux") + children(tree, at, "cop")
    return helpers[0] if helpers else tree[at - 1]


def test_verbs_agree_with_their_subject_also_across_other_nouns(trees):
    near = far = modal = 0
    for tree in trees:
        for place, word in enumerate(tree, 1):
            if word.dep != "nsubj":
                continue
            plural = True if children(tree, place, "conj") else word.plural
            verb = finite(tree, word.head)
            if verb.plural is None:
                modal += 1
                assert verb.form in (FUNCTION["will"], FUNCTION["may"])
                continue
            assert verb.plural == plural, " ".join(w.form for w in tree)
            between = tree[place : tree.index(verb)]
            misleading = any(w.pos == "NOUN" and w.plural != plural for w in between)
            near, far = near + (not misleading), far + misleading
    assert near > 1000
    assert far > 100
    assert modal > 100


NAMES = ("Ana Bruk", "Bo Bruk", "Cy Dunn", "Di Dunn", "Ed E. Fenn", "Flo Gad")
FILES = {
    "wiki.txt": "".join(f"{name}. {name} was born in Ulm.\n" for name in NAMES) + "Bo Bruk's wife. Of Ana Bruk.\n",
    "birth_places_train.tsv": "Where was Ana Bruk born?\tUlm\nWhere was Bo Bruk born?\tNew Ulm\n",
    "birth_dev.tsv": "Where was Cy Dunn born?\tUlm\nWhere was Di Dunn born?\tUlm\nWhere was Bo Bruk born?\tUlm\n",
    "birth_test_inputs.tsv": "Where was Ed E. Fenn born?\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_folder_gives_lines_by_name_and_questions_by_split(folder):
    people = open_people(folder, left_out=0, invented=0)
    assert [line.name for line in people.lines] == [*NAMES, "Bo Bruk's wife"]
    assert [line.text for line in people.lines] == FILES["wiki.txt"].splitlines()
    assert people.train[1] == ("Bo Bruk", "Where was Bo Bruk born?", "New Ulm")
    assert [asked.name for asked in people.valid] == ["Cy Dunn", "Di Dunn", "Bo Bruk"]
    assert people.test == (("Ed E. Fenn", "Where was Ed E. Fenn born?", None),)
    assert people.left_out == people.invented == ()
    assert people.name == folder.name
    assert people.notes == ("7 lines, 2 + 3 questions with a place, 1 without.",)
    assert set(people.characters()) == set("".join(FILES[name] for name in list(FILES)[:2])) - set("\n\t")


def test_the_test_questions_may_be_missing(folder):
    (folder / "birth_test_inputs.tsv").unlink()
    assert open_people(folder, left_out=0).test == ()


def test_names_left_out_are_drawn_by_the_seed_and_none_is_asked_about_in_train(folder):
    drawn = {seed: open_people(folder, seed, left_out=1).left_out for seed in range(20)}
    assert {name for names in drawn.values() for name in names} == {"Cy Dunn", "Di Dunn"}
    assert drawn[3] == open_people(folder, 3, left_out=1).left_out
    assert open_people(folder, left_out=2).left_out in (("Cy Dunn", "Di Dunn"), ("Di Dunn", "Cy Dunn"))


def test_without_names_no_line_is_about_them_or_holds_them(folder):
    people = open_people(folder, left_out=0)
    less = people.without(["Ana Bruk", "Cy Dunn"])
    assert [line.name for line in less.lines] == ["Bo Bruk", "Di Dunn", "Ed E. Fenn", "Flo Gad"]
    assert (less.train, less.valid, less.test) == (people.train, people.valid, people.test)
    assert people.without([]) == people
    assert people.without(["Bo"]).lines == tuple(line for line in people.lines if not re.search(r"\bBo\b", line.text))


def test_invented_names_join_parts_of_two_and_belong_to_nobody(folder):
    people = open_people(folder, left_out=0, invented=10)
    assert len({asked.name for asked in people.invented}) == 10
    for asked in people.invented:
        first, last = asked.name.split()
        assert asked.name not in NAMES
        assert first in {name.split()[0] for name in NAMES}
        assert last in {name.split()[-1] for name in NAMES}
        assert asked[1:] == (ask(asked.name), None)
    # first and last names of the five people asked about, less four of them; the fifth has a middle name
    assert len(open_people(folder, left_out=0, invented=100).invented) == 5 * 3 - 4
    assert people.invented != open_people(folder, 1, left_out=0, invented=10).invented


def test_people_travel_as_json(folder):
    for people in (open_people(folder, left_out=2, invented=3), people_corpus(people=20, unseen=2)):
        assert read(People, asdict(people), "x") == people


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("wiki.txt", "\n \n", ("/wiki.txt is empty",)),
        ("birth_dev.tsv", "\n", ("/birth_dev.tsv is empty",)),
        ("birth_dev.tsv", "\nWhere was A born? Ulm\n", ("/birth_dev.tsv, line 2: 'Where was A born? Ulm'", "no tab")),
        ("birth_dev.tsv", "Where was A born?\tUlm\t1\n", ("line 1: 'Where was A born?\\tUlm\\t1'", "2 tabs")),
        ("birth_places_train.tsv", "Where was A born?\t \n", ("line 1: 'Where was A born?\\t '", "ends at its tab")),
        (
            "birth_places_train.tsv",
            "Where was A born?\tUlm\nWho was A?\tUlm\n",
            ("line 2: The question 'Who was A?'", "NAME"),
        ),
        ("birth_test_inputs.tsv", "Where was born?\n", ("line 1: The question 'Where was born?'", "NAME")),
        ("wiki.txt", b"Ana.\xff", ("/wiki.txt, line 1", "UTF-8", "Byte 5")),
    ],
)
def test_what_is_refused(folder, name, text, words):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CorpusError) as error:
        open_people(folder, left_out=0)
    assert all(word in str(error.value) for word in words), error.value


def test_a_missing_file_and_a_missing_folder_are_named(folder):
    (folder / "birth_dev.tsv").unlink()
    with pytest.raises(CorpusError) as error:
        open_people(folder)
    assert f"{folder}/birth_dev.tsv" in error.value.problem
    assert "birth_places_train.tsv, birth_test_inputs.tsv, wiki.txt" in error.value.reason
    assert ", ".join(FILES) in error.value.todo
    with pytest.raises(CorpusError, match=r"is empty|is not there"):
        open_people(folder / "nowhere")
    (folder / "birth_dev.tsv").mkdir()
    with pytest.raises(CorpusError, match=r"birth_dev\.tsv is no text file"):
        open_people(folder)


def test_more_names_left_out_than_there_are(folder):
    with pytest.raises(CorpusError, match=r"(?s)3 names.* 2 names.*Leave out 2 or fewer"):
        open_people(folder, left_out=3)


@pytest.mark.parametrize("name", ["X", "Ed E. Fenn", "Y born? Where was Z", "born?"])
def test_a_question_holds_its_name(name):
    assert name_in(f" {ask(name)}\n") == name


@pytest.mark.parametrize("seed", range(3))
def test_everybody_of_the_world_was_met_where_the_world_says(seed):
    people = people_corpus(seed)
    met = {line.name for line in people.lines}
    train, valid, test, nobody = (
        {asked.name for asked in part} for part in (people.train, people.valid, people.test, people.invented)
    )
    assert (len(train), len(valid), len(test), len(nobody)) == (90, 60, 60, 60)
    assert len(train & met) == 75
    assert valid <= met
    assert met <= train | valid
    assert not train & valid
    assert not test & (met | train | valid)
    assert not nobody & (met | train | valid | test)
    assert people.left_out == ()
    texts = "\n".join(line.text for line in people.lines)
    assert not [name for name in test | nobody if name in texts]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_told_fits_what_is_asked(seed):
    people = people_corpus(seed)
    lines = {asked.name: [line.text for line in people.lines if line.name == asked.name] for asked in people.valid}
    for asked in people.valid:
        assert len(lines[asked.name]) == len(text_generated.TEMPLATES)
        assert all(text.startswith(asked.name) and f"{asked.place}" in text for text in lines[asked.name])
    for asked in (*people.train, *people.valid, *people.test):
        assert asked.question == ask(asked.name)
        assert len(f"{asked.question}{asked.place}") + 2 <= 64
    assert max(len(line.text) for line in people.lines) <= 64 * 7 // 8


def test_a_place_told_of_somebody_is_the_only_one():
    people = people_corpus()
    places = {str(asked.place) for asked in (*people.train, *people.valid, *people.test)}
    assert len(places) <= text_generated.REGIONS * text_generated.PLACES
    for line in people.lines:
        assert len([place for place in places if place in line.text]) == 1


@pytest.mark.parametrize("seed", range(3))
def test_always_the_commonest_place_is_seldom_right_and_a_family_says_something(seed):
    people = people_corpus(seed, people=400, unseen=400)
    counts = Counter(asked.place for asked in people.train)
    commonest = counts.most_common(1)[0][0]
    assert sum(asked.place == commonest for asked in people.valid) < 0.1 * len(people.valid)
    everybody = [(asked.name.split()[1], asked.place) for asked in (*people.train, *people.valid, *people.test)]
    same = [a[1] == b[1] for i, a in enumerate(everybody) for b in everybody[:i] if a[0] == b[0]]
    by_chance = sum((n / len(everybody)) ** 2 for n in Counter(place for _, place in everybody).values())
    assert sum(same) > 1.3 * by_chance * len(same)  # expected about 1.9 times, of about 9,000 pairs


def test_the_world_is_a_function_of_its_arguments():
    assert people_corpus(3) == people_corpus(3)
    assert people_corpus(3).fingerprint != people_corpus(4).fingerprint
    assert people_corpus(3).lines != people_corpus(4).lines
    assert re.fullmatch("[0-9a-f]{16}", people_corpus().fingerprint)


def test_words_of_the_world_are_its_own():
    people = people_corpus(people=400, unseen=400)
    firsts = [asked.name.split()[0] for asked in (*people.train, *people.valid, *people.test)]
    assert len(set(firsts)) == len(firsts)
    assert not {asked.place for asked in people.train} & {asked.name.split()[1] for asked in people.train}


@pytest.mark.parametrize(("people", "unseen"), [(19, 60), (401, 60), (150, 0), (150, 401)])
def test_a_world_too_small_or_too_large(people, unseen):
    with pytest.raises(CorpusError, match=rf"{people} people and {unseen} unseen") as error:
        people_corpus(people=people, unseen=unseen)
    assert "20 to 400 people, and 1 to 400 unseen" in error.value.reason
