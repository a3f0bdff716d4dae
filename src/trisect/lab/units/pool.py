"""Numbers of several models put together: every table with its model, means over models with Student's t, and findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from trisect.core.finding import Comparison, Estimate, Finding
from trisect.core.tables import NewRow
from trisect.stats.compare import compare
from trisect.stats.paired import Sample, summary, t_interval
from trisect.stats.tested import finite

KEYS = ("stack", "layer", "head", "component", "measure", "group", "at")
NO_MEANS = r"_(p|p_holm|null)$"  # p-values and what chance alone gives are of one model each
FINDINGS = {
    "model": pl.String,
    "measure": pl.String,
    "title": pl.String,
    "what": pl.String,
    "groups": pl.String,
    "unit": pl.String,
    "source": pl.String,
    "per": pl.String,
    "signed": pl.Boolean,
    "name": pl.String,  # of the number within the finding: a component, a site
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,
}


class ModelFindings(NamedTuple):
    """What was found in one model, by the name that rows know it by."""

    model: str
    findings: tuple[Finding, ...]


def joined(tables: Mapping[str, Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """Tables by name, each with those of all models, by model; the first column says which one a row is of."""
    names = dict.fromkeys(name for of in tables.values() for name in of)
    return {
        name: pl.concat(
            [
                of[name].select(pl.lit(model, pl.String).alias("model"), pl.all())
                for model, of in tables.items()
                if name in of
            ],
            how="diagonal_relaxed",
        )
        for name in names
    }


def over_models(measures: pl.DataFrame) -> pl.DataFrame:
    """The mean of every number over the models that have it, with a 95 % Student t interval, and how far models spread.

    `n` counts models: a number that fewer of them have says so. There is no interval with one model, or where all agree.
    """
    found = measures.filter(pl.col("value").is_not_null(), ~pl.col("measure").str.contains(NO_MEANS))
    grouped = found.group_by(KEYS, maintain_order=True).agg(
        pl.col("value").mean(),
        pl.col("value").min().alias("least"),
        pl.col("value").max().alias("most"),
        pl.col("value").alias("each"),
        pl.col("model").n_unique().cast(pl.Int64).alias("n"),
    )
    samples = [summary(row) for row in grouped["each"].to_list()]
    whole = Sample(*(np.array([float(getattr(s, field)) for s in samples]) for field in Sample._fields))
    ends = t_interval(whole)
    more = {"low": ends.low, "high": ends.high, "spread": whole.spread}
    columns = [pl.Series(name, [finite(v) for v in values], pl.Float64) for name, values in more.items()]
    table = grouped.drop("each").with_columns(columns)
    return table.select(*KEYS, "value", "low", "high", "n", "spread", "least", "most").sort(list(KEYS), nulls_last=True)


def findings_table(found: Iterable[ModelFindings]) -> pl.DataFrame:
    """Every number that a model's findings hold but for verdicts, a row each."""
    rows: list[NewRow] = []
    for model, findings in found:
        for one in findings:
            if one.claim is not None:
                continue
            own: NewRow = {
                name: getattr(one, name) for name in ("measure", "title", "what", "unit", "source", "per", "signed")
            }
            own |= {"model": model, "groups": ", ".join(one.groups)}
            rows += [own | _numbers(value) for value in one.values]
    return pl.DataFrame([{c: row.get(c) for c in FINDINGS} for row in rows], schema=FINDINGS, orient="row")


def _numbers(value: Estimate) -> NewRow:
    return {"name": value.name, "value": value.mean, "low": value.low, "high": value.high, "n": value.n}


class PooledNumber(NamedTuple):
    """One number of a finding in every model: its name, each model's own estimate in the order of models, and over models."""

    name: str
    each: tuple[Estimate, ...]
    mean: Estimate


class PooledFinding(NamedTuple):
    """One finding over models: what it is about, and its numbers, those alone that every model has."""

    measure: str
    label: str
    unit: str
    source: str
    groups: tuple[str, ...]
    per: str
    signed: bool
    numbers: tuple[PooledNumber, ...]
    margin: float | None = None  # within which q, k and v are alike; null where they are not to be ranked

    @property
    def compared(self) -> Comparison | None:
        """What models say of q, k and v by paired differences: t over models, Holm over the pairs."""
        of = {n.name: [float(e.mean or 0.0) for e in n.each] for n in self.numbers if n.name in ("q", "k", "v")}
        return compare(of, self.margin) if self.margin is not None and len(of) > 1 else None


def pooled(table: pl.DataFrame, models: Sequence[str]) -> tuple[PooledFinding, ...]:
    """The findings that all models share, in the order in which the first has them.

    Sites are left out: which are largest is chosen by each model's own numbers, so that their mean would be too far from 0.
    """
    keys = ("measure", "title", "what", "groups", "unit", "source", "per", "signed")
    found: dict[tuple[object, ...], dict[str, dict[str, Estimate]]] = {}
    for row in table.iter_rows(named=True):
        names = found.setdefault(tuple(row[key] for key in keys), {})
        estimate = Estimate(row["model"], row["value"], row["low"], row["high"], row["n"])
        names.setdefault(row["name"], {})[row["model"]] = estimate
    made = (_pooled(dict(zip(keys, key, strict=True)), names, models) for key, names in found.items())
    return tuple(one for one in made if one.numbers)


def _pooled(
    named: Mapping[str, object], names: Mapping[str, Mapping[str, Estimate]], models: Sequence[str]
) -> PooledFinding:
    numbers = []
    for name, of in names.items():
        if "@" in name:
            continue
        each = tuple(of[model] for model in models if model in of)
        if len(each) == len(models) and all(one.mean is not None for one in each):
            numbers.append(PooledNumber(name, each, mean_of(name, [float(one.mean or 0.0) for one in each])))
    groups = tuple(filter(None, str(named["groups"]).split(", ")))
    label = str(named["title"] or named["what"] or str(named["measure"]).replace("_", " "))
    rest = [group for group in groups if group not in label]
    label = f"{label}, {', '.join(rest)}" if rest else label
    texts = (str(named[key]) for key in ("measure", "unit", "source", "per"))
    measure, unit, source, per = texts
    return PooledFinding(measure, label, unit, source, groups, per, bool(named["signed"]), tuple(numbers))


def mean_of(name: str, values: Sequence[float]) -> Estimate:
    """The mean over models with its 95 % Student t interval; none with one model, or where all agree."""
    sample = summary(values)
    low, high = t_interval(sample)
    return Estimate(name, float(sample.mean), finite(low), finite(high), len(values))
