"""A model that memory does not suffice for: an error of its own, which names what makes a pass smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.memory import lacks_memory

LOADING = "Loading"
LESS = "Read fewer texts at once (--batch), shorter ones (--window), or in a narrower precision (--dtype bfloat16)."
SMALLER = "Load it in a narrower precision (--dtype bfloat16), over several devices (--device-map auto), or choose a smaller one."


class NoRoomError(ModelError):
    """Memory did not suffice for a model with what it was given; nothing is said of either."""


@contextmanager
def room(name: str, doing: str, inputs: Mapping[str, object] | None = None) -> Iterator[None]:
    """Inside, an error that says that memory did not suffice becomes a NoRoomError; `doing` is what was done with the model."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        raise _no_room(name, doing, inputs or {}, error) from error


def _no_room(name: str, doing: str, inputs: Mapping[str, object], error: BaseException) -> NoRoomError:
    shapes = [f"{n} of {'×'.join(map(str, t.shape))}" for n, t in inputs.items() if isinstance(t, Tensor) and t.dim()]
    given = f"{doing} {name}{f' with {shapes[0]}' if shapes else ''} needs more memory than there is."
    said = " ".join(str(error).split())[:200]
    known = f"The system says: {said}" if said else "The system gave no more of it."
    return NoRoomError(given, known, SMALLER if doing == LOADING else LESS)
