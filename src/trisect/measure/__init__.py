"""Measures: functions of traces, arrays and loss curves to numbers and rows, without access to models."""

from importlib import import_module
from types import ModuleType

MODULES = (
    "alignment",
    "criticality",
    "intervention",
    "logits",
    "norms",
    "patching",
    "probes",
    "recall",
    "similarity",
)


def __getattr__(name: str) -> ModuleType:
    """Import a module on first use: `trisect.measure.norms` needs no import of its own."""
    if name not in MODULES:
        raise AttributeError(f"trisect.measure has no module {name!r}; it has {', '.join(MODULES)}")
    return import_module(f"trisect.measure.{name}")
