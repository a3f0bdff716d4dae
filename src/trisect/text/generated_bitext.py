"""The embedded bitext: two generated languages whose word alignments are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import NamedTuple

from trisect.core.errors import CorpusError
from trisect.text.bitext import TEST, TRAIN, Bitext, SentencePair, assemble
from trisect.text.lexicon import Menu, zipf

NAME = "embedded"
VERSION = 1
SIZES = {TRAIN: 4000, "valid": 60, TEST: 200}
LARGEST = 20_000  # pairs in all; the grammar has many more
NOTE = (
    f"The embedded bitext is generated (version {VERSION}), and so are its links: the target puts its verb last and its "
    "adjectives and determiners behind the noun; some words become two, together or apart, two become one, and some "
    "have no counterpart. A link that only grammar suggests is possible, not sure."
)
_NOUNS, _ADJECTIVES, _VERBS, _ADVERBS = 30, 12, 18, 6
_COMPOUND, _PHRASAL = 4, 3  # every so-manieth noun is two words in the target, every so-manieth verb two in the source


class Sound(NamedTuple):
    """What words of a language are made of."""

    onsets: str
    vowels: str


SOURCE, TARGET = Sound("bdfgklmnprst", "aeio"), Sound("vzhjwyqxcnlr", "aeou")


class BilingualNoun(NamedTuple):
    """A noun: its word, the one or two that translate it, and the ending that adjectives take beside these."""

    form: str
    target: tuple[str, ...]
    ending: str


class BilingualVerb(NamedTuple):
    """A verb: the one or two words that it is, its translation, and whether it takes an object."""

    form: tuple[str, ...]
    target: str
    object: bool


class Put(NamedTuple):
    """A target word, with the source words that it surely or possibly stands for, by their keys."""

    form: str
    sure: tuple[int, ...] = ()
    possible: tuple[int, ...] = ()


class Phrase(NamedTuple):
    """A phrase in both languages: source words with their keys, and target words."""

    source: list[tuple[str, int]]
    target: list[Put]


# function words; those of the target are spelt with its own letters
THE, SOME, NOT, DO, WITH, STOP = "the", "un", "not", "do", "bi", "."
THE_THERE, OBJECT, BEFORE_NOT, NOT_THERE, WITH_THERE = "xa", "vo", "he", "quz", "yen"
NUMBERS = (("to", "zuw"), ("tri", "yax"))


class RoledSentence(NamedTuple):
    """A sentence in both languages, and what its nouns, adjectives, determiners, verb and adverb are for, by their source position."""

    pair: SentencePair
    roles: Mapping[int, str]


class _Words:
    """The words of both languages: a function of nothing but the version."""

    def __init__(self) -> None:
        draw = Random(f"phrases {VERSION}")
        needed = _NOUNS + _ADJECTIVES + 2 * _VERBS + _ADVERBS
        taken = {THE, SOME, NOT, DO, WITH, *(number for number, _ in NUMBERS)}
        source = _made(SOURCE, needed, draw, taken)
        there = {THE_THERE, OBJECT, BEFORE_NOT, NOT_THERE, WITH_THERE, *(number for _, number in NUMBERS)}
        target = _made(TARGET, needed + _NOUNS, draw, there)
        self.nouns = Menu(
            zipf(
                [
                    BilingualNoun(source.pop(), (target.pop(), target.pop())[: 2 - (i % _COMPOUND > 0)], "ae"[i % 2])
                    for i in range(_NOUNS)
                ]
            )
        )
        self.adjectives = Menu(zipf([(source.pop(), target.pop()) for _ in range(_ADJECTIVES)]))
        self.adverbs = Menu(zipf([(source.pop(), target.pop()) for _ in range(_ADVERBS)]))
        self.verbs = Menu(
            zipf(
                [
                    BilingualVerb((source.pop(), source.pop())[: 2 - (i % _PHRASAL > 0)], target.pop(), i % 2 == 0)
                    for i in range(_VERBS)
                ]
            )
        )
        self.numbers = Menu((number, 1.0) for number in NUMBERS)


class _Teller:
    """Makes one pair at a time; every word that it says in the source gets a key of its own."""

    def __init__(self, words: _Words, draw: Random) -> None:
        self.words, self.draw, self.next = words, draw, 0
        self.roles: dict[int, str] = {}

    def pair(self) -> SentencePair:
        """A sentence in both languages with its links."""
        return self.sentence().pair

    def sentence(self) -> RoledSentence:
        """A sentence in both languages with its links and the roles of its words."""
        self.next, self.roles = 0, {}
        draw, words = self.draw, self.words
        subject, verb = self.noun_phrase("subject"), words.verbs.pick(draw)
        adverb = self.adverb() if draw.random() < 0.2 else Phrase([], [])
        negation = self.negation() if draw.random() < 0.2 else None
        action = [(form, self.key()) for form in verb.form]
        keys = tuple(key for _, key in action)
        self.roles |= dict.fromkeys(keys, "verb")
        thing = self.noun_phrase("object") if verb.object else Phrase([], [])
        place = self.place() if draw.random() < 0.3 else Phrase([], [])
        stop = self.key()
        marked, before, after, helper = [], [], [], []
        if verb.object:  # the object's own noun is the first of its target words
            marked = [Put(OBJECT, possible=thing.target[0].sure)]
        if negation is not None:
            helper, (before, after) = negation.source[:1], ([negation.target[0]], [negation.target[1]])
        auxiliary = tuple(key for _, key in helper)
        source = [*adverb.source, *subject.source, *(negation.source if negation else []), *action]
        source += [*thing.source, *place.source, (STOP, stop)]
        target = [*subject.target, *adverb.target, *place.target, *thing.target, *marked, *before]
        target += [Put(verb.target, keys, auxiliary), *after, Put(STOP, (stop,))]
        roles = {i: self.roles[key] for i, (_, key) in enumerate(source) if key in self.roles}
        return RoledSentence(_linked(source, target), roles)

    def key(self) -> int:
        """A number for the next source word."""
        self.next += 1
        return self.next

    def noun_phrase(self, of: str) -> Phrase:
        """Determiner, adjective, noun; in the target noun, adjective, determiner — and nothing for an indefinite article."""
        draw = self.draw
        noun, chance = self.words.nouns.pick(draw), draw.random()
        source, behind, many = [], [], False
        if chance < 0.5:
            source.append((THE, self.key()))
            behind = [Put(THE_THERE, (self.next,))]
        elif chance < 0.8:
            source.append((SOME, self.key()))
        else:
            number, there = self.words.numbers.pick(draw)
            source.append((number, self.key()))
            behind, many = [Put(there, (self.next,))], True
        self.roles[self.next] = f"{of} determiner"
        if draw.random() < 0.35:
            quality, there = self.words.adjectives.pick(draw)
            source.append((quality, self.key()))
            behind.insert(0, Put(there + noun.ending, (self.next,)))
            self.roles[self.next] = f"{of} adjective"
        source.append((noun.form + "s" * many, self.key()))
        self.roles[self.next] = f"{of} noun"
        names = [Put(form, (self.next,)) for form in noun.target]
        names[-1] = names[-1]._replace(form=names[-1].form + "uz" * many)
        return Phrase(source, [*names, *behind])

    def place(self) -> Phrase:
        """A preposition with its noun phrase; in the target it follows."""
        key = self.key()
        inner = self.noun_phrase("place")
        return Phrase([(WITH, key), *inner.source], [*inner.target, Put(WITH_THERE, (key,))])

    def adverb(self) -> Phrase:
        """One word for one word, first in the source."""
        form, there = self.words.adverbs.pick(self.draw)
        key = self.key()
        self.roles[key] = "adverb"
        return Phrase([(form, key)], [Put(there, (key,))])

    def negation(self) -> Phrase:
        """An auxiliary that has no counterpart and a negation; the target has two words for it, around its verb."""
        helper, negation = self.key(), self.key()
        return Phrase([(DO, helper), (NOT, negation)], [Put(BEFORE_NOT, (negation,)), Put(NOT_THERE, (negation,))])


def generated(seed: int = 0, train: int = SIZES[TRAIN], valid: int = SIZES["valid"], test: int = SIZES[TEST]) -> Bitext:
    """So many different pairs of each split, with the links of all of them; a function of its arguments.

    Raises CorpusError for a split without pairs, or for more than the grammar gives.
    """
    sizes = (train, valid, test)
    if min(sizes) < 1 or sum(sizes) > LARGEST:
        given = f"A bitext of {train} + {valid} + {test} pairs."
        raise CorpusError(given, f"Each split has at least one, and all together {LARGEST:,} at most.", "Give others.")
    teller = _Teller(_Words(), Random(f"pairs {VERSION} {seed}"))
    found: dict[tuple[str, ...], SentencePair] = {}
    while len(found) < sum(sizes):
        pair = teller.pair()
        found.setdefault(pair.source, pair)
    pairs = list(found.values())
    splits = {"valid": pairs[:valid], TEST: pairs[valid : valid + test], TRAIN: pairs[valid + test :]}
    return assemble(NAME, splits, (NOTE,))


def sentences(seed: int = 0) -> Iterator[RoledSentence]:
    """Sentences in both languages with the roles of their words, without end; a function of the seed."""
    teller = _Teller(_Words(), Random(f"sentences {VERSION} {seed}"))
    while True:
        yield teller.sentence()


def _linked(source: list[tuple[str, int]], target: Iterable[Put]) -> SentencePair:
    """A pair whose links are by place, instead of by key."""
    places, words = {key: i for i, (_, key) in enumerate(source)}, list(target)
    sure = frozenset((places[key], j) for j, put in enumerate(words) for key in put.sure)
    possible = frozenset((places[key], j) for j, put in enumerate(words) for key in put.possible)
    return SentencePair(tuple(form for form, _ in source), tuple(put.form for put in words), sure, sure | possible)


def _made(sound: Sound, count: int, draw: Random, taken: set[str]) -> list[str]:
    """So many different words of two or three syllables, some with a consonant at their end."""
    found: dict[str, None] = {}
    while len(found) < count:
        syllables = 2 + (draw.random() < 0.4)
        word = "".join(_one(sound.onsets, draw) + _one(sound.vowels, draw) for _ in range(syllables))
        word += _one(sound.onsets, draw) * (draw.random() < 0.4)
        if word not in taken and not word.endswith("s"):
            found[word] = None
    return list(found)


def _one(letters: str, draw: Random) -> str:
    return letters[int(draw.random() * len(letters))]
