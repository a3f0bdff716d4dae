"""The command line: a command for every experiment, made from its settings, and those for studies, models and texts."""

from trisect.cli import study
from trisect.cli.group import main
from trisect.cli.options import command, say_result, utility
from trisect.experiments import EXPERIMENTS, UTILITIES

for experiment in EXPERIMENTS:
    main.add_command(command(experiment, say_result))
for tool in UTILITIES:
    main.add_command(utility(tool))

__all__ = ["main", "study"]
