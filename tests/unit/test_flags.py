"""Settings of every experiment: a recorded command gives flags back, and Python takes all but the first two by name."""

from __future__ import annotations

import inspect
import shlex
from typing import Annotated, Any

import click
import pytest
from pydantic import Field

import trisect
from trisect.cli.options import parameters_of, parse_options
from trisect.core.errors import SpecError
from trisect.core.schema import Setting, build, flat, record
from trisect.experiments import EXPERIMENTS, UTILITIES
from trisect.lab.command import command_of
from trisect.lab.experiment import Experiment

FLAGS = [
    pytest.param(experiment, one, id=f"{experiment.name}-{one.name}")
    for experiment in EXPERIMENTS
    for one in flat(experiment.settings)
    if one.kind is bool and one.words
]


def alone(one: Setting) -> type[Any]:
    """Settings of that flag alone."""
    hint: Any = Annotated[bool, Field(description=one.help), one.option]
    own = {"__annotations__": {one.name: hint | None if one.optional else hint}, one.name: one.default}
    return record(type("Alone", (), own))


def from_words(settings: type[Any], words: list[str]) -> Any:
    context = click.Command("alone", params=parameters_of(settings)).make_context("alone", words)
    return build(settings, parse_options(settings, context.params))


@pytest.mark.parametrize(("experiment", "one"), FLAGS)
def test_a_flag_comes_back_from_the_recorded_command(experiment: Experiment[Any, Any], one: Setting):
    settings = alone(one)
    for value in (True, False):
        words = shlex.split(command_of(experiment.name, settings(value)))[2:]
        assert getattr(from_words(settings, words), one.name) is value
    assert bool(getattr(from_words(settings, []), one.name)) is bool(one.default)


BY_PLACE = {  # what may be given without its name: the model, and what is read or asked
    "ablate": ["model", "texts"],
    "align": ["models", "source"],
    "ask": ["model", "question"],
    "audit": ["model", "handle"],
    "bench": ["files"],
    "compare": ["models", "texts"],
    "compose": ["model", "pairs"],
    "dissect": [],
    "erase": ["model", "corpus"],
    "explore_page": ["model", "text"],
    "lookup": [],
    "norms": ["model", "texts"],
    "patch": ["model", "pairs"],
    "plan": ["experiment"],
    "profile": ["model", "corpus"],
    "quantise": ["model", "texts"],
    "recall": ["data"],
    "rewind": ["model", "texts"],
    "similarity": ["model", "texts"],
    "study": ["experiment"],
    "theory_page": ["names"],
    "translate_train": ["data"],
}


@pytest.mark.parametrize("command", [*EXPERIMENTS, *UTILITIES], ids=lambda command: command.python)
def test_a_function_takes_the_model_and_what_it_reads_by_place_and_all_else_by_name(command):
    """So a new setting between others breaks no call."""
    function = getattr(trisect, command.python)
    by_name = inspect.Parameter.KEYWORD_ONLY
    parameters = inspect.signature(function).parameters
    assert [name for name, one in parameters.items() if one.kind is not by_name] == BY_PLACE[command.python]
    with pytest.raises(TypeError, match="too many positional arguments"):
        function(*("w1" for _ in BY_PLACE[command.python]), "w1")


@pytest.mark.parametrize("name", ["patch", "compose"])
def test_a_file_of_pairs_is_named_in_python_as_on_the_command_line(name, tmp_path):
    settings = next(one.settings for one in EXPERIMENTS if one.name == name)
    file = tmp_path / "pairs.json"
    for pairs in (str(file), file):
        assert build(settings, {"model": "m", "pairs": pairs}).pairs == pairs
    with pytest.raises(SpecError, match=r"(?s)pairs is \[\('w1', 'w2'\)\].*those in memory are given as given="):
        build(settings, {"model": "m", "pairs": [("w1", "w2")]})
    with pytest.raises(trisect.TrisectError, match=r"pairs\.json"):
        getattr(trisect, name)("m", str(file), quiet=True)
