"""People: what is read from a folder of birth places and what is refused; the generated world."""

import re
from collections import Counter
from dataclasses import asdict

import pytest

from trisect.core.errors import CorpusError
from trisect.core.schema import read
from trisect.text import generated as text_generated
from trisect.text.birth_places import QUESTION, People, ask, name_in, open_people
from trisect.text.generated import people_corpus

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
    with pytest.raises(CorpusError, match="is empty or not there"):
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


@pytest.mark.parametrize("question", ["", " ", "Where was  born?", "Where was X", "where was X born?", "Is X born?"])
def test_a_question_about_no_name(question):
    with pytest.raises(CorpusError) as error:
        name_in(question)
    assert repr(question) in error.value.problem
    assert QUESTION.format(name="NAME") in error.value.reason


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
