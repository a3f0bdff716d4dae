"""The campaign for a GPU: pieces go on where they stopped, one that fails or lasts too long stops no other, small files come home."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from trisect.experiments import EXPERIMENTS
from trisect.lab.driver import free_folder
from trisect.lab.run_folder import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "tools" / "gpu_campaign.py"))


def test_pieces_go_on_where_they_stopped(tool, tmp_path):
    """The second piece fails once; the third lasts for ever until there is a mark."""
    (tmp_path / "long").mkdir()
    once = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1]); there = p.exists(); p.touch(); sys.exit(0 if there else 3)"
    )
    long = (
        "import pathlib, sys, threading; p = pathlib.Path(sys.argv[1])\n"
        "threading.Event().wait(0 if p.exists() else 300)\n"
        "p.with_name('ended.txt').touch()"
    )
    piece = tool["Piece"]
    found = [
        piece("first", (sys.executable, "-c", "pass")),
        piece("second", (sys.executable, "-c", once, str(tmp_path / "mark"))),
        piece("third", (sys.executable, "-c", long, str(tmp_path / "long" / "mark.txt")), "long"),
        piece("there already", ()),
    ]
    campaign = tool["Campaign"](tmp_path, found)
    campaign.note(found[2], 0.5)
    campaign.pieces = [found[0], found[1], found[3]]
    assert not campaign.run(minutes=1, whole=2)
    noted = json.loads((tmp_path / "campaign.json").read_text())
    states = {"first": "done", "second": "failed", "third": "interrupted", "there already": "done"}
    assert {name: note["state"] for name, note in noted.items()} == states
    again = tool["Campaign"](tmp_path, found)
    assert [each.name for each in again.left()] == ["second", "third"]
    (tmp_path / "long" / "mark.txt").touch()
    assert again.run(minutes=1, whole=2)
    assert (tmp_path / "home" / "long" / "ended.txt").exists()
    assert again.notes["third"]["seconds"] > noted["third"]["seconds"] >= 0.5
    assert not tool["Campaign"](tmp_path, found).left()


def test_a_campaign_has_every_part_and_its_studies_share_one_folder(tool, tmp_path):
    found = tool["pieces"](tmp_path, "text", "people", False)
    names = [piece.name for piece in found]
    assert names[:4] == ["tests", "sizes", "rewinding", "freezing"]
    assert {"recall", "norms", "profile", "patch", *(f"attacks in layer {n}" for n in range(1, 6))} <= set(names)
    assert len(set(names)) == len(names)
    studies = [piece.command for piece in found if "study" in piece.command]
    assert {words[words.index("--out") + 1] for words in studies} == {str(tmp_path / "paper")}
    assert {words[words.index("--device") + 1] for words in studies} == {"cuda"}
    dry = tool["pieces"](tmp_path, "embedded", None, True)
    assert not [piece for piece in dry if "cuda" in piece.command]
    assert set(names) - {piece.name for piece in dry} == {
        *(f"attacks in layer {n}" for n in range(2, 6)),
        *(f"seed {n}" for n in range(2, 6)),
    }


def test_small_files_and_final_weights_come_home(tool, tmp_path, monkeypatch):
    """Weights of every epoch, large files and the corpus stay."""
    sizes = {
        "tables/runs.parquet": 5,
        "runs/a/final.safetensors": 5,
        "runs/b/final.safetensors": 50,
        "runs/a/epochs/0001.safetensors": 5,
        "models/p/model.safetensors": 5,
        "corpus/corpus.json": 5,
        "big.html": 50,
    }
    for name, size in sizes.items():
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    monkeypatch.setitem(tool["bring"].__globals__, "SMALL", 20)
    tool["bring"](tmp_path / "out", tmp_path / "home")
    found = {str(p.relative_to(tmp_path / "home")) for p in (tmp_path / "home").rglob("*") if p.is_file()}
    assert found == {"tables/runs.parquet", "runs/a/final.safetensors", "models/p/model.safetensors"}


def test_a_folder_counts_as_done_only_with_a_whole_run(tool, tmp_path):
    """An empty folder, a run that was interrupted, one with a file gone, and a list of files that cannot be read are all to do."""

    def left():
        return {piece.name for piece in tool["pieces"](tmp_path, "embedded", None, True) if piece.command}

    parts = {"norms", "profile", "patch"}
    for name in parts:
        (tmp_path / name).mkdir()
        (tmp_path / name / "about.json").write_text("{}")
    assert parts <= left()
    assert all((tmp_path / f"{name}.aside").is_dir() for name in parts)  # the command would have refused it for ever
    for name in parts:
        with RunFolder(tmp_path / name).stage() as stage:
            (stage / "report.html").write_text("a page")
            RunFolder(tmp_path / name).commit(stage, name, "0" * 32)
    assert not parts & left()
    (tmp_path / "norms" / "report.html").unlink()
    (tmp_path / "patch" / "manifest.json").write_text("half")
    assert parts & left() == {"norms", "patch"}
    for one in EXPERIMENTS:
        if one.name in parts:
            free_folder(one, tmp_path / one.name)  # whatever is to do can be done
