"""Optional packages (extras): whether one is installed, without importing it."""

from __future__ import annotations

import importlib.util

from trisect.core.errors import SpecError

NAMED = {"PIL": "pillow"}  # packages that are installed by another name


def there(package: str) -> bool:
    """Whether a package can be imported; a folder of that name in the current directory is none."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def need_extra(package: str, extra: str, what: str) -> None:
    """Raise SpecError where a package that `what` needs is missing, naming the extra that brings it."""
    if not there(package):
        raise SpecError(
            f"{what} needs the package {NAMED.get(package, package.replace('_', '-'))}.",
            "It is not installed here.",
            f"Install it with: pip install 'trisect[{extra}]'.",
        )
