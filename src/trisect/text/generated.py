"""Generated languages: the embedded corpus with its gold labels, its bitext, and its people."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum
from random import Random
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from trisect.core.errors import CorpusError
from trisect.core.files import digest
from trisect.core.printable import percent
from trisect.text.birth_places import People, PretrainingLine, Question, ask, recombine
from trisect.text.bitext import TEST, TRAIN, Bitext, SentencePair, assemble
from trisect.text.corpus import Corpus, Split

T = TypeVar("T")

TOPICS = 6
KINDS = 3
GENDERS = 3
_SYLLABLES = [c + v for c in "bdfgklmnprtvzh" for v in "aeiou"]
_ENDINGS = ("", "n", "", "r", "l")


@dataclass(frozen=True)
class Noun:
    """A noun: which kind of thing it is (verbs select kinds), its gender, and the preposition that follows it."""

    stem: str
    kind: int
    gender: int
    preposition: str


@dataclass(frozen=True)
class Verb:
    """A verb: its frame (none, object, clause), the kind of object it selects, and the preposition it governs."""

    stem: str
    frame: str
    kind: int
    preposition: str


class Menu(Generic[T]):
    """Things to choose from, with weights; uses nothing of the generator but `random()`, which never changes."""

    def __init__(self, weighted: Iterable[tuple[T, float]]) -> None:
        pairs = list(weighted)
        self.items = [item for item, _ in pairs]
        self._sums = list(accumulate(weight for _, weight in pairs))

    def pick(self, rng: Random) -> T:
        """One item, with a chance in proportion to its weight."""
        return self.items[min(bisect_right(self._sums, rng.random() * self._sums[-1]), len(self.items) - 1)]


def zipf(items: Sequence[T], mass: float = 1.0) -> list[tuple[T, float]]:
    """Weights in proportion to 1/(rank + 1) that sum to `mass`."""
    total = fsum(1 / rank for rank in range(2, len(items) + 2))  # exact, so the same in every Python
    return [(item, mass / rank / total) for rank, item in enumerate(items, 2)]


def function_word(index: int) -> str:
    """The `index`-th one-syllable word."""
    return _SYLLABLES[(index * 31 + 17) % len(_SYLLABLES)]


def stem(index: int, syllables: int = 2) -> str:
    """The `index`-th stem of two or three syllables; no two are the same, and none ends in -s."""
    size = len(_SYLLABLES)
    first = _SYLLABLES[(index * 23 + 5) % size]
    rest = [_SYLLABLES[(index * 9 + index // size + 27 * place) % size] for place in range(1, syllables)]
    return first + "".join(rest) + _ENDINGS[index % len(_ENDINGS)]


# Words with two uses stand under both names: that is what makes a part of speech more than a list of words.
_NAMES = (
    *("the", "a", "this", "that", "these", "some", "of", "in", "on", "with", "to", "before", "and", "or", "but"),
    *("if", "because", "not", "has", "have", "is", "are", "may", "will", "he", "she", "it", "they", "him", "her"),
    *("them", "his", "its", "their", "who", "which", "two", "three", "four", "five", "when", "here", "now", "well"),
    *("yes", "no", "oh"),
)
FUNCTION = {name: function_word(i) for i, name in enumerate(_NAMES)}
PREPOSITIONS = tuple(FUNCTION[name] for name in ("of", "in", "with", "on", "to", "before"))


class Lexicon:
    """All words, in menus by topic: three quarters of the nouns, verbs and adjectives belong to the topic."""

    def __init__(self) -> None:
        self._next = 0
        nouns, verbs, adjectives = [], [], []
        for topic in range(TOPICS + 1):  # the last group belongs to every topic
            general = topic == TOPICS
            stems = [self._stem() for _ in range(14 if general else 9)]
            nouns.append([self._noun(s, i + topic) for i, s in enumerate(stems)])
            shared = stems[1:5]
            own = [self._stem() for _ in range(6 if general else 2)]
            verbs.append([self._verb(s, i, topic) for i, s in enumerate([*shared, *own])])
            adjectives.append([self._stem() for _ in range(8 if general else 5)])
        self.topics = Menu((t, 1 / (t + 3)) for t in range(TOPICS))
        self.names = Menu(zipf([(self._stem(3), i % 2) for i in range(20)]))
        self.adverbs = Menu(zipf([*adjectives[TOPICS][:4], *(self._stem() for _ in range(6))]))
        self.adjectives = [_mixed(adjectives[t], adjectives[TOPICS]) for t in range(TOPICS)]
        self.nouns = [self._by_kind(nouns[t], nouns[TOPICS]) for t in range(TOPICS)]
        self.verbs = [_mixed(verbs[t], verbs[TOPICS]) for t in range(TOPICS)]
        self.takers = [self._takers(verbs[t], verbs[TOPICS]) for t in range(TOPICS)]
        self.protagonists = [Menu(zipf([n for n in nouns[t] if n.kind == 0] + nouns[t][:2])) for t in range(TOPICS)]

    def _stem(self, syllables: int = 2) -> str:
        self._next += 1
        return stem(self._next, syllables)

    @staticmethod
    def _noun(word: str, i: int) -> Noun:
        return Noun(word, i % KINDS, (i // KINDS + i) % GENDERS, PREPOSITIONS[i % 3])

    @staticmethod
    def _verb(word: str, i: int, topic: int) -> Verb:
        frame = ("object", "object", "none", "object", "clause", "object")[(i + topic) % 6]
        return Verb(word, frame, (i + topic) % KINDS, PREPOSITIONS[(i * 5 + topic) % len(PREPOSITIONS)])

    @staticmethod
    def _by_kind(own: list[Noun], general: list[Noun]) -> dict[int | None, Menu[Noun]]:
        menus: dict[int | None, Menu[Noun]] = {None: _mixed(own, general)}
        for kind in range(KINDS):
            menus[kind] = _mixed([n for n in own if n.kind == kind], [n for n in general if n.kind == kind])
        return menus

    @staticmethod
    def _takers(own: list[Verb], general: list[Verb]) -> dict[int, Menu[Verb]]:
        """Verbs that take an object of each kind, for clauses whose object has already been said."""
        every = [v for v in (*own, *general) if v.frame == "object"]
        return {kind: Menu(zipf([v for v in every if v.kind == kind] or every)) for kind in range(KINDS)}


def _mixed(own: list[T], general: list[T]) -> Menu[T]:
    return Menu([*zipf(own, 0.75), *zipf(general, 0.25)])


NAME = "embedded"
VERSION = 1
SIZES = {TRAIN: 4000, "valid": 60, TEST: 200}
LARGEST = 20_000  # pairs in all; the grammar has many more
BITEXT_NOTE = (
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


def bitext_corpus(
    seed: int = 0, train: int = SIZES[TRAIN], valid: int = SIZES["valid"], test: int = SIZES[TEST]
) -> Bitext:
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
    return assemble(NAME, splits, (BITEXT_NOTE,))


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


REGIONS, PLACES, FAMILIES = 6, 6, 6  # so many regions, and in each so many places and family names
LOCAL = 0.5  # the share of a family's members that were born in its region
BOTH, READ = 0.5, 0.4  # in the pretraining text and asked in fine-tuning; in the text only; the rest is asked only
LEAST, MOST = 20, 400
PEOPLE_NOTE = (
    f"The embedded people are generated (version {VERSION}): names and places are invented, and for "
    f"{percent(LOCAL + (1 - LOCAL) / REGIONS)} of people the last name says in which of {REGIONS} regions their birth place lies."
)
_ONSETS = tuple("bdfgklmnprtvz")
_VOWELS = tuple("aeiou")
FAMILY_ENDS = ("an", "ek", "il", "or", "us", "ym")
PLACE_ENDS = ("ad", "eth", "ing", "ona", "ulf", "ach")
_JOBS = ("baker", "weaver", "potter", "sailor", "singer", "mason", "miller", "tailor")
# The place comes before or after the trade; each fits into 7/8 of 64 characters, what pretraining reads of a text.
TEMPLATES = (
    "{name} was born in {place}.",
    "{name} ({place}), {job}.",
    "{name}, {job} from {place}.",
    "{name}, born in {place}, a {job}.",
    "{name}: a {job}, born in {place}.",
)


class Person(NamedTuple):
    """Somebody of the world, whether or not a text names them."""

    name: str
    place: str
    job: str

    def asked(self) -> Question:
        """The question about this person, with its answer."""
        return Question(self.name, ask(self.name), self.place)

    def lines(self) -> tuple[PretrainingLine, ...]:
        """What the pretraining text says: the same facts, put in several ways."""
        return tuple(
            PretrainingLine(self.name, t.format(name=self.name, place=self.place, job=self.job)) for t in TEMPLATES
        )


def people_corpus(seed: int = 0, people: int = 150, unseen: int = 60) -> People:
    """A world of `people` that a text names or that are asked about, `unseen` others for the test, and as many names of nobody.

    Of the people, 50 % stand in the pretraining text and are asked about in train, 40 % stand there and are asked about in
    valid, and 10 % are asked about in train and stand in no text. A function of its arguments. Raises CorpusError for
    more people than there are names for, or too few to be asked about.
    """
    if not LEAST <= people <= MOST or not 1 <= unseen <= MOST:
        given = f"A world of {people} people and {unseen} unseen ones."
        known = f"There are {LEAST} to {MOST} people, and 1 to {MOST} unseen ones."
        raise CorpusError(given, known, "Give numbers within these.")
    draw = Random(f"world {VERSION} {seed}")
    everybody = _people(draw, people + unseen)
    both, read = round(BOTH * people), round((BOTH + READ) * people)
    named = everybody[:read]
    train = _shuffled([p.asked() for p in (*everybody[:both], *everybody[read:people])], draw)
    lines = _shuffled([line for person in named for line in person.lines()], draw)
    names = recombine([p.name for p in everybody], unseen, draw)
    marks = "\n".join([*(line.text for line in lines), *(f"{p.name}\t{p.place}" for p in everybody), *names])
    return People(
        "embedded",
        lines,
        train,
        tuple(p.asked() for p in everybody[both:read]),
        tuple(p.asked() for p in everybody[people:]),
        (),
        tuple(Question(name, ask(name), None) for name in names),
        (PEOPLE_NOTE,),
        digest(marks, 8),
        digest(marks, 8),
    )


def _people(draw: Random, count: int) -> tuple[Person, ...]:
    """Different people: a first name of their own, a family, a place that its region makes likely, and a trade."""
    places = _words(draw, PLACES, PLACE_ENDS)
    families = _words(draw, FAMILIES, FAMILY_ENDS)
    menus, anywhere = (
        [Menu((place, 1 / (rank + 4)) for rank, place in enumerate(some)) for some in places],
        Menu((i, 1.0) for i in range(REGIONS)),
    )
    jobs = Menu((job, 1.0) for job in _JOBS)
    found = []
    for first in _distinct(count, lambda: _open(draw) + _open(draw)):
        home = anywhere.pick(draw)
        family = families[home][int(draw.random() * FAMILIES)]
        origin = home if draw.random() < LOCAL else anywhere.pick(draw)
        found.append(Person(f"{first} {family}", menus[origin].pick(draw), jobs.pick(draw)))
    return tuple(found)


def _words(draw: Random, count: int, ends: Sequence[str]) -> list[list[str]]:
    """For each region so many different words, all with the region's own ending."""
    stems = _distinct(count * len(ends), lambda: _open(draw) + _draw_person(draw, _ONSETS))
    return [[stem + end for stem in stems[i * count : (i + 1) * count]] for i, end in enumerate(ends)]


def _distinct(count: int, make: Callable[[], str]) -> list[str]:
    """So many different words, with a capital."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make().capitalize()] = None
    return list(found)


def _open(draw: Random) -> str:
    return _draw_person(draw, _ONSETS) + _draw_person(draw, _VOWELS)


def _draw_person(draw: Random, items: Sequence[str]) -> str:
    return items[int(draw.random() * len(items))]


def _shuffled(items: Sequence[T], draw: Random) -> tuple[T, ...]:
    """In another order; the generator's own shuffle is not the same in every Python."""
    keys = [draw.random() for _ in items]
    return tuple(items[i] for i in sorted(range(len(items)), key=keys.__getitem__))


CORPUS_NOTE = (
    f"The embedded corpus is a generated language (version {VERSION}): a probabilistic grammar with number and gender "
    "agreement, relative clauses, coordination, prepositional attachment, verbs that select their objects and "
    "paragraphs with a topic; its words are invented, its parts of speech and relations hold by construction."
)
_W = FUNCTION
_SUBJECT = (_W["he"], _W["she"], _W["it"])
_OBJECT = (_W["him"], _W["her"], _W["it"])
_OWNER = (_W["his"], _W["her"], _W["its"])
_LINKS = Menu(zipf([_W["and"], _W["but"], _W["or"]]))
_MARKS = Menu(zipf([_W["because"], _W["if"], _W["before"], _W["when"]]))
_NUMERALS = Menu(zipf([_W["two"], _W["three"], _W["four"], _W["five"]]))
_CALLS = Menu(zipf([_W["yes"], _W["no"], _W["oh"], _W["well"]]))
_MODALS = Menu(zipf([_W["will"], _W["may"]]))
_PLACES = Menu(zipf([_W["here"], _W["now"], _W["well"], _W["before"]]))
_CASES = Menu(zipf(PREPOSITIONS))


@dataclass(frozen=True)
class Word:
    """A word of a sentence with its UD part of speech and relation; `head` counts from 1, 0 is the root.

    `plural` is what its form shows of number, null where it shows none.
    """

    form: str
    pos: str
    dep: str
    head: int
    plural: bool | None


@dataclass(eq=False)
class _Node:
    form: str
    pos: str
    dep: str = "root"
    head: _Node | None = None
    plural: bool | None = None
    gender: int = 2
    many: bool = False  # a coordination: plural whatever its parts are

    def under(self, head: _Node, dep: str) -> None:
        self.head, self.dep = head, dep


class _Speaker:
    """One paragraph being said: its topic, what it is about, and the words of the sentence under way."""

    def __init__(self, rng: Random, lexicon: Lexicon) -> None:
        self.rng, self.lexicon = rng, lexicon
        self.topic = lexicon.topics.pick(rng)
        self.words: list[_Node] = []
        self.said = False
        self.name, gender = lexicon.names.pick(rng)
        self.noun = None if self.chance(0.4) else lexicon.protagonists[self.topic].pick(rng)
        self.plural = self.noun is not None and self.chance(0.35)
        self.gender = self.noun.gender if self.noun else gender

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def say(self, form: str, pos: str, plural: bool | None = None) -> _Node:
        self.words.append(_Node(form, pos, plural=plural))
        return self.words[-1]

    # Noun phrases ---------------------------------------------------------------------------------------------

    def noun_phrase(self, noun: Noun, plural: bool, depth: int) -> _Node:
        """Determiner, numeral, adjectives, noun; then perhaps a prepositional phrase or a relative clause."""
        before = self.determiner(plural)
        for p in (0.28, 0.2):
            if not self.chance(p):
                break
            before.append((self.say(self.lexicon.adjectives[self.topic].pick(self.rng), "ADJ"), "amod"))
        node = self.say(noun.stem + "s" * plural, "NOUN", plural)
        node.gender = noun.gender
        for word, dep in before:
            word.under(node, dep)
        if depth > 0 and self.chance(0.16):
            preposition = noun.preposition if self.chance(0.8) else _CASES.pick(self.rng)
            self.prepositional(preposition, depth - 1).under(node, "nmod")
        elif depth > 0 and self.chance(0.2):
            self.relative(node, noun, depth - 1)
        return node

    def determiner(self, plural: bool) -> list[tuple[_Node, str]]:
        r = self.rng.random()
        if r < 0.4:
            first = (self.say(_W["the"], "DET"), "det")
        elif r < 0.65:
            first = (self.say(_W["some" if plural else "a"], "DET", plural), "det")
        elif r < 0.85:
            near = "these" if plural else "this" if self.chance(0.5) else "that"
            first = (self.say(_W[near], "DET", plural), "det")
        else:
            owner = _W["their"] if self.plural else _OWNER[self.gender]
            first = (self.say(owner, "PRON"), "nmod:poss")
        if plural and self.chance(0.2):
            return [first, (self.say(_NUMERALS.pick(self.rng), "NUM", True), "nummod")]
        return [first]

    def prepositional(self, preposition: str, depth: int, kind: int | None = None) -> _Node:
        case = self.say(preposition, "ADP")
        node = self.common(kind, depth)
        case.under(node, "case")
        return node

    def common(self, kind: int | None, depth: int) -> _Node:
        """A noun phrase of the topic, of a kind if one is asked for; sometimes two, coordinated."""
        menus = self.lexicon.nouns[self.topic]
        node = self.noun_phrase(menus[kind].pick(self.rng), self.chance(0.38), depth)
        if depth > 0 and self.chance(0.1):
            link = self.say(_W["and"], "CCONJ")
            second = self.noun_phrase(menus[kind].pick(self.rng), self.chance(0.38), 0)
            link.under(second, "cc")
            second.under(node, "conj")
            node.many = True
        return node

    def subject(self, depth: int) -> _Node:
        """What the paragraph is about, by name or pronoun, or somebody else."""
        r = self.rng.random()
        if self.said and r < 0.3:
            return self.say(_W["they"] if self.plural else _SUBJECT[self.gender], "PRON", self.plural)
        if not self.said or r < 0.55:
            self.said = True
            if self.noun is None:
                return self.say(self.name, "PROPN", False)
            return self.noun_phrase(self.noun, self.plural, depth)
        if r < 0.62:
            plural = self.chance(0.4)
            return self.say(_W["these" if plural else "this"], "PRON", plural)
        return self.common(None, depth)

    def object(self, kind: int, depth: int) -> _Node:
        r = self.rng.random()
        if self.said and r < 0.12:
            return self.say(_W["them"] if self.plural else _OBJECT[self.gender], "PRON", self.plural)
        if self.noun is None and r < 0.17:
            return self.say(self.name, "PROPN", False)
        return self.common(kind, depth)

    # Clauses --------------------------------------------------------------------------------------------------

    def relative(self, node: _Node, noun: Noun, depth: int) -> None:
        """`who walks the dog` (subject relative) or `that the dog sees` (object relative)."""
        form = _W["that"] if self.chance(0.5) else _W["which"] if noun.gender == 2 else _W["who"]
        pronoun = self.say(form, "PRON")
        if self.chance(0.5):
            verb = self.lexicon.verbs[self.topic].pick(self.rng)
            head = self.verb(verb, bool(node.plural))
            pronoun.under(head, "nsubj")
            pronoun.plural = node.plural
            self.arguments(head, verb, depth)
        else:
            inner = self.common(None, 0)
            verb = self.lexicon.takers[self.topic][noun.kind].pick(self.rng)
            head = self.verb(verb, bool(inner.plural))
            inner.under(head, "nsubj")
            pronoun.under(head, "obj")
        head.under(node, "acl:relcl")

    def verb(self, verb: Verb, plural: bool) -> _Node:
        """The finite verb, or an auxiliary, perhaps a negation, and the bare form; agreeing in number."""
        r = self.rng.random()
        if r < 0.76:
            return self.say(verb.stem + "s" * (not plural), "VERB", plural)
        if r < 0.9:
            helpers = [(self.say(_W["have" if plural else "has"], "AUX", plural), "aux")]
        else:
            helpers = [(self.say(_MODALS.pick(self.rng), "AUX"), "aux")]
        if self.chance(0.3):
            helpers.append((self.say(_W["not"], "PART"), "advmod"))
        head = self.say(verb.stem, "VERB")
        for helper, dep in helpers:
            helper.under(head, dep)
        return head

    def arguments(self, head: _Node, verb: Verb, depth: int) -> None:
        if verb.frame == "object":
            self.object(verb.kind, depth).under(head, "obj")
        elif verb.frame == "clause" and depth > 0:
            mark = self.say(_W["that"], "SCONJ")
            inner = self.clause(depth - 1)
            mark.under(inner, "mark")
            inner.under(head, "ccomp")
            return
        if self.chance(0.14):
            menu = self.lexicon.adverbs if self.chance(0.6) else _PLACES
            self.say(menu.pick(self.rng), "ADV").under(head, "advmod")
        if self.chance(0.34):
            preposition = verb.preposition if self.chance(0.85) else _CASES.pick(self.rng)
            self.prepositional(preposition, depth - 1).under(head, "obl")

    def clause(self, depth: int) -> _Node:
        """Subject and predicate; returns the predicate."""
        subject = self.subject(depth)
        plural = subject.many or bool(subject.plural)
        if self.chance(0.14):
            copula = self.say(_W["are" if plural else "is"], "AUX", plural)
            head = self.say(self.lexicon.adjectives[self.topic].pick(self.rng), "ADJ")
            copula.under(head, "cop")
        else:
            verb = self.lexicon.verbs[self.topic].pick(self.rng)
            head = self.verb(verb, plural)
            self.arguments(head, verb, depth)
            if depth > 0 and self.chance(0.14):
                self.second_predicate(head, plural)
        subject.under(head, "nsubj")
        return head

    def second_predicate(self, head: _Node, plural: bool) -> None:
        link = self.say(_LINKS.pick(self.rng), "CCONJ")
        verb = self.lexicon.verbs[self.topic].pick(self.rng)
        second = self.verb(verb, plural)
        self.arguments(second, verb, 0)
        link.under(second, "cc")
        second.under(head, "conj")


def _question(speaker: _Speaker, depth: int) -> _Node:
    """An auxiliary that agrees with the subject after it, and the bare verb."""
    helper = speaker.say(_W["has"], "AUX")
    subject = speaker.subject(depth)
    plural = subject.many or bool(subject.plural)
    helper.form, helper.plural = _W["have" if plural else "has"], plural
    verb = speaker.lexicon.verbs[speaker.topic].pick(speaker.rng)
    head = speaker.say(verb.stem, "VERB")
    helper.under(head, "aux")
    subject.under(head, "nsubj")
    speaker.arguments(head, verb, depth)
    return head


def _sentence(speaker: _Speaker) -> list[Word]:
    """A statement, a question or a call, each with its own end."""
    speaker.words = []
    r = speaker.rng.random()
    if r < 0.16:
        root, end = _question(speaker, 1), "?"
    elif r < 0.28:
        call, comma = speaker.say(_CALLS.pick(speaker.rng), "INTJ"), speaker.say(",", "PUNCT")
        root, end = speaker.clause(1), "!"
        call.under(root, "discourse")
        comma.under(call, "punct")
    else:
        root, end = _statement(speaker), "."
    speaker.say(end, "PUNCT").under(root, "punct")
    place = {id(node): i for i, node in enumerate(speaker.words, 1)}
    return [Word(n.form, n.pos, n.dep, place[id(n.head)] if n.head else 0, n.plural) for n in speaker.words]


def _statement(speaker: _Speaker) -> _Node:
    if speaker.chance(0.12):
        mark = speaker.say(_MARKS.pick(speaker.rng), "SCONJ")
        early = speaker.clause(0)
        mark.under(early, "mark")
        speaker.say(",", "PUNCT").under(early, "punct")
        root = speaker.clause(1)
        early.under(root, "advcl")
        return root
    root = speaker.clause(2)
    if speaker.chance(0.1):
        comma, link = speaker.say(",", "PUNCT"), speaker.say(_LINKS.pick(speaker.rng), "CCONJ")
        second = speaker.clause(0)
        comma.under(second, "punct")
        link.under(second, "cc")
        second.under(root, "conj")
    return root


def draw_sentences(seed: int | str) -> Iterator[list[Word]]:
    """Sentences without end, paragraph by paragraph; the same seed gives the same sentences everywhere."""
    rng, lexicon = Random(seed), Lexicon()
    while True:
        speaker = _Speaker(rng, lexicon)
        for _ in range(5 + int(rng.random() * 4)):
            yield _sentence(speaker)


def embedded(train: int = 30_000, valid: int = 6_000, test: int = 6_000, seed: int = 0) -> Corpus:
    """The embedded corpus: whole sentences until each split has at least that many tokens."""
    ids: dict[str, int] = {}
    classes: dict[str, dict[str, int]] = {"pos": {}, "dep": {}}
    splits = {}
    for split, budget in (("train", train), ("valid", valid), ("test", test)):
        words: list[Word] = []
        for sentence in draw_sentences(f"{split} {seed}"):
            words += sentence
            if len(words) >= budget:
                break
        tokens = np.array([ids.setdefault(w.form, len(ids)) for w in words], np.int32)
        labels = {
            c: np.array([k.setdefault(getattr(w, c), len(k)) for w in words], np.int16) for c, k in classes.items()
        }
        splits[split] = Split(tokens, labels)
    return Corpus.make("embedded", tuple(ids), {c: tuple(k) for c, k in classes.items()}, splits, (CORPUS_NOTE,))
