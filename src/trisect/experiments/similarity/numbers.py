"""The table `measures` of a similarity, found by measure, component and group, for its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from trisect.stats.tested import ALPHA


class Head(NamedTuple):
    """One head's number of one measure, with its z and its p after Holm where it has a null."""

    stack: str
    layer: int
    head: int
    value: float
    z: float | None
    p: float | None

    @property
    def side(self) -> int:
        """1 where it lies above random matrices after Holm's correction, −1 below, else 0."""
        if self.p is None or self.p >= ALPHA or not self.z:
            return 0
        return 1 if self.z > 0 else -1


class SimilarityNumbers(NamedTuple):
    """The table `measures`, found by measure, component and group."""

    heads: Mapping[tuple[str, str, str | None], list[Head]]
    nulls: Mapping[tuple[str, str, str | None], float]

    @classmethod
    def of(cls, measures: pl.DataFrame) -> SimilarityNumbers:
        """Read the rows once."""
        found: dict[tuple[Any, ...], float | None] = {}
        nulls: dict[tuple[str, str, str | None], list[float]] = {}
        columns = ("measure", "component", "group", "stack", "layer", "head", "value")
        for measure, component, group, stack, layer, head, value in measures.select(columns).iter_rows():
            if measure.endswith("_null"):
                nulls.setdefault((measure.removesuffix("_null"), component, group), []).append(value)
            else:
                found[measure, component, group, stack, layer, head] = value
        heads: dict[tuple[str, str, str | None], list[Head]] = {}
        for (measure, *where), value in found.items():
            if measure.endswith(("_z", "_p", "_p_holm")) or value is None:
                continue
            component, group, stack, layer, head = where
            z, p = (found.get((f"{measure}_{suffix}", *where)) for suffix in ("z", "p_holm"))
            heads.setdefault((measure, component, group), []).append(Head(stack, layer, head, value, z, p))
        means = {key: sum(values) / len(values) for key, values in nulls.items()}
        return cls(heads, means)

    def get(self, measure: str, component: str, group: str | None = None) -> list[Head]:
        """Every head's number; none where it was not measured."""
        return self.heads.get((measure, component, group), [])

    def null(self, measure: str, component: str, group: str | None = None) -> float | None:
        """The mean of random matrices, averaged over the shapes there are."""
        return self.nulls.get((measure, component, group))
