"""Texts of bindings in English (who has what, what is in which box) as pairs of base and donor, if the tokenizer distinguishes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trisect.core.errors import CorpusError
from trisect.text.pairs import ANSWERS, TextPair

BINDINGS = 4  # keys, each with its value, in one text: as many as there are answers to tell apart
WORDS = 24  # the most keys and values that are drawn from
SLOTS = 3  # places of a word in the text that its token is looked for in
NO_WORD = "zqxjvk"  # stands for whatever a tokenizer does not know
PARTS = ("q", "k", "v")
FROM_DONOR, FROM_BASE = ("base", *PARTS), ("donor", "k+v", "q+v", "q+k")  # of either direction of a patch
# texts -> the token ids of each, without the tokenizer's own
TokenIds = Callable[[Sequence[str]], Sequence[Sequence[int]]]


class BindingTemplate(NamedTuple):
    """One way to bind a key to a value: what a text begins with, a binding, the question, and the words for both slots."""

    name: str
    lead: str
    binding: str
    question: str
    keys: tuple[str, ...]
    values: tuple[str, ...]


class UsableTemplate(NamedTuple):
    """A template with those of its words that are one token each in it."""

    template: BindingTemplate
    keys: tuple[str, ...]
    values: tuple[str, ...]


class Bound(NamedTuple):
    """One text's facts: the keys in their order, the value of each, and the key that is asked for."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    asked: str


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    "John Mary Tom James Anna Paul Mark Sarah Peter David Michael Emma Robert Lisa Kevin Alice Jack Laura Daniel Helen "
    "George Kate Simon Lucy Henry Jane Adam Rose Frank Grace"
)
THINGS = _words(
    "ball book key cup hat map coin lamp ring knife phone box bag car watch rope bell card flag pen letter bottle clock "
    "camera chair table piano guitar"
)
COLOURS = _words("red blue green white black yellow brown orange pink gold silver purple gray")
CITIES = _words(
    "London Paris Rome Berlin Madrid Vienna Tokyo Boston Chicago Dublin Moscow Athens Prague Oslo Cairo Delhi Sydney "
    "Toronto Montreal Houston"
)
ANIMALS = _words("dog cat horse cow bird fish lion bear wolf fox mouse sheep pig goat duck rabbit tiger snake")
ROOMS = _words("kitchen garage garden office library basement bedroom yard hall attic barn street")
TEMPLATES = (
    BindingTemplate("who has what", "Here they are:", " {key} has the {value}.", " So {key} has the", NAMES, THINGS),
    BindingTemplate(
        "what is in which box",
        "Look at them:",
        " The {key} box holds the {value}.",
        " So the {key} box holds the",
        COLOURS,
        THINGS,
    ),
    BindingTemplate(
        "who lives where", "Here they are:", " {key} lives in {value}.", " So {key} lives in", NAMES, CITIES
    ),
    BindingTemplate(
        "who is where",
        "Look at them:",
        " The {key} is in the {value}.",
        " So the {key} is in the",
        ANIMALS,
        ROOMS,
    ),
)


def usable_templates(ids: TokenIds, templates: Sequence[BindingTemplate] = TEMPLATES) -> tuple[UsableTemplate, ...]:
    """The templates that a tokenizer can distinguish, each with the words that are one token of their own wherever they stand.

    Then all texts of a template are as long, and position by position they differ in the words alone. Raises CorpusError
    with the reason, template by template, where none is left.
    """
    found, reasons = [], []
    for template in templates:
        keys = single_tokens(ids, template, "key")
        values = single_tokens(ids, template, "value")
        if min(len(keys), len(values)) >= BINDINGS:
            found.append(UsableTemplate(template, keys[:WORDS], values[:WORDS]))
        counts = f"{len(keys)} of {len(template.keys)} keys and {len(values)} of {len(template.values)} values"
        reasons.append(f"{template.name}: {counts} are one token")
    if not found:
        known = f"A text needs {BINDINGS} keys and {BINDINGS} values, each one token of its own ({'; '.join(reasons)})."
        todo = "Give pairs of your own with --pairs, in the words that it knows."
        raise CorpusError("The tokenizer cannot distinguish the texts of the task 'bindings'.", known, todo)
    return tuple(found)


def draw_bindings(templates: Sequence[UsableTemplate], count: int, seed: int) -> tuple[TextPair, ...]:
    """So many pairs; in each the donor has the base's keys and values in another order, paired otherwise, and asks another key.

    The answers of the base, and those that q, k and v from the donor predict, are all different; those of the donor, and
    those that q, k and v from the base predict in it, are too; and the base's is not the donor's.
    """
    draw = np.random.default_rng([seed, 11])
    found = []
    for number in range(count):
        usable = templates[number % len(templates)]
        keys = _some(draw, usable.keys, BINDINGS)
        values = _some(draw, usable.values, BINDINGS)
        base, donor = draw_bound(draw, keys, values)
        texts = [_written(usable.template, bound) for bound in (base, donor)]
        place = f"pair {number + 1} of bindings"
        found.append(TextPair(texts[0], texts[1], spaced_answers(base, donor), place, usable.template.name))
    return tuple(found)


def draw_bound(draw: np.random.Generator, keys: Sequence[str], values: Sequence[str]) -> tuple[Bound, Bound]:
    """Base and donor of these keys and values, whose answers, and those that q, k and v predict, differ as `draw_bindings` says."""
    base = Bound(tuple(keys), tuple(values), keys[int(draw.integers(BINDINGS))])
    while True:
        order = _some(draw, keys, BINDINGS)
        donor = Bound(order, _some(draw, values, BINDINGS), order[int(draw.integers(BINDINGS))])
        answers = predicted(base, donor)
        distinct = [{answers[name] for name in names} for names in (FROM_DONOR, FROM_BASE)]
        if all(len(of) == BINDINGS for of in distinct) and answers["base"] != answers["donor"]:
            return base, donor


def spaced_answers(base: Bound, donor: Bound) -> Mapping[str, str]:
    """Every predicted answer as it stands behind the text."""
    return {name: f" {answer}" for name, answer in predicted(base, donor).items()}


def predicted(base: Bound, donor: Bound) -> Mapping[str, str]:
    """The answer for each way in which q, k and v can come from the donor, where each does what its name says.

    q says which key is looked for, k where that key stands, v which value stands there.
    """
    found = {}
    for name in ANSWERS:
        parts = {"base": (), "donor": PARTS}.get(name, tuple(name.split("+")))
        q, k, v = (donor if part in parts else base for part in PARTS)
        found[name] = v.values[k.keys.index(q.asked)]
    return found


def _written(template: BindingTemplate, bound: Bound) -> str:
    pairs = zip(bound.keys, bound.values, strict=True)
    facts = "".join(template.binding.format(key=key, value=value) for key, value in pairs)
    return template.lead + facts + template.question.format(key=bound.asked)


def single_tokens(ids: TokenIds, template: BindingTemplate, slot: str) -> tuple[str, ...]:
    """The words of a slot ('key', 'value') that are one token of their own wherever the template has them."""
    return tuple(word_tokens(ids, template, slot))


def word_tokens(ids: TokenIds, template: BindingTemplate, slot: str) -> Mapping[str, int]:
    """The same words with their tokens; none of a template that has no words to try."""
    if not template.keys or not template.values:
        return {}
    words, other = (template.keys, template.values[0]) if slot == "key" else (template.values, template.keys[0])
    whole, asked = [], []
    for word in (*words, NO_WORD):
        filled = {"key": word, "value": other} if slot == "key" else {"key": other, "value": word}
        asked.append(template.lead + template.binding.format(**filled) * 2 + template.question.format(**filled))
        whole.append(asked[-1] + f" {word}" * (slot == "value"))
    rows, before = ([list(row) for row in ids(texts)] for texts in (whole, asked))
    for length in sorted({len(row) for row in rows}):
        # the answer is one token more than the question, which leaves the question as it is
        alike = [i for i, row in enumerate(rows) if len(row) == length and (slot == "key" or row[:-1] == before[i])]
        places = [p for p in range(length) if len({rows[i][p] for i in alike}) > 1]
        tokens = {i: {rows[i][p] for p in places} for i in alike}
        if len(places) == SLOTS:
            own = [next(iter(of)) for of in tokens.values() if len(of) == 1]
            good = [i for i, of in tokens.items() if len(of) == 1 and own.count(next(iter(of))) == 1]
            unknown = {rows[-1][p] for p in places if p < len(rows[-1])}  # a tokenizer may also leave it out
            return {words[i]: next(iter(tokens[i])) for i in good if i < len(words) and tokens[i] != unknown}
    return {}


def _some(draw: np.random.Generator, words: Sequence[str], count: int) -> tuple[str, ...]:
    return tuple(words[int(i)] for i in draw.permutation(len(words))[:count])
