"""What this machine has: its memory, and free space on a disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def memory_bytes() -> int | None:
    """Bytes of memory in all, or as many as a container is allowed; null where the system does not say."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None
    try:
        allowed = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no container, or "max"
        return found
    return min(found, allowed)


def free_bytes(place: Path) -> int | None:
    """Bytes that may still be written where a file or folder is, or is to be made; null where the system does not say."""
    try:
        there = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
        return shutil.disk_usage(there).free
    except (OSError, StopIteration):
        return None
