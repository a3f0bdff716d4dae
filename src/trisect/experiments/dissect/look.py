"""What a dissection's first screen links to besides its parts: a trained model to look into, and the tutorial where there is one."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import trisect
from trisect.core.files import digest
from trisect.experiments.explore import EXPLORE
from trisect.experiments.explore.settings import ExploreSettings
from trisect.lab import driver
from trisect.lab.inputs import ModelSource, TextSource
from trisect.report.study_links import StudyLink

PAGE = "explore.html"
TUTORIAL = Path("docs", "one-head.md")  # of a clone of the project; a package that was installed has none
SHORTEST, LONGEST = 6, 14  # words of a sentence that is easily looked at
_WEIGHTS = re.compile(rb"<!-- weights [0-9a-f]+ -->\n$")
_LOOKED = 50  # sentences


def explored(model: Path, folder: Path, links: Sequence[StudyLink], quiet: bool) -> str:
    """Write the explorer of a trained model over a sentence that it did not learn from, into the folder; its page's name.

    One that is there already, of the same weights, stays.
    """
    weights = digest(b"".join(path.read_bytes() for path in sorted(model.glob("*.safetensors"))))
    page = folder / PAGE
    mark = f"<!-- weights {weights} -->\n"
    if page.exists() and page.read_bytes().endswith(mark.encode()):
        return PAGE
    if page.exists() and _WEIGHTS.search(page.read_bytes()[-200:]):
        page.unlink()  # of other weights, perhaps by a version that did not sign its pages
    driver.run(EXPLORE, ExploreSettings(ModelSource(model), (sentence(),)), page, quiet, links)
    with page.open("a", encoding="utf-8") as file:
        file.write(mark)
    return PAGE


def sentence() -> str:
    """The first test sentence of the embedded corpus that is neither short nor long."""
    texts = [str(text) for text in islice(TextSource("embedded").open().texts(), _LOOKED)]
    return next((text for text in texts if SHORTEST <= len(text.split()) <= LONGEST), texts[0])


def tutorial(folder: Path) -> str | None:
    """Where the tutorial lies, seen from a folder inside a clone of the project; null elsewhere, where no link would last."""
    clone = Path(trisect.__file__).resolve().parents[2]
    inside = folder.resolve().is_relative_to(clone) and (clone / TUTORIAL).exists()
    return os.path.relpath(clone / TUTORIAL, folder.resolve()) if inside else None
