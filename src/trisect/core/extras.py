"""Optional packages: whether one is there, without importing it."""

from __future__ import annotations

import importlib.util


def there(package: str) -> bool:
    """Whether a package can be imported; a folder of that name in the current directory is none."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None
