"""The command line: a command for every experiment, made from its settings, and commands for studies, models and texts."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import click

from trisect.cli import study
from trisect.cli.group import main
from trisect.cli.options import experiment_command, utility_command
from trisect.experiments import EXPERIMENT_NAMES, UTILITY_NAMES, find_command

__all__ = ["main", "study"]


class _Commands(UserDict[str, Any]):
    """Commands by name, created on demand: the value of an experiment or a utility is None until then."""

    def __getitem__(self, name: str) -> click.Command:
        if self.data[name] is None:
            target: Any = find_command(name)
            self.data[name] = experiment_command(target) if name in EXPERIMENT_NAMES else utility_command(target)
        return self.data[name]


main.commands = _Commands({**main.commands, **dict.fromkeys((*EXPERIMENT_NAMES, *UTILITY_NAMES))})
