"""Machine: device, workers, engine and precision of runs, and versions of hardware and software."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated

from pydantic import Field

from trisect.core import schema
from trisect.core.errors import require
from trisect.core.files import digest
from trisect.core.schema import one_of, record

PRECISIONS = ("float32", "bfloat16")
PACKAGES = ("trisect", "torch", "numpy", "scipy", "polars")


@record
class Machine:
    """Settings of how runs are executed; nothing here enters an id, and only `precision` changes results.

    `workers` is the number of worker processes: 0 runs everything in this process, None starts one with one thread per core, or
    one per GPU. `precision` is that of the factors of large matrix products in training (on a CPU only the decoder's), the same
    in all of a study; evaluation is in float32. `engine` is here, processes or ray (None: by `workers`); ray connects to the
    cluster of RAY_ADDRESS. `fleet` is the number of runs that a new study trains side by side in one job.
    """

    device: Annotated[str, one_of("auto", "cpu", "cuda")] = "auto"
    workers: Annotated[int | None, Field(ge=0, le=schema.MAX_INT)] = None
    quiet: bool = False
    precision: Annotated[str, one_of(*PRECISIONS)] = "float32"
    engine: Annotated[str, one_of("here", "processes", "ray")] | None = None
    fleet: Annotated[int | None, Field(ge=1, le=schema.MAX_FLEET)] = None

    def __post_init__(self) -> None:
        if self.engine is not None and self.workers is not None:
            problem = f"--engine {self.engine} and --workers {self.workers} were both given."
            reason = "The engine here has no workers, and the others have at least one."
            require((self.engine == "here") == (self.workers == 0), problem, reason, "Leave one of them out.")

    def cores(self) -> int:
        """The number of processor cores available to this process."""
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@contextmanager
def without_collection() -> Iterator[None]:
    """Context without garbage collection, which is a sixth of the time that large packages take to import."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


version = cache(metadata.version)  # cached, since every run of a study calls it


def versions(*more: str) -> dict[str, str]:
    """Versions of Python and of all packages that a number depends on; `more` are further packages."""
    packages = {"python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            packages[package] = version(package)
        except metadata.PackageNotFoundError:
            packages[package] = "not installed as a package"
    return packages


@cache
def code_hash() -> str:
    """A hash of all modules of trisect, since code under development keeps its version."""
    base = Path(__file__).parents[1]
    files = sorted(base.rglob("*.py"))
    return digest("\n".join(f"{p.relative_to(base).as_posix()} {digest(p.read_bytes())}" for p in files), 4)


@cache
def processor() -> str:
    """The processor, such as 'AMD EPYC 7763 64-Core Processor'; the architecture if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, (*names[:1], platform.processor(), platform.machine())), "unknown")


def memory_bytes() -> int | None:
    """Total memory in bytes, or a container's limit; None if unknown."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None
    try:
        allowed = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no container, or "max"
        return installed
    return min(installed, allowed)


def free_bytes(path: Path) -> int | None:
    """Free disk space in bytes at an existing or future file or folder; None if unknown."""
    try:
        existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
        return shutil.disk_usage(existing).free
    except (OSError, StopIteration):
        return None
