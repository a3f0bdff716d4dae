"""Flags of every experiment: a recorded command gives the settings back, and command line and Python have one default."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import click
import pytest
from pydantic import Field

from trisect.cli.options import parameters_of, parse_options
from trisect.core.schema import Setting, build, flat, record
from trisect.experiments import EXPERIMENTS
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
