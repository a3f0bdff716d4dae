"""Path patching: the effect of every writer on q, k and v of later heads, exact or to first order, beside scores of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int

from trisect.core.errors import ModelError, SpecError
from trisect.core.files import Json
from trisect.core.site import Site
from trisect.core.subject import AnsweringSubject, EditedPasses, SiteTarget, Subject
from trisect.core.tables import INTEGER, REAL, TEXT, NewRow, frame
from trisect.core.trace import Address, StreamWriter
from trisect.experiments.compose.page import ALL
from trisect.experiments.compose.settings import ComposeFacts, ComposeSettings
from trisect.lab.experiment import Measured, Result, RunContext
from trisect.lab.pairs import PreparedPairs, answer_places, prepare_pairs
from trisect.lab.passes import edited_passes
from trisect.measure.composition import Paths, composition_scores
from trisect.measure.patching import UNKNOWN
from trisect.stats.describe import spearman
from trisect.stats.paired import mean_interval
from trisect.stats.significance import finite

MAX_EXACT_PATHS = 400  # up to so many paths, all are patched exactly
ROOM = 1 << 29  # numbers of writers' contributions that are cached until their paths are patched
PATHS = {
    **{"writer": TEXT, "into": TEXT},
    **{"effect_nats": REAL, "low": REAL, "high": REAL},  # of the total effect, Student's t over pairs
    **{"direct": REAL, "direct_low": REAL, "direct_high": REAL},  # with everything in between held fixed
    **{"unrelated": REAL, "attributed": REAL},  # of the direct one: from another pair's donor, and to first order
    **{"weights_only": REAL, "exact": pl.Boolean, "n": INTEGER},
}
SHIFTS = {
    **{"writer": TEXT, "into": TEXT, "hypothesis": TEXT},
    **{"shift_nats": REAL, "low": REAL, "high": REAL, "unrelated_nats": REAL, "n": INTEGER},
}


class Path(NamedTuple):
    """The path of a writer into q, k or v of a head: the fall of the answer's log-probability with the donor's contribution there.

    In `effect_nats` parts in between follow the change, in `direct` they are held; `unrelated` is the direct effect of another
    pair's donor. These are None if the path is not `exact`. `weights_only` is the composition score of two heads, `attributed` the
    direct effect to first order. `shifts` are the direct shifts from the base's answer to each hypothesis' answer.
    """

    writer: str
    into: str
    effect_nats: float | None
    low: float | None
    high: float | None
    direct: float | None
    direct_low: float | None
    direct_high: float | None
    unrelated: float | None
    weights_only: float | None
    attributed: float | None
    exact: bool
    shifts: Mapping[str, float]

    def data(self) -> dict[str, Json]:
        """The path as JSON-ready data."""
        return {**self._asdict(), "shifts": dict(self.shifts)}


class Composed(Result[ComposeFacts]):
    """The result of path patching."""

    @property
    def composition(self) -> tuple[Path, ...]:
        """All paths, the largest direct effects first."""
        shifts: dict[tuple[str, str], dict[str, float]] = {}
        for row in self.tables["shifts"].iter_rows(named=True):
            shifts.setdefault((row["writer"], row["into"]), {})[row["hypothesis"]] = row["shift_nats"]
        rows = self.tables["paths"].select(Path._fields[:-1]).iter_rows(named=True)
        return tuple(Path(**row, shifts=shifts.get((row["writer"], row["into"]), {})) for row in rows)

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data, the paths among the rest."""
        return {**super().data(), "composition": [path.data() for path in self.composition]}


class _ReadingHead(NamedTuple):
    """q, k or v (or some of them, joined) of a head, or of all heads of a layer."""

    layer: int
    component: str
    head: int | None

    @property
    def site(self) -> str:
        """Its site specification."""
        return f"{self.component}@{self.layer}{'' if self.head is None else f'.h{self.head}'}"


def prepare(
    settings: ComposeSettings, subject: Subject
) -> tuple[AnsweringSubject, tuple[_ReadingHead, ...], PreparedPairs]:
    """The model, the reading heads and the pairs; raises TrisectError for settings that the model cannot run."""
    if not isinstance(subject, AnsweringSubject) or subject.objective != "causal":
        requirement = "Paths are patched in causal language models."
        raise ModelError(f"{subject.name} has no paths to patch.", requirement, "Give a language model.")
    if settings.into is None:
        readers = [
            _ReadingHead(address.layer, component, head)
            for address, heads in subject.shape.heads.items()
            for component in ("q", "k", "v")
            for head in range(1, (heads.query if component == "q" else heads.key) + 1)
        ]
    else:
        site = Site.parse(settings.into) if isinstance(settings.into, str) else settings.into
        layers = sorted({target.address.layer for target in subject.shape.resolve(site)})
        readers = [_ReadingHead(n, c, head) for n in layers for c in site.components for head in site.heads or (None,)]
    first = subject.shape.layers("plain")[:1]
    if settings.into is not None and all((reader.layer,) == first for reader in readers):
        requirement = f"It reads the embedding alone; {subject.shape.describe()}"
        raise SpecError(f"Paths into {settings.into} were asked for.", requirement, "Name a head of a later layer.")
    targets = [SiteTarget(Address("plain", reader.layer), "k", None) for reader in readers]
    later = tuple(reader for reader in readers if (reader.layer,) != first)
    return subject, later, prepare_pairs(settings, subject, targets)


def measure(settings: ComposeSettings, context: RunContext) -> Measured[ComposeFacts]:
    """Patch every path of the settings; if these are all heads', only the strongest by first-order estimate are patched exactly.

    A path's effect is the fall of the log-probability of the base's answer when a writer's contribution to the input of one head's q,
    k or v is the donor's. Raises TrisectError, also for a model whose writers do not add up to its residual stream.
    """
    subject, readers, prepared = prepare(settings, context.subject)
    groups, count, passes = prepared.groups(settings.batch), len(prepared.pairs), edited_passes(subject)
    effects = _Effects(count)
    weights: dict[tuple[str, int, str, int], float] = {}
    layers = sorted({reader.layer for reader in readers})
    writers: tuple[StreamWriter, ...] = ()
    cache: dict[int, Paths] = {}  # as many batches as ROOM allows
    with context.progress("patching paths") as step:
        for number, part in enumerate(groups):
            read = _paths(subject, prepared, part, passes)
            writers = tuple(read.change)
            if len(groups) * 2 * len(writers) * read.stream.output.numel() <= ROOM:
                cache[number] = read
            weights = weights or composition_scores(read.stream.traces)
            slopes = read.attribute(layers)
            for reader in readers:
                parts = [slopes[key] for key in slopes if key[:2] == reader[:2] and reader.head in (key[2], None)]
                for writer, value in zip(writers, sum(parts[1:], parts[0]), strict=False):
                    effects.add("attributed", writer.name, reader, part, value[:, None])
            step(number + 1, 2 * len(groups))
        chosen = _chosen(settings, readers, writers, effects)
        for number, part in enumerate(groups):
            read = cache.pop(number) if number in cache else _paths(subject, prepared, part, passes)
            _patch(read, chosen, effects, part, _unrelated(prepared, part, read))
            step(len(groups) + number + 1, 2 * len(groups))
    rows = list(_rows(effects, weights, readers))
    table = pl.DataFrame(rows, PATHS, orient="row").with_columns(size=pl.coalesce("direct", "attributed").abs())
    table = table.sort("exact", "size", "writer", "into", descending=[True, True, False, False], nulls_last=True).drop(
        "size"
    )
    facts = ComposeFacts(
        subject.name,
        subject.fingerprint,
        subject.objective,
        prepared.name,
        prepared.fingerprint,
        count,
        None if settings.into is None else str(settings.into),
        len(table),
        _correlation(table, "attributed"),
        _correlation(table, "weights_only"),
        settings.seed,
    )
    sums = [
        {"subject": subject.name, "stack": "plain", "layer": r.layer, "head": r.head, "component": r.component}
        | {"measure": "path_effect_nats", "value": finite(effects.largest(r)), "n": count}
        for r in readers
    ]
    names = hypotheses(prepared)
    shifts = pl.DataFrame(list(_shifts(effects, names)), SHIFTS, orient="row")
    tables = {"paths": table, "shifts": shifts, "measures": frame("measures", sums)}
    return Measured(tables, facts, (*prepared.notes, *subject.notes))


def hypotheses(prepared: PreparedPairs) -> tuple[str, ...]:
    """The names of all answers, the base's first."""
    return tuple(dict.fromkeys(("base", *(name for answers in prepared.pieces for name in answers))))


def _paths(subject: AnsweringSubject, prepared: PreparedPairs, part: np.ndarray, passes: EditedPasses) -> Paths:
    """The paths of some pairs; an answer is its first token, and an unstated answer of the base is the model's."""
    base, donor = (prepared.batch(subject, part, side) for side in ("base", "donor"))
    places = answer_places(base, None)
    assert places is not None, "only masked language models have texts without a place"
    names = hypotheses(prepared)
    answers = np.array([[prepared.pieces[i].get(name, (UNKNOWN,))[0] for name in names] for i in part])
    if (answers[:, 0] == UNKNOWN).any():
        model_answers = subject.outputs(base, places=places)[:, 0].argmax(-1).numpy()
        answers[:, 0] = np.where(answers[:, 0] == UNKNOWN, model_answers, answers[:, 0])
    answers[:, 1:] = np.where(answers[:, 1:] == answers[:, :1], UNKNOWN, answers[:, 1:])
    return Paths(subject, base, donor, places, torch.from_numpy(answers), passes)


def _unrelated(prepared: PreparedPairs, part: np.ndarray, paths: Paths) -> Int[torch.Tensor, " B"]:
    """For each pair the next one with as many tokens and another donor and answer; the pair itself if there is none."""
    lengths, rows = paths.base.source.real.sum(1).tolist(), list[int]()
    for row, number in enumerate(part):
        pair = prepared.pairs[number]
        others = ((row + step) % len(part) for step in range(1, len(part)))
        fitting = (
            other
            for other in others
            if lengths[other] == lengths[row]
            and prepared.pairs[part[other]].donor != pair.donor
            and (
                "donor" not in pair.answers or prepared.pairs[part[other]].answers.get("donor") != pair.answers["donor"]
            )
        )
        rows.append(next(fitting, row))
    return torch.tensor(rows)


def _patch(
    paths: Paths,
    chosen: Sequence[tuple[StreamWriter | None, _ReadingHead]],
    effects: _Effects,
    part: np.ndarray,
    rows: Int[torch.Tensor, " B"],
) -> None:
    """Patch the chosen paths of some pairs: directly, from an unrelated donor, and in total, with later parts following."""
    is_own = (rows == torch.arange(len(rows)))[:, None]
    kinds = list[tuple[str, str, _ReadingHead]]()
    edits = list[tuple[Sequence[StreamWriter], int, str, int | None, bool, Int[torch.Tensor, " B"] | None]]()
    for writer, reader in chosen:
        sources = paths.stream.writers_before(reader.layer) if writer is None else (writer,)
        name, (layer, component, head) = ALL if writer is None else writer.name, reader
        kinds.append(("direct", name, reader))
        edits.append((sources, layer, component, head, True, None))
        if not bool(is_own.all()):
            kinds.append(("unrelated", name, reader))
            edits.append((sources, layer, component, head, True, rows))
        if writer is not None and paths.has_writer_between(writer, layer):
            kinds.append(("total", name, reader))
            edits.append((sources, layer, component, head, False, None))
    results = dict(zip(kinds, paths.effects(edits), strict=True))
    for (kind, name, reader), value in results.items():
        other = torch.where(is_own.to(value.device), torch.nan, value) if kind == "unrelated" else value
        effects.add(kind, name, reader, part, other)
        if kind == "direct" and ("total", name, reader) not in results:
            effects.add("total", name, reader, part, value)


class _Effects:
    """How the log-probabilities of N pairs' answers change, by kind (attributed, direct, unrelated, total), writer and reader."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.values: dict[tuple[str, str, _ReadingHead], Float[np.ndarray, "N A"]] = {}

    def add(self, kind: str, writer: str, reader: _ReadingHead, part: np.ndarray, value: torch.Tensor) -> None:
        """Store the changes of some pairs' answers."""
        room = np.full((self.count, value.shape[1]), np.nan)
        self.values.setdefault((kind, writer, reader), room)[part] = value.detach().cpu().numpy()

    def fall(self, kind: str, writer: str, reader: _ReadingHead) -> tuple[float | None, float | None, float | None]:
        """The fall of the base's answer: mean over pairs and Student's interval; None if it was not measured."""
        changes = self.values.get((kind, writer, reader))
        return (None, None, None) if changes is None else mean_interval(-changes[:, 0])

    def largest(self, reader: _ReadingHead) -> float:
        """The largest effect of one writer on a reader, exact if it was patched."""
        names = {writer for _, writer, into in self.values if into == reader and writer != ALL}
        sizes = [self.fall("direct", w, reader)[0] or self.fall("attributed", w, reader)[0] or 0.0 for w in names]
        return max(sizes, key=abs, default=float("nan"))


def _chosen(
    settings: ComposeSettings, readers: Sequence[_ReadingHead], writers: Sequence[StreamWriter], effects: _Effects
) -> list[tuple[StreamWriter | None, _ReadingHead]]:
    """The paths that are patched exactly, and all writers together (None) into their readers.

    If paths are sampled, these go only into the reader of the strongest.
    """
    paths = [(w, r) for r in readers for w in writers if w.layer < r.layer]
    if is_sample := settings.into is None and len(paths) > MAX_EXACT_PATHS:
        paths.sort(key=lambda path: -abs(effects.fall("attributed", path[0].name, path[1])[0] or 0.0))
        paths = paths[: settings.exact]
    into = list(dict.fromkeys(reader for _, reader in paths))
    return [*paths, *((None, reader) for reader in (into[:1] if is_sample else into))]


def _rows(
    effects: _Effects, weights: Mapping[tuple[str, int, str, int], float], readers: Sequence[_ReadingHead]
) -> Iterator[NewRow]:
    for writer, reader in dict.fromkeys((writer, reader) for _, writer, reader in effects.values):
        if reader not in readers:
            continue
        row: NewRow = {"writer": writer, "into": reader.site, "n": effects.count}
        row["exact"] = ("direct", writer, reader) in effects.values
        row["attributed"], row["unrelated"] = (
            effects.fall(kind, writer, reader)[0] for kind in ("attributed", "unrelated")
        )
        row["direct"], row["direct_low"], row["direct_high"] = effects.fall("direct", writer, reader)
        row["effect_nats"], row["low"], row["high"] = effects.fall("total", writer, reader)
        row["weights_only"] = weights.get((writer, reader.layer, reader.component, reader.head or 0))
        yield row


def _shifts(effects: _Effects, names: Sequence[str]) -> Iterator[NewRow]:
    """The direct shift from the base's answer to each hypothesis' answer by every path that was patched exactly."""
    for kind, writer, reader in effects.values:
        if kind != "direct":
            continue
        gained = {k: effects.values.get((k, writer, reader)) for k in ("direct", "unrelated")}
        for column, name in enumerate(names[1:], start=1):
            shift, other = (None if gain is None else gain[:, column] - gain[:, 0] for gain in gained.values())
            if shift is None or not np.isfinite(shift).any():
                continue
            row: NewRow = {"writer": writer, "into": reader.site, "hypothesis": name}
            row["n"] = int(np.isfinite(shift).sum())
            row["shift_nats"], row["low"], row["high"] = mean_interval(shift)
            row["unrelated_nats"] = None if other is None else mean_interval(other)[0]
            yield row


def _correlation(table: pl.DataFrame, column: str) -> float | None:
    """The rank correlation of a column with direct effects, by absolute value, over paths that have both."""
    both = table.filter(pl.col("exact")).select(column, "direct").drop_nulls().to_numpy().T
    return finite(spearman(np.abs(both)[None])[0]) if both.shape[1] > 2 else None
