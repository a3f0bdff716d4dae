"""The processor's name, as the system gives it."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """Such as 'AMD EPYC 7763 64-Core Processor'; the architecture where the system says no more."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, (*names[:1], platform.processor(), platform.machine())), "unknown")
