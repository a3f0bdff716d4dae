"""Steps of work are said as they begin: on lines where there is no terminal, and to nobody unless somebody asked."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from tests import tinyhf

from trisect.cli import main
from trisect.core.errors import on_step, report_step
from trisect.hf.load import load


def test_a_step_is_said_to_whoever_shows_progress_and_to_nobody_else():
    shown: list[str] = []
    report_step("before")
    with on_step(shown.append):
        report_step("one")
        with on_step(lambda words: shown.append(words.upper())):
            report_step("two")
        report_step("three")
    report_step("after")
    assert shown == ["one", "TWO", "three"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Any:
    return tinyhf.save(tinyhf.gpt2(), tmp_path_factory.mktemp("models") / "tiny", False)


def test_loading_verifying_and_reading_are_lines_of_standard_error_without_a_terminal(folder, tmp_path):
    texts = ["--text", "w1 w2 w3", "--text", "w4 w5"]
    words = ["ablate", str(folder), *texts, "--sites", "v@1", "--out", str(tmp_path / "a")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    said = done.stderr.splitlines()
    assert [line.split()[0] for line in said] == ["Loading", "Verifying", "Mean"]
    assert all(line.endswith(" …") for line in said)
    assert "…" not in "".join(line for line in done.stdout.splitlines() if line.startswith(("Loading", "Verifying")))
    quiet = CliRunner().invoke(main, [*words[:-1], str(tmp_path / "b"), "--quiet"])
    assert quiet.exit_code == 0
    assert quiet.stderr == ""


def test_python_says_nothing_without_a_terminal(folder, capsys):
    load(folder)
    assert capsys.readouterr().err == ""
