"""Which software made a row."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PARTS = ("trisect", "torch", "numpy", "scipy", "polars")


def versions() -> dict[str, str]:
    """Versions of Python and of everything that a number depends on."""
    found = {"python": platform.python_version()}
    for part in PARTS:
        try:
            found[part] = version(part)
        except PackageNotFoundError:
            found[part] = "not installed as a package"
    return found
