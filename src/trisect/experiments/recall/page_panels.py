"""Recall's panels: shares side by side with every seed's point, curves between 0 and 1, and losses by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from trisect.core.percent import percent
from trisect.experiments.recall.page_numbers import RecallCurve
from trisect.report import format as words
from trisect.report import palette
from trisect.report.axes import SharedAxis, around
from trisect.report.chart_data import Measure, Series
from trisect.report.palette import Mark
from trisect.report.panels import WIDTH, CurveLine, LegendEntry, Level, Panel, chart_of, curve_panel, lay, marks
from trisect.report.points import Interval
from trisect.report.subject import spoken

# Neither colour nor shape of q, k or v, each of which stands for itself alone.
LOOKS: dict[str, Mark] = {
    "plain": Mark("#E69F00", "diamond"),
    "pretrained": Mark("#7B4EA3", "triangle-left"),
    "left-out": Mark("#56B4E9", "cross"),
    "pretraining and fine-tuning": Mark("#7B4EA3", "triangle-left"),
    "pretraining only": Mark("#56B4E9", "cross"),
    "fine-tuning only": Mark("#E69F00", "diamond"),
    "neither": Mark("#CC79A7", "triangle-down"),
    "observed": Mark("#CC79A7", "triangle-down"),
    "by chance": Mark(palette.BASELINE, "circle"),
}
DASHES: dict[str, tuple[int, ...]] = {"plain": (2, 2), "left-out": (7, 3)}
OTHERS = palette.SOFT
UNIT = SharedAxis("share", -0.03, 1.03)
SQUARE = 190
PLACES = 3  # of a share that is not in per cent
COLUMN, SLOT = 74, 17  # pixels of a column with one group, and of each of the slots of one with several


class Share(NamedTuple):
    """A share in one column of a panel, of one group: its number, and every seed's own."""

    column: str
    group: str
    number: Interval
    seeds: tuple[float, ...] = ()


class Path(NamedTuple):
    """A line of a panel: its name, its look, and its points; with `marks` every point has a mark, and its interval."""

    name: str
    look: Mark
    points: tuple[tuple[float, float], ...]
    dash: tuple[int, ...] = ()
    marks: bool = False
    ends: tuple[tuple[float | None, float | None], ...] = ()


def look(name: str) -> Mark:
    """Colour and shape of a model, a category or a kind of answer."""
    return LOOKS.get(name, palette.OTHER)


def keys(named: Mapping[str, str]) -> tuple[LegendEntry, ...]:
    """A key of marks, from what has a look to what it is called."""
    return tuple(LegendEntry(name, look(of).colour, look(of).shape) for of, name in named.items())


def share_frame(shares: Sequence[Share], more: Sequence[float] = ()) -> SharedAxis:
    """The axis that holds every share of a figure, from 0 up."""
    ends = [e for s in shares for e in (s.number.mean, s.number.low, s.number.high) if e is not None]
    values = [*ends, *(v for s in shares for v in s.seeds), *more]
    frame = around(values, "share", zero=True)
    return frame._replace(high=min(frame.high, 1.03), low=frame.low if min(values, default=0.0) < 0 else 0.0)


def share_panel(
    title: str,
    shares: Sequence[Share],
    axis: SharedAxis,
    levels: Mapping[str, float] | None = None,
    others: Mapping[str, Sequence[float]] | None = None,
) -> Panel:
    """Shares in columns, with 95 % intervals and every seed's point beside its mean.

    `levels` are dashed lines, by name; `others` are numbers of others in a column, small and grey. A line break in the
    name of a column is one.
    """
    columns, groups = (list(dict.fromkeys(getattr(s, of) for s in shares)) for of in ("column", "group"))
    single = len(shares) == len(columns)

    def row(share: Share, value: float | None, slot: str = "") -> dict[str, Any]:
        return {
            "column": share.column,
            "group": share.group,
            "slot": f"{'' if single else share.group}{slot}",
            "value": value,
        }

    rows = [row(s, s.number.mean) | {"low": s.number.low, "high": s.number.high} for s in shares]
    dots = [row(s, v, " seeds") for s in shares if len(s.seeds) > 1 for v in s.seeds]
    beside = [{"column": c, "value": v} for c in columns for v in (others or {}).get(c, ())]
    slots = [slot for group in ([""] if single else groups) for slot in (group, f"{group} seeds")]
    side = alt.Axis(labelExpr="split(datum.label, '\\n')", labelLimit=220)
    x = alt.X("column:N", sort=columns, scale=alt.Scale(domain=columns, paddingInner=0.3), title=None, axis=side)
    grey = chart_of("others", beside).mark_point(size=26, shape="circle", filled=True, color=OTHERS, opacity=1)
    behind = [grey.encode(x, axis.axis("value"))] if beside else []
    named = levels or {}
    lines = [Level(name, level) for name, level in named.items()]
    layers = marks(rows, axis, x, {g: look(g) for g in groups}, slots, lines, dots, behind)
    wide = max(WIDTH, (COLUMN if single else SLOT * len(slots)) * len(columns))
    said = "; ".join(f"{r['column']}, {r['group']} {r['value']:.3g}".replace("\n", " ") for r in rows)
    said = f"{title}: shares. {said}." + "".join(f" {name} {value:.3g}." for name, value in named.items())
    return Panel(title, lay(title, *layers, width=wide), said, (), {})


def path_panel(
    title: str,
    paths: Sequence[Path],
    x_title: str,
    y_title: str,
    axis: SharedAxis = UNIT,
    diagonal: bool = False,
) -> Panel:
    """Lines over a share from 0 to 1; `diagonal` draws where both are the same."""
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[-0.03, 1.03], nice=False, clamp=True),
        title=x_title,
        axis=alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], tickCount=40, format="~g"),
    )
    y = axis._replace(unit=y_title)
    colour, shape = alt.Color("colour:N", scale=None), alt.Shape("shape:N", scale=None)
    dash = alt.StrokeDash("dash:N", scale=None)
    layers: list[alt.Chart] = []
    if diagonal:
        ends = [{"x": 0.0, "y": 0.0}, {"x": 1.0, "y": 1.0}]
        line = chart_of("level0", ends).mark_line(color=palette.BASELINE, strokeDash=[5, 3], strokeWidth=1)
        layers.append(line.encode(x, y.axis("y")))
    rows, marked, ranged = [], [], []
    for number, path in enumerate(paths):
        own = {
            "line": f"{number}",
            "name": path.name,
            "colour": path.look.colour,
            "dash": list(path.dash),
            "shape": path.look.shape,
        }
        mine = [own | {"x": a, "y": b, "order": i} for i, (a, b) in enumerate(path.points)]
        rows += mine
        marked += mine if path.marks else _few(mine, number)
        pairs = zip(mine, path.ends, strict=True) if path.ends else ()
        ranged += [row | {"low": e[0], "high": e[1]} for row, e in pairs if e[0] is not None and e[1] is not None]
    if ranged:
        bars = chart_of("bars", ranged).mark_rule(strokeWidth=1.2)
        layers.append(bars.encode(x, y.axis("low"), alt.Y2("high"), colour))
    whole = chart_of("main", rows).mark_line(strokeWidth=1.8)
    layers.append(whole.encode(x, y.axis("y"), colour, dash, alt.Detail("line:N"), alt.Order("order:Q")))
    layers.append(
        chart_of("dots", marked).mark_point(size=38, filled=True, opacity=1).encode(x, y.axis("y"), colour, shape)
    )
    said = "; ".join(f"{p.name} from {_spot(p.points[0])} to {_spot(p.points[-1])}" for p in paths)
    alternative = f"{title}: {y_title} over {x_title}. {said}."
    return Panel(title, lay(title, *layers, width=SQUARE + 30, height=SQUARE), alternative, (), {})


def loss_panel(title: str, curves: Sequence[RecallCurve], names: Mapping[str, str]) -> Panel:
    """Losses by epoch of one stage: every seed thin, their mean bold, each model in its look."""
    measure = Measure("loss", "nats")
    lines = []
    for model in dict.fromkeys(c.model for c in curves):
        series = tuple(
            Series(measure, model, f"{model} {c.seed}", c.seed, tuple(map(float, c.epochs)), c.values)
            for c in curves
            if c.model == model
        )
        lines.append(
            CurveLine(names.get(model, model), look(model).colour, DASHES.get(model, ()), series, look(model).shape)
        )
    values = [v for c in curves for v in c.values]
    return curve_panel(title, lines, around(values, "nats per character", zero=True), meet=True)


def words_for(number: Interval | None, signed: bool = False, share: bool = False) -> str:
    """A number with its interval, as in `23.0 % (95 %: 19.1 % to 27.0 %)` or `0.230 (95 %: 0.191 to 0.270)`."""
    if number is None:
        return "–"
    return spoken(number, signed, share_words if share else lambda value: words.number(value, signed, PLACES))


def share_words(value: float) -> str:
    """A share in per cent, with a true minus sign."""
    return percent(value, 1)


def dash(position: int) -> tuple[int, ...]:
    """The dashes of a panel's line number `position`, from 0."""
    return ((), (7, 3), (2, 2), (8, 2, 2, 2))[position % 4]


def _few(rows: Sequence[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """A few points of a long line that carry its mark, other ones for each line."""
    inner = rows[1:-1]
    step = max(1, len(inner) // 4)
    return list(inner[(number * step // 4) :: step])[:4] if inner else []


def _spot(point: tuple[float, float]) -> str:
    return f"({point[0]:.2f}, {point[1]:.2f})"
