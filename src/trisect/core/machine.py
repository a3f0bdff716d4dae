"""Machine: how runs are run — device, workers, engine, precision; never part of what is run."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from pydantic import Field

from trisect.core import bounds
from trisect.core.errors import need, shortened
from trisect.core.schema import one_of, record

PRECISIONS = ("float32", "bfloat16")
LOSSES = 3  # times that one job is lost with its worker before it is given up


@record
class Machine:
    """How runs are run; nothing here enters an id, and only `precision` changes what is measured.

    `workers` of 0 runs everything in this process; null chooses one one-thread worker a core (one in all on a GPU).
    `precision` is of the factors in training's large products (on a CPU of the decoder's alone), one for all of a study; evaluation
    is in float32 always.
    `engine` is here, processes or ray (null: by `workers`); `address` is of a Ray cluster that is there, `per_gpu` how many
    jobs share one of its GPUs, `scratch` a folder or URL that all its nodes reach. `losses` is how often one job may be lost
    with its worker, the last time included. `fleet` is how many runs a new study trains side by side in one job.
    """

    device: Annotated[str, one_of("auto", "cpu", "cuda")] = "auto"
    workers: Annotated[int | None, Field(ge=0, le=bounds.WHOLE)] = None
    quiet: bool = False
    precision: Annotated[str, one_of(*PRECISIONS)] = "float32"
    engine: Annotated[str, one_of("here", "processes", "ray")] | None = None
    address: str | None = None
    per_gpu: Annotated[int | None, Field(ge=1, le=bounds.FLEET)] = None
    scratch: str | None = None
    losses: Annotated[int, Field(ge=1, le=bounds.WHOLE)] = LOSSES
    fleet: Annotated[int | None, Field(ge=1, le=bounds.FLEET)] = None

    def __post_init__(self) -> None:
        for name in ("address", "per_gpu", "scratch"):
            given = f"--{name.replace('_', '-')} {getattr(self, name)} was given without --engine ray."
            fits = getattr(self, name) is None or self.engine == "ray"
            need(fits, given, "It says how a Ray cluster is used.", "Add --engine ray, or leave it out.")
        known = "It is a folder or a URL that all nodes reach."
        need(
            self.scratch is None or bool(self.scratch.strip()),
            "--scratch names no place.",
            known,
            "Name one, or leave it out.",
        )
        if self.address is not None:
            host, _, port = self.address.rpartition(":")
            fits = self.address == "auto" or (bool(host) and port.isdigit())
            known = "A cluster is 'auto', the one that runs on this machine, or HOST:PORT."
            need(fits, f"{shortened(self.address)} is no address.", known, "Use for example --address auto.")
        if self.engine is not None and self.workers is not None:
            given = f"--engine {self.engine} and --workers {self.workers} were both given."
            known = "The engine here has no workers, and the others have at least one."
            need((self.engine == "here") == (self.workers == 0), given, known, "Leave one of them out.")
        if self.losses != LOSSES:
            given, away = (
                f"--losses {self.losses} was given without workers.",
                self.engine != "here" and self.workers != 0,
            )
            known = "It says how often a job may be lost with its worker, and in this process there is none."
            need(away, given, known, "Add --workers 2, say, or leave it out.")

    def cores(self) -> int:
        """How many processor cores this process may use."""
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
