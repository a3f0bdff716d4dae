"""Which engine runs an experiment's jobs: `here`, `processes`, or `ray` for several machines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trisect.core.machine import Machine
from trisect.engine.here import Here
from trisect.engine.on_ray import RayEngine, RayPlace
from trisect.engine.processes import Processes
from trisect.engine.protocol import Engine
from trisect.engine.ray_owner import find_owner

SCRATCH = ".trisect-jobs"  # in an experiment's own folder, so that files move home without being copied


def crew(machine: Machine, device: str) -> int:
    """How many workers a machine is asked for: where it says nothing, one a core, or one in all for a GPU."""
    if machine.engine == "here":
        return 0
    return machine.workers if machine.workers is not None else (1 if device == "cuda" else machine.cores())


def sweep(folder: Path) -> None:
    """Remove what a killed process left in the folder that its engine's jobs worked in."""
    shutil.rmtree(folder, ignore_errors=True)


def ray_place(machine: Machine, device: str) -> RayPlace:
    """How a machine asks for Ray."""
    return RayPlace(
        machine.address,
        machine.workers,
        machine.cores() if machine.workers is None else min(machine.workers, machine.cores()),
        device == "cuda",
        machine.per_gpu or 1,
        machine.scratch,
    )


@contextmanager
def open_engine(workers: int, folder: Path, ray: RayPlace | None = None) -> Iterator[Engine]:
    """An engine while the context lasts, whose jobs work in `folder`, which is swept before: Ray's where its place is
    given, else processes; 0 workers are `here`.
    """
    owner = find_owner(folder)
    sweep(folder)
    engine: Engine = Processes(workers, folder) if workers else Here(folder)
    if ray is not None:
        engine = RayEngine(ray, owner)
    try:
        yield engine
    finally:
        engine.close()
