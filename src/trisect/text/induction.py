"""Texts for induction (… A B … A, then B) as pairs of base and donor: pairs of words in passages of a text, or among other words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    spaced_answers,
    word_tokens,
)
from trisect.text.labelled import Labelled, LabelledTexts
from trisect.text.pairs import TextPair

# words of the passage before each pair, and before the one that comes again; fewer for short windows
BETWEEN = (3, 2, 1)
PASSAGE = BETWEEN[0] * (BINDINGS + 1)
LEAST = 2 * BINDINGS + 1  # words: so that a text never begins with one of the As, which is another token there
MOST = 300  # words of a text that are tried, the most frequent ones
READ = 20_000  # texts that are read for them, at most
KEPT = 2_000  # passages that are drawn from, at most
TRIES = 50  # at a pair in passages of the text, and as often among other words
ENGLISH = tuple(dict.fromkeys((*THINGS, *ANIMALS, *COLOURS, *ROOMS, *NAMES, *CITIES)))


class InductionWords(NamedTuple):
    """The words that A and B are drawn from with the one token of each, and the passages that they are put into (none: other words)."""

    tokens: Mapping[str, int]
    passages: tuple[tuple[str, ...], ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The words alone."""
        return tuple(self.tokens)


def induction_words(ids: TokenIds, texts: LabelledTexts | None) -> InductionWords:
    """Words that the tokenizer can distinguish: the most frequent of a text with passages of it, or English ones of our own.

    Raises CorpusError with the reason where there are too few.
    """
    asked, passages = (ENGLISH, ()) if texts is None else _of_text(texts.texts())
    apart = _distinct(ids, asked)
    pairs = BindingTemplate("induction", "", " {key} {value}", " {key}", apart, apart)
    keys, values = (word_tokens(ids, pairs, slot) for slot in ("key", "value"))
    tokens = {word: token for word, token in keys.items() if values.get(word) == token}
    if len(tokens) < LEAST or (texts is not None and not passages):
        which = (
            "words that were tried"
            if texts is None
            else "words of letters alone (two or more), which alone were tried,"
        )
        has = f"{len(tokens)} of {len(asked)} {which} are one token of their own, and {LEAST} are needed"
        of = "" if texts is None else f"; {texts.name} has {len(passages)} runs of {PASSAGE} words in one text"
        todo = "Name a text in the model's own words with --corpus, or give pairs of your own with --pairs."
        raise CorpusError("The task 'induction' has too few words.", f"{has}{of}.", todo)
    return InductionWords(tokens, passages)


def draw_induction(
    ids: TokenIds, usable: InductionWords, count: int, seed: int, between: int = BETWEEN[0]
) -> tuple[TextPair, ...]:
    """So many pairs: four times two words (A B) in a passage, and one of the As again; B is to come.

    The donor has the same words at the same places, its As in another order, otherwise paired, and ends in another A. What the
    passage says besides is the same in both, and holds none of them, nor any of their tokens. The answers of the base and those
    that q, k and v from the donor predict are all different. Raises CorpusError where the tokenizer does not give such texts.
    """
    draw, found = np.random.default_rng([seed, 14]), list[TextPair | None]([None] * count)
    for attempt in range(2 * TRIES):
        missing = [number for number, pair in enumerate(found) if pair is None]
        drawn = [_drawn(draw, usable, between, own=attempt < TRIES) for _ in missing]
        rows = ids([one.text for both in drawn for one in both])
        for at, (number, both) in enumerate(zip(missing, drawn, strict=True)):
            if all(_as_meant(usable.tokens, one.bound, rows[2 * at + i]) for i, one in enumerate(both)):
                base, donor = both
                answers, place = spaced_answers(base.bound, donor.bound), f"pair {number + 1} of induction"
                found[number] = TextPair(base.text, donor.text, answers, place, "induction")
        if None not in found:
            break
    pairs = tuple(pair for pair in found if pair is not None)
    if len(pairs) < count:
        known = (
            f"In {2 * TRIES} tries the words of a pair were other tokens in a whole text, or stood in it elsewhere too."
        )
        todo = "Give pairs of your own with --pairs."
        raise CorpusError("The tokenizer cannot distinguish the texts of the task 'induction'.", known, todo)
    return pairs


class _Text(NamedTuple):
    """A text and what it says."""

    text: str
    bound: Bound


def _drawn(draw: np.random.Generator, usable: InductionWords, between: int, own: bool) -> tuple[_Text, _Text]:
    """A base and its donor; `own`: in a passage of the text, if there is one, else among other words."""
    passage = usable.passages[int(draw.integers(len(usable.passages)))] if usable.passages and own else ()
    said = {word.casefold() for word in passage}
    free = _mixed(draw, [word for word in usable.words if word.casefold() not in said])
    if not passage or len(free) < 2 * BINDINGS:  # no text, or a passage that holds most of the words
        free = _mixed(draw, usable.words)
        passage = free[2 * BINDINGS :][:PASSAGE]
    chosen = free[: 2 * BINDINGS]
    base, donor = draw_bound(draw, chosen[:BINDINGS], chosen[BINDINGS:])
    return _Text(_written(passage, base, between), base), _Text(_written(passage, donor, between), donor)


def _as_meant(tokens: Mapping[str, int], bound: Bound, row: Sequence[int]) -> bool:
    """Whether of a text's tokens those of its As and Bs stand where they were put and nowhere else, the asked one last."""
    put = [tokens[word] for both in zip(bound.keys, bound.values, strict=True) for word in both] + [tokens[bound.asked]]
    return [token for token in row if token in put] == put and row[-1] == put[-1]


def _mixed(draw: np.random.Generator, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[int(i)] for i in draw.permutation(len(words)))


def _written(passage: Sequence[str], bound: Bound, between: int) -> str:
    """The passage with a pair of words after every few of its own, and at the end the word that is asked for."""
    pieces = [passage[at * between :][:between] for at in range(BINDINGS + 1)]
    facts = zip(pieces[:BINDINGS], bound.keys, bound.values, strict=True)
    pairs = chain.from_iterable((*own, key, value) for own, key, value in facts)
    return " ".join((*pairs, *pieces[BINDINGS], bound.asked))


def _distinct(ids: TokenIds, words: Sequence[str]) -> tuple[str, ...]:
    """The first of all words that are the same to the tokenizer: of 'The' and 'the' where it puts all in lower case."""
    found: dict[tuple[int, ...], str] = {}
    for word, row in zip(words, ids([f" {word}" for word in words]), strict=True):
        found.setdefault(tuple(row), word)
    return tuple(found.values())


def _of_text(texts: Iterable[Labelled]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The most frequent words of a text that are letters alone, as they are written there, and runs of its words."""
    counts: Counter[str] = Counter()
    passages: list[tuple[str, ...]] = []
    for one in islice(texts, READ):
        words = [one.text[slice(*one.spans[i])] for i in one.leading_words()]
        counts.update(word for word in words if word.isalpha() and len(word) > 1)
        if len(words) >= PASSAGE and len(passages) < KEPT:
            passages.append(tuple(words[:PASSAGE]))
    return tuple(word for word, _ in sorted(counts.items(), key=lambda of: (-of[1], of[0]))[:MOST]), tuple(passages)
