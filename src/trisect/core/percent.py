"""Shares as percentages for people, as in `41.3 %`: one way of writing them, with a space that does not break before the sign."""

from __future__ import annotations


def percent(share: float, decimals: int = 0) -> str:
    """A share from 0 to 1, as in `41.3 %`; minus is a sign of its own."""
    return f"{share:.{decimals}%}".replace("%", "\u00a0%").replace("-", "\u2212")
