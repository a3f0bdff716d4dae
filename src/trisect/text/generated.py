"""Generated data: the embedded corpus with gold labels, the embedded bitext with gold links, and the embedded people."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum
from operator import attrgetter
from random import Random
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from trisect.core.errors import CorpusError
from trisect.core.files import digest
from trisect.core.printable import percent
from trisect.text.birth_places import People, PretrainingLine, Question, ask, recombine
from trisect.text.bitext import TEST, TRAIN, Bitext, SentencePair, make_bitext
from trisect.text.corpus import Corpus, Split

T = TypeVar("T")

TOPICS = 6
KINDS = 3
GENDERS = 3
FRAMES = ("object", "object", "none", "object", "clause", "object")
_SYLLABLES = [c + v for c in "bdfgklmnprtvzh" for v in "aeiou"]
_ENDINGS = ("", "n", "", "r", "l")


@dataclass(frozen=True)
class _Noun:
    """A noun: its semantic class `kind`, which verbs select by, its gender, and the preposition that follows it."""

    stem: str
    kind: int
    gender: int
    preposition: str


@dataclass(frozen=True)
class _Verb:
    """A verb: its frame (none, object, clause), the kind of object it selects, and the preposition it governs."""

    stem: str
    frame: str
    kind: int
    preposition: str


class _WeightedChoice(Generic[T]):
    """A weighted choice of items; calls only `random()` of the generator, which is the same in every version of Python."""

    def __init__(self, weighted: Iterable[tuple[T, float]]) -> None:
        pairs = list(weighted)
        self.items = [item for item, _ in pairs]
        self._sums = list(accumulate(weight for _, weight in pairs))

    def pick(self, rng: Random) -> T:
        """Draw one item with probability proportional to its weight."""
        return self.items[min(bisect_right(self._sums, rng.random() * self._sums[-1]), len(self.items) - 1)]


def _zipf(items: Sequence[T], mass: float = 1.0) -> list[tuple[T, float]]:
    """Weights in proportion to 1/(rank + 1) that sum to `mass`."""
    total = fsum(1 / rank for rank in range(2, len(items) + 2))  # exact, so the same in every Python
    return [(item, mass / rank / total) for rank, item in enumerate(items, 2)]


def stem(index: int, syllables: int = 2) -> str:
    """The `index`-th stem of two or three syllables; stems are distinct, and none ends in -s."""
    size = len(_SYLLABLES)
    first = _SYLLABLES[(index * 23 + 5) % size]
    rest = [_SYLLABLES[(index * 9 + index // size + 27 * place) % size] for place in range(1, syllables)]
    return first + "".join(rest) + _ENDINGS[index % len(_ENDINGS)]


# Some words have two parts of speech ("that", "her", "well"), so that a tag does not follow from the word alone.
_NAMES = (
    *("the", "a", "this", "that", "these", "some", "of", "in", "on", "with", "to", "before", "and", "or", "but"),
    *("if", "because", "not", "has", "have", "is", "are", "may", "will", "he", "she", "it", "they", "him", "her"),
    *("them", "his", "its", "their", "who", "which", "two", "three", "four", "five", "when", "here", "now", "well"),
    *("yes", "no", "oh"),
)
FUNCTION = {name: _SYLLABLES[(i * 31 + 17) % len(_SYLLABLES)] for i, name in enumerate(_NAMES)}
PREPOSITIONS = tuple(FUNCTION[name] for name in ("of", "in", "with", "on", "to", "before"))


class _Lexicon:
    """The vocabulary, as weighted choices by topic: three quarters of the nouns, verbs and adjectives drawn are topical."""

    def __init__(self) -> None:
        self._next = 0
        nouns, verbs, adjectives = [], [], []
        for topic in range(TOPICS + 1):  # the last group is shared by all topics
            general = topic == TOPICS
            stems = [self._stem() for _ in range(14 if general else 9)]
            kinds = enumerate(stems, topic)
            nouns.append([_Noun(s, i % KINDS, (i // KINDS + i) % GENDERS, PREPOSITIONS[i % 3]) for i, s in kinds])
            shared = stems[1:5]
            verbs_alone = [self._stem() for _ in range(6 if general else 2)]
            governed = [
                PREPOSITIONS[(i * 5 + topic) % len(PREPOSITIONS)] for i in range(len(shared) + len(verbs_alone))
            ]
            frames = enumerate(zip([*shared, *verbs_alone], governed, strict=True), topic)
            verbs.append([_Verb(s, FRAMES[i % 6], i % KINDS, preposition) for i, (s, preposition) in frames])
            adjectives.append([self._stem() for _ in range(8 if general else 5)])
        self.topics = _WeightedChoice((t, 1 / (t + 3)) for t in range(TOPICS))
        self.names = _WeightedChoice(_zipf([(self._stem(3), i % 2) for i in range(20)]))
        self.adverbs = _WeightedChoice(_zipf([*adjectives[TOPICS][:4], *(self._stem() for _ in range(6))]))
        self.adjectives = [_mix(adjectives[t], adjectives[TOPICS]) for t in range(TOPICS)]
        self.nouns: list[dict[int | None, _WeightedChoice[_Noun]]] = [
            {
                kind: _mix(*([n for n in words if kind in (None, n.kind)] for words in (nouns[t], nouns[TOPICS])))
                for kind in (None, *range(KINDS))
            }
            for t in range(TOPICS)
        ]
        self.verbs = [_mix(verbs[t], verbs[TOPICS]) for t in range(TOPICS)]
        # verbs by the kind of object they take, for relative clauses, whose object comes first
        self.verbs_by_object = [
            {
                kind: _WeightedChoice(_zipf([v for v in verbs_of_topic if v.kind == kind] or verbs_of_topic))
                for kind in range(KINDS)
            }
            for t in range(TOPICS)
            if (verbs_of_topic := [v for v in (*verbs[t], *verbs[TOPICS]) if v.frame == "object"])
        ]
        self.protagonists = [
            _WeightedChoice(_zipf([n for n in nouns[t] if n.kind == 0] + nouns[t][:2])) for t in range(TOPICS)
        ]

    def _stem(self, syllables: int = 2) -> str:
        self._next += 1
        return stem(self._next, syllables)


def _mix(topical: list[T], general: list[T]) -> _WeightedChoice[T]:
    return _WeightedChoice([*_zipf(topical, 0.75), *_zipf(general, 0.25)])


NAME = "embedded"
VERSION = 1
SIZES = {TRAIN: 4000, "valid": 60, TEST: 200}
MAX_PAIRS = 20_000  # pairs in total; the grammar generates many more
BITEXT_NOTE = (
    f"The embedded bitext is generated (version {VERSION}), and so are its links: the target puts its verb last and its "
    "adjectives and determiners behind the noun; some words become two, together or apart, two become one, and some "
    "have no counterpart. A link that only grammar suggests is possible, not sure."
)
_NOUNS, _ADJECTIVES, _VERBS, _ADVERBS = 30, 12, 18, 6
_COMPOUND, _PHRASAL = 4, 3  # every 4th noun is two words in the target, every 3rd verb two in the source


# consonants and vowels of both languages
SOURCE, TARGET = ("bdfgklmnprst", "aeio"), ("vzhjwyqxcnlr", "aeou")


class _TargetWord(NamedTuple):
    """A target word, with the keys of the source words that it is surely or possibly linked to."""

    form: str
    sure: tuple[int, ...] = ()
    possible: tuple[int, ...] = ()


class _Phrase(NamedTuple):
    """A phrase in both languages: source words with their keys, and target words."""

    source: list[tuple[str, int]]
    target: list[_TargetWord]


# function words of the source, then of the target
THE, SOME, NOT, DO, WITH, STOP = "the", "un", "not", "do", "bi", "."
TARGET_THE, OBJECT, TARGET_NOT_BEFORE, TARGET_NOT_AFTER, TARGET_WITH = "xa", "vo", "he", "quz", "yen"
NUMBERS = (("to", "zuw"), ("tri", "yax"))


class RoledSentence(NamedTuple):
    """A sentence pair, and roles of its words such as 'object noun' by source position."""

    pair: SentencePair
    roles: Mapping[int, str]


class _PairGenerator:
    """Generates sentence pairs, one at a time; every source word has a key, by which target words are linked to it."""

    def __init__(self, draw: Random) -> None:
        self.draw, self.next = draw, 0
        self.roles: dict[int, str] = {}
        words = Random(f"phrases {VERSION}")  # the vocabulary depends on the version only
        needed = _NOUNS + _ADJECTIVES + 2 * _VERBS + _ADVERBS
        source_in_use = {THE, SOME, NOT, DO, WITH, *(number for number, _ in NUMBERS)}
        source = _invent(SOURCE, needed, words, source_in_use)
        target_in_use = {
            TARGET_THE,
            OBJECT,
            TARGET_NOT_BEFORE,
            TARGET_NOT_AFTER,
            TARGET_WITH,
            *(number for _, number in NUMBERS),
        }
        target = _invent(TARGET, needed + _NOUNS, words, target_in_use)
        # a word, its translation in one or two words, and the ending of adjectives that agree with it
        nouns = (
            (source.pop(), (target.pop(), target.pop())[: 2 - (i % _COMPOUND > 0)], "ae"[i % 2]) for i in range(_NOUNS)
        )
        self.nouns = _WeightedChoice(_zipf(list(nouns)))
        self.adjectives = _WeightedChoice(_zipf([(source.pop(), target.pop()) for _ in range(_ADJECTIVES)]))
        self.adverbs = _WeightedChoice(_zipf([(source.pop(), target.pop()) for _ in range(_ADVERBS)]))
        # a verb in one or two words, its translation, and whether it takes an object
        verbs = [
            ((source.pop(), source.pop())[: 2 - (i % _PHRASAL > 0)], target.pop(), i % 2 == 0) for i in range(_VERBS)
        ]
        self.verbs = _WeightedChoice(_zipf(verbs))
        self.numbers = _WeightedChoice((number, 1.0) for number in NUMBERS)

    def sentence(self) -> RoledSentence:
        """A sentence in both languages with its links and the roles of its words."""
        self.next, self.roles = 0, {}
        draw = self.draw
        subject, (forms, translation, takes_object) = self.noun_phrase("subject"), self.verbs.pick(draw)
        adverb = _Phrase([], [])
        if draw.random() < 0.2:  # one word in both languages, first in the source
            form, counterpart = self.adverbs.pick(draw)
            self.roles[key := self.key()] = "adverb"
            adverb = _Phrase([(form, key)], [_TargetWord(counterpart, (key,))])
        negation, before, after, auxiliary = list[tuple[str, int]](), list[_TargetWord](), list[_TargetWord](), ()
        if draw.random() < 0.2:  # an auxiliary without a counterpart; the target has two words around its verb
            auxiliary, key = (self.key(),), self.key()
            negation = [(DO, auxiliary[0]), (NOT, key)]
            before, after = [_TargetWord(TARGET_NOT_BEFORE, (key,))], [_TargetWord(TARGET_NOT_AFTER, (key,))]
        action = [(form, self.key()) for form in forms]
        keys = tuple(key for _, key in action)
        self.roles |= dict.fromkeys(keys, "verb")
        thing = self.noun_phrase("object") if takes_object else _Phrase([], [])
        place = _Phrase([], [])
        if draw.random() < 0.3:  # a preposition with its noun phrase; in the target it follows
            key, inner = self.key(), self.noun_phrase("place")
            place = _Phrase([(WITH, key), *inner.source], [*inner.target, _TargetWord(TARGET_WITH, (key,))])
        stop = self.key()
        marked = []
        if takes_object:  # the noun is the first word of the target phrase
            marked = [_TargetWord(OBJECT, possible=thing.target[0].sure)]
        source = [*adverb.source, *subject.source, *negation, *action]
        source += [*thing.source, *place.source, (STOP, stop)]
        target = [*subject.target, *adverb.target, *place.target, *thing.target, *marked, *before]
        target += [_TargetWord(translation, keys, auxiliary), *after, _TargetWord(STOP, (stop,))]
        roles = {i: self.roles[key] for i, (_, key) in enumerate(source) if key in self.roles}
        places = {key: i for i, (_, key) in enumerate(source)}
        sure, possible = (
            frozenset((places[key], j) for j, word in enumerate(target) for key in keys_of(word))
            for keys_of in (attrgetter("sure"), attrgetter("possible"))
        )
        both = tuple(form for form, _ in source), tuple(word.form for word in target)
        return RoledSentence(SentencePair(*both, sure, sure | possible), roles)

    def key(self) -> int:
        """A key for the next source word."""
        self.next += 1
        return self.next

    def noun_phrase(self, role: str) -> _Phrase:
        """Determiner, adjective, noun; in the target noun, adjective, determiner, without indefinite articles."""
        draw = self.draw
        (form, translation, ending), chance = self.nouns.pick(draw), draw.random()
        source, behind, many = [], [], False
        if chance < 0.5:
            source.append((THE, self.key()))
            behind = [_TargetWord(TARGET_THE, (self.next,))]
        elif chance < 0.8:
            source.append((SOME, self.key()))
        else:
            number, counterpart = self.numbers.pick(draw)
            source.append((number, self.key()))
            behind, many = [_TargetWord(counterpart, (self.next,))], True
        self.roles[self.next] = f"{role} determiner"
        if draw.random() < 0.35:
            quality, counterpart = self.adjectives.pick(draw)
            source.append((quality, self.key()))
            behind.insert(0, _TargetWord(counterpart + ending, (self.next,)))
            self.roles[self.next] = f"{role} adjective"
        source.append((form + "s" * many, self.key()))
        self.roles[self.next] = f"{role} noun"
        *first, last = translation
        names = [_TargetWord(word, (self.next,)) for word in (*first, last + "uz" * many)]
        return _Phrase(source, [*names, *behind])


def bitext_corpus(
    seed: int = 0, train: int = SIZES[TRAIN], valid: int = SIZES["valid"], test: int = SIZES[TEST]
) -> Bitext:
    """A bitext with `train`, `valid` and `test` distinct pairs and their gold links; deterministic.

    Raises CorpusError if a split would be empty or the pairs are too many.
    """
    sizes = (train, valid, test)
    if min(sizes) < 1 or sum(sizes) > MAX_PAIRS:
        problem = f"A bitext of {train} + {valid} + {test} pairs."
        raise CorpusError(
            problem, f"Each split has at least one, and all together {MAX_PAIRS:,} at most.", "Give others."
        )
    generator = _PairGenerator(Random(f"pairs {VERSION} {seed}"))
    pairs_by_source: dict[tuple[str, ...], SentencePair] = {}
    while len(pairs_by_source) < sum(sizes):
        pair = generator.sentence().pair
        pairs_by_source.setdefault(pair.source, pair)
    pairs = list(pairs_by_source.values())
    splits = {"valid": pairs[:valid], TEST: pairs[valid : valid + test], TRAIN: pairs[valid + test :]}
    return make_bitext(NAME, splits, (BITEXT_NOTE,))


def sentences(seed: int = 0) -> Iterator[RoledSentence]:
    """An endless stream of sentence pairs with the roles of their words; deterministic for a seed."""
    generator = _PairGenerator(Random(f"sentences {VERSION} {seed}"))
    while True:
        yield generator.sentence()


def _invent(sound: tuple[str, str], count: int, draw: Random, excluded: set[str]) -> list[str]:
    """`count` distinct words of two or three syllables, some ending in a consonant, none in `excluded`."""
    onsets, vowels = sound

    def word() -> str:
        syllables = 2 + (draw.random() < 0.4)
        start = "".join(_pick(draw, onsets) + _pick(draw, vowels) for _ in range(syllables))
        return start + _pick(draw, onsets) * (draw.random() < 0.4)

    return _distinct(count, word, lambda invented: invented not in excluded and not invented.endswith("s"))


def _distinct(count: int, make: Callable[[], str], fits: Callable[[str], bool] = bool) -> list[str]:
    """`count` distinct results of `make` for which `fits` holds."""
    words: dict[str, None] = {}
    while len(words) < count:
        if fits(word := make()):
            words[word] = None
    return list(words)


def _pick(draw: Random, items: Sequence[T]) -> T:
    return items[int(draw.random() * len(items))]


REGIONS, PLACES, FAMILIES = 6, 6, 6  # regions, and places and family names per region
LOCAL = 0.5  # share of people who are born in their family's region for sure
BOTH_SHARE = 0.5  # share of people in the pretraining text and in fine-tuning
PRETRAINING_SHARE = 0.4  # share of people in the text only; the rest are in fine-tuning only
MIN_PEOPLE, MAX_PEOPLE = 20, 400
PEOPLE_NOTE = (
    f"The embedded people are generated (version {VERSION}): names and places are invented, and for "
    f"{percent(LOCAL + (1 - LOCAL) / REGIONS)} of people the last name says in which of {REGIONS} regions their birth place lies."
)
_ONSETS, _VOWELS = "bdfgklmnprtvz", "aeiou"
FAMILY_ENDS = ("an", "ek", "il", "or", "us", "ym")
PLACE_ENDS = ("ad", "eth", "ing", "ona", "ulf", "ach")
_JOBS = ("baker", "weaver", "potter", "sailor", "singer", "mason", "miller", "tailor")
# The place comes before or after the trade. Each line fits into 56 characters (7/8 of 64), the longest that pretraining reads.
TEMPLATES = (
    "{name} was born in {place}.",
    "{name} ({place}), {job}.",
    "{name}, {job} from {place}.",
    "{name}, born in {place}, a {job}.",
    "{name}: a {job}, born in {place}.",
)


def people_corpus(seed: int = 0, people: int = 150, unseen: int = 60) -> People:
    """`people` with lines of text and questions, `unseen` others for the test, and as many invented names; deterministic.

    Half of the people appear in the text and in the questions of train, 40 % in the text and in the questions of valid, 10 % in the
    questions of train only. Raises CorpusError if a number is out of range.
    """
    if not MIN_PEOPLE <= people <= MAX_PEOPLE or not 1 <= unseen <= MAX_PEOPLE:
        problem = f"A world of {people} people and {unseen} unseen ones."
        reason = f"There are {MIN_PEOPLE} to {MAX_PEOPLE} people, and 1 to {MAX_PEOPLE} unseen ones."
        raise CorpusError(problem, reason, "Give numbers within these.")
    draw = Random(f"world {VERSION} {seed}")

    def syllable() -> str:
        return _pick(draw, _ONSETS) + _pick(draw, _VOWELS)

    def by_region(words: int, ends: Sequence[str]) -> list[list[str]]:  # words of one region share an ending
        stems = _distinct(words * len(ends), lambda: (syllable() + _pick(draw, _ONSETS)).capitalize())
        return [[stem + end for stem in stems[i * words : (i + 1) * words]] for i, end in enumerate(ends)]

    places, families = by_region(PLACES, PLACE_ENDS), by_region(FAMILIES, FAMILY_ENDS)
    births = [_WeightedChoice((place, 1 / (rank + 4)) for rank, place in enumerate(of_region)) for of_region in places]
    regions, jobs = _WeightedChoice((i, 1.0) for i in range(REGIONS)), _WeightedChoice((job, 1.0) for job in _JOBS)
    questions_of_people, lines_of = list[Question](), list[list[PretrainingLine]]()
    for first in _distinct(people + unseen, lambda: (syllable() + syllable()).capitalize()):
        home = regions.pick(draw)
        name = f"{first} {_pick(draw, families[home])}"
        origin = home if draw.random() < LOCAL else regions.pick(draw)
        place, job = births[origin].pick(draw), jobs.pick(draw)
        questions_of_people.append(Question(name, ask(name), place))
        lines_of.append([PretrainingLine(name, t.format(name=name, place=place, job=job)) for t in TEMPLATES])
    both, read = round(BOTH_SHARE * people), round((BOTH_SHARE + PRETRAINING_SHARE) * people)
    train = _shuffle([*questions_of_people[:both], *questions_of_people[read:people]], draw)
    lines = _shuffle([line for lines in lines_of[:read] for line in lines], draw)
    invented = recombine([q.name for q in questions_of_people], unseen, draw)
    questions = [f"{q.name}\t{q.place}" for q in questions_of_people]
    mark = digest("\n".join([*(line.text for line in lines), *questions, *(q.name for q in invented)]), 8)
    valid, test = tuple(questions_of_people[both:read]), tuple(questions_of_people[people:])
    return People("embedded", lines, train, valid, test, (), invented, (PEOPLE_NOTE,), mark, mark)


def _shuffle(items: Sequence[T], draw: Random) -> tuple[T, ...]:
    """Items in random order; `Random.shuffle` may differ between versions of Python."""
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
_POSSESSIVE = (_W["his"], _W["her"], _W["its"])
_CONJUNCTIONS = _WeightedChoice(_zipf([_W["and"], _W["but"], _W["or"]]))
_SUBORDINATORS = _WeightedChoice(_zipf([_W["because"], _W["if"], _W["before"], _W["when"]]))
_NUMERALS = _WeightedChoice(_zipf([_W["two"], _W["three"], _W["four"], _W["five"]]))
_INTERJECTIONS = _WeightedChoice(_zipf([_W["yes"], _W["no"], _W["oh"], _W["well"]]))
_MODALS = _WeightedChoice(_zipf([_W["will"], _W["may"]]))
_PLACES = _WeightedChoice(_zipf([_W["here"], _W["now"], _W["well"], _W["before"]]))
_CASES = _WeightedChoice(_zipf(PREPOSITIONS))


@dataclass(frozen=True)
class Word:
    """A word with its UD part of speech, relation and head (from 1, 0 is the root); `plural` is None if its form shows no number."""

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
    many: bool = False  # a coordination, which is plural

    def attach(self, head: _Node, dep: str) -> None:
        self.head, self.dep = head, dep

    def join(self, head: _Node, *links: tuple[_Node, str]) -> None:
        """Attach this node as a conjunct of `head`, with conjunction and comma attached to this node."""
        for word, dep in links:
            word.attach(self, dep)
        self.attach(head, "conj")


class _ParagraphGenerator:
    """Generates the sentences of one paragraph; holds its topic, its protagonist, and the words of the current sentence."""

    def __init__(self, rng: Random, lexicon: _Lexicon) -> None:
        self.rng, self.lexicon = rng, lexicon
        self.topic = lexicon.topics.pick(rng)
        self.words: list[_Node] = []
        self.has_speech = False
        self.name, gender = lexicon.names.pick(rng)
        self.noun = None if self.chance(0.4) else lexicon.protagonists[self.topic].pick(rng)
        self.plural = self.noun is not None and self.chance(0.35)
        self.gender = self.noun.gender if self.noun else gender

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def add(self, form: str, pos: str, plural: bool | None = None) -> _Node:
        self.words.append(_Node(form, pos, plural=plural))
        return self.words[-1]

    def noun_phrase(self, noun: _Noun, plural: bool, depth: int) -> _Node:
        """Determiner, numeral, adjectives, noun; then perhaps a prepositional phrase or a relative clause."""
        before = self.determiner(plural)
        for p in (0.28, 0.2):
            if not self.chance(p):
                break
            before.append((self.add(self.lexicon.adjectives[self.topic].pick(self.rng), "ADJ"), "amod"))
        node = self.add(noun.stem + "s" * plural, "NOUN", plural)
        node.gender = noun.gender
        for word, dep in before:
            word.attach(node, dep)
        if depth > 0 and self.chance(0.16):
            preposition = noun.preposition if self.chance(0.8) else _CASES.pick(self.rng)
            self.prepositional(preposition, depth - 1).attach(node, "nmod")
        elif depth > 0 and self.chance(0.2):
            form = _W["that"] if self.chance(0.5) else _W["which"] if noun.gender == 2 else _W["who"]
            pronoun = self.add(form, "PRON")
            if self.chance(0.5):  # `who walks the dog`
                verb = self.lexicon.verbs[self.topic].pick(self.rng)
                head = self.verb(verb, plural)
                pronoun.attach(head, "nsubj")
                pronoun.plural = plural
                self.arguments(head, verb, depth - 1)
            else:  # `that the dog sees`
                inner = self.common(None, 0)
                verb = self.lexicon.verbs_by_object[self.topic][noun.kind].pick(self.rng)
                head = self.verb(verb, bool(inner.plural))
                inner.attach(head, "nsubj")
                pronoun.attach(head, "obj")
            head.attach(node, "acl:relcl")
        return node

    def determiner(self, plural: bool) -> list[tuple[_Node, str]]:
        r = self.rng.random()
        if r < 0.4:
            first = (self.add(_W["the"], "DET"), "det")
        elif r < 0.65:
            first = (self.add(_W["some" if plural else "a"], "DET", plural), "det")
        elif r < 0.85:
            near = "these" if plural else "this" if self.chance(0.5) else "that"
            first = (self.add(_W[near], "DET", plural), "det")
        else:
            owner = _W["their"] if self.plural else _POSSESSIVE[self.gender]
            first = (self.add(owner, "PRON"), "nmod:poss")
        if plural and self.chance(0.2):
            return [first, (self.add(_NUMERALS.pick(self.rng), "NUM", True), "nummod")]
        return [first]

    def prepositional(self, preposition: str, depth: int) -> _Node:
        case = self.add(preposition, "ADP")
        node = self.common(None, depth)
        case.attach(node, "case")
        return node

    def common(self, kind: int | None, depth: int) -> _Node:
        """A noun phrase with a noun of the topic, of this `kind` unless None; sometimes two, coordinated."""
        nouns_by_kind = self.lexicon.nouns[self.topic]
        node = self.noun_phrase(nouns_by_kind[kind].pick(self.rng), self.chance(0.38), depth)
        if depth > 0 and self.chance(0.1):
            link = self.add(_W["and"], "CCONJ")
            self.noun_phrase(nouns_by_kind[kind].pick(self.rng), self.chance(0.38), 0).join(node, (link, "cc"))
            node.many = True
        return node

    def subject(self, depth: int) -> _Node:
        """The protagonist by name, noun or pronoun, or another noun phrase."""
        r = self.rng.random()
        if self.has_speech and r < 0.3:
            return self.add(_W["they"] if self.plural else _SUBJECT[self.gender], "PRON", self.plural)
        if not self.has_speech or r < 0.55:
            self.has_speech = True
            if self.noun is None:
                return self.add(self.name, "PROPN", False)
            return self.noun_phrase(self.noun, self.plural, depth)
        if r < 0.62:
            plural = self.chance(0.4)
            return self.add(_W["these" if plural else "this"], "PRON", plural)
        return self.common(None, depth)

    def verb(self, verb: _Verb, plural: bool) -> _Node:
        """The finite verb, or an auxiliary, perhaps a negation, and the bare form; agreeing in number."""
        r = self.rng.random()
        if r < 0.76:
            return self.add(verb.stem + "s" * (not plural), "VERB", plural)
        perfect = r < 0.9
        helper = self.add(_W["have" if plural else "has"] if perfect else _MODALS.pick(self.rng), "AUX")
        helper.plural = plural if perfect else None
        negation = self.add(_W["not"], "PART") if self.chance(0.3) else None
        head = self.add(verb.stem, "VERB")
        helper.attach(head, "aux")
        if negation:
            negation.attach(head, "advmod")
        return head

    def arguments(self, head: _Node, verb: _Verb, depth: int) -> None:
        if verb.frame == "object":
            r = self.rng.random()
            if self.has_speech and r < 0.12:
                thing = self.add(_W["them"] if self.plural else _OBJECT[self.gender], "PRON", self.plural)
            elif self.noun is None and r < 0.17:
                thing = self.add(self.name, "PROPN", False)
            else:
                thing = self.common(verb.kind, depth)
            thing.attach(head, "obj")
        elif verb.frame == "clause" and depth > 0:
            mark = self.add(_W["that"], "SCONJ")
            inner = self.clause(depth - 1)
            mark.attach(inner, "mark")
            inner.attach(head, "ccomp")
            return
        if self.chance(0.14):
            menu = self.lexicon.adverbs if self.chance(0.6) else _PLACES
            self.add(menu.pick(self.rng), "ADV").attach(head, "advmod")
        if self.chance(0.34):
            preposition = verb.preposition if self.chance(0.85) else _CASES.pick(self.rng)
            self.prepositional(preposition, depth - 1).attach(head, "obl")

    def clause(self, depth: int) -> _Node:
        """Subject and predicate; returns the predicate."""
        subject = self.subject(depth)
        plural = subject.many or bool(subject.plural)
        if self.chance(0.14):
            copula = self.add(_W["are" if plural else "is"], "AUX", plural)
            head = self.add(self.lexicon.adjectives[self.topic].pick(self.rng), "ADJ")
            copula.attach(head, "cop")
        else:
            verb = self.lexicon.verbs[self.topic].pick(self.rng)
            head = self.verb(verb, plural)
            self.arguments(head, verb, depth)
            if depth > 0 and self.chance(0.14):  # a second predicate
                link = self.add(_CONJUNCTIONS.pick(self.rng), "CCONJ")
                verb = self.lexicon.verbs[self.topic].pick(self.rng)
                second = self.verb(verb, plural)
                self.arguments(second, verb, 0)
                second.join(head, (link, "cc"))
        subject.attach(head, "nsubj")
        return head

    def sentence(self) -> list[Word]:
        """Generate a statement, a question or an exclamation, with its punctuation mark."""
        self.words = []
        r = self.rng.random()
        if r < 0.16:
            # an auxiliary that agrees with the subject after it, and the bare verb
            helper, subject = self.add(_W["has"], "AUX"), self.subject(1)
            plural = subject.many or bool(subject.plural)
            helper.form, helper.plural = _W["have" if plural else "has"], plural
            verb = self.lexicon.verbs[self.topic].pick(self.rng)
            root, end = self.add(verb.stem, "VERB"), "?"
            helper.attach(root, "aux")
            subject.attach(root, "nsubj")
            self.arguments(root, verb, 1)
        elif r < 0.28:
            call, comma = self.add(_INTERJECTIONS.pick(self.rng), "INTJ"), self.add(",", "PUNCT")
            root, end = self.clause(1), "!"
            call.attach(root, "discourse")
            comma.attach(call, "punct")
        elif self.chance(0.12):
            mark = self.add(_SUBORDINATORS.pick(self.rng), "SCONJ")
            early = self.clause(0)
            mark.attach(early, "mark")
            self.add(",", "PUNCT").attach(early, "punct")
            root, end = self.clause(1), "."
            early.attach(root, "advcl")
        else:
            root, end = self.clause(2), "."
            if self.chance(0.1):
                comma, link = self.add(",", "PUNCT"), self.add(_CONJUNCTIONS.pick(self.rng), "CCONJ")
                self.clause(0).join(root, (comma, "punct"), (link, "cc"))
        self.add(end, "PUNCT").attach(root, "punct")
        place = {id(node): i for i, node in enumerate(self.words, 1)}
        return [Word(n.form, n.pos, n.dep, place[id(n.head)] if n.head else 0, n.plural) for n in self.words]


def draw_sentences(seed: int | str) -> Iterator[list[Word]]:
    """An endless stream of sentences, paragraph by paragraph; the same for a seed on every machine."""
    rng, lexicon = Random(seed), _Lexicon()
    while True:
        paragraph = _ParagraphGenerator(rng, lexicon)
        for _ in range(5 + int(rng.random() * 4)):
            yield paragraph.sentence()


def embedded_corpus(train: int = 30_000, valid: int = 6_000, test: int = 6_000, seed: int = 0) -> Corpus:
    """The embedded corpus: each split is made of whole sentences until it has at least that many tokens."""
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
