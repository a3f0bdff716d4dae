"""Ablation of a given model: how much its own loss changes when q, k or v of a site is replaced, text by text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trisect.core.errors import CorpusError, ModelError
from trisect.core.files import digest
from trisect.core.finding import Json
from trisect.core.subject import Batch, EditedPasses, Parts, RowScores, Subject, TextOrPair, Texts, Writer
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address, Side
from trisect.experiments.ablate.settings import AblateFacts, AblateSettings
from trisect.lab.experiment import ROW, Bench, Measured, Replicates
from trisect.lab.passes import (
    EditedPass,
    MappedTensors,
    Tally,
    compare_components,
    edited_passes,
    held_weights,
    plan_edits,
    what_was_read,
)
from trisect.measure.intervention import Means, borrow, put, real_parts, zeros
from trisect.stats.bootstrap import drawn_ratios, percentile_interval
from trisect.stats.shares import ratios
from trisect.stats.tested import finite

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


ZEROS = (
    "Queries or keys of 0 make every product of theirs 0, so that both leave a head the same, even pattern: their numbers are equal "
    "unless the model adds something to the products. --how mean or resample distinguishes them."
)


def measure(settings: AblateSettings, bench: Bench) -> Measured[AblateFacts]:
    """Replace what each site holds, one pass each.

    A site's components are replaced together in one layer at a time, or in one head at a time. With `hold` every layer's
    attention weights stay those of the unedited pass, in the edited layer only where v alone is edited: this separates what
    is carried from where it is taken. Values are changes of the subject's own loss in nats per predicted token, or of its
    output where it has no loss; intervals are 95 % of a bootstrap over articles (texts where none is
    marked). Raises SiteError, CorpusError, ModelError.
    """
    subject, texts, how, batch = bench.subject, bench.texts, settings.how, settings.batch
    edits = plan_edits(subject.shape, settings.sites, settings.per)
    addresses, read = tuple(dict.fromkeys(edit.address for edit in edits)), TextsRead.of(texts, settings.seed)
    with bench.progress(f"{how} at {len(edits)} places") as step:
        rounds = read.count * (2 if how == "mean" else 1)
        replace = make_replacement(subject, read, addresses, how, batch, settings.seed, lambda n: step(n, rounds))
        tally, notes, passes = Tally(), dict.fromkeys(texts.notes), edited_passes(subject)
        for one in subject.batches(read.stream(), batch, scored=True):
            notes |= dict.fromkeys(one.notes)
            tally.add(one, *_passes(subject, passes, one, edits, replace(one), settings.hold))
            step(rounds - read.count + one.rows[-1][0] + 1, rounds)
    table, articles = tally.table(texts.name), tally.articles(texts)
    notes |= dict.fromkeys((*articles.notes, *tally.left_out(table), *_alike(edits, how), *passes.notes))
    units = articles.sums(table, tally.kept)
    replicates = drawn_ratios(units[:, 1:], units[:, 0], settings.seed)
    rows = _rows(subject, units, edits, settings, replicates)
    measures = frame("measures", rows)
    if not measures["value"].is_not_null().all():
        notes["Where no number stands, the edited model's loss was not finite."] = None
    compared = compare_components(edits, units[:, 2:] / units[:, :1])
    columns = replicates[:, -len(rows) :].T  # without a loss of its own the unedited pass is no row
    which = digest(json.dumps(tally.kept).encode(), 8)
    unit = "text" if articles.numbers is None else "article"
    drawn = {
        tuple(r.get(n) for n in ROW): Replicates(c, len(units), which, unit) for r, c in zip(rows, columns, strict=True)
    }
    facts = _facts(subject, texts, table, settings, compared, None if articles.numbers is None else len(units))
    return Measured({"measures": measures}, facts, tuple(notes), replicates=drawn)


def _alike(edits: Sequence[EditedPass], how: str) -> tuple[str, ...]:
    """Why an ablation by zero gives queries and keys the same number, where both are ablated."""
    alone = {e.site.components for e in edits}
    return (ZEROS,) if how == "zero" and {("q",), ("k",)} <= alone else ()


def _passes(
    subject: Subject,
    passes: EditedPasses,
    batch: Batch,
    edits: Sequence[EditedPass],
    sources: Mapping[Address, Any],
    hold: bool,
) -> tuple[RowScores, list[RowScores]]:
    """The unedited pass over one batch, and one for each edit."""
    with torch.no_grad():
        clean = passes.score(batch)
        kept = held_weights(subject, batch) if hold else None
        if kept is not None:
            passes.begin(batch, kept)
        edited: list[RowScores] = []
        for (address, _), some in groupby(edits, lambda e: (e.address, e.routes)):
            own = list(some)
            writers = [put(e.targets, sources[address]) for e in own]
            edited += passes.several(batch, writers, address, _held(kept, own[0]), clean)
    return clean, edited


def _held(kept: Mapping[Address, Tensor] | None, edit: EditedPass) -> dict[Address, Tensor] | None:
    """The weights that an edit leaves alone: all, less those of its own layer where it is them that it edits."""
    if kept is None:
        return None
    return {address: weights for address, weights in kept.items() if not (edit.routes and address == edit.address)}


def _rows(
    subject: Subject,
    table: Float[np.ndarray, "N C"],
    edits: Sequence[EditedPass],
    settings: AblateSettings,
    replicates: Float[np.ndarray, "R C"],
) -> list[NewRow]:
    """The unedited loss, where there is one, and every edit's change, each with its interval."""
    counts, sums = table[:, 0], table[:, 1:]
    values = ratios(sums, counts)
    ends = percentile_interval(replicates, len(table))
    own = subject.objective != "output"
    rows: list[NewRow] = []
    for i, edit in enumerate([None, *edits]):
        if edit is None and not own:
            continue
        row: NewRow = {"subject": subject.name, "n": len(table), "measure": "loss_nats"}
        if edit is not None:
            single = edit.site.heads is not None and len(edit.site.heads) == 1
            some = "" if edit.site.heads is None or single else f", heads {str(edit.site).rpartition('.h')[2]}"
            row |= {
                "stack": edit.address.stack,
                "layer": edit.address.layer,
                "head": edit.site.heads[0] if single and edit.site.heads else None,
                "component": "+".join(edit.site.components),
                "measure": "loss_change_nats" if own else "output_change",
                "group": f"{settings.how}{some}{', pattern held' if settings.hold else ''}",
            }
        found = (values[i], ends.low[i], ends.high[i])
        named = zip(("value", "low", "high"), found, strict=True)
        rows.append(row | {name: finite(v) for name, v in named})
    return rows


def _facts(
    subject: Subject,
    texts: Texts,
    table: Float[np.ndarray, "N C"],
    settings: AblateSettings,
    compared: Mapping[str, Json] | None,
    articles: int | None,
) -> AblateFacts:
    return AblateFacts(
        *what_was_read(subject, texts, table),
        None if settings.sites is None else tuple(map(str, settings.sites)),
        settings.how,
        settings.per,
        settings.hold,
        settings.seed,
        settings.batch,
        compared,
        articles=articles,
    )
