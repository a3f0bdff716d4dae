"""A worker process of a translation experiment: `python -m trisect.experiments.translate.worker FOLDER DEVICE`, seeds in, events out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from trisect.core.files import read_json
from trisect.engine.processes import serve
from trisect.engine.worker import lines_in, throttled
from trisect.experiments.translate.settings import TranslationRecipe
from trisect.experiments.translate.training import Apprentice, Place, take
from trisect.lm.matmul import fast_products
from trisect.text.bitext import read_bitext

TODO = "Call the same command again: it writes the file anew."


def main(path: str, device: str) -> None:
    """Serve seeds of the experiment in `path` until standard input ends."""
    torch.set_num_threads(1)
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to standard error, never between the events
    place = Place(Path(path))
    recipe = TranslationRecipe(**read_json(place.plan, TODO)["recipe"])
    bitext = read_bitext(read_json(place.bitext, TODO))
    with fast_products():
        serve(
            lambda data, emit: take(Apprentice(**data), place, recipe, bitext, device, throttled(emit)),
            lines_in(),
            events,
        )


if __name__ == "__main__":
    main(*sys.argv[1:3])
