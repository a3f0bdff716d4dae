"""Which software made a row."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

PARTS = ("trisect", "torch", "numpy", "scipy", "polars")


version = cache(metadata.version)  # a package that is loaded does not change; every run of a study asks


def versions(*more: str) -> dict[str, str]:
    """Versions of Python and of everything that a number depends on; `more` are packages that it needed besides."""
    found = {"python": platform.python_version()}
    for part in (*PARTS, *more):
        try:
            found[part] = version(part)
        except metadata.PackageNotFoundError:
            found[part] = "not installed as a package"
    return found
