"""A text pair as a drawing: base above donor, token by token, with what is patched and where the answer is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import polars as pl

from trisect.report import palette
from trisect.report.panels import Figure, LegendEntry, Panel, chart_of, lay

COLUMNS = 5  # tokens beside each other, so that a telephone shows them
WIDE, HIGH, APART = 54.0, 19.0, 9.0  # pixels: of a token's cell, and between two lines
LONGEST = 9  # characters of a token; what is longer is cut
MOST = 80  # tokens of one side; what is behind is not drawn
DIFFERS, READ = "token of base and donor differ", "where the answer is read"


def text_pair(tokens: pl.DataFrame, title: str, caption: str) -> Figure | None:
    """The rows `tokens` of one pair as a figure: a panel for each side; null where there are none."""
    panels = [
        _panel(title if side in ("source", "") else f"{title}, {side}", rows.sort("position").to_dicts())
        for (side,), rows in sorted(tokens.group_by("side"), key=lambda one: str(one[0][0]))
    ]
    if not panels:
        return None
    groups = sorted({p for p in tokens["patched"].unique().to_list() if p})
    keys = [LegendEntry(f"{group} patched", palette.mark(group).colour, palette.mark(group).shape) for group in groups]
    keys.append(LegendEntry(DIFFERS, palette.RULE, "square"))
    keys += [LegendEntry(READ, palette.INK)] * bool(tokens["answers"].any())
    return Figure("text-pair", "", title, caption, tuple(panels), tuple(keys))


class _Cell(NamedTuple):
    """One token's box: its place in pixels, the token, and how box and word look."""

    x: float
    x2: float
    y: float
    y2: float
    token: str
    fill: str
    colour: str


def _panel(title: str, rows: Sequence[Mapping[str, Any]]) -> Panel:
    shown = rows[:MOST]
    cells = [cell for i, row in enumerate(shown) for cell in _cells(i, row)]
    height = (-(-len(shown) // COLUMNS)) * (2 * HIGH + APART)
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, COLUMNS * WIDE], nice=False), axis=None)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, height], nice=False, reverse=True), axis=None)
    boxes = chart_of("cells", [c._asdict() for c in cells]).mark_rect(stroke=palette.RULE, strokeWidth=0.7, opacity=1)
    fill = alt.Fill("fill:N", scale=None)
    layers = [boxes.encode(x, alt.X2("x2"), y, alt.Y2("y2"), fill)]
    placed = [{"x": c.x + 11, "y": (c.y + c.y2) / 2, "token": c.token, "colour": c.colour} for c in cells]
    words = chart_of("words", placed).mark_text(align="left", baseline="middle", fontSize=10.5)
    layers.append(words.encode(x, y, alt.Text("token:N"), alt.Color("colour:N", scale=None)))
    if marks := [_mark(i, row["patched"]) for i, row in enumerate(shown) if row["patched"]]:
        drawn = chart_of("patched", marks).mark_point(size=28, filled=True, opacity=1)
        layers.append(drawn.encode(x, y, alt.Color("colour:N", scale=None), alt.Shape("shape:N", scale=None)))
    if ends := [_cells(i, row)[0] for i, row in enumerate(shown) if row["answers"]]:
        at = [{"x": c.x, "x2": c.x2, "y": c.y2 - 1.5} for c in ends]
        rule = chart_of("answers", at).mark_rule(strokeWidth=2.5, color=palette.INK)
        layers.append(rule.encode(x, alt.X2("x2"), y))
    chart = lay(title, *layers, width=COLUMNS * WIDE, height=height)
    return Panel(title, chart, _said(title, rows), (), {})


def _cells(number: int, row: Mapping[str, Any]) -> list[_Cell]:
    """The two boxes of a position, the base's above the donor's."""
    line, column = divmod(number, COLUMNS)
    left, top = column * WIDE, line * (2 * HIGH + APART)
    fill = palette.PAPER if row["base"] == row["donor"] else palette.RULE
    ends = ((left, left + WIDE - 2, top + i * HIGH, top + (i + 1) * HIGH - 1) for i in range(2))
    looks = (("base", palette.INK), ("donor", palette.SOFT))
    return [_Cell(*at, _short(row[name]), fill, ink) for at, (name, ink) in zip(ends, looks, strict=True)]


def _mark(number: int, group: str) -> dict[str, Any]:
    """The sign of what is patched at a position, in front of the base's token."""
    line, column = divmod(number, COLUMNS)
    look = palette.mark(group)
    place = {"x": column * WIDE + 5, "y": line * (2 * HIGH + APART) + HIGH / 2 - 0.5}
    return place | {"colour": look.colour, "shape": look.shape}


def _short(token: str | None) -> str:
    """A tokenizer's piece for a reader: the marks for a space in front left out."""
    plain = (token or "").lstrip("Ġ▁ ").replace("Ċ", "⏎").removesuffix("</w>")
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"


def _said(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The pair for those who do not see it."""
    base, donor = (" ".join(_plain(row[name]) for row in rows) for name in ("base", "donor"))
    patched = [str(row["position"]) for row in rows if row["patched"]]
    where = "all positions" if len(patched) == len(rows) else f"positions {', '.join(patched)}"
    return f"{title}. Base: {base}. Donor: {donor}. Patched: {where if patched else 'none'}."


def _plain(token: str | None) -> str:
    return (token or "").lstrip("Ġ▁ ")
