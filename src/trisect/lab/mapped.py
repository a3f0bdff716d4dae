"""Tensors of all layers in a temporary file that is mapped into memory, so that the system can free what is not in use."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import IO, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.door import temporary_room
from trisect.core.subject import Batch, Subject
from trisect.core.trace import Address

K = TypeVar("K", bound=Hashable)
EDGE = 64  # bytes, at multiples of which tensors begin


class _Place(NamedTuple):
    """Where one tensor lies in the file."""

    start: int
    dtype: torch.dtype
    shape: torch.Size


class MappedTensors(Generic[K]):
    """Tensors by name, added one after the other; the file has no name, and goes with the last of them.

    Writing to one that was given back changes neither the file nor another copy of it. Raises StudyError where the folder of
    temporary files cannot hold it.
    """

    def __init__(self) -> None:
        with temporary_room("What is held over all layers"):
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed by `finish`, or with self
        self._places: dict[K, _Place] = {}
        weakref.finalize(self, _close, self._file)

    def add(self, name: K, tensor: Tensor) -> None:
        """Write a tensor to the file."""
        plain = tensor.detach().cpu().contiguous()
        with temporary_room("What is held over all layers"):
            self._file.write(bytes(-self._file.tell() % EDGE))
            self._places[name] = _Place(self._file.tell(), plain.dtype, plain.shape)
            self._file.write(plain.reshape(-1).view(torch.uint8).numpy().data)

    def finish(self) -> dict[K, Tensor]:
        """All of them, on the CPU, bit for bit; nothing can be added afterwards."""
        with temporary_room("What is held over all layers"), self._file as file:
            file.flush()
            size = file.tell()
            whole = np.memmap(file, np.uint8, "c", shape=(size,)) if size else np.zeros(0, np.uint8)
        return {name: _cut(whole, place) for name, place in self._places.items()}


def _close(file: IO[bytes]) -> None:
    """Close a file of which nothing is needed any more, so that it does not matter whether all of it was written."""
    with suppress(OSError):
        file.close()


def _cut(whole: np.ndarray, place: _Place) -> Tensor:
    size = place.shape.numel() * place.dtype.itemsize
    if not size:
        return torch.empty(place.shape, dtype=place.dtype)
    return torch.from_numpy(whole[place.start : place.start + size]).view(place.dtype).view(place.shape)


def held_weights(subject: Subject, batch: Batch) -> dict[Address, Float[Tensor, "B H T S"]]:
    """The attention weights of every layer in the unedited pass, to be held in edited ones."""
    kept = MappedTensors[Address]()
    note: Callable[..., None] = lambda trace: kept.add(trace.address, trace.weights)  # noqa: E731
    subject.each(batch, note)
    return kept.finish()
