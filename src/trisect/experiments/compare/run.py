"""Measure two models by several experiments, and take differences of all numbers that both have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import polars as pl

from trisect.core.errors import CorpusError, SpecError
from trisect.core.tables import ROW
from trisect.experiments.compare.settings import PARTS, CompareFacts, CompareSettings
from trisect.lab.experiment import Experiment, Measured, RunContext, UnitsFacts
from trisect.lab.inputs import ModelSource
from trisect.lab.units.jobs import measure_unit, notes_by_model
from trisect.lab.units.page import NO_MEANS, concat_tables, with_intervals

COLUMNS = ("part", *ROW, "first", "second", "value", "low", "high", "n", "per")
PLACE = ("stack", "component", "measure", "group")  # whose mean over layers is taken
OTHER_TOKENS = (
    "The two models split the texts into different numbers of tokens: what is counted by token is then of other tokens."
)


def check(settings: CompareSettings, parts: Iterable[Experiment[Any, Any]]) -> None:
    """Raise TrisectError for settings that are wrong for a part; profiles may be left out."""
    for part in parts:
        if part.name in settings.parts and (part.name != "profile" or settings.what is not None):
            part.check(_part_settings(part, settings, settings.source.models[0]))


def measure(settings: CompareSettings, context: RunContext) -> Measured[CompareFacts]:
    """Run each part on both models, with a page for each, and take the `differences` of their measures. Raises TrisectError."""
    parts = [part for part in context.experiments if part.name in settings.parts]
    if not parts:
        raise SpecError("Nothing is to be compared.", f"There is {', '.join(PARTS)}.", "Name some of them.")
    for subject in context.subjects:
        for part in parts:
            part.check_model(_part_settings(part, settings, subject), subject)
    tables, compared, notes = dict[str, pl.DataFrame](), list[UnitsFacts](), list[str]()
    for part in parts:
        both = []
        try:
            for number, subject in enumerate(context.subjects, start=1):
                place = f"{part.name}/{number:02d}"
                alone = replace(context, folder=context.folder / place, subjects=(subject,))
                both.append(measure_unit(part, _part_settings(part, settings, subject), alone, place))
        except CorpusError as error:
            if settings.what is not None or part.name != "profile":
                raise
            notes.append(f"Profiles are left out. {error.problem} {error.reason}")
            continue
        named = concat_tables({unit.facts.name: unit.tables for unit in both})
        tables |= {f"{part.name}_{name}": table for name, table in named.items()}
        compared.append(UnitsFacts("models", part.name, tuple(unit.facts for unit in both), part.by_layer))
        notes += notes_by_model(both)
        if len({dict(unit.facts.facts).get("tokens") for unit in both}) > 1:
            notes.append(OTHER_TOKENS)
    differences = [
        take_differences(tables[f"{p.what}_measures"], p).with_columns(part=pl.lit(p.what)) for p in compared
    ]
    tables["differences"] = pl.concat(differences, how="diagonal").select(COLUMNS).sort(COLUMNS, nulls_last=True)
    first, second = (subject.shape.describe() for subject in context.subjects)
    facts = CompareFacts(tuple(compared), (first, second), context.texts.name, context.texts.fingerprint)
    return Measured(tables, facts, tuple(dict.fromkeys(notes)))


def take_differences(measures: pl.DataFrame, facts: UnitsFacts) -> pl.DataFrame:
    """The second model's number less the first's, wherever both have one, and means of these over layers, as mean_MEASURE.

    A mean is over layers, or over heads where layers have no number of their own; `n` of them, as `per` says. Its 95 % interval is
    Student's t of their differences.
    """
    numbers = measures.filter(pl.col("value").is_not_null(), ~pl.col("measure").str.contains(NO_MEANS))
    first, second = (
        numbers.filter(model=model).select(*ROW, pl.col("value").alias(name))
        for model, name in zip(facts.names, ("first", "second"), strict=True)
    )
    both = first.join(second, on=ROW, nulls_equal=True).with_columns(value=pl.col("second") - pl.col("first"))
    of_layers = both.filter(
        pl.col("layer").is_not_null(),
        pl.col("at").is_null(),
        pl.col("measure").is_in([m.measure for m in facts.by_layer]),
    )
    owners = {shown.measure: shown.component for shown in facts.by_layer if shown.component}  # where rows do not say it
    component = pl.col("measure").replace_strict(owners, default=pl.col("component"), return_dtype=pl.String)
    per = pl.when(pl.col("head").is_null()).then(pl.lit("layer")).otherwise(pl.lit("head"))
    of_layers = of_layers.with_columns(component=component, per=per)
    of_layers = of_layers.filter((pl.col("per") == "layer") | (pl.col("per") == "head").all().over(PLACE))
    means = of_layers.group_by(*PLACE, "per", maintain_order=True).agg(
        pl.col("first", "second", "value").mean(), pl.col("value").alias("each"), pl.len().cast(pl.Int64).alias("n")
    )
    means = with_intervals(means).with_columns(measure=pl.format("mean_{}", "measure"))
    return pl.concat([both, means.drop("each", "spread")], how="diagonal")


def _part_settings(part: Experiment[Any, Any], settings: CompareSettings, model: object) -> Any:
    """A part's settings for one model: shared ones, and defaults."""
    names = {field.name for field in fields(part.settings)}
    shared = {"source": ModelSource(model), "read": settings.read, "batch": settings.batch, "seed": settings.seed}
    if "pairs" not in names:  # of which a corpus would be another source
        shared |= {"corpus": settings.corpus, "split": settings.read.split, "reader": settings.read.reader}
    shared |= {"limit": settings.read.limit, "pairs": settings.pairs, "task": settings.task}
    return part.settings(**{name: value for name, value in shared.items() if name in names})
