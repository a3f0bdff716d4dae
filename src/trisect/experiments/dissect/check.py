"""Check: which steps of a dissection are finished, and the folders of those that have begun."""

from __future__ import annotations

from pathlib import Path

from trisect.core.files import inside
from trisect.experiments.dissect.run import Notes
from trisect.experiments.dissect.settings import DISSECT
from trisect.lab.begun import Begun


def look(folder: Path) -> Begun:
    """How many steps are finished; raises DamagedFileError where its notes cannot be read."""
    steps = Notes.read(folder).steps
    done = sum(bool(step.get("key")) for step in steps.values())
    left = done < len(steps) or not (folder / DISSECT.record).exists()
    words = f"{done} finished step{'' if done == 1 else 's'}"
    return Begun(DISSECT.name, words, left, within=[inside(folder, *place.split("/")) for place in steps])
