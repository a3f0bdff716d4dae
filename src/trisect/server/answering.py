"""PageModel: from a page's state to what it shows: tokens, predictions, how far outputs move, the picture of all heads, and the code."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from trisect.core.json_text import Json
from trisect.core.printable import safe, safe_data
from trisect.core.subject import AnsweringSubject, TextOrPair
from trisect.experiments.explore.pack import pack
from trisect.experiments.explore.page import html
from trisect.experiments.explore.picture import ExplorerPicture
from trisect.experiments.explore.pieces import readable
from trisect.experiments.explore.run import take_picture
from trisect.hf.load import Pretrained
from trisect.lm.reading import OwnModel
from trisect.measure.intervention import Intervention, Planned, PreparedText
from trisect.report.format import called
from trisect.server.python import python
from trisect.server.state import PageState

TEXTS = 4  # prepared texts that are kept
SMALL = 100_000_000  # weights up to which one thread answers a short text soonest: several wait for each other
QUICK = 1  # zlib's effort: the page is on this machine
StillWanted = Callable[[], None]


class PageAnswer(NamedTuple):
    """What a page shows of a state: words and numbers, and the chunks of the picture (none where it has it already)."""

    words: dict[str, Json]
    chunks: tuple[bytes, ...]

    def bytes(self) -> bytes:
        """The length of the words in four bytes, the words as JSON, and the chunks one after another."""
        head = json.dumps(self.words, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        return b"".join((len(head).to_bytes(4, "big"), head, *self.chunks))


@dataclass
class PageModel:
    """A model that answers pages; `source` is how `trisect.load` is called for it, empty for a loaded one.

    `example` is a text of its own language to begin with, empty where any will do.
    """

    subject: AnsweringSubject
    source: str = ""
    example: str = ""
    _ready: OrderedDict[tuple[TextOrPair, TextOrPair | None], PreparedText] = field(default_factory=OrderedDict)

    @functools.cached_property
    def small(self) -> bool:
        """Whether the model is so small that threads cost more than they bring."""
        return weights_in(self.subject) <= SMALL

    def about(self) -> dict[str, Json]:
        """What a page has to know of the model before any text."""
        shape = self.subject.shape
        layers: list[Json] = [
            {"stack": address.stack, "layer": address.layer, "heads": [heads.query, heads.key]}
            for address, heads in shape.heads.items()
        ]
        paired = any(stack in ("dec", "cross") for stack in shape.stacks)
        known = {"model": called(self.subject.name), "layers": layers, "paired": paired, "mask": self.subject.mask}
        known["example"] = self.example
        said: dict[str, Json] = {**known, "objective": self.subject.objective, "notes": list(self.subject.notes)}
        return {name: safe_data(value) for name, value in said.items()}

    def answer(self, state: PageState, has: str, check: StillWanted = lambda: None) -> PageAnswer:
        """The answer to a state; `check` is called between passes and may raise. Raises TrisectError."""
        with single_thread() if self.small else nullcontext():
            return self._answer(state, has, check)

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

    def page(self, state: PageState) -> str:
        """The offline explorer of what the page shows."""
        ready = self._prepared(state)
        planned, positions = ready.plan(state.by_site), ready.positions(state.positions)
        picture = self._picture(ready, planned, positions)
        return html(replace(picture, notes=(*picture.notes, *ready.beyond(planned, positions))))

    def _prepared(self, state: PageState) -> PreparedText:
        key = (state.given, state.donor)
        found = self._ready.pop(key, None) or PreparedText.of(self.subject, *key)
        self._ready[key] = found
        while len(self._ready) > TEXTS:
            self._ready.popitem(last=False)
        return found

    def _picture(
        self, ready: PreparedText, planned: tuple[Planned, ...], positions: tuple[int, ...]
    ) -> ExplorerPicture:
        picture = take_picture(ready.reading(planned, positions))
        facts = [("Fingerprint", self.subject.fingerprint)]
        if planned:
            where = f" at tokens {', '.join(str(one + 1) for one in positions)}" if positions else ""
            facts.append(("Switched", ", ".join(f"{one.site} to {one.how}" for one in planned) + where))
        return replace(picture, facts=(*picture.facts, *facts))

    def _words(self, ready: PreparedText, change: Intervention, state: PageState) -> dict[str, Json]:
        side = ready.side
        shown = readable(side.tokens[0], [bool(s) for s in side.special[0].tolist()])
        predictions: list[Json] = [[safe(p.token), p.before, p.after] for p in change.predictions()]
        return {
            "tokens": [safe(s.text) for s in shown],
            "glued": [bool(s.glued) for s in shown],
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
    """How many numbers a model's weights are; 0 where they are not known."""
    match subject:
        case Pretrained():
            return sum(p.numel() for p in subject.model.parameters())
        case OwnModel():
            return sum(p.numel() for p in subject.parameters.values())
        case _:
            return 0


@contextmanager
def single_thread() -> Iterator[None]:
    """Inside, PyTorch computes in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _mark(state: PageState, planned: tuple[Planned, ...]) -> str:
    """Hex digits of what a picture follows from."""
    what = json.dumps(
        [
            state.given,
            state.donor if planned else None,
            [one[:2] for one in planned],
            state.positions if planned else (),
        ]
    )
    return hashlib.blake2b(what.encode(), digest_size=16).hexdigest()
