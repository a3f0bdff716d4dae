"""Pairs of translation: which word is predicted when q, k or v is another sentence's, and what a tokenizer has to tell."""

from typing import cast

import pytest

from trisect.core.errors import CorpusError
from trisect.text.bitext import SentencePair
from trisect.text.generated import RoledSentence
from trisect.text.pairs import (
    FROM_BASE,
    FROM_DONOR,
    NO_WORD,
    _TranslatedText,
    draw_translations,
    predict_words,
    read_roles,
)


def word_ids(texts):
    """Every word is one token, those of no language are one unknown token."""
    number = lambda word: 0 if word == NO_WORD else hash_of(word)  # noqa: E731
    return [both_sides([number(word) for word in side.split()] for side in text) for text in texts]


def both_sides(sides):
    source, target = sides
    return source, target


def hash_of(word):
    return 1 + int.from_bytes(word.encode(), "big")


def text(*said):
    """(role, source word, target word) by source place; the target in the same order."""
    roles, source, target = zip(*said, strict=True)
    places = {role: i for i, role in enumerate(roles)}
    return _TranslatedText(source, target, places, dict(enumerate(target)), dict(enumerate(roles)))


BASE = text(("adverb", "a", "A"), ("subject noun", "n", "N"), ("verb", "v", "V"), ("object noun", "m", "M"))
DONOR = text(("subject noun", "s", "S"), ("verb", "w", "W"), ("object noun", "o", "O"), ("adverb", "b", "B"))


def test_a_query_asks_a_role_a_key_says_its_place_and_a_value_what_is_there():
    """The base asks its subject (place 1; the donor's place 0), the donor its verb (place 1; the base's place 2)."""
    answers = predict_words(BASE._replace(at=1), DONOR._replace(at=1))
    one = {"base": "N", "q": "V", "k": "A", "v": "W", "donor": "W"}
    assert answers == one | {"q+k": "N", "q+v": "O", "k+v": "S"}
    turned = predict_words(DONOR._replace(at=1), BASE._replace(at=1))
    assert turned is not None
    assert (turned["base"], turned["donor"]) == ("W", "N")


def test_a_pair_whose_answers_are_not_all_different_is_none():
    alike = text(("subject noun", "n", "N"), ("verb", "v", "V"), ("object noun", "m", "N"), ("adverb", "b", "N"))
    assert predict_words(BASE._replace(at=1), alike._replace(at=2)) is None
    assert predict_words(BASE._replace(at=1), BASE._replace(at=1)) is None


def test_a_word_that_stands_for_several_or_for_none_has_no_place():
    links = frozenset({(0, 0), (1, 1), (1, 2), (2, 3), (3, 3), (4, 4)})
    pair = SentencePair(tuple("abcde"), tuple("ABCDE"), links, links)
    roles = {0: "adverb", 1: "verb", 2: "subject noun", 3: "object noun", 4: "determiner"}
    found = read_roles(RoledSentence(pair, roles), frozenset("ABCD"))
    assert (found.places, found.words, found.roles) == ({"adverb": 0}, {0: "A"}, {0: "adverb"})
    assert read_roles(RoledSentence(pair, roles), frozenset("ABCDE")).places == {"adverb": 0, "determiner": 4}


def test_pairs_are_different_begun_as_far_and_a_function_of_the_seed():
    pairs = draw_translations(word_ids, 60, 3)
    assert pairs == draw_translations(word_ids, 60, 3) != draw_translations(word_ids, 60, 4)
    assert len({(pair.base, pair.donor) for pair in pairs}) == 60
    for pair in pairs:
        for side in (0, 1):
            base, donor = (str(cast(tuple[str, str], text)[side]) for text in (pair.base, pair.donor))
            assert len(base.split()) == len(donor.split())
        assert len({pair.answers[name] for name in FROM_DONOR}) == len(FROM_DONOR)
        assert pair.answers["donor"] != pair.answers["base"]
        if set(FROM_BASE) <= set(pair.answers):
            assert len({pair.answers[name] for name in FROM_BASE}) == len(FROM_BASE)
    assert len({pair.kind for pair in pairs}) > 3


def test_a_tokenizer_that_splits_words_is_refused_with_what_to_do():
    def letters(texts):
        return [both_sides([hash_of(letter) for letter in side] for side in text) for text in texts]

    with pytest.raises(CorpusError) as raised:
        draw_translations(letters, 5, 0)
    assert "one token" in raised.value.reason
    assert "translate-train" in raised.value.todo


def test_words_that_share_a_token_are_no_answers():
    one, other, *_ = sorted(
        {str(word).strip() for pair in draw_translations(word_ids, 5, 1) for word in pair.answers.values()}
    )

    def merged(texts):
        alike = {
            text: tuple(" ".join(one if w == other else w for w in side.split()) for side in text) for text in texts
        }
        return word_ids([alike[text] for text in texts])

    found = {str(word).strip() for pair in draw_translations(merged, 5, 1) for word in pair.answers.values()}
    assert found
    assert not {one, other} & found


def test_more_pairs_than_there_are_is_refused_with_how_many_were_found():
    def few(texts):
        """Only short words are whole, so that few sentences can be used."""
        split = lambda word: [hash_of(word)] if len(word) < 6 else [hash_of(letter) for letter in word]  # noqa: E731
        return [both_sides([i for word in side.split() for i in split(word)] for side in text) for text in texts]

    with pytest.raises(CorpusError) as raised:
        draw_translations(few, 30, 0)
    assert raised.value.problem.startswith("30 pairs")
    assert raised.value.reason.startswith("0 different ones")
    assert "pieces" in raised.value.todo
