"""PageModel: from a page's state to tokens, predictions, changes of outputs, the picture of all heads, and Python code."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import torch
from pydantic import BeforeValidator, Field

from trisect.core import files
from trisect.core.errors import SpecError, require, shorten
from trisect.core.files import Json
from trisect.core.printable import safe, safe_data
from trisect.core.schema import Many, read, record
from trisect.core.site import Site
from trisect.core.subject import AnsweringSubject, ReadGiven, TextOrPair
from trisect.experiments.explore import page as explorer
from trisect.experiments.explore.page import ExplorerPicture, html, pack, readable
from trisect.experiments.explore.run import take_picture
from trisect.hf.load import Pretrained
from trisect.lm.reading import OwnModel
from trisect.measure.intervention import KINDS, Intervention, Planned, PreparedText
from trisect.report import sheet
from trisect.report.format import display_name

GIVEN = ("the inputs given", "the second inputs given")  # what a page calls inputs that are no text
CHARACTERS = 2_000  # of one text
SWITCHES = 64
POSITIONS = 256  # that are chosen
LAST = 1_000_000  # the largest position that is asked for at all
BODY = 65_536  # bytes of one request
SEQUENCE = 2**53 - 1  # the largest whole number that a page counts to
CLIENT = 64  # characters that name one page
LONG_NUMBER = re.compile("[0-9]{5}")  # a span that long would take the memory that its numbers need


def _switch(pair: object) -> tuple[str, str]:
    """A site in canonical spelling, and its replacement."""
    reason, todo = "It is a site and what it is switched to, two texts.", "Give for example ['q@2.h3', 'zero']."
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise SpecError(f"A switch is {shorten(pair)}.", reason, todo)
    site, how = pair
    require(len(site) <= CLIENT and not LONG_NUMBER.search(site), f"A site is {shorten(site)}.", reason, todo)
    require(
        how in KINDS, f"{site} is switched to {shorten(how)}.", f"There are {', '.join(KINDS)}.", "Use one of them."
    )
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
        require(twice is None, f"{twice} is switched twice.", "A site has one switch.", "Leave one of them out.")

    @property
    def as_input(self) -> TextOrPair:
        """The text as the model's input."""
        return self.text[0] if len(self.text) == 1 else (self.text[0], self.text[1])

    @property
    def donor(self) -> TextOrPair | None:
        """The second text as the model's input; None if there is none."""
        if not any(part.strip() for part in self.second):
            return None
        return self.second[0] if len(self.second) == 1 else (self.second[0], self.second[1])

    @property
    def by_site(self) -> Mapping[str, str]:
        """The replacement of each site, in order."""
        return dict(self.switches)


@record
class PageQuestion:
    """A request of a page: the page, the number of its question, the picture that it has already, and its state."""

    client: Annotated[str, Field(max_length=CLIENT)]
    sequence: Annotated[int, Field(ge=0, le=SEQUENCE)]
    has: Annotated[str, Field(max_length=CLIENT)]
    state: PageState


def read_request(body: bytes) -> PageQuestion:
    """Parse a request's body; raises SpecError."""
    try:
        content = files.parse(body.decode())
    except ValueError as error:
        raise SpecError("The request is no JSON.", str(error)[:200], "Send what the page sends.") from None
    return read(PageQuestion, content, "the request")


def python(source: str, state: PageState) -> str:
    """A program that loads the model, replaces the same sites and prints the result; `source` is the argument of `trisect.load`."""
    loaded = f"model = trisect.load({source})" if source else "model = ...  # the model that trisect.serve was given"
    rest = [f"    {{{', '.join(f'{site!r}: {how!r}' for site, how in state.switches)}}},"]
    if state.donor is not None:
        donor = "second" if state.second[0] in GIVEN else repr(state.donor)
        rest.append(f"    second={donor},")
    if state.place is not None:
        rest.append(f"    place={state.place},")
    if state.positions:
        rest.append(f"    positions={state.positions!r},")
    shown = "inputs,  # those that trisect.serve was given" if state.text[0] in GIVEN else f"{state.as_input!r},"
    lines = [
        "import trisect",
        "",
        loaded,
        "change = trisect.intervene(",
        "    model,",
        f"    {shown}",
        *rest,
        ")",
    ]
    return "\n".join([*lines, "print(change)", ""])


TEXTS = 4  # prepared texts that are kept
SMALL = 100_000_000  # weights up to which one thread answers a short text soonest: several wait for each other
QUICK = 1  # zlib's effort: the page is on this machine
StillWanted = Callable[[], None]


class PageAnswer(NamedTuple):
    """The answer to a state: words and numbers, and the chunks of the picture (none if the page has it already)."""

    words: dict[str, Json]
    chunks: tuple[bytes, ...]

    def bytes(self) -> bytes:
        """The length of the JSON in four bytes, the JSON, and the chunks."""
        head = json.dumps(self.words, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        return b"".join((len(head).to_bytes(4, "big"), head, *self.chunks))


@dataclass
class PageModel:
    """A model that answers pages; `source` is its argument for `trisect.load`, empty for a loaded one.

    `example` is a text of its own language to begin with, empty where any will do; `inputs` are what is no text, by name.
    """

    subject: AnsweringSubject
    source: str = ""
    example: str = ""
    inputs: Mapping[str, ReadGiven] = field(default_factory=dict)
    _ready: OrderedDict[tuple[TextOrPair, TextOrPair | None], PreparedText] = field(default_factory=OrderedDict)

    @functools.cached_property
    def small(self) -> bool:
        """Whether the model is so small that threads would slow it down."""
        return weights_in(self.subject) <= SMALL

    def about(self) -> dict[str, Json]:
        """Facts of the model that a page needs before any text."""
        shape = self.subject.shape
        layers: list[Json] = [
            {"stack": address.stack, "layer": address.layer, "heads": [heads.query, heads.key]}
            for address, heads in shape.heads.items()
        ]
        paired = any(stack in ("dec", "cross") for stack in shape.stacks)
        facts: dict[str, Json] = {
            "model": display_name(self.subject.name),
            "layers": layers,
            "paired": paired,
            "mask": self.subject.mask,
            "example": self.example,
            "objective": self.subject.objective,
            "notes": list(self.subject.notes),
        }
        return {name: safe_data(value) for name, value in facts.items()}

    def answer(self, state: PageState, has: str, check: StillWanted = lambda: None) -> PageAnswer:
        """The answer to a state; `check` is called between passes and may raise. Raises TrisectError."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if self.small else threads)
        try:
            return self._answer(state, has, check)
        finally:
            torch.set_num_threads(threads)

    def _answer(self, state: PageState, has: str, check: StillWanted) -> PageAnswer:
        ready = self._prepared(state)
        planned, positions = ready.plan(state.by_site), ready.positions(state.positions)
        check()
        change = ready.switched(planned, state.place, positions)
        check()
        mark = _mark(state, planned)
        words = self._words(ready, change, state)
        words["picture"] = mark
        if mark == has:
            return PageAnswer(words, ())
        packed = pack(self._picture(ready, planned, positions), effort=QUICK)
        check()
        words["manifest"] = safe_data(packed.manifest)
        words["chunks"] = [len(chunk) for chunk in packed.chunks]
        return PageAnswer(words, packed.chunks)

    def page(self, state: PageState, check: StillWanted = lambda: None) -> str:
        """The explorer of the page's state as a file; `check` as for `answer`."""
        ready = self._prepared(state)
        planned, positions = ready.plan(state.by_site), ready.positions(state.positions)
        check()
        picture = self._picture(ready, planned, positions)
        check()
        return html(replace(picture, notes=(*picture.notes, *ready.beyond(planned, positions))))

    def _prepared(self, state: PageState) -> PreparedText:
        key = (state.as_input, state.donor)
        text = self.inputs.get(state.text[0], state.as_input)
        second = self.inputs.get(state.second[0], state.donor) if state.second else None
        ready = self._ready.pop(key, None) or PreparedText.of(self.subject, text, second)
        self._ready[key] = ready
        while len(self._ready) > TEXTS:
            self._ready.popitem(last=False)
        return ready

    def _picture(
        self, ready: PreparedText, planned: tuple[Planned, ...], positions: tuple[int, ...]
    ) -> ExplorerPicture:
        picture = take_picture(ready.reading(planned, positions))
        facts = [("Fingerprint", self.subject.fingerprint)]
        if planned:
            where = f" at tokens {', '.join(str(item + 1) for item in positions)}" if positions else ""
            facts.append(("Switched", ", ".join(f"{item.site} to {item.how}" for item in planned) + where))
        return replace(picture, facts=(*picture.facts, *facts))

    def _words(self, ready: PreparedText, change: Intervention, state: PageState) -> dict[str, Json]:
        side = ready.side
        shown = readable(side.tokens[0], [bool(s) for s in side.special[0].tolist()])
        predictions: list[Json] = [[safe(p.token), p.before, p.after] for p in change.predictions()]
        return {
            "tokens": [safe(text) for text, _ in shown],
            "glued": [glued for _, glued in shown],
            "place": change.place,
            "predicts": change.predicts,
            "whole": len(change.moved) != len(shown),
            "moved": [round(float(m), 9) for m in change.moved],
            "predictions": predictions,
            "switches": [[site, how] for site, how in change.switches],
            "positions": list(change.positions),
            "notes": [safe(note) for note in change.notes],
            "python": safe(python(self.source, state)),
        }


def weights_in(subject: AnsweringSubject) -> int:
    """The number of a model's weights; 0 if unknown."""
    match subject:
        case Pretrained():
            return sum(p.numel() for p in subject.model.parameters())
        case OwnModel():
            return sum(p.numel() for p in subject.parameters.values())
        case _:
            return 0


def _mark(state: PageState, planned: tuple[Planned, ...]) -> str:
    """A hash of everything that a picture depends on."""
    what = json.dumps(
        [
            state.as_input,
            state.donor if planned else None,
            [switch[:2] for switch in planned],
            state.positions if planned else (),
        ]
    )
    return hashlib.blake2b(what.encode(), digest_size=16).hexdigest()


HERE = Path(__file__).parent
PARTS = ("state.js", "view.js", "board.js", "bench.js")


def page_script(transport: str) -> str:
    """The scripts of the explorer and of the component, and the one that sends questions."""
    return explorer.script() + "".join(sheet.read(HERE / name) for name in (*PARTS, transport))


def style() -> str:
    """The style sheets of the explorer and of the component."""
    return explorer.style() + sheet.read(HERE / "serve.css")


T = TypeVar("T")
CLIENTS = 64  # pages whose newest question is remembered


class SupersededError(Exception):
    """A newer question of the same page has arrived, or the page has closed: the answer is no longer needed."""


class ReadingQueue:
    """Work of several pages, done in order in a thread of its own."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trisect-serve")

    async def run(
        self,
        client: str,
        sequence: int,
        work: Callable[[StillWanted], T],
        is_gone: Callable[[], bool] = lambda: False,
    ) -> T:
        """What `work` returns; it is given a function to call between steps, which ends it when nobody waits for it.

        Raises SupersededError where the page has asked something newer, before or meanwhile, or `is_gone`.
        """
        if sequence < self._newest.get(client, -1):
            raise SupersededError
        self._newest[client] = sequence
        self._newest.move_to_end(client)
        while len(self._newest) > CLIENTS:
            self._newest.popitem(last=False)

        def check() -> None:
            if is_gone() or self._newest.get(client, sequence) != sequence:
                raise SupersededError

        async with self._turn:
            check()
            result = await asyncio.get_running_loop().run_in_executor(self._thread, work, check)
        check()
        return result

    def close(self) -> None:
        """Finish running work, and refuse more."""
        self._thread.shutdown(cancel_futures=True)
