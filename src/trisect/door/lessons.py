"""Attention by hand at the door: constructions, and charts of them."""

from __future__ import annotations

from typing import Any


def chart(result: Any) -> Any:
    """A chart of what a function of `trisect.theory` returned: closed forms over what was computed."""
    from trisect.experiments.theory.figures import chart as draw

    return draw(result)
