"""Texts for induction (… A B … A, then B) as pairs of base and donor: pairs of words in passages of a text, or among other words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from trisect.core.errors import CorpusError
from trisect.text.bindings import (
    ANIMALS,
    BINDINGS,
    CITIES,
    COLOURS,
    NAMES,
    ROOMS,
    THINGS,
    BindingTemplate,
    Bound,
    TokenIds,
    draw_bound,
    single_tokens,
    spaced_answers,
)
from trisect.text.labelled import Labelled, LabelledTexts
from trisect.text.pairs import TextPair

BETWEEN = (
    3,
    2,
    1,
)  # words of the passage before each pair of words, and before the one that comes again; fewer for short windows
PASSAGE = BETWEEN[0] * (BINDINGS + 1)
LEAST = 2 * BINDINGS + 1  # words: so that a text never begins with one of the As, which is another token there
MOST = 300  # words of a text that are tried, the most frequent ones
READ = 20_000  # texts that are read for them, at most
KEPT = 2_000  # passages that are drawn from, at most
ENGLISH = tuple(dict.fromkeys((*THINGS, *ANIMALS, *COLOURS, *ROOMS, *NAMES, *CITIES)))


class InductionWords(NamedTuple):
    """The words that A and B are drawn from, each one token of its own, and the passages that they are put into (none: other words)."""

    words: tuple[str, ...]
    passages: tuple[tuple[str, ...], ...]


def induction_words(ids: TokenIds, texts: LabelledTexts | None) -> InductionWords:
    """Words that the tokenizer can distinguish: the most frequent of a text with passages of it, or English ones of our own.

    Raises CorpusError with the reason where there are too few.
    """
    asked, passages = (ENGLISH, ()) if texts is None else _of_text(texts.texts())
    pairs = BindingTemplate("induction", "", " {key} {value}", " {key}", asked, asked)
    answers = frozenset(single_tokens(ids, pairs, "value"))
    words = tuple(word for word in single_tokens(ids, pairs, "key") if word in answers)
    if len(words) < LEAST or (texts is not None and not passages):
        has = f"{len(words)} of {len(asked)} words that were tried are one token of their own, and {LEAST} are needed"
        of = "" if texts is None else f"; {texts.name} has {len(passages)} runs of {PASSAGE} words in one text"
        todo = "Name a text in the model's own words with --corpus, or give pairs of your own with --pairs."
        raise CorpusError("The task 'induction' has too few words.", f"{has}{of}.", todo)
    return InductionWords(words, passages)


def draw_induction(usable: InductionWords, count: int, seed: int, between: int = BETWEEN[0]) -> tuple[TextPair, ...]:
    """So many pairs: four times two words (A B) in a passage, and one of the As again; B is to come.

    The donor has the same words at the same places, its As in another order, otherwise paired, and ends in another A. What the
    passage says besides is the same in both, and holds none of them. The answers of the base and those that q, k and v from the
    donor predict are all different.
    """
    draw = np.random.default_rng([seed, 14])
    found = []
    for number in range(count):
        passage = usable.passages[int(draw.integers(len(usable.passages)))] if usable.passages else ()
        free = _mixed(draw, [word for word in usable.words if word not in passage])
        if not passage or len(free) < 2 * BINDINGS:  # no text, or a passage that holds most of the words
            free = _mixed(draw, usable.words)
            passage = free[2 * BINDINGS :][:PASSAGE]
        chosen = free[: 2 * BINDINGS]
        base, donor = draw_bound(draw, chosen[:BINDINGS], chosen[BINDINGS:])
        texts = [_told(passage, bound, between) for bound in (base, donor)]
        found.append(
            TextPair(texts[0], texts[1], spaced_answers(base, donor), f"pair {number + 1} of induction", "induction")
        )
    return tuple(found)


def _mixed(draw: np.random.Generator, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[int(i)] for i in draw.permutation(len(words)))


def _told(passage: Sequence[str], bound: Bound, between: int) -> str:
    """The passage with a pair of words after every few of its own, and at the end the word that is asked for."""
    pieces = [passage[at * between :][:between] for at in range(BINDINGS + 1)]
    facts = zip(pieces[:BINDINGS], bound.keys, bound.values, strict=True)
    told = chain.from_iterable((*own, key, value) for own, key, value in facts)
    return " ".join((*told, *pieces[BINDINGS], bound.asked))


def _of_text(texts: Iterable[Labelled]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The most frequent words of a text that are letters alone, in lower case, and runs of its words."""
    counts: Counter[str] = Counter()
    passages: list[tuple[str, ...]] = []
    for one in islice(texts, READ):
        words = [one.text[a:b].lower() for a, b in one.spans]
        counts.update(word for word in words if word.isalpha() and len(word) > 1)
        if len(words) >= PASSAGE and len(passages) < KEPT:
            passages.append(tuple(words[:PASSAGE]))
    return tuple(word for word, _ in sorted(counts.items(), key=lambda of: (-of[1], of[0]))[:MOST]), tuple(passages)
