"""What an ablation replaces q, k and v by: zero, the texts' mean, or another text's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from trisect.core.errors import CorpusError, ModelError
from trisect.core.subject import Batch, Parts, Subject, TextOrPair, Texts, Writer
from trisect.core.trace import Address, Side
from trisect.lab.mapped import MappedTensors
from trisect.measure.ablation import Means, borrow, real_parts, zeros

POOL = 256  # texts kept to be borrowed from
ReadProgress = Callable[[int], object]  # of how many texts were read


@dataclass
class TextsRead:
    """The texts as they are read: how many there are, some of them, and which of them are the same."""

    texts: Texts
    count: int
    pool: tuple[TextOrPair, ...]
    marks: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, texts: Texts, seed: int) -> TextsRead:
        """Count the texts, and keep at most POOL of them, each as likely as any other (Vitter 1985, algorithm R)."""
        draw, pool, count = np.random.default_rng([seed, 1]), [], 0
        for count, text in enumerate(texts.texts(), start=1):
            if len(pool) < POOL:
                pool.append(text)
            elif (place := int(draw.integers(count))) < POOL:
                pool[place] = text
        if not count:
            raise CorpusError(f"The texts {texts.name!r} are none.", "At least one is needed.", "Give texts to read.")
        return cls(texts, count, tuple(pool))

    def stream(self) -> Iterator[TextOrPair]:
        """The texts from the first on, each marked as it passes."""
        self.marks.clear()
        for text in self.texts.texts():
            self.marks.append(hash(text))
            yield text

    def other(self, number: int, seed: int) -> TextOrPair:
        """A text that is not the one of that number, nor the same as it; a function of the number and the seed."""
        others = [text for text in self.pool if hash(text) != self.marks[number]]
        if not others:
            known = f"There are {self.count} of them, and none that differs from text {number + 1}."
            raise CorpusError(f"The texts {self.texts.name!r} cannot be resampled.", known, "Give at least two texts.")
        return others[int(np.random.default_rng([seed, 2, number]).integers(len(others)))]


Replace = Callable[[Batch], Mapping[Address, Parts]]


def make_replacement(
    subject: Subject, read: TextsRead, addresses: Sequence[Address], how: str, size: int, seed: int, step: ReadProgress
) -> Replace:
    """For a batch, what stands in for q, k and v at each address; 'mean' reads all texts for it first."""
    if how == "zero":
        return lambda batch: dict.fromkeys(addresses, zeros())
    if how == "mean":
        means = _means(subject, read, addresses, size, step)
        return lambda batch: means
    return lambda batch: _borrowed(subject, read, addresses, batch, seed)


def _means(
    subject: Subject, read: TextsRead, addresses: Sequence[Address], size: int, step: ReadProgress
) -> dict[Address, Parts]:
    found = {address: Means() for address in addresses}
    for batch in subject.batches(read.stream(), size, scored=True):

        def note(address: Address, parts: Parts, batch: Batch = batch) -> None:
            found[address].add(parts, *_real(batch, address, parts))

        _listen(subject, batch, addresses, note)
        step(batch.rows[-1][0] + 1)
    return {address: means.parts() for address, means in found.items()}


def _borrowed(
    subject: Subject, read: TextsRead, addresses: Sequence[Address], batch: Batch, seed: int
) -> Mapping[Address, Parts]:
    """Every row's q, k and v from another text, read by itself; of a text cut into windows the first is borrowed from."""
    lender = MappedTensors[tuple[int, Address, int]]()
    for text in dict.fromkeys(text for text, _ in batch.rows):
        lent = next(iter(subject.batches([read.other(text, seed)], 1, scored=True)))

        def note(address: Address, parts: Parts, lent: Batch = lent, text: int = text) -> None:
            for i, part in enumerate(real_parts(parts, 0, *_real(lent, address, parts))):
                lender.add((text, address, i), part)

        _listen(subject, lent, addresses, note)
    return _BorrowedLayers(lender.finish(), batch, addresses)


@dataclass
class _BorrowedLayers(Mapping[Address, Parts]):
    """The other texts' q, k and v, put together for a layer when it is asked for; those of one layer are held."""

    lent: Mapping[tuple[int, Address, int], Tensor]
    batch: Batch
    addresses: Sequence[Address]
    _last: tuple[Address, Parts] | None = None

    def __getitem__(self, address: Address) -> Parts:
        if self._last is None or self._last[0] != address:
            self._last = None
            sides = self.batch.queries(address.stack), *(self.batch.keys(address.stack),) * 2
            rows = [text for text, _ in self.batch.rows]
            made = (borrow([self.lent[text, address, i] for text in rows], s.real) for i, s in enumerate(sides))
            self._last = address, Parts(*made)
        return self._last[1]

    def __iter__(self) -> Iterator[Address]:
        return iter(self.addresses)

    def __len__(self) -> int:
        return len(self.addresses)


def _listen(
    subject: Subject, batch: Batch, addresses: Sequence[Address], note: Callable[[Address, Parts], None]
) -> None:
    """One pass that changes nothing and notes what enters the dot product at each address."""

    def listener(address: Address) -> Writer:
        def write(parts: Parts) -> Parts:
            note(address, parts)
            return parts

        return write

    with torch.no_grad():
        subject.score(batch, {address: listener(address) for address in addresses})


def _real(batch: Batch, address: Address, parts: Parts) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B S"]]:
    sides = (batch.queries(address.stack), parts.q.shape[2]), (batch.keys(address.stack), parts.k.shape[2])
    queries, keys = (_fitting(side, length, address) for side, length in sides)
    return queries, keys


def _fitting(side: Side, length: int, address: Address) -> Bool[Tensor, "B T"]:
    if side.real.shape[1] == length:
        return side.real
    known = f"The texts have {side.real.shape[1]} positions, the attention there {length}."
    raise ModelError(f"{address} cannot be split into texts and padding.", known, "Replace by zero there.")
