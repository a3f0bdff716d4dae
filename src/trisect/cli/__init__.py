"""The command line: a command for every experiment, made from its settings, and commands for studies, models and texts."""

from __future__ import annotations

from collections import UserDict
from functools import partial
from typing import Any

import click

from trisect.cli import study
from trisect.cli.group import main
from trisect.cli.options import command, say_result, utility
from trisect.experiments import EXPERIMENT_NAMES, UTILITY_NAMES, find_command

__all__ = ["main", "study"]


class _Commands(UserDict[str, Any]):
    """Commands by name, created on demand."""

    def __getitem__(self, name: str) -> click.Command:
        command = self.data[name]
        if not isinstance(command, click.Command):
            self.data[name] = command = command()
        return command


def _command_of(name: str) -> click.Command:
    target: Any = find_command(name)
    return command(target, say_result) if name in EXPERIMENT_NAMES else utility(target)


_LATE = {name: partial(_command_of, name) for name in (*EXPERIMENT_NAMES, *UTILITY_NAMES)}
main.commands = _Commands({**main.commands, **_LATE})
