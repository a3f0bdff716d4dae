"""Check of a folder whose command was stopped: which command it is, how to go on, and what is damaged."""

import pytest
from click.testing import CliRunner

import trisect
from trisect.calls import unfinished
from trisect.cli import main
from trisect.core.files import write_json
from trisect.experiments import EXPERIMENTS
from trisect.lab.experiment import TrainingExperiment
from trisect.lab.run_folder import RunFolder

PLAN = {"seeds": [1, 2], "wall_seconds": 1.0}
FOLDERS = {
    "recall": {"people.json": {}, "recall.json": PLAN},
    "translate-train": {"translation.json": PLAN},
    "lookup": {"text.json": {}, "lookup.json": PLAN},
    "dissect": {"parts.json": {"seconds": 1.0, "steps": {"theory": {"key": "a"}, "roles": {"key": ""}}}},
}


def written(folder, files):
    for name, body in files.items():
        write_json(folder / name, body)


@pytest.mark.parametrize("which", FOLDERS)
def test_it_says_which_command_was_stopped(which, tmp_path):
    written(tmp_path, FOLDERS[which])
    said = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert said.exit_code == 0
    assert f"{tmp_path} has partial results of 'trisect {which}'" in said.stdout
    assert "Every file that is there is whole." in said.stdout
    assert trisect.check(tmp_path) == []


@pytest.mark.parametrize("which", FOLDERS)
def test_a_damaged_file_of_it_is_named(which, tmp_path):
    written(tmp_path, FOLDERS[which])
    for name in FOLDERS[which]:
        path = tmp_path / name
        whole = path.read_text()
        path.write_text(whole.replace("{", "[", 1))
        (error,) = trisect.check(tmp_path)
        assert error.problem == f"{path} cannot be read."
        assert ("away" in error.todo) == (name in ("recall.json", "translation.json", "lookup.json", "parts.json"))
        assert CliRunner().invoke(main, ["check", str(tmp_path)]).exit_code == 2
        path.write_text(whole)


def test_parts_of_a_dissection_are_read_too_whether_they_were_stopped_or_ended(tmp_path):
    written(tmp_path, {"parts.json": {"seconds": 1.0, "steps": {}}, "recall/recall.json": PLAN})
    folder = RunFolder(tmp_path / "norms" / "seed-1")
    with folder.stage() as stage:
        (stage / "report.html").write_text("page")
        folder.commit(stage, "norms", "0" * 32)
    assert trisect.check(tmp_path) == []
    (tmp_path / "recall" / "recall.json").write_text("{}")
    (folder.path / "report.html").write_text("altered")
    given = sorted(error.problem for error in trisect.check(tmp_path))
    assert [str(folder.path / "report.html") in given[0], str(tmp_path / "recall" / "recall.json") in given[1]] == [
        True
    ] * 2


def test_a_folder_whose_command_ended_is_not_unfinished(tmp_path):
    written(tmp_path, {"recall.json": PLAN, "recall-results.json": {}})
    assert unfinished(tmp_path) == "recall"
    (one,) = (one for one in EXPERIMENTS if one.name == "recall")
    write_json(tmp_path / one.record, {})
    assert unfinished(tmp_path) == ""


def test_a_model_that_recall_trained_is_no_folder_of_results(tmp_path):
    written(tmp_path, {"recall.json": PLAN, "config.json": {}})
    said = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert said.exit_code == 2
    assert "holds" not in said.stdout


def test_every_command_that_goes_on_says_by_which_file():
    assert {one.name for one in EXPERIMENTS if one.plan} == {"lookup", "recall", "translate-train", "dissect"}
    assert {one.name for one in EXPERIMENTS if isinstance(one, TrainingExperiment) and not one.plan} == {
        "study"
    }  # by its ledger
