"""Render a chart as SVG, with the same bytes each time, and as PNG."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import altair as alt
import vl_convert

from trisect.report import palette

_IDS = re.compile(r'(?<= id=")([^"]+)(?=")|(?<=url\(#)([^)]+)(?=\))|(?<=href="#)([^"]+)(?=")')
_EMPTY = re.compile(
    r'<path class="(?:fore|back)ground"[^>]*/>| role="graphics-[^"]*"| aria-[a-z]+="[^"]*"| pointer-events="none"| opacity="1"'
    r'| font-family="[^"]*"| font-weight="normal"| stroke-dasharray=""| display="none"| version="1.1"'
)
_LONG = re.compile(r"(?<![\d.])-?\d+\.\d{3,}(?![\de])")


def svg(chart: alt.ConcatChart | alt.LayerChart, name: str, legend: bool = True) -> str:
    """The chart as SVG; its inner ids are counted from 1 and begin with `name`, so that many fit on one page."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    spec["config"] = _config(legend)
    return stable(vl_convert.vegalite_to_svg(spec), name)


@cache
def _config(legend: bool) -> dict[str, Any]:
    """The theme as the renderer takes it; made once, since the chart library checks every value of it."""
    return palette.theme().to_dict() | ({} if legend else {"legend": {"disable": True}})


def stable(text: str, name: str) -> str:
    """Ids renamed in order of appearance, coordinates to two decimals: what the renderer counts leaves no trace."""
    seen: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"{name}-{len(seen) + 1}")

    return _shorten(_IDS.sub(rename, text))


def _shorten(text: str) -> str:
    """Round the numbers inside tags, and there alone: words keep theirs."""

    def tag(match: re.Match[str]) -> str:
        return _LONG.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), match[0])

    return re.sub(r"<[^>]*>", tag, text)


def slim(text: str) -> str:
    """The SVG less what says nothing on the page: it is half the size, and looks the same."""
    return _EMPTY.sub("", text)


def png(text: str) -> bytes:
    """An SVG as PNG, at twice its size, for slides and previews."""
    return vl_convert.svg_to_png(text, scale=2)
