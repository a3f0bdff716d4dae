"""Paired rounds: two ways taken in turn within one process, so that what else the machine does meets both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from threadpoolctl import threadpool_limits

from trisect.lm.matmul import one_thread


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


def paired(
    plain: Callable[[], object],
    ours: Callable[[], object],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> Ratio:
    """Time both `rounds` times in turn, after one round that is thrown away; seconds are of the clock (CPU time)."""
    spent: list[tuple[float, float]] = []
    for _ in range(rounds + 1):
        marks = [clock()]
        for way in (plain, ours):
            way()
            marks.append(clock())
        spent.append((marks[1] - marks[0], marks[2] - marks[1]))
    return summary(spent[1:])


def summary(spent: list[tuple[float, float]]) -> Ratio:
    """What paired rounds of (plain, ours) seconds come to."""
    ratios = [a / b for a, b in spent]
    plain, ours = (statistics.median(column) for column in zip(*spent, strict=True))
    return Ratio(plain, ours, statistics.median(ratios), min(ratios), max(ratios), len(spent))
