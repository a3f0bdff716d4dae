"""Seeds of one study that were trained apart are one study again: the same rows, the same verdicts; anything else is refused."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from trisect.core.errors import StudyError
from trisect.core.files import read_json, write_json
from trisect.core.tables import read_table, write_table

ROOT = Path(__file__).parents[2]
LARGE = ROOT / "results" / "wikitext2-large"
TOOL = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "joined.py")))
TABLES = ("runs", "metrics", "sites", "claims", "claims_revised", "controls")


def part(seeds: list[int], place: Path) -> Path:
    """The committed study as if these seeds alone had been trained."""
    (place / "tables").mkdir(parents=True)
    runs = read_table(LARGE / "tables", "runs").filter(pl.col("seed").is_in(seeds))
    for name, column in (("runs", "run"), ("metrics", "run"), ("sites", "subject")):
        rows = read_table(LARGE / "tables", name).filter(pl.col(column).is_in(runs["run"].to_list()))
        write_table(place / "tables", name, rows)
    asked = json.loads((LARGE / "experiment.json").read_text(encoding="utf-8")) | {"seeds": seeds}
    (place / "experiment.json").write_text(json.dumps(asked), encoding="utf-8")
    about = read_json(LARGE / "about.json", "")
    write_json(place / "about.json", about | {"experiment": asked, "wall_seconds": 100.0})
    return place


def test_seeds_trained_apart_are_one_study_again(tmp_path, capsys):
    seeds = json.loads((LARGE / "experiment.json").read_text(encoding="utf-8"))["seeds"]
    kept, other = part(seeds[1:], tmp_path / "kept"), part(seeds[:1], tmp_path / "other")
    TOOL.main(kept, [other])
    assert f"seeds {', '.join(map(str, seeds))}" in capsys.readouterr().out
    for name in TABLES:
        found, committed = (read_table(place / "tables", name) for place in (kept, LARGE))
        if key := [c for c in ("run", "subject") if c in committed.columns]:  # rows of one run keep their order
            found, committed = (rows.sort(key, maintain_order=True) for rows in (found, committed))
        assert_frame_equal(found, committed, rel_tol=1e-9)  # claims: means over seeds in another order
    about = read_json(kept / "about.json", "")
    assert about["wall_seconds"] == 200.0
    assert about["experiment"]["seeds"] == json.loads((kept / "experiment.json").read_text())["seeds"] == seeds


def test_a_seed_that_is_there_another_design_and_another_text_are_refused(tmp_path):
    kept = part([1], tmp_path / "kept")
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    with pytest.raises(StudyError, match="seeds that are there"):
        TOOL.main(kept, [part([1, 2], tmp_path / "twice")])
    other = part([2], tmp_path / "design")
    asked = json.loads((other / "experiment.json").read_text(encoding="utf-8"))
    asked["training"]["rate"] = 0.5
    (other / "experiment.json").write_text(json.dumps(asked), encoding="utf-8")
    with pytest.raises(StudyError, match="differ in training"):
        TOOL.main(kept, [other])
    other = part([2], tmp_path / "text")
    about = read_json(other / "about.json", "")
    write_json(other / "about.json", about | {"corpus": about["corpus"] | {"fingerprint": "0" * 16}})
    with pytest.raises(StudyError, match="differ in corpus"):
        TOOL.main(kept, [other])
    several = part([2], tmp_path / "several")
    (several / "experiment.json").write_text(json.dumps([asked, asked]), encoding="utf-8")
    with pytest.raises(StudyError, match="several statements"):
        TOOL.main(kept, [several])
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before
    shutil.rmtree(tmp_path)
