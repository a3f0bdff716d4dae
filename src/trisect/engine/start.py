"""Choose the engine of an experiment's jobs (`here`, `processes` or `ray`) and the device."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trisect.core.errors import SpecError
from trisect.core.machine import Machine
from trisect.engine.drive import Engine, JobEnd, OnEvent
from trisect.engine.jobs import JobOrder, run_job
from trisect.engine.processes import Processes
from trisect.engine.ray_connect import open_ray


def choose_device(machine: Machine) -> str:
    """cpu or cuda; raises SpecError if there is no GPU, or bfloat16 products are unsupported by the processor."""
    import torch  # which a command's help does without

    available = torch.cuda.is_available() or (machine.engine == "ray" and machine.device == "cuda")  # the nodes' then
    if machine.device == "cuda" and not available:
        raise SpecError(
            "The device 'cuda' was asked for.", "PyTorch finds no CUDA device here.", "Use --device cpu, or auto."
        )
    device = "cuda" if available and machine.device != "cpu" else "cpu"
    if machine.engine != "ray":  # else the nodes look for themselves
        check_narrow(device, machine.precision)
    return device


def check_narrow(device: str, precision: str) -> None:
    """Raise SpecError for bfloat16 products on an unsupported processor; training nodes check their own."""
    if device == "cpu" and precision == "bfloat16" and not has_bfloat16():
        raise SpecError(
            "The precision 'bfloat16' was asked for on the CPU.",
            "PyTorch has no fast bfloat16 products on this processor (it needs AVX-512 or AMX).",
            "Leave --precision out, or give --device cuda where there is one.",
        )


def has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16."""
    import torch

    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Here:
    """The engine `here`: jobs in this process, one after the other, run in `events`; interruptions propagate."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._values = folder, dict[str, object]()
        self._open: deque[tuple[int, JobOrder]] = deque()

    def slots(self) -> int:
        """One."""
        return 1

    def submit(self, number: int, order: JobOrder) -> None:
        """Note the job."""
        self._open.append((number, order))

    def events(self, timeout: float, on_event: OnEvent) -> None:
        """Run the next job to its end."""
        if not self._open:
            return
        number, order = self._open.popleft()
        error: Exception | None = None
        try:
            run_job(
                order.message(), order.paths(), self._folder, self._values, lambda progress: on_event(number, progress)
            )
        except Exception as raised:
            error = raised
        on_event(number, JobEnd(error))

    def close(self) -> None:
        """Remove the jobs' files."""
        self._open.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def worker_count(machine: Machine, device: str, gpus: int = 1) -> int:
    """The number of workers: as set, else one per core or GPU."""
    if machine.engine == "here":
        return 0
    return machine.workers if machine.workers is not None else (max(1, gpus) if device == "cuda" else machine.cores())


@contextmanager
def open_engine(machine: Machine, device: str, folder: Path, jobs: int | None = None) -> Iterator[Engine]:
    """Open the engine of a machine for a number of jobs, as a context.

    Jobs work in `folder`, which is removed before and after. Processes share the GPUs; no workers are `here`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    gpus = 0
    if device == "cuda":
        import torch

        gpus = torch.cuda.device_count()
    workers = worker_count(machine, device, gpus)
    with ExitStack() as stack:
        if machine.engine == "ray":
            address = stack.enter_context(open_ray(min(workers or machine.cores(), machine.cores()), gpus))
            from trisect.engine.on_ray import RayEngine  # once settings of Ray stand in the environment

            engine: Engine = RayEngine(machine.workers, device == "cuda", address is None)
        elif workers:
            engine = Processes(workers if jobs is None else min(workers, jobs), folder, gpus)
        else:
            engine = Here(folder)
        stack.callback(engine.close)
        yield engine
