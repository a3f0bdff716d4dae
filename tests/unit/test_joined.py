"""Seeds of one study that were trained apart are one study again: the same rows, the same verdicts; anything else is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from polars.testing import assert_frame_equal
from tests import tiny

import trisect
from trisect import claims
from trisect.cli import main
from trisect.core.errors import DamagedFileError, SpecError, StudyError, TrisectError
from trisect.core.files import read_json, write_json
from trisect.core.methods import Freeze, Rewind
from trisect.core.schema import to_json_data
from trisect.core.tables import read_table, write_table
from trisect.experiments.study.run import JoinedStudy
from trisect.experiments.study.settings import DesignSource, StudySettings
from trisect.report.sheet import Sheet

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "results" / "wikitext2-large-freezing"  # twelve runs, with edits


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


def join(*places: Path) -> JoinedStudy:
    return JoinedStudy.prepare(StudySettings(join=places))


def test_two_studies_of_a_seed_each_are_the_study_of_both(tmp_path, monkeypatch):
    monkeypatch.setattr("trisect.experiments.study.page.page", lambda tables, about: Sheet("t", "k", "l", ()))
    design = replace(
        tiny.EXPERIMENT, attack=None, freeze=Freeze(tiny.SITES[:1]), rewind=Rewind(tiny.SITES[:1], points=5)
    )
    one = trisect.study(design, seeds=2, out=tmp_path / "one", workers=0, quiet=True)
    for seed in (2, 1):
        trisect.study(design, seeds=(seed,), out=tmp_path / str(seed), workers=0, quiet=True)
    before = contents(tmp_path / "1")
    words = ["study", "--join", str(tmp_path / "2"), str(tmp_path / "1"), "--out", str(tmp_path / "both"), "--quiet"]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 0, ended.output
    assert contents(tmp_path / "1") == before
    for name, table in one.tables.items():
        found = read_table(tmp_path / "both/tables", name)
        assert_frame_equal(found.drop("wall_seconds", strict=False), table.drop("wall_seconds", strict=False))
    about: Any = about_of(tmp_path / "both")
    assert about["experiment"] == about_of(tmp_path / "one")["experiment"]
    assert about["experiment"] == json.loads((tmp_path / "both/experiment.json").read_text())
    assert (tmp_path / "both/report.html").is_file()
    assert trisect.check(tmp_path / "both") == []


def test_seeds_trained_apart_are_one_study_again(tmp_path):
    seeds = about_of(FROZEN)["experiment"]["seeds"]
    assert len(seeds) == 3
    places = [part([seed], tmp_path / str(seed)) for seed in (seeds[1], seeds[2], seeds[0])]
    joined = join(*places)
    found = joined.tables
    for name in ("runs", "metrics", "sites"):
        assert_frame_equal(found[name], read_table(FROZEN / "tables", name))
    about: Any = {"experiment": to_json_data(joined.design)}
    assert_frame_equal(found["claims"], claims.judge(found, about))
    # the committed verdicts were computed on another processor
    assert_frame_equal(found["claims"], read_table(FROZEN / "tables", "claims"), rel_tol=1e-9)
    assert found["claims"].filter(claim="A-15", verdict="inconclusive").height == 1
    assert joined.about.seconds == 300.0
    assert list(joined.design.seeds) == seeds


def test_a_seed_that_is_there_twice_is_refused(kept, tmp_path):
    with pytest.raises(StudyError, match="seeds that are already there"):
        join(kept, part([1], tmp_path / "again"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"training": {"rate": 0.5}}, "differ in training"),
        ({"erase": {"sites": ["q@1"]}}, "differ in erase"),
        ({"something": 1}, "something"),
    ],
)
def test_another_design_is_refused_whichever_of_the_two_asks_more(kept, tmp_path, changed, said):
    other, before = part([2], tmp_path / "other"), contents(kept)
    with pytest.raises(TrisectError, match=said):
        join(kept, change(other, **changed))
    assert contents(kept) == before
    with pytest.raises(TrisectError, match=said):
        join(change(kept, **changed), part([2], tmp_path / "plain"))


def test_another_text_or_device_is_refused(kept, tmp_path):
    other = part([2], tmp_path / "text")
    about = about_of(other)
    state(other, about | {"corpus": about["corpus"] | {"fingerprint": "0" * 16}})
    with pytest.raises(StudyError, match="differ in corpus"):
        join(kept, other)
    other = part([2], tmp_path / "device")
    write_table(other / "tables", "runs", read_table(other / "tables", "runs").with_columns(device=pl.lit("cuda")))
    with pytest.raises(StudyError, match="differ in device"):
        join(kept, other)


def test_a_folder_without_a_seed_that_it_states_or_with_other_runs_of_one_is_refused(kept, tmp_path):
    with pytest.raises(StudyError, match=r"Stated are seeds \[2, 3\], run were \[2\]"):
        join(kept, change(part([2], tmp_path / "more"), seeds=[2, 3]))
    seeds = part([2, 3], tmp_path / "uneven")
    rows = read_table(seeds / "tables", "runs")
    write_table(seeds / "tables", "runs", rows.filter((pl.col("seed") == 2) | (pl.col("edit") == "none")))
    with pytest.raises(StudyError, match="Not every seed has the same runs"):
        join(kept, seeds)


def test_a_damaged_table_and_a_study_that_has_not_ended_are_named(kept, tmp_path):
    other = part([2], tmp_path / "other")
    path = other / "tables/metrics.parquet"
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    with pytest.raises(DamagedFileError, match=r"metrics\.parquet"):
        join(kept, other)
    write_json(other / "about.json", {name: value for name, value in about_of(other).items() if name != "experiment"})
    with pytest.raises(StudyError, match="holds no study that has ended"):
        join(kept, other)
    with pytest.raises(StudyError, match="holds no study that has ended"):
        join(kept, tmp_path)


def test_what_lies_elsewhere_and_other_settings_are_refused(kept, tmp_path):
    other = part([2], tmp_path / "other")
    with pytest.raises(SpecError, match="One study was given"):
        join(kept)
    with pytest.raises(SpecError, match="settings of a study"):
        JoinedStudy.prepare(StudySettings(DesignSource(epochs=2), join=(kept, other)))
    joined, elsewhere = join(kept, other), tmp_path / "elsewhere"
    with pytest.raises(StudyError, match="is one of the studies to be joined"):
        joined.check(other)
    elsewhere.mkdir()
    joined.check(elsewhere)
    (elsewhere / "experiment.json").write_text("{}")  # of a join that was stopped before its tables
    joined.check(elsewhere)
    (elsewhere / "study.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StudyError, match="It is the folder of a study"):
        joined.check(elsewhere)
