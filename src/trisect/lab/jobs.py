"""Run an experiment's jobs: on the engine that the machine is asked for, with one progress display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from trisect.core.machine import Machine
from trisect.engine.drive import DrivenJob, drive
from trisect.engine.ray_connect import RayUse
from trisect.engine.start import SCRATCH, crew, gpus_of, open_engine, sweep
from trisect.lab.live import Timed, live
from trisect.lab.versions import node_versions


class JobPiece(DrivenJob, Timed, Protocol):
    """A piece of work whose expected cost is known."""


def run_jobs(works: Sequence[JobPiece], machine: Machine, device: str, folder: Path) -> None:
    """Have every piece of work of the experiment in `folder` done; raises as `drive` does."""
    if not works:
        sweep(folder / SCRATCH)
        return
    gpus = gpus_of(device)
    workers = min(crew(machine, device, gpus), len(works))
    ray = RayUse.of(machine, device, gpus, node_versions) if machine.engine == "ray" else None
    with live(works, workers, machine.quiet) as show, open_engine(workers, folder / SCRATCH, ray, gpus) as engine:
        drive(works, engine, show)
