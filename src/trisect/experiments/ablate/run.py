"""Mean, zero and resampling ablation: the change of a model's loss, text by text, with q, k or v of a site replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.subject import (
    QKV,
    Batch,
    EditedPasses,
    EditFunction,
    RowScores,
    Subject,
    TextOrPair,
    Texts,
    describe_edits,
    edit_name,
    edit_writer,
)
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address
from trisect.experiments.ablate.settings import AblateFacts, AblateSettings
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.passes import (
    EditedPass,
    Tally,
    compare_components,
    edited_passes,
    plan_edits,
    to_disk,
    weights_to_hold,
    what_was_read,
)
from trisect.measure.intervention import Means, put, real_parts, tile_donors, zeros
from trisect.stats.bootstrap import bootstrap_ratios, value_rows
from trisect.stats.shares import ratios

POOL = 256  # texts kept to be borrowed from
Replace = Callable[[Batch], Callable[[Address], QKV]]
ZEROS = (
    "Queries or keys of 0 make every product of theirs 0, so that both leave a head the same, even pattern: their numbers are equal "
    "unless the model adds something to the products. --how mean or resample distinguishes them."
)


@dataclass
class TextsRead:
    """Counts texts as they are read, keeps a sample of them, and finds repeated ones."""

    texts: Texts
    count: int
    pool: tuple[TextOrPair, ...]
    marks: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, texts: Texts, seed: int) -> TextsRead:
        """Count the texts and keep a uniform sample of at most POOL of them (Vitter 1985, algorithm R)."""
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
        """Yield all texts in order, noting a mark of each."""
        self.marks.clear()
        for text in self.texts.texts():
            self.marks.append(hash(text))
            yield text

    def other(self, number: int, seed: int) -> TextOrPair:
        """A text other than the one of that number, with other content; a function of the number and the seed."""
        others = [text for text in self.pool if hash(text) != self.marks[number]]
        if not others:
            same = f"There are {self.count} of them, and none that differs from text {number + 1}."
            raise CorpusError(f"The texts {self.texts.name!r} cannot be resampled.", same, "Give at least two texts.")
        return others[int(np.random.default_rng([seed, 2, number]).integers(len(others)))]


def make_replacement(
    subject: Subject,
    read: TextsRead,
    addresses: Sequence[Address],
    how: str,
    size: int,
    seed: int,
    step: Callable[[int], object],
) -> Replace:
    """Return a function from a batch to the replacements of q, k and v at each address; 'mean' reads all texts for it first."""
    if how == "zero":
        return lambda batch: lambda address: zeros()
    if how == "resample":

        def donor_parts(batch: Batch) -> Callable[[Address], QKV]:
            """q, k and v of another text for each row, read by itself; of a text in several windows, those of its first."""
            borrowed: dict[tuple[int, Address, int], Tensor] = {}
            for text in dict.fromkeys(text for text, _ in batch.rows):
                lent = next(iter(subject.batches([read.other(text, seed)], 1, scored=True)))

                def note(address: Address, parts: QKV, lent: Batch = lent, text: int = text) -> None:
                    for i, part in enumerate(real_parts(parts, 0, *_real(lent, address, parts))):
                        borrowed[text, address, i] = to_disk(part)

                _listen(subject, lent, addresses, note)
            layer: dict[Address, QKV] = {}  # those of one layer are in memory at a time

            def of_layer(address: Address) -> QKV:
                if address not in layer:
                    layer.clear()
                    rows, keys = [text for text, _ in batch.rows], batch.keys(address.stack)
                    sides = enumerate((batch.queries(address.stack), keys, keys))
                    parts = (tile_donors([borrowed[text, address, i] for text in rows], s.real) for i, s in sides)
                    layer[address] = QKV(*parts)
                return layer[address]

            return of_layer

        return donor_parts
    sums = {address: Means() for address in addresses}
    for batch in subject.batches(read.stream(), size, scored=True):
        _listen(subject, batch, addresses, lambda at, parts, batch=batch: sums[at].add(parts, *_real(batch, at, parts)))
        step(batch.rows[-1][0] + 1)
    means = {address: total.parts() for address, total in sums.items()}
    return lambda batch: means.__getitem__


def _listen(subject: Subject, batch: Batch, addresses: Sequence[Address], note: Callable[[Address, QKV], None]) -> None:
    """Record what enters the dot product at each address, in one unedited pass."""

    def write(address: Address, parts: QKV) -> QKV:
        note(address, parts)
        return parts

    with torch.no_grad():
        subject.score(batch, {address: partial(write, address) for address in addresses})


def _real(batch: Batch, address: Address, parts: QKV) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B S"]]:
    """Masks of real queries and keys (True), which are not padding."""
    queries, keys = batch.queries(address.stack).real, batch.keys(address.stack).real
    for real, length in ((queries, parts.q.shape[2]), (keys, parts.k.shape[2])):
        if real.shape[1] != length:
            lengths = f"The texts have {real.shape[1]} positions, the attention there {length}."
            raise ModelError(f"{address} cannot be split into texts and padding.", lengths, "Replace by zero there.")
    return queries, keys


def measure(settings: AblateSettings, context: RunContext) -> Measured[AblateFacts]:
    """Ablate each site in a pass of its own.

    A site's components are replaced together in one layer at a time, or in one head at a time. With `hold` every layer's
    attention weights stay those of the unedited pass, in the edited layer only where v alone is edited: this separates what
    is carried from where it is taken. Values are changes of the subject's own loss in nats per predicted token, or of its
    output where it has no loss; intervals are 95 % of a bootstrap over articles (texts where none is
    marked). Raises SiteError, CorpusError, ModelError.
    """
    subject, texts, batch = context.subject, context.texts, settings.batch
    places = _plan_actions(subject, settings)
    edits, ways = [edit for edit, _ in places], [way for _, way in places]
    read = TextsRead.of(texts, settings.seed)
    names = ", ".join(dict.fromkeys(map(edit_name, ways)))
    with context.progress(f"{names} at {len(edits)} place{'s' * (len(edits) != 1)}") as step:
        rounds = read.count * (2 if "mean" in ways else 1)
        replaces = {
            how: make_replacement(
                subject,
                read,
                tuple(dict.fromkeys(edit.address for edit, way in places if way == how)),
                how,
                batch,
                settings.seed,
                lambda n: step(n, rounds),
            )
            # once each, since it reads all texts
            for how in dict.fromkeys(way for way in ways if isinstance(way, str))
        }
        tally, notes, passes = Tally(), dict.fromkeys(texts.notes), edited_passes(subject)
        for part in subject.batches(read.stream(), batch, scored=True):
            notes |= dict.fromkeys(part.notes)
            sources = {how: replace(part) for how, replace in replaces.items()}
            tally.add(part, *_passes(subject, passes, part, places, sources, settings.hold))
            step(rounds - read.count + part.rows[-1][0] + 1, rounds)
    table, articles = tally.table(texts.name), tally.articles(texts)
    alike = {("q",), ("k",)} <= {edit.site.components for edit, way in places if way == "zero"}
    if settings.edits is not None:
        notes[f"Edited from Python, which the command does not repeat: {describe_edits(settings.edits)}."] = None
    notes |= dict.fromkeys((*articles.notes, *tally.note_omissions(table), *(ZEROS,) * alike, *passes.notes))
    units = articles.sums(table, tally.indices)
    draws = bootstrap_ratios(units[:, 1:], units[:, 0], settings.seed)
    rows = _rows(subject, units, places, settings.hold, draws)
    measures = frame("measures", rows)
    if not measures["value"].is_not_null().all():
        notes["Where no number stands, the edited model's loss was not finite."] = None
    facts = AblateFacts(
        *what_was_read(subject, texts, table),
        None if settings.sites is settings.edits is None else tuple(map(str, settings.sites or settings.edits or ())),
        names,
        settings.per,
        settings.hold,
        settings.seed,
        batch,
        compare_components(edits, units[:, 2:] / units[:, :1]) if len(set(ways)) == 1 else None,
        articles=None if articles.numbers is None else len(units),
    )
    return Measured({"measures": measures}, facts, tuple(notes))


def _plan_actions(subject: Subject, settings: AblateSettings) -> list[tuple[EditedPass, str | EditFunction]]:
    """All edits with their kind of replacement or function. Raises SiteError, and SpecError for a site that is named twice."""
    if settings.edits is None:
        return [(edit, settings.how) for edit in plan_edits(subject.shape, settings.sites, settings.per)]
    actions: dict[str, tuple[EditedPass, str | EditFunction]] = {}
    for site, way in settings.edits.items():
        for edit in plan_edits(subject.shape, [site], settings.per):
            if str(edit.site) in actions:
                again = f"{site} names it again, and each place is edited alone."
                raise SpecError(f"edits has {edit.site} twice.", again, "Name each place once.")
            actions[str(edit.site)] = edit, way
    return list(actions.values())


@torch.no_grad()
def _passes(
    subject: Subject,
    passes: EditedPasses,
    batch: Batch,
    places: Sequence[tuple[EditedPass, str | EditFunction]],
    sources: Mapping[str, Callable[[Address], QKV]],
    hold: bool,
) -> tuple[RowScores, list[RowScores]]:
    """Run a batch unedited and under each edit; of attention weights that are held, an edit's own are free."""
    clean = passes.score(batch)
    weights = weights_to_hold(subject, batch) if hold else None
    if weights is not None:
        passes.begin(batch, weights)
    edited: list[RowScores] = []
    for (address, routes), group in groupby(places, lambda place: (place[0].address, place[0].routes)):
        writers = [
            put(edit.targets, sources[way](address)) if isinstance(way, str) else edit_writer(edit.targets, way)
            for edit, way in group
        ]
        fixed = weights and {at: value for at, value in weights.items() if not (routes and at == address)}
        edited += passes.score_each(batch, writers, address, fixed, clean)
    return clean, edited


def _rows(
    subject: Subject,
    table: Float[np.ndarray, "N C"],
    places: Sequence[tuple[EditedPass, str | EditFunction]],
    hold: bool,
    replicates: Float[np.ndarray, "R C"],
) -> list[NewRow]:
    """Rows of the unedited loss, where there is one, and of the change by each edit, with intervals."""
    numbers = value_rows(ratios(table[:, 1:], table[:, 0]), replicates, len(table))
    measure = "output_change" if subject.objective == "output" else "loss_change_nats"
    pattern = ", pattern held" * hold
    sites = [edit.row(edit_name(way)) for edit, way in places]
    named = [{"measure": "loss_nats"}, *(p | {"measure": measure, "group": f"{p['group']}{pattern}"} for p in sites)]
    rows = [{"subject": subject.name} | name | columns for name, columns in zip(named, numbers, strict=True)]
    return rows[subject.objective == "output" :]
