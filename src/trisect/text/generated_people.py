"""The embedded birth places: generated people with invented names whose origins show a little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from trisect.core.errors import CorpusError
from trisect.core.files import digest
from trisect.core.percent import percent
from trisect.text.birth_places import People, PretrainingLine, Question, ask, recombine
from trisect.text.lexicon import Menu

T = TypeVar("T")

VERSION = 1
REGIONS, PLACES, FAMILIES = 6, 6, 6  # so many regions, and in each so many places and family names
LOCAL = 0.5  # the share of a family's members that were born in its region
BOTH, READ = 0.5, 0.4  # in the pretraining text and asked in fine-tuning; in the text only; the rest is asked only
LEAST, MOST = 20, 400
NOTE = (
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


def generated(seed: int = 0, people: int = 150, unseen: int = 60) -> People:
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
        (NOTE,),
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
    stems = _distinct(count * len(ends), lambda: _open(draw) + _one(draw, _ONSETS))
    return [[stem + end for stem in stems[i * count : (i + 1) * count]] for i, end in enumerate(ends)]


def _distinct(count: int, make: Callable[[], str]) -> list[str]:
    """So many different words, with a capital."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make().capitalize()] = None
    return list(found)


def _open(draw: Random) -> str:
    return _one(draw, _ONSETS) + _one(draw, _VOWELS)


def _one(draw: Random, items: Sequence[str]) -> str:
    return items[int(draw.random() * len(items))]


def _shuffled(items: Sequence[T], draw: Random) -> tuple[T, ...]:
    """In another order; the generator's own shuffle is not the same in every Python."""
    keys = [draw.random() for _ in items]
    return tuple(items[i] for i in sorted(range(len(items)), key=keys.__getitem__))
