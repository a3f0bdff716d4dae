"""Measure two models by several experiments, and take paired differences."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import polars as pl

from trisect.core.errors import CorpusError, SpecError
from trisect.core.subject import Subject, Texts
from trisect.core.tables import ROW, NewRow
from trisect.experiments.compare.settings import PARTS, CompareFacts, CompareSettings
from trisect.lab.experiment import Experiment, LayerMeasure, Measured, Replicates, RunContext, UnitsFacts
from trisect.lab.inputs import ModelSource
from trisect.lab.units.jobs import UnitMeasured, measure_unit, notes_by_model
from trisect.lab.units.page import NO_MEANS, concat_tables
from trisect.stats.bootstrap import draws_deviation, percentile_interval
from trisect.stats.shares import paired_difference
from trisect.stats.significance import finite

DIFFERENCES: dict[str, type[pl.DataType]] = {
    **{"part": pl.String, "stack": pl.String, "layer": pl.Int64, "head": pl.Int64},
    **dict.fromkeys(("component", "measure", "group"), pl.String),
    **dict.fromkeys(("at", "first", "second", "value", "low", "high"), pl.Float64),  # value: second less first
    "n": pl.Int64,  # units, or groups of them, behind the interval
    "per": pl.String,  # what they are: text, article, head, or pair
}
COMMON_UNITS = ("head", "pair")  # units that are the same however texts are split into tokens
UNPAIRED_REASON = (
    "{part}: the models do not have the same {unit}s behind their numbers, so that differences over {unit}s are unpaired and have no "
    "interval."
)
SIDE_BY_SIDE = (
    "The two models split the texts differently: what is counted by token is then of other tokens, and no difference "
    "over texts has an interval."
)


def check(settings: CompareSettings, parts: Iterable[Experiment[Any, Any]]) -> None:
    """Raise TrisectError for settings that are wrong for a part; profiles may be left out."""
    for part in parts:
        if part.name in settings.parts and (part.name != "profile" or settings.what is not None):
            part.check(_part_settings(part, settings, settings.source.models[0]))


def measure(settings: CompareSettings, context: RunContext) -> Measured[CompareFacts]:
    """Run each part on both models; differences are the second model's number less the first's.

    Intervals are 95 % of the bootstrap over articles (texts where none is marked), in which both models meet the same draws: they
    are paired; a share of pairs has Newcombe's interval for paired shares. Where the models split the texts differently there are
    none. Raises TrisectError.
    """
    parts = [part for part in context.experiments if part.name in settings.parts]
    if not parts:
        raise SpecError("Nothing is to be compared.", f"There is {', '.join(PARTS)}.", "Name some of them.")
    for subject in context.subjects:
        for part in parts:
            part.check_model(_part_settings(part, settings, subject), subject)
    read = [_tokens(subject, context.texts, settings.batch) for subject in context.subjects]
    paired = read[0] == read[1]
    tables, rows, compared, notes = dict[str, pl.DataFrame](), list[NewRow](), list[UnitsFacts](), list[str]()
    left_out = list[str]()
    for part in parts:
        try:
            both = list[UnitMeasured]()
            for number, subject in enumerate(context.subjects, start=1):  # each with a page of its own
                place = f"{part.name}/{number:02d}"
                unit_context = replace(context, folder=context.folder / place, subjects=(subject,))
                both.append(measure_unit(part, _part_settings(part, settings, subject), unit_context, place))
        except CorpusError as error:
            if settings.what is not None or part.name != "profile":
                raise
            left_out.append(f"Profiles are left out. {error.problem} {error.reason}")
            continue
        first, second = both
        rows += _differences(part, first, second, paired)
        named = concat_tables({unit.facts.name: unit.tables for unit in both})
        tables |= {f"{part.name}_{name}": table for name, table in named.items()}
        compared.append(UnitsFacts("models", part.name, (first.facts, second.facts), part.by_layer))
        notes += notes_by_model((first, second))
        left_out += _pairing_notes(part, first, second)
    table = pl.DataFrame([{c: row.get(c) for c in DIFFERENCES} for row in rows], schema=DIFFERENCES, orient="row")
    facts = CompareFacts(
        tuple(compared),
        (context.subjects[0].shape.describe(), context.subjects[1].shape.describe()),
        context.texts.name,
        context.texts.fingerprint,
        (read[0][0], read[1][0]),
        paired,
    )
    all_notes: list[str] = [*notes, *([] if paired else [SIDE_BY_SIDE]), *left_out]
    return Measured(
        {"differences": table.sort(list(DIFFERENCES), nulls_last=True)} | tables, facts, tuple(dict.fromkeys(all_notes))
    )


def _tokens(subject: Subject, texts: Texts, size: int) -> tuple[int, str]:
    """The number of tokens that a model makes of the texts, and a hash of their boundaries, without a forward pass."""
    total, count = hashlib.blake2b(digest_size=16), 0
    for batch in subject.batches(texts.texts(), size):
        for row, tokens, real in zip(batch.rows, batch.source.tokens, batch.source.real.tolist(), strict=True):
            inside = [token for token, on in zip(tokens, real, strict=True) if on]
            count += len(inside)
            total.update(repr((row, inside)).encode())
    return count, total.hexdigest()


def _part_settings(part: Experiment[Any, Any], settings: CompareSettings, model: object) -> Any:
    """A part's settings for one model: shared ones, and defaults."""
    names = {field.name for field in fields(part.settings)}
    shared = {"source": ModelSource(model), "read": settings.read, "batch": settings.batch, "seed": settings.seed}
    if "pairs" not in names:  # of which a corpus would be another source
        shared |= {"corpus": settings.corpus, "split": settings.read.split, "reader": settings.read.reader}
    shared |= {"limit": settings.read.limit, "pairs": settings.pairs, "task": settings.task}
    return part.settings(**{name: value for name, value in shared.items() if name in names})


def _differences(
    part: Experiment[Any, Any], first: UnitMeasured, second: UnitMeasured, paired: bool
) -> Iterator[NewRow]:
    """Differences of all numbers that both models have, also of means over their common layers by component."""
    has_number = pl.col("value").is_not_null(), ~pl.col("measure").str.contains(NO_MEANS)
    firsts, seconds = (
        {tuple(row[key] for key in ROW): row["value"] for row in run.tables["measures"].filter(*has_number).to_dicts()}
        for run in (first, second)
    )
    shared = [key for key in firsts if key in seconds]
    for key in shared:
        named: NewRow = {"part": part.name, **dict(zip(ROW, key, strict=True))}
        draws = (first.replicates.get(key), second.replicates.get(key))
        yield named | _difference(firsts[key], seconds[key], *draws, paired)
    for (stack, component, measure, group), keys in _layers(shared, part.by_layer).items():
        of_stack = (stack, None, None, keys[0][3], measure, group, None)
        keys = [of_stack] if of_stack in firsts and of_stack in seconds else keys
        named = {"stack": stack, "component": component, "measure": f"mean_{measure}", "group": group}
        values = [float(np.mean([numbers[key] for key in keys])) for numbers in (firsts, seconds)]
        draws = [_mean([unit.replicates.get(key) for key in keys]) for unit in (first, second)]
        yield {"part": part.name} | named | _difference(values[0], values[1], draws[0], draws[1], paired)


MeasureKey = tuple[str | None, int | None, int | None, str | None, str, str | None, float | None]


def _layers(
    keys: Sequence[MeasureKey], by_layer: Sequence[LayerMeasure]
) -> Mapping[tuple[str | None, str, str, str | None], list[MeasureKey]]:
    """Rows by layer (mean of heads if the layer has no row of its own), by component."""
    components, all_keys = {shown.measure: shown.component for shown in by_layer}, set(keys)
    layers, heads = ({}, {})
    for key in keys:
        stack, layer, head, component, measure, group, _ = key
        # read in another way, such as with biases
        is_variant = group is not None and (*key[:5], None, None) in all_keys
        if layer is not None and measure in components and not is_variant:
            place = (stack, components[measure] or component or "", measure, group)
            (layers if head is None else heads).setdefault(place, []).append(key)
    return heads | layers


def _mean(draws: Sequence[Replicates | None]) -> Replicates | None:
    """The mean of several numbers in every draw; None if one is missing or has draws of other texts."""
    present = [replicates for replicates in draws if replicates is not None]
    if not present or len(present) < len(draws) or len({(r.units, r.which) for r in present}) > 1:
        return None
    each = [r.each for r in present if r.each is not None]
    mean_of_each = np.mean(each, 0) if len(each) == len(present) else None
    return present[0]._replace(values=np.mean([r.values for r in present], 0), each=mean_of_each)


def _same_units(first: Replicates, second: Replicates) -> bool:
    return (first.units, first.which, first.values.shape) == (second.units, second.which, second.values.shape)


def _pairing_notes(part: Experiment[Any, Any], first: UnitMeasured, second: UnitMeasured) -> list[str]:
    """A note on numbers whose units differ from model to model, by what they are."""
    both = [(r, second.replicates[key]) for key, r in first.replicates.items() if key in second.replicates]
    units = dict.fromkeys(r.unit for r, other in both if not _same_units(r, other))
    return [UNPAIRED_REASON.format(part=part.name, unit=unit) for unit in units]


def _difference(
    first: float, second: float, draws: Replicates | None, others: Replicates | None, paired: bool = True
) -> NewRow:
    """Second less first, with an interval if both have the same draws of at least two units.

    A share's is Newcombe's for paired shares, and so is that of a mean of shares whose draws all have the same difference.
    """
    row: NewRow = {"first": first, "second": second, "value": second - first}
    if draws is None or others is None or not _same_units(draws, others) or not (paired or draws.unit in COMMON_UNITS):
        return row
    moved = others.values - draws.values
    ends: Any = percentile_interval(moved, draws.units)
    if draws.each is not None and others.each is not None:
        is_share = all(np.isin(hits, (0.0, 1.0)).all() for hits in (draws.each, others.each))
        if is_share or draws_deviation(moved) == 0:
            ends = paired_difference(draws.each, others.each)
    low, high = map(finite, ends)
    if low is None or high is None or draws.units < 2:
        return row
    return row | {"low": low, "high": high, "n": draws.units, "per": draws.unit}
