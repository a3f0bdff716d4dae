"""Pages of every command over pretrained models in a browser: no barrier, light or dark, and no sideways scroll."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import tinyhf
from tests.accessible import barriers
from tests.unit.test_erase import OWN

import trisect
from trisect.lab.experiment import Result

pytestmark = pytest.mark.browser
TEXTS = [f"w{i} w{i % 7} , w{i % 5} w{i % 3} ." for i in range(6)]


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> Path:
    """Three checkpoints of one shape in one folder."""
    place = tmp_path_factory.mktemp("steps")
    for seed in (1, 2, 3):
        tinyhf.save(tinyhf.gpt2(seed), place / f"step{seed}", False)
    return place


def several(steps: Path) -> list[str]:
    return [str(steps / f"step{n}") for n in (1, 2, 3)]


MADE: dict[str, Callable[[Path, Path], Result[Any]]] = {
    "norms": lambda s, out: trisect.norms(s / "step1", TEXTS, out=out, quiet=True),
    "norms of several models": lambda s, out: trisect.norms(several(s)[:2], TEXTS[:2], out=out, quiet=True),
    "similarity": lambda s, out: trisect.similarity(s / "step1", TEXTS, out=out, quiet=True),
    "ablate": lambda s, out: trisect.ablate(s / "step1", TEXTS, per="head", out=out, quiet=True),
    "rewind": lambda s, out: trisect.rewind(
        s, initial="step1", final="step3", texts=TEXTS, stages=["step2"], sites="v@all", points=5, out=out, quiet=True
    ),
    "compare": lambda s, out: trisect.compare(several(s)[:2], TEXTS, what="ablate", out=out, quiet=True),
    "erase": lambda s, out: trisect.erase(
        OWN, "embedded", labels=["pos"], limit=40, sites="v@1", draws=2, out=out, quiet=True
    ),
    "profile": lambda s, out: trisect.profile(
        OWN, "embedded", labels=["position", "pos"], words=600, out=out, quiet=True
    ),
    "bench": lambda s, out: trisect.bench(
        methods=("chance", "norm"), worlds=("lookup",), seeds=(1, 2), pairs=2, out=out, quiet=True
    ),
    "compose": lambda s, out: trisect.compose(
        s / "step1", base="w1 w2 w3", donor="w4 w5 w6", into="k@2.h1", out=out, quiet=True
    ),
    "quantise": lambda s, out: trisect.quantise(OWN, TEXTS, bits=(2, 16), out=out, quiet=True),
}


@pytest.mark.parametrize("kind", list(MADE))
def test_no_barrier_and_no_sideways_scroll(kind, steps, new_tab, tmp_path):
    tab = new_tab(MADE[kind](steps, tmp_path / "out").report.resolve().as_uri(), 360)
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    tab.set_viewport_size({"width": 1280, "height": 900})
    assert barriers(tab) == []
    assert barriers(tab, "dark") == []
