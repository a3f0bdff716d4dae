"""Seeds of one study that were trained apart are one study again: the same rows, the same verdicts; anything else is refused."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from trisect import claims
from trisect.core.errors import StudyError
from trisect.core.files import read_json, write_json
from trisect.core.tables import read_table, write_table

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "results" / "wikitext2-large-freezing"  # twelve runs, with edits
TOOL = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "joined.py")))


def about_of(place: Path) -> dict[str, Any]:
    return read_json(place / "about.json", "")


def part(seeds: list[int], place: Path, of: Path = FROZEN) -> Path:
    """A committed study as if these seeds alone had been trained."""
    (place / "tables").mkdir(parents=True)
    runs = read_table(of / "tables", "runs").filter(pl.col("seed").is_in(seeds))
    for name, column in (("runs", "run"), ("metrics", "run"), ("sites", "subject")):
        rows = read_table(of / "tables", name).filter(pl.col(column).is_in(runs["run"].to_list()))
        write_table(place / "tables", name, rows)
    about = about_of(of)
    state(place, about | {"experiment": about["experiment"] | {"seeds": seeds}, "wall_seconds": 100.0})
    return place


def state(place: Path, about: dict[str, Any]) -> None:
    """Write both statements of a study."""
    (place / "experiment.json").write_text(json.dumps(about["experiment"]), encoding="utf-8")
    write_json(place / "about.json", about)


def change(place: Path, **changed: object) -> Path:
    """The same folder with other entries in its statement."""
    about = about_of(place)
    state(place, about | {"experiment": about["experiment"] | changed})
    return place


def contents(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def kept(tmp_path) -> Path:
    return part([1], tmp_path / "kept")


def test_seeds_trained_apart_are_one_study_again(tmp_path, capsys):
    seeds = about_of(FROZEN)["experiment"]["seeds"]
    assert len(seeds) == 3
    places = [part([seed], tmp_path / str(seed)) for seed in (seeds[1], seeds[2], seeds[0])]
    TOOL.main(list(map(str, places)))
    assert f"seeds {', '.join(map(str, seeds))}, 12 runs" in capsys.readouterr().out
    found = {name: read_table(places[0] / "tables", name) for name in ("runs", "metrics", "sites", "claims")}
    for name in ("runs", "metrics", "sites"):
        assert_frame_equal(found[name], read_table(FROZEN / "tables", name))
    about: Any = about_of(places[0])
    assert_frame_equal(found["claims"], claims.judge(found, about))
    # the committed verdicts were computed on another processor
    assert_frame_equal(found["claims"], read_table(FROZEN / "tables", "claims"), rel_tol=1e-9)
    assert found["claims"].filter(claim="A-15", verdict="refuted").height == 1
    assert about["wall_seconds"] == 300.0
    assert about["experiment"] == json.loads((places[0] / "experiment.json").read_text())
    assert about["experiment"]["seeds"] == seeds
    with pytest.raises(StudyError, match="seeds that are already there"):
        TOOL.main(list(map(str, places[:2])))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"training": {"rate": 0.5}}, "differ in training"),
        ({"erase": {"sites": ["q@1"]}}, "differ in erase"),
        ({"something": 1}, "differ in something"),
    ],
)
def test_another_design_is_refused_whichever_of_the_two_asks_more(kept, tmp_path, changed, said):
    other, before = part([2], tmp_path / "other"), contents(kept)
    with pytest.raises(StudyError, match=said):
        TOOL.main([str(kept), str(change(other, **changed))])
    assert contents(kept) == before
    with pytest.raises(StudyError, match=said):
        TOOL.main([str(change(kept, **changed)), str(part([2], tmp_path / "plain"))])


def test_another_text_or_device_is_refused(kept, tmp_path):
    other = part([2], tmp_path / "text")
    about = about_of(other)
    state(other, about | {"corpus": about["corpus"] | {"fingerprint": "0" * 16}})
    with pytest.raises(StudyError, match="differ in corpus"):
        TOOL.main([str(kept), str(other)])
    other = part([2], tmp_path / "device")
    write_table(other / "tables", "runs", read_table(other / "tables", "runs").with_columns(device=pl.lit("cuda")))
    with pytest.raises(StudyError, match="differ in device"):
        TOOL.main([str(kept), str(other)])


def test_a_folder_whose_tables_are_not_those_that_it_states_is_refused(kept, tmp_path):
    with pytest.raises(StudyError, match=r"Stated are seeds \[2, 3\], run were \[2\]"):
        TOOL.main([str(kept), str(change(part([2], tmp_path / "more"), seeds=[2, 3]))])
    other = part([2], tmp_path / "twice")
    rows = read_table(other / "tables", "runs")
    write_table(other / "tables", "runs", pl.concat([rows, rows]))
    with pytest.raises(StudyError, match="one of them twice"):
        TOOL.main([str(kept), str(other)])
    other = part([2], tmp_path / "stray")
    write_table(other / "tables", "runs", read_table(other / "tables", "runs").filter(edit="none"))
    with pytest.raises(StudyError, match="which is no run of it"):
        TOOL.main([str(kept), str(other)])
    seeds = part([2, 3], tmp_path / "uneven")
    rows = read_table(seeds / "tables", "sites")
    lost = rows.filter(~(pl.col("subject").str.contains("-s2-") & (pl.col("measure") == rows["measure"][0])))
    assert lost.height < rows.height
    write_table(seeds / "tables", "sites", lost)
    with pytest.raises(StudyError, match="Not every seed has the same measures"):
        TOOL.main([str(kept), str(seeds)])
    (seeds / "experiment.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StudyError, match="state two designs"):
        TOOL.main([str(kept), str(seeds)])
    (seeds / "experiment.json").write_text("[]", encoding="utf-8")
    with pytest.raises(StudyError, match="is no one statement"):
        TOOL.main([str(kept), str(seeds)])


def test_a_join_that_was_stopped_half_way_is_not_joined_again(kept, tmp_path, monkeypatch):
    other = part([2], tmp_path / "other")
    place = TOOL.main.__globals__
    monkeypatch.setitem(place, "replace_file", lambda path, write: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        TOOL.main([str(kept), str(other)])
    monkeypatch.undo()
    with pytest.raises(StudyError, match="does not agree with itself"):
        TOOL.main([str(kept), str(other)])


def test_a_study_that_goes_on_and_no_other_folder_are_refused(kept):
    with pytest.raises(StudyError, match="1 folders were given"):
        TOOL.main([str(kept)])
    (kept / "study.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StudyError, match="is a study that goes on"):
        TOOL.main([str(kept), str(kept)])


def test_the_command_says_what_is_wrong_and_ends_with_2(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "joined.py"), str(tmp_path), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "experiment.json cannot be read" in ended.stderr
    assert "Traceback" not in ended.stderr
