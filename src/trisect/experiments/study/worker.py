"""A worker process: `python -m trisect.experiments.study.worker FOLDER DEVICE PRECISION`, tasks in on one pipe, events out on another."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from trisect.engine.processes import serve
from trisect.engine.worker import lines_in, throttled
from trisect.experiments.study.tasks import Task, execute
from trisect.lab.folder import Folder
from trisect.lm.matmul import fast_products
from trisect.text.corpus import Corpus


def read_task(data: dict[str, Any]) -> Task:
    """The Task that travelled as JSON."""
    return Task(data["kind"], tuple(data["runs"]), data["site"], data["seconds"], data["label"])


def main(path: str, device: str, precision: str) -> None:
    """Serve tasks of the study in `path` until standard input ends."""
    torch.set_num_threads(1)
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to standard error, never between the events
    folder = Folder(Path(path))
    runs, corpus = folder.read_ledger()["runs"], Corpus.load(folder.corpus)
    with fast_products():
        serve(
            lambda data, emit: execute(read_task(data), folder, runs, corpus, device, throttled(emit), precision),
            lines_in(),
            events,
        )


if __name__ == "__main__":
    main(*sys.argv[1:4])
