"""Which engine runs an experiment's jobs: `here` or `processes`; an engine for several machines has its place beside them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trisect.core.spec import Machine
from trisect.engine.here import Here
from trisect.engine.processes import Processes
from trisect.engine.protocol import Engine

SCRATCH = ".trisect-jobs"  # in an experiment's own folder, so that files move home without being copied


def crew(machine: Machine, device: str) -> int:
    """How many workers a machine is asked for: where it says nothing, one a core, or one in all for a GPU."""
    return machine.workers if machine.workers is not None else (1 if device == "cuda" else machine.cores())


def sweep(folder: Path) -> None:
    """Remove what a killed process left in the folder that its engine's jobs worked in."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def open_engine(workers: int, folder: Path) -> Iterator[Engine]:
    """An engine while the context lasts, whose jobs work in `folder`, which is swept before; 0 workers are `here`."""
    sweep(folder)
    engine: Engine = Processes(workers, folder) if workers else Here(folder)
    try:
        yield engine
    finally:
        engine.close()
