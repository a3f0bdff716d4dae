"""Check of a folder whose command was stopped: what the folder is, what is done, how to go on, and what is damaged."""

import pytest
from click.testing import CliRunner

import trisect
from trisect.cli import main
from trisect.core.files import write_json
from trisect.experiments import EXPERIMENTS

PLAN = {"seeds": [1, 2], "wall_seconds": 1.0}
PEOPLE = {key: [] for key in ("lines", "train", "valid", "test", "left_out", "invented", "notes")}
STOPPED = "which was stopped before its end or still runs. Call that command again, with the same settings: it goes on"
FOLDERS = {
    "recall": ({"recall.json": PLAN}, "0 of 4 models of 'trisect recall'"),
    "left out": (
        {"recall.json": PLAN, "people.json": {**PEOPLE, "left_out": ["Ann"]}},
        "0 of 6 models of 'trisect recall'",
    ),
    "translate-train": ({"translation.json": PLAN}, "0 of 2 models of 'trisect translate-train'"),
    "dissect": (
        {"parts.json": {"seconds": 1.0, "steps": {"theory": {"key": "a"}, "roles": {"key": ""}}}},
        "1 finished step of 'trisect dissect'",
    ),
    "corpus annotate": (
        {".shards/statement.json": {}, ".shards/train-000001.json": {}},
        "1 file of labels of 'trisect corpus annotate'",
    ),
}


def written(folder, files):
    names = {"name": "", "fingerprint": "", "origin": ""}
    for name, body in files.items():
        write_json(folder / name, {**names, **body} if name == "people.json" else body)


@pytest.mark.parametrize("which", FOLDERS)
def test_it_says_what_a_stopped_command_has_done_and_how_to_go_on(which, tmp_path):
    files, held = FOLDERS[which]
    written(tmp_path, files)
    said = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert said.exit_code == 0
    assert said.stdout == f"{tmp_path} holds {held}, {STOPPED} from there.\nEvery file that is there is whole.\n"
    assert trisect.check(tmp_path) == []


@pytest.mark.parametrize("which", FOLDERS)
def test_a_damaged_file_of_it_is_named(which, tmp_path):
    files, _ = FOLDERS[which]
    written(tmp_path, files)
    path = tmp_path / [*files][-1]
    path.write_text(path.read_text().replace("{", "[", 1))
    said = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert said.exit_code == 2
    assert said.stderr.startswith(f"trisect: {path} cannot be read.")


def test_a_part_of_a_dissection_that_was_stopped_is_read_too(tmp_path):
    written(tmp_path, {"parts.json": {"seconds": 1.0, "steps": {"recall": {"key": ""}}}, "recall/recall.json": PLAN})
    assert trisect.check(tmp_path) == []
    (tmp_path / "recall" / "recall.json").write_text("{}")
    (error,) = trisect.check(tmp_path)
    assert str(tmp_path / "recall" / "recall.json") in error.given


def test_a_model_that_recall_trained_is_no_folder_of_results(tmp_path):
    written(tmp_path, {"recall.json": PLAN, "config.json": {}})
    said = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert said.exit_code == 2
    assert "holds" not in said.stdout


def test_every_command_that_goes_on_says_by_which_file():
    assert {one.name for one in EXPERIMENTS if one.plan} == {"recall", "translate-train", "dissect"}
    assert {one.name for one in EXPERIMENTS if one.resumable and not one.plan} == {"study"}  # by its ledger
