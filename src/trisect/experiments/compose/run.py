"""Path patching: the effect of every writer on q, k and v of later heads, exact or to first order, beside scores of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float

from trisect.core.errors import ModelError, SpecError
from trisect.core.files import Json
from trisect.core.site import Site
from trisect.core.subject import AnsweringSubject, SiteTarget, Subject
from trisect.core.tables import REAL, TEXT, WHOLE, NewRow, frame
from trisect.core.trace import Address
from trisect.experiments.compose.settings import ComposeFacts, ComposeSettings
from trisect.lab.experiment import Measured, Result, RunContext
from trisect.lab.pairs import PreparedPairs, answer_places, prepare_pairs
from trisect.measure.composition import Paths, StreamWriter, composition_scores
from trisect.measure.patching import UNKNOWN
from trisect.stats.describe import spearman
from trisect.stats.paired import t_quantile
from trisect.stats.tested import ALPHA, finite

MOST = 400  # paths that are all patched exactly
ALL = "all writers"
PATHS = {
    **{
        "writer": TEXT,
        "into": TEXT,
        "effect_nats": REAL,
        "low": REAL,
        "high": REAL,
    },  # of the total effect, Student's t over pairs
    **{"direct": REAL, "attributed": REAL},  # everything between held, and the same to first order
    **{"weights_only": REAL, "exact": pl.Boolean, "n": WHOLE},
}


class Path(NamedTuple):
    """The path of a writer into q, k or v of a head: how far the answer's log-probability falls with the donor's contribution there.

    `effect_nats` lets what lies between react, `direct` holds it; both are exact where `exact`, else `direct` is to first order and
    `effect_nats` None. `weights_only` is the composition score of two heads, `attributed` the direct effect to first order.
    """

    writer: str
    into: str
    effect_nats: float | None
    low: float | None
    high: float | None
    direct: float | None
    weights_only: float | None
    attributed: float | None
    exact: bool

    def data(self) -> dict[str, Json]:
        """The path as JSON-ready data."""
        return dict(self._asdict())


class Composed(Result[ComposeFacts]):
    """Paths that were patched."""

    @property
    def composition(self) -> tuple[Path, ...]:
        """Every path, those of the largest effect first."""
        return tuple(Path(**row) for row in self.tables["paths"].select(Path._fields).iter_rows(named=True))

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data, the paths among the rest."""
        return {**super().data(), "composition": [path.data() for path in self.composition]}


class ReadingHead(NamedTuple):
    """q, k or v (or several, joined) of a head, or of all heads of a layer."""

    layer: int
    component: str
    head: int | None

    @property
    def site(self) -> str:
        """As a site is written."""
        return f"{self.component}@{self.layer}{'' if self.head is None else f'.h{self.head}'}"


def prepare(
    settings: ComposeSettings, subject: Subject
) -> tuple[AnsweringSubject, tuple[ReadingHead, ...], PreparedPairs]:
    """The subject, the heads that read, and the pairs; raises TrisectError for what the model cannot be asked."""
    if not isinstance(subject, AnsweringSubject) or subject.objective != "causal":
        known = "Paths are patched where a model goes on with a text."
        raise ModelError(f"{subject.name} cannot be asked for paths.", known, "Give a language model.")
    if settings.into is None:
        readers = [
            ReadingHead(address.layer, component, head)
            for address, heads in subject.shape.heads.items()
            for component in ("q", "k", "v")
            for head in range(1, (heads.query if component == "q" else heads.key) + 1)
        ]
    else:
        site = Site.parse(settings.into) if isinstance(settings.into, str) else settings.into
        layers = sorted({target.address.layer for target in subject.shape.resolve(site)})
        readers = [ReadingHead(n, c, head) for n in layers for c in site.components for head in site.heads or (None,)]
    first = subject.shape.layers("plain")[:1]
    if settings.into is not None and all((reader.layer,) == first for reader in readers):
        known = f"It reads the embedding alone; {subject.shape.words()}"
        raise SpecError(f"Paths into {settings.into} were asked for.", known, "Name a head of a later layer.")
    targets = [SiteTarget(Address("plain", reader.layer), "k", None) for reader in readers]
    return (
        subject,
        tuple(reader for reader in readers if (reader.layer,) != first),
        prepare_pairs(settings, subject, targets),
    )


def measure(settings: ComposeSettings, context: RunContext) -> Measured[ComposeFacts]:
    """Patch every path that is asked for; of all heads' the strongest to first order are patched exactly.

    A path's effect is how far the log-probability of the base's answer falls when what a writer adds to the input of one head's q, k
    or v is the donor's. Raises TrisectError, also for a model whose writers do not add up to its residual stream.
    """
    subject, readers, prepared = prepare(settings, context.subject)
    groups, count = prepared.groups(settings.batch), len(prepared.pairs)
    effects = _Effects(count)
    weights: dict[tuple[str, int, str, int], float] = {}
    layers = sorted({reader.layer for reader in readers})
    writers: tuple[StreamWriter, ...] = ()
    with context.progress("patching paths") as step:
        for number, part in enumerate(groups):
            paths = _paths(subject, prepared, part)
            writers = tuple(paths.change)
            weights = weights or composition_scores(paths.stream.traces)
            for (writer, layer, component, head), value in paths.attributed(layers).items():
                effects.add("attributed", writer.name, ReadingHead(layer, component, head), part, value)
            step(number + 1, 2 * len(groups))
        chosen = _chosen(settings, readers, writers, effects)
        for number, part in enumerate(groups):
            paths = _paths(subject, prepared, part)
            for writer, reader in chosen:
                some = paths.stream.before(reader.layer) if writer is None else (writer,)
                name = ALL if writer is None else writer.name
                for kind in ("direct", "total") if writer is not None else ("direct",):
                    made = paths.effect(some, reader.layer, reader.component, reader.head, kind == "direct")
                    effects.add(kind, name, reader, part, made)
                if writer is None:
                    effects.values["total", name, reader] = effects.values["direct", name, reader]
            step(len(groups) + number + 1, 2 * len(groups))
    rows = list(_rows(effects, weights, readers))
    table = pl.DataFrame(rows, PATHS, orient="row").with_columns(size=pl.coalesce("effect_nats", "attributed").abs())
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
        _correlation(table, "attributed", "direct"),
        _correlation(table, "weights_only", "direct"),
        settings.seed,
    )
    sums = [
        {"subject": subject.name, "stack": "plain", "layer": r.layer, "head": r.head, "component": r.component}
        | {"measure": "path_effect_nats", "value": finite(effects.largest(r)), "n": count}
        for r in readers
    ]
    tables = {"paths": table, "measures": frame("measures", sums)}
    return Measured(tables, facts, (*prepared.notes, *subject.notes))


def _paths(subject: AnsweringSubject, prepared: PreparedPairs, part: np.ndarray) -> Paths:
    base, donor = (prepared.batch(subject, part, side) for side in ("base", "donor"))
    places = answer_places(base, None)
    assert places is not None, "only masked language models have texts without a place"
    stated = prepared.answers.get("base", np.full(len(prepared.pairs), UNKNOWN))[part]
    mine = subject.outputs(base, places=places)[:, 0].argmax(-1).numpy() if (stated == UNKNOWN).any() else stated
    return Paths(subject, base, donor, places, torch.from_numpy(np.where(stated == UNKNOWN, mine, stated)))


class _Effects:
    """Effects of N pairs by kind (attributed, direct, total), writer and reader."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.values: dict[tuple[str, str, ReadingHead], Float[np.ndarray, " N"]] = {}

    def add(self, kind: str, writer: str, reader: ReadingHead, part: np.ndarray, value: torch.Tensor) -> None:
        """The effects on some pairs."""
        self.values.setdefault((kind, writer, reader), np.full(self.count, np.nan))[part] = value.detach().cpu().numpy()

    def mean(self, kind: str, writer: str, reader: ReadingHead) -> float | None:
        """The mean over pairs; None where none was measured."""
        found = self.values.get((kind, writer, reader))
        return None if found is None else finite(found.mean())

    def largest(self, reader: ReadingHead) -> float:
        """The largest effect of one writer on a reader: exact where that is known."""
        names = {writer for _, writer, of in self.values if of == reader and writer != ALL}
        known = [self.mean("total", w, reader) or self.mean("attributed", w, reader) or 0.0 for w in names]
        return max(known, key=abs, default=float("nan"))


def _chosen(
    settings: ComposeSettings, readers: Sequence[ReadingHead], writers: Sequence[StreamWriter], effects: _Effects
) -> list[tuple[StreamWriter | None, ReadingHead]]:
    """The paths that are patched exactly, and all writers together (None) into each of their readers."""
    every = [(w, r) for r in readers for w in writers if w.layer < r.layer]
    if settings.into is None and len(every) > MOST:
        every.sort(key=lambda one: -abs(effects.mean("attributed", one[0].name, one[1]) or 0.0))
        every = every[: settings.exact]
    return [*every, *((None, reader) for reader in dict.fromkeys(r for _, r in every))]


def _rows(
    effects: _Effects, weights: Mapping[tuple[str, int, str, int], float], readers: Sequence[ReadingHead]
) -> Iterator[NewRow]:
    for writer, reader in dict.fromkeys((writer, reader) for _, writer, reader in effects.values):
        if reader not in readers:
            continue
        row: NewRow = {"writer": writer, "into": reader.site, "exact": False, "n": effects.count}
        row["attributed"] = effects.mean("attributed", writer, reader)
        row["direct"] = effects.mean("direct", writer, reader)
        row["weights_only"] = weights.get((writer, reader.layer, reader.component, reader.head or 0))
        if ("total", writer, reader) in effects.values:
            each = effects.values["total", writer, reader]
            n = len(each)
            half = float(t_quantile(1 - ALPHA, n)) * each.std(ddof=1) / n**0.5 if n > 1 else np.nan
            row |= {
                "effect_nats": finite(each.mean()),
                "low": finite(each.mean() - half),
                "high": finite(each.mean() + half),
            }
            row["exact"] = True
        yield row


def _correlation(table: pl.DataFrame, first: str, second: str) -> float | None:
    """The rank correlation of two columns' sizes over the paths that have both."""
    both = table.filter(pl.col("exact")).select(first, second).drop_nulls().to_numpy().T
    return finite(spearman(np.abs(both)[None])[0]) if both.shape[1] > 2 else None
