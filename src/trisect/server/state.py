"""State: all that a served page shows follows from it: texts, switches and a position; it is what a link holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trisect.core import json_text
from trisect.core.errors import SpecError
from trisect.core.site import Site
from trisect.core.subject import TextOrPair
from trisect.core.typecheck import need, shortened, whole
from trisect.measure.intervention import KINDS

CHARACTERS = 2_000  # of one text
SWITCHES = 64
POSITIONS = 256  # that are chosen
LAST = 1_000_000  # the largest position that is asked for at all
BODY = 65_536  # bytes of one request
SEQUENCE = 2**53 - 1  # the largest whole number that a page counts to
CLIENT = 64  # characters that name one page
LONG_NUMBER = re.compile("[0-9]{5}")  # a span that long would take the memory that its numbers need


@dataclass(frozen=True)
class PageState:
    """A text and a second one (each one sequence, or source and target), switches by site in their order, a position to look at, and those
    that are switched (empty: all).

    Raises SpecError for anything that is too long, too many, or of another kind.
    """

    text: tuple[str, ...]
    second: tuple[str, ...] = ()
    switches: tuple[tuple[str, str], ...] = ()
    place: int | None = None
    positions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("text", 1), ("second", 0)):
            _check_texts(name, getattr(self, name), least)
        known = f"At most {SWITCHES} sites are switched at once."
        need(len(self.switches) <= SWITCHES, f"{len(self.switches)} switches were given.", known, "Take some out.")
        sites = [site for site, _ in self.switches]
        twice = next((site for site in sites if sites.count(site) > 1), None)
        need(twice is None, f"{twice} is switched twice.", "A site has one switch.", "Leave one of them out.")
        if self.place is not None:
            whole(self.place, "place", 0, LAST)
        known = f"At most {POSITIONS} are switched by choice; none are all."
        need(len(self.positions) <= POSITIONS, f"{len(self.positions)} positions were given.", known, "Choose fewer.")
        for one in self.positions:
            whole(one, "positions", 0, LAST)

    @property
    def given(self) -> TextOrPair:
        """The text as a model takes it."""
        return self.text[0] if len(self.text) == 1 else (self.text[0], self.text[1])

    @property
    def donor(self) -> TextOrPair | None:
        """The second text as a model takes it; null where there is none."""
        if not any(part.strip() for part in self.second):
            return None
        return self.second[0] if len(self.second) == 1 else (self.second[0], self.second[1])

    @property
    def by_site(self) -> Mapping[str, str]:
        """What each site is switched to, in the order in which it happens."""
        return dict(self.switches)


@dataclass(frozen=True)
class PageQuestion:
    """One request of a page: which page asks, its how-manieth question this is, the picture that it has already, and its state."""

    client: str
    sequence: int
    has: str
    state: PageState


def read_request(body: bytes) -> PageQuestion:
    """A request's body; raises SpecError for what is none."""
    try:
        found = json_text.parse(body.decode())
    except ValueError as error:
        raise SpecError("The request is no JSON.", str(error)[:200], "Send what the page sends.") from None
    return read_question(found)


def read_question(found: object) -> PageQuestion:
    """A question from JSON-ready data; raises SpecError for what is none."""
    given = _fields("request", found, {"client": str, "sequence": int, "has": str, "state": dict})
    whole(given["sequence"], "sequence", 0, SEQUENCE)
    for name in ("client", "has"):
        known = f"It is a text of at most {CLIENT} characters."
        need(len(given[name]) <= CLIENT, f"{name} is {shortened(given[name])}.", known, "Send what the page sends.")
    return PageQuestion(given["client"], given["sequence"], given["has"], read_state(given["state"]))


def read_state(found: object) -> PageState:
    """A state from JSON-ready data; raises SpecError for what is none."""
    kinds = {"text": list, "second": list, "switches": list, "place": (int, type(None)), "positions": list}
    # links of versions before have no positions
    given = _fields("state", {"positions": [], **found} if isinstance(found, dict) else found, kinds)
    switches = tuple(_switch(pair) for pair in given["switches"])
    return PageState(tuple(given["text"]), tuple(given["second"]), switches, given["place"], tuple(given["positions"]))


def _switch(pair: object) -> tuple[str, str]:
    """A site in its canonical spelling, and what it is switched to."""
    known, todo = "It is a site and what it is switched to, two texts.", "Give for example ['q@2.h3', 'zero']."
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise SpecError(f"A switch is {shortened(pair)}.", known, todo)
    site, how = pair
    need(len(site) <= CLIENT and not LONG_NUMBER.search(site), f"A site is {shortened(site)}.", known, todo)
    need(how in KINDS, f"{site} is switched to {shortened(how)}.", f"There are {', '.join(KINDS)}.", "Use one of them.")
    return str(Site.parse(site)), how


def _fields(what: str, found: object, kinds: Mapping[str, type | tuple[type, ...]]) -> dict:
    known = f"It holds {', '.join(kinds)}."
    if not isinstance(found, dict) or set(found) != set(kinds):
        raise SpecError(f"The {what} is {shortened(found)}.", known, "Send what the page sends.")
    for name, kind in kinds.items():
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise SpecError(f"{name} is {shortened(found[name])}.", known, "Send what the page sends.")
    return found


def _check_texts(name: str, texts: tuple[str, ...], least: int) -> None:
    known = "It is one text, or a source and a target."
    ok = least <= len(texts) <= 2 and all(isinstance(text, str) for text in texts)
    need(ok, f"{name} is {shortened(texts)}.", known, "Send what the page sends.")
    for text in texts:
        known = f"A served page takes at most {CHARACTERS:,}; 'trisect explore' takes more."
        need(len(text) <= CHARACTERS, f"{name} has {len(text):,} characters.", known, "Give a shorter text.")
