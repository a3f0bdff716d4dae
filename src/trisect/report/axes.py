"""Shared axes of a figure's panels: their ends, logarithmic scales, and labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import altair as alt


class SharedAxis(NamedTuple):
    """The vertical axis that the panels of a figure share: its unit, its ends, and where it turns logarithmic.

    `linear` is null on a linear axis; else the size up to which the axis is linear around zero. Values outside are
    drawn at the edge.
    """

    unit: str
    low: float
    high: float
    linear: float | None = None

    def scale(self) -> alt.Scale:
        """The axis as a scale that keeps what lies outside at its edge."""
        domain = [self.low, self.high]
        if self.linear is None:
            return alt.Scale(domain=domain, nice=False, zero=False, clamp=True)
        return alt.Scale(type="symlog", constant=self.linear, domain=domain, nice=False, clamp=True)

    def axis(self, field: str) -> alt.Y:
        """The axis as an encoding of `field`."""
        axis = (
            alt.Axis(format=".6~g")  # without digits of its own a lone 10 is 1e+1
            if self.linear is None
            else alt.Axis(format="~g", values=list(self.ticks()), tickCount=40)
        )
        return alt.Y(field=field, type="quantitative", scale=self.scale(), title=self.unit, axis=axis)

    def ticks(self) -> tuple[float, ...]:
        """Tick marks of the logarithmic axis: zero, and half-decades on both sides from three times `linear`."""
        assert self.linear is not None
        sizes = [self.linear * s * 10**k for k in range(8) for s in (3, 10)]
        marks = [-s for s in reversed(sizes)] + [0.0] + sizes
        return tuple(float(f"{m:.3g}") for m in marks if self.low <= m <= self.high)

    def outside(self, values: Iterable[float]) -> int:
        """How many of the values are drawn at the edge because they lie beyond it."""
        return sum(not self.low <= v <= self.high for v in values)


def around(
    values: Sequence[float], unit: str, zero: bool = False, most: float = math.inf, bend: bool = False
) -> SharedAxis:
    """The frame that holds the values with a little air, at most up to `most`; `zero` makes sure that 0 is in it.

    With `bend`, values of very unequal size get an axis that is linear near zero and logarithmic beyond.
    """
    inside = [v for v in values if v <= most] or [0.0]
    if max(values, default=0.0) > most:
        inside.append(most)
    low, high = min(inside), max(inside)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    air = 0.06 * (high - low) or 0.05 * abs(high) or 0.1
    frame = SharedAxis(unit, low - air, high + air)
    sizes = sorted(abs(v) for v in inside if v)
    if bend and sizes and sizes[-1] > 15 * max(sizes[len(sizes) // 2], 1e-4):
        return SharedAxis(unit, low - 0.5 * abs(low) - 0.01, high * 1.4 + 0.01, 0.01)
    return frame


def label_heights(values: Sequence[float], axis: SharedAxis, gap: float) -> list[float]:
    """Where labels of these values stand: neighbours `gap` apart, inside the axis, and near their values.

    When they do not all fit, those at the top go beyond it.
    """

    def centre(wanted: float, size: int) -> float:
        half = gap * (size - 1) / 2
        return max(min(wanted, axis.high - half), axis.low + half)

    rank = sorted(range(len(values)), key=lambda i: (values[i], i))
    blocks: list[tuple[float, list[int]]] = []
    for i in rank:
        blocks.append((centre(values[i], 1), [i]))
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (len(blocks[-1][1]) + len(blocks[-2][1])) / 2:
            (under, below), (over, above) = blocks[-2:]
            size = len(below) + len(above)
            blocks[-2:] = [(centre((under * len(below) + over * len(above)) / size, size), below + above)]
    placed = [0.0] * len(values)
    for middle, members in blocks:
        for k, i in enumerate(members):
            placed[i] = middle + gap * (k - (len(members) - 1) / 2)
    return placed


def whole_ticks(last: float) -> list[int]:
    """Ticks of an axis of whole numbers from 0 to `last`: at most seven, and none twice."""
    steps = (s * 10**k for k in range(9) for s in (1, 2, 5))
    step = next(s for s in steps if last / s <= 6)
    return list(range(0, math.floor(last) + 1, step))


def few_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Round numbers in an axis's range, multiples of one step of 1, 2 or 5 and as many as there can be up to `most`."""
    if not high > low:
        return (low,)
    first = math.floor(math.log10((high - low) / (most + 1))) - 1
    for k in range(first, first + 5):
        for digit in (1, 2, 5):
            step = digit * 10.0**k
            start, end = math.ceil(low / step), math.floor(high / step)
            if end - start < most:
                ticks = (float(f"{i * digit}e{k}") for i in range(start, end + 1))
                return tuple(t for t in ticks if low <= t <= high) or (low,)  # the quotients are rounded
    return (low,)
