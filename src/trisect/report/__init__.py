"""The drawing kit of all pages: tables in, figures and one self-contained HTML page out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt
else:

    class _Altair:
        """Altair, imported at its first use, since its schema takes 0.4 s."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("altair"), name)

    alt = _Altair()

__all__ = ["alt"]
