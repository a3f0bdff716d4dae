"""Which software made a row."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from pathlib import Path

from trisect.core.files import digest

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


@cache
def code_mark() -> str:
    """A hash of all modules of trisect as they lie here: a version that is worked on has one number and many contents."""
    base = Path(__file__).parents[1]
    files = sorted(base.rglob("*.py"))
    return digest("\n".join(f"{p.relative_to(base).as_posix()} {digest(p.read_bytes())}" for p in files), 4)


def node_versions() -> dict[str, str]:
    """What has to be alike on all machines of a cluster: everything that a number depends on, with a hash of our own code."""
    return versions("ray") | {"code": code_mark()}
