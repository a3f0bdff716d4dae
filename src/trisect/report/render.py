"""Render a chart as SVG, with the same bytes each time, and as PNG."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from typing import Any

import altair as alt
import vl_convert

from trisect.core.printable import safe, safe_data
from trisect.report import palette

_IDS = re.compile(r'(?<= id=")([^"]+)(?=")|(?<=url\(#)([^)]+)(?=\))|(?<=href="#)([^"]+)(?=")')
_EMPTY = re.compile(
    r'<path class="(?:fore|back)ground"[^>]*/>| role="graphics-[^"]*"| aria-[a-z]+="[^"]*"| pointer-events="none"| opacity="1"'
    r'| font-family="[^"]*"| font-weight="normal"| stroke-dasharray=""| display="none"| version="1.1"'
)
_LONG = re.compile(r"(?<![\d.])-?\d+\.\d{3,}(?![\de])")


def svg(chart: alt.ConcatChart | alt.LayerChart, name: str, legend: bool = True) -> str:
    """The chart as SVG; its inner ids are counted from 1 and begin with `name`, so that many fit on one page.

    Its words are made safe for XML first: the renderer ends the process on a character that XML does not allow.
    """
    spec: dict[str, Any] = _drawable(chart.to_dict(validate=False))
    spec["config"] = _config(legend)
    return stable(safe(vl_convert.vegalite_to_svg(spec)), name)


def _drawable(value: Any) -> Any:
    """A chart's statement with safe words; rows that it holds as text of their own are JSON once more."""
    if isinstance(value, str):
        if value.startswith("[{") and "\\u" in value:
            with suppress(ValueError):  # a word that only begins like rows
                return json.dumps(safe_data(json.loads(value)))
        return safe(value)
    if isinstance(value, dict):
        return {key: _drawable(item) for key, item in value.items()}
    return [_drawable(item) for item in value] if isinstance(value, list | tuple) else value


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
    return vl_convert.svg_to_png(safe(text), scale=2)
