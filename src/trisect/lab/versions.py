"""Which software made a row."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PARTS = ("trisect", "torch", "numpy", "scipy", "polars")


def versions(*more: str) -> dict[str, str]:
    """Versions of Python and of everything that a number depends on; `more` are packages that it needed besides."""
    found = {"python": platform.python_version()}
    for part in (*PARTS, *more):
        try:
            found[part] = version(part)
        except PackageNotFoundError:
            found[part] = "not installed as a package"
    return found
