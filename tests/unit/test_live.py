"""What is said of work as it goes on: the live display, and steps on lines where there is no terminal."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests import tinyhf

from trisect.cli import main
from trisect.core.errors import on_step, report_step
from trisect.hf.load import load
from trisect.lab import jobs
from trisect.lab.jobs import STEADY_SECONDS, STEADY_SHARE, Pace, bar, clock, remaining_words, screen, track_jobs


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr("trisect.lab.jobs.Console", partial(Console, force_terminal=True, width=120))


def shown(display):
    return [task.description.strip() for task in display.progress.tasks if task.visible]


def test_the_rest_takes_what_is_expected_at_first_and_then_as_long_as_until_now():
    time = Clock()
    pace = Pace({"a": 30.0, "b": 60.0, "c": 10.0}, time)
    assert (pace.fraction(), pace.seconds_left()) == (0.0, 100.0)
    pace.begin("a")
    time.now += 60
    pace.end()  # twice as long as expected
    assert (pace.fraction(), pace.seconds_left()) == (pytest.approx(0.3), pytest.approx(140.0))
    pace.begin("b")
    pace.begin_step(0.5, 0.5)
    pace.move(0.5)
    assert pace.fraction() == pytest.approx(0.75)
    assert pace.words() == "75\u00a0%  1 of 3 parts, about 20 s left"
    pace.end()
    pace.begin("c")
    pace.end()
    assert (pace.fraction(), pace.seconds_left()) == (1.0, 0.0)


def test_the_time_left_is_hidden_until_the_pace_is_steady():
    assert remaining_words(90, 0.5, 30) == f", about {clock(90)} left"
    assert remaining_words(90, STEADY_SHARE / 2, 30) == remaining_words(90, 0.5, STEADY_SECONDS / 2) == ""
    time = Clock()
    pace = Pace({"a": 30.0, "b": 60.0}, time)
    pace.begin("a")
    time.now += 2
    pace.move(0.9)
    assert pace.words() == "30\u00a0%  0 of 2 parts"


def test_a_part_that_was_there_already_is_no_work_and_says_nothing_of_the_pace():
    time = Clock()
    pace = Pace({"a": 90.0, "b": 10.0}, time)
    pace.begin("a")
    pace.end(fresh=False)
    assert (pace.fraction(), pace.seconds_left(), pace.ended) == (0.0, 10.0, 1)
    pace.begin("b")
    pace.end(fresh=False)
    assert (pace.fraction(), pace.seconds_left()) == (1.0, 0.0)


def test_the_first_line_is_there_exactly_while_no_other_is(terminal, capsys):
    with screen("trisect norms") as outer:
        assert outer is not None
        assert shown(outer) == ["trisect norms"]
        with bar("reading") as step:
            step(1, 4)
            assert shown(outer) == ["reading"]
        with screen("another") as inner:
            assert inner is outer
            assert shown(outer) == ["trisect norms"]
    assert "trisect norms" in capsys.readouterr().err
    with screen("a new one") as later:
        assert later is not outer
    capsys.readouterr()


def test_work_below_the_whole_moves_its_line(terminal, capsys):
    with screen("trisect dissect") as display, track_jobs("dissect", {"a": 3.0, "b": 1.0}, False) as pace:
        assert display is not None
        with jobs.part(pace, "a", "The first part", False):
            assert shown(display) == ["dissect", "The first part"]
            with bar("reading") as step:
                step(1, 2)
                assert pace.fraction() == pytest.approx(3 / 8)
                assert display.progress.tasks[1].completed == pytest.approx(3 / 8)
        pace.end()
        assert pace.fraction() == 0.75
    assert "dissect" in capsys.readouterr().err
    with screen("trisect norms") as display, bar("reading") as step:
        step(1, 2)  # no whole to move any more
        assert display is not None
        assert display.pace is None
    capsys.readouterr()


def test_nothing_is_shown_where_it_is_to_be_quiet_or_there_is_no_terminal(capsys, terminal, monkeypatch):
    with screen("x", quiet=True) as none, bar("y", quiet=True) as step, track_jobs("z", {"a": 1.0}, True) as pace:
        step(1, 2)
        with jobs.part(pace, "a", "A", True):
            assert none is None
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("trisect.lab.jobs.Console", Console)
    steps: list[str] = []
    with screen("x", line=steps.append) as none, track_jobs("z", {"a": 1.0, "b": 1.0}, False) as pace:
        for name in ("a", "b"):
            with jobs.part(pace, name, name.upper(), False):
                assert none is None
            pace.end()
    assert steps == ["A (1 of 2 parts) …", "B (2 of 2 parts) …"]


def test_seconds_in_words():
    assert [clock(s) for s in (0.4, 89, 95, 88.6 * 60, 185 * 60)] == ["0 s", "89 s", "2 min", "89 min", "3 h 05 min"]


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
