"""Component: the script and the style of texts, switches and what changes, as the served page and notebooks have them."""

from __future__ import annotations

from pathlib import Path

from trisect.experiments.explore import page as explorer
from trisect.report import template

HERE = Path(__file__).parent
PARTS = ("state.js", "view.js", "board.js", "bench.js")


def bench(transport: str) -> str:
    """The explorer's script, the component's, and that of the file which says how questions are asked."""
    return explorer.script() + "".join(template.read(HERE / name) for name in (*PARTS, transport))


def style() -> str:
    """The explorer's style sheet, and the component's own."""
    return explorer.style() + template.read(HERE / "serve.css")
