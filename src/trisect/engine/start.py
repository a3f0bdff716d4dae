"""Which engine runs an experiment's jobs: `here`, `processes`, or `ray` for several machines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trisect.core.machine import Machine
from trisect.engine.here import Here
from trisect.engine.jobs import Engine
from trisect.engine.processes import Processes
from trisect.engine.ray_connect import RayUse, connected

SCRATCH = ".trisect-jobs"  # in an experiment's own folder, so that files move home without being copied


def gpus_of(device: str) -> int:
    """How many GPUs of this machine jobs may use."""
    if device != "cuda":
        return 0
    import torch  # which a command's help does without

    return torch.cuda.device_count()


def crew(machine: Machine, device: str, gpus: int = 1) -> int:
    """How many workers a machine is asked for: where it says nothing, one a core, or one a GPU."""
    if machine.engine == "here":
        return 0
    return machine.workers if machine.workers is not None else (max(1, gpus) if device == "cuda" else machine.cores())


def sweep(folder: Path) -> None:
    """Remove what a killed process left in the folder that its engine's jobs worked in."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def open_engine(workers: int, folder: Path, ray: RayUse | None = None, gpus: int = 0) -> Iterator[Engine]:
    """An engine while the context lasts, whose jobs work in `folder`, which is swept before: Ray's where its use is given,
    else processes, which share `gpus` GPUs; 0 workers are `here`.
    """
    sweep(folder)
    with ExitStack() as stack:
        if ray is None:
            engine: Engine = Processes(workers, folder, gpus) if workers else Here(folder)
        else:
            address = stack.enter_context(connected(ray.cores, ray.gpus, ray.store_bytes))
            from trisect.engine.on_ray import RayEngine  # once settings of Ray stand in the environment

            engine = RayEngine(ray, address is None)
        try:
            yield engine
        finally:
            engine.close()
