"""Data behind the marks of a chart: which series each stroke shows, packed once per figure for the page's script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from typing_extensions import TypedDict

from trisect.core.json_text import Json
from trisect.report.points import Point
from trisect.stats.paired import summary, t_interval
from trisect.stats.tested import number

DIGITS = 8  # that count; losses are sums of float32 products, so that the rest is noise


class Measure(NamedTuple):
    """What a number is: its name, its unit, and whether it is a difference, which shows its sign."""

    name: str
    unit: str
    signed: bool = False


class Series(NamedTuple):
    """Numbers of one run at one site, or their mean over seeds (`seed` null); `at` is empty where there is one number.

    `low` and `high` are the ends of 95 % intervals, null where there is none; `n` is how many seeds are in each number.
    """

    measure: Measure
    site: str
    run: str
    seed: int | None
    at: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    n: int = 1
    diverged: bool = False


class Stroke(NamedTuple):
    """One drawn mark: the name in the key that hides it, and the numbers under it.

    `series` is null for marks that are no numbers; a line has `length` vertices, from number `offset` of its series.
    """

    key: str
    series: Series | None = None
    offset: int = 0
    length: int = 1


Strokes = Mapping[str, tuple[Stroke, ...]]  # layer of the drawing -> its marks in the order of drawing


def of_runs(points: Iterable[Point], measure: Measure) -> list[Series]:
    """A series for every run at every site, in the order of first appearance; numbers in the order of `at`."""
    found: dict[tuple[str, int, str], list[Point]] = {}
    for point in points:
        found.setdefault((point.site, point.seed, point.run), []).append(point)
    series = []
    for (site, seed, run), mine in found.items():
        mine.sort(key=lambda p: p.at or 0.0)
        at = tuple(p.at for p in mine if p.at is not None)
        series.append(
            Series(measure, site, run, seed, at, tuple(p.value for p in mine), diverged=any(p.diverged for p in mine))
        )
    return series


def mean_of(runs: Sequence[Series]) -> Series:
    """The mean of several seeds' series of one site, where most of them have a number; a single one is its own mean."""
    assert runs
    if len(runs) == 1:
        return runs[0]
    columns = [dict(zip(run.at or (None,), run.values, strict=True)) for run in runs]
    count = Counter(at for column in columns for at in column)
    full = max(count.values())
    kept = [at for at in dict.fromkeys(at for column in columns for at in column) if count[at] == full]
    kept.sort(key=lambda at: at or 0.0)
    sample = summary([[column[at] for column in columns if at in column] for at in kept])
    low, high = t_interval(sample)
    ends = [[number(v) for v in end] for end in (low, high)]
    at = tuple(at for at in kept if at is not None)
    means = tuple(float(m) for m in sample.mean)
    off = any(run.diverged for run in runs)
    return Series(runs[0].measure, runs[0].site, "", None, at, means, tuple(ends[0]), tuple(ends[1]), full, off)


class FigureNumbers(TypedDict):
    """A figure's numbers as the page's script reads them: words by kind, series, and which strokes show which."""

    at: str
    measures: list[list[str]]
    sites: list[str]
    runs: list[str]
    axes: list[list[float]]
    keys: list[str]
    series: list[list[Json]]
    views: list[dict[str, Json]]


def pack(views: Sequence[tuple[str, Sequence[tuple[Sequence[Series], Strokes]]]], at: str) -> FigureNumbers:
    """A figure's numbers as JSON-ready lists, each series once however often it is drawn.

    `views` are the ways of arranging the figure: a name, and for every panel its series and its strokes.
    `at` is the word for what the numbers of one series run over.
    """
    words: dict[str, list[Any]] = {"measures": [], "sites": [], "runs": [], "axes": [], "keys": []}
    index: dict[tuple[str, Any], int] = {}
    numbers: dict[Series, int] = {}
    packed: list[list[Any]] = []

    def code(kind: str, value: Any) -> int:
        if (kind, value) not in index:
            index[kind, value] = len(words[kind])
            words[kind].append(list(value) if isinstance(value, tuple) else value)
        return index[kind, value]

    def number(series: Series) -> int:
        if series not in numbers:
            numbers[series] = len(packed)
            row: list[Any] = [code("measures", series.measure), code("sites", series.site), code("runs", series.run)]
            row += [series.seed, series.n, int(series.diverged), code("axes", series.at), _short(series.values)]
            packed.append(
                row + ([_short(series.low), _short(series.high)] if any(v is not None for v in series.low) else [])
            )
        return numbers[series]

    arranged = []
    for name, panels in views:
        shown = []
        for series, strokes in panels:
            spelt = {n: [_spelt(s, code, number) for s in of] for n, of in strokes.items()}
            shown.append({"series": [number(one) for one in dict.fromkeys(series)], "strokes": spelt})
        arranged.append({"name": name, "panels": shown})
    return FigureNumbers(
        at=at,
        measures=words["measures"],
        sites=words["sites"],
        runs=words["runs"],
        axes=words["axes"],
        keys=words["keys"],
        series=packed,
        views=arranged,
    )


def _spelt(stroke: Stroke, code: Any, number: Any) -> list[int]:
    key = code("keys", stroke.key)
    if stroke.series is None:
        return [key]
    place = [key, number(stroke.series), stroke.offset, stroke.length]
    return place[:2] if place[2:] == [0, 1] else place


def _short(values: Iterable[float | None]) -> list[float | int | None]:
    short = [None if v is None else float(f"{v:.{DIGITS}g}") for v in values]
    return [int(v) if v is not None and v == int(v) else v for v in short]
