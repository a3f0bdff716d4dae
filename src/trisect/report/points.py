"""Data points of figures: numbers by site and seed, means over seeds, and the order of sites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol

from trisect.core.finding import Comparison
from trisect.core.site import Site
from trisect.stats.compare import compare
from trisect.stats.paired import summary, t_interval
from trisect.stats.tested import ROUNDING, number


class Interval(Protocol):
    """What has a 95 % interval, its ends null where there is none: a Mean, an Estimate, a row of a table."""

    @property
    def mean(self) -> float | None: ...  # noqa: D102

    @property
    def low(self) -> float | None: ...  # noqa: D102

    @property
    def high(self) -> float | None: ...  # noqa: D102


def side(one: Interval) -> int:
    """1 or −1 where the interval lies above or below 0, else 0."""
    return 0 if one.low is None or one.high is None else (one.low > 0) - (one.high < 0)


class SitePosition(NamedTuple):
    """Where a site stands in a figure: its group (`q`, `q+k`), its layers as spelt, and their mean as depth.

    `single` is one layer, all of its heads together.
    """

    group: str
    layers: str
    depth: float
    single: bool


class Point(NamedTuple):
    """One number of one seed at one site; `at` is an epoch, an alpha, or null; `run` is the run that it is of.

    `diverged`: a run behind it diverged.
    """

    site: str
    seed: int
    value: float
    at: float | None = None
    diverged: bool = False
    run: str = ""


class Mean(NamedTuple):
    """A mean over seeds with its 95 % Student interval, which is null with one seed and where all seeds agree."""

    mean: float
    low: float | None
    high: float | None
    n: int


@cache
def place(site: str) -> SitePosition:
    """Read a site of the rows; combined components and several layers make a place of their own."""
    known = Site.parse(site)
    group = "+".join(known.components)
    if known.layers is None:
        return SitePosition(group, "all", math.inf, False)
    depth = sum(known.layers) / len(known.layers)
    return SitePosition(group, str(known).rpartition("@")[2], depth, len(known.layers) == 1 and known.heads is None)


def order(site: str) -> tuple[bool, float, str, bool, int, str]:
    """Sort key of sites: single layers first, upwards; then q, k, v, then combinations."""
    here = place(site)
    rank = "qkv".find(here.group) if len(here.group) == 1 else 3
    return (not here.single, here.depth, here.layers, rank < 0, rank, here.group)


def interval(values: Sequence[float]) -> Mean:
    """Mean and 95 % Student t interval of one number per seed."""
    sample = summary(values)
    low, high = t_interval(sample)
    return Mean(float(sample.mean), number(low), number(high), len(values))


def alike(a: float, b: float) -> bool:
    """Whether two means are the same but for rounding."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=ROUNDING)


def extreme(means: Mapping[str, Mean], way: int) -> list[str]:
    """Where the mean is highest (`way` 1) or lowest (−1): more than one place where several are the same."""
    best = max(means.values(), key=lambda m: way * m.mean)
    return [name for name, m in means.items() if alike(m.mean, best.mean)]


def by_site(points: Iterable[Point]) -> dict[str, Mean]:
    """Mean over seeds of each site, in the order of `order`."""
    groups: dict[str, list[float]] = {}
    for point in points:
        groups.setdefault(point.site, []).append(point.value)
    return {site: interval(groups[site]) for site in sorted(groups, key=order)}


def of_seeds(points: Iterable[Point]) -> dict[str, dict[int, float]]:
    """Mean over layers of every component's single-layer sites, by component and seed, in the order of q, k and v."""
    groups: dict[str, dict[int, list[float]]] = {}
    for point in points:
        here = place(point.site)
        if here.single:
            groups.setdefault(here.group, {}).setdefault(point.seed, []).append(point.value)
    names = sorted(groups, key=lambda g: order(f"{g}@1"))
    return {name: {seed: math.fsum(v) / len(v) for seed, v in groups[name].items()} for name in names}


def paired(by_seed: Mapping[str, Mapping[int, float]], margin: float) -> Comparison | None:
    """Components compared over the seeds that have all of them; null with fewer than two components."""
    if len(by_seed) < 2:
        return None
    seeds = sorted(set.intersection(*(set(values) for values in by_seed.values())))
    return compare({name: [values[seed] for seed in seeds] for name, values in by_seed.items()}, margin)


def by_component(points: Iterable[Point]) -> dict[str, Mean]:
    """Mean over layers within each seed, then over seeds, of every component's single-layer sites."""
    return {name: interval(list(values.values())) for name, values in of_seeds(points).items()}
