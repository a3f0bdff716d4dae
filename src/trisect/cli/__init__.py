"""The command line: a command for every experiment, made from its settings, and those for studies, models and texts."""

from __future__ import annotations

from collections.abc import ItemsView
from functools import partial
from typing import Any

import click

from trisect.cli import study
from trisect.cli.group import main
from trisect.cli.options import command, say_result, utility
from trisect.experiments import EXPERIMENT_NAMES, UTILITY_NAMES, find_command

__all__ = ["main", "study"]


class _Commands(dict[str, Any]):
    """Commands by name; one that stands as a function is made by it when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        one = super().__getitem__(name)
        if not isinstance(one, click.Command):
            self[name] = one = one()
        return one

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401

    def items(self) -> ItemsView[str, Any]:
        return {name: self[name] for name in self}.items()


def _command_of(name: str) -> click.Command:
    return command(find_command(name), say_result) if name in EXPERIMENT_NAMES else utility(find_command(name))


main.commands = _Commands(main.commands | {n: partial(_command_of, n) for n in (*EXPERIMENT_NAMES, *UTILITY_NAMES)})
