"""Sites of an interchange with their numbers, read from the table of measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from trisect.core.finding import Estimate
from trisect.experiments.patch.words import SiteKey, place_of, site_order


class SiteNumbers(NamedTuple):
    """One site in one direction, and its numbers by measure; `layer` is null where several are patched at once."""

    stack: str
    layer: int | None
    head: int | None
    component: str
    group: str
    numbers: Mapping[str, Estimate]

    @property
    def place(self) -> str:
        """The site as it is spelt."""
        return place_of(self.stack, self.layer, self.head, self.component, self.group)

    @property
    def how(self) -> str:
        """The direction."""
        return self.group.partition(",")[0]

    def mean(self, measure: str) -> float | None:
        """One of its numbers, null where there is none."""
        found = self.numbers.get(measure)
        return None if found is None else found.mean


def read_sites(measures: pl.DataFrame) -> list[SiteNumbers]:
    """Every site and direction of the table `measures`, in the order of stacks, layers, heads and components."""
    found: dict[SiteKey, dict[str, Estimate]] = {}
    for row in measures.filter(pl.col("measure") != "answered").iter_rows(named=True):
        key = (row["stack"], row["layer"], row["head"], row["component"], row["group"])
        found.setdefault(key, {})[row["measure"]] = Estimate(
            row["measure"], row["value"], row["low"], row["high"], row["n"]
        )
    return [SiteNumbers(*key, found[key]) for key in sorted(found, key=site_order)]


def best_sites(sites: Sequence[SiteNumbers], measure: str) -> list[SiteNumbers]:
    """Of each component the site with the largest number."""
    found: dict[str, SiteNumbers] = {}
    for site in sites:
        value = site.mean(measure)
        if value is not None and (site.component not in found or value > (found[site.component].mean(measure) or 0.0)):
            found[site.component] = site
    return [found[c] for c in sorted(found, key=component_order)]


def component_order(component: str) -> tuple[int, int]:
    """q, k and v before what joins them."""
    return component.count("+"), "qkv".find(component[0])
