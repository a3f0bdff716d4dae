"""One view of the table `measures` for pages: its rows as numbers at their places, selected, grouped and averaged."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl

from trisect.core.finding import Estimate
from trisect.report.layers import Bar
from trisect.report.points import side
from trisect.report.subject import stack_order


class MeasuredValue(NamedTuple):
    """A row of the table: a number, its interval and over how many it is, of which measure and at which place.

    A `value` that is not known is NaN. A null `layer` or `head` is the whole model or
    layer, or several at once: its `group` then names them, as in 'mean, layers 1-2'.
    """

    subject: str
    stack: str
    layer: int | None
    head: int | None
    component: str | None
    measure: str
    group: str | None
    at: float | None
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @property
    def mean(self) -> float | None:
        """The value, null where it is not known."""
        return None if math.isnan(self.value) else self.value

    @property
    def spot(self) -> str:
        """Layer and heads, as a site spells them."""
        heads = self.head or _named("heads", self.group)
        return f"{self.layer or _named('layers', self.group)}" + (f".h{heads}" if heads else "")

    @property
    def site(self) -> str:
        """The whole place, as a site is spelt."""
        return f"{'' if self.stack == 'plain' else f'{self.stack}.'}{self.component}@{self.spot}"

    @property
    def bar(self) -> Bar:
        """The number for a panel by layer."""
        return Bar(self.component or "", self.spot, self.value or 0.0, self.low, self.high)

    @property
    def side(self) -> int:
        """1 or −1 where the interval lies above or below 0, else 0."""
        return side(self)

    def estimate(self, name: str = "") -> Estimate:
        """The number for a finding, by its site where no name is given."""
        return Estimate(name or self.site, self.mean, self.low, self.high, self.n)


def _named(what: str, group: str | None) -> str:
    """The numbers that a group names: of 'denoise, layers 1-2, heads 1,3' the layers are '1-2'."""
    found = re.search(rf"{what} ([0-9,-]+?)(?=, [a-z]|$)", group or "")
    return found[1] if found else ""


def component_order(component: str) -> tuple[int, int]:
    """q, k and v before what joins them."""
    return component.count("+"), "qkv".find(component[:1])


def place_order(row: MeasuredValue) -> tuple[Any, ...]:
    """Sort key of places: by stack, layer and head, then q, k and v."""
    own = component_order(row.component or "")
    return stack_order(row.stack), row.layer or 0, row.head or 0, own, row.group or ""


@dataclass(frozen=True, eq=False)
class Measures:
    """Rows of the table in their order."""

    rows: tuple[MeasuredValue, ...]

    @classmethod
    def of(cls, table: pl.DataFrame, missing: bool = False) -> Measures:
        """The rows of a table; those without a number only where `missing` ones are wanted."""
        number = pl.col("value").fill_null(float("nan"))
        kept = table.with_columns(number) if missing else table.filter(number.is_finite())
        return cls(tuple(MeasuredValue(*row) for row in kept.select(MeasuredValue._fields).iter_rows()))

    @property
    def known(self) -> Measures:
        """The rows that have a number."""
        return Measures(tuple(row for row in self.rows if row.mean is not None))

    def __iter__(self) -> Iterator[MeasuredValue]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, *measures: str, **place: Any) -> Measures:
        """The rows of these measures (of any, without) whose columns have these values, or one of several in a collection."""
        tests = [
            (MeasuredValue._fields.index(n), v if isinstance(v, Collection) and not isinstance(v, str) else (v,))
            for n, v in place.items()
        ]
        found = self.rows if not measures else [row for name in measures for row in self._by_measure.get(name, ())]
        return Measures(tuple(row for row in found if all(row[at] in known for at, known in tests)))

    @cached_property
    def _by_measure(self) -> Mapping[str, list[MeasuredValue]]:
        found: dict[str, list[MeasuredValue]] = {}
        for row in self.rows:
            found.setdefault(row.measure, []).append(row)
        return found

    @cached_property
    def _by_place(self) -> Mapping[tuple[Any, ...], MeasuredValue]:
        return {(r.measure, r.stack, r.layer, r.head, r.component, r.group, r.at): r for r in reversed(self.rows)}

    def get(
        self,
        measure: str,
        component: str | None = None,
        group: str | None = None,
        layer: int | None = None,
        head: int | None = None,
        stack: str = "plain",
        at: float | None = None,
    ) -> MeasuredValue | None:
        """The number at exactly this place; null where it was not measured."""
        return self._by_place.get((measure, stack, layer, head, component, group, at))

    def ordered(self) -> Measures:
        """The rows in the order of places."""
        return Measures(tuple(sorted(self.rows, key=place_order)))

    def distinct(self, column: str) -> list[Any]:
        """The values of a column, in the order of first appearance."""
        return list(dict.fromkeys(getattr(row, column) for row in self.rows))

    def by(self, *columns: str) -> dict[Any, Measures]:
        """The rows apart by the values of a column, or of several, in the order of first appearance."""
        found: dict[Any, list[MeasuredValue]] = {}
        for row in self.rows:
            key = tuple(getattr(row, column) for column in columns)
            found.setdefault(key if len(columns) > 1 else key[0], []).append(row)
        return {key: Measures(tuple(rows)) for key, rows in found.items()}

    def first(self, column: str) -> dict[Any, MeasuredValue]:
        """The first row of each value of a column."""
        return {value: rows.rows[0] for value, rows in self.by(column).items()}

    @property
    def mean(self) -> float:
        """The mean of the numbers, whatever they are of: heads, layers."""
        return sum(row.value for row in self.rows) / len(self.rows)

    def means(self, column: str = "component") -> tuple[Estimate, ...]:
        """The mean of the rows of each component, or of each value of another column, n being how many there are."""
        return tuple(Estimate(str(name), rows.mean, n=len(rows)) for name, rows in self.by(column).items())

    def cells(self) -> list[tuple[int, int, float]]:
        """Layer, head and number of the rows that are of one head, for a map."""
        return [(row.layer, row.head, row.value) for row in self.rows if row.layer is not None and row.head is not None]


class SiteMeasures(NamedTuple):
    """One place and its numbers by measure; `group` is what its rows are of, such as a direction or a label."""

    place: MeasuredValue
    numbers: Mapping[str, MeasuredValue]

    @property
    def site(self) -> str:
        """The place, as a site is spelt."""
        return self.place.site

    def mean(self, measure: str) -> float | None:
        """One of its numbers, null where there is none."""
        return self.numbers[measure].mean if measure in self.numbers else None


def at_sites(measures: Measures) -> list[SiteMeasures]:
    """Every place with its numbers, in the order of places."""
    apart = measures.ordered().by("stack", "layer", "head", "component", "group")
    return [SiteMeasures(rows.rows[0], rows.first("measure")) for rows in apart.values()]
