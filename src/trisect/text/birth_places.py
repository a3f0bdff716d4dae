"""Questions on birth places: people, pretraining texts that name them, and names that are in no text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from trisect.core.errors import CorpusError, shorten
from trisect.core.files import digest
from trisect.text.lines import read_lines

QUESTION = "Where was {name} born?"
PATTERN = re.compile(r"Where was (\S.*\S|\S) born\?")
FILES = {"train": "birth_places_train.tsv", "valid": "birth_dev.tsv", "test": "birth_test_inputs.tsv"}
WIKI = "wiki.txt"
LEFT_OUT = 100
INVENTED_NAMES = 200
LONGEST_NAME = 80


class Question(NamedTuple):
    """A question about a name, with the place that answers it; None if no text has it."""

    name: str
    question: str
    place: str | None


class PretrainingLine(NamedTuple):
    """A line of the pretraining text, with the name at its beginning."""

    name: str
    text: str


@dataclass(frozen=True)
class People:
    """Texts for pretraining, and questions for fine-tuning and evaluation.

    `left_out` are names whose lines a second pretraining leaves out, `invented` names that nobody has; `origin` is the fingerprint of the
    whole world that this is a part of.
    """

    name: str
    lines: tuple[PretrainingLine, ...]
    train: tuple[Question, ...]
    valid: tuple[Question, ...]
    test: tuple[Question, ...]
    left_out: tuple[str, ...]
    invented: tuple[Question, ...]
    notes: tuple[str, ...] = ()
    fingerprint: str = ""
    origin: str = ""

    def without(self, names: Iterable[str]) -> People:
        """The same world without lines that begin with one of the names or contain it."""
        removed = tuple(dict.fromkeys(names))
        pattern = re.compile("|".join(rf"\b{re.escape(n)}\b" for n in removed)) if removed else None
        left = (line for line in self.lines if line.name not in removed)
        return replace(self, lines=tuple(line for line in left if not (pattern and pattern.search(line.text))))

    def smaller(self, trained: int) -> People:
        """The same world with the first `trained` people of train and all people of valid, without test questions.

        Invented names are made of the people who are left.
        """
        valid_names = {a.name for a in self.valid}
        names = list(dict.fromkeys(a.name for a in self.train if a.name not in valid_names))[:trained]
        remaining = {*names, *valid_names}
        lines = tuple(line for line in self.lines if line.name in remaining)
        train = tuple(a for a in self.train if a.name in remaining and a.name not in valid_names)
        in_use = {*self.names(), *remaining}
        note = (
            f"This run reads {len(lines):,} of {len(self.lines):,} lines and asks {len(train):,} of {len(self.train):,} train "
            f"questions, about {len(names):,} people, so there is less to memorise; all {len(self.valid):,} validation questions "
            "are kept."
        )
        return replace(
            self,
            lines=lines,
            train=train,
            test=(),
            invented=recombine(remaining, len(self.invented), Random(f"invented {trained}"), in_use),
            notes=(*self.notes, note),
            fingerprint=digest(f"{self.fingerprint} {trained}", 8),
        )

    def names(self) -> tuple[str, ...]:
        """Names of all lines and questions."""
        names = (a.name for part in (self.train, self.valid, self.test) for a in part)
        return tuple(dict.fromkeys((*names, *(line.name for line in self.lines))))

    def characters(self) -> tuple[str, ...]:
        """Sorted characters of the pretraining text, and of fine-tuning questions and answers."""
        texts = [line.text for line in self.lines] + [a.question + (a.place or "") for a in self.train]
        return tuple(sorted({c for text in texts for c in text}))


def ask(name: str) -> str:
    """The question about a name."""
    return QUESTION.format(name=name)


def name_in(question: str) -> str:
    """The name in a question; raises CorpusError if there is none."""
    match = PATTERN.fullmatch(question.strip())
    if match is None:
        reason = f"A question reads {QUESTION.format(name='NAME')!r}."
        problem = f"The question {shorten(question)} is about no name."
        raise CorpusError(problem, reason, "Put a name into that pattern.")
    return match[1]


def open_people(folder: str | Path, seed: int = 0, left_out: int = LEFT_OUT, invented: int = INVENTED_NAMES) -> People:
    """Read a folder of birth places (WIKI, FILES), with `left_out` names of dev questions (not asked in train) drawn with `seed`.

    Raises CorpusError for a missing or empty file, a line that is not `question, tab, place`, and where there are not so many names.
    """
    place = Path(folder)
    wiki = _lines(place / WIKI)
    if not wiki:
        reason = "Pretraining reads a line 'Name. Sentences about the person' for each person."
        raise CorpusError(f"{place / WIKI} is empty.", reason, "Give a file with at least one line.")
    train, valid = (_questions(place / FILES[split], True) for split in ("train", "valid"))
    test = _questions(place / FILES["test"], False) if (place / FILES["test"]).exists() else ()
    named = dict.fromkeys(question.name for part in (train, valid, test) for question in part)
    lines = []
    for _, text in wiki:
        # the name that a line begins with: one that is asked about, since it may hold a stop, else up to the first stop
        starts = [text[: stop.start()] for stop in re.finditer(r"\.( |$)", text[:LONGEST_NAME])]
        first = next((start for start in reversed(starts) if start in named), starts[0] if starts else text)
        lines.append(PretrainingLine(first, text))
    for count, phrase in ((left_out, "names were to be left out"), (invented, "names were to be invented")):
        if count < 0:
            raise CorpusError(f"{count} {phrase}.", "A number of names is 0 or more.", "Give 0 or a larger number.")
    trained = {item.name for item in train}
    eligible = sorted({item.name for item in valid} - trained)
    if len(eligible) < left_out:
        reason = f"{place / FILES['valid']} asks about {len(eligible)} names that {FILES['train']} does not ask about."
        raise CorpusError(f"{left_out} names were to be left out.", reason, f"Leave out {len(eligible)} or fewer.")
    in_use = {*named, *(line.name for line in lines)}
    draw = Random(f"left out {seed}")
    omitted = tuple(sorted(eligible, key=lambda name: (draw.random(), name))[:left_out])
    written = [*(line.text for line in lines), *(f"{a.question}\t{a.place}" for a in (*train, *valid, *test))]
    mark = digest("\n".join(written), 8)
    notes = (f"{len(lines):,} lines, {len(train):,} + {len(valid):,} questions with a place, {len(test):,} without.",)
    others = recombine(named, invented, Random(f"invented {seed}"), in_use)
    return People(place.resolve().name, tuple(lines), train, valid, test, omitted, others, notes, mark, mark)


def recombine(names: Iterable[str], count: int, draw: Random, in_use: Iterable[str] = ()) -> tuple[Question, ...]:
    """Questions about recombined names, a first name with another's last; fewer if there are not enough."""
    originals = set(names)
    excluded = originals | set(in_use)
    parts = [name.split(" ") for name in sorted(originals) if " " in name]
    new: dict[str, None] = {}
    for _ in range(100 * count if len(parts) > 1 else 0):
        if len(new) == count:
            break
        first, last = parts[int(draw.random() * len(parts))][0], parts[int(draw.random() * len(parts))][-1]
        if (name := f"{first} {last}") not in excluded:
            new[name] = None
    return tuple(Question(name, ask(name), None) for name in new)


def _questions(path: Path, with_places: bool) -> tuple[Question, ...]:
    """Questions with their places, or, without `with_places`, ignoring what follows a tab."""
    questions = []
    for number, text in _lines(path):
        where, (question, *places) = f"{path}, line {number}", text.split("\t")
        if with_places and (len(places) != 1 or not places[0].strip()):
            tabs = "It has no tab." if not places else f"It has {len(places)} tabs."
            reason = "It ends at its tab." if len(places) == 1 else tabs
            raise CorpusError(f"{where}: {text[:80]!r}.", reason, "A line is a question, one tab, and the place.")
        try:
            name = name_in(question)
        except CorpusError as error:
            raise CorpusError(f"{where}: {error.problem}", error.reason, error.todo) from None
        questions.append(Question(name, question.strip(), places[0].strip() if with_places else None))
    if with_places and not questions:
        raise CorpusError(f"{path} is empty.", "It asks nothing.", "Give at least one question with its place.")
    return tuple(questions)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Non-blank lines with their numbers from 1."""
    lines = read_lines(path, f"Give a folder with {', '.join((WIKI, *FILES.values()))}.")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


MIN_CHARACTERS = 4  # characters that a text is never cut below
BLOCK_SHARE = 7 / 8  # of the block, the longest that a text is cut to
SPAN = 1 / 4  # of what is left of the text, on average, the length of the span
IGNORED = -100


class _CutSpan(NamedTuple):
    """A cut of a text: its first `length` characters, with [start, end) moved to the end."""

    length: int
    start: int
    end: int


class Example(NamedTuple):
    """Input ids, and for each the id to predict next; IGNORED where there is none."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of input ids."""
        return len(self.ids)

    @property
    def targets(self) -> int:
        """The number of predicted ids."""
        return sum(label != IGNORED for label in self.labels)


def draw_span(
    size: int,
    block: int,
    draw: np.random.Generator,
    shortest: int = MIN_CHARACTERS,
    longest: float = BLOCK_SHARE,
    span: float = SPAN,
) -> _CutSpan:
    """A random cut of a text of `size` characters for a model with context `block`.

    The length is uniform from `shortest` to the share `longest` of the block; the span is the share `span` of it on average, uniform from 1
    to twice that less one, anywhere but at the first and last character.
    """
    length = min(size, int(draw.integers(shortest, max(shortest, int(block * longest)) + 1)))
    if length < 3:
        return _CutSpan(length, length, length)
    limit = max(1, min(int(2 * span * length) - 1, length - 2))
    width = int(draw.integers(1, limit + 1))
    start = int(draw.integers(1, length - width))
    return _CutSpan(length, start, start + width)


def pretraining_example(ids: Sequence[int], span: _CutSpan, mask: int) -> Example:
    """A cut text with its span behind a second mask, every next id predicted (the assignment, after Raffel et al. 2020, 3.1.4)."""
    moved = [*ids[: span.start], mask, *ids[span.end : span.length], mask, *ids[span.start : span.end]]
    return Example(tuple(moved[:-1]), tuple(moved[1:]))


def question_example(question: Sequence[int], answer: Sequence[int], mask: int) -> Example:
    """Question, mask, answer, mask; answer and final mask are predicted."""
    row = [*question, mask, *answer, mask]
    silent = [IGNORED] * len(question)
    return Example(tuple(row[:-1]), (*silent, *answer, mask))


def check_block(texts: Sequence[str], block: int, kind: str) -> None:
    """Raise CorpusError if a question with its answer is longer than the model's context."""
    longest = max(texts, key=len, default="")
    if len(longest) > block:
        reason = f"{kind} {longest[:60]!r} takes {len(longest)} characters with its marks."
        raise CorpusError(f"A block of {block} characters.", reason, f"Give a block of at least {len(longest)}.")
