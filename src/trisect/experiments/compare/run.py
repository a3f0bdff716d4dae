"""Measure two models by experiments that the command's list gives, and take their paired differences."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from trisect.core.errors import CorpusError, SpecError
from trisect.core.subject import Subject, Texts
from trisect.core.tables import NewRow
from trisect.experiments.compare.settings import PARTS, ComparedPart, CompareFacts, CompareSettings
from trisect.lab.experiment import AskedPart, Experiment, LayerMeasure, Measured, Replicates, RunContext
from trisect.lab.inputs import ModelSource
from trisect.lab.units.jobs import UnitMeasured, measure_unit, notes_by_model
from trisect.lab.units.page import KEYS, NO_MEANS, joined
from trisect.stats.bootstrap import draws_spread, percentile_interval
from trisect.stats.shares import paired_difference
from trisect.stats.tested import finite

DIFFERENCES: dict[str, type[pl.DataType]] = {
    "part": pl.String,
    "stack": pl.String,
    "layer": pl.Int64,
    "head": pl.Int64,
    "component": pl.String,
    "measure": pl.String,
    "group": pl.String,
    "at": pl.Float64,
    "first": pl.Float64,
    "second": pl.Float64,
    "value": pl.Float64,  # second less first
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,  # units, or groups of them, behind the interval
    "per": pl.String,  # what they are: text, article, head, or pair
}
APART = ("head", "pair")  # units that are the same however texts are split into tokens
UNPAIRED = (
    "{part}: the models do not have the same {unit}s behind their numbers, so that differences over {unit}s are unpaired and have no "
    "interval."
)
SIDE_BY_SIDE = (
    "The two models split the texts differently: what is counted by token is then of other tokens, and no difference "
    "over texts has an interval."
)


class TokensRead(NamedTuple):
    """How many tokens a model makes of the texts, and a mark of where each begins and ends."""

    tokens: int
    mark: str


def parts_of(settings: CompareSettings, of: Sequence[Experiment[Any, Any]]) -> Iterator[AskedPart]:
    """The parts that are asked for, with their settings; without profiles that were not named, since those may be left out."""
    for part in of:
        if part.name in settings.parts and (part.name != "profile" or settings.what is not None):
            yield AskedPart(part, _own(part, settings, settings.source.models[0]))


def measure(settings: CompareSettings, context: RunContext) -> Measured[CompareFacts]:
    """Both models by each part, as that experiment measures one, and every number's difference, second less first.

    Intervals are 95 % of the bootstrap over articles (texts where none is marked), in which both models meet the same draws: they
    are paired; a share of pairs has Newcombe's interval for paired shares. Where the models split the texts differently there are
    none. Raises TrisectError.
    """
    first, second = context.subjects
    parts = [one for name in settings.parts for one in context.of if one.name == name]
    if not parts:
        raise SpecError("Nothing is to be compared.", f"There is {', '.join(PARTS)}.", "Name some of them.")
    for subject in (first, second):
        for part in parts:
            part.check_model(_own(part, settings, subject), subject)
    read = [_tokens(subject, context.texts, settings.batch) for subject in (first, second)]
    paired = read[0] == read[1]
    done, left_out = dict[str, tuple[UnitMeasured, UnitMeasured]](), list[str]()
    for part in parts.copy():
        try:
            one, other = (
                _measured(part, settings, context, i, subject) for i, subject in enumerate((first, second), 1)
            )
        except CorpusError as error:
            if settings.what is not None or part.name != "profile":
                raise
            parts.remove(part)
            left_out.append(f"Profiles are left out. {error.given} {error.known}")
            continue
        done[part.name] = one, other
    rows = [row for part in parts for row in _differences(part, *done[part.name], paired)]
    table = pl.DataFrame([{c: row.get(c) for c in DIFFERENCES} for row in rows], schema=DIFFERENCES, orient="row").sort(
        list(DIFFERENCES), nulls_last=True
    )
    tables = {"differences": table} | {
        f"{part}_{name}": made
        for part, both in done.items()
        for name, made in joined({one.facts.name: one.tables for one in both}).items()
    }
    compared = tuple(_part(part, *done[part.name]) for part in parts)
    notes = dict.fromkeys(note for both in done.values() for note in notes_by_model(both))
    notes |= dict.fromkeys(left_out) | ({} if paired else {SIDE_BY_SIDE: None})
    notes |= dict.fromkeys(note for part in parts for note in _unpaired(part, *done[part.name]))
    facts = CompareFacts(
        (first.name, second.name),
        (first.fingerprint, second.fingerprint),
        (first.shape.words(), second.shape.words()),
        context.texts.name,
        context.texts.fingerprint,
        (read[0].tokens, read[1].tokens),
        paired,
        compared,
        settings.seed,
        settings.batch,
    )
    return Measured(tables, facts, tuple(notes))


def _tokens(subject: Subject, texts: Texts, size: int) -> TokensRead:
    """The tokens of all texts, without a pass through the model."""
    total, count = hashlib.blake2b(digest_size=16), 0
    for batch in subject.batches(texts.texts(), size):
        for row, tokens, real in zip(batch.rows, batch.source.tokens, batch.source.real.tolist(), strict=True):
            kept = [token for token, on in zip(tokens, real, strict=True) if on]
            count += len(kept)
            total.update(repr((row, kept)).encode())
    return TokensRead(count, total.hexdigest())


def _measured(
    part: Experiment[Any, Any], settings: CompareSettings, context: RunContext, number: int, subject: Subject
) -> UnitMeasured:
    """One model by one part, with its own page."""
    return measure_unit(part, _own(part, settings, subject), context, f"{part.name}/{number:02d}", subject)


def _own(part: Experiment[Any, Any], settings: CompareSettings, model: object) -> Any:
    """A part's settings for one model: what both share, and else its own defaults."""
    known = {one.name for one in fields(part.settings)}
    shared = {"source": ModelSource(model), "read": settings.read, "batch": settings.batch, "seed": settings.seed}
    if "pairs" not in known:  # of which a corpus would be another source
        shared |= {"corpus": settings.corpus, "split": settings.read.split, "reader": settings.read.reader}
    shared |= {"limit": settings.read.limit, "pairs": settings.pairs, "task": settings.task}
    return part.settings(**{name: value for name, value in shared.items() if name in known})


def _part(part: Experiment[Any, Any], one: UnitMeasured, other: UnitMeasured) -> ComparedPart:
    pages, found = (one.facts.page, other.facts.page), (one.facts.findings, other.facts.findings)
    return ComparedPart(part.name, part.by_layer, pages, found)


def _differences(part: Experiment[Any, Any], one: UnitMeasured, other: UnitMeasured, paired: bool) -> Iterator[NewRow]:
    """Every number that both have, and of what is drawn by layer each component's mean over the layers that both have."""
    mine, theirs = (_numbers(of.tables["measures"]) for of in (one, other))
    for key in (key for key in mine if key in theirs):
        draws = [of.replicates.get(key) for of in (one, other)]
        named: NewRow = dict(zip(KEYS, key, strict=True))
        yield {"part": part.name} | named | _difference(mine[key], theirs[key], draws, paired)
    shared = [key for key in mine if key in theirs]
    for (stack, component, measure, group), keys in _layers(shared, part.by_layer).items():
        named = {"stack": stack, "component": component, "measure": f"mean_{measure}", "group": group}
        whole = (stack, None, None, keys[0][3], measure, group, None)
        keys = [whole] if whole in mine and whole in theirs else keys
        one_mean, other_mean = (float(np.mean([of[key] for key in keys])) for of in (mine, theirs))
        draws = [_mean([of.replicates.get(key) for key in keys]) for of in (one, other)]
        yield {"part": part.name} | named | _difference(one_mean, other_mean, draws, paired)


RowKey = tuple[str | None, int | None, int | None, str | None, str, str | None, float | None]


def _numbers(measures: pl.DataFrame) -> dict[RowKey, float]:
    known = measures.filter(pl.col("value").is_not_null(), ~pl.col("measure").str.contains(NO_MEANS))
    return {tuple(row[key] for key in KEYS): row["value"] for row in known.iter_rows(named=True)}  # pyright: ignore[reportReturnType]


def _layers(
    keys: Sequence[RowKey], drawn: Sequence[LayerMeasure]
) -> Mapping[tuple[str | None, str, str, str | None], list[RowKey]]:
    """The rows of a layer (of its heads where it has none of its own) of what is drawn by layer, by component."""
    named, known = {one.measure: one for one in drawn}, set(keys)
    found: dict[tuple[str | None, str, str, str | None], list[RowKey]] = {}
    for whole in (True, False):
        here: dict[tuple[str | None, str, str, str | None], list[RowKey]] = {}
        for key in keys:
            stack, layer, head, component, measure, group, _ = key
            if group is not None and (*key[:5], None, None) in known:
                continue  # the same read in another way, such as with biases
            if layer is not None and measure in named and (head is None) == whole:
                place = (stack, named[measure].component or component or "", measure, group)
                here.setdefault(place, []).append(key)
        found |= {place: of for place, of in here.items() if place not in found}
    return found


def _mean(draws: Sequence[Replicates | None]) -> Replicates | None:
    """The mean of several numbers in every draw; null where one has none, or has draws of other texts."""
    known = [one for one in draws if one is not None]
    if not known or len(known) < len(draws) or len({(one.units, one.which) for one in known}) > 1:
        return None
    each = [one.each for one in known if one.each is not None]
    own = np.mean(each, 0) if len(each) == len(known) else None
    return known[0]._replace(values=np.mean([one.values for one in known], 0), each=own)


def _same_units(one: Replicates, other: Replicates) -> bool:
    return (one.units, one.which, one.values.shape) == (other.units, other.which, other.values.shape)


def _unpaired(part: Experiment[Any, Any], one: UnitMeasured, other: UnitMeasured) -> Iterator[str]:
    """A note on numbers whose units differ from model to model, by what they are."""
    both = [(mine, other.replicates[key]) for key, mine in one.replicates.items() if key in other.replicates]
    for unit in dict.fromkeys(mine.unit for mine, theirs in both if not _same_units(mine, theirs)):
        yield UNPAIRED.format(part=part.name, unit=unit)


def _difference(first: float, second: float, draws: Sequence[Replicates | None], paired: bool = True) -> NewRow:
    """Second less first, with its interval where both have the same draws of the same units, two at least.

    A share's is Newcombe's for paired shares, and so is that of a mean of shares whose draws all have the same difference.
    """
    row: NewRow = {"first": first, "second": second, "value": second - first}
    one, other = draws
    if one is None or other is None or not _same_units(one, other) or not (paired or one.unit in APART):
        return row
    low, high = _ends(one, other)
    known = low is not None and high is not None and one.units > 1
    return row | {"low": low, "high": high, "n": one.units, "per": one.unit} if known else row


def _ends(one: Replicates, other: Replicates) -> tuple[float | None, float | None]:
    moved = other.values - one.values
    if one.each is not None and other.each is not None:
        whole = all(np.isin(of, (0.0, 1.0)).all() for of in (one.each, other.each))
        if whole or draws_spread(moved) == 0:
            return paired_difference(one.each, other.each)
    ends = percentile_interval(moved, one.units)
    return finite(ends.low), finite(ends.high)
