"""Machine: how runs are run — device, workers, engine, precision; never part of what is run."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from pydantic import Field

from trisect.core import bounds
from trisect.core.errors import need
from trisect.core.schema import one_of, record

PRECISIONS = ("float32", "bfloat16")


@record
class Machine:
    """How runs are run; nothing here enters an id, and only `precision` changes what is measured.

    `workers` of 0 runs everything in this process; null chooses one one-thread worker a core, or one a GPU.
    `precision` is of the factors in training's large products (on a CPU of the decoder's alone), one for all of a study; evaluation
    is in float32 always.
    `engine` is here, processes or ray (null: by `workers`), which finds its cluster by RAY_ADDRESS. `fleet` is how many runs a
    new study trains side by side in one job.
    """

    device: Annotated[str, one_of("auto", "cpu", "cuda")] = "auto"
    workers: Annotated[int | None, Field(ge=0, le=bounds.WHOLE)] = None
    quiet: bool = False
    precision: Annotated[str, one_of(*PRECISIONS)] = "float32"
    engine: Annotated[str, one_of("here", "processes", "ray")] | None = None
    fleet: Annotated[int | None, Field(ge=1, le=bounds.FLEET)] = None

    def __post_init__(self) -> None:
        if self.engine is not None and self.workers is not None:
            given = f"--engine {self.engine} and --workers {self.workers} were both given."
            known = "The engine here has no workers, and the others have at least one."
            need((self.engine == "here") == (self.workers == 0), given, known, "Leave one of them out.")

    def cores(self) -> int:
        """How many processor cores this process may use."""
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
