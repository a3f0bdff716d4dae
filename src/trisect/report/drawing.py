"""A figure's panels and its legend as HTML."""

from __future__ import annotations

import math

from markupsafe import Markup
from typing_extensions import TypedDict

from trisect.report import render
from trisect.report.panels import FigureView, LegendEntry

PANEL_WIDTH = 328


class DrawnPanel(TypedDict):
    """One panel for a template: its SVG and its width in pixels, whether it needs the whole width, and its words."""

    svg: Markup
    width: int
    wide: bool
    alt: str


class DrawnView(TypedDict):
    """One arrangement of a figure for a template: `key` are signs with their names, and whether each can hide marks.

    `width` is that of the widest panel.
    """

    name: str
    panels: list[DrawnPanel]
    key: list[tuple[Markup, str, bool]]
    width: int


def arrangement(name: str, view: FigureView) -> DrawnView:
    """One way to arrange a figure, ready for a template: every panel as SVG with its words, and the key's signs."""
    panels: list[DrawnPanel] = []
    for i, panel in enumerate(view.panels, start=1):
        text = render.slim(render.svg(panel.chart, f"{name}-{i}", legend=False))
        width = math.ceil(float(text.partition('width="')[2].partition('"')[0]))
        root = Markup('<svg role="img" aria-label="{}" ').format(panel.alt)
        drawn = root + Markup(text.removeprefix("<svg "))
        panels.append({"svg": drawn, "width": width, "wide": width > PANEL_WIDTH, "alt": panel.alt})
    hides = {stroke.key for panel in view.panels for strokes in panel.strokes.values() for stroke in strokes}
    key = [(swatch(one), one.name, one.name in hides) for one in view.key]
    return {"name": view.name, "panels": panels, "key": key, "width": max((p["width"] for p in panels), default=0)}


_SHAPES = {
    "circle": '<circle cx="7" cy="7" r="5"/>',
    "square": '<rect x="2.5" y="2.5" width="9" height="9"/>',
    "triangle-up": '<path d="M7 1.5L13 12H1Z"/>',
    "diamond": '<path d="M7 1L13 7 7 13 1 7Z"/>',
    "triangle-down": '<path d="M7 12.5L1 2h12Z"/>',
    "cross": '<path d="M5 1h4v4h4v4H9v4H5V9H1V5h4Z"/>',
    "triangle-left": '<path d="M1.5 7L12 1v12Z"/>',
    "triangle-right": '<path d="M12.5 7L2 1v12Z"/>',
}


def swatch(key: LegendEntry) -> Markup:
    """The sign of a mark, or a piece of the line, for a figure's key."""
    if key.shape is None:
        dash = f' stroke-dasharray="{" ".join(map(str, key.dash))}"' if key.dash else ""
        line = f'<line x1="0" x2="26" y1="7" y2="7" stroke="{key.colour}"{dash} stroke-width="2"/>'
        return Markup(f'<svg viewBox="0 0 26 14" width="26" height="14" aria-hidden="true">{line}</svg>')
    shape = _SHAPES[key.shape].replace("/>", f' fill="{key.colour}"/>')
    return Markup(f'<svg viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">{shape}</svg>')
