"""A study from the command line, from its plan to its page, and again from the folder that it left."""

import json
import re

from click.testing import CliRunner
from tests import tiny

from trisect.cli import main
from trisect.core.spec import plain


def call(*words: str):
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def test_the_tiny_study_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(plain(tiny.EXPERIMENT)))
    plan = call("plan", "tiny.json", "--runs")
    assert plan.exit_code == 0
    assert len([line for line in plan.stdout.splitlines() if re.search(r"-s[12]-[0-9a-f]{8}$", line)]) == 14
    words = (
        "study",
        "tiny.json",
        "--seeds",
        "1",
        "--only",
        "freeze",
        "--sites",
        "v@all",
        "--out",
        "out",
        "--workers",
        "0",
    )
    done = call(*words, "--json")
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert said["runs"] == {"finished": 2}
    assert set(said["verdicts"]) == {f"A-{i}" for i in range(1, 16)}
    again = call(*words)
    assert again.stdout.splitlines()[-1].endswith("out/report.html")
    assert "claims: 15 not tested (" in again.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "trisect study experiment.json" in page
    whole = json.loads((tmp_path / "out" / "experiment.json").read_text())
    assert (whole["seeds"], whole["attack"], whole["freeze"]["sites"]) == ([1], None, ["v@1-2"])
    runs = json.loads(call("plan", "out/experiment.json", "--json").stdout)["runs"]
    assert sorted(runs) == sorted(p.name for p in (tmp_path / "out" / "runs").iterdir())
    assert call("report", "out").stdout.strip().endswith("out/report.html")
    other = call("study", "tiny.json", "--epochs", "1", "--out", "out")
    assert other.exit_code == 2
    assert "training.epochs (there 2, here 1)" in other.stderr
