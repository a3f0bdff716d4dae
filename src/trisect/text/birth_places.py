"""Birth place questions: people, the pretraining texts that name them, and names that stand in no text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from typing_extensions import TypedDict

from trisect.core.errors import CorpusError
from trisect.core.files import digest
from trisect.core.schema import LINE_BYTES
from trisect.text.corpus import check_lines

QUESTION = "Where was {name} born?"
PATTERN = re.compile(r"Where was (\S.*\S|\S) born\?")
FILES = {"train": "birth_places_train.tsv", "valid": "birth_dev.tsv", "test": "birth_test_inputs.tsv"}
WIKI = "wiki.txt"
LEFT_OUT = 100
INVENTED = 200
LONGEST_NAME = 80


class Question(NamedTuple):
    """A question about one name, and the place that answers it; null where no text says it."""

    name: str
    question: str
    place: str | None


class PretrainingLine(NamedTuple):
    """A line of the pretraining text, and the name that it begins with."""

    name: str
    text: str


@dataclass(frozen=True)
class People:
    """A small world: what is read in pretraining, what is asked in fine-tuning and afterwards.

    A second pretraining leaves out the lines of `left_out`; it is empty where the world has unseen people by itself.
    `invented` are names that nobody has. `origin` is the fingerprint of the whole world that this is a part of.
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
        """The same world, less every line that begins with one of the names or holds it."""
        gone = tuple(dict.fromkeys(names))
        pattern = re.compile("|".join(rf"\b{re.escape(n)}\b" for n in gone)) if gone else None
        kept = tuple(
            line for line in self.lines if line.name not in gone and not (pattern and pattern.search(line.text))
        )
        return replace(self, lines=kept)

    def smaller(self, trained: int) -> People:
        """The same world with the first `trained` people that train asks about, and everybody that valid asks about.

        No line of anybody else is left, and the test questions are dropped: what is asked stays, what is to be learnt by
        heart is less. Where train asks about fewer, all of them are kept. Invented names join those of people who are left.
        """
        asked = {a.name for a in self.valid}
        names = list(dict.fromkeys(a.name for a in self.train if a.name not in asked))[:trained]
        kept = {*names, *asked}
        lines = tuple(line for line in self.lines if line.name in kept)
        train = tuple(a for a in self.train if a.name in kept and a.name not in asked)
        taken = {*self.names(), *kept}
        invented = recombine(kept, len(self.invented), Random(f"invented {trained}"), taken)
        note = (
            f"This run reads {len(lines):,} of {len(self.lines):,} lines and asks {len(train):,} of {len(self.train):,} train "
            f"questions, of {len(names):,} people; all {len(self.valid):,} valid questions stay: less is to be learnt by heart."
        )
        return replace(
            self,
            lines=lines,
            train=train,
            test=(),
            invented=tuple(Question(name, ask(name), None) for name in invented),
            notes=(*self.notes, note),
            fingerprint=digest(f"{self.fingerprint} {trained}", 8),
        )

    def names(self) -> tuple[str, ...]:
        """Every name of a line or a question."""
        asked = (a.name for part in (self.train, self.valid, self.test) for a in part)
        return tuple(dict.fromkeys((*asked, *(line.name for line in self.lines))))

    def characters(self) -> tuple[str, ...]:
        """Every character of the pretraining text, and of the questions and answers of fine-tuning, sorted."""
        texts = [line.text for line in self.lines] + [a.question + (a.place or "") for a in self.train]
        return tuple(sorted({c for text in texts for c in text}))


def ask(name: str) -> str:
    """The question about a name."""
    return QUESTION.format(name=name)


def name_in(question: str) -> str:
    """The name that a question is about; raises CorpusError where it is about none."""
    found = PATTERN.fullmatch(question.strip())
    if found is None:
        known = f"A question reads {QUESTION.format(name='NAME')!r}."
        raise CorpusError(f"The question {question!r} is about no name.", known, "Put a name into that pattern.")
    return found[1]


def open_people(folder: str | Path, seed: int = 0, left_out: int = LEFT_OUT, invented: int = INVENTED) -> People:
    """Read a folder of birth places: wiki.txt, birth_places_train.tsv, birth_dev.tsv and, if there, birth_test_inputs.tsv.

    `left_out` names of the dev questions, none of which train asks about, are drawn with `seed` for a second pretraining;
    `invented` names join a first name of one person with a last name of another and belong to nobody. Raises CorpusError
    for a missing or empty file, for a line that is not `question, tab, place`, and where there are not so many names.
    """
    place = Path(folder)
    wiki = _lines(place / WIKI)
    if not wiki:
        known = "Pretraining reads a line 'Name. Sentences about the person' for each person."
        raise CorpusError(f"{place / WIKI} is empty.", known, "Give a file with at least one line.")
    train, valid = (_pairs(place / FILES[split]) for split in ("train", "valid"))
    test = _questions(place / FILES["test"]) if (place / FILES["test"]).exists() else ()
    named = tuple(dict.fromkeys(asked.name for part in (train, valid, test) for asked in part))
    lines = tuple(PretrainingLine(_subject(text, set(named)), text) for _, text in wiki)
    for count, what in ((left_out, "names were to be left out"), (invented, "names were to be invented")):
        if count < 0:
            raise CorpusError(f"{count} {what}.", "A number of names is 0 or more.", "Give 0 or a larger number.")
    trained = {asked.name for asked in train}
    eligible = sorted({asked.name for asked in valid} - trained)
    if len(eligible) < left_out:
        known = f"{place / FILES['valid']} asks about {len(eligible)} names that {FILES['train']} does not ask about."
        raise CorpusError(f"{left_out} names were to be left out.", known, f"Leave out {len(eligible)} or fewer.")
    taken = {*named, *(line.name for line in lines)}
    draw = Random(f"left out {seed}")
    gone = tuple(sorted(eligible, key=lambda name: (draw.random(), name))[:left_out])
    marks = "\n".join([*(line.text for line in lines), *(f"{a.question}\t{a.place}" for a in (*train, *valid, *test))])
    return People(
        place.resolve().name,
        lines,
        train,
        valid,
        test,
        gone,
        tuple(
            Question(name, ask(name), None) for name in recombine(named, invented, Random(f"invented {seed}"), taken)
        ),
        (f"{len(lines):,} lines, {len(train):,} + {len(valid):,} questions with a place, {len(test):,} without.",),
        digest(marks, 8),
        digest(marks, 8),
    )


def recombine(names: Iterable[str], count: int, draw: Random, taken: Iterable[str] = ()) -> tuple[str, ...]:
    """Names that nobody has: the first name of one with the last name of another. Fewer, where there are not so many.

    None of them is one of `taken` either.
    """
    given = set(names)
    known = given | set(taken)
    parts = [name.split() for name in sorted(given) if len(name.split()) > 1]
    found: dict[str, None] = {}
    for _ in range(100 * count if len(parts) > 1 else 0):
        if len(found) == count:
            break
        first, last = parts[int(draw.random() * len(parts))][0], parts[int(draw.random() * len(parts))][-1]
        if (name := f"{first} {last}") not in known:
            found[name] = None
    return tuple(found)


def _subject(text: str, named: Set[str]) -> str:
    """The name that a line begins with: one that is asked about, since a name may hold a stop, else up to the first stop."""
    starts = [text[: found.start()] for found in re.finditer(r"\.( |$)", text[:LONGEST_NAME])]
    return next((start for start in reversed(starts) if start in named), starts[0] if starts else text)


def _pairs(path: Path) -> tuple[Question, ...]:
    """Questions with their places."""
    found = []
    for number, text in _lines(path):
        cells = text.split("\t")
        if len(cells) != 2 or not cells[1].strip():
            given = f"{path}, line {number}: {text[:80]!r}."
            known = (
                "It has no tab."
                if len(cells) == 1
                else f"It has {len(cells) - 1} tabs."
                if len(cells) > 2
                else "It ends at its tab."
            )
            raise CorpusError(given, known, "A line is a question, one tab, and the place.")
        found.append(Question(_name(path, number, cells[0]), cells[0].strip(), cells[1].strip()))
    return _some(path, found)


def _questions(path: Path) -> tuple[Question, ...]:
    """Questions alone; what stands behind a tab is not read."""
    asked = ((number, text.split("\t")[0].strip()) for number, text in _lines(path))
    return tuple(Question(_name(path, number, text), text, None) for number, text in asked)


def _name(path: Path, number: int, question: str) -> str:
    try:
        return name_in(question)
    except CorpusError as error:
        raise CorpusError(f"{path}, line {number}: {error.given}", error.known, error.todo) from None


def _some(path: Path, found: list[Question]) -> tuple[Question, ...]:
    if not found:
        raise CorpusError(f"{path} is empty.", "It asks nothing.", "Give at least one question with its place.")
    return tuple(found)


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1."""
    try:
        check_lines(path, LINE_BYTES)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        there = (
            ", ".join(sorted(p.name for p in path.parent.iterdir())[:8]) if path.parent.is_dir() else "no such folder"
        )
        known = f"{path.parent}: {there or 'nothing'}."
        todo = f"Give a folder with {', '.join((WIKI, *FILES.values()))}."
        raise CorpusError(f"There is no file {path}.", known, todo) from None
    except UnicodeDecodeError as error:
        known = f"Byte {error.start} is none."
        raise CorpusError(f"{path} is not UTF-8.", known, "Save it as UTF-8.") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read.", f"The system says: {error}", "Give a file.") from None
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


QuestionData: TypeAlias = tuple[str, str, str | None]


class PeopleData(TypedDict):
    """People as JSON, made by `dataclasses.asdict`: a line and a question are lists of their fields."""

    name: str
    lines: list[tuple[str, str]]
    train: list[QuestionData]
    valid: list[QuestionData]
    test: list[QuestionData]
    left_out: list[str]
    invented: list[QuestionData]
    notes: list[str]
    fingerprint: str
    origin: str


def read_people(data: PeopleData) -> People:
    """The People that travelled as JSON."""
    parts = (data["train"], data["valid"], data["test"], data["invented"])
    train, valid, test, invented = (tuple(Question(*row) for row in part) for part in parts)
    lines = tuple(PretrainingLine(*row) for row in data["lines"])
    return People(
        data["name"],
        lines,
        train,
        valid,
        test,
        tuple(data["left_out"]),
        invented,
        tuple(data["notes"]),
        data["fingerprint"],
        data["origin"],
    )


T = TypeVar("T")

SHORTEST = 4  # characters that a text is never cut below
KEPT = 7 / 8  # of the block, the longest that a text is cut to
SPAN = 1 / 4  # of what is left of the text, on average, the length of the span
IGNORED = -100


class CutSpan(NamedTuple):
    """Where a text is cut: its first `length` characters stay, and [start, end) of these are moved to the end."""

    length: int
    start: int
    end: int


class Corrupted(NamedTuple, Generic[T]):
    """The three pieces of a cut text: characters, or their ids."""

    before: Sequence[T]
    after: Sequence[T]
    span: Sequence[T]

    def joined(self, mask: T) -> list[T]:
        """What the model reads: both sides of the span, and the span behind a second mask."""
        return [*self.before, mask, *self.after, mask, *self.span]

    def original(self) -> list[T]:
        """The text that the pieces are of."""
        return [*self.before, *self.span, *self.after]


class Example(NamedTuple):
    """Ids that are read, and of each the id that is to be predicted after it; IGNORED where nothing is."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many ids are read."""
        return len(self.ids)

    @property
    def predicted(self) -> int:
        """How many ids are predicted."""
        return sum(label != IGNORED for label in self.labels)


def draw_span(
    size: int, block: int, draw: np.random.Generator, shortest: int = SHORTEST, kept: float = KEPT, span: float = SPAN
) -> CutSpan:
    """A cut for a text of `size` characters, for a model that reads `block` at once.

    The length is uniform from `shortest` (4) to the share `kept` (7/8) of the block, and a shorter text stays whole; the
    span is the share `span` (a quarter) of it on average, uniform from 1 to twice that less one, and lies anywhere but at
    its first and last character.
    """
    length = min(size, int(draw.integers(shortest, max(shortest, int(block * kept)) + 1)))
    if length < 3:
        return CutSpan(length, length, length)
    most = max(1, min(int(2 * span * length) - 1, length - 2))
    width = int(draw.integers(1, most + 1))
    start = int(draw.integers(1, length - width))
    return CutSpan(length, start, start + width)


def corrupt(text: Sequence[T], span: CutSpan) -> Corrupted[T]:
    """The pieces that a cut makes of a text."""
    return Corrupted(text[: span.start], text[span.end : span.length], text[span.start : span.end])


def pretraining_example(ids: Sequence[int], span: CutSpan, mask: int) -> Example:
    """A text's ids, with the span behind the second mask; every next id is to be predicted, as of an ordinary text.

    Source: the assignment's span corruption, after Raffel et al. 2020, section 3.1.4.
    """
    moved = corrupt(ids, span).joined(mask)
    return Example(tuple(moved[:-1]), tuple(moved[1:]))


def question_example(question: Sequence[int], answer: Sequence[int], mask: int) -> Example:
    """Question, mask, answer, mask; what is to be predicted is the answer and the mask that ends it."""
    row = [*question, mask, *answer, mask]
    silent = [IGNORED] * len(question)
    return Example(tuple(row[:-1]), (*silent, *answer, mask))


def check_block(texts: Sequence[str], block: int, what: str) -> None:
    """Raise CorpusError where a question with its answer does not fit into what the model reads at once."""
    longest = max(texts, key=len, default="")
    if len(longest) > block:
        known = f"{what} {longest[:60]!r} takes {len(longest)} characters with its marks."
        raise CorpusError(f"A block of {block} characters.", known, f"Give a block of at least {len(longest)}.")
