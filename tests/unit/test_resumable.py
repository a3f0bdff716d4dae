"""Folders that are gone on with: experiments, what a stopped command left, and which folder is a study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from click.testing import CliRunner
from pydantic import Field
from tests import tiny

import trisect
from trisect import api
from trisect.cli.options import experiment_command, parameters_of, parse_options, utility_command
from trisect.core.errors import SpecError, StudyError
from trisect.core.files import write_json
from trisect.core.finding import Finding
from trisect.core.machine import Machine
from trisect.core.schema import MAX_INT, Option, build, flat_settings, read_word, record
from trisect.core.spec import to_json_data
from trisect.lab import driver, records
from trisect.lab.driver import check_page
from trisect.lab.experiment import Measured, RunContext, TrainingExperiment, Utility
from trisect.lab.inputs import Seeds
from trisect.lab.run_folder import is_study


@record
class Counting:
    """How far is counted."""

    settings: (
        Annotated[
            Mapping[str, Any],
            Field(description="Other values."),
            Option(name="set", many="pairs", metavar="NAME=VALUE"),
        ]
        | None
    ) = None
    seeds: Seeds = (1, 2)


@dataclass(frozen=True)
class Counted:
    """What was counted."""

    many: int


@record
class Greeting:
    """Whom to greet."""

    name: Annotated[str, Field(description="A name."), Option(argument=True)]
    times: Annotated[int, Field(description="How often.", ge=1, le=MAX_INT)] = 1


class Count:
    """A number in a file that each call makes larger by its seeds; a folder with a file 'other' is refused."""

    name = ""

    def __init__(self, settings: Counting, machine: Machine) -> None:
        self.settings = settings

    def check(self, folder: Path) -> None:
        if (folder / "other").exists():
            raise StudyError("There is 'other'.", "It is not ours.", "Choose another folder.")

    def folders_of(self, folder: Path) -> list[Path]:
        return [folder]

    def measure(self, context: RunContext) -> Measured[Counted]:
        path = context.folder / "count.txt"
        many = (int(path.read_text()) if path.exists() else 0) + len(self.settings.seeds)
        path.write_text(str(many))
        whole = Counting(self.settings.settings, tuple(range(1, many + 1)))
        return Measured(
            {}, Counted(many), ("A note.",), seconds=7.0, paths={"one": path}, command=records.command("count", whole)
        )


class Greeted:
    def __init__(self, settings: Greeting) -> None:
        self.settings = settings

    def words(self) -> list[str]:
        return [f"Hello {self.settings.name}"] * self.settings.times

    def data(self) -> dict[str, Any]:
        return {"name": self.settings.name}


class CountUp(TrainingExperiment[Counting, Counted]):
    """Count."""

    name = "count"
    settings = Counting
    facts = Counted
    paged = False
    makes = "counters"

    def prepare(self, settings, machine):
        return Count(settings, machine)

    def findings(self, tables, about):
        return [Finding("count", f"{about.facts.many} in all.")]


class Greet(Utility[Greeting]):
    """Greet."""

    name = "greet"
    settings = Greeting

    @property
    def gives(self):
        return Greeted

    def answer(self, settings):
        return Greeted(settings)


COUNT, GREET = CountUp(), Greet()


def test_work_goes_on_over_calls_and_its_command_repeats_them_all(tmp_path):
    first = driver.run(COUNT, Counting({"a": 1}, (3,)), tmp_path, quiet=True)
    assert (first.about.command, first.about.seconds) == ("trisect count --set a=1 --seeds 1,", 7.0)
    again = driver.run(COUNT, Counting(), tmp_path, quiet=True)
    assert again.about.facts == Counted(3)
    assert again.about.command == "trisect count --seeds 1,2,3"
    assert driver.read_about(COUNT, tmp_path) == again.about
    assert driver.render(COUNT, tmp_path).findings == again.findings


def test_scratch_files_of_killed_processes_are_removed_in_its_own_folders(tmp_path):
    (tmp_path / ".x.txt.12-0123abcd.trisect-part").write_text("half")
    driver.run(COUNT, Counting(), tmp_path, quiet=True)
    assert not (tmp_path / ".x.txt.12-0123abcd.trisect-part").exists()


def test_a_folder_that_is_refused_stays_as_it_was(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / ".x.txt.12-0123abcd.trisect-part").write_text("half")
    calls = (
        lambda: driver.prepare_work(COUNT, Counting()).check(tmp_path),
        lambda: driver.run(COUNT, Counting(), tmp_path),
    )
    for call in calls:
        with pytest.raises(StudyError, match="There is 'other'"):
            call()
        assert sorted(path.name for path in tmp_path.iterdir()) == [".x.txt.12-0123abcd.trisect-part", "other"]


def test_without_a_page_the_terminal_says_what_was_made(tmp_path):
    shown = CliRunner().invoke(experiment_command(COUNT), ["--out", str(tmp_path / "a"), "--seeds", "3"])
    assert shown.stdout.splitlines() == ["3 in all.", "A note.", f"counter  {tmp_path / 'a' / 'count.txt'}"]
    shown = CliRunner().invoke(experiment_command(COUNT), ["--out", str(tmp_path / "b"), "--json"])
    body = json.loads(shown.stdout)
    assert body["counters"] == [str(tmp_path / "b" / "count.txt")]
    assert body["notes"] == ["A note."]
    assert "report" not in body
    assert not list((tmp_path / "a").glob("*.html"))


def test_values_with_names_are_read_and_checked():
    def words(*given: str) -> Counting:
        made = click.Command("count", params=parameters_of(Counting))
        return build(Counting, parse_options(Counting, made.make_context("count", list(given)).params))

    assert words("--set", "a=1", "--set", "b = x=y") == Counting({"a": "1", "b": "x=y"})
    assert words() == Counting()
    with pytest.raises(SpecError) as error:
        words("--set", "a")
    assert error.value.problem == "--set a was given."
    with pytest.raises(SpecError) as error:
        build(Counting, {"settings": "a=1"})
    assert error.value.problem == "settings is 'a=1'."


def test_seeds_are_their_number_where_they_are_counted_from_one():
    (seeds,) = (one for one in parameters_of(Counting) if one.name == "seeds")
    assert seeds.default == ["2"]
    assert api.signature(COUNT).parameters["seeds"].default == (1, 2)


@pytest.mark.parametrize(("given", "value"), [("2", 2), (2, 2), (2.0, 2)])
def test_a_value_may_be_a_word_that_says_it(given, value):
    times = flat_settings(Greeting)[1]
    assert read_word(times, given) == value
    for wrong in ("two", "2.5", 2.5, "0", None, float("inf")):
        with pytest.raises(SpecError, match="times is "):
            read_word(times, wrong)


def test_a_utility_is_a_command_and_a_function():
    shown = CliRunner().invoke(utility_command(GREET), ["Ada", "--times", "2"])
    assert shown.stdout.splitlines() == ["Hello Ada", "Hello Ada"]
    assert json.loads(CliRunner().invoke(utility_command(GREET), ["Ada", "--json"]).stdout) == {"name": "Ada"}
    greet = api.function(GREET)
    assert list(greet("Ada", times=3).words()) == ["Hello Ada"] * 3
    assert "times: How often." in str(greet.__doc__)
    with pytest.raises(SpecError, match="times is 0"):
        greet("Ada", times=0)


def test_a_page_lies_beside_a_statement(tmp_path):
    (tmp_path / "study.json").write_text(json.dumps(to_json_data(tiny.EXPERIMENT)))
    assert not is_study(tmp_path)
    check_page(tmp_path / "page.html", "explore")
    assert trisect.plan(tmp_path / "study.json").runs


def test_no_study_is_begun_over_it(tmp_path):
    statement = tmp_path / "study.json"
    statement.write_text(json.dumps(to_json_data(tiny.EXPERIMENT)))
    before = statement.read_bytes()
    with pytest.raises(StudyError) as error:
        trisect.study(statement, out=tmp_path, quiet=True)
    assert str(tmp_path) in error.value.problem
    assert statement.read_bytes() == before


@pytest.mark.parametrize("content", ["{", "", "null", "{}", '{"body": {}, "checksum": ""}', '{"a": {"body": 1}}'])
def test_what_may_be_a_ledger_is_one(tmp_path, content):
    (tmp_path / "study.json").write_text(content)
    assert is_study(tmp_path)
    with pytest.raises(StudyError, match=r"A study or a run lies in"):
        check_page(tmp_path / "page.html", "explore")


def test_so_is_a_ledger_and_its_copy(tmp_path):
    write_json(tmp_path / "study.json", {"runs": []})
    assert is_study(tmp_path)
    (tmp_path / "study.json").rename(tmp_path / "study.copy.json")
    assert is_study(tmp_path)
    (tmp_path / "study.json").write_text(json.dumps(to_json_data(tiny.EXPERIMENT)))
    assert is_study(tmp_path)
