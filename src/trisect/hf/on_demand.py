"""Projections that are copied when they are asked for, one layer's at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from trisect.core.trace import Projections
from trisect.hf.one_thread import alone
from trisect.hf.traces import CPU


class OnDemand(Sequence[Projections]):
    """The weights of several layers, each copied to the CPU when it is asked for; `look` raises where the model's changed."""

    def __init__(self, own: Sequence[Projections], look: Callable[[], None]) -> None:
        self._own, self._look = tuple(own), look

    def __len__(self) -> int:
        return len(self._own)

    @overload
    def __getitem__(self, index: int) -> Projections: ...
    @overload
    def __getitem__(self, index: slice) -> OnDemand: ...
    @alone
    def __getitem__(self, index: int | slice) -> Projections | OnDemand:
        if isinstance(index, slice):
            return OnDemand(self._own[index], self._look)
        self._look()
        return self._own[index].copied(CPU)

    def __iter__(self) -> Iterator[Projections]:
        for index in range(len(self)):
            yield self[index]
