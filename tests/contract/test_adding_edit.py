"""Adding an edit: one file and its place in the tuple, in a copy of the package, from the experiment's file to the page."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
from tests import tiny

import trisect
from trisect.core.spec import plain

DAMP = '''"""Damping: a site's weights and biases start at a share of their initial values, and are trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from trisect.core.edits import in_study
from trisect.core.schema import record
from trisect.core.site import Site
from trisect.lm.edits.base import Member, Objective, Trained, TrainingEdit


@record
class DampEdit(TrainingEdit):
    """The site starts at `share` of its initial values."""

    share: float

    kind: ClassVar[str] = "damp"
    title: ClassVar[str] = "Damped starts"
    own_page: ClassVar[bool] = False

    @classmethod
    def place(cls, site: Site) -> Site:
        return in_study(site, cls.kind)

    @property
    def column(self) -> None:
        return

    def token_seconds(self, width: int) -> float:
        return 0.0

    def prepare(self, member: Member) -> None:
        member.row[member.mark(self.site)] *= self.share

    @classmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        return ()
'''
LINES = {
    "import FreezeEdit, IdentityEdit, NarrowEdit, TieEdit, TrainingEdit\n": "from trisect.lm.edits.damp import DampEdit\n",
    "    NarrowEdit,\n": "    DampEdit,\n",
}
EDITS = [
    {"kind": "damp", "site": "q+k@1", "share": 1},
    {"kind": "damp", "site": "q+k@1", "share": 0.5},
    {"kind": "damp", "site": "v@2", "share": 0.5},
    {"kind": "freeze", "site": "q@1"},
]


def files(base: Path) -> dict[str, str]:
    return {str(p.relative_to(base)): p.read_text(encoding="utf-8") for p in sorted(base.rglob("*.py"))}


def call(base: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The command line of the copy, in a process of its own; jobs in this process."""
    command = [sys.executable, "-m", "trisect.cli", *args]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(base)}
    )


def test_a_new_edit_is_one_file_and_its_place_in_the_tuple(tmp_path):
    base, package = tmp_path / "src", Path(trisect.__file__).parent
    shutil.copytree(package, base / "trisect", ignore=shutil.ignore_patterns("__pycache__"))
    before = files(base)
    asked = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, freeze=None, rewind=None)
    (tmp_path / "asked.json").write_text(json.dumps({**plain(asked), "edits": EDITS}))
    refused = call(base, "plan", str(tmp_path / "asked.json"))
    assert refused.returncode == 2
    assert "Unknown edit 'damp'." in refused.stderr
    assert not refused.stdout

    (base / "trisect/lm/edits/damp.py").write_text(DAMP)
    known = base / "trisect/lm/edits/__init__.py"
    text = known.read_text()
    for after, line in LINES.items():
        assert text.count(after) == 1
        text = text.replace(after, after + line)
    known.write_text(text)
    now = files(base)
    assert {name for name in now if now[name] != before.get(name)} == {
        "trisect/lm/edits/__init__.py",
        "trisect/lm/edits/damp.py",
    }

    planned = call(base, "plan", str(tmp_path / "asked.json"), "--runs")
    assert planned.returncode == 0, planned.stderr
    slugs = [line.rpartition("-")[0] for line in planned.stdout.splitlines()[:5]]
    assert slugs == ["baseline-s1", "damp1-q+k@1-s1", "damp0.5-q+k@1-s1", "damp0.5-v@2-s1", "freeze-q@1-s1"]
    done = call(base, "study", str(tmp_path / "asked.json"), "--out", str(tmp_path / "out"), "--workers", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"] == {"finished": 5}

    runs = pl.read_parquet(tmp_path / "out/tables/runs.parquet")
    metrics = pl.read_parquet(tmp_path / "out/tables/metrics.parquet").join(runs, on="run").sort("split", "epoch")
    assert sorted(runs["edit"]) == ["damp", "damp", "damp", "freeze", "none"]
    whole, frozen = (runs.filter(pl.col("edit") == e)["parameters"].item() for e in ("none", "freeze"))
    assert set(runs.filter(pl.col("edit") == "damp")["parameters"]) == {whole}
    assert frozen < whole

    def losses(start: str) -> list[float]:
        mine = metrics.filter(pl.col("run").str.starts_with(start) & (pl.col("name") == "loss_nats"))
        return mine["value"].to_list()

    # the whole of its initial values is no edit, half of them is one from the start, at each site another
    assert losses("damp1-") == losses("baseline") != losses("damp0.5-q") != losses("damp0.5-v") != losses("baseline")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Damped starts" in page
    for name in ("damp1", "damp0.5"):
        assert f"{name}: validation loss" in page
    assert "q+k@1, share 0.5" in page
