"""State: all that a served page shows follows from it: texts, switches and a position; it is what a link holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from trisect.core import json_text
from trisect.core.errors import SpecError, need, shortened
from trisect.core.schema import Many, read, record
from trisect.core.site import Site
from trisect.core.subject import TextOrPair
from trisect.measure.intervention import KINDS

CHARACTERS = 2_000  # of one text
SWITCHES = 64
POSITIONS = 256  # that are chosen
LAST = 1_000_000  # the largest position that is asked for at all
BODY = 65_536  # bytes of one request
SEQUENCE = 2**53 - 1  # the largest whole number that a page counts to
CLIENT = 64  # characters that name one page
LONG_NUMBER = re.compile("[0-9]{5}")  # a span that long would take the memory that its numbers need


def _switch(pair: object) -> tuple[str, str]:
    """A site in its canonical spelling, and what it is switched to."""
    known, todo = "It is a site and what it is switched to, two texts.", "Give for example ['q@2.h3', 'zero']."
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise SpecError(f"A switch is {shortened(pair)}.", known, todo)
    site, how = pair
    need(len(site) <= CLIENT and not LONG_NUMBER.search(site), f"A site is {shortened(site)}.", known, todo)
    need(how in KINDS, f"{site} is switched to {shortened(how)}.", f"There are {', '.join(KINDS)}.", "Use one of them.")
    return str(Site.parse(site)), how


PageText = Annotated[str, Field(max_length=CHARACTERS)]
Switch = Annotated[tuple[str, str], BeforeValidator(_switch)]
Position = Annotated[int, Field(ge=0, le=LAST)]


@record
class PageState:
    """A text and a second one (each one sequence, or source and target), switches by site in their order, a position to look at, and those
    that are switched (empty: all).
    """

    text: Annotated[Many[PageText], Field(min_length=1, max_length=2)]
    second: Annotated[Many[PageText], Field(max_length=2)] = ()
    switches: Annotated[Many[Switch], Field(max_length=SWITCHES)] = ()
    place: Position | None = None
    positions: Annotated[Many[Position], Field(max_length=POSITIONS)] = ()

    def __post_init__(self) -> None:
        sites = [site for site, _ in self.switches]
        twice = next((site for site in sites if sites.count(site) > 1), None)
        need(twice is None, f"{twice} is switched twice.", "A site has one switch.", "Leave one of them out.")

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


@record
class PageQuestion:
    """One request of a page: which page asks, its how-manieth question this is, the picture that it has already, and its state."""

    client: Annotated[str, Field(max_length=CLIENT)]
    sequence: Annotated[int, Field(ge=0, le=SEQUENCE)]
    has: Annotated[str, Field(max_length=CLIENT)]
    state: PageState


def read_request(body: bytes) -> PageQuestion:
    """A request's body; raises SpecError for what is none."""
    try:
        found = json_text.parse(body.decode())
    except ValueError as error:
        raise SpecError("The request is no JSON.", str(error)[:200], "Send what the page sends.") from None
    return read(PageQuestion, found, "the request")
