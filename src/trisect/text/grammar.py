"""The embedded corpus: a generated language with gold parts of speech and dependency relations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from trisect.text.corpus import Corpus, Split
from trisect.text.lexicon import FUNCTION, PREPOSITIONS, Lexicon, Menu, Noun, Verb, zipf

VERSION = 1
NOTE = (
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


def sentences(seed: int | str) -> Iterator[list[Word]]:
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
        for sentence in sentences(f"{split} {seed}"):
            words += sentence
            if len(words) >= budget:
                break
        tokens = np.array([ids.setdefault(w.form, len(ids)) for w in words], np.int32)
        labels = {
            c: np.array([k.setdefault(getattr(w, c), len(k)) for w in words], np.int16) for c, k in classes.items()
        }
        splits[split] = Split(tokens, labels)
    return Corpus.make("embedded", tuple(ids), {c: tuple(k) for c, k in classes.items()}, splits, (NOTE,))
