"""Run an experiment's jobs: on the engine that the machine is asked for, with one progress display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from trisect.core.machine import Machine
from trisect.engine.drive import DrivenJob, drive
from trisect.engine.start import SCRATCH, crew, open_engine, ray_place, sweep
from trisect.lab.live import Timed, live


class JobPiece(DrivenJob, Timed, Protocol):
    """A piece of work whose expected cost is known."""


def run_jobs(works: Sequence[JobPiece], machine: Machine, device: str, folder: Path) -> None:
    """Have every piece of work of the experiment in `folder` done; raises as `drive` does."""
    if not works:
        sweep(folder / SCRATCH)
        return
    workers = min(crew(machine, device), len(works))
    ray = ray_place(machine, device) if machine.engine == "ray" else None
    with live(works, workers, machine.quiet) as show, open_engine(workers, folder / SCRATCH, ray) as engine:
        drive(works, engine, show, machine.losses)
