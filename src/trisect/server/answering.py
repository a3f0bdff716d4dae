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
from trisect.core.subject import AnsweringSubject, Readable, TextOrPair
from trisect.experiments.explore import page as explorer
from trisect.experiments.explore.page import ExplorerPicture, html, pack, readable
from trisect.experiments.explore.run import take_picture
from trisect.hf.load import Pretrained
from trisect.lm.reading import OwnModel
from trisect.measure.intervention import KINDS, Intervention, PreparedText, ResolvedSwitch
from trisect.report import sheet
from trisect.report.format import display_name

INPUT_NAMES = ("the inputs given", "the second inputs given")  # names on the page for inputs that are not text
MAX_CHARACTERS = 2_000  # of one text
MAX_SWITCHES = 64
MAX_POSITIONS = 256  # positions to switch in one request
MAX_POSITION = 1_000_000  # the largest index of a position
MAX_BODY_BYTES = 65_536
MAX_SEQUENCE = 2**53 - 1  # the largest exact integer in JavaScript
MAX_NAME = 64  # characters of a site or of a page's identifier
LONG_NUMBER = re.compile("[0-9]{5}")  # a site with a span of 10,000 layers would take too much memory


def _parse_switch(pair: object) -> tuple[str, str]:
    """A site in canonical spelling, and its replacement."""
    reason, todo = "A switch is a pair of texts: a site and its replacement.", "Give for example ['q@2.h3', 'zero']."
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise SpecError(f"A switch is {shorten(pair)}.", reason, todo)
    site, how = pair
    require(len(site) <= MAX_NAME and not LONG_NUMBER.search(site), f"A site is {shorten(site)}.", reason, todo)
    require(
        how in KINDS, f"{site} is switched to {shorten(how)}.", f"There are {', '.join(KINDS)}.", "Use one of them."
    )
    return str(Site.parse(site)), how


PageText = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Switch = Annotated[tuple[str, str], BeforeValidator(_parse_switch)]
Position = Annotated[int, Field(ge=0, le=MAX_POSITION)]


@record
class PageState:
    """The state of a page: a text and a second one (each one sequence, or source and target), and switches (site, kind) in order.

    `place` is the position whose predictions are shown, `positions` are those to switch (empty: all), both from 0.
    """

    text: Annotated[Many[PageText], Field(min_length=1, max_length=2)]
    second: Annotated[Many[PageText], Field(max_length=2)] = ()
    switches: Annotated[Many[Switch], Field(max_length=MAX_SWITCHES)] = ()
    place: Position | None = None
    positions: Annotated[Many[Position], Field(max_length=MAX_POSITIONS)] = ()

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


@record
class PageQuestion:
    """A request of a page: the page, the number of its question, the picture that it has already, and its state."""

    client: Annotated[str, Field(max_length=MAX_NAME)]
    sequence: Annotated[int, Field(ge=0, le=MAX_SEQUENCE)]
    has: Annotated[str, Field(max_length=MAX_NAME)]
    state: PageState


def read_request(body: bytes) -> PageQuestion:
    """Parse a request's body; raises SpecError."""
    try:
        content = files.parse(body.decode())
    except ValueError as error:
        raise SpecError("The request is not JSON.", str(error)[:200], "Send a request as the page does.") from None
    return read(PageQuestion, content, "the request")


def python(source: str, state: PageState) -> str:
    """A program that loads the model, replaces the same sites and prints the result; `source` is the argument of `trisect.load`."""
    loaded = f"model = trisect.load({source})" if source else "model = ...  # the model that trisect.serve was given"
    rest = [f"    {{{', '.join(f'{site!r}: {how!r}' for site, how in state.switches)}}},"]
    if state.donor is not None:
        donor = "second" if state.second[0] in INPUT_NAMES else repr(state.donor)
        rest.append(f"    second={donor},")
    if state.place is not None:
        rest.append(f"    place={state.place},")
    if state.positions:
        rest.append(f"    positions={state.positions!r},")
    shown = "inputs,  # those that trisect.serve was given" if state.text[0] in INPUT_NAMES else f"{state.as_input!r},"
    lines = ["import trisect", "", loaded, "change = trisect.intervene(", "    model,", f"    {shown}", *rest, ")"]
    return "\n".join([*lines, "print(change)", ""])


CACHED_TEXTS = 4
SINGLE_THREAD_WEIGHTS = 100_000_000  # up to so many weights a single thread is fastest for a short text
COMPRESSION_LEVEL = 1  # of zlib: low, since the page is on this machine
CancelCheck = Callable[[], None]


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

    `example` is the initial text, empty if any text will do; `inputs` maps a name from INPUT_NAMES to an input that is not text.
    """

    subject: AnsweringSubject
    source: str = ""
    example: str = ""
    inputs: Mapping[str, Readable] = field(default_factory=dict)
    _cache: OrderedDict[tuple[TextOrPair, TextOrPair | None], PreparedText] = field(default_factory=OrderedDict)

    @functools.cached_property
    def small(self) -> bool:
        """Whether the model is so small that threads would slow it down."""
        return weights_in(self.subject) <= SINGLE_THREAD_WEIGHTS

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

    def answer(self, state: PageState, has: str, check: CancelCheck = lambda: None) -> PageAnswer:
        """The answer to a state; `check` is called between passes and may raise. Raises TrisectError."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if self.small else threads)
        try:
            return self._answer(state, has, check)
        finally:
            torch.set_num_threads(threads)

    def _answer(self, state: PageState, has: str, check: CancelCheck) -> PageAnswer:
        ready = self._prepare(state)
        planned, positions = ready.plan(dict(state.switches)), ready.positions(state.positions)
        check()
        change = ready.switched(planned, state.place, positions)
        check()
        key = _picture_key(state, planned)
        words = self._words(ready, change, state)
        words["picture"] = key
        if key == has:
            return PageAnswer(words, ())
        packed = pack(self._picture(ready, planned, positions), effort=COMPRESSION_LEVEL)
        check()
        words["manifest"] = safe_data(packed.manifest)
        words["chunks"] = [len(chunk) for chunk in packed.chunks]
        return PageAnswer(words, packed.chunks)

    def page(self, state: PageState, check: CancelCheck = lambda: None) -> str:
        """The explorer of the page's state as a file; `check` as for `answer`."""
        ready = self._prepare(state)
        planned, positions = ready.plan(dict(state.switches)), ready.positions(state.positions)
        check()
        picture = self._picture(ready, planned, positions)
        check()
        return html(replace(picture, notes=(*picture.notes, *ready.position_notes(planned, positions))))

    def _prepare(self, state: PageState) -> PreparedText:
        key = (state.as_input, state.donor)
        text = self.inputs.get(state.text[0], state.as_input)
        second = self.inputs.get(state.second[0], state.donor) if state.second else None
        ready = self._cache.pop(key, None) or PreparedText.of(self.subject, text, second)
        self._cache[key] = ready
        while len(self._cache) > CACHED_TEXTS:
            self._cache.popitem(last=False)
        return ready

    def _picture(
        self, ready: PreparedText, planned: tuple[ResolvedSwitch, ...], positions: tuple[int, ...]
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


def _picture_key(state: PageState, planned: tuple[ResolvedSwitch, ...]) -> str:
    """A hash of everything that a picture depends on."""
    switched = (state.donor, [switch[:2] for switch in planned], state.positions) if planned else (None, [], ())
    return hashlib.blake2b(json.dumps([state.as_input, *switched]).encode(), digest_size=16).hexdigest()


FOLDER = Path(__file__).parent
SCRIPTS = ("state.js", "view.js", "board.js", "bench.js")


def page_script(transport: str) -> str:
    """The scripts of the explorer and of the component, and the one that sends questions."""
    return explorer.script() + "".join(sheet.read(FOLDER / name) for name in (*SCRIPTS, transport))


def style() -> str:
    """The style sheets of the explorer and of the component."""
    return explorer.style() + sheet.read(FOLDER / "serve.css")


T = TypeVar("T")
MAX_CLIENTS = 64  # pages whose newest question number is kept


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
        work: Callable[[CancelCheck], T],
        is_gone: Callable[[], bool] = lambda: False,
    ) -> T:
        """The result of `work(check)`, where `check` is to be called between steps and raises once the result is no longer needed.

        Raises SupersededError if the page has sent a newer question, before or meanwhile, or if `is_gone` returns True.
        """
        if sequence < self._newest.get(client, -1):
            raise SupersededError
        self._newest[client] = sequence
        self._newest.move_to_end(client)
        while len(self._newest) > MAX_CLIENTS:
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
