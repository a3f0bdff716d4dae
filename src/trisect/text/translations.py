"""Pairs of source and target of the embedded bitext, with the word that a translation goes on with where q, k or v is the donor's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from trisect.core.errors import CorpusError
from trisect.text.bindings import FROM_BASE, FROM_DONOR, NO_WORD, PARTS
from trisect.text.generated_bitext import RoledSentence, sentences
from trisect.text.pairs import ANSWERS, TextPair

DRAWN = 4000  # sentences that pairs are made from
TRIES = 20_000  # draws for each pair that is asked for
AT_ONCE = 10_000  # draws at a time
# texts -> ids of both sides
BothSides = Callable[[Sequence[tuple[str, str]]], Sequence[tuple[Sequence[int], Sequence[int]]]]


class TranslatedText(NamedTuple):
    """A sentence as cross-attention reads it: where each role stands in the source, what the target has for each place,
    and the role that the target's word is of, by its place in the target."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    places: Mapping[str, int]
    words: Mapping[int, str]
    asked: Mapping[int, str]


class BegunTranslation(NamedTuple):
    """A text with the place in its target that is to be filled."""

    text: TranslatedText
    at: int


def draw_translations(ids: BothSides, count: int, seed: int) -> tuple[TextPair, ...]:
    """So many pairs of sources as long as each other, with targets begun as far as each other, which ask different roles.

    A query asks a role, such as the object's noun; a key says at which place of the source that role stands; a value says
    what is at a place. The answers of the base, and those that q, k and v from the donor predict, are all different. Only words
    that are one token of their own are answers.
    Raises CorpusError where the tokenizer has too few of them.
    """
    drawn = list(islice(sentences(seed), DRAWN))
    known, usable = (_single(ids, drawn, side) for side in (0, 1))
    texts = [read_roles(one, usable) for one in drawn if known.issuperset(one.pair.source)]
    draw = np.random.default_rng([seed, 13])
    by_shape: dict[tuple[int, int], list[BegunTranslation]] = {}
    for text in texts:
        for at in (at for at in text.asked if usable.issuperset(text.target[:at])):
            by_shape.setdefault((len(text.source), at), []).append(BegunTranslation(text, at))
    shapes = [
        of for (_, at), of in sorted(by_shape.items()) if at and len({step.text.asked[step.at] for step in of}) > 1
    ]
    if not shapes:
        few = f"{len(usable)} of its target's words are one token each; an answer is one token."
        todo = "Give a model that 'trisect translate-train' trained on the embedded bitext, or pairs of your own with --pairs."
        raise CorpusError("The tokenizer cannot distinguish the texts of the task 'translation'.", few, todo)
    found: dict[tuple[tuple[str, str], tuple[str, str]], TextPair] = {}
    for base, donor in _candidates(shapes, draw, count * TRIES):
        answers, both = predicted_words(base, donor), (_begun(base), _begun(donor))
        if answers is not None and both not in found:
            place, kind = f"pair {len(found) + 1} of translation", base.text.asked[base.at]
            found[both] = TextPair(*both, {name: f" {word}" for name, word in answers.items()}, place, kind)
            if len(found) == count:
                return tuple(found.values())
    so_far = f"{len(found)} different ones were found in {count * TRIES:,} draws; words have to be one token each."
    todo = "Ask for fewer with --count, or train with more pieces: trisect translate-train --set pieces=2000."
    raise CorpusError(f"{count} pairs of translation were asked for.", so_far, todo)


def _candidates(
    shapes: Sequence[Sequence[BegunTranslation]], draw: np.random.Generator, count: int
) -> Iterator[tuple[BegunTranslation, BegunTranslation]]:
    """Two steps of one shape that ask different roles, where the donor has the base's role at another place."""
    sizes = np.array([len(of) for of in shapes])
    for begin in range(0, count, AT_ONCE):
        n = min(AT_ONCE, count - begin)
        which = draw.choice(len(shapes), size=n, p=sizes / sizes.sum())
        ones, others = (draw.integers(sizes[which]) for _ in range(2))
        for shape, one, other in zip(which.tolist(), ones.tolist(), others.tolist(), strict=True):
            base, donor = shapes[shape][one], shapes[shape][other]
            role = base.text.asked[base.at]
            if role != donor.text.asked[donor.at] and donor.text.places.get(role, -1) not in (
                -1,
                base.text.places[role],
            ):
                yield base, donor


def read_roles(sentence: RoledSentence, usable: frozenset[str]) -> TranslatedText:
    """A sentence by its roles, as far as a source word and a usable target word stand for each other alone."""
    links = sorted(sentence.pair.sure or ())
    sources, targets = [i for i, _ in links], [j for _, j in links]
    places, words, asked = {}, {}, {}
    for i, j in links:
        word = sentence.pair.target[j]
        if sources.count(i) == 1 and targets.count(j) == 1 and i in sentence.roles and word in usable:
            places[sentence.roles[i]], words[i], asked[j] = i, word, sentence.roles[i]
    return TranslatedText(sentence.pair.source, sentence.pair.target, places, words, asked)


def predicted_words(base: BegunTranslation, donor: BegunTranslation) -> Mapping[str, str] | None:
    """The answer for each way in which q, k and v can come from the donor; None unless the base's and those of q, k and v differ.

    Those of two components from the donor are left out unless they, too, differ from each other and from the donor's.
    """
    found = {}
    for name in ANSWERS:
        parts = {"base": (), "donor": PARTS}.get(name, tuple(name.split("+")))
        q, k, v = (donor if part in parts else base for part in PARTS)
        place = k.text.places.get(q.text.asked[q.at])
        word = None if place is None else v.text.words.get(place)
        if word is not None:
            found[name] = word
    if not _differ(found, FROM_DONOR) or found["base"] == found.get("donor"):
        return None
    return found if _differ(found, FROM_BASE) else {name: found[name] for name in (*FROM_DONOR, "donor")}


def _differ(answers: Mapping[str, str], names: Sequence[str]) -> bool:
    return set(names) <= set(answers) and len({answers[name] for name in names}) == len(names)


def _begun(step: BegunTranslation) -> tuple[str, str]:
    return " ".join(step.text.source), " ".join(step.text.target[: step.at])


def _single(ids: BothSides, drawn: Sequence[RoledSentence], side: int) -> frozenset[str]:
    """The words of one side that are one token of their own behind another word."""
    words = sorted({word for one in drawn for word in (one.pair.source, one.pair.target)[side]})
    asked = [words[0], *(f"{words[0]} {word}" for word in (*words, NO_WORD))]
    before, *rows, unknown = (list(both[side]) for both in ids([(text, text) for text in asked]))
    n = len(before)
    own = {w: row[-1] for w, row in zip(words, rows, strict=True) if len(row) == n + 1 and row[:n] == before}
    tokens = list(own.values())
    return frozenset(w for w, token in own.items() if tokens.count(token) == 1 and token not in unknown[n:])
