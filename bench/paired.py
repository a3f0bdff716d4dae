"""Paired rounds: ways taken in turn within one process, so that what else the machine does meets all alike; rows of docs/bench.md."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from threadpoolctl import threadpool_limits

from trisect.lm.matmul import one_thread

Row = dict[str, object]


class Ratio(NamedTuple):
    """Medians of seconds over rounds, and the median, least and largest of the rounds' ratios plain / ours."""

    plain: float
    ours: float
    ratio: float
    low: float
    high: float
    rounds: int


@contextmanager
def one_core() -> Iterator[None]:
    """PyTorch, NumPy and SciPy in one thread each; also a decorator."""
    with one_thread(), threadpool_limits(1):
        yield


def timed(
    ways: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each way in every round, in turn, after one round that is thrown away; of the clock (CPU time)."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            began = clock()
            way()
            spent[name].append(clock() - began)
    return {name: seconds[1:] for name, seconds in spent.items()}


def paired(plain: Callable[[], object], ours: Callable[[], object], rounds: int) -> Ratio:
    """CPU seconds of both ways."""
    return summary(timed({"plain": plain, "ours": ours}, rounds).values())


def summary(spent: Iterable[Sequence[float]]) -> Ratio:
    """What paired rounds come to, of two lists of seconds: plain, ours."""
    plain, ours = spent
    ratios = [a / b for a, b in zip(plain, ours, strict=True)]
    medians = (statistics.median(seconds) for seconds in (plain, ours, ratios))
    return Ratio(*medians, min(ratios), max(ratios), len(ratios))


def row(what: str, plain: str, ours: str, pair: Ratio | float | None = None, notes: Sequence[str] = ()) -> Row:
    """One row of the table; a ratio that is no `Ratio` was measured once."""
    if isinstance(pair, float):
        pair = Ratio(pair, 1.0, pair, pair, pair, 1)
    ratio = {} if pair is None else {"ratio": pair.ratio, "low": pair.low, "high": pair.high}
    return {"what": what, "plain": plain, "ours": ours, **ratio, "notes": list(notes)}
