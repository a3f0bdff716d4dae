"""Arrays, curves or Traces in, rows out; knows nothing of who made them."""

from importlib import import_module
from types import ModuleType

ROOMS = (
    "ablation",
    "alignment",
    "block",
    "criticality",
    "curves",
    "erasure",
    "names",
    "norms",
    "probes",
    "recall",
    "scores",
    "similarity",
)


def __getattr__(name: str) -> ModuleType:
    """Import a room on first use: `trisect.measure.norms` needs no import of its own."""
    if name not in ROOMS:
        raise AttributeError(f"trisect.measure has no room {name!r}; it has {', '.join(ROOMS)}")
    return import_module(f"trisect.measure.{name}")
