"""A worker process of a recall experiment: lessons in on one pipe, events out on another."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from trisect.core.files import read_json
from trisect.engine.processes import serve
from trisect.engine.worker import lines_in, throttled
from trisect.experiments.recall.settings import Recipe
from trisect.experiments.recall.training import Lesson, Place, take
from trisect.lm.matmul import fast_products
from trisect.text.people import read_people

TODO = "Call 'trisect recall' again: it writes the file anew."


def main(path: str, device: str) -> None:
    """Serve lessons of the experiment in `path` until standard input ends."""
    torch.set_num_threads(1)
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to standard error, never between the events
    place = Place(Path(path))
    recipe, people = Recipe(**read_json(place.plan, TODO)["recipe"]), read_people(read_json(place.people, TODO))
    with fast_products():
        serve(
            lambda data, emit: take(Lesson(**data), place, recipe, people, device, throttled(emit)),
            lines_in(),
            events,
        )


if __name__ == "__main__":
    main(*sys.argv[1:3])
