"""Render a chart as SVG and PNG with the same bytes each time; colours, shapes and theme."""

from __future__ import annotations

import atexit
import base64
import json
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from trisect.core.errors import StudyError
from trisect.core.printable import safe, safe_data
from trisect.report import alt


class Mark(NamedTuple):
    """Colour and shape of a group of components in all figures, so that colour is never the only difference."""

    colour: str
    shape: str


# q, k and v are fixed for good (Okabe-Ito); combinations take the hues that are left over.
GROUPS: dict[str, Mark] = {
    "q": Mark("#0072B2", "circle"),
    "k": Mark("#D55E00", "square"),
    "v": Mark("#009E73", "triangle-up"),
    "q+k": Mark("#CC79A7", "diamond"),
    "q+v": Mark("#56B4E9", "triangle-down"),
    "k+v": Mark("#E69F00", "cross"),
    "q+k+v": Mark("#7B4EA3", "triangle-left"),
}
# attention by its weights and by its norms
KINDS = {"weight": Mark("#56B4E9", "diamond"), "norm": Mark("#7B4EA3", "square")}
VIEWS = KINDS | {"contribution": Mark("#E69F00", "circle")}  # where contribution weights stand beside both
OTHER_MARK = Mark("#8C6D46", "triangle-right")
BLOCKS = {"o": OTHER_MARK, "attn": Mark("#5B5F97", "square"), "ffn": Mark("#A63D6B", "circle")}  # beyond q, k and v

# Sentinels: plain colours in the stored files, re-coloured by the page's style sheet for light and dark.
INK, SOFT, RULE, PAPER, BASELINE = "#1f2328", "#57606a", "#d8dee4", "#ffffff", "#80868b"
VIRIDIS = (
    "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c",
    "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725",
)  # fmt: skip

# Changes: violet below zero, pale at zero, orange above; neither end is a colour of q, k or v.
DIVERGING = (
    "#2d004b", "#542788", "#8073ac", "#b2abd2", "#d8daeb", "#f7f7f7",
    "#fee0b6", "#fdb863", "#e08214", "#b35806", "#7f3b08",
)  # fmt: skip


# Second channel of curves: a shape per layer, beside its colour.
LAYER_SHAPES = tuple(m.shape for m in (*GROUPS.values(), OTHER_MARK))


def layer_shape(position: int) -> str:
    """The shape of curve number `position` of a panel, from 0; they repeat after eight."""
    return LAYER_SHAPES[position % len(LAYER_SHAPES)]


def mark(group: str) -> Mark:
    """Colour and shape of a group of components such as `q` or `q+k`; unknown groups share one of their own.

    A pair that is compared, such as `q-k`, has those of both together.
    """
    return GROUPS.get(group.replace("-", "+")) or BLOCKS.get(group, OTHER_MARK)


def ramp(share: float, stops: Sequence[str] = VIRIDIS) -> str:
    """The colour at `share` (0 to 1) of an even ramp, interpolated between its stops."""
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    ends = [[int(stops[low + i][j : j + 2], 16) for j in (1, 3, 5)] for i in (0, 1)]
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in zip(*ends, strict=True))


def layer_colour(share: float, dark: bool = False) -> str:
    """The colour of a layer at `share` of the depth: viridis without the end that is close to the background."""
    return ramp(0.38 + 0.62 * share if dark else 0.78 * share)


def theme() -> alt.Config:
    """The theme of all charts; marks have no text of their own, since each figure has an alternative text."""
    words = {
        "labelColor": SOFT,
        "titleColor": SOFT,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    return alt.Config(
        aria=False,
        background=PAPER,
        font="sans-serif",
        padding={"left": 5, "right": 12, "top": 5, "bottom": 5},
        title=alt.TitleConfig(color=INK, fontSize=13, fontWeight="bold", anchor="start", offset=8),
        axis=alt.AxisConfig(gridColor=RULE, domainColor=BASELINE, tickColor=BASELINE, tickCount=5, **words),
        axisX=alt.AxisConfig(grid=False, labelAngle=0),
        axisY=alt.AxisConfig(
            domain=False,
            ticks=False,
            minExtent=32,
            labelPadding=7,
            titleAnchor="end",
            titleAngle=0,
            titleAlign="left",
            titleY=-9,
        ),
        view=alt.ViewConfig(stroke=None),  # pyright: ignore[reportArgumentType]
        legend=alt.LegendConfig(orient="top", offset=24, symbolSize=70, symbolOpacity=1, **words),
        concat=alt.CompositionConfig(spacing=28),
    )


_PROGRAM = """
import base64, json, sys, vl_convert
for line in sys.stdin.buffer:
    kind, what = json.loads(line)
    made = vl_convert.vegalite_to_svg(what) if kind == "svg" else base64.b64encode(vl_convert.svg_to_png(what, scale=2)).decode()
    print(json.dumps(made), flush=True)
"""


class _Renderer:
    """The drawing library in a process of its own, started with the first chart, since it ends its process on failure."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self._end)

    def draw(self, kind: str, content: object) -> str:
        """Draw a chart ('svg'), or convert an SVG ('png', in base 64); raises StudyError on failure."""
        with self._lock:
            if self._process is None:
                command, pipe = [sys.executable, "-P", "-c", _PROGRAM], subprocess.PIPE
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            answer = b""
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps([kind, content]).encode() + b"\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
            if answer:
                return json.loads(answer)
            code = self._end()
        how = f"by the signal {signal.Signals(-code).name}" if code < 0 else f"with the status {code}"
        reason = f"The drawing library (vl-convert) ended {how}."
        todo = "Free some memory, and run the same command again; if it is not that, please report it."
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            reason += " It asks for more addresses than 'ulimit -v' allows here."
            todo = "Lift that limit (ulimit -v unlimited), and run the same command again."
        raise StudyError("The figures cannot be drawn.", reason, todo)

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.communicate()
        return process.returncode


_RENDERER = _Renderer()
_IDS = re.compile(r'(?<= id=")([^"]+)(?=")|(?<=url\(#)([^)]+)(?=\))|(?<=href="#)([^"]+)(?=")')
_EMPTY = re.compile(
    r'<path class="(?:fore|back)ground"[^>]*/>| role="graphics-[^"]*"| aria-[a-z]+="[^"]*"| pointer-events="none"| opacity="1"'
    r'| font-family="[^"]*"| font-weight="normal"| stroke-dasharray=""| display="none"| version="1.1"'
)
_LONG_NUMBER = re.compile(r"(?<![\d.])-?\d+\.\d{3,}(?![\de])")


def svg(chart: alt.ConcatChart | alt.LayerChart, name: str, legend: bool = True) -> str:
    """The chart as SVG; ids are numbered from 1 and begin with `name`, so that many fit on one page.

    Its words are made safe for XML first: the renderer ends the process on a character that XML does not allow.
    """
    spec: dict[str, Any] = _drawable(chart.to_dict(validate=False))
    spec["config"] = _config(legend)
    return stable(safe(_RENDERER.draw("svg", spec)), name)


def _drawable(value: Any) -> Any:
    """A chart's specification with safe strings; rows stored as text become JSON."""
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
    """The theme for the renderer, computed once, since the chart library validates every value."""
    return theme().to_dict() | ({} if legend else {"legend": {"disable": True}})


def stable(text: str, name: str) -> str:
    """Rename ids in order of appearance, and round coordinates to two decimals, so that equal charts give equal bytes."""
    seen: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"{name}-{len(seen) + 1}")

    def shorten(tag: re.Match[str]) -> str:
        return _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), tag[0])

    return re.sub(r"<[^>]*>", shorten, _IDS.sub(rename, text))  # inside tags alone: words keep their numbers


def slim(text: str) -> str:
    """The SVG without what the page does not need, at half the size."""
    return _EMPTY.sub("", text)


def png(text: str) -> bytes:
    """An SVG as PNG, at twice its size, for slides and previews."""
    return base64.b64decode(_RENDERER.draw("png", safe(text)))
