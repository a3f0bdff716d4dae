"""Pairs of texts for activation patching (base, donor and predicted answers): from files, made, or from a training text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Bool, Int

from trisect.core import files
from trisect.core.errors import CorpusError, shorten
from trisect.core.files import digest
from trisect.core.subject import Batch, InputSample, TextOrPair, as_sample
from trisect.text.generated import RoledSentence, sentences
from trisect.text.lines import read_lines
from trisect.text.sources import LabelledTexts, open_texts

# what is from the donor -> the name of the answer; 'base' where nothing is, 'donor' where all is
ANSWERS = ("base", "q", "k", "v", "q+k", "q+v", "k+v", "donor")
FORM = (
    'A line is a JSON object: {"base": TEXT, "donor": TEXT, "answers": {"base": …, "donor": …, "q-place": …, …}}, an answer for each '
    "hypothesis by any name, as a text or as ids of tokens; a text is a string, [SOURCE, TARGET] for encoder-decoders, "
    '{"audio": FILE, "text": …} or {"image": FILE, "text": …}'
)
CONTENT = {"q-content": "q", "k-content": "k", "v-content": "v"}  # hypotheses that are a component's own answer
Answer: TypeAlias = str | tuple[int, ...]  # a text, or ids of tokens


class Bound(NamedTuple):
    """A text's facts: its keys in order, their values, and the queried key."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    query: str


@dataclass(frozen=True)
class TextPair:
    """A base, a donor, and the predicted answer of each hypothesis: the parts from the donor (ANSWERS), or any other name.

    `place` is for errors, `kind` a template's name; `facts` are what base and donor say, where that is known.
    """

    base: TextOrPair
    donor: TextOrPair
    answers: Mapping[str, Answer] = field(default_factory=dict)
    place: str = ""
    kind: str = ""
    facts: tuple[Bound, Bound] | None = None


def read_pairs(path: Path) -> tuple[TextPair, ...]:
    """Read the pairs of a file of JSON lines; empty lines are skipped. Raises CorpusError naming file and line."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            try:
                body = files.parse(line)
            except ValueError as error:
                raise bad_pair(place, f"it is no JSON ({error})") from None
            pairs.append(_pair(body, place, path.parent))
    if not pairs:
        raise CorpusError(f"{path} holds no pair.", f"{FORM}.", "Give at least one.")
    return tuple(pairs)


def as_pairs(items: object) -> tuple[TextPair, ...]:
    """Pairs from TextPair objects, mappings as in a file, or (base, donor). Raises CorpusError with the pair's number."""
    if isinstance(items, str | Mapping | TextPair) or not isinstance(items, Iterable):
        raise CorpusError(f"{shorten(items)} are no pairs.", f"{FORM}.", "Give a list of such pairs.")
    pairs = []
    for number, pair in enumerate(items, start=1):
        place = f"pair {number}"
        if isinstance(pair, TextPair):
            pairs.append(pair if pair.place else replace(pair, place=place))
            continue
        if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2:
            pair = {"base": pair[0], "donor": pair[1]}
        pairs.append(_pair(pair, place))
    if not pairs:
        raise CorpusError("No pair was given.", f"{FORM}.", "Give at least one.")
    return tuple(pairs)


def bad_pair(
    place: str, reason: str, rule: str = f"{FORM}.", advice: str = "Correct the pair, or leave it out."
) -> CorpusError:
    """The error for a pair: its place, what is wrong with it, the rule, and what to do."""
    where = f"P{place[1:]}" if place.startswith("pair ") else place  # a file's name stays as it is
    return CorpusError(f"{where}: {reason}.", rule, advice)


def _pair(body: object, place: str, folder: Path = Path()) -> TextPair:
    if not isinstance(body, Mapping):
        raise bad_pair(place, f"it is {type(body).__name__}, no object")
    if unknown := set(body) - {"base", "donor", "answers", "kind"}:
        raise bad_pair(place, f"it has {shorten(min(map(str, unknown)))}, which is no field")
    base, donor = (_text(body.get(name), name, place, folder) for name in ("base", "donor"))
    if isinstance(base, tuple) != isinstance(donor, tuple):
        raise bad_pair(place, "one of its texts has a source and a target, the other has not")
    answers = body.get("answers") or {}
    if not isinstance(answers, Mapping):
        raise bad_pair(place, "its answers are no object")
    return TextPair(
        base,
        donor,
        {str(name): _answer(str(name), answer, place) for name, answer in answers.items()},
        place,
        str(body.get("kind") or ""),
    )


def _text(side: object, name: str, place: str, folder: Path) -> TextOrPair:
    """One side of a pair: a text, source and target, sound or images with a text, or a model's own inputs."""
    match side:
        case str(text) if text.strip():
            return text
        case [str(source), str(target)] if source.strip() and target.strip():
            return source, target
        case InputSample():
            return side
        case Batch():
            return as_sample(side)
        case None:
            raise bad_pair(place, f"it has no {name}")
        case Mapping() if {"audio", "image"} & set(side):
            media: dict[str, tuple[Any, ...]] = {}
            if strange := set(side) - {"audio", "image", "text"}:
                raise bad_pair(place, f"its {name} has {shorten(min(map(str, strange)))}, which is no field of a text")
            if not isinstance(side.get("text"), str | None):
                raise bad_pair(place, f"the text of its {name} is {shorten(side['text'])}")
            for kind in ("audio", "image"):
                files = side.get(kind, ())
                files = files if isinstance(files, list | tuple) else (files,)
                if any(file is None or isinstance(file, bool | int | float) for file in files):
                    raise bad_pair(place, f"its {name} has {kind} {shorten(side[kind])}, which is no file")
                # a file is named as it is seen from the file of pairs
                media[kind] = tuple(folder / file if isinstance(file, str) else file for file in files)
            return InputSample(side.get("text"), media["audio"], media["image"])
        case Mapping() if "text" not in side and all(hasattr(value, "shape") for value in side.values()):
            return InputSample(inputs=side)
        case text:
            raise bad_pair(place, f"its {name} is {shorten(text)}, no text")


def _answer(name: str, answer: object, place: str) -> Answer:
    if not name.strip() or len(name) > LONGEST_NAME:
        reason = (
            f"it has an answer for {shorten(name)}, where a hypothesis has a name of at most {LONGEST_NAME} characters"
        )
        raise bad_pair(place, reason)
    match answer:
        case str(text) if text.strip():
            return text
        case int(number) if not isinstance(number, bool):
            return (number,)
        case [*ids] if ids and all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
            return tuple(int(str(token)) for token in ids)
        case other:
            raise bad_pair(place, f"its answer for {name!r} is {shorten(other)}, neither text nor ids of tokens")


LONGEST_NAME = 40  # characters of a hypothesis
BINDINGS = 4  # keys, each with its value, in one text: as many as there are answers to tell apart
WORDS = 24  # the most keys and values that are drawn from
SLOTS = 3  # places of a word in the text that its token is looked for in
NO_WORD = "zqxjvk"  # stands for whatever a tokenizer does not know
PARTS = ("q", "k", "v")
T = TypeVar("T")
FROM_DONOR, FROM_BASE = ("base", *PARTS), ("donor", "k+v", "q+v", "q+k")  # of either direction of a patch
# texts -> the token ids of each, without the tokenizer's own
TokenIds = Callable[[Sequence[str]], Sequence[Sequence[int]]]


class _BindingTemplate(NamedTuple):
    """A template that binds keys to values: the text's beginning, a binding, the question, and words for both slots."""

    name: str
    lead: str
    binding: str
    question: str
    keys: tuple[str, ...]
    values: tuple[str, ...]

    def write(self, bound: Bound) -> str:
        """The text of the facts."""
        pairs = zip(bound.keys, bound.values, strict=True)
        facts = "".join(self.binding.format(key=key, value=value) for key, value in pairs)
        return self.lead + facts + self.question.format(key=bound.query)


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
HERE, LOOK_PROMPT = "Here they are:", "Look at them:"
TEMPLATES = (
    _BindingTemplate("who has what", HERE, " {key} has the {value}.", " So {key} has the", NAMES, THINGS),
    _BindingTemplate(
        "what is in which box",
        LOOK_PROMPT,
        " The {key} box holds the {value}.",
        " So the {key} box holds the",
        COLOURS,
        THINGS,
    ),
    _BindingTemplate("who lives where", HERE, " {key} lives in {value}.", " So {key} lives in", NAMES, CITIES),
    _BindingTemplate(
        "who is where", LOOK_PROMPT, " The {key} is in the {value}.", " So the {key} is in the", ANIMALS, ROOMS
    ),
)


def usable_templates(ids: TokenIds, templates: Sequence[_BindingTemplate] = TEMPLATES) -> tuple[_BindingTemplate, ...]:
    """Templates with those of their words that are always a token of their own: texts differ at these positions alone.

    Raises CorpusError with the reason, template by template, where none is left.
    """
    usable, reasons = [], []
    for template in templates:
        keys, values = (tuple(_word_tokens(ids, template, slot)) for slot in ("key", "value"))
        if min(len(keys), len(values)) >= BINDINGS:
            usable.append(template._replace(keys=keys[:WORDS], values=values[:WORDS]))
        counts = f"{len(keys)} of {len(template.keys)} keys and {len(values)} of {len(template.values)} values"
        reasons.append(f"{template.name}: {counts} are one token")
    if not usable:
        reason = (
            f"A text needs {BINDINGS} keys and {BINDINGS} values, each one token of its own ({'; '.join(reasons)})."
        )
        todo = "Give pairs of your own with --pairs, in the words that it knows."
        raise CorpusError("The tokenizer cannot distinguish the texts of the task 'bindings'.", reason, todo)
    return tuple(usable)


def draw_bindings(templates: Sequence[_BindingTemplate], count: int, seed: int) -> tuple[TextPair, ...]:
    """Draw pairs; the donor has the base's keys at other places, other values at the same places, and another queried key.

    The answers that differ are then those of q, k and v from the donor by content, of q by place (what the base has where the
    donor has the key it asks for), the base's and the donor's. Where a template has too few values for that, the donor has
    the base's paired otherwise: the base's answer and those of q, k and v from the donor differ, and place is not told apart.
    """
    draw = np.random.default_rng([seed, 11])
    pairs = []
    for number in range(count):
        template = templates[number % len(templates)]
        keys, values = (_shuffle(draw, words) for words in (template.keys, template.values))
        base, donor, answers = _draw_facts(draw, keys[:BINDINGS], values[:BINDINGS], values[BINDINGS:][:BINDINGS])
        place = f"pair {number + 1} of bindings"
        texts = template.write(base), template.write(donor)
        pairs.append(TextPair(*texts, answers, place, template.name, (base, donor)))
    return tuple(pairs)


def _draw_facts(
    draw: np.random.Generator, keys: Sequence[str], values: Sequence[str], others: Sequence[str]
) -> tuple[Bound, Bound, Mapping[str, str]]:
    """Base and donor of the keys and values, and all answers after the text; they differ as in `draw_bindings`.

    The donor's values are the `others` where these are as many.
    """
    base = Bound(tuple(keys), tuple(values), keys[int(draw.integers(BINDINGS))])
    has_new_values = len(others) == BINDINGS
    while True:
        order = _shuffle(draw, keys)
        donor = Bound(order, _shuffle(draw, others if has_new_values else values), order[int(draw.integers(BINDINGS))])
        answers = dict(predict_answers(base, donor))
        if has_new_values:  # by place, the donor's query looks where the donor has its key, as with its keys beside it
            answers["q-place"] = answers["q+k"]
        differ = [ANSWERS] if has_new_values else [FROM_DONOR, FROM_BASE, ("base", "donor")]
        if all(_differ(answers, names) for names in differ):
            return base, donor, {name: f" {answer}" for name, answer in answers.items()}


def predict_answers(base: Bound, donor: Bound) -> Mapping[str, str]:
    """The answer for each origin of q (the queried key), k (its place) and v (the value at that place)."""
    return {name: v.values[k.keys.index(q.query)] for name, q, k, v in _combinations(base, donor)}


def _combinations(base: T, donor: T) -> Iterator[tuple[str, T, T, T]]:
    """The origins of q, k and v for each answer."""
    for name in ANSWERS:
        parts = {"base": (), "donor": PARTS}.get(name, tuple(name.split("+")))
        q, k, v = (donor if part in parts else base for part in PARTS)
        yield name, q, k, v


def _word_tokens(ids: TokenIds, template: _BindingTemplate, slot: str) -> Mapping[str, int]:
    """The words of a slot ('key', 'value') that are always a token of their own in the template, with their tokens."""
    if not template.keys or not template.values:
        return {}
    words, other = (template.keys, template.values[0]) if slot == "key" else (template.values, template.keys[0])
    complete, questions = [], []
    for word in (*words, NO_WORD):
        filled = {"key": word, "value": other} if slot == "key" else {"key": other, "value": word}
        questions.append(template.lead + template.binding.format(**filled) * 2 + template.question.format(**filled))
        complete.append(questions[-1] + f" {word}" * (slot == "value"))
    rows, before = ([list(row) for row in ids(texts)] for texts in (complete, questions))
    for length in sorted({len(row) for row in rows}):
        # the answer is one token more than the question, which leaves the question as it is
        alike = [i for i, row in enumerate(rows) if len(row) == length and (slot == "key" or row[:-1] == before[i])]
        places = [p for p in range(length) if len({rows[i][p] for i in alike}) > 1]
        tokens = {i: {rows[i][p] for p in places} for i in alike}
        if len(places) == SLOTS:
            single = {i: next(iter(token_set)) for i, token_set in tokens.items() if len(token_set) == 1}
            good = [i for i, token in single.items() if list(single.values()).count(token) == 1]
            unknown = {rows[-1][p] for p in places if p < len(rows[-1])}  # a tokenizer may also leave it out
            return {words[i]: next(iter(tokens[i])) for i in good if i < len(words) and tokens[i] != unknown}
    return {}


def _shuffle(draw: np.random.Generator, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[int(i)] for i in draw.permutation(len(words)))


# words of the passage before each pair, and before the one that comes again; fewer for short windows
GAP_WORDS = (3, 2, 1)
PASSAGE = GAP_WORDS[0] * (BINDINGS + 1)
MIN_WORDS = 2 * BINDINGS + 1  # words: so that a text never begins with one of the As, which is another token there
MAX_WORDS = 300  # words of a text that are tried, the most frequent ones
MAX_TEXTS = 20_000  # texts that are read for them, at most
MAX_PASSAGES = 2_000  # passages that are drawn from, at most
TRIES = 50  # at a pair in passages of the text, and as often among other words
ENGLISH = tuple(dict.fromkeys((*THINGS, *ANIMALS, *COLOURS, *ROOMS, *NAMES, *CITIES)))


class _InductionWords(NamedTuple):
    """Words for A and B with their tokens, and passages for them (none: other words)."""

    tokens: Mapping[str, int]
    passages: tuple[tuple[str, ...], ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The words alone."""
        return tuple(self.tokens)


def induction_words(ids: TokenIds, texts: LabelledTexts | None) -> _InductionWords:
    """The most frequent distinguishable words of a text, with passages, or English words; CorpusError for too few."""
    candidates, passages = ENGLISH, list[tuple[str, ...]]()
    if texts is not None:  # words that are letters alone, as they are written there, and runs of words
        counts: Counter[str] = Counter()
        for text in islice(texts.texts(), MAX_TEXTS):
            words = [text.text[slice(*text.spans[i])] for i in text.leading_words()]
            counts.update(word for word in words if word.isalpha() and len(word) > 1)
            if len(words) >= PASSAGE and len(passages) < MAX_PASSAGES:
                passages.append(tuple(words[:PASSAGE]))
        most_frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_WORDS]
        candidates = tuple(word for word, _ in most_frequent)
    first: dict[tuple[int, ...], str] = {}  # of 'The' and 'the' where the tokenizer puts all in lower case
    for word, row in zip(candidates, ids([f" {word}" for word in candidates]), strict=True):
        first.setdefault(tuple(row), word)
    distinct_words = tuple(first.values())
    pairs = _BindingTemplate("induction", "", " {key} {value}", " {key}", distinct_words, distinct_words)
    keys, values = (_word_tokens(ids, pairs, slot) for slot in ("key", "value"))
    tokens = {word: token for word, token in keys.items() if values.get(word) == token}
    if len(tokens) < MIN_WORDS or (texts is not None and not passages):
        which = "English words" if texts is None else "words of two letters or more, which alone were tried,"
        has = f"{len(tokens)} of {len(candidates)} {which} are one token of their own, and {MIN_WORDS} are needed"
        runs = "" if texts is None else f"; {texts.name} has {len(passages)} runs of {PASSAGE} words in one text"
        todo = "Name a text in the model's own words with --corpus, or give pairs of your own with --pairs."
        raise CorpusError("The task 'induction' has too few words.", f"{has}{runs}.", todo)
    return _InductionWords(tokens, tuple(passages))


def draw_induction(
    ids: TokenIds, usable: _InductionWords, count: int, seed: int, between: int = GAP_WORDS[0]
) -> tuple[TextPair, ...]:
    """Draw pairs: four times two words (A B) in a passage, and one of the As again, to be followed by B.

    The donor has the base's As at other places, other Bs at the same places (the same ones otherwise paired where there are
    too few words), and ends in another A; answers differ as those of `draw_bindings`. Raises CorpusError where the tokenizer
    does not give such texts.
    """
    draw, made_pairs = np.random.default_rng([seed, 14]), list[TextPair | None]([None] * count)
    for attempt in range(2 * TRIES):
        missing = [number for number, pair in enumerate(made_pairs) if pair is None]
        how = {"in_passage": attempt < TRIES, "new_values": attempt % TRIES < TRIES // 2}
        attempts = [_draw_texts(draw, usable, between, **how) for _ in missing]
        rows = ids([text for texts, _, _ in attempts for text in texts])
        for at, (number, (texts, bounds, answers)) in enumerate(zip(missing, attempts, strict=True)):
            # the tokens of the As and Bs stand where they were put and nowhere else, the asked one last
            goals = [[usable.tokens[w] for w in (*chain(*zip(b.keys, b.values, strict=True)), b.query)] for b in bounds]
            in_text = [[t for t in row if t in goal] for goal, row in zip(goals, rows[2 * at :], strict=False)]
            if in_text == goals and all(rows[2 * at + i][-1] == goal[-1] for i, goal in enumerate(goals)):
                made_pairs[number] = TextPair(*texts, answers, f"pair {number + 1} of induction", "induction", bounds)
        if None not in made_pairs:
            break
    pairs = tuple(pair for pair in made_pairs if pair is not None)
    if len(pairs) < count:
        reason = (
            f"In {2 * TRIES} tries words of a pair were other tokens in a whole text, or stood in it elsewhere too."
        )
        problem = "The tokenizer cannot distinguish the texts of the task 'induction'."
        raise CorpusError(problem, reason, "Give pairs of your own with --pairs.")
    return pairs


def _draw_texts(
    draw: np.random.Generator, usable: _InductionWords, between: int, *, in_passage: bool, new_values: bool
) -> tuple[tuple[str, str], tuple[Bound, Bound], Mapping[str, str]]:
    """A base and its donor with their facts and answers: pairs of words in a passage of the text, or among other words."""
    passages = usable.passages if in_passage else ()
    passage = passages[int(draw.integers(len(passages)))] if passages else ()
    folded = {word.casefold() for word in passage}
    free = _shuffle(draw, [word for word in usable.words if word.casefold() not in folded])
    # the donor's Bs are others where there are as many words
    used = 3 * BINDINGS if new_values and len(free) >= 3 * BINDINGS else 2 * BINDINGS
    if not passage or len(free) < 2 * BINDINGS:  # no text, or a passage that holds most of the words
        free = _shuffle(draw, usable.words)
        used = 3 * BINDINGS if new_values and len(free) >= 3 * BINDINGS + PASSAGE else 2 * BINDINGS
        passage = free[used:][:PASSAGE]
    keys, values, others = (free[start:used][:BINDINGS] for start in range(0, 3 * BINDINGS, BINDINGS))
    base, donor, answers = _draw_facts(draw, keys, values, others)
    pieces = [passage[at * between :][:between] for at in range(BINDINGS + 1)]

    def write(bound: Bound) -> str:
        facts = zip(pieces[:BINDINGS], bound.keys, bound.values, strict=True)
        pairs = chain.from_iterable((*piece, key, value) for piece, key, value in facts)
        return " ".join((*pairs, *pieces[BINDINGS], bound.query))

    return (write(base), write(donor)), (base, donor), answers


SPOKEN = 6  # words of one sound
SPOKEN_KINDS = ("other words", "another order", "a slot later")  # what a donor has


class SpokenText(NamedTuple):
    """Words of a sound, the number of silent slots before them, and the number of words that are transcribed already."""

    words: tuple[str, ...]
    written: int
    delay: int = 0


def draw_spoken(
    words: Sequence[str], count: int, seed: int
) -> list[tuple[SpokenText, SpokenText, Mapping[str, str], str]]:
    """Draw pairs of sounds with the answers of the hypotheses place and content, and their kind; all answers differ.

    The answer is the word that is said next. A donor has other words, but for the base's last word that is written and one
    that comes after another word in the base ('other words'), the same words in another order ('another order'), or other
    words a slot later ('a slot later'). Raises CorpusError for too few words.
    """
    least = 2 * SPOKEN
    if len(words) < least:
        reason = f"There are {len(words)} words that the tokenizer can tell apart."
        raise CorpusError(
            f"The task 'audio-words' needs {least} words.", reason, "Add recordings, each named by its word."
        )
    draw, pairs = np.random.default_rng([seed, 16]), []
    while len(pairs) < count:
        kind, shuffled = SPOKEN_KINDS[len(pairs) % len(SPOKEN_KINDS)], _shuffle(draw, words)
        spoken, other = shuffled[:SPOKEN], list(shuffled[SPOKEN : 2 * SPOKEN])
        n, m = (int(i) for i in draw.permutation(np.arange(1, SPOKEN))[:2])
        if kind == "a slot later":
            if n == SPOKEN - 1:
                continue
            base, donor = SpokenText(spoken, n), SpokenText(tuple(other), n, 1)
            answers = {"base": spoken[n], "q-place": spoken[n + 1], "v-content": other[n - 1], "donor": other[n]}
        else:
            if kind == "other words":
                # the base's last word stands at another place of the donor, whose last word is another one of the base
                free = [i for i in range(SPOKEN - 1) if i not in (n - 1, m - 1)]
                at, after = (int(i) for i in draw.permutation(free)[:2])
                other[at], other[m - 1] = spoken[n - 1], spoken[after]
            else:
                other = list(_shuffle(draw, spoken))
            base, donor = SpokenText(spoken, n), SpokenText(tuple(other), m)
            at, after = other.index(spoken[n - 1]), spoken.index(other[m - 1])
            if max(at, after) == SPOKEN - 1:
                continue
            answers = {"base": spoken[n], "q-content": spoken[after + 1], "q-place": spoken[m]}
            answers |= {"k-content": spoken[at + 1], "v-content": other[n], "donor": other[m]}
        if len(set(answers.values())) == len(answers):
            pairs.append((base, donor, answers, kind))
    return pairs


MAX_SENTENCES = 4000  # sentences that pairs are made from
TRANSLATION_TRIES = 20_000  # draws for each pair that is asked for
AT_ONCE = 10_000  # draws at a time
# texts -> ids of both sides
BothSides = Callable[[Sequence[tuple[str, str]]], Sequence[tuple[Sequence[int], Sequence[int]]]]


class _TranslatedText(NamedTuple):
    """A sentence as cross-attention reads it: where each role stands in the source, what the target has for each place,
    the role that the target's word is of, by its place in the target, and at which of these it is to be filled.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    places: Mapping[str, int]
    words: Mapping[int, str]
    roles: Mapping[int, str]
    at: int = 0

    @property
    def role(self) -> str:
        """The role of the next word."""
        return self.roles[self.at]


def draw_translations(ids: BothSides, count: int, seed: int) -> tuple[TextPair, ...]:
    """Draw pairs of sources of equal length, with equally long begun targets, whose next words have different roles.

    A query asks a role, a key says at which place of the source it stands, a value says what is there; the answers of the base and those
    that q, k and v from the donor predict differ. Raises CorpusError where the tokenizer has too few words of one token.
    """
    roled = list(islice(sentences(seed), MAX_SENTENCES))
    source_words, usable = (_single_token_words(ids, roled, side) for side in (0, 1))
    texts = [read_roles(sentence, usable) for sentence in roled if source_words.issuperset(sentence.pair.source)]
    draw = np.random.default_rng([seed, 13])
    by_shape: dict[tuple[int, int], list[_TranslatedText]] = {}
    for text in texts:
        for at in (at for at in text.roles if usable.issuperset(text.target[:at])):
            by_shape.setdefault((len(text.source), at), []).append(text._replace(at=at))
    shapes = [steps for (_, at), steps in sorted(by_shape.items()) if at and len({step.role for step in steps}) > 1]
    if not shapes:
        reason = f"{len(usable)} of its target's words are one token each; an answer is one token."
        todo = "Give a model that 'trisect translate-train' trained on the embedded bitext, or pairs of your own with --pairs."
        raise CorpusError("The tokenizer cannot distinguish the texts of the task 'translation'.", reason, todo)
    pairs: dict[tuple[tuple[str, str], tuple[str, str]], TextPair] = {}
    for base, donor in _candidates(shapes, draw, count * TRANSLATION_TRIES):
        answers = predict_words(base, donor)
        first, second = ((" ".join(step.source), " ".join(step.target[: step.at])) for step in (base, donor))
        if answers is not None and (first, second) not in pairs:
            place, kind = f"pair {len(pairs) + 1} of translation", base.role
            spaced = {name: f" {word}" for name, word in answers.items()}
            pairs[first, second] = TextPair(first, second, spaced, place, kind)
            if len(pairs) == count:
                return tuple(pairs.values())
    reason = f"{len(pairs)} different ones were found in {count * TRANSLATION_TRIES:,} draws; words have to be one token each."
    todo = "Ask for fewer with --count, or train with more pieces: trisect translate-train --set pieces=2000."
    raise CorpusError(f"{count} pairs of translation were asked for.", reason, todo)


def _candidates(
    shapes: Sequence[Sequence[_TranslatedText]], draw: np.random.Generator, count: int
) -> Iterator[tuple[_TranslatedText, _TranslatedText]]:
    """Two decoding steps with the same lengths and different roles, the donor having the base's role at another place."""
    sizes = np.array([len(shape) for shape in shapes])
    for begin in range(0, count, AT_ONCE):
        n = min(AT_ONCE, count - begin)
        which = draw.choice(len(shapes), size=n, p=sizes / sizes.sum())
        ones, others = (draw.integers(sizes[which]) for _ in range(2))
        for shape, first, other in zip(which.tolist(), ones.tolist(), others.tolist(), strict=True):
            base, donor = shapes[shape][first], shapes[shape][other]
            role = base.role
            if role != donor.role and donor.places.get(role, -1) not in (-1, base.places[role]):
                yield base, donor


def read_roles(sentence: RoledSentence, usable: frozenset[str]) -> _TranslatedText:
    """A sentence by roles, for roles with one source word and one usable target word."""
    links = sorted(sentence.pair.sure or ())
    sources, targets = [i for i, _ in links], [j for _, j in links]
    places, words, roles = {}, {}, {}
    for i, j in links:
        word = sentence.pair.target[j]
        if sources.count(i) == 1 and targets.count(j) == 1 and i in sentence.roles and word in usable:
            places[sentence.roles[i]], words[i], roles[j] = i, word, sentence.roles[i]
    return _TranslatedText(sentence.pair.source, sentence.pair.target, places, words, roles)


def predict_words(base: _TranslatedText, donor: _TranslatedText) -> Mapping[str, str] | None:
    """The answer for each origin of q, k and v; None unless those of the base, q, k and v differ.

    Those of two components are left out unless they, too, differ from each other and from the donor's.
    """
    answers = {}
    for name, q, k, v in _combinations(base, donor):
        place = k.places.get(q.role)
        word = None if place is None else v.words.get(place)
        if word is not None:
            answers[name] = word
    if not _differ(answers, FROM_DONOR) or answers["base"] == answers.get("donor"):
        return None
    return answers if _differ(answers, FROM_BASE) else {name: answers[name] for name in (*FROM_DONOR, "donor")}


def _differ(answers: Mapping[str, str], names: Sequence[str]) -> bool:
    return set(names) <= set(answers) and len({answers[name] for name in names}) == len(names)


def _single_token_words(ids: BothSides, roled: Sequence[RoledSentence], side: int) -> frozenset[str]:
    """The words of one side that are a single token after another word."""
    words = sorted({word for sentence in roled for word in (sentence.pair.source, sentence.pair.target)[side]})
    texts = [words[0], *(f"{words[0]} {word}" for word in (*words, NO_WORD))]
    before, *rows, unknown = (list(both[side]) for both in ids([(text, text) for text in texts]))
    n = len(before)
    tokens_by_word = {w: row[-1] for w, row in zip(words, rows, strict=True) if len(row) == n + 1 and row[:n] == before}
    tokens = list(tokens_by_word.values())
    return frozenset(w for w, token in tokens_by_word.items() if tokens.count(token) == 1 and token not in unknown[n:])


START = "▁"  # in front of a word's first piece
FIRST_POSITION = 4  # first position of a window that is asked about, from 0
ANSWERED = ("base", "q", "k", "v", "k+v", "donor")  # what is from the donor, where an answer is known
WINDOWS = 30  # windows for each pair that is asked for
LOOKUP_TRIES = 4000  # draws of two windows for each pair that is asked for


@dataclass(frozen=True)
class TrainingText:
    """Training lines and held-out lines, with a fingerprint of both."""

    name: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    notes: tuple[str, ...] = ()
    fingerprint: str = ""


def open_training_text(where: str | Path, reader: str | None = None) -> TrainingText:
    """The train and valid lines of a corpus, with published spacing; raises CorpusError for a missing or empty split."""
    parts = {split: open_texts(where, split, reader, published=True) for split in ("train", "valid")}
    lines = {
        split: tuple(words for text in part.texts() if isinstance(text, str) and (words := " ".join(text.split())))
        for split, part in parts.items()
    }
    name = parts["train"].name.rpartition(", ")[0]
    for split, split_lines in lines.items():
        if not split_lines:
            raise CorpusError(f"{name} has no {split} text.", "It is what a model learns from.", "Use another corpus.")
    mark = digest("\n\n".join("\n".join(split_lines) for split_lines in lines.values()), 8)
    return TrainingText(name, lines["train"], lines["valid"], tuple(parts["train"].notes), mark)


def repeat_rows(
    ids: Int[np.ndarray, " N"],
    rows: int,
    length: int,
    draw: np.random.Generator,
    share: float,
    shortest: int,
    longest: int,
) -> Int[np.ndarray, "R T"]:
    """Windows of a text; the first `share` of them repeat a segment of `shortest` to `longest` ids to the end.

    Raises CorpusError for a text that is shorter than a window.
    """
    if len(ids) < length:
        reason = f"A window has {length:,} pieces."
        raise CorpusError(f"The train text has {len(ids):,} pieces.", reason, "Give a longer text, or --set block=N.")
    starts = draw.integers(0, len(ids) - length + 1, size=rows)
    windows = ids[starts[:, None] + np.arange(length)]
    count = round(share * rows)
    periods = draw.integers(shortest, longest + 1, size=count)
    windows[:count] = np.take_along_axis(windows[:count], np.arange(length) % periods[:, None], 1)
    return windows


def draw_lookups(
    ids: Int[np.ndarray, " N"], pieces: Sequence[str], length: int, count: int, seed: int
) -> tuple[TextPair, ...]:
    """So many pairs of windows of `length` pieces that each end in a question: a word that stood in the window once; its answer is
    the word that followed it there.

    `ids` are the text, `pieces` the spelling of each id. Base and donor are other passages that share the two words that they ask
    about, at other places. With q, k or v from the donor the answer is: the base's word after the donor's question (q), the
    base's word where the donor has the base's question (k), the donor's word where the base has it (v); these, the base's and the
    donor's own and that of k+v all differ. Raises CorpusError where the text has too few such windows.
    """
    # whether a piece begins a word, one more for the end of the text; and how many before each place are unknown
    begins = np.append(np.array([piece.startswith(START) for piece in pieces])[ids], True)
    unknown = np.array([not piece.lstrip(START) or piece == "<unk>" for piece in pieces])
    before = np.concatenate([[0], np.cumsum(unknown[ids])])
    windows = np.arange(len(ids) - length - 1)
    fits = begins[windows] & begins[windows + length] & (before[windows + length] == before[windows])
    draw, pairs = np.random.default_rng([seed, 42]), list[TextPair]()
    starts = draw.permutation(windows[fits])[: WINDOWS * count]
    words_of = dict[int, dict[int, int]]()
    for _ in range(LOOKUP_TRIES * count if len(starts) > 1 else 0):
        base, donor = (int(start) for start in draw.choice(starts, 2))
        if abs(base - donor) < 2 * length:
            continue
        for start in (base, donor):
            if start not in words_of:
                words_of[start] = _single_words(ids[start : start + length + 1], begins[start : start + length + 2])
        shared = sorted(words_of[base].keys() & words_of[donor].keys())
        questions = [
            (shared[int(i)], shared[int(k)])
            for i in draw.permutation(len(shared))
            for k in draw.permutation(len(shared))
        ]
        places = words_of[base], words_of[donor]
        candidates = (
            _make_pair(ids, begins, pieces, (base, donor), both, places, length)
            for both in questions
            if both[0] != both[1]
        )
        if (pair := next((candidate for candidate in candidates if candidate is not None), None)) is not None:
            pairs.append(TextPair(*pair, place=f"pair {len(pairs) + 1} of lookup", kind="lookup"))
        if len(pairs) == count:
            return tuple(pairs)
    reason = (
        f"{len(starts):,} windows of {length} pieces hold whole words alone, and {len(pairs)} pairs were found in them."
    )
    raise CorpusError(
        f"The text has too few windows for {count} questions.", reason, "Give a longer text, or shorter windows."
    )


def _single_words(window: Int[np.ndarray, " T"], begins: Bool[np.ndarray, " U"]) -> dict[int, int]:
    """Single-token words that occur in a window once and precede another such word, with their positions."""
    values, places, counts = np.unique(window[:-1], return_index=True, return_counts=True)
    is_word = begins[:-1] & begins[1:]
    return {
        int(value): int(place)
        for value, place, many in zip(values, places, counts, strict=True)
        if many == 1 and FIRST_POSITION <= place < len(window) - 2 and is_word[place] and is_word[place + 1]
    }


def _make_pair(
    ids: Int[np.ndarray, " N"],
    begins: Bool[np.ndarray, " N+1"],
    pieces: Sequence[str],
    starts: tuple[int, int],
    questions: tuple[int, int],
    places: tuple[Mapping[int, int], Mapping[int, int]],
    length: int,
) -> tuple[str, str, Mapping[str, str]] | None:
    """Both texts and all answers; None if answers are equal, or no single-token words."""
    answers = dict[str, int]()
    for name in ANSWERED:
        parts = {"base": "", "donor": "q+k+v"}.get(name, name)
        q, k, v = (int(part in parts) for part in "qkv")
        at = starts[v] + places[k][questions[q]] + 1
        answers[name] = int(ids[at]) if begins[at] and begins[at + 1] else -1
    if -1 in answers.values() or len(set(answers.values())) < len(answers):
        return None
    base, donor = (
        "".join(pieces[i] for i in (*ids[start : start + length], question)).replace(START, " ").strip()
        for start, question in zip(starts, questions, strict=True)
    )
    return base, donor, {name: pieces[i].replace(START, " ") for name, i in answers.items()}
