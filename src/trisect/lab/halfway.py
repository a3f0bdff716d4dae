"""What a command over one model has summed up so far, kept in its folder: a call after one that was stopped goes on from there."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import numpy as np
import torch

from trisect.core.door import check_barred, refused
from trisect.core.errors import StudyError
from trisect.core.files import digest, replace_file
from trisect.core.steps import began
from trisect.core.trace import Address
from trisect.lab.units.kept import KEPT, UnitStore, begun_units

T = TypeVar("T")
SECONDS = 60.0  # between two times that it is kept
SHARE = 20  # times as long as keeping lasts, at least
# NumPy's own, of which an array's bytes are made again
_ARRAYS: Sequence[Any] = (
    np.empty(0).__reduce__()[0],
    np.ndarray,
    np.dtype,
    np.float64(0).__reduce__()[0],
    *(type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64, np.int32, np.bool_)),
)


@dataclass(frozen=True)
class Halfway:
    """Where one run keeps what it has summed up: the folder that it lands in, its command, and a mark of all that it follows from.

    The mark is asked for when it is needed first, of files as they were before any was read; where it is empty nothing is kept.
    Nor is anything where the disk refuses: the command goes on without, and says so once.
    """

    home: Path
    experiment: str
    mark: Callable[[], str]
    known: dict[str, str] = field(default_factory=dict)

    def going_on(
        self, name: str, items: Iterable[T], state: Mapping[str, object], kinds: Sequence[type] = ()
    ) -> Iterator[T]:
        """The items that no call before has done; `state` is then filled with what that call had, and kept as items get done.

        An item is done when the next one is asked for. `state` holds what is summed up: dicts, lists, and objects with
        attributes, all of which change in place, of `kinds` besides arrays and tensors. Those alone are read back.
        """
        done, before = self._read(name, state, kinds), time.monotonic()
        wait = SECONDS
        for number, item in enumerate(items, start=1):
            if number <= done:
                continue
            yield item
            if "refused" not in self.known and (now := time.monotonic()) - before >= wait:
                self._keep(name, number, state)
                before = time.monotonic()
                wait = max(SECONDS, SHARE * (before - now))

    def _mark(self) -> str:
        if "mark" not in self.known:
            self.known["mark"] = self.mark()
        return self.known["mark"]

    def _keep(self, name: str, done: int, state: Mapping[str, object]) -> None:
        """Write the state, or say that nothing is kept any more: what was kept before stays, and is of use as it was."""
        try:
            self._write(name, done, state)
        except (OSError, StudyError) as error:
            self.known["refused"] = name
            given = refused(error) if isinstance(error, OSError) else error
            began(f"What is done is not kept, so that a call after a stop does it again. {given.given} {given.known}")

    def _write(self, name: str, done: int, state: Mapping[str, object]) -> None:
        if not (mark := self._mark()):
            return
        body = io.BytesIO()
        torch.save(dict(state), body)
        head = json.dumps({"mark": mark, "done": done, "checksum": digest(body.getvalue())})
        path = UnitStore.open(self.home, self.experiment).root / f"{name}.pt"
        replace_file(path, lambda scratch: scratch.write_bytes(head.encode() + b"\n" + body.getvalue()))

    def _read(self, name: str, state: Mapping[str, object], kinds: Sequence[type]) -> int:
        """How many items a call before has done, whose state is then put in place; 0 where none is kept, or of something else.

        Raises StudyError where it may not be read: it would be written over.
        """
        path = self.home / KEPT / f"{name}.pt"
        if begun_units(self.home) != self.experiment or not path.is_file():
            return 0
        try:
            first, _, body = path.read_bytes().partition(b"\n")
            head = json.loads(first)
            if not self._mark() or (head["mark"], head["checksum"]) != (self._mark(), digest(body)):
                return 0
            with torch.serialization.safe_globals([*_ARRAYS, Address, *kinds]):
                found = torch.load(io.BytesIO(body), weights_only=True)
            done, kept = int(head["done"]), {key: found[key] for key in state}
        # Nothing that we wrote, or can read: what lay on a GPU cannot be read where there is none (a RuntimeError of PyTorch's).
        except (OSError, ValueError, TypeError, KeyError, RuntimeError, UnpicklingError) as error:
            check_barred(path, error)
            return 0
        for key, now in state.items():
            _fill(now, kept[key])
        began(f"Going on where a call before stopped: of {name} {done:,} are done.")
        return done


def _fill(now: Any, kept: Any) -> None:
    """Have an object hold what another of its kind holds."""
    if isinstance(now, dict):
        now.clear()
        now.update(kept)
    elif isinstance(now, list):
        now[:] = kept
    else:
        now.__dict__.clear()
        now.__dict__.update(kept.__dict__)
